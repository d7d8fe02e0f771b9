//! A request's drafts: tokens it may say next, for one step.

use hone_domain::{Predicted, Token};
use hone_nn::sample::Sampled;
use hone_nn::{BLOCK_TOKENS, LogitsWanted};

use crate::draft::{Candidate, Hits, look_up};
use crate::sequence::{Sequence, Setup};
use crate::thread::draw::Went;

/// A prediction is trusted as a match of this length where nothing was said yet.
const TRUSTED: usize = 16;

/// What a completion drafts.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    /// Its last token and the draft, in the steps that have one.
    ahead: Vec<Token>,
    /// Length of the match that it follows.
    length: usize,
    /// Whether it was predicted.
    is_predicted: bool,
    hits: Hits,
    predicted: Prediction,
    became: Predicted,
}

impl Drafts {
    pub(super) fn new(predicted: Vec<Token>) -> Self {
        Self {
            predicted: Prediction {
                tokens: predicted,
                next: 0,
                right: TRUSTED,
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
    }
}

/// What the asker thinks that it will say, and how far it did.
#[derive(Debug, Default)]
struct Prediction {
    tokens: Vec<Token>,
    /// What comes next, where what was said is as long as what was predicted in its place.
    next: usize,
    /// Tokens in a row that were right.
    right: usize,
}

impl Prediction {
    fn said(&mut self, token: Token) {
        let is_right = self.tokens.get(self.next) == Some(&token);
        self.right = if is_right { self.right + 1 } else { 0 };
        self.next += 1;
    }

    /// Appends what probably follows `text` to `draft`; returns the length of the match that says so, and
    /// whether it was predicted.
    fn look_up(&mut self, text: &[Token], most: usize, draft: &mut Vec<Token>) -> (usize, bool) {
        if self.right == 0 || self.next >= self.tokens.len() {
            let found = look_up((text, &self.tokens), most, draft);
            if let Some(found) = found {
                if found.within {
                    self.next = found.next;
                }
                return (found.length, found.within);
            }
        }
        let rest = self.tokens.get(self.next..).unwrap_or_default();
        draft.extend(rest.iter().take(most));
        (self.right, true)
    }
}

impl Sequence {
    /// Looks up a draft of at most `most` tokens for a step that computes its last token. It needs no
    /// block that the token does not need.
    pub(crate) fn look_ahead(&mut self, most: usize) -> Option<Candidate> {
        self.drop_draft();
        let room = BLOCK_TOKENS - 1 - self.computed % BLOCK_TOKENS;
        let wanted = self.max_tokens - self.completion_tokens();
        let most = most.min(room).min(wanted.saturating_sub(1));
        let last = *self.tokens.last()?;
        if most == 0 || !self.samples_after(1) || !self.is_drawn_plainly() {
            return None;
        }
        let Drafts {
            ahead,
            length,
            is_predicted,
            hits,
            predicted,
            ..
        } = &mut self.drafts;
        ahead.push(last);
        (*length, *is_predicted) = predicted.look_up(&self.tokens, most, ahead);
        let (rate, tokens) = (hits.rate(*length), ahead.len() - 1);
        if tokens == 0 {
            self.drop_draft();
            return None;
        }
        Some(Candidate { rate, tokens })
    }

    /// Shortens its draft.
    pub(crate) fn cut_draft(&mut self, tokens: usize) {
        match tokens {
            0 => self.drop_draft(),
            _ => self.drafts.ahead.truncate(1 + tokens),
        }
    }

    pub(crate) fn drop_draft(&mut self) {
        self.drafts.ahead.clear();
    }

    /// Tokens of its draft in this step.
    pub(crate) fn drafted(&self) -> usize {
        self.drafts.ahead.len().saturating_sub(1)
    }

    /// What a step computes of it: the next `count` tokens, the last one with its draft.
    pub(crate) fn computes(&self, count: usize) -> &[Token] {
        match self.drafted() {
            0 => self.next_tokens(count),
            _ => &self.drafts.ahead,
        }
    }

    /// Takes what was drawn from its rows of logits, of each the draw and the experts used: the next token,
    /// and after each that the draft has right the one after it. Says how many were taken and how it
    /// went on; none where the first is to be drawn elsewhere.
    pub(crate) fn take_draws<'a>(
        &mut self,
        rows: impl Iterator<Item = (Option<&'a Sampled>, &'a [u16])>,
        setup: &Setup,
    ) -> (usize, Went) {
        let drafted = self.drafted();
        let (mut drew, mut failed) = (0_usize, false);
        let mut went = Ok(None);
        for (drawn, experts) in rows.take(1 + drafted) {
            self.used_experts(experts);
            let Some(drawn) = drawn else {
                break;
            };
            went = self.accept(drawn.clone(), setup);
            drew += 1;
            failed = self
                .drafts
                .ahead
                .get(drew)
                .is_some_and(|draft| *draft != drawn.token);
            if failed || went != Ok(None) || !self.is_drawn_plainly() {
                break;
            }
        }
        if drafted > 0 {
            let right = drew.saturating_sub(1);
            self.note_draft((drafted, right), failed);
            self.drop_draft();
        }
        (drew, went)
    }

    /// Of the draft's tokens so many were right.
    fn note_draft(&mut self, (drafted, right): (usize, usize), failed: bool) {
        let drafts = &mut self.drafts;
        drafts.hits.note(drafts.length, right, failed);
        if drafts.is_predicted {
            // A draft is shorter than a block.
            drafts.became.add(Predicted {
                accepted: right as u32,
                rejected: (drafted - right) as u32,
            });
        }
    }

    /// Whether its next token is drawn beside the logits, from nothing but them.
    fn is_drawn_plainly(&self) -> bool {
        matches!(self.wanted(), LogitsWanted::Draws(..))
    }
}
