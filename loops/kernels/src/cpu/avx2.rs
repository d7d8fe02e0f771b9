//! The AVX2 level.

use std::arch::x86_64::*;

use super::lines::LANES;
use super::vec16::{Kernel, V16};

const NOTHING_MORE: u8 = 0;
/// Dot products of bytes (AVX-VNNI).
const BYTE_DOTS: u8 = 1;

/// Two 256-bit registers: lanes 0..8 and 8..16; `HAS` names the instructions beyond AVX2 that
/// kernels of this type use.
#[derive(Clone, Copy)]
pub(super) struct Avx2<const HAS: u8>(__m256, __m256);

// SAFETY (all blocks): `dispatch` checked the features, and the caller vouches for pointers.
impl<const HAS: u8> V16 for Avx2<HAS> {
    const REGISTERS: usize = 8;
    widened_pairs!();
    const QUAD_PARTS: usize = if HAS == BYTE_DOTS { 1 } else { 2 };
    /// Weights, lanes 0..8 and 8..16. For dot products of bytes four, raised to 0 and above, in the first of these; else
    /// two numbers of sixteen bits in each.
    type Quad = [[__m256i; 2]; 2];
    #[inline(always)]
    unsafe fn quad_i8(p: *const u8) -> Self::Quad {
        // SAFETY: see the impl.
        unsafe {
            let lines = [0, 1, 2, 3].map(|i| _mm_loadu_si128(p.add(i * LANES).cast()));
            if HAS == BYTE_DOTS {
                let raised = lines.map(|codes| _mm_xor_si128(codes, _mm_set1_epi8(i8::MIN)));
                return [in_short_lanes(raised), [_mm256_setzero_si256(); 2]];
            }
            in_half_words(lines.map(|codes| _mm256_broadcastsi128_si256(codes)))
        }
    }
    #[inline(always)]
    unsafe fn quad_u4(p: *const u8) -> Self::Quad {
        // SAFETY: see the impl.
        unsafe {
            let lines = [0, LANES].map(|at| _mm_loadu_si128(p.add(at).cast()));
            if HAS == BYTE_DOTS {
                let low = |bytes| _mm_and_si128(bytes, _mm_set1_epi8(15));
                let [even, odd] = lines.map(|line| (low(line), low(_mm_srli_epi16::<4>(line))));
                let raised = [even.0, even.1, odd.0, odd.1];
                return [in_short_lanes(raised), [_mm256_setzero_si256(); 2]];
            }
            let [first, second] = lines.map(|line| _mm256_broadcastsi128_si256(line));
            let codes = [
                lower_codes(first),
                lower_codes(_mm256_srli_epi16::<4>(first)),
                lower_codes(second),
                lower_codes(_mm256_srli_epi16::<4>(second)),
            ];
            in_half_words(codes)
        }
    }
    #[inline(always)]
    unsafe fn begin_quads(raised: *const f32) -> Self {
        // SAFETY: see the impl.
        unsafe {
            match HAS {
                BYTE_DOTS => Self::splat(*raised),
                _ => Self::zero(),
            }
        }
    }
    #[inline(always)]
    unsafe fn dot_quads(self, x: *const f32, w: Self::Quad, part: usize) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            let [low, high] = w[part];
            Self(dot::<HAS>(self.0, x, low), dot::<HAS>(self.1, x, high))
        }
    }
    #[inline(always)]
    unsafe fn sum_of_quads(self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let whole = |sum| match HAS {
                BYTE_DOTS => _mm256_castps_si256(sum),
                _ => _mm256_srai_epi32::<8>(_mm256_castps_si256(sum)),
            };
            let number = |sum| _mm256_cvtepi32_ps(whole(sum));
            Self(number(self.0), number(self.1))
        }
    }
    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Out {
        // SAFETY: see the impl.
        unsafe {
            match HAS {
                BYTE_DOTS => run_avx2_byte_dots(kernel),
                _ => run_avx2(kernel),
            }
        }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see the impl.
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(widen(p), widen(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: see the impl.
        unsafe {
            Self(
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let numbers = |p: *const u8| {
                let bytes = _mm_loadl_epi64(p.cast());
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
            };
            Self(numbers(p), numbers(p.add(8)))
        }
    }
    #[inline(always)]
    unsafe fn load_u4(p: *const u8, shift: usize) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let codes = nibbles(p, shift);
            let numbers = |bytes| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
            Self(numbers(codes), numbers(_mm_srli_si128::<8>(codes)))
        }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            Self(
                _mm256_fmadd_ps(self.0, b.0, c.0),
                _mm256_fmadd_ps(self.1, b.1, c.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_sub_ps(self.0, b.0), _mm256_sub_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_div_ps(self.0, b.0), _mm256_div_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(_mm256_max_ps(self.0, b.0), _mm256_max_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn select_lt(self, limit: Self, a: Self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, limit.0);
            let high = _mm256_cmp_ps::<_CMP_LT_OQ>(self.1, limit.1);
            Self(
                _mm256_blendv_ps(b.0, a.0, low),
                _mm256_blendv_ps(b.1, a.1, high),
            )
        }
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: see the impl.
        unsafe { Self(pow2_8(self.0), pow2_8(self.1)) }
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8) {
        // SAFETY: see the impl; conversions round to nearest, ties to even.
        unsafe {
            let (low, high) = (_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
            // Packed within halves of registers, so the middle quarters change places.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(low, high));
            let (low, high) = (
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            _mm_storeu_si128(p.cast(), _mm_packs_epi16(low, high));
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see the impl.
        unsafe { sum8(_mm256_add_ps(self.0, self.1)) }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        // SAFETY: see the impl.
        unsafe { max8(_mm256_max_ps(self.1, self.0)) }
    }
}

#[inline(always)]
unsafe fn widen(p: *const u16) -> __m256 {
    // SAFETY: the caller vouches for eight values at `p`.
    unsafe {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
}

/// Half of each of sixteen bytes, minus 8.
#[inline(always)]
pub(super) unsafe fn nibbles(p: *const u8, shift: usize) -> __m128i {
    // SAFETY: the caller vouches for sixteen bytes at `p`, and calls below the feature check.
    unsafe {
        let bytes = _mm_loadu_si128(p.cast());
        let moved = _mm_srl_epi16(bytes, _mm_cvtsi64_si128(shift as i64));
        let codes = _mm_and_si128(moved, _mm_set1_epi8(15));
        _mm_sub_epi8(codes, _mm_set1_epi8(8))
    }
}

/// The lower halves of bytes, minus 8.
#[inline(always)]
unsafe fn lower_codes(bytes: __m256i) -> __m256i {
    // SAFETY: called below the feature check only.
    unsafe {
        let raised = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
        _mm256_sub_epi8(raised, _mm256_set1_epi8(8))
    }
}

/// Half of [`V16::dot_quads`].
#[inline(always)]
unsafe fn dot<const HAS: u8>(sum: __m256, x: __m256i, w: __m256i) -> __m256 {
    // SAFETY: called below the feature check only.
    unsafe {
        let sum = _mm256_castps_si256(sum);
        _mm256_castsi256_ps(match HAS {
            BYTE_DOTS => _mm256_dpbusd_avx_epi32(sum, w, x),
            _ => _mm256_add_epi32(sum, _mm256_madd_epi16(x, w)),
        })
    }
}

/// Two times lanes of two numbers of sixteen bits, each 256 times a signed byte: of the first two lines and of the
/// others. Lines lie in both halves of a register, so that nothing has to cross from one to the other.
#[inline(always)]
unsafe fn in_half_words(lines: [__m256i; 4]) -> [[__m256i; 2]; 2] {
    const NONE: i8 = -1;
    // SAFETY: called below the feature check only.
    unsafe {
        let upper = _mm256_setr_epi8(
            NONE, 0, NONE, 1, NONE, 2, NONE, 3, NONE, 4, NONE, 5, NONE, 6, NONE, 7, NONE, 8, NONE,
            9, NONE, 10, NONE, 11, NONE, 12, NONE, 13, NONE, 14, NONE, 15,
        );
        let [a, b, c, d] = lines;
        let beside = |a, b| {
            let bytes = [_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)];
            bytes.map(|bytes| _mm256_shuffle_epi8(bytes, upper))
        };
        [beside(a, b), beside(c, d)]
    }
}

/// Lanes of four bytes, one of each of four lines.
#[inline(always)]
unsafe fn in_short_lanes(lines: [__m128i; 4]) -> [__m256i; 2] {
    // SAFETY: called below the feature check only.
    unsafe {
        let [a, b, c, d] = lines;
        let (ab, cd) = (_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d));
        let first = _mm256_set_m128i(_mm_unpackhi_epi16(ab, cd), _mm_unpacklo_epi16(ab, cd));
        let (ab, cd) = (_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d));
        let second = _mm256_set_m128i(_mm_unpackhi_epi16(ab, cd), _mm_unpacklo_epi16(ab, cd));
        [first, second]
    }
}

#[inline(always)]
unsafe fn pow2_8(t: __m256) -> __m256 {
    // SAFETY: called below the feature check only.
    unsafe {
        let n = _mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n))
    }
}

/// The tree of [`V16::sum`] from eight lanes on.
#[inline(always)]
pub(super) unsafe fn sum8(v: __m256) -> f32 {
    // SAFETY: called below the feature check only.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// The tree of [`V16::max_lane`] from eight lanes on.
#[inline(always)]
pub(super) unsafe fn max8(v: __m256) -> f32 {
    // SAFETY: called below the feature check only.
    unsafe {
        let four = _mm_max_ps(_mm256_extractf128_ps::<1>(v), _mm256_castps256_ps128(v));
        let two = _mm_max_ps(_mm_movehl_ps(four, four), four);
        _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(two), two))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run_avx2<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx2<NOTHING_MORE>>()
}

/// Whether the processor has AVX-VNNI.
pub(super) fn has_byte_dots() -> bool {
    #[cfg(all(test, target_os = "linux"))]
    if crate::support::amx_emulator::has_byte_dots() {
        return true;
    }
    is_x86_feature_detected!("avxvnni")
}

#[target_feature(enable = "avx2,avxvnni,fma,f16c")]
pub(super) fn run_avx2_byte_dots<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx2<BYTE_DOTS>>()
}
