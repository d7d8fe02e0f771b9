//! A request's drafts: tokens it may say next, for one step.

use hone_domain::Token;
use hone_nn::sample::Sampled;
use hone_nn::{BLOCK_TOKENS, LogitsWanted};

use crate::draft::Candidate;
use crate::sequence::{Sequence, Setup};
use crate::stop::Went;

/// After a draft whose draws could not be made beside the logits, so many tokens go without.
const REFUSED_REST: usize = 64;

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
