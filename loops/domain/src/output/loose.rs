//! Calls in other forms than the one that a model's template teaches: as bare JSON, in a code fence, in
//! the words of another family, with text before them. An answer that ends with calls of functions that
//! there are says these calls; prose about a call, and data shaped like one, is content.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::call::members;
use super::marks::{CALL_CLOSE, CALL_OPEN, FUNCTION_CLOSE, FUNCTION_OPEN};
use super::parameters::{self, Functions, guessed};
use super::part::{Called, Part};
use super::python::{called, python_call};

/// Longest text that is held back for what it may turn out to be.
const HELD_BYTES_MAX: usize = 64 * 1_024;
/// Most calls of an answer.
const CALLS_MAX: usize = 64;
/// Longest name of a function.
const NAME_BYTES_MAX: usize = 128;
const FENCE: &str = "```";

/// What calls of other families begin with, wherever they stand.
const MARKS: [&str; 11] = [
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<tool_call>",
    "<function_call>",
    "<function=",
    "<|tool_call|>",
    "<\u{ff5c}tool\u{2581}calls\u{2581}begin\u{ff5c}>",
    "<\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>",
    "<|channel|>commentary to=functions.",
    "commentary to=functions.",
    "functools[",
];
/// Names of code fences that calls are written in.
const FENCE_NAMES: [&str; 8] = [
    "",
    "json",
    "tool_call",
    "tool_code",
    "tool",
    "xml",
    "python",
    "function_call",
];

/// Holds back the end of a text that may turn out to be calls.
#[derive(Clone, Debug)]
pub(super) struct Loose {
    functions: Arc<dyn Functions>,
    held: String,
    /// Space that goes out with what is said behind it.
    gap: String,
    /// What was said before ends with a line break, or nothing was said.
    is_line_begun: bool,
    /// Calls that were told.
    pub(super) calls: usize,
}

impl Loose {
    pub(super) fn new(functions: Arc<dyn Functions>) -> Self {
        Self {
            functions,
            held: String::new(),
            gap: String::new(),
            is_line_begun: true,
            calls: 0,
        }
    }

    /// Passes parts on, without what may be a call.
    pub(super) fn pass(&mut self, parts: Vec<Part>) -> Vec<Part> {
        let mut out = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                Part::Content(text) => self.content(&text, &mut out),
                other => {
                    self.release(&mut out);
                    out.push(other);
                }
            }
        }
        out
    }

    fn content(&mut self, text: &str, out: &mut Vec<Part>) {
        self.held.push_str(text);
        while !self.held.is_empty() {
            let begin = begin_of(&self.held, self.is_line_begun);
            let before = begin.unwrap_or(self.held.len());
            if before > 0 {
                self.say(before, out);
                continue;
            }
            if !is_over(&self.held, &*self.functions) && self.held.len() <= HELD_BYTES_MAX {
                return;
            }
            // It is none: its first sign goes out, and what is behind it is looked at by itself.
            let first = self.held.chars().next().map_or(0, char::len_utf8);
            let first = match self.held.starts_with(FENCE) {
                true => FENCE.len(),
                false => first,
            };
            self.say(first, out);
        }
    }

    fn say(&mut self, bytes: usize, out: &mut Vec<Part>) {
        let said: String = self.held.drain(..bytes).collect();
        self.is_line_begun = said.ends_with('\n');
        let body = said.trim_end().len();
        if body == 0 {
            return self.gap.push_str(&said);
        }
        let mut whole = std::mem::take(&mut self.gap);
        whole.push_str(&said[..body]);
        self.gap.push_str(&said[body..]);
        push_content(whole, out);
    }

    fn release(&mut self, out: &mut Vec<Part>) {
        let mut rest = std::mem::take(&mut self.gap);
        rest.push_str(&std::mem::take(&mut self.held));
        if !rest.is_empty() {
            self.is_line_begun = rest.ends_with('\n');
            push_content(rest, out);
        }
    }

    /// The answer is over: what was held back is calls, or content.
    pub(super) fn finish(&mut self, is_single: bool, out: &mut Vec<Part>) {
        let found = calls_in(&self.held, &*self.functions, self.is_line_begun);
        let Some((before, mut calls)) = found else {
            return self.release(out);
        };
        let before = self.held[..before].trim_end().to_owned();
        self.held.clear();
        let gap = std::mem::take(&mut self.gap);
        if !before.is_empty() {
            push_content(gap + &before, out);
        }
        calls.truncate(if is_single { 1 } else { CALLS_MAX });
        self.calls += calls.len();
        for call in calls {
            out.push(Part::CallBegun(call.name));
            out.push(Part::Arguments(call.arguments));
        }
    }
}

fn push_content(text: String, out: &mut Vec<Part>) {
    match out.last_mut() {
        Some(Part::Content(before)) => before.push_str(&text),
        _ => out.push(Part::Content(text)),
    }
}

/// Where a call may begin in a text.
fn begin_of(text: &str, mut is_line_begun: bool) -> Option<usize> {
    for (at, c) in text.char_indices() {
        let rest = &text[at..];
        let may_begin = match c {
            '{' | '[' if is_line_begun => true,
            '`' if is_line_begun => FENCE.starts_with(rest) || rest.starts_with(FENCE),
            '[' | '<' | 'c' | 'f' => MARKS.iter().any(|mark| {
                rest.starts_with(mark) || mark.starts_with(rest) && rest.len() > 1 || *mark == rest
            }),
            _ => false,
        };
        if may_begin || (c == '<' && rest.len() == 1) {
            return Some(at);
        }
        is_line_begun = c == '\n' || (is_line_begun && c.is_whitespace());
    }
    None
}

/// Whether a call is one: of a function that there is, with arguments that it takes. Other data may be shaped
/// like a call.
fn is_meant(call: &Called, functions: &dyn Functions) -> bool {
    functions.has(&call.name) && functions.takes(&call.name, &call.arguments)
}

/// Any function, of which nothing is known: a text that a client sent back.
#[derive(Debug)]
pub(super) struct Anything;

impl Functions for Anything {
    fn has(&self, _function: &str) -> bool {
        true
    }

    fn is_text(&self, _function: &str, _name: &str) -> bool {
        false
    }

    fn json(&self, _function: &str, _name: &str, text: &str) -> String {
        guessed(text)
    }
}

/// Whether a held text can no longer be calls, whatever follows.
fn is_over(held: &str, functions: &dyn Functions) -> bool {
    if let Some(rest) = held.strip_prefix(FENCE) {
        let Some((name, inner)) = rest.split_once('\n') else {
            let name = rest.trim();
            return !FENCE_NAMES.iter().any(|known| known.starts_with(name));
        };
        if !FENCE_NAMES.contains(&name.trim()) {
            return true;
        }
        let Some((inner, behind)) = inner.split_once(FENCE) else {
            return begins_otherwise(inner.trim_start(), functions);
        };
        return all_calls(inner, functions).is_none() || may_not_follow(behind);
    }
    if FENCE.starts_with(held) {
        return false;
    }
    if MARKS
        .iter()
        .any(|mark| held.starts_with(mark) || mark.starts_with(held))
    {
        return false;
    }
    match object_end(held) {
        None => begins_otherwise(held, functions),
        Some(end) => all_calls(&held[..end], functions).is_none() || may_not_follow(&held[end..]),
    }
}

/// Whether what begins so is no call: JSON that begins with another member, or another text.
fn begins_otherwise(text: &str, functions: &dyn Functions) -> bool {
    const FIRST: [&str; 9] = [
        "name",
        "function",
        "tool",
        "type",
        "tool_calls",
        "id",
        "arguments",
        "parameters",
        "tool_name",
    ];
    let text = text.trim_start_matches(['[', '{', ' ', '\n', '\t', '\r']);
    if text.is_empty() {
        return false;
    }
    if let Some(key) = text.strip_prefix(['"', '\'']) {
        return match key.split_once(['"', '\'']) {
            Some((key, _)) => !FIRST.contains(&key),
            None => !FIRST.iter().any(|known| known.starts_with(key)),
        };
    }
    if text.starts_with('<') {
        let opens = [CALL_OPEN, FUNCTION_OPEN];
        return !opens
            .iter()
            .any(|open| text.starts_with(open) || open.starts_with(text));
    }
    // A function's name and its parenthesis.
    let text = text.strip_prefix("print(").unwrap_or(text);
    let is_name = |c: char| c.is_alphanumeric() || "_.-".contains(c);
    match text.find(|c: char| !is_name(c)) {
        Some(end) => !text[end..].starts_with('(') || !functions.has(&text[..end]),
        None => text.len() > NAME_BYTES_MAX,
    }
}

/// Whether what stands behind a call makes it a part of a text.
fn may_not_follow(behind: &str) -> bool {
    let behind = behind.trim_start_matches(|c: char| c.is_whitespace() || ";,".contains(c));
    let begins = |mark: &&str| behind.starts_with(*mark) || mark.starts_with(behind);
    !behind.is_empty() && !behind.starts_with(['{', '[', '<', '`']) && !MARKS.iter().any(begins)
}

/// Where the JSON value ends that a text begins with.
fn object_end(text: &str) -> Option<usize> {
    let (mut depth, mut in_text, mut is_escaped) = (0usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            b'{' | b'[' if !in_text => depth += 1,
            b'}' | b']' if !in_text => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// The calls that a text ends with, and where they begin. None where it ends with anything else.
pub(super) fn calls_in(
    text: &str,
    functions: &dyn Functions,
    is_line_begun: bool,
) -> Option<(usize, Vec<Called>)> {
    let (mut from, mut is_line_begun) = (0, is_line_begun);
    while let Some(at) = begin_of(&text[from..], is_line_begun) {
        let at = from + at;
        if let Some(calls) = all_calls(&text[at..], functions) {
            return Some((at, calls));
        }
        let first = text[at..].chars().next().map_or(1, char::len_utf8);
        from = at + first;
        is_line_begun = text[..from].ends_with('\n');
    }
    None
}

/// The calls that a text consists of.
fn all_calls(text: &str, functions: &dyn Functions) -> Option<Vec<Called>> {
    let mut calls = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || ";,".contains(c));
        rest = without_ends(rest);
        if rest.is_empty() {
            break;
        }
        let (more, behind) = some_calls(rest, functions)?;
        calls.extend(more);
        rest = behind;
        if calls.len() > CALLS_MAX {
            return None;
        }
    }
    let is_known = !calls.is_empty() && calls.iter().all(|call| is_meant(call, functions));
    is_known.then_some(calls)
}

/// A text without marks that end calls of some families.
fn without_ends(mut text: &str) -> &str {
    const ENDS: [&str; 9] = [
        "</tool_call>",
        "</function_call>",
        "<|call|>",
        "<|end|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<\u{ff5c}tool\u{2581}call\u{2581}end\u{ff5c}>",
        "<\u{ff5c}tool\u{2581}calls\u{2581}end\u{ff5c}>",
        "</tool_calls>",
    ];
    while let Some(rest) = ENDS.iter().find_map(|end| text.strip_prefix(end)) {
        text = rest.trim_start();
    }
    text
}

/// The calls at the beginning of a text, and what is behind them.
fn some_calls<'t>(text: &'t str, functions: &dyn Functions) -> Option<(Vec<Called>, &'t str)> {
    if let Some(rest) = text.strip_prefix(FENCE) {
        let (name, inner) = rest.split_once('\n')?;
        if !FENCE_NAMES.contains(&name.trim()) {
            return None;
        }
        // Where the answer ends, so may its fence.
        let (inner, behind) = inner.split_once(FENCE).unwrap_or((inner, ""));
        let calls = all_calls(inner, functions)?;
        return Some((calls, behind));
    }
    if let Some(rest) = text.strip_prefix("[TOOL_CALLS]") {
        return mistral(rest.trim_start());
    }
    for mark in [
        "<|python_tag|>",
        "<function_call>",
        "<|tool_call|>",
        "functools",
    ] {
        if let Some(rest) = text.strip_prefix(mark) {
            return values(rest.trim_start());
        }
    }
    if text.starts_with(FUNCTION_OPEN) {
        return xml_function(text, functions);
    }
    if let Some(rest) = text.strip_prefix(CALL_OPEN) {
        let rest = rest.trim_start();
        return match rest.chars().next()? {
            '{' | '[' => values(rest),
            '<' => xml_function(rest, functions),
            _ => glm(rest, functions),
        };
    }
    for mark in [MARKS[6], MARKS[7]] {
        if let Some(rest) = text.strip_prefix(mark) {
            return deepseek(rest);
        }
    }
    for mark in [MARKS[8], MARKS[9]] {
        if let Some(rest) = text.strip_prefix(mark) {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || "_-.".contains(c)))?;
            let object = rest.find('{').filter(|at| rest[end..*at].len() < 64)?;
            let (arguments, behind) = object_of(&rest[object..])?;
            return Some((vec![called(&rest[..end], arguments)], behind));
        }
    }
    values(text)
}

/// A sound JSON object at the beginning of a text, and what is behind it.
fn object_of(text: &str) -> Option<(&str, &str)> {
    let end = object_end(text).filter(|_| text.starts_with('{'))?;
    let (object, behind) = text.split_at(end);
    serde_json::from_str::<Map<String, Value>>(object).ok()?;
    Some((object, behind))
}

/// Calls as JSON objects, as a list of them, or as Python writes them.
fn values(text: &str) -> Option<(Vec<Called>, &str)> {
    if let Some(json) = json_calls(text) {
        return Some(json);
    }
    let listed = text.strip_prefix('[');
    let mut rest = listed.unwrap_or(text).trim_start();
    let printed = rest.strip_prefix("print(");
    rest = printed.unwrap_or(rest);
    let mut calls = Vec::new();
    loop {
        let (call, behind) = python_call(rest)?;
        calls.push(call);
        rest = behind.trim_start();
        match rest.strip_prefix(',').filter(|_| listed.is_some()) {
            Some(more) => rest = more.trim_start(),
            None => break,
        }
    }
    if printed.is_some() {
        rest = rest.strip_prefix(')')?;
    }
    if listed.is_some() {
        rest = rest.strip_prefix(']')?;
    }
    Some((calls, rest))
}

fn json_calls(text: &str) -> Option<(Vec<Called>, &str)> {
    let end = object_end(text)?;
    let (json, behind) = text.split_at(end);
    if json.starts_with('{') {
        return Some((json_call(json)?, behind));
    }
    let (mut calls, mut rest) = (Vec::new(), json[1..json.len() - 1].trim());
    while !rest.is_empty() {
        let end = object_end(rest).filter(|_| rest.starts_with('{'))?;
        calls.extend(json_call(&rest[..end])?);
        rest = rest[end..].trim_start();
        rest = match rest.strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if rest.is_empty() => rest,
            None => return None,
        };
    }
    Some((calls, behind))
}

/// The calls that a JSON object is: its name and its arguments as written, or those within it.
fn json_call(object: &str) -> Option<Vec<Called>> {
    serde_json::from_str::<Map<String, Value>>(object).ok()?;
    let all: Vec<(String, &str)> = members(object).collect();
    let member = |names: &[&str]| {
        let found = names
            .iter()
            .find_map(|name| all.iter().find(|(key, _)| key == name));
        found.map(|(_, value)| *value)
    };
    if let Some(calls) = member(&["tool_calls"]) {
        return json_calls(calls).map(|(calls, _)| calls);
    }
    if let Some(function) = member(&["function"]).filter(|value| value.starts_with('{')) {
        return json_call(function);
    }
    let name: String =
        serde_json::from_str(member(&["name", "function", "tool", "tool_name"])?).ok()?;
    let arguments = member(&["arguments", "parameters", "args", "input", "tool_input"])?;
    let arguments = match arguments {
        "null" => "{}".to_owned(),
        text if text.starts_with('{') => text.to_owned(),
        text => {
            let inner: String = serde_json::from_str(text).ok()?;
            serde_json::from_str::<Map<String, Value>>(&inner).ok()?;
            inner
        }
    };
    (!name.is_empty()).then(|| vec![Called { name, arguments }])
}

/// `[{"name": ...}]`, or `name[ARGS]{...}` as newer ones write it.
fn mistral(text: &str) -> Option<(Vec<Called>, &str)> {
    if text.starts_with(['[', '{']) {
        return json_calls(text);
    }
    let end = text.find(['[', '{'])?;
    let object = text.find('{')?;
    let (arguments, behind) = object_of(&text[object..])?;
    Some((vec![called(text[..end].trim(), arguments)], behind))
}

/// `<function=name><parameter=key>value</parameter></function>`.
fn xml_function<'t>(text: &'t str, functions: &dyn Functions) -> Option<(Vec<Called>, &'t str)> {
    let end = text.find(FUNCTION_CLOSE)? + FUNCTION_CLOSE.len();
    let call = parameters::parse(&text[..end], functions)?;
    Some((vec![call], &text[end..]))
}

/// `name<arg_key>key</arg_key><arg_value>value</arg_value>`.
fn glm<'t>(text: &'t str, functions: &dyn Functions) -> Option<(Vec<Called>, &'t str)> {
    let end = text.find(['\n', '<'])?;
    let name = text[..end].trim();
    let (mut rest, mut arguments) = (text[end..].trim_start(), Map::new());
    while let Some(key) = rest.strip_prefix("<arg_key>") {
        let (key, behind) = key.split_once("</arg_key>")?;
        let value = behind.trim_start().strip_prefix("<arg_value>")?;
        let (value, behind) = value.split_once("</arg_value>")?;
        let key = key.trim();
        let value = match functions.is_text(name, key) {
            true => Value::from(value),
            false => serde_json::from_str(&functions.json(name, key, value)).ok()?,
        };
        arguments.insert(key.to_owned(), value);
        rest = behind.trim_start();
    }
    // A name alone is a call where the call is closed behind it.
    let is_closed = !arguments.is_empty() || rest.starts_with(CALL_CLOSE);
    let is_name = is_closed && !name.is_empty() && !name.contains(char::is_whitespace);
    let arguments = Value::Object(arguments).to_string();
    is_name.then(|| (vec![called(name, &arguments)], rest))
}

/// `function<sep>name` and a fence, or `name<sep>{...}`.
fn deepseek(text: &str) -> Option<(Vec<Called>, &str)> {
    let text = text
        .trim_start()
        .strip_prefix(MARKS[7])
        .unwrap_or(text)
        .trim_start();
    let (before, rest) = text.split_once("<\u{ff5c}tool\u{2581}sep\u{ff5c}>")?;
    let object = rest.find('{')?;
    let head = rest[..object]
        .trim()
        .trim_end_matches("json")
        .trim_end_matches(FENCE)
        .trim();
    let name = if head.is_empty() { before.trim() } else { head };
    let (arguments, behind) = object_of(&rest[object..])?;
    let behind = behind.trim_start();
    let behind = behind.strip_prefix(FENCE).unwrap_or(behind);
    Some((vec![called(name, arguments)], behind))
}
