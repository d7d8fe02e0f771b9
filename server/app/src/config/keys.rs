//! Names of keys, and which known one is nearest to a wrong one.

use toml::{Table, Value};

/// Every key of `table` as `section.key`, tables included.
pub(super) fn all(table: &Table) -> Vec<String> {
    let mut names = Vec::new();
    collect("", table, &mut names);
    names
}

fn collect(prefix: &str, table: &Table, names: &mut Vec<String>) {
    for (key, value) in table {
        let name = if prefix.is_empty() {
            key.clone()
        } else {
            format!("{prefix}.{key}")
        };
        if let Value::Table(inner) = value {
            collect(&name, inner, names);
        }
        names.push(name);
    }
}

/// What a sentence may name as keys: `section.key`, also with a place in a list.
pub(super) fn named(sentence: &str) -> impl Iterator<Item = &str> {
    let is_key = |c: char| c.is_ascii_alphanumeric() || "_.[]".contains(c);
    let words = sentence.split(move |c: char| !is_key(c));
    words.map(|word| word.trim_end_matches('.'))
}

/// The known key that `wrong` may stand for: one that is written much like it, of the same section
/// first, or the only one of its last name. None where nothing is near.
pub(super) fn nearest(wrong: &str, known: &[String]) -> Option<String> {
    let (section, last) = split(wrong);
    let alike = known.iter().filter_map(|name| {
        let (its_section, its_last) = split(name);
        let edits = near(section, its_section)? + near(last, its_last)?;
        Some(((section != its_section, edits), name))
    });
    if let Some((_, name)) = alike.min() {
        return Some(name.clone());
    }
    let mut misplaced = known.iter().filter(|name| split(name).1 == last);
    misplaced
        .next()
        .filter(|_| misplaced.next().is_none())
        .cloned()
}

fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

/// The edits between two names; none where they are more than a third of the name.
fn near(wrong: &str, known: &str) -> Option<usize> {
    let most = (wrong.chars().count() / 3).max(usize::from(!wrong.is_empty()));
    Some(strsim::levenshtein(wrong, known)).filter(|edits| *edits <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_near_is_suggested() {
        let known = [
            "http",
            "http.bind",
            "http.keys",
            "log",
            "log.level",
            "log.bins",
            "train.learner.form",
            "judge.model.url",
            "engine.url",
        ]
        .map(str::to_owned);
        for (wrong, expected) in [
            ("http.bimd", Some("http.bind")),
            ("http.bins", Some("http.bind")),
            ("htpp", Some("http")),
            ("htpp.bimd", Some("http.bind")),
            ("bind", Some("http.bind")),
            ("train.leraner.form", Some("train.learner.form")),
            ("http.foo", None),
            ("http.port", None),
            ("http.url", None),
            ("elsewhere", None),
        ] {
            let found = nearest(wrong, &known);
            assert_eq!(found.as_deref(), expected, "{wrong}");
        }
    }
}
