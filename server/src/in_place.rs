//! Notices within a second that the data folder or the ledger was removed or replaced, and tells it.

use std::sync::Arc;
use std::time::Duration;

use hone_runtime::{Clock, Shutdown};
use hone_store::Ledger;

use crate::troubles::{Trouble, Troubles};
use crate::watch::why::Severity;

/// The trouble that is told.
pub const LOST: &str = "ledger_lost";
/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Looks until the shutdown.
pub async fn run(
    ledger: Arc<dyn Ledger>,
    (troubles, clock): (Troubles, Arc<dyn Clock>),
    stop: Shutdown,
) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.wait() => return,
            _ = ticks.tick() => look(&*ledger, &troubles, &*clock),
        }
    }
}

fn look(ledger: &dyn Ledger, troubles: &Troubles, clock: &dyn Clock) {
    let Err(error) = ledger.in_place() else {
        if troubles.over(LOST) {
            tracing::warn!("the ledger's files are back in their place");
        }
        return;
    };
    let trouble = Trouble {
        id: LOST,
        severity: Severity::Error,
        text:
            "The data folder or the ledger in it was removed or replaced: answers are not recorded."
                .to_owned(),
        what_to_do:
            "Put it back, or restore a backup, and restart the server; its log names the file."
                .to_owned(),
        stops_learning: true,
    };
    if troubles.tell(trouble, clock.now_ms()) {
        tracing::error!(%error, "answers are not recorded any more");
    }
}
