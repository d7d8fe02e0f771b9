//! The kinds of values that Python knows, and the values that the template engine lacks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as Memory};

use minijinja::value::{Enumerator, Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Value};

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
    pub(super) fn name(self) -> &'static str {
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

pub(super) fn tuple(items: Vec<Value>) -> Value {
    Value::from(Tuple::from(items))
}

pub(super) fn is_namespace(value: &Value) -> bool {
    value
        .as_object()
        .is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// A whole number, in the engine's smaller form where it fits.
pub(super) fn int(i: i128) -> Value {
    i64::try_from(i).map_or_else(|_| Value::from(i), Value::from)
}
