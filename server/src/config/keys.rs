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

/// The known key with the fewest edits to `wrong`; a key of the same section comes first.
pub(super) fn nearest(wrong: &str, known: &[String]) -> Option<String> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    known
        .iter()
        .min_by_key(|name| {
            let whole = edits(wrong, name);
            whole.min(edits(&last(wrong), &last(name)) + 1)
        })
        .cloned()
}

/// Levenshtein distance, in characters.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
