"""Scripted conversations of further clients: tools, forms of answers, Responses, Messages."""

import json
import os

import anthropic
import openai
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["mood", "n"],
    "additionalProperties": False,
}
QUESTION = {"role": "user", "content": "How is the weather in Rome?"}


def openai_tools(base, model, check):
    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
    create = client.chat.completions.create
    asked = [QUESTION]
    first = create(model=model, messages=asked, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    message = first.choices[0].message
    calls = message.tool_calls or []
    check("a demanded call comes", len(calls) == 1 and first.choices[0].finish_reason == "tool_calls", first)
    arguments = json.loads(calls[0].function.arguments)
    check("its arguments follow the schema", arguments.get("city") in ("Rome", "Oslo"), arguments)
    asked += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": calls[0].id, "content": "sunny"}]
    second = create(model=model, messages=asked, tools=[TOOL])
    check("the tool's result continues the session", second.hone["session_id"] == first.hone["session_id"], second.hone)
    stream = create(
        model=model,
        messages=[QUESTION],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        stream=True,
    )
    name, pieces, finish = "", [], None
    for chunk in stream:
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                name += call.function.name or ""
                pieces += [call.function.arguments] if call.function.arguments else []
            finish = choice.finish_reason or finish
    is_whole = name == "weather" and json.loads("".join(pieces)) and finish == "tool_calls"
    check("a streamed call is whole", is_whole, (name, pieces))
    check("its arguments come as they are said", len(pieces) > 1, pieces)
    strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}
    free = create(model=model, messages=[QUESTION], tools=[strict])
    calls = free.choices[0].message.tool_calls or []
    is_sound = all(json.loads(call.function.arguments)["city"] in ("Rome", "Oslo") for call in calls)
    check("a strict function need not be called", is_sound and (calls or free.choices[0].message.content), free)
    shaped = create(
        model=model,
        messages=[QUESTION],
        response_format={"type": "json_schema", "json_schema": {"name": "mood", "schema": SCHEMA, "strict": True}},
    )
    value = json.loads(shaped.choices[0].message.content)
    check("an answer follows its schema", value["mood"] in ("good", "bad") and 0 <= value["n"] <= 99, value)
    chosen = create(model=model, messages=[QUESTION], extra_body={"guided_choice": ["yes", "no"]})
    check("an answer is one of the choices", chosen.choices[0].message.content in ("yes", "no"), chosen)
    try:
        create(model=model, messages=[QUESTION], response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}})
        check("an unsound schema is refused", False)
    except openai.BadRequestError as error:
        check("an unsound schema is refused", "schema" in (error.param or ""), error)


def history_written_anew(base, model, check):
    """A client like aider puts files, a map and a reminder of the form into every request, with answers of its
    own, and leaves them out of the history."""
    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)

    def user(text):
        return {"role": "user", "content": text}

    def own(text):
        return {"role": "assistant", "content": text}

    def files(text):
        told = user(f"I have *added these files to the chat* so you can go ahead and edit them.\n\n{text}")
        return [told, own("Ok, any changes I propose will be to those files.")]

    reminder = "\n\nTo suggest changes to a file you MUST return the entire content of the updated file."
    system = {"role": "system", "content": "Act as an expert software developer."}
    create = client.chat.completions.create
    first = create(model=model, messages=[system, *files("a.txt is empty"), user("write a tip" + reminder)])
    place = [user("Here are summaries of some files present in my git repository.\na.txt"),
             own("Ok, I won't try and edit those files without asking first.")]
    said = [user("write a tip"), own(first.choices[0].message.content.strip()),
            user("I committed the changes with git hash 1a2b3c4 & commit msg: a tip"), own("Ok.")]
    failing = user("That is wrong, please write it again." + reminder)
    second = create(model=model, messages=[system, *place, *said, *files("a.txt holds a tip"), failing])
    check("a history that is written anew continues", second.hone["session_id"] == first.hone["session_id"], second.hone)
    view = client.get(f"/turns/{first.hone['turn_id']}", cast_to=object)
    next_texts = [state.get("text") for state in view["next_state"]]
    check("a person's words are what comes next", next_texts == ["That is wrong, please write it again."], view["next_state"])
    commit = create(model=model, messages=[
        {"role": "system", "content": "You are an expert software engineer that generates concise, one-line Git commit messages."},
        user("# Diffs:\nAdded a.txt")])
    kind = client.get(f"/turns/{commit.hone['turn_id']}", cast_to=object)["kind"]
    check("a commit's message is a side turn", kind == "side", kind)


def openai_responses(base, model, check):
    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
    first = client.responses.create(model=model, input="Hello!", instructions="Be brief.")
    check("a response has text", bool(first.output_text) and first.status == "completed", first)
    second = client.responses.create(model=model, input="What is the capital of Italy?", previous_response_id=first.id)
    check("a response continues another", second.usage.input_tokens > first.usage.input_tokens, second.usage)
    one_session = first.hone["session_id"] == second.hone["session_id"]
    check("a response belongs to the session of the one it continues", one_session, (first.hone, second.hone))
    kinds = []
    with client.responses.stream(model=model, input="Hello!") as stream:
        for event in stream:
            kinds.append(event.type)
        final = stream.get_final_response()
    check("a response streams", kinds[-1] == "response.completed" and bool(final.output_text), kinds)
    function = {"type": "function", **TOOL["function"]}
    called = client.responses.create(model=model, input="Weather?", tools=[function], tool_choice="required")
    calls = [item for item in called.output if item.type == "function_call"]
    check("a response calls", bool(calls) and json.loads(calls[0].arguments)["city"] in ("Rome", "Oslo"), called)
    with client.responses.stream(model=model, input="Weather?", tools=[function], tool_choice="required") as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response()
    said = "".join(item.arguments for item in final.output if item.type == "function_call")
    check("a response's call streams as it is said", said == "".join(deltas) and len(deltas) > 1, (said, deltas))
    vectors = client.embeddings.create(model=model, input=["one", "two words"])
    length = sum(x * x for x in vectors.data[1].embedding)
    check("embeddings have length 1", len(vectors.data) == 2 and abs(length - 1) < 1e-3, length)
    retries = {"Idempotency-Key": "a-key-of-the-client"}
    ask = {"model": model, "messages": [QUESTION], "extra_headers": retries}
    one = client.chat.completions.create(**ask)
    two = client.chat.completions.create(**ask)
    check("a retry makes no second turn", one.hone["turn_id"] == two.hone["turn_id"], (one.hone, two.hone))


def anthropic_messages(base, model, check):
    client = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)
    ask = {"model": model, "max_tokens": 200, "messages": [QUESTION]}
    plain = client.messages.create(system="Be brief.", **ask)
    check("anthropic answers", plain.content[0].type == "text" and plain.stop_reason == "end_turn", plain)
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    check("anthropic streams", bool(text) and final.content[0].text == text, final)
    function = TOOL["function"]
    tool = {"name": "weather", "description": "x", "input_schema": function["parameters"]}
    # How often an untrained model calls is chance, and 200 tokens may end within a further call.
    one = {"type": "any", "disable_parallel_tool_use": True}
    with client.messages.stream(tools=[tool], tool_choice=one, **ask) as stream:
        deltas = [event.partial_json for event in stream if event.type == "input_json"]
        called = stream.get_final_message()
    check("anthropic's input streams as it is said", len(deltas) > 1, deltas)
    uses = [block for block in called.content if block.type == "tool_use"]
    check("anthropic calls", len(uses) == 1 and called.stop_reason == "tool_use" and "city" in uses[0].input, called)
    result = {"type": "tool_result", "tool_use_id": uses[0].id, "content": "sunny"}
    messages = [
        QUESTION,
        {"role": "assistant", "content": [block.model_dump(include={"type", "id", "name", "input", "text"}) for block in called.content]},
        {"role": "user", "content": [result]},
    ]
    after = client.messages.create(model=model, max_tokens=200, messages=messages, tools=[tool])
    check("anthropic goes on after a tool", after.usage.output_tokens > 0, after)
    counted = client.messages.count_tokens(model=model, messages=[QUESTION])
    check("anthropic counts tokens", counted.input_tokens > 0, counted)
    try:
        client.messages.create(model="nobody", max_tokens=5, messages=[QUESTION])
        check("anthropic sees an unknown model", False)
    except anthropic.NotFoundError as error:
        check("anthropic sees an unknown model", "nobody" in str(error), error)


def langchain(base, model, check):
    llm = ChatOpenAI(model=model, base_url=base + "/v1", api_key="none", max_retries=0)
    said = llm.invoke([HumanMessage("Hello!")])
    check("langchain chats", bool(said.content), said)
    streamed = "".join(chunk.content for chunk in llm.stream([HumanMessage("Hello!")]))
    check("langchain streams", bool(streamed), streamed)
    called = llm.bind_tools([TOOL], tool_choice="required").invoke([HumanMessage("Weather in Oslo?")])
    check("langchain calls", bool(called.tool_calls) and called.tool_calls[0]["name"] == "weather", called)
    call = called.tool_calls[0]
    history = [
        HumanMessage("Weather in Oslo?"),
        AIMessage("", tool_calls=[call]),
        ToolMessage("snow", tool_call_id=call["id"]),
    ]
    check("langchain goes on after a tool", llm.bind_tools([TOOL]).invoke(history) is not None)
    shaped = llm.with_structured_output({"title": "mood", **SCHEMA}, method="json_schema").invoke("How are you?")
    check("langchain gets its form", shaped["mood"] in ("good", "bad"), shaped)


def litellm_client(base, model, check):
    # Its table of prices comes with the package; nothing is fetched.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    ask = {"model": "openai/" + model, "api_base": base + "/v1", "api_key": "none", "messages": [QUESTION]}
    plain = litellm.completion(**ask)
    check("litellm chats", bool(plain.choices[0].message.content), plain)
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(stream=True, **ask)]
    check("litellm streams", bool("".join(pieces)), pieces)
    called = litellm.completion(tools=[TOOL], tool_choice="required", **ask)
    check("litellm calls", called.choices[0].message.tool_calls[0].function.name == "weather", called)
