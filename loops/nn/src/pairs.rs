//! Products of bf16: both factors rounded, sums in f32.
//!
//! Processors with AVX512-BF16 multiply pairs of bf16 numbers as quickly as single ones of f32. Inputs
//! are rounded to bf16 once for a whole product; weights are bf16 already, or codes of four or eight
//! bits, which bf16 holds exactly. Sums are f32 in a fixed order, as everywhere ([`crate::gemm`]).
#![allow(unsafe_code)]

use std::ops::Range;
use std::slice::ChunksExactMut;
use std::sync::OnceLock;

use crate::arithmetic::Arithmetic;
use crate::exec::{Executor, Shards};
use crate::gemm::{Factors, Pairs};
use crate::panels::{Panels, Rows, RowsMut, Store};
use crate::quant::WeightFormat;
use crate::rng::Rng;
use crate::rounded::with_rounded;
use crate::simd::{Kernel, LANES, V16, plainly};
use crate::source::TensorData;

/// [`tiles_add_up`], seen once: an arithmetic is a promise.
pub(crate) fn tiles_are_exact() -> bool {
    static EXACT: OnceLock<bool> = OnceLock::new();
    *EXACT.get_or_init(tiles_add_up)
}

/// Whether tiles of this processor give the bits that vectors do.
fn tiles_add_up() -> bool {
    let (out, inp, rows) = (40, 112, 21);
    let mut rng = Rng::new(11);
    let mut draw = |n: usize| -> Vec<f32> { (0..n).map(|_| rng.normal() as f32).collect() };
    let (weights, x) = (draw(out * inp), draw(rows * inp));
    let full = Panels::from_parts(inp, vec![TensorData::F32(weights)]);
    let exec = Executor::new(1);
    [WeightFormat::Bf16, WeightFormat::Q8]
        .into_iter()
        .all(|format| {
            let w = full.clone().into_format(format);
            let w = w.computed_by(Arithmetic::Amx);
            let product = || {
                let mut y = vec![0.0; rows * out];
                let from = Rows {
                    data: &x,
                    stride: inp,
                    rows,
                };
                let to = RowsMut {
                    data: &mut y,
                    stride: out,
                };
                w.linear(from, to, Store::Set(None), &exec);
                y
            };
            product() == plainly(product)
        })
}

/// Calls `f` with rows of pairs, and which row is the first of them, until it had all rows: `inp`
/// inputs of each row of `x`, rounded, two in the place of one, and zeros up to whole lines.
pub(crate) fn with_pairs(x: Rows, inp: usize, exec: &Executor, f: impl Fn(usize, Rows)) {
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
#[path = "pairs_tests.rs"]
pub(crate) mod tests;
