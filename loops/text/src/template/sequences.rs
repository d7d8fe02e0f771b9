//! Jinja's filters over many values, as Python runs them.

use std::cmp::Ordering;

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use super::arguments::{apart, bind, flag, given, named, soft, text, whole};
use super::lookup::path;
use super::python::{compare, equal};
use super::values::{Group, Kind, Number, What, fail, kind, lazy, name_of, tuple};
use super::{cost, python};

pub(super) type Filter = fn(&mut State<'_, '_>, &[Value]) -> Result<Value, Error>;

pub(super) const FILTERS: [(&str, Filter); 16] = [
    ("list", |_, args| {
        let [value] = bind(args, ["value"])?;
        python::items(&given(value)?).map(Value::from)
    }),
    ("first", |_, args| {
        let [value] = bind(args, ["seq"])?;
        Ok(python::items(&given(value)?)?
            .into_iter()
            .next()
            .unwrap_or_default())
    }),
    ("last", |_, args| {
        let [value] = bind(args, ["seq"])?;
        match given(value)? {
            value if is_generator(&value) => Err(fail("a generator has no last item")),
            value => Ok(python::items(&value)?.pop().unwrap_or_default()),
        }
    }),
    ("reverse", |_, args| reverse(args)),
    ("join", |_, args| join(args)),
    ("min", |_, args| extreme(args, Ordering::is_lt)),
    ("max", |_, args| extreme(args, Ordering::is_gt)),
    ("unique", |_, args| unique(args)),
    ("sort", |_, args| sort(args)),
    ("dictsort", |_, args| dictsort(args)),
    ("groupby", |_, args| groupby(args)),
    ("map", map),
    ("select", |state, args| choose(state, args, false, true)),
    ("reject", |state, args| choose(state, args, false, false)),
    ("selectattr", |state, args| choose(state, args, true, true)),
    ("rejectattr", |state, args| choose(state, args, true, false)),
];

fn is_generator(value: &Value) -> bool {
    matches!(kind(value), Kind::Lazy(lazy) if lazy.what == What::Generator)
}

fn generator(items: Vec<Value>) -> Value {
    lazy(What::Generator, items)
}

fn reverse(args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(args, ["value"])?;
    let value = given(value)?;
    if let Kind::Text(text) = kind(&value) {
        return Ok(text.chars().rev().collect::<String>().into());
    }
    let mut items = python::items(&value)?;
    items.reverse();
    Ok(if is_generator(&value) {
        items.into()
    } else {
        generator(items)
    })
}

fn join(args: &[Value]) -> Result<Value, Error> {
    let [value, between, attribute] = bind(args, ["value", "d", "attribute"])?;
    let between = between.as_ref().map_or(Ok(String::new()), soft)?;
    let items = python::items(&given(value)?)?;
    cost::text(items.len().saturating_mul(between.len()))?;
    let mut out = String::new();
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(&between);
        }
        match &attribute {
            Some(attribute) => out.push_str(&soft(&path(item, attribute, None)?)?),
            None => out.push_str(&soft(item)?),
        }
        cost::text_so_far(out.len())?;
    }
    Ok(out.into())
}

/// What items are compared by: an attribute, small letters.
struct By {
    attributes: Vec<Value>,
    case_sensitive: bool,
}

impl By {
    fn new(attribute: Option<&Value>, case_sensitive: Option<&Value>) -> Self {
        Self {
            attributes: attribute
                .filter(|value| !value.is_none())
                .cloned()
                .into_iter()
                .collect(),
            case_sensitive: flag(case_sensitive),
        }
    }

    fn folded(&self, value: Value) -> Result<Value, Error> {
        match value.as_str() {
            Some(text) if !self.case_sensitive => {
                cost::charge(text.len())?;
                Ok(text.to_lowercase().into())
            }
            _ => Ok(value),
        }
    }

    fn key(&self, item: &Value) -> Result<Value, Error> {
        cost::charge(self.attributes.len().saturating_mul(cost::VALUE_BYTES))?;
        let of = |attribute: &Value| self.folded(path(item, attribute, None)?);
        match self.attributes.as_slice() {
            [] => self.folded(item.clone()),
            [attribute] => of(attribute),
            all => all
                .iter()
                .map(of)
                .collect::<Result<Vec<_>, Error>>()
                .map(Value::from),
        }
    }

    fn keyed(&self, items: Vec<Value>) -> Result<Vec<(Value, Value)>, Error> {
        items
            .into_iter()
            .map(|item| Ok((self.key(&item)?, item)))
            .collect()
    }
}

/// Sorts by the keys; equal ones stay in order, also in reverse. The sort of the standard library
/// cannot end in an error and may panic where an order contradicts itself, as it does with NaN.
pub(super) fn sorted(
    keyed: Vec<(Value, Value)>,
    reverse: bool,
) -> Result<Vec<(Value, Value)>, Error> {
    let goes_before = if reverse {
        Ordering::is_gt
    } else {
        Ordering::is_lt
    };
    let mut order: Vec<usize> = (0..keyed.len()).collect();
    let mut width = 1;
    while width < keyed.len() {
        let mut next = Vec::with_capacity(keyed.len());
        for run in order.chunks(2 * width) {
            let (mut left, mut right) = run.split_at(width.min(run.len()));
            while let ([a, after_a @ ..], [b, after_b @ ..]) = (left, right) {
                if compare(&keyed[*b].0, &keyed[*a].0)?.is_some_and(goes_before) {
                    next.push(*b);
                    right = after_b;
                } else {
                    next.push(*a);
                    left = after_a;
                }
            }
            next.extend_from_slice(left);
            next.extend_from_slice(right);
        }
        order = next;
        width *= 2;
    }
    let mut keyed: Vec<_> = keyed.into_iter().map(Some).collect();
    let sorted = order.into_iter().filter_map(|at| keyed[at].take());
    Ok(sorted.collect())
}

fn extreme(args: &[Value], better: fn(Ordering) -> bool) -> Result<Value, Error> {
    let [value, case_sensitive, attribute] = bind(args, ["value", "case_sensitive", "attribute"])?;
    let by = By::new(attribute.as_ref(), case_sensitive.as_ref());
    let mut best: Option<(Value, Value)> = None;
    for (key, item) in by.keyed(python::items(&given(value)?)?)? {
        let wins = match &best {
            None => true,
            Some((best, _)) => compare(&key, best)?.is_some_and(better),
        };
        if wins {
            best = Some((key, item));
        }
    }
    Ok(best.map(|(_, item)| item).unwrap_or_default())
}

fn has_hash(value: &Value) -> bool {
    match kind(value) {
        Kind::List | Kind::Dict | Kind::Other => false,
        Kind::Lazy(lazy) => matches!(lazy.what, What::Range { .. }),
        Kind::Tuple => python::items(value).is_ok_and(|items| items.iter().all(has_hash)),
        _ => true,
    }
}

/// Whether the engine gives a value the hash of many others that it is not equal to: it hashes
/// numbers beyond 64 bits as floats, and NaN is not equal to itself.
fn collides(value: &Value) -> bool {
    match kind(value) {
        Kind::Number(Number::Float(x)) => x.is_nan(),
        Kind::Number(number) => number.int().is_some_and(|i| i64::try_from(i).is_err()),
        Kind::Tuple => python::items(value).is_ok_and(|items| items.iter().any(collides)),
        _ => false,
    }
}

/// Most keys of one table that may collide. Each is compared with all others.
const COLLISIONS_MAX: usize = 64;

/// Refuses what cannot be a key, and too many keys that collide.
fn check_keys<'v>(keys: impl Iterator<Item = &'v Value>) -> Result<(), Error> {
    let mut collisions = 0;
    for key in keys {
        if !has_hash(key) {
            return Err(fail(format!("{} has no hash", name_of(key))));
        }
        collisions += usize::from(collides(key));
        if collisions > COLLISIONS_MAX {
            return Err(cost::over("it has too many keys with the same hash"));
        }
    }
    Ok(())
}

fn unique(args: &[Value]) -> Result<Value, Error> {
    let [value, case_sensitive, attribute] = bind(args, ["value", "case_sensitive", "attribute"])?;
    let by = By::new(attribute.as_ref(), case_sensitive.as_ref());
    let mut keyed = by.keyed(python::items(&given(value)?)?)?;
    for (key, _) in &mut keyed {
        if let Kind::Number(number) = kind(key) {
            *key = number.float().into();
        }
    }
    check_keys(keyed.iter().map(|(key, _)| key))?;
    let mut seen = std::collections::HashSet::new();
    let new = |(key, item)| seen.insert(key).then_some(item);
    Ok(generator(keyed.into_iter().filter_map(new).collect()))
}

fn without_keys(keyed: Vec<(Value, Value)>) -> Value {
    let items: Vec<Value> = keyed.into_iter().map(|(_, item)| item).collect();
    items.into()
}

fn sort(args: &[Value]) -> Result<Value, Error> {
    let names = ["value", "reverse", "case_sensitive", "attribute"];
    let [value, reverse, case_sensitive, attribute] = bind(args, names)?;
    let mut by = By::new(attribute.as_ref(), case_sensitive.as_ref());
    if let Some(all) = attribute.as_ref().and_then(Value::as_str) {
        cost::charge(all.len().saturating_mul(cost::PIECE_BYTES))?;
        by.attributes = all.split(',').map(Value::from).collect();
    }
    let keyed = sorted(
        by.keyed(python::items(&given(value)?)?)?,
        flag(reverse.as_ref()),
    )?;
    Ok(without_keys(keyed))
}

fn dictsort(args: &[Value]) -> Result<Value, Error> {
    let names = ["value", "case_sensitive", "by", "reverse"];
    let [value, case_sensitive, by, reverse] = bind(args, names)?;
    let value = given(value)?;
    let at = match by.as_ref().map_or(Ok("key"), text)? {
        "key" => 0,
        "value" => 1,
        _ => return Err(fail("dictsort goes by key or value")),
    };
    if !matches!(kind(&value), Kind::Dict) {
        return Err(fail("only dictionaries have pairs"));
    }
    let by = By::new(None, case_sensitive.as_ref());
    let pairs = python::pairs(&value)?;
    let keyed = pairs.into_iter().map(|(key, value)| {
        let by_what = if at == 0 { key.clone() } else { value.clone() };
        Ok((by.folded(by_what)?, tuple(vec![key, value])))
    });
    let keyed = keyed.collect::<Result<Vec<_>, Error>>()?;
    let keyed = sorted(keyed, flag(reverse.as_ref()))?;
    Ok(without_keys(keyed))
}

fn groupby(args: &[Value]) -> Result<Value, Error> {
    let names = ["value", "attribute", "default", "case_sensitive"];
    let [value, attribute, default, case_sensitive] = bind(args, names)?;
    let attribute = given(attribute)?;
    let by = By::new(None, case_sensitive.as_ref());
    let of = |item: &Value| path(item, &attribute, default.as_ref());
    let keyed = python::items(&given(value)?)?.into_iter();
    let keyed = keyed.map(|item| Ok((by.folded(of(&item)?)?, item)));
    let keyed = sorted(keyed.collect::<Result<Vec<_>, Error>>()?, false)?;
    let groups = keyed.chunk_by(|(a, _), (b, _)| equal(a, b));
    let groups = groups.map(|group| {
        let list: Vec<Value> = group.iter().map(|(_, item)| item.clone()).collect();
        let grouper = of(&list[0])?;
        Ok(Value::from_object(Group {
            grouper,
            list: list.into(),
        }))
    });
    groups.collect::<Result<Vec<_>, Error>>().map(Value::from)
}

/// The items of a value that has any; nothing is made of what is false.
fn some_items(value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_true() {
        python::items(value)
    } else {
        Ok(Vec::new())
    }
}

fn map(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (by_place, by_name) = apart(args);
    let (value, rest) = by_place
        .split_first()
        .ok_or_else(|| fail("there is nothing to map"))?;
    let mut out = Vec::new();
    if let ([], Some(kwargs)) = (rest, by_name) {
        let [_, attribute, default] = bind(args, ["value", "attribute", "default"])?;
        if named(kwargs)?.iter().any(|(name, _)| name == "attribute") {
            let attribute = given(attribute)?;
            let default = default.filter(|default| !default.is_none());
            for item in some_items(value)? {
                out.push(path(&item, &attribute, default.as_ref())?);
            }
            return Ok(generator(out));
        }
    }
    let name = text(
        rest.first()
            .ok_or_else(|| fail("map needs a filter or an attribute"))?,
    )?;
    // Names that no template can write belong to the checks and operators.
    if name.contains('~') {
        return Err(fail("there is no such filter"));
    }
    if name == "map" {
        return Err(cost::over("it maps `map` over a value"));
    }
    for item in some_items(value)? {
        cost::charge(cost::VALUE_BYTES)?;
        let mut fixed = rest.iter().chain(by_name);
        fixed.try_for_each(|value| cost::deep(value, 0))?;
        let args: Vec<Value> = std::iter::once(item)
            .chain(rest[1..].iter().cloned())
            .chain(by_name.cloned())
            .collect();
        let result = state.apply_filter(name, &args)?;
        cost::deep(&result, 1)?;
        out.push(result);
    }
    Ok(generator(out))
}

fn choose(
    state: &mut State<'_, '_>,
    args: &[Value],
    by_attribute: bool,
    wanted: bool,
) -> Result<Value, Error> {
    let missing = || fail("an argument is missing");
    let (value, mut rest) = args.split_first().ok_or_else(missing)?;
    let mut attribute = None;
    if by_attribute {
        let (first, others) = rest.split_first().ok_or_else(missing)?;
        (attribute, rest) = (Some(first), others);
    }
    let (test, more) = match rest.split_first() {
        None => (None, rest),
        Some((test, more)) => (Some(text(test)?), more),
    };
    let mut out = Vec::new();
    for item in some_items(value)? {
        cost::charge(cost::VALUE_BYTES)?;
        more.iter().try_for_each(|value| cost::deep(value, 0))?;
        let asked = match attribute {
            Some(attribute) => path(&item, attribute, None)?,
            None => item.clone(),
        };
        let is = match test {
            None => asked.is_true(),
            Some(test) => {
                let args: Vec<Value> = std::iter::once(asked).chain(more.iter().cloned()).collect();
                state.perform_test(test, &args)?
            }
        };
        if is == wanted {
            out.push(item);
        }
    }
    Ok(generator(out))
}

/// The functions `range` and `dict`.
pub(super) fn install(env: &mut Environment<'static>) {
    env.add_function("dict", |args: Rest<ValueOrKwargs>| {
        dict(&args.into_values())
    });
    env.add_function("range", |args: Rest<Value>| {
        let all = args.0.iter().map(whole).collect::<Result<Vec<_>, _>>()?;
        match *all.as_slice() {
            [stop] => range(0, stop, 1),
            [start, stop] => range(start, stop, 1),
            [start, stop, step] => range(start, stop, step),
            _ => Err(fail("range takes one to three numbers")),
        }
    });
}

/// `dict(pairs, name=value, ...)`.
fn dict(args: &[Value]) -> Result<Value, Error> {
    let (by_place, by_name) = apart(args);
    let mut all = match by_place {
        [] => Vec::new(),
        [value] if matches!(kind(value), Kind::Dict) => python::pairs(value)?,
        [value] => {
            let pair = |item: Value| match python::items(&item)?.as_slice() {
                [key, value] => Ok((key.clone(), value.clone())),
                _ => Err(fail("a dictionary is made of pairs")),
            };
            python::items(value)?
                .into_iter()
                .map(pair)
                .collect::<Result<_, _>>()?
        }
        _ => return Err(fail("dict takes one value, and names")),
    };
    let named = by_name.map(named).transpose()?.unwrap_or_default();
    all.extend(
        named
            .into_iter()
            .map(|(name, value)| (Value::from(name), value)),
    );
    check_keys(all.iter().map(|(key, _)| key))?;
    Ok(Value::from_pairs(all))
}

/// Longest range, as in Jinja's sandbox.
const RANGE_MAX: i128 = 100_000;

fn range(start: i128, stop: i128, step: i128) -> Result<Value, Error> {
    let small = |n: i128| i64::try_from(n).ok().filter(|n| n.unsigned_abs() < 1 << 53);
    let (Some(start), Some(stop), Some(step)) = (small(start), small(stop), small(step)) else {
        return Err(fail("range takes smaller numbers"));
    };
    if step == 0 {
        return Err(fail("a range cannot step by 0"));
    }
    let distance = if step > 0 { stop - start } else { start - stop };
    let count = if distance <= 0 {
        0
    } else {
        (distance - 1) / step.abs() + 1
    };
    if i128::from(count) > RANGE_MAX {
        return Err(fail("the range is too long"));
    }
    cost::charge(count as usize * cost::VALUE_BYTES)?;
    let items = (0..count).map(|i| Value::from(start + i * step));
    Ok(lazy(What::Range { start, stop, step }, items.collect()))
}
