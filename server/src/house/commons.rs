//! What every room shares, opened once.

use std::sync::{Arc, Mutex};

use hone_collect::SharedIndex;
use hone_domain::{Blobs, Policies, SessionIndex};
use hone_runtime::{Board, Clock, Ids, Latest, ShutdownTrigger, SystemClock, SystemIds};
use hone_store::{FsBlobs, Ledger, SqliteConfig, SqliteLedger};

use crate::config::Config;

/// What every room shares.
#[derive(Clone)]
pub(super) struct Commons {
    pub(super) config: Arc<Config>,
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) blobs: Arc<dyn Blobs>,
    pub(super) policies: Latest<Policies>,
    pub(super) index: SharedIndex,
    pub(super) board: Board,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ids: Arc<dyn Ids>,
    /// Stops judge and train, then collect.
    pub(super) stops: [ShutdownTrigger; 2],
}

/// Opens ledger and blobs; the error names the file and the remedy.
pub(super) async fn open(config: &Arc<Config>) -> Result<Commons, String> {
    let folder = config.store.folder()?;
    let sqlite = SqliteConfig {
        readers: config.store.readers,
        busy_timeout_ms: config.store.busy_timeout_ms,
        bytes_max: Some(config.store.database_bytes_max).filter(|n| *n > 0),
        ..SqliteConfig::in_folder(&folder)
    };
    let ledger = SqliteLedger::open(&sqlite)
        .await
        .map_err(|e| e.to_string())?;
    let blobs = FsBlobs::open(&folder.join("blobs"), config.store.blob_file_bytes_max);
    let heads = ledger.heads().await.map_err(|e| e.to_string())?;
    Ok(Commons {
        index: Arc::new(Mutex::new(SessionIndex::new(config.http.index()))),
        config: config.clone(),
        ledger: Arc::new(ledger),
        blobs: Arc::new(blobs.map_err(|e| e.to_string())?),
        policies: Latest::new(Policies::from_heads(heads)),
        board: Board::new(),
        clock: Arc::new(SystemClock::default()),
        ids: Arc::new(SystemIds),
        stops: [ShutdownTrigger::new(), ShutdownTrigger::new()],
    })
}
