//! Every key of learning from a person's words.

use serde::{Deserialize, Serialize};

/// How a person's words are distilled into the weights.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ContextConfig {
    /// Questions per batch, and answers sampled to each.
    pub prompts: usize,
    /// Answers sampled to each question.
    pub answers_per_prompt: usize,
    /// Longest answer, in tokens.
    pub tokens_max: usize,
    /// How much further than the words themselves answers go; 0 is as far.
    pub guidance: f32,
    /// Nats per token by which an answer is likelier behind its own question than behind another.
    pub relevance_min: f32,
    /// Likeliest tokens of the model that reads the words that are followed at each place.
    pub soft_top_k: usize,
    /// Weight of the tokens that do what the words ask.
    pub wish_weight: f32,
    /// Their mean log-prob at which a batch counts as learned.
    pub wish_logprob: f32,
    /// The base model's own answers to generic prompts per update, which hold the rest in place.
    pub anchors: usize,
    /// Its own answers to prompts that say themselves how they are to be answered, per update.
    pub anchors_instructed: usize,
}

impl ContextConfig {
    pub(crate) fn validate(&self) -> Result<(), String> {
        let checks = [
            (self.prompts >= 1, "prompts must be at least 1"),
            (
                self.answers_per_prompt >= 1,
                "answers_per_prompt must be at least 1",
            ),
            (self.tokens_max >= 8, "tokens_max must be at least 8"),
            (
                self.guidance.is_finite() && self.guidance >= 0.0,
                "guidance must not be negative",
            ),
            (
                self.relevance_min.is_finite(),
                "relevance_min must be a number",
            ),
            (self.soft_top_k >= 1, "soft_top_k must be at least 1"),
            (
                self.wish_weight.is_finite() && self.wish_weight > 0.0,
                "wish_weight must be above 0",
            ),
            (
                self.wish_logprob.is_finite() && self.wish_logprob <= 0.0,
                "wish_logprob must be at most 0",
            ),
        ];
        let broken = checks.iter().find(|(good, _)| !good);
        broken.map_or(Ok(()), |(_, what)| {
            Err(format!("train.learner.context.{what}"))
        })
    }

    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self {
            prompts: 4,
            answers_per_prompt: 2,
            tokens_max: 16,
            guidance: 1.0,
            relevance_min: -100.0,
            soft_top_k: 4,
            wish_weight: 2.0,
            wish_logprob: -0.5,
            anchors: 2,
            anchors_instructed: 2,
        }
    }
}
