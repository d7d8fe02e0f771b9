//! `tojson` as the transformers library defines it: Python's `json.dumps`, spaces after `,` and
//! `:`, text outside ASCII as it is, nothing escaped for HTML.

use std::fmt::Write;

use minijinja::{Error, ErrorKind, Value};

use super::arguments::{bind, flag, given, soft, text, whole};
use super::repr::python_float;
use super::sequences::sorted;
use super::values::{Kind, Number, kind, name_of};
use super::{cost, python};

const INDENT_MAX: usize = 32;

struct Dump {
    out: String,
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    comma: String,
    colon: String,
}

/// The filter: the value, then options by place or name.
pub(super) fn tojson(args: &[Value]) -> Result<String, Error> {
    let names = ["x", "ensure_ascii", "indent", "separators", "sort_keys"];
    let [value, ascii, indent, separators, sort] = bind(args, names)?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) if indent.as_str().is_some() => Some(soft(&indent)?),
        Some(indent) => Some(
            " ".repeat(
                usize::try_from(whole(&indent)?.max(0))
                    .unwrap_or(usize::MAX)
                    .min(INDENT_MAX + 1),
            ),
        ),
    };
    if indent
        .as_ref()
        .is_some_and(|indent| indent.len() > INDENT_MAX)
    {
        return Err(invalid(format!("tojson: indent is at most {INDENT_MAX}")));
    }
    let separators = separators.filter(|separators| !separators.is_none());
    let (comma, colon) = match separators
        .as_ref()
        .map(python::items)
        .transpose()?
        .as_deref()
    {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some([comma, colon]) => (text(comma)?.to_owned(), text(colon)?.to_owned()),
        Some(_) => return Err(invalid("tojson: separators are two strings".to_owned())),
    };
    let mut dump = Dump {
        out: String::new(),
        ascii: flag(ascii.as_ref()),
        sort: flag(sort.as_ref()),
        indent,
        comma,
        colon,
    };
    dump.value(&given(value)?, 0)?;
    Ok(dump.out)
}

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

impl Dump {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        cost::text_so_far(self.out.len())?;
        match kind(value) {
            Kind::None => self.out.push_str("null"),
            Kind::Number(number) => self.number(number)?,
            Kind::Text(text) => self.string(text),
            Kind::List | Kind::Tuple => {
                self.out.push('[');
                let mut first = true;
                for item in value.try_iter()? {
                    self.before_item(&mut first, depth);
                    self.value(&item, depth + 1)?;
                }
                self.end(']', first, depth);
            }
            Kind::Dict => {
                self.out.push('{');
                let mut pairs = python::pairs(value)?;
                if self.sort {
                    pairs = sorted(pairs, false)?;
                }
                let mut first = true;
                for (key, value) in pairs {
                    self.before_item(&mut first, depth);
                    self.key(&key)?;
                    self.out.push_str(&self.colon);
                    self.value(&value, depth + 1)?;
                }
                self.end('}', first, depth);
            }
            _ => {
                let what = name_of(value);
                return Err(invalid(format!("tojson: {what} is not JSON serializable")));
            }
        }
        Ok(())
    }

    /// Keys are texts; numbers, truth values and none become such.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match kind(key) {
            Kind::Text(text) => self.string(text),
            Kind::None | Kind::Number(_) => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
            _ => return Err(invalid(format!("tojson: {} is no key", name_of(key)))),
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
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn number(&mut self, number: Number) -> Result<(), Error> {
        match number {
            Number::Bool(b) => self.out.push_str(if b { "true" } else { "false" }),
            Number::Int(i) => write!(self.out, "{i}").map_err(Error::from)?,
            Number::Float(x) => self.out.push_str(&python_float(x)),
        }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use minijinja::value::Kwargs;

    #[test]
    fn layout_follows_json_dumps() {
        cost::start(&cost::Limits::default());
        let value = Value::from(minijinja::value::Serde(serde_json::json!({
            "b": [1, 2.0, "é\u{1}\"<"], "a": {"x": null, "y": true}, "e": [], "f": {}
        })));
        let dump = |options: Kwargs| tojson(&[value.clone(), options.into()]).unwrap();
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
