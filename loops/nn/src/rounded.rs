//! Rows of inputs, rounded once for a whole product.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ops::Range;

use crate::exec::{Executor, Shards};
use crate::gemm::{Factors, TILE_ROWS};
use crate::panels::Rows;
use crate::simd::{Buf, Kernel, V16};

thread_local! {
    static ROUNDED: RefCell<Buf> = RefCell::new(Buf::default());
}

/// Rows that are rounded at a time: room for more would gain nothing.
pub(crate) const ROWS: usize = 512;

/// How a row is rounded.
pub(crate) trait RoundRow: Copy + Sync {
    /// What is made of it.
    type Factors: Factors;
    /// Rounds a row to all that `to` holds.
    ///
    /// # Safety
    /// As for the methods of [`V16`].
    unsafe fn round<V: V16>(self, x: &[f32], to: &mut [f32]);
}

/// Calls `f` with rows as `how` leaves `inp` inputs of each row of `x`, `stride` words each, and which is the first,
/// until it had all of them.
pub(crate) fn with_rounded<R: RoundRow>(
    x: Rows,
    (inp, stride): (usize, usize),
    how: R,
    exec: &Executor,
    f: impl Fn(usize, Rows),
) {
    ROUNDED.with_borrow_mut(|rounded| {
        for first in (0..x.rows).step_by(ROWS) {
            let count = ROWS.min(x.rows - first);
            // A tile of rows may read behind the last.
            let words = rounded.take((count + TILE_ROWS - 1) * stride);
            let to = Shards::new(words);
            exec.split(count, count * inp, &|rows| {
                // SAFETY: parts have different rows.
                let to = unsafe { to.slice(rows.start * stride..rows.end * stride) };
                R::Factors::dispatch(Round {
                    how,
                    x,
                    inp,
                    rows: first + rows.start..first + rows.end,
                    to,
                    stride,
                });
            });
            let x = Rows {
                data: words,
                stride,
                rows: count,
            };
            f(first, x);
        }
    });
}

/// Rounds some rows.
struct Round<'a, R> {
    how: R,
    x: Rows<'a>,
    inp: usize,
    rows: Range<usize>,
    to: &'a mut [f32],
    stride: usize,
}

impl<R: RoundRow> Kernel for Round<'_, R> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        for (row, to) in self.rows.zip(self.to.chunks_exact_mut(self.stride)) {
            let x = &self.x.data[row * self.x.stride..][..self.inp];
            // SAFETY: called at this level.
            unsafe { self.how.round::<V>(x, to) };
        }
    }
}
