//! Who plays episodes: the agent, its jail and the tests, which this crate knows nothing of.

use async_trait::async_trait;
use hone_domain::{
    Job, JobReason, RolloutId, RolloutSpec, Scope, SessionId, SessionReward, TaskFiles, TaskSpec,
};
use hone_runtime::Shutdown;
use serde_json::Value;

/// An episode to be played.
#[derive(Clone, Debug)]
pub struct Episode {
    /// The job.
    pub job: Job,
    /// The rollout.
    pub rollout: RolloutId,
    /// How it tries tasks.
    pub how: RolloutSpec,
    /// The task.
    pub task: TaskSpec,
    /// Its files.
    pub files: TaskFiles,
    /// Who ordered it.
    pub owner: String,
    /// Whose policy answers and learns.
    pub scope: Scope,
}

/// What became of an episode.
#[derive(Clone, Debug, PartialEq)]
pub enum Played {
    /// The agent ended, well or badly, and the tests said what that is worth.
    Ended {
        /// Why it ended.
        reason: JobReason,
        /// In [0, 1].
        reward: f32,
        /// The version that answered last.
        version: Option<u64>,
        /// The session of its turns.
        session: Option<SessionId>,
        /// What else is known.
        result: Value,
    },
    /// The agent ended and the tests said nothing: that is no reward.
    Unknown {
        /// Why.
        reason: JobReason,
        /// The session of its turns.
        session: Option<SessionId>,
        /// What is known.
        result: Value,
    },
    /// Something failed that is no fault of the agent.
    Broken {
        /// What.
        reason: JobReason,
        /// What happened, for a person.
        what: String,
    },
    /// It was told to stop.
    Stopped,
}

/// What a check of a task found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// It can be tried.
    Ready,
    /// It cannot tell a solution from none; why, for a person.
    Refused(String),
    /// The check itself failed.
    Broken(JobReason, String),
    /// It was told to stop.
    Stopped,
}

/// Plays episodes.
#[async_trait]
pub trait Player: Send + Sync {
    /// Whether episodes can be played here; why not, and what to do.
    async fn ready(&self) -> Result<(), String>;

    /// Has the agent try, and the tests say what it is worth. Ends soon after `stop`.
    async fn play(&self, episode: &Episode, stop: Shutdown) -> Played;

    /// Whether the solution passes and doing nothing does not.
    async fn check(&self, task: &TaskSpec, files: &TaskFiles, stop: Shutdown) -> Checked;

    /// Gives a session of an episode its reward.
    async fn reward(&self, reward: SessionReward) -> Result<(), String>;

    /// Nothing will be learned from a session.
    fn done(&self, session: SessionId);
}
