//! Jobs: durable work with a lease, a fence and exactly one end.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{GroupId, JobId, Millis, RolloutId, Scope, SessionId, TaskId};

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// One attempt at a task.
    Episode,
    /// The rewards of a group of episodes, once all of them have ended.
    Credit,
    /// Whether a task can be solved, and is not solved by doing nothing.
    Check,
}

impl JobKind {
    /// The stored and counted name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Episode => "episode",
            Self::Credit => "credit",
            Self::Check => "check",
        }
    }
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It waits.
    Queued,
    /// A worker has it.
    Running,
    /// It was done; whether well is in its result.
    Done,
    /// It failed for no fault of its own, and another attempt took its place.
    Retried,
    /// It failed as often as is allowed for no fault of its own.
    Skipped,
    /// What came out of it can be no reward.
    Failed,
    /// It is not wanted any more.
    Cancelled,
}

impl JobState {
    /// The stored and counted name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Retried => "retried",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether it stays as it is for ever.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

/// Why a job stands where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobReason {
    /// The agent said that it is done.
    Submitted,
    /// The agent used as many steps as it may.
    Steps,
    /// The conversation filled the model's context.
    Context,
    /// The agent's program ended and never asked the model.
    Agent,
    /// Time ran out.
    Time,
    /// The jail could not be opened, or was lost.
    Jail,
    /// The model did not answer.
    Model,
    /// The tests gave no number, or did not end.
    Verifier,
    /// The process that had it is gone.
    Worker,
    /// The ledger could not be read or written.
    Ledger,
    /// Somebody cancelled it.
    Cancelled,
    /// Fewer than two episodes of the group have a reward.
    Group,
    /// All episodes of the group have the same reward.
    NoSignal,
}

impl JobReason {
    /// The stored and counted name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Steps => "steps",
            Self::Context => "context",
            Self::Agent => "agent",
            Self::Time => "time",
            Self::Jail => "jail",
            Self::Model => "model",
            Self::Verifier => "verifier",
            Self::Worker => "worker",
            Self::Ledger => "ledger",
            Self::Cancelled => "cancelled",
            Self::Group => "group",
            Self::NoSignal => "no_signal",
        }
    }
}

/// A job as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// What is to be done.
    pub kind: JobKind,
    /// Who ordered it.
    pub owner: String,
    /// Whose policy it asks and teaches.
    pub scope: Scope,
    /// The order that it belongs to.
    pub rollout: Option<RolloutId>,
    /// The jobs that it is compared with.
    pub group: GroupId,
    /// Its place among them.
    pub member: u32,
    /// The task.
    pub task: TaskId,
    /// Which attempt at this place it is, from 1.
    pub attempt: u32,
    /// Where it stands.
    pub state: JobState,
    /// Why.
    pub reason: Option<JobReason>,
    /// Higher goes first.
    pub priority: f32,
    /// Not before this time.
    pub not_before_ms: Millis,
    /// When it was ordered.
    pub created_ms: Millis,
    /// When a worker took it last.
    pub started_ms: Option<Millis>,
    /// When it ended.
    pub ended_ms: Option<Millis>,
    /// Grows with each time it is taken.
    pub fence: u64,
    /// The reward of an episode that has one.
    pub reward: Option<f32>,
    /// The version that answered last.
    pub version: Option<u64>,
    /// The session that its turns are in.
    pub session: Option<SessionId>,
    /// What else came out of it.
    pub result: Option<Value>,
}
