//! Tiles of AMX: registers of up to sixteen rows of 64 bytes, and products of bf16 between them.
//!
//! `dot` adds, per output, the products of even inputs in one sum and those of odd inputs in another,
//! both from 0, then the two to each other and to what the tile held: Intel's "Architecture
//! Instruction Set Extensions", TDPBF16PS. Subnormal numbers count as zero.
//!
//! No intrinsics are stable, so instructions are written out. A compiler never uses the registers
//! by itself.

use std::arch::asm;
use std::sync::OnceLock;
#[cfg(any(test, feature = "test-switches"))]
use std::sync::atomic::{AtomicBool, Ordering};

/// Most rows of a tile.
const TILE: usize = 16;
/// Bytes of a row.
const ROW: usize = 64;
/// The kernel's number of what tiles hold, and of the call that asks for it.
#[cfg(target_os = "linux")]
const TILE_DATA: libc::c_long = 18;
#[cfg(target_os = "linux")]
const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;

/// Whether this processor has tiles of bf16 and the system lets this process use them. Asks for it the
/// first time.
pub fn usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    #[cfg(any(test, feature = "test-switches"))]
    if CLAIMED.load(Ordering::Relaxed) {
        return true;
    }
    *USABLE.get_or_init(|| processor_has_them() && kept_by_the_system() && permitted())
}

/// Set by [`claim`].
#[cfg(any(test, feature = "test-switches"))]
static CLAIMED: AtomicBool = AtomicBool::new(false);

/// Makes [`usable`] true whatever the processor says. For emulators that execute the instructions in
/// the signal handler of an unknown one; without such a handler the process ends at the first tile.
#[cfg(any(test, feature = "test-switches"))]
pub fn claim() {
    CLAIMED.store(true, Ordering::Relaxed);
}

fn processor_has_them() -> bool {
    const BF16: u32 = 1 << 22;
    const TILES: u32 = 1 << 24;
    let (leaves, _) = std::arch::x86_64::__get_cpuid_max(0);
    let features = std::arch::x86_64::__cpuid_count(7, 0).edx;
    leaves >= 7 && features & (BF16 | TILES) == BF16 | TILES
}

/// Whether the system keeps tiles when it changes threads.
fn kept_by_the_system() -> bool {
    const XGETBV: u32 = 1 << 27;
    const TILES: u32 = 0b11 << 17;
    if std::arch::x86_64::__cpuid(1).ecx & XGETBV == 0 {
        return false;
    }
    let kept: u32;
    // SAFETY: the system has enabled the instruction.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") kept, out("edx") _, options(nomem, nostack, preserves_flags));
    }
    kept & TILES == TILES
}

/// Linux gives a process the room for tiles when it asks.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    // SAFETY: changes nothing but what threads of this process may use.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Rows and bytes a row of every tile.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tiles in use on this thread, until it is dropped: 0 to 3 are sums, 4 and 5 inputs with as many rows,
/// 6 and 7 weights.
pub struct Tiles(());

impl Tiles {
    /// # Safety
    /// There are tiles, `rows` is 1 to 16, and none are in use on this thread.
    #[inline(always)]
    pub unsafe fn with(rows: usize) -> Self {
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            bytes: [0; 16],
            rows: [0; 16],
        };
        for tile in 0..8 {
            config.bytes[tile] = ROW as u16;
            config.rows[tile] = if tile < 6 { rows } else { TILE } as u8;
        }
        // SAFETY: the configuration is whole and valid.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags));
        }
        Self(())
    }

    #[inline(always)]
    pub fn clear<const T: usize>(&self) {
        // SAFETY: the tile is configured.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, preserves_flags)) }
    }

    /// # Safety
    /// There are 64 bytes to read at `p` and at every `stride` bytes after it, one for each row.
    #[inline(always)]
    pub unsafe fn load<const T: usize>(&self, p: *const f32, stride: usize) {
        // SAFETY: the tile is configured, and the caller vouches for the bytes.
        unsafe {
            asm!(
                "tileloadd tmm{t}, [{p} + {stride}]",
                t = const T, p = in(reg) p, stride = in(reg) stride,
                options(nostack, preserves_flags, readonly)
            );
        }
    }

    /// # Safety
    /// As for [`Self::load`], to write.
    #[inline(always)]
    pub unsafe fn store<const T: usize>(&self, p: *mut f32, stride: usize) {
        // SAFETY: the tile is configured, and the caller vouches for the bytes.
        unsafe {
            asm!(
                "tilestored [{p} + {stride}], tmm{t}",
                t = const T, p = in(reg) p, stride = in(reg) stride,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Adds to the sums `SUMS` the products of the pairs in `X`, a row each, with those in `W`, sixteen
    /// outputs a row.
    #[inline(always)]
    pub fn dot<const SUMS: usize, const X: usize, const W: usize>(&self) {
        // SAFETY: the tiles are configured to fit each other.
        unsafe {
            asm!(
                "tdpbf16ps tmm{sums}, tmm{x}, tmm{w}",
                sums = const SUMS, x = const X, w = const W,
                options(nostack, preserves_flags)
            );
        }
    }
}

impl Drop for Tiles {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: they were configured. Without data in them a change of threads keeps none.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) }
    }
}
