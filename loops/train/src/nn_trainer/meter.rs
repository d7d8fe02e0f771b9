//! What a candidate kept of the base model, and how much its answers do what was asked for. Neither
//! knows a language: both are log-probs.

use hone_nn::{Adapter, Control, Learner, Under};

use super::answers::{Answering, answers};
use super::context::imitated;
use super::measure::Compared;
use super::reference::{GenericAnswer, opening};
use super::wishes::{behind, framed};
use super::{NnTrainer, TrainError, control, mean};
use crate::gate::{WishMeter, interval};
use crate::wish_answers::{UnseenAnswer, WishAnswers};

/// Generic prompts whose answers by the base model a candidate is held against.
pub(super) const KEPT_PROMPTS: usize = 20;
/// Generic prompts that are answered for the meter.
const METER_PROMPTS: usize = 8;
/// Longest of these answers, in tokens.
const METER_TOKENS: usize = 64;

/// What a candidate kept.
pub(super) struct Kept {
    pub(super) generic_loss: f32,
    pub(super) fact_gains: Vec<f32>,
    pub(super) instruction_losses: Vec<f32>,
}

impl NnTrainer {
    /// What the current weights lost of the base model's own answers, to generic prompts and to those that say how
    /// they are to be answered, and of plain facts.
    pub(super) fn kept(
        &self,
        learner: &mut Learner,
        wishes: &[String],
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Kept, TrainError> {
        let gate = self.gate_answers(KEPT_PROMPTS, pause)?;
        let mut control = control(pause);
        let before = self.mean_of_answers(learner, &gate, Under::Reference, &mut control)?;
        let now = self.mean_of_answers(learner, &gate, Under::Current, &mut control)?;
        let lost = before.iter().zip(&now).map(|(b, n)| b - n).sum::<f32>();
        Ok(Kept {
            generic_loss: lost / gate.len().max(1) as f32,
            fact_gains: self.fact_gains(learner, wishes, &mut control)?,
            instruction_losses: self
                .instruction_losses(learner, &mut || control() == Control::Stop)?,
        })
    }

    /// What [`Self::kept`] holds candidates against, which is the same for all of them.
    pub(super) fn base_of_gate(
        &self,
        learner: &mut Learner,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<(), TrainError> {
        let mut gate = self.gate_answers(KEPT_PROMPTS, pause)?;
        gate.extend(self.gate_instructed(pause)?);
        let mut control = control(pause);
        self.mean_of_answers(learner, &gate, Under::Reference, &mut control)?;
        let facts = self.fact_rows(None);
        self.logprobs_under(learner, &facts, Under::Reference, &mut control)?;
        Ok(())
    }

    /// By how many nats per token the person's words make the answers of candidate and served version
    /// likelier for the base model; none where nothing was asked for.
    pub(super) fn meter(
        &self,
        learner: &mut Learner,
        asked: &WishAnswers,
        policies: Compared<'_>,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Option<WishMeter>, TrainError> {
        if asked.kept == 0 {
            return Ok(None);
        }
        let gate = &self.gate_answers(METER_PROMPTS, pause)?;
        if gate.is_empty() {
            return Ok(None);
        }
        let candidate = self.answered(gate, policies.candidate, pause)?;
        let served = match policies.parent {
            Some(parent) => self.answered(gate, parent, pause)?,
            None => gate.to_vec(),
        };
        let candidate = self.gains_of(learner, &candidate, &asked.wishes, pause)?;
        let served = self.gains_of(learner, &served, &asked.wishes, pause)?;
        let pairs = candidate.iter().zip(&served);
        let differences: Vec<f32> = pairs.map(|(now, before)| now - before).collect();
        let now = self.of_unseen(learner, &asked.unseen, pause)?;
        let pairs = now.iter().zip(&asked.unseen);
        let likelier: Vec<f32> = pairs.map(|(now, of)| now - of.logprob_before).collect();
        Ok(Some(WishMeter {
            candidate: mean(&candidate),
            served: mean(&served),
            told: asked.gain,
            surely_less: interval(&differences).is_some_and(|i| i.high < 0.0),
            likelier: (!likelier.is_empty()).then(|| mean(&likelier)),
            surely_unlikelier: interval(&likelier).is_some_and(|i| i.high < 0.0),
        }))
    }

    /// Mean log-prob per token, under the current weights, of what the words ask for, in each of the
    /// answers that are not learned from.
    pub(super) fn of_unseen(
        &self,
        learner: &mut Learner,
        unseen: &[UnseenAnswer],
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<f32>, TrainError> {
        let mut control = control(pause);
        let row = |answer: &UnseenAnswer| {
            let (prompt, said) = answer.tokens.split_at(answer.start);
            imitated(prompt, said)
        };
        let rows: Vec<_> = unseen.iter().map(row).collect();
        let found = self.logprobs_under(learner, &rows, Under::Current, &mut control)?;
        let of_wish = |(row, answer): (&Vec<f32>, &UnseenAnswer)| {
            let tokens = answer.wish_tokens.iter();
            let of: Vec<f32> = tokens.filter_map(|at| row.get(*at).copied()).collect();
            mean(&of)
        };
        Ok(found.iter().zip(unseen).map(of_wish).collect())
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
            memo: Some(&self.memo),
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

    /// Gain per token of each of these answers by the wishes as they were said.
    fn gains_of(
        &self,
        learner: &mut Learner,
        answers: &[GenericAnswer],
        wishes: &[String],
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<f32>, TrainError> {
        let mut control = control(pause);
        let plain = self.mean_of_answers(learner, answers, Under::Reference, &mut control)?;
        let mut sums = vec![0.0; answers.len()];
        for wish in wishes {
            let told = |answer: &GenericAnswer| {
                let prompt = opening(&*self.parts.wording, &behind(&answer.asked, &framed(wish)));
                let prompt = prompt.unwrap_or_else(|| answer.prompt.clone());
                imitated(&prompt, &answer.said)
            };
            let rows: Vec<_> = answers.iter().map(told).collect();
            let told = self.logprobs_under(learner, &rows, Under::Reference, &mut control)?;
            for (sum, (told, plain)) in sums.iter_mut().zip(told.iter().zip(&plain)) {
                *sum += (mean(told) - plain) / wishes.len().max(1) as f32;
            }
        }
        Ok(sums)
    }
}
