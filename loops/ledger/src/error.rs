//! What can go wrong with a ledger.

/// Why a ledger call failed. The texts name the file and a remedy where there is one.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The lease was taken over by a later claim.
    #[error("the lease on {0} was taken over")]
    Fenced(String),
    /// The head moved, or the wanted version does not exist.
    #[error("conflict: {0}")]
    Conflict(String),
    /// The database file cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// Another process has a role that this one is to have; it ends with that process.
    #[error("{0}")]
    RoleTaken(String),
    /// A row that cannot be read back.
    #[error("the ledger holds a row that cannot be read: {0}")]
    Corrupt(String),
    /// The database failed at this moment.
    #[error("{0}")]
    Failed(String),
}
