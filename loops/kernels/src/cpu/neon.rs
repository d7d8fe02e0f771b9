//! The NEON level, which every 64-bit ARM processor has.

use std::arch::aarch64::*;

use super::lines::LANES;
use super::vec16::V16;

/// Four 128-bit registers: lanes 0..4, 4..8, 8..12 and 12..16.
#[derive(Clone, Copy)]
pub(super) struct Neon(float32x4_t, float32x4_t, float32x4_t, float32x4_t);

impl Neon {
    #[inline(always)]
    fn each(f: impl Fn(usize) -> float32x4_t) -> Self {
        Self(f(0), f(1), f(2), f(3))
    }

    #[inline(always)]
    fn map(self, f: impl Fn(float32x4_t) -> float32x4_t) -> Self {
        Self(f(self.0), f(self.1), f(self.2), f(self.3))
    }

    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        Self(
            f(self.0, b.0),
            f(self.1, b.1),
            f(self.2, b.2),
            f(self.3, b.3),
        )
    }
}

// Pairs are widened and take two multiply-adds: the dot products of bf16 that some of these processors
// have (BFDOT) add the two products to each other first and round both sums to odd, which is another
// number than `V16::dot` asks for.
//
// SAFETY (all blocks): every processor of this architecture has the instructions, and the caller
// vouches for pointers.
impl V16 for Neon {
    const REGISTERS: usize = 8;
    widened_pairs!();
    widened_quads!();
    #[inline(always)]
    unsafe fn call<K: super::Kernel>(kernel: K) -> K::Out {
        // SAFETY: see the impl.
        unsafe { run_neon(kernel) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: see the impl.
        Self::each(|_| unsafe { vdupq_n_f32(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: see the impl.
        Self::each(|i| unsafe { vld1q_f32(p.add(4 * i)) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: see the impl.
        unsafe {
            vst1q_f32(p, self.0);
            vst1q_f32(p.add(4), self.1);
            vst1q_f32(p.add(8), self.2);
            vst1q_f32(p.add(12), self.3);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: see the impl.
        Self::each(|i| unsafe {
            let half = vld1_u16(p.add(4 * i));
            vreinterpretq_f32_u32(vshll_n_u16::<16>(half))
        })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: see the impl.
        Self::each(|i| unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.add(4 * i)))) })
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self {
        // SAFETY: see the impl.
        unsafe { signed_bytes(vld1q_s8(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_u4(p: *const u8, shift: usize) -> Self {
        // SAFETY: see the impl. A shift to the left by less than 0 is one to the right. Taken from a
        // table, a number is not computed again for every four lanes.
        unsafe {
            let moved = vshlq_u8(vld1q_u8(p), vdupq_n_s8(-(shift as i8)));
            let codes = vandq_u8(moved, vdupq_n_u8(15));
            signed_bytes(vqtbl1q_s8(vld1q_s8(NIBBLES.as_ptr()), codes))
        }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            Self(
                vfmaq_f32(c.0, self.0, b.0),
                vfmaq_f32(c.1, self.1, b.1),
                vfmaq_f32(c.2, self.2, b.2),
                vfmaq_f32(c.3, self.3, b.3),
            )
        }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        // SAFETY: see the impl.
        self.zip(b, |x, y| unsafe { vaddq_f32(x, y) })
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        // SAFETY: see the impl.
        self.zip(b, |x, y| unsafe { vsubq_f32(x, y) })
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        // SAFETY: see the impl.
        self.zip(b, |x, y| unsafe { vmulq_f32(x, y) })
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        // SAFETY: see the impl.
        self.zip(b, |x, y| unsafe { vdivq_f32(x, y) })
    }
    /// Not FMAX, which has another answer for NaN and for zeros of two signs.
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        // SAFETY: see the impl.
        self.zip(b, |x, y| unsafe { vbslq_f32(vcgtq_f32(x, y), x, y) })
    }
    #[inline(always)]
    unsafe fn select_lt(self, limit: Self, a: Self, b: Self) -> Self {
        // SAFETY: see the impl.
        unsafe {
            Self(
                vbslq_f32(vcltq_f32(self.0, limit.0), a.0, b.0),
                vbslq_f32(vcltq_f32(self.1, limit.1), a.1, b.1),
                vbslq_f32(vcltq_f32(self.2, limit.2), a.2, b.2),
                vbslq_f32(vcltq_f32(self.3, limit.3), a.3, b.3),
            )
        }
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        // SAFETY: see the impl.
        self.map(|t| unsafe {
            let n = vaddq_u32(vreinterpretq_u32_f32(t), vdupq_n_u32(127));
            vreinterpretq_f32_u32(vshlq_n_u32::<23>(n))
        })
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: see the impl.
        unsafe {
            let four = vaddq_f32(vaddq_f32(self.0, self.2), vaddq_f32(self.1, self.3));
            vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        }
    }
}

/// Codes of four bits as numbers.
static NIBBLES: [i8; LANES] = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7];

#[inline(always)]
unsafe fn signed_bytes(bytes: int8x16_t) -> Neon {
    // SAFETY: registers only.
    unsafe {
        let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
        Neon(
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
            vcvtq_f32_s32(vmovl_high_s16(low)),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
            vcvtq_f32_s32(vmovl_high_s16(high)),
        )
    }
}

#[target_feature(enable = "neon")]
pub(super) fn run_neon<K: super::Kernel>(kernel: K) -> K::Out {
    kernel.run::<Neon>()
}
