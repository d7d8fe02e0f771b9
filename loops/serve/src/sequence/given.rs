//! A completion that is known already: scored, and not sampled.

use hone_domain::{Delta, ServeError, StopReason, Token, TokenDelta};
use hone_nn::sample::given;

use crate::sequence::Sequence;

/// Most tokens of one request that are scored in one step; each takes a row of logits.
const SCORED_TOKENS: usize = 16;
/// Most tokens of all requests that are scored in one step, beside one of each.
pub(crate) const SCORED_MAX: usize = 64;

impl Sequence {
    /// Whether its completion is given.
    pub(crate) fn is_given(&self) -> bool {
        !self.given.is_empty()
    }

    /// Position of the first token whose logits are still wanted.
    pub(super) fn told_from(&self) -> usize {
        match self.is_given() {
            true => self.prompt - 1 + self.raw.len(),
            false => self.tokens.len() - 1,
        }
    }

    /// Most tokens to compute in one step once `computed` are: a given completion's prompt goes
    /// before it, in steps of their own that need no logits.
    pub(super) fn chunk_after(&self, computed: usize, scored: usize) -> usize {
        if !self.is_given() {
            return usize::MAX;
        }
        match self.told_from().saturating_sub(computed) {
            0 => scored.clamp(1, SCORED_TOKENS),
            before => before,
        }
    }

    /// Whether the tokens computed next are scored.
    pub(crate) fn is_scoring(&self) -> bool {
        self.is_given() && self.computed >= self.told_from()
    }

    /// Scores the next token of the given completion by its logits; says whether it was the last.
    pub(crate) fn score(&mut self, row: &[f32]) -> Result<Option<StopReason>, ServeError> {
        let token = self.given[self.raw.len()];
        let told = given(
            row,
            token,
            self.params.temperature,
            self.params.top_logprobs,
        );
        if told.nonfinite {
            return Err(not_finite());
        }
        self.raw.push(told.raw_logprob);
        self.behavior.push(told.behavior_logprob);
        self.kept.push(None);
        self.send(Delta::Token(TokenDelta {
            text: String::new(),
            token,
            logprob: told.raw_logprob,
            behavior_logprob: told.behavior_logprob,
            top: told.top,
        }));
        Ok((self.raw.len() == self.given.len()).then_some(StopReason::Length))
    }

    /// Its completion so far, which leaves the prompt alone.
    pub(super) fn take_completion(&mut self) -> Vec<Token> {
        let sampled = self.tokens.split_off(self.prompt);
        if !self.is_given() {
            return sampled;
        }
        self.given.truncate(self.raw.len());
        std::mem::take(&mut self.given)
    }
}

pub(super) fn not_finite() -> ServeError {
    ServeError::Internal(
        "the model computed numbers that are not finite; its weights or its adapter are damaged"
            .to_owned(),
    )
}
