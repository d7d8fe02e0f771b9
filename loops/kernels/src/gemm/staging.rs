//! Products of many rows with weights that are not stored as f32: a block of weights becomes factors once,
//! for all rows that it meets, and not once per register tile.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

use super::{At, Epilogue, Factors, Gemm, Part, Source, Staging};
use crate::cpu::{Kernel, LANES, Line, V16};
use crate::format::block_quant::GROUP;
use crate::thread_pool::Executor;

/// Staged factors line by line.
#[derive(Clone, Copy)]
struct Lines<F> {
    base: *const f32,
    of: PhantomData<F>,
}

impl<F: Staging> Source for Lines<F> {
    type Factors = F;
    type Panel = *const f32;
    #[inline(always)]
    unsafe fn panel(&self, n: usize) -> *const f32 {
        // SAFETY: the stage holds the panel.
        unsafe { self.base.add(n * STAGE_STEPS * LANES) }
    }
    #[inline(always)]
    unsafe fn load<V: V16>(&self, panel: *const f32, i: usize, _scale: V) -> F::Factor<V> {
        // SAFETY: the stage holds the step.
        unsafe { F::load(panel.add(i * LANES)) }
    }
}

/// The same where sums of groups are scaled.
#[derive(Clone, Copy)]
struct ScaledLines<F> {
    lines: Lines<F>,
    /// Scales of the groups of each panel, line by line.
    scales: *const f32,
}

impl<F: Staging> Source for ScaledLines<F> {
    type Factors = F;
    const GROUP: usize = GROUP / F::INPUTS;
    const SCALED_SUMS: bool = true;
    type Panel = (*const f32, *const f32);
    #[inline(always)]
    unsafe fn panel(&self, n: usize) -> Self::Panel {
        // SAFETY: the stage holds the panel.
        unsafe {
            let scales = self.scales.add(n * STAGE_GROUPS * LANES);
            (self.lines.panel(n), scales)
        }
    }
    #[inline(always)]
    unsafe fn scale<V: V16>(&self, (_, scales): Self::Panel, group: usize) -> V {
        // SAFETY: the stage holds the group.
        unsafe { V::load(scales.add(group * LANES)) }
    }
    #[inline(always)]
    unsafe fn load<V: V16>(&self, (lines, _): Self::Panel, i: usize, scale: V) -> F::Factor<V> {
        // SAFETY: the stage holds the step.
        unsafe { self.lines.load(lines, i, scale) }
    }
}

/// What a block needs.
struct Room {
    /// Factors, `[panels][steps][16]`.
    factors: [Line; STAGE_PANELS * STAGE_STEPS],
    /// Scales, `[panels][groups][16]`.
    scales: [Line; STAGE_PANELS * STAGE_GROUPS],
    /// `[rows][panels][16]`
    sums: [f32; STAGE_PANELS * STAGE_ROWS * LANES],
}

/// Block of a staged product: its weights take 32 KiB and its sums 12 KiB. Steps are a multiple of
/// every group.
const STAGE_PANELS: usize = 4;
const STAGE_STEPS: usize = 128;
const STAGE_ROWS: usize = 48;
/// Most groups that sums are scaled of, which are of two steps and more.
const STAGE_GROUPS: usize = STAGE_STEPS * 2 / GROUP;

impl<S: Source<Factors: Staging>> Gemm<S> {
    /// As [`Self::run_on`]; from so many rows on stored weights become factors once per block of rows
    /// and not once per register tile.
    ///
    /// # Safety
    /// As for [`Self::run_on`].
    pub unsafe fn run_staged_on(&self, exec: &Executor, from: usize) {
        self.split(exec, self.rows, 1, |rows, panels| {
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
        let mut room = Room {
            factors: [Line([0.0; LANES]); _],
            scales: [Line([0.0; LANES]); _],
            sums: [0.0; _],
        };
        let mut panel = panels.start;
        while panel < panels.end {
            let nr = STAGE_PANELS.min(panels.end - panel);
            let mut row = rows.start;
            while row < rows.end {
                let mr = STAGE_ROWS.min(rows.end - row);
                let at = At { row, panel, mr, nr };
                // SAFETY: `at` lies inside the product.
                unsafe { self.stage::<V>(&at, &mut room) };
                row += mr;
            }
            panel += nr;
        }
    }

    #[inline(always)]
    unsafe fn stage<V: V16>(&self, at: &At, room: &mut Room) {
        let mut first = 0;
        // SAFETY: the tile lies inside the product, and the room holds a block of it.
        unsafe {
            self.begin_lines::<V>(at, &mut room.sums);
            while first < self.k {
                let steps = STAGE_STEPS.min(self.k - first);
                for n in 0..at.nr {
                    self.widen::<V>(at.panel + n, n, first, steps, room);
                }
                let lines = Lines::<S::Factors> {
                    base: room.factors.as_ptr().cast::<f32>(),
                    of: PhantomData,
                };
                let block = Gemm {
                    x: self.x.add(at.row * self.xm + first * self.xk),
                    rows: at.mr,
                    k: steps,
                    y: room.sums.as_mut_ptr(),
                    ym: at.nr * LANES,
                    yn: LANES,
                    cols: at.nr * LANES,
                    out: Epilogue::Continue,
                    ..self.with_source(lines)
                };
                if S::SCALED_SUMS {
                    let scales = room.scales.as_ptr().cast();
                    let block = block.with_source(ScaledLines { lines, scales });
                    block.run::<V>(0..at.mr, 0..at.nr);
                } else {
                    block.run::<V>(0..at.mr, 0..at.nr);
                }
                first += steps;
            }
            self.leave_lines::<V>(at, &room.sums);
        }
    }

    /// So many steps of panel `n` as factors of panel `to` of the room.
    #[inline(always)]
    unsafe fn widen<V: V16>(
        &self,
        n: usize,
        to: usize,
        first: usize,
        steps: usize,
        room: &mut Room,
    ) {
        let factors = &mut room.factors[to * STAGE_STEPS..][..steps];
        let scales = &mut room.scales[to * STAGE_GROUPS..][..STAGE_GROUPS];
        // SAFETY: the panel has these steps; blocks begin where a group begins.
        unsafe {
            let panel = self.src.panel(n);
            let mut scale = V::zero();
            for (j, line) in factors.iter_mut().enumerate() {
                let i = first + j;
                if i.is_multiple_of(S::GROUP) {
                    scale = self.src.scale(panel, i / S::GROUP);
                    if S::SCALED_SUMS {
                        scale.store(scales[j / S::GROUP].0.as_mut_ptr());
                    }
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
        // SAFETY: made by `run_staged_on`, whose caller vouches for the pointers.
        unsafe { self.0.run_staged::<V>(self.1, self.2) }
    }
}
