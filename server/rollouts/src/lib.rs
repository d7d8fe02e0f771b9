//! Plays episodes: the served model with a shell or with one answer, the jail that it works in, and the tests that say
//! what its work is worth.
//!
//! In: episodes of the rollout loop · Out: what became of each · Rights: asks the model behind users, opens jails, rewards
//! the sessions of its episodes · Promises: the tests are in no jail that the agent was in; what fails for no fault of the
//! agent is never a reward · Never: speaks HTTP, writes jobs.

mod agent;
mod ask;
mod command;
mod config;
mod model_socket;
mod words;
mod work;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hone_collect::{Input, Rewarding};
use hone_domain::{ReturnRule, SessionCredit, SessionId, SessionReward, TaskFiles, TaskSpec};
use hone_inference::InferenceService;
use hone_ledger::Versions;
use hone_rollout::{Checked, Episode, Played, Player};
use hone_runtime::{Outbox, Shutdown};
use tokio::sync::oneshot;
use tokio::time::timeout;

pub use config::{ExecutorKind, Jails, ToolsConfig};
pub use model_socket::{ModelSocket, ModelSockets};

/// How long a reward may take to be stored.
const REWARD_WAIT: Duration = Duration::from_secs(20);

/// What plays episodes.
pub struct Players {
    /// Answers the agents.
    pub inference: Arc<InferenceService>,
    /// Where versions are looked up that an order names.
    pub versions: Arc<dyn Versions>,
    /// Collect's queue.
    pub collect: Outbox<Input>,
    /// Opens jails.
    pub jails: Arc<Jails>,
    /// The served model's name, for agents that want one.
    pub model: String,
    /// Where agents in jails reach the model.
    pub sockets: Arc<dyn ModelSockets>,
}

#[async_trait]
impl Player for Players {
    async fn ready(&self) -> Result<(), String> {
        self.jails.executor().await.map(drop)
    }

    async fn play(&self, episode: &Episode, stop: Shutdown) -> Played {
        tokio::select! {
            () = stop.wait() => Played::Stopped,
            played = self.played(episode) => played,
        }
    }

    async fn check(&self, task: &TaskSpec, files: &TaskFiles, stop: Shutdown) -> Checked {
        tokio::select! {
            () = stop.wait() => Checked::Stopped,
            checked = self.jails.checked(task, files) => checked,
        }
    }

    async fn reward(&self, reward: SessionReward) -> Result<(), String> {
        let session = reward.session;
        let (reply, waiting) = oneshot::channel();
        let rewarding = Rewarding {
            reward: Box::new(reward),
            // All that an agent did led to where it ended.
            credit: SessionCredit {
                rule: ReturnRule::Terminal,
                discount: 1.0,
            },
            reply,
        };
        if self.collect.send(Input::Reward(rewarding)).is_err() {
            return Err("the recorder is busy".to_owned());
        }
        match timeout(REWARD_WAIT, waiting).await {
            Ok(Ok(Ok(Some(_)))) => Ok(()),
            // It was forgotten meanwhile, or none of its turns may be collected.
            Ok(Ok(Ok(None))) => {
                tracing::debug!(%session, "an episode's session is not on record");
                Ok(())
            }
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) | Err(_) => Err("the reward was not stored in time".to_owned()),
        }
    }

    fn done(&self, session: SessionId) {
        self.inference.session_done(session);
    }
}
