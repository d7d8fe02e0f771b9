//! `hone ledger move`: from the file to PostgreSQL and back.

use std::path::Path;

use clap::Args;
use hone_ledger_sql::{LedgerPlace, PostgresConfig, SqliteConfig, move_ledger};

use super::common::run;

/// `hone ledger move`.
#[derive(Debug, Args)]
#[command(
    after_help = "A ledger is named by its data folder, or by the address of its PostgreSQL database. An interrupted move goes\n\
    on where it stopped. Adapters stay where they are: serve with the same data folder.\n\n\
    Examples:\n  hone ledger move --from ~/.local/share/hone --to postgres://hone@db.example/hone\n  \
    hone ledger move --from postgres://hone@db.example/hone --to ~/.local/share/hone"
)]
pub(crate) struct MoveArgs {
    /// Data folder or address of the ledger.
    #[arg(long, value_name = "PLACE")]
    from: String,
    /// Data folder or address of an empty database.
    #[arg(long, value_name = "PLACE")]
    to: String,
}

fn place(name: &str) -> LedgerPlace {
    match name.contains("://") {
        true => LedgerPlace::Postgres(PostgresConfig::at(name)),
        false => LedgerPlace::Sqlite(SqliteConfig::in_folder(Path::new(name))),
    }
}

/// Moves a ledger and says what was moved.
///
/// # Errors
/// A sentence with a remedy.
pub(super) fn move_to(args: &MoveArgs) -> Result<(), String> {
    let (from, to) = (place(&args.from), place(&args.to));
    let moved = run(async {
        let moved = move_ledger(&from, &to).await;
        moved.map_err(|error| error.to_string())
    })?;
    for table in moved.iter().filter(|table| table.rows > 0) {
        println!(
            "{:<20} {:>10} rows  {}",
            table.name, table.rows, table.digest
        );
    }
    let next = match to {
        LedgerPlace::Postgres(_) => "set store.url to the new address",
        LedgerPlace::Sqlite(_) => "leave store.url empty",
    };
    println!("both ledgers are equal; {next} and start the server with the same data folder");
    Ok(())
}
