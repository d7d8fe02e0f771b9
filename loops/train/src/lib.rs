//! The train loop: verdicts → versions.
//!
//! - **In:** a [`Notification`] when verdicts were recorded; the work itself is claimed from the ledger, on
//!   notifications and on every tick.
//! - **Out:** policy versions: files in the blob store, a row in the ledger, the news in
//!   `Latest<Policies>`.
//! - **Rights:** claims judged transitions, writes adapters and checkpoints, publishes, refuses, and
//!   takes back what does badly.
//! - **Promises:** a sample enters at most one version of a chain; a version is durable before it
//!   is visible; nothing that is not finite, or that the gate objects to, is ever published; what
//!   the served adapter sampled is recomputed with the very same log-probs, and where not it is
//!   counted; computing happens on threads of the lowest priority, so that serving never waits for it.
//! - **Never:** judges text (words become tokens; answers are only searched for repetitions of them), asks the judge, waits for serve, or opens a path of another loop.
//!
//! A step is claim → filter → credit → pack → train → evaluate → gate → save → publish, one file each.

mod candidate;
mod claim;
mod config;
mod context_config;
mod counters;
mod credit;
mod ctx;
mod effects;
mod evaluation_job;
mod evaluator;
mod event;
mod filter;
mod gate;
mod guards;
mod import;
mod job;
mod judged;
mod learner_config;
mod nn_trainer;
mod objective;
mod pack;
mod priority;
mod probe;
mod progress;
mod prune;
mod publish;
mod retold;
mod save;
mod scopes;
mod serving;
mod share;
mod state;
mod trainer;
mod watch;
mod watcher;
mod wish_answers;
mod wish_meter;
mod worker;

#[cfg(test)]
#[path = "../../../tests/support/adapters.rs"]
mod adapters;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod loop_tests;
#[cfg(test)]
mod testing;

use std::time::Duration;

use hone_runtime::{DriveConfig, Ended, Inbox, Notification, Shutdown, drive};

pub use candidate::Candidate;
pub use config::{
    AdapterPrecision, CanaryConfig, Config, ContextConfig, GateConfig, LearnerConfig, PruneConfig,
    WatchConfig,
};
pub use counters::Counters;
pub use credit::{
    Baseline, CreditRule, Credited, Method, RecentMean, Scored, Uses, credit, follow, second_tries,
};
pub use ctx::{Ctx, NAME};
pub use effects::TrainEffects;
pub use evaluation_job::EvaluationJob;
pub use evaluator::Evaluator;
pub use event::{Claimed, ClaimedBatch, Effect, Memory, PublishOutcome, Report};
pub use filter::{Accepts, Filtered, filter};
pub use gate::{Interval, Measured, Outcome, decide, interval, is_held_out, objections};
pub use import::{Base, Importer};
pub use judged::Judged;
pub use nn_trainer::{
    Fact, Instructed, NnParts, NnTrainer, Reference, generic_prompts, hint_words, hinted_prompt,
};
pub use objective::{DistillForm, KlName, ObjectiveName, Teacher};
pub use pack::{CreditedTurn, PackedRow, SampledBy, pack};
pub use priority::{Priority, Urgency};
pub use probe::{ProbeCompletion, ProbeSummary, is_looping};
pub use progress::{Phase, Progress, Stand, UnderWay};
pub use prune::sweep_blobs;
pub use retold::{FirstTry, Retold};
pub use save::CHECKPOINT_FILE;
pub use serving::{Served, Serving};
pub use share::{Pacer, Reading, ShareLimits, ShareTotals};
pub use state::Train;
pub use trainer::{
    CandidateFiles, Lesson, Parity, TrainError, TrainJob, Trained, Trainer, WishTurns, Wording,
};
pub use watch::{
    Alarm, Chart, Held, WatchDecision, WatchLook, WatchMemory, is_broken, last_good, look as watch,
};
pub use wish_answers::{UnseenAnswer, WishAnswers};

/// Why the loop ended badly.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is out of range.
    #[error("{0}")]
    Config(String),
    /// No thread could be started.
    #[error("the training thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
    /// Stopping took too long.
    #[error("a step was still under way at the drain deadline; its samples will be claimed again")]
    Deadline,
}

/// Runs the loop until shutdown.
///
/// # Errors
/// See [`Error`].
pub async fn run(ctx: Ctx, inbox: Inbox<Notification>, shutdown: Shutdown) -> Result<(), Error> {
    ctx.config.validate().map_err(Error::Config)?;
    let (config, clock, registry) = (ctx.config.clone(), ctx.clock.clone(), ctx.registry.clone());
    let effects = TrainEffects::start(ctx, shutdown.clone())?;
    let ahead = effects.clone();
    tokio::spawn(async move { ahead.prepare().await });
    let driven = DriveConfig {
        name: NAME,
        tick: Duration::from_millis(config.tick_ms),
        effects_in_flight_max: 4,
        drain_deadline: Duration::from_millis(config.drain_deadline_ms),
        clock,
        registry,
    };
    match drive(Train::new(config), effects, inbox, shutdown, driven).await {
        Ended::Drained => Ok(()),
        Ended::Deadline => Err(Error::Deadline),
    }
}
