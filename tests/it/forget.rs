//! What a person withdraws is gone: from what is served, from what is trained on, and from every
//! byte of the data folder, also when the process dies on the way.

use std::path::Path;
use std::time::Duration;

use hone_ledger::Ledger as _;
use hone_ledger_sql::{SqliteConfig, SqliteStore};
use hone_tests::{Changes, TestApp, ask, broken_laws, client, config, get, post, temporary};
use serde_json::{Value, json};

/// Words that occur nowhere else.
const CANARY: &str = "zebra7731quokka";

/// Every file under `folder` that holds `needle`.
fn files_with(folder: &Path, needle: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            if bytes.windows(needle.len()).any(|w| w == needle.as_bytes()) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

/// Talks in one session and says what it thinks; returns the session.
async fn teach(app: &TestApp, key: &str, words: &str, n: u64) -> String {
    let mut messages = Vec::new();
    let mut session = String::new();
    for seed in 0..n {
        messages
            .push(json!({"role": "user", "content": format!("What color is the sky? {words}")}));
        let mut body = ask("", seed);
        body["messages"] = json!(messages);
        body["session_id"] = json!(key);
        body["max_tokens"] = json!(12);
        let reply = app.chat(body).await.unwrap();
        assert_eq!(reply["hone"]["collected"], true, "{reply}");
        messages.push(reply["choices"][0]["message"].clone());
        session = reply["hone"]["session_id"].as_str().unwrap().to_owned();
        let score = if seed.is_multiple_of(2) { 1 } else { -1 };
        let comment = format!("said {words}");
        let said = json!({"turn_id": reply["hone"]["turn_id"], "score": score, "comment": comment});
        app.post("/v1/feedback", said).await.unwrap();
    }
    session
}

async fn versions(app: &TestApp, least: u64) -> Value {
    let enough = |v: &Value| v["current"].as_u64() >= Some(least);
    app.until("/v1/versions", enough).await.unwrap()
}

/// Whether fewer turns wait for a verdict or for training than a batch needs.
fn at_rest(status: &Value) -> bool {
    let pending = status["ledger"]["pending"].as_array().unwrap().iter();
    let waiting = pending.filter(|stage| {
        let name = stage[0].as_str().unwrap();
        matches!(name, "awaiting_verdict" | "awaiting_training")
    });
    waiting.map(|stage| stage[1].as_u64().unwrap()).sum::<u64>() < 2
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erased_session_leaves_no_byte_and_no_version_behind() {
    let (_guard, data) = temporary().unwrap();
    let quick: Vec<(&str, toml::Value)> = vec![
        // Thumbs alone teach here, and each of the few turns has to.
        ("train.method", "binary_reward".into()),
        ("train.score_weight", 1.0.into()),
        ("train.gate.held_out_share", 0.0.into()),
        ("train.batch_turns", 4.into()),
        ("train.batch_turns_min", 2.into()),
        ("train.batch_wait_ms", 200.into()),
        ("train.tick_ms", 100.into()),
        ("train.gate.probe_recent", 1.into()),
        ("train.gate.probe_golden", 1.into()),
    ];
    let app = TestApp::start(&data, &quick as Changes<'_>).await.unwrap();
    teach(&app, "clean", "please", 4).await;
    // The clean turns may come in two batches.
    app.until("/admin/v1/status", at_rest).await.unwrap();
    let clean = versions(&app, 1).await["current"].as_u64().unwrap();
    let session = teach(&app, "secret", CANARY, 4).await;
    let before = versions(&app, clean + 1).await;
    assert!(
        !files_with(&data, CANARY).is_empty(),
        "the search finds what is there"
    );

    let dry = json!({"session_id": session, "dry_run": true});
    let plan = app.post("/v1/forget", dry).await.unwrap();
    assert_eq!(plan["turns"], 4, "{plan}");
    assert!(plan["samples"].as_u64() >= Some(1), "{plan}");
    let reply = app
        .post("/v1/forget", json!({"session_id": session}))
        .await
        .unwrap();
    // Whoever asks from the reply on gets what takes its place, or waits for it.
    let next = app.chat(ask("Hello!", 0)).await.unwrap();
    let served = next["hone"]["policy_version"].as_u64().unwrap();
    let head = before["current"].as_u64().unwrap();
    assert!(
        served > head,
        "version {served} is served, {head} was tainted"
    );
    let path = format!("/v1/forget/{}", reply["id"].as_str().unwrap());
    let done = app.until(&path, |r| r["state"] == "done").await.unwrap();
    let tainted = done["versions_tainted"].as_array().unwrap();
    assert!(!tainted.is_empty(), "{done}");
    let back = done["rolls_back_to"].as_u64().unwrap();
    assert!(!tainted.contains(&json!(back)), "{done}");

    assert_eq!(files_with(&data, CANARY), Vec::<String>::new());
    let after = versions(&app, head + 1).await;
    let restored = after["data"].as_array().unwrap().iter();
    let restored = restored.filter(|v| v["status"] == "rollback").count();
    assert_eq!(restored, 1, "{after}");
    // Learning goes on from the restored version.
    teach(&app, "later", "thanks", 4).await;
    versions(&app, after["current"].as_u64().unwrap() + 1).await;
    app.stop().await.unwrap();
    assert_eq!(files_with(&data, CANARY), Vec::<String>::new());
    assert_eq!(broken_laws(&data).await.unwrap(), Vec::<String>::new());
}

/// Names the data folder of a child; set only in children.
const CHILD: &str = "HONE_TEST_CHILD_FORGETS";

/// Not a test of its own: the child's whole life when `CHILD` is set, nothing otherwise.
#[test]
fn child_server() {
    let Ok(data) = std::env::var(CHILD) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let slow: Vec<(&str, toml::Value)> = vec![
            ("model.engine", "null".into()),
            ("learning.forget_piece_turns", 1.into()),
            ("learning.forget_wait_ms", 0.into()),
        ];
        let config = config(Path::new(&data), &slow as Changes<'_>).unwrap();
        let app = hone::app::App::start(config).await.unwrap();
        println!("listening on http://{}", app.addr);
        // A parent that is gone must not leave a child behind.
        tokio::time::sleep(Duration::from_secs(600)).await;
        std::process::exit(3);
    });
}

/// As many as take a while to erase one by one.
const TURNS: u64 = 300;

fn spawn(data: &Path) -> (std::process::Child, String) {
    use std::io::BufRead as _;
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["forget::child_server", "--exact", "--nocapture"])
        .env(CHILD, data)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.map_while(Result::ok) {
        if let Some((_, url)) = line.split_once("listening on ") {
            return (child, url.to_owned());
        }
    }
    panic!("the child did not start: {:?}", child.wait());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_erasure_survives_being_killed() {
    let (_guard, data) = temporary().unwrap();
    let http = client().unwrap();
    let (mut child, url) = spawn(&data);
    for n in 0..TURNS {
        let words = format!("{CANARY} number {n} {}", "long ".repeat(400));
        let mut body = ask(&words, n);
        body["model"] = json!("hone-null");
        let reply = post(&http, &url, "/v1/chat/completions", body)
            .await
            .unwrap();
        assert_eq!(reply["hone"]["collected"], true, "{reply}");
    }
    let reply = post(&http, &url, "/v1/forget", json!({"all": true}))
        .await
        .unwrap();
    assert_eq!(
        (&reply["turns"], &reply["state"]),
        (&json!(TURNS), &json!("running"))
    );
    let path = format!("/v1/forget/{}", reply["id"].as_str().unwrap());
    let mut kills = 0_u64;
    let mut url = url;
    loop {
        let state = get(&http, &url, &path).await.unwrap();
        if state["state"] == "done" {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        assert!(kills < 100, "it never ends: {state}");
        (child, url) = spawn(&data);
        // Each life gets a little further, also on a machine where a short one does nothing.
        tokio::time::sleep(Duration::from_millis(100 + 20 * kills)).await;
    }
    assert!(kills >= 2, "it was over before it could be killed");
    assert_eq!(files_with(&data, CANARY), Vec::<String>::new());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(files_with(&data, CANARY), Vec::<String>::new());
    let ledger = SqliteStore::open(&SqliteConfig::in_folder(&data))
        .await
        .unwrap();
    assert_eq!(ledger.check_laws().await.unwrap(), Vec::<String>::new());
    assert_eq!(ledger.counts().await.unwrap().turns, 0);
    ledger.close().await;
}

/// Every file under `folder` that holds these bytes.
fn files_with_bytes(folder: &Path, needle: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            if bytes.windows(needle.len()).any(|window| window == needle) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

/// As after a stop: the second request repeats the first message and has no answer to it. Neither the words
/// nor their token ids are left, and neither is what a long session shares.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_stopped_and_what_was_shared_goes_whole() {
    let (_guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &[]).await.unwrap();
    let secret = format!("my secret is {CANARY}");
    let asked = |messages: Value| {
        let mut body = ask("", 1);
        body["messages"] = messages;
        body["max_tokens"] = json!(4);
        body
    };
    let said = |text: &str| json!({"role": "user", "content": text});
    app.chat(asked(json!([said(&secret)]))).await.unwrap();
    let again = json!([said(&secret), said("hello?")]);
    app.chat(asked(again)).await.unwrap();
    // More than a block of tokens, and another message for each turn.
    let mut long = Vec::new();
    for _ in 0..12 {
        long.push(said(&format!("{CANARY} ").repeat(8)));
        app.chat(asked(json!(long))).await.unwrap();
    }
    let text = json!({"model": "hone-starter", "prompt": format!("{CANARY} {CANARY}")});
    let tokens = app.post("/tokenize", text).await.unwrap();
    let ids: Vec<u32> = tokens["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect();
    // Those in the middle are the same whatever stands around them.
    let middle = &ids[1..ids.len() / 2];
    assert!(middle.len() >= 3, "{ids:?}");
    let needle: Vec<u8> = middle.iter().flat_map(|id| id.to_le_bytes()).collect();
    assert!(!files_with(&data, CANARY).is_empty(), "the words are there");
    assert!(
        !files_with_bytes(&data, &needle).is_empty(),
        "their ids are there"
    );
    let reply = app.post("/v1/forget", json!({"all": true})).await.unwrap();
    let path = format!("/v1/forget/{}", reply["id"].as_str().unwrap());
    app.until(&path, |r| r["state"] == "done").await.unwrap();
    assert_eq!(files_with(&data, CANARY), Vec::<String>::new());
    assert_eq!(files_with_bytes(&data, &needle), Vec::<String>::new());
    app.stop().await.unwrap();
    assert_eq!(files_with(&data, CANARY), Vec::<String>::new());
    assert_eq!(files_with_bytes(&data, &needle), Vec::<String>::new());
    assert_eq!(broken_laws(&data).await.unwrap(), Vec::<String>::new());
}
