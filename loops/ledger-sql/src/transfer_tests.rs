#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_domain::{RateLimits, UserRole};
use hone_ledger::{Ledger as _, People as _, PeopleChange, User, suite};

use super::*;
use crate::postgres::fresh;

/// A ledger with something in most tables.
async fn fill<S: Store>(ledger: Arc<SqlLedger<S>>) {
    suite::random(ledger.clone(), 7, 250).await;
    let user = User {
        name: "ann".to_owned(),
        role: UserRole::Admin,
        password: None,
        disabled: false,
        limits: RateLimits::default(),
        keeper: None,
        created_ms: 1,
        signed_in_ms: None,
    };
    let entry = hone_ledger::AuditEntry {
        at_ms: 1,
        actor: "nul \0".to_owned(),
        act: "user.add".to_owned(),
        object: "ann".to_owned(),
        detail: serde_json::Value::Null,
    };
    ledger
        .change(&PeopleChange::AddUser(user), &entry)
        .await
        .unwrap();
}

fn rows(moved: &[MovedTable], name: &str) -> u64 {
    let table = moved.iter().find(|table| table.name == name);
    table.unwrap().rows
}

#[tokio::test]
async fn a_ledger_goes_to_postgresql_and_back_with_every_row() {
    let folder = tempfile::tempdir().unwrap();
    let file = SqliteConfig::in_folder(&folder.path().join("one"));
    let ledger = Arc::new(SqliteStore::open(&file).await.unwrap());
    fill(ledger.clone()).await;
    let counts = ledger.counts().await.unwrap();
    ledger.close().await;
    let database = fresh();
    let (from, to) = (
        LedgerPlace::Sqlite(file.clone()),
        LedgerPlace::Postgres(database.clone()),
    );
    let moved = move_ledger(&from, &to).await.unwrap();
    assert_eq!(rows(&moved, "turns"), counts.turns);
    for name in [
        "transitions",
        "verdicts",
        "leases",
        "version_samples",
        "users",
        "audit",
    ] {
        assert!(rows(&moved, name) > 0, "{name}");
    }
    // What was moved is used like any other, and numbers go on.
    let there = Arc::new(PostgresStore::open(&database).await.unwrap());
    assert_eq!(there.counts().await.unwrap().turns, counts.turns);
    assert_eq!(there.verify_audit().await.unwrap().first_broken, None);
    let world = suite::World::beginning_at(there.clone(), 1 << 40);
    world.answered(&world.turn()).await;
    world.assert_lawful("moved").await;
    there.close().await;
    // A second time there is a ledger already.
    let again = move_ledger(&from, &to).await.unwrap_err().to_string();
    assert!(again.contains("holds another ledger already"), "{again}");
    let home = SqliteConfig::in_folder(&folder.path().join("two"));
    let back = move_ledger(&to, &LedgerPlace::Sqlite(home.clone()))
        .await
        .unwrap();
    assert_eq!(rows(&back, "turns"), counts.turns + 1);
    let ledger = SqliteStore::open(&home).await.unwrap();
    assert_eq!(ledger.counts().await.unwrap().turns, counts.turns + 1);
    assert!(!folder.path().join("two").join(MOVING).exists());
    ledger.close().await;
}

/// What is interrupted is half a ledger, which no server takes; the next move goes on, and notices that the source
/// changed.
#[tokio::test]
async fn an_interrupted_move_goes_on_and_notices_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = SqliteConfig::in_folder(folder.path());
    let source = Arc::new(SqliteStore::open(&file).await.unwrap());
    fill(source.clone()).await;
    let database = alone(&fresh());
    let target = PostgresStore::open_for_move(&database).await.unwrap();
    target.store.mark(Marking::Moving).await.unwrap();
    for table in &TABLES[..9] {
        copy(&source, &target, table).await.unwrap();
    }
    target.close().await;
    let refused = PostgresStore::open(&database)
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("half moved"), "{refused}");
    // A row that was copied already changes.
    let change = async |sql: &'static str| {
        let mut writing = source.store.begin().await.unwrap();
        let changed = db::query(sql).execute(&mut writing.connection()).await;
        source
            .store
            .finish(writing, changed.map(drop).map_err(Fault::Sql))
            .await
            .unwrap();
    };
    change("update sessions set last_ms = last_ms + 1 where number = 1").await;
    let told = into_postgres(&source, &database).await;
    let told = told.unwrap_err().to_string();
    assert!(told.contains("the table sessions differs"), "{told}");
    change("update sessions set last_ms = last_ms - 1 where number = 1").await;
    into_postgres(&source, &database).await.unwrap();
    PostgresStore::open(&database).await.unwrap().close().await;
}

/// The list of tables and columns is the schema's, in both databases.
#[tokio::test]
async fn every_table_and_column_is_listed() {
    let mut listed: Vec<(String, String)> = TABLES
        .iter()
        .flat_map(|table| {
            let columns = table.columns.iter();
            columns.map(|(_, column)| (table.name.to_owned(), (*column).to_owned()))
        })
        .collect();
    listed.sort();
    // Kept by triggers, one row for ever, of SQLite's log, or a view.
    let others = "('fate_counts', 'scope_counts', 'version_scores', 'watch_places', 'people_revision', 'changes', 'commits',
                   'scaling', '_sqlx_migrations')";
    let folder = tempfile::tempdir().unwrap();
    let ledger = SqliteStore::open(&SqliteConfig::in_folder(folder.path()))
        .await
        .unwrap();
    let columns = format!(
        "select tables.name, columns.name from sqlite_schema as tables
         join pragma_table_info(tables.name) as columns
         where tables.type = 'table' and tables.name not like 'sqlite_%' and tables.name not in {others}
         order by 1, 2"
    );
    let mut moment = ledger.store.look().await.unwrap();
    let found = db::query_as::<(String, String)>(AssertSqlSafe(columns));
    let found = found.fetch_all(&mut moment.connection()).await.unwrap();
    assert_eq!(listed, found);
    let ledger = PostgresStore::open(&fresh()).await.unwrap();
    let columns = format!(
        "select table_name::text, column_name::text from information_schema.columns
         where table_schema = current_schema() and table_name not in {others}
         order by table_name collate \"C\", column_name collate \"C\""
    );
    let mut moment = ledger.store.look().await.unwrap();
    let found = db::query_as::<(String, String)>(AssertSqlSafe(columns));
    let found = found.fetch_all(&mut moment.connection()).await.unwrap();
    assert_eq!(listed, found);
}
