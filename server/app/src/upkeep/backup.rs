//! `hone backup`, `hone restore`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use hone_ledger::AuditEntry;
use hone_ledger_sql::{LedgerPlace, Maker, Replacing, SqliteConfig};
use serde_json::json;

use super::common::{check_adapter, entry, now_ms, open, run};
use crate::cli::place::Place;
use crate::config::Config;

/// `hone backup`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  hone backup /backups/hone-$(date +%F)")]
pub(crate) struct BackupArgs {
    /// Folder that the backup becomes; it must not exist yet.
    folder: PathBuf,
    #[command(flatten)]
    place: Place,
}

/// `hone restore`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  hone restore /backups/hone-2026-11-01 --data /srv/hone\n  \
    hone restore /backups/hone-2026-11-01 --check"
)]
pub(crate) struct RestoreArgs {
    /// Folder that `hone backup` made.
    folder: PathBuf,
    /// Move what is in the data folder aside, into before-restore-TIME.
    #[arg(long)]
    replace: bool,
    /// Only look whether the backup is whole.
    #[arg(long, conflicts_with = "replace")]
    check: bool,
    #[command(flatten)]
    place: Place,
}

/// Notes an act in the audit log of a place.
async fn note(config: &Config, entry: &AuditEntry) -> Result<(), String> {
    let ledger = open(config).await?;
    let noted = ledger.record(entry).await;
    ledger.close().await;
    noted.map(drop).map_err(|error| error.to_string())
}

/// Where the ledger's file is. One that is no file is copied and put back by the database's own tools.
fn file_of(config: &Config) -> Result<SqliteConfig, String> {
    match config.store.place(&config.store.folder()?, &[]) {
        LedgerPlace::Sqlite(sqlite) => Ok(sqlite),
        LedgerPlace::Postgres(_) => Err(
            "the ledger is in PostgreSQL (store.url): copy it with pg_dump and put it back with pg_restore; copy the \
             folder blobs of the data folder, or what store.objects names, along with it"
                .to_owned(),
        ),
    }
}

/// Copies a data folder while its server runs.
///
/// # Errors
/// A sentence with a remedy.
pub(crate) fn backup(args: &BackupArgs) -> Result<ExitCode, String> {
    let config = args.place.config()?;
    let sqlite = file_of(&config)?;
    let into = args.folder.display().to_string();
    let manifest = run(async {
        // The entry is in the copy too, so it comes first; what is refused leaves none.
        hone_ledger_sql::check_vacant(&args.folder).map_err(|error| error.to_string())?;
        note(&config, &entry("backup", &into, json!({}))).await?;
        let maker = Maker {
            program: env!("CARGO_PKG_VERSION"),
            now_ms: now_ms(),
            check: &check_adapter,
        };
        let done = hone_ledger_sql::back_up(&sqlite, &args.folder, maker).await;
        done.map_err(|error| error.to_string())
    })?;
    println!(
        "{into}: {} turns, {} versions, {} files, {} bytes",
        manifest.turns,
        manifest.versions,
        manifest.files.len(),
        manifest.bytes()
    );
    Ok(ExitCode::SUCCESS)
}

/// Puts a backup in the place of a data folder, or only checks it.
///
/// # Errors
/// A sentence with a remedy.
pub(crate) fn restore(args: &RestoreArgs) -> Result<ExitCode, String> {
    if args.check {
        let manifest = run(async {
            let whole = hone_ledger_sql::verify_whole(&args.folder, &check_adapter).await;
            whole.map_err(|error| error.to_string())
        })?;
        let (turns, files) = (manifest.turns, manifest.files.len());
        println!(
            "whole: {turns} turns, {files} files, made by hone {}",
            manifest.program
        );
        return Ok(ExitCode::SUCCESS);
    }
    let config = args.place.config()?;
    let folder = config.store.folder()?;
    let sqlite = file_of(&config)?;
    let (manifest, aside) = run(async {
        let how = Replacing {
            replace: args.replace,
            now_ms: now_ms(),
            check: &check_adapter,
        };
        let done = hone_ledger_sql::restore(&args.folder, &sqlite, how).await;
        let done = done.map_err(|error| error.to_string())?;
        let detail = json!({"created_ms": done.0.created_ms, "turns": done.0.turns});
        let from = args.folder.display().to_string();
        note(&config, &entry("restore", &from, detail)).await?;
        Ok(done)
    })?;
    println!(
        "{}: {} turns, {} versions",
        folder.display(),
        manifest.turns,
        manifest.versions
    );
    if let Some(aside) = aside {
        println!("what was there is in {}", aside.display());
    }
    Ok(ExitCode::SUCCESS)
}
