//! Products of bf16 in chunks of 32 inputs, as tiles of AMX compute them.
//!
//! A chunk's even inputs are one sum and its odd inputs another, both from 0, with fused
//! multiply-add; their sum is added to the output, or scaled first where weights are codes. Chunks
//! are ascending, and missing inputs of the last one are zeros. Where there are no tiles the same is
//! computed in vectors, two steps for one, to check them.

use std::cell::RefCell;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::amx::{ACROSS, stage_floats};
use super::{At, Bf16Pairs, CodeSums, Epilogue, Factors, Gemm, Pairs, Source, Staging, load_some};
#[cfg(target_arch = "x86_64")]
use crate::cpu::{
    Buf, Kernel, LANES, Line, V16, dispatch_compact, dispatch_dots, fetch_line, has_tiles,
};
use crate::format::exponent_coded;
use crate::format::exponent_coded::{BLOCK_STEPS, CompactPanels};
use crate::thread_pool::Executor;

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

impl<S: Chunked> Gemm<S> {
    /// As [`Gemm::run_on`], in chunks.
    ///
    /// # Safety
    /// As for [`Gemm::run_on`]; rows of `x` are zero behind their last pair up to whole chunks, and
    /// there are [`TILE_ROWS`] less one more of them to read.
    pub unsafe fn run_in_chunks(&self, exec: &Executor) {
        self.split(exec, (self.rows, TOGETHER), |rows, panels| {
            STAGE.with_borrow_mut(|stage| {
                #[cfg(target_arch = "x86_64")]
                stage.take(stage_floats(self.k, rows.len()));
                S::dispatch(Chunks {
                    product: self,
                    rows,
                    panels,
                    stage: stage.as_mut().as_mut_ptr(),
                });
            });
        });
    }

    /// Rows and panels one by one, in vectors.
    #[inline(always)]
    unsafe fn chunks_in_vectors<V: V16>(&self, rows: Range<usize>, panels: Range<usize>) {
        for row in rows {
            for panel in panels.clone() {
                let at = At {
                    row,
                    panel,
                    mr: 1,
                    nr: 1,
                };
                // SAFETY: the output is one of the product's, and the panel has these steps.
                unsafe {
                    let (y, valid) = self.output(&at, 0, 0);
                    let mut sum = match self.out {
                        Epilogue::Continue => load_some::<V>(y, valid),
                        _ => V::zero(),
                    };
                    let mut walk = self.src.walk(panel);
                    let mut lines = [Line([0.0; LANES]); CHUNK];
                    for first in (0..self.k).step_by(CHUNK) {
                        let lines = &mut lines[..CHUNK.min(self.k - first)];
                        let to = lines.as_mut_ptr().cast::<f32>();
                        self.src.next::<V>(&mut walk, lines.len(), to);
                        sum = self.chunk(&at, first, lines, sum);
                    }
                    self.leave(&at, (0, 0), sum);
                }
            }
        }
    }

    /// `sum` and the chunk of `weights` from step `first` on.
    #[inline(always)]
    unsafe fn chunk<V: V16>(&self, at: &At, first: usize, weights: &[Line], sum: V) -> V {
        // SAFETY: the panel and the row have these steps.
        unsafe {
            let (mut even, mut odd) = (V::zero(), V::zero());
            for (i, line) in weights.iter().enumerate() {
                let pair = (*self.x.add(at.row * self.xm + first + i)).to_bits();
                let halves = [pair & 0xffff, pair & 0xffff_0000].map(f32::from_bits);
                let w = V::load_pair(line.0.as_ptr());
                even = even.dot(V::splat_pair(&halves[0]), w);
                odd = odd.dot(V::splat_pair(&halves[1]), w);
            }
            let both = even.add(odd);
            match S::SCALED {
                true => {
                    let scale = self.src.scale_of::<V>(at.panel, first / CHUNK);
                    scale.fma(both, sum)
                }
                false => sum.add(both),
            }
        }
    }
}

/// Panels that one thread has side by side.
#[cfg(target_arch = "x86_64")]
const TOGETHER: usize = ACROSS;
#[cfg(not(target_arch = "x86_64"))]
const TOGETHER: usize = 1;

thread_local! {
    /// Weights of some panels as tiles take them.
    static STAGE: RefCell<Buf> = RefCell::new(Buf::default());
}

/// A part of a product.
struct Chunks<'a, S> {
    product: &'a Gemm<S>,
    rows: Range<usize>,
    panels: Range<usize>,
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    stage: *mut f32,
}

impl<S: Chunked> Kernel for Chunks<'_, S> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        if self.rows.is_empty() {
            return;
        }
        // SAFETY: made by `run_in_chunks`, whose caller vouches for the pointers.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if V::WIDE && has_tiles() {
                let Self { rows, panels, .. } = self;
                return self.product.chunks_in_tiles::<V>(rows, panels, self.stage);
            }
            self.product.chunks_in_vectors::<V>(self.rows, self.panels);
        }
    }
}

/// So many multiply-adds in tiles, rounded up; false where there are none.
pub fn multiply(count: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    if has_tiles() {
        super::amx::multiply(count);
        return true;
    }
    let _ = count;
    false
}
