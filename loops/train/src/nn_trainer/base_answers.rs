//! What the base model itself says, beside the answers to a person's words: soft targets, anchors, and whether
//! it knows how to do what is asked at all.

use hone_nn::{Control, Learner, SoftTargets, TrainRow, Under};

use super::answers::Answer;
use super::distilled::{ANSWERS_MIN, Distilled, imitated};
use super::guided::GuidedPrompt;
use super::meter::KEPT_PROMPTS;
use super::{NnTrainer, TrainError, TrainJob, mean, stopped};
use crate::gate::AtALoss;
use crate::progress::Phase;

/// By how many nats per token the model may be less sure of what it says to the words than of what it says
/// without them. SmolLM2 loses 0.17 on being brief, 0.19 on being formal, 0.35 on Spanish, 0.42 on Klingon and
/// 0.60 on Morse code, each measured once; no other model was measured (docs/LOG.md).
const AT_A_LOSS_NATS: f32 = 0.39;

/// So many answers to the words are looked at.
const ANSWERS_MAX: usize = 32;
/// Only the beginning of an answer says how sure the model is: repetitions at its end are always likely.
const BEGINNING_TOKENS: usize = 64;

/// The beginnings of what was said to these prompts without guidance.
pub(super) fn beginnings(prompts: &[GuidedPrompt], said: &[Answer]) -> Vec<TrainRow> {
    let own = prompts
        .iter()
        .zip(said)
        .filter(|(prompt, answer)| prompt.strength == 0.0 && !answer.tokens.is_empty());
    let rows = own.map(|(prompt, answer)| {
        let tokens = &answer.tokens[..answer.tokens.len().min(BEGINNING_TOKENS)];
        imitated(&prompt.told, tokens)
    });
    rows.take(ANSWERS_MAX).collect()
}

impl NnTrainer {
    /// Compares how likely the model finds what it says to the words with how likely it finds what it says
    /// without them. Where it does not know how to do what is asked it says one strange thing or another.
    pub(super) fn at_a_loss(
        &self,
        learner: &mut Learner,
        told: &[TrainRow],
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Option<AtALoss>, TrainError> {
        let plain = self.gate_answers(KEPT_PROMPTS, &mut || control() == Control::Stop)?;
        // Whole, as the gate has them computed too.
        let plain: Vec<TrainRow> = plain.iter().map(|a| imitated(&a.prompt, &a.said)).collect();
        let mut likely = |rows: &[TrainRow]| {
            let rows = self.logprobs_under(learner, rows, Under::Reference, control)?;
            let beginning = |row: &Vec<f32>| mean(&row[..row.len().min(BEGINNING_TOKENS)]);
            let rows: Vec<f32> = rows.iter().map(beginning).collect();
            Ok::<_, TrainError>(mean(&rows))
        };
        let found = AtALoss {
            told: likely(told)?,
            plain: likely(&plain)?,
        };
        tracing::debug!(
            told = found.told,
            plain = found.plain,
            "how sure the model is of its answers"
        );
        let is_at_a_loss = told.len() >= ANSWERS_MIN && found.told < found.plain - AT_A_LOSS_NATS;
        Ok(is_at_a_loss.then_some(found))
    }

    /// What the base model gives its likeliest tokens at every place of these rows.
    pub(super) fn soft(
        &self,
        learner: &mut Learner,
        mut rows: Vec<TrainRow>,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Vec<Vec<SoftTargets>>, TrainError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        for loss in rows.iter_mut().flat_map(|row| &mut row.loss) {
            loss.temperature = self.learner.hint_temperature.max(0.1);
        }
        let k = self.learner.context.soft_top_k;
        let tops = learner
            .top_logprobs(&rows, Under::Reference, k, control)
            .map_err(stopped)?;
        let soft = |top: Vec<(u32, f32)>| {
            let pairs = top.into_iter().map(|(id, p)| (id, p.exp().min(1.0)));
            let (ids, probs) = pairs.unzip();
            SoftTargets { ids, probs }
        };
        let rows = tops.into_iter();
        Ok(rows
            .map(|row| row.into_iter().map(soft).collect())
            .collect())
    }

    /// Adds the base model's own answers to some generic prompts, to be given as before.
    pub(super) fn anchor(
        &self,
        learner: &mut Learner,
        job: &TrainJob,
        found: &mut Distilled,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<(), TrainError> {
        let mut pause = || control() == Control::Stop;
        job.progress.enter(Phase::Answers);
        let these = self.anchor_answers(job.batch.0.as_u128(), &mut pause)?;
        job.progress.enter(Phase::Scores);
        let rows = these.iter();
        let rows: Vec<TrainRow> = rows.map(|a| imitated(&a.prompt, &a.said)).collect();
        let soft = self.soft(learner, rows.clone(), control)?;
        for (mut row, soft) in rows.into_iter().zip(soft) {
            for (loss, soft) in row.loss.iter_mut().zip(soft) {
                loss.soft = Some(soft);
            }
            found.rows.push(row);
            found.wish_tokens.push(Vec::new());
        }
        Ok(())
    }
}
