//! Rollout: has agents try tasks, in groups that are compared with each other, and gives each group its rewards.
//!
//! - In: [`Notification`], a hint that something was ordered; the work itself is claimed from the ledger, on every
//!   notification and on every tick.
//! - Out: jobs that ended, rewards of sessions. Turns of episodes come from the gateway like everybody's.
//! - Rights: begins groups, claims jobs, notes what is known of tasks, rewards the sessions of its own episodes.
//! - Promises: every job ends once. An episode that failed for no fault of the agent is tried again, and is never a
//!   reward. A group is rewarded once all of its episodes have ended.
//! - Never: knows tokens, weights, jails or HTTP; who plays an episode is a [`Player`].

mod choose;
mod config;
mod credit;
mod ctx;
mod effects;
mod event;
mod player;
mod state;

use std::time::Duration;

use hone_runtime::{DriveConfig, Ended, Inbox, Notification, Shutdown, drive};

pub use config::Config;
pub use ctx::Ctx;
pub use effects::RolloutEffects;
pub use event::{Effect, Report};
pub use player::{Checked, Episode, Played, Player};
pub use state::State;

/// The loop's name in the status registry.
pub const NAME: &str = "rollout";

/// Effects beside the jobs that run: a claim, a plan, a renewal, and ends of jobs.
const BESIDE: usize = 4;

/// Why the loop ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting that cannot be.
    #[error("{0}")]
    Config(String),
    /// Jobs were still under way when the drain deadline passed; others take them over.
    #[error("rollout did not finish within its drain deadline of {0} ms")]
    DrainDeadline(u64),
}

/// Runs the loop until shutdown.
pub async fn run(ctx: Ctx, inbox: Inbox<Notification>, shutdown: Shutdown) -> Result<(), Error> {
    ctx.config.validate().map_err(Error::Config)?;
    let config = ctx.config.clone();
    let drive_config = DriveConfig {
        name: NAME,
        tick: Duration::from_millis(config.tick_ms),
        effects_in_flight_max: config.concurrency + BESIDE,
        drain_deadline: Duration::from_millis(config.drain_ms),
        clock: ctx.clock.clone(),
        registry: ctx.registry.clone(),
    };
    let drain_ms = config.drain_ms;
    let state = State::new(config, ctx.ids.clone());
    let effects = RolloutEffects::new(ctx);
    match drive(state, effects, inbox, shutdown, drive_config).await {
        Ended::Drained => Ok(()),
        Ended::Deadline => Err(Error::DrainDeadline(drain_ms)),
    }
}
