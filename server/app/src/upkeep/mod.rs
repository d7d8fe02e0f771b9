//! What keeps a data folder well, from the command line: `hone doctor`, `hone backup`,
//! `hone restore`, `hone export`. All of it works while the server runs, but for restoring.

mod backup;
mod checks;
mod common;
mod doctor;
mod export;

pub(crate) use backup::{BackupArgs, RestoreArgs, backup, restore};
pub(crate) use doctor::{DoctorArgs, doctor};
pub(crate) use export::{ExportCommand, export};

#[cfg(test)]
mod tests;
