//! What the databases say differently. Questions are written in the words that both understand; the few others are
//! SQLite's and are put into PostgreSQL's here. Functions that PostgreSQL lacks are made by its first migration.

use std::borrow::Cow;

use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

/// Words of SQLite, and what PostgreSQL says instead. Its planner needs no order of joins.
const WORDS: [(&str, &str); 2] = [("cross join", "join"), ("glob 'audit:*'", "like 'audit:%'")];

/// Names an index that SQLite has to use; PostgreSQL chooses for itself.
const INDEXED: &str = " indexed by ";

/// A statement as PostgreSQL understands it.
pub(super) fn postgres(text: SqlStr) -> SqlStr {
    match translated(text.as_str()) {
        Cow::Borrowed(_) => text,
        // A text of the program's own, made of one of its own.
        Cow::Owned(text) => AssertSqlSafe(text).into_sql_str(),
    }
}

fn translated(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    for (sqlite, postgres) in WORDS {
        if text.contains(sqlite) {
            text = Cow::Owned(text.replace(sqlite, postgres));
        }
    }
    if text.contains(INDEXED) {
        text = Cow::Owned(without_indexes(&text));
    }
    text
}

fn without_indexes(text: &str) -> String {
    let mut parts = text.split(INDEXED);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // The name of the index goes as well.
        let name = part.find(|c: char| !(c.is_alphanumeric() || c == '_'));
        out.push_str(&part[name.unwrap_or(part.len())..]);
    }
    out
}

/// Stands for U+0000 together with [`ZERO`], and for itself together with [`SELF`]: PostgreSQL's texts hold every
/// other character. It is no character that anybody writes.
const ESCAPE: char = '\u{10FFFF}';
const ZERO: char = '0';
const SELF: char = '1';

/// A text without U+0000, from which [`unescaped`] makes the same text again.
pub(super) fn escaped(text: String) -> String {
    if !text.contains(['\0', ESCAPE]) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\0' => out.extend([ESCAPE, ZERO]),
            ESCAPE => out.extend([ESCAPE, SELF]),
            other => out.push(other),
        }
    }
    out
}

/// The inverse of [`escaped`]; none where the text is its own inverse.
pub(super) fn unescaped(text: &str) -> Option<String> {
    if !text.contains(ESCAPE) {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            ESCAPE if chars.next() == Some(ZERO) => out.push('\0'),
            other => out.push(other),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_only_sqlite_says_is_put_into_the_words_of_postgresql() {
        for (sqlite, postgres) in [
            (
                "select 1 from turns where id = $1",
                "select 1 from turns where id = $1",
            ),
            (
                "select number from turns indexed by turns_open\n where stage = 'a'",
                "select number from turns\n where stage = 'a'",
            ),
            (
                "(select 1 from a indexed by b) union select 1 from c indexed by d_e",
                "(select 1 from a) union select 1 from c",
            ),
            (
                "from a cross join b on a.c = b.c",
                "from a join b on a.c = b.c",
            ),
            ("where model glob 'audit:*'", "where model like 'audit:%'"),
        ] {
            assert_eq!(translated(sqlite), postgres);
        }
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text: String, n in 0usize..4) {
            let text = format!("{text}{}{text}", ["\0", "\u{10FFFF}", "\u{10FFFF}0", ""][n]);
            let stored = escaped(text.clone());
            prop_assert!(!stored.contains('\0'));
            let back = unescaped(&stored).unwrap_or(stored);
            prop_assert_eq!(back, text);
        }
    }
}
