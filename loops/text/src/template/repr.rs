//! How values print: `str` and `repr` of Python.

use std::fmt::{self, Write};

use minijinja::Value;

use super::values::{Kind, Number, What, is_namespace, kind};

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
        Kind::Other if is_namespace(value) => {
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

/// Python's `repr` of a float: shortest digits, an exponent below 1e-4 and from 1e16 on.
pub(super) fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let size = x.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{x:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(rest) => ('-', rest),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{x:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (x, expected) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (1e16, "1e+16"),
            (123_456_789_012_345.6, "123456789012345.6"),
            (1e22, "1e+22"),
            (-0.0, "-0.0"),
            (1e100, "1e+100"),
        ] {
            assert_eq!(python_float(x), expected);
        }
    }
}
