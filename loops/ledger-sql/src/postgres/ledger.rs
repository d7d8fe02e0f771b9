//! The ledger, as it is opened.

use hone_ledger::LedgerError;

use super::open::{self, Opener, PostgresConfig};
use super::store::PostgresStore;
use hone_ledger_queries::SqlLedger;

/// The ledger in a PostgreSQL database.
pub type PostgresLedger = SqlLedger<PostgresStore>;

impl PostgresStore {
    /// Connects, makes the schema where it is missing, brings it up to date, and takes the roles.
    ///
    /// # Errors
    /// `Unusable` with a remedy: the address is wrong, nobody answers there, a right is missing, the server is too old, the
    /// schema is of a newer program, the clocks differ, or another process has one of the roles. Nothing is written then.
    pub async fn open(config: &PostgresConfig) -> Result<PostgresLedger, LedgerError> {
        Ok(PostgresLedger {
            store: open::open(config, Opener::Server).await?,
        })
    }

    /// Opens it for short work, also while a server has it: takes no roles and no folder. Makes the schema where there is
    /// none, and leaves an older one to the server.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_beside(config: &PostgresConfig) -> Result<PostgresLedger, LedgerError> {
        Ok(PostgresLedger {
            store: open::open(config, Opener::Beside).await?,
        })
    }

    /// As [`Self::open`], also where a move was interrupted.
    pub(crate) async fn open_for_move(
        config: &PostgresConfig,
    ) -> Result<PostgresLedger, LedgerError> {
        Ok(PostgresLedger {
            store: open::open(config, Opener::Mover).await?,
        })
    }
}
