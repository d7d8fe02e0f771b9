//! A command and what came of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Most bytes that a command is given on its standard input.
pub const STDIN_BYTES_MAX: usize = 8 << 20;
/// Most bytes of one stream that a result holds.
pub const OUTPUT_BYTES_MAX: usize = 8 << 20;

/// What runs: a program with its arguments, or a line for the shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// A program, found along `PATH`, and its arguments.
    Argv(Vec<String>),
    /// A line for bash, or for sh where there is no bash.
    Shell(String),
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// What runs.
    pub program: Program,
    /// Where it runs, from the work folder; the work folder itself when absent.
    pub cwd: Option<String>,
    /// Variables beside those of the jail.
    pub env: BTreeMap<String, String>,
    /// Its standard input, at most [`STDIN_BYTES_MAX`].
    pub stdin: Vec<u8>,
    /// How long it may run. Then it and all of its descendants are killed.
    pub timeout: Duration,
    /// Bytes of each output stream that are kept: the first half and the last half.
    pub output_bytes_max: usize,
    /// Bytes of output after which the command is killed.
    pub output_bytes_killed: u64,
}

impl Command {
    fn new(program: Program) -> Self {
        Self {
            program,
            cwd: None,
            env: BTreeMap::new(),
            stdin: Vec::new(),
            timeout: Duration::from_secs(120),
            output_bytes_max: 64 << 10,
            output_bytes_killed: 64 << 20,
        }
    }

    /// A line for the shell.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new(Program::Shell(line.into()))
    }

    /// A program and its arguments.
    pub fn argv<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self::new(Program::Argv(argv.into_iter().map(Into::into).collect()))
    }

    /// The same command with another timeout.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same command in another folder.
    #[must_use]
    pub fn cwd(mut self, cwd: impl Into<String>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// The same command with a standard input.
    #[must_use]
    pub fn stdin(mut self, stdin: impl Into<Vec<u8>>) -> Self {
        self.stdin = stdin.into();
        self
    }

    /// The same command with one more variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }
}

/// What a command's end means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It ended with exit code 0.
    Ok,
    /// It ended with another code, was killed, or could not start.
    Failed,
    /// The jail was lost. Nobody knows how it ended; this is neither success nor failure and never a reward.
    Unknown,
}

/// Who killed a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KilledBy {
    /// Its timeout, or the end of the jail's time.
    Timeout,
    /// More output than it may write.
    Output,
    /// More memory than the jail may have.
    Memory,
    /// More processes than the jail may have.
    Processes,
    /// The caller.
    Cancelled,
}

/// One output stream of a command: its beginning and its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The first bytes.
    pub head: Vec<u8>,
    /// How many bytes were cut after them.
    pub bytes_cut: u64,
    /// The last bytes; empty when nothing was cut.
    pub tail: Vec<u8>,
}

impl Output {
    /// The text, with a note where bytes were cut.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::from_utf8_lossy(&self.head).into_owned();
        if self.bytes_cut > 0 {
            text.push_str(&format!("\n[{} bytes cut]\n", self.bytes_cut));
        }
        text.push_str(&String::from_utf8_lossy(&self.tail));
        text
    }
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolResult {
    /// What its end means.
    pub outcome: Outcome,
    /// Its exit code, when it ended by itself.
    pub exit: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What it wrote to its standard output.
    pub stdout: Output,
    /// What it wrote to its standard error.
    pub stderr: Output,
    /// How long it ran.
    pub wall_ms: u64,
    /// Who killed it.
    pub killed_by: Option<KilledBy>,
    /// Why it could not start, or why its outcome is unknown.
    pub reason: Option<String>,
}

impl ToolResult {
    /// Bytes of both streams that were cut.
    #[must_use]
    pub fn bytes_cut(&self) -> u64 {
        self.stdout.bytes_cut + self.stderr.bytes_cut
    }

    /// A command whose end nobody knows.
    pub(crate) fn unknown(reason: String, wall_ms: u64) -> Self {
        Self {
            outcome: Outcome::Unknown,
            exit: None,
            signal: None,
            stdout: Output::default(),
            stderr: Output::default(),
            wall_ms,
            killed_by: None,
            reason: Some(reason),
        }
    }

    /// A command that could not start.
    pub(crate) fn not_started(reason: String) -> Self {
        Self {
            outcome: Outcome::Failed,
            ..Self::unknown(reason, 0)
        }
    }
}
