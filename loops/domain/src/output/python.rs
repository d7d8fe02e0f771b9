//! Calls as Python writes them: `name(key=literal, ...)`.

use serde_json::{Map, Value};

use super::part::Called;

/// How deep literals may hold literals.
const DEPTH_MAX: usize = 32;

pub(super) fn called(name: &str, arguments: &str) -> Called {
    Called {
        name: name.to_owned(),
        arguments: arguments.to_owned(),
    }
}

/// `name(key=literal, ...)`, and what is behind it.
pub(super) fn python_call(text: &str) -> Option<(Called, &str)> {
    let end = text.find(|c: char| !(c.is_alphanumeric() || "_.-".contains(c)))?;
    let (name, mut rest) = (&text[..end], text[end..].strip_prefix('(')?.trim_start());
    let mut arguments = Map::new();
    while !rest.starts_with(')') {
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
        let (key, behind) = rest.split_at(end);
        let behind = behind.trim_start().strip_prefix('=')?;
        let (value, behind) = literal(behind.trim_start(), DEPTH_MAX)?;
        arguments.insert(key.to_owned(), value);
        rest = behind.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if rest.starts_with(')') => rest,
            None => return None,
        };
    }
    let arguments = Value::Object(arguments).to_string();
    (!name.is_empty()).then(|| (called(name, &arguments), &rest[1..]))
}

/// A literal of Python or JSON, and what is behind it.
fn literal(text: &str, depth: usize) -> Option<(Value, &str)> {
    let depth = depth.checked_sub(1)?;
    let first = text.chars().next()?;
    match first {
        '"' | '\'' => text_literal(text, first),
        '[' | '{' => {
            let close = if first == '[' { ']' } else { '}' };
            let (mut rest, mut items, mut fields) =
                (text[1..].trim_start(), Vec::new(), Map::new());
            while !rest.starts_with(close) {
                let (value, behind) = literal(rest, depth)?;
                rest = behind.trim_start();
                if first == '[' {
                    items.push(value);
                } else {
                    let (inner, behind) = literal(rest.strip_prefix(':')?.trim_start(), depth)?;
                    fields.insert(value.as_str()?.to_owned(), inner);
                    rest = behind.trim_start();
                }
                rest = match rest.strip_prefix(',') {
                    Some(more) => more.trim_start(),
                    None if rest.starts_with(close) => rest,
                    None => return None,
                };
            }
            let value = if first == '[' {
                Value::Array(items)
            } else {
                Value::Object(fields)
            };
            Some((value, &rest[1..]))
        }
        _ => {
            let end = text
                .find([',', ')', ']', '}', ':', ' ', '\n'])
                .unwrap_or(text.len());
            let (word, rest) = text.split_at(end);
            let value = match word {
                "True" | "true" => Value::Bool(true),
                "False" | "false" => Value::Bool(false),
                "None" | "null" => Value::Null,
                number => Value::Number(serde_json::from_str(number).ok()?),
            };
            Some((value, rest))
        }
    }
}

fn text_literal(text: &str, quote: char) -> Option<(Value, &str)> {
    let mut said = String::new();
    let mut signs = text.char_indices().skip(1);
    while let Some((at, c)) = signs.next() {
        match c {
            '\\' => said.push(match signs.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                other => other,
            }),
            c if c == quote => return Some((Value::from(said), &text[at + 1..])),
            c => said.push(c),
        }
    }
    None
}
