//! What a candidate kept of the base model, and how much its answers do what was asked for. Neither
//! knows a language: both are log-probs.

use hone_nn::{Adapter, Control, Learner, Under};

use super::answers::{Answering, answers};
use super::context::{Distilled, imitated};
use super::measure::Compared;
use super::reference::{GenericAnswer, opening};
use super::wishes::behind;
use super::{NnTrainer, TrainError};
use crate::gate::WishMeter;

/// Generic prompts that are answered for the meter.
const METER_PROMPTS: usize = 8;
/// Longest of these answers, in tokens.
const METER_TOKENS: usize = 64;

/// What a candidate kept.
pub(super) struct Kept {
    pub(super) generic_loss: f32,
    pub(super) fact_gains: Vec<f32>,
}

impl NnTrainer {
    /// What the current weights lost of the base model's own answers and of plain facts.
    pub(super) fn kept(
        &self,
        learner: &mut Learner,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Kept, TrainError> {
        let gate = self.generic_answers(pause)?.gate;
        let mut control = || match pause() {
            true => Control::Stop,
            false => Control::Continue,
        };
        let before = self.mean_of_answers(learner, &gate, Under::Reference, &mut control)?;
        let now = self.mean_of_answers(learner, &gate, Under::Current, &mut control)?;
        let lost = before.iter().zip(&now).map(|(b, n)| b - n).sum::<f32>();
        Ok(Kept {
            generic_loss: lost / gate.len().max(1) as f32,
            fact_gains: self.fact_gains(learner, &mut control)?,
        })
    }

    /// By how many nats per token the person's words make the answers of candidate and served version
    /// likelier for the base model; none where nothing was asked for.
    pub(super) fn meter(
        &self,
        learner: &mut Learner,
        distilled: &Distilled,
        policies: Compared<'_>,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Option<WishMeter>, TrainError> {
        if distilled.kept == 0 {
            return Ok(None);
        }
        let gate = self.generic_answers(pause)?.gate;
        let gate = &gate[..gate.len().min(METER_PROMPTS)];
        if gate.is_empty() {
            return Ok(None);
        }
        let candidate = self.answered(gate, policies.candidate, pause)?;
        let served = match policies.parent {
            Some(parent) => self.answered(gate, parent, pause)?,
            None => gate.to_vec(),
        };
        Ok(Some(WishMeter {
            candidate: self.gain_of(learner, &candidate, distilled, pause)?,
            served: self.gain_of(learner, &served, distilled, pause)?,
            told: distilled.gain,
        }))
    }

    /// The same prompts, answered under `adapter`.
    fn answered(
        &self,
        prompts: &[GenericAnswer],
        adapter: &Adapter,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<GenericAnswer>, TrainError> {
        let how = Answering {
            parts: &self.parts,
            tokens_max: METER_TOKENS,
            temperature: self.learner.hint_temperature,
        };
        let texts: Vec<_> = prompts.iter().map(|answer| answer.prompt.clone()).collect();
        let said = answers(how, &texts, Some(adapter), pause)?;
        let pairs = prompts.iter().zip(said);
        Ok(pairs
            .map(|(prompt, answer)| {
                let mut said = answer.tokens;
                said.extend(answer.end);
                GenericAnswer {
                    said,
                    ..prompt.clone()
                }
            })
            .filter(|answer| !answer.said.is_empty())
            .collect())
    }

    /// Mean gain per token of these answers by the wishes as they were said.
    fn gain_of(
        &self,
        learner: &mut Learner,
        answers: &[GenericAnswer],
        distilled: &Distilled,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<f32, TrainError> {
        let mut control = || match pause() {
            true => Control::Stop,
            false => Control::Continue,
        };
        let plain = self.mean_of_answers(learner, answers, Under::Reference, &mut control)?;
        let mut sum = 0.0;
        for wish in &distilled.wishes {
            let told = |answer: &GenericAnswer| {
                let prompt = opening(&*self.parts.wording, &behind(&answer.asked, wish));
                let prompt = prompt.unwrap_or_else(|| answer.prompt.clone());
                imitated(&prompt, &answer.said)
            };
            let rows: Vec<_> = answers.iter().map(told).collect();
            let told = self.logprobs_under(learner, &rows, Under::Reference, &mut control)?;
            let mean = |row: &Vec<f32>| row.iter().sum::<f32>() / row.len().max(1) as f32;
            let gains = told
                .iter()
                .zip(&plain)
                .map(|(told, plain)| mean(told) - plain);
            sum += gains.sum::<f32>() / answers.len().max(1) as f32;
        }
        Ok(sum / distilled.wishes.len().max(1) as f32)
    }
}
