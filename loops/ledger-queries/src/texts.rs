//! Enums and texts as columns hold them.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::db::{Fault, corrupt};

/// The name a closed enum of the domain has in JSON, which is also its stored name.
pub(crate) fn name_of(value: &impl Serialize) -> Result<String, Fault> {
    match serde_json::to_value(value)? {
        Value::String(name) => Ok(name),
        other => Err(corrupt(format!("{other} is not a name"))),
    }
}

/// The inverse of [`name_of`].
pub(crate) fn named<T: DeserializeOwned>(name: String) -> Result<T, Fault> {
    Ok(serde_json::from_value(Value::String(name))?)
}

/// Text from its stored bytes.
pub(crate) fn text(bytes: Vec<u8>) -> Result<String, Fault> {
    String::from_utf8(bytes).map_err(|_| corrupt("a text that is not UTF-8"))
}

/// Optional text from its stored bytes.
pub(crate) fn some_text(bytes: Option<Vec<u8>>) -> Result<Option<String>, Fault> {
    bytes.map(text).transpose()
}

/// Optional text as stored bytes.
pub(crate) fn text_bytes(text: Option<&String>) -> Option<&[u8]> {
    text.map(String::as_bytes)
}

/// A count or version as SQLite's signed integer. Values beyond i63 do not occur: versions and
/// fences grow by one.
pub(crate) fn signed(value: u64) -> Result<i64, Fault> {
    i64::try_from(value).map_err(|_| corrupt(format!("the number {value} is too large")))
}

/// The inverse of [`signed`].
pub(crate) fn unsigned(value: i64) -> Result<u64, Fault> {
    u64::try_from(value).map_err(|_| corrupt(format!("the number {value} is negative")))
}

/// A limit as SQLite's signed integer; what is larger than any table is no limit.
pub(crate) fn limit(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
