//! The portable form: the definition every other level must match bit for bit; and what levels share that
//! have no products of pairs or quads.

use super::lines::LANES;
use super::vec16::{Kernel, V16};

/// The methods on pairs for a level that has no dot products of bf16: a pair is two vectors.
macro_rules! widened_pairs {
    () => {
        type Pair = (Self, Self);
        #[inline(always)]
        unsafe fn round_bf16(p: *const f32, to: *mut u16) {
            for i in 0..LANES {
                // SAFETY: the caller vouches for sixteen values at either pointer.
                unsafe {
                    to.add(i)
                        .write(crate::cpu::portable::round_bf16(p.add(i).read()))
                };
            }
        }
        #[inline(always)]
        unsafe fn splat_pair(p: *const f32) -> Self::Pair {
            // SAFETY: the caller vouches for four bytes at `p`.
            unsafe {
                let bits = p.cast::<u32>().read_unaligned();
                let (first, second) = (bits << 16, bits & 0xffff_0000);
                (
                    Self::splat(f32::from_bits(first)),
                    Self::splat(f32::from_bits(second)),
                )
            }
        }
        #[inline(always)]
        unsafe fn load_pair(p: *const f32) -> Self::Pair {
            // SAFETY: the caller vouches for sixteen pairs at `p`.
            unsafe {
                let bits = p.cast::<[u32; LANES]>().read_unaligned();
                let (first, second) = (bits.map(|b| b << 16), bits.map(|b| b & 0xffff_0000));
                (
                    Self::load(first.as_ptr().cast()),
                    Self::load(second.as_ptr().cast()),
                )
            }
        }
        #[inline(always)]
        unsafe fn store_pair(pair: Self::Pair, p: *mut f32) {
            let (mut first, mut second) = ([0u32; LANES], [0u32; LANES]);
            // SAFETY: the caller vouches for sixteen pairs at `p`; the arrays hold sixteen values.
            unsafe {
                pair.0.store(first.as_mut_ptr().cast());
                pair.1.store(second.as_mut_ptr().cast());
                for i in 0..LANES {
                    let bits = first[i] >> 16 | second[i] & 0xffff_0000;
                    p.cast::<u32>().add(i).write_unaligned(bits);
                }
            }
        }
        #[inline(always)]
        unsafe fn pair_bf16(p: *const u16) -> Self::Pair {
            // SAFETY: the caller vouches for two lines.
            unsafe { (Self::load_bf16(p), Self::load_bf16(p.add(LANES))) }
        }
        #[inline(always)]
        unsafe fn pair_i8(p: *const u8) -> Self::Pair {
            // SAFETY: the caller vouches for two lines.
            unsafe { (Self::load_i8(p), Self::load_i8(p.add(LANES))) }
        }
        #[inline(always)]
        unsafe fn pair_u4(p: *const u8) -> Self::Pair {
            // SAFETY: the caller vouches for sixteen bytes.
            unsafe { (Self::load_u4(p, 0), Self::load_u4(p, 4)) }
        }
        #[inline(always)]
        unsafe fn dot(self, x: Self::Pair, w: Self::Pair) -> Self {
            // SAFETY: same contract.
            unsafe { x.0.fma(w.0, x.1.fma(w.1, self)) }
        }
    };
}

/// The methods on quads for a level that has no dot products of bytes: a quad is four vectors, and
/// sums are numbers.
macro_rules! widened_quads {
    () => {
        type Quad = [Self; 4];
        #[inline(always)]
        unsafe fn quad_i8(p: *const u8) -> Self::Quad {
            // SAFETY: the caller vouches for four lines.
            unsafe {
                [
                    Self::load_i8(p),
                    Self::load_i8(p.add(LANES)),
                    Self::load_i8(p.add(2 * LANES)),
                    Self::load_i8(p.add(3 * LANES)),
                ]
            }
        }
        #[inline(always)]
        unsafe fn quad_u4(p: *const u8) -> Self::Quad {
            // SAFETY: the caller vouches for two lines.
            unsafe {
                [
                    Self::load_u4(p, 0),
                    Self::load_u4(p, 4),
                    Self::load_u4(p.add(LANES), 0),
                    Self::load_u4(p.add(LANES), 4),
                ]
            }
        }
        #[inline(always)]
        unsafe fn begin_quads(_raised: *const f32) -> Self {
            // SAFETY: same contract.
            unsafe { Self::zero() }
        }
        #[inline(always)]
        unsafe fn dot_quads(self, x: *const f32, w: Self::Quad, _part: usize) -> Self {
            // SAFETY: same contract.
            unsafe {
                let codes = x.cast::<[i8; 4]>().read();
                let x = codes.map(|code| Self::splat(f32::from(code)));
                x[3].fma(w[3], x[2].fma(w[2], x[1].fma(w[1], x[0].fma(w[0], self))))
            }
        }
        #[inline(always)]
        unsafe fn sum_of_quads(self) -> Self {
            self
        }
    };
}

/// The bf16 nearest to `x`, as [`V16::round_bf16`] has it.
pub(super) fn round_bf16(x: f32) -> u16 {
    let x = if x.is_subnormal() {
        0.0f32.copysign(x)
    } else {
        x
    };
    half::bf16::from_f32(x).to_bits()
}

#[derive(Clone, Copy)]
pub(super) struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], b.0[i])))
    }
}

impl V16 for Portable {
    const REGISTERS: usize = 4;
    widened_pairs!();
    widened_quads!();
    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Out {
        kernel.run::<Self>()
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; LANES])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller vouches for sixteen values at `p`.
        Self(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller vouches for sixteen values at `p`.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller vouches for sixteen values at `p`.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Self(bits.map(|b| f32::from_bits(u32::from(b) << 16)))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: the caller vouches for sixteen values at `p`.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Self(bits.map(|b| half::f16::from_bits(b).to_f32()))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self {
        // SAFETY: the caller vouches for sixteen bytes at `p`.
        let codes = unsafe { p.cast::<[i8; LANES]>().read_unaligned() };
        Self(codes.map(f32::from))
    }
    #[inline(always)]
    unsafe fn load_u4(p: *const u8, shift: usize) -> Self {
        // SAFETY: the caller vouches for sixteen bytes at `p`.
        let codes = unsafe { p.cast::<[u8; LANES]>().read_unaligned() };
        Self(codes.map(|c| f32::from((c >> shift) & 15) - 8.0))
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        self.zip(b, |x, y| x + y)
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        self.zip(b, |x, y| x - y)
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        self.zip(b, |x, y| x * y)
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        self.zip(b, |x, y| x / y)
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        self.zip(b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    unsafe fn select_lt(self, limit: Self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| {
            if self.0[i] < limit.0[i] {
                a.0[i]
            } else {
                b.0[i]
            }
        }))
    }
    #[inline(always)]
    unsafe fn pow2(self) -> Self {
        Self(
            self.0
                .map(|t| f32::from_bits(t.to_bits().wrapping_add(127).wrapping_shl(23))),
        )
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut lanes = self.0;
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
        }
        lanes[0]
    }
}
