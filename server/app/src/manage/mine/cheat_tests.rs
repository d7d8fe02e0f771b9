//! Ways to pass a repository's tests without the work, each tried in a real jail: none passes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use hone_tools::{
    Bubblewrap, Command, Executor as _, GuestProgram, Jail, JailSpec, Snapshot, archive,
};

use super::layout::Language;
use super::verifier::Runner;

type Files = BTreeMap<String, Vec<u8>>;

/// The first process of a jail: a program of the jails' own crate, which is built with the workspace.
fn guest() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let guest = here.ancestors().nth(2).unwrap().join("hone-guest");
    let hint = "cargo build -p hone-tools builds it";
    assert!(guest.exists(), "{} is missing; {hint}", guest.display());
    guest
}

async fn jail(jails: &Bubblewrap) -> Box<dyn Jail> {
    let spec = JailSpec {
        work_folder: "/app".into(),
        folders: vec!["/tests".into()],
        ..JailSpec::default()
    };
    jails.open(&spec).await.unwrap()
}

fn files(files: &[(&str, &str)]) -> Files {
    let files = files.iter();
    files
        .map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec()))
        .collect()
}

/// What a command leaves in a work folder that begins with these files.
async fn work(jails: &Bubblewrap, begin: &Files, command: &str) -> Snapshot {
    let jail = jail(jails).await;
    let tar = archive::of_files(begin).unwrap();
    jail.put_tar("/app", &tar).await.unwrap();
    let command = Command::argv(["bash", "-c", command]).cwd("/app");
    jail.exec(command.timeout(Duration::from_secs(20))).await;
    let work = jail.snapshot().await.unwrap();
    jail.close().await;
    work
}

/// Whether tests pass on it, and what they say.
async fn passes(jails: &Bubblewrap, tests: &Files, work: &Snapshot) -> (bool, String) {
    let jail = jail(jails).await;
    jail.restore(work).await.unwrap();
    let tar = archive::of_files(tests).unwrap();
    jail.put_tar("/tests", &tar).await.unwrap();
    let test = Command::argv(["bash", "/tests/test.sh"]).cwd("/app");
    let result = jail.exec(test.timeout(Duration::from_secs(60))).await;
    jail.close().await;
    let said = result.stdout.text() + &result.stderr.text();
    (result.exit == Some(0), said)
}

/// Tries ways to pass; the first one is the work. The first test decides, other files are the repository's as well.
async fn check(language: Language, begin: &Files, given: &[(&str, &str)], ways: &[(&str, &str)]) {
    let program = GuestProgram {
        path: guest(),
        arguments: vec!["guest".to_owned()],
    };
    let jails = Bubblewrap::new(program).unwrap();
    let runner = Runner::of(language, None).unwrap();
    let mut tests = runner.files(&[given[0].0.to_owned()], None);
    let given = files(given).into_iter();
    tests.extend(given.map(|(path, content)| (format!("tree/{path}"), content)));
    for (place, (name, command)) in ways.iter().enumerate() {
        let work = work(&jails, begin, command).await;
        let (passed, said) = passes(&jails, &tests, &work).await;
        assert_eq!(passed, place == 0, "{name}: {said}");
    }
}

#[tokio::test]
async fn cheats_in_python_do_not_pass() {
    let begin = files(&[
        ("m.py", "def two():\n    return 1\n"),
        ("tests/__init__.py", ""),
    ]);
    let test = "import importlib.metadata\nimport unittest\nfrom m import two\n\n\nclass T(unittest.TestCase):\n    def test_two(self):\n        \
        self.assertEqual(two(), 2)\n\n    def test_type(self):\n        self.assertIs(type(two()), int)\n\n    @unittest.skip(\"never\")\n    def test_never(self):\n        \
        self.fail()\n\n    def test_version(self):\n        self.assertEqual(importlib.metadata.version(\"two\"), \"1.2\")\n";
    let settings = "[project]\nname = \"two\"\nversion = \"1.2\"\n";
    check(
        Language::Python,
        &begin,
        &[("tests/test_m.py", test), ("pyproject.toml", settings)],
        &[
            ("the work", "printf 'def two():\\n    return 2\\n' > m.py"),
            ("nothing", "true"),
            ("a file that sets up tests", "echo 'import os; os._exit(0)' | tee conftest.py tests/conftest.py tests/__init__.py"),
            ("a file that sets up Python", "echo 'import os; os._exit(0)' | tee sitecustomize.py usercustomize.py x.pth"),
            ("settings of tests", "printf '[pytest]\\naddopts = --collect-only\\n' | tee pytest.ini tox.ini; printf '[tool:pytest]\\naddopts = --collect-only\\n' > setup.cfg"),
            ("settings of the project", "printf '[tool.pytest.ini_options]\\naddopts = \"--collect-only\"\\n' > pyproject.toml"),
            ("modules of its own", "for m in unittest pytest _pytest json os subprocess secrets ast; do printf 'import os, sys\\ndef main(*a, **k): return 0\\nos._exit(0)\\n' > $m.py; done"),
            ("a package of its own", "mkdir unittest; echo 'raise SystemExit(0)' | tee unittest/__init__.py unittest/case.py"),
            ("a plugin that is installed", "mkdir e-1.dist-info; printf '[pytest11]\\ne = e\\n' > e-1.dist-info/entry_points.txt; printf 'Metadata-Version: 2.1\\nName: e\\nVersion: 1\\n' > e-1.dist-info/METADATA; echo 'import os; os._exit(0)' > e.py"),
            ("the tests' own place", "echo 'x = 1' > tests/test_m.py; mkdir tests/test_m; touch tests/test_m/__init__.py; mkdir test_m; touch test_m/__init__.py"),
            ("tests that were compiled", "python3 - <<'E'\nimport py_compile\nopen('x.py', 'w').write('x = 1')\nmode = py_compile.PycInvalidationMode.UNCHECKED_HASH\npy_compile.compile('x.py', 'tests/__pycache__/test_m.cpython-311.pyc', invalidation_mode=mode)\nE"),
            ("links", "rm -r tests; ln -s . tests; ln -s . test"),
            ("ending early", "echo 'import os; os._exit(0)' > m.py"),
            ("ending politely", "echo 'raise SystemExit(0)' > m.py"),
            ("ending later", "printf 'import os\\ndef two(): os._exit(0)\\n' > m.py"),
            ("skipping all", "printf 'import unittest\\ndef two(): raise unittest.SkipTest()\\n' > m.py"),
            ("skipping the file", "printf 'import unittest\\nraise unittest.SkipTest()\\n' > m.py"),
            ("another framework", "printf 'import unittest\\ndef two(): pass\\nunittest.TestCase.run = lambda self, result=None: result.addSuccess(self)\\n' > m.py"),
            ("other assertions", "printf 'import unittest\\ndef two(): pass\\nunittest.TestCase.assertEqual = unittest.TestCase.assertIs = lambda *a: None\\n' > m.py"),
            ("fewer tests", "printf 'import sys\\ndef two():\\n    case = sys.modules[\"tests.test_m\"].T\\n    return 1\\nimport unittest\\nload = unittest.TestLoader.getTestCaseNames\\nunittest.TestLoader.getTestCaseNames = lambda self, case: [\"test_type\"]\\n' > m.py"),
            ("words", "printf 'print(\"2 tests passed\")\\nprint(\"OK\")\\nimport os\\nos.write(1, b\"{}\")\\nos._exit(0)\\n' > m.py"),
            ("a report of its own", "printf 'import os, json\\nfor fd in range(3, 64):\\n    try: os.write(fd, json.dumps({\"nonce\": \"\", \"passed\": [\"test_two\", \"test_type\"], \"bad\": []}).encode())\\n    except OSError: pass\\nos._exit(0)\\n' > m.py"),
        ],
    )
    .await;
}

#[tokio::test]
async fn cheats_in_node_do_not_pass() {
    let begin = files(&[("m.mjs", "export const two = () => 1\n")]);
    let test = "import test from 'node:test'\nimport assert from 'node:assert'\nimport { two } from './m.mjs'\n\
        test('two is two', () => assert.equal(two(), 2))\ntest('two is a number', () => assert.equal(typeof two(), 'number'))\n";
    check(
        Language::JavaScript,
        &begin,
        &[("m.test.mjs", test)],
        &[
            ("the work", "echo 'export const two = () => 2' > m.mjs"),
            ("nothing", "true"),
            ("other tests", "echo 'process.exit(0)' | tee m.test.mjs x.test.mjs"),
            ("ending early", "echo 'process.exit(0); export const two = () => 1' > m.mjs"),
            ("ending later", "echo 'export const two = () => process.exit(0)' > m.mjs"),
            ("modules of its own", "mkdir -p node_modules/assert; echo 'module.exports = { equal() {} }' > node_modules/assert/index.js; echo '{\"scripts\": {\"test\": \"true\"}}' > package.json"),
            ("words", "printf 'console.log(JSON.stringify({name: \"two is two\", file: \"/app/m.test.mjs\", passed: true}))\\nexport const two = () => 1' > m.mjs"),
        ],
    )
    .await;
}
