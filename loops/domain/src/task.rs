//! Tasks that agents try, and orders to try them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Digest;

/// Most tasks of a set.
pub const TASKS_MAX: usize = 2_000;
/// Most bytes of the files of one task, with their paths.
pub const TASK_BYTES_MAX: u64 = 16 << 20;
/// Most files of one task.
pub const TASK_FILES_MAX: usize = 5_000;
/// Most bytes of a set: contents, each once, and what says of each task which are its files.
pub const TASK_SET_BYTES_MAX: u64 = 1 << 30;
/// Most episodes of one group.
pub const ATTEMPTS_MAX: u32 = 64;
/// Most groups of one rollout.
pub const GROUPS_MAX: u32 = 10_000;

/// What an agent is asked to do, and how long it may take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskSpec {
    /// What the agent is told.
    pub instruction: String,
    /// The file that an agent's only answer is written to, for agents that answer once.
    pub answer_file: Option<String>,
    /// How long the agent may take.
    pub agent_seconds: u64,
    /// How long the tests may take.
    pub verifier_seconds: u64,
}

/// Files of a task by their paths, each relative to its folder, with what stands for a content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskFolders<C> {
    /// What lies in the agent's work folder when it begins.
    pub environment: BTreeMap<String, C>,
    /// What decides whether it is solved; put there once the agent has ended. `test.sh` is run.
    pub tests: BTreeMap<String, C>,
    /// What solves it: `solve.sh` is run. Empty where nobody wrote one.
    pub solution: BTreeMap<String, C>,
}

/// The files of a task with their contents.
pub type TaskFiles = TaskFolders<Vec<u8>>;
/// The files of a task with the SHA-256 of their contents, which are stored once in a set.
pub type TaskManifest = TaskFolders<Digest>;

impl<C> Default for TaskFolders<C> {
    fn default() -> Self {
        Self {
            environment: BTreeMap::new(),
            tests: BTreeMap::new(),
            solution: BTreeMap::new(),
        }
    }
}

impl<C> TaskFolders<C> {
    /// How many they are.
    pub fn count(&self) -> usize {
        self.all().count()
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = (&String, &C)> {
        let folders = [&self.environment, &self.tests, &self.solution];
        folders.into_iter().flatten()
    }

    /// The same files with what else stands for their contents.
    ///
    /// # Errors
    /// The first content that has none.
    pub fn try_map<D, E>(
        self,
        mut other: impl FnMut(C) -> Result<D, E>,
    ) -> Result<TaskFolders<D>, E> {
        let mut folder = |files: BTreeMap<String, C>| {
            let files = files.into_iter();
            files
                .map(|(path, content)| Ok((path, other(content)?)))
                .collect::<Result<BTreeMap<_, _>, E>>()
        };
        Ok(TaskFolders {
            environment: folder(self.environment)?,
            tests: folder(self.tests)?,
            solution: folder(self.solution)?,
        })
    }
}

/// Whether a path stays below the folder that it is in.
pub fn is_inside(path: &str) -> bool {
    let part_is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.len() <= 255 && !path.contains(['\0', '\\']) && path.split('/').all(part_is_plain)
}

/// What is known of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// It was not checked yet.
    New,
    /// Its solution passes, and doing nothing does not.
    Ready,
    /// The check says that it cannot tell a solution from none.
    Refused,
    /// Its episodes failed again and again for no fault of the agent.
    Quarantined,
}

impl TaskState {
    /// The stored name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Ready => "ready",
            Self::Refused => "refused",
            Self::Quarantined => "quarantined",
        }
    }
}

/// Who tries tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentKind {
    /// The served model with a shell: it calls `bash` until it calls `submit`.
    Bash,
    /// The served model's one answer, written to the task's answer file.
    Answer,
    /// A program in the jail, which asks the served model by HTTP.
    Command,
}

/// Most bytes of the line that starts an agent.
const COMMAND_BYTES_MAX: usize = 16_384;

/// How tasks are tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutSpec {
    /// Who tries.
    pub agent: AgentKind,
    /// The line for the shell that starts the program, where that is who tries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Attempts per group, compared with each other.
    pub attempts: u32,
    /// Groups in all.
    pub groups: u32,
    /// It only measures: on held-out tasks, and nothing is learned from it.
    pub evaluates: bool,
    /// The version that answers; the newest where none is named, and 0 is the base model.
    pub version: Option<u64>,
    /// Most steps of an agent.
    pub steps_max: u32,
    /// Most tokens of a step.
    pub tokens_max: u32,
    /// Temperature.
    pub temperature: f32,
}

impl RolloutSpec {
    /// Checks what types cannot; the message names the field.
    ///
    /// # Errors
    /// The first field that cannot be.
    pub fn validate(&self) -> Result<(), String> {
        let counts = [
            ("attempts", self.attempts, ATTEMPTS_MAX),
            ("groups", self.groups, GROUPS_MAX),
            ("steps_max", self.steps_max, 1_000),
            ("tokens_max", self.tokens_max, 1 << 20),
        ];
        for (name, count, most) in counts {
            if !(1..=most).contains(&count) {
                return Err(format!("{name} must be from 1 to {most}"));
            }
        }
        if !(0.0..=2.0).contains(&self.temperature) {
            return Err("temperature must be from 0 to 2".to_owned());
        }
        match (self.agent, &self.command) {
            (AgentKind::Command, None) => {
                return Err("command must say how the agent is started".to_owned());
            }
            (AgentKind::Command, Some(line)) => {
                if line.trim().is_empty() || line.len() > COMMAND_BYTES_MAX || line.contains('\0') {
                    return Err(format!(
                        "command must be a line for the shell of at most {COMMAND_BYTES_MAX} bytes"
                    ));
                }
            }
            (_, Some(_)) => return Err("command is for \"agent\": \"command\"".to_owned()),
            (_, None) => {}
        }
        if self.evaluates {
            return Ok(());
        }
        if self.attempts < 2 {
            return Err(
                "attempts must be at least 2, because attempts at a task are compared with each other; \
                 with \"evaluate\": true one is enough"
                    .to_owned(),
            );
        }
        if self.temperature < 0.01 {
            return Err("temperature must be above 0: at 0 all attempts are the same".to_owned());
        }
        if self.version.is_some() {
            return Err(
                "version is for \"evaluate\": true; what is learned from is answered by the newest"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// How much a task teaches at present: the variance of its success, 1 at a half, with one success and one failure added;
/// tasks nobody tried teach most.
pub fn learnability(tries: u64, passes: f64) -> f64 {
    let success = (passes + 1.0) / (tries as f64 + 2.0);
    4.0 * success * (1.0 - success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for good in ["a", "a/b.py", ".hidden", "a..b/c"] {
            assert!(is_inside(good), "{good}");
        }
        for bad in [
            "",
            "/a",
            "../a",
            "a/../../b",
            "a//b",
            "./a",
            "a/",
            "a\0b",
            "a\\b",
            ".",
        ] {
            assert!(!is_inside(bad), "{bad:?}");
        }
        assert!(!is_inside(&"a/".repeat(200)));
    }

    #[test]
    fn what_is_half_solved_teaches_most() {
        assert_eq!(learnability(0, 0.0), 1.0);
        assert_eq!(learnability(8, 4.0), 1.0);
        assert!(learnability(8, 8.0) < learnability(8, 6.0));
        assert!(learnability(8, 0.0) < learnability(4, 0.0));
        assert!((learnability(8, 0.0) - learnability(8, 8.0)).abs() < 1e-12);
    }

    #[test]
    fn an_order_that_can_teach_nothing_is_refused() {
        let spec = RolloutSpec {
            agent: AgentKind::Bash,
            command: None,
            attempts: 4,
            groups: 1,
            evaluates: false,
            version: None,
            steps_max: 8,
            tokens_max: 256,
            temperature: 1.0,
        };
        assert_eq!(spec.validate(), Ok(()));
        type Change = fn(&mut RolloutSpec);
        let rows: [(Change, &str); 9] = [
            (|s| s.attempts = 1, "attempts must be at least 2"),
            (|s| s.attempts = 65, "attempts must be from 1 to 64"),
            (|s| s.groups = 0, "groups must be from 1"),
            (|s| s.temperature = 0.0, "temperature must be above 0"),
            (|s| s.temperature = f32::NAN, "temperature must be from 0"),
            (|s| s.version = Some(0), "version is for"),
            (|s| s.command = Some("x".to_owned()), "command is for"),
            (|s| s.agent = AgentKind::Command, "command must say"),
            (
                |s| {
                    s.agent = AgentKind::Command;
                    s.command = Some(" ".to_owned());
                },
                "command must be a line",
            ),
        ];
        for (change, says) in rows {
            let mut bad = spec.clone();
            change(&mut bad);
            assert!(bad.validate().unwrap_err().contains(says), "{says}");
        }
        let measured = RolloutSpec {
            attempts: 1,
            evaluates: true,
            version: Some(0),
            temperature: 0.0,
            ..spec
        };
        assert_eq!(measured.validate(), Ok(()));
    }
}
