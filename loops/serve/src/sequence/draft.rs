//! A request's drafts: tokens it may say next, for one step.

use std::sync::Arc;

use hone_domain::{Predicted, Token};
use hone_nn::sample::Sampled;
use hone_nn::{BLOCK_TOKENS, LogitsWanted};

use crate::draft::{Candidate, Hits, look_up};
use crate::sequence::{Sequence, Setup};
use crate::thread::draw::Went;

/// A prediction is trusted as a match of this length where nothing was said yet.
const TRUSTED: usize = 16;
/// After so many drafts in a row that did not pay, only every so manieth step looks one up.
const PATIENCE: u32 = 32;
const SELDOM: usize = 8;
/// After a draft whose draws could not be made beside the logits, so many tokens go without.
const REFUSED_REST: usize = 64;

/// What a completion drafts.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    /// Its last token and the draft, in the steps that have one.
    ahead: Vec<Token>,
    /// Length of the match that it follows.
    length: usize,
    /// Whether it was predicted.
    is_predicted: bool,
    /// Length of the match and first token of a draft that did not pay: whether it is right is told all
    /// the same.
    unpaid: Option<(usize, Token)>,
    /// Drafts in a row that did not pay, and look-ups that found none.
    misses: u32,
    /// There are none before it said so many tokens.
    rest: usize,
    hits: Hits,
    predicted: Prediction,
    became: Predicted,
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
    fn are_due(&self, said: usize) -> bool {
        said >= self.rest && (self.misses < PATIENCE || said.is_multiple_of(SELDOM))
    }

    fn missed(&mut self) {
        self.misses = self.misses.saturating_add(1);
        self.ahead.clear();
    }

    /// Of the draft so many tokens were right before one was not, if it `failed`, or all were said.
    fn note(&mut self, right: usize, failed: bool) {
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
struct Prediction {
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
    fn look_up(&mut self, text: &[Token], most: usize, draft: &mut Vec<Token>) -> (usize, bool) {
        if self.right == 0 || self.next >= self.tokens.len() {
            self.found = 0;
            let found = look_up((text, &self.tokens, self.next), most, draft);
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

/// What came of the draws of a step.
pub(crate) struct Taken {
    /// Tokens that were drawn; none where the first is to be drawn elsewhere.
    pub(crate) drew: usize,
    /// Tokens of the draft that were right.
    pub(crate) right: usize,
    pub(crate) went: Went,
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
        let said = self.completion_tokens();
        let drafts = &mut self.drafts;
        if !drafts.are_due(said) {
            return None;
        }
        drafts.ahead.push(last);
        let found = (drafts.predicted).look_up(&self.tokens, most, &mut drafts.ahead);
        (drafts.length, drafts.is_predicted) = found;
        let tokens = drafts.ahead.len() - 1;
        if tokens == 0 {
            drafts.missed();
            return None;
        }
        let rate = drafts.hits.rate(drafts.length);
        Some(Candidate { rate, tokens })
    }

    /// Shortens its draft.
    pub(crate) fn cut_draft(&mut self, tokens: usize) {
        let drafts = &mut self.drafts;
        match tokens {
            0 => {
                drafts.unpaid = Some((drafts.length, drafts.ahead[1]));
                drafts.missed();
            }
            _ => drafts.ahead.truncate(1 + tokens),
        }
    }

    pub(crate) fn drop_draft(&mut self) {
        self.drafts.ahead.clear();
        self.drafts.unpaid = None;
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
    /// and after each that the draft has right the one after it.
    pub(crate) fn take_draws<'a>(
        &mut self,
        rows: impl Iterator<Item = (Option<&'a Sampled>, &'a [u16])>,
        setup: &Setup,
    ) -> Taken {
        let drafted = self.drafted();
        let (mut drew, mut right, mut failed) = (0, 0, false);
        let mut went = Ok(None);
        for (drawn, experts) in rows.take(1 + drafted) {
            self.used_experts(experts);
            let Some(drawn) = drawn else {
                if drafted > 0 {
                    failed = true;
                    self.drafts.rest = self.completion_tokens() + REFUSED_REST;
                }
                break;
            };
            went = self.accept(drawn.clone(), setup);
            drew += 1;
            if drew <= drafted {
                failed = self.drafts.ahead[drew] != drawn.token;
                right += usize::from(!failed);
            }
            if failed || went != Ok(None) || !self.is_drawn_plainly() {
                break;
            }
        }
        if drafted > 0 {
            self.drafts.note(right, failed);
        }
        Taken { drew, right, went }
    }

    /// Whether its next token is drawn beside the logits, from nothing but them.
    fn is_drawn_plainly(&self) -> bool {
        matches!(self.wanted(), LogitsWanted::Draws(..))
    }
}
