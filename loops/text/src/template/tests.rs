#![allow(clippy::unwrap_used)]
use serde_json::json;

use super::*;

fn compile(source: &str) -> Result<ChatTemplate, TemplateError> {
    let mut tokens = Map::new();
    tokens.insert("bos_token".to_owned(), json!("<s>"));
    tokens.insert("eos_token".to_owned(), json!("</s>"));
    Ok(ChatTemplate::new(source, tokens)?.with_clock(|| 1_700_000_000))
}

fn render(source: &str, messages: &[Value]) -> Result<String, TemplateError> {
    compile(source)?.render(messages, None, true, &Map::new())
}

const QWEN: &str = r##"{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\nYou may call one or more functions.\n\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and reasoning_content %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"##;

#[test]
fn a_qwen3_like_template_renders_tools_reasoning_and_tool_messages() {
    let template = compile(QWEN).unwrap();
    let messages = [
        json!({"role": "system", "content": "Be brief."}),
        json!({"role": "user", "content": "Weather?"}),
        json!({"role": "assistant", "content": "<think>\nhm\n</think>\n\nLooking.",
               "tool_calls": [{"function": {"name": "w", "arguments": {"city": "Köln", "n": 1.0}}}]}),
        json!({"role": "tool", "content": "sunny"}),
        json!({"role": "tool", "content": "warm"}),
    ];
    let tools = [json!({"type": "function", "function": {"name": "w", "strict": true}})];
    let mut extra = Map::new();
    extra.insert("enable_thinking".to_owned(), json!(false));
    let text = template
        .render(&messages, Some(&tools), true, &extra)
        .unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call one or more functions.\n\n<tools>\n\
         {\"type\": \"function\", \"function\": {\"name\": \"w\", \"strict\": true}}\n</tools><|im_end|>\n\
         <|im_start|>user\nWeather?<|im_end|>\n\
         <|im_start|>assistant\n<think>\nhm\n</think>\n\nLooking.\n<tool_call>\n\
         {\"name\": \"w\", \"arguments\": {\"city\": \"Köln\", \"n\": 1.0}}\n</tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nwarm\n\
         </tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    );
    let plain = template
        .render(&messages[1..2], None, false, &Map::new())
        .unwrap();
    assert_eq!(plain, "<|im_start|>user\nWeather?<|im_end|>\n");
}

#[test]
fn a_refusal_inside_a_macro_is_still_a_refusal() {
    let source = "{% macro m() %}{{ raise_exception('no tools') }}{% endmacro %}a{{ m() }}";
    let error = render(source, &[]).unwrap_err();
    assert_eq!(error, TemplateError::Refused("no tools".to_owned()));
}

const LLAMA: &str = r#"{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {% if not (message.role == 'user' or message.role == 'assistant') %}
        {{ raise_exception("Only user and assistant roles are supported!") }}
    {% endif %}
    {% generation %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endgeneration %}
{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"#;

#[test]
fn a_llama3_like_template_renders_dates_slices_and_refusals() {
    let messages = [
        json!({"role": "system", "content": " Be kind. "}),
        json!({"role": "user", "content": "hi\n"}),
    ];
    assert_eq!(
        render(LLAMA, &messages).unwrap(),
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 14 Nov 2023\n\nBe kind.\
         <|eot_id|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n"
    );
    let wrong = [
        json!({"role": "user", "content": "x"}),
        json!({"role": "narrator", "content": ""}),
    ];
    let error = render(LLAMA, &wrong).unwrap_err();
    assert_eq!(
        error,
        TemplateError::Refused("Only user and assistant roles are supported!".to_owned())
    );
}

#[test]
fn values_print_and_behave_as_in_python() {
    for (source, expected) in [
        (
            "{{ true }} {{ none }} {{ 1.0 }} {{ [1, 'a'] }}",
            "True None 1.0 [1, 'a']",
        ),
        ("{{ missing }}|{{ missing is defined }}", "|False"),
        ("{{ 'a,b'.split(',')[1].upper() }}", "B"),
        ("{{ {'a': 1}.items() | list | tojson }}", r#"[["a", 1]]"#),
        (
            "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
            "013",
        ),
        (
            "{% macro m(x, y=2) %}<{{ x }}{{ y }}>{% endmacro %}{{ m(1) }}{{ m(3, y=4) }}",
            "<12><34>",
        ),
        (
            "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s ~ m.content %}{% endfor %}{{ ns.s * 2 }}",
            "hihi",
        ),
        ("{{ messages | map(attribute='role') | join('-') }}", "user"),
        (
            "{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}",
            "a2b1",
        ),
        (
            "{% set t %}x{{ 1 + 1 }}y{% endset %}{{ t | length }}{{ t }}",
            "3x2y",
        ),
        (
            "{{ 'abcdef'[1:-2] }} {{ [1,2,3][::-1] }} {{ 1 < 2 < 3 }}",
            "bcd [3, 2, 1] True",
        ),
        (
            "{{ 'a' if 1 in [1, 2] else 'b' }}{{ 'x' ~ 3 ~ none }}",
            "ax3None",
        ),
        ("  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"),
        ("{% filter upper %}ab{% endfilter %}", "AB"),
        (
            "{{ ['x', 'y'] | first }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
            "x1",
        ),
        (
            "{{ 'a-b' | replace('-', '+') }}{{ 'x'.replace('x', 'yy') }}",
            "a+byy",
        ),
        ("{{ '%s=%d' | format('n', 3) }}", "n=3"),
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
    ] {
        let messages = [json!({"role": "user", "content": "hi"})];
        assert_eq!(
            render(source, &messages).as_deref(),
            Ok(expected),
            "{source}"
        );
    }
}

#[test]
fn a_hostile_template_ends_in_an_error() {
    let over = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}",
        "{% set ns = namespace(s={}) %}{% for i in range(999) %}{% set ns.s = {'a': ns.s} %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns }}",
        "{% set ns = namespace(p=1) %}{% for i in range(99999) %}{% set ns.p = namespace(p=ns.p) %}{% endfor %}",
        "{% set x = messages[0].content * 99999999 %}",
        "{% set x = [messages] * 99999999 %}",
        "{% set s = 'ab' * 4000000 %}{{ s | replace('', s) }}",
        "{% set s = 'ab' * 4000000 %}{{ s.replace('a', s) }}",
        "{% set s = 'ab' * 4000000 %}{{ range(99999) | join(s) }}",
        "{% set s = '\\n' * 4000000 %}{{ s | indent(1000000) }}",
        "{% set s = '\\n' * 4000000 %}{{ s | indent(width=1000000) }}",
        "{% set s = 'ab' * 4000000 %}{{ s | join(s) }}{{ s.join(s) }}",
        "{% set s = 'ab' * 4000000 %}{{ [s] | map('replace', 'a', s) | list }}",
        "{% set s = 'ab' * 4000000 %}{% for i in range(999) %}{% set l = s | list %}{% endfor %}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{% set s = 'ab' * 4000000 %}{% for i in range(99999) %}{{ s == s ~ 'x' }}{% endfor %}",
        "{% for i in range(99999) %}{{ 'a' ~ range(99999) | list }}{% endfor %}",
        "{% set s = 'ab' * 4000000 %}{% for i in range(999) %}{{ s }}{% endfor %}",
        "{% for a in 'ab' %}{{ loop.cycle() }}{% endfor %}",
        "{{ 'x' | center(99999999) }}",
        "{{ 'x'.ljust(99999999) }}{{ '1'.zfill(99999999) }}",
        "{{ ['x'] | map('center', 99999999) | list }}",
        "{{ '{:>{}}'.format('a', 99999999) }}",
        "{{ '%99999d' % 1 }}{{ '%*d' % (9, 1) }}",
        "{% set s = '\\n' * 4000000 %}{{ s | indent(s) }}",
        "{% set s = 'ab' * 4000000 %}{% set f = s.replace %}{{ f('a', s) }}",
        "{% set s = 'ab' * 4000000 %}{% for i in range(99999) %}{{ s[0] }}{% endfor %}",
        "{% set l = range(99999) | list %}{% for i in l %}{{ l | select('in', l) | list }}{% endfor %}",
        "{% set l = range(99999) | list %}{% set f = l.count %}{% for i in l %}{{ f(-1) }}{% endfor %}",
        "{% set r = range(99999) %}{% for i in r %}{% for j in r %}{% break %}{% endfor %}{% endfor %}",
        "{{ 'x'*9 }}{{ 1*1*1*1*1*1*1*1 }}{{ 'x'*99999999 }}",
    ];
    for source in over {
        let messages = [json!({"role": "user", "content": "hi"})];
        let error = render(source, &messages).unwrap_err();
        let recursion = matches!(&error, TemplateError::Failed(m) if m.contains("recursion"));
        assert!(
            matches!(error, TemplateError::OverLimit(_)) || recursion,
            "{source}: {error}"
        );
    }
    let raw = format!(
        "{{% for i in range(99999) %}}{{% set t %}}{{% for j in range(999) %}}{}{{% endfor %}}\
         {{% endset %}}{{% endfor %}}",
        "y".repeat(100_000)
    );
    assert!(matches!(
        render(&raw, &[]),
        Err(TemplateError::OverLimit(_))
    ));
    let long = "z".repeat(300_000);
    assert!(matches!(compile(&long), Err(TemplateError::OverLimit(_))));
    let error = render("{{ f(*messages) }}", &[]).unwrap_err();
    assert!(matches!(error, TemplateError::OverLimit(_)), "{error}");
    let deep = format!("{{{{ {}", "[".repeat(500));
    assert!(compile(&deep).is_err());
}

#[test]
fn mistakes_in_a_template_are_told_with_their_line() {
    let error = compile("a\n{% if %}").unwrap_err();
    assert!(
        matches!(&error, TemplateError::Failed(m) if m.contains("line 2")),
        "{error}"
    );
    let error = render("{{ 1 }}\n{{ missing.attribute }}", &[]).unwrap_err();
    assert!(
        matches!(&error, TemplateError::Failed(m) if m.contains("line 2")),
        "{error}"
    );
    let none = ChatTemplate::none();
    assert!(!none.is_some());
    assert_eq!(
        none.render(&[], None, true, &Map::new()),
        Err(TemplateError::None)
    );
}

#[test]
fn a_long_honest_conversation_stays_within_the_limits() {
    let messages: Vec<Value> = (0..3000)
        .map(|i| {
            let role = if i % 2 == 0 { "user" } else { "assistant" };
            json!({"role": role, "content": format!("{i} {}", "some words ".repeat(60))})
        })
        .collect();
    let tools: Vec<Value> = (0..200)
        .map(|i| {
            let city = json!({"type": "string", "description": "The city to look at"});
            let parameters = json!({"type": "object", "properties": {"city": city}});
            let function = json!({"name": format!("f{i}"), "parameters": parameters});
            json!({"type": "function", "function": function})
        })
        .collect();
    let template = compile(QWEN).unwrap();
    let text = template
        .render(&messages, Some(&tools), true, &Map::new())
        .unwrap();
    assert_eq!(text.matches("<|im_end|>").count(), 3001);
    assert_eq!(text.matches("\"function\": {").count(), 200);
}
