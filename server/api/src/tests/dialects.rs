//! Responses and Messages: the same asks and turns in other words.

use std::sync::atomic::Ordering;

use hone_domain::{Role, StopReason};
use serde_json::{Value, json};

use crate::testing::{Recorder, Script, Stage};

const SAYS: &str = "<think>\nhm\n</think>\n\nLooking.\n<tool_call>{\"name\": \"look\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>";

fn says(text: &'static str) -> Script {
    Script::Say(vec![text], StopReason::EndToken)
}

fn prompt(stage: &Stage, at: usize) -> String {
    let asks = stage.fake.asks.lock().unwrap();
    asks[at]
        .prompt_tokens
        .iter()
        .map(|t| *t as u8 as char)
        .collect()
}

fn response_tools() -> Value {
    json!([{"type": "function", "name": "look", "parameters": {"type": "object"}}])
}

#[tokio::test]
async fn a_response_tells_reasoning_text_and_calls_as_items() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([says(SAYS)]);
    let body = json!({"model": "gpt", "instructions": "Be brief.", "input": "weather?",
        "tools": response_tools(), "max_output_tokens": 400, "metadata": {"a": "b"}});
    let reply = stage.post("/v1/responses", &body.to_string()).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let json = reply.json();
    assert_eq!(
        (&json["object"], &json["status"]),
        (&json!("response"), &json!("completed"))
    );
    assert!(json["id"].as_str().unwrap().starts_with("resp_"));
    let output = json["output"].as_array().unwrap();
    let kinds: Vec<&str> = output
        .iter()
        .map(|item| item["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    assert_eq!(output[0]["content"][0]["text"], "hm");
    assert_eq!(output[1]["content"][0]["text"], "Looking.");
    assert_eq!(output[2]["arguments"], "{\"city\": \"Rome\"}");
    assert_eq!(
        json["usage"]["total_tokens"].as_u64(),
        json["usage"]["input_tokens"]
            .as_u64()
            .zip(json["usage"]["output_tokens"].as_u64())
            .map(|(a, b)| a + b)
    );
    assert_eq!(
        (&json["metadata"]["a"], &json["instructions"]),
        (&json!("b"), &json!("Be brief."))
    );
    assert_eq!(json["hone"]["collected"], true);
    let told = stage.told.lock().unwrap();
    let roles: Vec<Role> = told.turns[0].messages.iter().map(|m| m.role).collect();
    assert_eq!(roles, [Role::System, Role::User]);
}

#[tokio::test]
async fn log_probs_of_a_response_are_those_of_its_answer() {
    let stage = Stage::new(Recorder::Collects).await;
    let says = || {
        let pieces = vec!["<think>", "hm", "</think>", "\n\nYes", "."];
        Script::Say(pieces, StopReason::Length)
    };
    stage.script([says(), says(), says()]);
    let mut body = json!({"model": "gpt", "input": "weather?", "top_logprobs": 1,
        "include": ["message.output_text.logprobs"]});
    let whole = stage.post("/v1/responses", &body.to_string()).await.json();
    body["stream"] = json!(true);
    let mut events = stage
        .post("/v1/responses", &body.to_string())
        .await
        .events();
    assert_eq!(events.pop(), Some(json!("[DONE]")));
    let streamed = events.last().unwrap()["response"].clone();
    for response in [whole, streamed] {
        let part = &response["output"][1]["content"][0];
        assert_eq!(part["text"], "Yes.");
        assert_eq!(part["logprobs"].as_array().map(Vec::len), Some(2));
        let details = &response["usage"]["output_tokens_details"];
        assert_eq!(details["reasoning_tokens"], 3);
    }
    let body = json!({"model": "gpt", "messages": [{"role": "user", "content": "weather?"}]});
    let chat = stage.post("/v1/chat/completions", &body.to_string()).await;
    let details = &chat.json()["usage"]["completion_tokens_details"];
    assert_eq!(details["reasoning_tokens"], 3);
}

#[tokio::test]
async fn a_streamed_response_grows_by_numbered_events() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([says(SAYS)]);
    let body = json!({"model": "gpt", "input": [{"role": "user", "content": "weather?"}],
        "tools": response_tools(), "stream": true});
    let reply = stage.post("/v1/responses", &body.to_string()).await;
    let mut events = reply.events();
    assert_eq!(events.pop(), Some(json!("[DONE]")));
    let numbers: Vec<u64> = events
        .iter()
        .map(|e| e["sequence_number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    assert_eq!(kinds.last(), Some(&"response.completed"));
    let text = |kind: &str| -> String {
        let deltas = events.iter().filter(|e| e["type"] == kind);
        deltas.map(|e| e["delta"].as_str().unwrap()).collect()
    };
    assert_eq!(text("response.reasoning_text.delta"), "hm");
    assert_eq!(text("response.output_text.delta"), "Looking.");
    assert_eq!(
        text("response.function_call_arguments.delta"),
        "{\"city\": \"Rome\"}"
    );
    let whole = &events.last().unwrap()["response"];
    let done: Vec<&Value> = events
        .iter()
        .filter(|e| e["type"] == "response.output_item.done")
        .map(|e| &e["item"])
        .collect();
    assert_eq!(
        whole["output"]
            .as_array()
            .unwrap()
            .iter()
            .collect::<Vec<_>>(),
        done
    );
    assert!(reply.text.contains("event: response.output_item.added\n"));
}

#[tokio::test]
async fn calls_and_their_outputs_come_back_as_items_and_bind() {
    let stage = Stage::new(Recorder::Collects).await;
    let call = "<tool_call>{\"name\": \"look\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>";
    stage.script([says(call), says("Sunny.")]);
    let first = json!({"model": "gpt", "input": "weather?", "tools": response_tools()});
    let first = stage.post("/v1/responses", &first.to_string()).await.json();
    let item = &first["output"][0];
    let second = json!({"model": "gpt", "tools": response_tools(), "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        item,
        {"type": "function_call_output", "call_id": item["call_id"], "output": "sunny"},
    ]});
    let second = stage
        .post("/v1/responses", &second.to_string())
        .await
        .json();
    assert_eq!(second["output"][0]["content"][0]["text"], "Sunny.");
    assert_eq!(first["hone"]["session_id"], second["hone"]["session_id"]);
    let told = stage.told.lock().unwrap();
    assert_eq!(told.turns[1].parent, Some(told.turns[0].id));
}

#[tokio::test]
async fn an_unknown_previous_response_is_a_404() {
    let stage = Stage::new(Recorder::Collects).await;
    for id in ["resp_01a1fc19-fce1-7077-87e4-3c139bd16a22", "what"] {
        let body = json!({"model": "gpt", "input": "x", "previous_response_id": id});
        let reply = stage.post("/v1/responses", &body.to_string()).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (404, &json!("not_found"))
        );
    }
    assert_eq!(stage.fake.asks.lock().unwrap().len(), 0);
}

fn tool() -> Value {
    json!([{"name": "look", "input_schema": {"type": "object"}}])
}

#[tokio::test]
async fn a_message_tells_blocks_and_why_it_stopped() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([
        says(SAYS),
        Script::Say(vec!["a b", " END"], StopReason::StopString),
        Script::Say(vec!["x"], StopReason::Length),
    ]);
    let body = json!({"model": "gpt", "max_tokens": 100, "system": [{"type": "text", "text": "Be brief."}],
        "messages": [{"role": "user", "content": "weather?"}], "tools": tool(), "top_k": 5});
    let json = stage.post("/v1/messages", &body.to_string()).await.json();
    assert_eq!(
        (&json["type"], &json["role"], &json["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("tool_use"))
    );
    let content = json["content"].as_array().unwrap();
    assert_eq!(
        (&content[0]["thinking"], &content[1]["text"]),
        (&json!("hm"), &json!("Looking."))
    );
    assert_eq!(
        (&content[2]["type"], &content[2]["input"]["city"]),
        (&json!("tool_use"), &json!("Rome"))
    );
    assert_eq!(json["usage"]["cache_read_input_tokens"], 2);
    assert!(prompt(&stage, 0).contains("system\nBe brief.\n"));
    assert_eq!(stage.fake.asks.lock().unwrap()[0].sampling.top_k, 5);
    let body = json!({"model": "gpt", "max_tokens": 100, "stop_sequences": ["NO", "END"],
        "messages": [{"role": "user", "content": "go"}]});
    let json = stage.post("/v1/messages", &body.to_string()).await.json();
    assert_eq!(
        (&json["stop_reason"], &json["stop_sequence"]),
        (&json!("stop_sequence"), &json!("END"))
    );
    let json = stage.post("/v1/messages", &body.to_string()).await.json();
    assert_eq!(
        (&json["stop_reason"], &json["stop_sequence"]),
        (&json!("max_tokens"), &Value::Null)
    );
}

#[tokio::test]
async fn a_streamed_message_opens_and_closes_each_block() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([says(SAYS)]);
    let body = json!({"model": "gpt", "max_tokens": 100, "stream": true, "tools": tool(),
        "messages": [{"role": "user", "content": "weather?"}]});
    let events = stage.post("/v1/messages", &body.to_string()).await.events();
    let kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    let block = [
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    ];
    assert_eq!(
        kinds,
        [
            &["message_start"][..],
            &block,
            &block,
            &block,
            &["message_delta", "message_stop"]
        ]
        .concat()
    );
    let indexes: Vec<u64> = events.iter().filter_map(|e| e["index"].as_u64()).collect();
    assert_eq!(indexes, [0, 0, 0, 1, 1, 1, 2, 2, 2]);
    let partial = events
        .iter()
        .find_map(|e| e["delta"]["partial_json"].as_str());
    assert_eq!(partial, Some("{\"city\": \"Rome\"}"));
    let last = &events[events.len() - 2];
    assert_eq!(
        (&last["delta"]["stop_reason"], &last["hone"]["collected"]),
        (&json!("tool_use"), &json!(true))
    );
}

#[tokio::test]
async fn tool_results_of_messages_are_next_states() {
    let stage = Stage::new(Recorder::Collects).await;
    let call = "<tool_call>{\"name\": \"look\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>";
    stage.script([says(call), says("Sunny.")]);
    let first = json!({"model": "gpt", "max_tokens": 9, "tools": tool(),
        "messages": [{"role": "user", "content": "weather?"}]});
    let first = stage.post("/v1/messages", &first.to_string()).await.json();
    let second = json!({"model": "gpt", "max_tokens": 9, "tools": tool(), "messages": [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [{"type": "tool_result", "is_error": true,
            "tool_use_id": first["content"][0]["id"], "content": [{"type": "text", "text": "timed out"}]}]},
    ]});
    let second = stage.post("/v1/messages", &second.to_string()).await.json();
    assert_eq!(second["content"][0]["text"], "Sunny.");
    let told = stage.told.lock().unwrap();
    assert_eq!(told.turns[1].parent, Some(told.turns[0].id));
    assert_eq!(told.next[0].next_state.items[0].text, "Error: timed out");
}

#[tokio::test]
async fn demanded_calls_reach_the_engine_as_a_grammar() {
    let stage = Stage::new(Recorder::Collects).await;
    let bodies = [
        (
            "/v1/messages",
            json!({"model": "gpt", "max_tokens": 9, "tools": tool(), "tool_choice": {"type": "any"},
            "messages": [{"role": "user", "content": "x"}]}),
        ),
        (
            "/v1/responses",
            json!({"model": "gpt", "input": "x", "tools": response_tools(),
            "tool_choice": {"type": "function", "name": "look"}}),
        ),
        (
            "/v1/responses",
            json!({"model": "gpt", "input": "x", "text": {"format": {"type": "json_schema",
            "name": "n", "schema": {"type": "integer"}}}}),
        ),
    ];
    for (path, body) in &bodies {
        let reply = stage.post(path, &body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    }
    let held = stage.fake.held.load(Ordering::Relaxed);
    assert_eq!(
        (held, stage.fake.grammar.is_shared()),
        (bodies.len(), false),
        "until the ask and no longer"
    );
    let asks = stage.fake.asks.lock().unwrap();
    let grammar = |at: usize| asks[at].form.as_ref().unwrap().grammar().0.to_string();
    assert!(
        grammar(0).contains("{0,15}") && grammar(0).contains("look"),
        "{}",
        grammar(0)
    );
    assert!(
        !grammar(1).contains("{0,15}") && grammar(1).contains("look"),
        "{}",
        grammar(1)
    );
    assert!(
        grammar(2).contains("%json {\"type\":\"integer\""),
        "{}",
        grammar(2)
    );
}

#[tokio::test]
async fn what_cannot_work_is_refused_by_name() {
    let stage = Stage::new(Recorder::Collects).await;
    let user = json!([{"role": "user", "content": "x"}]);
    let rows = [
        ("/v1/responses", json!({"background": true}), "background"),
        ("/v1/responses", json!({"truncation": "auto"}), "truncation"),
        (
            "/v1/responses",
            json!({"input": [{"type": "item_reference", "id": "x"}]}),
            "input[0].id",
        ),
        ("/v1/responses", json!({"input": []}), "input"),
        ("/v1/messages", json!({"max_tokens": null}), "max_tokens"),
        ("/v1/messages", json!({"messages": []}), "messages"),
        (
            "/v1/messages",
            json!({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}]}),
            "messages",
        ),
        (
            "/v1/messages",
            json!({"mcp_servers": [{"url": "http://x"}]}),
            "mcp_servers",
        ),
    ];
    for (path, fields, param) in rows {
        let mut body = json!({"model": "gpt", "input": "x", "messages": user, "max_tokens": 5});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        let reply = stage.post(path, &body.to_string()).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!(param)),
            "{path} {fields}"
        );
    }
    assert_eq!(stage.fake.asks.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn counting_tokens_asks_nothing() {
    let stage = Stage::new(Recorder::Collects).await;
    let body = json!({"model": "gpt", "messages": [{"role": "user", "content": "hi"}]});
    let counted = stage
        .post("/v1/messages/count_tokens", &body.to_string())
        .await
        .json();
    assert_eq!(counted, json!({"input_tokens": 18}));
    assert_eq!(stage.fake.asks.lock().unwrap().len(), 0);
}
