//! Reports of test runs: JUnit XML, and what common runners print at their end.

use std::sync::OnceLock;

use regex::Regex;

/// Most names of failed tests that are told.
const NAMES_MAX: usize = 5;
/// Most bytes of a report that are read, from its end.
const BYTES_MAX: usize = 1 << 20;

/// How a run went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed, errors included.
    pub failed: u64,
    /// Names of the first that failed, where the report tells them.
    pub names: Vec<String>,
}

/// Reads a report; none where the text is not one.
pub(crate) fn read(text: &str) -> Option<Report> {
    let cut = crate::rules::floor_char(text, text.len().saturating_sub(BYTES_MAX));
    let text = &text[cut..];
    let trimmed = text.trim_start();
    if trimmed.starts_with('<') {
        return junit(trimmed);
    }
    let mut report = printed(text)?;
    report.names = names(text);
    Some(report)
}

fn junit(text: &str) -> Option<Report> {
    let options = roxmltree::ParsingOptions {
        allow_dtd: false,
        nodes_limit: 200_000,
        ..Default::default()
    };
    let document = roxmltree::Document::parse_with_options(text, options).ok()?;
    let root = document.root_element();
    if !["testsuites", "testsuite"].contains(&root.tag_name().name()) {
        return None;
    }
    let mut report = Report::default();
    for case in root.descendants().filter(|n| n.has_tag_name("testcase")) {
        let has = |name: &str| case.children().any(|child| child.has_tag_name(name));
        if has("failure") || has("error") {
            report.failed += 1;
            if report.names.len() < NAMES_MAX {
                let of = |key| case.attribute(key).unwrap_or_default();
                let name = format!("{}::{}", of("classname"), of("name"));
                report.names.push(name.trim_matches(':').to_owned());
            }
        } else if !has("skipped") {
            report.passed += 1;
        }
    }
    // A suite that could not begin has errors and no cases.
    for suite in root.descendants().chain([root]) {
        let count = |key| suite.attribute(key).and_then(|n: &str| n.parse().ok());
        let stated = count("failures").unwrap_or(0u64) + count("errors").unwrap_or(0u64);
        report.failed = report.failed.max(stated);
    }
    Some(report)
}

/// Patterns of closing lines. `p` counts passed tests, `f` and `e` failed ones, `t` all.
const LINES: &[&str] = &[
    // cargo test
    r"^test result: \w+\. (?P<p>\d+) passed; (?P<f>\d+) failed",
    // nextest
    r"^\s*Summary \[.*\] *\d+ tests? run: (?P<p>\d+) passed(?:.*?, (?P<f>\d+) failed)?",
    // pytest: "=== 1 failed, 2 passed, 1 error in 0.1s ===", in any order
    r"^=* ?(?:(?:(?P<p>\d+) passed|(?P<f>\d+) failed|(?P<e>\d+) errors?|\d+ \w+)(?:, )?)+ in [\d.:]+ ?s",
    // jest, vitest
    r"^Tests:? +(?:(?P<f>\d+) failed[,|]? *(?:\| )?)?(?:\d+ skipped[,|]? *(?:\| )?)?(?:\d+ todo, )?(?:(?P<p>\d+) passed)?",
    // Maven, JUnit console
    r"^(?:\[\w+\] +)?Tests run: (?P<t>\d+), Failures: (?P<f>\d+), Errors: (?P<e>\d+)",
    // mocha
    r"^ +(?P<p>\d+) passing",
    r"^ +(?P<f>\d+) failing",
    // RSpec
    r"^(?P<t>\d+) examples?, (?P<f>\d+) failures?",
    // dotnet
    r"^(?:Passed|Failed)! +- +Failed: +(?P<f>\d+), Passed: +(?P<p>\d+)",
    // Python's unittest
    r"^Ran (?P<t>\d+) tests? in",
    r"^FAILED \((?:failures=(?P<f>\d+))?(?:, )?(?:errors=(?P<e>\d+))?",
    // go test
    r"^(?P<one>--- FAIL: )",
    r"^(?P<good>--- PASS: |ok\s+\S+\s+[\d.(])",
    r"^(?P<one>FAIL\t)",
    // TAP
    r"^(?P<one>not ok \d+)",
    r"^(?P<good>ok \d+)",
];

fn patterns() -> &'static [Regex] {
    static PATTERNS: OnceLock<Vec<Regex>> = OnceLock::new();
    PATTERNS.get_or_init(|| {
        LINES
            .iter()
            .filter_map(|line| Regex::new(line).ok())
            .collect()
    })
}

fn printed(text: &str) -> Option<Report> {
    let (mut report, mut found, mut total) = (Report::default(), false, 0u64);
    for line in text.lines() {
        let line = uncoloured(line);
        let Some(captures) = patterns().iter().find_map(|p| p.captures(&line)) else {
            continue;
        };
        let count = |name: &str| -> u64 {
            let digits = captures.name(name).map(|m| m.as_str());
            digits.and_then(|d| d.parse().ok()).unwrap_or(0)
        };
        let told = ["p", "f", "e", "t", "one", "good"];
        if !told.iter().any(|name| captures.name(name).is_some()) {
            continue;
        }
        found = true;
        report.passed += count("p") + u64::from(captures.name("good").is_some());
        report.failed += count("f") + count("e") + u64::from(captures.name("one").is_some());
        total += count("t");
    }
    // Where all and failed are told, the rest passed.
    report.passed += total.saturating_sub(report.failed);
    found.then_some(report)
}

/// A line without its terminal colours.
fn uncoloured(line: &str) -> String {
    static COLOURS: OnceLock<Option<Regex>> = OnceLock::new();
    let colours = COLOURS.get_or_init(|| Regex::new("\u{1b}\\[[0-9;]*m").ok());
    match colours {
        Some(colours) => colours.replace_all(line, "").into_owned(),
        None => line.to_owned(),
    }
}

fn names(text: &str) -> Vec<String> {
    let name = |line: &str| -> Option<String> {
        let line = line.trim();
        let name = if let Some(rest) = line.strip_prefix("test ") {
            rest.strip_suffix(" ... FAILED")?
        } else if let Some(rest) = line.strip_prefix("FAILED ") {
            rest.split(" - ")
                .next()
                .filter(|rest| !rest.starts_with('('))?
        } else if let Some(rest) = line.strip_prefix("--- FAIL: ") {
            rest.split(' ').next()?
        } else {
            line.strip_prefix("not ok ")?
        };
        Some(name.chars().take(120).collect())
    };
    text.lines().filter_map(name).take(NAMES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_is_sound() {
        assert_eq!(patterns().len(), LINES.len());
    }

    #[test]
    fn reports_of_common_runners_are_read() {
        for (text, passed, failed) in [
            (
                "running 3 tests\ntest a::b ... ok\ntest a::c ... FAILED\n\ntest result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
                2,
                1,
            ),
            (
                "test result: ok. 2 passed; 0 failed; 0 ignored\n\ntest result: ok. 5 passed; 0 failed; 1 ignored",
                7,
                0,
            ),
            (
                "     Summary [   0.011s] 4 tests run: 3 passed, 1 failed, 0 skipped",
                3,
                1,
            ),
            (
                "============ 1 failed, 2 passed, 1 warning in 0.12s ============",
                2,
                1,
            ),
            ("===== 4 passed in 0.02s =====", 4, 0),
            ("2 errors in 0.3s", 0, 2),
            ("Tests:       1 failed, 1 skipped, 5 passed, 7 total", 5, 1),
            ("      Tests  2 failed | 8 passed (10)".trim_start(), 8, 2),
            ("\u{1b}[32mTests:       5 passed, 5 total\u{1b}[0m", 5, 0),
            (
                "[INFO] Tests run: 5, Failures: 1, Errors: 1, Skipped: 0",
                3,
                2,
            ),
            ("  3 passing (8ms)\n  1 failing", 3, 1),
            ("5 examples, 0 failures", 5, 0),
            (
                "Failed!  - Failed:     1, Passed:     4, Skipped:     0",
                4,
                1,
            ),
            (
                "Ran 3 tests in 0.001s\n\nFAILED (failures=1, errors=1)",
                1,
                2,
            ),
            ("Ran 3 tests in 0.001s\n\nOK", 3, 0),
            (
                "--- FAIL: TestAdd (0.00s)\nFAIL\texample.com/add\t0.003s",
                0,
                2,
            ),
            ("ok  \texample.com/add\t0.003s", 1, 0),
            ("1..3\nok 1 - a\nnot ok 2 - b\nok 3 - c", 2, 1),
        ] {
            let report = read(text).unwrap_or_default();
            assert_eq!((report.passed, report.failed), (passed, failed), "{text}");
        }
        for text in [
            "",
            "all good",
            "3 files changed",
            "in 3s",
            "<html></html>",
            "Tests: ",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn junit_counts_cases_and_names_what_failed() {
        let xml = r#"<?xml version="1.0"?><testsuites><testsuite name="s" tests="4" failures="1">
            <testcase classname="m" name="a"/><testcase classname="m" name="b"><failure>no</failure></testcase>
            <testcase name="c"><skipped/></testcase><testcase name="d"><system-out>x</system-out></testcase>
            </testsuite></testsuites>"#;
        let names = vec!["m::b".to_owned()];
        assert_eq!(
            read(xml),
            Some(Report {
                passed: 2,
                failed: 1,
                names
            })
        );
        let broken = r#"<testsuite tests="0" errors="1"></testsuite>"#;
        assert_eq!(read(broken).map(|r| r.failed), Some(1));
        // Entities that grow are not read at all.
        let bomb = r#"<!DOCTYPE x [<!ENTITY a "aaaa">]><testsuite>&a;</testsuite>"#;
        assert_eq!(read(bomb), None);
    }

    #[test]
    fn failed_tests_are_named() {
        let text = "test a::c ... FAILED\ntest result: FAILED. 0 passed; 1 failed;";
        assert_eq!(read(text).map(|r| r.names), Some(vec!["a::c".to_owned()]));
        let text = "FAILED t.py::test_x - assert 1 == 2\n1 failed in 0.1s";
        assert_eq!(
            read(text).map(|r| r.names),
            Some(vec!["t.py::test_x".to_owned()])
        );
    }
}
