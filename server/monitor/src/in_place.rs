//! Notices within a second that the data folder, the ledger or a table in it was removed or replaced, or that
//! its disk is full, and tells it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hone_ledger::Ledger;
use hone_runtime::{Clock, Shutdown};
use tokio::time::timeout;

use crate::alert::Severity;
use crate::troubles::{Trouble, Troubles};

/// Less free space than this stops writing soon.
pub const FREE_BYTES_MIN: u64 = 256 << 20;

/// The trouble that is told.
pub const LOST: &str = "ledger_lost";
/// The trouble that is told where another program removed a part of the ledger's schema.
const INCOMPLETE: &str = "ledger_incomplete";
/// The trouble that is told where the disk takes no more.
const FULL: &str = "disk_full";
/// The trouble that is told before.
const LOW: &str = "disk_low";
/// A disk with less free space than this is full.
const FULL_BYTES: u64 = 1 << 20;
/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longest look into the ledger.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// What is looked after, and where what is wrong is told.
pub struct InPlace {
    /// The ledger.
    pub ledger: Arc<dyn Ledger>,
    /// The data folder, where there is one on this machine's disk.
    pub folder: Option<PathBuf>,
    /// Where what is wrong is told.
    pub troubles: Troubles,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

impl InPlace {
    /// Looks until the shutdown.
    pub async fn run(self: Arc<Self>, stop: Shutdown) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.wait() => return,
                _ = ticks.tick() => {}
            }
            self.look();
            self.look_at_disk();
            tokio::select! {
                () = stop.wait() => return,
                () = self.look_inside() => {}
            }
        }
    }

    fn look(&self) {
        let Err(error) = self.ledger.in_place() else {
            if self.troubles.over(LOST) {
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
        if self.troubles.tell(trouble, self.clock.now_ms()) {
            tracing::error!(%error, "answers are not recorded any more");
        }
    }

    /// Looks for parts of the schema that are gone. Where the ledger cannot be read now, nothing is known.
    async fn look_inside(&self) {
        let looked = timeout(LOOK_MAX, self.ledger.missing_parts()).await;
        let missing = match looked {
            Ok(Ok(missing)) => missing,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the ledger's schema could not be looked at");
                return;
            }
            // The disk is looked at all the same.
            Err(_) => return,
        };
        if missing.is_empty() {
            if self.troubles.over(INCOMPLETE) {
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
        if self.troubles.tell(trouble, self.clock.now_ms()) {
            tracing::error!(missing, "another program removed a part of the ledger");
        }
    }

    /// Looks at the free space. Where it cannot be told, nothing is known.
    fn look_at_disk(&self) {
        let stat = self.folder.as_ref().map(rustix::fs::statvfs);
        let Some(Ok(stat)) = stat else {
            return;
        };
        let now_ms = self.clock.now_ms();
        let troubles = disk_troubles(stat.f_bavail.saturating_mul(stat.f_frsize));
        for (id, trouble) in [FULL, LOW].into_iter().zip(troubles) {
            let Some(trouble) = trouble else {
                self.troubles.over(id);
                continue;
            };
            let text = trouble.text.clone();
            if self.troubles.tell(trouble, now_ms) {
                tracing::error!("{text}");
            }
        }
    }
}

/// What is wrong with a disk of so much free space: that it is full, or that it soon is.
fn disk_troubles(free: u64) -> [Option<Trouble>; 2] {
    let trouble = |id, text, stops_learning| {
        Trouble {
        id,
        severity: Severity::Error,
        text,
        what_to_do: "Free space on the disk of the data folder, or move the folder to a larger one (store.data_dir); \
                     recording goes on by itself."
            .to_owned(),
        stops_learning,
    }
    };
    let full =
        "The disk of the data folder is full: answers go on, but are not recorded or learned from.";
    let low = format!(
        "The disk of the data folder has {} MiB left; once it is full, answers are not recorded.",
        free >> 20
    );
    [
        (free < FULL_BYTES).then(|| trouble(FULL, full.to_owned(), true)),
        (FULL_BYTES..FREE_BYTES_MIN)
            .contains(&free)
            .then(|| trouble(LOW, low, false)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_told_to_be_low_and_then_full() {
        for (free, ids) in [
            (u64::MAX, vec![]),
            (FREE_BYTES_MIN, vec![]),
            (FREE_BYTES_MIN - 1, vec![(LOW, false)]),
            (FULL_BYTES, vec![(LOW, false)]),
            (FULL_BYTES - 1, vec![(FULL, true)]),
            (0, vec![(FULL, true)]),
        ] {
            let found = disk_troubles(free).into_iter().flatten();
            let found: Vec<_> = found.map(|t| (t.id, t.stops_learning)).collect();
            assert_eq!(found, ids, "{free}");
        }
    }
}
