//! Sixteen f32 lanes at instruction levels that give the same bits.
//!
//! A kernel is written once over [`V16`] and run through [`dispatch`], which picks the widest level
//! the processor has: AVX-512 or AVX2 on x86-64, NEON on 64-bit ARM, the portable form elsewhere.
//! Only fused multiply-add, plain IEEE operations and fixed reduction trees are used, so every level
//! computes identical results; a test forces each level and compares bits.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

pub mod exponent_block;
mod lines;
pub mod vec16;

pub use self::lines::*;
pub use self::vec16::*;
#[macro_use]
mod portable;
#[cfg(target_arch = "x86_64")]
pub mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

/// An instruction level. Ordered from the widest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimdLevel {
    Avx512,
    Avx2,
    Neon,
    Portable,
}

static LEVEL: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = u8::MAX;

impl SimdLevel {
    /// Every level, of whatever processor, in their order.
    pub const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// Whether this processor can run the level.
    pub fn supported(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("f16c")
                    && is_x86_feature_detected!("fma")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
            Self::Neon => cfg!(target_arch = "aarch64"),
            Self::Portable => true,
        }
    }

    /// The widest level that this processor can run.
    fn best() -> Self {
        let best = Self::ALL.into_iter().find(|level| level.supported());
        best.expect("the portable level is always supported")
    }

    /// The level kernels run at.
    pub fn current() -> Self {
        let known = LEVEL.load(Ordering::Relaxed);
        Self::ALL
            .get(usize::from(known))
            .copied()
            .unwrap_or_else(|| {
                let best = Self::best();
                LEVEL.store(best as u8, Ordering::Relaxed);
                best
            })
    }

    /// Makes every kernel of the process run at `self`; false (and no change) when the processor
    /// cannot. Results are the same at every level, so this is safe at any time; it exists to
    /// check exactly that.
    #[cfg(any(test, feature = "test-switches"))]
    pub fn force(self) -> bool {
        let supported = self.supported();
        if supported {
            LEVEL.store(self as u8, Ordering::Relaxed);
        }
        supported
    }
}

/// Runs a kernel at the current level.
#[inline]
pub fn dispatch<K: Kernel>(kernel: K) -> K::Out {
    // SAFETY: `current` only names levels that the processor can run.
    unsafe { run_at(SimdLevel::current(), kernel) }
}

/// Runs a kernel at a level.
///
/// # Safety
/// The level is supported.
#[inline]
unsafe fn run_at<K: Kernel>(level: SimdLevel, kernel: K) -> K::Out {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the features.
        SimdLevel::Avx512 => unsafe { avx512::run_avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        SimdLevel::Avx2 => unsafe { avx2::run_avx2(kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above; there is no processor of this architecture without them.
        SimdLevel::Neon => unsafe { neon::run_neon(kernel) },
        _ => kernel.run::<portable::Portable>(),
    }
}

/// Whether the processor has dot products of bf16 at the current level. Elsewhere they are computed
/// by two multiply-adds, which is only good for checking them.
pub fn has_dots() -> bool {
    #[cfg(target_arch = "x86_64")]
    return SimdLevel::current() == SimdLevel::Avx512 && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether the processor has products of tiles of bf16 at the current level. Elsewhere they are
/// computed in vectors, which is only good for checking them.
pub fn has_tiles() -> bool {
    #[cfg(target_arch = "x86_64")]
    return SimdLevel::current() == SimdLevel::Avx512 && amx::usable() && !PLAINLY.get();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

thread_local! {
    static PLAINLY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` as where there are no tiles and no dot products of bytes, as far as it stays on this
/// thread: what else computes the same is for checking them.
pub fn plainly<T>(f: impl FnOnce() -> T) -> T {
    let before = PLAINLY.replace(true);
    let result = f();
    PLAINLY.set(before);
    result
}

/// Runs a kernel that computes dot products of bf16 at the current level.
#[inline]
pub fn dispatch_dots<K: Kernel>(kernel: K) -> K::Out {
    #[cfg(target_arch = "x86_64")]
    if has_dots() {
        // SAFETY: the features were detected.
        return unsafe { avx512::run_avx512_dots(kernel) };
    }
    dispatch(kernel)
}

/// Whether the processor has what makes pairs of compact weights quickly, at the current level.
pub fn has_compact() -> bool {
    #[cfg(target_arch = "x86_64")]
    return has_dots()
        && is_x86_feature_detected!("avx512vbmi2")
        && is_x86_feature_detected!("popcnt")
        && !PLAINLY.get();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Runs a kernel that computes dot products of compact weights at the current level.
#[inline]
pub fn dispatch_compact<K: Kernel>(kernel: K) -> K::Out {
    #[cfg(target_arch = "x86_64")]
    if has_compact() {
        // SAFETY: the features were detected.
        return unsafe { avx512::run_avx512_compact(kernel) };
    }
    dispatch_dots(kernel)
}

/// Whether products of bytes are quicker than those of f32 at the current level: where there are dot products of
/// them, and with AVX2, which multiplies twice as many numbers of sixteen bits as f32.
pub fn has_quick_bytes() -> bool {
    has_byte_dots() || SimdLevel::current() == SimdLevel::Avx2
}

/// Whether the processor has dot products of bytes at the current level. Elsewhere they are computed by
/// other instructions.
pub fn has_byte_dots() -> bool {
    #[cfg(target_arch = "x86_64")]
    return match SimdLevel::current() {
        SimdLevel::Avx512 => is_x86_feature_detected!("avx512vnni"),
        SimdLevel::Avx2 => avx2::has_byte_dots(),
        SimdLevel::Neon | SimdLevel::Portable => false,
    };
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Runs a kernel that multiplies bytes at the current level: by dot products of them where the processor has
/// those, else by other instructions.
#[inline]
pub fn dispatch_bytes<K: Kernel>(kernel: K) -> K::Out {
    #[cfg(target_arch = "x86_64")]
    if has_byte_dots() && !PLAINLY.get() {
        // SAFETY: the features were detected.
        return unsafe {
            match SimdLevel::current() {
                SimdLevel::Avx512 => avx512::run_avx512_byte_dots(kernel),
                _ => avx2::run_avx2_byte_dots(kernel),
            }
        };
    }
    dispatch(kernel)
}

/// Runs a kernel at the level that sums up products of bytes in two parts ([`V16::QUAD_PARTS`]), unless the current
/// one is another.
#[inline]
pub fn dispatch_halves<K: Kernel>(kernel: K) -> Option<K::Out> {
    #[cfg(target_arch = "x86_64")]
    if SimdLevel::current() == SimdLevel::Avx2 && (!has_byte_dots() || PLAINLY.get()) {
        // SAFETY: the processor has the level.
        return Some(unsafe { avx2::run_avx2(kernel) });
    }
    drop(kernel);
    None
}

#[cfg(test)]
mod tests;
