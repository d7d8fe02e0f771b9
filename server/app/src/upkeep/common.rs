//! What the commands on a data folder share.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use hone_domain::{Digest, Millis};
use hone_ledger::AuditEntry;
use hone_ledger_sql::StoredLedger;
use hone_nn::{PROBE_FILE, check_probe, peft};
use hone_runtime::{Clock, SystemClock};
use serde_json::Value;

use crate::cli::place::{ACTOR, old_ledger};
use crate::config::Config;

/// Runs one piece of work to its end.
pub(super) fn run<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("the async thread could not be started: {error}"))?;
    runtime.block_on(work)
}

pub(super) fn now_ms() -> Millis {
    SystemClock::default().now_ms()
}

/// An entry of the audit log about something done here.
pub(super) fn entry(act: &str, object: &str, detail: Value) -> AuditEntry {
    AuditEntry {
        at_ms: now_ms(),
        actor: ACTOR.to_owned(),
        act: act.to_owned(),
        object: object.to_owned(),
        detail,
    }
}

/// Whether the adapter in a folder is the one of that content hash; why not, as a sentence's part.
pub(super) fn check_adapter(folder: &Path, published: Digest) -> Result<(), String> {
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
pub(super) async fn open(config: &Config) -> Result<Arc<dyn StoredLedger>, String> {
    let ledger = old_ledger(config)?.open_beside().await;
    ledger.map_err(|error| error.to_string())
}
