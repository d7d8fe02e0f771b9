//! Answering prompts: several together, one token per slice, on a small cache of their own.

use hone_domain::Token;
use hone_nn::DeviceError;
use hone_nn::sample::{PlainDraw, SampleScratch, SamplingParams, TokenCounts, sample};
use hone_nn::{Adapter, BLOCK_TOKENS, LogitsWanted, Runner, SeqInput};

pub(super) use super::answer::Answer;
use super::memo::{AnswerKey, Memo};
use super::parts::NnParts;
use crate::trainer::TrainError;

/// Probes answered together.
const TOGETHER: usize = 8;
/// Prompt tokens of one slice.
const CHUNK: usize = 128;

struct Sequence<'a> {
    prompt: &'a [Token],
    blocks: Vec<u32>,
    /// Tokens in the cache.
    done: usize,
    completion: Vec<Token>,
    /// What ended it.
    end: Option<Token>,
    seed: u64,
}

impl Sequence<'_> {
    /// The tokens to run next, and whether the last of them predicts a completion token.
    fn next(&self) -> (&[Token], bool) {
        let left = self.prompt.get(self.done..).unwrap_or_default();
        if left.is_empty() {
            let last = self.completion.len().saturating_sub(1);
            (&self.completion[last..], true)
        } else if left.len() > CHUNK {
            (&left[..CHUNK], false)
        } else {
            (left, true)
        }
    }
}

/// How prompts are answered.
#[derive(Clone, Copy)]
pub(super) struct Answering<'a> {
    pub(super) parts: &'a NnParts,
    /// What was answered already.
    pub(super) memo: Option<&'a Memo>,
    /// Longest answer.
    pub(super) tokens_max: usize,
    /// 0 takes the most likely token.
    pub(super) temperature: f32,
}

impl Answering<'_> {
    /// Whether a prompt leaves room for its answer.
    pub(super) fn fits(&self, prompt: &[Token]) -> bool {
        let positions = self.parts.model.config.max_positions;
        !prompt.is_empty() && prompt.len() <= positions.saturating_sub(self.tokens_max)
    }

    fn params(&self, sequence: &Sequence<'_>) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            seed: sequence.seed,
            ..SamplingParams::default()
        }
    }
}

/// Answers every prompt that fits under `adapter`. A prompt gets the same random numbers by its
/// place under every policy, so that differences come from the policies.
pub(super) fn answers(
    how: Answering<'_>,
    prompts: &[Vec<Token>],
    adapter: Option<&Adapter>,
    pause: &mut dyn FnMut() -> bool,
) -> Result<Vec<Answer>, TrainError> {
    let fitting = prompts.iter().filter(|prompt| how.fits(prompt));
    let seeded: Vec<(&Vec<Token>, u64)> = fitting.zip(0..).collect();
    seeded_answers(how, &seeded, adapter, pause)
}

/// Answers prompts, each with its seed, under `adapter`. All of them fit.
pub(super) fn seeded_answers(
    how: Answering<'_>,
    prompts: &[(&Vec<Token>, u64)],
    adapter: Option<&Adapter>,
    pause: &mut dyn FnMut() -> bool,
) -> Result<Vec<Answer>, TrainError> {
    let Some(memo) = how.memo else {
        return computed(how, prompts, adapter, pause);
    };
    let digest = AnswerKey::digest_of(adapter);
    let key = |(prompt, seed): &(&Vec<Token>, u64)| AnswerKey {
        digest,
        prompt: (*prompt).clone(),
        tokens_max: how.tokens_max,
        temperature_bits: how.temperature.to_bits(),
        seed: *seed,
    };
    let known: Vec<Option<Answer>> = prompts.iter().map(|p| memo.answer(&key(p))).collect();
    let unknown = prompts.iter().zip(&known).filter(|(_, k)| k.is_none());
    let unknown: Vec<(&Vec<Token>, u64)> = unknown.map(|(prompt, _)| *prompt).collect();
    let said = computed(how, &unknown, adapter, pause)?;
    for (prompt, answer) in unknown.iter().zip(&said) {
        memo.keep_answer(key(prompt), answer.clone());
    }
    let mut said = said.into_iter();
    let all = known
        .into_iter()
        .filter_map(|known| known.or_else(|| said.next()));
    Ok(all.collect())
}

fn computed(
    how: Answering<'_>,
    prompts: &[(&Vec<Token>, u64)],
    adapter: Option<&Adapter>,
    pause: &mut dyn FnMut() -> bool,
) -> Result<Vec<Answer>, TrainError> {
    let mut completions = Vec::with_capacity(prompts.len());
    for prompts in prompts.chunks(TOGETHER) {
        let begin = || sequences(prompts, how.tokens_max);
        let mut sequences = begin();
        let blocks = sequences.iter().map(|s| s.blocks.len()).sum();
        let rows = CHUNK * sequences.len();
        let mut runner = how.parts.runner(blocks, rows, sequences.len())?;
        let mut sampling = SampleScratch::default();
        while sequences
            .iter()
            .any(|s| s.end.is_none() && s.completion.len() < how.tokens_max)
        {
            if pause() {
                return Err(TrainError::Stopped);
            }
            let went = step(how, &mut sequences, adapter, &mut runner, &mut sampling);
            if let Err(error) = went {
                // From the first token again.
                runner = how.parts.instead(&error, blocks)?;
                sequences = begin();
            }
        }
        completions.extend(sequences.into_iter().map(|s| Answer {
            tokens: s.completion,
            end: s.end,
        }));
    }
    Ok(completions)
}

fn sequences<'a>(prompts: &[(&'a Vec<Token>, u64)], tokens_max: usize) -> Vec<Sequence<'a>> {
    let mut block = 0;
    let make = |(prompt, seed): &(&'a Vec<Token>, u64)| {
        let needed = (prompt.len() + tokens_max).div_ceil(BLOCK_TOKENS) as u32;
        let blocks = (block..block + needed).collect();
        block += needed;
        Sequence {
            prompt,
            blocks,
            done: 0,
            completion: Vec::new(),
            end: None,
            seed: *seed,
        }
    };
    prompts.iter().map(make).collect()
}

/// One forward over every sequence that is not done, and a token for those that are due.
fn step(
    how: Answering<'_>,
    sequences: &mut [Sequence<'_>],
    adapter: Option<&Adapter>,
    runner: &mut Runner,
    sampling: &mut SampleScratch,
) -> Result<(), DeviceError> {
    let mut open: Vec<&mut Sequence> = sequences
        .iter_mut()
        .filter(|s| s.end.is_none() && s.completion.len() < how.tokens_max)
        .collect();
    let batch: Vec<SeqInput> = open
        .iter()
        .map(|s| {
            let (tokens, due) = s.next();
            let draw = || PlainDraw::of(&how.params(s), s.completion.len() as u64);
            let logits = match due {
                true => draw().map_or(LogitsWanted::Last, |draw| LogitsWanted::Draws(draw, 1)),
                false => LogitsWanted::None,
            };
            SeqInput {
                tokens,
                start: s.done,
                blocks: &s.blocks,
                adapter,
                logits,
            }
        })
        .collect();
    let ran: Vec<(usize, bool)> = batch
        .iter()
        .map(|s| (s.tokens.len(), s.logits != LogitsWanted::None))
        .collect();
    let logits = runner.forward(&batch)?;
    drop(batch);
    let mut row = 0;
    for (sequence, (tokens, due)) in open.iter_mut().zip(ran) {
        sequence.done += tokens;
        if !due {
            continue;
        }
        let drawn = match logits.drawn(row) {
            Some(drawn) => drawn.token,
            None => {
                let (params, counts) = (how.params(sequence), TokenCounts::default());
                let position = sequence.completion.len() as u64;
                sample(logits.row(row), &params, &counts, position, sampling).token
            }
        };
        row += 1;
        if how.parts.end_tokens.contains(&drawn) {
            sequence.end = Some(drawn);
        } else {
            sequence.completion.push(drawn);
        }
    }
    Ok(())
}
