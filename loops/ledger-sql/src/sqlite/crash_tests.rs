//! `kill -9` loses nothing that was acknowledged.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hone_domain::{RequestId, SessionId, TurnId};
use uuid::Uuid;

use super::{SqliteConfig, SqliteStore};
use hone_ledger::{Ledger, suite};

/// Set in the child process: the data folder.
const CHILD: &str = "HONE_STORE_CRASH_CHILD";

const ROUNDS: u64 = 20;

#[tokio::test]
async fn killed_writers_lose_no_acknowledged_turn() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::in_folder(folder.path());
    let mut acknowledged: Vec<TurnId> = Vec::new();
    let mut interrupted = 0;
    for round in 0..ROUNDS {
        let printed = kill_after(folder.path(), Duration::from_millis(5 + jitter() % 120));
        let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
        for id in &printed {
            let view = ledger.turn(*id).await.unwrap();
            assert!(
                view.is_some(),
                "round {round}: {id} was acknowledged and is gone"
            );
        }
        acknowledged.extend(&printed);
        interrupted += u64::from(!printed.is_empty());
        let turns = ledger.counts().await.unwrap().turns;
        assert!(
            turns >= acknowledged.len() as u64,
            "round {round}: {turns} turns"
        );
        suite::World::new(ledger.clone())
            .assert_lawful("a kill")
            .await;
        ledger.close().await;
    }
    assert!(
        interrupted >= ROUNDS / 2,
        "only {interrupted} children came to write"
    );
    let ledger = SqliteStore::open(&config).await.unwrap();
    for id in &acknowledged {
        assert!(
            ledger.turn(*id).await.unwrap().is_some(),
            "{id} was lost later"
        );
    }
}

/// Not from the seed: the moment of a kill is random in the world, too.
fn jitter() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::from(now.subsec_nanos()) / 1_000
}

/// Starts a child that writes, kills it some time after its first acknowledgement, and returns
/// every id it printed.
fn kill_after(folder: &Path, time: Duration) -> Vec<TurnId> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "sqlite::crash_tests::write_until_killed",
            "--nocapture",
        ])
        .env(CHILD, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (first, seen) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        // A line cut by the kill was not acknowledged.
        let mut ids = Vec::new();
        for line in output.lines().map_while(Result::ok) {
            let words = line
                .strip_prefix("durable ")
                .and_then(|l| l.strip_suffix(" ."));
            ids.extend(words.and_then(TurnId::parse));
            if ids.len() == 1 {
                let _ = first.send(());
            }
        }
        ids
    });
    seen.recv_timeout(Duration::from_secs(10)).unwrap();
    std::thread::sleep(time);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap()
}

/// In the child: records turns and prints their ids once they are durable, until killed. In an
/// ordinary run there is nothing to do.
#[tokio::test]
async fn write_until_killed() {
    let Some(folder) = std::env::var_os(CHILD) else {
        return;
    };
    let config = SqliteConfig::in_folder(Path::new(&folder));
    let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
    let world = suite::World::new(ledger.clone());
    let mut out = std::io::stdout();
    for batch in 0u64.. {
        let turns: Vec<_> = (0..1 + batch % 5)
            .map(|_| {
                let mut turn = world.turn();
                turn.id = TurnId(Uuid::now_v7());
                turn.request = RequestId(Uuid::now_v7());
                turn.session = SessionId(Uuid::now_v7());
                turn.prompt_tokens = (0..3_000).collect();
                turn
            })
            .collect();
        ledger.record_turns(&turns).await.unwrap();
        for turn in &turns {
            writeln!(out, "durable {} .", turn.id).unwrap();
        }
        out.flush().unwrap();
        let mut transition = world.transition(&turns[0]);
        transition.id.0 = Uuid::now_v7();
        ledger.record_transitions(&[transition]).await.unwrap();
    }
}
