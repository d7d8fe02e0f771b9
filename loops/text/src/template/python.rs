//! Python's data model over the template engine's values: what is equal to what, what comes before
//! what, and how a value prints. Templates are written against it, and the engine's own differs.

use std::cmp::Ordering;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as Memory};

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::cost;
use super::json::python_float;

/// A value as Python sees it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind<'a> {
    Undefined,
    None,
    Number(Number),
    Text(&'a str),
    List,
    Tuple,
    Dict,
    /// Generators, views of dictionaries and ranges.
    Lazy(&'a Lazy),
    /// Namespaces, loops, macros, functions.
    Other,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Number {
    Bool(bool),
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn float(self) -> f64 {
        match self {
            Self::Bool(b) => f64::from(u8::from(b)),
            Self::Int(i) => i as f64,
            Self::Float(x) => x,
        }
    }

    /// Whole numbers, for Python truth values among them.
    pub(super) fn int(self) -> Option<i128> {
        match self {
            Self::Bool(b) => Some(i128::from(b)),
            Self::Int(i) => Some(i),
            Self::Float(_) => None,
        }
    }
}

pub(super) fn kind(value: &Value) -> Kind<'_> {
    match value.kind() {
        ValueKind::Undefined => Kind::Undefined,
        ValueKind::None => Kind::None,
        ValueKind::Bool => Kind::Number(Number::Bool(value.is_true())),
        ValueKind::Number => Kind::Number(number(value)),
        ValueKind::String => Kind::Text(value.as_str().unwrap_or_default()),
        ValueKind::Seq | ValueKind::Iterable => {
            if let Some(lazy) = value.downcast_object_ref::<Lazy>() {
                Kind::Lazy(lazy)
            } else if value.is_tuple() || value.downcast_object_ref::<Group>().is_some() {
                Kind::Tuple
            } else {
                Kind::List
            }
        }
        ValueKind::Map if !is_own_object(value) => Kind::Dict,
        _ => Kind::Other,
    }
}

fn number(value: &Value) -> Number {
    if value.is_integer() {
        i128::try_from(value.clone()).map_or(Number::Float(f64::MAX), Number::Int)
    } else {
        f64::try_from(value.clone()).map_or(Number::Float(f64::NAN), Number::Float)
    }
}

/// The engine's objects that look like dictionaries to it.
fn is_own_object(value: &Value) -> bool {
    let name = value.as_object().map_or("", |object| object.type_name());
    ["::Namespace", "::Loop", "::Module"]
        .iter()
        .any(|own| name.ends_with(own))
}

pub(super) fn fail(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

/// The name of a value's kind, for messages.
pub(super) fn name_of(value: &Value) -> &'static str {
    match kind(value) {
        Kind::Undefined => "undefined",
        Kind::None => "none",
        Kind::Number(Number::Bool(_)) => "bool",
        Kind::Number(Number::Int(_)) => "int",
        Kind::Number(Number::Float(_)) => "float",
        Kind::Text(_) => "str",
        Kind::List => "list",
        Kind::Tuple => "tuple",
        Kind::Dict => "dict",
        Kind::Lazy(lazy) => lazy.what.name(),
        Kind::Other => "object",
    }
}

/// What is iterated over but is no list.
#[derive(Debug)]
pub(super) struct Lazy {
    pub(super) items: Vec<Value>,
    pub(super) what: What,
    spent: AtomicBool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Gives its items once, is true even without any, and has no length.
    Generator,
    Keys,
    Values,
    Items,
    Range {
        start: i64,
        stop: i64,
        step: i64,
    },
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Generator => "generator",
            Self::Keys => "dict_keys",
            Self::Values => "dict_values",
            Self::Items => "dict_items",
            Self::Range { .. } => "range",
        }
    }
}

pub(super) fn lazy(what: What, items: Vec<Value>) -> Value {
    Value::from_object(Lazy {
        items,
        what,
        spent: AtomicBool::new(false),
    })
}

impl Object for Lazy {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        match self.what {
            What::Range { .. } => ObjectRepr::Seq,
            _ => ObjectRepr::Iterable,
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match self.what {
            What::Range { .. } => self.items.get(key.as_usize()?).cloned(),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        if self.what == What::Generator && self.spent.swap(true, Memory::Relaxed) {
            return Enumerator::Empty;
        }
        Enumerator::Values(self.items.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        (self.what != What::Generator).then_some(self.items.len())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.what == What::Generator || !self.items.is_empty()
    }
}

/// What `groupby` gives: a tuple with names for its two items.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) grouper: Value,
    pub(super) list: Value,
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_usize(), key.as_str()) {
            (Some(0), _) | (_, Some("grouper")) => Some(self.grouper.clone()),
            (Some(1), _) | (_, Some("list")) => Some(self.list.clone()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(vec![self.grouper.clone(), self.list.clone()])
    }
}

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

pub(super) fn tuple(items: Vec<Value>) -> Value {
    Value::from(Tuple::from(items))
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

/// `str(value)`.
pub(super) fn write_text(out: &mut dyn Write, value: &Value) -> fmt::Result {
    match kind(value) {
        Kind::Undefined => Ok(()),
        Kind::Text(text) => out.write_str(text),
        _ => write_repr(out, value),
    }
}

/// `repr(value)`.
pub(super) fn write_repr(out: &mut dyn Write, value: &Value) -> fmt::Result {
    match kind(value) {
        Kind::Undefined => out.write_str("Undefined"),
        Kind::None => out.write_str("None"),
        Kind::Number(Number::Bool(b)) => out.write_str(if b { "True" } else { "False" }),
        Kind::Number(Number::Int(i)) => write!(out, "{i}"),
        Kind::Number(Number::Float(x)) => out.write_str(&float_text(x)),
        Kind::Text(text) if value.is_safe() => {
            out.write_str("Markup(")?;
            quoted(out, text)?;
            out.write_char(')')
        }
        Kind::Text(text) => quoted(out, text),
        Kind::List => sequence(out, "[", value, "]"),
        Kind::Tuple if value.len() == Some(1) => sequence(out, "(", value, ",)"),
        Kind::Tuple => sequence(out, "(", value, ")"),
        Kind::Dict => mapping(out, value),
        Kind::Lazy(lazy) => match lazy.what {
            What::Generator => out.write_str("<generator object>"),
            What::Range {
                start,
                stop,
                step: 1,
            } => {
                write!(out, "range({start}, {stop})")
            }
            What::Range { start, stop, step } => write!(out, "range({start}, {stop}, {step})"),
            what => {
                write!(out, "{}(", what.name())?;
                sequence(out, "[", value, "]")?;
                out.write_char(')')
            }
        },
        Kind::Other if cost::is_namespace(value) => {
            out.write_str("<Namespace ")?;
            mapping(out, value)?;
            out.write_char('>')
        }
        Kind::Other => write!(out, "{value}"),
    }
}

fn sequence(out: &mut dyn Write, open: &str, value: &Value, close: &str) -> fmt::Result {
    out.write_str(open)?;
    for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
        if i > 0 {
            out.write_str(", ")?;
        }
        write_repr(out, &item)?;
    }
    out.write_str(close)
}

fn mapping(out: &mut dyn Write, value: &Value) -> fmt::Result {
    out.write_char('{')?;
    for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
        if i > 0 {
            out.write_str(", ")?;
        }
        write_repr(out, &key)?;
        out.write_str(": ")?;
        write_repr(out, &value.get_item(&key).unwrap_or_default())?;
    }
    out.write_char('}')
}

fn float_text(x: f64) -> String {
    match x {
        x if x.is_nan() => "nan".to_owned(),
        x if x.is_infinite() => if x > 0.0 { "inf" } else { "-inf" }.to_owned(),
        x => python_float(x),
    }
}

/// Single quotes, unless the text has such and no double ones.
fn quoted(out: &mut dyn Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            '\\' => out.write_str("\\\\")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if is_printable(c) => out.write_char(c)?,
            c => match c as u32 {
                code @ ..0x100 => write!(out, "\\x{code:02x}")?,
                code @ ..0x1_0000 => write!(out, "\\u{code:04x}")?,
                code => write!(out, "\\U{code:08x}")?,
            },
        }
    }
    out.write_char(quote)
}

/// Rust escapes what Unicode calls unprintable; behind a letter, not the marks that combine with it.
pub(super) fn is_printable(c: char) -> bool {
    if matches!(c, '\'' | '"' | '\\') {
        return true;
    }
    let mut bytes = [b'a', 0, 0, 0, 0];
    let end = 1 + c.encode_utf8(&mut bytes[1..]).len();
    std::str::from_utf8(&bytes[..end]).is_ok_and(|text| text.escape_debug().count() == 2)
}
