//! The ledger in SQL: [`SqliteLedger`] is the embedded one, [`PostgresLedger`] lies in a PostgreSQL database. The only SQL of the project; backups of a
//! data folder are here too, because they copy the database while it is written.
//!
//! Never: who asks, or why.

mod backup;
mod migrations;
mod postgres;
mod sqlite;
mod stored;
mod transfer;

#[cfg(test)]
mod late_tests;

pub use backup::{
    BackupFile, CheckAdapter, MANIFEST, Maker, Manifest, Replacing, back_up, check_vacant, restore,
    verify, verify_whole,
};
pub use hone_ledger_queries::SqlLedger;
pub use postgres::{PostgresConfig, PostgresLedger, PostgresStore, Role, Thoroughness};
pub use sqlite::{SqliteConfig, SqliteLedger, SqliteStore, check_not_lost, make_private};
pub use stored::{LedgerPlace, StoredLedger};
pub use transfer::{MovedTable, move_ledger};
