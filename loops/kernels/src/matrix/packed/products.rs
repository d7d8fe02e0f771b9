//! Products with a matrix, and the outer product that is its gradient.

use std::ops::Range;

use super::{Data, PackedMatrix, Rows, RowsMut, Store};
use crate::cpu::{Kernel, LANES, V16, dispatch, padded};
use crate::format::block_quant::{Bits, CodeSums, Quantised};
use crate::gemm::interleaved::Tiles;
use crate::gemm::{
    BESIDE_MAX, Bf16Pairs, Chunked, Epilogue, Factors, Gemm, Pairs, Quads, SideBySide, Single,
    Source, Strided,
};
use crate::matrix::bf16_dot::with_pairs;
use crate::matrix::compute_type::ComputeType;
use crate::matrix::int8_dot::with_quads;
use crate::thread_pool::Executor;

/// From how many rows on stored weights are widened once for all of them (see
/// [`Gemm::run_staged_on`]); f32 needs no widening. Below, widening them again for every six rows was
/// faster in eight bits, and no slower beyond noise in bf16.
const STAGED_FROM: usize = 48;
/// The same for codes that are multiplied in pairs: there are more instructions from a code to a pair.
const CODE_PAIRS_STAGED_FROM: usize = 24;

impl Store<'_> {
    /// The same for a product of so many outputs.
    fn epilogue(&self, out: usize) -> Epilogue {
        match self {
            Self::Set(bias) => {
                assert!(bias.is_none_or(|b| b.len() >= out), "bias too short");
                Epilogue::Set(bias.map_or(std::ptr::null(), <[f32]>::as_ptr))
            }
            Self::Continue => Epilogue::Continue,
            Self::AddScaled(scale) => Epilogue::AddScaled(*scale),
        }
    }
}

impl PackedMatrix {
    /// `y [rows, out] = x [rows, in] W^T`, see [`Store`]. `y` rows start at column 0 of `y.data`.
    pub fn linear(&self, x: Rows, y: RowsMut, store: Store, exec: &Executor) {
        let RowsMut {
            data: y,
            stride: ym,
        } = y;
        let out = store.epilogue(self.out);
        if x.rows == 0 {
            return;
        }
        let last = x.rows - 1;
        assert!(x.data.len() >= last * x.stride + self.inp, "x too short");
        assert!(y.len() >= last * ym + self.out, "y too short");
        // SAFETY: lengths were checked; `y` is exclusive.
        unsafe { self.multiply(x, (y.as_mut_ptr(), ym, out), exec) }
    }

    /// As [`Self::linear`], for matrices of an adapter: up to [`BESIDE_MAX`] of one shape and form, f32 or
    /// bf16 that is multiplied as f32, the outputs of each beginning at a multiple of their padded number in
    /// `y`. Few rows times few outputs leave a processor waiting for sums; those of several matrices do
    /// not. What lies between the outputs of one and the next says nothing.
    pub fn linear_side_by_side(
        all: [Option<&Self>; BESIDE_MAX],
        x: Rows,
        y: RowsMut,
        store: Store,
        exec: &Executor,
    ) {
        let RowsMut {
            data: y,
            stride: ym,
        } = y;
        let Some(one) = all[0].filter(|_| x.rows > 0) else {
            return;
        };
        let same = |w: &&Self| (w.out, w.inp) == (one.out, one.inp);
        assert!(all.iter().flatten().all(same), "matrices of several shapes");
        let before = all.iter().flatten().count() - 1;
        let (last, cols) = (x.rows - 1, before * padded(one.out) + one.out);
        assert!(x.data.len() >= last * x.stride + one.inp, "x too short");
        assert!(y.len() >= last * ym + cols, "y too short");
        let to = (y.as_mut_ptr(), ym, store.epilogue(cols));
        // SAFETY: lengths were checked; `y` is exclusive.
        unsafe {
            match one.data {
                Data::F32(_) | Data::Narrow(_) => {
                    let src = one.side_by_side(all, Self::singles);
                    Gemm {
                        cols,
                        ..one.product(x, src, to)
                    }
                    .run_on(exec);
                }
                _ => {
                    let src = one.side_by_side(all, Self::halves);
                    Gemm {
                        cols,
                        ..one.product(x, src, to)
                    }
                    .run_staged_on(exec, STAGED_FROM);
                }
            }
        }
    }

    /// Matrices of this shape that begin where `values` says.
    fn side_by_side<E>(
        &self,
        all: [Option<&Self>; BESIDE_MAX],
        values: fn(&Self) -> (*const E, usize),
    ) -> SideBySide<E> {
        let (_, step) = values(self);
        SideBySide {
            bases: all.map(|w| w.map_or(std::ptr::null(), |w| values(w).0)),
            each: self.out.div_ceil(LANES),
            panel: self.inp * step,
            step,
        }
    }

    /// Where the values of an f32 matrix begin, and their distance from one input to the next.
    fn singles(&self) -> (*const f32, usize) {
        match &self.data {
            Data::F32(lines) => (lines.as_ptr().cast(), LANES),
            Data::Narrow(narrow) => (narrow.lines.as_ptr().cast(), narrow.lanes),
            _ => panic!("a matrix of {}, not of f32", self.kept()),
        }
    }

    /// The same of a bf16 matrix.
    fn halves(&self) -> (*const u16, usize) {
        match &self.data {
            Data::Bf16(lines) => (lines.as_ptr().cast(), LANES),
            Data::NarrowBf16(narrow) => (narrow.lines.as_ptr().cast(), narrow.lanes),
            _ => panic!("a matrix of {}, not of bf16", self.kept()),
        }
    }

    /// The matrix where its values are.
    fn strided<E>(&self, (base, step): (*const E, usize)) -> Strided<E> {
        let panel = self.inp * step;
        Strided { base, panel, step }
    }

    /// See [`Self::linear`].
    ///
    /// # Safety
    /// `x` has the rows, and the output has them to write.
    unsafe fn multiply(&self, x: Rows, to: (*mut f32, usize, Epilogue), exec: &Executor) {
        let from = |first: usize| (to.0.wrapping_add(first * to.1), to.1, to.2);
        // SAFETY: the caller vouches for `x` and `to`; panels hold ceil(out / 16) * in lines.
        unsafe {
            match (&self.data, self.compute_type) {
                (Data::Bf16(_) | Data::Compact(_), ComputeType::Int8)
                | (Data::Compact(_), ComputeType::F32) => {
                    unreachable!("see `takes` and `with_compute_type`")
                }
                (Data::F32(_) | Data::Narrow(_), _) => {
                    let product = self.product(x, self.strided(self.singles()), to);
                    product.run_on(exec);
                }
                (Data::Bf16(_), ComputeType::F32) | (Data::NarrowBf16(_), _) => {
                    self.staged(x, self.strided(self.halves()), to, exec);
                }
                (Data::Quantised(data), ComputeType::F32) => match data.bits {
                    Bits::Eight => self.staged(x, data.eight(), to, exec),
                    Bits::Four => self.staged(x, data.four(), to, exec),
                },
                (Data::Quantised(data), ComputeType::Int8) => {
                    with_quads(x, self.inp, data.bits, exec, |first, x, tiles| {
                        self.quads(data, tiles, x, from(first), exec);
                    });
                }
                (Data::Bf16(_), ComputeType::Bf16 | ComputeType::Amx) => {
                    let (base, panel) = (self.halves().0, self.inp * LANES);
                    with_pairs(x, self.inp, exec, |first, x| {
                        let src = Bf16Pairs { base, panel };
                        self.pairs(x, src, from(first), (exec, usize::MAX));
                    });
                }
                (Data::Compact(data), ComputeType::Bf16 | ComputeType::Amx) => {
                    with_pairs(x, self.inp, exec, |first, x| {
                        let steps = self.inp / Pairs::INPUTS;
                        let product = self.product_in(steps, x, data.panels(), from(first));
                        match self.compute_type {
                            ComputeType::Amx => product.run_in_chunks(exec),
                            _ => product.run_compact_on(exec),
                        }
                    });
                }
                (Data::Quantised(data), ComputeType::Bf16 | ComputeType::Amx) => {
                    let how = (exec, CODE_PAIRS_STAGED_FROM);
                    with_pairs(x, self.inp, exec, |first, x| match data.bits {
                        Bits::Eight => self.pairs(x, CodeSums::of(data.eight()), from(first), how),
                        Bits::Four => self.pairs(x, CodeSums::of(data.four()), from(first), how),
                    });
                }
            }
        }
    }

    /// The product of `x` to `to`, in f32.
    ///
    /// # Safety
    /// As for [`Self::multiply`].
    unsafe fn staged<S: Source<Factors = Single>>(
        &self,
        x: Rows,
        src: S,
        to: (*mut f32, usize, Epilogue),
        exec: &Executor,
    ) {
        // SAFETY: the caller vouches for the pointers.
        unsafe { self.product(x, src, to).run_staged_on(exec, STAGED_FROM) }
    }

    /// The product of rows of pairs to `to`, see [`Self::product`]; staged from so many rows on.
    ///
    /// # Safety
    /// The pairs are as [`with_pairs`] makes them, and `to` holds their products.
    unsafe fn pairs<S: Source<Factors = Pairs> + Chunked>(
        &self,
        x: Rows,
        src: S,
        to: (*mut f32, usize, Epilogue),
        (exec, staged_from): (&Executor, usize),
    ) {
        let product = self.product(x, src, to);
        // SAFETY: the caller vouches for the pointers.
        unsafe {
            match self.compute_type {
                ComputeType::Amx => product.run_in_chunks(exec),
                _ => product.run_staged_on(exec, staged_from),
            }
        }
    }

    /// The product of rows of codes that lie in `tiles` to `to`.
    ///
    /// # Safety
    /// The rows are as [`with_quads`] makes them, and `to` holds their products.
    unsafe fn quads(
        &self,
        data: &Quantised,
        tiles: Tiles,
        x: Rows,
        to: (*mut f32, usize, Epilogue),
        exec: &Executor,
    ) {
        // SAFETY: the caller vouches for the pointers.
        unsafe {
            match data.bits {
                Bits::Eight => self
                    .product(x, CodeSums::<Quads, 8>::of(data.eight()), to)
                    .run_beside_on(tiles, exec),
                Bits::Four => self
                    .product(x, CodeSums::<Quads, 4>::of(data.four()), to)
                    .run_beside_on(tiles, exec),
            }
        }
    }

    /// The product of `x`, in steps of `src`, to `y` with rows at distance `ym`.
    fn product<S: Source>(&self, x: Rows, src: S, to: (*mut f32, usize, Epilogue)) -> Gemm<S> {
        self.product_in(self.inp / S::Factors::INPUTS, x, src, to)
    }

    /// The same in so many steps.
    fn product_in<S>(
        &self,
        steps: usize,
        x: Rows,
        src: S,
        (y, ym, out): (*mut f32, usize, Epilogue),
    ) -> Gemm<S> {
        Gemm {
            x: x.data.as_ptr(),
            xm: x.stride,
            xk: 1,
            rows: x.rows,
            k: steps,
            src,
            y,
            ym,
            yn: LANES,
            cols: self.out,
            out,
        }
    }

    /// `self += dy^T x`: the weight gradient of `y = x W^T`, tokens ascending.
    /// `dy [rows, out]`, `x [rows, in]`.
    pub fn add_outer(&mut self, dy: Rows, x: Rows, exec: &Executor) {
        assert_eq!(dy.rows, x.rows, "one gradient row per input row");
        if x.rows == 0 {
            return;
        }
        let last = x.rows - 1;
        let (out, inp) = (self.out, self.inp);
        assert!(
            dy.data.len() >= last * dy.stride + padded(out),
            "dy too short"
        );
        assert!(x.data.len() >= last * x.stride + inp, "x too short");
        let gemm = Gemm {
            x: x.data.as_ptr(),
            xm: 1,
            xk: x.stride,
            rows: inp,
            k: x.rows,
            src: Strided {
                base: dy.data.as_ptr(),
                panel: LANES,
                step: dy.stride,
            },
            y: self.values_mut().as_mut_ptr(),
            ym: LANES,
            yn: inp * LANES,
            cols: out,
            out: Epilogue::Continue,
        };
        // SAFETY (of the kernel): lengths were checked (the last panel of `dy` reads into its
        // padding); the gradient is exclusive and parts own disjoint panels or lines of it.
        let part = |rows, panels| {
            dispatch(Outer {
                gemm: &gemm,
                rows,
                panels,
            });
        };
        let (panels, work) = (out.div_ceil(LANES), x.rows * out * inp);
        if panels >= 2 * exec.threads() {
            exec.split(panels, work, &|panels| part(0..inp, panels));
        } else {
            // An adapter's first matrix has a panel or two.
            exec.split(inp, work, &|rows| part(rows, 0..panels));
        }
    }
}

/// Tokens per pass over a weight gradient: their gradient rows stay in the first-level cache.
const OUTER_TOKENS: usize = 128;

/// Part of a weight gradient. Sums continue from one block of tokens to the next.
struct Outer<'a> {
    gemm: &'a Gemm<Strided<f32>>,
    rows: Range<usize>,
    panels: Range<usize>,
}

impl Kernel for Outer<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        let all = self.gemm;
        let mut first = 0;
        while first < all.k {
            let mut block = *all;
            block.k = OUTER_TOKENS.min(all.k - first);
            // SAFETY: a block of the rows `add_outer` checked.
            unsafe {
                block.x = all.x.add(first * all.xk);
                block.src.base = all.src.base.add(first * all.src.step);
                block.run::<V>(self.rows.clone(), self.panels.clone());
            }
            first += block.k;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::SimdLevel;
    use crate::format::block_quant::WeightFormat;
    use crate::support::{Levels, draw, matrix, product};

    /// Another level may come between: rows lie in larger tiles then than it has registers for.
    #[test]
    fn rows_that_lie_for_one_level_are_multiplied_at_any() {
        let (levels, exec) = (Levels::ours(), Executor::new(1));
        let (out, inp, rows) = (40, 96, 27);
        let x = draw(2, rows * inp);
        for format in [WeightFormat::Q8, WeightFormat::Q4] {
            let w = matrix(format, (out, inp), ComputeType::Int8);
            let Data::Quantised(data) = &w.data else {
                panic!("{format:?} has no codes");
            };
            let expected = product(&w, &x, rows, Store::Set(None), &exec);
            for laid in levels.each() {
                for level in SimdLevel::ALL {
                    assert!(levels.force(laid));
                    let mut found = vec![0.0; rows * out];
                    let to = (found.as_mut_ptr(), out, Epilogue::Set(std::ptr::null()));
                    let from = Rows {
                        data: &x,
                        stride: inp,
                        rows,
                    };
                    with_quads(from, inp, data.bits, &exec, |first, x, tiles| {
                        assert_eq!(first, 0);
                        levels.force(level);
                        // SAFETY: `found` holds all rows, and nobody else has it.
                        unsafe { w.quads(data, tiles, x, to, &exec) };
                    });
                    assert_eq!(found, expected, "{format:?} {laid:?} {level:?}");
                }
            }
        }
    }

    /// Whole panels and tiles, and remainders of each; rows in one tile and in several.
    #[test]
    fn products_of_numbers_are_one_sum_after_the_other_at_every_level() {
        let (levels, exec) = (Levels::ours(), Executor::new(2));
        for format in [WeightFormat::F32, WeightFormat::Bf16] {
            for (out, inp) in [(300, 70), (128, 33), (40, 16)] {
                let w = matrix(format, (out, inp), ComputeType::F32);
                let (weights, bias) = (w.to_rows(0..out), draw(3, out));
                for rows in [1, 2, 5, 8, 12, 13, 50, 77] {
                    let (x, y) = (draw(2, rows * inp), draw(9, rows * out));
                    for store in [
                        Store::Set(Some(&bias)),
                        Store::Continue,
                        Store::AddScaled(0.5),
                    ] {
                        let expected: Vec<f32> = (0..rows * out)
                            .map(|at| {
                                let (m, n) = (at / out, at % out);
                                let start = match store {
                                    Store::Continue => y[at],
                                    _ => 0.0,
                                };
                                let sum = (0..inp).fold(start, |sum, i| {
                                    x[m * inp + i].mul_add(weights[n * inp + i], sum)
                                });
                                match store {
                                    Store::Set(_) => sum + bias[n],
                                    Store::Continue => sum,
                                    Store::AddScaled(scale) => scale.mul_add(sum, y[at]),
                                }
                            })
                            .collect();
                        for level in levels.each() {
                            let found = product(&w, &x, rows, store, &exec);
                            assert!(
                                found == expected,
                                "{format:?} {level:?} {out} x {inp}, {rows} rows"
                            );
                        }
                    }
                }
            }
        }
    }
}
