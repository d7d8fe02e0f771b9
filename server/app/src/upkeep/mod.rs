//! What keeps a data folder well, from the command line: `hone doctor`, `hone backup`,
//! `hone restore`, `hone export`, `hone ledger`. All of it works while the server runs, but for restoring, moving and
//! compacting a file.

mod adapters;
mod backup;
mod checks;
mod common;
mod compact;
mod doctor;
mod export;
mod export_progress;
mod export_trajectories;
mod ledger;
mod prune;
mod space;
mod transfer;

pub(crate) use backup::{BackupArgs, RestoreArgs, backup, restore};
pub(crate) use doctor::{DoctorArgs, doctor};
pub(crate) use export::{ExportCommand, export};
pub(crate) use ledger::{LedgerCommand, ledger};

#[cfg(test)]
mod tests;
