//! Web pages of other origins: who may read, and what.

use axum::body::Body;
use hone_domain::StopReason;
use serde_json::json;

use super::people::NO_LIMITS;
use crate::defaults::defaults;
use crate::testing::{Recorder, Reply, Script, Stage, read, request};
use hone_accounts::{LimitSet, LimitsConfig};

const APP: &str = "https://app.example";
const STRANGER: &str = "https://evil.example";
const CHAT: &str = "/v1/chat/completions";
/// What a browser asks for before it sends what the OpenAI client sends.
const WISHED: &str = "authorization,content-type,idempotency-key,traceparent,x-stainless-lang";

/// The origin that may read the answer, and that nothing else is told.
fn told(reply: &Reply) -> Option<&str> {
    let origin = reply.header("access-control-allow-origin");
    let exposed = reply.header("access-control-expose-headers");
    assert_eq!(origin.is_some(), exposed.is_some());
    assert_eq!(reply.header("access-control-allow-credentials"), None);
    let vary: Vec<_> = reply.headers.get_all("vary").iter().collect();
    assert!(vary.iter().any(|v| *v == "origin"), "{vary:?}");
    origin
}

/// A preflight carries no key, and comes to an address that may need one.
async fn preflight(stage: &Stage, origin: &str, wished: &str) -> Reply {
    let headers = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", wished),
    ];
    let asked = request("OPTIONS", CHAT, &headers)
        .body(Body::empty())
        .unwrap();
    read(stage.send_from([10, 0, 0, 9].into(), asked).await).await
}

#[tokio::test]
async fn an_allowed_page_is_told_what_it_may_send() {
    let stage = Stage::new(Recorder::Collects).await;
    let reply = preflight(&stage, APP, WISHED).await;
    assert_eq!((reply.status, reply.text.as_str()), (204, ""));
    assert_eq!(told(&reply), Some(APP));
    assert_eq!(reply.header("access-control-allow-headers"), Some(WISHED));
    assert_eq!(reply.header("access-control-max-age"), Some("600"));
    assert!(reply.header("x-request-id").is_some());
    let methods = reply.header("access-control-allow-methods").unwrap();
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
        assert!(methods.contains(method), "{methods}");
    }
    for no_names in ["a b", "a,,b", "a(b)", "", "a,".repeat(4_000).as_str()] {
        let reply = preflight(&stage, APP, no_names).await;
        let told = reply.header("access-control-allow-headers");
        assert_eq!((reply.status, told), (204, None), "{no_names}");
    }
}

#[tokio::test]
async fn a_stranger_is_told_nothing() {
    let stage = Stage::new(Recorder::Collects).await;
    let strangers = [
        STRANGER,
        "https://app.example.evil",
        "null",
        "http://localhost:3000",
        "",
    ];
    for stranger in strangers {
        let reply = preflight(&stage, stranger, WISHED).await;
        assert_eq!((reply.status, told(&reply)), (401, None), "{stranger}");
        for name in ["headers", "methods"] {
            let name = format!("access-control-allow-{name}");
            assert_eq!(reply.header(&name), None, "{stranger}");
        }
    }
}

#[tokio::test]
async fn an_allowed_page_can_read_every_answer() {
    let limits = LimitsConfig {
        key: LimitSet {
            requests_per_minute: 1,
            ..NO_LIMITS
        },
        ..defaults("limits")
    };
    let stage = Stage::with_limits(Recorder::Collects, limits).await;
    stage.script([Script::Say(vec!["he", "llo"], StopReason::EndToken)]);
    let ask =
        json!({"model": "gpt", "messages": [{"role": "user", "content": "hi"}], "stream": true});
    let (ask, large) = (ask.to_string(), "x".repeat(70_000));
    let (stream, large, nothing) = (ask.as_str(), large.as_str(), "");
    let json = "application/json";
    let rows = [
        ("POST", CHAT, "user-a", json, stream, 200),
        ("POST", CHAT, "user-a", json, stream, 429),
        ("POST", CHAT, "user-b", json, "{", 400),
        ("POST", CHAT, "developer", "text/plain", stream, 415),
        ("POST", CHAT, "admin", json, large, 413),
        ("POST", CHAT, "nobody", json, stream, 401),
        ("GET", "/v1/models", "user-a", json, nothing, 200),
        ("GET", "/admin/v1/users", "user-a", json, nothing, 403),
        ("GET", "/v1/nothing", "user-a", json, nothing, 404),
        ("GET", CHAT, "user-a", json, nothing, 405),
        ("OPTIONS", CHAT, "user-a", json, nothing, 405),
        ("GET", "/livez", "user-a", json, nothing, 200),
    ];
    for (method, path, key, kind, body, status) in rows {
        let key = format!("Bearer {key}");
        for (origin, allowed) in [(APP, Some(APP)), (STRANGER, None)] {
            let headers = [
                ("authorization", key.as_str()),
                ("content-type", kind),
                ("origin", origin),
            ];
            let sent = request(method, path, &headers).body(Body::from(body.to_owned()));
            let reply = read(stage.send(sent.unwrap()).await).await;
            assert_eq!(told(&reply), allowed, "{method} {path} {status}");
            if allowed.is_some() {
                assert_eq!(reply.status, status, "{method} {path} {}", reply.text);
            }
        }
    }
}

#[tokio::test]
async fn an_answer_given_again_belongs_to_the_page_that_asks() {
    let stage = Stage::new(Recorder::Collects).await;
    let ask = json!({"model": "gpt", "messages": [{"role": "user", "content": "hi"}]});
    for (origin, allowed) in [(APP, Some(APP)), (STRANGER, None), (APP, Some(APP))] {
        let headers = [
            ("authorization", "Bearer user-a"),
            ("content-type", "application/json"),
            ("idempotency-key", "k"),
            ("origin", origin),
        ];
        let sent = request("POST", CHAT, &headers).body(Body::from(ask.to_string()));
        let reply = read(stage.send(sent.unwrap()).await).await;
        assert_eq!((reply.status, told(&reply)), (200, allowed));
    }
}
