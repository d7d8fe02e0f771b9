//! What keeps a data folder well, from the command line: `hone doctor`, `hone backup`,
//! `hone restore`, `hone export`. All of it works while the server runs, but for restoring.

mod checks;
mod doctor;
mod export;

use std::cell::RefCell;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use hone_domain::{Digest, Millis};
use hone_ledger::{AuditEntry, Ledger, People};
use hone_ledger_sql::{Maker, Replacing, SqliteConfig, SqliteLedger};
use hone_nn::{PROBE_FILE, check_probe, peft};
use hone_runtime::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::cli::accounts::{ACTOR, Place};
use crate::config::Config;

pub(crate) use doctor::{DoctorArgs, doctor};
pub(crate) use export::{ExportCommand, export};

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

/// Runs one piece of work to its end.
fn run<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("the async thread could not be started: {error}"))?;
    runtime.block_on(work)
}

fn now_ms() -> Millis {
    SystemClock::default().now_ms()
}

/// An entry of the audit log about something done here.
fn entry(act: &str, object: &str, detail: Value) -> AuditEntry {
    AuditEntry {
        at_ms: now_ms(),
        actor: ACTOR.to_owned(),
        act: act.to_owned(),
        object: object.to_owned(),
        detail,
    }
}

/// Where the ledger of a place is, which has to exist.
pub(crate) fn ledger_file(config: &Config) -> Result<SqliteConfig, String> {
    let sqlite = config.store.sqlite(&config.store.folder()?);
    match sqlite.file.exists() {
        true => Ok(sqlite),
        false => Err(format!(
            "there is no ledger {}; --data or --config says where it is",
            sqlite.file.display()
        )),
    }
}

/// Says on the terminal where a ledger is about to be made: it may not be the server's.
pub(crate) fn tell_of_new_ledger(config: &Config) {
    if ledger_file(config).is_err()
        && let Ok(folder) = config.store.folder()
    {
        eprintln!(
            "hone: there is no ledger in {} yet, so one is made; if the server keeps its data elsewhere, say \
             where with --config or --data",
            folder.display()
        );
    }
}

/// Whether the adapter in a folder is the one of that content hash; why not, as a sentence's part.
fn check_adapter(folder: &Path, published: Digest) -> Result<(), String> {
    let failed = RefCell::new(None);
    let read = |file: &str| match std::fs::read(folder.join(file)) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            failed
                .borrow_mut()
                .get_or_insert(format!("{file}: {error}"));
            None
        }
    };
    let found = peft::digest(&read);
    match (failed.into_inner(), found) {
        (Some(why), _) => Err(why),
        (None, Err(error)) => Err(error.to_string()),
        (None, Ok(found)) if Digest(found) == published => check_kept_probe(folder),
        (None, Ok(_)) => Err("its weights are other ones than were published".to_owned()),
    }
}

/// The same of what it says when it is asked something fixed; one that was not made here has none.
fn check_kept_probe(folder: &Path) -> Result<(), String> {
    match std::fs::read(folder.join(PROBE_FILE)) {
        Ok(probe) => check_probe(&probe).map_err(|error| error.to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("{PROBE_FILE}: {error}")),
    }
}

/// The ledger of a place.
async fn open(config: &Config) -> Result<SqliteLedger, String> {
    let sqlite = ledger_file(config)?;
    let ledger = SqliteLedger::open_beside(&sqlite).await;
    ledger.map_err(|error| error.to_string())
}

/// Notes an act in the audit log of a place.
async fn note(config: &Config, entry: &AuditEntry) -> Result<(), String> {
    let ledger = open(config).await?;
    let noted = ledger.record(entry).await;
    ledger.close().await;
    noted.map(drop).map_err(|error| error.to_string())
}

/// Copies a data folder while its server runs.
///
/// # Errors
/// A sentence with a remedy.
pub(crate) fn backup(args: &BackupArgs) -> Result<ExitCode, String> {
    let config = args.place.config()?;
    let folder = config.store.folder()?;
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
        let sqlite = config.store.sqlite(&folder);
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
    let sqlite = config.store.sqlite(&folder);
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

#[cfg(test)]
mod tests;
