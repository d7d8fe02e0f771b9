//! Jinja's tests (`x is ...`), as Python answers them.

use std::cmp::Ordering;

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, Value};

use super::arguments::soft;
use super::operators::leaves;
use super::python::{compare, contains, equal};
use super::text;
use super::values::{Kind, Number, What, fail, kind};

type Predicate = fn(&Value, &Value) -> Result<bool, Error>;

/// Name, number of arguments, and the answer.
const PREDICATES: [(&str, usize, Predicate); 36] = [
    ("boolean", 0, |v, _| {
        Ok(matches!(kind(v), Kind::Number(Number::Bool(_))))
    }),
    ("integer", 0, |v, _| {
        Ok(matches!(kind(v), Kind::Number(Number::Int(_))))
    }),
    ("float", 0, |v, _| {
        Ok(matches!(kind(v), Kind::Number(Number::Float(_))))
    }),
    ("number", 0, |v, _| Ok(matches!(kind(v), Kind::Number(_)))),
    ("string", 0, |v, _| Ok(matches!(kind(v), Kind::Text(_)))),
    ("mapping", 0, |v, _| Ok(matches!(kind(v), Kind::Dict))),
    ("sequence", 0, |v, _| Ok(is_sequence(v))),
    ("iterable", 0, |v, _| Ok(is_iterable(v))),
    ("callable", 0, |v, _| {
        Ok(v.is_undefined() || v.kind() == ValueKind::Plain)
    }),
    ("lower", 0, |v, _| Ok(text::is_lower(&soft(v)?))),
    ("upper", 0, |v, _| Ok(text::is_upper(&soft(v)?))),
    ("odd", 0, |v, _| {
        Ok(equal(&leaves(v, &Value::from(2))?, &Value::from(1)))
    }),
    ("even", 0, |v, _| {
        Ok(equal(&leaves(v, &Value::from(2))?, &Value::from(0)))
    }),
    ("divisibleby", 1, |v, n| {
        Ok(equal(&leaves(v, n)?, &Value::from(0)))
    }),
    ("in", 1, |v, all| contains(all, v)),
    ("eq", 1, |a, b| Ok(equal(a, b))),
    ("equalto", 1, |a, b| Ok(equal(a, b))),
    ("==", 1, |a, b| Ok(equal(a, b))),
    ("ne", 1, |a, b| Ok(!equal(a, b))),
    ("!=", 1, |a, b| Ok(!equal(a, b))),
    ("lt", 1, |a, b| is(a, b, Ordering::is_lt)),
    ("lessthan", 1, |a, b| is(a, b, Ordering::is_lt)),
    ("<", 1, |a, b| is(a, b, Ordering::is_lt)),
    ("le", 1, |a, b| is(a, b, Ordering::is_le)),
    ("<=", 1, |a, b| is(a, b, Ordering::is_le)),
    ("gt", 1, |a, b| is(a, b, Ordering::is_gt)),
    ("greaterthan", 1, |a, b| is(a, b, Ordering::is_gt)),
    (">", 1, |a, b| is(a, b, Ordering::is_gt)),
    ("ge", 1, |a, b| is(a, b, Ordering::is_ge)),
    (">=", 1, |a, b| is(a, b, Ordering::is_ge)),
    ("true", 0, |v, _| {
        Ok(matches!(kind(v), Kind::Number(Number::Bool(true))))
    }),
    ("false", 0, |v, _| {
        Ok(matches!(kind(v), Kind::Number(Number::Bool(false))))
    }),
    ("none", 0, |v, _| Ok(v.is_none())),
    ("defined", 0, |v, _| Ok(!v.is_undefined())),
    ("undefined", 0, |v, _| Ok(v.is_undefined())),
    ("escaped", 0, |v, _| Ok(v.is_safe())),
];

pub(super) fn install(env: &mut Environment<'static>) {
    // Jinja does not have these.
    for name in ["safe", "int", "startingwith", "endingwith"] {
        env.remove_test(name);
    }
    for (name, count, predicate) in PREDICATES {
        env.add_test(
            name,
            move |value: &Value, args: Rest<Value>| -> Result<bool, Error> {
                if args.0.len() != count {
                    return Err(fail(format!("the test {name} takes {count} arguments")));
                }
                predicate(value, args.0.first().unwrap_or(&Value::UNDEFINED))
            },
        );
    }
}

fn is(a: &Value, b: &Value, wanted: fn(Ordering) -> bool) -> Result<bool, Error> {
    Ok(compare(a, b)?.is_some_and(wanted))
}

/// Has a length and items; a text and a dictionary have both.
fn is_sequence(value: &Value) -> bool {
    match kind(value) {
        Kind::Undefined | Kind::Text(_) | Kind::List | Kind::Tuple | Kind::Dict => true,
        Kind::Lazy(lazy) => matches!(lazy.what, What::Range { .. }),
        _ => false,
    }
}

fn is_iterable(value: &Value) -> bool {
    is_sequence(value) || matches!(kind(value), Kind::Lazy(_))
}
