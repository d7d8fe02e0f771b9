//! Tasks made of small repositories.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use clap::Parser as _;
use hone_api_types::tasks::TaskFile;

use super::{MineArgs, Miner};
use hone_api_types::tasks::TaskRequest;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    how: MineArgs,
}

fn how(line: &str) -> MineArgs {
    let words = std::iter::once("hone").chain(line.split_whitespace());
    Line::try_parse_from(words).unwrap().how
}

/// Runs git in a folder, without what the machine's user set.
fn git(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(folder)
        .args(["-c", "user.name=A", "-c", "user.email=a@b.c"])
        .args(arguments);
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null");
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Commits these files; an empty text removes one.
fn commit(folder: &Path, message: &str, files: &[(&str, &str)]) {
    for (path, text) in files {
        let file = folder.join(path);
        match text.is_empty() {
            true => fs::remove_file(file).unwrap(),
            false => {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
        }
    }
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-q", "-m", message]);
}

fn repository() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    git(at, &["init", "-q", "-b", "main"]);
    commit(
        at,
        "Begin",
        &[
            ("app/a.py", "def one():\n    x = 0\n    return x\n"),
            ("tests/test_a.py", "old tests\n"),
            ("tests/help.py", "help\n"),
        ],
    );
    commit(
        at,
        "Let one return one, as its name says (#7)\n\nSigned-off-by: A <a@b.c>",
        &[
            ("app/a.py", "def one():\n    x = 1\n    return x\n"),
            ("tests/test_a.py", "from app.a import one\none()\n"),
            ("pyproject.toml", "[tool.pytest.ini_options]\n"),
        ],
    );
    commit(
        at,
        "Describe what this is about",
        &[("README.md", "text\n")],
    );
    commit(
        at,
        "wip",
        &[("app/a.py", "x = 1\n"), ("tests/test_a.py", "y\n")],
    );
    commit(
        at,
        "Test in another language than Python",
        &[("a.go", "x"), ("a_test.go", "y")],
    );
    commit(
        at,
        "Move one to a file of its own",
        &[
            ("app/a.py", ""),
            ("app/b's.py", "def one(): pass\n"),
            ("tests/test_b.py", "z\n"),
        ],
    );
    folder
}

fn mined(at: &Path, line: &str) -> (Miner, Vec<TaskRequest>) {
    let mut miner = Miner::open(at, &how(line)).unwrap();
    let mut tasks = Vec::new();
    while let Some(task) = miner.next().unwrap() {
        tasks.push(task);
    }
    (miner, tasks)
}

/// What a file of a task holds.
fn text(miner: &Miner, file: &TaskFile) -> String {
    let TaskFile::Shared { sha256 } = file else {
        panic!("it is no shared file");
    };
    String::from_utf8(miner.drafter.contents.waiting[sha256].clone()).unwrap()
}

#[test]
fn commits_that_change_code_and_tests_are_tasks() {
    let folder = repository();
    let (miner, tasks) = mined(folder.path(), "--from git");
    assert_eq!(tasks.len(), 2, "{:?}", miner.skipped);
    let reasons: Vec<(&str, usize)> = miner
        .skipped
        .iter()
        .map(|(why, count)| (why.as_str(), *count))
        .collect();
    assert_eq!(
        reasons,
        [
            (
                "its tests are in Go, which need --test 'COMMAND {files}'",
                1
            ),
            ("the commit adds and changes no tests", 1),
            ("the commit's message says too little", 1),
        ]
    );
    // Newest first.
    let task = &tasks[1];
    assert!(
        task.instruction
            .contains("\n\nLet one return one, as its name says\n\n"),
        "{}",
        task.instruction
    );
    assert!(
        task.instruction.contains("running tests/test_a.py"),
        "{}",
        task.instruction
    );
    assert!(!task.instruction.contains("#7") && !task.instruction.contains("Signed"));
    let paths: Vec<&String> = task.environment.keys().collect();
    assert_eq!(paths, ["app/a.py", "tests/help.py"]);
    assert!(text(&miner, &task.environment["app/a.py"]).contains("x = 0"));
    let paths: Vec<&String> = task.tests.keys().collect();
    assert_eq!(
        paths,
        [
            "plan.json",
            "run_tests.py",
            "test.sh",
            "tree/pyproject.toml",
            "tree/tests/help.py",
            "tree/tests/test_a.py"
        ]
    );
    assert_eq!(
        text(&miner, &task.tests["plan.json"]),
        r#"{"files":["tests/test_a.py"],"settings":"pyproject.toml"}"#
    );
    let paths: Vec<&String> = task.solution.keys().collect();
    assert_eq!(
        paths,
        ["files/app/a.py", "files/pyproject.toml", "solve.sh"]
    );
    // What a commit removes, its solution removes.
    let solve = text(&miner, &tasks[0].solution["solve.sh"]);
    assert!(solve.contains("rm -f -- 'app/a.py'\n"), "{solve}");
    assert!(tasks[0].solution.contains_key("files/app/b's.py"));
    assert!(tasks[0].environment.contains_key("tests/test_a.py"));
}

#[test]
fn a_command_and_a_folder_change_what_is_made() {
    let folder = repository();
    let at = folder.path();
    let (miner, tasks) = mined(at, "--from git --test go:{files} --commits 2");
    assert_eq!((tasks.len(), miner.all), (2, 2));
    let script = text(&miner, &tasks[1].tests["test.sh"]);
    assert!(
        script.contains("bash -c 'go:'\\''a_test.go'\\'''"),
        "{script}"
    );
    // The folder becomes the work folder.
    commit(
        at,
        "Let three return three in its folder",
        &[
            ("deep/m.py", "def three(): return 3\n"),
            ("deep/test_m.py", "t\n"),
            ("top.py", "x\n"),
        ],
    );
    commit(
        at,
        "Let three return four in its folder",
        &[
            ("deep/m.py", "def three(): return 4\n"),
            ("deep/test_m.py", "u\n"),
            ("top.py", "y\n"),
        ],
    );
    for (folder, line) in [
        (at.to_owned(), "--from git --path deep/"),
        (at.join("deep"), "--from git"),
    ] {
        let (_, tasks) = mined(&folder, line);
        assert_eq!(tasks.len(), 2);
        assert_eq!(tasks[0].environment.keys().collect::<Vec<_>>(), ["m.py"]);
        assert_eq!(
            tasks[0].solution.keys().collect::<Vec<_>>(),
            ["files/m.py", "solve.sh"]
        );
        assert!(tasks[1].environment.is_empty());
    }
    let why = Miner::open(at, &how("--from git --path nowhere"))
        .err()
        .unwrap();
    assert!(why.contains("no folder nowhere"), "{why}");
}

#[test]
fn functions_that_tests_name_are_exercises() {
    let folder = repository();
    let at = folder.path();
    let code = "def twice(a):\n    \"\"\"Twice a.\"\"\"\n    b = a + a\n    return b\n\n\ndef unused(a):\n    b = a\n    return b\n";
    let test = "from m import twice\n\n\ndef test_twice():\n    assert twice(2) == 4\n";
    commit(
        at,
        "Add a module and its test",
        &[("m.py", code), ("tests/test_m.py", test)],
    );
    let (miner, tasks) = mined(at, "--from functions");
    assert_eq!(tasks.len(), 1);
    assert!(
        tasks[0].instruction.contains("function `twice` in m.py"),
        "{}",
        tasks[0].instruction
    );
    let left = text(&miner, &tasks[0].environment["m.py"]);
    assert!(
        left.starts_with(
            "def twice(a):\n    \"\"\"Twice a.\"\"\"\n    raise NotImplementedError\n\n\ndef unused"
        ),
        "{left}"
    );
    assert!(!tasks[0].environment.contains_key("tests/test_m.py"));
    assert_eq!(text(&miner, &tasks[0].solution["files/m.py"]), code);
    let (miner, tasks) = mined(at, "--from mutations");
    assert_eq!(tasks.len(), 2);
    for task in &tasks {
        assert_ne!(text(&miner, &task.environment["m.py"]), code);
        assert!(task.environment.contains_key("tests/test_m.py"));
        assert!(!task.instruction.contains("twice"), "{}", task.instruction);
    }
}

#[test]
fn what_is_no_repository_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let open = |line: &str| Miner::open(at, &how(line)).err().unwrap_or_default();
    assert!(open("--from git").contains("is no git repository"));
    git(at, &["init", "-q"]);
    assert!(open("--from git").contains("has no commits yet"));
    commit(at, "Begin", &[("a.py", "x = 1\n")]);
    assert!(open("--from functions").contains("no tests in Python"));
    let (miner, tasks) = mined(at, "--from git");
    assert_eq!(tasks.len(), 0);
    assert!(
        miner.nothing().contains("none of 0 commits"),
        "{}",
        miner.nothing()
    );
    for n in 0..5 {
        fs::write(at.join(format!("{n}.bin")), vec![n; 4 << 20]).unwrap();
    }
    git(at, &["add", "-A"]);
    git(at, &["commit", "-q", "-m", "Add much"]);
    let why = open("--from git");
    assert!(
        why.contains("is too large") && why.contains("--path"),
        "{why}"
    );
    // A clone of the newest commit says what it lacks.
    let clone = tempfile::tempdir().unwrap();
    let from = format!("file://{}", repository().keep().display());
    let to = clone.path().join("clone");
    git(
        at,
        &[
            "clone",
            "-q",
            "--depth",
            "2",
            &from,
            &to.display().to_string(),
        ],
    );
    let (miner, _) = mined(&to, "--from git");
    assert!(
        miner.hint().unwrap().contains("shallow"),
        "{:?}",
        miner.hint()
    );
    fs::remove_dir_all(from.trim_start_matches("file://")).unwrap();
}
