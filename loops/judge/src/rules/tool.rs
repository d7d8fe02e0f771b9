//! What a tool's result or an environment's output says about the call that caused it.

use std::sync::OnceLock;

use hone_domain::Outcome;
use serde_json::Value;

use super::Ruling;
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

/// Judges one result.
pub(crate) fn judge(raw: &str) -> Ruling {
    let text = raw.trim();
    if text.is_empty() {
        return Ruling::new(Outcome::Abstain, "empty_result");
    }
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
        assert_eq!(judge(&page.join("\n")).outcome, Outcome::Good);
        page[59] = "error: at the end";
        assert_eq!(judge(&page.join("\n")).outcome, Outcome::Bad);
    }
}
