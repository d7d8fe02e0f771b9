//! Products with compact weights ([`crate::format::exponent_coded`]): the sums of [`Pairs`](super::Pairs), whose weights become pairs in
//! registers, on their way from memory. The first rows leave the pairs for all others.

use std::cell::RefCell;
use std::ops::Range;

use super::{At, Destination, Gemm, MAX_TILE};
use crate::cpu::exponent_block::Block;
use crate::cpu::{Buf, Kernel, LANES, Line, V16, dispatch_compact, fetch_ahead, fetch_line};
use crate::format::exponent_coded::{BLOCK_STEPS, CompactPanels};
use crate::thread_pool::Executor;

/// Register tile: rows where pairs are made, and where they are found; either for a last panel that lies alone, and
/// where nobody keeps weights so; and panels that lie side by side.
const ROWS: usize = 8;
const MORE_ROWS: usize = 12;
const FEW_ROWS: usize = 2;
const PANELS: usize = 2;

thread_local! {
    /// Pairs of the panels at hand.
    static PAIRS: RefCell<Buf> = RefCell::new(Buf::default());
}

/// What a tile does with the pairs of its panels, `[steps][panels][16]`.
const ONLY_MAKES: u8 = 0;
const LEAVES: u8 = 1;
const FINDS: u8 = 2;

/// Bytes of two panels that lie side by side, for a step.
const STEP_BYTES: usize = CompactPanels::STRIDE / BLOCK_STEPS;

/// Weights that are asked for while rows find pairs: memory would rest meanwhile.
struct Ahead {
    at: *const u8,
    /// Bytes for each step.
    each: usize,
}

impl Ahead {
    #[inline(always)]
    fn step(&mut self) {
        for line in (0..self.each).step_by(size_of::<Line>()) {
            fetch_line::<2>(self.at.wrapping_add(line));
        }
        self.at = self.at.wrapping_add(self.each);
    }
}

impl Gemm<CompactPanels<'_>> {
    /// As [`Gemm::run_on`].
    ///
    /// # Safety
    /// As for [`Gemm::run_on`]; there are whole blocks of steps.
    pub unsafe fn run_compact_on(&self, exec: &Executor) {
        self.split(exec, self.rows, PANELS, |rows, panels| {
            PAIRS.with_borrow_mut(|pairs| {
                let room = match rows.len() > FEW_ROWS {
                    true => PANELS * self.k * LANES,
                    false => 0,
                };
                // What this thread does next, as threads take parts in turn.
                let next = panels.start + exec.threads() * panels.len();
                dispatch_compact(Part {
                    product: self,
                    rows,
                    next,
                    panels,
                    pairs: pairs.take(room).as_mut_ptr(),
                });
            });
        });
    }

    /// Pair of panels by pair of panels, tile by tile; `next` is a panel behind the last.
    #[inline(always)]
    unsafe fn compact_part<V: V16>(
        &self,
        rows: Range<usize>,
        panels: Range<usize>,
        next: usize,
        pairs: *mut f32,
    ) {
        let mut tile = [Line([0.0; LANES]); MAX_TILE];
        let mut panel = panels.start;
        while panel < panels.end {
            let nr = (PANELS - panel % PANELS).min(panels.end - panel);
            let (rows_most, more_rows_most) = match V::COMPACT && nr == PANELS {
                true => (ROWS, MORE_ROWS),
                false => (FEW_ROWS, FEW_ROWS),
            };
            let first = rows.len().min(rows_most);
            let more = (rows.len() - first).div_ceil(more_rows_most);
            let each = STEP_BYTES.div_ceil(more.max(1));
            let mut at = At {
                row: rows.start,
                panel,
                mr: first,
                nr,
            };
            let then = if panel + nr < panels.end {
                panel + nr
            } else {
                next
            };
            let distance = (then - panel) / PANELS * STEP_BYTES * self.k;
            let mut ahead = Ahead {
                at: self.src.blocks(panel).cast::<u8>().wrapping_add(distance),
                each,
            };
            // SAFETY: the tiles lie inside the product, and `pairs` has room where there are more.
            unsafe {
                match more {
                    0 => self.compact_tile::<V, ONLY_MAKES>(&at, pairs, &mut tile, &mut ahead),
                    _ => self.compact_tile::<V, LEAVES>(&at, pairs, &mut tile, &mut ahead),
                }
                for done in 0..more {
                    at.row += at.mr;
                    at.mr = (rows.end - at.row).div_ceil(more - done);
                    self.compact_tile::<V, FINDS>(&at, pairs, &mut tile, &mut ahead);
                }
            }
            panel += nr;
        }
    }

    #[inline(always)]
    unsafe fn compact_tile<V: V16, const DOES: u8>(
        &self,
        at: &At,
        pairs: *mut f32,
        lines: &mut [Line; MAX_TILE],
        ahead: &mut Ahead,
    ) {
        // SAFETY: the tile lies inside the product.
        let destination = unsafe { self.destination::<V>(at, lines) };
        macro_rules! shapes {
            ($($mr:literal)*) => {
                match (at.mr, at.nr) {
                    // SAFETY: the tile lies inside the product.
                    (1, 1) => unsafe { self.sums::<V, 1, 1, DOES>(at, &destination, pairs, ahead) },
                    // SAFETY: as above.
                    (2, 1) => unsafe { self.sums::<V, 2, 1, DOES>(at, &destination, pairs, ahead) },
                    // SAFETY: as above.
                    $(($mr, 2) => unsafe { self.sums::<V, $mr, 2, DOES>(at, &destination, pairs, ahead) },)*
                    _ => unreachable!("tile {} x {}", at.mr, at.nr),
                }
            };
        }
        if !V::COMPACT {
            shapes!(1 2);
        } else if DOES == FINDS {
            shapes!(1 2 3 4 5 6 7 8 9 10 11 12);
        } else {
            shapes!(1 2 3 4 5 6 7 8);
        }
        // SAFETY: as above.
        unsafe { self.finish::<V>(at, &destination, lines) };
    }

    /// `MR` rows by `NR` panels, all sums in registers.
    #[inline(always)]
    unsafe fn sums<V: V16, const MR: usize, const NR: usize, const DOES: u8>(
        &self,
        at: &At,
        destination: &Destination,
        pairs: *mut f32,
        ahead: &mut Ahead,
    ) {
        // SAFETY: every address is inside the ranges `Gemm` describes; blocks lie side by side.
        unsafe {
            let mut xp = [self.x; MR];
            for (m, p) in xp.iter_mut().enumerate() {
                *p = self.x.add((at.row + m) * self.xm);
            }
            let mut sums = destination.begin::<V, MR, NR>();
            if DOES == FINDS {
                for i in 0..self.k {
                    ahead.step();
                    let mut w = [V::load_pair(pairs.add(i * NR * LANES)); NR];
                    for (n, w) in w.iter_mut().enumerate().skip(1) {
                        *w = V::load_pair(pairs.add((i * NR + n) * LANES));
                    }
                    self.step(&xp, i, &w, &mut sums);
                }
            } else {
                let mut block = self.src.blocks(at.panel);
                let mut others = [self.src.others(at.panel); NR];
                if NR == 2 {
                    others[NR - 1] = self.src.others(at.panel + 1);
                }
                for first in (0..self.k).step_by(BLOCK_STEPS) {
                    for n in 0..NR {
                        fetch_ahead(block.wrapping_add(n).cast());
                    }
                    let from = (block, &mut others);
                    self.half::<V, MR, NR, 0, DOES>(from, (&xp, first), &mut sums, pairs);
                    let from = (block, &mut others);
                    self.half::<V, MR, NR, 1, DOES>(from, (&xp, first + 2), &mut sums, pairs);
                    block = block.wrapping_byte_add(CompactPanels::STRIDE);
                }
            }
            destination.end(&sums);
        }
    }

    /// Adds the products of half a block.
    #[inline(always)]
    unsafe fn half<V: V16, const MR: usize, const NR: usize, const HALF: usize, const DOES: u8>(
        &self,
        (block, others): (*const Block, &mut [*const u8; NR]),
        (xp, first): (&[*const f32; MR], usize),
        sums: &mut [[V; NR]; MR],
        pairs: *mut f32,
    ) {
        // SAFETY: the panels and rows have the steps, and where pairs are left there is room.
        unsafe {
            let exponents = self.src.exponents();
            let (made, taken) = V::pairs_compact::<HALF>(block, exponents, others[0]);
            others[0] = others[0].add(taken);
            let mut all = [[made[0]; NR], [made[1]; NR]];
            for n in 1..NR {
                let (made, taken) =
                    V::pairs_compact::<HALF>(block.wrapping_add(n), exponents, others[n]);
                others[n] = others[n].add(taken);
                (all[0][n], all[1][n]) = (made[0], made[1]);
            }
            for (i, w) in all.iter().enumerate() {
                if DOES == LEAVES {
                    for (n, pair) in w.iter().enumerate() {
                        V::store_pair(*pair, pairs.add(((first + i) * NR + n) * LANES));
                    }
                }
                self.step(xp, first + i, w, sums);
            }
        }
    }

    /// Adds the products of a step.
    #[inline(always)]
    unsafe fn step<V: V16, const MR: usize, const NR: usize>(
        &self,
        xp: &[*const f32; MR],
        i: usize,
        w: &[V::Pair; NR],
        sums: &mut [[V; NR]; MR],
    ) {
        for m in 0..MR {
            // SAFETY: the rows have the step.
            unsafe {
                let x = V::splat_pair(xp[m].add(i * self.xk));
                for n in 0..NR {
                    sums[m][n] = sums[m][n].dot(x, w[n]);
                }
            }
        }
    }
}

/// A part of a product.
struct Part<'a> {
    product: &'a Gemm<CompactPanels<'a>>,
    rows: Range<usize>,
    panels: Range<usize>,
    next: usize,
    pairs: *mut f32,
}

impl Kernel for Part<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        // SAFETY: made by `run_compact_on`, whose caller vouches for the pointers.
        unsafe {
            self.product
                .compact_part::<V>(self.rows, self.panels, self.next, self.pairs);
        }
    }
}
