//! What `value.name` and `value[key]` give: items, and methods that are named and not yet called.

use minijinja::{Error, Value};

use super::cost;
use super::python::find_key;
use super::values::{Kind, What, fail, kind};

pub(super) const OF_DICTS: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];
pub(super) const OF_LISTS: [&str; 11] = [
    "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse",
    "sort",
];
pub(super) const OF_TEXTS: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

const CHANGES: [&str; 11] = [
    "append",
    "clear",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "sort",
    "update",
];

/// Whether a name is that of a method of anything.
pub(super) fn is_known(name: &str) -> bool {
    OF_DICTS.contains(&name) || OF_LISTS.contains(&name) || OF_TEXTS.contains(&name)
}

/// A method that is named and not called.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) value: Value,
    pub(super) name: String,
}

/// The method of that name; undefined where there is none, or where it would change the value.
pub(super) fn bound(value: &Value, name: &str) -> Option<Value> {
    let has = match kind(value) {
        Kind::Dict => OF_DICTS.contains(&name),
        Kind::List => OF_LISTS.contains(&name),
        Kind::Text(_) => OF_TEXTS.contains(&name),
        Kind::Tuple => ["count", "index"].contains(&name),
        _ => false,
    };
    let changes = !matches!(kind(value), Kind::Text(_)) && CHANGES.contains(&name);
    has.then(|| match changes {
        true => Value::UNDEFINED,
        false => Value::from_object(Bound {
            value: value.clone(),
            name: name.to_owned(),
        }),
    })
}

/// `value[key]`: an item, or else an attribute of that name, or else undefined.
pub(super) fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    let found = match (kind(value), kind(key)) {
        (Kind::Undefined, _) => return Err(fail("it is undefined and has no items")),
        (Kind::Dict, Kind::List | Kind::Dict) => None,
        (Kind::Dict, _) => find_key(value, key),
        (Kind::Text(text), Kind::Number(n)) => {
            cost::charge(text.len())?;
            let at = n.int().and_then(|at| place(at, text.chars().count()));
            at.and_then(|at| text.chars().nth(at)).map(Value::from)
        }
        (Kind::Lazy(lazy), _) if !matches!(lazy.what, What::Range { .. }) => None,
        (Kind::List | Kind::Tuple | Kind::Lazy(_), Kind::Number(n)) => {
            let at = n.int().and_then(|at| place(at, value.len().unwrap_or(0)));
            at.and_then(|at| value.get_item(&Value::from(at)).ok())
        }
        (Kind::Other | Kind::Tuple, Kind::Text(_)) => value.get_item(key).ok(),
        _ => None,
    };
    let method = || bound(value, key.as_str()?);
    Ok(found.or_else(method).unwrap_or_default())
}

/// `value.name`: a method, or else an item of that name, or else undefined.
pub(super) fn attribute(value: &Value, name: &Value) -> Result<Value, Error> {
    match bound(value, name.as_str().unwrap_or_default()) {
        Some(method) => Ok(method),
        None => item(value, name),
    }
}

fn place(at: i128, length: usize) -> Option<usize> {
    let at = if at < 0 { at + length as i128 } else { at };
    usize::try_from(at).ok().filter(|at| *at < length)
}

/// The value at the end of a path such as `a.0.b`.
pub(super) fn path(
    value: &Value,
    attribute: &Value,
    default: Option<&Value>,
) -> Result<Value, Error> {
    let step = |value: Value, key: &Value| {
        cost::charge(cost::VALUE_BYTES)?;
        let found = item(&value, key)?;
        Ok(match default {
            Some(default) if found.is_undefined() => default.clone(),
            _ => found,
        })
    };
    match attribute.as_str() {
        None => step(value.clone(), attribute),
        Some(path) => path.split('.').try_fold(value.clone(), |value, part| {
            let index = part.parse::<u32>().map(Value::from);
            step(value, &index.unwrap_or_else(|_| Value::from(part)))
        }),
    }
}
