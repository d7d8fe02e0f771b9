//! Removes what is older than it is kept (`store.keep_*`), piece by piece beside serving.
//!
//! In: the ledger, the time · Out: fewer rows · Never: what waits, what versions, erasures and the gate need

use std::sync::Arc;
use std::time::{Duration, Instant};

use hone_ledger::{LedgerError, PrunePlace, Pruned, Retention, Storage};
use hone_runtime::{Clock, Shutdown};

use crate::config::StoreConfig;

/// Turns that one transaction takes words of or removes; more rows of other kinds fit into the same time.
const PIECE: usize = 32;
/// Pause after each piece, as a multiple of the time that it took, and the shortest.
const REST: u32 = 4;
const REST_MIN: Duration = Duration::from_millis(2);
/// How long a pass that failed waits for the next try.
const AGAIN: Duration = Duration::from_secs(60);

/// What it works with.
pub(crate) struct Retainer {
    /// The ledger.
    pub(crate) storage: Arc<dyn Storage>,
    /// How long what is kept.
    pub(crate) config: StoreConfig,
    /// Held-out turns of each scope that the gate compares candidates on.
    pub(crate) held_out_kept: usize,
    /// Time.
    pub(crate) clock: Arc<dyn Clock>,
}

impl Retainer {
    /// Goes through the ledger again and again until the shutdown; where everything is kept for good, only waits for it.
    pub(crate) async fn run(self: Arc<Self>, stop: Shutdown) {
        loop {
            let retention = self
                .config
                .retention(self.clock.now_ms(), self.held_out_kept);
            if retention.is_off() {
                return stop.wait().await;
            }
            let began = Instant::now();
            let mut on_progress = |_: &Pruned| ();
            let passed = tokio::select! {
                () = stop.wait() => return,
                passed = pass(&*self.storage, &retention, &mut on_progress) => passed,
            };
            let pause = match passed {
                Ok(pruned) => {
                    tell(&pruned, began.elapsed());
                    Duration::from_millis(self.config.keep_interval_ms)
                }
                Err(error) => {
                    tracing::warn!(%error, "what is older than it is kept is removed later");
                    AGAIN
                }
            };
            tokio::select! {
                () = stop.wait() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// A line of the log where something went.
fn tell(pruned: &Pruned, took: Duration) {
    if *pruned == Pruned::default() {
        return;
    }
    tracing::info!(
        turns_without_words = pruned.words.rows,
        turns_gone = pruned.turns.rows,
        turns_without_logprobs = pruned.logprobs.rows,
        votes = pruned.votes.rows,
        reports = pruned.reports.rows,
        bytes = pruned.bytes(),
        seconds = took.as_secs_f64(),
        "what was older than it is kept was removed"
    );
}

/// Goes through the ledger once, and reports what went so far. One that is interrupted leaves every turn whole or without
/// its words, and the next one goes on.
///
/// # Errors
/// The ledger's.
pub(crate) async fn pass(
    storage: &dyn Storage,
    retention: &Retention,
    on_progress: &mut (dyn FnMut(&Pruned) + Send),
) -> Result<Pruned, LedgerError> {
    let (mut all, mut place) = (Pruned::default(), Some(PrunePlace::default()));
    while let Some(at) = place {
        let began = Instant::now();
        let piece = storage.prune_piece(retention, at, PIECE).await?;
        all.add(&piece.pruned);
        on_progress(&all);
        place = piece.next;
        tokio::time::sleep((began.elapsed() * REST).max(REST_MIN)).await;
    }
    Ok(all)
}
