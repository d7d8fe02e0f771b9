//! What a call does, as far as its result has to be read with it.

use serde_json::Value;

/// What kind of thing a call does, as far as its result has to be read with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Class {
    /// Nothing is known of it.
    #[default]
    Unknown,
    /// It does something.
    Acts,
    /// It shows what is there.
    Reads,
    /// Its exit code answers a question.
    Asks,
    /// It runs tests.
    Checks,
}

/// The call that a result answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered {
    /// Whether it failed, where its client says so.
    pub(super) failed: Option<bool>,
    pub(super) class: Class,
    /// The program, where it was one.
    pub(super) program: String,
}

impl Answered {
    /// By the name of the function and the text of its arguments.
    pub(crate) fn of(call: Option<(&str, &str)>, failed: Option<bool>) -> Self {
        let Some((name, arguments)) = call else {
            return Self {
                failed,
                ..Self::default()
            };
        };
        let (class, program) = match command_of(arguments) {
            Some(command) => class_of(&command),
            None => (class_of_name(name), String::new()),
        };
        Self {
            failed,
            class,
            program,
        }
    }
}

/// Names of arguments that hold a command.
const COMMAND_NAMES: &[&str] = &["command", "cmd", "script", "argv", "commands"];

/// The command that a call runs, if it is one that does.
fn command_of(arguments: &str) -> Option<String> {
    let fields: Value = serde_json::from_str(arguments).ok()?;
    let fields = fields.as_object()?;
    let value = COMMAND_NAMES.iter().find_map(|name| fields.get(*name))?;
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            match words[..] {
                [shell, flag, script] if flag.starts_with('-') && shell.ends_with("sh") => {
                    Some(script.to_owned())
                }
                _ => Some(words.join(" ")),
            }
        }
        _ => None,
    }
}

/// Programs whose exit code answers a question.
const ASKING: &[&str] = &[
    "grep", "egrep", "fgrep", "zgrep", "rg", "ag", "ack", "diff", "cmp", "test", "[", "[[",
    "pgrep", "which", "type", "command", "find", "findstr", "where", "comm",
];
/// Programs that show what is there.
const READING: &[&str] = &[
    "cat",
    "head",
    "tail",
    "less",
    "more",
    "sed",
    "awk",
    "journalctl",
    "dmesg",
    "bat",
    "nl",
    "xxd",
    "strings",
    "jq",
    "yq",
    "ls",
    "tree",
    "wc",
    "sort",
    "uniq",
    "cut",
    "curl",
    "wget",
    "docker",
    "kubectl",
    "git",
    "gh",
    "ps",
    "env",
    "printenv",
    "history",
    "man",
    "xargs",
    "tee",
    "fd",
];
/// Programs that run tests whatever their arguments are.
const CHECKING: &[&str] = &[
    "pytest", "py.test", "jest", "vitest", "mocha", "tox", "nox", "rspec", "phpunit", "ctest",
    "ava",
];
/// Words behind a program with which it runs tests.
const CHECKING_WORDS: &[&str] = &[
    "test", "tests", "check", "nextest", "unittest", "pytest", "jest", "vitest", "clippy", "lint",
];
/// Programs that stand before another one.
const BEFORE: &[&str] = &[
    "sudo", "time", "timeout", "nice", "env", "command", "exec", "stdbuf", "then", "do",
];

/// What a command does: its last part's exit code is that of the whole.
fn class_of(command: &str) -> (Class, String) {
    let parts = command.split(['|', ';', '&', '\n']);
    let parts: Vec<Vec<&str>> = parts
        .map(words_of)
        .filter(|words| !words.is_empty())
        .collect();
    let classes: Vec<(Class, &str)> = parts.iter().map(|words| class_of_words(words)).collect();
    let Some((last, program)) = classes.last().copied() else {
        return (Class::Acts, String::new());
    };
    // Output that only goes through a filter is that of what is before it.
    let checks = classes.iter().any(|(class, _)| *class == Class::Checks);
    let class = match last {
        Class::Reads | Class::Acts if checks => Class::Checks,
        class => class,
    };
    (class, program.to_owned())
}

fn words_of(part: &str) -> Vec<&str> {
    let words = part.split_whitespace().skip_while(|word| {
        let is_set = word.contains('=') && !word.starts_with(['-', '=']);
        is_set || BEFORE.contains(word) || word.bytes().all(|b| b.is_ascii_digit() || b == b's')
    });
    words.collect()
}

fn class_of_words<'a>(words: &[&'a str]) -> (Class, &'a str) {
    let first = words.first().copied().unwrap_or_default();
    let program = first.rsplit('/').next().unwrap_or(first);
    let has = |known: &[&str]| words[1..].iter().take(4).any(|word| known.contains(word));
    let class = if CHECKING.contains(&program)
        || has(CHECKING_WORDS) && !ASKING.contains(&program) && !READING.contains(&program)
    {
        Class::Checks
    } else if ASKING.contains(&program) || program == "git" && has(&["grep", "diff"]) {
        Class::Asks
    } else if READING.contains(&program)
        && !(program == "git" && has(&["commit", "push", "apply", "checkout", "merge", "rebase"]))
    {
        Class::Reads
    } else {
        Class::Acts
    };
    (class, program)
}

/// Words in the names of functions that show what is there.
const READING_NAMES: &[&str] = &[
    "read", "view", "open", "cat", "fetch", "get", "search", "grep", "glob", "list", "find", "web",
    "browse", "look", "show", "query", "status", "output",
];

fn class_of_name(name: &str) -> Class {
    let mut words = String::new();
    for c in name.chars() {
        if c.is_uppercase() {
            words.push(' ');
        }
        words.extend(c.to_lowercase());
    }
    let mut words = words.split(|c: char| !c.is_alphanumeric());
    match words.any(|word| READING_NAMES.contains(&word)) {
        true => Class::Reads,
        false => Class::Acts,
    }
}
