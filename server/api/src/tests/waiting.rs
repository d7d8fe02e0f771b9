//! Completions that wait in line, and those that take too long. The time is not the clock's: it goes
//! on whenever everything waits.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use hone_domain::{RequestId, ServeError, StopReason};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::testing::{Recorder, Reply, Script, Stage, read, request};
use hone_inference::OpenError;

const CHAT: &str = "/v1/chat/completions";

/// A path, and a body for it.
fn bodies(stream: bool) -> [(&'static str, Value); 4] {
    let messages = json!([{"role": "user", "content": "hi"}]);
    [
        (
            CHAT,
            json!({"model": "gpt", "messages": messages, "stream": stream}),
        ),
        (
            "/v1/completions",
            json!({"model": "gpt", "prompt": "hi", "stream": stream}),
        ),
        (
            "/v1/responses",
            json!({"model": "gpt", "input": "hi", "stream": stream}),
        ),
        (
            "/v1/messages",
            json!({"model": "gpt", "max_tokens": 9, "messages": messages, "stream": stream}),
        ),
    ]
}

async fn stage(script: Script) -> Stage {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([script]);
    tokio::time::pause();
    stage
}

fn error_of(reply: &Reply) -> Value {
    reply.json()["error"]["code"].clone()
}

#[tokio::test]
async fn a_stream_that_waits_in_line_is_not_silent() {
    let says = Script::Wait(Duration::from_secs(40), Ok("ok"));
    let stage = stage(says.clone()).await;
    for (path, body) in bodies(true) {
        let began = tokio::time::Instant::now();
        let reply = stage.post(path, &body.to_string()).await;
        assert_eq!(
            (reply.status, began.elapsed().as_secs()),
            (200, 40),
            "{path}"
        );
        assert!(reply.header("x-hone-turn-id").is_some());
        assert_eq!(reply.header("x-hone-policy-version"), None);
        // After 15 seconds, and after 30.
        let marks = [": keep-alive\n\n", "event: ping\n"];
        let sent = marks.map(|mark| reply.text.matches(mark).count());
        assert_eq!(sent.iter().sum::<usize>(), 2, "{path}: {}", reply.text);
        assert!(marks.iter().any(|mark| reply.text.starts_with(mark)));
        assert!(reply.text.contains("\"ok\""), "{}", reply.text);
        stage.script([says.clone()]);
    }
}

#[tokio::test]
async fn what_fails_in_line_has_a_status_where_it_is_soon() {
    let fails = |seconds| {
        let error = ServeError::Adapter("gone".to_owned());
        Script::Wait(Duration::from_secs(seconds), Err(error))
    };
    for (seconds, status) in [(14, 503), (16, 200)] {
        let stage = stage(fails(seconds)).await;
        for (path, body) in bodies(true) {
            let reply = stage.post(path, &body.to_string()).await;
            assert_eq!(reply.status, status, "{path}");
            if status == 200 {
                let events = reply.events();
                let said = events.iter().rfind(|event| event.is_object()).unwrap();
                let code = match path {
                    "/v1/responses" => &said["code"],
                    _ => &said["error"]["code"],
                };
                assert_eq!(code, "adapter_unavailable", "{path}: {}", reply.text);
                let ends = path != "/v1/messages";
                assert_eq!(events.last() == Some(&json!("[DONE]")), ends);
            } else {
                assert_eq!(error_of(&reply), "adapter_unavailable");
            }
            stage.script([fails(seconds)]);
        }
        tokio::time::resume();
    }
}

/// What was said is not lost, and no retry says it again.
#[tokio::test]
async fn a_completion_that_takes_too_long_ends_with_what_was_said() {
    let stage = stage(Script::Hang).await;
    for (stream, (path, body)) in [(false, &bodies(false)[0]), (true, &bodies(true)[0])] {
        let reply = stage.post(path, &body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert!(reply.text.contains("\"he\""), "{}", reply.text);
        assert!(reply.text.contains("\"finish_reason\":\"length\""));
        assert!(reply.text.contains("\"collected\":true"));
        assert_eq!(reply.text.ends_with("[DONE]\n\n"), stream);
        let turn = stage.told.lock().unwrap().turns.pop().unwrap();
        assert_eq!(turn.completion.stop(), StopReason::Length);
        stage.script([Script::Hang]);
    }
}

#[tokio::test]
async fn a_completion_that_never_begins_is_to_be_tried_again() {
    let never = || Script::Wait(Duration::from_secs(3_600), Ok("ok"));
    let stage = stage(never()).await;
    for (path, body) in bodies(false) {
        let reply = stage.post(path, &body.to_string()).await;
        assert_eq!(
            (reply.status, error_of(&reply)),
            (503, json!("completion_timeout"))
        );
        assert_eq!(reply.header("retry-after"), Some("1"), "{path}");
        stage.script([never()]);
    }
}

#[tokio::test]
async fn embeddings_that_take_too_long_end() {
    let stage = Stage::new(Recorder::Collects).await;
    let inference = stage.http.inference.clone().unwrap();
    stage.fake.is_slow.store(true, Ordering::Relaxed);
    let (asking, nobody) = (inference.clone(), RequestId(uuid::Uuid::nil()));
    let client = tokio::spawn(async move { asking.embed(("nobody", nobody), vec![vec![1]]).await });
    for _ in 0..2_000 {
        if stage.fake.embeddings.load(Ordering::Relaxed) > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::pause();
    tokio::time::advance(inference.limits.completion_timeout).await;
    let ended = client.await.unwrap();
    assert!(
        matches!(ended, Err(OpenError::Serve(ServeError::Late))),
        "{ended:?}"
    );
    let _ = stage.fake.cancelled.acquire().await.unwrap();
    stage.fake.is_slow.store(false, Ordering::Relaxed);
}

#[tokio::test]
async fn a_response_says_when_it_was_completed() {
    let stage = Stage::new(Recorder::Collects).await;
    let [_, _, (path, body), _] = bodies(true);
    let request = request("POST", path, &[("content-type", "application/json")]);
    let mut response = stage
        .send(request.body(Body::from(body.to_string())).unwrap())
        .await;
    response.body_mut().frame().await.unwrap().unwrap();
    stage.clock.advance(5_000);
    let events = read(response).await.events();
    let completed = &events[events.len() - 2]["response"];
    let seconds = |name: &str| completed[name].as_i64().unwrap();
    assert_eq!(seconds("completed_at"), seconds("created_at") + 5);
}
