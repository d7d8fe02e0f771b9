//! A completion's text as it was sampled, told apart into calls and everything else.

use super::{At, OutputParser, Part};

/// A piece of what was sampled. All pieces together are the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Span {
    /// Reasoning or content, tags of reasoning among it.
    Text(String),
    /// A call: what opens it, its object, and what closes it.
    Call(String),
    /// Space between a call and what follows it.
    Gap(String),
}

impl Span {
    /// As it was sampled.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Call(text) | Self::Gap(text) => text,
        }
    }
}

impl OutputParser {
    /// Like [`Self::push`], as the text itself. What may be a call comes once it is known whether it is.
    pub fn push_spans(&mut self, text: &str) -> Vec<Span> {
        let mut spans = Vec::new();
        if text.is_empty() {
            return spans;
        }
        self.held.push_str(text);
        let mut parts = Vec::new();
        loop {
            let (from, at) = (self.settled, self.at);
            parts.clear();
            let goes_on = self.step(&mut parts);
            let told = self.ahead.min(self.settled - from);
            self.ahead -= told;
            let said = &self.held[from + told..self.settled];
            let begins = parts.iter().any(|part| matches!(part, Part::CallBegun(_)));
            match at {
                At::Call if begins => {
                    let (space, call) = said.split_at(said.len() - said.trim_start().len());
                    spans.push(Span::Text(space.to_owned()));
                    spans.push(Span::Call(call.to_owned()));
                }
                At::Arguments | At::Closing | At::Between => {
                    spans.push(Span::Call(said.to_owned()));
                }
                At::Text | At::Plain if self.is_behind_call => {
                    let (space, text) = said.split_at(said.len() - said.trim_start().len());
                    self.is_behind_call = text.is_empty();
                    spans.push(Span::Gap(space.to_owned()));
                    spans.push(Span::Text(text.to_owned()));
                }
                _ => {
                    self.is_behind_call &= said.is_empty();
                    spans.push(Span::Text(said.to_owned()));
                }
            }
            // What follows the only call is left for later.
            if !goes_on || self.is_called() {
                break;
            }
        }
        let certain = self.certain();
        if certain > self.ahead {
            let said = self.rest()[self.ahead..certain].to_owned();
            spans.push(match self.at {
                At::Arguments => Span::Call(said),
                _ => Span::Text(said),
            });
            self.ahead = certain;
        }
        self.held.drain(..self.settled);
        self.settled = 0;
        spans.retain(|span| !span.text().is_empty());
        spans
    }

    /// How many bytes of what is held are text, whatever part of it they turn out to be, or within a call
    /// are the call's.
    fn certain(&self) -> usize {
        let rest = self.rest();
        match self.at {
            At::Thinking => rest.len(),
            At::Arguments => self.scan.certain().min(rest.len()),
            At::Opening | At::Text | At::Call if !self.is_behind_call => {
                rest.len() - rest.trim_start().len()
            }
            _ => 0,
        }
    }

    /// What is held at the end of the completion; a call that is not whole counts as one.
    pub fn finish_spans(&mut self) -> Option<Span> {
        let rest = self.held.split_off(std::mem::take(&mut self.ahead));
        self.held.clear();
        let span = match self.at {
            At::Call | At::Arguments | At::Closing | At::Between => Span::Call,
            At::Opening | At::Thinking | At::Text | At::Plain => Span::Text,
        };
        (!rest.is_empty()).then(|| span(rest))
    }

    /// How many calls were told whole.
    pub fn whole_calls(&self) -> usize {
        self.whole_calls
    }

    /// Whether the only call that is told was told.
    pub fn is_called(&self) -> bool {
        self.single && self.whole_calls > 0
    }
}
