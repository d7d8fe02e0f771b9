//! What a tool's result or an environment's output says about the call that caused it.

use std::sync::OnceLock;

use hone_domain::Outcome;
use serde_json::Value;

use super::command::{Answered, Class};
use super::ruling::Ruling;
use super::text::floor_char;

/// In longer results only the first and last lines tell how it went; between is content.
const HEAD_LINES: usize = 5;
const TAIL_LINES: usize = 15;
/// Most bytes read from each end.
const END_BYTES: usize = 16 * 1024;

/// Words before the number of an exit code.
const EXIT_WORDS: &[&str] = &[
    "exit code",
    "exit_code",
    "exitcode",
    "exit status",
    "exited with code",
    "exited with status",
    "exited with",
    "return code",
    "returncode",
];

#[derive(Debug, Default)]
struct Table {
    fails: Vec<String>,
    fails_anywhere: Vec<String>,
    works: Vec<String>,
    works_anywhere: Vec<String>,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = Table::default();
        let mut nowhere = Vec::new();
        let mut section = String::new();
        for line in include_str!("../../rules/tools.txt").lines() {
            if let Some(title) = line.strip_prefix('[') {
                section = title.trim_end_matches(']').to_owned();
                continue;
            }
            let list = match section.as_str() {
                "fails" => &mut table.fails,
                "fails-anywhere" => &mut table.fails_anywhere,
                "works" => &mut table.works,
                "works-anywhere" => &mut table.works_anywhere,
                _ => &mut nowhere,
            };
            if !line.trim().is_empty() {
                list.push(line.trim().to_owned());
            }
        }
        assert!(
            nowhere.is_empty(),
            "tools.txt has a line before its sections"
        );
        table
    })
}

/// Judges a result by its text alone, of a call that nothing is known of.
#[cfg(test)]
pub(crate) fn judge(raw: &str) -> Ruling {
    judge_of(raw, &Answered::default())
}

/// Judges the result of a call. Where its client says whether it failed, that decides; what it says is
/// read with what was called.
pub(crate) fn judge_of(raw: &str, answered: &Answered) -> Ruling {
    let abstain = |reason| Ruling::new(Outcome::Abstain, reason);
    let text = raw.trim();
    if text.is_empty() && answered.failed != Some(true) {
        return abstain("empty_result");
    }
    if is_denied(text) {
        return abstain("call_denied");
    }
    let ruling = by_text(text);
    // A client that says nothing of failing writes it into the text.
    let says_failed = FAILED_MARKS.iter().any(|mark| text.starts_with(mark));
    let failed = answered.failed.or(says_failed.then_some(true));
    let is_good = ruling.outcome == Outcome::Good;
    match (answered.class, failed) {
        // Whoever looks for something and does not find it has looked all the same.
        (Class::Asks, _) if stated_exit_code(text) == Some(1) => abstain("nothing_found"),
        (Class::Asks, Some(true)) if text.is_empty() => abstain("nothing_found"),
        (Class::Checks, _) if is_good => ruling,
        // That a test fails says something of the code, and nothing of who runs it.
        (Class::Checks, _) => abstain("check_failed"),
        (_, Some(true)) => Ruling::new(Outcome::Bad, "tool_failed"),
        (_, Some(false)) => abstain("tool_result"),
        // What was read may say anything.
        (Class::Reads | Class::Asks, None) if !is_own_failure(text, answered) => {
            abstain("tool_result")
        }
        (Class::Unknown, None) if is_good && ruling.reason != "tool_result" => ruling,
        // That it did not fail is no praise.
        (_, None) if is_good => abstain("tool_result"),
        (_, None) => ruling,
    }
}

fn by_text(text: &str) -> Ruling {
    if let Some(ruling) = by_json(text) {
        return ruling;
    }
    let lines = lines(text);
    if let Some(code) = lines.iter().rev().find_map(|line| exit_code(line)) {
        return match code {
            0 => Ruling::new(Outcome::Good, "exit_code_zero"),
            _ => Ruling::new(Outcome::Bad, "exit_code"),
        };
    }
    if http_status(&lines).is_some_and(|status| status >= 400) {
        return Ruling::new(Outcome::Bad, "http_error");
    }
    let table = table();
    if lines.iter().any(|line| fails(line)) {
        return Ruling::new(Outcome::Bad, "tool_failed");
    }
    let works = |line: &String| {
        table.works.iter().any(|w| begins(line, w))
            || table.works_anywhere.iter().any(|w| holds(line, w))
    };
    if lines.iter().any(works) {
        return Ruling::new(Outcome::Good, "tool_succeeded");
    }
    Ruling::new(Outcome::Good, "tool_result")
}

/// What a result begins with where a client writes into it that the call failed.
const FAILED_MARKS: &[&str] = &[
    "<tool_use_error>",
    "unsupported call",
    "unsupported custom tool call",
];

/// What clients write in place of a result when a person denied a call or broke it off.
const DENIED: &[&str] = &[
    "the user doesn't want to proceed with this tool use",
    "the user doesn't want to take this action",
    "[request interrupted by user",
    "the tool use was rejected",
    "tool use was rejected",
    "the user rejected",
    "user rejected",
    "rejected by user",
    "exec command rejected",
    "patch rejected by user",
    "aborted by user",
    "interrupted by user",
    "tool execution aborted",
    "cancelled by user",
    "canceled by user",
    "the user denied",
    "user denied",
    "denied by user",
    "the user has denied",
    "permission to use",
    "aborted",
];

/// What stands before a person's own words in the result of a call that they denied.
const DENIED_WORDS: &[&str] = &[
    "the user said:",
    "user feedback:",
    "with the following feedback:",
    "the user provided the following reason for the rejection:",
    "reason:",
];

/// Whether a result says that a person denied the call or broke it off.
pub(crate) fn is_denied(raw: &str) -> bool {
    let text = raw.trim();
    let text = text.strip_prefix("<tool_use_error>").unwrap_or(text);
    let first = text.lines().next().unwrap_or_default().to_lowercase();
    let first = first.strip_prefix("error: ").unwrap_or(&first);
    DENIED.iter().any(|denied| match *denied {
        // Alone these say too little.
        "aborted" => first == "aborted",
        "permission to use" => begins(first, denied) && first.contains("has been denied"),
        denied => begins(first, denied),
    })
}

/// What a person said as they denied a call.
pub(crate) fn denied_with(raw: &str) -> Option<&str> {
    if !is_denied(raw) {
        return None;
    }
    let lower = raw.to_ascii_lowercase();
    let ends = DENIED_WORDS
        .iter()
        .filter_map(|words| Some(lower.find(words)? + words.len()));
    let words = raw[ends.min()?..].trim();
    (!words.is_empty()).then_some(words)
}

/// Whether what shows other things says of itself that it failed: in one line, by its own name, or as JSON.
fn is_own_failure(text: &str, answered: &Answered) -> bool {
    let mut all = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let (first, second) = (all.next().unwrap_or_default().to_lowercase(), all.next());
    let program = &answered.program;
    let by_name = |line: &str| {
        let behind = line.strip_prefix(program.as_str());
        !program.is_empty() && behind.is_some_and(|rest| rest.starts_with(':'))
    };
    let by_shell = |line: &str| holds(line, "command not found");
    let is_json = by_json(text).is_some_and(|ruling| ruling.outcome == Outcome::Bad);
    let alone = second.is_none() && fails(&first);
    let code = stated_exit_code(text).is_some_and(|code| code != 0);
    is_json || alone || code || by_name(&first) || by_shell(&first)
}

/// Whether a text that a person pasted shows a failure: stricter than for a tool, because people
/// write about errors.
pub(crate) fn shows_failure(raw: &str) -> bool {
    let shown = lines(raw.trim());
    shown.iter().any(|line| {
        let strict = |w: &&String| w.ends_with(':') || w.ends_with('[') || w.ends_with(')');
        table().fails.iter().filter(strict).any(|w| begins(line, w))
            || table().fails_anywhere.iter().any(|w| holds(line, w))
            || line
                .split_once("error: ")
                .is_some_and(|(before, _)| !before.is_empty() && !before.contains(' '))
    })
}

fn fails(line: &str) -> bool {
    table().fails.iter().any(|w| begins(line, w))
        || table().fails_anywhere.iter().any(|w| holds(line, w))
}

/// The lines that tell how it went, in lower case.
fn lines(text: &str) -> Vec<String> {
    let head_end = floor_char(text, END_BYTES);
    let tail_start = floor_char(text, text.len().saturating_sub(END_BYTES)).max(head_end);
    let (head, tail) = (&text[..head_end], &text[tail_start..]);
    let all: Vec<&str> = head.lines().chain(tail.lines()).collect();
    let skip_from = HEAD_LINES.min(all.len());
    let skip_to = all.len().saturating_sub(TAIL_LINES).max(skip_from);
    all[..skip_from]
        .iter()
        .chain(&all[skip_to..])
        .map(|line| line.trim().to_lowercase())
        .collect()
}

/// `pattern` at the beginning of the line, as whole words; `#` is a number above zero.
fn begins(line: &str, pattern: &str) -> bool {
    match pattern.strip_prefix("# ") {
        Some(words) => {
            let digits = line.bytes().take_while(u8::is_ascii_digit).count();
            digits > 0
                && line[..digits].bytes().any(|b| b != b'0')
                && begins(line[digits..].trim_start(), words)
        }
        None => line.strip_prefix(pattern).is_some_and(|rest| {
            let open = pattern.ends_with(|c: char| !c.is_alphanumeric());
            open || !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
        }),
    }
}

/// `pattern` anywhere in the line, beginning at a word.
fn holds(line: &str, pattern: &str) -> bool {
    line.char_indices().any(|(at, c)| {
        let inside_word = pattern.starts_with(char::is_alphanumeric)
            && line[..at].ends_with(|b: char| b.is_alphanumeric() || b == '.');
        !c.is_whitespace() && !inside_word && begins(&line[at..], pattern)
    })
}

/// The number after "exit code" and its like, if the line has one.
fn exit_code(line: &str) -> Option<i64> {
    let (at, word) = EXIT_WORDS
        .iter()
        .filter_map(|word| line.find(word).map(|at| (at, word)))
        .min_by_key(|(at, word)| (*at, std::cmp::Reverse(word.len())))?;
    let rest = line[at + word.len()..].trim_start_matches([':', '=', '"', '\'', ' ', '(']);
    let end = rest
        .find(|c: char| !c.is_ascii_digit() && c != '-')
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// The exit code of a result: a field of its JSON, or the last line that states one.
pub(crate) fn stated_exit_code(raw: &str) -> Option<i64> {
    let text = raw.trim();
    if let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(text) {
        let code = fields.iter().find_map(|(key, value)| {
            let key: String = key.chars().filter(|c| *c != '_').collect();
            let named = ["exitcode", "returncode", "exitstatus"];
            let known = named.contains(&key.to_lowercase().as_str());
            value.as_i64().filter(|_| known)
        });
        if code.is_some() {
            return code;
        }
    }
    lines(text).iter().rev().find_map(|line| exit_code(line))
}

fn http_status(lines: &[String]) -> Option<u32> {
    let rest = lines.first()?.strip_prefix("http/")?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

/// Well-known fields of a JSON result. A JSON text without any of them is a plain result.
fn by_json(text: &str) -> Option<Ruling> {
    if !text.starts_with('{') {
        return None;
    }
    let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(text) else {
        return None;
    };
    let mut succeeded = false;
    for (key, value) in &fields {
        let key: String = key
            .chars()
            .filter(|c| *c != '_')
            .flat_map(char::to_lowercase)
            .collect();
        match (key.as_str(), value) {
            ("error" | "errors" | "exception" | "traceback", value) if !is_nothing(value) => {
                return Some(Ruling::new(Outcome::Bad, "json_error"));
            }
            ("iserror", Value::Bool(true)) | ("success" | "ok" | "passed", Value::Bool(false)) => {
                return Some(Ruling::new(Outcome::Bad, "json_error"));
            }
            ("exitcode" | "returncode" | "exitstatus", Value::Number(code)) => {
                if code.as_i64() != Some(0) {
                    return Some(Ruling::new(Outcome::Bad, "exit_code"));
                }
                succeeded = true;
            }
            ("status", Value::String(status)) => match status.to_lowercase().as_str() {
                "error" | "failed" | "failure" | "fail" => {
                    return Some(Ruling::new(Outcome::Bad, "json_error"));
                }
                "ok" | "success" | "succeeded" | "passed" | "completed" => succeeded = true,
                _ => {}
            },
            ("success" | "ok" | "passed", Value::Bool(true)) | ("iserror", Value::Bool(false)) => {
                succeeded = true;
            }
            _ => {}
        }
    }
    let reason = if succeeded {
        "tool_succeeded"
    } else {
        "tool_result"
    };
    Some(Ruling::new(Outcome::Good, reason))
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.trim().is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(true) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_word_edges_are_respected() {
        for (line, pattern, expected) in [
            ("3 errors", "# errors", true),
            ("0 errors", "# errors", false),
            ("10 failed", "0 failed", false),
            ("error: x", "error:", true),
            ("errors are fine", "error", false),
            ("okay", "ok", false),
        ] {
            assert_eq!(holds(line, pattern), expected, "{line} / {pattern}");
        }
        assert_eq!(exit_code("process exited with code 137."), Some(137));
        assert_eq!(exit_code("exit code: 0"), Some(0));
        assert_eq!(exit_code("exit status -1"), Some(-1));
        assert_eq!(exit_code("the exit code is unknown"), None);
    }

    #[test]
    fn the_middle_of_a_long_result_is_content() {
        let mut page = vec!["a line of a file"; 60];
        page[30] = "error: quoted in the file";
        assert_eq!(judge(&page.join("\n")).outcome, Outcome::Abstain);
        page[59] = "error: at the end";
        assert_eq!(judge(&page.join("\n")).outcome, Outcome::Bad);
    }

    #[test]
    fn results_are_read_with_what_was_called() {
        use Outcome::{Abstain, Bad, Good};
        let bash = |command: &str| ("Bash", serde_json::json!({"command": command}).to_string());
        let read = || ("Read", serde_json::json!({"path": "a.log"}).to_string());
        let edit = || ("Edit", serde_json::json!({"path": "a.rs"}).to_string());
        let shell = |script: &str| {
            let words = serde_json::json!({"command": ["bash", "-lc", script]});
            ("shell", words.to_string())
        };
        let log = "starting\nerror: disk full\nretrying";
        let rejected =
            "The user doesn't want to proceed with this tool use. The tool use was rejected";
        let rows = [
            // The flag decides.
            (edit(), Some(true), "An error: no such text", Bad),
            (edit(), Some(false), "error: in the file", Abstain),
            (
                edit(),
                None,
                "<tool_use_error>File has not been read yet</tool_use_error>",
                Bad,
            ),
            (edit(), None, "unsupported call: edit", Bad),
            (
                bash("ls"),
                Some(true),
                "Exit code 2\nls: cannot access",
                Bad,
            ),
            // What is unremarkable says nothing.
            (bash("ls"), Some(false), "a.txt", Abstain),
            (bash("ls"), None, "a.txt", Abstain),
            (shell("ls"), None, "Exit code: 0\nOutput:\na.txt", Abstain),
            (
                edit(),
                None,
                "The file has been updated successfully.",
                Abstain,
            ),
            // Exit codes that answer.
            (
                bash("grep -n foo src/*.rs"),
                Some(true),
                "Exit code 1",
                Abstain,
            ),
            (
                shell("diff a b"),
                None,
                "Exit code: 1\nOutput:\n1c1\n< a",
                Abstain,
            ),
            (bash("cd x && test -f y"), None, "exit code: 1", Abstain),
            (bash("git diff --exit-code"), None, "exit code: 1", Abstain),
            (
                bash("grep foo nofile"),
                None,
                "Exit code: 2\ngrep: nofile: No such file or directory",
                Bad,
            ),
            (bash("rm x"), None, "exit code: 1", Bad),
            // What is only shown.
            (bash("tail -n 50 server.log"), None, log, Abstain),
            (read(), None, log, Abstain),
            (
                bash("cat notes.txt"),
                None,
                "cat: notes.txt: No such file or directory",
                Bad,
            ),
            (read(), None, "Error: file not found", Bad),
            (bash("foo"), None, "bash: foo: command not found", Bad),
            // Tests.
            (
                bash("cargo test"),
                Some(true),
                "test result: FAILED. 1 passed; 1 failed",
                Abstain,
            ),
            (
                bash("cd a && python -m pytest -q 2>&1 | tail -5"),
                None,
                "2 failed, 3 passed",
                Abstain,
            ),
            (
                bash("cargo test"),
                None,
                "test result: ok. 2 passed; 0 failed",
                Good,
            ),
            (shell("npm test"), None, "exit code: 1", Abstain),
            // Denied, in every way of saying so.
            (edit(), Some(true), rejected, Abstain),
            (edit(), None, rejected, Abstain),
            (
                bash("rm -r x"),
                None,
                "Error: The user rejected permission to use this tool",
                Abstain,
            ),
            (shell("rm"), None, "aborted by user after 3.2s", Abstain),
            (shell("rm"), None, "exec command rejected by user", Abstain),
        ];
        for ((name, arguments), failed, text, outcome) in rows {
            let answered = Answered::of(Some((name, &arguments)), failed);
            let ruling = judge_of(text, &answered);
            assert_eq!(
                ruling.outcome, outcome,
                "{name} {arguments}: {text} ({})",
                ruling.reason
            );
        }
        let said = format!("{rejected}. To tell you how to proceed, the user said:\nuse tabs");
        assert_eq!(denied_with(&said), Some("use tabs"));
        assert_eq!(denied_with("the user said: hi"), None);
    }
}
