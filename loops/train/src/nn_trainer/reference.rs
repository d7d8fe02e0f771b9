//! What a version is held against: the base model's own answers to generic prompts, and plain facts.

use std::sync::Mutex;

use hone_domain::{Message, Role, Token};
use hone_nn::{Learner, TrainRow, Under};

use super::answers::{Answering, answers};
use super::{NnParts, NnTrainer, TrainError, stopped};
use crate::trainer::Wording;

/// Texts that the trainer brings along, the same for every scope.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    /// Plain facts; none of them may be lost.
    pub facts: Vec<Fact>,
    /// How a complaint is turned into an instruction: first what is to be done, then examples, each
    /// a message of the user and the answer to it.
    pub rewrite: Vec<String>,
}

/// A plain fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What is asked.
    pub question: String,
    /// How the answer begins.
    pub beginning: String,
    /// How it goes on; this is what is scored.
    pub answer: String,
}

impl Reference {
    /// The texts in the program.
    pub fn built_in() -> Self {
        let lines = |text: &'static str| text.lines().filter(|line| !line.starts_with('#'));
        let fact = |line: &str| {
            let mut columns = line.split('\t').map(str::to_owned);
            Some(Fact {
                question: columns.next()?,
                beginning: columns.next()?,
                answer: columns.next()?,
            })
        };
        Self {
            facts: lines(include_str!("../../prompts/facts.tsv"))
                .filter_map(fact)
                .collect(),
            rewrite: lines(include_str!("../../prompts/rewrite.txt"))
                .map(str::to_owned)
                .collect(),
        }
    }
}

/// Generic prompts in the program, one a line.
pub fn generic_prompts() -> Vec<String> {
    let lines = include_str!("../../prompts/generic.txt").lines();
    let lines = lines.filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.map(str::to_owned).collect()
}

/// Longest of the base model's answers, in tokens.
const ANSWER_TOKENS: usize = 64;
/// Every third generic prompt is kept for the gate; the others teach.
const GATE_EVERY: usize = 3;

/// The base model's answer to a generic prompt.
#[derive(Clone, Debug)]
pub(super) struct GenericAnswer {
    pub(super) asked: String,
    pub(super) prompt: Vec<Token>,
    pub(super) said: Vec<Token>,
}

/// The base model's answers to all generic prompts: those to teach with, and those of the gate.
#[derive(Clone, Debug, Default)]
pub(super) struct GenericAnswers {
    pub(super) anchors: Vec<GenericAnswer>,
    pub(super) gate: Vec<GenericAnswer>,
}

/// Filled once: the base model does not change.
pub(super) type Cache = Mutex<Option<GenericAnswers>>;

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

fn sampled(
    parts: &NnParts,
    temperature: f32,
    pause: &mut dyn FnMut() -> bool,
) -> Result<GenericAnswers, TrainError> {
    let how = Answering {
        parts,
        tokens_max: ANSWER_TOKENS,
        temperature,
    };
    let asked = parts.everyday.iter().enumerate();
    let asked = asked.filter_map(|(number, text)| {
        let prompt = opening(&*parts.wording, text)?;
        how.fits(&prompt).then(|| (number, text.clone(), prompt))
    });
    let asked: Vec<(usize, String, Vec<Token>)> = asked.collect();
    let prompts: Vec<Vec<Token>> = asked.iter().map(|(_, _, prompt)| prompt.clone()).collect();
    let said = answers(how, &prompts, None, pause)?;
    let mut all = GenericAnswers::default();
    for ((number, asked, prompt), answer) in asked.into_iter().zip(said) {
        let mut said = answer.tokens;
        said.extend(answer.end);
        if said.is_empty() {
            continue;
        }
        let answer = GenericAnswer {
            asked,
            prompt,
            said,
        };
        match is_for_gate(number) {
            true => all.gate.push(answer),
            false => all.anchors.push(answer),
        }
    }
    Ok(all)
}

impl NnTrainer {
    /// The base model's answers to the generic prompts, sampled at the first call.
    pub(super) fn generic_answers(
        &self,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<GenericAnswers, TrainError> {
        let cached = || {
            let cache = self.generic.lock();
            cache.unwrap_or_else(std::sync::PoisonError::into_inner)
        };
        if let Some(found) = cached().clone() {
            return Ok(found);
        }
        let found = sampled(&self.parts, self.learner.hint_temperature, pause)?;
        *cached() = Some(found.clone());
        Ok(found)
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
        let mean = |row: &Vec<f32>| row.iter().sum::<f32>() / row.len().max(1) as f32;
        Ok(found.iter().map(mean).collect())
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
        let own = |row: &TrainRow| {
            let ids = row.loss.iter().map(|loss| vec![row.tokens[loss.position]]);
            ids.collect::<Vec<_>>()
        };
        let ids: Vec<Vec<Vec<u32>>> = rows.iter().map(own).collect();
        let found = learner
            .logprobs_of((rows, under), &ids, control)
            .map_err(stopped)?;
        let flat = |row: Vec<Vec<f32>>| row.into_iter().flatten().collect();
        Ok(found.into_iter().map(flat).collect())
    }

    /// Per plain fact, what its answer's log-prob gains under the current weights against the base
    /// model, in nats.
    pub(super) fn fact_gains(
        &self,
        learner: &mut Learner,
        control: &mut dyn FnMut() -> hone_nn::Control,
    ) -> Result<Vec<f32>, TrainError> {
        let wording = &*self.parts.wording;
        let row = |fact: &Fact| {
            let prompt = opening(wording, &fact.question)?;
            let beginning = wording.encode(&fact.beginning);
            let answer = wording.encode(&format!(" {}", fact.answer));
            Some(super::context::imitated(
                &[prompt, beginning].concat(),
                &answer,
            ))
        };
        let facts = &self.parts.reference.facts;
        let rows: Vec<TrainRow> = facts.iter().filter_map(row).collect();
        let now = self.logprobs_under(learner, &rows, Under::Current, control)?;
        let before = self.logprobs_under(learner, &rows, Under::Reference, control)?;
        let sum = |row: &Vec<f32>| row.iter().sum::<f32>();
        let pairs = now.iter().zip(&before);
        Ok(pairs.map(|(now, before)| sum(now) - sum(before)).collect())
    }
}
