//! Jinja's filters over one value, as Python runs them. Those over many are in [`super::sequences`].

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use super::arguments::{apart, bind, flag, given, maybe_whole, named, soft, text, whole};
use super::cost;
use super::lookup;
use super::methods;
use super::python;
use super::sequences::Filter;
use super::text::{self as letters, Side};
use super::values::{Kind, Number, What, fail, int, kind, lazy, name_of, tuple};

const FILTERS: [(&str, Filter); 27] = [
    ("default", |_, args| default(args)),
    ("d", |_, args| default(args)),
    ("string", |_, args| match args {
        [value] if value.as_str().is_some() => Ok(value.clone()),
        _ => alone(args).and_then(|value| soft(value).map(Value::from)),
    }),
    ("upper", |_, args| {
        Ok(soft(alone(args)?)?.to_uppercase().into())
    }),
    ("lower", |_, args| {
        Ok(soft(alone(args)?)?.to_lowercase().into())
    }),
    ("capitalize", |_, args| {
        Ok(letters::capitalize(&soft(alone(args)?)?).into())
    }),
    ("title", |_, args| {
        Ok(letters::title_words(&soft(alone(args)?)?).into())
    }),
    ("trim", |_, args| trim(args)),
    ("int", |_, args| to_int(args)),
    ("float", |_, args| to_float(args)),
    ("abs", |_, args| abs(alone(args)?)),
    ("round", |_, args| round(args)),
    ("length", |_, args| length(alone(args)?)),
    ("count", |_, args| length(alone(args)?)),
    ("escape", |_, args| {
        methods::escaped(alone(args)?).map(Value::from_safe_string)
    }),
    ("e", |_, args| {
        methods::escaped(alone(args)?).map(Value::from_safe_string)
    }),
    ("forceescape", |_, args| {
        let plain = Value::from(soft(alone(args)?)?);
        methods::escaped(&plain).map(Value::from_safe_string)
    }),
    ("safe", |_, args| {
        soft(alone(args)?).map(Value::from_safe_string)
    }),
    ("replace", |_, args| replace(args)),
    ("indent", |_, args| indent(args)),
    ("center", |_, args| {
        let [value, width] = bind(args, ["value", "width"])?;
        let width = width.as_ref().map_or(Ok(80), whole)?;
        methods::center(&soft(&given(value)?)?, width, " ")
    }),
    ("truncate", |_, args| truncate(args)),
    ("wordcount", |_, args| {
        let text = soft(alone(args)?)?;
        let words = text.split(|c| !letters::is_word(c));
        Ok(words.filter(|word| !word.is_empty()).count().into())
    }),
    ("format", |_, args| format(args)),
    ("attr", |_, args| {
        let [value, name] = bind(args, ["obj", "name"])?;
        let value = given(value)?;
        if value.is_undefined() {
            return Err(fail("undefined has no attributes"));
        }
        Ok(lookup::bound(&value, &soft(&given(name)?)?).unwrap_or_default())
    }),
    ("items", |_, args| items(alone(args)?)),
    ("tojson", |_, args| {
        super::json::tojson(args).map(Value::from)
    }),
];

pub(super) fn install(env: &mut Environment<'static>) {
    // Jinja does not have these.
    for name in ["split", "lines", "bool"] {
        env.remove_filter(name);
    }
    for (name, filter) in FILTERS.into_iter().chain(super::sequences::FILTERS) {
        env.add_filter(
            name,
            move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                filter(state, &args.into_values())
            },
        );
    }
}

fn alone(args: &[Value]) -> Result<&Value, Error> {
    match args {
        [value] => Ok(value),
        _ => Err(fail("the filter takes no arguments")),
    }
}

fn default(args: &[Value]) -> Result<Value, Error> {
    let [value, otherwise, falsy] = bind(args, ["value", "default_value", "boolean"])?;
    let value = given(value)?;
    if value.is_undefined() || (flag(falsy.as_ref()) && !value.is_true()) {
        return Ok(otherwise.unwrap_or_else(|| Value::from("")));
    }
    Ok(value)
}

fn trim(args: &[Value]) -> Result<Value, Error> {
    let [value, chars] = bind(args, ["value", "chars"])?;
    let chars = chars.filter(|chars| !chars.is_none());
    let chars = chars.as_ref().map(text).transpose()?;
    Ok(letters::strip(&soft(&given(value)?)?, chars, Side::Both).into())
}

/// The digits of a number in a text, without the underscores that may lie between digits.
fn digits(text: &str) -> Option<String> {
    let text = letters::strip(text, None, Side::Both);
    let plain = |c: char| letters::decimal(c).map_or(c, |d| (b'0' + d as u8) as char);
    let text: String = text.chars().map(plain).collect();
    let bytes = text.as_bytes();
    let lonely = |at: usize| {
        let digit = |at: Option<usize>| {
            at.and_then(|at| bytes.get(at))
                .is_some_and(u8::is_ascii_alphanumeric)
        };
        !digit(at.checked_sub(1)) || !digit(at.checked_add(1))
    };
    let wrong = text.match_indices('_').any(|(at, _)| lonely(at));
    (!wrong).then(|| text.replace('_', ""))
}

/// Python's `int(text, base)`.
fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = digits(text)?.to_ascii_lowercase();
    let (minus, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let rest = rest.strip_prefix(prefix).unwrap_or(rest);
    if !rest.starts_with(|c: char| c.is_ascii_alphanumeric()) || !(2..=36).contains(&base) {
        return None;
    }
    let value = i128::from_str_radix(rest, base).ok()?;
    Some(if minus { -value } else { value })
}

/// Python's `float(text)`.
fn parse_float(text: &str) -> Option<f64> {
    digits(text)?.parse().ok()
}

fn cut_off(x: f64) -> Option<Value> {
    (x.is_finite() && x.abs() < 1e38).then(|| int(x as i128))
}

fn to_int(args: &[Value]) -> Result<Value, Error> {
    let [value, otherwise, base] = bind(args, ["value", "default", "base"])?;
    let value = given(value)?;
    let otherwise = otherwise.unwrap_or_else(|| Value::from(0));
    let base = base.as_ref().map_or(Ok(10), whole)?;
    let found = match kind(&value) {
        Kind::Undefined => return Err(fail("undefined is no number")),
        Kind::Number(Number::Float(x)) => cut_off(x),
        Kind::Number(n) => n.int().map(int),
        Kind::Text(text) => parse_int(text, base as u32)
            .map(int)
            .or_else(|| cut_off(parse_float(text)?)),
        _ => None,
    };
    Ok(found.unwrap_or(otherwise))
}

fn to_float(args: &[Value]) -> Result<Value, Error> {
    let [value, otherwise] = bind(args, ["value", "default"])?;
    let value = given(value)?;
    let found = match kind(&value) {
        Kind::Undefined => return Err(fail("undefined is no number")),
        Kind::Number(n) => Some(n.float()),
        Kind::Text(text) => parse_float(text),
        _ => None,
    };
    Ok(found.map_or_else(
        || otherwise.unwrap_or_else(|| Value::from(0.0)),
        Value::from,
    ))
}

fn abs(value: &Value) -> Result<Value, Error> {
    match kind(value) {
        Kind::Number(Number::Float(x)) => Ok(x.abs().into()),
        Kind::Number(n) => Ok(int(n.int().unwrap_or_default().saturating_abs())),
        _ => Err(fail(format!("{} has no size", name_of(value)))),
    }
}

fn round(args: &[Value]) -> Result<Value, Error> {
    let [value, precision, method] = bind(args, ["value", "precision", "method"])?;
    let value = given(value)?;
    let places = precision.as_ref().map_or(Ok(0), whole)?;
    let method = method.as_ref().map_or(Ok("common"), text)?;
    let Kind::Number(number) = kind(&value) else {
        return Err(fail(format!("{} cannot be rounded", name_of(&value))));
    };
    if places.unsigned_abs() > 300 {
        return Err(fail("rounding goes to 300 places at most"));
    }
    let scale = 10f64.powi(places as i32);
    match (method, number.int()) {
        ("common", Some(i)) if places >= 0 => Ok(int(i)),
        ("common", Some(i)) => {
            let unit = 10i128.checked_pow(places.unsigned_abs() as u32);
            Ok(int(unit.map_or(0, |unit| round_whole(i, unit))))
        }
        ("common", None) if places < 0 => {
            Ok(((number.float() * scale).round_ties_even() / scale).into())
        }
        // Formatting rounds the exact value, halves to even, as Python does.
        ("common", None) => {
            let text = format!("{:.*}", places as usize, number.float());
            Ok(text.parse::<f64>().unwrap_or_default().into())
        }
        ("ceil", _) => Ok(((number.float() * scale).ceil() / scale + 0.0).into()),
        ("floor", _) => Ok(((number.float() * scale).floor() / scale + 0.0).into()),
        _ => Err(fail("the method is common, ceil or floor")),
    }
}

/// To a multiple of `unit`, halves to the even one.
fn round_whole(i: i128, unit: i128) -> i128 {
    let (below, rest) = (i.div_euclid(unit), i.rem_euclid(unit));
    let up = rest > unit - rest || (rest == unit - rest && below % 2 != 0);
    (below + i128::from(up)).saturating_mul(unit)
}

fn length(value: &Value) -> Result<Value, Error> {
    let length = match kind(value) {
        Kind::Undefined => Some(0),
        Kind::Text(text) => Some(text.chars().count()),
        Kind::List | Kind::Tuple | Kind::Dict | Kind::Lazy(_) => value.len(),
        _ => None,
    };
    length
        .map(Value::from)
        .ok_or_else(|| fail(format!("{} has no length", name_of(value))))
}

fn replace(args: &[Value]) -> Result<Value, Error> {
    let [value, old, new, count] = bind(args, ["s", "old", "new", "count"])?;
    let count = maybe_whole(count.as_ref())?.unwrap_or(-1);
    let (old, new) = (soft(&given(old)?)?, soft(&given(new)?)?);
    methods::replace(&soft(&given(value)?)?, &old, &new, count)
}

fn indent(args: &[Value]) -> Result<Value, Error> {
    let [value, width, first, blank] = bind(args, ["s", "width", "first", "blank"])?;
    let value = given(value)?;
    let width = match width {
        Some(width) if width.as_str().is_some() => soft(&width)?,
        width => {
            let width = width.as_ref().map_or(Ok(4), whole)?;
            let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
            cost::text(width)?;
            " ".repeat(width)
        }
    };
    let source = text(&value)?.to_owned() + "\n";
    let lines = letters::lines(&source, false);
    cost::text(
        source
            .len()
            .saturating_add(lines.len().saturating_mul(width.len())),
    )?;
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let wanted = if i == 0 {
            flag(first.as_ref())
        } else {
            flag(blank.as_ref()) || !line.is_empty()
        };
        if wanted {
            out.push_str(&width);
        }
        out.push_str(line);
    }
    Ok(out.into())
}

fn truncate(args: &[Value]) -> Result<Value, Error> {
    let [value, most, kill, end, leeway] =
        bind(args, ["s", "length", "killwords", "end", "leeway"])?;
    let value = given(value)?;
    let most = most.as_ref().map_or(Ok(255), whole)?;
    let leeway = maybe_whole(leeway.as_ref())?.unwrap_or(5);
    let end = end.unwrap_or_else(|| Value::from("..."));
    let end = text(&end)?;
    let keep = most.saturating_sub(end.chars().count() as i128);
    if keep < 0 || leeway < 0 {
        return Err(fail("the length leaves no room"));
    }
    let length = maybe_whole(Some(&length(&value)?))?.unwrap_or(0);
    if length <= most.saturating_add(leeway) {
        return Ok(value);
    }
    let s = text(&value)?;
    let (_, kept) = letters::part(s, None, Some(keep)).unwrap_or_default();
    let kept = match flag(kill.as_ref()) {
        true => kept,
        false => kept.rsplit_once(' ').map_or(kept, |(before, _)| before),
    };
    Ok((kept.to_owned() + end).into())
}

fn format(args: &[Value]) -> Result<Value, Error> {
    let (pattern, rest) = args
        .split_first()
        .ok_or_else(|| fail("there is no format"))?;
    let values = match apart(rest) {
        (by_place, None) => tuple(by_place.to_vec()),
        ([], Some(kwargs)) => Value::from_pairs(named(kwargs)?),
        _ => return Err(fail("a format takes values by place or by name, not both")),
    };
    super::printf::percent(&soft(pattern)?, &values).map(Value::from)
}

fn items(value: &Value) -> Result<Value, Error> {
    let pairs = match kind(value) {
        Kind::Undefined => Vec::new(),
        Kind::Dict => python::pairs(value)?,
        _ => return Err(fail(format!("{} has no pairs", name_of(value)))),
    };
    let pairs = pairs
        .into_iter()
        .map(|(key, value)| tuple(vec![key, value]));
    Ok(lazy(What::Generator, pairs.collect()))
}
