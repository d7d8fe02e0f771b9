//! Versions from outside: what was learned is compared, taken back, kept, and learned on from.

use hone_tests::{Changes, TestApp, ask, one_version_per_four_answers, temporary};
use serde_json::{Value, json};

/// Talks and rates until one more version is published; returns its number.
async fn learn(app: &TestApp, seed: u64) -> u64 {
    let before = current(app).await;
    for at in 0..4 {
        let body = ask("What is the capital of France?", seed * 100 + at);
        let reply = app.chat(body).await.unwrap();
        let id = &reply["hone"]["turn_id"];
        let score = if at % 2 == 0 { 1 } else { -1 };
        let said = json!({"turn_id": id, "score": score});
        app.post("/v1/feedback", said).await.unwrap();
    }
    let list = app
        .until("/v1/versions", |list| {
            list["current"].as_u64() > Some(before)
        })
        .await
        .unwrap();
    list["current"].as_u64().unwrap()
}

async fn current(app: &TestApp) -> u64 {
    let list = app.get("/v1/versions").await.unwrap();
    list["current"].as_u64().unwrap()
}

/// What is said to one question with one seed, once `version` answers.
async fn said_by(app: &TestApp, version: u64) -> String {
    for _ in 0..400 {
        let reply = app.chat(ask("Tell me a joke.", 7)).await.unwrap();
        if reply["hone"]["policy_version"] == version {
            let text = reply["choices"][0]["message"]["content"].as_str();
            return text.unwrap().to_owned();
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("version {version} is not served");
}

/// Two versions answer side by side, the same with the same seed, and nothing of it is collected.
async fn both_answer(app: &TestApp, learned: u64) {
    let body = json!({
        "a": 0, "b": learned, "seed": 7, "max_tokens": 48,
        "prompts": [[{"role": "user", "content": "Tell me a joke."}]],
    });
    let turns = app.get("/admin/v1/status").await.unwrap()["ledger"]["turns"].clone();
    let compared = app
        .post("/v1/versions/compare", body.clone())
        .await
        .unwrap();
    let pair = &compared["data"][0];
    assert_eq!(
        (&pair["a"]["version"], &pair["b"]["version"]),
        (&json!(0), &json!(1))
    );
    let again = app.post("/v1/versions/compare", body).await.unwrap();
    assert_eq!(compared, again, "one seed, one answer");
    let recent = json!({"a": 1, "b": 0, "recent": 2, "max_tokens": 8});
    let recent = app.post("/v1/versions/compare", recent).await.unwrap();
    assert!(!recent["data"].as_array().unwrap().is_empty());
    let status = app.get("/admin/v1/status").await.unwrap();
    assert_eq!(
        status["ledger"]["turns"], turns,
        "nothing of it is collected"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_is_compared_taken_back_kept_and_learned_on_from() {
    let (_guard, data) = temporary().unwrap();
    let changes = one_version_per_four_answers();
    let app = TestApp::start(&data, &changes as Changes<'_>)
        .await
        .unwrap();
    let base = said_by(&app, 0).await;
    let learned = learn(&app, 1).await;
    assert_eq!(learned, 1);

    both_answer(&app, learned).await;

    // Back to the base: a new version, served at once, with the very answers of the base.
    let body = json!({"note": "not what I wanted"});
    let back = app.post("/v1/versions/0/rollback", body).await.unwrap();
    assert_eq!(
        (&back["version"], &back["digest"]),
        (&json!(2), &Value::Null)
    );
    assert_eq!(said_by(&app, 2).await, base);

    // Learning goes on from what was restored.
    let third = learn(&app, 2).await;
    let version = app.get(&format!("/v1/versions/{third}")).await.unwrap();
    assert_eq!(version["lineage"], json!([2, 0]));
    assert_eq!(version["provisional"], true, "no held-out turns yet");
    let turn = version["turns"][0]["turn_id"].as_str().unwrap();
    let turn = app.get(&format!("/v1/turns/{turn}")).await.unwrap();
    assert_eq!(turn["fate"]["version"], third);

    // A pin holds the first version through more feedback and a restart.
    let held = app.post("/v1/versions/1/pin", json!({})).await.unwrap();
    assert_eq!(
        (&held["current"], &held["pinned"]),
        (&json!(4), &json!(true))
    );
    for seed in 0..6 {
        let reply = app.chat(ask("Hello!", 900 + seed)).await.unwrap();
        let said = json!({"turn_id": reply["hone"]["turn_id"], "score": 1});
        app.post("/v1/feedback", said).await.unwrap();
    }
    app.stop().await.unwrap();
    let app = TestApp::start(&data, &changes as Changes<'_>)
        .await
        .unwrap();
    said_by(&app, 4).await;
    let waiting = |status: &Value| {
        let pending = status["ledger"]["pending"].as_array().unwrap();
        pending
            .iter()
            .any(|p| p[0] == "awaiting_training" && p[1].as_u64() >= Some(6))
    };
    app.until("/admin/v1/status", waiting).await.unwrap();
    assert_eq!(current(&app).await, 4);
    let proven = app.get("/admin/v1/status").await.unwrap();
    assert_eq!(proven["engine"]["identity_failures_total"], 0);
    app.stop().await.unwrap();
}
