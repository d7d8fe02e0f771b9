//! A database that cannot be used gives one message that names the file and what to do.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use sqlx::{ConnectOptions, Connection};

use super::fault::Explained as _;
use super::open::SqliteConfig;
use super::{SqliteStore, open, schema};
use hone_domain::MemoryMode;
use hone_ledger::{Changes as _, Ledger, LedgerError, Memories as _, suite};

/// Set in a child process that runs one of these tests as a helper.
const CHILD: &str = "HONE_STORE_LOCK_CHILD";

fn config(folder: &Path) -> SqliteConfig {
    SqliteConfig {
        busy_timeout_ms: 50,
        ..SqliteConfig::in_folder(folder)
    }
}

/// Records turns whose ids begin at `first`.
async fn fill(config: &SqliteConfig, turns: usize, first: u64) {
    let ledger = Arc::new(SqliteStore::open(config).await.unwrap());
    let world = suite::World::beginning_at(ledger.clone(), first);
    for _ in 0..turns {
        world.answered(&world.turn()).await;
    }
    ledger.close().await;
}

/// Opening fails with a message that holds every one of `says`.
async fn assert_unusable(config: &SqliteConfig, says: &[&str]) {
    let Err(error) = SqliteStore::open(config).await else {
        panic!("it opened, and should have said {says:?}");
    };
    assert!(matches!(error, LedgerError::Unusable(_)), "{error:?}");
    let text = error.to_string();
    for part in says {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

#[tokio::test]
async fn a_good_file_opens_again_with_everything_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("not/there/yet"));
    fill(&config, 3, 1).await;
    fill(&config, 2, 1_000).await;
    let ledger = SqliteStore::open(&config).await.unwrap();
    assert_eq!(ledger.counts().await.unwrap().turns, 5);
    let mut writer = ledger.store.writer.take().await.unwrap();
    let version: i64 = sqlx::query_scalar("pragma user_version")
        .fetch_one(&mut *writer)
        .await
        .unwrap();
    assert_eq!(
        version,
        open::known_version(),
        "the last migration states its number"
    );
    let settings: (String, i64, i64) = (
        sqlx::query_scalar("pragma journal_mode")
            .fetch_one(&mut *writer)
            .await
            .unwrap(),
        sqlx::query_scalar("pragma synchronous")
            .fetch_one(&mut *writer)
            .await
            .unwrap(),
        sqlx::query_scalar("pragma foreign_keys")
            .fetch_one(&mut *writer)
            .await
            .unwrap(),
    );
    assert_eq!(settings, ("wal".into(), 2, 1));
}

/// What an earlier program left: places beyond what is there, and every claim counted.
#[tokio::test]
async fn places_and_claims_of_earlier_programs_are_put_right() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
    let world = suite::World::new(ledger.clone());
    world.ready_turns(2, 0).await;
    for sample in world.claim_samples(&world.sample_claim()).await {
        ledger.release(sample.claim, 0).await.unwrap();
    }
    let mut writer = ledger.store.writer.take().await.unwrap();
    sqlx::raw_sql(
        "drop trigger turns_unwatched; drop trigger verdicts_unwatched;
         update watch_places set turn_number = 9, verdict_number = 1;
         update leases set attempts = 5 where consumer = 'train'",
    )
    .execute(&mut *writer)
    .await
    .unwrap();
    let migration = schema::MIGRATIONS.iter().find(|m| m.version == 15).unwrap();
    let sql = migration.sql.as_str().to_owned();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(&mut *writer)
        .await
        .unwrap();
    let places: (i64, i64) = sqlx::query_as("select turn_number, verdict_number from watch_places")
        .fetch_one(&mut *writer)
        .await
        .unwrap();
    let attempts: i64 =
        sqlx::query_scalar("select max(attempts) from leases where consumer = 'train'")
            .fetch_one(&mut *writer)
            .await
            .unwrap();
    assert_eq!((places, attempts), ((2, 1), 0));
}

/// What the memory loop had not read becomes what its consumer has not read.
#[tokio::test]
async fn the_flags_of_memory_become_rows_of_progress() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
    let world = suite::World::new(ledger.clone());
    for mode in [MemoryMode::Full; 4] {
        let mut turn = world.turn();
        turn.admission.memory.mode = mode;
        world.answered(&turn).await;
    }
    world.judge_all(Some(1.0)).await;
    let mut writer = ledger.store.writer.take().await.unwrap();
    sqlx::raw_sql(
        "drop table unread; drop table followers;
         alter table turn_memories add column is_said integer not null default 0;
         alter table turn_memories add column is_judged integer not null default 0;
         update turn_memories set is_said = turn_number in (1, 2), is_judged = turn_number in (2, 3);
         delete from changes; insert into changes values ('memory', 1, 41);
         create index turn_memories_unread on turn_memories (turn_number)
             where is_said = 1 or is_judged = 1",
    )
    .execute(&mut *writer)
    .await
    .unwrap();
    let migration = schema::MIGRATIONS.iter().find(|m| m.version == 33).unwrap();
    let sql = migration.sql.as_str().to_owned();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(&mut *writer)
        .await
        .unwrap();
    let rows: Vec<(String, i64, bool, Option<i64>)> =
        sqlx::query_as("select consumer, turn_number, is_new, revision from unread order by 2")
            .fetch_all(&mut *writer)
            .await
            .unwrap();
    let row = |turn, is_new, revision| ("memory".to_owned(), turn, is_new, revision);
    assert_eq!(
        rows,
        [
            row(1, true, None),
            row(2, true, Some(1)),
            row(3, false, Some(1))
        ]
    );
    drop(writer);
    assert_eq!(ledger.newest_change().await.unwrap(), 41);
    assert_eq!(ledger.unread(9).await.unwrap().len(), 3);
    world.assert_lawful("migrated").await;
    ledger.close().await;
}

#[tokio::test]
async fn a_full_disk_keeps_nobody_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let open = async |config: &SqliteConfig| {
        let ledger = Arc::new(SqliteStore::open(config).await.unwrap());
        let world = suite::World::beginning_at(ledger.clone(), 1_000);
        (ledger, world)
    };
    let (ledger, world) = open(&config).await;
    world.ready_turns(2, 0).await;
    let claim = world.sample_claim();
    assert_eq!(world.claim_samples(&claim).await.len(), 2);
    ledger.close().await;
    // Whoever changes a lease needs more room than there is.
    let mut filling = open::options(&config).connect().await.unwrap();
    let filler = "create table filler (bytes blob);
         create trigger leases_fill before update on leases begin
             insert into filler values (zeroblob(1000000));
         end";
    sqlx::raw_sql(filler).execute(&mut filling).await.unwrap();
    filling.close().await.unwrap();
    let full = SqliteConfig {
        bytes_max: Some(std::fs::metadata(&config.file).unwrap().len()),
        ..config.clone()
    };
    let (ledger, world) = open(&full).await;
    assert!(world.claim_samples(&claim).await.is_empty(), "still leased");
    ledger.close().await;
    // With room, the next start frees them.
    let (ledger, world) = open(&config).await;
    assert_eq!(world.claim_samples(&claim).await.len(), 2);
    ledger.close().await;
}

#[tokio::test]
async fn two_servers_cannot_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let first = SqliteStore::open(&config).await.unwrap();
    let pid = std::process::id().to_string();
    assert_unusable(&config, &["in use by another hone", &pid, "stop that one"]).await;
    first.close().await;
    SqliteStore::open(&config).await.unwrap();
}

#[tokio::test]
async fn what_is_no_ledger_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    std::fs::create_dir(&config.file).unwrap();
    assert_unusable(&config, &["ledger.db", "is a folder", "move it away"]).await;
    std::fs::remove_dir(&config.file).unwrap();

    let garbage = b"this is a letter to my grandmother, and it is long enough ".repeat(40);
    std::fs::write(&config.file, &garbage).unwrap();
    assert_unusable(&config, &["ledger.db", "not a ledger", "move it away"]).await;
    assert_eq!(std::fs::read(&config.file).unwrap(), garbage);
    std::fs::remove_file(&config.file).unwrap();

    let options = open::options(&config);
    let mut foreign = options.connect().await.unwrap();
    sqlx::raw_sql("create table recipes (name text)")
        .execute(&mut foreign)
        .await
        .unwrap();
    foreign.close().await.unwrap();
    let before = std::fs::read(&config.file).unwrap();
    assert_unusable(&config, &["ledger.db", "another program", "move it away"]).await;
    assert_eq!(std::fs::read(&config.file).unwrap(), before);
}

#[tokio::test]
async fn a_newer_schema_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    fill(&config, 1, 1).await;
    let mut newer = open::options(&config).connect().await.unwrap();
    sqlx::raw_sql("pragma user_version = 99")
        .execute(&mut newer)
        .await
        .unwrap();
    newer.close().await.unwrap();
    let says = [
        "ledger.db",
        "newer hone",
        "version 99",
        "start that version",
    ];
    assert_unusable(&config, &says).await;

    // A migration this program does not have says the same by itself.
    let mut newer = open::options(&config).connect().await.unwrap();
    sqlx::raw_sql(
        "pragma user_version = 1;
         insert into _sqlx_migrations (version, description, success, checksum, execution_time)
         values (99, 'later', true, x'00', 0)",
    )
    .execute(&mut newer)
    .await
    .unwrap();
    newer.close().await.unwrap();
    assert_unusable(&config, &["ledger.db does not fit", "newer", "another"]).await;
}

#[tokio::test]
async fn a_damaged_file_is_named_with_a_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    fill(&config, 200, 1).await;
    let length = std::fs::metadata(&config.file).unwrap().len();
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .open(&config.file)
        .unwrap();
    // The first page stays, so that the header is right and the trees behind it are not.
    file.seek(SeekFrom::Start(4096)).unwrap();
    file.write_all(&vec![0xa5; usize::try_from(length).unwrap() - 4096])
        .unwrap();
    drop(file);
    let error = match SqliteStore::open(&config).await {
        Err(error) => error,
        Ok(ledger) => ledger.check_laws().await.unwrap_err(),
    };
    let text = error.to_string();
    assert!(matches!(error, LedgerError::Unusable(_)), "{text}");
    for part in ["ledger.db", "damaged", "backup", ".recover"] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_named() {
    // Also for root, who may write everywhere else.
    let nowhere = Path::new("/proc/self/fdinfo");
    if nowhere.exists() {
        let config = config(nowhere);
        assert_unusable(
            &config,
            &["/proc/self/fdinfo", "cannot be written", "another"],
        )
        .await;
    }
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("file");
    std::fs::write(&in_the_way, b"").unwrap();
    let below = config(&in_the_way.join("data"));
    assert_unusable(&below, &["file/data", "cannot be written", "another"]).await;
    let config = config(&in_the_way);
    assert_unusable(&config, &["file is a file, not a folder", "another"]).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_that_cannot_be_written_in_a_good_folder_is_found_at_once() {
    let folder = tempfile::tempdir().unwrap();
    // Also for root: nobody may write a program that runs.
    let running = std::env::current_exe().unwrap();
    for name in ["ledger.db", "ledger.db-wal"] {
        let link = folder.path().join(name);
        std::os::unix::fs::symlink(&running, &link).unwrap();
        let config = config(folder.path());
        assert_unusable(&config, &[name, "cannot be written", "make it writable"]).await;
        std::fs::remove_file(link).unwrap();
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    fill(&config, 1, 1).await;
    // As on a medium mounted read-only: SQLite refuses the first write.
    for options in [
        open::options(&config)
            .create_if_missing(false)
            .read_only(true),
        open::options(&config)
            .create_if_missing(false)
            .read_only(true)
            .immutable(true),
    ] {
        let mut read_only = options.connect().await.unwrap();
        let error = sqlx::raw_sql("delete from feedback")
            .execute(&mut read_only)
            .await;
        let error = super::fault::Fault::Sql(error.unwrap_err()).explain_opening(&config.file);
        let text = error.to_string();
        assert!(matches!(error, LedgerError::Unusable(_)), "{text}");
        assert!(
            text.contains("ledger.db cannot be written; make the file"),
            "{text}"
        );
        read_only.close().await.unwrap();
    }
    let gone = SqliteConfig::in_folder(&folder.path().join("gone"));
    let options = open::options(&gone).create_if_missing(false);
    let error = open::prepare(options, &gone.file).await.unwrap_err();
    let text = error.explain_opening(&gone.file).to_string();
    assert!(
        text.contains("gone/ledger.db cannot be opened; check"),
        "{text}"
    );
}

#[tokio::test]
async fn a_full_disk_loses_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    fill(&config, 1, 1).await;
    let bytes = std::fs::metadata(&config.file).unwrap().len();
    config.bytes_max = Some(bytes + 100 * 4096);
    let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
    let world = suite::World::beginning_at(ledger.clone(), 1_000);
    let mut acknowledged = Vec::new();
    let error = loop {
        let mut turn = world.turn();
        turn.completion_text = format!("{} ", turn.id).repeat(100);
        match ledger.record_turns(std::slice::from_ref(&turn)).await {
            Ok(_) => acknowledged.push(turn.id),
            Err(error) => break error,
        }
        assert!(acknowledged.len() < 10_000, "the limit does not hold");
    };
    let text = error.to_string();
    for part in ["ledger.db", "full", "free space", "safe"] {
        assert!(text.contains(part), "{text}");
    }
    // The disk is the reason every time, not what the first failure left behind.
    for _ in 0..3 {
        let mut turn = world.turn();
        turn.completion_text = format!("{} ", turn.id).repeat(100);
        let again = ledger.record_turns(std::slice::from_ref(&turn)).await;
        let text = again.unwrap_err().to_string();
        assert!(text.contains("full"), "{text}");
    }
    assert!(acknowledged.len() > 10);
    for id in &acknowledged {
        assert!(ledger.turn(*id).await.unwrap().is_some(), "still readable");
    }
    ledger.close().await;
    config.bytes_max = None;
    let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
    let world = suite::World::beginning_at(ledger.clone(), 1_000_000);
    world.assert_lawful("the disk was full").await;
    for _ in 0..10 {
        world.record(&world.turn()).await;
    }
}

#[tokio::test]
async fn a_file_locked_by_another_process_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    fill(&config, 1, 1).await;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "sqlite::open_tests::hold_the_lock",
            "--nocapture",
        ])
        .env(CHILD, folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap().contains("held")),
        "the child holds the lock"
    );
    assert_unusable(
        &config,
        &["ledger.db", "locked by another process", "close"],
    )
    .await;
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    SqliteStore::open(&config).await.unwrap();
}

/// In the child: holds SQLite's exclusive lock until its input ends. In an ordinary run there is
/// nothing to do.
#[tokio::test]
async fn hold_the_lock() {
    let Some(folder) = std::env::var_os(CHILD) else {
        return;
    };
    let options = open::options(&SqliteConfig::in_folder(Path::new(&folder)))
        .locking_mode(sqlx::sqlite::SqliteLockingMode::Exclusive);
    let mut connection = options.connect().await.unwrap();
    sqlx::raw_sql("begin exclusive")
        .execute(&mut connection)
        .await
        .unwrap();
    println!("held");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Whatever another program removed of the schema: the start says which part, and so does a command beside.
#[tokio::test]
async fn a_ledger_that_lacks_a_part_is_refused() {
    let parts = [
        ("table", "leases"),
        ("table", "answers"),
        ("index", "turns_ready"),
        ("trigger", "turns_counted"),
    ];
    for (kind, name) in parts {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let ledger = SqliteStore::open(&config).await.unwrap();
        let mut writer = ledger.store.writer.take().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("drop {kind} {name}")))
            .execute(&mut *writer)
            .await
            .unwrap();
        drop(writer);
        let beside = SqliteStore::open_beside(&config).await.err().unwrap();
        ledger.close().await;
        drop(ledger);
        let alone = SqliteStore::open(&config).await.err().unwrap();
        for refused in [beside, alone] {
            let text = refused.to_string();
            let says = text.contains(" lacks ") && text.contains(&format!("{kind} {name}"));
            assert!(says, "{text}");
            assert!(text.contains("hone restore"), "{text}");
        }
    }
}
