//! Products of bf16: both factors rounded, sums in f32.
//!
//! Processors with AVX512-BF16 multiply pairs of bf16 numbers as quickly as single ones of f32. Inputs
//! are rounded to bf16 once for a whole product; weights are bf16 already, or codes of four or eight
//! bits, which bf16 holds exactly. Sums are f32 in a fixed order, as everywhere ([`crate::gemm`]).
#![allow(unsafe_code)]

use std::ops::Range;
use std::slice::ChunksExactMut;

use crate::cpu::{Kernel, LANES, V16};
use crate::gemm::{Factors, Pairs};
use crate::matrix::activation_scratch::with_rounded;
use crate::matrix::rows::Rows;
use crate::thread_pool::{Executor, Shards};

/// Calls `f` with rows of pairs, and which row is the first of them, until it had all rows: `inp`
/// inputs of each row of `x`, rounded, two in the place of one, and zeros up to whole lines.
pub fn with_pairs(x: Rows, inp: usize, exec: &Executor, f: impl Fn(usize, Rows)) {
    let stride = inp.div_ceil(2).next_multiple_of(LANES);
    let round = |x: Rows, to: &mut [f32]| {
        let to = Shards::new(to);
        exec.split(x.rows, x.rows * inp, &|rows| {
            // SAFETY: parts have different rows.
            let to = unsafe { to.slice(rows.start * stride..rows.end * stride) };
            let to = to.chunks_exact_mut(stride);
            Pairs::dispatch(Round { x, inp, rows, to });
        });
    };
    with_rounded(x, stride, round, f);
}

/// Rounds some rows.
struct Round<'a> {
    x: Rows<'a>,
    inp: usize,
    rows: Range<usize>,
    to: ChunksExactMut<'a, f32>,
}

impl Kernel for Round<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        for (row, to) in self.rows.zip(self.to) {
            let x = &self.x.data[row * self.x.stride..][..self.inp];
            // SAFETY: called at this level.
            unsafe { round::<V>(x, to) };
        }
    }
}

/// Rounds a row to all that `to` holds, which is whole lines.
///
/// # Safety
/// As for the methods of [`V16`].
#[inline(always)]
unsafe fn round<V: V16>(x: &[f32], to: &mut [f32]) {
    let (to, room) = (to.as_mut_ptr().cast::<u16>(), 2 * to.len());
    let lines = x.chunks_exact(LANES);
    let rest = lines.remainder();
    // SAFETY: same contract; `to` has room for whole lines of inputs.
    unsafe {
        for (i, line) in lines.enumerate() {
            V::round_bf16(line.as_ptr(), to.add(i * LANES));
        }
        let mut line = [0.0; LANES];
        line[..rest.len()].copy_from_slice(rest);
        for at in (x.len() - rest.len()..room).step_by(LANES) {
            V::round_bf16(line.as_ptr(), to.add(at));
            line = [0.0; LANES];
        }
    }
}

#[cfg(test)]
#[path = "bf16_dot_tests.rs"]
mod tests;
