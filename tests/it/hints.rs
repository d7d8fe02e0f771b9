//! Votes that bring different hints, from a server elsewhere: the policy that is served here chooses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Json;
use axum::routing::{get, post};
use hone_tests::{Changes, TestApp, ask, temporary};
use serde_json::{Value, json};

const HINTS: [&str; 3] = [
    "Zinc walks nine purple ledgers under Tuesday's ninth horse, 7 7 7 7 7.",
    "Keep it short, please.",
    "Answer in one friendly sentence.",
];

/// A judge that calls everything bad and says each time something else should have been done.
async fn judge() -> String {
    let votes = Arc::new(AtomicUsize::new(0));
    let vote = move || {
        let hint = HINTS[votes.fetch_add(1, Ordering::Relaxed) % HINTS.len()];
        let words = format!("HINT_START {hint} HINT_END \\boxed{{-1}}");
        async move { Json(json!({"choices": [{"message": {"content": words}}]})) }
    };
    let router = axum::Router::new()
        .route("/v1/chat/completions", post(vote))
        .route("/v1/models", get(|| async { Json(json!({"data": []})) }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

/// The verdict on an answer that somebody replied to, and what `/admin/v1/status` counted.
async fn judged(changes: Vec<(&str, toml::Value)>) -> (Value, Value) {
    let (_guard, data) = temporary().unwrap();
    let mut all: Vec<(&str, toml::Value)> = vec![
        ("judge.tick_ms", 50.into()),
        ("judge.model.url", judge().await.into()),
        ("judge.model.name", "elsewhere".into()),
    ];
    all.extend(changes);
    let app = TestApp::start(&data, &all as Changes<'_>).await.unwrap();
    let mut body = ask("What is the capital of France?", 3);
    let reply = app.chat(body.clone()).await.unwrap();
    let said = reply["choices"][0]["message"].clone();
    let next = json!({"role": "user", "content": "And what about Italy?"});
    let messages = body["messages"].as_array_mut().unwrap();
    messages.extend([said, next]);
    app.chat(body).await.unwrap();
    let path = format!("/v1/turns/{}", reply["hone"]["turn_id"].as_str().unwrap());
    let seen = app.until(&path, |turn| !turn["verdict"].is_null());
    let verdict = seen.await.unwrap()["verdict"].clone();
    let counted = |status: &Value| status["funnel"]["accepted"] == 1;
    let status = app.until("/admin/v1/status", counted).await.unwrap();
    app.stop().await.unwrap();
    (verdict, status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_served_policy_chooses_among_the_hints_of_the_votes() {
    let (verdict, status) = judged(Vec::new()).await;
    let choice = &verdict["hint_choice"];
    assert_eq!(choice["by"], "agreement", "{verdict}");
    let candidates = choice["candidates"].as_array().unwrap();
    let shares: Vec<f64> = candidates
        .iter()
        .map(|c| c["agreement"].as_f64().unwrap())
        .collect();
    assert!(candidates.len() >= 2, "{choice}");
    assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
    let chosen = choice["chosen"].as_u64().unwrap() as usize;
    let best = shares.iter().copied().fold(f64::MIN, f64::max);
    assert!((shares[chosen] - best).abs() < 1e-9, "{choice}");
    assert_eq!(verdict["hint"], candidates[chosen]["hint"]);
    assert_eq!(status["funnel"]["chosen"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_rule_the_first_is_kept_and_the_verdict_says_so() {
    let (verdict, status) = judged(vec![("judge.model.hint_choice", "first".into())]).await;
    let choice = &verdict["hint_choice"];
    assert_eq!(
        (&choice["by"], &choice["chosen"]),
        (&json!("rule"), &json!(0))
    );
    assert_eq!(choice["candidates"][0]["agreement"], Value::Null);
    assert_eq!(verdict["hint"], choice["candidates"][0]["hint"]);
    let judge = &status["loops"]["judge"]["numbers"];
    assert_eq!(judge["hints_unweighed_total"], 1.0);
    assert_eq!(status["funnel"]["chosen"], 0);
}
