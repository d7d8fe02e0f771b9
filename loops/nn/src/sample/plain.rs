//! The draw that nothing but the temperature shapes, over the whole vocabulary.

use hone_kernels::cpu::{Kernel, V16, dispatch};

/// In a draw from the whole vocabulary a token this far (in nats) below the best cannot be drawn: its
/// probability is below 1e-21.
const NEGLIGIBLE: f32 = 50.0;

/// Weights that are summed together, and the sums side by side in it.
const CHUNK: usize = 256;
const LANES: usize = 8;

/// The token in whose share of [0, 1) the number `u` falls, shares in id order. Of the first look at
/// the row the chunks' sums are kept in `sums`: the second one weighs nothing but the chunk of the token.
pub(super) fn draw(row: &[f32], temperature: f32, u: f64, sums: &mut Vec<f64>) -> u32 {
    sums.clear();
    dispatch(Draw {
        row,
        temperature,
        u,
        sums,
    })
}

struct Draw<'a> {
    row: &'a [f32],
    temperature: f32,
    u: f64,
    sums: &'a mut Vec<f64>,
}

impl Draw<'_> {
    /// Weights `exp((logit - most) / temperature)` of a chunk, zero beyond its end; their sum, by
    /// index mod 8.
    #[inline(always)]
    fn weigh(&self, logits: &[f32], most: f32, weights: &mut [f64; CHUNK]) -> f64 {
        let mut below = [f32::NEG_INFINITY; CHUNK];
        for (to, logit) in below.iter_mut().zip(logits) {
            *to = (logit - most) / self.temperature;
        }
        for (weight, below) in weights.iter_mut().zip(&below) {
            let e = exp(f64::from(below.max(-NEGLIGIBLE)));
            *weight = if *below > -NEGLIGIBLE { e } else { 0.0 };
        }
        let mut lanes = [0.0; LANES];
        for weights in weights.chunks_exact(LANES) {
            for (sum, weight) in lanes.iter_mut().zip(weights) {
                *sum += weight;
            }
        }
        lanes.iter().sum()
    }
}

impl Kernel for Draw<'_> {
    type Out = u32;
    #[inline(always)]
    fn run<V: V16>(self) -> u32 {
        let more = |a: f32, b: f32| if b > a { b } else { a };
        let mut lanes = [f32::NEG_INFINITY; 2 * LANES];
        let chunks = self.row.chunks_exact(2 * LANES);
        let rest = chunks.remainder().iter().copied();
        for chunk in chunks {
            for (most, logit) in lanes.iter_mut().zip(chunk) {
                *most = more(*most, *logit);
            }
        }
        let most = lanes.into_iter().chain(rest).fold(f32::NEG_INFINITY, more);
        let mut weights = [0.0; CHUNK];
        let mut total = 0.0;
        for logits in self.row.chunks(CHUNK) {
            let sum = self.weigh(logits, most, &mut weights);
            self.sums.push(sum);
            total += sum;
        }
        let (wanted, mut before, mut last) = (self.u * total, 0.0, 0);
        for (index, logits) in self.row.chunks(CHUNK).enumerate() {
            let sum = self.sums[index];
            if before + sum > wanted {
                self.weigh(logits, most, &mut weights);
                let mut cumulative = before;
                for (at, weight) in weights.iter().enumerate() {
                    cumulative += weight;
                    // Rounding may move the end of the chunk; then it is the next one's first.
                    if *weight > 0.0 {
                        last = index * CHUNK + at;
                        if cumulative > wanted {
                            return last as u32;
                        }
                    }
                }
            }
            before += sum;
        }
        last as u32
    }
}

/// e^x for `-50 <= x <= 0`, within two units in the last place: the reduction of
/// [`hone_kernels::cpu::exp`] and Taylor's series, in operations that compilers turn into vectors.
#[inline(always)]
fn exp(x: f64) -> f64 {
    const MAGIC: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let t = x.mul_add(std::f64::consts::LOG2_E, MAGIC);
    let n = t - MAGIC;
    let r = n.mul_add(-LN2_HIGH, x);
    let r = n.mul_add(-LN2_LOW, r);
    let mut p = 1.0 / 6_227_020_800.0;
    for divisor in [
        479_001_600.0,
        39_916_800.0,
        3_628_800.0,
        362_880.0,
        40_320.0,
        5_040.0,
        720.0,
        120.0,
        24.0,
        6.0,
        2.0,
        1.0,
        1.0,
    ] {
        p = r.mul_add(p, 1.0 / divisor);
    }
    p * f64::from_bits(t.to_bits().wrapping_add(1023) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::uniform;

    #[test]
    fn the_exponential_is_the_libraries() {
        for step in 0..=500_000 {
            let x = f64::from(step) * -1e-4;
            let error = (exp(x) / x.exp() - 1.0).abs();
            assert!(error < 5e-16, "e^{x} is off by {error:e}");
        }
    }

    /// The definition, one token after the other.
    fn by_hand(row: &[f32], temperature: f32, u: f64) -> usize {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |logit: &f32| f64::from((logit - most) / temperature).exp();
        let total: f64 = row.iter().map(weight).sum();
        let mut cumulative = 0.0;
        let at = row.iter().position(|logit| {
            cumulative += weight(logit);
            cumulative > u * total
        });
        at.unwrap_or(row.len() - 1)
    }

    #[test]
    fn draws_are_those_of_the_definition() {
        // Kept between draws, as its caller does.
        let mut sums = Vec::new();
        for vocab in [1, 7, 256, 300, 5_000] {
            let logit = |i: usize| (uniform(3, i as u64) * 20.0 - 10.0) as f32;
            let mut row: Vec<f32> = (0..vocab).map(logit).collect();
            // Impossible ones, a whole chunk of them among others.
            row.iter_mut().skip(256).take(256).for_each(|v| *v = -1e30);
            for at in 0..400 {
                let (u, temperature) = (uniform(9, at), [1.0, 0.5, 3.0][at as usize % 3]);
                let found = draw(&row, temperature, u, &mut sums) as usize;
                assert_eq!(found, by_hand(&row, temperature, u), "{vocab}, {at}");
            }
            let first = row.iter().position(|v| *v > -1e30).unwrap_or_default();
            assert_eq!(draw(&row, 1e3, 0.0, &mut sums) as usize, first);
        }
    }
}
