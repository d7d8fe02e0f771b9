//! Python's two ways to format: `'%s' % x` and `'{}'.format(x)`.

use std::collections::HashMap;
use std::fmt;
use std::iter::Peekable;
use std::str::Chars;

use minijinja::{Error, Value};

use super::arguments::{apart, named, soft};
use super::cost::over;
use super::lookup::{attribute, item};
use super::repr::{python_float, write_repr};
use super::values::{Kind, Number, fail, int, kind, name_of};
use super::{cost, python};

/// Widest field and most digits that a format may ask for.
const WIDTH_MAX: usize = 999;

/// Work charged for each digit that is asked for.
const DIGIT_BYTES: usize = 16;

/// How one value is to look.
#[derive(Debug, Default)]
struct Look {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    width: usize,
    group: Option<char>,
    precision: Option<usize>,
    form: Option<char>,
}

impl Look {
    /// Charges a field, which can be costly and come out short.
    fn charge(&self) -> Result<(), Error> {
        let digits = self.precision.unwrap_or(0).saturating_mul(DIGIT_BYTES);
        cost::charge(cost::VALUE_BYTES + self.width + digits)
    }
}

/// Reads a number, and refuses a large one.
fn size(chars: &mut Peekable<Chars<'_>>) -> Result<Option<usize>, Error> {
    let mut read = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        chars.next();
        let value = read.unwrap_or(0) * 10 + digit as usize;
        if value > WIDTH_MAX {
            return Err(over("its format string asks for too wide a field"));
        }
        read = Some(value);
    }
    Ok(read)
}

/// `pattern % value`.
pub(super) fn percent(pattern: &str, value: &Value) -> Result<String, Error> {
    let args = match kind(value) {
        Kind::Tuple => python::items(value)?,
        _ => vec![value.clone()],
    };
    let mut args = args.into_iter();
    let mut left_over = !matches!(kind(value), Kind::Dict | Kind::List | Kind::Undefined);
    let mut out = String::new();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        cost::text_so_far(out.len())?;
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut key = None;
        if chars.next_if_eq(&'(').is_some() {
            let name: String = chars.by_ref().take_while(|c| *c != ')').collect();
            key = Some(name);
        }
        let look = printf_look(&mut chars)?;
        look.charge()?;
        if look.form == Some('%') {
            out.push('%');
            continue;
        }
        let shown = match key {
            Some(key) => {
                left_over = false;
                python::find_key(value, &Value::from(key)).ok_or_else(|| fail("no such key"))?
            }
            None => args
                .next()
                .ok_or_else(|| fail("not enough values to format"))?,
        };
        out.push_str(&printf_shown(look, &shown)?);
    }
    if left_over && args.next().is_some() {
        return Err(fail("too many values to format"));
    }
    Ok(out)
}

fn printf_look(chars: &mut Peekable<Chars<'_>>) -> Result<Look, Error> {
    let mut look = Look {
        align: Some('>'),
        ..Look::default()
    };
    while let Some(flag) = chars.next_if(|c| "-+ 0#".contains(*c)) {
        match flag {
            '-' => look.align = Some('<'),
            '0' if look.align != Some('<') => look.align = Some('='),
            '+' => look.sign = Some('+'),
            ' ' if look.sign.is_none() => look.sign = Some(' '),
            '#' => look.alternate = true,
            _ => {}
        }
    }
    if chars.peek() == Some(&'*') {
        return Err(over("its format string takes a width from a value"));
    }
    look.width = size(chars)?.unwrap_or(0);
    if chars.next_if_eq(&'.').is_some() {
        look.precision = Some(size(chars)?.unwrap_or(0));
    }
    while chars.next_if(|c| "hlL".contains(*c)).is_some() {}
    look.form = Some(chars.next().ok_or_else(|| fail("the format ends in a %"))?);
    Ok(look)
}

fn printf_shown(mut look: Look, value: &Value) -> Result<String, Error> {
    let zeros = look.align == Some('=');
    look.fill = Some(if zeros { '0' } else { ' ' });
    match (look.form, kind(value)) {
        (Some('s' | 'r' | 'a'), _) => {
            let text = match look.form {
                Some('s') => soft(value)?,
                _ => repr(value)?,
            };
            look.fill = Some(' ');
            look.align = Some(if look.align == Some('<') { '<' } else { '>' });
            Ok(text_shown(&look, &text))
        }
        (Some('c'), Kind::Text(text)) if text.chars().count() == 1 => Ok(text_shown(&look, text)),
        (Some('d' | 'i' | 'u'), Kind::Number(number)) => {
            look.form = Some('d');
            let whole = match number {
                Number::Float(x) if x.is_finite() => Number::Int(x as i128),
                number => number,
            };
            shown(&look, &int(whole.int().unwrap_or_default()))
        }
        (Some('x' | 'X' | 'o'), Kind::Number(number)) if number.int().is_some() => {
            shown(&look, value)
        }
        (Some('e' | 'E' | 'f' | 'F' | 'g' | 'G'), Kind::Number(number)) => {
            shown(&look, &Value::from(number.float()))
        }
        (form, _) => Err(fail(format!(
            "%{} does not take {}",
            form.unwrap_or(' '),
            name_of(value)
        ))),
    }
}

/// A text that is charged as it grows.
struct Charged(String);

impl fmt::Write for Charged {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        cost::text_so_far(self.0.len().saturating_add(s.len())).map_err(|_| fmt::Error)?;
        cost::charge(s.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(s);
        Ok(())
    }
}

fn repr(value: &Value) -> Result<String, Error> {
    cost::deep(value, 0)?;
    let mut out = Charged(String::new());
    write_repr(&mut out, value).map_err(|_| over("it makes too long a text"))?;
    Ok(out.0)
}

/// `pattern.format(...)`.
pub(super) fn braces(pattern: &str, args: &[Value]) -> Result<String, Error> {
    let (by_place, by_name) = apart(args);
    let mut fields = Fields {
        by_place,
        by_name: by_name
            .map(named)
            .transpose()?
            .unwrap_or_default()
            .into_iter()
            .collect(),
        next: Some(0),
    };
    fields.fill_in(pattern, 0)
}

struct Fields<'a> {
    by_place: &'a [Value],
    by_name: HashMap<String, Value>,
    /// The next place, unless places are numbered.
    next: Option<usize>,
}

impl Fields<'_> {
    fn fill_in(&mut self, pattern: &str, depth: usize) -> Result<String, Error> {
        let mut out = String::new();
        let mut rest = pattern;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            cost::text_so_far(out.len())?;
            let (brace, after) = rest[at..].split_at(1);
            if depth == 0 && after.starts_with(brace) {
                out.push_str(brace);
                rest = &after[1..];
                continue;
            }
            let mut open = 1;
            let end = after.find(|c| {
                open += i32::from(c == '{') - i32::from(c == '}');
                open == 0
            });
            let (Some(end), "{", ..2) = (end, brace, depth) else {
                return Err(fail("a brace of the format stands alone"));
            };
            out.push_str(&self.field(&after[..end], depth)?);
            rest = &after[end + 1..];
        }
        Ok(out + rest)
    }

    fn field(&mut self, field: &str, depth: usize) -> Result<String, Error> {
        let inside = field.find(']').unwrap_or(0);
        let end = field[inside..]
            .find(['!', ':'])
            .map_or(field.len(), |at| at + inside);
        let (name, rest) = field.split_at(end);
        let value = self.value(name)?;
        let (how, spec) = match rest.strip_prefix('!') {
            Some(rest) => rest.split_at(rest.find(':').unwrap_or(rest.len())),
            None => ("", rest),
        };
        let spec = self.fill_in(spec.strip_prefix(':').unwrap_or(spec), depth + 1)?;
        let look = braces_look(&spec)?;
        look.charge()?;
        match how {
            "" => shown(&look, &value),
            "s" => Ok(text_shown(&look, &soft(&value)?)),
            "r" | "a" => Ok(text_shown(&look, &repr(&value)?)),
            _ => Err(fail("the conversion is s, r or a")),
        }
    }

    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let missing = || fail("the format names a value that is not given");
        let mut value = if first.is_empty() {
            let at = self.next.ok_or_else(missing)?;
            self.next = Some(at + 1);
            self.by_place.get(at).ok_or_else(missing)?.clone()
        } else if let Ok(at) = first.parse::<usize>() {
            if self.next.is_some_and(|next| next > 0) {
                return Err(missing());
            }
            self.next = None;
            self.by_place.get(at).ok_or_else(missing)?.clone()
        } else {
            self.by_name.get(first).ok_or_else(missing)?.clone()
        };
        while !rest.is_empty() {
            cost::charge(cost::VALUE_BYTES)?;
            if let Some(inside) = rest.strip_prefix('[') {
                let (key, after) = inside.split_once(']').ok_or_else(missing)?;
                let index = key.parse::<u32>().map(Value::from);
                value = item(&value, &index.unwrap_or_else(|_| Value::from(key)))?;
                rest = after;
            } else {
                let inside = rest.strip_prefix('.').ok_or_else(missing)?;
                let (name, after) =
                    inside.split_at(inside.find(['.', '[']).unwrap_or(inside.len()));
                value = attribute(&value, &Value::from(name))?;
                rest = after;
            }
        }
        Ok(value)
    }
}

fn braces_look(spec: &str) -> Result<Look, Error> {
    let mut look = Look::default();
    let mut chars = spec.chars().peekable();
    let is_align = |c: Option<char>| c.filter(|c| "<>^=".contains(*c));
    if let Some(align) = is_align(spec.chars().nth(1)) {
        (look.fill, look.align) = (chars.next(), Some(align));
        chars.next();
    } else if let Some(align) = is_align(chars.peek().copied()) {
        look.align = Some(align);
        chars.next();
    }
    look.sign = chars.next_if(|c| "+- ".contains(*c));
    look.alternate = chars.next_if_eq(&'#').is_some();
    if chars.next_if_eq(&'0').is_some() && look.fill.is_none() {
        look.fill = Some('0');
        look.align = look.align.or(Some('='));
    }
    look.width = size(&mut chars)?.unwrap_or(0);
    look.group = chars.next_if(|c| ",_".contains(*c));
    if chars.next_if_eq(&'.').is_some() {
        look.precision = Some(size(&mut chars)?.ok_or_else(|| fail("a precision is missing"))?);
    }
    look.form = chars.next();
    match chars.next() {
        Some(_) => Err(fail("the format of a field is not known")),
        None => Ok(look),
    }
}

fn padded(look: &Look, sign: &str, text: &str, otherwise: char) -> String {
    let missing = look
        .width
        .saturating_sub(sign.chars().count() + text.chars().count());
    let fill = |n| look.fill.unwrap_or(' ').to_string().repeat(n);
    match look.align.unwrap_or(otherwise) {
        '<' => [sign, text, &fill(missing)].concat(),
        '^' => [&fill(missing / 2), sign, text, &fill(missing - missing / 2)].concat(),
        '=' => [sign, &fill(missing), text].concat(),
        _ => [&fill(missing), sign, text].concat(),
    }
}

fn text_shown(look: &Look, text: &str) -> String {
    let most = look.precision.unwrap_or(usize::MAX);
    let text: String = text.chars().take(most).collect();
    padded(look, "", &text, '<')
}

fn shown(look: &Look, value: &Value) -> Result<String, Error> {
    let plain = look.width == 0 && look.precision.is_none() && look.form.is_none();
    let unknown = || fail(format!("{} has no such format", name_of(value)));
    match (kind(value), look.form) {
        (Kind::Text(text), None | Some('s')) if look.align != Some('=') => {
            Ok(text_shown(look, text))
        }
        (Kind::Number(Number::Bool(_)), None) if plain && look.sign.is_none() => soft(value),
        (Kind::Number(number), form) => {
            let (negative, digits) = match (number.int(), form) {
                (_, Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')) | (None, None) => {
                    let x = number.float();
                    (x.is_sign_negative(), float_digits(look, x.abs()))
                }
                (Some(i), _) => (i < 0, int_digits(look, i).ok_or_else(unknown)?),
                _ => return Err(unknown()),
            };
            let sign = match look.sign {
                _ if negative => "-",
                Some('+') => "+",
                Some(' ') => " ",
                _ => "",
            };
            let prefix = match (look.alternate, look.form) {
                (true, Some(form @ ('x' | 'X' | 'o' | 'b'))) => format!("{sign}0{form}"),
                _ => sign.to_owned(),
            };
            Ok(padded(look, &prefix, &digits, '>'))
        }
        _ if plain => soft(value),
        _ => Err(unknown()),
    }
}

fn int_digits(look: &Look, i: i128) -> Option<String> {
    let size = i.unsigned_abs();
    let digits = match look.form {
        None | Some('d' | 'n') => grouped(&size.to_string(), look.group),
        Some('x') => format!("{size:x}"),
        Some('X') => format!("{size:X}"),
        Some('o') => format!("{size:o}"),
        Some('b') => format!("{size:b}"),
        Some('c') => u32::try_from(size)
            .ok()
            .and_then(char::from_u32)?
            .to_string(),
        _ => return None,
    };
    let zeros = look.precision.unwrap_or(0).saturating_sub(digits.len());
    Some("0".repeat(zeros) + &digits)
}

fn grouped(digits: &str, mark: Option<char>) -> String {
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.extend(mark);
        }
        out.push(c);
    }
    out
}

fn float_digits(look: &Look, x: f64) -> String {
    let precision = look.precision.unwrap_or(6);
    if !x.is_finite() {
        return if x.is_nan() { "nan" } else { "inf" }.to_owned();
    }
    let text = match look.form {
        Some('f' | 'F') => format!("{x:.precision$}"),
        Some('%') => format!("{:.precision$}%", x * 100.0),
        Some('e') => exponential(x, precision),
        Some('E') => exponential(x, precision).to_uppercase(),
        None if look.precision.is_none() => python_float(x),
        form => {
            let text = general(x, precision.max(1), look.alternate);
            if form == Some('G') {
                text.to_uppercase()
            } else {
                text
            }
        }
    };
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    grouped(&text[..end], look.group) + &text[end..]
}

/// With an exponent of two digits at least.
fn exponential(x: f64, precision: usize) -> String {
    let text = format!("{x:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(rest) => ('-', rest),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// `precision` digits, with an exponent where the number is very large or small.
fn general(x: f64, precision: usize, keep_zeros: bool) -> String {
    let text = exponential(x, precision - 1);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let trimmed = |text: &str| match text.contains('.') && !keep_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    match exponent.parse::<i32>().unwrap_or(0) {
        e if e < -4 || e >= precision as i32 => format!("{}e{exponent}", trimmed(digits)),
        e => {
            let places = (precision as i32 - 1 - e).max(0) as usize;
            trimmed(&format!("{x:.places$}"))
        }
    }
}
