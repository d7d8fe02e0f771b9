//! The suite on SQLite.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use super::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_domain::TaskId;
use hone_ledger::{Answers, Jobs as _, Ledger, Memories, Personal, suite};

/// Ledgers in folders that live as long as this.
#[derive(Default)]
struct Folders(Mutex<Vec<TempDir>>);

impl Folders {
    async fn make(&self) -> Arc<dyn Ledger> {
        self.open().await
    }

    async fn open(&self) -> Arc<SqliteLedger> {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::in_folder(folder.path());
        let ledger = SqliteStore::open(&config).await.unwrap();
        self.0.lock().unwrap().push(folder);
        Arc::new(ledger)
    }
}

#[tokio::test]
async fn sqlite_passes_the_suite() {
    let folders = Folders::default();
    suite::run(async || folders.make().await).await;
}

#[tokio::test]
async fn sqlite_passes_the_suite_of_people() {
    let folders = Folders::default();
    suite::personal(async || {
        let ledger = folders.open().await;
        (
            ledger.clone() as Arc<dyn Ledger>,
            ledger as Arc<dyn Personal>,
        )
    })
    .await;
}

#[tokio::test]
async fn sqlite_passes_the_suite_of_memories() {
    let folders = Folders::default();
    suite::memories(async || {
        let ledger = folders.open().await;
        (
            ledger.clone() as Arc<dyn Ledger>,
            ledger.clone() as Arc<dyn Personal>,
            ledger as Arc<dyn Memories>,
        )
    })
    .await;
}

#[tokio::test]
async fn sqlite_passes_the_suite_of_skills() {
    let folders = Folders::default();
    suite::skills(async || folders.open().await).await;
}

#[tokio::test]
async fn sqlite_passes_the_suite_of_versions() {
    let folders = Folders::default();
    suite::versions::run(async || folders.open().await).await;
}

#[tokio::test]
async fn sqlite_passes_the_suite_of_changes() {
    let folders = Folders::default();
    suite::changes(async || folders.open().await).await;
}

#[tokio::test]
async fn sqlite_passes_the_suite_of_storage() {
    let folders = Folders::default();
    suite::storage(async || folders.open().await).await;
}

#[tokio::test]
async fn sqlite_passes_the_suite_of_progress() {
    let folders = Folders::default();
    suite::progress(async || folders.open().await).await;
}

#[tokio::test]
async fn sqlite_passes_the_suite_of_jobs() {
    let folders = Folders::default();
    suite::jobs(async || folders.open().await).await;
}

#[tokio::test]
async fn sqlite_passes_the_suite_of_answers() {
    let folders = Folders::default();
    suite::answers(async || {
        let ledger = folders.open().await;
        (
            ledger.clone() as Arc<dyn Ledger>,
            ledger.clone() as Arc<dyn Answers>,
            ledger as Arc<dyn Personal>,
        )
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_passes_the_suite_of_two_processes() {
    let folders = Folders::default();
    suite::concurrent(async || {
        let owner = folders.open().await;
        let beside = SqliteStore::open_beside(&owner.store.config).await;
        [owner, Arc::new(beside.unwrap())]
    })
    .await;
}

#[tokio::test]
async fn random_calls_keep_the_laws() {
    let folders = Folders::default();
    let mut trained = 0;
    for seed in 0..8 {
        let ledger = folders.make().await;
        trained += suite::random(ledger.clone(), seed, 400).await;
        ledger.close().await;
    }
    assert!(
        trained > 50,
        "only {trained} turns were trained, so the runs prove little"
    );
}

/// Conversations that repeat a long prompt grow the file by what is new.
#[tokio::test]
async fn repeated_prompts_are_stored_once() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::in_folder(folder.path());
    let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
    let world = suite::World::new(ledger.clone());
    let system = hone_domain::Message::text(hone_domain::Role::System, "x".repeat(50_000));
    for _ in 0..100 {
        let mut turn = world.turn();
        turn.messages[0] = system.clone();
        turn.prompt_tokens = (0..16_000).collect();
        world.record(&turn).await;
    }
    ledger.close().await;
    let bytes = std::fs::metadata(&config.file).unwrap().len();
    assert!(
        bytes < 1_500_000,
        "{bytes} bytes for 100 turns with one prompt of 114 kB"
    );
}

/// Writers of one process wait for each other and lose nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_at_once_lose_nothing() {
    let folders = Folders::default();
    let world = Arc::new(suite::World::new(folders.make().await));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let world = world.clone();
            tokio::spawn(async move {
                for _ in 0..10 {
                    world.answered(&world.turn()).await;
                    world.ledger.counts().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(world.ledger.counts().await.unwrap().turns, 80);
    let claimed = world.ledger.claim_transitions(1_000, 1, 0).await.unwrap();
    assert_eq!(claimed.len(), 80);
    world.assert_lawful("many callers").await;
}

/// Tasks from before contents had a table hold their files in their own row.
#[tokio::test]
async fn files_in_a_row_are_read() {
    let folders = Folders::default();
    let ledger = folders.open().await;
    let id = TaskId(uuid::Uuid::from_bytes([1; 16]));
    let spec =
        r#"{"instruction": "x", "answer_file": null, "agent_seconds": 1, "verifier_seconds": 1}"#;
    let files = r#"{"environment": {"a": [0, 255]}, "tests": {"test.sh": [120]}, "solution": {}}"#;
    let rows = format!(
        "insert into task_sets (id, owner, name, created_ms) values (x'01', 'o', x'61', 1);
         insert into tasks (id, set_number, name, held_out, spec, files, has_solution, state)
         values (x'{}', 1, x'61', 0, cast('{spec}' as blob), cast('{files}' as blob), 0, 'ready')",
        "01".repeat(16)
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(rows))
        .execute(&mut *ledger.store.writer.take().await.unwrap())
        .await
        .unwrap();
    let (_, files) = ledger.task(id).await.unwrap().unwrap();
    assert_eq!(files.environment["a"], [0, 255]);
    assert_eq!(files.tests["test.sh"], b"x");
}
