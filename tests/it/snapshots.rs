//! What clients see, as snapshots: status, headers and body of every endpoint's successes and
//! errors, streams included, through a real server. Ids, times and measured numbers are replaced.
//!
//! After a change on purpose: `INSTA_UPDATE=always cargo test -p hone-tests --test it snapshots`,
//! then read the difference.

use hone_tests::{Changes, TestApp, client, temporary};
use serde_json::{Map, Value, json};

/// A request.
struct Call {
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

fn get(path: &str) -> Call {
    Call {
        method: "GET",
        path: path.to_owned(),
        headers: Vec::new(),
        body: Vec::new(),
    }
}

fn post(path: &str, body: &Value) -> Call {
    raw(path, body.to_string())
}

fn raw(path: &str, body: impl Into<Vec<u8>>) -> Call {
    Call {
        method: "POST",
        path: path.to_owned(),
        headers: vec![("content-type", "application/json".to_owned())],
        body: body.into(),
    }
}

impl Call {
    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value.to_owned()));
        self
    }

    fn by(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }
}

/// A reply as it arrived.
struct Seen {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Seen {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

async fn send(url: &str, call: &Call) -> Seen {
    let method = call.method.parse().unwrap();
    let http = client().unwrap();
    let mut request = http.request(method, format!("{url}{}", call.path));
    for (name, value) in &call.headers {
        request = request.header(*name, value);
    }
    let reply = request.body(call.body.clone()).send().await.unwrap();
    let headers = reply.headers().iter();
    let headers = headers.map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        (name.as_str().to_owned(), value.into_owned())
    });
    Seen {
        status: reply.status().as_u16(),
        headers: headers.collect(),
        body: reply.text().await.unwrap(),
    }
}

/// Prefixes of ids, which stay; what follows is replaced.
const IDS: [&str; 8] = [
    "turn_",
    "sess_",
    "req_",
    "chatcmpl-",
    "cmpl-",
    "fb_",
    "trans_",
    "verdict_",
];

/// Numbers and texts that differ from run to run, by the end of their key.
const CHANGING: [&str; 11] = [
    "_ms",
    "_us",
    "created",
    "created_at",
    "uptime_s",
    "version_of_program",
    "steps",
    "digest",
    "fingerprint",
    "last_error",
    "trace_id",
];

/// Replaces the 36 characters of an id behind each prefix.
fn text_without_ids(text: &str) -> String {
    let mut text = text.to_owned();
    for prefix in IDS {
        let mut done = String::new();
        while let Some(at) = text.find(prefix) {
            let (before, rest) = text.split_at(at + prefix.len());
            let id = |c: &char| c.is_ascii_hexdigit() || *c == '-';
            let length = rest.chars().take_while(id).count();
            done.push_str(before);
            let rest = if length == 36 {
                done.push('*');
                rest[length..].to_owned()
            } else {
                rest.to_owned()
            };
            text = rest;
        }
        text = done + &text;
    }
    text
}

fn without_chance(value: &Value, key: &str) -> Value {
    let changes = CHANGING.iter().any(|end| key.ends_with(end));
    match value {
        Value::Object(map) => {
            let each = map.iter();
            let each = each.map(|(key, value)| (key.clone(), without_chance(value, key)));
            Value::Object(each.collect::<Map<_, _>>())
        }
        Value::Array(all) => all.iter().map(|one| without_chance(one, key)).collect(),
        Value::Number(_) if changes => json!(0),
        Value::String(_) if changes => json!("*"),
        Value::String(text) => json!(text_without_ids(text)),
        other => other.clone(),
    }
}

fn pretty(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(value) => serde_json::to_string_pretty(&without_chance(&value, "")).unwrap(),
        Err(_) => text_without_ids(text),
    }
}

/// The reply as text: status, headers in order, body.
fn shown(call: &Call, seen: &Seen) -> String {
    let mut text = format!("{} {}\n{}\n", call.method, call.path, seen.status);
    let mut headers: Vec<_> = seen.headers.iter().collect();
    headers.sort();
    for (name, value) in headers {
        let value = match name.as_str() {
            "date" | "content-length" => "*".to_owned(),
            _ => text_without_ids(value),
        };
        text.push_str(&format!("{name}: {value}\n"));
    }
    text.push('\n');
    for event in seen.body.split_inclusive("\n\n") {
        match event.strip_prefix("data: ") {
            Some(data) => text.push_str(&format!("data: {}\n", pretty(data.trim_end()))),
            None => text.push_str(&pretty(event)),
        }
    }
    text_without_ids(&text)
}

/// Sends and compares; the snapshot's name is the case's.
async fn check(app: &TestApp, name: &str, call: Call) -> Seen {
    let seen = send(&app.url, &call).await;
    insta::assert_snapshot!(name, shown(&call, &seen));
    seen
}

async fn null_app(data: &std::path::Path, more: Changes<'_>) -> TestApp {
    let mut changes: Vec<(&str, toml::Value)> = vec![("model.engine", "null".into())];
    changes.extend(more.iter().cloned());
    TestApp::start(data, &changes).await.unwrap()
}

const CHAT: &str = "/v1/chat/completions";

fn hello() -> Value {
    json!({
        "model": "hone-null",
        "messages": [{"role": "user", "content": "Hello!"}],
        "max_tokens": 5,
        "session_id": "s",
    })
}

fn but(mut body: Value, changes: &Value) -> Value {
    let changes = changes.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(changes);
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions() {
    let (_guard, data) = temporary().unwrap();
    let app = null_app(&data, &[]).await;
    let model = app.get("/v1/models").await.unwrap()["data"][0]["id"].clone();
    let hello = but(hello(), &json!({"model": model}));
    let text = json!({"model": model, "prompt": "The sky", "max_tokens": 5, "session_id": "t"});
    let stream = json!({"stream": true, "stream_options": {"include_usage": true}});
    let rows = [
        ("chat", post(CHAT, &hello)),
        (
            "chat_logprobs_and_choices",
            post(
                CHAT,
                &but(
                    hello.clone(),
                    &json!({"n": 2, "logprobs": true, "top_logprobs": 1, "max_tokens": 1, "return_token_ids": true}),
                ),
            ),
        ),
        (
            "chat_not_stored_and_unknown_fields",
            post(
                CHAT,
                &but(hello.clone(), &json!({"store": false, "colour": 1})),
            ),
        ),
        (
            "chat_side_turn",
            post(CHAT, &but(hello.clone(), &json!({"turn_type": "side"}))),
        ),
        ("chat_stream", post(CHAT, &but(hello.clone(), &stream))),
        (
            "text",
            post(
                "/v1/completions",
                &but(text.clone(), &json!({"logprobs": 1})),
            ),
        ),
        ("text_stream", post("/v1/completions", &but(text, &stream))),
        ("models", get("/v1/models")),
        (
            "model",
            get(&format!("/v1/models/{}", model.as_str().unwrap())),
        ),
        ("model_unknown", get("/v1/models/other")),
    ];
    for (name, call) in rows {
        check(&app, name, call).await;
    }
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_and_feedback() {
    let (_guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &[]).await.unwrap();
    let ask = json!({
        "model": "hone-starter",
        "messages": [{"role": "user", "content": "Hello!"}],
        "max_tokens": 1,
        "ignore_eos": true,
        "temperature": 1,
        "seed": 1,
        "logit_bias": {"300": 100},
    });
    let reply = send(&app.url, &post(CHAT, &ask)).await.json();
    let turn = reply["hone"]["turn_id"].as_str().unwrap().to_owned();
    let path = format!("/v1/turns/{turn}");
    check(&app, "turn", get(&path)).await;
    let ask = but(ask, &json!({"logit_bias": null}));
    let reply = send(&app.url, &post(CHAT, &ask)).await.json();
    let turn = reply["hone"]["turn_id"].as_str().unwrap().to_owned();
    let said = json!({"turn_id": turn, "score": 1, "comment": "Good."});
    let rows = [
        ("feedback", post("/v1/feedback", &said)),
        (
            "feedback_empty",
            post("/v1/feedback", &json!({"turn_id": turn})),
        ),
        (
            "feedback_bad_id",
            post("/v1/feedback", &json!({"turn_id": "x", "score": 1})),
        ),
        (
            "feedback_unknown_turn",
            post(
                "/v1/feedback",
                &json!({"turn_id": "turn_01a1fc19-fce1-7077-87e4-3c139bd16a22", "score": 1}),
            ),
        ),
        (
            "feedback_bad_score",
            post("/v1/feedback", &json!({"turn_id": turn, "score": 7})),
        ),
        ("turn_bad_id", get("/v1/turns/x")),
        (
            "turn_unknown",
            get("/v1/turns/turn_01a1fc19-fce1-7077-87e4-3c139bd16a22"),
        ),
        ("versions_none", get("/v1/versions")),
        ("versions_bad_limit", get("/v1/versions?limit=x")),
    ];
    for (name, call) in rows {
        check(&app, name, call).await;
    }
    let path = format!("/v1/turns/{turn}");
    app.until(&path, |turn| !turn["verdict"].is_null())
        .await
        .unwrap();
    let judged = send(&app.url, &get(&path)).await;
    // What the model says is its own business; how it is told is ours.
    let mut view = judged.json();
    view["completion"] = json!("*");
    let seen = Seen {
        body: view.to_string(),
        ..judged
    };
    insta::assert_snapshot!("turn_judged", shown(&get("/v1/turns/*"), &seen));
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests() {
    let (_guard, data) = temporary().unwrap();
    let app = null_app(&data, &[("http.body_bytes_max", 4096.into())]).await;
    let model = app.get("/v1/models").await.unwrap()["data"][0]["id"].clone();
    let hello = but(hello(), &json!({"model": model}));
    let long = json!([{"role": "user", "content": "x".repeat(3000)}]);
    let rows = [
        ("wrong_json", raw(CHAT, "{")),
        ("wrong_utf8", raw(CHAT, vec![b'{', 0xff])),
        ("wrong_shape", raw(CHAT, "[1]")),
        (
            "wrong_type",
            post(CHAT, &but(hello.clone(), &json!({"temperature": "hot"}))),
        ),
        (
            "wrong_range",
            post(CHAT, &but(hello.clone(), &json!({"n": 1_000_000}))),
        ),
        (
            "wrong_no_messages",
            post(CHAT, &but(hello.clone(), &json!({"messages": []}))),
        ),
        (
            "wrong_role",
            post(
                CHAT,
                &but(
                    hello.clone(),
                    &json!({"messages": [{"role": "king", "content": ""}]}),
                ),
            ),
        ),
        (
            "wrong_unsupported",
            post(CHAT, &but(hello.clone(), &json!({"audio": {"voice": "x"}}))),
        ),
        (
            "wrong_model",
            post(CHAT, &but(hello.clone(), &json!({"model": "other"}))),
        ),
        ("wrong_size", raw(CHAT, "x".repeat(5000))),
    ];
    for (name, call) in rows {
        check(&app, name, call).await;
    }
    let fits = but(hello, &json!({"messages": long}));
    let seen = send(&app.url, &post(CHAT, &fits)).await;
    assert_eq!(seen.status, 200, "{}", seen.body);
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_ways() {
    let (_guard, data) = temporary().unwrap();
    let app = null_app(&data, &[]).await;
    let rows = [
        (
            "wrong_media_type",
            post(CHAT, &hello()).with("content-type", "text/plain"),
        ),
        ("wrong_method", get(CHAT)),
        ("wrong_method_delete", get("/v1/models").by("DELETE")),
        ("wrong_path", get("/v1/nothing")),
        ("wrong_host", get("/v1/models").with("host", "example.com")),
        (
            "wrong_origin",
            get("/v1/models").with("origin", "http://example.com"),
        ),
        (
            "wrong_forwarded",
            get("/v1/models").with("x-forwarded-for", "10.0.0.1"),
        ),
        (
            "wrong_key",
            get("/v1/models").with("authorization", "Bearer nobody"),
        ),
        (
            "wrong_loop",
            post("/admin/v1/loops/nothing/pause", &json!({})),
        ),
    ];
    for (name, call) in rows {
        check(&app, name, call).await;
    }
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_long_and_not_there() {
    let (_guard, data) = temporary().unwrap();
    let changes: Vec<(&str, toml::Value)> = vec![("http.record_queue_max", 4.into())];
    let app = TestApp::start(&data, &changes).await.unwrap();
    let long = "one two three ".repeat(20_000);
    let ask = json!({"model": "hone-starter", "messages": [{"role": "user", "content": long}]});
    let seen = send(&app.url, &post(CHAT, &ask)).await;
    let error = seen.json();
    assert_eq!(error["error"]["code"], "context_length_exceeded", "{error}");
    assert_eq!(
        (seen.status, &error["error"]["param"]),
        (400, &json!("messages"))
    );
    app.stop().await.unwrap();

    let (_guard, data) = temporary().unwrap();
    let changes: Vec<(&str, toml::Value)> = vec![("loops", vec!["judge"].into())];
    let app = null_app(&data, &changes).await;
    for (name, call) in [
        ("no_serve", post(CHAT, &hello())),
        (
            "no_collect",
            post(
                "/v1/feedback",
                &json!({"turn_id": "turn_01a1fc19-fce1-7077-87e4-3c139bd16a22", "score": 1}),
            ),
        ),
    ] {
        check(&app, name, call).await;
    }
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_and_administration() {
    let (_guard, data) = temporary().unwrap();
    let app = null_app(&data, &[]).await;
    for (name, call) in [
        ("livez", get("/livez")),
        ("readyz", get("/readyz")),
        ("startupz", get("/startupz")),
        (
            "loop_paused",
            post("/admin/v1/loops/judge/pause", &json!({})),
        ),
        (
            "loop_resumed",
            post("/admin/v1/loops/judge/resume", &json!({})),
        ),
    ] {
        check(&app, name, call).await;
    }
    // Which numbers there are, not what they say.
    let status = app.get("/admin/v1/status").await.unwrap();
    insta::assert_snapshot!("status_fields", fields(&status, "").join("\n"));
    app.stop().await.unwrap();
}

/// Paths of all fields, without the loops' own numbers.
fn fields(value: &Value, at: &str) -> Vec<String> {
    let Value::Object(map) = value else {
        return vec![at.to_owned()];
    };
    let inside = map.iter();
    let inside = inside.flat_map(|(key, value)| fields(value, &format!("{at}/{key}")));
    inside.collect()
}
