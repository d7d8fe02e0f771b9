//! Sixteen f32 lanes: what a kernel is written over.
#![allow(unsafe_code)]

use super::exponent_block::{Block, Exponents};
use super::lines::{LANES, Line};

/// One vector of sixteen f32.
///
/// # Safety
/// Methods may use instructions of the implementing level: call them only below [`dispatch`].
/// Pointers must be valid for sixteen values (no alignment needed).
#[allow(clippy::missing_safety_doc)] // The trait says it once for all of its methods.
pub trait V16: Copy {
    /// For how many vectors of sixteen lanes there are registers: larger register tiles pay, and are
    /// more to compile.
    const REGISTERS: usize;
    const WIDE: bool = Self::REGISTERS >= 32;
    /// Whether there are instructions for compact weights, which are kept so nowhere else.
    const COMPACT: bool = false;
    /// Whether there are instructions for pairs. Elsewhere they are multiplied to check them, in small tiles.
    const PAIRS: bool = false;
    /// Two bf16 values in each of sixteen lanes, or what they widen to.
    type Pair: Copy;
    /// Four codes in each of sixteen lanes, or what they widen to.
    type Quad: Copy;
    /// Runs a kernel inside this level as a function of its own, so that a product used in many
    /// kernels is compiled once per level and not once per use.
    unsafe fn call<K: Kernel>(kernel: K) -> K::Out;
    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// Widens sixteen bf16 values; exact.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// Widens sixteen f16 values; exact.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// Sixteen signed bytes as numbers.
    unsafe fn load_i8(p: *const u8) -> Self;
    /// The low (`shift` 0) or high (`shift` 4) halves of sixteen bytes, minus 8, as numbers.
    unsafe fn load_u4(p: *const u8, shift: usize) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// Rounds sixteen values to bf16: to nearest, ties to even, subnormals to zero.
    unsafe fn round_bf16(p: *const f32, to: *mut u16);
    /// The same two bf16 values, four bytes at `p`, in every lane.
    unsafe fn splat_pair(p: *const f32) -> Self::Pair;
    /// Sixteen pairs as [`Self::store_pair`] leaves them.
    unsafe fn load_pair(p: *const f32) -> Self::Pair;
    unsafe fn store_pair(pair: Self::Pair, p: *mut f32);
    /// Pairs of two lines of sixteen bf16 values.
    unsafe fn pair_bf16(p: *const u16) -> Self::Pair;
    /// Pairs of two lines of sixteen signed bytes; exact.
    unsafe fn pair_i8(p: *const u8) -> Self::Pair;
    /// Pairs of the low and the high halves of sixteen bytes, minus 8; exact.
    unsafe fn pair_u4(p: *const u8) -> Self::Pair;
    /// Pairs of the two steps of a half of a block, and how many other exponents they have, see
    /// [`crate::format::exponent_coded`].
    #[inline(always)]
    unsafe fn pairs_compact<const HALF: usize>(
        block: *const Block,
        exponents: &Exponents,
        others: *const u8,
    ) -> ([Self::Pair; 2], usize) {
        // SAFETY: the caller vouches for the block and its others.
        unsafe { pairs_of_lines::<Self, HALF>(block, exponents, others) }
    }
    /// `fma(x.0, w.0, fma(x.1, w.1, self))` per lane: the second of a pair first, as processors
    /// with dot products of bf16 have it. Those take subnormal numbers for zero.
    unsafe fn dot(self, x: Self::Pair, w: Self::Pair) -> Self;
    /// In how many parts the level sums up products of four codes. Each takes a word of inputs, the same
    /// for every lane: four signed bytes where it is one, two whole numbers of sixteen bits where there are two.
    const QUAD_PARTS: usize = 1;
    /// Quads of four lines of sixteen signed bytes.
    unsafe fn quad_i8(p: *const u8) -> Self::Quad;
    /// Quads of the low and the high halves of two lines of sixteen bytes, minus 8.
    unsafe fn quad_u4(p: *const u8) -> Self::Quad;
    /// An empty sum of products of quads, in whatever form the level sums them up. Where it raises weights
    /// to 0 and above, by 128 or 8, the sum begins without what that will add: the whole number at
    /// `raised`, which is minus as many times the sum of all inputs.
    unsafe fn begin_quads(raised: *const f32) -> Self;
    /// The sum and a part of the four products of the inputs in the word at `x` and weights; exact as long
    /// as it stays below 2^24.
    unsafe fn dot_quads(self, x: *const f32, w: Self::Quad, part: usize) -> Self;
    /// The sum as a number.
    unsafe fn sum_of_quads(self) -> Self;
    unsafe fn add(self, b: Self) -> Self;
    unsafe fn sub(self, b: Self) -> Self;
    unsafe fn mul(self, b: Self) -> Self;
    unsafe fn div(self, b: Self) -> Self;
    /// `if self > b { self } else { b }` per lane.
    unsafe fn max(self, b: Self) -> Self;
    /// `if self < limit { a } else { b }` per lane.
    unsafe fn select_lt(self, limit: Self, a: Self, b: Self) -> Self;
    /// `2^n` where the low bits of `self` hold `n` after adding 1.5 * 2^23 (see [`exp`]).
    unsafe fn pow2(self) -> Self;
    /// Sum by the fixed tree (i, i+8), (i, i+4), (i, i+2), (0, 1).
    unsafe fn sum(self) -> f32;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: same contract as this method.
        unsafe { Self::splat(0.0) }
    }

    /// Loads `n <= 16` values, zero in the remaining lanes.
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: the caller vouches for `n` values at `p`; `lanes` holds sixteen.
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
            Self::load(lanes.as_ptr())
        }
    }

    /// Stores the first `n <= 16` lanes.
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: the caller vouches for `n` values at `p`.
        unsafe {
            self.store(lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }

    /// Sixteen numbers of magnitudes up to 127 as signed bytes: to nearest, ties to even. Of NaN it makes any.
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8) {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: `lanes` holds sixteen values, and the caller vouches for as many bytes at `p`.
        unsafe {
            self.store(lanes.as_mut_ptr());
            let codes = lanes.map(|x| x.round_ties_even() as i8);
            p.cast::<[i8; LANES]>().write(codes);
        }
    }

    /// The largest lane, by the tree of [`Self::sum`].
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: `lanes` holds sixteen values.
        unsafe { self.store(lanes.as_mut_ptr()) };
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                let (m, x) = (lanes[i], lanes[i + width]);
                lanes[i] = if x > m { x } else { m };
            }
        }
        lanes[0]
    }
}

/// [`V16::pairs_compact`] where there are no instructions for it.
///
/// # Safety
/// As for the methods of [`V16`].
#[inline(always)]
pub(super) unsafe fn pairs_of_lines<V: V16, const HALF: usize>(
    block: *const Block,
    exponents: &Exponents,
    others: *const u8,
) -> ([V::Pair; 2], usize) {
    // SAFETY: same contract; two lines lie one behind the other.
    unsafe {
        let (lines, taken) = (*block).lines(HALF, exponents, others);
        (lines.map(|step| V::pair_bf16(step.as_ptr().cast())), taken)
    }
}

/// Work that can run at any level. `run` must be `#[inline(always)]` so that its vector code is
/// compiled inside the wrapper that enables the instructions.
pub trait Kernel {
    type Out;
    fn run<V: V16>(self) -> Self::Out;
}

/// Asks for bytes that are needed soon.
#[inline(always)]
pub fn fetch(bytes: &[u8]) {
    for line in bytes.chunks(size_of::<Line>()) {
        fetch_line::<2>(line.as_ptr());
    }
}

/// How far ahead of a stream of weights is asked for what comes.
const AHEAD_BYTES: usize = 6 << 10;

/// Asks for the three lines that come [`AHEAD_BYTES`] behind `at`. They may be anybody's.
#[inline(always)]
pub fn fetch_ahead(at: *const u8) {
    for line in 0..3 {
        fetch_line::<1>(at.wrapping_add(AHEAD_BYTES + line * size_of::<Line>()));
    }
}

/// Asks for the line at `at`, whosoever it is, for the first-level cache or the one behind it; where a processor
/// has no way to, nothing happens.
#[inline(always)]
pub fn fetch_line<const LEVEL: u8>(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: every such processor has the instruction, which neither fails nor changes a value.
        unsafe {
            match LEVEL {
                1 => _mm_prefetch::<_MM_HINT_T0>(at.cast()),
                _ => _mm_prefetch::<_MM_HINT_T1>(at.cast()),
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// e^x per lane, relative error below 2e-7, zero below -87.3 and capped at 88.
///
/// Cody-Waite reduction `x = n ln 2 + r` and a degree-6 polynomial in `r` (coefficients as in
/// Cephes `expf`); `n` is rounded by adding 1.5 * 2^23, whose low bits then hold it.
///
/// # Safety
/// As for the methods of [`V16`].
#[inline(always)]
pub unsafe fn exp<V: V16>(x: V) -> V {
    const MAGIC: f32 = 12_582_912.0;
    const LOWEST: f32 = -87.3;
    // SAFETY: same contract.
    unsafe {
        let low = V::splat(LOWEST);
        let top = V::splat(88.0);
        // Written so that NaN stays NaN.
        let capped = top.select_lt(x, top, x);
        let safe = capped.select_lt(low, low, capped);
        let t = safe.fma(V::splat(std::f32::consts::LOG2_E), V::splat(MAGIC));
        let n = t.sub(V::splat(MAGIC));
        let r = n.fma(V::splat(-0.693_359_4), safe);
        let r = n.fma(V::splat(2.121_944_4e-4), r);
        let mut p = V::splat(1.987_569_2e-4);
        for c in [
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            1.666_666_5e-1,
            0.5,
        ] {
            p = p.fma(r, V::splat(c));
        }
        let one_plus_r = r.add(V::splat(1.0));
        let e = p.fma(r.mul(r), one_plus_r).mul(t.pow2());
        x.select_lt(low, V::zero(), e)
    }
}

/// `sigmoid(x) = 1 / (1 + e^-x)` per lane.
///
/// # Safety
/// As for the methods of [`V16`].
#[inline(always)]
pub unsafe fn sigmoid<V: V16>(x: V) -> V {
    // SAFETY: same contract.
    unsafe {
        let e = exp(V::zero().sub(x));
        V::splat(1.0).div(V::splat(1.0).add(e))
    }
}
