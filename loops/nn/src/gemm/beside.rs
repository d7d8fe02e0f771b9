//! Products of codes ([`Quads`]) whose inputs lie side by side.
//!
//! Rows that share a loaded weight, a tile of them, lie group by group: first of all rows their scales,
//! then what weights sum up to that are raised ([`V16::begin_quads`]), then their codes step by step.
//! One address does for all inputs of a group, and those of a step are in a line or two.

use std::ops::Range;

use super::{At, CODE_ROWS, Factors, Gemm, MAX_TILE, Quads, Source, fit, rows_most, widest};
use crate::exec::Executor;
use crate::simd::{Kernel, LANES, Line, V16};

/// Words of a group beside its steps.
const WORDS: usize = 2;

/// How rows are parted into tiles.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    rows: usize,
    count: usize,
}

impl Tiles {
    /// Most rows of a tile that the processor has registers for.
    pub(crate) fn most() -> usize {
        Quads::dispatch(Most)
    }

    /// As few as there can be, of about as many rows each.
    pub(crate) fn of(rows: usize, most: usize) -> Self {
        let count = rows.div_ceil(most);
        Self { rows, count }
    }

    pub(crate) fn count(self) -> usize {
        self.count
    }

    pub(crate) fn rows(self, tile: usize) -> Range<usize> {
        tile * self.rows / self.count..(tile + 1) * self.rows / self.count
    }
}

struct Most;

impl Kernel for Most {
    type Out = usize;
    #[inline(always)]
    fn run<V: V16>(self) -> usize {
        rows_most::<V>(CODE_ROWS)
    }
}

/// Words that a row has of a group with so many steps.
pub(crate) const fn words(steps: usize) -> usize {
    WORDS + steps
}

/// Puts what row `m` has of a group to its places among those of all `rows` of a tile.
#[inline(always)]
pub(crate) fn put(
    group: &mut [f32],
    (m, rows): (usize, usize),
    (scale, raised): (f32, i32),
    steps: &[u32],
) {
    group[m] = scale;
    group[rows + m] = f32::from_bits(raised as u32);
    for (&step, to) in steps
        .iter()
        .zip(group[WORDS * rows + m..].iter_mut().step_by(rows))
    {
        *to = f32::from_bits(step);
    }
}

impl<S: Source<Factors = Quads>> Gemm<S> {
    /// Computes everything, split over the executor when it is worth it.
    ///
    /// # Safety
    /// As for [`Self::run_on`], but `x` has `xm` words for each row, which lie as this module says;
    /// there are only whole groups of steps.
    pub(crate) unsafe fn run_beside_on(&self, tiles: Tiles, exec: &Executor) {
        self.split(exec, (tiles.count(), 1), |some, panels| {
            Quads::dispatch(Beside(self, tiles, some, panels));
        });
    }

    #[inline(always)]
    unsafe fn run_beside<V: V16>(&self, tiles: Tiles, some: Range<usize>, panels: Range<usize>) {
        let mut sums = [Line([0.0; LANES]); MAX_TILE];
        let block = self.block_panels(widest::<V>(1, true));
        for first in panels.clone().step_by(block) {
            let last = panels.end.min(first + block);
            for tile in some.clone() {
                let rows = tiles.rows(tile);
                let (row, mr) = (rows.start, rows.len());
                let mut panel = first;
                while panel < last {
                    let nr = fit(widest::<V>(mr, true), last - panel);
                    let at = At { row, panel, mr, nr };
                    // SAFETY: `at` lies inside the product, and is a tile of it.
                    unsafe { self.accumulate_beside::<V>(&at, &mut sums) };
                    panel += nr;
                }
            }
        }
    }

    /// A tile of rows and some panels.
    #[inline(always)]
    unsafe fn accumulate_beside<V: V16>(&self, at: &At, sums: &mut [Line; MAX_TILE]) {
        let x = self.x.wrapping_add(at.row * self.xm);
        macro_rules! shapes {
            ($(($mr:literal, $nr:literal))*) => {
                match (at.mr, at.nr) {
                    $(($mr, $nr) => {
                        // SAFETY: the tile lies inside the product.
                        unsafe { self.beside::<V, $mr, $nr>(at, (x, $mr), sums) }
                    })*
                    // The level became another one between what laid the rows and this.
                    _ => for m in 0..at.mr {
                        for n in 0..at.nr {
                            let (row, panel) = (at.row + m, at.panel + n);
                            let one = At { row, panel, mr: 1, nr: 1 };
                            let row = (x.wrapping_add(m), at.mr);
                            // SAFETY: as above, for a row of the tile.
                            unsafe { self.beside::<V, 1, 1>(&one, row, sums) }
                        }
                    }
                }
            };
        }
        if V::WIDE {
            shapes!((1, 1)(2, 1)(3, 1)(4, 1)(5, 1)(6, 1)(7, 1)(8, 1)(9, 1)(
                10, 1
            )(11, 1)(12, 1));
        } else if V::REGISTERS >= 8 {
            shapes!((1, 2)(1, 1)(2, 1)(3, 1)(4, 1)(5, 1)(6, 1));
        } else {
            shapes!((1, 1)(2, 1));
        }
    }

    /// Some rows of a tile that begins with `x` and has so many of them.
    #[inline(always)]
    unsafe fn beside<V: V16, const MR: usize, const NR: usize>(
        &self,
        at: &At,
        (mut x, rows): (*const f32, usize),
        lines: &mut [Line; MAX_TILE],
    ) {
        // SAFETY: every address is inside the ranges `Gemm` and the tile have.
        unsafe {
            let wp = self.src.panels::<NR>(at.panel);
            let mut acc = self.begin::<V, MR, NR>(at);
            for group in 0..self.k / S::GROUP {
                let (mut scale, mut sums) = ([V::zero(); NR], [[V::zero(); NR]; MR]);
                for n in 0..NR {
                    scale[n] = self.src.scale(wp[n], group);
                }
                for (m, sums) in sums.iter_mut().enumerate() {
                    *sums = [V::begin_quads(x.add(rows + m)); NR];
                }
                for step in 0..S::GROUP {
                    let (i, x) = (group * S::GROUP + step, x.add((WORDS + step) * rows));
                    for n in 0..NR {
                        let w = self.src.load(wp[n], i, scale[n]);
                        if MR > 1 {
                            self.src.fetch(wp[n], i);
                        }
                        for (m, sums) in sums.iter_mut().enumerate() {
                            sums[n] = sums[n].dot_quads(V::splat_quad(x.add(m)), w);
                        }
                    }
                }
                for m in 0..MR {
                    for n in 0..NR {
                        let both = scale[n].mul(V::splat(*x.add(m)));
                        acc[m][n] = both.fma(sums[m][n].sum_of_quads(), acc[m][n]);
                    }
                }
                x = x.add(words(S::GROUP) * rows);
            }
            self.end::<V, MR, NR>(at, &acc, lines);
        }
    }
}

/// A part of a product: some tiles and panels.
struct Beside<'a, S>(&'a Gemm<S>, Tiles, Range<usize>, Range<usize>);

impl<S: Source<Factors = Quads>> Kernel for Beside<'_, S> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        // SAFETY: made by `run_beside_on`, whose caller vouches for the pointers.
        unsafe { self.0.run_beside::<V>(self.1, self.2, self.3) }
    }
}
