//! Retries with the same `Idempotency-Key`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use hone_domain::{RequestId, ServeError, StopReason};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::testing::{Recorder, Reply, Script, Stage, read, request};

const CHAT: &str = "/v1/chat/completions";

fn body(text: &str, stream: bool) -> String {
    json!({"model": "gpt", "stream": stream, "messages": [{"role": "user", "content": text}]})
        .to_string()
}

async fn post(stage: &Stage, key: &str, text: String) -> Reply {
    post_as(stage, (key, "Bearer user-a"), text).await
}

async fn post_as(stage: &Stage, (key, bearer): (&str, &str), text: String) -> Reply {
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", key),
        ("authorization", bearer),
    ];
    let request = request("POST", CHAT, &headers);
    read(stage.send(request.body(Body::from(text)).unwrap()).await).await
}

fn asked(stage: &Stage) -> usize {
    stage.fake.asks.lock().unwrap().len()
}

#[tokio::test]
async fn a_retry_gets_the_same_answer_and_makes_no_turn() {
    for stream in [false, true] {
        let stage = Stage::new(Recorder::Collects).await;
        stage.script([Script::Say(vec!["one"], StopReason::EndToken)]);
        let first = post(&stage, "k1", body("hi", stream)).await;
        let again = post(&stage, "k1", body("hi", stream)).await;
        assert_eq!((first.status, again.status), (200, 200));
        assert_eq!(first.text, again.text);
        assert_eq!(
            first.header("x-hone-turn-id"),
            again.header("x-hone-turn-id")
        );
        assert_eq!(
            (
                first.header("idempotent-replayed"),
                again.header("idempotent-replayed")
            ),
            (None, Some("true"))
        );
        assert_eq!(
            (asked(&stage), stage.told.lock().unwrap().turns.len()),
            (1, 1)
        );
        let other = post(&stage, "k2", body("hi", stream)).await;
        assert_ne!(first.text, other.text);
        assert_eq!(asked(&stage), 2);
    }
}

#[tokio::test]
async fn keys_belong_to_their_owner_and_their_body() {
    let stage = Stage::new(Recorder::Collects).await;
    post(&stage, "k", body("hi", false)).await;
    let other_owner = post_as(&stage, ("k", "Bearer user-b"), body("hi", false)).await;
    assert_eq!(
        (
            other_owner.status,
            other_owner.header("idempotent-replayed")
        ),
        (200, None)
    );
    assert_eq!(asked(&stage), 2);
    let other_body = post(&stage, "k", body("ho", false)).await;
    assert_eq!(
        (other_body.status, &other_body.json()["error"]["code"]),
        (422, &json!("idempotency_mismatch"))
    );
    for key in ["", &"x".repeat(300)] {
        let wrong = post(&stage, key, body("hi", false)).await;
        assert_eq!(
            (wrong.status, &wrong.json()["error"]["param"]),
            (400, &json!("idempotency-key"))
        );
    }
    assert_eq!(asked(&stage), 2);
}

#[tokio::test]
async fn a_failure_is_not_kept() {
    let stage = Stage::new(Recorder::Collects).await;
    let broken = || Script::Break(vec!["a"], ServeError::Internal("boom".to_owned()));
    stage.script([broken(), broken()]);
    assert_eq!(post(&stage, "k", body("hi", false)).await.status, 500);
    let cut = post(&stage, "k", body("hi", true)).await;
    assert!(cut.text.contains("internal_error"), "{}", cut.text);
    let whole = post(&stage, "k", body("hi", true)).await;
    assert!(
        whole.text.contains("\"finish_reason\":\"stop\""),
        "{}",
        whole.text
    );
    assert_eq!(
        (asked(&stage), whole.header("idempotent-replayed")),
        (3, None)
    );
}

#[tokio::test]
async fn a_retry_after_a_cut_joins_the_answer_under_way() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([Script::Hang]);
    let headers = [
        ("content-type", "application/json"),
        ("idempotency-key", "k"),
    ];
    let send = || {
        request("POST", CHAT, &headers)
            .body(Body::from(body("hi", true)))
            .unwrap()
    };
    let mut first = stage.send(send()).await;
    first.body_mut().frame().await.unwrap().unwrap();
    drop(first);
    // The first client is gone; the second one follows the same answer from its beginning.
    let second = stage.send(send()).await;
    assert_eq!(second.headers().get("idempotent-replayed").unwrap(), "true");
    stage.abort.pull();
    let events = read(second).await.events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(events[1]["choices"][0]["delta"]["content"], "he");
    assert_eq!(asked(&stage), 1);
}

#[tokio::test]
async fn a_panic_leaves_nobody_waiting() {
    let stage = Stage::new(Recorder::Collects).await;
    stage.script([Script::Panic]);
    let first = post(&stage, "k", body("hi", false)).await;
    assert_eq!(
        (first.status, &first.json()["error"]["code"]),
        (500, &json!("internal_error"))
    );
    let again = post(&stage, "k", body("hi", false)).await;
    assert_eq!(
        (again.status, again.header("idempotent-replayed")),
        (200, None)
    );
    assert_eq!(asked(&stage), 2);
}

#[tokio::test]
async fn who_is_forgotten_gets_no_old_answer_and_all_others_do() {
    let stage = Stage::new(Recorder::Collects).await;
    post(&stage, "k", body("hi", false)).await;
    post_as(&stage, ("k", "Bearer user-b"), body("hi", false)).await;
    let headers = [
        ("content-type", "application/json"),
        ("authorization", "Bearer user-a"),
    ];
    for (wish, answers) in [
        (json!({"all": true, "dry_run": true}), 2),
        (json!({"all": true}), 1),
    ] {
        let wish = Body::from(wish.to_string());
        let wish = request("POST", "/v1/forget", &headers).body(wish);
        let reply = read(stage.send(wish.unwrap()).await).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(stage.http.replays.size().0, answers);
    }
    let theirs = post_as(&stage, ("k", "Bearer user-b"), body("hi", false)).await;
    assert_eq!(theirs.header("idempotent-replayed"), Some("true"));
    let anew = post(&stage, "k", body("hi", false)).await;
    assert_eq!(
        (anew.status, anew.header("idempotent-replayed")),
        (200, None)
    );
    assert_eq!(asked(&stage), 3);
}

#[tokio::test]
async fn what_is_kept_is_bounded_and_the_oldest_goes() {
    let stage = Stage::new(Recorder::Collects).await;
    let most = stage.http.config.replays_max;
    for n in 0..most + 3 {
        post(&stage, &format!("k{n}"), body("hi", false)).await;
    }
    let (answers, bytes) = stage.http.replays.size();
    assert_eq!(answers, most);
    assert!(bytes > 0 && bytes <= stage.http.config.replay_bytes_max);
    let before = asked(&stage);
    post(&stage, "k0", body("hi", false)).await;
    post(&stage, &format!("k{}", most + 2), body("hi", false)).await;
    assert_eq!(
        asked(&stage),
        before + 1,
        "the oldest was forgotten, the newest not"
    );
}

/// A client that leaves takes no place from its work, and nothing of it is begun any more.
#[tokio::test]
async fn an_embedding_whose_client_left_keeps_its_place_until_its_end() {
    let stage = Stage::new(Recorder::Collects).await;
    let inference = stage.http.inference.clone().unwrap();
    stage.fake.is_slow.store(true, Ordering::Relaxed);
    let inputs = vec![vec![1], vec![2], vec![3]];
    let asking = inference.clone();
    let nobody = RequestId(uuid::Uuid::nil());
    let client = tokio::spawn(async move { asking.embed(("nobody", nobody), inputs).await });
    for _ in 0..2_000 {
        if stage.fake.embeddings.load(Ordering::Relaxed) > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    client.abort();
    assert!(client.await.is_err(), "it left");
    let cancelled = stage.fake.cancelled.acquire();
    let cancelled = tokio::time::timeout(Duration::from_secs(20), cancelled).await;
    assert!(cancelled.is_ok(), "and its text is told so");
    let place = tokio::time::timeout(Duration::ZERO, inference.embedding.enter("other", 1)).await;
    assert!(place.is_err(), "it is taken");
    stage.fake.is_slow.store(false, Ordering::Relaxed);
    let place = tokio::time::timeout(
        Duration::from_secs(20),
        inference.embedding.enter("other", 1),
    )
    .await;
    assert!(place.is_ok(), "its place is free after its end");
    assert_eq!(stage.fake.embeddings.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn embeddings_tokens_and_texts() {
    let stage = Stage::new(Recorder::Collects).await;
    let embed = |fields: Value| {
        let mut body = json!({"model": "gpt", "input": ["ab", [65, 66, 67]]});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        body.to_string()
    };
    let path = "/v1/embeddings";
    let json = stage.post(path, &embed(json!({}))).await.json();
    assert_eq!(
        (&json["object"], &json["usage"]["prompt_tokens"]),
        (&json!("list"), &json!(5))
    );
    assert_eq!(
        (&json["data"][1]["index"], &json["data"][1]["embedding"][2]),
        (&json!(1), &json!(3.0))
    );
    let json = stage
        .post(
            path,
            &embed(json!({"encoding_format": "base64", "input": "a"})),
        )
        .await
        .json();
    assert_eq!(json["data"][0]["embedding"], "mpkZP83MTD8AAIA/");
    for (fields, param) in [
        (json!({"input": []}), "input"),
        (json!({"input": [""]}), "input"),
        (json!({"input": 5}), "input"),
        (json!({"input": [[999]]}), "input[0][0]"),
        (json!({"encoding_format": "int8"}), "encoding_format"),
        (json!({"dimensions": 2}), "dimensions"),
    ] {
        let reply = stage.post(path, &embed(fields.clone())).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!(param)),
            "{fields}"
        );
    }
    let text = json!({"prompt": "hé", "return_token_strs": true}).to_string();
    let json = stage.post("/tokenize", &text).await.json();
    assert_eq!(
        (&json["count"], &json["tokens"]),
        (&json!(3), &json!([104, 195, 169]))
    );
    let talk = json!({"messages": [{"role": "user", "content": "hi"}]}).to_string();
    assert_eq!(stage.post("/tokenize", &talk).await.json()["count"], 18);
    let tokens = json!({"tokens": [104, 195, 169]}).to_string();
    assert_eq!(
        stage.post("/detokenize", &tokens).await.json(),
        json!({"prompt": "hé"})
    );
    for (path, body) in [
        ("/tokenize", json!({})),
        ("/tokenize", json!({"prompt": "x", "messages": []})),
        ("/detokenize", json!({"tokens": [999]})),
        ("/detokenize", json!({"tokens": [-1]})),
    ] {
        assert_eq!(
            stage.post(path, &body.to_string()).await.status,
            400,
            "{path} {body}"
        );
    }
    assert_eq!(asked(&stage), 0);
}

/// What another process of the same ledger answers: nothing is in its memory.
fn restarted(stage: &Stage) {
    stage.http.replays.forget_all();
}

#[tokio::test]
async fn an_answer_outlives_the_process() {
    for stream in [false, true] {
        let stage = Stage::new(Recorder::Collects).await;
        let first = post(&stage, "k1", body("hi", stream)).await;
        restarted(&stage);
        let again = post(&stage, "k1", body("hi", stream)).await;
        assert_eq!((first.status, again.status), (200, 200));
        assert_eq!(first.text, again.text);
        for header in ["x-hone-turn-id", "content-type"] {
            assert_eq!(first.header(header), again.header(header), "{header}");
        }
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
        assert_eq!(asked(&stage), 1);
        restarted(&stage);
        let other_body = post(&stage, "k1", body("ho", stream)).await;
        assert_eq!(other_body.status, 422);
        let other_owner = post_as(&stage, ("k1", "Bearer user-b"), body("hi", stream)).await;
        assert_eq!(other_owner.header("idempotent-replayed"), None);
        assert_eq!(asked(&stage), 2);
        stage
            .clock
            .advance(stage.http.config.replay_keep_ms as i64 + 1);
        restarted(&stage);
        post(&stage, "k1", body("hi", stream)).await;
        assert_eq!(asked(&stage), 3, "it is kept for a while");
    }
}

#[tokio::test]
async fn what_is_not_collected_and_what_failed_leaves_nothing_behind() {
    let stage = Stage::new(Recorder::Fails).await;
    for n in 1..=2 {
        let answer = post(&stage, "k", body("hi", false)).await;
        assert_eq!(answer.json()["hone"]["collected"], false);
        assert_eq!(asked(&stage), n);
        restarted(&stage);
    }
    let stage = Stage::new(Recorder::Collects).await;
    let broken = || Script::Break(vec!["a"], ServeError::Internal("boom".to_owned()));
    stage.script([broken()]);
    assert_eq!(post(&stage, "k", body("hi", false)).await.status, 500);
    restarted(&stage);
    assert_eq!(post(&stage, "k", body("hi", false)).await.status, 200);
}
