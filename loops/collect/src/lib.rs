//! Collect: records turns and finds what the world answered to them.
//!
//! - In: [`Input`] from the gateway: ended turns with a receipt to sign, next states, feedback, and
//!   the end of sessions.
//! - Out: [`Notification`] to the judge for every new transition.
//! - Rights: writes turns, transitions, feedback and settled turns into the ledger; restores the
//!   gateway's session index once per process and forgets idle sessions in it.
//! - Promises: a receipt says `Collected` only when the turn is in the ledger, durably, and `Spooled` only when it is
//!   durable in the spool, which takes turns while the ledger does not answer and ships them to it in their order.
//!   Everything that came while one transaction ran goes into the next. Every recorded turn gets a next state or a
//!   reason; a turn whose client was told that it is not collected is settled as `late_receipt`.
//! - Never: reads what was said, asks a model, or makes the gateway wait for anything but a receipt.

mod backlog;
mod carry;
mod config;
mod counts;
mod ctx;
mod effects;
mod event;
mod queue;
mod sessions;
mod shipping;
mod spool;
mod state;
#[cfg(test)]
mod testing;

use std::time::Duration;

use hone_runtime::{DriveConfig, Ended, Inbox, Notification, Outbox, Shutdown, drive};

pub use carry::Carry;
pub use config::Config;
pub use ctx::{Ctx, SharedIndex};
pub use effects::CollectEffects;
pub use event::{
    Batch, Effect, Heard, Input, Loaded, Observed, OpenMeta, Place, Report, Rewarding, Said, Ship,
    Shipped, Wrote,
};
pub use spool::{Spool, SpoolStatus};
pub use state::State;

/// The loop's name in the status registry.
pub const NAME: &str = "collect";

/// Why the loop ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting that cannot be.
    #[error("{0}")]
    Config(String),
    /// Work was still under way when the drain deadline passed.
    #[error("collect did not finish within its drain deadline of {0} ms; unsigned turns are lost")]
    DrainDeadline(u64),
}

/// Runs the loop until shutdown.
pub async fn run(
    ctx: Ctx,
    inbox: Inbox<Input>,
    outbox: Outbox<Notification>,
    shutdown: Shutdown,
) -> Result<(), Error> {
    ctx.config.validate().map_err(Error::Config)?;
    let config = ctx.config.clone();
    let drive_config = DriveConfig {
        name: NAME,
        tick: Duration::from_millis(config.tick_ms),
        // One write, one load, one pause; the others end at once.
        effects_in_flight_max: 16,
        drain_deadline: Duration::from_millis(config.drain_ms),
        clock: ctx.clock.clone(),
        registry: ctx.registry.clone(),
    };
    let drain_ms = config.drain_ms;
    let state = State::new(config, ctx.ids.clone()).behind(ctx.spool.status());
    let effects = CollectEffects::new(ctx, outbox).until(shutdown.clone());
    match drive(state, effects, inbox, shutdown, drive_config).await {
        Ended::Drained => Ok(()),
        Ended::Deadline => Err(Error::DrainDeadline(drain_ms)),
    }
}
