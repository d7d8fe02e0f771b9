//! What the ledger takes of the disk, and what goes of it with age.

use async_trait::async_trait;
use serde::Serialize;

use crate::LedgerError;
use crate::retention::{PrunePiece, PrunePlace, Pruned, Retention};

/// What one table takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableSize {
    /// Its name.
    pub name: String,
    /// How many rows it has.
    pub rows: u64,
    /// Bytes of its rows, with what is free inside its pages.
    pub bytes: u64,
    /// Bytes of its indexes, likewise.
    pub index_bytes: u64,
}

/// What the whole ledger takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LedgerSize {
    /// Every table, the largest first.
    pub tables: Vec<TableSize>,
    /// Bytes of all.
    pub bytes: u64,
    /// Bytes of it that are free for what comes next; null where the database does not say.
    pub free_bytes: Option<u64>,
    /// Bytes of the write-ahead log, which come on top; null where it is not the ledger's own.
    pub log_bytes: Option<u64>,
    /// Whether rows were counted; else the database estimates them.
    pub is_counted: bool,
}

impl LedgerSize {
    /// Of tables in any order; bytes of all are those of the tables.
    pub fn of(mut tables: Vec<TableSize>) -> Self {
        tables.sort_by(|one, other| {
            let bytes = |table: &TableSize| table.bytes + table.index_bytes;
            (bytes(other), &one.name).cmp(&(bytes(one), &other.name))
        });
        let bytes = tables.iter().map(|table| table.bytes + table.index_bytes);
        Self {
            bytes: bytes.sum(),
            tables,
            ..Self::default()
        }
    }
}

/// What the ledger takes of the disk, and what goes of it with age. Implementations pass `crate::suite::storage`.
#[async_trait]
pub trait Storage: Send + Sync {
    /// Measures every table. Reads all of a ledger in a file, so it takes time; nobody who writes waits.
    async fn size(&self) -> Result<LedgerSize, LedgerError>;

    /// What would go now, and changes nothing. Reads every turn and every message, so it takes time; nobody who writes
    /// waits.
    async fn plan_pruning(&self, retention: &Retention) -> Result<Pruned, LedgerError>;

    /// Removes the next of what goes, about `most` rows in one transaction, from a place on. What waits for something
    /// stays. A turn of which a version, a memory or a count of checks tells keeps its row, and so do all others of its
    /// session; so an erasure finds what was learned.
    async fn prune_piece(
        &self,
        retention: &Retention,
        place: PrunePlace,
        most: usize,
    ) -> Result<PrunePiece, LedgerError>;
}
