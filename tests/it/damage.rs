//! Files that are damaged or gone, under a server that runs and before one that starts: nothing is
//! acknowledged that is lost, serving goes on, and what is wrong is said.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hone_tests::{Changes, TestHouse, ask, broken_laws, client, temporary};
use serde_json::{Value, json};

/// How long an answer would wait for a receipt.
const RECEIPT_TIMEOUT_MS: i64 = 20_000;

fn null_engine() -> Vec<(&'static str, toml::Value)> {
    vec![
        ("model.engine", "null".into()),
        ("http.receipt_timeout_ms", RECEIPT_TIMEOUT_MS.into()),
    ]
}

async fn probe(house: &TestHouse, path: &str) -> (u16, String) {
    let reply = client().unwrap().get(format!("{}{path}", house.url));
    let reply = reply.send().await.unwrap();
    (reply.status().as_u16(), reply.text().await.unwrap())
}

/// Until the alert of that name is told.
async fn alerted(house: &TestHouse, id: &str) -> Value {
    let told = |why: &Value| {
        let alerts = why["alerts"].as_array();
        alerts.is_some_and(|alerts| alerts.iter().any(|alert| alert["id"] == id))
    };
    house.until("/admin/v1/why", told).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_folder_that_is_removed_is_noticed_and_nothing_is_acknowledged() {
    let harms: [fn(&Path); 3] = [
        |data| std::fs::remove_dir_all(data).unwrap(),
        |data| std::fs::remove_file(data.join("ledger.db")).unwrap(),
        |data| {
            let away = data.with_extension("away");
            std::fs::rename(data, &away).unwrap();
            std::fs::create_dir(data).unwrap();
        },
    ];
    for harm in harms {
        let (_guard, data) = temporary().unwrap();
        let changes = null_engine();
        let house = TestHouse::start(&data, &changes as Changes<'_>)
            .await
            .unwrap();
        let mut body = ask("Hello!", 1);
        body["model"] = json!("hone-null");
        let before = house.chat(body.clone()).await.unwrap();
        assert_eq!(before["hone"]["collected"], true, "{before}");
        assert_eq!(probe(&house, "/readyz/learning").await.0, 200);
        harm(&data);
        let began = Instant::now();
        let why = alerted(&house, "ledger_lost").await;
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!(why["learning"], "no", "{why}");
        let began = Instant::now();
        for n in 0..3 {
            let answer = house.chat(body.clone()).await.unwrap();
            assert_eq!(answer["hone"]["collected"], false, "{n}: {answer}");
        }
        let took = began.elapsed();
        assert!(
            took < Duration::from_secs(10),
            "no answer waits for a receipt that cannot come: {took:?}"
        );
        let (status, text) = probe(&house, "/readyz/learning").await;
        assert_eq!(status, 503, "{text}");
        let (status, text) = probe(&house, "/readyz").await;
        assert_eq!(
            (status, text.contains("ledger_lost")),
            (200, true),
            "{text}"
        );
        house.stop().await.unwrap();
    }
}

/// The folder of a scope's newest adapter.
fn adapters(data: &Path) -> Vec<PathBuf> {
    let folders = |above: PathBuf| {
        let entries = std::fs::read_dir(above).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path())
    };
    let mut found: Vec<PathBuf> = folders(data.join("blobs/adapters"))
        .flat_map(folders)
        .collect();
    found.sort_by_key(|folder| std::fs::metadata(folder).unwrap().modified().unwrap());
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_served_version_falls_back_at_the_start_and_says_so() {
    let (_guard, data) = temporary().unwrap();
    let quick: Vec<(&str, toml::Value)> = vec![
        ("train.batch_turns", 2.into()),
        ("train.batch_turns_min", 2.into()),
        ("train.batch_wait_ms", 100.into()),
        ("train.tick_ms", 100.into()),
        ("train.gate.probe_recent", 1.into()),
        ("train.gate.probe_golden", 1.into()),
    ];
    let house = TestHouse::start(&data, &quick as Changes<'_>)
        .await
        .unwrap();
    for seed in 0..2 {
        let mut body = ask("What color is the sky?", seed);
        body["max_tokens"] = json!(12);
        let reply = house.chat(body).await.unwrap();
        let said = json!({"turn_id": reply["hone"]["turn_id"], "score": 1});
        house.post("/v1/feedback", said).await.unwrap();
    }
    let learned = |v: &Value| v["current"].as_u64() >= Some(1);
    let before = house.until("/v1/versions", learned).await.unwrap();
    house.stop().await.unwrap();
    let newest = adapters(&data).pop().unwrap();
    let weights = newest.join("adapter_model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&weights, bytes).unwrap();

    let house = TestHouse::start(&data, &quick as Changes<'_>)
        .await
        .unwrap();
    let answer = house.chat(ask("Hello!", 3)).await.unwrap();
    let served = answer["hone"]["policy_version"].as_u64();
    assert!(served > before["current"].as_u64(), "{answer}");
    let why = alerted(&house, "adapter_damaged").await;
    assert!(why.to_string().contains("kept aside"), "{why}");
    let (status, text) = probe(&house, "/readyz").await;
    assert_eq!(
        (status, text.contains("adapter_damaged")),
        (200, true),
        "{text}"
    );
    let versions = house.get("/v1/versions").await.unwrap();
    let damaged = versions["data"].as_array().unwrap().iter();
    assert_eq!(
        damaged.filter(|v| v["damaged"] == true).count(),
        1,
        "{versions}"
    );
    assert!(data.join("blobs/damaged").exists() && !newest.exists());
    house.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), Vec::<String>::new());
}
