//! A completion's text as it was sampled, told apart into calls and everything else.

use super::{At, Listener, Part};

/// A piece of what was sampled. All pieces together are the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Span {
    /// Reasoning or content, tags of reasoning among it.
    Text(String),
    /// A call: what opens it, its object, what closes it, and the space between it and what follows.
    Call(String),
}

impl Listener {
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
            let said = &self.held[from..self.settled];
            let begins = parts.iter().any(|part| matches!(part, Part::CallBegun(_)));
            match at {
                At::Call if begins => spans.push(Span::Call(said.to_owned())),
                At::Arguments | At::Closing | At::Between => {
                    spans.push(Span::Call(said.to_owned()));
                }
                At::Text | At::Plain if self.is_behind_call => {
                    let space = said.len() - said.trim_start().len();
                    let (space, text) = said.split_at(space);
                    self.is_behind_call = text.is_empty();
                    spans.push(Span::Call(space.to_owned()));
                    spans.push(Span::Text(text.to_owned()));
                }
                _ => spans.push(Span::Text(said.to_owned())),
            }
            // What follows the only call is left for later.
            if !goes_on || self.is_called() {
                break;
            }
        }
        self.held.drain(..self.settled);
        self.settled = 0;
        spans.retain(|span| match span {
            Span::Text(text) | Span::Call(text) => !text.is_empty(),
        });
        spans
    }

    /// What is held at the end of the completion; a call that is not whole counts as one.
    pub fn finish_spans(&mut self) -> Option<Span> {
        let rest = std::mem::take(&mut self.held);
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
