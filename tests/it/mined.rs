//! Tasks made of a repository: `hone tasks add --from` as a process, a real server, real jails.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use hone_domain::TaskFiles;
use hone_ledger::{Jobs as _, Ledger as _};
use hone_ledger_sql::{SqliteConfig, SqliteStore};
use hone_tests::{TestApp, broken_laws, temporary};
use serde_json::Value;

use crate::program::{Ended, program, run};
use crate::rollouts::guest;

/// Runs git in a folder, without what the machine's user set.
fn git(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    let own = ["-c", "user.name=A", "-c", "user.email=a@b.c"];
    command.arg("-C").arg(folder).args(own).args(arguments);
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Commits these files and returns the name of the task that the commit would be.
fn commit(folder: &Path, message: &str, files: &[(&str, &str)]) -> String {
    for (path, text) in files {
        let file = folder.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-q", "-m", message]);
    git(folder, &["rev-parse", "HEAD"])[..12].to_owned()
}

/// A test of one expression.
fn test(name: &str, expression: &str) -> String {
    format!(
        "import unittest\nimport calc\n\n\nclass {name}(unittest.TestCase):\n    def test_{}(self):\n        \
         self.assertTrue({expression})\n",
        name.to_lowercase()
    )
}

const ADD: &str = "def add(a, b):\n    return a + b\n";
const SUB: &str = "\n\ndef sub(a, b):\n    return a - b\n";
const HALF: &str = "\n\ndef half(number):\n    return number / 2\n";
const READ: &str = "\n\ndef read(path):\n    with open(path) as file:\n        return [int(line) for line in file]\n";

/// A commit: its message, what a check says of the task that it is, the code then, a test of one expression, and another file.
type Row = (
    &'static str,
    Option<&'static str>,
    &'static [&'static str],
    (&'static str, &'static str),
    (&'static str, &'static str),
);
const NOTHING: (&str, &str) = ("", "");
const HALVED: &str = "Let half return half of a number (#12)\n\nIt shall return number / 2 for that.\n\nSigned-off-by: A <a@b.c>";
const COMMITS: [Row; 9] = [
    (
        "Begin",
        None,
        &[ADD],
        ("Add", "calc.add(1, 2) == 3"),
        ("tests/__init__.py", "# tests\n"),
    ),
    (
        "Let sub take one number from another",
        Some("ready"),
        &[ADD, SUB],
        ("Sub", "calc.sub(3, 2) == 1"),
        NOTHING,
    ),
    (
        "Describe what the module is for",
        None,
        &[ADD, SUB],
        NOTHING,
        ("README.md", "Numbers.\n"),
    ),
    (
        "wip",
        None,
        &[ADD, SUB, "# x\n"],
        ("Sub", "calc.sub(3, 1) == 2"),
        NOTHING,
    ),
    (
        HALVED,
        Some("ready"),
        &[ADD, SUB, HALF],
        ("Half", "calc.half(3) == 1.5"),
        NOTHING,
    ),
    (
        "Say that adding zero changes nothing",
        Some("refused"),
        &["# Numbers.\n", ADD, SUB, HALF],
        ("Zero", "calc.add(1, 0) == 1"),
        NOTHING,
    ),
    (
        "Expect a sum that is wrong",
        Some("refused"),
        &[ADD, SUB, HALF],
        ("Wrong", "calc.add(1, 0) == 2"),
        NOTHING,
    ),
    (
        "Write the numbers in another order",
        None,
        &[ADD, HALF, SUB],
        NOTHING,
        NOTHING,
    ),
    (
        "Let read return the numbers of a file",
        Some("ready"),
        &[ADD, HALF, SUB, READ],
        ("Read", "calc.read('tests/numbers.txt') == [1, 2]"),
        ("tests/numbers.txt", "1\n2\n"),
    ),
];

/// Makes the commits; returns what a check says of the tasks that they are.
fn repository(at: &Path) -> BTreeMap<String, &'static str> {
    git(at, &["init", "-q", "-b", "main"]);
    let mut states = BTreeMap::new();
    for (message, state, code, (name, expression), other) in COMMITS {
        let code = code.concat();
        let path = format!("tests/test_{}.py", name.to_lowercase());
        let tests = test(name, expression);
        let files = [
            ("calc.py", code.as_str()),
            (path.as_str(), tests.as_str()),
            other,
        ];
        let files = files
            .into_iter()
            .filter(|file| file.1 != test("", "") && *file != NOTHING);
        let name = commit(at, message, &files.collect::<Vec<_>>());
        states.extend(state.map(|state| (name, state)));
    }
    states
}

/// What is wrong with the files of a task: nothing of its tests, its solution or the history is shown.
fn shown(files: &TaskFiles) -> Option<String> {
    let plan: Value = serde_json::from_slice(&files.tests["plan.json"]).unwrap();
    for test in plan["files"].as_array().unwrap() {
        let test = test.as_str().unwrap();
        let content = &files.tests[&format!("tree/{test}")];
        if files.environment.contains_key(test)
            || files.environment.values().any(|other| other == content)
        {
            return Some(format!("the test {test}"));
        }
    }
    if files.environment["calc.py"] == files.solution["files/calc.py"] {
        return Some("the solution".to_owned());
    }
    let of_history = |path: &&String| path.split('/').any(|part| part == ".git");
    files.all().map(|(path, _)| path).find(of_history).cloned()
}

async fn hone(arguments: Vec<String>) -> Ended {
    let ended = tokio::task::spawn_blocking(move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        run(program(&arguments))
    });
    ended.await.unwrap()
}

async fn add(app: &TestApp, repository: &Path, more: &[&str]) -> Value {
    let mut arguments = vec!["tasks", "add"];
    let folder = repository.display().to_string();
    arguments.extend([folder.as_str(), "--json", "--url", &app.url]);
    arguments.extend(more);
    let ended = hone(arguments.into_iter().map(str::to_owned).collect()).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // The test harness says a few words before it.
    let json = ended.out.find('{').map(|at| &ended.out[at..]);
    serde_json::from_str(json.unwrap()).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

async fn server(data: &Path) -> TestApp {
    let changes = [
        ("tools.executor", "bubblewrap".into()),
        ("tools.guest", guest().display().to_string().into()),
        ("rollout.tick_ms", 100.into()),
    ];
    TestApp::start(data, &changes).await.unwrap()
}

/// What tasks say: the message with a patch in it lost the patch, the number and the trailer, and notes say why.
fn told(tasks: &[Value]) {
    let said = tasks.iter().filter_map(|task| task["instruction"].as_str());
    let half = said.into_iter().find(|text| text.contains("half")).unwrap();
    assert!(
        half.contains("\n\nLet half return half of a number\n\n"),
        "{half}"
    );
    for gone in ["number / 2", "#12", "Signed"] {
        assert!(!half.contains(gone), "{half}");
    }
    let notes: Vec<&str> = tasks
        .iter()
        .filter_map(|task| task["note"].as_str())
        .collect();
    let notes = notes.join("\n");
    assert!(notes.contains("doing nothing passes its tests"), "{notes}");
    assert!(
        notes.contains("its solution does not pass its tests"),
        "{notes}"
    );
}

/// The files of all tasks, by their names.
async fn files(data: &Path) -> BTreeMap<String, TaskFiles> {
    let ledger = SqliteStore::open(&SqliteConfig::in_folder(data))
        .await
        .unwrap();
    let mut files = BTreeMap::new();
    for set in ledger.task_sets("local").await.unwrap() {
        let (_, tasks) = ledger.task_set("local", set.id).await.unwrap().unwrap();
        for task in tasks {
            let (_, of_task) = ledger.task(task.id).await.unwrap().unwrap();
            files.insert(task.name, of_task);
        }
    }
    ledger.close().await;
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_become_checked_tasks() {
    let (guard, data) = temporary().unwrap();
    let at = guard.path().join("calc");
    fs::create_dir(&at).unwrap();
    let wanted = repository(&at);
    let before = git(&at, &["status", "--porcelain", "--ignored"]);
    let app = server(&data).await;
    let set = add(&app, &at, &["--from", "git", "--held-out", "0"]).await;
    assert_eq!(set["name"], "calc");
    let tasks = set["data"].as_array().unwrap();
    let states = tasks.iter().map(|task| {
        (
            task["name"].as_str().unwrap().to_owned(),
            task["state"].as_str().unwrap(),
        )
    });
    assert_eq!(states.collect::<BTreeMap<_, _>>(), wanted, "{set}");
    told(tasks);
    // As many as are wanted are enough, and a second set has a name of its own.
    let few = add(
        &app,
        &at,
        &["--from", "git", "--tasks", "1", "--name", "few"],
    )
    .await;
    assert!(few["states"]["ready"].as_u64().unwrap() >= 1, "{few}");
    // Rollouts take them as they take any.
    let order = serde_json::json!({"task_set": set["id"], "attempts": 2, "groups": 1, "steps_max": 1, "tokens_max": 16});
    let rollout = app.post("/v1/rollouts", order).await.unwrap();
    let path = format!("/v1/rollouts/{}", rollout["id"].as_str().unwrap());
    let done = app
        .until(&path, |rollout| rollout["status"] == "done")
        .await
        .unwrap();
    assert_eq!(done["episodes"]["done"], 2, "{done}");
    app.stop().await.unwrap();
    assert_eq!(git(&at, &["status", "--porcelain", "--ignored"]), before);
    let all = files(&data).await;
    for name in wanted.keys() {
        assert_eq!(shown(&all[name]), None, "{name}");
    }
    assert_eq!(broken_laws(&data).await.unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_and_mistakes_become_checked_tasks() {
    let (guard, data) = temporary().unwrap();
    let at = guard.path().join("calc");
    fs::create_dir(&at).unwrap();
    git(&at, &["init", "-q", "-b", "main"]);
    let code = "def mean(numbers):\n    total = sum(numbers)\n    return total / len(numbers)\n\n\n\
        def idle(numbers):\n    numbers = list(numbers)\n    return numbers\n";
    // One function is only named, so that doing nothing passes.
    let tests = "import unittest\nfrom calc import mean, idle\n\n\nclass T(unittest.TestCase):\n    def test_mean(self):\n        \
        self.assertEqual(mean([1, 2]), 1.5)\n";
    commit(
        &at,
        "Begin",
        &[("calc.py", code), ("tests/test_calc.py", tests)],
    );
    let app = server(&data).await;
    let set = add(&app, &at, &["--from", "functions"]).await;
    assert_eq!(
        set["states"],
        serde_json::json!({"ready": 1, "refused": 1}),
        "{set}"
    );
    let set = add(&app, &at, &["--from", "mutations", "--name", "wrong"]).await;
    assert!(set["states"]["ready"].as_u64().unwrap() >= 1, "{set}");
    // Nothing to mine is a sentence.
    let url = app.url.clone();
    let folder = at.display().to_string();
    let words = [
        "tasks", "add", &folder, "--from", "git", "--name", "none", "--url", &url,
    ];
    let ended = hone(words.map(str::to_owned).into()).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.text().contains("none of 0 commits became a task"),
        "{ended:?}"
    );
    tokio::time::timeout(Duration::from_secs(60), app.stop())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), [""; 0]);
}
