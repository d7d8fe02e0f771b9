//! Arguments of filters and methods, given by place or by name.

use minijinja::{Error, Value};

use super::cost;
use super::values::{Kind, fail, kind, name_of};

/// Arguments in the order of `names`; those not given are `None`.
pub(super) fn bind<const N: usize>(
    args: &[Value],
    names: [&str; N],
) -> Result<[Option<Value>; N], Error> {
    let (by_place, by_name) = apart(args);
    if by_place.len() > N {
        return Err(fail("too many arguments"));
    }
    let mut bound = [const { None }; N];
    for (slot, value) in bound.iter_mut().zip(by_place) {
        *slot = Some(value.clone());
    }
    for (name, value) in by_name.map(named).transpose()?.unwrap_or_default() {
        let at = names.iter().position(|known| *known == name);
        let slot = at.and_then(|at| bound.get_mut(at));
        match slot {
            Some(slot @ None) => *slot = Some(value),
            _ => return Err(fail(format!("{name} is unknown, or given twice"))),
        }
    }
    Ok(bound)
}

/// The arguments by place, and the value that holds those by name.
pub(super) fn apart(args: &[Value]) -> (&[Value], Option<&Value>) {
    match args.split_last() {
        Some((last, before)) if last.is_kwargs() => (before, Some(last)),
        _ => (args, None),
    }
}

pub(super) fn named(kwargs: &Value) -> Result<Vec<(String, Value)>, Error> {
    let keys = kwargs.try_iter()?;
    keys.map(|key| {
        Ok((
            key.as_str().unwrap_or_default().to_owned(),
            kwargs.get_item(&key)?,
        ))
    })
    .collect()
}

pub(super) fn given(value: Option<Value>) -> Result<Value, Error> {
    value.ok_or_else(|| fail("an argument is missing"))
}

pub(super) fn flag(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_true)
}

/// A text, or that it is none.
pub(super) fn text(value: &Value) -> Result<&str, Error> {
    value
        .as_str()
        .ok_or_else(|| fail(format!("{} is no text", name_of(value))))
}

/// `str(value)`.
pub(super) fn soft(value: &Value) -> Result<String, Error> {
    cost::written(value)
}

pub(super) fn whole(value: &Value) -> Result<i128, Error> {
    match kind(value) {
        Kind::Number(n) => n.int().ok_or_else(|| fail("a float is no whole number")),
        _ => Err(fail(format!("{} is no whole number", name_of(value)))),
    }
}

/// A whole number that may be left out, or be none.
pub(super) fn maybe_whole(value: Option<&Value>) -> Result<Option<i128>, Error> {
    match value {
        Some(value) if !value.is_none() => whole(value).map(Some),
        _ => Ok(None),
    }
}
