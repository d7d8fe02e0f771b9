//! Rows of inputs, rounded once for a whole product.

use std::cell::RefCell;

use crate::gemm::TILE_ROWS;
use crate::panels::Rows;
use crate::simd::Buf;

thread_local! {
    static ROUNDED: RefCell<Buf> = RefCell::new(Buf::default());
}

/// Rows that are rounded at a time: room for more would gain nothing.
pub(crate) const ROWS: usize = 512;

/// Calls `round` with rows of `x` and room for so many words of each, then `f` with which is the first and
/// what is in there, until it had all of them.
pub(crate) fn with_rounded(
    x: Rows,
    words: usize,
    round: impl Fn(Rows, &mut [f32]),
    f: impl Fn(usize, Rows),
) {
    ROUNDED.with_borrow_mut(|rounded| {
        for first in (0..x.rows).step_by(ROWS) {
            let rows = ROWS.min(x.rows - first);
            // A tile of rows may read behind the last.
            let room = rounded.take((rows + TILE_ROWS - 1) * words);
            let some = Rows {
                data: &x.data[first * x.stride..],
                rows,
                ..x
            };
            round(some, &mut room[..rows * words]);
            let rounded = Rows {
                data: room,
                stride: words,
                rows,
            };
            f(first, rounded);
        }
    });
}
