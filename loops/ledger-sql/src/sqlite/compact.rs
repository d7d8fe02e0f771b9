//! Writes the file anew without what is free in it. The copy lies beside the ledger until it is whole and on disk, then it
//! takes its place in one step, so that a crash leaves either the one or the other.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::Duration;

use hone_ledger::{Ledger as _, LedgerError};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use super::fault::{Explained as _, Fault};
use super::paths::{clear_copy, copy_of, folder_of, log_of};
use super::{SqliteConfig, SqliteLedger, SqliteStore};

/// How often progress is reported.
const TOLD_EVERY: Duration = Duration::from_millis(200);

impl SqliteStore {
    /// Writes the file anew without what is free in it, and reports how many bytes of how many there are so far. For that
    /// time the disk holds both.
    ///
    /// # Errors
    /// `Unusable` where a server has the folder or another program the file; `Failed` where the disk is full. The ledger is
    /// as it was then.
    pub async fn compact(
        config: &SqliteConfig,
        on_progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<(), LedgerError> {
        let ledger = Self::open(config).await?;
        let file = config.file.as_path();
        let done = async {
            let copy = copy_beside(&ledger, file, on_progress).await?;
            // Held until the copy is in its place; closing gives the rest back.
            let owner = ledger.store.owner.lock();
            let owner = owner.unwrap_or_else(PoisonError::into_inner).take();
            ledger.close().await;
            let put = put(&copy, file);
            drop(owner);
            put
        }
        .await;
        if done.is_err() {
            ledger.close().await;
            // What is left over goes with the next start.
            let _cleared = clear_copy(file);
        }
        done
    }
}

async fn copy_beside(
    ledger: &SqliteLedger,
    file: &Path,
    on_progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<PathBuf, LedgerError> {
    let size = hone_ledger::Storage::size(ledger).await?;
    let whole = size.bytes.saturating_sub(size.free_bytes.unwrap_or(0));
    let copy = copy_of(file);
    {
        let copying = ledger.store.copy_to(&copy);
        tokio::pin!(copying);
        let mut ticks = tokio::time::interval(TOLD_EVERY);
        loop {
            tokio::select! {
                done = &mut copying => break done?,
                _ = ticks.tick() => {
                    let bytes = fs::metadata(&copy).map_or(0, |meta| meta.len());
                    on_progress(bytes.min(whole), whole);
                }
            }
        }
    }
    on_progress(whole, whole);
    let synced = File::open(&copy).and_then(|copy| copy.sync_all());
    synced.map_err(|error| unwritten(&copy, &error))?;
    let checked: Result<(), Fault> = check(&copy).await;
    checked.map_err(|fault| fault.explain(&copy))?;
    Ok(copy)
}

/// Refuses a copy that is not whole.
async fn check(copy: &Path) -> Result<(), Fault> {
    let options = SqliteConnectOptions::new()
        .filename(copy)
        .read_only(true)
        .immutable(true);
    let mut connection = options.connect().await?;
    let said: String = sqlx::query_scalar("pragma quick_check(1)")
        .fetch_one(&mut connection)
        .await?;
    connection.close().await?;
    match said.as_str() {
        "ok" => Ok(()),
        _ => Err(Fault::Ledger(LedgerError::Failed(format!(
            "the copy {} is not whole ({said}); the ledger stays as it was",
            copy.display()
        )))),
    }
}

/// Puts the copy in the place of a closed ledger. A log that is still there belongs to the old file.
fn put(copy: &Path, file: &Path) -> Result<(), LedgerError> {
    if log_of(file).exists() {
        return Err(LedgerError::Unusable(format!(
            "another program has the ledger {} open; close it (a database browser, a backup) and try again",
            file.display()
        )));
    }
    let moved = fs::rename(copy, file);
    moved.map_err(|error| unwritten(file, &error))?;
    let synced = File::open(folder_of(file)).and_then(|folder| folder.sync_all());
    synced.map_err(|error| unwritten(file, &error))
}

fn unwritten(path: &Path, error: &io::Error) -> LedgerError {
    LedgerError::Failed(format!(
        "{} cannot be written ({error}); the ledger stays as it was",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::sync::Arc;

    use super::*;
    use hone_ledger::{Ledger, suite};

    async fn filled(config: &SqliteConfig) -> Vec<hone_domain::Turn> {
        let ledger = Arc::new(SqliteStore::open(config).await.unwrap());
        let world = suite::World::new(ledger.clone());
        let turns: Vec<_> = (0..40).map(|_| world.turn()).collect();
        for turn in &turns {
            let mut turn = turn.clone();
            turn.completion_text = "x".repeat(20_000);
            world.record(&turn).await;
        }
        let mut writer = ledger.store.writer.take().await.unwrap();
        sqlx::query("update turn_payloads set completion_text = x''")
            .execute(&mut *writer)
            .await
            .unwrap();
        drop(writer);
        ledger.close().await;
        turns
    }

    #[tokio::test]
    async fn what_is_free_is_given_back_and_what_is_stored_stays() {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::in_folder(folder.path());
        let turns = filled(&config).await;
        let before = fs::metadata(&config.file).unwrap().len();
        // What an earlier try left behind is no hindrance.
        fs::write(copy_of(&config.file), b"half").unwrap();
        let mut last = (0, 0);
        SqliteStore::compact(&config, &mut |done, whole| last = (done, whole))
            .await
            .unwrap();
        let after = fs::metadata(&config.file).unwrap().len();
        assert!(after * 2 < before, "{before} and {after} bytes");
        assert!(last.1 > 0 && last.0 == last.1, "{last:?}");
        assert!(!copy_of(&config.file).exists());
        let ledger = SqliteStore::open(&config).await.unwrap();
        assert_eq!(ledger.counts().await.unwrap().turns, turns.len() as u64);
        assert_eq!(ledger.check_laws().await.unwrap(), Vec::<String>::new());
        ledger.close().await;
    }

    #[tokio::test]
    async fn a_ledger_that_is_in_use_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::in_folder(folder.path());
        filled(&config).await;
        let serving = SqliteStore::open(&config).await.unwrap();
        let refused = SqliteStore::compact(&config, &mut |_, _| ()).await;
        assert!(
            matches!(refused, Err(LedgerError::Unusable(_))),
            "{refused:?}"
        );
        serving.close().await;
        // A program that takes no part in the folder's ownership.
        let mut browser = SqliteConnectOptions::new()
            .filename(&config.file)
            .connect()
            .await
            .unwrap();
        sqlx::query("select count(*) from turns")
            .fetch_one(&mut browser)
            .await
            .unwrap();
        let refused = SqliteStore::compact(&config, &mut |_, _| ()).await;
        let said = refused.unwrap_err().to_string();
        assert!(said.contains("another program has the ledger"), "{said}");
        assert!(!copy_of(&config.file).exists());
        browser.close().await.unwrap();
        let ledger = SqliteStore::open(&config).await.unwrap();
        assert_eq!(ledger.counts().await.unwrap().turns, 40);
        ledger.close().await;
    }
}
