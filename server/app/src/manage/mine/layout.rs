//! Which files of a repository are tests, belong to tests, or are code: by their paths alone.

/// A language that tests are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Language {
    Python,
    JavaScript,
    Go,
    Rust,
    Ruby,
    Shell,
}

impl Language {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Python => "Python",
            Self::JavaScript => "JavaScript",
            Self::Go => "Go",
            Self::Rust => "Rust",
            Self::Ruby => "Ruby",
            Self::Shell => "shell",
        }
    }
}

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is run as a test.
    Test(Language),
    /// Tests need it: what lies among them, and what sets them up.
    Support,
    /// Settings of the project that test programs read as well.
    Settings,
    /// What tests are about.
    Code,
    /// Anything else.
    Other,
}

/// Folders of tests. What lies in them belongs to the tests.
pub(super) const TEST_FOLDERS: &[&str] = &[
    "tests",
    "test",
    "__tests__",
    "spec",
    "testdata",
    "__mocks__",
];
/// Names of files that are tests; `*` stands for anything.
pub(super) const TEST_NAMES: &[(&str, Language)] = &[
    ("test_*.py", Language::Python),
    ("*_test.py", Language::Python),
    ("tests.py", Language::Python),
    ("*.test.js", Language::JavaScript),
    ("*.test.mjs", Language::JavaScript),
    ("*.test.cjs", Language::JavaScript),
    ("*.test.ts", Language::JavaScript),
    ("*.test.jsx", Language::JavaScript),
    ("*.test.tsx", Language::JavaScript),
    ("*.spec.js", Language::JavaScript),
    ("*.spec.mjs", Language::JavaScript),
    ("*.spec.ts", Language::JavaScript),
    ("*-test.js", Language::JavaScript),
    ("*_test.go", Language::Go),
    ("*_spec.rb", Language::Ruby),
    ("*_test.rb", Language::Ruby),
    ("*.bats", Language::Shell),
];
/// Files that change how tests run, wherever they lie.
pub(super) const SUPPORT_NAMES: &[&str] = &[
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "sitecustomize.py",
    "usercustomize.py",
];
/// Settings of a project that test programs read as well.
pub(super) const SETTINGS_NAMES: &[&str] = &["pyproject.toml", "setup.cfg", "tox.ini"];
/// Ends of names of code.
const CODE_ENDS: &[&str] = &[
    "py", "pyx", "js", "mjs", "cjs", "ts", "mts", "jsx", "tsx", "go", "rs", "rb", "sh", "bash",
    "c", "h", "cc", "cpp", "hpp", "java", "kt", "scala", "swift", "php", "pl", "lua", "ex", "exs",
    "hs", "ml", "cs", "zig",
];

fn is_named(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
    }
}

/// What the file of a path is for.
pub(super) fn kind(path: &str) -> Kind {
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    if SUPPORT_NAMES.contains(&name) {
        return Kind::Support;
    }
    if let Some((_, language)) = TEST_NAMES
        .iter()
        .find(|(pattern, _)| is_named(name, pattern))
    {
        return Kind::Test(*language);
    }
    let mut parts = folders.split('/');
    let end = name.rsplit_once('.').map_or("", |(_, end)| end);
    if parts.any(|part| TEST_FOLDERS.contains(&part)) {
        // Cargo runs what lies directly in the folder.
        let is_rust = end == "rs" && folders.ends_with("tests");
        let is_script =
            matches!(end, "js" | "mjs" | "cjs" | "ts") && folders.ends_with("__tests__");
        return match (is_rust, is_script) {
            (true, _) => Kind::Test(Language::Rust),
            (_, true) => Kind::Test(Language::JavaScript),
            _ => Kind::Support,
        };
    }
    if SETTINGS_NAMES.contains(&name) && folders.is_empty() {
        return Kind::Settings;
    }
    match CODE_ENDS.contains(&end) {
        true => Kind::Code,
        false => Kind::Other,
    }
}

impl Kind {
    /// Whether who solves a task is not asked for it.
    pub(super) fn is_of_tests(self) -> bool {
        matches!(self, Self::Test(_) | Self::Support)
    }
}

/// A command that removes everything of [`Kind::Test`], [`Kind::Support`] and [`Kind::Settings`] below the current folder,
/// and compiled Python, which would stand for the text that it was made from.
pub(super) fn removal() -> String {
    let any = |names: &mut dyn Iterator<Item = &str>| {
        let names: Vec<String> = names.map(|name| format!("-name '{name}'")).collect();
        names.join(" -o ")
    };
    let folders = any(&mut TEST_FOLDERS.iter().copied().chain(["__pycache__"]));
    let tests = TEST_NAMES.iter().map(|(pattern, _)| *pattern);
    let files = any(&mut tests
        .chain(SUPPORT_NAMES.iter().copied())
        .chain(["*.pyc", "*.pth"]));
    let settings: Vec<String> = SETTINGS_NAMES
        .iter()
        .map(|name| format!("'{name}'"))
        .collect();
    format!(
        "find . -depth \\( \\( ! -type f \\( {folders} \\) \\) -o \\( {files} \\) \\) -exec rm -rf -- {{}} +\nrm -rf -- {}\n",
        settings.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_tells_what_a_file_is_for() {
        for (path, of) in [
            ("pkg/a.py", Kind::Code),
            ("test_a.py", Kind::Test(Language::Python)),
            ("pkg/a_test.py", Kind::Test(Language::Python)),
            ("tests/test_a.py", Kind::Test(Language::Python)),
            ("tests/helper.py", Kind::Support),
            ("tests/data/x.json", Kind::Support),
            ("conftest.py", Kind::Support),
            ("pyproject.toml", Kind::Settings),
            ("sub/pyproject.toml", Kind::Other),
            ("src/a.test.ts", Kind::Test(Language::JavaScript)),
            ("src/__tests__/a.js", Kind::Test(Language::JavaScript)),
            ("a_test.go", Kind::Test(Language::Go)),
            ("crate/tests/a.rs", Kind::Test(Language::Rust)),
            ("crate/tests/common/mod.rs", Kind::Support),
            ("spec/a_spec.rb", Kind::Test(Language::Ruby)),
            ("test/a.bats", Kind::Test(Language::Shell)),
            ("bin/test", Kind::Other),
            ("latest.py", Kind::Code),
            ("README.md", Kind::Other),
        ] {
            assert_eq!(kind(path), of, "{path}");
        }
    }
}
