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
/// without them, at the same places of its answers. SmolLM2 loses up to 0.15 on brief, formal and bare answers, 0.22
/// on French and 0.23 on Spanish, which it speaks badly, 0.25 on Klingon, 0.29 on Morse code and 0.36 on Quenya, each
/// measured once; no other model was measured (docs/LOG.md).
const AT_A_LOSS_NATS: f32 = 0.24;

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

/// The mean log-prob of the tokens that begin the one answers, and of those that stand at the same places of the
/// other answers: the first words of any answer are less sure than what follows, and some answers are short.
fn at_the_same_places(told: &[Vec<f32>], plain: &[Vec<f32>]) -> AtALoss {
    let at = |place: usize| -> Vec<f32> {
        let there = plain.iter().filter_map(|row| row.get(place));
        there.copied().collect()
    };
    let plain: Vec<f32> = (0..BEGINNING_TOKENS)
        .map(at)
        .take_while(|there| !there.is_empty())
        .map(|there| mean(&there))
        .collect();
    let pairs = told.iter().flat_map(|row| row.iter().zip(&plain));
    let (told, plain): (Vec<f32>, Vec<f32>) = pairs.unzip();
    AtALoss {
        told: mean(&told),
        plain: mean(&plain),
    }
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
        let mut likely =
            |rows: &[TrainRow]| self.logprobs_under(learner, rows, Under::Reference, &mut *control);
        let found = at_the_same_places(&likely(told)?, &likely(&plain)?);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Every answer begins unsure and goes on surely.
    fn answer(tokens: usize, less: f32) -> Vec<f32> {
        let place = |place| if place < 4 { -2.0 - less } else { -0.5 - less };
        (0..tokens).map(place).collect()
    }

    #[test]
    fn short_answers_are_held_against_the_beginnings_of_long_ones() {
        let plain = [answer(80, 0.0), answer(6, 0.0), answer(200, 0.0)];
        for tokens in [1, 5, 30, 300] {
            let found = at_the_same_places(&[answer(tokens, 0.0), answer(tokens, 0.0)], &plain);
            assert!(
                (found.told - found.plain).abs() < 1e-5,
                "{tokens}: {found:?}"
            );
            let found = at_the_same_places(&[answer(tokens, 0.4)], &plain);
            assert!(
                (found.plain - found.told - 0.4).abs() < 1e-5,
                "{tokens}: {found:?}"
            );
        }
    }
}
