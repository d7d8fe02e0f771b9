//! Rows of inputs, rounded once for a whole product.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ops::Range;

use crate::exec::{Executor, Shards};
use crate::gemm::TILE_ROWS;
use crate::panels::Rows;
use crate::simd::Buf;

thread_local! {
    static ROUNDED: RefCell<Buf> = RefCell::new(Buf::default());
}

/// Rows that are rounded at a time: room for more would gain nothing.
pub(crate) const ROWS: usize = 512;

/// Rounds some rows to a buffer.
type RoundRows<'a> = &'a (dyn Fn(Range<usize>, &mut [f32]) + Sync);

/// Calls `f` with rows as `round` leaves them, `stride` words each, and which is the first, until it
/// had all of them.
pub(crate) fn with_rounded(
    rows: usize,
    (inp, stride): (usize, usize),
    exec: &Executor,
    round: RoundRows,
    f: &dyn Fn(usize, Rows),
) {
    ROUNDED.with_borrow_mut(|rounded| {
        for first in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - first);
            // A tile of rows may read behind the last.
            let words = rounded.take((count + TILE_ROWS - 1) * stride);
            let to = Shards::new(words);
            exec.split(count, count * inp, &|rows| {
                // SAFETY: parts have different rows.
                let to = unsafe { to.slice(rows.start * stride..rows.end * stride) };
                round(first + rows.start..first + rows.end, to);
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
