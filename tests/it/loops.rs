//! Each loop stopped in turn: the others finish all the work they have.

use hone_tests::{TestHouse, ask, temporary};
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
    let changes: Vec<(&str, toml::Value)> = vec![("http.receipt_timeout_ms", 200.into())];
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
