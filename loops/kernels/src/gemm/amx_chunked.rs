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
use super::chunked::{CHUNK, Chunked};
use super::{At, Epilogue, Gemm, load_some};
#[cfg(target_arch = "x86_64")]
use crate::cpu::has_tiles;
use crate::cpu::{Buf, Kernel, LANES, Line, V16};
use crate::thread_pool::Executor;

impl<S: Chunked> Gemm<S> {
    /// As [`Gemm::run_on`], in chunks.
    ///
    /// # Safety
    /// As for [`Gemm::run_on`]; rows of `x` are zero behind their last pair up to whole chunks, and
    /// there are [`super::TILE_ROWS`] less one more of them to read.
    pub unsafe fn run_in_chunks(&self, exec: &Executor) {
        self.split(exec, self.rows, TOGETHER, |rows, panels| {
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
                    self.leave(&at, 0, 0, sum);
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
