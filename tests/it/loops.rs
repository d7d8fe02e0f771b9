//! Each loop stopped, then hung, in turn: the others finish all the work they have.

use hone_tests::{TestHouse, ask, client, temporary};
use serde_json::json;

/// Chats `n` times with feedback; every answer must come.
async fn work(house: &TestHouse, n: u64, from: u64) -> Vec<String> {
    let mut turns = Vec::new();
    for seed in from..from + n {
        let reply = house
            .chat(ask("What color is the sky?", seed))
            .await
            .unwrap();
        turns.push(reply["hone"]["turn_id"].as_str().unwrap().to_owned());
    }
    turns
}

async fn switch(house: &TestHouse, room: &str, verb: &str) {
    house
        .post(&format!("/admin/v1/loops/{room}/{verb}"), json!({}))
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
    let house = TestHouse::start(&data, &quick).await.unwrap();

    switch(&house, "judge", "pause").await;
    let turns = work(&house, 8, 0).await;
    for id in &turns {
        house
            .post("/v1/feedback", json!({"turn_id": id, "score": 1}))
            .await
            .unwrap();
    }
    let status = house.get("/admin/v1/status").await.unwrap();
    assert_eq!(status["ledger"]["turns"], 8, "collect went on: {status}");
    assert_eq!(
        status["ledger"]["versions"], 0,
        "nothing was judged, so nothing trained: {status}"
    );

    switch(&house, "train", "pause").await;
    switch(&house, "judge", "resume").await;
    for id in &turns {
        let judged = house
            .until(&format!("/v1/turns/{id}"), |t| !t["verdict"].is_null())
            .await;
        assert_eq!(judged.unwrap()["verdict"]["score"], 1.0);
    }
    let status = house.get("/admin/v1/status").await.unwrap();
    assert_eq!(
        status["ledger"]["versions"], 0,
        "training is paused: {status}"
    );

    switch(&house, "train", "resume").await;
    let wait = house.until("/admin/v1/status", |s| {
        s["ledger"]["versions"].as_u64().unwrap_or(0) + s["ledger"]["refused"].as_u64().unwrap_or(0)
            > 0
    });
    wait.await.unwrap();
    house.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_recorder_costs_the_receipt_and_never_the_answer() {
    let (_guard, data) = temporary().unwrap();
    let changes: Vec<(&str, toml::Value)> = vec![("http.receipt_timeout_ms", 5_000.into())];
    let house = TestHouse::start(&data, &changes).await.unwrap();
    switch(&house, "collect", "pause").await;
    let reply = house.chat(ask("What color is the sky?", 1)).await.unwrap();
    assert_eq!(reply["hone"]["collected"], false, "{reply}");
    assert!(
        reply["choices"][0]["message"]["content"]
            .as_str()
            .is_some_and(|t| !t.is_empty())
    );
    let late = reply["hone"]["turn_id"].as_str().unwrap().to_owned();
    switch(&house, "collect", "resume").await;
    let again = house.chat(ask("What color is the sky?", 2)).await.unwrap();
    assert_eq!(again["hone"]["collected"], true, "{again}");
    let view = house
        .until(&format!("/v1/turns/{late}"), |t| {
            t["fate"]["state"] == "settled"
        })
        .await
        .unwrap();
    assert_eq!(view["fate"]["reason"], "late_receipt", "{view}");
    house.stop().await.unwrap();
}

/// The first to come back is known, however fast it comes: the door opens after collect has read
/// which sessions go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_goes_on_over_restarts() {
    let (_guard, data) = temporary().unwrap();
    let mut sessions = Vec::new();
    for start in 0..4 {
        let house = TestHouse::start(&data, &[]).await.unwrap();
        let mut body = ask("What color is the sky?", start);
        body["session_id"] = json!("the same");
        let reply = house.chat(body).await.unwrap();
        let turn = reply["hone"]["turn_id"].as_str().unwrap();
        let turn = house.get(&format!("/v1/turns/{turn}")).await.unwrap();
        sessions.push(turn["session_id"].clone());
        house.stop().await.unwrap();
    }
    assert!(sessions.iter().all(|it| *it == sessions[0]), "{sessions:?}");
}

/// How a house of these tests differs: many small steps, and a busy disk costs no receipt.
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

async fn praise(house: &TestHouse, turns: &[String]) {
    for id in turns {
        let said = json!({"turn_id": id, "score": 1});
        house.post("/v1/feedback", said).await.unwrap();
    }
}

async fn count(house: &TestHouse, read: impl Fn(&serde_json::Value) -> u64, least: u64) {
    let seen = house.until("/admin/v1/status", |s| read(s) >= least).await;
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
    let house = TestHouse::start(&data, &quick()).await.unwrap();
    house.hold("judge", true);
    let turns = work(&house, 8, 0).await;
    praise(&house, &turns).await;
    let status = house.get("/admin/v1/status").await.unwrap();
    assert_eq!(status["ledger"]["turns"], 8, "collect went on: {status}");
    assert_eq!((judged(&status), decided(&status)), (0, 0), "{status}");

    house.hold("train", true);
    house.hold("judge", false);
    count(&house, judged, 8).await;
    let more = work(&house, 4, 100).await;
    praise(&house, &more).await;
    count(&house, judged, 12).await;
    let status = house.get("/admin/v1/status").await.unwrap();
    assert_eq!(decided(&status), 0, "training hangs: {status}");

    house.hold("train", false);
    count(&house, decided, 1).await;
    // A judge and a trainer that hang cost the stop its deadlines and nothing else.
    house.hold("judge", true);
    house.hold("train", true);
    house.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_recorder_costs_receipts_and_neither_answers_nor_steps() {
    let (_guard, data) = temporary().unwrap();
    let house = TestHouse::start(&data, &quick()).await.unwrap();
    switch(&house, "judge", "pause").await;
    praise(&house, &work(&house, 8, 0).await).await;
    house.hold("collect", true);
    switch(&house, "judge", "resume").await;
    let reply = house.chat(ask("What color is the sky?", 50)).await.unwrap();
    assert_eq!(reply["hone"]["collected"], false, "{reply}");
    count(&house, judged, 8).await;
    count(&house, decided, 1).await;
    house.hold("collect", false);
    let again = house.chat(ask("What color is the sky?", 51)).await.unwrap();
    assert_eq!(again["hone"]["collected"], true, "{again}");
    house.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_or_hung_engine_costs_answers_only() {
    let (_guard, data) = temporary().unwrap();
    let house = TestHouse::start(&data, &quick()).await.unwrap();
    switch(&house, "judge", "pause").await;
    let turns = work(&house, 12, 0).await;
    for (round, hung) in [(0, false), (1, true)] {
        if hung {
            house.hold("serve", true);
        } else {
            switch(&house, "serve", "pause").await;
        }
        if !hung {
            let ready = client().unwrap().get(format!("{}/readyz", house.url));
            assert_eq!(ready.send().await.unwrap().status(), 503, "serve is paused");
        }
        let url = house.url.clone();
        let waits = tokio::spawn(async move {
            let body = ask("What color is the sky?", 70);
            let http = client().unwrap();
            hone_tests::post(&http, &url, "/v1/chat/completions", body).await
        });
        // What is said about earlier answers is recorded, judged and trained.
        praise(&house, &turns[round * 6..(round + 1) * 6]).await;
        if round == 0 {
            switch(&house, "judge", "resume").await;
        }
        let status = house.get("/admin/v1/status").await.unwrap();
        let before = decided(&status);
        count(&house, judged, (round as u64 + 1) * 6).await;
        count(&house, decided, before.max(round as u64 + 1)).await;
        assert!(!waits.is_finished(), "the engine stands still");
        if hung {
            house.hold("serve", false);
        } else {
            switch(&house, "serve", "resume").await;
        }
        let reply = waits.await.unwrap().unwrap();
        assert_eq!(reply["hone"]["collected"], true, "{reply}");
    }
    house.stop().await.unwrap();
}
