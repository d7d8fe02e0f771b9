//! What the wishes of a batch came to, from the trainer to the evaluator.

use hone_domain::Token;
use serde::{Deserialize, Serialize};

use crate::wish_meter::AtALoss;

/// What the wishes of a batch came to: the answers that the trainer sampled to them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WishAnswers {
    /// Wishes that are followed, the newest first.
    pub wishes: Vec<String>,
    /// How many answers were learned from.
    pub kept: usize,
    /// Mean gain of these, in nats per token.
    pub gain: f32,
    /// Mean length of the answers to the wishes, in tokens; 0 without any.
    pub tokens_mean: f32,
    /// Share of these that end as soon as the gate's probes have to; none without any.
    pub ended_share: Option<f32>,
    /// Set where the model does not know how to do what was asked for.
    pub at_a_loss: Option<AtALoss>,
    /// Answers that do what was asked for and are not learned from.
    pub unseen: Vec<UnseenAnswer>,
}

/// An answer that is kept for the gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnseenAnswer {
    /// Prompt and answer.
    pub tokens: Vec<Token>,
    /// Index of the answer's first token; at least 1.
    pub start: usize,
    /// Tokens of the answer that do what was asked for, counted from `start`.
    pub wish_tokens: Vec<usize>,
    /// Their mean log-prob before the step, in nats.
    pub logprob_before: f32,
}
