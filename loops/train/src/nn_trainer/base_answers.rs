//! What the base model itself says, beside the answers to a person's words: soft targets, anchors, and whether
//! it knows how to do what is asked at all.

use hone_nn::{Control, Learner, SoftTargets, TrainRow, Under};

use super::answers::Answer;
use super::distilled::{ANSWERS_MIN, Distilled, imitated};
use super::guided::GuidedPrompt;
use super::meter::KEPT_PROMPTS;
use super::telling::Way;
use super::{NnTrainer, TrainError, TrainJob, mean, stopped};
use crate::gate::AtALoss;
use crate::progress::Phase;

/// By how many nats per token the model may be less sure of what it says to the words than of what it says
/// without them, at the same places of its answers. SmolLM2 loses up to 0.15 on brief, formal and bare answers, 0.22
/// on French and 0.23 on Spanish, which it speaks badly, 0.25 on Klingon, 0.29 on Morse code and 0.36 on Quenya, each
/// measured once; no other model was measured (docs/LOG.md).
const AT_A_LOSS_NATS: f32 = 0.24;
/// Unsure answers that depend on their question at least so much as answers without the words do are answers: terse
/// ones are less sure of every word, because each says something. With SmolLM2 the share is 0.78 to 1.7 for brief
/// answers, 0.27 to 0.65 for Spanish, French, Klingon, Morse code and Quenya, and the bound is drawn between these; no
/// other words and no other model were measured (docs/LOG.md).
const RELEVANT_SHARE: f32 = 0.75;

/// Updates in a row that see different anchors: a model learns few of them by heart, and goes on to answer other prompts
/// otherwise.
const ANCHORED_UPDATES: usize = 4;
/// So many answers to the words are looked at.
const ANSWERS_MAX: usize = 32;
/// Only the beginning of an answer says how sure the model is: repetitions at its end are always likely.
const BEGINNING_TOKENS: usize = 64;

/// The beginning of an answer, and the same words as if they were said to another question.
pub(super) struct Beginning {
    own: TrainRow,
    elsewhere: TrainRow,
}

/// The beginnings of what was said to these prompts without guidance; `questions` has the question and the way of
/// each.
pub(super) fn beginnings(
    prompts: &[GuidedPrompt],
    questions: &[(usize, Way)],
    said: &[Answer],
) -> Vec<Beginning> {
    let all: Vec<_> = prompts.iter().zip(questions).zip(said).collect();
    let own = all
        .iter()
        .filter(|((prompt, _), answer)| prompt.strength == 0.0 && !answer.tokens.is_empty());
    let rows = own.filter_map(|((prompt, (question, way)), answer)| {
        let tokens = &answer.tokens[..answer.tokens.len().min(BEGINNING_TOKENS)];
        let is_elsewhere =
            |(other, told): &(usize, Way)| other != question && told.telling == way.telling;
        let behind = questions
            .iter()
            .position(|one| one.0 > *question && is_elsewhere(one));
        let other = behind.or_else(|| questions.iter().position(is_elsewhere))?;
        Some(Beginning {
            own: imitated(&prompt.told, tokens),
            elsewhere: imitated(&prompts[other].told, tokens),
        })
    });
    rows.take(ANSWERS_MAX).collect()
}

/// How much likelier these answers are to their own question than to another one, in nats per token.
fn relevance(own: &[Vec<f32>], elsewhere: &[Vec<f32>]) -> f32 {
    let pairs = own.iter().zip(elsewhere);
    let tokens = pairs.flat_map(|(own, other)| own.iter().zip(other).take(BEGINNING_TOKENS));
    mean(&tokens.map(|(own, other)| own - other).collect::<Vec<f32>>())
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

/// So many of the ones, so many of the others, and so on: every update sees a stretch of it.
fn alternating<T>(ones: Vec<T>, of_ones: usize, others: Vec<T>, of_others: usize) -> Vec<T> {
    let (mut ones, mut others) = (ones.into_iter(), others.into_iter());
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.extend(ones.by_ref().take(of_ones));
        all.extend(others.by_ref().take(of_others));
        if all.len() == before {
            return all;
        }
    }
}

impl NnTrainer {
    /// Compares how likely the model finds what it says to the words with how likely it finds what it says
    /// without them. Where it does not know how to do what is asked it says one strange thing or another, whatever
    /// the question.
    pub(super) fn at_a_loss(
        &self,
        learner: &mut Learner,
        told: &[Beginning],
        control: &mut dyn FnMut() -> Control,
    ) -> Result<Option<AtALoss>, TrainError> {
        let plain = self.gate_answers(KEPT_PROMPTS, &mut || control() == Control::Stop)?;
        // Whole, as the gate has them computed too.
        let whole: Vec<TrainRow> = plain.iter().map(|a| imitated(&a.prompt, &a.said)).collect();
        let mut likely =
            |rows: &[TrainRow]| self.logprobs_under(learner, rows, Under::Reference, &mut *control);
        let own: Vec<TrainRow> = told.iter().map(|one| one.own.clone()).collect();
        let (own, whole) = (likely(&own)?, likely(&whole)?);
        let found = at_the_same_places(&own, &whole);
        let is_unsure = told.len() >= ANSWERS_MIN && found.told < found.plain - AT_A_LOSS_NATS;
        tracing::debug!(
            told = found.told,
            plain = found.plain,
            "how sure the model is of its answers"
        );
        if !is_unsure {
            return Ok(None);
        }
        let elsewhere: Vec<TrainRow> = told.iter().map(|one| one.elsewhere.clone()).collect();
        let prompts = plain.iter().cycle().skip(1);
        let others = plain.iter().zip(prompts).map(|(answer, other)| {
            let tokens = &answer.said[..answer.said.len().min(BEGINNING_TOKENS)];
            imitated(&other.prompt, tokens)
        });
        let others: Vec<TrainRow> = others.collect();
        let related = relevance(&own, &likely(&elsewhere)?);
        let plain = relevance(&whole, &likely(&others)?);
        tracing::debug!(
            told = related,
            plain,
            "how much its answers depend on the question"
        );
        Ok((related < RELEVANT_SHARE * plain).then_some(found))
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

    /// Adds the base model's own answers to some generic prompts, and to some that say how they are to be answered,
    /// to be given as before.
    pub(super) fn anchor(
        &self,
        learner: &mut Learner,
        job: &TrainJob,
        found: &mut Distilled,
        control: &mut dyn FnMut() -> Control,
    ) -> Result<(), TrainError> {
        let mut pause = || control() == Control::Stop;
        job.progress.enter(Phase::Answers);
        let start = job.batch.0.as_u128();
        let each = &self.learner.context;
        // Scores alone are learned in one update.
        let updates = match found.wishes.is_empty() {
            true => 1,
            false => ANCHORED_UPDATES,
        };
        let generic = self.anchor_answers(start, each.anchors * updates, &mut pause)?;
        let count = each.anchors_instructed * updates;
        let instructed = self.instructed_anchors(start, count, &mut pause)?;
        let these = alternating(generic, each.anchors, instructed, each.anchors_instructed);
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
    fn what_is_said_to_every_question_alike_depends_on_none() {
        let own = [answer(80, 0.0), answer(3, 0.0)];
        assert!(relevance(&own, &own).abs() < 1e-6);
        let elsewhere = [answer(70, 0.5), answer(3, 0.5)];
        assert!((relevance(&own, &elsewhere) - 0.5).abs() < 1e-5);
    }

    #[test]
    fn a_beginning_stands_beside_another_question_told_in_the_same_way() {
        let way = |telling| Way {
            telling,
            is_guided: false,
        };
        let prompt = |token: u32, strength| GuidedPrompt {
            told: vec![token],
            plain: Vec::new(),
            strength,
        };
        let prompts = [
            prompt(1, 0.0),
            prompt(2, 0.0),
            prompt(3, 0.0),
            prompt(4, 1.0),
        ];
        let questions = [(0, way(0)), (0, way(1)), (1, way(0)), (2, way(1))];
        let said: Vec<Answer> = (10..14)
            .map(|token| Answer {
                tokens: vec![token],
                end: None,
            })
            .collect();
        let found = beginnings(&prompts, &questions, &said);
        let tokens: Vec<_> = found
            .iter()
            .map(|one| (one.own.tokens.clone(), one.elsewhere.tokens.clone()))
            .collect();
        let expected = [([1, 10], [3, 10]), ([2, 11], [4, 11]), ([3, 12], [1, 12])];
        assert_eq!(
            tokens,
            expected.map(|(own, other)| (own.to_vec(), other.to_vec()))
        );
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
