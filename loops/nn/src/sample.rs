//! Draws the next token, and says with which probability it was drawn.
//!
//! Order of operations: logit bias, penalties, then the grammar's mask and banned tokens, which
//! nothing can bring back, then temperature, min-p, top-k, top-p. Two log-probs leave here: the *raw* one (of the model's own distribution, what the
//! API shows) and the *behavior* one (of the distribution really drawn from, what training needs).
//! Both come from [`token_logprob`], the function that the scorer and the learner call.

mod plain;

use std::collections::HashMap;

pub(crate) use self::plain::drawn;
use crate::grammar::TokenMask;
use crate::logprob::token_logprob;

/// Below this a temperature means "take the most likely token".
pub const GREEDY_BELOW: f32 = 1e-5;
/// Stands for "impossible" in adjusted logits; finite, so that arithmetic on it stays finite.
const IMPOSSIBLE: f32 = -1e30;
/// A token this far (in nats) below the best cannot be drawn: its probability is below 1e-21.
const NEGLIGIBLE: f32 = 50.0;

/// How to draw. Switched off: `top_p` 1, `top_k` 0, `min_p` 0, penalties 0 (repetition 1).
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: u32,
    pub min_p: f32,
    pub seed: u64,
    /// Subtracted per earlier occurrence in the completion.
    pub frequency_penalty: f32,
    /// Subtracted once if the token occurred in the completion.
    pub presence_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or completion.
    pub repetition_penalty: f32,
    pub logit_bias: Vec<(u32, f32)>,
    /// How many most likely tokens to report.
    pub top_logprobs: u8,
    /// Tokens that must not be drawn now, such as end of turn before the minimum length.
    pub banned: Vec<u32>,
    /// The only tokens that may be drawn now, where a grammar rules. What was left to draw from is
    /// then always reported as the kept set.
    pub allowed: Option<TokenMask>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            top_logprobs: 0,
            banned: Vec::new(),
            allowed: None,
        }
    }
}

impl SamplingParams {
    fn penalizes(&self) -> bool {
        self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
            || self.repetition_penalty != 1.0
    }

    /// Whether everything may be drawn.
    fn uncut(&self) -> bool {
        self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0
    }

    fn adjusts(&self) -> bool {
        self.penalizes()
            || !self.logit_bias.is_empty()
            || !self.banned.is_empty()
            || self.allowed.is_some()
    }
}

/// Whether the behavior log-prob can be computed again from logits, temperature and kept set alone.
pub fn replayable(params: &SamplingParams) -> bool {
    !params.adjusts()
}

/// A draw that nothing but the temperature shapes; the logits need not leave a device for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlainDraw {
    pub(crate) temperature: f32,
    pub(crate) seed: u64,
    pub(crate) position: u64,
}

impl PlainDraw {
    /// The draw for completion index `position`, if `params` are plain enough and nothing else of
    /// the row is asked for.
    pub fn of(params: &SamplingParams, position: u64) -> Option<Self> {
        let draw = Self {
            temperature: params.temperature,
            seed: params.seed,
            position,
        };
        let plain =
            !params.adjusts() && params.top_logprobs == 0 && (params.uncut() || draw.is_greedy());
        plain.then_some(draw)
    }

    /// Takes the most likely token.
    pub(crate) fn is_greedy(&self) -> bool {
        self.temperature.is_nan() || self.temperature < GREEDY_BELOW
    }
}

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
    cumulative: Vec<f64>,
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
    /// The most likely tokens with raw log-probs, best first.
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
    let SampleScratch {
        adjusted,
        candidates,
        cumulative,
    } = out;
    let cleaned: Vec<f32>;
    let clean: &[f32] = if nonfinite {
        cleaned = row.iter().copied().map(finite).collect();
        &cleaned
    } else {
        row
    };
    let logits: &[f32] = if params.adjusts() {
        adjust(clean, params, history, adjusted);
        adjusted
    } else {
        clean
    };
    let greedy = params.temperature.is_nan() || params.temperature < GREEDY_BELOW;
    let (token, kept) = if greedy {
        (argmax(logits), None)
    } else if params.uncut() && params.allowed.is_none() {
        let u = uniform(params.seed, position);
        (plain::draw(logits, params.temperature, u), None)
    } else {
        let cut = cut(logits, params, candidates);
        let kept = cut.then(|| candidates.iter().map(|(_, id)| *id).collect::<Vec<u32>>());
        let u = uniform(params.seed, position);
        (draw(candidates, params.temperature, u, cumulative), kept)
    };
    let raw_logprob = token_logprob(clean, token, 1.0, None);
    let plain = kept.is_none() && params.temperature == 1.0 && !params.adjusts();
    let behavior_logprob = if greedy || plain {
        raw_logprob
    } else {
        token_logprob(logits, token, params.temperature, kept.as_deref())
    };
    let top = top(clean, params.top_logprobs, (token, raw_logprob));
    Sampled {
        token,
        raw_logprob,
        behavior_logprob,
        kept,
        top,
        nonfinite,
    }
}

/// What [`sample`] reports where it draws `token` and nothing but the temperature shapes the draw.
///
/// # Panics
/// If `row` has no such token.
pub fn given(row: &[f32], token: u32, (temperature, most_likely): (f32, u8)) -> Sampled {
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
        top: top(row, most_likely, (token, raw_logprob)),
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

/// Better first, the lower id among equals: the one order in which tokens are kept or cut.
fn by_rank(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Fills `candidates` with the tokens that may be drawn, ids ascending, and says whether min-p,
/// top-k or top-p cut any.
fn cut(logits: &[f32], params: &SamplingParams, candidates: &mut Vec<(f32, u32)>) -> bool {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // p >= min_p * p_max  <=>  (logit - max) / T >= ln(min_p)
    let floor = if params.min_p > 0.0 {
        (max + params.temperature * params.min_p.min(1.0).ln()).min(max)
    } else {
        f32::NEG_INFINITY
    };
    let masked = params.allowed.is_some();
    candidates.clear();
    let all = logits.iter().copied().zip(0u32..);
    candidates
        .extend(all.filter(|(logit, _)| *logit >= floor && !(masked && *logit <= IMPOSSIBLE)));
    let k = params.top_k as usize;
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, by_rank);
        candidates.truncate(k);
    }
    if params.top_p < 1.0 {
        keep_mass(candidates, max, params);
    }
    candidates.sort_unstable_by_key(|(_, id)| *id);
    candidates.len() < logits.len()
}

/// Keeps the shortest best-first run of candidates whose probability reaches `top_p`. The best are
/// found by repeated selection of growing heads, never by sorting the vocabulary.
fn keep_mass(candidates: &mut Vec<(f32, u32)>, max: f32, params: &SamplingParams) {
    let weight = |c: &(f32, u32)| f64::from((c.0 - max) / params.temperature).exp();
    // Summed in id order (in which they are unless top-k came before), so that the total does not
    // depend on how a selection left the list.
    candidates.sort_unstable_by_key(|(_, id)| *id);
    let total: f64 = candidates.iter().map(weight).sum();
    let wanted = total * f64::from(params.top_p.max(0.0));
    let mut head = 64.min(candidates.len());
    loop {
        if head < candidates.len() {
            candidates.select_nth_unstable_by(head - 1, by_rank);
        }
        candidates[..head].sort_unstable_by(by_rank);
        let mut mass = 0.0;
        let enough = candidates[..head].iter().position(|c| {
            mass += weight(c);
            mass >= wanted
        });
        match enough {
            Some(last) => return candidates.truncate(last + 1),
            None if head == candidates.len() => return, // rounding: all are needed
            None => head = (head * 8).min(candidates.len()),
        }
    }
}

/// The candidate in whose share of [0, 1) the number `u` falls, shares in id order.
fn draw(candidates: &[(f32, u32)], temperature: f32, u: f64, cumulative: &mut Vec<f64>) -> u32 {
    let max = candidates
        .iter()
        .map(|c| c.0)
        .fold(f32::NEG_INFINITY, f32::max);
    cumulative.clear();
    let mut total = 0.0;
    cumulative.extend(candidates.iter().map(|(logit, _)| {
        let below = (logit - max) / temperature;
        if below > -NEGLIGIBLE {
            total += f64::from(below).exp();
        }
        total
    }));
    let at = cumulative.partition_point(|c| *c <= u * total);
    candidates[at.min(candidates.len() - 1)].1
}

/// A number in [0, 1) that is a pure function of seed and position (SplitMix64's finalizer, applied
/// to the seed and again to the mix with the counter; Steele, Lea and Flood 2014).
pub fn uniform(seed: u64, position: u64) -> f64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let counter = position.wrapping_add(1).wrapping_mul(GOLDEN);
    let bits = mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(counter));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The `count` most likely tokens, best first. All share one normalizer, taken from the drawn
/// token, whose own entry keeps its exact value.
fn top(row: &[f32], count: u8, (token, logprob): (u32, f32)) -> Vec<(u32, f32)> {
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
