//! Prompts that say themselves how they are to be answered. The base model's own answers to some of them are anchors
//! of every batch, and the gate looks at what a candidate lost of others: a person's wish is about prompts that leave
//! open how they are to be answered.

use hone_nn::{Learner, Under};

use super::reference::{GenericAnswer, anchors_of, is_for_gate};
use super::{NnTrainer, TrainError, control};

/// Most of the gate's prompts.
const GATE_PROMPTS: usize = 20;

impl NnTrainer {
    /// The base model's answers to so many prompts that are not the gate's, others with each `start`.
    pub(super) fn instructed_anchors(
        &self,
        start: u128,
        count: usize,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<GenericAnswer>, TrainError> {
        let these = anchors_of(self.parts.reference.instructed.len(), start, count);
        self.instructed(&|number| these.contains(&number), count, pause)
    }

    /// The base model's answers to the gate's prompts.
    pub(super) fn gate_instructed(
        &self,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<GenericAnswer>, TrainError> {
        self.instructed(&is_for_gate, GATE_PROMPTS, pause)
    }

    /// Mean log-prob per token, in nats, that each of the base model's own answers to the gate's prompts loses under
    /// the current weights.
    pub(super) fn instruction_losses(
        &self,
        learner: &mut Learner,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<f32>, TrainError> {
        let answers = self.gate_instructed(pause)?;
        let mut control = control(pause);
        let before = self.mean_of_answers(learner, &answers, Under::Reference, &mut control)?;
        let now = self.mean_of_answers(learner, &answers, Under::Current, &mut control)?;
        Ok(before.iter().zip(&now).map(|(b, n)| b - n).collect())
    }

    fn instructed(
        &self,
        which: &dyn Fn(usize) -> bool,
        most: usize,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<GenericAnswer>, TrainError> {
        let all = self.parts.reference.instructed.iter().enumerate();
        let asked = all.filter(|(number, _)| which(*number));
        self.base_answers(asked.map(|(number, one)| (number, one.text())), most, pause)
    }
}
