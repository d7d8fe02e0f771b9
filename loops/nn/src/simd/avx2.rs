//! The AVX2 level.

use std::arch::x86_64::*;

use super::{Kernel, LANES, V16};

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
    /// Inputs as signed bytes; weights raised to 0 and above.
    type Quad = [__m256i; 2];
    #[inline(always)]
    unsafe fn splat_quad(p: *const f32) -> Self::Quad {
        // SAFETY: see the impl.
        unsafe { [_mm256_set1_epi32(p.cast::<i32>().read_unaligned()); 2] }
    }
    #[inline(always)]
    unsafe fn quad_i8(p: *const u8) -> Self::Quad {
        // SAFETY: see the impl.
        unsafe {
            let line = |i| {
                let codes = _mm_loadu_si128(p.add(i * LANES).cast());
                _mm_xor_si128(codes, _mm_set1_epi8(i8::MIN))
            };
            in_short_lanes([line(0), line(1), line(2), line(3)])
        }
    }
    #[inline(always)]
    unsafe fn quad_u4(p: *const u8) -> Self::Quad {
        // SAFETY: see the impl.
        unsafe {
            let lines = [0, LANES].map(|at| _mm_loadu_si128(p.add(at).cast()));
            let low = |bytes| _mm_and_si128(bytes, _mm_set1_epi8(15));
            let [even, odd] = lines.map(|line| (low(line), low(_mm_srli_epi16::<4>(line))));
            in_short_lanes([even.0, even.1, odd.0, odd.1])
        }
    }
    #[inline(always)]
    unsafe fn begin_quads(raised: *const f32) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let [low, high] = Self::splat_quad(raised).map(|sum| _mm256_castsi256_ps(sum));
            Self(low, high)
        }
    }
    #[inline(always)]
    unsafe fn dot_quads(self, x: Self::Quad, w: Self::Quad) -> Self {
        // SAFETY: see the impl.
        unsafe {
            Self(
                dot::<HAS>(self.0, x[0], w[0]),
                dot::<HAS>(self.1, x[1], w[1]),
            )
        }
    }
    #[inline(always)]
    unsafe fn sum_of_quads(self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            let number = |sum| _mm256_cvtepi32_ps(_mm256_castps_si256(sum));
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

/// Half of [`V16::dot_quads`].
#[inline(always)]
unsafe fn dot<const HAS: u8>(sum: __m256, x: __m256i, w: __m256i) -> __m256 {
    // SAFETY: called below the feature check only. Two products of a signed and an unsigned byte fit
    // in 17 bits.
    unsafe {
        let sum = _mm256_castps_si256(sum);
        if HAS == BYTE_DOTS {
            return _mm256_castsi256_ps(_mm256_dpbusd_avx_epi32(sum, w, x));
        }
        let even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x));
        let first = _mm256_and_si256(w, _mm256_set1_epi16(255));
        let sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, first));
        let (odd, second) = (_mm256_srai_epi16::<8>(x), _mm256_srli_epi16::<8>(w));
        _mm256_castsi256_ps(_mm256_add_epi32(sum, _mm256_madd_epi16(odd, second)))
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
    if super::tiles::emulator::has_byte_dots() {
        return true;
    }
    is_x86_feature_detected!("avxvnni")
}

#[target_feature(enable = "avx2,avxvnni,fma,f16c")]
pub(super) fn run_avx2_byte_dots<K: Kernel>(kernel: K) -> K::Out {
    kernel.run::<Avx2<BYTE_DOTS>>()
}
