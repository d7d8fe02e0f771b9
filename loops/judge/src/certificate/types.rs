//! The form of a certificate.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Which state of the files a line is from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Version {
    /// Before the change.
    Before,
    /// After it.
    #[default]
    After,
}

/// What a test does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ends {
    /// It passes.
    Pass,
    /// It fails.
    Fail,
}

/// The argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// What stands where.
    pub premises: Vec<Premise>,
    /// What each test does.
    pub tests: Vec<TestTrace>,
    /// Pass where every test passes.
    pub conclusion: Ends,
    /// A test that fails, where the conclusion is that one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counterexample: Option<String>,
}

/// Lines of a file, quoted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Premise {
    /// Its name.
    pub id: String,
    /// The file.
    pub file: String,
    /// Before or after the change.
    #[serde(default)]
    pub version: Version,
    /// The first line, from 1.
    pub line_from: usize,
    /// The last line.
    pub line_to: usize,
    /// The lines as they are.
    pub quote: String,
    /// What it says, for people.
    #[serde(default)]
    pub claim: String,
}

/// The way of one test through the code after the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestTrace {
    /// The test.
    pub id: String,
    /// What runs, in order.
    pub steps: Vec<Step>,
    /// How it ends.
    pub claim: Ends,
}

/// One line that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// A premise of exactly that line.
    pub premise: String,
    /// How it got there.
    pub via: Via,
    /// Whole numbers that names have after it; `return` is what the line returns.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub binds: BTreeMap<String, i64>,
    /// Whether an assertion holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<bool>,
}

/// How a step follows from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// The test begins.
    Start,
    /// Further down in the same function.
    Next,
    /// Into a function that the line before calls.
    Call,
    /// Back to the line that called.
    Return,
}

/// Why there is nothing to certify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The completion proposes no change that could be read.
    NoChange(String),
    /// The change does not fit the files.
    DoesNotApply(String),
    /// The change is more than can be followed.
    TooLarge(String),
}
