//! What a completion drafts, and how its drafts fared.

use std::sync::Arc;

use hone_domain::{Predicted, Token};

use crate::draft::{Hits, look_up};

/// A prediction is trusted as a match of this length where nothing was said yet.
const TRUSTED: usize = 16;
/// After so many drafts in a row that did not pay, only every so manieth step looks one up.
const PATIENCE: u32 = 32;
const SELDOM: usize = 8;
/// What a completion drafts.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    /// Its last token and the draft, in the steps that have one.
    pub(super) ahead: Vec<Token>,
    /// Length of the match that it follows.
    pub(super) length: usize,
    /// Whether it was predicted.
    pub(super) is_predicted: bool,
    /// Length of the match and first token of a draft that did not pay: whether it is right is told all
    /// the same.
    pub(super) unpaid: Option<(usize, Token)>,
    /// Drafts in a row that did not pay, and look-ups that found none.
    pub(super) misses: u32,
    /// There are none before it said so many tokens.
    pub(super) rest: usize,
    pub(super) hits: Hits,
    pub(super) predicted: Prediction,
    pub(super) became: Predicted,
}

impl Drafts {
    /// `thinks`: something that is not predicted is said first.
    pub(super) fn new(predicted: Arc<[Token]>, thinks: bool) -> Self {
        Self {
            predicted: Prediction {
                tokens: predicted,
                right: if thinks { 0 } else { TRUSTED },
                ..Prediction::default()
            },
            ..Self::default()
        }
    }

    /// What became of what was predicted, where something was.
    pub(super) fn became(&self) -> Option<Predicted> {
        (!self.predicted.tokens.is_empty()).then_some(self.became)
    }

    /// A token was said.
    pub(super) fn said(&mut self, token: Token) {
        self.predicted.said(token);
        if let Some((length, draft)) = self.unpaid.take() {
            let is_right = draft == token;
            self.hits.note(length, usize::from(is_right), !is_right);
        }
    }

    /// Whether one is looked up for the token after so many.
    pub(super) fn are_due(&self, said: usize) -> bool {
        said >= self.rest && (self.misses < PATIENCE || said.is_multiple_of(SELDOM))
    }

    pub(super) fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
        self.ahead.clear();
    }

    /// Of the draft so many tokens were right before one was not, if it `failed`, or all were said.
    pub(super) fn note(&mut self, right: usize, failed: bool) {
        self.hits.note(self.length, right, failed);
        self.misses = 0;
        if self.is_predicted {
            // A draft is shorter than a block.
            self.became.add(Predicted {
                accepted: right as u32,
                rejected: (self.ahead.len() - 1 - right) as u32,
            });
        }
        self.ahead.clear();
    }
}

/// What the asker thinks that it will say, and how far it did.
#[derive(Debug, Default)]
pub(super) struct Prediction {
    tokens: Arc<[Token]>,
    /// What comes next, where what was said is as long as what was predicted in its place.
    next: usize,
    /// Tokens in a row that were right.
    right: usize,
    /// Length of the match by which `next` was found.
    found: usize,
}

impl Prediction {
    fn said(&mut self, token: Token) {
        let found = std::mem::take(&mut self.found);
        self.right = match self.tokens.get(self.next) == Some(&token) {
            true => self.right.max(found) + 1,
            false => 0,
        };
        self.next += 1;
    }

    /// Appends what probably follows `text` to `draft`; returns the length of the match that says so, and
    /// whether it was predicted.
    pub(super) fn look_up(
        &mut self,
        text: &[Token],
        most: usize,
        draft: &mut Vec<Token>,
    ) -> (usize, bool) {
        if self.right == 0 || self.next >= self.tokens.len() {
            self.found = 0;
            let found = look_up(text, &self.tokens, self.next, most, draft);
            if let Some(found) = found {
                if found.within {
                    (self.next, self.found) = (found.next, found.length);
                }
                return (found.length, found.within);
            }
        }
        let rest = self.tokens.get(self.next..).unwrap_or_default();
        draft.extend(rest.iter().take(most));
        (self.right, true)
    }
}
