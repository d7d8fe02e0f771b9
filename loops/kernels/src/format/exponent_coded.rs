//! bf16 weights in twelve bits, without loss.
//!
//! The weights of a matrix have few exponents: fifteen of the 256 there are cover nearly all of them. So a
//! weight is kept as a byte of its sign and significand and as four bits that say which of the fifteen its
//! exponent is; where it is another, they say that it is the next of a list. A completion that decodes
//! alone waits for nothing but the memory that weights come from, and there are a quarter less of it.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::cpu::exponent_block::{Block, EMPTY, Exponents, HALF, OTHER, exponent, rest};
use crate::cpu::{
    HalfLine, Kernel, LANES, Line, V16, copies_of, dispatch_compact, fetch_line, room_for,
};
use crate::thread_pool::{Executor, Shards};

/// Inputs of a block.
pub const BLOCK_INPUTS: usize = 8;
/// Steps of a block: a step is two inputs.
pub const BLOCK_STEPS: usize = BLOCK_INPUTS / 2;
/// Matrices with more weights than one in so many whose exponents are others are not kept so.
const OTHERS_ONE_IN: usize = 64;
/// Lines that are looked at to find the exponents of a matrix.
const LOOKED_AT: usize = 1 << 16;
/// How far ahead of a walk is asked for what comes: for the second-level cache, as the first has weights that
/// were made of it.
const AHEAD_BYTES: usize = 3 << 10;
/// Panels that are made compact by one thread at a time, whole pairs.
const PANELS_AT_ONCE: usize = 64;

/// A matrix `[out, in]` as blocks `[ceil(out / 32)][in / 8][2]`: two panels of sixteen outputs lie side by
/// side, so that one stream of memory feeds a register tile.
#[derive(Debug, Clone, PartialEq)]
pub struct Compact {
    inp: usize,
    exponents: Exponents,
    blocks: Vec<Block>,
    /// Where the other exponents of a panel begin.
    firsts: Vec<usize>,
    /// Other exponents in the order of their bytes, and room for a whole vector behind the last.
    others: Vec<u8>,
}

/// Where a block of a panel lies.
fn place(panel: usize, block: usize, per_panel: usize) -> usize {
    (panel / 2 * per_panel + block) * 2 + panel % 2
}

/// What threads make of some panels.
struct Made {
    blocks: Vec<Block>,
    /// Others of each panel.
    counts: Vec<usize>,
    others: Vec<u8>,
}

impl Compact {
    /// The matrix of panels of bf16 `[ceil(out / 16)][in][16]`. None where it has too many exponents, or no
    /// whole blocks of inputs.
    pub fn of(lines: &[HalfLine], inp: usize) -> Option<Self> {
        if inp == 0 || !inp.is_multiple_of(BLOCK_INPUTS) {
            return None;
        }
        let codes = Codes::of(lines);
        let panels = lines.len() / inp;
        let parts: Vec<Range<usize>> = (0..panels)
            .step_by(PANELS_AT_ONCE)
            .map(|first| first..panels.min(first + PANELS_AT_ONCE))
            .collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut all = Self {
            inp,
            exponents: codes.exponents,
            blocks: room_for(panels.div_ceil(2) * (inp / BLOCK_INPUTS) * 2),
            firsts: Vec::with_capacity(panels),
            others: Vec::new(),
        };
        for parts in parts.chunks(threads) {
            let made: Vec<Made> = std::thread::scope(|scope| {
                let make = |part: &Range<usize>| {
                    let lines = &lines[part.start * inp..part.end * inp];
                    scope.spawn(|| codes.make(lines, inp))
                };
                let threads: Vec<_> = parts.iter().map(make).collect();
                let made = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
                made.collect::<Result<_, _>>()
            })
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            for made in made {
                all.take(made);
            }
        }
        let few = all.others.len() <= lines.len() * LANES / OTHERS_ONE_IN;
        all.others.extend([0; HALF]);
        few.then_some(all)
    }

    fn take(&mut self, made: Made) {
        let mut first = self.others.len();
        for count in made.counts {
            self.firsts.push(first);
            first += count;
        }
        self.blocks.extend(made.blocks);
        self.others.extend(made.others);
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(self.blocks.as_slice())
            + size_of_val(self.firsts.as_slice())
            + self.others.len()
    }

    /// How many weights have other exponents.
    #[cfg(test)]
    pub fn others(&self) -> usize {
        self.others.len() - HALF
    }

    /// As products read it.
    pub fn panels(&self) -> CompactPanels<'_> {
        CompactPanels(self)
    }

    /// Copies row `row` to `to [in]`.
    pub fn lookup(&self, row: usize, to: &mut [f32]) {
        assert_eq!(to.len(), self.inp, "a row has all inputs");
        dispatch_compact(Lookup {
            from: self.panels(),
            row,
            to,
        });
    }

    /// Panels of bf16 `[panels][in][16]`, as this was made of.
    pub fn expanded(&self, panels: Range<usize>, exec: &Executor) -> Vec<HalfLine> {
        let mut lines = copies_of(HalfLine([0; LANES]), panels.len() * self.inp);
        let to = Shards::new(&mut lines);
        exec.split(panels.len(), 8 * panels.len() * self.inp * LANES, &|part| {
            // SAFETY: parts are disjoint, inside the slice it was made from.
            let to = unsafe { to.slice(part.start * self.inp..part.end * self.inp) };
            let mut pairs = vec![Line([0.0; LANES]); self.inp / 2];
            for (panel, to) in part.zip(to.chunks_exact_mut(self.inp)) {
                dispatch_compact(Expand {
                    from: self.panels(),
                    panel: panels.start + panel,
                    to: &mut pairs,
                });
                for (lines, pairs) in to.chunks_exact_mut(2).zip(&pairs) {
                    let pairs = pairs.0.map(f32::to_bits);
                    lines[0] = HalfLine(pairs.map(|pair| pair as u16));
                    lines[1] = HalfLine(pairs.map(|pair| (pair >> 16) as u16));
                }
            }
        });
        lines
    }
}

/// What exponents become.
struct Codes {
    exponents: Exponents,
    of: [u8; 256],
}

impl Codes {
    /// The fifteen most frequent exponents of lines here and there.
    fn of(lines: &[HalfLine]) -> Self {
        let mut counts = [0_usize; 256];
        for line in lines.iter().step_by(lines.len() / LOOKED_AT + 1) {
            line.0
                .iter()
                .for_each(|bits| counts[usize::from(exponent(*bits))] += 1);
        }
        let mut order: Vec<u8> = (0..=u8::MAX).collect();
        order.sort_by_key(|exponent| std::cmp::Reverse(counts[usize::from(*exponent)]));
        let (mut exponents, mut of) = (Exponents([0; LANES]), [OTHER; 256]);
        for (code, exponent) in order.into_iter().take(usize::from(OTHER)).enumerate() {
            exponents.0[code] = exponent;
            of[usize::from(exponent)] = code as u8;
        }
        Self { exponents, of }
    }

    /// Panels of bf16 as blocks, and an empty panel beside the last of an odd number.
    fn make(&self, lines: &[HalfLine], inp: usize) -> Made {
        let per_panel = inp / BLOCK_INPUTS;
        let mut made = Made {
            blocks: vec![EMPTY; (lines.len() / inp).div_ceil(2) * per_panel * 2],
            counts: Vec::new(),
            others: Vec::new(),
        };
        for (panel, lines) in lines.chunks_exact(inp).enumerate() {
            let before = made.others.len();
            for (number, lines) in lines.chunks_exact(BLOCK_INPUTS).enumerate() {
                let block = &mut made.blocks[place(panel, number, per_panel)];
                self.fill(lines, block, &mut made.others);
            }
            made.counts.push(made.others.len() - before);
        }
        made
    }

    fn fill(&self, lines: &[HalfLine], block: &mut Block, others: &mut Vec<u8>) {
        for (half, lines) in lines.chunks_exact(BLOCK_INPUTS / 2).enumerate() {
            for at in 0..HALF {
                let (step, word) = (at / 8 % 2, at / 16 * 8 + at % 8);
                let bits = lines[2 * step + word % 2].0[word / 2];
                let code = self.of[usize::from(exponent(bits))];
                if code == OTHER {
                    others.push(exponent(bits));
                }
                block.set(half, at, code, rest(bits));
            }
        }
    }
}

/// A compact matrix, panel by panel.
#[derive(Clone, Copy)]
pub struct CompactPanels<'a>(&'a Compact);

impl<'a> CompactPanels<'a> {
    /// Bytes between a panel's blocks.
    pub const STRIDE: usize = 2 * size_of::<Block>();

    pub fn exponents(&self) -> &'a Exponents {
        &self.0.exponents
    }

    /// The first block of a panel.
    pub fn blocks(&self, panel: usize) -> *const Block {
        &raw const self.0.blocks[place(panel, 0, self.0.inp / BLOCK_INPUTS)]
    }

    /// The first of a panel's other exponents.
    pub fn others(&self, panel: usize) -> *const u8 {
        &raw const self.0.others[self.0.firsts[panel]]
    }
}

/// A panel, block by block.
#[derive(Clone, Copy)]
pub struct Walk<'a> {
    exponents: &'a Exponents,
    block: *const Block,
    others: *const u8,
}

impl<'a> Walk<'a> {
    pub fn of(from: CompactPanels<'a>, panel: usize) -> Self {
        Self {
            exponents: from.exponents(),
            block: from.blocks(panel),
            others: from.others(panel),
        }
    }

    /// Writes the pairs of the next block to `to`, a line each step.
    ///
    /// # Safety
    /// As for the methods of [`V16`]; the panel has another block, and `to` has room for it.
    #[inline(always)]
    pub unsafe fn next<V: V16>(&mut self, to: *mut f32) {
        for line in 0..size_of::<Block>() / size_of::<Line>() {
            let at = self
                .block
                .cast::<u8>()
                .wrapping_add(AHEAD_BYTES + line * size_of::<Line>());
            fetch_line::<2>(at);
        }
        // SAFETY: the caller vouches for the block, whose other exponents are the next ones.
        unsafe {
            let ([a, b], taken) = V::pairs_compact::<0>(self.block, self.exponents, self.others);
            self.others = self.others.add(taken);
            let ([c, d], taken) = V::pairs_compact::<1>(self.block, self.exponents, self.others);
            self.others = self.others.add(taken);
            self.block = self.block.wrapping_byte_add(CompactPanels::STRIDE);
            for (step, pair) in [a, b, c, d].into_iter().enumerate() {
                V::store_pair(pair, to.add(step * LANES));
            }
        }
    }
}

/// A whole panel as pairs.
struct Expand<'a> {
    from: CompactPanels<'a>,
    panel: usize,
    to: &'a mut [Line],
}

impl Kernel for Expand<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        let mut walk = Walk::of(self.from, self.panel);
        for lines in self.to.chunks_exact_mut(BLOCK_STEPS) {
            // SAFETY: called at this level; there are as many blocks as `expanded` has room for.
            unsafe { walk.next::<V>(lines.as_mut_ptr().cast()) };
        }
    }
}

/// A row, which is a lane of its panel.
struct Lookup<'a> {
    from: CompactPanels<'a>,
    row: usize,
    to: &'a mut [f32],
}

impl Kernel for Lookup<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        let (panel, out) = (self.row / LANES, self.row % LANES);
        let mut walk = Walk::of(self.from, panel);
        let mut lines = [Line([0.0; LANES]); BLOCK_STEPS];
        for to in self.to.chunks_exact_mut(BLOCK_INPUTS) {
            // SAFETY: called at this level; a row has as many blocks as its panel.
            unsafe { walk.next::<V>(lines.as_mut_ptr().cast()) };
            for (two, line) in to.chunks_exact_mut(2).zip(&lines) {
                let pair = line.0[out].to_bits();
                two[0] = f32::from_bits(pair << 16);
                two[1] = f32::from_bits(pair & 0xffff_0000);
            }
        }
    }
}

#[cfg(test)]
#[path = "exponent_coded_tests.rs"]
mod tests;
