//! Python's data model over the template engine's values: what is equal to what, what comes before
//! what, what is in what. Templates are written against it, and the engine's own differs.

use std::cmp::Ordering;

use minijinja::{Error, Value};

use super::cost;
use super::values::{Kind, Number, What, fail, kind, name_of};

/// What `iter(value)` gives, or that it cannot be iterated over.
pub(super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    match kind(value) {
        Kind::Undefined => Ok(Vec::new()),
        Kind::Text(text) => {
            cost::charge(text.len().saturating_mul(cost::PIECE_BYTES))?;
            Ok(value.try_iter()?.collect())
        }
        Kind::List | Kind::Tuple | Kind::Dict | Kind::Lazy(_) => Ok(value.try_iter()?.collect()),
        _ => Err(fail(format!("{} is not iterable", name_of(value)))),
    }
}

/// The pairs of a dictionary.
pub(super) fn pairs(dict: &Value) -> Result<Vec<(Value, Value)>, Error> {
    let keys = dict.try_iter()?;
    keys.map(|key| dict.get_item(&key).map(|value| (key, value)))
        .collect()
}

/// `a == b`.
pub(super) fn equal(a: &Value, b: &Value) -> bool {
    match (kind(a), kind(b)) {
        (Kind::Undefined, Kind::Undefined) | (Kind::None, Kind::None) => true,
        (Kind::Number(a), Kind::Number(b)) => numbers(a, b) == Some(Ordering::Equal),
        (Kind::Text(a), Kind::Text(b)) => a == b,
        (Kind::List, Kind::List) | (Kind::Tuple, Kind::Tuple) => {
            let (Ok(mut a), Ok(mut b)) = (a.try_iter(), b.try_iter()) else {
                return false;
            };
            loop {
                match (a.next(), b.next()) {
                    (Some(a), Some(b)) if equal(&a, &b) => {}
                    (None, None) => return true,
                    _ => return false,
                }
            }
        }
        (Kind::Dict, Kind::Dict) => {
            let Ok(pairs) = pairs(a) else { return false };
            a.len() == b.len()
                && pairs
                    .iter()
                    .all(|(key, value)| find_key(b, key).is_some_and(|other| equal(value, &other)))
        }
        (Kind::Lazy(a), Kind::Lazy(b)) => match (a.what, b.what) {
            (What::Range { .. }, What::Range { .. }) => {
                a.items.len() == b.items.len()
                    && a.items.iter().zip(&b.items).all(|(a, b)| equal(a, b))
            }
            _ => std::ptr::eq(a, b),
        },
        (Kind::Other, Kind::Other) => minijinja::tests::is_sameas(a, b),
        _ => false,
    }
}

/// A dictionary's value, where 1, 1.0 and true are one key.
pub(super) fn find_key(dict: &Value, key: &Value) -> Option<Value> {
    let object = dict.as_object()?;
    // Hashing reads all of the key. What is over the budget counts as not found, and the rendering
    // fails at its next charge or at its end.
    match kind(key) {
        Kind::Text(text) => cost::charge(text.len()).ok()?,
        Kind::Tuple => cost::deep(key, 0).ok()?,
        _ => {}
    }
    if let Some(found) = object.get_value(key) {
        return Some(found);
    }
    // The engine keeps truth values and numbers apart.
    let same = match kind(key) {
        Kind::Number(Number::Bool(b)) => Value::from(i64::from(b)),
        Kind::Number(n) if n.float() == 0.0 => Value::from(false),
        Kind::Number(n) if n.float() == 1.0 => Value::from(true),
        _ => return None,
    };
    object.get_value(&same)
}

fn numbers(a: Number, b: Number) -> Option<Ordering> {
    match (a.int(), b.int()) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.float().partial_cmp(&b.float()),
    }
}

/// The order of two values; `None` where a number is not a number. Kinds do not mix.
pub(super) fn compare(a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    match (kind(a), kind(b)) {
        (Kind::Number(a), Kind::Number(b)) => Ok(numbers(a, b)),
        (Kind::Text(a), Kind::Text(b)) => Ok(Some(a.cmp(b))),
        (Kind::List, Kind::List) | (Kind::Tuple, Kind::Tuple) => {
            let (mut a, mut b) = (a.try_iter()?, b.try_iter()?);
            loop {
                return match (a.next(), b.next()) {
                    (Some(a), Some(b)) if equal(&a, &b) => continue,
                    (Some(a), Some(b)) => compare(&a, &b),
                    (a, b) => Ok(Some(a.is_some().cmp(&b.is_some()))),
                };
            }
        }
        _ => Err(fail(format!(
            "{} and {} cannot be compared",
            name_of(a),
            name_of(b)
        ))),
    }
}

/// `item in container`.
pub(super) fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    match (kind(container), kind(item)) {
        (Kind::Text(all), Kind::Text(part)) => Ok(all.contains(part)),
        (Kind::Text(_), _) => Err(fail(format!(
            "only text can be in a text, not {}",
            name_of(item)
        ))),
        (Kind::Dict, Kind::List | Kind::Dict) => Err(fail("it cannot be a key")),
        (Kind::Dict, _) => Ok(find_key(container, item).is_some()),
        _ => Ok(items(container)?.iter().any(|other| equal(other, item))),
    }
}
