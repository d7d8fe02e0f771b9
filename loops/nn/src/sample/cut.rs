//! Draws among the tokens that min-p, top-k and top-p leave.
//!
//! A token weighs `exp((logit - most) / temperature)` in units of 2^-42, as a whole number. Sums of
//! whole numbers are the same in any order, so a device that adds side by side cuts where this
//! does (`../cuda/cut.cuh` is the same definition). The exponential is that of the log-probs, good
//! to 2e-7; what the unit leaves of a whole vocabulary is below that.

use super::params::{IMPOSSIBLE, PlainDraw, by_rank};
use hone_kernels::cpu::{Kernel, LANES, V16, dispatch, exp};

/// What the most likely token weighs. Four million of them fit the sum.
const WHOLE: f32 = (1u64 << 42) as f32;

/// Fills `candidates` with the tokens that may be drawn, ids ascending, and says whether min-p,
/// top-k or top-p cut any. Where `masked`, impossible tokens are none.
pub(super) fn cut(
    logits: &[f32],
    how: &PlainDraw,
    masked: bool,
    candidates: &mut Vec<(f32, u32)>,
    weights: &mut Vec<u64>,
) -> bool {
    let max = most(logits.iter().copied());
    let floor = (max + how.floor()).min(max);
    candidates.clear();
    let all = logits.iter().copied().zip(0u32..);
    candidates
        .extend(all.filter(|(logit, _)| *logit >= floor && !(masked && *logit <= IMPOSSIBLE)));
    let k = how.top_k as usize;
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, by_rank);
        candidates.truncate(k);
    }
    if how.top_p < 1.0 {
        keep_mass(candidates, how, weights);
    }
    candidates.sort_unstable_by_key(|(_, id)| *id);
    candidates.len() < logits.len()
}

/// Keeps the shortest best-first run of candidates whose weight reaches `top_p` of all. The best are
/// found by repeated selection of growing heads, never by sorting the vocabulary.
fn keep_mass(candidates: &mut Vec<(f32, u32)>, how: &PlainDraw, weights: &mut Vec<u64>) {
    let max = most(candidates.iter().map(|c| c.0));
    weigh(candidates, max, how.temperature, weights);
    let total: u64 = weights.iter().sum();
    let wanted = (total as f64 * f64::from(how.top_p.max(0.0))).ceil() as u64;
    let mut head = 64.min(candidates.len());
    loop {
        if head < candidates.len() {
            candidates.select_nth_unstable_by(head - 1, by_rank);
        }
        candidates[..head].sort_unstable_by(by_rank);
        weigh(&candidates[..head], max, how.temperature, weights);
        match reach(weights, wanted) {
            Some(last) => return candidates.truncate(last + 1),
            None if head == candidates.len() => return, // rounding: all are needed
            None => head = (head * 8).min(candidates.len()),
        }
    }
}

/// The candidate in whose share of [0, 1) the number `u` falls, shares in id order.
pub(super) fn draw(
    candidates: &[(f32, u32)],
    temperature: f32,
    u: f64,
    weights: &mut Vec<u64>,
) -> u32 {
    let max = most(candidates.iter().map(|c| c.0));
    weigh(candidates, max, temperature, weights);
    let total: u64 = weights.iter().sum();
    // Rounding may name the end itself.
    let wanted = ((total as f64 * u) as u64 + 1).min(total);
    let at = reach(weights, wanted).expect("they are reached by their sum");
    candidates[at].1
}

/// The first weight up to which `wanted` is reached.
fn reach(weights: &[u64], wanted: u64) -> Option<usize> {
    let mut reached = 0;
    weights.iter().position(|weight| {
        reached += weight;
        reached >= wanted
    })
}

fn most(logits: impl Iterator<Item = f32>) -> f32 {
    logits.fold(f32::NEG_INFINITY, f32::max)
}

/// Replaces `weights` by those of the candidates.
fn weigh(candidates: &[(f32, u32)], max: f32, temperature: f32, weights: &mut Vec<u64>) {
    weights.clear();
    dispatch(Weigh {
        candidates,
        max,
        temperature,
        weights,
    });
}

struct Weigh<'a> {
    candidates: &'a [(f32, u32)],
    max: f32,
    temperature: f32,
    weights: &'a mut Vec<u64>,
}

impl Kernel for Weigh<'_> {
    type Out = ();
    #[inline(always)]
    #[allow(unsafe_code)]
    fn run<V: V16>(self) {
        for part in self.candidates.chunks(LANES) {
            let mut lanes = [f32::NEG_INFINITY; LANES];
            for (lane, (logit, _)) in lanes.iter_mut().zip(part) {
                *lane = *logit;
            }
            // SAFETY: below `dispatch`; `lanes` holds sixteen values.
            unsafe {
                let below = V::load(lanes.as_ptr()).sub(V::splat(self.max));
                let below = below.div(V::splat(self.temperature));
                exp(below).store(lanes.as_mut_ptr());
            }
            let whole = lanes[..part.len()].iter().map(|e| (e * WHOLE) as u64);
            self.weights.extend(whole);
        }
    }
}
