//! Layers of configuration: later ones win, key by key.

use toml::{Table, Value};

use super::error::ConfigError;
use super::keys;

/// Begin of the environment variables that are configuration.
const ENV_PREFIX: &str = "HONE__";

/// Tables that are left out by default, with the defaults of their keys once they are named.
pub(super) const OPTIONAL: &[(&[&str], &str)] = &[
    (
        &["judge", "model"],
        include_str!("../../../../configs/judge-model.toml"),
    ),
    (
        &["judge", "certificate", "execute"],
        include_str!("../../../../configs/judge-execute.toml"),
    ),
    (
        &["people", "oidc"],
        include_str!("../../../../configs/oidc.toml"),
    ),
];

/// Reads TOML; `name` is where it is from.
pub(super) fn parse(text: &str, name: &str) -> Result<Table, ConfigError> {
    text.parse::<Table>()
        .map_err(|error| ConfigError(format!("{name} is not valid TOML: {error}")))
}

/// Every key that a configuration may have, with an example of its value.
pub(super) fn with_optional(mut known: Table) -> Result<Table, ConfigError> {
    for (path, text) in OPTIONAL {
        put_optional(&mut known, path, &parse(text, "an optional table")?);
    }
    Ok(known)
}

/// Puts `layer` over `merged`. A key that `known` lacks, or a value of another type, is an error.
pub(super) fn merge(
    merged: &mut Table,
    known: &Table,
    layer: Table,
    name: &str,
) -> Result<(), ConfigError> {
    for (path, text) in OPTIONAL {
        let is_named = lookup(&layer, path).is_some();
        if is_named && lookup(merged, path).is_none() {
            put_optional(merged, path, &parse(text, "an optional table")?);
        }
    }
    overlay(merged, known, "", layer).map_err(|message| {
        let message = match message {
            Wrong::Unknown(key) => {
                let near = keys::nearest(&key, &keys::all(known));
                let near = near.map(|near| format!("; did you mean {near}?"));
                format!("unknown key {key}{}", near.unwrap_or_default())
            }
            Wrong::Type(message) => message,
        };
        ConfigError(format!("{name}: {message}"))
    })
}

enum Wrong {
    Unknown(String),
    Type(String),
}

fn overlay(merged: &mut Table, known: &Table, prefix: &str, layer: Table) -> Result<(), Wrong> {
    for (key, value) in layer {
        let path = if prefix.is_empty() {
            key.clone()
        } else {
            format!("{prefix}.{key}")
        };
        let Some(example) = known.get(&key) else {
            return Err(Wrong::Unknown(path));
        };
        match (example, value) {
            (Value::Table(known), Value::Table(layer)) => {
                let inner = merged
                    .entry(key)
                    .or_insert_with(|| Value::Table(Table::new()));
                if let Value::Table(inner) = inner {
                    overlay(inner, known, &path, layer)?;
                }
            }
            (Value::Float(_), Value::Integer(whole)) => {
                merged.insert(key, Value::Float(whole as f64));
            }
            (example, value) if example.same_type(&value) => {
                merged.insert(key, value);
            }
            (example, value) => {
                let (wanted, got) = (example.type_str(), value.type_str());
                return Err(Wrong::Type(format!(
                    "{path} must be of type {wanted}, not {got}"
                )));
            }
        }
    }
    Ok(())
}

fn lookup<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let value = table.get(*first)?;
    if rest.is_empty() {
        return Some(value);
    }
    lookup(value.as_table()?, rest)
}

/// Puts the table at `path` of `defaults` at the same path of `table`.
fn put_optional(table: &mut Table, path: &[&str], defaults: &Table) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    let Some(value) = defaults.get(*first) else {
        return;
    };
    if rest.is_empty() {
        table.insert((*first).to_owned(), value.clone());
        return;
    }
    let inner = table
        .entry((*first).to_owned())
        .or_insert_with(|| Value::Table(Table::new()));
    if let (Value::Table(inner), Value::Table(defaults)) = (inner, value) {
        put_optional(inner, rest, defaults);
    }
}

/// `a.b.c = value` as nested tables.
pub(super) fn nested(key: &str, value: Value) -> Table {
    let mut parts = key.rsplit('.');
    let mut table = Table::new();
    table.insert(parts.next().unwrap_or_default().to_owned(), value);
    for part in parts {
        let inner = std::mem::take(&mut table);
        table.insert(part.to_owned(), Value::Table(inner));
    }
    table
}

/// The layers that environment variables make, each with its variable's name.
pub(super) fn env_values(
    env: &[(String, String)],
    known: &Table,
) -> Result<Vec<(String, Table)>, ConfigError> {
    let mut layers = Vec::new();
    for (name, text) in env {
        let Some(key) = name.strip_prefix(ENV_PREFIX) else {
            continue;
        };
        let key = key.to_ascii_lowercase().replace("__", ".");
        let path: Vec<&str> = key.split('.').collect();
        let Some(example) = lookup(known, &path) else {
            let near = keys::nearest(&key, &keys::all(known)).map(|near| {
                let near = near.to_ascii_uppercase().replace('.', "__");
                format!("; did you mean {ENV_PREFIX}{near}?")
            });
            return Err(ConfigError(format!(
                "the environment variable {name} sets no known key{}",
                near.unwrap_or_default()
            )));
        };
        let value = env_value(text, example)
            .map_err(|why| ConfigError(format!("the environment variable {name}: {why}")))?;
        layers.push((name.clone(), nested(&key, value)));
    }
    Ok(layers)
}

/// Strings are taken as they are, lists may be written with commas, the rest is TOML.
fn env_value(text: &str, example: &Value) -> Result<Value, String> {
    match example {
        Value::String(_) => Ok(Value::String(text.to_owned())),
        Value::Array(_) if !text.trim_start().starts_with('[') => {
            let items = text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty());
            Ok(Value::Array(
                items.map(|item| Value::String(item.to_owned())).collect(),
            ))
        }
        _ => {
            let parsed: Table = format!("value = {text}")
                .parse()
                .map_err(|_| format!("{text:?} is not of type {}", example.type_str()))?;
            parsed
                .get("value")
                .cloned()
                .ok_or_else(|| format!("{text:?} is not of type {}", example.type_str()))
        }
    }
}
