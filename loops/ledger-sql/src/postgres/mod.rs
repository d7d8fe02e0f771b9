//! PostgreSQL: one schema of a database, one connection that writes, a few that read.
//!
//! Writers take a lock of the whole ledger inside the database, whichever process they are of. So numbers are given in the
//! order of commits, a publish sees every publish before it, and no two writers wait for each other in a circle.
//! Readers see one moment and wait for nobody.

mod clock;
mod compact;
mod fault;
mod ledger;
mod listener;
mod moving;
mod open;
mod roles;
mod schema;
mod size;
mod store;
mod writing;

#[cfg(all(test, unix))]
mod open_tests;
#[cfg(all(test, unix))]
#[path = "../../../../tests/support/postgres.rs"]
mod server;
#[cfg(all(test, unix))]
mod tests;
#[cfg(all(test, unix))]
pub(crate) use tests::fresh;

pub use compact::Thoroughness;
pub use ledger::PostgresLedger;
pub(crate) use moving::Marking;
pub use open::PostgresConfig;
pub use roles::Role;
pub use store::PostgresStore;
