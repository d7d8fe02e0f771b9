//! Bodies of task sets.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hone_domain::{
    Digest, TASK_BYTES_MAX, TASK_FILES_MAX, TASKS_MAX, TaskManifest, TaskSpec, is_inside,
};
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
#[serde(untagged, expecting = "a file is a text, or {\"base64\": \"...\"}")]
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
            Err(error) => Self::bytes_of(error.as_bytes()),
        }
    }

    /// Bytes as they are sent.
    pub fn bytes_of(bytes: &[u8]) -> Self {
        Self::Bytes {
            base64: STANDARD.encode(bytes),
        }
    }

    pub(crate) fn bytes(self) -> Result<Vec<u8>, String> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Bytes { base64 } => STANDARD.decode(base64).map_err(|error| error.to_string()),
        }
    }
}

/// A file of a task: its content, or the SHA-256 of one that is in the set or among `files`.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(
    untagged,
    expecting = "a file is a text, {\"base64\": \"...\"} or {\"sha256\": \"64 hexadecimal digits\"}"
)]
pub enum TaskFile {
    /// Its content.
    Content(FileContent),
    /// A content that stands elsewhere.
    Shared {
        /// Its SHA-256 in hexadecimal digits.
        #[schema(value_type = String)]
        sha256: Digest,
    },
}

impl From<FileContent> for TaskFile {
    fn from(content: FileContent) -> Self {
        Self::Content(content)
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
    pub environment: BTreeMap<String, TaskFile>,
    /// Files that decide whether it is solved; `test.sh` is run in the work folder once the agent has ended. It writes
    /// a number from 0 to 1 to `/logs/verifier/reward.txt`, or to the field `reward` of `reward.json` there; without
    /// either, its exit code 0 is a reward of 1 and any other one of 0.
    #[serde(default)]
    pub tests: BTreeMap<String, TaskFile>,
    /// Files that solve it; `solve.sh` is run to check the task. May be left out.
    #[serde(default)]
    pub solution: BTreeMap<String, TaskFile>,
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
    /// Contents that its tasks share. A task names one by its SHA-256.
    #[serde(default)]
    pub files: Vec<FileContent>,
    /// Its tasks, at most 2000. More can be added later.
    #[serde(default)]
    pub tasks: Vec<TaskRequest>,
    /// The share of tasks that is kept to measure on, from 0 to 1; 0.2 if absent.
    pub held_out_share: Option<f64>,
}

/// Tasks to be added to a set.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TasksRequest {
    /// Contents that tasks share, of this request or of later ones. A task names one by its SHA-256.
    #[serde(default)]
    pub files: Vec<FileContent>,
    /// The tasks; a set has at most 2000.
    #[serde(default)]
    pub tasks: Vec<TaskRequest>,
    /// The share of them that is kept to measure on, from 0 to 1; 0.2 if absent.
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
    pub files: TaskManifest,
}

/// Tasks that were checked as far as their request tells.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedTasks {
    /// The share that is kept to measure on.
    pub held_out_share: f64,
    /// The tasks.
    pub tasks: Vec<CheckedTask>,
    /// Contents by their SHA-256.
    pub contents: BTreeMap<Digest, Vec<u8>>,
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
    /// Checks the set, which has a name and tasks; the message names the field.
    ///
    /// # Errors
    /// The first field that cannot be.
    pub fn checked(self) -> Result<(String, CheckedTasks), RequestError> {
        let name = named("name", &self.name)?;
        let tasks = TasksRequest {
            files: self.files,
            tasks: self.tasks,
            held_out_share: self.held_out_share,
        };
        Ok((name, tasks.checked(&BTreeMap::new())?))
    }
}

impl TasksRequest {
    /// The contents that its tasks name.
    pub fn named_contents(&self) -> Vec<Digest> {
        let folders = self
            .tasks
            .iter()
            .flat_map(|task| [&task.environment, &task.tests, &task.solution]);
        let named = folders
            .flat_map(BTreeMap::values)
            .filter_map(|file| match file {
                TaskFile::Shared { sha256 } => Some(*sha256),
                TaskFile::Content(_) => None,
            });
        let named: BTreeSet<Digest> = named.collect();
        named.into_iter().collect()
    }

    /// Checks the tasks; the message names the field. `stored` are bytes of contents that the set has.
    ///
    /// # Errors
    /// The first field that cannot be.
    pub fn checked(self, stored: &BTreeMap<Digest, u64>) -> Result<CheckedTasks, RequestError> {
        let share = self.held_out_share.unwrap_or(HELD_OUT_SHARE);
        if !(0.0..=1.0).contains(&share) {
            let why = "held_out_share must be from 0 to 1";
            return Err(RequestError::invalid("held_out_share", why));
        }
        if self.tasks.len() > TASKS_MAX {
            let why = format!(
                "a set has at most {TASKS_MAX} tasks, not {}",
                self.tasks.len()
            );
            return Err(RequestError::invalid("tasks", why));
        }
        let mut contents = Contents {
            stored,
            new: BTreeMap::new(),
        };
        for (at, content) in self.files.into_iter().enumerate() {
            let wrong = |why| RequestError::invalid(format!("files[{at}]"), why);
            contents.add(content).map_err(wrong)?;
        }
        let mut tasks = Vec::with_capacity(self.tasks.len());
        let mut names = BTreeSet::new();
        for (at, task) in self.tasks.into_iter().enumerate() {
            let task = task.checked(at, &mut contents)?;
            if !names.insert(task.name.clone()) {
                let why = format!("two tasks are named {:?}", task.name);
                return Err(RequestError::invalid(format!("tasks[{at}].name"), why));
            }
            tasks.push(task);
        }
        Ok(CheckedTasks {
            held_out_share: share,
            tasks,
            contents: contents.new,
        })
    }
}

/// Contents that tasks may name.
struct Contents<'a> {
    /// Bytes of those in the set.
    stored: &'a BTreeMap<Digest, u64>,
    /// Those of this request.
    new: BTreeMap<Digest, Vec<u8>>,
}

impl Contents<'_> {
    fn add(&mut self, content: FileContent) -> Result<(Digest, u64), String> {
        let bytes = content.bytes()?;
        let (digest, length) = (Digest::of(&bytes), bytes.len() as u64);
        self.new.entry(digest).or_insert(bytes);
        Ok((digest, length))
    }

    /// What a file is, and its bytes.
    fn of(&mut self, file: TaskFile) -> Result<(Digest, u64), String> {
        match file {
            TaskFile::Content(content) => self.add(content),
            TaskFile::Shared { sha256 } => {
                let new = self.new.get(&sha256).map(|content| content.len() as u64);
                let bytes = new.or_else(|| self.stored.get(&sha256).copied());
                let bytes = bytes.ok_or_else(|| {
                    format!("no content of the SHA-256 {sha256} is in the set or in files")
                })?;
                Ok((sha256, bytes))
            }
        }
    }
}

/// The paths of a folder, where they can be some.
fn paths(files: &BTreeMap<String, TaskFile>) -> Result<(), String> {
    for path in files.keys() {
        if !is_inside(path) {
            return Err(format!(
                "{path:?} is no path below the task's folder: no leading slash, no .."
            ));
        }
        let below = format!("{path}/");
        let next = files.range(below.clone()..).next();
        if next.is_some_and(|(other, _)| other.starts_with(&below)) {
            return Err(format!("{path:?} is a file and a folder"));
        }
    }
    Ok(())
}

/// The files of a task, where they can be some; `wrong` says what is wrong with a field.
fn files(
    folders: [BTreeMap<String, TaskFile>; 3],
    contents: &mut Contents<'_>,
    wrong: &dyn Fn(&str, String) -> RequestError,
) -> Result<TaskManifest, RequestError> {
    let mut bytes = 0;
    let mut folder = |field: &str, files: BTreeMap<String, TaskFile>| {
        paths(&files).map_err(|why| wrong(field, why))?;
        let files = files.into_iter().map(|(path, file)| {
            let (digest, length) = contents
                .of(file)
                .map_err(|why| wrong(field, format!("{path}: {why}")))?;
            bytes += path.len() as u64 + length;
            Ok((path, digest))
        });
        files.collect::<Result<BTreeMap<String, Digest>, RequestError>>()
    };
    let [environment, tests, solution] = folders;
    let files = TaskManifest {
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
    if bytes > TASK_BYTES_MAX || files.count() > TASK_FILES_MAX {
        let why = format!(
            "a task has at most {TASK_FILES_MAX} files of {TASK_BYTES_MAX} bytes together; this one has {} of {bytes}",
            files.count(),
        );
        return Err(wrong("environment", why));
    }
    Ok(files)
}

impl TaskRequest {
    fn checked(self, at: usize, contents: &mut Contents<'_>) -> Result<CheckedTask, RequestError> {
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
        let folders = [self.environment, self.tests, self.solution];
        let files = files(folders, contents, &wrong)?;
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

    fn set(task: &Value) -> Result<(String, CheckedTasks), String> {
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
        let (name, checked) = set(&json!({
            "environment": {"a/b.txt": "x", "bin": {"base64": "AP8="}, "c": "x"},
        }))
        .unwrap();
        assert_eq!((name.as_str(), checked.held_out_share), ("set", 0.2));
        assert_eq!(checked.tasks.len(), 1);
        assert_eq!(checked.tasks[0].spec.agent_seconds, 600);
        let bin = checked.tasks[0].files.environment["bin"];
        assert_eq!(checked.contents[&bin], [0, 255]);
        // "x" twice, bin, and test.sh.
        assert_eq!(checked.contents.len(), 3);
    }

    #[test]
    fn a_content_is_named_by_its_digest() {
        let (here, there) = (Digest::of(b"here"), Digest::of(b"there"));
        let body = json!({
            "files": ["here"],
            "tasks": [{
                "name": "a", "instruction": "Do it.", "tests": {"test.sh": {"sha256": here}},
                "environment": {"b": {"sha256": there}, "c": {"sha256": there}},
            }],
        });
        let request: TasksRequest = serde_json::from_value(body).unwrap();
        let named = BTreeSet::from_iter(request.named_contents());
        assert_eq!(named, BTreeSet::from([here, there]));
        let checked = request.clone().checked(&BTreeMap::from([(there, 5)]));
        let checked = checked.unwrap();
        assert_eq!(checked.tasks[0].files.environment["b"], there);
        assert_eq!(checked.contents[&here], b"here");
        let why = request.clone().checked(&BTreeMap::new()).unwrap_err();
        assert!(why.to_string().contains("b: no content of the SHA-256"));
        // What is stored counts as much as what is sent.
        let much = BTreeMap::from([(there, TASK_BYTES_MAX / 2)]);
        let why = request.checked(&much).unwrap_err().to_string();
        assert!(why.contains("at most 5000 files"), "{why}");
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
                json!({"environment": {"a": {"sha256": "12"}}}),
                "64 hexadecimal digits",
            ),
            (
                json!({"environment": {"a": "x".repeat(TASK_BYTES_MAX as usize)}}),
                "at most 5000 files",
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
