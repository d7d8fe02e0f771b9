//! Functions that tests name, found by Python's own parser, which is given texts and runs none of them.

use std::io::{ErrorKind, Write as _};
use std::process::{Command, Stdio};

use serde_json::json;

use super::draft::{Exercise, FILE_BYTES_MAX};
use super::git::{Repository, Tree};
use super::layout::{Kind, Language, kind};

const SCRIPT: &str = include_str!("functions.py");

/// Exercises in the functions of a tree: their bodies are to be written, or a mistake in them is to be found.
pub(super) fn of(
    repository: &mut Repository,
    tree: &Tree,
    is_wrong: bool,
) -> Result<Vec<Exercise>, String> {
    let (mut files, mut tests) = (serde_json::Map::new(), serde_json::Map::new());
    for entry in &tree.files {
        let into = match kind(&entry.path) {
            Kind::Code => &mut files,
            Kind::Test(Language::Python) => &mut tests,
            _ => continue,
        };
        if !entry.path.ends_with(".py") || entry.bytes > FILE_BYTES_MAX {
            continue;
        }
        if let Ok(text) = String::from_utf8(repository.content(&entry.object)?) {
            into.insert(entry.path.clone(), text.into());
        }
    }
    if tests.is_empty() {
        return Err(
            "the repository has no tests in Python: files named test_*.py, *_test.py or tests.py"
                .to_owned(),
        );
    }
    let mode = if is_wrong { "mutations" } else { "functions" };
    let asked = json!({ "mode": mode, "files": files, "tests": tests });
    let found = parsed(&asked.to_string())?;
    let mut found: Vec<Exercise> = serde_json::from_str(&found)
        .map_err(|error| format!("python3 printed no exercises: {error}"))?;
    found
        .iter_mut()
        .for_each(|exercise| exercise.shows_tests = is_wrong);
    Ok(found)
}

/// What the script prints.
fn parsed(input: &str) -> Result<String, String> {
    let mut command = Command::new("python3");
    command.args(["-I", "-S", "-c", SCRIPT]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            "the program python3 was not found; it is needed to find functions".to_owned()
        }
        _ => format!("python3 could not be started: {error}"),
    })?;
    // The script reads everything before it prints anything.
    let written = running
        .stdin
        .take()
        .map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = running
        .wait_with_output()
        .map_err(|error| format!("python3 failed: {error}"))?;
    if !output.status.success() || matches!(written, Some(Err(_))) {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!(
            "python3 could not find the functions: {}",
            why.trim()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
