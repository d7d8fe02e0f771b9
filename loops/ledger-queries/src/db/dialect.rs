//! What the databases say differently. Questions are written in the words that both understand; the few others are
//! SQLite's and are put into PostgreSQL's here. Functions that PostgreSQL lacks are made by its first migration.

use std::borrow::Cow;
use std::fmt::Write as _;

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

/// An insert of one row as one of several; the parameters of a later row follow those of the row before.
pub(super) fn repeated(insert: &str, rows: usize) -> String {
    const VALUES: &str = "values (";
    let begins = insert.find(VALUES).map(|at| at + VALUES.len());
    let (head, rest) = insert.split_at(begins.unwrap_or(insert.len()));
    let mut depth = 1;
    let ends = rest.find(|c| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        depth == 0
    });
    let (row, tail) = rest.split_at(ends.unwrap_or(rest.len()));
    let parameters = row.matches('$').count();
    let mut text = head.to_owned();
    for before in (0..rows).map(|place| place * parameters) {
        if before > 0 {
            text.push_str("), (");
        }
        let mut parts = row.split('$');
        text.push_str(parts.next().unwrap_or_default());
        for (place, part) in parts.enumerate() {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            // Each parameter occurs once, in its order.
            let _never_fails = write!(text, "${}{}", before + place + 1, &part[digits..]);
        }
    }
    text.push_str(tail);
    text
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

    #[test]
    fn an_insert_of_one_row_is_one_of_several() {
        assert_eq!(
            repeated(
                "insert into a (b, c) values ($1, (select d from e where f = $2)) on conflict do nothing",
                3
            ),
            "insert into a (b, c) values ($1, (select d from e where f = $2)), ($3, (select d from e where f = $4)), \
             ($5, (select d from e where f = $6)) on conflict do nothing"
        );
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
