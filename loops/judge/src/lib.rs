//! The judge: reads what the world answered to a turn and settles a verdict.
//!
//! - In: [`Wake`], a hint that transitions wait; the work itself is claimed from the ledger, on
//!   every wake and on every tick.
//! - Out: [`Wake`] to the trainer after each verdict with a score.
//! - Rights: claims transitions, records verdicts, gives leases back; asks a model for votes
//!   through [`Completer`], where one is configured.
//! - Promises: signals are heard in order of trust (feedback, model votes, rules). A vote that
//!   fails, hangs or cannot be read abstains with its reason and is never a score. Every claimed
//!   transition ends in a verdict, in a lease given back, or in `judge_failed`; a model that hangs
//!   delays no verdict beyond its deadline.
//! - Never: knows sessions, tokens, weights or HTTP.

mod answer;
mod breaker;
mod case;
mod completer;
mod config;
mod decide;
mod event;
mod hands;
mod prompt;
pub mod rules;
mod state;
#[cfg(test)]
mod testing;

use std::sync::Arc;
use std::time::Duration;

use hone_runtime::{Board, Clock, DriveConfig, Ended, Ids, Inbox, Outbox, Shutdown, Wake, drive};
use hone_store::Ledger;

pub use completer::{CompleteOptions, Completer, CompleterError};
pub use config::{Config, ModelConfig, MovingOn};
pub use event::{Effect, RecordError, Report, VoteAsk, VoteError};
pub use hands::JudgeHands;
pub use state::State;

/// The room's name on the board.
pub const NAME: &str = "judge";

/// What the room works with.
#[derive(Clone)]
pub struct Ctx {
    /// Where transitions are claimed and verdicts recorded.
    pub ledger: Arc<dyn Ledger>,
    /// The model that votes; without one, feedback and rules decide.
    pub completer: Option<Arc<dyn Completer>>,
    /// Makes verdict ids and the marks of prompts.
    pub ids: Arc<dyn Ids>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The room's settings.
    pub config: Config,
    /// The status board.
    pub board: Board,
}

/// Why the room ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting that cannot be.
    #[error("{0}")]
    Config(String),
    /// Work was still under way when the drain deadline passed; leases hand it on.
    #[error("the judge did not finish within its drain deadline of {0} ms")]
    DrainDeadline(u64),
}

/// Runs the room until shutdown.
pub async fn run(
    ctx: Ctx,
    inbox: Inbox<Wake>,
    outbox: Outbox<Wake>,
    shutdown: Shutdown,
) -> Result<(), Error> {
    ctx.config.validate().map_err(Error::Config)?;
    let config = ctx.config.clone();
    // Claims, records and votes are bounded by the state; nothing ever waits for a slot here, so a
    // hanging vote cannot hold up a record.
    let votes = config.model.as_ref().map_or(0, |m| m.votes_in_flight_max);
    let drive_config = DriveConfig {
        name: NAME,
        tick: Duration::from_millis(config.tick_ms),
        effects_in_flight_max: config.in_hand_max * 2 + votes + 4,
        drain_deadline: Duration::from_millis(config.drain_ms),
        clock: ctx.clock.clone(),
        board: ctx.board.clone(),
    };
    let drain_ms = config.drain_ms;
    let state = State::new(config, ctx.ids.clone(), ctx.completer.is_some());
    let hands = JudgeHands::new(ctx, outbox);
    match drive(state, hands, inbox, (shutdown, drive_config)).await {
        Ended::Drained => Ok(()),
        Ended::Deadline => Err(Error::DrainDeadline(drain_ms)),
    }
}
