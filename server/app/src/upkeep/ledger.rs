//! `hone ledger`: the ledger itself.

use std::process::ExitCode;

use clap::Subcommand;

use super::compact::{CompactArgs, compact};
use super::prune::{PruneArgs, prune};
use super::space::{SizeArgs, size};
use super::transfer::{MoveArgs, move_to};

/// The ledger itself.
#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Move a ledger to another database, with the server stopped. The old one stays as it is.
    Move(MoveArgs),
    /// Show what every table and the adapters take of the disk.
    Size(SizeArgs),
    /// Remove what is older than it is kept; --dry-run only shows what would go.
    Prune(PruneArgs),
    /// Give back to the disk what is free in the ledger, and remove adapters that nobody needs.
    Compact(CompactArgs),
}

/// Runs one command.
///
/// # Errors
/// A sentence with a remedy.
pub(crate) fn ledger(command: &LedgerCommand) -> Result<ExitCode, String> {
    match command {
        LedgerCommand::Move(args) => move_to(args),
        LedgerCommand::Size(args) => size(args),
        LedgerCommand::Prune(args) => prune(args),
        LedgerCommand::Compact(args) => compact(args),
    }?;
    Ok(ExitCode::SUCCESS)
}
