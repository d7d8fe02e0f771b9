//! Bodies of task sets, rollouts, episodes and queues.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hone_domain::{
    AgentKind, Job, RolloutSpec, TASK_BYTES_MAX, TASK_FILES_MAX, TASKS_MAX, TaskFiles, TaskSpec,
    is_inside,
};
use hone_ledger::{QueueRow, RolloutRow, TaskRow, TaskSetRow};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::RequestError;

/// Longest name of a set or a task, in bytes.
const NAME_BYTES_MAX: usize = 200;
/// Longest instruction, in bytes.
const INSTRUCTION_BYTES_MAX: usize = 100_000;
/// Longest times of agent and tests, in seconds.
const SECONDS_MAX: u64 = 24 * 60 * 60;
/// The times where nothing is said.
const AGENT_SECONDS: u64 = 600;
const VERIFIER_SECONDS: u64 = 600;
/// The share of tasks that is kept to measure on where nothing is said.
const HELD_OUT_SHARE: f64 = 0.2;

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

/// The content of a file: a text, or bytes in base64.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
pub enum FileContent {
    /// A text in UTF-8.
    Text(String),
    /// Any bytes.
    Bytes {
        /// The bytes in base64.
        base64: String,
    },
}

impl FileContent {
    /// A file as it is sent.
    pub fn of(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Bytes {
                base64: STANDARD.encode(error.as_bytes()),
            },
        }
    }

    fn bytes(self) -> Result<Vec<u8>, String> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Bytes { base64 } => STANDARD.decode(base64).map_err(|error| error.to_string()),
        }
    }
}

/// A task to be added.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// Its name; once in its set.
    pub name: String,
    /// What the agent is asked to do.
    pub instruction: String,
    /// Files of the agent's work folder, by path.
    #[serde(default)]
    pub environment: BTreeMap<String, FileContent>,
    /// Files that decide whether it is solved; `test.sh` is run in the work folder once the agent has ended. It writes
    /// a number from 0 to 1 to `/logs/verifier/reward.txt`, or to the field `reward` of `reward.json` there; without
    /// either, its exit code 0 is a reward of 1 and any other one of 0.
    #[serde(default)]
    pub tests: BTreeMap<String, FileContent>,
    /// Files that solve it; `solve.sh` is run to check the task. May be left out.
    #[serde(default)]
    pub solution: BTreeMap<String, FileContent>,
    /// The file that the last block of code in the answer of the agent `answer` is written to; without it the whole answer
    /// is written to `answer.txt`.
    pub answer_file: Option<String>,
    /// How long the agent may take, in seconds; 600 if absent.
    pub agent_seconds: Option<u64>,
    /// How long the tests may take, in seconds; 600 if absent.
    pub verifier_seconds: Option<u64>,
    /// Whether it is kept to measure on; drawn by its name if absent.
    pub held_out: Option<bool>,
}

/// Tasks to be added under one name.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskSetRequest {
    /// Its name.
    pub name: String,
    /// Its tasks, 1 to 2000.
    pub tasks: Vec<TaskRequest>,
    /// The share of tasks that is kept to measure on, from 0 to 1; 0.2 if absent.
    pub held_out_share: Option<f64>,
}

/// A task that was checked as far as its request tells.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedTask {
    /// Its name.
    pub name: String,
    /// Whether it is kept to measure on, where the request says.
    pub held_out: Option<bool>,
    /// What is asked.
    pub spec: TaskSpec,
    /// Its files.
    pub files: TaskFiles,
}

fn named(param: &str, name: &str) -> Result<String, RequestError> {
    let name = name.trim();
    match name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(char::is_control) {
        true => Err(RequestError::invalid(
            param,
            format!("{param} must have 1 to {NAME_BYTES_MAX} bytes and no control characters"),
        )),
        false => Ok(name.to_owned()),
    }
}

impl TaskSetRequest {
    /// Checks the set; the message names the field.
    ///
    /// # Errors
    /// The first field that cannot be.
    pub fn checked(self) -> Result<(String, f64, Vec<CheckedTask>), RequestError> {
        let name = named("name", &self.name)?;
        let share = self.held_out_share.unwrap_or(HELD_OUT_SHARE);
        if !(0.0..=1.0).contains(&share) {
            let why = "held_out_share must be from 0 to 1";
            return Err(RequestError::invalid("held_out_share", why));
        }
        if !(1..=TASKS_MAX).contains(&self.tasks.len()) {
            let why = format!("a set has 1 to {TASKS_MAX} tasks, not {}", self.tasks.len());
            return Err(RequestError::invalid("tasks", why));
        }
        let mut tasks = Vec::with_capacity(self.tasks.len());
        let mut names = std::collections::BTreeSet::new();
        for (at, task) in self.tasks.into_iter().enumerate() {
            let task = task.checked(at)?;
            if !names.insert(task.name.clone()) {
                let why = format!("two tasks are named {:?}", task.name);
                return Err(RequestError::invalid(format!("tasks[{at}].name"), why));
            }
            tasks.push(task);
        }
        Ok((name, share, tasks))
    }
}

impl TaskRequest {
    fn checked(self, at: usize) -> Result<CheckedTask, RequestError> {
        let param = |field: &str| format!("tasks[{at}].{field}");
        let name = named(&param("name"), &self.name)?;
        let wrong = |field: &str, why: String| RequestError::invalid(param(field), why);
        if self.instruction.trim().is_empty() || self.instruction.len() > INSTRUCTION_BYTES_MAX {
            let why = format!("instruction must have 1 to {INSTRUCTION_BYTES_MAX} bytes");
            return Err(wrong("instruction", why));
        }
        let seconds = |field: &str, wanted: Option<u64>, usual: u64| {
            let seconds = wanted.unwrap_or(usual);
            match (1..=SECONDS_MAX).contains(&seconds) {
                true => Ok(seconds),
                false => Err(wrong(
                    field,
                    format!("{field} must be from 1 to {SECONDS_MAX}"),
                )),
            }
        };
        let folder = |field: &str, files: BTreeMap<String, FileContent>| {
            let files = files.into_iter().map(|(path, content)| {
                if !is_inside(&path) {
                    let why = format!(
                        "{path:?} is no path below the task's folder: no leading slash, no .."
                    );
                    return Err(wrong(field, why));
                }
                let bytes = content
                    .bytes()
                    .map_err(|why| wrong(field, format!("{path}: {why}")))?;
                Ok((path, bytes))
            });
            files.collect::<Result<BTreeMap<String, Vec<u8>>, RequestError>>()
        };
        let files = TaskFiles {
            environment: folder("environment", self.environment)?,
            tests: folder("tests", self.tests)?,
            solution: folder("solution", self.solution)?,
        };
        if !files.tests.contains_key("test.sh") {
            return Err(wrong(
                "tests",
                "a task needs tests/test.sh, which says whether it is solved".to_owned(),
            ));
        }
        if !files.solution.is_empty() && !files.solution.contains_key("solve.sh") {
            return Err(wrong(
                "solution",
                "a solution needs solve.sh, which is run".to_owned(),
            ));
        }
        if files.bytes() > TASK_BYTES_MAX || files.count() > TASK_FILES_MAX {
            let why = format!(
                "a task has at most {TASK_FILES_MAX} files of {TASK_BYTES_MAX} bytes together; this one has {} of {}",
                files.count(),
                files.bytes()
            );
            return Err(wrong("environment", why));
        }
        if let Some(file) = self.answer_file.as_deref().filter(|file| !is_inside(file)) {
            let why = format!("{file:?} is no path below the work folder");
            return Err(wrong("answer_file", why));
        }
        let spec = TaskSpec {
            instruction: self.instruction,
            answer_file: self.answer_file,
            agent_seconds: seconds("agent_seconds", self.agent_seconds, AGENT_SECONDS)?,
            verifier_seconds: seconds("verifier_seconds", self.verifier_seconds, VERIFIER_SECONDS)?,
        };
        Ok(CheckedTask {
            name,
            held_out: self.held_out,
            spec,
            files,
        })
    }
}

/// A task set.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TaskSetReply {
    /// Always `task_set`.
    pub object: &'static str,
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// When it was added, in milliseconds since the Unix epoch.
    pub created_ms: i64,
    /// How many tasks it has.
    pub tasks: u64,
    /// How many of them are kept to measure on.
    pub held_out: u64,
    /// How many are `new` (being checked), `ready`, `refused` or `quarantined`.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub states: BTreeMap<&'static str, u64>,
}

impl From<TaskSetRow> for TaskSetReply {
    fn from(row: TaskSetRow) -> Self {
        let states = row.states.iter();
        Self {
            object: "task_set",
            id: row.id.prefixed(),
            name: row.name,
            created_ms: row.created_ms,
            tasks: row.states.values().sum(),
            held_out: row.held_out,
            states: states
                .map(|(state, count)| (state.as_str(), *count))
                .collect(),
        }
    }
}

/// A task of a set.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TaskReply {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What the agent is asked to do.
    pub instruction: String,
    /// Whether it is kept to measure on.
    pub held_out: bool,
    /// Whether somebody wrote a solution.
    pub has_solution: bool,
    /// `new` (being checked), `ready`, `refused` or `quarantined`.
    pub state: &'static str,
    /// Why.
    pub note: Option<String>,
    /// Its newest episodes that have a reward, at most 16.
    pub tries: u64,
    /// The mean of their rewards; null without any.
    pub mean_reward: Option<f64>,
}

impl From<TaskRow> for TaskReply {
    fn from(row: TaskRow) -> Self {
        Self {
            id: row.id.prefixed(),
            name: row.name,
            instruction: row.spec.instruction,
            held_out: row.held_out,
            has_solution: row.has_solution,
            state: row.state.as_str(),
            note: row.note,
            tries: row.tries,
            mean_reward: (row.tries > 0).then(|| row.rewards / row.tries as f64),
        }
    }
}

/// A task set with its tasks.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TaskSetDetail {
    /// The set.
    #[serde(flatten)]
    pub set: TaskSetReply,
    /// Its tasks by name.
    pub data: Vec<TaskReply>,
}

/// How tasks are to be tried.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RolloutRequest {
    /// Id of the task set.
    pub task_set: String,
    /// Who tries: `bash` (the served model with a shell) or `answer` (its one answer is the task's answer file).
    #[schema(value_type = Option<String>)]
    pub agent: Option<AgentKind>,
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
            agent: self.agent.unwrap_or(AgentKind::Bash),
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
            reason: job.reason.map(|reason| reason.as_str()),
            reward: job.reward,
            version: job.version,
            session_id: job.session.map(|session| session.prefixed()),
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
            reason: row.reason.map(|reason| reason.as_str()),
            count: row.count,
            oldest_ms: row.oldest_ms,
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
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn set(task: Value) -> Result<(String, f64, Vec<CheckedTask>), String> {
        let mut whole = json!({
            "name": "a", "instruction": "Do it.", "tests": {"test.sh": "exit 0"},
        });
        for (key, value) in task.as_object().unwrap() {
            whole[key] = value.clone();
        }
        let set = json!({"name": "set", "tasks": [whole]});
        let set: TaskSetRequest = serde_json::from_value(set).map_err(|e| e.to_string())?;
        set.checked().map_err(|error| error.to_string())
    }

    #[test]
    fn a_task_is_taken_with_its_defaults() {
        let (name, share, tasks) = set(json!({
            "environment": {"a/b.txt": "x", "bin": {"base64": "AP8="}},
        }))
        .unwrap();
        assert_eq!((name.as_str(), share, tasks.len()), ("set", 0.2, 1));
        assert_eq!(tasks[0].spec.agent_seconds, 600);
        assert_eq!(tasks[0].files.environment["bin"], [0, 255]);
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (task, says) in [
            (json!({"instruction": " "}), "instruction must have"),
            (json!({"tests": {}}), "tests/test.sh"),
            (json!({"solution": {"a": ""}}), "solve.sh"),
            (json!({"environment": {"../a": ""}}), "no leading slash"),
            (json!({"environment": {"/etc/a": ""}}), "no leading slash"),
            (json!({"environment": {"a": {"base64": "!"}}}), "a: "),
            (
                json!({"environment": {"a": "x".repeat(TASK_BYTES_MAX)}}),
                "at most 1000 files",
            ),
            (json!({"agent_seconds": 0}), "agent_seconds must be"),
            (json!({"answer_file": "../x"}), "below the work folder"),
            (json!({"name": "\n"}), "no control characters"),
            (json!({"foo": 1}), "unknown field"),
        ] {
            let why = set(task.clone()).unwrap_err();
            assert!(why.contains(says), "{task}: {why}");
        }
    }

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
