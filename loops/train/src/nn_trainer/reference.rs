//! What a version is held against: the base model's own answers to generic prompts, and plain facts.

use hone_domain::{Message, Role, Token};
use hone_nn::{Learner, TrainRow, Under};

use super::answers::{Answer, Answering, seeded_answers};
use super::texts::Fact;
use super::wishes::{behind, framed};
use super::{NnTrainer, TrainError, mean, stopped};
use crate::gate::interval;
use crate::trainer::Wording;

/// Longest of the base model's answers, in tokens.
const ANSWER_TOKENS: usize = 64;
/// Anchors of one batch are so many generic prompts apart.
const ANCHOR_STEP: usize = 5;
/// Every third generic prompt is kept for the gate; the others teach.
const GATE_EVERY: usize = 3;

/// The base model's answer to a prompt that the trainer brings along.
#[derive(Clone, Debug)]
pub(super) struct GenericAnswer {
    pub(super) asked: String,
    pub(super) prompt: Vec<Token>,
    pub(super) said: Vec<Token>,
}

/// The prompt of a conversation that begins with `asked`.
pub(super) fn opening(wording: &dyn Wording, asked: &str) -> Option<Vec<Token>> {
    let message = Message::text(Role::User, asked);
    let text = wording.render(&[message]).ok()?;
    Some(wording.encode(&text))
}

/// Whether a generic prompt with this number is the gate's.
pub(super) fn is_for_gate(number: usize) -> bool {
    number % GATE_EVERY == 1
}

/// The numbers of `most` of `count` prompts that are not the gate's, others with each `start`.
pub(super) fn anchors_of(count: usize, start: u128, most: usize) -> Vec<usize> {
    let numbers: Vec<usize> = (0..count).filter(|number| !is_for_gate(*number)).collect();
    let start = (start % numbers.len().max(1) as u128) as usize;
    let these = numbers.iter().cycle().skip(start).step_by(ANCHOR_STEP);
    these.take(most.min(numbers.len())).copied().collect()
}

impl NnTrainer {
    /// The base model's answers to those of the generic prompts that `which` takes by their number.
    fn generic_answers(
        &self,
        which: &dyn Fn(usize) -> bool,
        most: usize,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<GenericAnswer>, TrainError> {
        let everyday = self.parts.everyday.iter().cloned().enumerate();
        let asked = everyday.filter(|(number, _)| which(*number));
        self.base_answers(asked, most, pause)
    }

    /// What the base model answers to at most `most` of these prompts that have room for an answer. Each is drawn
    /// with its number as the seed.
    pub(super) fn base_answers(
        &self,
        asked: impl Iterator<Item = (usize, String)>,
        most: usize,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<GenericAnswer>, TrainError> {
        let how = Answering {
            parts: &self.parts,
            memo: Some(&self.memo),
            tokens_max: ANSWER_TOKENS,
            temperature: self.learner.hint_temperature,
        };
        let asked = asked.filter_map(|(number, text)| {
            let prompt = opening(&*self.parts.wording, &text)?;
            how.fits(&prompt).then_some((number as u64, text, prompt))
        });
        let asked: Vec<(u64, String, Vec<Token>)> = asked.take(most).collect();
        let prompts: Vec<(&Vec<Token>, u64)> =
            asked.iter().map(|(seed, _, p)| (p, *seed)).collect();
        let said = seeded_answers(how, &prompts, None, pause)?;
        let answer = |((_, asked, prompt), answer): ((u64, String, Vec<Token>), Answer)| {
            let mut said = answer.tokens;
            said.extend(answer.end);
            (!said.is_empty()).then_some(GenericAnswer {
                asked,
                prompt,
                said,
            })
        };
        Ok(asked.into_iter().zip(said).filter_map(answer).collect())
    }

    /// At most `most` of the gate's generic prompts, the first, as the base model answers them.
    pub(super) fn gate_answers(
        &self,
        most: usize,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<GenericAnswer>, TrainError> {
        self.generic_answers(&is_for_gate, most, pause)
    }

    /// So many other generic prompts, others with each `start`, as the base model answers them.
    pub(super) fn anchor_answers(
        &self,
        start: u128,
        count: usize,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<GenericAnswer>, TrainError> {
        let these = anchors_of(self.parts.everyday.len(), start, count);
        self.generic_answers(&|number| these.contains(&number), count, pause)
    }

    /// Mean log-prob per token, in nats, of each of these answers.
    pub(super) fn mean_of_answers(
        &self,
        learner: &mut Learner,
        answers: &[GenericAnswer],
        under: Under,
        control: &mut dyn FnMut() -> hone_nn::Control,
    ) -> Result<Vec<f32>, TrainError> {
        let rows: Vec<TrainRow> = answers
            .iter()
            .map(|answer| super::context::imitated(&answer.prompt, &answer.said))
            .collect();
        let found = self.logprobs_under(learner, &rows, under, control)?;
        Ok(found.iter().map(|row| mean(row)).collect())
    }

    /// Log-probs of each row's loss tokens.
    pub(super) fn logprobs_under(
        &self,
        learner: &mut Learner,
        rows: &[TrainRow],
        under: Under,
        control: &mut dyn FnMut() -> hone_nn::Control,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let is_base = under == Under::Reference;
        let known = |row: &TrainRow| is_base.then(|| self.memo.logprobs(row)).flatten();
        let known: Vec<Option<Vec<f32>>> = rows.iter().map(known).collect();
        let unknown = rows.iter().zip(&known).filter(|(_, known)| known.is_none());
        let unknown: Vec<TrainRow> = unknown.map(|(row, _)| row.clone()).collect();
        if unknown.is_empty() {
            return Ok(known.into_iter().flatten().collect());
        }
        let own = |row: &TrainRow| {
            let ids = row.loss.iter().map(|loss| vec![row.tokens[loss.position]]);
            ids.collect::<Vec<_>>()
        };
        let ids: Vec<Vec<Vec<u32>>> = unknown.iter().map(own).collect();
        let found = learner
            .logprobs_of(&unknown, under, &ids, control)
            .map_err(stopped)?;
        let flat = |row: Vec<Vec<f32>>| row.into_iter().flatten().collect::<Vec<f32>>();
        let found: Vec<Vec<f32>> = found.into_iter().map(flat).collect();
        if is_base {
            for (row, logprobs) in unknown.iter().zip(&found) {
                self.memo.keep_logprobs(row, logprobs.clone());
            }
        }
        let mut found = found.into_iter();
        let all = known
            .into_iter()
            .filter_map(|known| known.or_else(|| found.next()));
        Ok(all.collect())
    }

    /// The plain facts, each with its answer to be scored; with `wish` told behind the question.
    pub(super) fn fact_rows(&self, wish: Option<&str>) -> Vec<TrainRow> {
        let wording = &*self.parts.wording;
        let row = |fact: &Fact| {
            let asked = match wish {
                Some(wish) => behind(&fact.question, &framed(wish)),
                None => fact.question.clone(),
            };
            let prompt = opening(wording, &asked)?;
            let beginning = wording.encode(&fact.beginning);
            let answer = wording.encode(&format!(" {}", fact.answer));
            Some(super::context::imitated(
                &[prompt, beginning].concat(),
                &answer,
            ))
        };
        let facts = &self.parts.reference.facts;
        facts.iter().filter_map(row).collect()
    }

    /// Per plain fact, what its answer's log-prob gains under the current weights against the base
    /// model, in nats. A wish that makes the base model itself say facts in other words (in another
    /// language) is no loss: there the base model that is told the wish is what is compared with.
    pub(super) fn fact_gains(
        &self,
        learner: &mut Learner,
        wishes: &[String],
        control: &mut dyn FnMut() -> hone_nn::Control,
    ) -> Result<Vec<f32>, TrainError> {
        let rows = self.fact_rows(None);
        let now = self.logprobs_under(learner, &rows, Under::Current, control)?;
        let untold = self.logprobs_under(learner, &rows, Under::Reference, control)?;
        let (now, untold) = (sums(&now), sums(&untold));
        let less = |now: &[f32], before: &[f32]| -> Vec<f32> {
            now.iter().zip(before).map(|(n, b)| n - b).collect()
        };
        let least = f64::from(-self.gate.fact_loss_max);
        let is_lost = |gains: &[f32]| interval(gains).is_some_and(|gain| gain.high < least);
        let mut before = untold.clone();
        for wish in wishes {
            // Only a candidate that the gate would refuse needs more to be compared with.
            if !is_lost(&less(&now, &before)) {
                break;
            }
            let rows = self.fact_rows(Some(wish));
            let told = sums(&self.logprobs_under(learner, &rows, Under::Reference, control)?);
            if is_lost(&less(&told, &untold)) {
                before = before.iter().zip(&told).map(|(b, t)| b.min(*t)).collect();
            }
        }
        Ok(less(&now, &before))
    }
}

/// Log-prob of each row.
fn sums(rows: &[Vec<f32>]) -> Vec<f32> {
    rows.iter().map(|row| row.iter().sum()).collect()
}
