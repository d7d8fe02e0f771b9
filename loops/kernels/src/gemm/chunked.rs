//! Weights as products in chunks take them: pairs of bf16, a chunk at a time from a panel's first to its last.

use super::{Bf16Pairs, CodeSums, Factors, Pairs, Source, Staging};
use crate::cpu::{Kernel, LANES, Line, V16, dispatch_compact, dispatch_dots, fetch_line};
use crate::format::exponent_coded;
use crate::format::exponent_coded::{BLOCK_STEPS, CompactPanels};

/// Steps of a chunk: a step is two inputs.
pub(super) const CHUNK: usize = 16;
/// Most rows of a tile.
pub const TILE_ROWS: usize = 16;
/// How far ahead of a panel of bf16 is asked for what comes.
const AHEAD_BYTES: usize = 4 << 10;

/// Weights that become pairs chunk by chunk, from a panel's first to its last.
pub trait Chunked: Copy {
    /// Whether the sum of a chunk is scaled.
    const SCALED: bool;
    /// Where in a panel the next chunk is.
    type Walk: Copy;
    /// Before the first chunk of a panel.
    ///
    /// # Safety
    /// It is a panel of this source.
    unsafe fn walk(&self, panel: usize) -> Self::Walk;
    /// Leaves so many steps at `to`, a line each.
    ///
    /// # Safety
    /// As for the methods of [`V16`]; the panel has these steps, and `to` has room for them.
    unsafe fn next<V: V16>(&self, walk: &mut Self::Walk, steps: usize, to: *mut f32);
    /// Scale of a chunk, where it has one.
    ///
    /// # Safety
    /// As for the methods of [`V16`]; the panel has this chunk.
    unsafe fn scale_of<V: V16>(&self, panel: usize, chunk: usize) -> V;
    /// Runs a kernel with such weights at the current level.
    fn dispatch<K: Kernel>(kernel: K) -> K::Out {
        dispatch_dots(kernel)
    }
}

/// Pairs of a source, from a step on.
#[inline(always)]
unsafe fn lines_of<V: V16, S: Source<Factors = Pairs>>(
    source: &S,
    (panel, first): &mut (S::Panel, usize),
    steps: usize,
    to: *mut f32,
) {
    // SAFETY: as for `Chunked::next`.
    unsafe {
        for line in 0..steps {
            let pair = source.load::<V>(*panel, *first + line, V::zero());
            Pairs::store::<V>(pair, to.add(line * LANES));
        }
    }
    *first += steps;
}

impl Chunked for Bf16Pairs {
    const SCALED: bool = false;
    type Walk = (*const u16, usize);
    #[inline(always)]
    unsafe fn walk(&self, panel: usize) -> Self::Walk {
        // SAFETY: same contract.
        unsafe { (self.panel(panel), 0) }
    }
    #[inline(always)]
    unsafe fn next<V: V16>(&self, walk: &mut Self::Walk, steps: usize, to: *mut f32) {
        let ahead = walk.0.wrapping_add(walk.1 * 2 * LANES);
        for line in 0..steps {
            let line = ahead.cast::<Line>().wrapping_add(line).cast::<u8>();
            fetch_line::<1>(line.wrapping_add(AHEAD_BYTES));
        }
        // SAFETY: same contract.
        unsafe { lines_of::<V, _>(self, walk, steps, to) };
    }
    #[inline(always)]
    unsafe fn scale_of<V: V16>(&self, _panel: usize, _chunk: usize) -> V {
        // SAFETY: same contract.
        unsafe { V::zero() }
    }
}

impl<const BITS: usize> Chunked for CodeSums<Pairs, BITS> {
    const SCALED: bool = true;
    type Walk = (<Self as Source>::Panel, usize);
    #[inline(always)]
    unsafe fn walk(&self, panel: usize) -> Self::Walk {
        // SAFETY: same contract.
        unsafe { (self.panel(panel), 0) }
    }
    #[inline(always)]
    unsafe fn next<V: V16>(&self, walk: &mut Self::Walk, steps: usize, to: *mut f32) {
        let of_line = size_of::<Line>() * 8 / (Pairs::INPUTS * LANES * BITS);
        for step in (0..steps).step_by(of_line) {
            self.fetch(walk.0, walk.1 + step);
        }
        // SAFETY: same contract.
        unsafe { lines_of::<V, _>(self, walk, steps, to) };
    }
    #[inline(always)]
    unsafe fn scale_of<V: V16>(&self, panel: usize, chunk: usize) -> V {
        // SAFETY: same contract; a chunk is a group.
        unsafe { self.scale(self.panel(panel), chunk) }
    }
}

impl<'a> Chunked for CompactPanels<'a> {
    const SCALED: bool = false;
    type Walk = exponent_coded::Walk<'a>;
    #[inline(always)]
    unsafe fn walk(&self, panel: usize) -> Self::Walk {
        exponent_coded::Walk::of(*self, panel)
    }
    #[inline(always)]
    unsafe fn next<V: V16>(&self, walk: &mut Self::Walk, steps: usize, to: *mut f32) {
        for first in (0..steps).step_by(BLOCK_STEPS) {
            // SAFETY: same contract; a panel has whole blocks.
            unsafe { walk.next::<V>(to.add(first * LANES)) };
        }
    }
    #[inline(always)]
    unsafe fn scale_of<V: V16>(&self, _panel: usize, _chunk: usize) -> V {
        // SAFETY: same contract.
        unsafe { V::zero() }
    }
    fn dispatch<K: Kernel>(kernel: K) -> K::Out {
        dispatch_compact(kernel)
    }
}
