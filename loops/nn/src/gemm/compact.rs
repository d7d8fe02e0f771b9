//! Products with compact weights ([`crate::compact`]): the sums of [`Pairs`], whose weights become pairs on
//! their way from memory.
//!
//! For few rows that happens in registers, for each register tile anew. For many it happens once: panels
//! become pairs in the second-level cache, and while rows pass them the next panels are asked for.

use std::cell::RefCell;
use std::ops::Range;

use super::factors::FactorOf;
use super::{At, Epilogue, Gemm, MAX_ROWS, MAX_TILE, Pairs, Source};
use crate::compact::{BLOCK_STEPS, Block, CompactPanels, Steps};
use crate::exec::Executor;
use crate::simd::{Buf, Kernel, LANES, Line, V16, dispatch_compact, fetch_ahead, fetch_line};

/// Register tile: rows, and panels that lie side by side.
const ROWS: usize = 8;
const PANELS: usize = 2;
/// Rows from which on panels become pairs once for all.
const EXPANDED_FROM: usize = 24;
/// Panels that do so together, and their steps: half a MiB of pairs.
const EXPANDED_PANELS: usize = 4;
const EXPANDED_STEPS: usize = 2048;

thread_local! {
    /// Panels as pairs, and sums of rows that wait for further steps.
    static EXPANDED: RefCell<Buf> = RefCell::new(Buf::default());
}

/// Lines of pairs `[panels][steps][16]`.
#[derive(Clone, Copy)]
struct Expanded {
    base: *const f32,
    steps: usize,
    /// Where a line a step is asked for.
    ahead: *const u8,
}

impl Source for Expanded {
    type Factors = Pairs;
    type Panel = *const f32;
    #[inline(always)]
    unsafe fn panel(&self, n: usize) -> *const f32 {
        // SAFETY: the caller vouches for `n`.
        unsafe { self.base.add(n * self.steps * LANES) }
    }
    #[inline(always)]
    unsafe fn load<V: V16>(&self, panel: *const f32, i: usize, _scale: V) -> FactorOf<Self, V> {
        // SAFETY: the caller vouches for `i`.
        unsafe { V::load_pair(panel.add(i * LANES)) }
    }
    #[inline(always)]
    fn before(&self, i: usize) {
        fetch_line(self.ahead.wrapping_add(i * size_of::<Line>()));
    }
}

impl Gemm<CompactPanels<'_>> {
    /// As [`Gemm::run_on`].
    ///
    /// # Safety
    /// As for [`Gemm::run_on`]; there are whole blocks of steps.
    pub(crate) unsafe fn run_compact_on(&self, exec: &Executor) {
        self.split(exec, PANELS, |rows, panels| {
            if rows.len() < EXPANDED_FROM {
                dispatch_compact(InRegisters(self, rows, panels));
                return;
            }
            EXPANDED.with_borrow_mut(|room| {
                let sums = match self.k > EXPANDED_STEPS {
                    true => rows.len() * EXPANDED_PANELS * LANES,
                    false => 0,
                };
                let pairs = EXPANDED_PANELS * self.k.min(EXPANDED_STEPS) * LANES;
                let (pairs, sums) = room.take(pairs + sums).split_at_mut(pairs);
                dispatch_compact(Once {
                    product: self,
                    rows,
                    panels,
                    pairs,
                    sums,
                });
            });
        });
    }

    /// Pair of panels by pair of panels, tile by tile.
    #[inline(always)]
    unsafe fn in_registers<V: V16>(&self, rows: Range<usize>, panels: Range<usize>) {
        let mut tile = [Line([0.0; LANES]); MAX_TILE];
        let tiles = rows.len().div_ceil(ROWS);
        let mut panel = panels.start;
        while panel < panels.end {
            let nr = (PANELS - panel % PANELS).min(panels.end - panel);
            let mut row = rows.start;
            for done in 0..tiles {
                let mr = (rows.end - row).div_ceil(tiles - done);
                let at = At { row, panel, mr, nr };
                // SAFETY: `at` lies inside the product.
                unsafe { self.compact_tile::<V>(&at, &mut tile) };
                row += mr;
            }
            panel += nr;
        }
    }

    #[inline(always)]
    unsafe fn compact_tile<V: V16>(&self, at: &At, tile: &mut [Line; MAX_TILE]) {
        macro_rules! shapes {
            ($($mr:literal)*) => {
                match (at.mr, at.nr) {
                    // SAFETY: the tile lies inside the product.
                    $(($mr, 1) => unsafe { self.sums::<V, $mr, 1>(at, tile) },
                    ($mr, 2) => unsafe { self.sums::<V, $mr, 2>(at, tile) },)*
                    _ => unreachable!("tile {} x {}", at.mr, at.nr),
                }
            };
        }
        shapes!(1 2 3 4 5 6 7 8);
    }

    /// `MR` rows by `NR` panels, all sums in registers.
    #[inline(always)]
    unsafe fn sums<V: V16, const MR: usize, const NR: usize>(
        &self,
        at: &At,
        tile: &mut [Line; MAX_TILE],
    ) {
        // SAFETY: every address is inside the ranges `Gemm` describes; blocks lie side by side.
        unsafe {
            let mut xp = [self.x; MR];
            for (m, p) in xp.iter_mut().enumerate() {
                *p = self.x.add((at.row + m) * self.xm);
            }
            let mut sums = self.begin::<V, MR, NR>(at);
            let mut block = self.src.blocks(at.panel);
            let mut others = [self.src.others(at.panel); NR];
            if NR == 2 {
                others[NR - 1] = self.src.others(at.panel + 1);
            }
            for first in (0..self.k).step_by(BLOCK_STEPS) {
                for n in 0..NR {
                    fetch_ahead(block.wrapping_add(n).cast());
                }
                self.half::<V, MR, NR, 0>((block, &mut others), (&xp, first), &mut sums);
                self.half::<V, MR, NR, 1>((block, &mut others), (&xp, first + 2), &mut sums);
                block = block.wrapping_byte_add(CompactPanels::STRIDE);
            }
            self.end::<V, MR, NR>(at, &sums, tile);
        }
    }

    /// Adds the products of half a block.
    #[inline(always)]
    unsafe fn half<V: V16, const MR: usize, const NR: usize, const HALF: usize>(
        &self,
        (block, others): (*const Block, &mut [*const u8; NR]),
        (xp, first): (&[*const f32; MR], usize),
        sums: &mut [[V; NR]; MR],
    ) {
        // SAFETY: the panels and rows have the steps.
        unsafe {
            let exponents = self.src.exponents();
            let (pairs, taken) = V::pairs_compact::<HALF>(block, exponents, others[0]);
            others[0] = others[0].add(taken);
            let mut w = [pairs; NR];
            for n in 1..NR {
                let (pairs, taken) =
                    V::pairs_compact::<HALF>(block.wrapping_add(n), exponents, others[n]);
                others[n] = others[n].add(taken);
                w[n] = pairs;
            }
            for i in 0..2 {
                for m in 0..MR {
                    let x = V::splat_pair(xp[m].add((first + i) * self.xk));
                    for n in 0..NR {
                        sums[m][n] = sums[m][n].dot(x, w[n][i]);
                    }
                }
            }
        }
    }

    /// Some panels at a time become pairs, for all rows.
    #[inline(always)]
    unsafe fn once<V: V16>(
        &self,
        rows: Range<usize>,
        panels: Range<usize>,
        (pairs, sums): (&mut [f32], &mut [f32]),
    ) {
        let mut panel = panels.start;
        while panel < panels.end {
            let nr = EXPANDED_PANELS.min(panels.end - panel);
            let at = At {
                row: rows.start,
                panel,
                mr: rows.len(),
                nr,
            };
            // SAFETY: the panels are inside the product, and the buffers have room.
            unsafe {
                match self.k > EXPANDED_STEPS {
                    true => self.panels_in_parts::<V>(&at, pairs, sums),
                    false => self.panels_at_once::<V>(&at, panels.end, pairs),
                }
            }
            panel += nr;
        }
    }

    /// All steps of some panels; those up to `last` come next.
    #[inline(always)]
    unsafe fn panels_at_once<V: V16>(&self, at: &At, last: usize, pairs: &mut [f32]) {
        // SAFETY: as for the caller; columns and bias of the block are the product's.
        unsafe {
            let mut others = self.first_others(at);
            self.expand::<V>((at, &mut others), 0..self.k, pairs);
            let first = at.panel * LANES;
            let block = Gemm {
                x: self.x,
                xm: self.xm,
                xk: self.xk,
                rows: self.rows,
                k: self.k,
                src: Expanded {
                    base: pairs.as_ptr(),
                    steps: self.k,
                    ahead: pairs.as_ptr().cast(),
                },
                y: self.y.add(at.panel * self.yn),
                ym: self.ym,
                yn: self.yn,
                cols: (self.cols - first).min(at.nr * LANES),
                out: match self.out {
                    Epilogue::Set(bias) if !bias.is_null() => Epilogue::Set(bias.add(first)),
                    other => other,
                },
            };
            let next = (at.panel + at.nr < last).then(|| self.src.blocks(at.panel + at.nr));
            block.rows_of::<V>(at.row..at.row + at.mr, at.nr, next.map(<*const _>::cast));
        }
    }

    /// As [`Self::panels_at_once`], some steps at a time.
    #[inline(always)]
    unsafe fn panels_in_parts<V: V16>(&self, at: &At, pairs: &mut [f32], sums: &mut [f32]) {
        // SAFETY: as for the caller; `sums` has a line for every row and panel.
        unsafe {
            self.begin_lines::<V>(at, sums);
            let mut others = self.first_others(at);
            for first in (0..self.k).step_by(EXPANDED_STEPS) {
                let steps = first..self.k.min(first + EXPANDED_STEPS);
                self.expand::<V>((at, &mut others), steps.clone(), pairs);
                let block = Gemm {
                    x: self.x.add(at.row * self.xm + first * self.xk),
                    xm: self.xm,
                    xk: self.xk,
                    rows: at.mr,
                    k: steps.len(),
                    src: Expanded {
                        base: pairs.as_ptr(),
                        steps: steps.len(),
                        ahead: pairs.as_ptr().cast(),
                    },
                    y: sums.as_mut_ptr(),
                    ym: at.nr * LANES,
                    yn: LANES,
                    cols: at.nr * LANES,
                    out: Epilogue::Continue,
                };
                let next = (steps.end < self.k).then(|| self.block(at.panel, steps.end));
                block.rows_of::<V>(0..at.mr, at.nr, next.map(<*const _>::cast));
            }
            self.leave_lines::<V>(at, sums);
        }
    }

    /// Where the other exponents of some panels begin.
    fn first_others(&self, at: &At) -> [*const u8; EXPANDED_PANELS] {
        std::array::from_fn(|n| self.src.others(at.panel + n.min(at.nr - 1)))
    }

    /// The block of a panel that begins with a step.
    fn block(&self, panel: usize, step: usize) -> *const Block {
        let before = step / BLOCK_STEPS * CompactPanels::STRIDE;
        self.src.blocks(panel).wrapping_byte_add(before)
    }

    /// Steps of some panels as pairs.
    #[inline(always)]
    unsafe fn expand<V: V16>(
        &self,
        (at, others): (&At, &mut [*const u8; EXPANDED_PANELS]),
        steps: Range<usize>,
        pairs: &mut [f32],
    ) {
        for n in 0..at.nr {
            let some = Steps {
                exponents: self.src.exponents(),
                block: self.block(at.panel + n, steps.start),
                others: others[n],
                steps: steps.len(),
            };
            let to = &mut pairs[n * steps.len() * LANES..];
            // SAFETY: the panel has the steps, and there is room.
            others[n] = unsafe { some.expand::<V>(to.as_mut_ptr()) };
        }
    }
}

impl Gemm<Expanded> {
    /// Tile of rows by tile of rows, while what comes next is asked for.
    #[inline(always)]
    unsafe fn rows_of<V: V16>(mut self, rows: Range<usize>, nr: usize, next: Option<*const u8>) {
        let tiles = rows.len().div_ceil(MAX_ROWS);
        let (here, bytes) = (self.src.ahead, nr * self.k * size_of::<Line>() * 3 / 4);
        let mut row = rows.start;
        for done in 0..tiles {
            let mr = (rows.end - row).div_ceil(tiles - done);
            let asked = done * self.k * size_of::<Line>();
            self.src.ahead = match next {
                Some(next) if asked < bytes => next.wrapping_add(asked),
                _ => here,
            };
            // SAFETY: the caller vouches for the rows.
            unsafe { self.run::<V>(row..row + mr, 0..nr) };
            row += mr;
        }
    }
}

struct InRegisters<'a>(&'a Gemm<CompactPanels<'a>>, Range<usize>, Range<usize>);

impl Kernel for InRegisters<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        // SAFETY: made by `run_compact_on`, whose caller vouches for the pointers.
        unsafe { self.0.in_registers::<V>(self.1, self.2) }
    }
}

/// A part of a product for many rows.
struct Once<'a> {
    product: &'a Gemm<CompactPanels<'a>>,
    rows: Range<usize>,
    panels: Range<usize>,
    pairs: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Kernel for Once<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        let room = (self.pairs, self.sums);
        // SAFETY: as above.
        unsafe { self.product.once::<V>(self.rows, self.panels, room) }
    }
}
