//! Bodies of rollouts, episodes and queues.

use std::collections::BTreeMap;

use hone_domain::{AgentKind, Job, JobReason, RolloutSpec, SessionId};
use hone_ledger::{QueueRow, RolloutRow, ScalingRow};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::RequestError;

/// Which page.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct RolloutPage {
    /// Most entries, 1 to 200; 50 if absent.
    pub limit: Option<usize>,
    /// Only entries older than this one, which is the last answer's `next`.
    pub before: Option<String>,
}

/// How tasks are to be tried.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RolloutRequest {
    /// Id of the task set.
    pub task_set: String,
    /// Who tries: `bash` (the served model with a shell), `answer` (its one answer is the task's answer file) or `command` (a program in the jail that asks the served model).
    #[schema(value_type = Option<String>)]
    pub agent: Option<AgentKind>,
    /// With `command`: the line for the shell that starts the program.
    pub command: Option<String>,
    /// Attempts at a task, compared with each other; 4 if absent, 1 where it only measures.
    pub attempts: Option<u32>,
    /// How often a task is chosen; once per task if absent.
    pub groups: Option<u32>,
    /// Whether it only measures: on held-out tasks, and nothing is learned from it.
    #[serde(default)]
    pub evaluate: bool,
    /// Where it measures: the version that answers; the newest if absent, 0 is the base model.
    pub version: Option<u64>,
    /// Most steps of an agent; 20 if absent.
    pub steps_max: Option<u32>,
    /// Most tokens of a step; 1024 if absent.
    pub tokens_max: Option<u32>,
    /// Temperature; 1 if absent.
    pub temperature: Option<f32>,
}

impl RolloutRequest {
    /// How tasks of a set are tried of which `tasks` take part.
    ///
    /// # Errors
    /// The first field that cannot be.
    pub fn spec(&self, tasks: u64) -> Result<RolloutSpec, RequestError> {
        let spec = RolloutSpec {
            agent: self.agent.unwrap_or(match self.command {
                Some(_) => AgentKind::Command,
                None => AgentKind::Bash,
            }),
            command: self.command.clone(),
            attempts: self.attempts.unwrap_or(if self.evaluate { 1 } else { 4 }),
            groups: match self.groups {
                Some(groups) => groups,
                None => u32::try_from(tasks).unwrap_or(u32::MAX),
            },
            evaluates: self.evaluate,
            version: self.version,
            steps_max: self.steps_max.unwrap_or(20),
            tokens_max: self.tokens_max.unwrap_or(1_024),
            temperature: self.temperature.unwrap_or(1.0),
        };
        let checked = spec.validate().map_err(|why| {
            let field = why.split(' ').next().unwrap_or_default().to_owned();
            RequestError::invalid(field, why)
        });
        checked.map(|()| spec)
    }
}

/// What came of the episodes of one version.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct VersionSuccess {
    /// The version that answered last; 0 is the base model.
    pub version: u64,
    /// Episodes that have a reward.
    pub episodes: u64,
    /// How many passed: their reward is 1.
    pub passed: u64,
    /// The share that passed.
    pub rate: f64,
    /// Its 95 % interval (Wilson 1927).
    pub interval: [f64; 2],
    /// The mean of their rewards.
    pub mean_reward: f64,
}

/// The 95 % interval of a share (Wilson 1927).
pub fn wilson(passed: u64, of: u64) -> [f64; 2] {
    if of == 0 {
        return [0.0, 1.0];
    }
    const Z: f64 = 1.959_964;
    let (n, p) = (of as f64, passed as f64 / of as f64);
    let center = p + Z * Z / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let by = 1.0 + Z * Z / n;
    [
        ((center - half) / by).max(0.0),
        ((center + half) / by).min(1.0),
    ]
}

/// A rollout.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RolloutReply {
    /// Always `rollout`.
    pub object: &'static str,
    /// Its id.
    pub id: String,
    /// Id of its task set.
    pub task_set: String,
    /// The set's name.
    pub task_set_name: String,
    /// `running`, `done` or `cancelled`.
    pub status: &'static str,
    /// Who tries.
    #[schema(value_type = String)]
    pub agent: AgentKind,
    /// The line that starts the agent's program, where it is one.
    pub command: Option<String>,
    /// Whether it only measures.
    pub evaluate: bool,
    /// The version that answers; null is the newest.
    pub version: Option<u64>,
    /// Attempts per group.
    pub attempts: u32,
    /// Groups in all.
    pub groups: u32,
    /// Groups that were begun.
    pub groups_begun: u32,
    /// When it was ordered, in milliseconds since the Unix epoch.
    pub created_ms: i64,
    /// When its last job ended.
    pub ended_ms: Option<i64>,
    /// Its episodes by where they stand: `queued`, `running`, `done`, `retried`, `skipped`, `failed`, `cancelled`.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub episodes: BTreeMap<&'static str, u64>,
    /// What came of them by version, oldest first.
    pub versions: Vec<VersionSuccess>,
}

impl From<RolloutRow> for RolloutReply {
    fn from(row: RolloutRow) -> Self {
        let versions = row
            .versions
            .iter()
            .map(|(version, success)| VersionSuccess {
                version: *version,
                episodes: success.episodes,
                passed: success.passed,
                rate: success.passed as f64 / success.episodes.max(1) as f64,
                interval: wilson(success.passed, success.episodes),
                mean_reward: success.rewards / success.episodes.max(1) as f64,
            });
        Self {
            object: "rollout",
            status: match (row.cancelled_ms, row.is_done()) {
                (Some(_), _) => "cancelled",
                (None, true) => "done",
                (None, false) => "running",
            },
            versions: versions.collect(),
            episodes: row
                .episodes
                .iter()
                .map(|(state, count)| (state.as_str(), *count))
                .collect(),
            id: row.id.prefixed(),
            task_set: row.set.prefixed(),
            task_set_name: row.set_name,
            agent: row.spec.agent,
            command: row.spec.command,
            evaluate: row.spec.evaluates,
            version: row.spec.version,
            attempts: row.spec.attempts,
            groups: row.spec.groups,
            groups_begun: row.groups_made,
            created_ms: row.created_ms,
            ended_ms: row.ended_ms,
        }
    }
}

/// One attempt at a task.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EpisodeReply {
    /// Always `episode`.
    pub object: &'static str,
    /// Its id.
    pub id: String,
    /// Id of its task.
    pub task: String,
    /// The episodes that it is compared with share this.
    pub group: String,
    /// Its place among them.
    pub member: u32,
    /// Which attempt at this place it is.
    pub attempt: u32,
    /// `queued`, `running`, `done`, `retried`, `skipped`, `failed` or `cancelled`.
    pub state: &'static str,
    /// Why: `submitted`, `steps`, `context`, `time`, `jail`, `model`, `verifier`, `worker`, `ledger` or `cancelled`.
    pub reason: Option<&'static str>,
    /// Its reward, from 0 to 1.
    pub reward: Option<f32>,
    /// The version that answered last.
    pub version: Option<u64>,
    /// The session of its turns; for `GET /v1/sessions/{id}`.
    pub session_id: Option<String>,
    /// When it began, in milliseconds since the Unix epoch.
    pub started_ms: Option<i64>,
    /// When it ended.
    pub ended_ms: Option<i64>,
    /// Steps, times, and the end of the tests' output.
    #[schema(value_type = Option<Object>)]
    pub result: Option<Value>,
}

impl From<Job> for EpisodeReply {
    fn from(job: Job) -> Self {
        Self {
            object: "episode",
            id: job.id.prefixed(),
            task: job.task.prefixed(),
            group: job.group.prefixed(),
            member: job.member,
            attempt: job.attempt,
            state: job.state.as_str(),
            reason: job.reason.map(JobReason::as_str),
            reward: job.reward,
            version: job.version,
            session_id: job.session.map(SessionId::prefixed),
            started_ms: job.started_ms,
            ended_ms: job.ended_ms,
            result: job.result.filter(|result| !result.is_null()),
        }
    }
}

/// Jobs of one kind that stand alike.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct QueueReply {
    /// `episode`, `credit` (a group's rewards) or `check` (of a task).
    pub kind: &'static str,
    /// Where they stand.
    pub state: &'static str,
    /// Why.
    pub reason: Option<&'static str>,
    /// How many.
    pub count: u64,
    /// When the oldest of them was ordered, in milliseconds since the Unix epoch.
    pub oldest_ms: i64,
}

impl From<QueueRow> for QueueReply {
    fn from(row: QueueRow) -> Self {
        Self {
            kind: row.kind.as_str(),
            state: row.state.as_str(),
            reason: row.reason.map(JobReason::as_str),
            count: row.count,
            oldest_ms: row.oldest_ms,
        }
    }
}

/// Work for processes that may be started and ended as there is more or less of it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ScalingReply {
    /// The loop that such a process runs.
    pub role: String,
    /// Jobs that wait and are due.
    pub queued: u64,
    /// Jobs that a process has.
    pub running: u64,
    /// Episodes that rollouts begin once there is room for them; of a rollout that is learned from, those of one group.
    pub to_begin: u64,
    /// The sum of these three.
    pub open: u64,
    /// Jobs that one process does at once, as this process is configured (`rollout.concurrency`).
    pub per_process: u64,
    /// Processes that would do all of it at once.
    pub wanted: u64,
}

impl ScalingReply {
    /// A row, where a process does so many jobs at once.
    pub fn new(row: ScalingRow, per_process: u64) -> Self {
        let ScalingRow {
            role,
            queued,
            running,
            to_begin,
            open,
        } = row;
        let per_process = per_process.max(1);
        Self {
            role,
            queued,
            running,
            to_begin,
            open,
            per_process,
            wanted: open.div_ceil(per_process),
        }
    }
}

/// What waits, runs and has ended.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct QueuesReply {
    /// Always `list`.
    pub object: &'static str,
    /// The jobs by kind, state and reason.
    pub data: Vec<QueueReply>,
    /// Why nothing is worked on in this process, where that is so.
    pub stopped: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0 of 10 and 5 of 10 as in Brown, Cai and DasGupta 2001, table of Wilson intervals.
    #[test]
    fn intervals_are_those_of_wilson() {
        let near =
            |a: [f64; 2], b: [f64; 2]| (a[0] - b[0]).abs() < 5e-4 && (a[1] - b[1]).abs() < 5e-4;
        assert!(near(wilson(0, 10), [0.0, 0.2775]), "{:?}", wilson(0, 10));
        assert!(near(wilson(5, 10), [0.2366, 0.7634]), "{:?}", wilson(5, 10));
        assert_eq!(wilson(0, 0), [0.0, 1.0]);
    }
}
