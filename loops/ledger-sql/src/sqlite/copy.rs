//! What only a ledger in one file can: a copy of one moment.

use std::path::Path;

use hone_domain::{BlobKey, Digest};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::fault::{Explained as _, Fault};
use super::{SqliteStore, open};
use hone_ledger::LedgerError;
use hone_ledger_queries::db::Connection as Borrowed;
use hone_ledger_queries::{Store as _, versions};

/// The schema since which a ledger says which files it keeps.
const KEPT_SINCE: i64 = 4;

impl SqliteStore {
    /// Writes the ledger as of one moment to a file that does not exist yet. Writers go on
    /// meanwhile; what they commit later is not in it. The caller makes the file durable.
    ///
    /// # Errors
    /// `Failed` with what SQLite says: the disk is full, or the file exists.
    pub async fn copy_to(&self, file: &Path) -> Result<(), LedgerError> {
        let into = file.display().to_string();
        let copied = async {
            // Its own connection: readers may not even write another file.
            let options = open::options(&self.config).create_if_missing(false);
            let mut connection = options.connect().await?;
            sqlx::query("vacuum into ?")
                .bind(into)
                .execute(&mut connection)
                .await?;
            connection.close().await?;
            Ok(())
        };
        let copied: Result<(), Fault> = copied.await;
        match copied {
            // It is the copy that lacks room; whatever else is wrong is the ledger's.
            Err(fault) if fault.is_full() => Err(fault.explain(file)),
            done => self.explain(done),
        }
    }
}

/// The adapters that a version may still be served from, of a closed file that is only looked at: nothing beside it is made or changed.
pub(crate) async fn kept_blobs_of(file: &Path) -> Result<Vec<(BlobKey, Digest)>, LedgerError> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .read_only(true)
        .immutable(true);
    let looked = async {
        let mut connection = options.connect().await?;
        let version: i64 = sqlx::query_scalar("pragma user_version")
            .fetch_one(&mut connection)
            .await?;
        // An older ledger does not say which files are kept.
        let kept = match version >= KEPT_SINCE {
            true => versions::kept_blobs(&mut Borrowed::Sqlite(&mut connection)).await?,
            false => Vec::new(),
        };
        connection.close().await?;
        Ok(kept)
    };
    let looked: Result<_, Fault> = looked.await;
    looked.map_err(|fault| fault.explain(file))
}
