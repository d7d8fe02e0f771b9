//! What the agents that people use send, and what they make of the answers: each kind in every dialect.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use hone_domain::{Sampling, ServeError, StopReason, Token, TurnKind};
use serde_json::{Map, Value, json};

use crate::testing::{Recorder, Reply, Script, Stage, read, request};
use hone_inference::{ByteLanguage, Language, LanguageError, Manner};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn says(text: &'static str) -> Script {
    Script::Say(vec![text], StopReason::EndToken)
}

fn prompt(stage: &Stage, at: usize) -> String {
    let asks = stage.fake.asks.lock().unwrap();
    let bytes = asks[at].prompt_tokens.iter().map(|token| *token as u8);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

/// A request of each dialect, with fields of its own.
fn body(path: &str, fields: &Value) -> Value {
    let mut body = match path {
        RESPONSES => json!({"model": "gpt", "input": "hi"}),
        MESSAGES => {
            json!({"model": "gpt", "max_tokens": 400, "messages": [{"role": "user", "content": "hi"}]})
        }
        _ => json!({"model": "gpt", "messages": [{"role": "user", "content": "hi"}]}),
    };
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

async fn ask(stage: &Stage, path: &str, fields: &Value) -> Reply {
    stage.post(path, &body(path, fields).to_string()).await
}

async fn with_headers(
    stage: &Stage,
    (path, body): (&str, &Value),
    headers: &[(&str, &str)],
) -> Reply {
    let headers = [&[("content-type", "application/json")], headers].concat();
    let request = request("POST", path, &headers).body(Body::from(body.to_string()));
    read(stage.send(request.unwrap()).await).await
}

/// A history whose call was answered with this.
fn called_in_messages(content: &Value) -> Value {
    json!([
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": content}]},
    ])
}

fn called_in_chat(content: &Value) -> Value {
    let call =
        json!({"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}});
    json!([
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": content},
    ])
}

fn called_in_responses(output: &Value) -> Value {
    json!([
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": output},
    ])
}

/// Path, field, value, what is named as left out. `OUTPUT` stands in a history with a call for what came of it.
const TAKEN: &str = r#"
/v1/messages | context_management | {"edits": [{"type": "clear_tool_uses_20250919"}]} | context_management
/v1/messages/count_tokens | context_management | {"edits": []} | context_management
/v1/responses | context_management | [{"type": "compaction"}] | context_management
/v1/messages | tools | [{"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash"}, {"name": "f", "input_schema": {"type": "object"}}] | tools.type
/v1/responses | tools | [{"type": "web_search"}, {"type": "image_generation"}, {"type": "local_shell"}, {"type": "tool_search"}, {"type": "mcp", "server_label": "x"}] | tools.type
/v1/responses | tools | [{"type": "function", "name": "f"}, {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}}, {"type": "namespace", "name": "mcp__x", "tools": [{"type": "function", "name": "f"}]}] |
/v1/responses | input | [{"role": "user", "content": "hi"}, {"type": "web_search_call", "id": "w"}, {"type": "image_generation_call", "id": "i"}, {"type": "compaction", "encrypted_content": "x"}] | input.type
/v1/responses | input | [{"role": "user", "content": "hi"}, {"type": "local_shell_call", "call_id": "l", "action": {"type": "exec", "command": ["ls"]}}, {"type": "local_shell_call_output", "call_id": "l", "output": "a"}] |
/v1/responses | input | [{"role": "user", "content": "hi"}, {"type": "tool_search_call", "call_id": "t", "arguments": {"query": "x"}}, {"type": "tool_search_output", "call_id": "t", "tools": [{"name": "f"}]}] |
/v1/responses | input | [{"role": "user", "content": "hi"}, {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "x"}, {"type": "custom_tool_call_output", "call_id": "c", "output": "y"}] |
/v1/responses | input | [{"role": "user", "content": "hi"}, {"type": "function_call", "call_id": "n", "namespace": "mcp__x", "name": "f", "arguments": "{}"}, {"type": "function_call_output", "call_id": "n", "output": [{"type": "input_text", "text": "x"}]}] |
/v1/responses | input | [{"role": "user", "content": "hi"}, {"type": "mcp_call", "id": "m", "server_label": "x", "name": "g", "arguments": "{}", "output": "y"}, {"role": "user", "content": "go on"}] |
/v1/chat/completions | tools | [{"type": "web_search"}] | tools.type
/v1/chat/completions | tools | [{"type": "custom", "custom": {"name": "f"}}] |
/v1/messages | OUTPUT | [{"type": "image", "source": {"type": "base64", "data": "aaaa"}}] | messages.content.content
/v1/responses | OUTPUT | [{"type": "input_image", "image_url": "data:"}] | input.output
/v1/chat/completions | OUTPUT | [{"type": "image_url", "image_url": {"url": "data:"}}] | messages.content
/v1/messages | messages | [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}, {"role": "assistant", "content": "A cat."}, {"role": "user", "content": "sure?"}] | messages.content
/v1/messages | messages | [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}, {"type": "search_result", "source": "http://a", "title": "t", "content": [{"type": "text", "text": "x"}]}]}] | messages.content
/v1/messages | OUTPUT | [{"type": "tool_reference", "tool_name": "f"}] |
/v1/messages | OUTPUT | null |
/v1/messages | OUTPUT | {"rows": [1]} |
/v1/responses | OUTPUT | null |
/v1/responses | OUTPUT | {"rows": [1]} |
/v1/chat/completions | OUTPUT | null |
/v1/chat/completions | OUTPUT | {"rows": [1]} |
/v1/chat/completions | OUTPUT | 5 |
/v1/messages | system | [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "Be brief."}] | system
"#;

#[tokio::test]
async fn what_agents_send_is_taken_and_what_has_no_effect_is_named() {
    let stage = Stage::new(Recorder::Collects).await;
    for line in TAKEN.lines().filter(|line| !line.is_empty()) {
        let cells: Vec<&str> = line.split(" |").map(str::trim).collect();
        let [path, field, value, named] = cells[..] else {
            panic!("{line:?} has no four cells")
        };
        let value: Value = serde_json::from_str(value).unwrap();
        let fields = match (field, path) {
            ("OUTPUT", RESPONSES) => json!({"input": called_in_responses(&value)}),
            ("OUTPUT", MESSAGES) => json!({"messages": called_in_messages(&value)}),
            ("OUTPUT", _) => json!({"messages": called_in_chat(&value)}),
            _ => json!({ field: value }),
        };
        let reply = ask(&stage, path, &fields).await;
        assert_eq!(reply.status, 200, "{line}: {}", reply.text);
        let ignored = reply.header("x-hone-ignored-fields").unwrap_or_default();
        assert_eq!(ignored, named, "{line}");
    }
    let mut missing = called_in_chat(&Value::Null);
    missing[2].as_object_mut().unwrap().remove("content");
    let reply = ask(&stage, CHAT, &json!({"messages": missing})).await;
    assert_eq!(reply.status, 200);
    // What the person just sent is refused where the answer would be about what nobody saw.
    let newest = json!({"messages": [{"role": "user", "content": [{"type": "image"}]}]});
    assert_eq!(ask(&stage, MESSAGES, &newest).await.status, 400);
}

#[tokio::test]
async fn texts_that_were_cut_within_a_character_are_taken() {
    let stage = Stage::new(Recorder::Collects).await;
    let text = r#"{"model": "gpt", "messages": [{"role": "user", "content": "a\ud83d b\ude00 \\ud83d \ud83d\ude00"}]}"#;
    let reply = stage.post(CHAT, text).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let said = prompt(&stage, 0);
    assert!(
        said.contains("a\u{fffd} b\u{fffd} \\ud83d \u{1f600}"),
        "{said}"
    );
}

#[tokio::test]
async fn a_call_of_a_function_in_a_namespace_comes_back_in_two_fields() {
    let stage = Stage::new(Recorder::Collects).await;
    let call =
        "<tool_call>{\"name\": \"mcp__files__read\", \"arguments\": {\"path\": \"a\"}}</tool_call>";
    stage.script([says(call), says(call), says("Done.")]);
    let tools = json!([{"type": "namespace", "name": "mcp__files", "description": "Files.",
        "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}]}]);
    let whole = ask(&stage, RESPONSES, &json!({"tools": tools}))
        .await
        .json();
    let item = whole["output"][0].clone();
    assert_eq!(
        (&item["type"], &item["name"], &item["namespace"]),
        (
            &json!("function_call"),
            &json!("read"),
            &json!("mcp__files")
        )
    );
    let streamed = json!({"tools": tools, "input": "another", "stream": true});
    let events = ask(&stage, RESPONSES, &streamed).await.events();
    let done = events
        .iter()
        .find(|e| e["type"] == "response.output_item.done")
        .unwrap();
    assert_eq!(
        (&done["item"]["name"], &done["item"]["namespace"]),
        (&item["name"], &item["namespace"])
    );
    let input = json!([{"role": "user", "content": "hi"}, item,
        {"type": "function_call_output", "call_id": item["call_id"], "output": "text"}]);
    let next = ask(&stage, RESPONSES, &json!({"tools": tools, "input": input})).await;
    assert_eq!(next.status, 200);
    let told = stage.told.lock().unwrap();
    assert!(told.turns[2].parent.is_some(), "the call is found again");
}

#[tokio::test]
async fn a_call_of_a_tool_that_takes_a_text_comes_back_as_text() {
    let call = "<tool_call>{\"name\": \"apply_patch\", \"arguments\": {\"input\": \"*** Begin\\n+a\"}}</tool_call>";
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([says(call), says(call), says(call), says(call)]);
    let tools = json!([{"type": "custom", "name": "apply_patch"}]);
    let whole = ask(&stage, RESPONSES, &json!({"tools": tools}))
        .await
        .json();
    let item = &whole["output"][0];
    assert_eq!(
        (&item["type"], &item["name"], &item["input"]),
        (
            &json!("custom_tool_call"),
            &json!("apply_patch"),
            &json!("*** Begin\n+a")
        )
    );
    let events = ask(&stage, RESPONSES, &json!({"tools": tools, "stream": true}))
        .await
        .events();
    let text: String = events
        .iter()
        .filter(|e| e["type"] == "response.custom_tool_call_input.delta")
        .map(|e| e["delta"].as_str().unwrap())
        .collect();
    assert_eq!(text, "*** Begin\n+a");
    assert!(
        events
            .iter()
            .all(|e| e["type"] != "response.function_call_arguments.delta")
    );
    let tools = json!([{"type": "custom", "custom": {"name": "apply_patch"}}]);
    let chat = ask(&stage, CHAT, &json!({"tools": tools})).await.json();
    let call = &chat["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(
        (
            &call["type"],
            &call["custom"]["name"],
            &call["custom"]["input"]
        ),
        (
            &json!("custom"),
            &json!("apply_patch"),
            &json!("*** Begin\n+a")
        )
    );
    let events = ask(&stage, CHAT, &json!({"tools": tools, "stream": true}))
        .await
        .events();
    let deltas = events
        .iter()
        .filter_map(|e| e["choices"][0]["delta"]["tool_calls"].get(0));
    let text: String = deltas
        .filter_map(|call| call["custom"]["input"].as_str())
        .collect();
    assert_eq!(text, "*** Begin\n+a");
}

/// Takes what the strictest templates in use take: instructions first, turns by turns, arguments that
/// are objects.
struct Strict;

impl Language for Strict {
    fn render(
        &self,
        messages: &[Value],
        tools: Option<&[Value]>,
        extra: &Map<String, Value>,
    ) -> Result<String, LanguageError> {
        let refuse = |why: &str| Err(LanguageError(why.to_owned()));
        let mut turns = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            let role = message["role"].as_str().unwrap_or_default();
            if role == "system" && at > 0 {
                return refuse("System message must be at the beginning.");
            }
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            for call in calls {
                if !call["function"]["arguments"].is_object() {
                    return refuse("Can only get item pairs from a mapping.");
                }
            }
            if role == "user" || (role == "assistant" && message["tool_calls"].is_null()) {
                turns.push(role);
            }
        }
        let alternates = turns
            .iter()
            .enumerate()
            .all(|(at, role)| (*role == "user") == (at % 2 == 0));
        if !alternates {
            return refuse("Conversation roles must alternate user/assistant.");
        }
        ByteLanguage.render(messages, tools, extra)
    }

    fn encode(&self, text: &str, special: bool) -> Vec<Token> {
        ByteLanguage.encode(text, special)
    }

    fn decode(&self, tokens: &[Token]) -> String {
        ByteLanguage.decode(tokens)
    }

    fn token_bytes(&self, token: Token) -> Vec<u8> {
        ByteLanguage.token_bytes(token)
    }

    fn defaults(&self) -> Sampling {
        Sampling::default()
    }

    fn manner(&self) -> Manner {
        ByteLanguage.manner()
    }

    fn reads(&self, _: &str) -> bool {
        false
    }
}

#[tokio::test]
async fn conversations_that_a_template_refuses_are_told_in_another_way() {
    let call = |arguments: &str| {
        json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}]})
    };
    let user = |text: &str| json!({"role": "user", "content": text});
    let system = |text: &str| json!({"role": "system", "content": text});
    let result = json!({"role": "tool", "tool_call_id": "a", "content": "x"});
    let histories = [
        json!([system("S"), user("hi"), system("late")]),
        json!([system("S"), user("hi"), {"role": "assistant", "content": "yes"}, system("compacted"), user("go")]),
        json!([user("one"), user("two")]),
        json!([user("one"), {"role": "assistant", "content": ""}, {"role": "assistant", "content": "b"}, user("two")]),
        json!([user("one"), call("{}"), result, user("stop")]),
        json!([user("one"), call("{}"), user("I denied it")]),
        json!([{"role": "assistant", "content": "left over"}, user("go")]),
        json!([user("one"), call("{"), result, user("go")]),
        json!([user("one"), call("["), result]),
        json!([user("one"), call("\"x\""), result]),
        json!([user("one"), call("null"), result]),
        json!([user("one"), call("{\"a\": 1}} trailing"), result]),
    ];
    let stage = Stage::speaking(Recorder::Collects, Arc::new(Strict)).await;
    for history in &histories {
        let reply = ask(&stage, CHAT, &json!({"messages": history})).await;
        assert_eq!(reply.status, 200, "{history}: {}", reply.text);
    }
    // The same in the other dialects.
    let message = json!({"system": "S", "messages": [user("hi"), {"role": "system", "content": "late"}, user("go"),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": "{"}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}, {"type": "text", "text": "go"}]}]});
    assert_eq!(ask(&stage, MESSAGES, &message).await.status, 200);
    let input = json!({"instructions": "S", "input": [user("hi"), {"role": "developer", "content": "late"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{\"a"},
        {"type": "function_call_output", "call_id": "a", "output": "x"}, user("go")]});
    assert_eq!(ask(&stage, RESPONSES, &input).await.status, 200);
}

/// The beginning of a prompt stays as it was, and the turn is found, when the conversation goes on.
#[tokio::test]
async fn what_is_told_in_another_way_stays_so() {
    let stage = Stage::speaking(Recorder::Collects, Arc::new(Strict)).await;
    stage.script([says("Yes."), says("Sure.")]);
    let mut messages = json!([{"role": "system", "content": "S"}, {"role": "user", "content": "hi"},
        {"role": "system", "content": "late"}]);
    ask(&stage, CHAT, &json!({"messages": messages})).await;
    let all = messages.as_array_mut().unwrap();
    all.push(json!({"role": "assistant", "content": "Yes."}));
    all.push(json!({"role": "user", "content": "sure?"}));
    ask(&stage, CHAT, &json!({"messages": messages})).await;
    let asks = stage.fake.asks.lock().unwrap();
    assert!(asks[1].prompt_tokens.starts_with(&asks[0].prompt_tokens));
    let told = stage.told.lock().unwrap();
    assert_eq!(told.turns[1].parent, Some(told.turns[0].id));
}

#[tokio::test]
async fn a_call_that_ends_badly_is_never_told_as_sound() {
    let cut = || says("<tool_call>{\"name\": \"look\", \"arguments\": {\"city\": \"Ro");
    let function = json!([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]);
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([cut(), cut(), cut(), cut()]);
    let whole = ask(&stage, CHAT, &json!({"tools": function})).await.json();
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    let events = ask(&stage, CHAT, &json!({"tools": function, "stream": true}))
        .await
        .events();
    let finish = events
        .iter()
        .find_map(|e| e["choices"][0]["finish_reason"].as_str());
    assert_eq!(finish, Some("length"));
    let tools = json!([{"name": "look", "input_schema": {"type": "object"}}]);
    let message = ask(&stage, MESSAGES, &json!({"tools": tools})).await.json();
    assert_eq!(message["stop_reason"], "max_tokens");
    let tools = json!([{"type": "function", "name": "look"}]);
    let response = ask(&stage, RESPONSES, &json!({"tools": tools}))
        .await
        .json();
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["output"][0]["status"], "incomplete");
}

/// Claude Code returns arguments that were cut in a field of its own; others return them as they were.
#[tokio::test]
async fn a_cut_call_is_found_again() {
    const CUT: &str = "<tool_call>{\"name\": \"look\", \"arguments\": {\"city\": \"Ro";
    let raw = "{\"city\": \"Ro";
    let stage = Stage::new(Recorder::Collects).await;
    let tools = json!([{"name": "look", "input_schema": {"type": "object"}}]);
    let inputs = [
        json!({"__unparsedToolInput": {"raw": raw}}),
        json!({"__unparsedToolInput": raw}),
        json!(raw),
    ];
    for (at, input) in inputs.iter().enumerate() {
        stage.script([says(CUT), says("Again.")]);
        let question = json!({"role": "user", "content": format!("weather {at}?")});
        ask(
            &stage,
            MESSAGES,
            &json!({"tools": tools, "messages": [question]}),
        )
        .await;
        let history = json!([question,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": input}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": true, "content": "bad JSON"}]}]);
        let reply = ask(
            &stage,
            MESSAGES,
            &json!({"tools": tools, "messages": history}),
        )
        .await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        let told = stage.told.lock().unwrap();
        let [.., first, second] = &told.turns[..] else {
            panic!("two turns")
        };
        assert_eq!(second.parent, Some(first.id), "{input}");
        let result = &told.next.last().unwrap().next_state.items[0];
        assert_eq!(result.failed, Some(true));
    }
}

#[tokio::test]
async fn errors_of_messages_are_in_the_words_of_its_clients() {
    let stage = Stage::new(Recorder::Collects).await;
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(5_000)}]});
    let overloaded = ServeError::Overloaded {
        limit: 3,
        retry_after_ms: 1_500,
    };
    stage.script([
        Script::Refuse(ServeError::Internal("x".to_owned())),
        Script::Refuse(overloaded),
        Script::Refuse(ServeError::Stopping),
    ]);
    let rows = [
        (json!({"messages": []}), 400, "invalid_request_error"),
        (json!({"model": "other"}), 404, "not_found_error"),
        (
            json!({"system": "x".repeat(70_000)}),
            413,
            "request_too_large",
        ),
        (json!({}), 500, "api_error"),
        (json!({}), 429, "rate_limit_error"),
        (json!({}), 503, "overloaded_error"),
        (long, 400, "invalid_request_error"),
    ];
    for (fields, status, kind) in rows {
        let reply = ask(&stage, MESSAGES, &fields).await;
        let told = reply.json();
        assert_eq!(
            (reply.status, &told["type"]),
            (status, &json!("error")),
            "{told}"
        );
        assert_eq!(told["error"]["type"], kind, "{told}");
        assert_eq!(told["request_id"].as_str(), reply.header("request-id"));
        assert!(told["error"]["message"].is_string());
    }
    let long = json!({"messages": [{"role": "user", "content": "x".repeat(5_000)}]});
    let told = ask(&stage, MESSAGES, &long).await.json();
    let message = told["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("prompt is too long: 5016 tokens > 4096 maximum"),
        "{message}"
    );
    let unknown = stage.post("/v1/messages/nothing", "{}").await.json();
    assert_eq!(unknown["error"]["type"], "not_found_error");
    let bad = [("authorization", "Bearer nobody")];
    let told = with_headers(&stage, (MESSAGES, &body(MESSAGES, &json!({}))), &bad).await;
    assert_eq!(
        (told.status, &told.json()["error"]["type"]),
        (401, &json!("authentication_error"))
    );
    // In the middle of a stream as well.
    stage.script([Script::Break(vec!["Hm"], ServeError::Memory)]);
    let reply = ask(&stage, MESSAGES, &json!({"stream": true})).await;
    let last = reply.events().pop().unwrap();
    assert_eq!(
        (&last["type"], &last["error"]["type"]),
        (&json!("error"), &json!("overloaded_error"))
    );
    assert_eq!(last["request_id"].as_str(), reply.header("request-id"));
    // Other dialects keep theirs.
    let chat = ask(&stage, CHAT, &json!({"messages": []})).await;
    assert_eq!(
        (chat.json()["type"].is_null(), chat.header("request-id")),
        (true, None)
    );
}

#[tokio::test]
async fn the_length_of_a_model_is_told_under_every_name() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.fake.max_positions.store(32_768, Ordering::Relaxed);
    let list = stage.get("/v1/models").await.json();
    let one = stage.get("/v1/models/gpt").await.json();
    for card in [&list["data"][0], &one] {
        for name in [
            "max_model_len",
            "context_length",
            "context_window",
            "max_context_length",
            "max_input_tokens",
            "max_tokens",
        ] {
            assert_eq!(card[name], 32_768, "{name}");
        }
        assert_eq!(card["meta"]["n_ctx"], 32_768);
    }
    assert_eq!(list["has_more"], false);
}

#[tokio::test]
async fn stored_items_are_found_by_their_ids() {
    let stage = Stage::new(Recorder::Collects).await;
    let call = "Looking.\n<tool_call>{\"name\": \"look\", \"arguments\": {\"city\": \"Rome\"}}</tool_call>";
    stage.script([says(call), says("Sunny.")]);
    let tools = json!([{"type": "function", "name": "look"}]);
    let first = ask(&stage, RESPONSES, &json!({"tools": tools}))
        .await
        .json();
    let turn = stage.told.lock().unwrap().turns[0].clone();
    stage
        .http
        .ledger
        .record_turns(std::slice::from_ref(&turn))
        .await
        .unwrap();
    let ids = first["output"].as_array().unwrap().iter();
    let references = ids.enumerate().map(|(at, item)| match at % 2 {
        0 => json!({"type": "item_reference", "id": item["id"]}),
        _ => json!({"id": item["id"]}),
    });
    let mut input = vec![json!({"role": "user", "content": "hi"})];
    input.extend(references);
    input.push(json!({"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "sunny"}));
    let second = ask(&stage, RESPONSES, &json!({"tools": tools, "input": input})).await;
    assert_eq!(second.status, 200, "{}", second.text);
    assert_eq!(stage.told.lock().unwrap().turns[1].parent, Some(turn.id));
    let unknown = json!({"input": [{"type": "item_reference", "id": "fc_nothing"}]});
    assert_eq!(ask(&stage, RESPONSES, &unknown).await.status, 400);
    // The response itself.
    let path = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    let kept = stage.get(&path).await.json();
    assert_eq!(
        kept["output"][1]["arguments"],
        first["output"][1]["arguments"]
    );
    assert_eq!(kept["output"][0]["id"], first["output"][0]["id"]);
    assert_eq!(
        stage.post(&format!("{path}/cancel"), "{}").await.status,
        400
    );
    let delete = request("DELETE", &path, &[]).body(Body::empty()).unwrap();
    let gone = read(stage.send(delete).await).await;
    assert_eq!(
        (gone.status, &gone.json()["deleted"]),
        (200, &json!(true)),
        "{}",
        gone.text
    );
    assert_eq!(stage.get(&path).await.status, 404);
    assert_eq!(stage.get("/v1/responses/resp_x").await.status, 404);
}

#[tokio::test]
async fn what_clients_put_around_a_persons_words_is_not_theirs() {
    const REMINDER: &str = "<system-reminder>\nNever lie.\n</system-reminder>";
    let stage = Stage::new(Recorder::Collects).await;
    let blocks = |words: &str| {
        json!([{"type": "text", "text": REMINDER}, {"type": "text", "text": words},
            {"type": "text", "text": "<system-reminder>\nbehind\n</system-reminder>"}])
    };
    let billing =
        |end: &str| format!("x-anthropic-billing-header: cc_version=2.1.{end}; cch={end};");
    let fields = |end: &str, messages: Value| json!({"messages": messages, "system": [{"type": "text", "text": billing(end)}, {"type": "text", "text": "You are an agent."}]});
    stage.script([says("One."), says("Two.")]);
    let first = json!([{"role": "user", "content": blocks("fix it")}]);
    ask(&stage, MESSAGES, &fields("aaa", first)).await;
    let second = json!([{"role": "user", "content": [{"type": "text", "text": "fix it"}]},
        {"role": "assistant", "content": "One."}, {"role": "user", "content": blocks("that is wrong")}]);
    ask(&stage, MESSAGES, &fields("bbb", second)).await;
    assert!(!prompt(&stage, 0).contains("billing"));
    assert!(
        prompt(&stage, 0).contains("Never lie"),
        "it stays in the prompt"
    );
    let told = stage.told.lock().unwrap();
    assert_eq!(told.turns[1].parent, Some(told.turns[0].id));
    let texts: Vec<&str> = told.next[0]
        .next_state
        .items
        .iter()
        .map(|item| item.text.as_str())
        .collect();
    assert_eq!(texts, ["that is wrong"]);
}

#[tokio::test]
async fn agents_of_an_agent_have_sessions_of_their_own() {
    let stage = Stage::new(Recorder::Collects).await;
    let ask = |thread: &'static str, words: &'static str| {
        let body = body(RESPONSES, &json!({"input": words}));
        let stage = &stage;
        async move {
            let headers = [("session-id", "root"), ("thread-id", thread)];
            let reply = with_headers(stage, (RESPONSES, &body), &headers).await;
            reply.json()["hone"]["session_id"].clone()
        }
    };
    let parent = ask("root", "do it").await;
    let child = ask("child", "help").await;
    let again = ask("child", "help more").await;
    assert_ne!(parent, child);
    assert_eq!(child, again);
    let told = stage.told.lock().unwrap();
    let edges: Vec<Option<&String>> = told
        .turns
        .iter()
        .map(|turn| turn.admission.metadata.get("parent_session"))
        .collect();
    let root = "root".to_owned();
    assert_eq!(edges, [None, Some(&root), Some(&root)]);
}

#[tokio::test]
async fn a_session_names_its_parent_in_the_words_of_each_client() {
    for headers in [
        [("thread-id", "child"), ("x-codex-parent-thread-id", "root")],
        [("x-session-id", "child"), ("x-parent-session-id", "root")],
        [
            ("x-claude-code-agent-id", "child"),
            ("x-claude-code-session-id", "root"),
        ],
    ] {
        let stage = Stage::new(Recorder::Collects).await;
        let body = body(RESPONSES, &json!({"input": "help"}));
        with_headers(&stage, (RESPONSES, &body), &headers).await;
        let told = stage.told.lock().unwrap();
        let edge = told.turns[0].admission.metadata.get("parent_session");
        assert_eq!(edge.map(String::as_str), Some("root"), "{headers:?}");
    }
}

#[tokio::test]
async fn housekeeping_is_a_side_turn_and_nobodys_next_state() {
    let stage = Stage::new(Recorder::Collects).await;
    let titles = json!({"type": "json_schema", "schema": {"type": "object", "properties": {"title": {"type": "string"}}}});
    let history =
        json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}]);
    let compaction = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM.";
    let mut compacted = history.as_array().unwrap().clone();
    compacted.push(json!({"role": "user", "content": compaction}));
    let retold = "### Task:\nSuggest tags.\n### Chat History:\n<chat_history>\nUSER: hi\nASSISTANT: ok\n</chat_history>";
    let emoji = "Your task is to reflect the speaker's likely facial expression through a fitting emoji.\n\nMessage: ```hi```";
    let rows = [
        (
            MESSAGES,
            json!({"messages": [{"role": "user", "content": "quota"}], "max_tokens": 1}),
            TurnKind::Side,
        ),
        (
            MESSAGES,
            json!({"system": "Name it.", "output_config": {"format": titles}}),
            TurnKind::Side,
        ),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": retold}]}),
            TurnKind::Side,
        ),
        (
            RESPONSES,
            json!({"input": compacted, "tools": [{"type": "function", "name": "f"}]}),
            TurnKind::Side,
        ),
        (
            CHAT,
            json!({"messages": [{"role": "user", "content": emoji}]}),
            TurnKind::Side,
        ),
        (CHAT, json!({}), TurnKind::Main),
        (MESSAGES, json!({"tools": [{"name": "f"}]}), TurnKind::Main),
    ];
    for (path, fields, kind) in rows {
        let reply = ask(&stage, path, &fields).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        let asks = stage.fake.asks.lock().unwrap();
        assert_eq!(asks.last().unwrap().kind, kind, "{fields}");
    }
    assert!(stage.told.lock().unwrap().next.is_empty());
}

/// Some clients say `store: false` every time: their person decides once whether that is meant.
#[tokio::test]
async fn who_says_store_false_is_asked_once_whether_to_learn_all_the_same() {
    let stage = Stage::new(Recorder::Collects).await;
    for path in [CHAT, RESPONSES, MESSAGES] {
        let note = ask(&stage, path, &json!({"store": false})).await.json()["hone"].clone();
        assert_eq!(note["reason"], "store_false", "{path}");
        let question = note["question"].as_str().unwrap();
        assert!(question.contains("PUT /v1/consent"), "{path}: {question}");
    }
    let plain = ask(&stage, CHAT, &json!({})).await.json();
    assert!(plain["hone"]["question"].is_null());
    for (despite, collected) in [(false, false), (true, true)] {
        let body = json!({"learning": "full", "despite_store_false": despite}).to_string();
        let put = request(
            "PUT",
            "/v1/consent",
            &[("content-type", "application/json")],
        );
        let put = stage.send(put.body(Body::from(body)).unwrap()).await;
        assert_eq!(put.status(), 200);
        let note = ask(&stage, RESPONSES, &json!({"store": false}))
            .await
            .json()["hone"]
            .clone();
        assert_eq!(
            (&note["collected"], &note["question"]),
            (&json!(collected), &Value::Null)
        );
    }
}
