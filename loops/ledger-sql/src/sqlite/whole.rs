//! Whether a ledger has every part of its schema. Another program may remove one, also under an open ledger.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, SqliteConnection};
use tokio::sync::OnceCell;

use super::fault::{Fault, migration_fault};
use super::schema::MIGRATIONS;
use hone_ledger::LedgerError;

/// Most findings of one check.
const FINDINGS_MAX: i64 = 20;

/// Most missing parts of a schema that are named.
const SHOWN_MAX: usize = 5;

/// Tables, indexes and triggers, by kind and name.
type Parts = BTreeSet<(String, String)>;

async fn parts(connection: &mut SqliteConnection) -> Result<Parts, Fault> {
    let parts: Vec<(String, String)> =
        sqlx::query_as("select type, name from sqlite_schema where name not like 'sqlite_%'")
            .fetch_all(connection)
            .await?;
    Ok(parts.into_iter().collect())
}

/// What every ledger of this schema has; made when the first one is opened.
static WHOLE: OnceCell<Parts> = OnceCell::const_new();

/// The parts of an empty ledger, made once in memory.
async fn whole() -> Result<&'static Parts, Fault> {
    let made = WHOLE.get_or_try_init(|| async {
        let mut empty = SqliteConnectOptions::new()
            .in_memory(true)
            .connect()
            .await?;
        let made = MIGRATIONS.run(&mut empty).await;
        made.map_err(|error| migration_fault(error, Path::new(":memory:")))?;
        parts(&mut empty).await
    });
    made.await
}

/// The parts of a whole ledger that are not among those that were found; the first few.
fn missing(whole: &Parts, found: &Parts) -> Vec<String> {
    let missing = whole.difference(found).take(SHOWN_MAX);
    missing
        .map(|(kind, name)| format!("{kind} {name}"))
        .collect()
}

/// Refuses a ledger that lacks a part of its schema: what needs it would fail again and again.
pub(super) async fn check_complete(
    connection: &mut SqliteConnection,
    file: &Path,
) -> Result<(), Fault> {
    let missing = missing(whole().await?, &parts(connection).await?);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Fault::Ledger(LedgerError::Unusable(format!(
        "the ledger {} lacks {}, which another program must have removed; restore a backup \
         (`hone restore`), or move the file away and recover what can be read with sqlite3's .recover",
        file.display(),
        missing.join(", ")
    ))))
}

/// The schema of an open ledger as it was when it was last found whole: SQLite counts its changes.
#[derive(Default)]
pub(super) struct Looked(AtomicI64);

impl Looked {
    /// The parts that are missing now.
    pub(super) async fn missing(
        &self,
        connection: &mut SqliteConnection,
    ) -> Result<Vec<String>, Fault> {
        let changes: i64 = sqlx::query_scalar("pragma schema_version")
            .fetch_one(&mut *connection)
            .await?;
        if self.0.load(Ordering::Relaxed) == changes {
            return Ok(Vec::new());
        }
        let found = parts(connection).await?;
        let missing = WHOLE
            .get()
            .map_or_else(Vec::new, |whole| missing(whole, &found));
        if missing.is_empty() {
            self.0.store(changes, Ordering::Relaxed);
        }
        Ok(missing)
    }
}

/// Looks at every page, index and reference; each finding is a line of SQLite's.
pub(super) async fn check_file(connection: &mut SqliteConnection) -> Result<Vec<String>, Fault> {
    let mut findings: Vec<String> = sqlx::query_scalar("pragma integrity_check(20)")
        .fetch_all(&mut *connection)
        .await?;
    findings.retain(|line| line != "ok");
    let references: Vec<(String, Option<i64>, String)> =
        sqlx::query_as("select \"table\", rowid, parent from pragma_foreign_key_check limit ?")
            .bind(FINDINGS_MAX)
            .fetch_all(&mut *connection)
            .await?;
    findings.extend(references.into_iter().map(|(table, row, parent)| {
        let row = row.map_or(String::new(), |row| format!(" {row}"));
        format!("row{row} of {table} names a row of {parent} that does not exist")
    }));
    Ok(findings)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use crate::{SqliteConfig, SqliteStore};
    use hone_ledger::Ledger as _;

    #[tokio::test]
    async fn what_another_program_removes_is_named_until_it_is_back() {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::in_folder(folder.path());
        let ledger = SqliteStore::open(&config).await.unwrap();
        let run = async |sql: &'static str| {
            let mut writer = ledger.store.writer.take().await.unwrap();
            sqlx::raw_sql(sql).execute(&mut *writer).await.unwrap();
        };
        let none = Vec::<String>::new();
        assert_eq!(ledger.missing_parts().await.unwrap(), none);
        for (remove, bring_back, names) in [
            (
                "alter table feedback rename to gone",
                "alter table gone rename to feedback",
                "table feedback",
            ),
            (
                "drop index turns_open",
                "create index turns_open on turns (number) where stage = 'awaiting_next_state'",
                "index turns_open",
            ),
        ] {
            run(remove).await;
            for _ in 0..2 {
                assert_eq!(ledger.missing_parts().await.unwrap(), [names]);
            }
            run(bring_back).await;
            assert_eq!(ledger.missing_parts().await.unwrap(), none);
        }
    }
}
