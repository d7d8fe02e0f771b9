//! Everything wrong that a client can send gets an OpenAI error object, and nothing is asked.

use axum::body::Body;
use serde_json::json;

use crate::http::testing::{Recorder, Stage, read, request};

const CHAT: &str = "/v1/chat/completions";

/// A chat body with one field set.
fn with(field: &str, value: serde_json::Value) -> String {
    let mut body = json!({"model": "gpt", "messages": [{"role": "user", "content": "hi"}]});
    body[field] = value;
    body.to_string()
}

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
        "{\"model\": \"\\ud800\"}",
        "{} {}",
        &deep(200),
    ]
    .into_iter()
    .map(|body| (body.to_owned(), 400, "invalid_json", None))
    .chain([("[1]".to_owned(), 400, "invalid_value", None)])
    .collect();
    check(CHAT, rows).await;
}

#[tokio::test]
async fn fields_of_the_wrong_type_or_value() {
    let stops: Vec<String> = (0..4_000).map(|i| i.to_string()).collect();
    let rows = vec![
        (
            json!({"messages": []}).to_string(),
            400,
            "invalid_value",
            Some("model"),
        ),
        (
            json!({"model": "gpt"}).to_string(),
            400,
            "invalid_value",
            Some("messages"),
        ),
        (
            with("messages", json!([])),
            400,
            "invalid_value",
            Some("messages"),
        ),
        (
            with("messages", json!("hi")),
            400,
            "invalid_value",
            Some("messages"),
        ),
        (
            with("messages", json!([1])),
            400,
            "invalid_value",
            Some("messages[0]"),
        ),
        (
            with("messages", json!([{"role": "king", "content": ""}])),
            400,
            "invalid_value",
            Some("messages[0].role"),
        ),
        (
            with("messages", json!([{"content": "x"}])),
            400,
            "invalid_value",
            Some("messages[0].role"),
        ),
        (
            with("messages", json!([{"role": "user"}])),
            400,
            "invalid_value",
            Some("messages[0].content"),
        ),
        (
            with("messages", json!([{"role": "user", "content": 5}])),
            400,
            "invalid_value",
            Some("messages[0].content"),
        ),
        (
            with(
                "messages",
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
            ),
            400,
            "unsupported_parameter",
            Some("messages[0].content[0].type"),
        ),
        (
            with(
                "messages",
                json!([{"role": "user", "content": [{"type": "text"}]}]),
            ),
            400,
            "invalid_value",
            Some("messages[0].content[0].text"),
        ),
        (
            with(
                "messages",
                json!([{"role": "assistant", "tool_calls": [{}]}]),
            ),
            400,
            "invalid_value",
            Some("messages[0].tool_calls[0].function.name"),
        ),
        (
            with(
                "messages",
                json!(vec![json!({"role": "user", "content": "x"}); 65]),
            ),
            400,
            "invalid_value",
            Some("messages"),
        ),
        (
            with("model", json!("other")),
            404,
            "model_not_found",
            Some("model"),
        ),
        (with("model", json!(7)), 400, "invalid_value", Some("model")),
        (
            with("temperature", json!("hot")),
            400,
            "invalid_value",
            Some("temperature"),
        ),
        (
            with("temperature", json!(3)),
            400,
            "invalid_value",
            Some("temperature"),
        ),
        (
            with("temperature", json!(-0.1)),
            400,
            "invalid_value",
            Some("temperature"),
        ),
        (
            with("top_p", json!(1.5)),
            400,
            "invalid_value",
            Some("top_p"),
        ),
        (
            with("top_k", json!(-2)),
            400,
            "invalid_value",
            Some("top_k"),
        ),
        (with("min_p", json!(2)), 400, "invalid_value", Some("min_p")),
        (with("n", json!(0)), 400, "invalid_value", Some("n")),
        (with("n", json!(1_000_000)), 400, "invalid_value", Some("n")),
        (
            with("max_tokens", json!(0)),
            400,
            "invalid_value",
            Some("max_tokens"),
        ),
        (
            with("max_tokens", json!(1e30)),
            400,
            "invalid_value",
            Some("max_tokens"),
        ),
        (
            with("max_completion_tokens", json!(-1)),
            400,
            "invalid_value",
            Some("max_completion_tokens"),
        ),
        (with("seed", json!("x")), 400, "invalid_value", Some("seed")),
        (
            with("stop", json!(stops)),
            400,
            "invalid_value",
            Some("stop"),
        ),
        (
            with("stop", json!(["a", ""])),
            400,
            "invalid_value",
            Some("stop"),
        ),
        (with("stop", json!(5)), 400, "invalid_value", Some("stop")),
        (
            with("stream", json!("yes")),
            400,
            "invalid_value",
            Some("stream"),
        ),
        (
            with("stream_options", json!({"include_usage": 1})),
            400,
            "invalid_value",
            Some("stream_options.include_usage"),
        ),
        (
            with("top_logprobs", json!(3)),
            400,
            "invalid_value",
            Some("top_logprobs"),
        ),
        (
            with("top_logprobs", json!(21)),
            400,
            "invalid_value",
            Some("top_logprobs"),
        ),
        (
            with("logit_bias", json!({"x": 1})),
            400,
            "invalid_value",
            Some("logit_bias"),
        ),
        (
            with("logit_bias", json!({"5": 101})),
            400,
            "invalid_value",
            Some("logit_bias"),
        ),
        (
            with("logit_bias", json!({"257": 1})),
            400,
            "invalid_value",
            Some("logit_bias"),
        ),
        (
            with("presence_penalty", json!(2.5)),
            400,
            "invalid_value",
            Some("presence_penalty"),
        ),
        (
            with("repetition_penalty", json!(0)),
            400,
            "invalid_value",
            Some("repetition_penalty"),
        ),
        (
            with("turn_type", json!("aside")),
            400,
            "invalid_value",
            Some("turn_type"),
        ),
        (
            with("session_id", json!("x".repeat(600))),
            400,
            "invalid_value",
            Some("session_id"),
        ),
        (
            with("user", json!(["x"])),
            400,
            "invalid_value",
            Some("user"),
        ),
        (
            with("metadata", json!("x")),
            400,
            "invalid_value",
            Some("metadata"),
        ),
        (
            with("tools", json!([{"type": "function"}])),
            400,
            "invalid_value",
            Some("tools[0].function.name"),
        ),
        (
            with("tools", json!([{"type": "web"}])),
            400,
            "unsupported_parameter",
            Some("tools[0].type"),
        ),
        (
            with("tool_choice", json!("required")),
            400,
            "unsupported_parameter",
            Some("tool_choice"),
        ),
        (
            with("tool_choice", json!({"type": "function"})),
            400,
            "unsupported_parameter",
            Some("tool_choice"),
        ),
        (
            with("tool_choice", json!("maybe")),
            400,
            "invalid_value",
            Some("tool_choice"),
        ),
        (
            with("response_format", json!({"type": "json_schema"})),
            400,
            "unsupported_parameter",
            Some("response_format"),
        ),
        (
            with("response_format", json!("text")),
            400,
            "invalid_value",
            Some("response_format"),
        ),
        (
            with("modalities", json!(["audio"])),
            400,
            "unsupported_parameter",
            Some("modalities"),
        ),
        (
            with("audio", json!({"voice": "x"})),
            400,
            "unsupported_parameter",
            Some("audio"),
        ),
        (
            with("functions", json!([{"name": "f"}])),
            400,
            "unsupported_parameter",
            Some("functions"),
        ),
        (
            with("guided_json", json!({"a": 1})),
            400,
            "unsupported_parameter",
            Some("guided_json"),
        ),
        (
            with(
                "messages",
                json!([{"role": "user", "content": "x".repeat(5_000)}]),
            ),
            400,
            "context_length_exceeded",
            Some("messages"),
        ),
    ];
    check(CHAT, rows).await;
}

#[tokio::test]
async fn text_completions_and_feedback_check_theirs() {
    let text = |field: &str, value: serde_json::Value| {
        let mut body = json!({"model": "gpt", "prompt": "once"});
        body[field] = value;
        body.to_string()
    };
    check(
        "/v1/completions",
        vec![
            (
                json!({"model": "gpt"}).to_string(),
                400,
                "invalid_value",
                Some("prompt"),
            ),
            (
                text("prompt", json!("")),
                400,
                "invalid_value",
                Some("prompt"),
            ),
            (
                text("prompt", json!([])),
                400,
                "invalid_value",
                Some("prompt"),
            ),
            (
                text("prompt", json!({})),
                400,
                "invalid_value",
                Some("prompt"),
            ),
            (
                text("prompt", json!([1, "a"])),
                400,
                "invalid_value",
                Some("prompt[1]"),
            ),
            (
                text("prompt", json!([1, 999])),
                400,
                "invalid_value",
                Some("prompt[1]"),
            ),
            (
                text("prompt", json!(["a", 1])),
                400,
                "invalid_value",
                Some("prompt[1]"),
            ),
            (
                text("prompt", json!(vec!["a"; 17])),
                400,
                "invalid_value",
                Some("prompt"),
            ),
            (text("n", json!(17)), 400, "invalid_value", Some("n")),
            (
                text("logprobs", json!(50)),
                400,
                "invalid_value",
                Some("logprobs"),
            ),
            (
                text("echo", json!(true)),
                400,
                "unsupported_parameter",
                Some("echo"),
            ),
            (
                text("suffix", json!("x")),
                400,
                "unsupported_parameter",
                Some("suffix"),
            ),
            (
                text("best_of", json!(4)),
                400,
                "unsupported_parameter",
                Some("best_of"),
            ),
        ],
    )
    .await;
    let turn = "turn_00000000-0000-7000-8000-000000000001";
    let feedback = |field: &str, value: serde_json::Value| {
        let mut body = json!({"turn_id": turn, "score": 1});
        body[field] = value;
        body.to_string()
    };
    check(
        "/v1/feedback",
        vec![
            (
                json!({"score": 1}).to_string(),
                400,
                "invalid_value",
                Some("turn_id"),
            ),
            (
                json!({"turn_id": turn}).to_string(),
                400,
                "invalid_value",
                Some("score"),
            ),
            (
                feedback("turn_id", json!("x")),
                400,
                "invalid_value",
                Some("turn_id"),
            ),
            (
                feedback("score", json!(2)),
                400,
                "invalid_value",
                Some("score"),
            ),
            (
                feedback("thumb", json!("sideways")),
                400,
                "invalid_value",
                Some("thumb"),
            ),
            (
                feedback("comment", json!("x".repeat(40_000))),
                400,
                "invalid_value",
                Some("comment"),
            ),
            (
                feedback("comment", json!("not mine")),
                404,
                "not_found",
                None,
            ),
            (
                feedback("comment", json!("broken")),
                503,
                "ledger_failed",
                None,
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn wrong_places_methods_types_and_sizes_are_json_too() {
    let stage = Stage::new(Recorder::Collects).await;
    let json_type = ("content-type", "application/json");
    let big = "x".repeat(70_000);
    type Case<'a> = (
        &'a str,
        &'a str,
        &'a [(&'a str, &'a str)],
        &'a str,
        u16,
        &'a str,
    );
    let rows: &[Case<'_>] = &[
        ("GET", "/", &[], "", 404, "unknown_url"),
        ("GET", "/v1/nothing", &[], "", 404, "unknown_url"),
        (
            "GET",
            "/v1/models/nothing/here",
            &[],
            "",
            404,
            "model_not_found",
        ),
        ("GET", "/v1/turns/nothing", &[], "", 404, "not_found"),
        (
            "GET",
            "/v1/turns/turn_00000000-0000-7000-8000-000000000001",
            &[],
            "",
            404,
            "not_found",
        ),
        ("GET", "/v1/versions?limit=0", &[], "", 400, "invalid_value"),
        ("GET", "/v1/versions?limit=x", &[], "", 400, "invalid_value"),
        ("GET", CHAT, &[], "", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", &[], "", 405, "method_not_allowed"),
        (
            "POST",
            "/admin/v1/loops/sing/pause",
            &[],
            "",
            404,
            "not_found",
        ),
        ("POST", CHAT, &[], "{}", 415, "unsupported_media_type"),
        (
            "POST",
            CHAT,
            &[("content-type", "text/plain")],
            "{}",
            415,
            "unsupported_media_type",
        ),
        (
            "POST",
            CHAT,
            &[json_type, ("content-encoding", "gzip")],
            "{}",
            415,
            "unsupported_media_type",
        ),
        ("POST", CHAT, &[json_type], &big, 413, "body_too_large"),
        (
            "POST",
            CHAT,
            &[json_type, ("content-length", "99999999")],
            "{}",
            413,
            "body_too_large",
        ),
    ];
    for (method, path, headers, body, status, code) in rows {
        let request = request(method, path, headers).body(Body::from((*body).to_owned()));
        let reply = read(stage.send(request.unwrap()).await).await;
        assert_eq!(reply.status, *status, "{method} {path}: {}", reply.text);
        assert_eq!(reply.json()["error"]["code"], **code, "{method} {path}");
        assert!(reply.header("x-request-id").is_some());
        if *status == 405 {
            assert!(reply.header("allow").is_some(), "{method} {path}");
        }
    }
    let head = request("HEAD", "/v1/models", &[("x-request-id", "mine")]);
    let reply = read(stage.send(head.body(Body::empty()).unwrap()).await).await;
    assert_eq!((reply.status, reply.text.as_str()), (200, ""));
    assert_eq!(reply.header("x-request-id"), Some("mine"));
}

#[tokio::test]
async fn a_body_that_never_comes_times_out() {
    let body = Body::from_stream(futures::stream::pending::<Result<String, std::io::Error>>());
    let limits = crate::http::wire::body::BodyLimits {
        bytes_max: 100,
        timeout_ms: 10,
    };
    let request = request("POST", CHAT, &[("content-type", "application/json")]);
    let result = crate::http::wire::body::read_json(request.body(body).unwrap(), limits).await;
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
