"""Templates in the manner of the families in use, and conversations, for make_template_goldens.py."""

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Current weather \"now\" <b>",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Köln, 東京 or 'Paris'"},
                "items": {"type": "array", "items": {"type": "number"}, "default": [1.0, 2]},
                "unit": {"type": ["string", "null"], "enum": ["C", "F", None]},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
BARE = {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}, "strict": True}}


def call(arguments, name="weather", **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}} | more


SYSTEM = {"role": "system", "content": "  You are brief.\nAlways. "}
USER = {"role": "user", "content": "Hi there"}
ANSWER = {"role": "assistant", "content": "Hello!\n"}
ASK = {"role": "user", "content": "Weather in Köln?"}
CALL = {"role": "assistant", "content": "", "tool_calls": [call({"city": "Köln", "items": [1.0, 2e-07], "deep": {"a": None, "b": True}})]}
RESULT = {"role": "tool", "content": "{\"temp\": 7.0}", "tool_call_id": "abc123def", "name": "weather"}


def chat(*messages, tools=None, **more):
    return {"messages": list(messages), "tools": tools, "add_generation_prompt": True} | more


CONVERSATIONS = {
    "plain": chat(USER),
    "system": chat(SYSTEM, USER, ANSWER, {"role": "user", "content": "Bye\n\n"}),
    "finished": chat(USER, ANSWER, add_generation_prompt=False),
    "tools": chat(SYSTEM, ASK, tools=[TOOL, BARE]),
    "called": chat(ASK, CALL, RESULT, tools=[TOOL]),
    "calls": chat(
        SYSTEM, ASK,
        {"role": "assistant", "content": None, "tool_calls": [call("{\"city\": \"Bonn\"}", id="call00001"), call({}, "now", id="call00002")]},
        RESULT, {"role": "tool", "content": "noon", "tool_call_id": "call00002", "name": "now"},
        {"role": "assistant", "content": "7 degrees"}, {"role": "user", "content": "Thanks"}, tools=[TOOL, BARE]),
    "thought": chat(USER, {"role": "assistant", "content": "<think>\nhm, so\n</think>\n\nYes."}, {"role": "user", "content": "Sure?"}, enable_thinking=True),
    "reasoned": chat(USER, CALL | {"reasoning_content": "I need\nthe weather.\n"}, RESULT, tools=[TOOL], enable_thinking=False),
    "empty": chat({"role": "system", "content": ""}, {"role": "user", "content": ""}, {"role": "assistant", "content": ""}, USER),
    "parts": chat({"role": "system", "content": [{"type": "text", "text": "Sys"}]}, {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}),
    "strange": chat({"role": "user", "content": "\"q\" 'a' \\ <|im_end|> {{ x }} ß日😀\r\n\ttab\u00a0\u2028"}, {"role": "assistant", "content": " \n"}, {"role": "user", "content": "ok"}),
    "order": chat(USER, USER, ANSWER, SYSTEM),
    "unknown": chat({"role": "narrator", "content": "Once"}),
}

TEMPLATES = {
    "chatml": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe of help.<|im_end|>\\n' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "hermes": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'Be of help.' }}
    {%- endif %}
    {{- "\\n\\nFunctions:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\nAnswer as <tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <object>}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "thinker": """{%- macro text_of(content) -%}
    {%- if content is string -%}{{- content -}}
    {%- elif content is iterable and content is not mapping -%}
        {%- for part in content -%}
            {%- if part.type == 'text' or 'text' in part -%}{{- part.text -}}{%- else -%}{{- raise_exception('only text') -}}{%- endif -%}
        {%- endfor -%}
    {%- elif content is none or content is undefined -%}{{- '' -}}
    {%- else -%}{{- raise_exception('content of an unknown kind') -}}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(open=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- set content = text_of(message.content) | trim %}
    {%- if ns.open and message.role == 'user' and not (content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}
        {%- set ns.open = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- if ns.open %}{{- raise_exception('nobody asked: ' ~ messages[0].role) }}{%- endif %}
{%- for message in messages %}
    {%- set content = text_of(message.content) | trim %}
    {%- if message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- set reasoning = reasoning | trim %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last or (loop.last and reasoning) %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- if message.tool_calls and message.tool_calls is iterable and message.tool_calls is not mapping %}
            {%- for tool_call in message.tool_calls %}
                {%- set tool_call = tool_call.function if tool_call.function is defined else tool_call %}
                {%- if loop.first and content %}{{- '\\n\\n' }}{%- elif not loop.first %}{{- '\\n' }}{%- endif %}
                {{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}
                {%- if tool_call.arguments is defined %}
                    {%- for name, value in tool_call.arguments | items %}
                        {{- '<parameter=' + name + '>\\n' }}
                        {{- (value | tojson | safe) if value is mapping or (value is sequence and value is not string) else value | string }}
                        {{- '\\n</parameter>\\n' }}
                    {%- endfor %}
                {%- endif %}
                {{- '</function>\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role != 'tool' or loop.last %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role in ['user', 'system'] %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- else %}
        {{- raise_exception('no such role') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}""",
    "coder": """{%- macro rest(fields, known) %}
    {%- if fields is mapping %}
        {%- for key in fields if key not in known %}
            {%- if fields[key] is mapping or (fields[key] is sequence and fields[key] is not string) %}
                {{- '\\n<' ~ key ~ '>' ~ (fields[key] | tojson | safe) ~ '</' ~ key ~ '>' }}
            {%- else %}
                {{- '\\n<' ~ key ~ '>' ~ (fields[key] | string) ~ '</' ~ key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{% endmacro %}
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = [] %}{%- endif %}
{%- if system_message is defined or (tools is iterable and tools | length > 0) %}
    {{- '<|im_start|>system\\n' ~ (system_message | default('You can call functions.')) }}
    {%- if tools is iterable and tools | length > 0 %}
        {{- '\\n\\n<tools>' }}
        {%- for tool in tools %}
            {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
            {{- '\\n<function>\\n<name>' ~ tool.name ~ '</name>' }}
            {%- if tool.description is defined %}{{- '\\n<description>' ~ (tool.description | trim) ~ '</description>' }}{%- endif %}
            {{- '\\n<parameters>' }}
            {%- if tool.parameters is defined and tool.parameters is mapping and tool.parameters.properties is defined and tool.parameters.properties is mapping %}
                {%- for name, fields in tool.parameters.properties | items %}
                    {{- '\\n<parameter>\\n<name>' ~ name ~ '</name>' }}
                    {%- if fields.type is defined %}{{- '\\n<type>' ~ (fields.type | string) ~ '</type>' }}{%- endif %}
                    {{- rest(fields, ['name', 'type']) }}
                    {{- '\\n</parameter>' }}
                {%- endfor %}
            {%- endif %}
            {{- rest(tool.parameters, ['type', 'properties']) }}
            {{- '\\n</parameters>' }}
            {{- rest(tool, ['type', 'name', 'description', 'parameters']) }}
            {{- '\\n</function>' }}
        {%- endfor %}
        {{- '\\n</tools>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in turns %}
    {%- if message.role == "assistant" and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}
            {{- '\\n' + message.content | trim + '\\n' }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}
            {%- if tool_call.arguments is defined %}
                {%- for key, value in tool_call.arguments | items %}
                    {{- '<parameter=' + key + '>\\n' }}
                    {%- set value = value if value is string else value | string %}
                    {{- value }}
                    {{- '\\n</parameter>\\n' }}
                {%- endfor %}
            {%- endif %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "user" or message.role == "system" or message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>user\\n' }}{%- endif %}
        {{- '<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>\\n' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}{{- '<|im_end|>\\n' }}{%- elif loop.last %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
""",
    "headers": """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content'] | trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("No first user message to put tools in!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nUse these:\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("Only one call at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "pythonic": """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}{%- set system_message = messages[0]['content'] | trim %}
    {%- else %}{%- set system_message = messages[0]['content'][0]['text'] | trim %}{%- endif %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- "<|header_start|>system<|header_end|>\\n\\n" ~ (system_message or 'None given') ~ "<|eot|>" }}
{%- for message in messages %}
    {{- '<|header_start|>' + message['role'] + '<|header_end|>\\n\\n' }}
    {%- if message['content'] is string %}
        {{- message['content'] }}
    {%- elif message['content'] %}
        {%- for content in message['content'] %}
            {%- if content['type'] == 'image' %}{{- '<|image|>' }}{%- elif content['type'] == 'text' %}{{- content['text'] | trim }}{%- endif %}
        {%- endfor %}
    {%- endif %}
    {%- if 'tool_calls' in message and message.tool_calls | length > 0 %}
        {{- '<|python_start|>[' }}
        {%- for call in message.tool_calls %}
            {{- call.function.name ~ '(' }}
            {%- if call.function.arguments is mapping %}
                {%- for param in call.function.arguments %}
                    {{- param ~ '=' }}
                    {{- "%s" | format(call.function.arguments[param]) }}
                    {%- if not loop.last %}{{- ', ' }}{%- endif %}
                {%- endfor %}
            {%- endif %}
            {{- ')' ~ (', ' if not loop.last else '') }}
        {%- endfor %}
        {{- ']<|python_end|>' }}
    {%- endif %}
    {{- "<|eot|>" }}
{%- endfor %}
{{- '<|header_start|>assistant<|header_end|>\\n\\n' if add_generation_prompt }}""",
    "inst": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val | tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}{%- else %}{%- set content = message.content %}{%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content | string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported!") }}
    {%- endif %}
{%- endfor %}
""",
    "sys_tags": """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "turns": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
""",
    "end_tags": """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}""",
    "zephyr": """{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}""",
    "bars": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<|User|>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' in message %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{%- if message['content'] is none %}{{'<|Assistant|><|calls|><|call|>' + tool['type'] + '<|sep|>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] + '\\n' + '```' + '<|end|>'}}{%- else %}{{'<|Assistant|>' + message['content'] + '<|calls|>' + tool['function']['name'] + (tool['function']['arguments'] | tojson) + '<|end|>'}}{%- endif %}{%- set ns.is_first = true -%}{%- else %}{{'\\n' + '<|call|>' + tool['type'] + '<|sep|>' + tool['function']['name'] ~ tool['function']['arguments'] ~ '<|end|>'}}{%- endif %}{%- endfor %}{{'<|calls_end|>'}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' not in message %}{%- if ns.is_tool %}{{'<|outputs_end|>' + message['content'] + '<|stop|>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<|Assistant|>' + content + '<|stop|>'}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<|outputs|><|output|>' + message['content'] + '<|output_end|>'}}{%- set ns.is_output_first = false %}{%- else %}{{'<|output|>' + message['content'] + '<|output_end|>'}}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<|outputs_end|>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<|Assistant|>'}}{% endif %}""",
    "channels": """{%- macro type_of(spec, depth=0) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}{{ type_of(spec['items'], depth + 1) }}[]{%- else -%}any[]{%- endif -%}
        {%- if spec.nullable %} | null{% endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping and spec.type[0] is defined -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.type == "string" -%}
        {%- if spec.enum %}{{- '"' + spec.enum | join('" | "') + '"' -}}{%- else %}{{- "string" }}{%- endif %}
    {%- elif spec.type == "number" or spec.type == "integer" -%}
        {{- "number" }}
    {%- elif spec.type == "object" -%}
        {%- if spec.properties -%}
            {{- "{\\n" }}
            {%- for name, inner in spec.properties.items() %}
                {{- name }}{%- if name not in (spec.required or []) %}{{- "?" }}{%- endif %}{{- ": " }}
                {{ type_of(inner, depth + 1) }}
                {%- if not loop.last %}{{- ", " }}{%- endif -%}
            {%- endfor %}
            {{- "\\n}" }}
        {%- else -%}{{- "object" }}{%- endif -%}
    {%- else -%}{{- "any" }}{%- endif -%}
{%- endmacro -%}
{%- macro namespace_of(tools) -%}
    {{- "namespace functions {\\n\\n" }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\\n" }}
        {{- "type " + tool.name + " = " }}
        {%- if tool.parameters and tool.parameters.properties %}
            {{- "(_: {\\n" }}
            {%- for name, spec in tool.parameters.properties.items() %}
                {%- if spec.description %}{{- "// " + spec.description + "\\n" }}{%- endif %}
                {{- name }}{%- if name not in (tool.parameters.required or []) %}{{- "?" }}{%- endif %}{{- ": " }}
                {{- type_of(spec) }}
                {%- if spec.default is defined %}
                    {%- if spec.enum %}{{- ", // default: " + spec.default }}{%- elif spec.default is string %}{{- ", // default: \\"" + spec.default + "\\"" }}{%- else %}{{- ", // default: " + spec.default | tojson }}{%- endif %}
                {%- endif -%}
                {%- if not loop.last %}{{- ",\\n" }}{%- else %}{{- ",\\n" }}{%- endif -%}
            {%- endfor %}
            {{- "}) => any;\\n\\n" }}
        {%- else -%}{{- "() => any;\\n\\n" }}{%- endif -%}
    {%- endfor %}
    {{- "} // namespace functions" }}
{%- endmacro -%}
{{- "<|start|>system<|message|>Date: " + strftime_now("%Y-%m-%d") + "\\nReasoning: " + (reasoning_effort | default("medium")) + "<|end|>" }}
{%- if tools -%}{{- "<|start|>developer<|message|># Tools\\n\\n" }}{{- namespace_of(tools) }}{{- "<|end|>" }}{%- endif -%}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "content" in message and message.content and ("<|channel|>analysis" in message.content or "<|channel|>final" in message.content) %}
            {{- raise_exception("tags in the content") }}
        {%- endif %}
        {%- if "tool_calls" in message %}
            {%- set future_final = namespace(found=false) %}
            {%- for later in messages[loop.index:] %}
                {%- if later.role == 'assistant' and "tool_calls" not in later %}{%- set future_final.found = true %}{%- endif %}
            {%- endfor %}
            {%- if message.reasoning_content and not future_final.found %}{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.reasoning_content + "<|end|>" }}{%- endif %}
            {%- set tool_call = message.tool_calls[0].function %}
            {{- "<|start|>assistant to=functions." + tool_call.name + "<|channel|>commentary json<|message|>" }}
            {{- tool_call.arguments | tojson }}
            {{- "<|call|>" }}
            {%- set last_tool_call.name = tool_call.name %}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + ("<|return|>" if loop.last and not add_generation_prompt else "<|end|>") }}
            {%- set last_tool_call.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}{{- raise_exception("Message has tool role, but there was no previous assistant message with a tool call!") }}{%- endif %}
        {{- "<|start|>functions." + last_tool_call.name + " to=assistant<|channel|>commentary<|message|>" + message.content | tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}""",
    "observer": """[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools

<tools>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
</tools>{%- endif -%}
{%- macro visible_text(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}
                {{- item.text }}
            {%- elif item is string -%}
                {{- item }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user_index=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {% set ns.last_user_index = loop.index0 -%}
    {%- endif %}
{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible_text(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set reasoning_content = '' %}
{%- set content = visible_text(m.content) %}
{%- if m.reasoning_content is string %}
    {%- set reasoning_content = m.reasoning_content %}
{%- else %}
    {%- if '</think>' in content %}
        {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
{%- endif %}
{%- if loop.index0 > ns.last_user_index and reasoning_content -%}
{{ '\\n<think>' + reasoning_content.strip() + '</think>'}}
{%- else -%}
{{ '\\n<think></think>' }}
{%- endif -%}
{%- if content.strip() -%}
{{ '\\n' + content.strip() }}
{%- endif -%}
{% if m.tool_calls %}
{% for tc in m.tool_calls %}
{%- if tc.function %}
    {%- set tc = tc.function %}
{%- endif %}
{{ '\\n<tool_call>' + tc.name }}
{% set _args = tc.arguments %}
{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}
{% endif %}
{%- elif m.role == 'tool' -%}
{%- if m.content is string -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
    {{- '<|observation|>' }}
{%- endif %}
{{- '\\n<tool_response>\\n' }}
{{- m.content }}
{{- '\\n</tool_response>' }}
{%- else -%}
<|observation|>{% for tr in m.content %}

<tool_response>
{{ tr.output if tr.output is defined else tr }}
</tool_response>{% endfor -%}
{% endif -%}
{%- elif m.role == 'system' -%}
<|system|>
{{ visible_text(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}
""",
    "command": """{{ bos_token }}{% set ns = namespace(system=none) %}{% if messages and messages[0].role | lower == 'system' %}{% set ns.system = messages[0].content %}{% set messages = messages[1:] %}{% endif %}
{%- macro document(doc) %}
{
{% for k in doc | dictsort(true) | map('first') | list %}
    {{ k | title }}: {{ doc[k] | string | indent(4) }}
{% endfor %}
}
{%- endmacro %}
<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|># Preamble
{% if ns.system %}
{{ ns.system }}
{% endif %}
{% for tool in tools or [] %}
## {{ tool.function.name | capitalize }} ({{ loop.index }}/{{ loop.length }})
{% set params = tool.function.parameters.properties %}
{% for name, fields in params.items() | sort %}
{{ loop.cycle('-', '*') }} {{ '%-8s' | format(name) }} {{ fields.get('description', 'n/a') | replace("'", '`') }}{{ ' (required)' if name in tool.function.parameters.get('required', []) }}
{% else %}
none
{% endfor %}
{{ document(tool.function) }}
{% endfor %}<|END_OF_TURN_TOKEN|>
{%- for message in messages %}
{% filter trim %}
<|START_OF_TURN_TOKEN|><|{{ {'user': 'USER', 'assistant': 'CHATBOT'}.get(message.role, message.role | upper) }}_TOKEN|>
{%- if message.content is string %}{{ message.content }}{% elif message.content %}{{ message.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}{% endif %}
{% for call in message.tool_calls or [] %}
Action: {{ {'tool_name': call.function.name, 'parameters': call.function.arguments} | tojson(indent=2) }}
{% endfor %}
<|END_OF_TURN_TOKEN|>
{% endfilter %}
{% endfor %}
{%- if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}
""",
}
