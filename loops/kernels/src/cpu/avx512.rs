//! The AVX-512 level.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::avx2::{max8, nibbles, sum8};
use super::exponent_block::{Block, Exponents, OTHER};
use super::lines::LANES;
use super::portable::round_bf16;
use super::vec16::{Kernel, V16, pairs_of_lines};

/// One 512-bit register; `HAS` names the instructions beyond AVX-512 that kernels of this type use.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const HAS: u8>(__m512);

const NOTHING_MORE: u8 = 0;
/// Dot products of bf16.
const DOTS: u8 = 1;
/// Dot products of bytes.
const BYTE_DOTS: u8 = 2;
/// Dot products of bf16, and what makes pairs of compact weights.
const COMPACT: u8 = 3;

/// Whether there are dot products of bf16.
const fn dots(has: u8) -> bool {
    has == DOTS || has == COMPACT
}

/// Four bytes each of four lines in a lane, lane by lane: which 32-bit words of four lines go to a
/// quarter of the register, then which bytes of a quarter to a lane.
#[repr(align(64))]
struct Words([u32; LANES]);

const fn words(lines: [usize; 4]) -> Words {
    let mut order = [0; LANES];
    let mut i = 0;
    while i < LANES {
        order[i] = (lines[i % 4] * 4 + i / 4) as u32;
        i += 1;
    }
    Words(order)
}

static LINE_WORDS: Words = words([0, 1, 2, 3]);
/// The same where the lower halves of two lines of bytes come before their upper halves.
static NIBBLE_WORDS: Words = words([0, 2, 1, 3]);

#[repr(align(64))]
struct Bytes([u8; 4 * LANES]);

static LANE_BYTES: Bytes = {
    let mut order = [0; 4 * LANES];
    let mut i = 0;
    while i < 4 * LANES {
        order[i] = (i % 4 * 4 + i / 4 % 4) as u8;
        i += 1;
    }
    Bytes(order)
};

/// Lanes of four bytes, one of each of four lines, which lie as `order` says.
#[inline(always)]
unsafe fn in_lanes(lines: __m512i, order: &Words) -> __m512i {
    // SAFETY: called below the feature check only.
    unsafe {
        let words = _mm512_loadu_si512(order.0.as_ptr().cast());
        let bytes = _mm512_loadu_si512(LANE_BYTES.0.as_ptr().cast());
        _mm512_shuffle_epi8(_mm512_permutexvar_epi32(words, lines), bytes)
    }
}

/// The lanes of two lines, taken in turn.
#[repr(align(64))]
struct Lanes16([u16; 2 * LANES]);

static SIDE_BY_SIDE: Lanes16 = {
    let mut order = [0; 2 * LANES];
    let mut i = 0;
    while i < 2 * LANES {
        order[i] = (i / 2 + i % 2 * LANES) as u16;
        i += 1;
    }
    Lanes16(order)
};

/// bf16 of -8 to 7, twice.
static NIBBLES: Lanes16 = {
    let mut numbers = [0; 2 * LANES];
    let mut i = 0;
    while i < 2 * LANES {
        numbers[i] = (((i % LANES) as f32 - 8.0).to_bits() >> 16) as u16;
        i += 1;
    }
    Lanes16(numbers)
};

// SAFETY (all blocks): `dispatch` checked the features, and the caller vouches for pointers.
impl<const HAS: u8> V16 for Avx512<HAS> {
    const REGISTERS: usize = 32;
    const COMPACT: bool = HAS == COMPACT;
    const PAIRS: bool = dots(HAS);
    /// The first of a pair in the lower half of a lane.
    type Pair = __m512i;
    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Out {
        // SAFETY: see the impl.
        unsafe {
            match HAS {
                DOTS => run_avx512_dots(kernel),
                COMPACT => run_avx512_compact(kernel),
                BYTE_DOTS => run_avx512_byte_dots(kernel),
                _ => run_avx512(kernel),
            }
        }
    }
    #[inline(always)]
    unsafe fn round_bf16(p: *const f32, to: *mut u16) {
        // SAFETY: see the impl.
        unsafe {
            if const { dots(HAS) } {
                let half = transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(p)));
                _mm256_storeu_si256(to.cast(), half);
            } else {
                for i in 0..LANES {
                    to.add(i).write(round_bf16(p.add(i).read()));
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn splat_pair(p: *const f32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn load_pair(p: *const f32) -> __m512i {
        // SAFETY: see the impl.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_pair(pair: __m512i, p: *mut f32) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_si512(p.cast(), pair) }
    }
    #[inline(always)]
    unsafe fn pair_bf16(p: *const u16) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let lines = _mm512_loadu_si512(p.cast());
            let sides = _mm512_loadu_si512(SIDE_BY_SIDE.0.as_ptr().cast());
            _mm512_permutexvar_epi16(sides, lines)
        }
    }
    #[inline(always)]
    unsafe fn pair_i8(p: *const u8) -> __m512i {
        // SAFETY: see the impl. A signed byte has at most eight significant bits, so the lower
        // half of its f32 is 0.
        unsafe {
            let number = |p: *const u8| {
                let wide = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()));
                _mm512_castps_si512(_mm512_cvtepi32_ps(wide))
            };
            let first = _mm512_srli_epi32::<16>(number(p));
            _mm512_or_si512(first, number(p.add(LANES)))
        }
    }
    #[inline(always)]
    unsafe fn pair_u4(p: *const u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let first = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
            let second = _mm512_slli_epi32::<12>(_mm512_and_si512(bytes, _mm512_set1_epi32(0xf0)));
            let numbers = _mm512_loadu_si512(NIBBLES.0.as_ptr().cast());
            _mm512_permutexvar_epi16(_mm512_or_si512(first, second), numbers)
        }
    }
    #[inline(always)]
    unsafe fn pairs_compact<const HALF: usize>(
        block: *const Block,
        exponents: &Exponents,
        others: *const u8,
    ) -> ([__m512i; 2], usize) {
        // SAFETY: see the impl; a block is three registers, and a register can be read at `others`.
        unsafe {
            if HAS != COMPACT {
                return pairs_of_lines::<Self, HALF>(block, exponents, others);
            }
            let at = |line: usize| _mm512_loadu_si512(block.cast::<__m512i>().add(line).cast());
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128((&raw const *exponents).cast()));
            let (rests, codes, low) = (at(HALF), at(2), _mm512_set1_epi8(OTHER as i8));
            let codes = match HALF {
                0 => _mm512_and_si512(codes, low),
                _ => _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low),
            };
            let mut exponents = _mm512_shuffle_epi8(table, codes);
            let mut taken = 0;
            let other = _mm512_cmpeq_epi8_mask(codes, low);
            if other != 0 {
                let next = _mm512_loadu_si512(others.cast());
                exponents = _mm512_mask_expand_epi8(exponents, other, next);
                taken = other.count_ones() as usize;
            }
            // An exponent above a significand above a sign, turned by one.
            let first = _mm512_unpacklo_epi8(rests, exponents);
            let second = _mm512_unpackhi_epi8(rests, exponents);
            let turned = |pair| _mm512_shrdi_epi16::<1>(pair, pair);
            ([turned(first), turned(second)], taken)
        }
    }
    #[inline(always)]
    unsafe fn dot(self, x: __m512i, w: __m512i) -> Self {
        // SAFETY: see the impl.
        unsafe {
            if const { dots(HAS) } {
                let (x, w) = (
                    transmute::<__m512i, __m512bh>(x),
                    transmute::<__m512i, __m512bh>(w),
                );
                return Self(_mm512_dpbf16_ps(self.0, x, w));
            }
            let first = |pair| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pair));
            let upper = _mm512_set1_epi32(0xffff_0000u32 as i32);
            let second = |pair| _mm512_castsi512_ps(_mm512_and_si512(pair, upper));
            let sum = _mm512_fmadd_ps(second(x), second(w), self.0);
            Self(_mm512_fmadd_ps(first(x), first(w), sum))
        }
    }
    /// Inputs as signed bytes; weights raised to 0 and above.
    type Quad = __m512i;
    #[inline(always)]
    unsafe fn quad_i8(p: *const u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let codes = _mm512_loadu_si512(p.cast());
            let above = _mm512_xor_si512(codes, _mm512_set1_epi8(i8::MIN));
            in_lanes(above, &LINE_WORDS)
        }
    }
    #[inline(always)]
    unsafe fn quad_u4(p: *const u8) -> __m512i {
        // SAFETY: see the impl.
        unsafe {
            let (bytes, low) = (_mm256_loadu_si256(p.cast()), _mm256_set1_epi8(15));
            let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low);
            let lower = _mm512_castsi256_si512(_mm256_and_si256(bytes, low));
            in_lanes(_mm512_inserti64x4::<1>(lower, upper), &NIBBLE_WORDS)
        }
    }
    #[inline(always)]
    unsafe fn begin_quads(raised: *const f32) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm512_castsi512_ps(Self::splat_pair(raised))) }
    }
    #[inline(always)]
    unsafe fn dot_quads(self, x: *const f32, w: __m512i, _part: usize) -> Self {
        // SAFETY: see the impl. Two products of a signed and an unsigned byte fit in 17 bits.
        unsafe {
            let x = Self::splat_pair(x);
            let sum = _mm512_castps_si512(self.0);
            if HAS == BYTE_DOTS {
                return Self(_mm512_castsi512_ps(_mm512_dpbusd_epi32(sum, w, x)));
            }
            let even = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(x));
            let first = _mm512_and_si512(w, _mm512_set1_epi16(255));
            let sum = _mm512_add_epi32(sum, _mm512_madd_epi16(even, first));
            let second = _mm512_srli_epi16::<8>(w);
            let odd = _mm512_madd_epi16(_mm512_srai_epi16::<8>(x), second);
            Self(_mm512_castsi512_ps(_mm512_add_epi32(sum, odd)))
        }
    }
    #[inline(always)]
    unsafe fn sum_of_quads(self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_castps_si512(self.0))) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the impl.
        Self(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see the impl.
        Self(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see the impl.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: see the impl.
        Self(unsafe {
            let half = _mm256_loadu_si256(p.cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(half)))
        })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: see the impl.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) })
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self {
        // SAFETY: see the impl.
        Self(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) })
    }
    #[inline(always)]
    unsafe fn load_u4(p: *const u8, shift: usize) -> Self {
        // SAFETY: see the impl.
        Self(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(nibbles(p, shift))) })
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        Self(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: see the impl.
        Self(unsafe { _mm512_add_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: see the impl.
        Self(unsafe { _mm512_sub_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: see the impl.
        Self(unsafe { _mm512_mul_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: see the impl.
        Self(unsafe { _mm512_div_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: see the impl.
        Self(unsafe { _mm512_max_ps(self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn select_lt(self, limit: Self, a: Self, b: Self) -> Self {
        // SAFETY: see the impl.
        Self(unsafe {
            let mask = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, limit.0);
            _mm512_mask_blend_ps(mask, b.0, a.0)
        })
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: see the impl.
        Self(unsafe {
            let n = _mm512_add_epi32(_mm512_castps_si512(self.0), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(n))
        })
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let (low, high) = halves(self.0);
            sum8(_mm256_add_ps(low, high))
        }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let (low, high) = halves(self.0);
            max8(_mm256_max_ps(high, low))
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8) {
        // SAFETY: see the impl; conversions round to nearest, ties to even.
        unsafe {
            let codes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(self.0));
            _mm_storeu_si128(p.cast(), codes);
        }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        // SAFETY: masked lanes are not read; the caller vouches for `n` values.
        Self(unsafe { _mm512_maskz_loadu_ps(mask(n), p) })
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        // SAFETY: masked lanes are not written; the caller vouches for `n` values.
        unsafe { _mm512_mask_storeu_ps(p, mask(n), self.0) }
    }
}

/// The lower and the upper eight lanes.
#[inline(always)]
unsafe fn halves(v: __m512) -> (__m256, __m256) {
    // SAFETY: called below the feature check only.
    unsafe {
        let high = _mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v));
        (_mm512_castps512_ps256(v), _mm256_castpd_ps(high))
    }
}

#[inline(always)]
fn mask(n: usize) -> u16 {
    debug_assert!(n <= LANES);
    ((1u32 << n) - 1) as u16
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c")]
pub(super) fn run_avx512<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx512<NOTHING_MORE>>()
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) fn run_avx512_dots<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx512<DOTS>>()
}

#[target_feature(
    enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx512vbmi2,avx2,fma,f16c,popcnt"
)]
pub(super) fn run_avx512_compact<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx512<COMPACT>>()
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) fn run_avx512_byte_dots<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx512<BYTE_DOTS>>()
}
