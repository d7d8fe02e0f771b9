//! What a completion's text says: reasoning, content and tool calls, told apart while it streams.
//!
//! A [`OutputParser`] is a pure function of the text: however the text is cut into pieces, the parts
//! say the same. A call of a function that there is, or that a grammar sees to, is told as it is
//! said once its arguments begin. Any other is told only once it is whole and its JSON is sound, and
//! stays content else, as it was written.

mod begin;
mod call;
mod loose;
mod manner;
mod marks;
mod parameters;
mod parsed;
mod part;
mod python;
mod scan;
mod spans;

use std::sync::Arc;

pub use self::begin::CallFinder;
use self::call::begun;
pub use self::call::members;
use self::loose::Loose;
pub use self::manner::{CallStyle, OutputFormat, Reasoning};
pub use self::marks::{
    CALL_CLOSE, CALL_OPEN, FUNCTION_CLOSE, FUNCTION_OPEN, PARAMETER_CLOSE, PARAMETER_OPEN,
};
use self::marks::{PYTHON_TAG, THINK_CLOSE, THINK_OPEN, overlap};
use self::parameters::Telling;
pub use self::parameters::{Functions, Named, guessed, worded};
pub use self::parsed::ParsedOutput;
pub use self::part::{Called, Part};
use self::scan::CallScan;
pub use self::spans::Span;

/// So many bytes are looked through for the ends of broken calls; after that no call is looked for.
const VAIN_MAX: usize = 1 << 20;
/// Longest beginning of a call, up to its arguments, that is told early.
const BEGIN_BYTES_MAX: usize = 1 << 10;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before anything but space.
    Opening,
    Thinking,
    Text,
    Call,
    /// Within the arguments of a call that began.
    Arguments,
    /// Behind them.
    Closing,
    /// Between calls of the JSON style.
    Between,
    /// No call can come any more.
    Plain,
}

/// Reads a completion piece by piece.
#[derive(Clone, Debug)]
pub struct OutputParser {
    calls: Option<CallStyle>,
    single: bool,
    tells_early: bool,
    at: At,
    /// Text that may still turn out to be something else, from the byte `settled` on.
    held: String,
    settled: usize,
    /// Of what is held, so many bytes were told as spans.
    ahead: usize,
    /// Of the held call, from its opening on.
    scan: CallScan,
    /// Of a function that is told while it is said.
    telling: Telling,
    functions: Arc<dyn Functions>,
    /// Bytes in which the ends of broken calls were looked for.
    vain: usize,
    /// Space that goes out with the text after it.
    gap: String,
    /// The gap follows reasoning or a call, so it is only kept between texts.
    after_other: bool,
    content_said: bool,
    reasoning_said: bool,
    whole_calls: usize,
    /// Nothing but space was said since the last call.
    is_behind_call: bool,
    /// Finds calls of functions that there are in other forms.
    loose: Option<Loose>,
}

impl OutputParser {
    /// At the beginning of a completion.
    pub fn new(output_format: OutputFormat) -> Self {
        Self::among(output_format, Arc::new(Named(Arc::default())))
    }

    /// Like [`Self::new`], where it is known what arguments that are said as texts stand for.
    pub fn among(output_format: OutputFormat, functions: Arc<dyn Functions>) -> Self {
        let is_free = output_format.calls.is_some() && !output_format.held && functions.is_any();
        Self {
            loose: is_free.then(|| Loose::new(functions.clone())),
            calls: output_format.calls,
            single: output_format.single,
            tells_early: output_format.held,
            at: match output_format.reasoning {
                Reasoning::Never => At::Text,
                Reasoning::Maybe => At::Opening,
                Reasoning::Open => At::Thinking,
            },
            held: String::new(),
            settled: 0,
            ahead: 0,
            scan: CallScan::new(output_format.calls),
            telling: Telling::default(),
            functions,
            vain: 0,
            gap: String::new(),
            after_other: false,
            content_said: false,
            reasoning_said: false,
            whole_calls: 0,
            is_behind_call: false,
        }
    }

    /// Whether the text so far ends within the reasoning.
    pub fn is_thinking(&self) -> bool {
        self.at == At::Thinking
    }

    /// Takes more text; gives what became certain with it.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        let out = self.take_in(text);
        match &mut self.loose {
            Some(loose) => loose.pass(out),
            None => out,
        }
    }

    fn take_in(&mut self, text: &str) -> Vec<Part> {
        let mut out = Vec::new();
        if text.is_empty() {
            return out;
        }
        self.held.push_str(text);
        while self.step(&mut out) {}
        self.held.drain(..self.settled);
        self.settled = 0;
        out
    }

    /// What is held.
    fn rest(&self) -> &str {
        &self.held[self.settled..]
    }

    /// The first bytes of what is held, which are settled with it.
    fn take(&mut self, bytes: usize) -> String {
        let taken = self.rest()[..bytes].to_owned();
        self.settled += bytes;
        taken
    }

    /// All that is held.
    fn take_all(&mut self) -> String {
        self.take(self.rest().len())
    }

    /// The completion is over: what was held back is decided now.
    pub fn finish(&mut self) -> Vec<Part> {
        let out = self.end();
        let is_single = self.single;
        match &mut self.loose {
            Some(loose) => {
                let mut out = loose.pass(out);
                let before = loose.calls;
                loose.finish(is_single, &mut out);
                self.whole_calls += loose.calls - before;
                out
            }
            None => out,
        }
    }

    fn end(&mut self) -> Vec<Part> {
        let mut out = Vec::new();
        if self.at == At::Closing {
            // What ends it may be missing.
            self.settled = self.held.len();
            self.behind_call();
        }
        // Each round settles the front of what is held; a broken call may hide another behind it.
        while !self.rest().is_empty() {
            match self.at {
                At::Thinking => {
                    let thought = self.take_all();
                    self.reason(thought.trim_end(), &mut out);
                }
                At::Call => self.end_call(&mut out),
                At::Arguments => {
                    let more = self.take_all();
                    // What is held of a function is no JSON.
                    if matches!(self.scan, CallScan::Object(_)) {
                        out.push(Part::Arguments(more));
                    }
                }
                At::Closing => {
                    self.settled = self.held.len();
                    self.behind_call();
                }
                At::Opening => self.at = At::Text,
                At::Between => {
                    let rest = self.take_all();
                    if !rest
                        .trim_matches(|c: char| c.is_whitespace() || c == ';')
                        .is_empty()
                    {
                        self.say(&rest, &mut out);
                    }
                }
                At::Text | At::Plain => {
                    let text = self.take_all();
                    self.say(&text, &mut out);
                }
            }
            while self.step(&mut out) {}
            if self.at == At::Text && !self.rest().is_empty() {
                let text = self.take_all();
                self.say(&text, &mut out);
            }
        }
        (self.held, self.settled) = (String::new(), 0);
        let gap = std::mem::take(&mut self.gap);
        if !self.after_other && !gap.is_empty() {
            out.push(Part::Content(gap));
        }
        out
    }

    /// The text ended within a call: it lacks its closing tag or more.
    fn end_call(&mut self, out: &mut Vec<Part>) {
        let (start, end) = (self.call_start(), self.scan.end());
        let rest = self.rest();
        let call =
            end.and_then(|end| Called::parse(&rest[start..end], self.calls, &*self.functions));
        match (call, end) {
            (Some(call), Some(end)) if CALL_CLOSE.starts_with(rest[end..].trim()) => {
                self.settled = self.held.len();
                self.call(call, out);
            }
            _ => {
                self.broken_call(out);
            }
        }
    }

    /// Works on what is held; true if there may be more to do.
    fn step(&mut self, out: &mut Vec<Part>) -> bool {
        match self.at {
            At::Opening => self.open(),
            At::Thinking => self.think(out),
            At::Text => match self.calls {
                None => self.pass(out),
                Some(CallStyle::Tags) => self.find_tag(&[CALL_OPEN], out),
                Some(CallStyle::Parameters) => self.find_tag(&[CALL_OPEN, FUNCTION_OPEN], out),
                Some(CallStyle::Json) => self.find_json(),
            },
            At::Call => self.scan_call(out),
            At::Arguments => self.arguments(out),
            At::Closing => self.close_call(),
            At::Between => self.between(),
            At::Plain => self.pass(out),
        }
    }

    fn open(&mut self) -> bool {
        let rest = self.rest();
        let text = rest.trim_start();
        if text.starts_with(THINK_OPEN) {
            self.settled += rest.len() - text.len() + THINK_OPEN.len();
            self.at = At::Thinking;
            return true;
        }
        if THINK_OPEN.starts_with(text) {
            return false;
        }
        self.at = At::Text;
        true
    }

    fn think(&mut self, out: &mut Vec<Part>) -> bool {
        if let Some(at) = self.rest().find(THINK_CLOSE) {
            let thought = self.take(at);
            self.settled += THINK_CLOSE.len();
            self.reason(thought.trim_end(), out);
            self.at = At::Text;
            self.after_other = true;
            return true;
        }
        // The start of the closing tag and the space before it wait.
        let rest = self.rest();
        let keep = overlap(rest, THINK_CLOSE);
        let certain = rest[..rest.len() - keep].trim_end().len();
        let thought = self.take(certain);
        self.reason(&thought, out);
        false
    }

    fn reason(&mut self, text: &str, out: &mut Vec<Part>) {
        let text = if self.reasoning_said {
            text
        } else {
            text.trim_start()
        };
        if !text.is_empty() {
            self.reasoning_said = true;
            out.push(Part::Reasoning(text.to_owned()));
        }
    }

    fn pass(&mut self, out: &mut Vec<Part>) -> bool {
        let text = self.take_all();
        self.say(&text, out);
        false
    }

    /// Looks for what opens a call.
    fn find_tag(&mut self, tags: &[&str], out: &mut Vec<Part>) -> bool {
        let rest = self.rest();
        // In one go: looking for each by itself would look to the end for the one that is nowhere.
        let mut places = rest.match_indices('<').map(|(at, _)| at);
        let opens = |at: &usize| tags.iter().any(|tag| rest[*at..].starts_with(tag));
        if let Some(at) = places.find(opens) {
            let before = self.take(at);
            self.say(&before, out);
            self.at = At::Call;
            self.scan = CallScan::new(self.calls);
            return true;
        }
        let begun = tags.iter().map(|tag| overlap(rest, tag)).max();
        let certain = rest.len() - begun.unwrap_or(0);
        let text = self.take(certain);
        self.say(&text, out);
        false
    }

    fn find_json(&mut self) -> bool {
        let text = self.rest().trim_start();
        if text.is_empty() || (PYTHON_TAG.starts_with(text) && text != PYTHON_TAG) {
            return false;
        }
        let begins = text.starts_with('{') || text.starts_with(PYTHON_TAG);
        self.scan = CallScan::new(self.calls);
        self.at = if begins { At::Call } else { At::Plain };
        true
    }

    /// Where the object of the held call may begin.
    fn call_start(&self) -> usize {
        let space = |text: &str| text.len() - text.trim_start().len();
        let tag = match self.calls {
            Some(CallStyle::Tags | CallStyle::Parameters) => CALL_OPEN,
            _ => PYTHON_TAG,
        };
        let rest = self.rest();
        let before = space(rest);
        let after_tag = match rest[before..].strip_prefix(tag) {
            Some(_) => before + tag.len(),
            None => before,
        };
        after_tag + space(&rest[after_tag..])
    }

    fn scan_call(&mut self, out: &mut Vec<Part>) -> bool {
        let start = self.call_start();
        let held = &self.held[self.settled..];
        match (held[start..].chars().next(), self.calls) {
            (None, _) => return false,
            (Some('{'), _) | (Some(_), Some(CallStyle::Parameters)) => {}
            (Some(_), _) => return self.broken_call(out),
        }
        let most = start + BEGIN_BYTES_MAX;
        // All of what may begin it was looked at before, where more than that was.
        let calls = self.calls.filter(|_| self.scan.looked() < most);
        let object = &held[start..held.floor_char_boundary(most)];
        let begun = calls.and_then(|calls| begun(object, calls));
        let is_certain = |name: &str| self.tells_early || self.functions.has(name);
        if let Some((name, arguments)) = begun.filter(|(name, _)| is_certain(name)) {
            self.settled += start + arguments;
            self.scan = CallScan::new(self.calls);
            self.at = At::Arguments;
            // Cut short from here on, it is a call all the same.
            self.gap.clear();
            self.after_other = true;
            out.push(Part::CallBegun(name));
            return true;
        }
        let end = self.scan.advance(held, start);
        if self.scan.is_broken() {
            return self.broken_call(out);
        }
        let Some(end) = end else {
            return false;
        };
        let closed = match self.calls {
            Some(CallStyle::Tags) => {
                let rest = held[end..].trim_start();
                if CALL_CLOSE.starts_with(rest) && rest != CALL_CLOSE {
                    return false;
                }
                if !rest.starts_with(CALL_CLOSE) {
                    return self.broken_call(out);
                }
                held.len() - rest.len() + CALL_CLOSE.len()
            }
            Some(CallStyle::Parameters) => {
                let rest = held[end..].trim_start();
                match rest.strip_prefix(CALL_CLOSE) {
                    Some(behind) => held.len() - behind.len(),
                    // The space behind it waits with it for what comes.
                    None if CALL_CLOSE.starts_with(rest) => return false,
                    None => end,
                }
            }
            _ => end,
        };
        let Some(call) = Called::parse(&held[start..end], self.calls, &*self.functions) else {
            return self.broken_call(out);
        };
        self.settled += closed;
        self.call(call, out);
        true
    }

    fn call(&mut self, call: Called, out: &mut Vec<Part>) {
        self.behind_call();
        out.push(Part::CallBegun(call.name));
        out.push(Part::Arguments(call.arguments));
    }

    /// A call is over, and whole.
    fn behind_call(&mut self) {
        self.whole_calls += 1;
        self.leave_call();
    }

    fn leave_call(&mut self) {
        self.gap.clear();
        self.after_other = true;
        self.is_behind_call = true;
        self.scan = CallScan::new(self.calls);
        self.telling = Telling::default();
        self.at = match self.calls {
            _ if self.single => At::Plain,
            Some(CallStyle::Tags | CallStyle::Parameters) => At::Text,
            _ => At::Between,
        };
    }

    /// The arguments of a call that began, as far as they are there.
    fn arguments(&mut self, out: &mut Vec<Part>) -> bool {
        let held = &self.held[self.settled..];
        if held.is_empty() {
            return false;
        }
        let (end, more) = match &mut self.scan {
            CallScan::Object(_) => {
                let end = self.scan.advance(held, 0);
                (end, self.take(end.unwrap_or(held.len())))
            }
            CallScan::Parameters(scan) => {
                let mut more = String::new();
                let end = self
                    .telling
                    .advance(scan, held, &*self.functions, &mut more);
                self.settled += end.unwrap_or(0);
                (end, more)
            }
        };
        let is_left = self.scan.is_broken() && matches!(self.scan, CallScan::Parameters(_));
        if !more.is_empty() {
            out.push(Part::Arguments(more));
        }
        match end {
            Some(_) => {
                self.at = At::Closing;
                self.scan.begin_behind();
            }
            None if is_left => {
                // It ends without an end, and so do its arguments. What follows is text.
                self.settled += self.scan.certain();
                self.leave_call();
                return true;
            }
            // What is held begins behind them from now on.
            None => self.scan.rebase(),
        }
        end.is_some()
    }

    /// What ends a call behind its arguments: other members and the brace of its object, which is
    /// forgotten at times, and the tag. Anything else that stands there is text.
    fn close_call(&mut self) -> bool {
        let rest = &self.held[self.settled..];
        let text = rest.trim_start();
        if text.is_empty() {
            return false;
        }
        let is_object = matches!(self.scan, CallScan::Object(_));
        let behind = match self.scan.advance(rest, 0) {
            _ if !is_object || !text.starts_with(['}', ',']) => rest,
            Some(end) if !self.scan.is_broken() => &rest[end..],
            None if !self.scan.is_broken() => return false,
            _ => rest,
        };
        let tag = behind.trim_start();
        let over = match tag.strip_prefix(CALL_CLOSE) {
            _ if self.calls == Some(CallStyle::Json) => behind,
            Some(over) => over,
            None if CALL_CLOSE.starts_with(tag) => return false,
            None => behind,
        };
        self.settled = self.held.len() - over.len();
        self.behind_call();
        true
    }

    /// What looked like a call is text. Only its opening is certain to be, so that a sound call
    /// behind it is still found, unless too much was looked through for nothing.
    fn broken_call(&mut self, out: &mut Vec<Part>) -> bool {
        self.vain += self.scan.looked();
        self.scan = CallScan::new(self.calls);
        if self.calls != Some(CallStyle::Json) && self.vain <= VAIN_MAX {
            let tag = match self.rest().starts_with(CALL_OPEN) {
                true => CALL_OPEN,
                false => FUNCTION_OPEN,
            };
            let open = self.take(tag.len());
            self.say(&open, out);
            self.at = At::Text;
        } else {
            self.at = At::Plain;
        }
        true
    }

    fn between(&mut self) -> bool {
        let rest = self.rest();
        let text = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
        if text.is_empty() {
            return false;
        }
        if text.starts_with('{') {
            self.settled += rest.len() - text.len();
            self.at = At::Call;
        } else {
            self.at = At::Plain;
        }
        true
    }

    /// Gives text out, and keeps the space at its end back while a call may follow.
    fn say(&mut self, text: &str, out: &mut Vec<Part>) {
        let body = text.trim_end();
        if body.is_empty() {
            return self.gap.push_str(text);
        }
        let mut said = std::mem::take(&mut self.gap);
        said.push_str(body);
        let said = if self.after_other && !self.content_said {
            said.trim_start().to_owned()
        } else {
            said
        };
        self.after_other = false;
        self.content_said = true;
        self.gap.push_str(&text[body.len()..]);
        if self.calls.is_none() || self.at == At::Plain {
            // Nothing can follow that would take the space away.
            let gap = std::mem::take(&mut self.gap);
            out.push(Part::Content(said + &gap));
        } else {
            out.push(Part::Content(said));
        }
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
