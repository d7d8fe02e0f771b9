//! A whole completion, or a text that a client sent back.

use super::loose::{Anything, calls_in};
use super::{
    CALL_OPEN, CallStyle, Called, FUNCTION_OPEN, OutputFormat, OutputParser, PYTHON_TAG, Part,
    THINK_CLOSE, THINK_OPEN,
};

/// A parsed completion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedOutput {
    /// Reasoning; empty where there was none.
    pub reasoning: String,
    /// Text for the user.
    pub content: String,
    /// Calls, in order.
    pub calls: Vec<Called>,
}

impl ParsedOutput {
    /// Of a whole text.
    pub fn of(text: &str, output_format: OutputFormat) -> Self {
        let mut parser = OutputParser::new(output_format);
        let mut parsed = Self::default();
        parsed.add(parser.push(text));
        parsed.add(parser.finish());
        parsed
    }

    /// Adds what came next.
    pub fn add(&mut self, parts: Vec<Part>) {
        for part in parts {
            match part {
                Part::Reasoning(text) => self.reasoning.push_str(&text),
                Part::Content(text) => self.content.push_str(&text),
                Part::CallBegun(name) => self.calls.push(Called {
                    name,
                    arguments: String::new(),
                }),
                Part::Arguments(text) => {
                    if let Some(call) = self.calls.last_mut() {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
    }

    /// What an assistant's text means to a conversation, whichever way a client sends it back:
    /// reasoning left out, calls taken out of the text in the style it is written in, whole or not.
    pub fn meaning(text: &str) -> Self {
        let after = match text.rfind(THINK_CLOSE) {
            Some(at) => &text[at + THINK_CLOSE.len()..],
            None if text.trim_start().starts_with(THINK_OPEN) => "",
            None => text,
        };
        let trimmed = after.trim_start();
        let of = |calls: Option<CallStyle>| {
            let output_format = OutputFormat {
                calls,
                held: true,
                ..OutputFormat::default()
            };
            Self::of(after, output_format)
        };
        if after.contains(FUNCTION_OPEN) {
            // Either may show the other's form within its own.
            let opened = after.split_once(CALL_OPEN);
            let object = opened.is_some_and(|(_, within)| within.trim_start().starts_with('{'));
            let tags = object.then(|| of(Some(CallStyle::Tags)));
            let parameters = || of(Some(CallStyle::Parameters));
            let mut parsed = tags.into_iter().chain(std::iter::once_with(parameters));
            if let Some(parsed) = parsed.find(|parsed| !parsed.calls.is_empty()) {
                return parsed;
            }
        }
        let parsed = of(if after.contains(CALL_OPEN) {
            Some(CallStyle::Tags)
        } else if trimmed.starts_with('{') || trimmed.starts_with(PYTHON_TAG) {
            Some(CallStyle::Json)
        } else {
            None
        });
        if !parsed.calls.is_empty() {
            return parsed;
        }
        match calls_in(after, &Anything, true) {
            Some((at, calls)) => Self {
                reasoning: String::new(),
                content: after[..at].trim().to_owned(),
                calls,
            },
            None => parsed,
        }
    }

    /// Like [`Self::meaning`], with the reasoning: a recorded text as a person reads it.
    pub fn whole(text: &str) -> Self {
        let before = match text.rfind(THINK_CLOSE) {
            Some(at) => &text[..at],
            None if text.trim_start().starts_with(THINK_OPEN) => text,
            None => "",
        };
        let before = before.trim_start();
        let before = before.strip_prefix(THINK_OPEN).unwrap_or(before);
        let mut parsed = Self::meaning(text);
        parsed.reasoning = before.trim().to_owned();
        if !parsed.reasoning.is_empty() {
            parsed.content = parsed.content.trim_start().to_owned();
        }
        parsed
    }
}
