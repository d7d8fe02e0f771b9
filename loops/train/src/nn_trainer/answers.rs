//! Answering probes: several together, one token per slice, on a small cache of their own.

use hone_domain::Token;
use hone_nn::sample::{SampleScratch, SamplingParams, TokenCounts, sample};
use hone_nn::{Adapter, BLOCK_TOKENS, KvPool, LogitsWanted, Scratch, SeqInput, forward};

use super::NnParts;
use crate::config::GateConfig;
use crate::probe::ProbeCompletion;
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
    ended: bool,
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

/// Whether a probe leaves room for its answer.
pub(super) fn fits((parts, gate): (&NnParts, &GateConfig), probe: &[Token]) -> bool {
    let positions = parts.model.config.max_positions;
    !probe.is_empty() && probe.len() <= positions.saturating_sub(gate.probe_tokens_max)
}

/// Answers every probe under `adapter`. The same probe gets the same random numbers under every
/// policy, so that differences come from the policies.
pub(super) fn answers(
    (parts, gate): (&NnParts, &GateConfig),
    probes: &[Vec<Token>],
    adapter: Option<&Adapter>,
    pause: &mut dyn FnMut() -> bool,
) -> Result<Vec<ProbeCompletion>, TrainError> {
    let fitting: Vec<&Vec<Token>> = probes
        .iter()
        .filter(|probe| fits((parts, gate), probe))
        .collect();
    let mut completions = Vec::with_capacity(fitting.len());
    for (group, probes) in fitting.chunks(TOGETHER).enumerate() {
        let mut sequences = sequences(probes, (group * TOGETHER, gate.probe_tokens_max));
        let blocks = sequences.iter().map(|s| s.blocks.len()).sum();
        let mut kv = KvPool::new(&parts.model.config, blocks);
        let (mut scratch, mut sampling) = (Scratch::default(), SampleScratch::default());
        while sequences
            .iter()
            .any(|s| !s.ended && s.completion.len() < gate.probe_tokens_max)
        {
            if pause() {
                return Err(TrainError::Stopped);
            }
            let buffers = (&mut kv, &mut scratch, &mut sampling);
            step((parts, gate), &mut sequences, adapter, buffers);
        }
        completions.extend(sequences.into_iter().map(|s| ProbeCompletion {
            tokens: s.completion,
            ended: s.ended,
        }));
    }
    Ok(completions)
}

fn sequences<'a>(
    probes: &[&'a Vec<Token>],
    (first, tokens_max): (usize, usize),
) -> Vec<Sequence<'a>> {
    let mut block = 0;
    let make = |(index, prompt): (usize, &&'a Vec<Token>)| {
        let needed = (prompt.len() + tokens_max).div_ceil(BLOCK_TOKENS) as u32;
        let blocks = (block..block + needed).collect();
        block += needed;
        Sequence {
            prompt,
            blocks,
            done: 0,
            completion: Vec::new(),
            ended: false,
            seed: (first + index) as u64,
        }
    };
    probes.iter().enumerate().map(make).collect()
}

/// One forward over every sequence that is not done, and a token for those that are due.
fn step(
    (parts, gate): (&NnParts, &GateConfig),
    sequences: &mut [Sequence<'_>],
    adapter: Option<&Adapter>,
    (kv, scratch, sampling): (&mut KvPool, &mut Scratch, &mut SampleScratch),
) {
    let mut open: Vec<&mut Sequence> = sequences
        .iter_mut()
        .filter(|s| !s.ended && s.completion.len() < gate.probe_tokens_max)
        .collect();
    let batch: Vec<SeqInput> = open
        .iter()
        .map(|s| {
            let (tokens, due) = s.next();
            let logits = if due {
                LogitsWanted::Last
            } else {
                LogitsWanted::None
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
        .map(|s| (s.tokens.len(), s.logits == LogitsWanted::Last))
        .collect();
    let logits = forward(&parts.model, kv, &batch, &parts.exec, scratch);
    drop(batch);
    let mut row = 0;
    for (sequence, (tokens, due)) in open.iter_mut().zip(ran) {
        sequence.done += tokens;
        if !due {
            continue;
        }
        let params = SamplingParams {
            temperature: gate.probe_temperature,
            seed: sequence.seed,
            ..SamplingParams::default()
        };
        let position = sequence.completion.len() as u64;
        let counts = TokenCounts::default();
        let drawn = sample(logits.row(row), &params, &counts, position, sampling);
        row += 1;
        if parts.end_tokens.contains(&drawn.token) {
            sequence.ended = true;
        } else {
            sequence.completion.push(drawn.token);
        }
    }
}
