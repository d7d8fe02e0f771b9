//! Products of codes: weights of eight or four bits with inputs rounded to eight.
//!
//! Thirty-two inputs of a row share a scale, as that many weights do, so what a group sums up are whole
//! numbers, exact on every processor and in any order. A group's sum is then scaled by both:
//! `sum = fma(scale of weights * scale of inputs, group, sum)`, groups ascending.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::cpu::{Kernel, LANES, V16};
use crate::format::block_quant::{Bits, GROUP};
use crate::gemm::interleaved::{Laid, Tiles, put};
use crate::gemm::{Factors, Quads};
use crate::matrix::Rows;
use crate::matrix::activation_scratch::with_rounded;
use crate::thread_pool::{Executor, Shards};

/// The largest code of an input.
const MOST: f32 = 127.0;

/// Inputs below become 0: their quotients need not be finite.
const LEAST: f32 = 1e-30;

/// Calls `f` with rows of codes, which row is the first of them, and how they lie side by side, until it
/// had all rows: `inp` inputs of each row of `x`, four in the place of one, for weights of so many bits.
pub fn with_quads(
    x: Rows,
    inp: usize,
    bits: Bits,
    exec: &Executor,
    f: impl Fn(usize, Rows, Tiles),
) {
    let groups = inp / GROUP;
    // Seen once: rows must lie as `f` is told.
    let laid = Laid::here();
    let words = laid.words(GROUP);
    let round = |x: Rows, to: &mut [f32]| {
        let tiles = Tiles::of(x.rows, laid);
        let to = Shards::new(to);
        exec.split(tiles.count() * groups, x.rows * inp, &|some| {
            Quads::dispatch(Round {
                x,
                laid: (laid, tiles),
                groups,
                some,
                to,
                // Dot products of bytes take weights from 0 on.
                raised: match bits {
                    Bits::Eight => 128,
                    Bits::Four => 8,
                },
            });
        });
    };
    with_rounded(x, groups * words, round, |first, x| {
        f(first, x, Tiles::of(x.rows, laid));
    });
}

/// Rounds some groups of tiles of rows.
struct Round<'a> {
    x: Rows<'a>,
    laid: (Laid, Tiles),
    /// Groups of a row.
    groups: usize,
    /// Which groups, those of a tile one after the other.
    some: Range<usize>,
    to: Shards<f32>,
    /// What weights are raised by.
    raised: i32,
}

impl Kernel for Round<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        let (laid, tiles) = self.laid;
        for at in self.some {
            let (rows, group) = (tiles.rows(at / self.groups), at % self.groups);
            let words = laid.words(GROUP) * rows.len();
            let first = rows.start * self.groups * laid.words(GROUP) + group * words;
            // SAFETY: parts have different groups, and each has words of its own.
            let to = unsafe { self.to.slice(first..first + words) };
            for (m, row) in rows.clone().enumerate() {
                let x = &self.x.data[row * self.x.stride + group * GROUP..][..GROUP];
                let mut codes = [0i8; GROUP];
                // SAFETY: called at this level; there are as many codes as inputs.
                let (scale, sum) = unsafe { round::<V>(x.as_ptr(), codes.as_mut_ptr()) };
                let (of, both) = ((m, rows.len()), (scale, -self.raised * sum));
                put(to, of, both, &codes, laid);
            }
        }
    }
}

/// Rounds a group: to nearest, ties to even, the largest magnitude to ±127. What it has to be scaled
/// by and the sum of its codes; the scale is NaN where any input is no finite number.
///
/// # Safety
/// As for the methods of [`V16`]; both pointers are for a group.
#[inline(always)]
unsafe fn round<V: V16>(x: *const f32, to: *mut i8) -> (f32, i32) {
    // SAFETY: same contract.
    unsafe {
        let (zero, halves) = (V::zero(), [V::load(x), V::load(x.add(LANES))]);
        let [low, high] = halves.map(|half| half.max(zero.sub(half)));
        let most = low.max(high).max_lane();
        let nothing = halves[0].mul(zero).add(halves[1].mul(zero)).sum();
        let inverse = if most > LEAST { MOST / most } else { 0.0 };
        for (i, half) in halves.into_iter().enumerate() {
            half.mul(V::splat(inverse)).store_i8(to.add(i * LANES));
        }
        let codes = to.cast::<[[u8; 8]; GROUP / 8]>().read();
        ((most + nothing) / MOST, sum_of_codes(codes))
    }
}

/// The sum of a group of signed bytes, eight at a time as parts of whole numbers.
#[inline(always)]
fn sum_of_codes(codes: [[u8; 8]; GROUP / 8]) -> i32 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    let mut sums = 0;
    for eight in codes {
        // Raised by 128, so that none is below 0.
        let raised = u64::from_le_bytes(eight) ^ (EACH << 7);
        sums += (raised & EVEN) + (raised >> 8 & EVEN);
    }
    // Four sums of sixteen bits each, below 2,048; the upper one of the product is the sum of all.
    let all = sums.wrapping_mul(0x0001_0001_0001_0001) >> 48;
    all as i32 - 128 * GROUP as i32
}

#[cfg(test)]
#[path = "int8_dot_tests.rs"]
mod tests;
