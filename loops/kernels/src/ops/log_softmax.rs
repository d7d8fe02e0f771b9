//! The one log-probability function: sampler, scorer and learner all call it.
#![allow(unsafe_code)]

use crate::cpu::{Kernel, LANES, V16, dispatch, exp};

/// Log-probability of `token` under `softmax(row / temperature)`, renormalised over the ids in
/// `kept` when given (in the order given; the same ids in another order may differ in the last
/// bit). `-inf` when `kept` lacks the token. `temperature > 0`.
///
/// Computed as `(z - m) - ln(sum exp(z_i - m))` with `z = row / temperature` and `m` its maximum,
/// sums by index mod 16.
///
/// # Panics
/// When `token` or a kept id is outside the row.
pub fn token_logprob(row: &[f32], token: u32, temperature: f32, kept: Option<&[u32]>) -> f32 {
    assert!(
        (token as usize) < row.len(),
        "token {token} is outside the row"
    );
    if kept.is_some_and(|ids| !ids.contains(&token)) {
        return f32::NEG_INFINITY;
    }
    let shape = Shape::of(row, temperature, kept);
    shape.logprob(row[token as usize])
}

/// What turns the logits of one row into probabilities.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// `1 / temperature`.
    pub inverse: f32,
    /// Largest scaled logit.
    pub most: f32,
    /// `sum exp(scaled - most)`.
    pub sum: f32,
    log_sum: f32,
}

impl Shape {
    pub fn of(row: &[f32], temperature: f32, kept: Option<&[u32]>) -> Self {
        let inverse = 1.0 / temperature;
        let (most, sum) = dispatch(Stats { row, inverse, kept });
        Self::known(inverse, most, sum)
    }

    /// Of a row whose maximum and sum of exponentials are known.
    pub fn known(inverse: f32, most: f32, sum: f32) -> Self {
        // Through f64, so that the result does not depend on the platform's single-precision log.
        let log_sum = f64::from(sum).ln() as f32;
        Self {
            inverse,
            most,
            sum,
            log_sum,
        }
    }

    pub fn log_sum(&self) -> f32 {
        self.log_sum
    }

    pub fn logprob(&self, logit: f32) -> f32 {
        (logit * self.inverse - self.most) - self.log_sum
    }
}

struct Stats<'a> {
    row: &'a [f32],
    inverse: f32,
    kept: Option<&'a [u32]>,
}

impl Stats<'_> {
    fn len(&self) -> usize {
        self.kept.map_or(self.row.len(), <[u32]>::len)
    }

    /// Sixteen scaled logits from index `at`, `-inf` beyond the end.
    #[inline(always)]
    unsafe fn group<V: V16>(&self, at: usize) -> V {
        let width = (self.len() - at).min(LANES);
        // SAFETY: `width` values exist from `at` on; `lanes` holds sixteen.
        unsafe {
            if self.kept.is_none() && width == LANES {
                return V::load(self.row.as_ptr().add(at)).mul(V::splat(self.inverse));
            }
            let mut lanes = [f32::NEG_INFINITY; LANES];
            match self.kept {
                None => lanes[..width].copy_from_slice(&self.row[at..at + width]),
                Some(ids) => {
                    for (lane, &id) in lanes.iter_mut().zip(&ids[at..at + width]) {
                        *lane = self.row[id as usize];
                    }
                }
            }
            V::load(lanes.as_ptr()).mul(V::splat(self.inverse))
        }
    }
}

impl Kernel for Stats<'_> {
    /// The largest scaled logit and the sum of exponentials.
    type Out = (f32, f32);
    #[inline(always)]
    fn run<V: V16>(self) -> (f32, f32) {
        // SAFETY: groups stay inside the row, see `group`.
        unsafe {
            let mut most = V::splat(f32::NEG_INFINITY);
            for at in (0..self.len()).step_by(LANES) {
                most = self.group::<V>(at).max(most);
            }
            let most = most.max_lane();
            let shift = V::splat(most);
            let mut sum = V::zero();
            for at in (0..self.len()).step_by(LANES) {
                sum = sum.add(exp(self.group::<V>(at).sub(shift)));
            }
            (most, sum.sum())
        }
    }
}
