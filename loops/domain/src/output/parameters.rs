//! Calls whose arguments are texts between tags.

use std::collections::HashMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use super::marks::{FUNCTION_CLOSE, FUNCTION_OPEN, PARAMETER_CLOSE, PARAMETER_OPEN, overlap};
use super::part::Called;

/// Longest name of a function or a parameter, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// What is known of the functions that a completion may call.
pub trait Functions: Debug + Send + Sync {
    /// Whether there is such a function, so that what begins like a call of it is one.
    fn has(&self, function: &str) -> bool;

    /// Whether it is known which functions there are, so that calls of them are told in whatever form
    /// they are said.
    fn is_any(&self) -> bool {
        false
    }

    /// Whether an argument of a function that is said as text is that text, whatever it says.
    fn is_text(&self, function: &str, name: &str) -> bool;

    /// The JSON that the text of an argument stands for.
    fn json(&self, function: &str, name: &str, text: &str) -> String;

    /// Whether arguments, as JSON, may be meant for a function; asked where nothing else says that a text is
    /// a call.
    fn takes(&self, _function: &str, _arguments: &str) -> bool {
        true
    }
}

/// Functions of which only the names are known.
#[derive(Clone, Debug)]
pub struct Named(pub Arc<[String]>);

impl Functions for Named {
    fn has(&self, function: &str) -> bool {
        self.0.iter().any(|name| name == function)
    }

    fn is_text(&self, _function: &str, _name: &str) -> bool {
        false
    }

    fn json(&self, _function: &str, _name: &str, text: &str) -> String {
        guessed(text)
    }
}

/// Finds the end of a function without looking at any byte more than a few times.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ParameterScan {
    /// How far was looked.
    pub(super) at: usize,
    /// How far it was a function, outside of values.
    sound: usize,
    inside: Inside,
    /// Where the name or value begins that is looked at.
    from: usize,
    /// One past the closing tag of the value that may end there.
    closed: usize,
    /// One past the function's closing tag.
    pub(super) end: Option<usize>,
    /// Whether there is what a function cannot have there.
    pub(super) is_broken: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Inside {
    #[default]
    Opening,
    Name,
    /// Between parameters.
    Function,
    Key,
    Value,
    /// Behind the closing tag of a value, if that is what it is.
    ValueClosed,
}

/// A piece of a function.
enum Piece {
    Name,
    Key,
    Value,
}

impl ParameterScan {
    /// One past the end of the function in `text` that begins at `start`.
    pub(super) fn advance(&mut self, text: &str, start: usize) -> Option<usize> {
        self.pieces(text, start, |_, _| {})
    }

    fn pieces(
        &mut self,
        text: &str,
        start: usize,
        mut found: impl FnMut(Piece, Range<usize>),
    ) -> Option<usize> {
        self.at = self.at.max(start);
        while self.end.is_none() && !self.is_broken {
            let goes_on = match self.inside {
                Inside::Opening => {
                    self.from = self.at;
                    self.next(text, &[(FUNCTION_OPEN, Inside::Name)])
                }
                Inside::Name => {
                    let goes_on = self.name(text, Inside::Function, |at| found(Piece::Name, at));
                    self.sound = self.at;
                    goes_on
                }
                Inside::Key => self.name(text, Inside::Value, |name| found(Piece::Key, name)),
                Inside::Function => self.behind(text),
                Inside::Value => self.value(text),
                Inside::ValueClosed => {
                    let value = self.from..self.closed - PARAMETER_CLOSE.len();
                    let goes_on = self.behind(text);
                    if self.inside != Inside::ValueClosed {
                        self.sound = self.closed;
                        found(Piece::Value, value);
                    } else if self.is_broken {
                        // The value holds the tag.
                        (self.is_broken, self.inside) = (false, Inside::Value);
                        self.at = self.closed;
                        continue;
                    }
                    goes_on
                }
            };
            if !goes_on {
                break;
            }
        }
        self.end
    }

    /// Takes one of the tags; whether it is there whole.
    fn next(&mut self, text: &str, tags: &[(&str, Inside)]) -> bool {
        let rest = &text[self.at..];
        for (tag, inside) in tags {
            if rest.starts_with(tag) {
                self.at += tag.len();
                (self.inside, self.from) = (*inside, self.at);
                return true;
            }
        }
        self.is_broken = !tags.iter().any(|(tag, _)| tag.starts_with(rest));
        false
    }

    /// The next parameter, or the end.
    fn behind(&mut self, text: &str) -> bool {
        let rest = &text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        if text[self.at..].starts_with(FUNCTION_CLOSE) {
            self.at += FUNCTION_CLOSE.len();
            self.end = Some(self.at);
            self.inside = Inside::Function;
            return true;
        }
        let (key, none) = (Inside::Key, self.inside);
        self.next(text, &[(PARAMETER_OPEN, key), (FUNCTION_CLOSE, none)])
    }

    /// A name up to its bracket.
    fn name(&mut self, text: &str, then: Inside, found: impl FnOnce(Range<usize>)) -> bool {
        let end = text[self.at..].find(['>', '<', '\n']);
        let name = &text[self.from..end.map_or(text.len(), |end| self.at + end)];
        // However the text is cut, one that is too long is broken at the same place.
        self.at = self.from + name.floor_char_boundary(NAME_BYTES_MAX + 1);
        let is_over = text[self.at..].starts_with('>');
        self.is_broken = name.len() > NAME_BYTES_MAX
            || (end.is_some() && !is_over)
            || (is_over && name.is_empty());
        if is_over && !self.is_broken {
            found(self.from..self.at);
            self.at += 1;
            (self.inside, self.from) = (then, self.at);
        }
        is_over
    }

    /// A value up to what may close it.
    fn value(&mut self, text: &str) -> bool {
        if let Some(close) = text[self.at..].find(PARAMETER_CLOSE) {
            self.at += close + PARAMETER_CLOSE.len();
            (self.inside, self.closed) = (Inside::ValueClosed, self.at);
            return true;
        }
        let seen = (text.len() + 1).saturating_sub(PARAMETER_CLOSE.len());
        self.at = self.at.max(text.floor_char_boundary(seen));
        false
    }

    /// How much of the text is the function's, whatever comes.
    pub(super) fn certain(&self) -> usize {
        match self.inside {
            Inside::Value => self.at,
            Inside::ValueClosed => self.closed,
            Inside::Opening | Inside::Name | Inside::Function | Inside::Key => self.sound,
        }
    }

    /// What of an open value certainly belongs to it.
    fn value_so_far(&self, text: &str) -> Option<Range<usize>> {
        let end = match self.inside {
            Inside::Value => text.len() - overlap(text, PARAMETER_CLOSE),
            Inside::ValueClosed => self.closed - PARAMETER_CLOSE.len(),
            _ => return None,
        };
        Some(within(text, self.from..end))
    }
}

/// The value within what stands between its tags: a line break at either end belongs to these.
fn within(text: &str, mut at: Range<usize>) -> Range<usize> {
    at.start += usize::from(text[at.clone()].starts_with('\n'));
    at.end -= usize::from(text[at.clone()].ends_with('\n'));
    at
}

/// A call from the text of one function.
pub(super) fn parse(function: &str, functions: &dyn Functions) -> Option<Called> {
    let (mut name, mut key) = (String::new(), String::new());
    let mut arguments: Vec<(String, String)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let end = ParameterScan::default().pieces(function, 0, |piece, at| match piece {
        Piece::Name => function[at].clone_into(&mut name),
        Piece::Key => function[at].clone_into(&mut key),
        Piece::Value => {
            let value = functions.json(&name, &key, &function[within(function, at)]);
            let last = arguments.len();
            match *places.entry(key.clone()).or_insert(last) {
                at if at < last => arguments[at].1 = value,
                _ => arguments.push((std::mem::take(&mut key), value)),
            }
        }
    });
    end.filter(|end| *end == function.len())?;
    let members = arguments.iter();
    let members: Vec<String> = members
        .map(|(key, value)| format!("{}: {value}", Value::from(key.as_str())))
        .collect();
    Some(Called {
        name,
        arguments: format!("{{{}}}", members.join(", ")),
    })
}

/// The name of a function that begins a text, once it is whole.
pub(super) fn named(text: &str) -> Option<String> {
    let mut named = None;
    ParameterScan::default().pieces(text, 0, |piece, at| {
        if matches!(piece, Piece::Name) {
            named = Some(text[at].to_owned());
        }
    });
    named
}

/// Arguments as JSON while they are said: texts as they come, everything else once it is whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Telling {
    name: String,
    key: String,
    is_text: bool,
    /// How far the text was told.
    told: usize,
    members: usize,
}

impl Telling {
    /// One past the end of the function that begins `text`; what became certain with it is added to `out`.
    pub(super) fn advance(
        &mut self,
        scan: &mut ParameterScan,
        text: &str,
        functions: &dyn Functions,
        out: &mut String,
    ) -> Option<usize> {
        let end = scan.pieces(text, 0, |piece, at| match piece {
            Piece::Name => {
                text[at].clone_into(&mut self.name);
                // Without its end this is no JSON, so nobody takes it for a call without arguments.
                out.push('{');
            }
            Piece::Key => {
                text[at].clone_into(&mut self.key);
                self.is_text = functions.is_text(&self.name, &self.key);
                if self.is_text {
                    self.open(out);
                    out.push('"');
                }
            }
            Piece::Value => {
                let value = within(text, at);
                if self.is_text {
                    self.tell(text, value, out);
                    out.push('"');
                } else {
                    let value = functions.json(&self.name, &self.key, &text[value]);
                    self.open(out);
                    out.push_str(&value);
                }
            }
        });
        match (end, scan.value_so_far(text)) {
            (Some(_), _) => out.push('}'),
            (None, Some(value)) if self.is_text => self.tell(text, value, out),
            (None, _) => {}
        }
        end
    }

    /// The next argument begins.
    fn open(&mut self, out: &mut String) {
        if self.members > 0 {
            out.push_str(", ");
        }
        self.members += 1;
        out.push_str(&Value::from(self.key.as_str()).to_string());
        out.push_str(": ");
    }

    /// Tells what is new of a value that is a text.
    fn tell(&mut self, text: &str, value: Range<usize>, out: &mut String) {
        let from = value.start.max(self.told);
        if from < value.end {
            let quoted = Value::from(&text[from..value.end]).to_string();
            out.push_str(&quoted[1..quoted.len() - 1]);
            self.told = value.end;
        }
    }
}

/// The JSON that a text is, exactly as written, or else the text as JSON. A text of JSON is a text: its
/// quotes belong to it.
pub fn guessed(text: &str) -> String {
    let is_bare = !text.starts_with('"') && text.trim() == text;
    match is_bare && serde_json::from_str::<Value>(text).is_ok() {
        true => text.to_owned(),
        false => Value::from(text).to_string(),
    }
}

/// The value that a text stands for where no text is wanted: JSON, or the words of Python that templates
/// write for it.
pub fn worded(text: &str) -> Option<Value> {
    match text.trim() {
        "True" => Some(Value::Bool(true)),
        "False" => Some(Value::Bool(false)),
        "None" => Some(Value::Null),
        text => serde_json::from_str(text)
            .ok()
            .filter(|value: &Value| !value.is_string()),
    }
}
