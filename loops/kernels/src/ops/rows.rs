//! Operations on rows, and what layers with experts need of them.
#![allow(unsafe_code)]

use super::columns::{get, put};
use crate::cpu::{Kernel, LANES, V16, dispatch, exp};
use crate::thread_pool::{Executor, Shards};

/// Calls `each(row, values)` for `rows` rows at distance `stride`, in parallel when `work`
/// multiply-adds are worth it.
pub fn each_row(
    data: &mut [f32],
    rows: usize,
    stride: usize,
    exec: &Executor,
    work: usize,
    each: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    let data = Shards::new(&mut data[..rows * stride]);
    exec.split(rows, work, &|part| {
        for row in part {
            // SAFETY: every row goes to one part only, inside the slice it was made from.
            each(row, unsafe { data.slice(row * stride..(row + 1) * stride) });
        }
    });
}

struct WeightedSum<'a> {
    weights: &'a [f32],
    rows: &'a [u32],
    from: (&'a [f32], usize),
    y: &'a mut [f32],
}

impl Kernel for WeightedSum<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        let (from, stride) = self.from;
        let n = self.y.len();
        // SAFETY: every row holds `n` values, see `weighted_sum`.
        unsafe {
            columns!(n, |at, width| {
                let mut sum = V::zero();
                for (weight, row) in self.weights.iter().zip(self.rows) {
                    let x = get::<V>(from.as_ptr().add(*row as usize * stride), at, width);
                    sum = x.fma(V::splat(*weight), sum);
                }
                put(sum, self.y.as_mut_ptr(), at, width);
            });
        }
    }
}

/// `y = sum of weights[i] * row rows[i]` of rows at distance `stride`, in the order given.
pub fn weighted_sum(weights: &[f32], rows: &[u32], from: &[f32], stride: usize, y: &mut [f32]) {
    let inside = |row: &u32| *row as usize * stride + y.len() <= from.len();
    assert!(rows.iter().all(inside), "a row outside its buffer");
    dispatch(WeightedSum {
        weights,
        rows,
        from: (from, stride),
        y,
    });
}

struct ExpRow<'a>(&'a mut [f32]);

impl Kernel for ExpRow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        let (n, x) = (self.0.len(), self.0.as_mut_ptr());
        // SAFETY: the slice holds `n` values.
        unsafe {
            columns!(n, |at, width| put(
                exp(get::<V>(x, at, width)),
                x,
                at,
                width
            ));
        }
    }
}

/// `e^x` of every value, in place.
pub fn exp_row(values: &mut [f32]) {
    dispatch(ExpRow(values));
}

struct Dot<'a>(&'a [f32], &'a [f32]);

impl Kernel for Dot<'_> {
    type Out = f32;
    #[inline(always)]
    fn run<V: V16>(self) -> f32 {
        let n = self.0.len().min(self.1.len());
        let (a, b) = (self.0.as_ptr(), self.1.as_ptr());
        // SAFETY: both hold `n` values.
        unsafe {
            let mut sum = V::zero();
            columns!(n, |at, width| {
                sum = get::<V>(a, at, width).fma(get::<V>(b, at, width), sum);
            });
            sum.sum()
        }
    }
}

/// `sum of a * b` over the shorter length.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    dispatch(Dot(a, b))
}
