//! A commit's message as a request: without what belongs to the history, and without what gives the answer away.

/// Fewest words that say something.
const WORDS_MIN: usize = 3;
/// Shortest line of code whose mention gives something away, in characters.
const CODE_MIN: usize = 8;
/// What tells a line of code from a line of words.
const CODE_SIGNS: &str = "(){}[]=;<>_.+*";
const CODE_WORDS: &[&str] = &["return ", "import ", " / ", " - ", " % "];
/// Words that say nothing about what is to be done.
const EMPTY_WORDS: &[&str] = &[
    "wip", "fix", "fixes", "fixed", "update", "updates", "updated", "change", "changes", "test",
    "tests", "cleanup", "merge", "bump", "misc", "typo", "bug", "bugs", "minor", "stuff", "more",
    "some", "the", "and", "for", "commit", "revert",
];
/// Words before a reference that say nothing without it.
const BEFORE_REFERENCES: &[&str] = &[
    "fix", "fixes", "fixed", "close", "closes", "closed", "resolve", "resolves", "resolved", "ref",
    "refs", "see", "issue", "issues", "bug", "pr", "commit", "reverts", "gh", "and", "also",
];
/// Names of trailers beside those that end with `-by`.
const TRAILERS: &[&str] = &[
    "cc",
    "change-id",
    "fixes",
    "closes",
    "resolves",
    "refs",
    "ref",
    "link",
    "bug",
    "issue",
    "pr-url",
    "pull-request",
    "reviewed-on",
    "see-also",
    "git-svn-id",
    "differential-revision",
    "ticket",
    "jira",
    "backport",
    "version",
];

/// What a message asks for; none where it says too little. `added` are the lines of code that the commit adds.
pub(super) fn request(message: &str, added: &[String]) -> Option<String> {
    let mut kept: Vec<String> = Vec::new();
    let (mut is_fenced, mut is_in_list) = (false, false);
    for line in message.lines() {
        let text = line.trim();
        if text.starts_with("```") || text.starts_with("~~~") {
            is_fenced = !is_fenced;
            continue;
        }
        let is_item =
            text.starts_with(['-', '*', '•']) || text.starts_with(|c: char| c.is_ascii_digit());
        let is_indented = line.starts_with("    ") || line.starts_with('\t');
        let is_code = is_indented && !is_item && !is_in_list;
        if is_fenced || is_code || is_patch(line) || is_trailer(text) || gives_away(text, added) {
            continue;
        }
        is_in_list = !text.is_empty() && (is_item || is_in_list && line.starts_with(' '));
        let cleaned = without_references(text);
        // A line of references alone leaves nothing, not even a break.
        if !cleaned.is_empty()
            || (text.is_empty() && kept.last().is_some_and(|last| !last.is_empty()))
        {
            kept.push(cleaned);
        }
    }
    if let Some(subject) = kept.first_mut() {
        *subject = without_type(subject);
    }
    let text = kept.join("\n").trim().to_owned();
    says_enough(&text).then_some(text)
}

fn says_enough(text: &str) -> bool {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '\'');
    let words = words.filter(|word| word.len() > 1 && word.chars().any(char::is_alphabetic));
    let words: Vec<String> = words.map(str::to_lowercase).collect();
    let telling = words
        .iter()
        .filter(|word| !EMPTY_WORDS.contains(&word.as_str()));
    words.len() >= WORDS_MIN && telling.count() >= 2
}

/// A line of a patch.
fn is_patch(line: &str) -> bool {
    ["diff --git ", "@@ ", "+++ ", "--- ", "index "]
        .iter()
        .any(|start| line.starts_with(start))
        || (line.starts_with('+') && line.len() > 1)
}

fn is_trailer(line: &str) -> bool {
    let Some((name, _)) = line.split_once(':') else {
        return false;
    };
    let name = name.to_lowercase();
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    is_name && (name.ends_with("-by") || TRAILERS.contains(&name.as_str()))
}

/// Whether a line holds code that the commit adds, or a part of such code between backticks.
fn gives_away(line: &str, added: &[String]) -> bool {
    let is_code = |text: &str| {
        let has_sign = text.contains(|c| CODE_SIGNS.contains(c));
        let has_word = CODE_WORDS.iter().any(|word| text.contains(word));
        text.chars().count() >= CODE_MIN && (has_sign || has_word)
    };
    let codes = || added.iter().filter(|code| is_code(code));
    if codes().any(|code| line.contains(code.as_str())) {
        return true;
    }
    let between = line.split('`').skip(1).step_by(2);
    let mut parts = between.filter(|part| is_code(part) && part.contains([' ', '=']));
    parts.any(|part| codes().any(|code| code.contains(part)))
}

/// A line without addresses, numbers of issues and hashes of commits.
fn without_references(line: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    for word in line.split_whitespace() {
        let core = word.trim_matches(|c: char| "()[]{}<>,.;:!\"'`".contains(c));
        if !is_reference(core) {
            words.push(word);
            continue;
        }
        while let Some(before) = words.last() {
            let before = before
                .trim_matches(|c: char| !c.is_alphanumeric())
                .to_lowercase();
            match BEFORE_REFERENCES.contains(&before.as_str()) {
                true => words.pop(),
                false => break,
            };
        }
    }
    let text = words.join(" ");
    for mark in ["[skip ci]", "[ci skip]", "()", "[]"] {
        if text.contains(mark) {
            return text.replace(mark, "").trim().to_owned();
        }
    }
    text
}

fn is_reference(word: &str) -> bool {
    let is_address = ["http://", "https://", "www.", "git@"]
        .iter()
        .any(|start| word.contains(start));
    let number = word.rsplit_once('#').map(|(_, number)| number);
    let number = number.or_else(|| word.strip_prefix("GH-"));
    let is_number = number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    let is_hex = word.bytes().all(|b| b.is_ascii_hexdigit());
    let has = |of: fn(&u8) -> bool| word.as_bytes().iter().any(of);
    let is_mixed = has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic);
    let is_hash = is_hex && (word.len() == 40 || ((7..40).contains(&word.len()) && is_mixed));
    is_address || is_number || is_hash
}

/// A subject without the type that conventional commits begin with, as in `fix(parser)!: ...`.
fn without_type(subject: &str) -> String {
    const TYPES: &[&str] = &[
        "feat", "fix", "chore", "refactor", "perf", "test", "tests", "docs", "style", "build",
        "ci", "revert",
    ];
    let Some((head, rest)) = subject.split_once(": ") else {
        return subject.to_owned();
    };
    let name = head
        .trim_end_matches('!')
        .split('(')
        .next()
        .unwrap_or_default();
    let rest = rest.trim();
    if !TYPES.contains(&name.to_lowercase().as_str()) || head.contains(' ') {
        return subject.to_owned();
    }
    let mut letters = rest.chars();
    let first = letters
        .next()
        .map(|c| c.to_uppercase().to_string())
        .unwrap_or_default();
    format!("{first}{}", letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(message: &str, added: &[&str]) -> Option<String> {
        let added: Vec<String> = added.iter().map(|line| (*line).to_owned()).collect();
        request(message, &added)
    }

    #[test]
    fn what_belongs_to_the_history_goes() {
        for (message, request) in [
            (
                "Parse dates with a time zone",
                "Parse dates with a time zone",
            ),
            (
                "Parse dates with a time zone (#123)\n\nFixes #12\nSee https://example.org/x/12.\n\nSigned-off-by: A <a@b.c>\nCo-authored-by: B <b@b.c>\nChange-Id: I9",
                "Parse dates with a time zone",
            ),
            (
                "fix(parser)!: reject an empty list\n\nIt was broken since 3f2a9c1b0d4e, closes org/repo#7.\n",
                "Reject an empty list\n\nIt was broken since",
            ),
            (
                "Round half to even\n\nAs money does.\n\n- keep 7 digits\n- say so\n",
                "Round half to even\n\nAs money does.\n\n- keep 7 digits\n- say so",
            ),
            ("feat: cache results [skip ci]", "Cache results"),
        ] {
            let cleaned = check(message, &[]);
            // "Cache results" alone says too little.
            let wanted = (request != "Cache results").then(|| request.to_owned());
            assert_eq!(cleaned, wanted, "{message}");
        }
    }

    #[test]
    fn what_gives_the_answer_away_goes() {
        let added = [
            "return (a + b) // 2",
            "return total / 2",
            "if limit is None:",
            "total = 0",
        ];
        for message in [
            "Take the mean of both values\n\nUse return (a + b) // 2 for it.",
            "Take the mean of both values\n\nIt is `(a + b) // 2` now.",
            "Take the mean of both values\n\nIt shall return total / 2 then",
            "Take the mean of both values\n\n```python\nreturn (a + b) // 2\n```",
            "Take the mean of both values\n\n    return whatever(a)\n",
            "Take the mean of both values\n\ndiff --git a/x b/x\n@@ -1 +1 @@\n+return (a + b) // 2\n",
        ] {
            let cleaned = check(message, &added);
            assert_eq!(
                cleaned.as_deref(),
                Some("Take the mean of both values"),
                "{message}"
            );
        }
        // A name between backticks says what to change, not how.
        let named = "Let `mean` take a limit\n\n`limit` may be absent.";
        assert_eq!(check(named, &added).as_deref(), Some(named));
    }

    #[test]
    fn what_says_too_little_asks_for_nothing() {
        for message in [
            "",
            "wip",
            "fix",
            "fix tests",
            "Update",
            "Fix bug (#12)",
            "merge",
            "fix: typo",
            "Fixes #1",
            "more fixes and tests",
        ] {
            assert_eq!(check(message, &[]), None, "{message}");
        }
    }
}
