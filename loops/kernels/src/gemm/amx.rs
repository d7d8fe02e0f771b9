//! Chunks in tiles of AMX: weights are staged as tiles take them, and sums of two tiles of rows by two
//! panels stay in tiles, or in memory where every chunk is scaled.

use std::ops::Range;

use super::chunked::{CHUNK, Chunked, TILE_ROWS};
use super::{At, Epilogue, Gemm, load_some};
use crate::cpu::amx::Tiles;
use crate::cpu::{LANES, Line, V16};

/// Tiles of rows, and panels, whose sums are kept at the same time.
pub(super) const ACROSS: usize = 2;

/// Panels whose weights are staged for all rows before those of others: rows pass by less often then.
const GROUP: usize = 4;
/// Most floats of such a stage, where they are more panels than stay side by side.
const GROUP_FLOATS: usize = 1 << 17;
/// Chunks of a panel that are staged where no other rows need them.
const RING: usize = 4;

/// Chunks of a panel that a stage has room for.
fn slots(steps: usize, rows: usize) -> usize {
    match rows > ACROSS * TILE_ROWS {
        true => steps.div_ceil(CHUNK),
        false => RING,
    }
}

/// Panels that are staged for so many rows.
fn group(steps: usize, rows: usize) -> usize {
    let panel = slots(steps, rows) * CHUNK * LANES;
    match rows > ACROSS * TILE_ROWS && GROUP * panel <= GROUP_FLOATS {
        true => GROUP,
        false => ACROSS,
    }
}

/// Floats of the stage of a product of so many steps and rows.
pub(super) fn stage_floats(steps: usize, rows: usize) -> usize {
    group(steps, rows) * slots(steps, rows) * CHUNK * LANES
}

/// What tiles of a product work with.
struct Block<'a> {
    tiles: &'a Tiles,
    /// Rows of a tile.
    tall: usize,
    at: At,
    /// Chunks of the product, and for how many of a panel there is room at a time.
    chunks: usize,
    slots: usize,
    stage: *mut f32,
    /// Whether the weights are to be staged on the way.
    fresh: bool,
}

impl<S: Chunked> Gemm<S> {
    /// Everything in tiles: of rows that are about as many each, and panels in twos. Weights are
    /// staged while the first rows need them and serve the others.
    #[inline(always)]
    pub(super) unsafe fn chunks_in_tiles<V: V16>(
        &self,
        rows: Range<usize>,
        panels: Range<usize>,
        stage: *mut f32,
    ) {
        let tall = rows.len().div_ceil(rows.len().div_ceil(TILE_ROWS));
        let (slots, group) = (slots(self.k, rows.len()), group(self.k, rows.len()));
        let mut room = [EMPTY, EMPTY];
        // SAFETY: there are tiles. Blocks lie inside the product, and the stage holds their weights.
        unsafe {
            let tiles = Tiles::with(tall);
            for first in panels.clone().step_by(group) {
                for row in rows.clone().step_by(ACROSS * tall) {
                    for panel in (first..panels.end.min(first + group)).step_by(ACROSS) {
                        let block = Block {
                            tiles: &tiles,
                            tall,
                            at: At {
                                row,
                                panel,
                                mr: (ACROSS * tall).min(rows.end - row),
                                nr: ACROSS.min(panels.end - panel),
                            },
                            chunks: self.k.div_ceil(CHUNK),
                            slots,
                            stage: stage.add((panel - first) * slots * CHUNK * LANES),
                            fresh: row == rows.start,
                        };
                        match (block.at.mr > tall, block.at.nr) {
                            (false, 1) => self.block::<V, 1, 1>(&block, &mut room),
                            (false, _) => self.block::<V, 1, 2>(&block, &mut room),
                            (true, 1) => self.block::<V, 2, 1>(&block, &mut room),
                            (true, _) => self.block::<V, 2, 2>(&block, &mut room),
                        }
                    }
                }
            }
        }
    }

    /// `R` tiles of rows by `P` panels; the sums of the first rows are tiles 0 and 1, those of the
    /// next 2 and 3.
    #[inline(always)]
    unsafe fn block<V: V16, const R: usize, const P: usize>(
        &self,
        block: &Block,
        [sums, of_chunk]: &mut [Sums; 2],
    ) {
        let tiles = block.tiles;
        let carry = matches!(self.out, Epilogue::Continue);
        // SAFETY: the block lies inside the product, and the stage holds a chunk before it is used.
        unsafe {
            if carry {
                for m in 0..block.at.mr {
                    for n in 0..P {
                        let (y, valid) = self.output(&block.at, m, n);
                        load_some::<V>(y, valid).store(block.sum(sums, m, n));
                    }
                }
            } else if S::SCALED {
                *sums = EMPTY;
            }
            match S::SCALED {
                true => {}
                false if carry => load_sums::<R, P>(tiles, sums),
                false => clear_sums::<R, P>(tiles),
            }
            let mut walks = [self.src.walk(block.at.panel); P];
            if P == 2 {
                walks[P - 1] = self.src.walk(block.at.panel + 1);
            }
            for chunk in 0..block.chunks {
                if block.fresh {
                    self.stage_chunk::<V, P>(block, chunk, &mut walks);
                }
                if S::SCALED {
                    clear_sums::<R, P>(tiles);
                }
                self.add_chunk::<R, P>(block, chunk);
                if S::SCALED {
                    store_sums::<R, P>(tiles, of_chunk);
                    self.add_scaled::<V, R, P>(block, chunk, of_chunk, sums);
                }
            }
            if !S::SCALED {
                store_sums::<R, P>(tiles, sums);
            }
            for m in 0..block.at.mr {
                for n in 0..P {
                    let sum = V::load(block.sum(sums, m, n));
                    self.leave(&block.at, m, n, sum);
                }
            }
        }
    }

    /// Products of a chunk to the tiles of sums.
    #[inline(always)]
    unsafe fn add_chunk<const R: usize, const P: usize>(&self, block: &Block, chunk: usize) {
        let tiles = block.tiles;
        // SAFETY: rows and stage hold the chunk.
        unsafe {
            let x = self.x.add(block.at.row * self.xm + chunk * CHUNK);
            let row = self.xm * size_of::<f32>();
            tiles.load::<4>(x, row);
            tiles.load::<6>(block.staged(chunk, 0), LINE);
            tiles.dot::<0, 4, 6>();
            if P == 2 {
                tiles.load::<7>(block.staged(chunk, 1), LINE);
                tiles.dot::<1, 4, 7>();
            }
            if R == 2 {
                tiles.load::<5>(x.add(block.tall * self.xm), row);
                tiles.dot::<2, 5, 6>();
                if P == 2 {
                    tiles.dot::<3, 5, 7>();
                }
            }
        }
    }

    /// Sums of a chunk, times its scales, to `sums`.
    #[inline(always)]
    unsafe fn add_scaled<V: V16, const R: usize, const P: usize>(
        &self,
        block: &Block,
        chunk: usize,
        of_chunk: &Sums,
        sums: &mut Sums,
    ) {
        // SAFETY: the panels have a group for each chunk.
        unsafe {
            for n in 0..P {
                let scale = self.src.scale_of::<V>(block.at.panel + n, chunk);
                for tile in (n..R * ACROSS).step_by(ACROSS) {
                    let rows = of_chunk[tile].iter().zip(&mut sums[tile]);
                    for (more, sum) in rows.take(block.tall) {
                        let before = V::load(sum.0.as_ptr());
                        let after = scale.fma(V::load(more.0.as_ptr()), before);
                        after.store(sum.0.as_mut_ptr());
                    }
                }
            }
        }
    }

    /// Weights of the next chunk to the stage, steps that are not there as zeros.
    #[inline(always)]
    unsafe fn stage_chunk<V: V16, const P: usize>(
        &self,
        block: &Block,
        chunk: usize,
        walks: &mut [S::Walk; P],
    ) {
        let steps = CHUNK.min(self.k - chunk * CHUNK);
        // SAFETY: the panels have these steps, and the stage has room for a chunk of each.
        unsafe {
            for (n, walk) in walks.iter_mut().enumerate() {
                let to = block.staged(chunk, n);
                if steps == CHUNK {
                    self.src.next::<V>(walk, CHUNK, to);
                } else {
                    self.src.next::<V>(walk, steps, to);
                    for line in steps..CHUNK {
                        V::zero().store(to.add(line * LANES));
                    }
                }
            }
        }
    }
}

/// Per tile of sums its rows.
type Sums = [[Line; TILE_ROWS]; ACROSS * ACROSS];

const EMPTY: Sums = [[Line([0.0; LANES]); TILE_ROWS]; ACROSS * ACROSS];

/// Bytes from one row of a tile to the next where they lie side by side.
const LINE: usize = size_of::<Line>();

impl Block<'_> {
    /// Where a chunk of panel `n` of the block is staged.
    #[inline(always)]
    unsafe fn staged(&self, chunk: usize, n: usize) -> *mut f32 {
        // SAFETY: the caller vouches for the chunk and the panel.
        unsafe {
            self.stage
                .add((n * self.slots + chunk % self.slots) * CHUNK * LANES)
        }
    }

    /// The sum of row `m` and panel `n` of the block.
    #[inline(always)]
    fn sum(&self, sums: &mut Sums, m: usize, n: usize) -> *mut f32 {
        let tile = &mut sums[m / self.tall * ACROSS + n];
        tile[m % self.tall].0.as_mut_ptr()
    }
}

/// Does the same to every tile of sums of a block.
macro_rules! each_tile {
    ($R:ident, $P:ident, $do:ident) => {
        $do!(0);
        if $P == 2 {
            $do!(1);
        }
        if $R == 2 {
            $do!(2);
            if $P == 2 {
                $do!(3);
            }
        }
    };
}

#[inline(always)]
fn clear_sums<const R: usize, const P: usize>(tiles: &Tiles) {
    macro_rules! clear {
        ($tile:literal) => {
            tiles.clear::<$tile>()
        };
    }
    each_tile!(R, P, clear);
}

#[inline(always)]
fn load_sums<const R: usize, const P: usize>(tiles: &Tiles, sums: &Sums) {
    macro_rules! load {
        ($tile:literal) => {
            // SAFETY: as many lines as a tile has rows at most.
            unsafe { tiles.load::<$tile>(sums[$tile].as_ptr().cast(), LINE) }
        };
    }
    each_tile!(R, P, load);
}

#[inline(always)]
fn store_sums<const R: usize, const P: usize>(tiles: &Tiles, sums: &mut Sums) {
    macro_rules! store {
        ($tile:literal) => {
            // SAFETY: as many lines as a tile has rows at most.
            unsafe { tiles.store::<$tile>(sums[$tile].as_mut_ptr().cast(), LINE) }
        };
    }
    each_tile!(R, P, store);
}
