//! Products of many rows with weights that are not stored as f32: a block of weights becomes factors once,
//! for all rows that it meets, and not once per register tile.
#![allow(unsafe_code)]

use std::ops::Range;

use super::factors::FactorOf;
use super::{At, Epilogue, Factors, Gemm, Part, Source, Staging};
use crate::exec::Executor;
use crate::simd::{Kernel, LANES, Line, V16};

/// Weights of a source in a form that needs no more work: factors line by line, and the scales
/// of the source where they are for sums.
#[derive(Clone, Copy)]
struct Stage<S> {
    base: *const f32,
    of: S,
    /// First panel and step of the source that are staged.
    first: (usize, usize),
}

impl<S: Source<Factors: Staging>> Source for Stage<S> {
    type Factors = S::Factors;
    const GROUP: usize = if S::SCALED_SUMS { S::GROUP } else { usize::MAX };
    const SCALED_SUMS: bool = S::SCALED_SUMS;
    type Panel = usize;
    #[inline(always)]
    unsafe fn panel(&self, n: usize) -> usize {
        n
    }
    #[inline(always)]
    unsafe fn scale<V: V16>(&self, panel: usize, group: usize) -> V {
        let (n, step) = self.first;
        if !S::SCALED_SUMS {
            // SAFETY: same contract.
            return unsafe { V::zero() };
        }
        // SAFETY: the source has the panels and groups that are staged.
        unsafe {
            self.of
                .scale(self.of.panel(n + panel), step / S::GROUP + group)
        }
    }
    #[inline(always)]
    unsafe fn load<V: V16>(&self, panel: usize, i: usize, _scale: V) -> FactorOf<S, V> {
        // SAFETY: the stage holds the step.
        unsafe { S::Factors::load(self.base.add((panel * STAGE_STEPS + i) * LANES)) }
    }
}

/// Block of a staged product: its weights take 32 KiB and its sums 12 KiB. Steps are a multiple of
/// every group.
const STAGE_PANELS: usize = 4;
const STAGE_STEPS: usize = 128;
const STAGE_ROWS: usize = 48;

impl<S: Source<Factors: Staging>> Gemm<S> {
    /// As [`Self::run_on`]; from so many rows on stored weights become factors once per block of rows
    /// and not once per register tile.
    ///
    /// # Safety
    /// As for [`Self::run_on`].
    pub(crate) unsafe fn run_staged_on(&self, exec: &Executor, from: usize) {
        self.split(exec, (self.rows, 1), |rows, panels| {
            if rows.len() >= from {
                S::Factors::dispatch(Staged(self, rows, panels));
            } else {
                S::Factors::dispatch(Part(self, rows, panels));
            }
        });
    }

    /// As [`Self::run_inline`] for weights that are not stored as f32: a block of them is widened
    /// into the first-level cache and used for many rows. Sums pass through memory between blocks,
    /// which changes no bit.
    #[inline(always)]
    unsafe fn run_staged<V: V16>(&self, rows: Range<usize>, panels: Range<usize>) {
        let mut stage = [Line([0.0; LANES]); STAGE_PANELS * STAGE_STEPS];
        let mut sums = [0.0; STAGE_PANELS * STAGE_ROWS * LANES];
        let mut panel = panels.start;
        while panel < panels.end {
            let nr = STAGE_PANELS.min(panels.end - panel);
            let mut row = rows.start;
            while row < rows.end {
                let mr = STAGE_ROWS.min(rows.end - row);
                let at = At { row, panel, mr, nr };
                // SAFETY: `at` lies inside the product.
                unsafe { self.stage::<V>(&at, &mut stage, &mut sums) };
                row += mr;
            }
            panel += nr;
        }
    }

    #[inline(always)]
    unsafe fn stage<V: V16>(&self, at: &At, stage: &mut [Line], sums: &mut [f32]) {
        let mut first = 0;
        // SAFETY: the tile lies inside the product, and the two buffers hold a block of it.
        unsafe {
            self.begin_lines::<V>(at, sums);
            while first < self.k {
                let steps = STAGE_STEPS.min(self.k - first);
                for n in 0..at.nr {
                    let to = &mut stage[n * STAGE_STEPS..n * STAGE_STEPS + steps];
                    self.widen::<V>(at.panel + n, first, to);
                }
                let block = Gemm {
                    x: self.x.add(at.row * self.xm + first * self.xk),
                    xm: self.xm,
                    xk: self.xk,
                    rows: at.mr,
                    k: steps,
                    src: Stage {
                        base: stage.as_ptr().cast::<f32>(),
                        of: self.src,
                        first: (at.panel, first),
                    },
                    y: sums.as_mut_ptr(),
                    ym: at.nr * LANES,
                    yn: LANES,
                    cols: at.nr * LANES,
                    out: Epilogue::Continue,
                };
                block.run::<V>(0..at.mr, 0..at.nr);
                first += steps;
            }
            self.leave_lines::<V>(at, sums);
        }
    }

    /// Steps `first ..` of panel `n` as factors.
    #[inline(always)]
    unsafe fn widen<V: V16>(&self, n: usize, first: usize, to: &mut [Line]) {
        // SAFETY: the panel has these steps; blocks begin where a group begins.
        unsafe {
            let panel = self.src.panel(n);
            let mut scale = V::zero();
            for (j, line) in to.iter_mut().enumerate() {
                let i = first + j;
                if i.is_multiple_of(S::GROUP) {
                    scale = self.src.scale(panel, i / S::GROUP);
                }
                let factor = self.src.load::<V>(panel, i, scale);
                S::Factors::store::<V>(factor, line.0.as_mut_ptr());
            }
        }
    }
}

struct Staged<'a, S>(&'a Gemm<S>, Range<usize>, Range<usize>);

impl<S: Source<Factors: Staging>> Kernel for Staged<'_, S> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        // SAFETY: made by `run_on`, whose caller vouches for the pointers.
        unsafe { self.0.run_staged::<V>(self.1, self.2) }
    }
}
