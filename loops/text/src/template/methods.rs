//! Methods of texts, lists and dictionaries, as in Python. Those that change a list or dictionary
//! are refused, as the sandbox does.

use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr};
use minijinja::{Error, ErrorKind, State, Value};

use super::arguments::{bind, flag, given, maybe_whole, soft, text, whole};
use super::cost;
use super::lookup::{Bound, OF_DICTS, OF_LISTS, OF_TEXTS};
use super::python::{self, equal};
use super::repr::is_printable;
use super::text::{self as letters, Side};
use super::values::{Kind, What, fail, kind, lazy, tuple};

impl Object for Bound {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        // The check before a call does not see what the method belongs to.
        cost::deep(&self.value, 0)?;
        args.iter().try_for_each(|value| cost::deep(value, 0))?;
        call(state, &self.value, &self.name, args)
    }
}

/// Calls a method; the engine asks here for those that its values do not have.
pub(super) fn call(
    _: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match kind(value) {
        Kind::Text(text) if OF_TEXTS.contains(&name) => of_text(text, name, args),
        Kind::Dict => of_dict(value, name, args),
        Kind::List | Kind::Tuple => of_list(value, name, args),
        _ => Err(ErrorKind::UnknownMethod.into()),
    }
}

fn of_dict(value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "get" => {
            let (by_place, None) = super::arguments::apart(args) else {
                return Err(fail("get takes no named arguments"));
            };
            let [key, otherwise] = bind(by_place, ["key", "default"])?;
            let found = python::find_key(value, &given(key)?);
            Ok(found.or(otherwise).unwrap_or_else(|| Value::from(())))
        }
        "items" | "keys" | "values" => {
            let [] = bind(args, [])?;
            view(value, name)
        }
        "copy" => {
            let [] = bind(args, [])?;
            Ok(Value::from_pairs(python::pairs(value)?))
        }
        name if OF_DICTS.contains(&name) => Err(fail(format!("{name} is not safe to call"))),
        _ => Err(ErrorKind::UnknownMethod.into()),
    }
}

fn view(value: &Value, name: &str) -> Result<Value, Error> {
    let pairs = python::pairs(value)?;
    Ok(match name {
        "keys" => lazy(What::Keys, pairs.into_iter().map(|(key, _)| key).collect()),
        "values" => lazy(
            What::Values,
            pairs.into_iter().map(|(_, value)| value).collect(),
        ),
        _ => {
            let pairs = pairs
                .into_iter()
                .map(|(key, value)| tuple(vec![key, value]));
            lazy(What::Items, pairs.collect())
        }
    })
}

fn of_list(value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let items = || python::items(value);
    match name {
        "count" => {
            let [wanted] = bind(args, ["value"])?;
            let wanted = given(wanted)?;
            Ok(items()?
                .iter()
                .filter(|item| equal(item, &wanted))
                .count()
                .into())
        }
        "index" => {
            let [wanted] = bind(args, ["value"])?;
            let wanted = given(wanted)?;
            let at = items()?.iter().position(|item| equal(item, &wanted));
            at.map(Value::from)
                .ok_or_else(|| fail("it is not in the list"))
        }
        "copy" if matches!(kind(value), Kind::List) => items().map(Value::from),
        name if OF_LISTS.contains(&name) => Err(fail(format!("{name} is not safe to call"))),
        _ => Err(ErrorKind::UnknownMethod.into()),
    }
}

fn of_text(s: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "format" => super::printf::braces(s, args).map(Value::from),
        "join" => {
            let [items] = bind(args, ["iterable"])?;
            joined(s, &python::items(&given(items)?)?)
        }
        "strip" | "lstrip" | "rstrip" | "split" | "rsplit" | "splitlines" | "partition"
        | "rpartition" | "removeprefix" | "removesuffix" => cut(s, name, args),
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count" => {
            look(s, name, args)
        }
        "replace" => replaced(s, args),
        "center" | "ljust" | "rjust" | "zfill" => padded(s, name, args),
        _ => {
            let [] = bind(args, [])?;
            cased(s, name)
                .or_else(|| asked(s, name).map(Value::from))
                .ok_or_else(|| ErrorKind::UnknownMethod.into())
        }
    }
}

fn joined(between: &str, items: &[Value]) -> Result<Value, Error> {
    let mut out = String::new();
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(between);
        }
        out.push_str(text(item)?);
        cost::text_so_far(out.len())?;
    }
    Ok(out.into())
}

fn cased(s: &str, name: &str) -> Option<Value> {
    Some(Value::from(match name {
        "upper" => s.to_uppercase(),
        "lower" => s.to_lowercase(),
        "title" => letters::title(s),
        "capitalize" => letters::capitalize(s),
        "swapcase" => letters::swap_case(s),
        "casefold" => s.to_lowercase().replace('ß', "ss").replace('ς', "σ"),
        _ => return None,
    }))
}

fn asked(s: &str, name: &str) -> Option<bool> {
    let all = |is: fn(char) -> bool| !s.is_empty() && s.chars().all(is);
    Some(match name {
        "isdigit" => all(letters::is_digit),
        "isdecimal" => all(|c| letters::decimal(c).is_some()),
        "isnumeric" => all(char::is_numeric),
        "isalpha" => all(letters::is_alpha),
        "isalnum" => all(|c| letters::is_alpha(c) || c.is_numeric()),
        "isspace" => all(letters::is_space),
        "isascii" => s.is_ascii(),
        "isprintable" => s.chars().all(is_printable),
        "islower" => letters::is_lower(s),
        "isupper" => letters::is_upper(s),
        "istitle" => letters::is_titled(s),
        "isidentifier" => {
            all(|c| c.is_alphabetic() || c == '_' || letters::decimal(c).is_some())
                && !s.starts_with(|c| letters::decimal(c).is_some())
        }
        _ => return None,
    })
}

fn cut(s: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let side = match name.as_bytes()[0] {
        b'l' => Side::Left,
        b'r' => Side::Right,
        _ => Side::Both,
    };
    let list = |pieces: Vec<&str>| pieces.into_iter().map(Value::from).collect::<Vec<_>>();
    match name {
        "split" | "rsplit" => {
            let [separator, most] = bind(args, ["sep", "maxsplit"])?;
            let separator = separator.filter(|value| !value.is_none());
            let separator = separator.as_ref().map(text).transpose()?;
            if separator == Some("") {
                return Err(fail("the separator is empty"));
            }
            let most = most.as_ref().map_or(Ok(-1), whole)?;
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            let split = if name == "split" {
                letters::split
            } else {
                letters::split_back
            };
            Ok(list(split(s, separator, most)).into())
        }
        "splitlines" => {
            let [keep] = bind(args, ["keepends"])?;
            Ok(list(letters::lines(s, flag(keep.as_ref()))).into())
        }
        "partition" | "rpartition" => {
            let [separator] = bind(args, ["sep"])?;
            let separator = given(separator)?;
            let by = text(&separator)?;
            if by.is_empty() {
                return Err(fail("the separator is empty"));
            }
            Ok(tuple(list(match side {
                Side::Right => s
                    .rsplit_once(by)
                    .map_or(vec!["", "", s], |(a, b)| vec![a, by, b]),
                _ => s
                    .split_once(by)
                    .map_or(vec![s, "", ""], |(a, b)| vec![a, by, b]),
            })))
        }
        "removeprefix" | "removesuffix" => {
            let [part] = bind(args, ["part"])?;
            let part = given(part)?;
            let part = text(&part)?;
            let rest = if name == "removeprefix" {
                s.strip_prefix(part)
            } else {
                s.strip_suffix(part)
            };
            Ok(rest.unwrap_or(s).into())
        }
        _ => {
            let (by_place, None) = super::arguments::apart(args) else {
                return Err(fail("strip takes no named arguments"));
            };
            let [chars] = bind(by_place, ["chars"])?;
            let chars = chars.filter(|value| !value.is_none());
            let chars = chars.as_ref().map(text).transpose()?;
            Ok(letters::strip(s, chars, side).into())
        }
    }
}

fn look(s: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let [wanted, from, to] = bind(args, ["sub", "start", "end"])?;
    let wanted = given(wanted)?;
    let part = letters::part(s, maybe_whole(from.as_ref())?, maybe_whole(to.as_ref())?);
    if let "startswith" | "endswith" = name {
        let is = |wanted: &Value| {
            let wanted = text(wanted)?;
            Ok(part.is_some_and(|(_, part)| match name {
                "startswith" => part.starts_with(wanted),
                _ => part.ends_with(wanted),
            }))
        };
        let Kind::Tuple = kind(&wanted) else {
            return is(&wanted).map(Value::from);
        };
        let found = python::items(&wanted)?
            .iter()
            .map(is)
            .collect::<Result<Vec<_>, _>>()?;
        return Ok(found.contains(&true).into());
    }
    let wanted = text(&wanted)?;
    if name == "count" {
        return Ok(part
            .map_or(0, |(_, part)| part.matches(wanted).count())
            .into());
    }
    let found = part.and_then(|(before, part)| {
        let at = if name.starts_with('r') {
            part.rfind(wanted)
        } else {
            part.find(wanted)
        }?;
        Some(before + part[..at].chars().count())
    });
    match found {
        Some(at) => Ok(at.into()),
        None if name.ends_with("index") => Err(fail("the text is not in it")),
        None => Ok((-1).into()),
    }
}

fn replaced(s: &str, args: &[Value]) -> Result<Value, Error> {
    let [old, new, count] = bind(args, ["old", "new", "count"])?;
    let (old, new) = (given(old)?, given(new)?);
    let count = count.as_ref().map_or(Ok(-1), whole)?;
    replace(s, text(&old)?, text(&new)?, count)
}

/// `str.replace`; a negative count means all.
pub(super) fn replace(s: &str, old: &str, new: &str, count: i128) -> Result<Value, Error> {
    let places = s.len().checked_div(old.len()).unwrap_or(s.len() + 1);
    let most = usize::try_from(count).unwrap_or(usize::MAX);
    let more = places.min(most).saturating_mul(new.len());
    cost::text(s.len().saturating_add(more))?;
    Ok(s.replacen(old, new, most).into())
}

fn padded(s: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let [width, fill] = bind(args, ["width", "fillchar"])?;
    let fill = fill.unwrap_or_else(|| Value::from(" "));
    let width = whole(&given(width)?)?;
    match name {
        "center" => center(s, width, text(&fill)?),
        "ljust" => pad(s, 0, missing(s, width), text(&fill)?),
        "rjust" => pad(s, missing(s, width), 0, text(&fill)?),
        _ => {
            let rest = s.strip_prefix(['+', '-']).unwrap_or(s);
            let digits = pad(rest, missing(s, width), 0, "0")?;
            Ok((s[..s.len() - rest.len()].to_owned() + &soft(&digits)?).into())
        }
    }
}

fn missing(s: &str, width: i128) -> usize {
    let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
    width.saturating_sub(s.chars().count())
}

/// `str.center`: the odd space goes left where the width is odd, else right.
pub(super) fn center(s: &str, width: i128, fill: &str) -> Result<Value, Error> {
    let missing = missing(s, width);
    let left = missing / 2 + (missing & 1 & (width & 1) as usize);
    pad(s, left, missing - left, fill)
}

fn pad(s: &str, left: usize, right: usize, fill: &str) -> Result<Value, Error> {
    if fill.chars().count() != 1 {
        return Err(fail("the fill is one character"));
    }
    let more = left.saturating_add(right).saturating_mul(fill.len());
    cost::text(s.len().saturating_add(more))?;
    Ok([&fill.repeat(left), s, &fill.repeat(right)].concat().into())
}

/// `markupsafe.escape(value)`.
pub(super) fn escaped(value: &Value) -> Result<String, Error> {
    let s = soft(value)?;
    if value.is_safe() {
        return Ok(s);
    }
    cost::text(s.len().saturating_mul(5))?;
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    Ok(out)
}
