//! What a batch's words came to, as rows.

use hone_domain::Token;
use hone_nn::{TokenLoss, TrainRow};

use super::choose::{Candidate, wish_tokens};
use super::wishes::turn_of;
use crate::gate::AtALoss;
use crate::trainer::{TrainJob, WishTurns};
use crate::wish_answers::{UnseenAnswer, WishAnswers};

/// Fewer answers teach nothing.
pub(super) const ANSWERS_MIN: usize = 3;

/// What a batch's words came to.
#[derive(Debug, Default)]
pub(super) struct Distilled {
    /// Answers without the words, and the base model's own answers.
    pub(super) rows: Vec<TrainRow>,
    /// Of each row, which of its loss tokens do what the words ask.
    pub(super) wish_tokens: Vec<Vec<usize>>,
    /// Wishes that are followed, the newest first.
    pub(super) wishes: Vec<String>,
    /// Wishes that a newer one replaced.
    pub(super) replaced: Vec<String>,
    /// Answers that were sampled, those that repeated the words, and those that are imitated.
    pub(super) sampled: usize,
    pub(super) copied: usize,
    pub(super) kept: usize,
    /// Mean gain and relevance of what is imitated, in nats per token.
    pub(super) gain: f32,
    pub(super) relevance: f32,
    /// Mean length of what the model answers that reads the words, in tokens.
    pub(super) told_tokens: f32,
    /// Share of them that end as soon as the gate's probes have to; none without any.
    pub(super) told_ended: Option<f32>,
    /// How sure the model is of its answers with the words and of its own without, where it is at a loss.
    pub(super) at_a_loss: Option<AtALoss>,
    /// Answers that do what the words ask and are not learned from, for the gate.
    pub(super) unseen: Vec<UnseenAnswer>,
    /// Such answers that say when the steps go too far.
    pub(super) checked: Vec<CheckedAnswer>,
}

/// An answer that is looked at after each step and not learned from.
#[derive(Clone, Debug)]
pub(super) struct CheckedAnswer {
    pub(super) row: TrainRow,
    /// Which of its loss tokens do what the words ask.
    pub(super) wish_tokens: Vec<usize>,
}

/// The answer without the words.
pub(super) fn checked(candidate: &Candidate) -> CheckedAnswer {
    CheckedAnswer {
        row: candidate.plain.clone(),
        wish_tokens: wish_tokens(&candidate.token_gains),
    }
}

impl Distilled {
    /// What the evaluator needs to know of it.
    pub(super) fn answers(&self) -> WishAnswers {
        WishAnswers {
            wishes: self.wishes.clone(),
            kept: self.kept,
            gain: self.gain,
            tokens_mean: self.told_tokens,
            ended_share: self.told_ended,
            at_a_loss: self.at_a_loss,
            unseen: self.unseen.clone(),
        }
    }

    /// The turns of its wishes.
    pub(super) fn turns(&self, job: &TrainJob) -> WishTurns {
        let turns = |wishes: &[String]| {
            wishes
                .iter()
                .filter_map(|wish| turn_of(job, wish))
                .collect()
        };
        WishTurns {
            followed: turns(&self.wishes),
            replaced: turns(&self.replaced),
        }
    }
}

/// A prompt and what follows it, as a row that imitates what follows.
pub(super) fn imitated(prompt: &[Token], said: &[Token]) -> TrainRow {
    let tokens = [prompt, said].concat();
    let loss = (prompt.len()..tokens.len()).map(TokenLoss::imitated);
    TrainRow {
        loss: loss.collect(),
        tokens,
    }
}
