//! Each loop stopped, then hung, in turn: the others finish all the work they have.

use hone_tests::{TestApp, ask, client, temporary};
use serde_json::json;

/// Chats `n` times with feedback; every answer must come.
async fn work(app: &TestApp, n: u64, from: u64) -> Vec<String> {
    let mut turns = Vec::new();
    for seed in from..from + n {
        let reply = app.chat(ask("What color is the sky?", seed)).await.unwrap();
        turns.push(reply["hone"]["turn_id"].as_str().unwrap().to_owned());
    }
    turns
}

pub(crate) async fn switch(app: &TestApp, name: &str, verb: &str) {
    app.post(&format!("/admin/v1/loops/{name}/{verb}"), json!({}))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_judge_or_trainer_stops_nobody_else() {
    let (_guard, data) = temporary().unwrap();
    let quick: Vec<(&str, toml::Value)> = vec![
        ("train.batch_turns", 4.into()),
        ("train.batch_turns_min", 2.into()),
        ("train.batch_wait_ms", 100.into()),
    ];
    let app = TestApp::start(&data, &quick).await.unwrap();

    switch(&app, "judge", "pause").await;
    let turns = work(&app, 8, 0).await;
    for id in &turns {
        app.post("/v1/feedback", json!({"turn_id": id, "score": 1}))
            .await
            .unwrap();
    }
    let status = app.get("/admin/v1/status").await.unwrap();
    assert_eq!(status["ledger"]["turns"], 8, "collect went on: {status}");
    assert_eq!(
        status["ledger"]["versions"], 0,
        "nothing was judged, so nothing trained: {status}"
    );

    switch(&app, "train", "pause").await;
    switch(&app, "judge", "resume").await;
    for id in &turns {
        let judged = app
            .until(&format!("/v1/turns/{id}"), |t| !t["verdict"].is_null())
            .await;
        assert_eq!(judged.unwrap()["verdict"]["score"], 1.0);
    }
    let status = app.get("/admin/v1/status").await.unwrap();
    assert_eq!(
        status["ledger"]["versions"], 0,
        "training is paused: {status}"
    );

    switch(&app, "train", "resume").await;
    let wait = app.until("/admin/v1/status", |s| {
        s["ledger"]["versions"].as_u64().unwrap_or(0) + s["ledger"]["refused"].as_u64().unwrap_or(0)
            > 0
    });
    wait.await.unwrap();
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_recorder_costs_the_receipt_and_never_the_answer() {
    let (_guard, data) = temporary().unwrap();
    let changes: Vec<(&str, toml::Value)> = vec![("http.receipt_timeout_ms", 5_000.into())];
    let app = TestApp::start(&data, &changes).await.unwrap();
    switch(&app, "collect", "pause").await;
    let reply = app.chat(ask("What color is the sky?", 1)).await.unwrap();
    assert_eq!(reply["hone"]["collected"], false, "{reply}");
    assert!(
        reply["choices"][0]["message"]["content"]
            .as_str()
            .is_some_and(|t| !t.is_empty())
    );
    let late = reply["hone"]["turn_id"].as_str().unwrap().to_owned();
    switch(&app, "collect", "resume").await;
    let again = app.chat(ask("What color is the sky?", 2)).await.unwrap();
    assert_eq!(again["hone"]["collected"], true, "{again}");
    let view = app
        .until(&format!("/v1/turns/{late}"), |t| {
            t["fate"]["state"] == "settled"
        })
        .await
        .unwrap();
    assert_eq!(view["fate"]["reason"], "late_receipt", "{view}");
    app.stop().await.unwrap();
}

/// The first to come back is known, however fast it comes: the gateway opens after collect has read
/// which sessions go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_goes_on_over_restarts() {
    let (_guard, data) = temporary().unwrap();
    let mut sessions = Vec::new();
    for start in 0..4 {
        let app = TestApp::start(&data, &[]).await.unwrap();
        let mut body = ask("What color is the sky?", start);
        body["session_id"] = json!("the same");
        let reply = app.chat(body).await.unwrap();
        let turn = reply["hone"]["turn_id"].as_str().unwrap();
        let turn = app.get(&format!("/v1/turns/{turn}")).await.unwrap();
        sessions.push(turn["session_id"].clone());
        app.stop().await.unwrap();
    }
    assert!(sessions.iter().all(|it| *it == sessions[0]), "{sessions:?}");
}

/// How a server of these tests differs: many small steps, and a busy disk costs no receipt.
fn quick() -> Vec<(&'static str, toml::Value)> {
    vec![
        ("train.batch_turns", 4.into()),
        ("train.batch_turns_min", 2.into()),
        ("train.batch_wait_ms", 100.into()),
        ("train.gate.probe_recent", 1.into()),
        ("train.gate.probe_golden", 1.into()),
        ("train.staleness_max_versions", 1_000.into()),
        ("train.drain_deadline_ms", 2_000.into()),
        ("judge.drain_ms", 500.into()),
        ("collect.drain_ms", 500.into()),
        ("http.receipt_timeout_ms", 5_000.into()),
    ]
}

async fn praise(app: &TestApp, turns: &[String]) {
    for id in turns {
        let said = json!({"turn_id": id, "score": 1});
        app.post("/v1/feedback", said).await.unwrap();
    }
}

async fn count(app: &TestApp, read: impl Fn(&serde_json::Value) -> u64, least: u64) {
    let seen = app.until("/admin/v1/status", |s| read(s) >= least).await;
    seen.unwrap();
}

fn judged(status: &serde_json::Value) -> u64 {
    let number = status["loops"]["judge"]["numbers"]["judged_total"].as_f64();
    number.unwrap_or(0.0) as u64
}

fn decided(status: &serde_json::Value) -> u64 {
    let ledger = &status["ledger"];
    ledger["versions"].as_u64().unwrap_or(0) + ledger["refused"].as_u64().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_judge_or_trainer_stops_nobody_else() {
    let (_guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &quick()).await.unwrap();
    app.hold("judge", true);
    let turns = work(&app, 8, 0).await;
    praise(&app, &turns).await;
    let status = app.get("/admin/v1/status").await.unwrap();
    assert_eq!(status["ledger"]["turns"], 8, "collect went on: {status}");
    assert_eq!((judged(&status), decided(&status)), (0, 0), "{status}");

    app.hold("train", true);
    app.hold("judge", false);
    count(&app, judged, 8).await;
    let more = work(&app, 4, 100).await;
    praise(&app, &more).await;
    count(&app, judged, 12).await;
    let status = app.get("/admin/v1/status").await.unwrap();
    assert_eq!(decided(&status), 0, "training hangs: {status}");

    app.hold("train", false);
    count(&app, decided, 1).await;
    // A judge and a trainer that hang cost the stop its deadlines and nothing else.
    app.hold("judge", true);
    app.hold("train", true);
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_recorder_costs_receipts_and_neither_answers_nor_steps() {
    let (_guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &quick()).await.unwrap();
    switch(&app, "judge", "pause").await;
    praise(&app, &work(&app, 8, 0).await).await;
    app.hold("collect", true);
    switch(&app, "judge", "resume").await;
    let reply = app.chat(ask("What color is the sky?", 50)).await.unwrap();
    assert_eq!(reply["hone"]["collected"], false, "{reply}");
    count(&app, judged, 8).await;
    count(&app, decided, 1).await;
    app.hold("collect", false);
    let again = app.chat(ask("What color is the sky?", 51)).await.unwrap();
    assert_eq!(again["hone"]["collected"], true, "{again}");
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_or_hung_engine_costs_answers_only() {
    let (_guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &quick()).await.unwrap();
    switch(&app, "judge", "pause").await;
    let turns = work(&app, 12, 0).await;
    for (round, hung) in [(0, false), (1, true)] {
        if hung {
            app.hold("serve", true);
        } else {
            switch(&app, "serve", "pause").await;
        }
        if !hung {
            let ready = client().unwrap().get(format!("{}/readyz", app.url));
            assert_eq!(ready.send().await.unwrap().status(), 503, "serve is paused");
        }
        let url = app.url.clone();
        let waits = tokio::spawn(async move {
            let body = ask("What color is the sky?", 70);
            let http = client().unwrap();
            hone_tests::post(&http, &url, "/v1/chat/completions", body).await
        });
        // What is said about earlier answers is recorded, judged and trained.
        praise(&app, &turns[round * 6..(round + 1) * 6]).await;
        if round == 0 {
            switch(&app, "judge", "resume").await;
        }
        let status = app.get("/admin/v1/status").await.unwrap();
        let before = decided(&status);
        count(&app, judged, (round as u64 + 1) * 6).await;
        count(&app, decided, before.max(round as u64 + 1)).await;
        assert!(!waits.is_finished(), "the engine stands still");
        if hung {
            app.hold("serve", false);
        } else {
            switch(&app, "serve", "resume").await;
        }
        let reply = waits.await.unwrap().unwrap();
        assert_eq!(reply["hone"]["collected"], true, "{reply}");
    }
    app.stop().await.unwrap();
}
