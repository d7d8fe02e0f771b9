//! Either ledger, by where it is.

use std::sync::Arc;

use async_trait::async_trait;
use hone_domain::{BlobKey, Digest};
use hone_ledger::{
    Answers, Changes, Jobs, Ledger, LedgerError, Memories, People, Personal, Progress, Skills,
    Storage, Versions,
};

use crate::{PostgresConfig, PostgresStore, SqlLedger, SqliteConfig, SqliteStore};
use hone_ledger_queries::{Held as _, Store, versions};

/// A ledger in a database, whichever it is.
#[async_trait]
pub trait StoredLedger:
    Ledger
    + People
    + Personal
    + Versions
    + Answers
    + Memories
    + Progress
    + Skills
    + Jobs
    + Storage
    + Changes
{
    /// Where the adapters lie that a version of this ledger may still be served from, with the content
    /// hash that each was published with.
    ///
    /// # Errors
    /// What the database said.
    async fn kept_blobs(&self) -> Result<Vec<(BlobKey, Digest)>, LedgerError>;

    /// Looks at everything that is stored; each finding is a line.
    ///
    /// # Errors
    /// What the database said.
    async fn check_stored(&self) -> Result<Vec<String>, LedgerError>;
}

#[async_trait]
impl<S: Store> StoredLedger for SqlLedger<S> {
    async fn kept_blobs(&self) -> Result<Vec<(BlobKey, Digest)>, LedgerError> {
        let mut moment = self.store.look().await?;
        let kept = versions::kept_blobs(&mut moment.connection()).await;
        self.store.explain(kept)
    }

    async fn check_stored(&self) -> Result<Vec<String>, LedgerError> {
        self.store.check().await
    }
}

/// Where a ledger is, and how it is opened.
#[derive(Clone, Debug)]
pub enum LedgerPlace {
    /// In a file of the data folder.
    Sqlite(SqliteConfig),
    /// In a PostgreSQL database.
    Postgres(PostgresConfig),
}

impl LedgerPlace {
    /// Opens it for a server.
    ///
    /// # Errors
    /// As [`SqliteStore::open`] and [`PostgresStore::open`].
    pub async fn open(&self) -> Result<Arc<dyn StoredLedger>, LedgerError> {
        Ok(match self {
            Self::Sqlite(config) => Arc::new(SqliteStore::open(config).await?),
            Self::Postgres(config) => Arc::new(PostgresStore::open(config).await?),
        })
    }

    /// Opens it for short work, also while a server has it.
    ///
    /// # Errors
    /// As [`SqliteStore::open_beside`] and [`PostgresStore::open_beside`].
    pub async fn open_beside(&self) -> Result<Arc<dyn StoredLedger>, LedgerError> {
        Ok(match self {
            Self::Sqlite(config) => Arc::new(SqliteStore::open_beside(config).await?),
            Self::Postgres(config) => Arc::new(PostgresStore::open_beside(config).await?),
        })
    }
}
