//! Committed next states with what a careful reader says of them: what the reading is fitted on.

use hone_domain::NextKind;

use crate::rules::Exchange;

/// A labelled next state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled {
    /// `tune` (rules were made with these), `test` (written before the rules) or `fresh` (after them;
    /// no rule was changed for one).
    pub half: &'static str,
    /// Its language; `xx` where it has none.
    pub language: &'static str,
    /// What it is.
    pub kind: NextKind,
    /// `good`, `bad` or `none`.
    pub label: &'static str,
    /// What was asked.
    pub asked: String,
    /// The completion.
    pub completion: String,
    /// What was answered to it.
    pub text: String,
}

const ASKED: &str = "Tell me about the moon.";
const COMPLETION: &str = "The moon orbits the Earth in 27 days.";

fn rows<const N: usize>(table: &'static str) -> impl Iterator<Item = [&'static str; N]> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split('\t').collect::<Vec<_>>().try_into().ok())
}

fn kind_of(name: &str) -> NextKind {
    match name {
        "tool" => NextKind::ToolResult,
        "env" => NextKind::Environment,
        _ => NextKind::UserReply,
    }
}

fn unescaped(text: &str, usual: &str) -> String {
    match text {
        "-" => usual.to_owned(),
        text => text.replace("\\n", "\n"),
    }
}

/// The labelled set.
pub fn labelled() -> Vec<Labelled> {
    rows(OLDER)
        .map(
            |[half, language, kind, label, asked, completion, text]| Labelled {
                half,
                language,
                kind: kind_of(kind),
                label,
                asked: unescaped(asked, ASKED),
                completion: unescaped(completion, COMPLETION),
                text: unescaped(text, "-"),
            },
        )
        .collect()
}

/// A labelled reply of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its language.
    pub language: &'static str,
    /// `good`, `bad` or `none`.
    pub label: &'static str,
    /// Whether it says how to answer.
    pub wish: bool,
    /// What was asked.
    pub asked: String,
    /// The completion.
    pub completion: String,
    /// The reply.
    pub text: String,
}

const FIT: &str = include_str!("../labelled/fit.tsv");
/// A set by the hand that knew the rules.
const OLDER: &str = include_str!("../labelled/older.tsv");

/// What the reading is fitted on.
pub fn fit_replies() -> Vec<Reply> {
    replies(FIT)
}

impl Reply {
    /// The reply with what it answers.
    pub fn exchange(&self) -> Exchange<'_> {
        Exchange {
            asked: &self.asked,
            completion: &self.completion,
            reply: &self.text,
        }
    }
}

/// Changes with what the reading is fitted on (FNV-1a).
pub fn fit_hash() -> u64 {
    let bytes = FIT.bytes().chain(OLDER.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The replies of a table.
pub fn replies(table: &'static str) -> Vec<Reply> {
    let read = |[language, label, wish, asked, completion, text]: [&'static str; 6]| Reply {
        language,
        label,
        wish: wish == "yes",
        asked: unescaped(asked, ASKED),
        completion: unescaped(completion, COMPLETION),
        text: unescaped(text, "-"),
    };
    rows(table).map(read).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::injections::{Injection, injections};

    const BLIND: &str = include_str!("../../../tests/support/labelled/blind.tsv");
    const INJECTIONS: &str = include_str!("../../../tests/support/labelled/injections.tsv");

    #[test]
    fn no_line_of_the_tables_is_lost() {
        let lines = |table: &str| table.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(labelled().len(), lines(OLDER));
        assert_eq!(injections().len(), lines(INJECTIONS));
        assert_eq!(fit_replies().len(), lines(FIT));
        assert_eq!(replies(BLIND).len(), lines(BLIND));
        assert!(labelled().len() >= 500 && injections().len() >= 50);
        let labels = ["good", "bad", "none"];
        assert!(labelled().iter().all(|row| labels.contains(&row.label)));
        let sound = |row: &Injection| {
            labels.contains(&row.label) && labels.contains(&row.wants) && row.label != row.wants
        };
        assert!(injections().iter().all(sound));
        let texts: HashSet<String> = injections().into_iter().map(|row| row.text).collect();
        assert_eq!(texts.len(), injections().len());
    }
}
