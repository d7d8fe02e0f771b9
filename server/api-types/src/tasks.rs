//! Bodies of task sets.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hone_domain::{TASK_BYTES_MAX, TASK_FILES_MAX, TASKS_MAX, TaskFiles, TaskSpec, is_inside};
use hone_ledger::{TaskRow, TaskSetRow};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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

/// The files of a task, where they can be some; `wrong` says what is wrong with a field.
fn files(
    environment: BTreeMap<String, FileContent>,
    tests: BTreeMap<String, FileContent>,
    solution: BTreeMap<String, FileContent>,
    wrong: &dyn Fn(&str, String) -> RequestError,
) -> Result<TaskFiles, RequestError> {
    let folder = |field: &str, files: BTreeMap<String, FileContent>| {
        let names: Vec<String> = files.keys().cloned().collect();
        let files = files.into_iter().map(|(path, content)| {
            if !is_inside(&path) {
                let why =
                    format!("{path:?} is no path below the task's folder: no leading slash, no ..");
                return Err(wrong(field, why));
            }
            let is_folder = |other: &String| {
                other
                    .strip_prefix(&path)
                    .is_some_and(|rest| rest.starts_with('/'))
            };
            if names.iter().any(is_folder) {
                return Err(wrong(field, format!("{path:?} is a file and a folder")));
            }
            let bytes = content
                .bytes()
                .map_err(|why| wrong(field, format!("{path}: {why}")))?;
            Ok((path, bytes))
        });
        files.collect::<Result<BTreeMap<String, Vec<u8>>, RequestError>>()
    };
    let files = TaskFiles {
        environment: folder("environment", environment)?,
        tests: folder("tests", tests)?,
        solution: folder("solution", solution)?,
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
    Ok(files)
}

impl TaskRequest {
    fn checked(self, at: usize) -> Result<CheckedTask, RequestError> {
        let param = |field: &str| format!("tasks[{at}].{field}");
        let name = named(&param("name"), &self.name)?;
        let wrong = |field: &str, why: String| {
            RequestError::invalid(param(field), format!("task {name:?}: {why}"))
        };
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
        let files = files(self.environment, self.tests, self.solution, &wrong)?;
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Value, json};

    use super::*;

    fn set(task: &Value) -> Result<(String, f64, Vec<CheckedTask>), String> {
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
        let (name, share, tasks) = set(&json!({
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
            (
                json!({"environment": {"a": "", "a/b": ""}}),
                "is a file and a folder",
            ),
            (json!({"agent_seconds": 0}), "agent_seconds must be"),
            (json!({"answer_file": "../x"}), "below the work folder"),
            (json!({"name": "\n"}), "no control characters"),
            (json!({"foo": 1}), "unknown field"),
        ] {
            let why = set(&task).unwrap_err();
            assert!(why.contains(says), "{task}: {why}");
        }
    }
}
