//! How a loop runs: the one loop, its links, its clock, its end.
//!
//! A loop is a pure `step(now, event) -> effects`; [`drive`] is the only select loop and
//! [`Effects`] the only IO. Links are [`Queue`](queue) (bounded, with a named overflow rule) and
//! [`Latest`] (only the newest value matters). This crate never knows what a loop does.

mod clock;
mod drive;
mod latest;
mod queue;
mod shutdown;
mod status;
mod supervise;
#[cfg(any(test, feature = "test-switches"))]
mod testing;
mod traits;

pub use clock::{Clock, Ids, SystemClock, SystemIds};
pub use drive::{DriveConfig, Ended, drive};
pub use latest::{Latest, LatestReader};
pub use queue::{Inbox, Outbox, Overflow, QueueStats, queue};
pub use shutdown::{Shutdown, ShutdownTrigger};
pub use status::{LoopPhase, LoopStatus, StatusRegistry, Switch};
pub use supervise::{Backoff, panic_text, supervise};
#[cfg(any(test, feature = "test-switches"))]
pub use testing::{ManualClock, SeededIds};
pub use traits::{Effects, Event, LoopState};

/// A hint that there may be work; carries nothing, because the ledger is the truth.
#[derive(Clone, Copy, Debug, Default)]
pub struct Notification;
