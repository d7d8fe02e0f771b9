//! A ledger for years: what is old goes beside the server, also when the command is killed on the way; what is left keeps its
//! promises, and the space is given back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hone_domain::{Message, Reason, Role, Turn};
use hone_ledger::{Ledger as _, suite};
use hone_ledger_sql::{SqliteConfig, SqliteStore};
use hone_tests::{TestApp, ask, broken_laws, temporary};
use serde_json::{Value, json};

use crate::program::{Ended, program, run};

/// Turns of years ago.
const OLD: u64 = 300;

/// Old turns that came to their end, each a conversation of its own.
async fn seed(data: &Path) {
    let config = SqliteConfig::in_folder(data);
    let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
    let world = suite::World::new(ledger.clone());
    let turn = |at: u64| {
        let mut turn = world.turn();
        turn.messages[1] =
            Message::text(Role::User, format!("question {at} {}", "?".repeat(2_000)));
        turn.completion_text = format!("answer {at} {}", "!".repeat(8_000));
        turn
    };
    let turns: Vec<Turn> = (0..OLD).map(turn).collect();
    ledger.record_turns(&turns).await.unwrap();
    let ended: Vec<_> = turns
        .iter()
        .map(|turn| (turn.id, Reason::Abstained))
        .collect();
    ledger.settle_turns(&ended).await.unwrap();
    ledger.close().await;
}

fn hone(words: &[&str], data: &Path) -> Ended {
    let words = [words, &["--data", data.to_str().unwrap()]].concat();
    run(program(&words))
}

/// The object that a command prints; the test harness may have begun the line.
fn object(ended: &Ended) -> Value {
    let begins = ended.out.find('{').unwrap_or_default();
    serde_json::from_str(&ended.out[begins..]).unwrap()
}

/// What a pruning says: how many turns lose their words, how many go, and bytes of words.
fn prune(flags: &[&str], data: &Path) -> [u64; 3] {
    let words = [&["ledger", "prune", "--json", "--turns", "365"], flags].concat();
    let ended = hone(&words, data);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let said = object(&ended);
    let number = |kind: &str, what: &str| said["pruned"][kind][what].as_u64().unwrap();
    [
        number("words", "rows"),
        number("turns", "rows"),
        number("words", "bytes"),
    ]
}

async fn rows(app: &TestApp, table: &str) -> u64 {
    let storage = app.get("/admin/v1/storage").await.unwrap();
    let tables = storage["tables"].as_array().unwrap();
    let found = tables.iter().find(|row| row["name"] == table).unwrap();
    found["rows"].as_u64().unwrap()
}

/// What the ledger says against itself while the server runs.
async fn broken_beside(data: &Path) -> Vec<String> {
    let config = SqliteConfig::in_folder(data);
    let ledger = SqliteStore::open_beside(&config).await.unwrap();
    let broken = ledger.check_laws().await.unwrap();
    ledger.close().await;
    broken
}

/// Kills the command after a while; it may have done nothing, some of it or all.
fn kill_on_the_way(data: &Path, after: Duration) {
    let words = [
        "ledger",
        "prune",
        "--turns",
        "365",
        "--data",
        data.to_str().unwrap(),
    ];
    let mut child = program(&words).spawn().unwrap();
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_old_goes_beside_the_server_and_the_space_comes_back() {
    let (_guard, data) = temporary().unwrap();
    seed(&data).await;
    let app = TestApp::start(&data, &[]).await.unwrap();
    let reply = app
        .chat(ask("What is the capital of France?", 1))
        .await
        .unwrap();
    let turn = reply["hone"]["turn_id"].as_str().unwrap().to_owned();
    assert_eq!(rows(&app, "turns").await, OLD + 1);

    let planned = prune(&["--dry-run"], &data);
    assert_eq!(planned[..2], [OLD, OLD]);
    assert_eq!(prune(&["--dry-run"], &data), planned);
    assert_eq!(rows(&app, "turns").await, OLD + 1);
    for after_ms in [300, 600] {
        kill_on_the_way(&data, Duration::from_millis(after_ms));
        assert_eq!(broken_beside(&data).await, Vec::<String>::new());
    }
    let left = rows(&app, "turns").await - 1;
    let again = prune(&["--dry-run"], &data);
    assert_eq!(again[..2], [left, left]);
    assert_eq!(prune(&[], &data), again);
    assert_eq!(prune(&[], &data), [0; 3]);
    assert_eq!(rows(&app, "turns").await, 1);
    assert_eq!(rows(&app, "sessions").await, 1);
    let kept = app.get(&format!("/v1/turns/{turn}")).await.unwrap();
    assert_eq!(kept["stored"], "whole");

    let refused = hone(&["ledger", "compact"], &data);
    assert!(
        refused.sentence().contains("in use by another hone"),
        "{refused:?}"
    );
    app.stop().await.unwrap();
    let bytes = || std::fs::metadata(data.join("ledger.db")).unwrap().len();
    let before = bytes();
    let compacted = hone(&["ledger", "compact"], &data);
    assert_eq!(compacted.code, Some(0), "{compacted:?}");
    assert!(compacted.out.contains("its copy takes"), "{compacted:?}");
    assert!(bytes() * 3 < before, "{} of {before} bytes", bytes());
    assert_eq!(broken_laws(&data).await.unwrap(), Vec::<String>::new());
    let size = hone(&["ledger", "size", "--json"], &data);
    let size = object(&size);
    assert_eq!(size["ledger"]["bytes"].as_u64(), Some(bytes()));
    let exported = hone(&["export", "turns"], &data);
    assert_eq!((exported.code, exported.out.lines().count()), (Some(0), 1));

    // What is left is served, learned from and erased as before.
    let app = TestApp::start(&data, &[]).await.unwrap();
    let kept = app.get(&format!("/v1/turns/{turn}")).await.unwrap();
    let session = kept["session_id"].as_str().unwrap();
    let wish = json!({"session_id": session});
    let begun = app.post("/v1/forget", wish).await.unwrap();
    let path = format!("/v1/forget/{}", begun["id"].as_str().unwrap());
    let done = app.until(&path, |wish| wish["state"] == "done");
    assert_eq!(done.await.unwrap()["turns"], 1);
    app.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), Vec::<String>::new());
}
