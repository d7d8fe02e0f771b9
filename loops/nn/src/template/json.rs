//! `tojson` as the transformers library defines it: Python's `json.dumps`, spaces after `,` and
//! `:`, text outside ASCII as it is, nothing escaped for HTML.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::cost;

const INDENT_MAX: usize = 32;

struct Dump {
    out: String,
    ascii: bool,
    sort: bool,
    indent: Option<usize>,
    comma: String,
    colon: String,
}

pub(super) fn tojson(value: &Value, options: &Kwargs) -> Result<String, Error> {
    let indent = options.get::<Option<usize>>("indent")?;
    if indent.is_some_and(|n| n > INDENT_MAX) {
        return Err(invalid(format!("tojson: indent is at most {INDENT_MAX}")));
    }
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let (comma, colon) = match separators.as_deref() {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some([comma, colon]) => (comma.clone(), colon.clone()),
        Some(_) => return Err(invalid("tojson: separators are two strings".to_owned())),
    };
    let mut dump = Dump {
        out: String::new(),
        ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        comma,
        colon,
    };
    options.assert_all_used()?;
    dump.value(value, 0)?;
    Ok(dump.out)
}

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

impl Dump {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        cost::text_so_far(self.out.len())?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self
                .out
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                let mut first = true;
                for item in value.try_iter()? {
                    self.before_item(&mut first, depth);
                    self.value(&item, depth + 1)?;
                }
                self.end(']', first, depth);
            }
            ValueKind::Map => {
                self.out.push('{');
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort {
                    keys.sort();
                }
                let mut first = true;
                for key in keys {
                    self.before_item(&mut first, depth);
                    match key.as_str() {
                        Some(text) => self.string(text),
                        None => self.string(&key.to_string()),
                    }
                    self.out.push_str(&self.colon);
                    self.value(&value.get_item(&key)?, depth + 1)?;
                }
                self.end('}', first, depth);
            }
            kind => return Err(invalid(format!("tojson: {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn before_item(&mut self, first: &mut bool, depth: usize) {
        if !*first {
            self.out.push_str(&self.comma);
        }
        *first = false;
        self.new_line(depth + 1);
    }

    fn end(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            return write!(self.out, "{value}").map_err(Error::from);
        }
        let number = f64::try_from(value.clone())?;
        self.out.push_str(&python_float(number));
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && !c.is_ascii()) => {
                    let mut units = [0u16; 2];
                    for unit in c.encode_utf16(&mut units) {
                        write!(self.out, "\\u{unit:04x}").expect("a string takes any text");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// Python's `repr` of a float: shortest digits, an exponent below 1e-4 and from 1e16 on.
fn python_float(x: f64) -> String {
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
    #![allow(clippy::unwrap_used)]
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

    #[test]
    fn layout_follows_json_dumps() {
        cost::start(&cost::Limits::default());
        let value = Value::from(minijinja::value::Serde(serde_json::json!({
            "b": [1, 2.0, "é\u{1}\"<"], "a": {"x": null, "y": true}, "e": [], "f": {}
        })));
        let dump = |options: Kwargs| tojson(&value, &options).unwrap();
        assert_eq!(
            dump(Kwargs::from_iter(std::iter::empty::<(&str, Value)>())),
            r#"{"b": [1, 2.0, "é\u0001\"<"], "a": {"x": null, "y": true}, "e": [], "f": {}}"#
        );
        let pretty = Kwargs::from_iter([("indent", Value::from(2)), ("sort_keys", true.into())]);
        assert_eq!(
            dump(pretty),
            "{\n  \"a\": {\n    \"x\": null,\n    \"y\": true\n  },\n  \"b\": [\n    1,\n    2.0,\n    \
             \"é\\u0001\\\"<\"\n  ],\n  \"e\": [],\n  \"f\": {}\n}"
        );
        let ascii = Kwargs::from_iter([("ensure_ascii", Value::from(true))]);
        assert!(dump(ascii).contains("\\u00e9"));
    }
}
