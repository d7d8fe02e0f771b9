//! Products of codes ([`Quads`]) whose inputs lie side by side.
//!
//! Rows that share a loaded weight, a tile of them, lie group by group: first of all rows their scales,
//! then what weights sum up to that are raised ([`V16::begin_quads`]), then their codes step by step, as words that the
//! processor multiplies ([`V16::QUAD_PARTS`]). One address does for all inputs of a group, and those of a step are in a line or two.
//!
//! Where weights take some instructions to be factors, all tiles find them ready ([`Ready`]).

use std::cell::RefCell;
use std::ops::Range;

use super::{
    At, CODE_ROWS, Destination, Factors, Gemm, MAX_TILE, Quads, Source, fit, rows_most, widest,
};
use crate::cpu::{Buf, Kernel, LANES, Line, V16, dispatch_halves};
use crate::thread_pool::Executor;

/// Words of a group beside its steps.
const WORDS: usize = 2;

/// How rows lie for the instructions of a processor.
#[derive(Clone, Copy)]
pub struct Laid {
    /// Most rows of a tile that it has registers for.
    rows_most: usize,
    /// Words that four codes take, see [`V16::QUAD_PARTS`].
    parts: usize,
}

impl Laid {
    /// For this processor.
    pub fn here() -> Self {
        Quads::dispatch(Here)
    }

    /// Four codes that lie so as a level of so many parts has them.
    fn turned_to(self, parts: usize, words: [u32; 2]) -> [u32; 2] {
        let codes = match self.parts {
            1 => words[0].to_le_bytes().map(|code| code as i8),
            _ => {
                let [[a, _, b, _], [c, _, d, _]] = words.map(u32::to_le_bytes);
                [a, b, c, d].map(|code| code as i8)
            }
        };
        let [a, b, c, d] = codes;
        match parts {
            1 => [word_of_bytes(codes), 0],
            _ => [word_of_halves([a, b]), word_of_halves([c, d])],
        }
    }

    /// Words that a row has of a group of so many codes.
    pub fn words(self, codes: usize) -> usize {
        WORDS + codes / Quads::INPUTS * self.parts
    }
}

/// How rows are parted into tiles.
#[derive(Clone, Copy)]
pub struct Tiles {
    rows: usize,
    count: usize,
    laid: Laid,
}

impl Tiles {
    /// As few as there can be, of about as many rows each.
    pub fn of(rows: usize, laid: Laid) -> Self {
        let count = rows.div_ceil(laid.rows_most);
        Self { rows, count, laid }
    }

    pub fn count(self) -> usize {
        self.count
    }

    pub fn rows(self, tile: usize) -> Range<usize> {
        tile * self.rows / self.count..(tile + 1) * self.rows / self.count
    }
}

struct Here;

impl Kernel for Here {
    type Out = Laid;
    #[inline(always)]
    fn run<V: V16>(self) -> Laid {
        Laid {
            rows_most: rows_most::<Quads, V>(CODE_ROWS),
            parts: V::QUAD_PARTS,
        }
    }
}

/// Puts what row `m` has of a group to its places among those of all `rows` of a tile.
#[inline(always)]
pub fn put<const CODES: usize>(
    group: &mut [f32],
    (m, rows): (usize, usize),
    (scale, raised): (f32, i32),
    codes: &[i8; CODES],
    laid: Laid,
) {
    group[m] = scale;
    group[rows + m] = f32::from_bits(raised as u32);
    let places = group[WORDS * rows + m..].iter_mut().step_by(rows);
    if laid.parts == 1 {
        let (quads, _) = codes.as_chunks::<4>();
        for (&quad, to) in quads.iter().zip(places) {
            *to = f32::from_bits(word_of_bytes(quad));
        }
    } else {
        let (pairs, _) = codes.as_chunks::<2>();
        for (&pair, to) in pairs.iter().zip(places) {
            *to = f32::from_bits(word_of_halves(pair));
        }
    }
}

/// A word of a level of one part, see [`V16::QUAD_PARTS`].
#[inline(always)]
fn word_of_bytes(codes: [i8; 4]) -> u32 {
    u32::from_le_bytes(codes.map(|code| code as u8))
}

/// A word of a level of two parts.
#[inline(always)]
fn word_of_halves([first, second]: [i8; 2]) -> u32 {
    u32::from(i16::from(first) as u16) | u32::from(i16::from(second) as u16) << 16
}

impl<S: Source<Factors = Quads>> Gemm<S> {
    /// Computes everything, split over the executor when it is worth it.
    ///
    /// # Safety
    /// As for [`Self::run_on`], but `x` has `xm` words for each row, which lie as this module says;
    /// there are only whole groups of steps.
    pub unsafe fn run_beside_on(&self, tiles: Tiles, exec: &Executor) {
        self.split(exec, tiles.count(), 1, |some, panels| {
            if tiles.laid.parts > 1 && some.len() > 1 {
                let (tiles, panels) = ((tiles, some.clone()), panels.clone());
                let done = READY.with_borrow_mut(|ready| {
                    let ready = ready.take(self.k * READY_LINES * LANES);
                    dispatch_halves(BesideReady(self, tiles, panels, ready))
                });
                if done.is_some() {
                    return;
                }
            }
            Quads::dispatch(Beside(self, tiles, some, panels));
        });
    }

    /// As [`Self::run_beside`], but panel by panel for all tiles, which find its weights as they multiply them.
    #[inline(always)]
    unsafe fn run_ready<V: V16>(
        &self,
        (tiles, some): (Tiles, Range<usize>),
        panels: Range<usize>,
        ready: &mut [f32],
    ) {
        let mut sums = [Line([0.0; LANES]); MAX_TILE];
        let quads: *mut V::Quad = ready.as_mut_ptr().cast();
        assert!(self.k * size_of::<V::Quad>() <= size_of_val(ready));
        for panel in panels.clone() {
            // SAFETY: the source has the panel, and the room was checked.
            let from = unsafe { self.src.panel(panel) };
            for i in 0..self.k {
                // SAFETY: as above. Scales are for sums.
                unsafe { quads.add(i).write(self.src.load(from, i, V::zero())) };
            }
            // The first tile asks for what the next panel is made of, the others for what is near: a loop
            // that asks does not look whether it should.
            let mut ahead = match panel + 1 < panels.end {
                // SAFETY: the source has that panel, too.
                true => unsafe { self.src.panel(panel + 1) },
                false => from,
            };
            for tile in some.clone() {
                let product = self.with_source(Ready {
                    of: self.src,
                    quads: quads.cast_const().cast(),
                    ahead,
                });
                ahead = from;
                let rows = tiles.rows(tile);
                let (row, mr, nr) = (rows.start, rows.len(), 1);
                let at = At { row, panel, mr, nr };
                // SAFETY: `at` lies inside the product, and is a tile of it.
                unsafe { product.accumulate_beside::<V>(&at, tiles.laid, &mut sums) };
            }
        }
    }

    #[inline(always)]
    unsafe fn run_beside<V: V16>(&self, tiles: Tiles, some: Range<usize>, panels: Range<usize>) {
        let mut sums = [Line([0.0; LANES]); MAX_TILE];
        let block = self.block_panels(widest::<Quads, V>(1, true));
        for first in panels.clone().step_by(block) {
            let last = panels.end.min(first + block);
            for tile in some.clone() {
                let rows = tiles.rows(tile);
                let (row, mr) = (rows.start, rows.len());
                let mut panel = first;
                while panel < last {
                    let nr = fit(widest::<Quads, V>(mr, true), last - panel);
                    let at = At { row, panel, mr, nr };
                    // SAFETY: `at` lies inside the product, and is a tile of it.
                    unsafe { self.accumulate_beside::<V>(&at, tiles.laid, &mut sums) };
                    panel += nr;
                }
            }
        }
    }

    /// A tile of rows and some panels.
    #[inline(always)]
    unsafe fn accumulate_beside<V: V16>(&self, at: &At, laid: Laid, lines: &mut [Line; MAX_TILE]) {
        // SAFETY: the tile lies inside the product.
        let destination = unsafe { self.destination::<V>(at, lines) };
        let x = self.x.wrapping_add(at.row * self.xm);
        macro_rules! shapes {
            ($(($mr:literal, $nr:literal))*) => {
                match (at.mr, at.nr) {
                    $(($mr, $nr) if laid.parts == V::QUAD_PARTS => {
                        // SAFETY: the tile lies inside the product.
                        unsafe { self.beside::<V, $mr, $nr>(at.panel, x, &destination) }
                    })*
                    // The level became another one between what laid the rows and this.
                    _ => for m in 0..at.mr {
                        for n in 0..at.nr {
                            let (row, panel) = ((x.wrapping_add(m), at.mr), at.panel + n);
                            // SAFETY: as above, for a row of the tile.
                            unsafe { self.beside_otherwise::<V>(panel, row, laid, &destination.of(m, n)) }
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
        // SAFETY: as above.
        unsafe { self.finish::<V>(at, &destination, lines) };
    }

    /// A tile of rows that begins with `x`.
    #[inline(always)]
    unsafe fn beside<V: V16, const MR: usize, const NR: usize>(
        &self,
        panel: usize,
        mut x: *const f32,
        destination: &Destination,
    ) {
        // SAFETY: every address is inside the ranges `Gemm` and the tile have.
        unsafe {
            let wp = self.src.panels::<NR>(panel);
            let mut acc = destination.begin::<V, MR, NR>();
            for group in 0..self.k / S::GROUP {
                let (mut scale, mut sums) = ([V::zero(); NR], [[V::zero(); NR]; MR]);
                for n in 0..NR {
                    scale[n] = self.src.scale(wp[n], group);
                }
                for (m, sums) in sums.iter_mut().enumerate() {
                    *sums = [V::begin_quads(x.add(MR + m)); NR];
                }
                for step in 0..S::GROUP {
                    let i = group * S::GROUP + step;
                    let x = x.add((WORDS + step * V::QUAD_PARTS) * MR);
                    for n in 0..NR {
                        let w = self.src.load(wp[n], i, scale[n]);
                        if MR > 1 {
                            self.src.fetch(wp[n], i);
                        }
                        for part in 0..V::QUAD_PARTS {
                            for (m, sums) in sums.iter_mut().enumerate() {
                                sums[n] = sums[n].dot_quads(x.add(part * MR + m), w, part);
                            }
                        }
                    }
                }
                for m in 0..MR {
                    for n in 0..NR {
                        let both = scale[n].mul(V::splat(*x.add(m)));
                        acc[m][n] = both.fma(sums[m][n].sum_of_quads(), acc[m][n]);
                    }
                }
                x = x.add((WORDS + S::GROUP * V::QUAD_PARTS) * MR);
            }
            destination.end(&acc);
        }
    }

    /// One row and panel, where `x` is the row's first word in a tile of so many rows that lies as for another level.
    #[inline(always)]
    unsafe fn beside_otherwise<V: V16>(
        &self,
        panel: usize,
        (mut x, rows): (*const f32, usize),
        laid: Laid,
        destination: &Destination,
    ) {
        // SAFETY: every address is inside the ranges `Gemm` and the tile have.
        unsafe {
            let panel = self.src.panel(panel);
            let mut acc = destination.begin::<V, 1, 1>();
            for group in 0..self.k / S::GROUP {
                let scale: V = self.src.scale(panel, group);
                let mut sum = V::begin_quads(x.add(rows));
                for step in 0..S::GROUP {
                    let w = self.src.load(panel, group * S::GROUP + step, scale);
                    let words = [0, laid.parts - 1]
                        .map(|part| *x.add((WORDS + step * laid.parts + part) * rows));
                    let words = laid.turned_to(V::QUAD_PARTS, words.map(f32::to_bits));
                    for (part, word) in words.iter().take(V::QUAD_PARTS).enumerate() {
                        sum = sum.dot_quads(std::ptr::from_ref(word).cast(), w, part);
                    }
                }
                let both = scale.mul(V::splat(*x));
                acc[0][0] = both.fma(sum.sum_of_quads(), acc[0][0]);
                x = x.add((WORDS + S::GROUP * laid.parts) * rows);
            }
            destination.end(&acc);
        }
    }
}

thread_local! {
    static READY: RefCell<Buf> = RefCell::new(Buf::default());
}

/// Lines that the weights of a step take at most where two parts of them lie ready.
const READY_LINES: usize = 2;

/// The weights of one panel of a source as they are multiplied.
#[derive(Clone, Copy)]
struct Ready<S: Source> {
    of: S,
    /// A panel that is asked for meanwhile.
    ahead: S::Panel,
    /// Of a level that the kernel knows.
    quads: *const u8,
}

impl<S: Source<Factors = Quads>> Source for Ready<S> {
    type Factors = Quads;
    const GROUP: usize = S::GROUP;
    const SCALED_SUMS: bool = S::SCALED_SUMS;
    type Panel = S::Panel;
    #[inline(always)]
    unsafe fn panel(&self, n: usize) -> S::Panel {
        // SAFETY: same contract.
        unsafe { self.of.panel(n) }
    }
    #[inline(always)]
    unsafe fn scale<V: V16>(&self, panel: S::Panel, group: usize) -> V {
        // SAFETY: same contract.
        unsafe { self.of.scale(panel, group) }
    }
    #[inline(always)]
    fn fetch(&self, _panel: S::Panel, i: usize) {
        self.of.fetch_later(self.ahead, i);
    }
    #[inline(always)]
    unsafe fn load<V: V16>(&self, _panel: S::Panel, i: usize, _scale: V) -> V::Quad {
        // SAFETY: `run_ready` put all steps there, at this level.
        unsafe { self.quads.cast::<V::Quad>().add(i).read() }
    }
}

struct BesideReady<'a, S>(
    &'a Gemm<S>,
    (Tiles, Range<usize>),
    Range<usize>,
    &'a mut [f32],
);

impl<S: Source<Factors = Quads>> Kernel for BesideReady<'_, S> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        // SAFETY: made by `run_beside_on`, whose caller vouches for the pointers.
        unsafe { self.0.run_ready::<V>(self.1, self.2, self.3) }
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
