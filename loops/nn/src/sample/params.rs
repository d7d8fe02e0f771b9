//! How a token is drawn: the parameters, the part of them that may stay on a device, and what all draws share.

use hone_domain::{GREEDY_BELOW, TokenMask};

/// Stands for "impossible" in adjusted logits; finite, so that arithmetic on it stays finite.
pub(super) const IMPOSSIBLE: f32 = -1e30;

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
    /// Report them under the distribution drawn from, instead of the raw one.
    pub top_behavior: bool,
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
            top_behavior: false,
            banned: Vec::new(),
            allowed: None,
        }
    }
}

impl SamplingParams {
    /// Whether the next token depends on how often each came before.
    pub fn penalizes(&self) -> bool {
        self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
            || self.repetition_penalty != 1.0
    }

    pub(super) fn adjusts(&self) -> bool {
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

/// A draw that nothing but the temperature and the cuts shape; the logits need not leave a device
/// for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlainDraw {
    pub temperature: f32,
    pub top_p: f32,
    pub top_k: u32,
    min_p: f32,
    seed: u64,
    position: u64,
}

impl PlainDraw {
    /// The draw for completion index `position`, if `params` are plain enough and nothing else of
    /// the row is asked for.
    pub fn of(params: &SamplingParams, position: u64) -> Option<Self> {
        let plain = !params.adjusts() && params.top_logprobs == 0;
        plain.then(|| Self::within(params, position))
    }

    /// The part of `params` that comes after the logits are adjusted.
    pub(super) fn within(params: &SamplingParams, position: u64) -> Self {
        Self {
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k,
            min_p: params.min_p,
            seed: params.seed,
            position,
        }
    }

    /// The same draw so many tokens on.
    pub fn after(self, tokens: usize) -> Self {
        let position = self.position + tokens as u64;
        Self { position, ..self }
    }

    /// Takes the most likely token.
    pub fn is_greedy(&self) -> bool {
        self.temperature.is_nan() || self.temperature < GREEDY_BELOW
    }

    /// Whether each of `vocab` tokens may be drawn.
    pub fn is_uncut(&self, vocab: usize) -> bool {
        let all = self.top_k == 0 || self.top_k as usize >= vocab;
        all && self.top_p >= 1.0 && self.min_p <= 0.0
    }

    /// How far below the largest a logit may be:
    /// p >= min_p * p_max  <=>  (logit - max) / T >= ln(min_p).
    pub fn floor(&self) -> f32 {
        match self.min_p > 0.0 {
            true => self.temperature * self.min_p.min(1.0).ln(),
            false => f32::NEG_INFINITY,
        }
    }

    /// The number that chooses the token.
    pub fn uniform(&self) -> f64 {
        uniform(self.seed, self.position)
    }
}

/// Better first, the lower id among equals: the one order in which tokens are kept or cut.
pub(super) fn by_rank(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
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
