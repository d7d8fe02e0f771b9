//! Products of bf16 in chunks of 32 inputs, as tiles of AMX compute them.
//!
//! A chunk's even inputs are one sum and its odd inputs another, both from 0, with fused
//! multiply-add; their sum is added to the output, or scaled first where weights are codes. Chunks
//! are ascending, and missing inputs of the last one are zeros. Where there are no tiles the same is
//! computed in vectors, two steps for one, to check them.

use std::cell::RefCell;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::tiles::stage_floats;
use super::{At, Epilogue, Gemm, Pairs, Source, load_some};
use crate::exec::Executor;
#[cfg(target_arch = "x86_64")]
use crate::simd::has_tiles;
use crate::simd::{Buf, Kernel, V16, dispatch_dots};

/// Steps of a chunk: a step is two inputs.
pub(super) const CHUNK: usize = 16;
/// Most rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;

impl<S: Source<Factors = Pairs>> Gemm<S> {
    /// As [`Self::run_on`], in chunks.
    ///
    /// # Safety
    /// As for [`Self::run_on`]; rows of `x` are zero behind their last pair up to whole chunks, and
    /// there are [`TILE_ROWS`] less one more of them to read.
    pub(crate) unsafe fn run_in_chunks(&self, exec: &Executor) {
        self.split(exec, (self.rows, 1), |rows, panels| {
            STAGE.with_borrow_mut(|stage| {
                #[cfg(target_arch = "x86_64")]
                stage.take(stage_floats(self.k));
                dispatch_dots(Chunks {
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
                // SAFETY: the output is one of the product's.
                unsafe {
                    let (y, valid) = self.output(&at, 0, 0);
                    let mut sum = match self.out {
                        Epilogue::Continue => load_some::<V>(y, valid),
                        _ => V::zero(),
                    };
                    for first in (0..self.k).step_by(CHUNK) {
                        sum = self.chunk(&at, first, sum);
                    }
                    self.leave(&at, (0, 0), sum);
                }
            }
        }
    }

    /// `sum` and a chunk.
    #[inline(always)]
    unsafe fn chunk<V: V16>(&self, at: &At, first: usize, sum: V) -> V {
        // SAFETY: the panel and the row have these steps.
        unsafe {
            let panel = self.src.panel(at.panel);
            let scale = self.src.scale::<V>(panel, first / CHUNK);
            let (mut even, mut odd) = (V::zero(), V::zero());
            for i in first..self.k.min(first + CHUNK) {
                let pair = (*self.x.add(at.row * self.xm + i)).to_bits();
                let halves = [pair & 0xffff, pair & 0xffff_0000].map(f32::from_bits);
                let w = self.src.load::<V>(panel, i, scale);
                even = even.dot(V::splat_pair(&halves[0]), w);
                odd = odd.dot(V::splat_pair(&halves[1]), w);
            }
            let both = even.add(odd);
            if S::SCALED_SUMS {
                scale.fma(both, sum)
            } else {
                sum.add(both)
            }
        }
    }
}

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

impl<S: Source<Factors = Pairs>> Kernel for Chunks<'_, S> {
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
pub(crate) fn multiply(count: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    if has_tiles() {
        super::tiles::multiply(count);
        return true;
    }
    let _ = count;
    false
}
