//! Draws the next token, and says with which probability it was drawn.
//!
//! Order of operations: logit bias, penalties, then the grammar's mask and banned tokens, which
//! nothing can bring back, then temperature, min-p, top-k, top-p. Two log-probs leave here: the *raw* one (of the model's own distribution, what the
//! API shows) and the *behavior* one (of the distribution really drawn from, what training needs).
//! Both come from [`token_logprob`], the function that the scorer and the learner call.

mod cut;
mod params;
mod plain;

use std::cell::RefCell;
use std::collections::HashMap;

use hone_kernels::ops::log_softmax::token_logprob;
use hone_kernels::thread_pool::Executor;

use self::params::{IMPOSSIBLE, by_rank};
pub use self::params::{PlainDraw, SamplingParams, replayable, uniform};
pub use hone_domain::GREEDY_BELOW;

/// What a draw costs per token of the vocabulary, in multiply-adds.
pub const DRAW_WORK: usize = 32;

/// How often each token occurred, for penalties.
#[derive(Debug, Clone, Default)]
pub struct TokenCounts {
    /// Token to (in the prompt, times in the completion).
    seen: HashMap<u32, (bool, u32)>,
}

impl TokenCounts {
    pub fn new(prompt: &[u32]) -> Self {
        Self {
            seen: prompt.iter().map(|id| (*id, (true, 0))).collect(),
        }
    }

    /// Counts a completion token.
    pub fn push(&mut self, id: u32) {
        self.seen.entry(id).or_default().1 += 1;
    }
}

/// Buffers that a caller keeps between draws.
#[derive(Debug, Default)]
pub struct SampleScratch {
    adjusted: Vec<f32>,
    /// (logit, id) still in the running.
    candidates: Vec<(f32, u32)>,
    weights: Vec<u64>,
    /// Of weights, chunk by chunk.
    sums: Vec<f64>,
}

/// One drawn token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    pub token: u32,
    /// Under the model's own distribution at temperature 1.
    pub raw_logprob: f32,
    /// Under the distribution drawn from; the raw one where the temperature is 0.
    pub behavior_logprob: f32,
    /// Ascending ids that could be drawn, if top-k, top-p or min-p cut any.
    pub kept: Option<Vec<u32>>,
    /// The most likely tokens, best first, with raw log-probs, or with behavior ones where those were asked
    /// for. Of the latter, what cannot be drawn is left out.
    pub top: Vec<(u32, f32)>,
    /// The logits held NaN, infinite or absurdly large values (beyond 1e30), which were brought into
    /// range. The weights or the adapter are broken: count it, and do not train on the turn.
    pub nonfinite: bool,
}

/// Draws the token for completion index `position` from `row` (one logit per vocabulary entry).
/// The draw depends on nothing but the arguments, so a seed gives the same answer in any batch.
///
/// # Panics
/// If `row` is empty.
pub fn sample(
    row: &[f32],
    params: &SamplingParams,
    history: &TokenCounts,
    position: u64,
    out: &mut SampleScratch,
) -> Sampled {
    assert!(!row.is_empty(), "a vocabulary has at least one token");
    let nonfinite = broken(row);
    let cleaned: Vec<f32>;
    let clean: &[f32] = if nonfinite {
        cleaned = row.iter().copied().map(finite).collect();
        &cleaned
    } else {
        row
    };
    let how = PlainDraw::within(params, position);
    let mut sampled = if params.adjusts() {
        let mut adjusted = std::mem::take(&mut out.adjusted);
        adjust(clean, params, history, &mut adjusted);
        // Of a broken row nothing may be left that the mask allows.
        let masked = params.allowed.is_some() && !nonfinite;
        let (token, kept) = pick(&adjusted, &how, masked, out);
        let mut sampled = told(clean, Some(&adjusted), &how, token, kept);
        sampled.top = alternatives(clean, &adjusted, &how, params, &sampled);
        out.adjusted = adjusted;
        sampled
    } else {
        let (token, kept) = pick(clean, &how, false, out);
        let mut sampled = told(clean, None, &how, token, kept);
        sampled.top = alternatives(clean, clean, &how, params, &sampled);
        sampled
    };
    sampled.nonfinite = nonfinite;
    sampled
}

thread_local! {
    /// Of the threads that draw side by side.
    static DRAWING: RefCell<SampleScratch> = RefCell::new(SampleScratch::default());
}

/// With the buffers of this thread.
pub fn with_scratch(draw: impl FnOnce(&mut SampleScratch)) {
    DRAWING.with_borrow_mut(draw);
}

/// What [`sample`] is to draw from, and how.
#[derive(Debug, Clone, Copy)]
pub struct DrawFrom<'a> {
    /// One logit per vocabulary entry.
    pub row: &'a [f32],
    pub params: &'a SamplingParams,
    pub history: &'a TokenCounts,
    /// Completion index.
    pub position: u64,
}

/// [`sample`] for each of them, side by side.
///
/// # Panics
/// If a row is empty.
pub fn sample_all(draws: &[DrawFrom<'_>], exec: &Executor) -> Vec<Sampled> {
    let mut sampled = vec![None; draws.len()];
    let work = draws.iter().map(|draw| draw.row.len()).sum::<usize>() * DRAW_WORK;
    exec.split_slice(&mut sampled, work, &|from, part| {
        with_scratch(|scratch| {
            for (to, draw) in part.iter_mut().zip(&draws[from..]) {
                let drawn = sample(draw.row, draw.params, draw.history, draw.position, scratch);
                *to = Some(drawn);
            }
        });
    });
    let all = sampled.into_iter().map(|one| one.expect("a part has each"));
    all.collect()
}

/// What [`sample`] says for a plain draw; none where the row is broken, which that tells.
pub fn drawn(row: &[f32], how: &PlainDraw, out: &mut SampleScratch) -> Option<Sampled> {
    if broken(row) {
        return None;
    }
    let (token, kept) = pick(row, how, false, out);
    Some(told(row, None, how, token, kept))
}

/// The token drawn, and from which, if not from all. Where `masked`, impossible tokens are none.
fn pick(
    logits: &[f32],
    how: &PlainDraw,
    masked: bool,
    out: &mut SampleScratch,
) -> (u32, Option<Vec<u32>>) {
    if how.is_greedy() {
        return (argmax(logits), None);
    }
    let u = how.uniform();
    let SampleScratch {
        candidates,
        weights,
        sums,
        ..
    } = out;
    if how.is_uncut(logits.len()) && !masked {
        return (plain::draw(logits, how.temperature, u, sums), None);
    }
    let cut = cut::cut(logits, how, masked, candidates, weights);
    let kept = cut.then(|| candidates.iter().map(|(_, id)| *id).collect());
    (cut::draw(candidates, how.temperature, u, weights), kept)
}

/// A drawn token with its log-probs: the raw one of `row`, the behavior one of what it was adjusted
/// to.
fn told(
    row: &[f32],
    adjusted: Option<&[f32]>,
    how: &PlainDraw,
    token: u32,
    kept: Option<Vec<u32>>,
) -> Sampled {
    let raw_logprob = token_logprob(row, token, 1.0, None);
    let same = kept.is_none() && how.temperature == 1.0 && adjusted.is_none();
    let behavior_logprob = if how.is_greedy() || same {
        raw_logprob
    } else {
        let logits = adjusted.unwrap_or(row);
        token_logprob(logits, token, how.temperature, kept.as_deref())
    };
    Sampled {
        token,
        raw_logprob,
        behavior_logprob,
        kept,
        top: Vec::new(),
        nonfinite: false,
    }
}

/// The most likely tokens of a draw from `adjusted`, which `row` became, under the distribution that is
/// asked for. A greedy draw has none but the raw one.
fn alternatives(
    row: &[f32],
    adjusted: &[f32],
    how: &PlainDraw,
    params: &SamplingParams,
    drawn: &Sampled,
) -> Vec<(u32, f32)> {
    if !params.top_behavior || how.is_greedy() {
        return top(row, params.top_logprobs, drawn.token, drawn.raw_logprob);
    }
    if params.top_logprobs == 0 {
        return Vec::new();
    }
    // Both ascend.
    let mut kept = drawn.kept.iter().flatten().copied().peekable();
    let scaled = adjusted.iter().zip(0u32..).map(|(logit, id)| {
        let cut = drawn.kept.is_some() && kept.next_if_eq(&id).is_none();
        match cut || *logit <= IMPOSSIBLE {
            true => f32::NEG_INFINITY,
            false => logit / how.temperature,
        }
    });
    let scaled: Vec<f32> = scaled.collect();
    let mut most = top(
        &scaled,
        params.top_logprobs,
        drawn.token,
        drawn.behavior_logprob,
    );
    most.retain(|(_, logprob)| *logprob > f32::NEG_INFINITY);
    most
}

/// What [`sample`] reports where it draws `token` and nothing but the temperature shapes the draw.
///
/// # Panics
/// If `row` has no such token.
pub fn given(row: &[f32], token: u32, temperature: f32, most_likely: u8) -> Sampled {
    let raw_logprob = token_logprob(row, token, 1.0, None);
    let greedy = temperature.is_nan() || temperature < GREEDY_BELOW;
    let behavior_logprob = match greedy {
        true => raw_logprob,
        false => token_logprob(row, token, temperature, None),
    };
    Sampled {
        token,
        raw_logprob,
        behavior_logprob,
        kept: None,
        top: top(row, most_likely, token, raw_logprob),
        nonfinite: broken(row),
    }
}

/// Whether a logit is NaN, infinite or absurdly large.
fn broken(row: &[f32]) -> bool {
    let bad = |v: &f32| v.is_nan() || v.abs() > -IMPOSSIBLE;
    // Piece by piece without a way out inside, which compilers turn into vectors.
    let any = |piece: &[f32]| piece.iter().fold(false, |any, v| any | bad(v));
    row.chunks(256).any(any)
}

fn finite(logit: f32) -> f32 {
    if logit.is_nan() {
        IMPOSSIBLE
    } else {
        logit.clamp(IMPOSSIBLE, -IMPOSSIBLE)
    }
}

fn adjust(row: &[f32], params: &SamplingParams, history: &TokenCounts, adjusted: &mut Vec<f32>) {
    adjusted.clear();
    adjusted.extend_from_slice(row);
    for (id, bias) in &params.logit_bias {
        if let Some(logit) = adjusted.get_mut(*id as usize) {
            *logit = finite(*logit + bias);
        }
    }
    if params.penalizes() {
        // Each token is touched once, so the map's order does not matter.
        for (id, (_, times)) in &history.seen {
            let Some(logit) = adjusted.get_mut(*id as usize) else {
                continue;
            };
            let repeated = if *logit > 0.0 {
                *logit / params.repetition_penalty
            } else {
                *logit * params.repetition_penalty
            };
            let present = if *times > 0 {
                params.presence_penalty
            } else {
                0.0
            };
            let frequent = params.frequency_penalty * *times as f32;
            *logit = finite(repeated - frequent - present);
        }
    }
    // Last, so that no bias or penalty can bring a token back.
    mask(adjusted, params);
    for id in &params.banned {
        if let Some(logit) = adjusted.get_mut(*id as usize) {
            *logit = IMPOSSIBLE;
        }
    }
    if adjusted.iter().all(|v| *v <= IMPOSSIBLE) {
        // Nothing is allowed: a completion still has to end somehow, so the bans are lifted. The
        // grammar stands.
        adjusted.copy_from_slice(row);
        mask(adjusted, params);
    }
}

/// Rules out what the grammar does not allow.
fn mask(adjusted: &mut [f32], params: &SamplingParams) {
    if let Some(allowed) = &params.allowed {
        for (logit, id) in adjusted.iter_mut().zip(0u32..) {
            if !allowed.allows(id) {
                *logit = IMPOSSIBLE;
            }
        }
    }
}

/// The most likely token, the lowest id among equals.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

/// The `count` most likely tokens, best first. All share one normalizer, taken from the drawn
/// token, whose own entry keeps its exact value.
fn top(row: &[f32], count: u8, token: u32, logprob: f32) -> Vec<(u32, f32)> {
    let count = usize::from(count).min(row.len());
    if count == 0 {
        return Vec::new();
    }
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(count + 1);
    for candidate in row.iter().copied().zip(0u32..) {
        if best.len() == count && by_rank(&candidate, &best[count - 1]).is_gt() {
            continue;
        }
        let at = best.partition_point(|b| by_rank(b, &candidate).is_lt());
        best.insert(at, candidate);
        best.truncate(count);
    }
    let normalizer = f64::from(row[token as usize]) - f64::from(logprob);
    let one = |(logit, id): (f32, u32)| {
        let value = if id == token {
            logprob
        } else {
            (f64::from(logit) - normalizer) as f32
        };
        (id, value.min(0.0))
    };
    best.into_iter().map(one).collect()
}

#[cfg(test)]
#[path = "sample_tests.rs"]
mod tests;
