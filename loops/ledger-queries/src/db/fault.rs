//! What goes wrong inside the ledger, before it is known where the database is.

use hone_domain::{BlobError, CompletionError};

use crate::codec::Malformed;
use hone_ledger::LedgerError;

/// A failure inside the ledger.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Fault {
    /// Whether what is stored is at fault, and not the database at this moment.
    pub fn is_unreadable(&self) -> bool {
        match self {
            Self::Ledger(error) => matches!(error, LedgerError::Corrupt(_)),
            Self::Sql(error) => is_unreadable(error),
        }
    }
}

macro_rules! corrupt_from {
    ($($error:ty),*) => {$(
        impl From<$error> for Fault {
            fn from(error: $error) -> Self {
                Self::Ledger(LedgerError::Corrupt(error.to_string()))
            }
        }
    )*};
}
corrupt_from!(Malformed, CompletionError, BlobError, serde_json::Error);

/// A row that does not say what it should.
pub fn corrupt(what: impl Into<String>) -> Fault {
    Fault::Ledger(LedgerError::Corrupt(what.into()))
}

/// Whether what is stored could not be read as what it should be.
pub fn is_unreadable(error: &sqlx::Error) -> bool {
    matches!(
        error,
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)
    )
}
