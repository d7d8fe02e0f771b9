//! Operators as in Python. The compiled template calls them in place of the engine's own.

use std::cmp::Ordering;

use minijinja::machinery::Instruction;
use minijinja::value::Rest;
use minijinja::{Environment, Error, Value};

use super::lookup::{attribute, item};
use super::python::{compare, contains, equal};
use super::values::{Kind, Number, What, fail, int, kind, name_of, tuple};
use super::{cost, methods, python, values};

type Operator = fn(&[Value]) -> Result<Value, Error>;

/// Names no template can write, with the number of operands.
const OPERATORS: [(&str, Operator); 29] = [
    ("~op+", |a| add(&a[0], &a[1])),
    ("~op-", |a| minus(&a[0], &a[1])),
    ("~op*", |a| times(&a[0], &a[1])),
    ("~op/", |a| divide(&a[0], &a[1])),
    ("~op//", |a| {
        whole(&a[0], &a[1]).map(|(quotient, _)| quotient)
    }),
    ("~op%", |a| remainder(&a[0], &a[1])),
    ("~op**", |a| power(&a[0], &a[1])),
    ("~op-x", |a| negative(&a[0])),
    ("~op~", |a| concat(&a[0], &a[1])),
    ("~op==", |a| Ok(equal(&a[0], &a[1]).into())),
    ("~op!=", |a| Ok((!equal(&a[0], &a[1])).into())),
    ("~op<", |a| is(a, Ordering::is_lt).map(Value::from)),
    ("~op<=", |a| is(a, Ordering::is_le).map(Value::from)),
    ("~op>", |a| is(a, Ordering::is_gt).map(Value::from)),
    ("~op>=", |a| is(a, Ordering::is_ge).map(Value::from)),
    ("~opin", |a| contains(&a[1], &a[0]).map(Value::from)),
    ("~opslice", |a| slice(a)),
    ("~opitem", |a| item(&a[0], &a[1])),
    ("~opattr", |a| attribute(&a[0], &a[1])),
    ("~opiter", |a| iterated(&a[0])),
    ("~opunpack", |a| match kind(&a[0]) {
        Kind::Text(_) | Kind::Dict => python::items(&a[0]).map(Value::from),
        _ => Ok(a[0].clone()),
    }),
    ("~kept==", |a| kept(a, equal(&a[0], &a[1]))),
    ("~kept!=", |a| kept(a, !equal(&a[0], &a[1]))),
    ("~kept<", |a| kept(a, is(a, Ordering::is_lt)?)),
    ("~kept<=", |a| kept(a, is(a, Ordering::is_le)?)),
    ("~kept>", |a| kept(a, is(a, Ordering::is_gt)?)),
    ("~kept>=", |a| kept(a, is(a, Ordering::is_ge)?)),
    ("~keptin", |a| kept(a, contains(&a[1], &a[0])?)),
    ("~keptnotin", |a| kept(a, !contains(&a[1], &a[0])?)),
];

pub(super) fn install(env: &mut Environment<'static>) {
    for (name, operator) in OPERATORS {
        env.add_filter(name, move |args: Rest<Value>| operator(&args.0));
    }
}

/// The operator that stands for an instruction, and how many operands it takes.
pub(super) fn instead_of(instruction: &Instruction<'_>) -> Option<(&'static str, u16)> {
    Some(match instruction {
        Instruction::Add => ("~op+", 2),
        Instruction::Sub => ("~op-", 2),
        Instruction::Mul => ("~op*", 2),
        Instruction::Div => ("~op/", 2),
        Instruction::IntDiv => ("~op//", 2),
        Instruction::Rem => ("~op%", 2),
        Instruction::Pow => ("~op**", 2),
        Instruction::Neg => ("~op-x", 1),
        Instruction::StringConcat => ("~op~", 2),
        Instruction::Eq => ("~op==", 2),
        Instruction::Ne => ("~op!=", 2),
        Instruction::Lt => ("~op<", 2),
        Instruction::Lte => ("~op<=", 2),
        Instruction::Gt => ("~op>", 2),
        Instruction::Gte => ("~op>=", 2),
        Instruction::In => ("~opin", 2),
        Instruction::Slice => ("~opslice", 4),
        Instruction::GetItem => ("~opitem", 2),
        _ => return None,
    })
}

/// The same in the middle of a chain of comparisons. The engine keeps the names of its comparisons
/// to itself, so they go by their order there.
pub(super) fn kept_by(comparison: u8) -> &'static str {
    let names = [
        "~kept==", "~kept!=", "~kept<", "~kept<=", "~kept>", "~kept>=", "~keptin",
    ];
    names
        .get(usize::from(comparison))
        .copied()
        .unwrap_or("~keptnotin")
}

fn mixed(what: &str, a: &Value, b: &Value) -> Error {
    let (a, b) = (name_of(a), name_of(b));
    fail(format!("{what} does not work with {a} and {b}"))
}

fn too_large() -> Error {
    fail("the number is too large")
}

fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    match (kind(a), kind(b)) {
        (Kind::Number(x), Kind::Number(y)) => match (x.int(), y.int()) {
            (Some(x), Some(y)) => x.checked_add(y).map(int).ok_or_else(too_large),
            _ => Ok((x.float() + y.float()).into()),
        },
        (Kind::Text(_), Kind::Text(_)) if a.is_safe() || b.is_safe() => {
            let (a, b) = (methods::escaped(a)?, methods::escaped(b)?);
            Ok(Value::from_safe_string(a + &b))
        }
        (Kind::Text(x), Kind::Text(y)) => Ok(Value::from([x, y].concat())),
        (Kind::List, Kind::List) => Ok(Value::from(joined(a, b)?)),
        (Kind::Tuple, Kind::Tuple) => Ok(tuple(joined(a, b)?)),
        _ => Err(mixed("+", a, b)),
    }
}

fn joined(a: &Value, b: &Value) -> Result<Vec<Value>, Error> {
    Ok(a.try_iter()?.chain(b.try_iter()?).collect())
}

fn minus(a: &Value, b: &Value) -> Result<Value, Error> {
    match (kind(a), kind(b)) {
        (Kind::Number(x), Kind::Number(y)) => match (x.int(), y.int()) {
            (Some(x), Some(y)) => x.checked_sub(y).map(int).ok_or_else(too_large),
            _ => Ok((x.float() - y.float()).into()),
        },
        _ => Err(mixed("-", a, b)),
    }
}

fn times(a: &Value, b: &Value) -> Result<Value, Error> {
    let (many, count) = match (kind(a), kind(b)) {
        (Kind::Number(x), Kind::Number(y)) => {
            return match (x.int(), y.int()) {
                (Some(x), Some(y)) => x.checked_mul(y).map(int).ok_or_else(too_large),
                _ => Ok((x.float() * y.float()).into()),
            };
        }
        (Kind::Number(n), _) => (b, n),
        (_, Kind::Number(n)) => (a, n),
        _ => return Err(mixed("*", a, b)),
    };
    let count = count.int().ok_or_else(|| mixed("*", a, b))?.max(0);
    let count = usize::try_from(count).map_err(|_| too_large())?;
    let repeated = || -> Result<Vec<Value>, Error> {
        let items = python::items(many)?;
        if items.is_empty() {
            return Ok(items);
        }
        cost::charge(
            items
                .len()
                .saturating_mul(count)
                .saturating_mul(cost::VALUE_BYTES),
        )?;
        Ok(std::iter::repeat_n(items, count).flatten().collect())
    };
    match kind(many) {
        Kind::Text(text) => {
            cost::text(text.len().saturating_mul(count))?;
            Ok(Value::from(text.repeat(count)))
        }
        Kind::List => repeated().map(Value::from),
        Kind::Tuple => repeated().map(tuple),
        _ => Err(mixed("*", a, b)),
    }
}

fn divide(a: &Value, b: &Value) -> Result<Value, Error> {
    match (kind(a), kind(b)) {
        (Kind::Number(_), Kind::Number(y)) if y.float() == 0.0 => Err(fail("division by zero")),
        (Kind::Number(x), Kind::Number(y)) => Ok((x.float() / y.float()).into()),
        _ => Err(mixed("/", a, b)),
    }
}

/// `a // b` and `a % b`: the remainder has the sign of `b`.
fn whole(a: &Value, b: &Value) -> Result<(Value, Value), Error> {
    let (Kind::Number(x), Kind::Number(y)) = (kind(a), kind(b)) else {
        return Err(mixed("// or %", a, b));
    };
    if y.float() == 0.0 {
        return Err(fail("division by zero"));
    }
    if let (Some(x), Some(y)) = (x.int(), y.int()) {
        let (Some(q), Some(r)) = (x.checked_div(y), x.checked_rem(y)) else {
            return Err(too_large());
        };
        let down = r != 0 && (r < 0) != (y < 0);
        return Ok(if down {
            (int(q - 1), int(r + y))
        } else {
            (int(q), int(r))
        });
    }
    let (x, y) = (x.float(), y.float());
    let mut r = x % y;
    let mut q = (x - r) / y;
    if r == 0.0 {
        r = 0.0f64.copysign(y);
    } else if (r < 0.0) != (y < 0.0) {
        r += y;
        q -= 1.0;
    }
    let q = if q == 0.0 {
        0.0f64.copysign(x / y)
    } else {
        q.round()
    };
    Ok((q.into(), r.into()))
}

fn remainder(a: &Value, b: &Value) -> Result<Value, Error> {
    match kind(a) {
        Kind::Text(pattern) => super::printf::percent(pattern, b).map(Value::from),
        _ => whole(a, b).map(|(_, remainder)| remainder),
    }
}

/// `a % b == 0`, for the test `divisibleby`.
pub(super) fn leaves(a: &Value, b: &Value) -> Result<Value, Error> {
    whole(a, b).map(|(_, remainder)| remainder)
}

fn power(a: &Value, b: &Value) -> Result<Value, Error> {
    let (Kind::Number(x), Kind::Number(y)) = (kind(a), kind(b)) else {
        return Err(mixed("**", a, b));
    };
    if x.float() == 0.0 && y.float() < 0.0 {
        return Err(fail("division by zero"));
    }
    match (x.int(), y.int()) {
        (Some(x), Some(y)) if y >= 0 => {
            let y = u32::try_from(y).map_err(|_| too_large())?;
            x.checked_pow(y).map(int).ok_or_else(too_large)
        }
        _ => {
            let result = x.float().powf(y.float());
            match result.is_finite() || !x.float().is_finite() {
                true => Ok(result.into()),
                false => Err(too_large()),
            }
        }
    }
}

fn negative(value: &Value) -> Result<Value, Error> {
    match kind(value) {
        Kind::Number(Number::Float(x)) => Ok((-x).into()),
        Kind::Number(n) => {
            let i = n.int().unwrap_or_default();
            i.checked_neg().map(int).ok_or_else(too_large)
        }
        _ => Err(fail(format!("{} has no negative", name_of(value)))),
    }
}

fn concat(a: &Value, b: &Value) -> Result<Value, Error> {
    Ok(Value::from(cost::written(a)? + &cost::written(b)?))
}

fn is(args: &[Value], wanted: fn(Ordering) -> bool) -> Result<bool, Error> {
    Ok(compare(&args[0], &args[1])?.is_some_and(wanted))
}

/// The answer of one comparison in a chain, above the value that the next one begins with.
fn kept(args: &[Value], answer: bool) -> Result<Value, Error> {
    Ok(Value::from(vec![Value::from(answer), args[1].clone()]))
}

/// Where a slice begins, how it steps, and how many items it takes, of `length` (Python's
/// `slice.indices`).
fn steps(length: usize, args: &[Value]) -> Result<(i128, i128, usize), Error> {
    let given = |value: &Value| match kind(value) {
        Kind::None => Ok(None),
        Kind::Number(n) => n
            .int()
            .map(Some)
            .ok_or_else(|| fail("slices need whole numbers")),
        _ => Err(fail("slices need whole numbers")),
    };
    let length = length as i128;
    let step = given(&args[2])?.unwrap_or(1);
    if step == 0 {
        return Err(fail("a slice cannot step by 0"));
    }
    let (low, high) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let bound = |value: Option<i128>, otherwise| match value {
        None => otherwise,
        Some(at) if at < 0 => at.saturating_add(length).max(low),
        Some(at) => at.min(high),
    };
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let start = bound(given(&args[0])?, first);
    let stop = bound(given(&args[1])?, last);
    let distance = if step > 0 { stop - start } else { start - stop };
    let count = if distance <= 0 {
        0
    } else {
        (distance - 1).unsigned_abs() / step.unsigned_abs() + 1
    };
    Ok((start, step, count as usize))
}

fn slice(args: &[Value]) -> Result<Value, Error> {
    fn taken<T: Clone>(all: &[T], args: &[Value]) -> Result<Vec<T>, Error> {
        let (start, step, count) = steps(all.len(), args)?;
        Ok((0..count as i128)
            .map(|i| all[(start + i * step) as usize].clone())
            .collect())
    }
    let (value, bounds) = (&args[0], &args[1..]);
    match kind(value) {
        Kind::Text(text) => {
            cost::charge(text.len())?;
            let chars: Vec<char> = text.chars().collect();
            let text: String = taken(&chars, bounds)?.into_iter().collect();
            Ok(Value::from(text))
        }
        Kind::List => taken(&all_items(value)?, bounds).map(Value::from),
        Kind::Tuple => taken(&all_items(value)?, bounds).map(tuple),
        Kind::Lazy(lazy) if let What::Range { start, step, .. } = lazy.what => {
            let (first, by, count) = steps(lazy.items.len(), bounds)?;
            let narrow =
                |i: i128| i64::try_from(i).unwrap_or(if i < 0 { i64::MIN } else { i64::MAX });
            let at = |i: i128| start.saturating_add(narrow(i).saturating_mul(step));
            let what = What::Range {
                start: at(first),
                stop: at(first.saturating_add(by.saturating_mul(count as i128))),
                step: step.saturating_mul(narrow(by)),
            };
            Ok(values::lazy(what, taken(&lazy.items, bounds)?))
        }
        _ => Err(fail(format!("{} cannot be sliced", name_of(value)))),
    }
}

/// The items of a sequence, each charged.
fn all_items(value: &Value) -> Result<Vec<Value>, Error> {
    let length = value.len().unwrap_or(0);
    cost::charge(length.saturating_mul(cost::PIECE_BYTES))?;
    python::items(value)
}

/// What a loop runs over, with a length.
fn iterated(value: &Value) -> Result<Value, Error> {
    match kind(value) {
        Kind::List | Kind::Tuple | Kind::Dict | Kind::Text(_) | Kind::Undefined => {
            Ok(value.clone())
        }
        Kind::Lazy(lazy) => {
            cost::charge(lazy.items.len() * cost::VALUE_BYTES)?;
            python::items(value).map(Value::from)
        }
        _ => python::items(value).map(Value::from),
    }
}
