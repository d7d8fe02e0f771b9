//! Checks: what can be told about a completion without anybody's opinion.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What of a transition a check looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// What the completion says, without reasoning and calls.
    #[default]
    Answer,
    /// The arguments of the completion's call.
    Call,
    /// What a tool or an environment answered.
    Result,
}

/// How it is checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Verifier {
    /// The exit code that a result states is 0.
    ExitCode {},
    /// A result is the report of a test run (JUnit XML, or what common runners print) in which
    /// tests passed and none failed.
    TestReport {},
    /// The subject is JSON that fits a schema.
    JsonSchema {
        /// The schema; references go to itself only.
        schema: Value,
        /// What has to fit.
        #[serde(default)]
        of: Subject,
    },
    /// A regular expression is found in the subject.
    Regex {
        /// The expression.
        pattern: String,
        /// Where it is looked for.
        #[serde(default)]
        of: Subject,
    },
    /// The final answer is this text, apart from space around it.
    Exact {
        /// The text.
        expected: String,
        /// Whether case is without regard.
        #[serde(default)]
        ignore_case: bool,
        /// What it is the answer of.
        #[serde(default)]
        of: Subject,
    },
    /// The final answer is this number.
    Numeric {
        /// The number.
        expected: f64,
        /// Largest difference.
        #[serde(default)]
        tolerance: f64,
        /// What it is the answer of.
        #[serde(default)]
        of: Subject,
    },
    /// Somebody else says it, asked over HTTP. Only the configuration may name one.
    Callback {
        /// Where.
        url: String,
        /// Environment variable that holds the secret which signs the request.
        secret_env: String,
        /// How long it may take.
        deadline_ms: u64,
    },
    /// The completion changes code; the judge's model argues test by test what the change does, and
    /// the argument is checked against the code.
    Certificate {
        /// The files before the change.
        files: Vec<SourceFile>,
        /// The tests that it has to pass.
        tests: Vec<TestPlace>,
    },
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    /// Its path, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// Where a test begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestPlace {
    /// Its name.
    pub id: String,
    /// The file it is in.
    pub file: String,
    /// The line that names it, from 1, in the file after the change.
    pub line: usize,
}

/// A verifier under its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Its name; it stands before the evidence.
    pub name: String,
    /// How it is checked.
    pub verifier: Verifier,
}

impl Verifier {
    /// Whether it says something before the world answers: it looks at the completion alone.
    pub fn needs_no_answer(&self) -> bool {
        match self {
            Self::ExitCode {} | Self::TestReport {} => false,
            Self::JsonSchema { of, .. }
            | Self::Regex { of, .. }
            | Self::Exact { of, .. }
            | Self::Numeric { of, .. } => *of != Subject::Result,
            Self::Callback { .. } => false,
            Self::Certificate { .. } => true,
        }
    }
}
