//! The one inner loop of the crate: `y[m][n] = sum_i x[m][i] * w[n][i]`, sixteen `n` at a time.
//!
//! Every output element has a single accumulator that takes `fma` steps with `i` strictly
//! ascending, so any tiling and any split over outputs gives the same bits. Linear layers,
//! attention scores, attention values, input gradients and weight gradients all run here; they
//! differ only in strides and in where a panel of `w` lies ([`Source`]).
#![allow(unsafe_code)]

use std::ops::Range;

use crate::exec::Executor;
use crate::simd::{Kernel, LANES, Line, V16, dispatch};

/// A stored weight element.
pub(crate) trait Element: Copy + Send + Sync {
    /// # Safety
    /// As for [`V16::load`].
    unsafe fn load<V: V16>(p: *const Self) -> V;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<V: V16>(p: *const Self) -> V {
        // SAFETY: same contract.
        unsafe { V::load(p) }
    }
}

/// The bits of a bf16.
impl Element for u16 {
    #[inline(always)]
    unsafe fn load<V: V16>(p: *const Self) -> V {
        // SAFETY: same contract.
        unsafe { V::load_bf16(p) }
    }
}

/// Where the sixteen-wide columns ("panels") of `w` lie.
pub(crate) trait Source: Copy {
    type E: Element;
    /// Elements between step `i` and step `i + 1` of a panel.
    fn step(&self) -> usize;
    /// Start of panel `n`.
    ///
    /// # Safety
    /// `n` is a panel of this source.
    unsafe fn panel(&self, n: usize) -> *const Self::E;
}

/// Panels at a fixed distance.
#[derive(Clone, Copy)]
pub(crate) struct Strided<E> {
    pub(crate) base: *const E,
    pub(crate) panel: usize,
    pub(crate) step: usize,
}

impl<E: Element> Source for Strided<E> {
    type E = E;
    #[inline(always)]
    fn step(&self) -> usize {
        self.step
    }
    #[inline(always)]
    unsafe fn panel(&self, n: usize) -> *const E {
        // SAFETY: the caller vouches for `n`.
        unsafe { self.base.add(n * self.panel) }
    }
}

/// What happens to a finished sum.
#[derive(Clone, Copy)]
pub(crate) enum Epilogue {
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
pub(crate) struct Gemm<S> {
    pub(crate) x: *const f32,
    pub(crate) xm: usize,
    pub(crate) xk: usize,
    pub(crate) rows: usize,
    pub(crate) k: usize,
    pub(crate) src: S,
    pub(crate) y: *mut f32,
    pub(crate) ym: usize,
    pub(crate) yn: usize,
    pub(crate) cols: usize,
    pub(crate) out: Epilogue,
}

// SAFETY: parts of one product write disjoint outputs and only read the rest.
unsafe impl<S> Send for Gemm<S> {}
// SAFETY: as above.
unsafe impl<S> Sync for Gemm<S> {}

/// Register tile: at most this many rows, and this many rows x panels.
const MAX_ROWS: usize = 6;
const MAX_TILE: usize = 24;

impl<S: Source> Gemm<S> {
    pub(crate) fn panels(&self) -> usize {
        self.cols.div_ceil(LANES)
    }

    /// Computes everything, split over the executor when it is worth it.
    ///
    /// # Safety
    /// All pointers are valid for the described ranges, and `y` overlaps no input.
    pub(crate) unsafe fn run_on(&self, exec: &Executor) {
        let work = self.rows * self.cols * self.k;
        let panels = self.panels();
        if panels >= 2 * exec.threads() {
            exec.split(panels, work, &|part| {
                dispatch(Part(self, 0..self.rows, part));
            });
        } else {
            exec.split(self.rows, work, &|part| {
                dispatch(Part(self, part, 0..panels));
            });
        }
    }

    /// The product over `rows` x `panels` on this thread, inside a kernel.
    ///
    /// # Safety
    /// As [`Self::run_on`], and below [`dispatch`].
    #[inline(always)]
    pub(crate) unsafe fn run<V: V16>(&self, rows: Range<usize>, panels: Range<usize>) {
        // SAFETY: the caller is at this level and vouches for the pointers.
        unsafe { V::call(Part(self, rows, panels)) }
    }

    #[inline(always)]
    unsafe fn run_inline<V: V16>(&self, rows: Range<usize>, panels: Range<usize>) {
        if rows.is_empty() {
            return;
        }
        let mut tile = [Line([0.0; LANES]); MAX_TILE];
        let tiles = rows.len().div_ceil(MAX_ROWS);
        let widest = widest::<V>(rows.len().div_ceil(tiles));
        let mut panel = panels.start;
        while panel < panels.end {
            let nr = fit(widest, panels.end - panel);
            let mut row = rows.start;
            for done in 0..tiles {
                let mr = (rows.end - row).div_ceil(tiles - done);
                let at = At { row, panel, mr, nr };
                // SAFETY: `at` lies inside the product.
                unsafe {
                    self.begin::<V>(&at, &mut tile);
                    self.accumulate::<V>(&at, &mut tile);
                    self.finish::<V>(&at, &tile);
                }
                row += mr;
            }
            panel += nr;
        }
    }

    #[inline(always)]
    unsafe fn begin<V: V16>(&self, at: &At, tile: &mut [Line; MAX_TILE]) {
        let carry = matches!(self.out, Epilogue::Continue);
        for m in 0..at.mr {
            for n in 0..at.nr {
                let slot = tile[m * at.nr + n].0.as_mut_ptr();
                // SAFETY: `y` holds these columns (see `valid`).
                unsafe {
                    if carry {
                        let (y, valid) = self.output(at, m, n);
                        V::load_part(y, valid).store(slot);
                    } else {
                        V::zero().store(slot);
                    }
                }
            }
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

    #[inline(always)]
    unsafe fn finish<V: V16>(&self, at: &At, tile: &[Line; MAX_TILE]) {
        for m in 0..at.mr {
            for n in 0..at.nr {
                // SAFETY: as in `begin`; a bias holds `cols` values.
                unsafe {
                    let (y, valid) = self.output(at, m, n);
                    let mut sum = V::load(tile[m * at.nr + n].0.as_ptr());
                    match self.out {
                        Epilogue::Set(bias) => {
                            if !bias.is_null() {
                                let bias = bias.add((at.panel + n) * LANES);
                                sum = sum.add(V::load_part(bias, valid));
                            }
                        }
                        Epilogue::Continue => {}
                        Epilogue::AddScaled(scale) => {
                            sum = V::splat(scale).fma(sum, V::load_part(y, valid));
                        }
                    }
                    if valid == LANES {
                        sum.store(y);
                    } else {
                        sum.store_part(y, valid);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn accumulate<V: V16>(&self, at: &At, tile: &mut [Line; MAX_TILE]) {
        macro_rules! shapes {
            ($(($mr:literal, $nr:literal))*) => {
                match (at.mr, at.nr) {
                    // SAFETY: the tile lies inside the product.
                    $(($mr, $nr) => unsafe { self.tile::<V, $mr, $nr>(at, tile) },)*
                    _ => unreachable!("tile {} x {}", at.mr, at.nr),
                }
            };
        }
        if V::WIDE {
            shapes!(
                (1, 8)(2, 8)(3, 8)(1, 4)(2, 4)(3, 4)(4, 4)(5, 4)(6, 4)(1, 2)(2, 2)(3, 2)(4, 2)(
                    5, 2
                )(6, 2)(1, 1)(2, 1)(3, 1)(4, 1)(5, 1)(6, 1)
            );
        } else {
            shapes!((1, 4)(1, 2)(2, 2)(1, 1)(2, 1)(3, 1)(4, 1)(5, 1)(6, 1));
        }
    }

    /// `MR` rows by `NR` panels, all sums in registers.
    #[inline(always)]
    unsafe fn tile<V: V16, const MR: usize, const NR: usize>(
        &self,
        at: &At,
        tile: &mut [Line; MAX_TILE],
    ) {
        // SAFETY: every address is inside the ranges `Gemm` describes.
        unsafe {
            let mut xp = [self.x; MR];
            for (m, p) in xp.iter_mut().enumerate() {
                *p = self.x.add((at.row + m) * self.xm);
            }
            let mut wp = [self.src.panel(at.panel); NR];
            for (n, p) in wp.iter_mut().enumerate() {
                *p = self.src.panel(at.panel + n);
            }
            let mut acc = [[V::zero(); NR]; MR];
            for m in 0..MR {
                for n in 0..NR {
                    acc[m][n] = V::load(tile[m * NR + n].0.as_ptr());
                }
            }
            let (xk, wk) = (self.xk, self.src.step());
            for i in 0..self.k {
                let mut w = [V::zero(); NR];
                for n in 0..NR {
                    w[n] = S::E::load::<V>(wp[n].add(i * wk));
                }
                for m in 0..MR {
                    let x = V::splat(*xp[m].add(i * xk));
                    for n in 0..NR {
                        acc[m][n] = x.fma(w[n], acc[m][n]);
                    }
                }
            }
            for m in 0..MR {
                for n in 0..NR {
                    acc[m][n].store(tile[m * NR + n].0.as_mut_ptr());
                }
            }
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

/// Panels per tile that fill the registers for `mr` rows.
#[inline(always)]
fn widest<V: V16>(mr: usize) -> usize {
    match (V::WIDE, mr) {
        (true, 1..=3) => 8,
        (true, _) => 4,
        (false, 1) => 4,
        (false, 2) => 2,
        (false, _) => 1,
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

impl<S: Source> Kernel for Part<'_, S> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        // SAFETY: made by `run_on`, whose caller vouches for the pointers.
        unsafe { self.0.run_inline::<V>(self.1, self.2) }
    }
}
