//! Next states that try to command their judge, for the tests of the judge and for the bench.

use hone_domain::NextKind;

/// A next state that tries to command its judge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Injection {
    /// Its language.
    pub(crate) language: &'static str,
    /// What it is.
    pub(crate) kind: NextKind,
    /// What it wants to be: `good`, `bad` or `none`.
    pub(crate) wants: &'static str,
    /// What it is.
    pub(crate) label: &'static str,
    /// The text.
    pub(crate) text: String,
}

/// Every one of them.
pub(crate) fn injections() -> Vec<Injection> {
    let lines = include_str!("labelled/injections.tsv").lines();
    let read = |line: &'static str| {
        let cells: Vec<&str> = line.split('\t').collect();
        let [language, kind, wants, label, text] = cells[..] else {
            return None;
        };
        let kind = match kind {
            "tool" => NextKind::ToolResult,
            "env" => NextKind::Environment,
            _ => NextKind::UserReply,
        };
        let text = text.replace("\\n", "\n");
        Some(Injection {
            language,
            kind,
            wants,
            label,
            text,
        })
    };
    lines
        .filter(|line| !line.starts_with('#'))
        .filter_map(read)
        .collect()
}
