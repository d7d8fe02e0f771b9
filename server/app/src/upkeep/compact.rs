//! `hone ledger compact`: gives back to the disk what is free.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use hone_ledger::LedgerSize;
use hone_ledger_sql::{LedgerPlace, PostgresStore, SqliteStore, StoredLedger, Thoroughness};
use hone_runtime::SystemClock;
use hone_train::sweep_blobs;
use serde_json::json;

use super::checks::free_bytes;
use super::common::{entry, run};
use super::space::shown;
use crate::cli::place::{Place, old_ledger};
use crate::config::Config;
use crate::progress::{Progress, Unit};

/// Work below this many bytes is too short to tell of.
const TOLD_FROM: u64 = 1 << 26;
/// Room that is left beside the copy.
const ROOM: u64 = 1 << 24;

/// `hone ledger compact`.
#[derive(Debug, Args)]
#[command(
    after_help = "A ledger in a file is written anew, with the server stopped: for that time the disk holds the old file and a copy\n\
    of what is stored. In PostgreSQL it may run beside the server; there --rewrite writes every table anew, which needs\n\
    room for the largest one and keeps everybody waiting.\n\n\
    Examples:\n  hone ledger compact\n  hone ledger compact --config my.toml --rewrite"
)]
pub(crate) struct CompactArgs {
    /// In PostgreSQL, write every table anew (VACUUM FULL).
    #[arg(long)]
    rewrite: bool,
    #[command(flatten)]
    place: Place,
}

/// Gives back what is free, and says what was before and after.
///
/// # Errors
/// A sentence with a remedy.
pub(super) fn compact(args: &CompactArgs) -> Result<(), String> {
    let config = args.place.config()?;
    let place = old_ledger(&config)?;
    let (before, after) = run(async {
        let before = prepare(&config, &place).await?;
        let mut progress = Progress::new("compacting", (Unit::Bytes, TOLD_FROM));
        let mut on_progress = |done, whole| progress.at(done, whole);
        let done = match &place {
            LedgerPlace::Sqlite(sqlite) => SqliteStore::compact(sqlite, &mut on_progress).await,
            LedgerPlace::Postgres(postgres) => {
                let how = match args.rewrite {
                    true => Thoroughness::Rewriting,
                    false => Thoroughness::BesideServing,
                };
                PostgresStore::compact(postgres, how, &mut on_progress).await
            }
        };
        done.map_err(|error| error.to_string())?;
        let ledger = place.open_beside().await.map_err(|e| e.to_string())?;
        let after = ledger.size().await.map_err(|error| error.to_string());
        ledger.close().await;
        Ok((before, after?))
    })?;
    println!("before {}, after {}", shown(before), shown(after.bytes));
    Ok(())
}

/// Looks whether there is room, notes the act, and removes adapters that nobody needs; returns the bytes of the ledger.
async fn prepare(config: &Config, place: &LedgerPlace) -> Result<u64, String> {
    let folder = config.store.folder()?;
    let (ledger, is_alone) = match (place.open().await, place) {
        (Ok(ledger), _) => (ledger, true),
        (Err(error), LedgerPlace::Sqlite(_)) => return Err(error.to_string()),
        // A server has the data folder; then it removes adapters itself.
        (Err(_), LedgerPlace::Postgres(_)) => {
            let beside = place.open_beside().await;
            (beside.map_err(|error| error.to_string())?, false)
        }
    };
    let done = async {
        let size = ledger.size().await.map_err(|error| error.to_string())?;
        if matches!(place, LedgerPlace::Sqlite(_)) {
            check_room(&size, free_bytes(&folder).ok(), &folder)?;
        }
        let entry = entry("ledger.compact", "", json!({"bytes": size.bytes}));
        let noted = ledger.record(&entry).await;
        noted.map_err(|error| error.to_string())?;
        if is_alone {
            let swept = sweep(config, &ledger, &folder).await?;
            println!("{swept} folders of adapters that nobody needs were removed");
        }
        Ok(size.bytes)
    }
    .await;
    ledger.close().await;
    done
}

/// Refuses to begin where the copy does not fit, and says what it takes.
fn check_room(size: &LedgerSize, free: Option<u64>, folder: &Path) -> Result<(), String> {
    let copy = size.bytes.saturating_sub(size.free_bytes.unwrap_or(0));
    let (needed, shown_folder) = (copy.saturating_add(ROOM), folder.display());
    match free {
        Some(free) if free < needed => Err(format!(
            "a copy of what is stored takes {} for a moment, and the disk of {shown_folder} has {} free; make room, or move \
             the data folder to a larger disk",
            shown(needed),
            shown(free)
        )),
        _ => {
            println!(
                "the ledger takes {}, {} of it free; its copy takes {} beside it until it is whole",
                shown(size.bytes),
                shown(size.bytes - copy),
                shown(copy)
            );
            Ok(())
        }
    }
}

async fn sweep(
    config: &Config,
    ledger: &Arc<dyn StoredLedger>,
    folder: &Path,
) -> Result<usize, String> {
    let (store, folder) = (config.store.clone(), folder.to_owned());
    let blobs = tokio::task::spawn_blocking(move || store.blobs(&folder)).await;
    let blobs = blobs.map_err(|error| error.to_string())?;
    let blobs = blobs.map_err(|error| error.to_string())?;
    let clock = Arc::new(SystemClock::default());
    sweep_blobs(ledger.clone(), blobs, clock, config.train.clone()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_does_not_fit_is_refused_before_anything_is_written() {
        let size = LedgerSize {
            bytes: 5 << 30,
            free_bytes: Some(3 << 30),
            ..LedgerSize::default()
        };
        let folder = Path::new("/data");
        for (free, fits) in [(Some(1 << 30), false), (Some(3 << 30), true), (None, true)] {
            assert_eq!(check_room(&size, free, folder).is_ok(), fits, "{free:?}");
        }
        let said = check_room(&size, Some(1 << 30), folder).unwrap_err();
        assert!(said.contains("takes 2.0 GiB for a moment"), "{said}");
    }
}
