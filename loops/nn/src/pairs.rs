//! Products of bf16: both factors rounded, sums in f32.
//!
//! Processors with AVX512-BF16 multiply pairs of bf16 numbers as quickly as single ones of f32. Inputs
//! are rounded to bf16 once for a whole product; weights are bf16 already, or codes of four or eight
//! bits, which bf16 holds exactly. Sums are f32 in a fixed order, as everywhere ([`crate::gemm`]).
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ops::Range;
use std::sync::OnceLock;

use crate::exec::{Executor, Shards};
use crate::gemm::TILE_ROWS;
use crate::panels::{Panels, Rows, RowsMut, Store};
use crate::quant::WeightFormat;
use crate::rng::Rng;
use crate::simd::{
    Buf, Kernel, LANES, V16, dispatch_dots, has_dots, has_quick_bytes, has_tiles, without_tiles,
};
use crate::source::TensorData;

/// How products with a model's matrices are computed, forward and backward.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arithmetic {
    /// Inputs as they are, one multiply-add each.
    #[default]
    F32,
    /// Inputs rounded to bf16, two at a time. Matrices that are stored as f32 stay with
    /// [`Self::F32`].
    Bf16,
    /// As [`Self::Bf16`], but 32 inputs at a time, as tiles of AMX add them up.
    Amx,
    /// Inputs rounded to eight bits with a scale per 32, four at a time. Only matrices of codes are
    /// computed so, others stay with [`Self::F32`].
    Int8,
}

impl Arithmetic {
    /// What is quickest on this processor for matrices of bf16, or of codes.
    pub fn quickest(codes: bool) -> Self {
        match codes {
            true if has_quick_bytes() => Self::Int8,
            _ if has_dots() => Self::Bf16,
            _ => Self::F32,
        }
    }

    /// Whether this processor computes so. Any can be made to; products of bf16 then slowly, and
    /// exactly but for subnormal numbers, which is good for tests only.
    pub fn supported(self) -> bool {
        match self {
            Self::F32 | Self::Int8 => true,
            Self::Bf16 => has_dots(),
            Self::Amx => has_tiles() && tiles_are_exact(),
        }
    }
}

/// [`tiles_add_up`], seen once: an arithmetic is a promise.
fn tiles_are_exact() -> bool {
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
            product() == without_tiles(product)
        })
}

thread_local! {
    static ROUNDED: RefCell<Buf> = RefCell::new(Buf::default());
}

/// Rows that are rounded at a time: room for more would gain nothing.
const ROWS: usize = 512;

/// Calls `f` with rows of pairs, and which row is the first of them, until it had all rows: `inp`
/// inputs of each row of `x`, rounded, two in the place of one, and zeros up to whole lines.
pub(crate) fn with_pairs(x: Rows, inp: usize, exec: &Executor, f: impl Fn(usize, Rows)) {
    let stride = inp.div_ceil(2).next_multiple_of(LANES);
    let round = |rows, to: &mut [f32]| {
        dispatch_dots(Round {
            x,
            inp,
            rows,
            to,
            stride,
        });
    };
    with_rounded(x.rows, (inp, stride), exec, &round, &f);
}

/// Rounds some rows to a buffer.
type RoundRows<'a> = &'a (dyn Fn(Range<usize>, &mut [f32]) + Sync);

/// Calls `f` with rows as `round` leaves them, `stride` words each, and which is the first, until it
/// had all of them.
pub(crate) fn with_rounded(
    rows: usize,
    (inp, stride): (usize, usize),
    exec: &Executor,
    round: RoundRows,
    f: &dyn Fn(usize, Rows),
) {
    ROUNDED.with_borrow_mut(|rounded| {
        for first in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - first);
            // A tile of rows may read behind the last.
            let words = rounded.take((count + TILE_ROWS - 1) * stride);
            let to = Shards::new(words);
            exec.split(count, count * inp, &|rows| {
                // SAFETY: parts have different rows.
                let to = unsafe { to.slice(rows.start * stride..rows.end * stride) };
                round(first + rows.start..first + rows.end, to);
            });
            let x = Rows {
                data: words,
                stride,
                rows: count,
            };
            f(first, x);
        }
    });
}

/// Rounds some rows.
struct Round<'a> {
    x: Rows<'a>,
    inp: usize,
    rows: Range<usize>,
    to: &'a mut [f32],
    stride: usize,
}

impl Kernel for Round<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        for (row, to) in self.rows.zip(self.to.chunks_exact_mut(self.stride)) {
            let x = &self.x.data[row * self.x.stride..][..self.inp];
            let to = to.as_mut_ptr().cast::<u16>();
            let lines = x.chunks_exact(LANES);
            let rest = lines.remainder();
            // SAFETY: a row of `to` holds `2 * stride` inputs, whole lines of them.
            unsafe {
                for (i, line) in lines.enumerate() {
                    V::round_bf16(line.as_ptr(), to.add(i * LANES));
                }
                let whole = self.inp - rest.len();
                let mut line = [0.0; LANES];
                line[..rest.len()].copy_from_slice(rest);
                for at in (whole..2 * self.stride).step_by(LANES) {
                    V::round_bf16(line.as_ptr(), to.add(at));
                    line = [0.0; LANES];
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "pairs_tests.rs"]
pub(crate) mod tests;
