//! Memory: keeps what a person says once, so that it holds in the next conversation without any training, and the skills
//! that are shown to the model.
//!
//! - In: [`Notification`], a hint that a turn was recorded; the work itself is read from the ledger, on every
//!   notification and on every tick.
//! - Out: [`SharedMemories`], what the gateway shows to the model, always as the ledger has it.
//! - Rights: reads turns and verdicts whose request allows memories, writes memories, and skills of corrections that repeat.
//! - Promises: every turn and every verdict is read once, whatever restarts in between. What is kept is in the
//!   person's own words. Keys, passwords and card numbers are never kept.
//! - Never: knows sessions, tokens, weights or HTTP.

mod change_words;
mod config;
mod ctx;
mod effects;
mod event;
mod extract;
mod index;
mod known;
mod replaced;
mod shared;
mod skills;
mod state;

use std::time::Duration;

use hone_runtime::{DriveConfig, Ended, Inbox, Notification, Shutdown, drive};

pub use config::Config;
pub use ctx::Ctx;
pub use effects::MemoryEffects;
pub use event::{Effect, Report};
pub use index::Index;
pub use known::{Budget, Known, Remembered};
pub use shared::{Listed, SharedMemories};
pub use skills::{Fit, KnownSkills, OfferedSkill};
pub use state::State;

/// The loop's name in the status registry.
pub const NAME: &str = "memory";

/// Why the loop ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting that cannot be.
    #[error("{0}")]
    Config(String),
    /// Work was still under way when the drain deadline passed; it is read again.
    #[error("memory did not finish within its drain deadline of {0} ms")]
    DrainDeadline(u64),
}

/// Runs the loop until shutdown.
pub async fn run(ctx: Ctx, inbox: Inbox<Notification>, shutdown: Shutdown) -> Result<(), Error> {
    ctx.config.validate().map_err(Error::Config)?;
    let config = ctx.config.clone();
    let drive_config = DriveConfig {
        name: NAME,
        tick: Duration::from_millis(config.tick_ms),
        effects_in_flight_max: 1,
        drain_deadline: Duration::from_millis(config.drain_ms),
        clock: ctx.clock.clone(),
        registry: ctx.registry.clone(),
    };
    let drain_ms = config.drain_ms;
    let state = State::new(config, ctx.ids.clone());
    match drive(
        state,
        MemoryEffects::new(ctx),
        inbox,
        shutdown,
        drive_config,
    )
    .await
    {
        Ended::Drained => Ok(()),
        Ended::Deadline => Err(Error::DrainDeadline(drain_ms)),
    }
}
