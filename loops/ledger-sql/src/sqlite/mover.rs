//! Moves the write-ahead log into the main file beside the writer, so that no commit has to wait for
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sqlx::sqlite::SqlitePool;

use super::writer::Writer;

/// Commits after which it is time.
const COMMITS: u64 = 256;

/// Its connection, and when it is time.
pub(super) struct Mover {
    pool: SqlitePool,
    commits: AtomicU64,
    is_moving: AtomicBool,
}

impl Mover {
    pub(super) fn new(pool: SqlitePool) -> Arc<Self> {
        Arc::new(Self {
            pool,
            commits: AtomicU64::new(0),
            is_moving: AtomicBool::new(false),
        })
    }

    /// Counts a commit, and sets off when there were enough. To be called in an async runtime.
    pub(super) fn note_commit(self: &Arc<Self>) {
        if self.commits.fetch_add(1, Ordering::Relaxed) + 1 < COMMITS
            || self.is_moving.swap(true, Ordering::AcqRel)
        {
            return;
        }
        self.commits.store(0, Ordering::Relaxed);
        let mover = self.clone();
        tokio::spawn(async move {
            // Most of it while others write; then, with the writer waiting, the few pages that came
            // meanwhile, so that the log begins anew. What readers still need stays for the next time.
            for pragma in [
                "pragma wal_checkpoint(passive)",
                "pragma wal_checkpoint(full)",
            ] {
                let moved = sqlx::query(pragma).execute(&mover.pool);
                if let Err(error) = moved.await {
                    tracing::debug!(%error, "the ledger's log was not moved to its main file");
                }
            }
            mover.is_moving.store(false, Ordering::Release);
        });
    }

    /// Moves everything into the main file and empties the log. False while a reader still looks at
    /// an older moment; who writes does not wait for it.
    pub(super) async fn empty(&self, writer: &Arc<Writer>) -> Result<bool, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        sqlx::query("pragma wal_checkpoint(passive)")
            .execute(&mut *connection)
            .await?;
        // Writers of this process wait meanwhile, so that only a reader can be in the way.
        let _writing = writer.take().await?;
        let (busy, _, _): (i64, i64, i64) = sqlx::query_as("pragma wal_checkpoint(truncate)")
            .fetch_one(&mut *connection)
            .await?;
        Ok(busy == 0)
    }

    /// Waits until nothing is moved any more.
    pub(super) async fn close(&self) {
        self.pool.close().await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    use hone_domain::{ForgetId, Scope};
    use serde_json::Value;
    use uuid::Uuid;

    use crate::{SqliteConfig, SqliteStore};
    use hone_ledger::AuditEntry;
    use hone_ledger::{ForgetStep, ForgetWhat, ForgetWish, People as _, Personal as _};
    use hone_ledger_queries::Store as _;

    fn entry(act: String) -> AuditEntry {
        AuditEntry {
            at_ms: 1,
            actor: "a".to_owned(),
            act,
            object: "c".to_owned(),
            detail: Value::Null,
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_log_stays_short_however_many_commits_there_are() {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::in_folder(folder.path());
        let ledger = SqliteStore::open(&config).await.unwrap();
        let entry = entry("b".repeat(8_000));
        let log = folder.path().join("ledger.db-wal");
        let mut bytes = Vec::new();
        for _ in 0..8 {
            for _ in 0..super::COMMITS {
                ledger.record(&entry).await.unwrap();
            }
            let began = Instant::now();
            while ledger.store.mover.is_moving.load(Ordering::Acquire) {
                assert!(began.elapsed() < Duration::from_secs(30), "still moving");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            bytes.push(std::fs::metadata(&log).unwrap().len());
        }
        // Each part begins it anew; unmoved, the last would find eight times the first.
        assert!(bytes[7] < 2 * bytes[0], "{bytes:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_long_look_keeps_an_erasure_waiting_and_nobody_who_writes() {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::in_folder(folder.path());
        let ledger = SqliteStore::open(&config).await.unwrap();
        ledger.record(&entry("before".to_owned())).await.unwrap();
        let mut looking = ledger.store.look().await.unwrap();
        let seen = sqlx::query("select count(*) from audit").fetch_one(&mut *looking);
        seen.await.unwrap();
        let wish = ForgetWish {
            id: ForgetId(Uuid::from_u128(1)),
            scope: Scope::of("owner", None),
            owner: "owner".to_owned(),
            what: ForgetWhat::All,
            now_ms: 1,
            entry: entry("forget".to_owned()),
        };
        ledger.begin_forget(&wish).await.unwrap();
        let began = Instant::now();
        let step = ledger.forget_piece(wish.id, 1).await.unwrap();
        assert_eq!(step, ForgetStep::LogBusy);
        ledger.record(&entry("meanwhile".to_owned())).await.unwrap();
        let took = began.elapsed();
        assert!(took < Duration::from_secs(1), "{took:?}");
        drop(looking);
        let mut step = ForgetStep::LogBusy;
        // The reader's place is given back beside this.
        while step == ForgetStep::LogBusy {
            assert!(began.elapsed() < Duration::from_secs(30), "still busy");
            step = ledger.forget_piece(wish.id, 1).await.unwrap();
        }
        assert_eq!(step, ForgetStep::Done);
    }
}
