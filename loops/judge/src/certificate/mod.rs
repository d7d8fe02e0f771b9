//! Certificates: an argument, test by test, that a change of code does what its tests want, without
//! running anything. A model writes it; [`check`] believes nothing of it that it cannot see in the
//! sources (after Agentic Code Reasoning's semi-formal certificates; the mechanical check is ours).

mod change;
mod check;
mod follow;
mod pay;
mod types;
mod value;

#[cfg(test)]
#[path = "../../../../tests/bench/src/judge/programs.rs"]
pub(crate) mod corpus;

use hone_domain::{Message, SourceFile, TestPlace};
use uuid::Uuid;

use crate::wording::{fill, messages};

pub use change::{Changed, Hunk};
pub use check::check;
pub use pay::{AuditCount, Buckets, Execute, PayConfig, bucket};
pub use types::{Certificate, Ends, Premise, Step, TestTrace, Unusable, Version, Via};

const SYSTEM: &str = include_str!("../../prompts/certificate.system.txt");
const USER: &str = include_str!("../../prompts/certificate.user.txt");
/// Most bytes of all files, and most files and tests.
const BYTES_MAX: usize = 256 << 10;
const FILES_MAX: usize = 64;
const TESTS_MAX: usize = 64;

/// What a certificate is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The files before and after, and what changed.
    pub changed: Result<Changed, Unusable>,
    /// The tests.
    pub tests: Vec<TestPlace>,
}

/// Whether declared files and tests can be worked with.
pub fn check_sources(files: &[SourceFile], tests: &[TestPlace]) -> Result<(), String> {
    let bytes: usize = files.iter().map(|file| file.text.len()).sum();
    if files.len() > FILES_MAX || bytes > BYTES_MAX {
        return Err(format!(
            "at most {FILES_MAX} files of {BYTES_MAX} bytes together are taken"
        ));
    }
    if tests.is_empty() || tests.len() > TESTS_MAX {
        return Err(format!("a certificate needs 1 to {TESTS_MAX} tests"));
    }
    for (at, file) in files.iter().enumerate() {
        if files[..at].iter().any(|other| other.path == file.path) {
            return Err(format!("the file {:?} is given twice", file.path));
        }
    }
    for (at, test) in tests.iter().enumerate() {
        if tests[..at].iter().any(|other| other.id == test.id) {
            return Err(format!("the test {:?} is given twice", test.id));
        }
    }
    Ok(())
}

impl Case {
    /// Applies the unified diff that `completion` holds.
    pub fn new(completion: &str, files: &[SourceFile], tests: &[TestPlace]) -> Self {
        Self {
            changed: change::read(completion, files),
            tests: tests.to_vec(),
        }
    }

    /// The messages that ask for a certificate; none where there is nothing to certify. `mark` is
    /// fresh and random, as in a vote's prompt.
    pub fn messages(&self, mark: Uuid) -> Option<Vec<Message>> {
        let changed = self.changed.as_ref().ok()?;
        let mark = mark.simple().to_string();
        let quote = |text: &str| text.replace(&mark, "");
        let tests: Vec<String> = self
            .tests
            .iter()
            .map(|test| format!("{} ({}:{})", test.id, test.file, test.line))
            .collect();
        let numbered = |files: &[SourceFile]| -> String { files.iter().map(numbered).collect() };
        let (before, after) = (numbered(&changed.before), numbered(&changed.after));
        let values = [
            ("{mark}", mark.clone()),
            ("{before}", quote(&before)),
            ("{after}", quote(&after)),
            ("{tests}", quote(&tests.join("\n"))),
        ];
        let values: Vec<(&str, &str)> = values.iter().map(|(key, v)| (*key, v.as_str())).collect();
        Some(messages(SYSTEM, &fill(USER, &values)))
    }
}

fn numbered(file: &SourceFile) -> String {
    let lines = file.text.lines().zip(1..);
    let lines: String = lines.map(|(line, n)| format!("{n}: {line}\n")).collect();
    format!("== {}\n{lines}", file.path)
}

/// The certificate in a model's words: their last JSON object with premises.
pub fn parse(words: &str) -> Result<Certificate, String> {
    let mut why = "there is no JSON object with premises".to_owned();
    for (at, _) in words.match_indices('{').take(256) {
        let mut values =
            serde_json::Deserializer::from_str(&words[at..]).into_iter::<serde_json::Value>();
        let Some(Ok(value)) = values.next() else {
            continue;
        };
        if value.get("premises").is_some() {
            match serde_json::from_value(value) {
                Ok(certificate) => return Ok(certificate),
                Err(error) => why = format!("it has not the form of a certificate: {error}"),
            }
        }
    }
    Err(why)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
