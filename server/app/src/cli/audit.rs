//! `hone audit`: the record of who did what, from the command line.

use std::process::ExitCode;

use clap::Subcommand;
use hone_ledger::AuditQuery;
use serde_json::json;

use super::accounts::{print, read};
use super::place::Place;

/// The record of who did what.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  hone audit verify\n  hone audit list --limit 20")]
pub(crate) enum AuditCommand {
    /// Check every hash of the log; fails if one does not fit.
    Verify {
        #[command(flatten)]
        place: Place,
    },
    /// List the newest entries, one JSON object a line.
    List {
        /// Most entries.
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        place: Place,
    },
}

/// `hone audit`.
pub(crate) fn audit(command: AuditCommand) -> Result<ExitCode, String> {
    match command {
        AuditCommand::Verify { place } => {
            let check = read(&place, async |people| people.verify_audit().await)?;
            let (entries, head) = (check.entries, check.head);
            match check.first_broken {
                None => println!("intact: {entries} entries, head {head}"),
                Some(number) => {
                    return Err(format!(
                        "the audit log is broken at entry {number} of {entries}: it or what is before it was changed; compare with a backup"
                    ));
                }
            }
        }
        AuditCommand::List { limit, place } => {
            let query = AuditQuery {
                limit,
                ..AuditQuery::default()
            };
            let records = read(&place, async |people| people.audit(&query).await)?;
            let items = records
                .into_iter()
                .map(hone_api_types::people::AuditItem::from);
            let lines = items.map(|item| format!("{}\n", json!(item)));
            print(&lines.collect::<String>());
        }
    }
    Ok(ExitCode::SUCCESS)
}
