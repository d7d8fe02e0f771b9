//! The tests of a task: the repository's own at a commit, laid over the work of an agent and run so that only they decide.

use std::collections::BTreeMap;

use serde_json::json;

use super::layout::{self, Language};

const PYTHON: &str = include_str!("run_tests.py");
const NODE: &str = include_str!("run_tests.mjs");
const NODE_REPORTER: &str = include_str!("reporter.mjs");
/// What stands for the test files in a command.
const FILES: &str = "{files}";

/// How tests are run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Runner {
    /// By pytest where it is installed, else by unittest.
    Python,
    /// By Node's own runner.
    Node,
    /// By a command, whose exit code says whether they passed.
    Command(String),
}

impl Runner {
    /// The one of a language, unless a command is named; none where only a command can run it.
    pub(super) fn of(language: Language, command: Option<&str>) -> Option<Self> {
        match (command, language) {
            (Some(command), _) => Some(Self::Command(command.to_owned())),
            (None, Language::Python) => Some(Self::Python),
            (None, Language::JavaScript) => Some(Self::Node),
            (None, Language::Go | Language::Rust | Language::Ruby | Language::Shell) => None,
        }
    }

    /// How it is told to who solves a task.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Python => "pytest, or by Python's unittest where that is missing".to_owned(),
            Self::Node => "`node --test`".to_owned(),
            Self::Command(command) => format!("`{command}`"),
        }
    }

    /// Files of `/tests` that run these test files; `settings` is a file of the repository that pytest reads.
    pub(super) fn files(
        &self,
        files: &[String],
        settings: Option<&str>,
    ) -> BTreeMap<String, Vec<u8>> {
        let plan = json!({ "files": files, "settings": settings }).to_string();
        let mut own = vec![("plan.json", plan)];
        let run = match self {
            Self::Python => {
                own.push(("run_tests.py", PYTHON.to_owned()));
                "python3 -I -B /tests/run_tests.py".to_owned()
            }
            Self::Node => {
                own.push(("run_tests.mjs", NODE.to_owned()));
                own.push(("reporter.mjs", NODE_REPORTER.to_owned()));
                "node /tests/run_tests.mjs".to_owned()
            }
            Self::Command(command) => {
                let names: Vec<String> = files.iter().map(|file| quoted(file)).collect();
                format!(
                    "bash -c {}",
                    quoted(&command.replace(FILES, &names.join(" ")))
                )
            }
        };
        let script = format!(
            "#!/bin/bash\nset -eu\ncd /app\n# What belongs to the tests is the repository's, whatever was left here.\n{}cp -r /tests/tree/. /app/\n\
             exec env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 {run}\n",
            layout::removal()
        );
        own.push(("test.sh", script));
        own.into_iter()
            .map(|(name, text)| (name.to_owned(), text.into_bytes()))
            .collect()
    }
}

/// A script that puts the files of `/solution/files` into `/app` and removes others.
pub(super) fn solve(removed: &[String]) -> Vec<u8> {
    let mut script = "#!/bin/bash\nset -eu\ncd /app\nif [ -d /solution/files ]; then cp -r /solution/files/. /app/; fi\n".to_owned();
    for path in removed {
        script.push_str(&format!("rm -f -- {}\n", quoted(path)));
    }
    script.into_bytes()
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
