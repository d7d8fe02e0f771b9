//! The one inner loop of the crate: `y[m][n] = sum_i x[m][i] * w[n][i]`, sixteen `n` at a time.
//!
//! Every output element has a single accumulator that takes `fma` steps with `i` strictly
//! ascending, so any tiling and any split over outputs gives the same bits. Linear layers,
//! attention scores, attention values, input gradients and weight gradients all run here; they
//! differ only in strides and in where a panel of `w` lies ([`Source`]).
//!
//! Where weights are multiplied as bf16 ([`Pairs`]), a step is two inputs at once, and `x` holds
//! pairs of rounded inputs. Tiles have an order of their own ([`amx_chunked`]). Where codes are multiplied by
//! codes of inputs ([`Quads`]), a step is four, and inputs lie side by side ([`interleaved`]).
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod amx;
mod amx_chunked;
mod chunked;
mod exponent_coded;
pub mod interleaved;
mod source;
mod staging;

use std::ops::Range;

pub use self::chunked::{Chunked, TILE_ROWS};
pub use self::source::{
    BESIDE_MAX, Bf16Pairs, CODE_ROWS, CodeFactors, Element, Factors, Half, MAX_ROWS, Pairs, Quads,
    SideBySide, Single, Source, Staging, Stepped, Strided,
};
use crate::cpu::{Kernel, LANES, Line, V16, floats_of};
use crate::format::block_quant::CodeSums;
use crate::thread_pool::Executor;

/// What happens to a finished sum.
#[derive(Clone, Copy)]
pub enum Epilogue {
    /// `y = sum (+ bias)`; the pointer may be null.
    Set(*const f32),
    /// Sums start from the value in `y`.
    Continue,
    /// `y = fma(scale, sum, y)`.
    AddScaled(f32),
}

/// One product. Pointers cover: `x[rows][k]` by strides `xm`, `xk`; `y[rows][cols]` with rows at
/// distance `ym` and panels of sixteen columns at distance `yn`.
#[derive(Clone, Copy)]
pub struct Gemm<S> {
    pub x: *const f32,
    pub xm: usize,
    pub xk: usize,
    pub rows: usize,
    pub k: usize,
    pub src: S,
    pub y: *mut f32,
    pub ym: usize,
    pub yn: usize,
    pub cols: usize,
    pub out: Epilogue,
}

// SAFETY: parts of one product write disjoint outputs and only read the rest.
unsafe impl<S> Send for Gemm<S> {}
// SAFETY: as above.
unsafe impl<S> Sync for Gemm<S> {}

/// Rows up to which a product takes as long as reading its weights.
const READ_ROWS: usize = 4;

/// Register tile: at most this many rows x panels.
pub const MAX_TILE: usize = 24;

/// Weights that pass by together for each tile of rows: 256 KiB of them stay in the second-level
/// cache, and rows of `y` are written in long runs.
const BLOCK_FLOATS: usize = 1 << 16;

impl<S> Gemm<S> {
    /// The same product of weights that lie elsewhere.
    fn with_source<T>(&self, src: T) -> Gemm<T> {
        let Self {
            x,
            xm,
            xk,
            rows,
            k,
            y,
            ym,
            yn,
            cols,
            out,
            ..
        } = *self;
        Gemm {
            x,
            xm,
            xk,
            rows,
            k,
            src,
            y,
            ym,
            yn,
            cols,
            out,
        }
    }

    pub fn panels(&self) -> usize {
        self.cols.div_ceil(LANES)
    }

    /// Panels that pass by together.
    fn block_panels(&self, widest: usize) -> usize {
        let panels = BLOCK_FLOATS / LANES / self.k.max(1);
        panels.next_multiple_of(widest).max(widest)
    }

    /// Calls `part` with rows and panels: parts of the product that are worth a thread of their own. So many
    /// panels stay together; rows are counted in `rows` units, one by one or in tiles.
    fn split(
        &self,
        exec: &Executor,
        rows: usize,
        together: usize,
        part: impl Fn(Range<usize>, Range<usize>) + Sync,
    ) {
        let work = self.rows.max(READ_ROWS) * self.cols * self.k;
        let panels = self.panels();
        if panels >= rows.min(2 * exec.threads()) {
            exec.split(panels.div_ceil(together), work, &|some| {
                let last = panels.min(some.end * together);
                part(0..rows, some.start * together..last);
            });
        } else {
            exec.split(rows, work, &|rows| part(rows, 0..panels));
        }
    }

    /// Address of an output panel in `y` and how many of its sixteen columns exist.
    #[inline(always)]
    unsafe fn output(&self, at: &At, m: usize, n: usize) -> (*mut f32, usize) {
        let panel = at.panel + n;
        // SAFETY: the tile lies inside the product.
        let y = unsafe { self.y.add((at.row + m) * self.ym + panel * self.yn) };
        (y, (self.cols - panel * LANES).min(LANES))
    }

    /// Where the sums of a tile begin and end. Those that are of whole panels and need nothing more do in `y`,
    /// all others in `lines`.
    #[inline(always)]
    unsafe fn destination<V: V16>(&self, at: &At, lines: &mut [Line; MAX_TILE]) -> Destination {
        let (scale, plain) = match self.out {
            Epilogue::Set(bias) => (None, bias.is_null()),
            Epilogue::Continue => (None, true),
            Epilogue::AddScaled(scale) => (Some(scale), true),
        };
        let goes_on = matches!(self.out, Epilogue::Continue);
        if plain && (at.panel + at.nr) * LANES <= self.cols {
            // SAFETY: the tile lies inside the product.
            let at = unsafe { self.y.add(at.row * self.ym + at.panel * self.yn) };
            return Destination {
                in_lines: false,
                at,
                row: self.ym,
                panel: self.yn,
                goes_on,
                scale,
            };
        }
        let sums = floats_of(lines);
        if goes_on {
            // SAFETY: as above.
            unsafe { self.begin_lines::<V>(at, sums) };
        }
        Destination {
            in_lines: true,
            at: sums.as_mut_ptr(),
            row: at.nr * LANES,
            panel: LANES,
            goes_on,
            scale: None,
        }
    }

    /// Leaves the sums that ended in lines.
    #[inline(always)]
    unsafe fn finish<V: V16>(
        &self,
        at: &At,
        destination: &Destination,
        lines: &mut [Line; MAX_TILE],
    ) {
        if destination.in_lines {
            // SAFETY: the tile lies inside the product.
            unsafe { self.leave_lines::<V>(at, floats_of(lines)) };
        }
    }

    /// Leaves a finished sum in `y`, as [`Epilogue`] says.
    #[inline(always)]
    unsafe fn leave<V: V16>(&self, at: &At, m: usize, n: usize, mut sum: V) {
        // SAFETY: the tile lies inside the product; a bias holds `cols` values.
        unsafe {
            let (y, valid) = self.output(at, m, n);
            match self.out {
                Epilogue::Set(bias) => {
                    if !bias.is_null() {
                        let bias = bias.add((at.panel + n) * LANES);
                        sum = sum.add(load_some::<V>(bias, valid));
                    }
                }
                Epilogue::Continue => {}
                Epilogue::AddScaled(scale) => {
                    sum = V::splat(scale).fma(sum, load_some::<V>(y, valid));
                }
            }
            if valid == LANES {
                sum.store(y);
            } else {
                sum.store_part(y, valid);
            }
        }
    }

    /// What the sums of a tile begin with, `[rows][panels][16]`.
    #[inline(always)]
    unsafe fn begin_lines<V: V16>(&self, at: &At, sums: &mut [f32]) {
        let carry = matches!(self.out, Epilogue::Continue);
        for (m, sums) in sums.chunks_exact_mut(at.nr * LANES).take(at.mr).enumerate() {
            for (n, sum) in sums.chunks_exact_mut(LANES).enumerate() {
                // SAFETY: the tile lies inside the product.
                unsafe {
                    let (y, valid) = self.output(at, m, n);
                    let start = match carry {
                        true => load_some::<V>(y, valid),
                        false => V::zero(),
                    };
                    start.store(sum.as_mut_ptr());
                }
            }
        }
    }

    /// Leaves such sums.
    #[inline(always)]
    unsafe fn leave_lines<V: V16>(&self, at: &At, sums: &[f32]) {
        for (m, sums) in sums.chunks_exact(at.nr * LANES).take(at.mr).enumerate() {
            for (n, sum) in sums.chunks_exact(LANES).enumerate() {
                // SAFETY: the tile lies inside the product.
                unsafe { self.leave(at, m, n, V::load(sum.as_ptr())) };
            }
        }
    }
}

impl<S: Source<Factors: Stepped>> Gemm<S> {
    /// Computes everything, split over the executor when it is worth it.
    ///
    /// # Safety
    /// All pointers are valid for the described ranges, and `y` overlaps no input.
    pub unsafe fn run_on(&self, exec: &Executor) {
        self.split(exec, self.rows, 1, |rows, panels| {
            S::Factors::dispatch(Part(self, rows, panels));
        });
    }

    /// The product over `rows` x `panels` on this thread, inside a kernel.
    ///
    /// # Safety
    /// As [`Self::run_on`], and below [`dispatch`].
    #[inline(always)]
    pub unsafe fn run<V: V16>(&self, rows: Range<usize>, panels: Range<usize>) {
        // SAFETY: the caller is at this level and vouches for the pointers.
        unsafe { V::call(Part(self, rows, panels)) }
    }

    #[inline(always)]
    unsafe fn run_inline<V: V16>(&self, rows: Range<usize>, panels: Range<usize>) {
        if rows.is_empty() {
            return;
        }
        let mut tile = [Line([0.0; LANES]); MAX_TILE];
        let most = rows_most::<S::Factors, V>(S::ROWS_MAX);
        let tiles = rows.len().div_ceil(most);
        let widest = widest::<S::Factors, V>(rows.len().div_ceil(tiles), S::SCALED_SUMS);
        let block = self.block_panels(widest);
        let mut first = panels.start;
        while first < panels.end {
            let last = panels.end.min(first + block);
            let mut row = rows.start;
            for done in 0..tiles {
                let mr = (rows.end - row).div_ceil(tiles - done);
                let mut panel = first;
                while panel < last {
                    let nr = fit(widest, last - panel);
                    let at = At { row, panel, mr, nr };
                    // SAFETY: `at` lies inside the product.
                    unsafe { self.accumulate::<V>(&at, &mut tile) };
                    panel += nr;
                }
                row += mr;
            }
            first = last;
        }
    }

    #[inline(always)]
    unsafe fn accumulate<V: V16>(&self, at: &At, lines: &mut [Line; MAX_TILE]) {
        // SAFETY: the tile lies inside the product.
        let destination = unsafe { self.destination::<V>(at, lines) };
        macro_rules! shapes {
            ($(($mr:literal, $nr:literal))*) => {
                match (at.mr, at.nr) {
                    // SAFETY: the tile lies inside the product.
                    $(($mr, $nr) => unsafe { self.tile::<V, $mr, $nr>(at, &destination) },)*
                    _ => unreachable!("tile {} x {}", at.mr, at.nr),
                }
            };
        }
        if const { registers::<S::Factors, V>() >= 32 && S::SCALED_SUMS } {
            shapes!((1, 1)(2, 1)(3, 1)(4, 1)(5, 1)(6, 1)(7, 1)(8, 1)(9, 1)(
                10, 1
            )(11, 1)(12, 1));
        } else if const { registers::<S::Factors, V>() >= 32 } {
            shapes!(
                (1, 8)(2, 8)(1, 4)(2, 4)(3, 4)(4, 4)(5, 4)(6, 4)(1, 2)(2, 2)(3, 2)(4, 2)(5, 2)(
                    6, 2
                )(1, 1)(2, 1)(3, 1)(4, 1)(5, 1)(6, 1)
            );
        } else if const { registers::<S::Factors, V>() >= 8 } {
            shapes!((1, 4)(1, 2)(2, 2)(1, 1)(2, 1)(3, 1)(4, 1)(5, 1)(6, 1));
        } else {
            shapes!((1, 1)(2, 1));
        }
        // SAFETY: as above.
        unsafe { self.finish::<V>(at, &destination, lines) };
    }

    /// `MR` rows by `NR` panels, all sums in registers.
    #[inline(always)]
    unsafe fn tile<V: V16, const MR: usize, const NR: usize>(
        &self,
        at: &At,
        destination: &Destination,
    ) {
        // SAFETY: every address is inside the ranges `Gemm` describes.
        unsafe {
            let mut xp = [self.x; MR];
            for (m, p) in xp.iter_mut().enumerate() {
                *p = self.x.add((at.row + m) * self.xm);
            }
            let wp = self.src.panels::<NR>(at.panel);
            let mut acc = destination.begin::<V, MR, NR>();
            let mut first = 0;
            while first < self.k {
                let end = self.k.min(first.saturating_add(S::GROUP));
                let mut scale = [V::zero(); NR];
                for n in 0..NR {
                    scale[n] = self.src.scale(wp[n], first / S::GROUP);
                }
                if S::SCALED_SUMS {
                    let mut sums = [[V::zero(); NR]; MR];
                    self.steps(&xp, &wp, first..end, scale, &mut sums);
                    for m in 0..MR {
                        for n in 0..NR {
                            acc[m][n] = scale[n].fma(sums[m][n], acc[m][n]);
                        }
                    }
                } else {
                    self.steps(&xp, &wp, first..end, scale, &mut acc);
                }
                first = end;
            }
            destination.end(&acc);
        }
    }

    /// Adds the products of some steps of one group to `sums`.
    #[inline(always)]
    unsafe fn steps<V: V16, const MR: usize, const NR: usize>(
        &self,
        xp: &[*const f32; MR],
        wp: &[S::Panel; NR],
        steps: Range<usize>,
        scale: [V; NR],
        sums: &mut [[V; NR]; MR],
    ) {
        for i in steps {
            // SAFETY: the panels and rows have the step.
            unsafe {
                if cfg!(target_arch = "aarch64") && MR == 1 {
                    // A weight is needed once, so few registers hold weights, which are scarce there.
                    let x = S::Factors::splat::<V>(xp[0].add(i * self.xk));
                    for n in 0..NR {
                        let w = self.src.load(wp[n], i, scale[n]);
                        sums[0][n] = S::Factors::add(sums[0][n], x, w);
                    }
                    continue;
                }
                let mut w = [self.src.load(wp[0], i, scale[0]); NR];
                for n in 1..NR {
                    w[n] = self.src.load(wp[n], i, scale[n]);
                }
                if MR > 1 {
                    wp.iter().for_each(|panel| self.src.fetch(*panel, i));
                }
                for m in 0..MR {
                    let x = S::Factors::splat::<V>(xp[m].add(i * self.xk));
                    for n in 0..NR {
                        sums[m][n] = S::Factors::add(sums[m][n], x, w[n]);
                    }
                }
            }
        }
    }
}

/// Where the sums of a tile begin and end.
#[derive(Clone, Copy)]
struct Destination {
    /// Whether that is in lines, from where they are still to leave.
    in_lines: bool,
    at: *mut f32,
    /// Distances of rows and of panels.
    row: usize,
    panel: usize,
    /// Whether sums go on from what is there.
    goes_on: bool,
    /// By what they are scaled to be added to what is there.
    scale: Option<f32>,
}

impl Destination {
    /// For one row and panel of the tile.
    fn of(&self, m: usize, n: usize) -> Self {
        let at = self.at.wrapping_add(m * self.row + n * self.panel);
        Self { at, ..*self }
    }

    /// What sums begin with.
    #[inline(always)]
    unsafe fn begin<V: V16, const MR: usize, const NR: usize>(&self) -> [[V; NR]; MR] {
        // SAFETY: the tile has these rows and panels.
        unsafe {
            let mut sums = [[V::zero(); NR]; MR];
            if self.goes_on {
                for (m, sums) in sums.iter_mut().enumerate() {
                    for (n, sum) in sums.iter_mut().enumerate() {
                        *sum = V::load(self.at.add(m * self.row + n * self.panel));
                    }
                }
            }
            sums
        }
    }

    /// Leaves sums.
    #[inline(always)]
    unsafe fn end<V: V16, const MR: usize, const NR: usize>(&self, sums: &[[V; NR]; MR]) {
        // SAFETY: as in `begin`.
        unsafe {
            if let Some(scale) = self.scale {
                let scale = V::splat(scale);
                for (m, sums) in sums.iter().enumerate() {
                    for (n, sum) in sums.iter().enumerate() {
                        let to = self.at.add(m * self.row + n * self.panel);
                        scale.fma(*sum, V::load(to)).store(to);
                    }
                }
            } else {
                for (m, sums) in sums.iter().enumerate() {
                    for (n, sum) in sums.iter().enumerate() {
                        sum.store(self.at.add(m * self.row + n * self.panel));
                    }
                }
            }
        }
    }
}

/// [`V16::load_part`], where mostly all lanes exist.
#[inline(always)]
unsafe fn load_some<V: V16>(p: *const f32, valid: usize) -> V {
    // SAFETY: same contract.
    unsafe {
        match valid {
            LANES => V::load(p),
            _ => V::load_part(p, valid),
        }
    }
}

/// Position and size of one register tile.
struct At {
    row: usize,
    panel: usize,
    mr: usize,
    nr: usize,
}

/// [`V16::REGISTERS`] that are worth using for such factors.
const fn registers<F: Factors, V: V16>() -> usize {
    if F::INPUTS == Pairs::INPUTS && !V::PAIRS {
        4
    } else {
        V::REGISTERS
    }
}

/// Most rows of a register tile of a source that serves so many where registers are many.
#[inline(always)]
fn rows_most<F: Factors, V: V16>(of_source: usize) -> usize {
    match const { registers::<F, V>() } {
        32.. => of_source,
        8.. => MAX_ROWS,
        _ => 2,
    }
}

/// Panels per tile that fill the registers for `mr` rows. Sums of groups take as many registers again, and
/// leave each panel work enough of its own: one is read from end to end then, which memory is quickest at.
#[inline(always)]
fn widest<F: Factors, V: V16>(mr: usize, scaled_sums: bool) -> usize {
    match (const { registers::<F, V>() }, mr) {
        (32.., _) if scaled_sums => 1,
        (32.., 1 | 2) => 8,
        (32.., _) => 4,
        (8.., 1) if scaled_sums => 2,
        (8.., _) if scaled_sums => 1,
        (8.., 1) => 4,
        (8.., 2) => 2,
        _ => 1,
    }
}

/// The largest existing tile width not above `left`.
#[inline(always)]
fn fit(widest: usize, left: usize) -> usize {
    let mut nr = widest;
    while nr > left {
        nr /= 2;
    }
    nr
}

struct Part<'a, S>(&'a Gemm<S>, Range<usize>, Range<usize>);

impl<S: Source<Factors: Stepped>> Kernel for Part<'_, S> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        // SAFETY: made by `run_on`, whose caller vouches for the pointers.
        unsafe { self.0.run_inline::<V>(self.1, self.2) }
    }
}
