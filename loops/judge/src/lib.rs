//! The judge: reads what the world answered to a turn and settles a verdict.
//!
//! - In: [`Notification`], a hint that transitions wait; the work itself is claimed from the ledger, on
//!   every notification and on every tick.
//! - Out: [`Notification`] to the trainer after each verdict with a score.
//! - Rights: claims transitions, records verdicts, gives leases back; asks a model for votes
//!   through [`Completer`], where one is configured, and the served policy which of several hints it
//!   would follow through [`Weigher`].
//! - Promises: signals are heard in order of trust (feedback, verifiers, model votes, a reading, rules). A vote that
//!   fails, hangs or cannot be read abstains with its reason and is never a score. Every claimed
//!   transition ends in a verdict, in a lease given back, or in `judge_failed`; a model that hangs
//!   delays no verdict beyond its deadline.
//! - Never: knows sessions, tokens, weights or HTTP.

mod answer;
mod breaker;
mod case;
pub mod certificate;
mod checking;
mod completer;
mod config;
mod ctx;
mod decide;
mod effects;
mod event;
#[cfg(test)]
#[path = "../../../tests/support/injections.rs"]
mod injections;
pub mod labelled;
#[cfg(test)]
mod pipeline_tests;
mod prompt;
pub mod reading;
pub mod rules;
mod state;
#[cfg(test)]
mod testing;
mod verify;
mod weigher;
mod wording;

// What the tests share with the bench names this crate from outside.
#[cfg(test)]
extern crate self as hone_judge;

use std::time::Duration;

use hone_runtime::{DriveConfig, Ended, Inbox, Notification, Outbox, Shutdown, drive};

pub use breaker::Breaker;
pub use checking::{Doing, Done};
pub use completer::{CompleteOptions, Completed, Completer, CompleterError};
pub use config::{Combine, Config, HintRule, LocalConfig, ModelConfig, ModelKind, ReadingConfig};
pub use ctx::Ctx;
pub use decide::MovingOn;
pub use effects::JudgeEffects;
pub use event::{CheckAsk, Effect, ReadAsk, RecordError, Report, VoteAsk, VoteError, WeighAsk};
pub use reading::Reader;
pub use state::State;
pub use verify::{CallReply, Caller, CallerError, Calling, Rule, check_verifier};
pub use weigher::{Compared, Weigher};

/// The messages that ask a model for a vote, as the loop sends them; `mark` is fresh and random.
pub fn vote_messages(
    turn: &hone_domain::Turn,
    next_state: &hone_domain::NextState,
    mark: uuid::Uuid,
    config: &ModelConfig,
) -> Vec<hone_domain::Message> {
    let wording = prompt::Wording::default();
    prompt::vote(&wording, turn, next_state, mark, config)
}

/// What a vote on `next_state` says, as the loop reads it; none where it cannot be read.
pub fn read_vote(words: &str, next_state: &hone_domain::NextState) -> Option<hone_domain::Outcome> {
    let answer = answer::parse_apart(words, &wording::texts(next_state));
    answer.map(|answer| answer.outcome)
}

/// What a turn's own checks say of another answer to its prompt, from -1 to 1; none where they
/// abstain. Checks that ask somebody are left out.
pub fn check_answer(turn: &hone_domain::Turn, answer: String) -> Option<f32> {
    let turn = hone_domain::Turn {
        completion_text: answer,
        ..turn.clone()
    };
    let (findings, _) = verify::Rules::default().look(&turn, &hone_domain::NextState::default());
    verify::decide(&findings)?.score
}

/// The loop's name in the status registry.
pub const NAME: &str = "judge";

/// Why the loop ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting that cannot be.
    #[error("{0}")]
    Config(String),
    /// The ledger could not say how earlier certificates turned out.
    #[error("the audits could not be read: {0}")]
    Audits(String),
    /// Work was still under way when the drain deadline passed; leases hand it on.
    #[error("the judge did not finish within its drain deadline of {0} ms")]
    DrainDeadline(u64),
}

/// Runs the loop until shutdown.
pub async fn run(
    ctx: Ctx,
    inbox: Inbox<Notification>,
    outbox: Outbox<Notification>,
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
        effects_in_flight_max: config.in_hand_max * 4 + votes + config.checks_in_flight_max + 4,
        drain_deadline: Duration::from_millis(config.drain_ms),
        clock: ctx.clock.clone(),
        registry: ctx.registry.clone(),
    };
    let drain_ms = config.drain_ms;
    let audits = ctx.ledger.audits().await;
    let audits = audits.map_err(|error| Error::Audits(error.to_string()))?;
    let folder = config.model.as_ref().map_or("", |model| &model.prompts);
    let wording = prompt::Wording::read(folder).map_err(Error::Config)?;
    let state = State::new(config, ctx.ids.clone(), ctx.completer.is_some());
    let state = match ctx.weigher {
        Some(_) => state.with_weigher(),
        None => state,
    };
    let state = match ctx.reader {
        Some(_) => state.with_reader(),
        None => state,
    };
    let state = state.with_wording(wording);
    let state = state.with_buckets(certificate::Buckets::new(audits.into_iter().map(|count| {
        certificate::AuditCount {
            bucket: count.bucket,
            agreed: count.agreed,
            executed: count.executed,
        }
    })));
    let effects = JudgeEffects::new(ctx, outbox);
    match drive(state, effects, inbox, shutdown, drive_config).await {
        Ended::Drained => Ok(()),
        Ended::Deadline => Err(Error::DrainDeadline(drain_ms)),
    }
}
