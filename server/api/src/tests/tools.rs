//! Tool calls and reasoning: told apart from the text, and bound when they come back.

use hone_domain::StopReason;
use serde_json::{Value, json};

use crate::testing::{Recorder, Reply, Script, Stage};
use hone_inference::Takes;

const CHAT: &str = "/v1/chat/completions";
const CALL: &str = r#"<tool_call>{"name": "look", "arguments": {"city":  "Köln"}}</tool_call>"#;

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}])
}

async fn ask(stage: &Stage, messages: Value, fields: &Value) -> Reply {
    let mut body = json!({"model": "gpt", "messages": messages, "tools": tools()});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    stage.post(CHAT, &body.to_string()).await
}

fn weather() -> Value {
    json!([{"role": "user", "content": "weather?"}])
}

#[tokio::test]
async fn calls_come_out_of_the_text_whole_and_streamed() {
    let says = || {
        let pieces = vec![
            "<think>\nhm",
            "m\n</th",
            "ink>\n\nLooking.\n<tool",
            CALL_REST,
        ];
        Script::Say(pieces, StopReason::EndToken)
    };
    const CALL_REST: &str =
        "_call>{\"name\": \"look\", \"arguments\": {\"city\":  \"K\u{f6}ln\"}}</tool_call>";
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([says(), says()]);
    let whole = ask(&stage, weather(), &json!({})).await.json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let id = choice["message"]["tool_calls"][0]["id"].as_str().unwrap();
    assert!(
        id.starts_with("call") && id.chars().all(|c| c.is_ascii_alphanumeric()),
        "{id}"
    );
    assert_eq!(
        choice["message"],
        json!({
            "role": "assistant", "content": "Looking.", "refusal": null,
            "reasoning_content": "hmm",
            "tool_calls": [{"id": id, "type": "function",
                "function": {"name": "look", "arguments": "{\"city\":  \"Köln\"}"}}],
        })
    );
    let turn = stage.told.lock().unwrap().turns[0].clone();
    assert_eq!(turn.completion.stop(), StopReason::ToolCall);
    assert!(
        turn.completion_text.contains("<tool_call>"),
        "the record keeps the text as sampled"
    );

    let events = ask(&stage, weather(), &json!({"stream": true}))
        .await
        .events();
    let deltas: Vec<&Value> = events.iter().map(|e| &e["choices"][0]["delta"]).collect();
    let text = |name: &str| -> String { deltas.iter().filter_map(|d| d[name].as_str()).collect() };
    assert_eq!(
        (text("reasoning_content"), text("content")),
        ("hmm".to_owned(), "Looking.".to_owned())
    );
    let calls: Vec<&Value> = deltas
        .iter()
        .filter_map(|d| d["tool_calls"].get(0))
        .collect();
    assert_eq!(
        (&calls[0]["index"], &calls[0]["type"], &calls[0]["function"]),
        (
            &json!(0),
            &json!("function"),
            &json!({"name": "look", "arguments": ""})
        )
    );
    let arguments: String = calls
        .iter()
        .filter_map(|c| c["function"]["arguments"].as_str())
        .collect();
    assert_eq!(arguments, "{\"city\":  \"Köln\"}");
    assert!(calls[1..].iter().all(|c| c.get("id").is_none()));
    let finish: Vec<&str> = events
        .iter()
        .filter_map(|e| e["choices"][0]["finish_reason"].as_str())
        .collect();
    assert_eq!(finish, ["tool_calls"]);
}

#[tokio::test]
async fn a_conversation_with_tools_binds_and_reuses_its_tokens() {
    let stage = Stage::new(Recorder::Collects).await;
    let say = |text: &'static str| Script::Say(vec![text], StopReason::Length);
    stage.script([say(CALL), say("Sunny.")]);
    let first = ask(&stage, weather(), &json!({})).await;
    // As agents send it back: another id, other spacing, content null.
    let mut history = weather();
    let all = history.as_array_mut().unwrap();
    all.push(
        json!({"role": "assistant", "content": null, "tool_calls": [{"id": "callx9",
        "type": "function", "function": {"name": "look", "arguments": "{\"city\":\"Köln\"}"}}]}),
    );
    all.push(json!({"role": "tool", "tool_call_id": "callx9", "content": "sunny"}));
    let second = ask(&stage, history.clone(), &json!({})).await;
    assert_eq!(
        first.header("x-hone-session-id"),
        second.header("x-hone-session-id")
    );
    history.as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": "Sunny."}),
        json!({"role": "user", "content": "thanks"}),
    ]);
    ask(&stage, history, &json!({})).await;
    let told = stage.told.lock().unwrap();
    assert_eq!(told.turns[1].parent, Some(told.turns[0].id));
    assert_eq!(told.turns[2].parent, Some(told.turns[1].id));
    assert_eq!(
        told.next[0].next_state.items[0].kind,
        hone_domain::NextKind::ToolResult
    );
    let inference = stage.http.inference.as_ref().unwrap();
    assert_eq!(
        (
            inference.counters.prompts_reused.get(),
            inference.counters.prompts_mismatched.get()
        ),
        (2, 0)
    );
    let asks = stage.fake.asks.lock().unwrap();
    for pair in asks.windows(2) {
        assert!(pair[1].prompt_tokens.starts_with(&pair[0].prompt_tokens));
    }
}

#[tokio::test]
async fn without_tools_what_looks_like_a_call_is_text() {
    for fields in [json!({"tool_choice": "none"}), json!({"tools": null})] {
        let stage = Stage::new(Recorder::Collects).await;
        stage.script([Script::Say(vec![CALL], StopReason::EndToken)]);
        let reply = ask(&stage, weather(), &fields).await.json();
        let choice = &reply["choices"][0];
        assert_eq!(choice["message"]["content"], CALL);
        assert_eq!(choice["finish_reason"], "stop");
        let prompt = stage.fake.asks.lock().unwrap()[0].prompt_tokens.clone();
        let prompt: String = prompt.iter().map(|t| *t as u8 as char).collect();
        assert!(!prompt.contains("tool "), "{fields}: tools were rendered");
    }
}

#[tokio::test]
async fn broken_calls_stay_content_and_a_limit_is_told_as_one() {
    let stage = Stage::new(Recorder::Collects).await;
    let cut = "<tool_call>{\"name\": \"look\", \"argu";
    stage.script([Script::Say(
        vec!["<tool_call>{\"name\": \"look\", ", "\"argu"],
        StopReason::Length,
    )]);
    let reply = ask(&stage, weather(), &json!({})).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], cut);
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
}

/// A call as it is said.
const PIECES: [&str; 5] = [
    "So. <tool_call>\n{\"name\": \"look\", ",
    "\"arguments\": {\"city\": ",
    "\"K\u{f6}ln\"",
    "}",
    "}\n</tool_call>",
];

/// Fields of requests, and whether they hold calls to their form.
fn held_or_not() -> [(Value, bool); 3] {
    let strict = json!([{"type": "function", "function": {"name": "look", "strict": true,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]);
    [
        (json!({"tools": strict}), true),
        (json!({"tool_choice": "required"}), true),
        (json!({}), false),
    ]
}

/// The calls in a stream's events, as they came.
fn calls_in(events: &[Value]) -> Vec<&Value> {
    let calls = events.iter();
    calls
        .filter_map(|e| e["choices"][0]["delta"]["tool_calls"].get(0))
        .collect()
}

fn arguments_in<'a>(calls: &[&'a Value]) -> Vec<&'a str> {
    let arguments = calls.iter();
    arguments
        .filter_map(|call| call["function"]["arguments"].as_str())
        .collect()
}

/// Whether or not a grammar sees to it that a call is sound, its arguments come as they are said.
#[tokio::test]
async fn calls_of_tools_stream_as_they_are_said() {
    for (mut fields, held) in held_or_not() {
        let stage = Stage::new(Recorder::Collects).await;
        stage.script([Script::Say(PIECES.to_vec(), StopReason::EndToken)]);
        fields["stream"] = json!(true);
        let events = ask(&stage, weather(), &fields).await.events();
        let calls = calls_in(&events);
        assert_eq!(calls[0]["function"]["name"], "look");
        let arguments = arguments_in(&calls);
        let as_said = ["", "{\"city\": ", "\"Köln\"", "}"];
        assert_eq!(arguments, as_said, "{fields}");
        assert!(calls.iter().all(|call| call["index"] == 0));
        let asked = stage.fake.asks.lock().unwrap()[0].form.clone();
        let alone = matches!(asked, Some(hone_domain::Form::Calls { .. }));
        assert_eq!(
            (asked.is_some(), alone),
            (held, fields.get("tools").is_some())
        );
    }
    // One of a function that is none of them is told once it is whole.
    let stage = Stage::new(Recorder::Collects).await;
    let begun = "<tool_call>{\"name\": \"sing\", \"arguments\": {\"city\": ";
    let other = vec![begun, "\"K\u{f6}ln\"", "}}</tool_call>"];
    stage.script([Script::Say(other, StopReason::EndToken)]);
    let fields = json!({"stream": true});
    let events = ask(&stage, weather(), &fields).await.events();
    let whole = ["", "{\"city\": \"Köln\"}"];
    assert_eq!(arguments_in(&calls_in(&events)), whole);
}

#[tokio::test]
async fn of_a_call_that_is_cut_short_there_is_what_came() {
    for (mut fields, _) in held_or_not() {
        let stage = Stage::new(Recorder::Collects).await;
        let cut = || Script::Say(PIECES[..3].to_vec(), StopReason::Length);
        stage.script([cut(), cut()]);
        fields["stream"] = json!(true);
        let events = ask(&stage, weather(), &fields).await.events();
        let said = arguments_in(&calls_in(&events)).concat();
        fields["stream"] = json!(false);
        let reply = ask(&stage, weather(), &fields).await.json();
        assert_eq!(reply["choices"][0]["finish_reason"], "length");
        let message = &reply["choices"][0]["message"];
        let cut = "{\"city\": \"Köln\"";
        assert_eq!(said, cut);
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], cut);
        assert_eq!(message["content"], "So.");
    }
}

/// In the other dialects too, as their clients expect it.
#[tokio::test]
async fn held_calls_stream_in_every_dialect() {
    let pieces = [
        "<tool_call>{\"name\": \"look\", \"arguments\": {\"a\"",
        ": [1",
        "]}}</tool_call>",
    ];
    let says = |n: usize, stop| Script::Say(pieces[..n].to_vec(), stop);
    let schema = json!({"type": "object"});
    let rows = [
        (
            "/v1/responses",
            json!({"model": "gpt", "input": "x", "stream": true, "tool_choice": "required",
                "tools": [{"type": "function", "name": "look", "parameters": schema}]}),
        ),
        (
            "/v1/messages",
            json!({"model": "gpt", "max_tokens": 99, "stream": true, "tool_choice": {"type": "any"},
                "messages": [{"role": "user", "content": "x"}],
                "tools": [{"name": "look", "input_schema": schema}]}),
        ),
    ];
    for (path, body) in rows {
        let stage = Stage::new(Recorder::Collects).await;
        stage.script([says(3, StopReason::EndToken), says(2, StopReason::Length)]);
        for (expected, is_whole) in [("{\"a\": [1]}", true), ("{\"a\": [1", false)] {
            let reply = stage.post(path, &body.to_string()).await;
            let events = reply.events();
            let more: Vec<&str> = events
                .iter()
                .filter_map(|e| match path {
                    "/v1/messages" => e["delta"]["partial_json"].as_str(),
                    _ => (e["type"] == "response.function_call_arguments.delta")
                        .then(|| e["delta"].as_str())?,
                })
                .collect();
            assert_eq!(more.concat(), expected, "{}", reply.text);
            assert!(more.len() > 1, "{more:?}");
            let count = |kind: &str| events.iter().filter(|e| e["type"] == kind).count();
            if path == "/v1/messages" {
                let blocks = ["content_block_start", "content_block_stop"].map(count);
                assert_eq!(blocks, [1, 1]);
                continue;
            }
            let done = events
                .iter()
                .rfind(|e| e["type"] == "response.output_item.done");
            let item = &done.unwrap()["item"];
            let status = if is_whole { "completed" } else { "incomplete" };
            assert_eq!(
                (&item["arguments"], &item["status"]),
                (&json!(expected), &json!(status))
            );
        }
    }
}

#[tokio::test]
async fn one_call_at_a_time_where_the_request_says_so() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([Script::Say(vec![CALL], StopReason::ToolCall)]);
    let reply = ask(&stage, weather(), &json!({"parallel_tool_calls": false}))
        .await
        .json();
    let stop = stage.fake.asks.lock().unwrap()[0].stop.clone();
    assert!(stop.output_format.single && stop.strings.is_empty());
    assert_eq!(&*stop.functions, ["look"]);
    let choice = &reply["choices"][0];
    assert_eq!(choice["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(choice["finish_reason"], "tool_calls");
    // A form ends by itself behind its only call.
    let fields = json!({"parallel_tool_calls": false, "tool_choice": "required"});
    ask(&stage, weather(), &fields).await;
    assert!(!stage.fake.asks.lock().unwrap()[1].stop.output_format.single);
}

/// Whatever cut it: a call that is not whole is no reason to end with calls.
#[tokio::test]
async fn a_call_that_is_not_whole_is_no_call_to_end_with() {
    let told = [
        (StopReason::StopString, "stop"),
        (StopReason::EndToken, "length"),
    ];
    for (stop, told) in told {
        let stage = Stage::new(Recorder::Collects).await;
        let says = || Script::Say(PIECES[..3].to_vec(), stop);
        stage.script([says(), says()]);
        let fields = json!({"tool_choice": "required", "stop": ["Rome"]});
        let reply = ask(&stage, weather(), &fields).await.json();
        assert_eq!(reply["choices"][0]["finish_reason"], told);
        let body = json!({"model": "gpt", "max_tokens": 99, "messages": weather(),
            "tool_choice": {"type": "any"}, "stop_sequences": ["Rome"],
            "tools": [{"name": "look", "input_schema": {"type": "object"}}]});
        let reply = stage.post("/v1/messages", &body.to_string()).await.json();
        assert_ne!(reply["stop_reason"], "tool_use");
        let asks = stage.fake.asks.lock().unwrap();
        let stop = &asks[0].stop;
        assert_eq!(stop.strings, ["Rome"]);
        assert!(stop.output_format.calls.is_some());
    }
}

/// A message has no call without an input, and says nothing else.
#[tokio::test]
async fn arguments_that_are_no_json_are_told_as_each_dialect_can() {
    let stage = Stage::new(Recorder::Collects).await;
    let says = "<tool_call>{\"name\": \"look\", \"arguments\": {\"a\": True}}</tool_call>";
    let says = || Script::Say(vec![says], StopReason::EndToken);
    stage.script([says(), says()]);
    let reply = ask(&stage, weather(), &json!({})).await.json();
    let choice = &reply["choices"][0];
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(call["arguments"], "{\"a\": True}");
    assert_eq!(choice["finish_reason"], "tool_calls");
    let body = json!({"model": "gpt", "max_tokens": 99, "messages": weather(),
        "tools": [{"name": "look", "input_schema": {"type": "object"}}]});
    let reply = stage.post("/v1/messages", &body.to_string()).await.json();
    assert_eq!(reply["stop_reason"], "end_turn");
    assert_eq!(reply["content"][0]["type"], "text");
}

/// The one behind the calls, not one that stands in them.
#[tokio::test]
async fn a_message_names_the_stop_string_that_ended_it() {
    let stage = Stage::new(Recorder::Collects).await;
    let cut = "<tool_call>{\"name\": \"look\", NO</tool_call> a END";
    stage.script([Script::Say(vec![cut], StopReason::StopString)]);
    let body = json!({"model": "gpt", "max_tokens": 99, "messages": weather(),
        "stop_sequences": ["NO", "END"], "tools": [{"name": "look", "input_schema": {"type": "object"}}]});
    let reply = stage.post("/v1/messages", &body.to_string()).await.json();
    assert_eq!(reply["stop_sequence"], "END");
}

fn prompt(stage: &Stage, at: usize) -> String {
    let asks = stage.fake.asks.lock().unwrap();
    let tokens = asks[at].prompt_tokens.iter();
    tokens.map(|t| *t as u8 as char).collect()
}

/// Templates read arguments as an object, and some fail at anything else.
#[tokio::test]
async fn a_call_without_arguments_comes_back_with_an_empty_object() {
    let function = |arguments: Value| json!({"name": "look", "arguments": arguments});
    let rows = [
        function(json!("")),
        function(json!(" \n")),
        function(json!(null)),
        function(json!("{}")),
        json!({"name": "look"}),
    ];
    for function in rows {
        let stage = Stage::new(Recorder::Collects).await;
        let call = json!({"id": "c", "type": "function", "function": function});
        let mut history = weather();
        history.as_array_mut().unwrap().extend([
            json!({"role": "assistant", "content": null, "tool_calls": [call]}),
            json!({"role": "tool", "tool_call_id": "c", "content": "sunny"}),
        ]);
        ask(&stage, history, &json!({})).await;
        let prompt = prompt(&stage, 0);
        assert!(prompt.contains("\"arguments\":{}"), "{call}: {prompt}");
    }
}

#[tokio::test]
async fn a_call_in_the_older_form_is_a_call() {
    let stage = Stage::new(Recorder::Collects).await;
    let older = json!({"name": "look", "arguments": "{\"city\": \"Rome\"}"});
    let newer =
        json!([{"id": "c1", "type": "function", "function": {"name": "other", "arguments": "{}"}}]);
    let history = json!([
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": null, "function_call": older},
        {"role": "function", "name": "look", "content": "sunny"},
        {"role": "assistant", "content": null, "function_call": older, "tool_calls": newer},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        {"role": "assistant", "content": "Sunny.", "function_call": null},
        {"role": "user", "content": "thanks"},
    ]);
    let reply = ask(&stage, history, &json!({})).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let messages = stage.told.lock().unwrap().turns[0].messages.clone();
    let calls: Vec<Vec<&str>> = messages
        .iter()
        .map(|m| m.tool_calls.iter().map(|call| &*call.name).collect())
        .collect();
    let none: Vec<&str> = Vec::new();
    assert_eq!(calls[1..4], [vec!["look"], none, vec!["other"]]);
    let id = messages[1].tool_calls[0].id.clone();
    assert_eq!(id.len(), 9);
    assert_eq!(messages[2].tool_call_id, Some(id));
    assert!(prompt(&stage, 0).contains("\"city\":\"Rome\""));
    let wrong = json!([{"role": "assistant", "function_call": {"arguments": "{}"}}]);
    let reply = ask(&stage, wrong, &json!({})).await;
    assert_eq!(reply.status, 400);
    assert_eq!(
        reply.json()["error"]["param"],
        "messages[0].function_call.name"
    );
}

#[tokio::test]
async fn strict_tools_of_a_message_hold_its_calls() {
    for strict in [true, false] {
        let stage = Stage::new(Recorder::Collects).await;
        let body = json!({"model": "gpt", "max_tokens": 9, "messages": weather(),
            "tools": [{"name": "look", "input_schema": {"type": "object"}, "strict": strict}]});
        let reply = stage.post("/v1/messages", &body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(stage.fake.asks.lock().unwrap()[0].form.is_some(), strict);
    }
}

/// A form that ends the answer leaves nothing to say behind it.
#[tokio::test]
async fn ends_are_not_ignored_where_a_form_ends_the_answer() {
    let [(strict, _), (required, _), (free, _)] = held_or_not();
    let mut single = strict.clone();
    single["parallel_tool_calls"] = json!(false);
    for (mut fields, status) in [(strict, 200), (free, 200), (required, 400), (single, 400)] {
        let stage = Stage::new(Recorder::Collects).await;
        fields["ignore_eos"] = json!(true);
        let reply = ask(&stage, weather(), &fields).await;
        assert_eq!(reply.status, status, "{fields}");
        if status == 400 {
            assert_eq!(reply.json()["error"]["param"], "ignore_eos");
        }
    }
}

/// As the templates of Llama 3: calls come one by one, and those of others are sent on one by one.
#[tokio::test]
async fn a_template_that_takes_one_call_a_message_gets_one() {
    for one_call in [true, false] {
        let stage = Stage::new(Recorder::Collects).await;
        let inference = stage.http.inference.as_ref().unwrap();
        let takes = Takes {
            many_calls: !one_call,
            ..Takes::ALL
        };
        inference.takes.set(takes).unwrap();
        let call = |id: &str| {
            json!({"id": id, "type": "function",
            "function": {"name": id, "arguments": "{}"}})
        };
        let mut history = weather();
        history.as_array_mut().unwrap().extend([
            json!({"role": "assistant", "content": null, "tool_calls": [call("one"), call("two")]}),
            json!({"role": "tool", "tool_call_id": "two", "content": "second"}),
            json!({"role": "tool", "tool_call_id": "one", "content": "first"}),
        ]);
        let reply = ask(&stage, history, &json!({})).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        let prompt = prompt(&stage, 0);
        let at = |text: &str| {
            prompt
                .find(text)
                .unwrap_or_else(|| panic!("{text}: {prompt}"))
        };
        let said = [at("\"one\""), at("first"), at("\"two\""), at("second")];
        assert_eq!(said.is_sorted(), one_call, "{prompt}");
        let single = stage.fake.asks.lock().unwrap()[0].stop.output_format.single;
        assert_eq!(single, one_call);
    }
}

/// A schema may be short and take long; the threads of all requests are no place for that.
#[tokio::test]
async fn forms_are_made_apart_from_what_waits_for_nothing() {
    let format = json!({"type": "json_schema", "name": "x", "schema": 5});
    let strict = json!({"type": "object", "properties": {"x": {"$ref": "#/x"}}, "$ref": "#"});
    let said = json!([{"role": "user", "content": "hi"}]);
    let tool = json!({"name": "look", "input_schema": strict, "strict": true});
    let rows = [
        (
            "/v1/chat/completions",
            json!({"model": "gpt", "messages": said, "guided_json": 5}),
        ),
        (
            "/v1/completions",
            json!({"model": "gpt", "prompt": "hi", "guided_grammar": "nothing"}),
        ),
        (
            "/v1/responses",
            json!({"model": "gpt", "input": "hi", "text": {"format": format}}),
        ),
        (
            "/v1/messages",
            json!({"model": "gpt", "max_tokens": 9, "messages": said, "tools": [tool]}),
        ),
    ];
    for (path, body) in rows {
        let stage = Stage::new(Recorder::Collects).await;
        let inference = stage.http.inference.clone().unwrap();
        let places = inference.apart.enter("others", 2).await.unwrap();
        let body = body.to_string();
        let mut held = std::pin::pin!(stage.post(path, &body));
        let free = json!({"model": "gpt", "messages": said, "n": 0}).to_string();
        for _ in 0..4 {
            tokio::select! {
                biased;
                reply = &mut held => panic!("{path} waits for nobody: {}", reply.text),
                reply = stage.post("/v1/chat/completions", &free) => assert_eq!(reply.status, 400),
            }
        }
        drop(places);
        assert_eq!(held.await.status, 400, "{path}");
    }
}
