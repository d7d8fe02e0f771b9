//! Everything wrong that a client can send gets an OpenAI error object, and nothing is asked.

use axum::body::Body;
use serde_json::{Value, json};

use crate::testing::{Recorder, Stage, read, request};

const CHAT: &str = "/v1/chat/completions";

/// Body, status, code, param.
type Row = (String, u16, &'static str, Option<&'static str>);

async fn check(path: &str, rows: Vec<Row>) {
    let stage = Stage::new(Recorder::Collects).await;
    for (body, status, code, param) in rows {
        let shown: String = body.chars().take(120).collect();
        let reply = stage.post(path, &body).await;
        let error = reply.json()["error"].clone();
        assert_eq!(reply.status, status, "{shown}: {error}");
        assert_eq!(error["code"], code, "{shown}: {error}");
        assert_eq!(error["param"].as_str(), param, "{shown}: {error}");
        assert!(
            error["message"].as_str().is_some_and(|m| m.len() > 10),
            "{shown}"
        );
        assert!(error["type"].is_string(), "{shown}");
        assert!(
            reply
                .header("x-request-id")
                .is_some_and(|id| id.starts_with("req_"))
        );
    }
    assert_eq!(stage.fake.asks.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn bodies_that_are_not_json() {
    let deep = |n: usize| {
        format!(
            "{{\"model\":\"gpt\",\"x\":{}{}}}",
            "[".repeat(n),
            "]".repeat(n)
        )
    };
    let rows: Vec<Row> = [
        "",
        "{",
        "nonsense",
        "{\"model\": NaN}",
        "{\"temperature\": 1e999}",
        "{} {}",
        &deep(200),
    ]
    .into_iter()
    .map(|body| (body.to_owned(), 400, "invalid_json", None))
    .chain([("[1]".to_owned(), 400, "invalid_value", None)])
    .collect();
    check(CHAT, rows).await;
}

/// Field, its value, code, param. Status is 404 for `model_not_found` and `not_found`, else 400.
const CHAT_ROWS: &str = r#"
messages | [] | invalid_value | messages
messages | "hi" | invalid_value | messages
messages | [1] | invalid_value | messages[0]
messages | [{"role": "king", "content": ""}] | invalid_value | messages[0].role
messages | [{"content": "x"}] | invalid_value | messages[0].role
messages | [{"role": "user"}] | invalid_value | messages[0].content
messages | [{"role": "user", "content": 5}] | invalid_value | messages[0].content
messages | [{"role": "user", "content": [{"type": "image_url"}]}] | unsupported_parameter | messages[0].content[0].type
messages | [{"role": "user", "content": [{"type": "text"}]}] | invalid_value | messages[0].content[0].text
messages | [{"role": "user", "content": [{}]}] | invalid_value | messages[0].content[0].type
messages | [{"role": "user", "content": "", "name": 1}] | invalid_value | messages[0].name
messages | [{"role": "assistant", "tool_calls": 1}] | invalid_value | messages[0].tool_calls
messages | [{"role": "assistant", "tool_calls": [{}]}] | invalid_value | messages[0].tool_calls[0].function.name
model | "other" | model_not_found | model
model | 7 | invalid_value | model
model | null | invalid_value | model
temperature | "hot" | invalid_value | temperature
temperature | 3 | invalid_value | temperature
temperature | -0.1 | invalid_value | temperature
top_p | 1.5 | invalid_value | top_p
top_k | -2 | invalid_value | top_k
min_p | 2 | invalid_value | min_p
n | 0 | invalid_value | n
n | 1000000 | invalid_value | n
max_tokens | 0 | invalid_value | max_tokens
max_tokens | 1e30 | invalid_value | max_tokens
max_completion_tokens | -1 | invalid_value | max_completion_tokens
seed | "x" | invalid_value | seed
stop | ["a", ""] | invalid_value | stop
stop | 5 | invalid_value | stop
stream | "yes" | invalid_value | stream
stream_options | {"include_usage": 1} | invalid_value | stream_options.include_usage
prediction | "x" | invalid_value | prediction
prediction | {"type": "image", "content": "x"} | invalid_value | prediction.type
prediction | {"content": "x"} | invalid_value | prediction.type
prediction | {"type": "content"} | invalid_value | prediction.content
prediction | {"type": "content", "content": null} | invalid_value | prediction.content
prediction | {"type": "content", "content": ["x", {"text": "y"}]} | invalid_value | prediction.content[1].type
prediction | {"type": "content", "content": 5} | invalid_value | prediction.content
top_logprobs | 3 | invalid_value | top_logprobs
top_logprobs | 21 | invalid_value | top_logprobs
logit_bias | {"x": 1} | invalid_value | logit_bias
logit_bias | {"5": 101} | invalid_value | logit_bias
logit_bias | {"257": 1} | invalid_value | logit_bias
presence_penalty | 2.5 | invalid_value | presence_penalty
repetition_penalty | 0 | invalid_value | repetition_penalty
turn_type | "aside" | invalid_value | turn_type
session_done | [] | invalid_value | session_done
user | ["x"] | invalid_value | user
metadata | "x" | invalid_value | metadata
tools | [{"type": "function"}] | invalid_value | tools[0].function.name
tool_choice | "required" | invalid_value | tool_choice
tool_choice | {"type": "function"} | invalid_value | tool_choice
tool_choice | {"type": "function", "function": {"name": "f"}} | invalid_value | tool_choice
parallel_tool_calls | "no" | invalid_value | parallel_tool_calls
tool_choice | "maybe" | invalid_value | tool_choice
response_format | {"type": "json_schema"} | invalid_value | response_format.json_schema.name
response_format | {"type": "json_schema", "json_schema": {"name": "x"}} | invalid_value | response_format.json_schema.schema
response_format | {"type": "json_schema", "json_schema": {"name": "x", "schema": 5}} | invalid_value | response_format.json_schema.schema
response_format | {"type": "json_schema", "json_schema": {"name": "x", "schema": {"title": "unsound"}}} | invalid_value | response_format.json_schema.schema
guided_regex | "" | invalid_value | guided_regex
guided_choice | [] | invalid_value | guided_choice
guided_choice | ["a", ""] | invalid_value | guided_choice
guided_grammar | "a grammar of nothing" | invalid_value | guided_grammar
guided_json | "{" | invalid_value | guided_json
structured_outputs | {"regex": 5} | invalid_value | structured_outputs.regex
structured_outputs | {"structural_tag": {}} | unsupported_parameter | structured_outputs.structural_tag
response_format | "text" | invalid_value | response_format
modalities | ["audio"] | unsupported_parameter | modalities
audio | {"voice": "x"} | unsupported_parameter | audio
functions | [{"name": "f"}] | unsupported_parameter | functions
"#;

const TEXT_ROWS: &str = r#"
prompt | null | invalid_value | prompt
prompt | "" | invalid_value | prompt
prompt | [] | invalid_value | prompt
prompt | {} | invalid_value | prompt
prompt | [1, "a"] | invalid_value | prompt[1]
prompt | [1, 999] | invalid_value | prompt[1]
prompt | ["a", 1] | invalid_value | prompt[1]
n | 17 | invalid_value | n
logprobs | 50 | invalid_value | logprobs
echo | true | unsupported_parameter | echo
suffix | "x" | unsupported_parameter | suffix
best_of | 4 | unsupported_parameter | best_of
"#;

const MESSAGES_ROWS: &str = r#"
system | 5 | invalid_value | system
system | [{"type": "image"}] | unsupported_parameter | system[0].type
messages | [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image"}]}] | unsupported_parameter | messages[0].content[1].type
messages | [{"role": "user", "content": [{"type": "text"}]}] | invalid_value | messages[0].content[0].text
"#;

const FEEDBACK_ROWS: &str = r#"
turn_id | null | invalid_value | turn_id
turn_id | "x" | invalid_value | turn_id
score | null | invalid_value | score
score | 2 | invalid_value | score
thumb | "sideways" | invalid_value | thumb
session_id | "sess_00000000-0000-7000-8000-000000000001" | invalid_value | session_id
rewards | {"tests": 1} | invalid_value | rewards
corection | "lost by a typo" | invalid_value | corection
"#;

/// Rows of a table as bodies: `base` with one field set.
fn rows(base: &Value, table: &'static str) -> Vec<Row> {
    let lines = table.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [field, value, code, param] = cells[..] else {
                panic!("{line:?} has no four cells")
            };
            let mut body = base.clone();
            body[field] = serde_json::from_str(value).unwrap();
            let status = if code.ends_with("not_found") {
                404
            } else {
                400
            };
            let param = (!param.is_empty()).then_some(param);
            (body.to_string(), status, code, param)
        })
        .collect()
}

fn hi() -> Value {
    json!({"model": "gpt", "messages": [{"role": "user", "content": "hi"}]})
}

#[tokio::test]
async fn fields_of_the_wrong_type_or_value() {
    check(CHAT, rows(&hi(), CHAT_ROWS)).await;
    check(
        "/v1/completions",
        rows(&json!({"model": "gpt", "prompt": "x"}), TEXT_ROWS),
    )
    .await;
    let mut message = hi();
    message["max_tokens"] = json!(5);
    check("/v1/messages", rows(&message, MESSAGES_ROWS)).await;
    let turn = "turn_00000000-0000-7000-8000-000000000001";
    let feedback = json!({"turn_id": turn, "score": 1});
    check("/v1/feedback", rows(&feedback, FEEDBACK_ROWS)).await;
}

#[tokio::test]
async fn what_is_too_much() {
    let with = |field: &str, value: Value| {
        let mut body = hi();
        body[field] = value;
        body.to_string()
    };
    // The field that the prompt was in is named, whatever the dialect calls it.
    let stage = Stage::new(Recorder::Collects).await;
    let text = "x".repeat(5_000);
    for (path, param) in [
        ("/v1/completions", "prompt"),
        ("/v1/responses", "input"),
        ("/v1/embeddings", "input"),
    ] {
        let body = json!({"model": "gpt", param: text}).to_string();
        let error = stage.post(path, &body).await.json()["error"].clone();
        let told = (&error["code"], &error["param"]);
        assert_eq!(told, (&json!("context_length_exceeded"), &json!(param)));
        assert!(error["message"].as_str().unwrap().contains(param));
    }
    let stops: Vec<String> = (0..4_000).map(|i| i.to_string()).collect();
    let many = vec![json!({"role": "user", "content": "x"}); 65];
    let long = json!([{"role": "user", "content": "x".repeat(5_000)}]);
    let chat = vec![
        (
            with("stop", json!(stops)),
            400,
            "invalid_value",
            Some("stop"),
        ),
        (
            with("stop", json!("x".repeat(2_000))),
            400,
            "invalid_value",
            Some("stop"),
        ),
        (
            with("messages", json!(many)),
            400,
            "invalid_value",
            Some("messages"),
        ),
        (
            with("messages", long),
            400,
            "context_length_exceeded",
            Some("messages"),
        ),
        (
            with("session_id", json!("x".repeat(600))),
            400,
            "invalid_value",
            Some("session_id"),
        ),
        (
            with("user", json!("x".repeat(600))),
            400,
            "invalid_value",
            Some("user"),
        ),
    ];
    check(CHAT, chat).await;
    let prompts = json!({"model": "gpt", "prompt": vec!["a"; 17]}).to_string();
    let text = vec![(prompts, 400, "invalid_value", Some("prompt"))];
    check("/v1/completions", text).await;
}

#[tokio::test]
async fn a_misspelt_field_of_feedback_is_told_with_those_there_are() {
    let stage = Stage::new(Recorder::Collects).await;
    let turn = "turn_00000000-0000-7000-8000-000000000001";
    let body = json!({"turn_id": turn, "score": 1, "corection": "four"});
    let reply = stage.post("/v1/feedback", &body.to_string()).await;
    assert_eq!(
        reply.json()["error"],
        json!({
            "message": "there is no field \"corection\" here; known: turn_id, session_id, score, metric, \
                        thumb, comment, correction, rewards, id",
            "type": "invalid_request_error", "param": "corection", "code": "invalid_value",
        })
    );
}

#[tokio::test]
async fn a_misspelt_or_misplaced_field_of_a_command_is_refused_before_anything_is_done() {
    let compare = || json!({"a": 0, "b": 1, "c": 2});
    let sign_in = json!({"name": "a", "password": "b", "pasword": "c"});
    let rows = [
        ("/admin/v1/drain", json!({"drain": false}), "drain"),
        (
            "/v1/versions/1/promote",
            json!({"notes": "better"}),
            "notes",
        ),
        ("/v1/versions/compare", compare(), "c"),
        ("/admin/v1/versions/compare", compare(), "c"),
        ("/v1/auth/sign-in", sign_in, "pasword"),
        // Without it, it would be done to the caller.
        ("/v1/forget?user=bob", json!({"all": true}), "user"),
        ("/v1/feedback?user=bob", json!({"score": 1}), "user"),
    ];
    for (path, body, field) in rows {
        let row = (body.to_string(), 400, "invalid_value", Some(field));
        check(path, vec![row]).await;
    }
}

#[tokio::test]
async fn feedback_that_cannot_be_stored() {
    let turn = "turn_00000000-0000-7000-8000-000000000001";
    let body = json!({"turn_id": turn, "comment": "broken"}).to_string();
    check("/v1/feedback", vec![(body, 503, "ledger_failed", None)]).await;
    let long = json!({"turn_id": turn, "comment": "x".repeat(40_000)}).to_string();
    check(
        "/v1/feedback",
        vec![(long, 400, "invalid_value", Some("comment"))],
    )
    .await;
}

/// Method, path, headers, body, status, code.
const PLACES: &str = r#"
GET | /nowhere | | | 404 | unknown_url
GET | /v1/nothing | | | 404 | unknown_url
GET | /v1/models/nothing/here | | | 404 | model_not_found
GET | /v1/turns/nothing | | | 404 | not_found
GET | /v1/turns/turn_00000000-0000-7000-8000-000000000001 | | | 404 | not_found
GET | /v1/versions?limit=0 | | | 400 | invalid_value
GET | /v1/versions?limit=x | | | 400 | invalid_value
GET | /v1/chat/completions | | | 405 | method_not_allowed
DELETE | /v1/models | | | 405 | method_not_allowed
POST | /admin/v1/loops/sing/pause | | | 404 | not_found
POST | /v1/chat/completions | | {} | 415 | unsupported_media_type
POST | /v1/chat/completions | content-type: text/plain | {} | 415 | unsupported_media_type
POST | /v1/chat/completions | content-type: application/json, content-encoding: gzip | {} | 415 | unsupported_media_type
POST | /v1/chat/completions | content-type: application/json, content-length: 99999999 | {} | 413 | body_too_large
POST | /v1/chat/completions | content-type: application/json | BIG | 413 | body_too_large
"#;

#[tokio::test]
async fn wrong_places_methods_types_and_sizes_are_json_too() {
    let stage = Stage::new(Recorder::Collects).await;
    for line in PLACES.lines().filter(|line| !line.is_empty()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [method, path, headers, body, status, code] = cells[..] else {
            panic!("{line:?} has no six cells")
        };
        let headers = headers
            .split(", ")
            .filter_map(|header| header.split_once(": "));
        let headers: Vec<(&str, &str)> = headers.collect();
        let body = body.replace("BIG", &"x".repeat(70_000));
        let request = request(method, path, &headers).body(Body::from(body));
        let reply = read(stage.send(request.unwrap()).await).await;
        assert_eq!(reply.status.to_string(), status, "{line}: {}", reply.text);
        assert_eq!(reply.json()["error"]["code"], code, "{line}");
        assert!(reply.header("x-request-id").is_some());
        assert_eq!(reply.header("allow").is_some(), status == "405", "{line}");
    }
    let head = request("HEAD", "/v1/models", &[("x-request-id", "mine")]);
    let reply = read(stage.send(head.body(Body::empty()).unwrap()).await).await;
    assert_eq!((reply.status, reply.text.as_str()), (200, ""));
    assert_eq!(reply.header("x-request-id"), Some("mine"));
}

#[tokio::test]
async fn a_path_with_too_much_or_too_little_before_it_is_put_right() {
    let stage = Stage::new(Recorder::Collects).await;
    for (path, meant) in [
        ("/chat/completions", Some("/v1/chat/completions")),
        ("/v1/v1/chat/completions", Some("/v1/chat/completions")),
        ("/v1/v1/v1/models", Some("/v1/models")),
        ("/v1/messages/", Some("/v1/messages")),
        ("/v1/tokenize", Some("/tokenize")),
        ("/v1/v1", None),
        ("/v1/nothing", None),
    ] {
        let error = stage.post(path, "{}").await.json()["error"].clone();
        assert_eq!(error["code"], "unknown_url", "{path}");
        let hint = meant.map_or(String::new(), |meant| format!(" (did you mean {meant}?)"));
        let told = format!("unknown path {path}{hint}; GET /openapi.json lists what exists");
        assert_eq!(error["message"], told);
    }
}

#[tokio::test]
async fn an_unknown_parameter_is_refused_by_name() {
    let stage = Stage::new(Recorder::Collects).await;
    for path in [
        "/v1/turns?stat=settled",
        "/v1/sessions?limit=5&stat=x",
        "/v1/sessions/sess_00000000-0000-7000-8000-000000000001?stat",
        "/v1/versions?stat=1",
        "/v1/learned?stat=1",
        "/admin/v1/turns?stat=1",
        "/admin/v1/improvement?scope=5:owner&stat=1",
        "/admin/v1/audit?stat=1",
        "/admin/v1/consents?stat=1",
        "/admin/v1/series?stat=1",
        "/admin/v1/versions/series?scope=5:owner&names=a&stat=1",
        "/admin/v1/events?stat=1",
    ] {
        let reply = stage.get(path).await;
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, &error["code"], &error["param"]),
            (400, &json!("invalid_value"), &json!("stat")),
            "{path}: {error}"
        );
    }
    let error = stage.get("/v1/learned?stat=1").await.json()["error"].clone();
    let told = "there is no parameter \"stat\" here; known: user";
    assert_eq!(error["message"], told);
}

#[tokio::test]
async fn a_body_that_never_comes_times_out() {
    let body = Body::from_stream(futures::stream::pending::<Result<String, std::io::Error>>());
    let limits = crate::body::BodyLimits {
        bytes_max: 100,
        key: "http.body_bytes_max",
        timeout_ms: 10,
    };
    let request = request("POST", CHAT, &[("content-type", "application/json")]);
    let result = crate::body::read_json(request.body(body).unwrap(), limits).await;
    let error = result.expect_err("it never comes");
    assert_eq!(error.class().0.as_u16(), 408);
}

#[tokio::test]
async fn invalid_utf8_is_refused() {
    let stage = Stage::new(Recorder::Collects).await;
    let request = request("POST", CHAT, &[("content-type", "application/json")]);
    let mut body = br#"{"model":"gpt","messages":[{"role":"user","content":""#.to_vec();
    body.extend([0xff, 0xfe]);
    body.extend(br#""}]}"#);
    let reply = read(stage.send(request.body(Body::from(body)).unwrap()).await).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (400, &json!("invalid_json"))
    );
}

/// What is wrong with an expression is told by the field that the caller wrote, never by its place in
/// a grammar that they did not.
#[tokio::test]
async fn a_wrong_expression_is_named_by_its_own_field() {
    let stage = Stage::new(Recorder::Collects).await;
    let ask = |more: Value| {
        let mut body = json!({"model": "gpt", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5});
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        body
    };
    let schema = json!({"type": "object", "properties": {"zip": {"pattern": "unsound("}}});
    let zip = "schema.properties.zip.pattern";
    let named = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let tool = |name: &str, schema: &Value| json!({"type": "function", "function": {"name": name, "strict": true, "parameters": schema}});
    let tools = [tool("a", &json!({})), tool("b", &schema)];
    let choice = json!({"type": "function", "function": {"name": "b"}});
    let format = json!({"format": {"type": "json_schema", "name": "n", "schema": schema}});
    let rows = [
        (
            "/v1/chat/completions",
            ask(json!({"guided_regex": "unsound("})),
            "guided_regex".to_owned(),
        ),
        (
            "/v1/chat/completions",
            ask(json!({"structured_outputs": {"regex": "unsound("}})),
            "structured_outputs.regex".to_owned(),
        ),
        (
            "/v1/chat/completions",
            ask(json!({"response_format": named})),
            format!("response_format.json_schema.{zip}"),
        ),
        (
            "/v1/chat/completions",
            ask(json!({"tools": tools, "tool_choice": choice})),
            "tools[1].function.parameters.properties.zip.pattern".to_owned(),
        ),
        (
            "/v1/messages",
            ask(json!({"output_config": format})),
            format!("output_config.format.{zip}"),
        ),
        (
            "/v1/responses",
            json!({"model": "gpt", "input": "x", "text": format}),
            format!("text.format.{zip}"),
        ),
    ];
    for (path, body, param) in rows {
        let reply = stage.post(path, &body.to_string()).await;
        let error = reply.json()["error"].clone();
        assert_eq!(
            (reply.status, &error["param"]),
            (400, &json!(param)),
            "{error}"
        );
        let told = format!(
            "{param} is not a regular expression that can be followed: unclosed group, at character 8"
        );
        assert_eq!(error["message"], told);
    }
    assert!(stage.fake.asks.lock().unwrap().is_empty());
}
