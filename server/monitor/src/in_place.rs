//! Notices within a second that the data folder, the ledger or a table in it was removed or replaced, and
//! tells it.

use std::sync::Arc;
use std::time::Duration;

use hone_ledger::Ledger;
use hone_runtime::{Clock, Shutdown};

use crate::alert::Severity;
use crate::troubles::{Trouble, Troubles};

/// The trouble that is told.
pub const LOST: &str = "ledger_lost";
/// The trouble that is told where another program removed a part of the ledger's schema.
const INCOMPLETE: &str = "ledger_incomplete";
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
            _ = ticks.tick() => {}
        }
        look(&*ledger, &troubles, &*clock);
        tokio::select! {
            () = stop.wait() => return,
            () = look_inside(&*ledger, &troubles, &*clock) => {}
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

/// Looks for parts of the schema that are gone. Where the ledger cannot be read now, nothing is known.
async fn look_inside(ledger: &dyn Ledger, troubles: &Troubles, clock: &dyn Clock) {
    let missing = match ledger.missing_parts().await {
        Ok(missing) => missing,
        Err(error) => {
            tracing::debug!(%error, "the ledger's schema could not be looked at");
            return;
        }
    };
    if missing.is_empty() {
        if troubles.over(INCOMPLETE) {
            tracing::warn!("the ledger has every part of its schema again");
        }
        return;
    }
    let missing = missing.join(", ");
    let trouble = Trouble {
        id: INCOMPLETE,
        severity: Severity::Error,
        text: format!(
            "The ledger lacks {missing}, which another program must have removed: answers may not be recorded, and \
             nothing is learned."
        ),
        what_to_do: "Stop the server, restore a backup (`hone restore`), and start it again."
            .to_owned(),
        stops_learning: true,
    };
    if troubles.tell(trouble, clock.now_ms()) {
        tracing::error!(missing, "another program removed a part of the ledger");
    }
}
