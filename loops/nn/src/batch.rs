//! What a forward takes: new tokens of some sequences, and which logits each wants.

use crate::adapter::Adapter;
use crate::sample::PlainDraw;

/// Which logits a sequence wants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LogitsWanted {
    None,
    /// Of the last new token.
    Last,
    /// Of every new token.
    All,
    /// Of the last so many new tokens; what is drawn from them will do, where the draws are made
    /// beside them: this one from the first, and each next one a position on.
    Draws(PlainDraw, usize),
}

impl LogitsWanted {
    /// Rows of logits that a sequence of so many new tokens gets; they are those of its last ones.
    pub fn rows(self, tokens: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Last => tokens.min(1),
            Self::Draws(_, rows) => tokens.min(rows),
            Self::All => tokens,
        }
    }

    /// The draw from each row of logits that a sequence of so many new tokens gets.
    pub fn draws(self, tokens: usize) -> impl Iterator<Item = Option<PlainDraw>> {
        (0..self.rows(tokens)).map(move |row| match self {
            Self::Draws(first, _) => Some(first.after(row)),
            _ => None,
        })
    }
}

/// New tokens of one sequence.
#[derive(Clone, Copy)]
pub struct SeqInput<'a> {
    pub tokens: &'a [u32],
    /// Position of `tokens[0]`; everything before is in the pool already.
    pub start: usize,
    /// Block table: position `p` lives in `blocks[p / 32]`.
    pub blocks: &'a [u32],
    pub adapter: Option<&'a Adapter>,
    pub logits: LogitsWanted,
}
