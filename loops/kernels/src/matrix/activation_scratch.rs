//! Rows of inputs, rounded once for a whole product.

use std::cell::RefCell;

use crate::cpu::Buf;
use crate::gemm::TILE_ROWS;
use crate::matrix::Rows;

thread_local! {
    static ROUNDED: RefCell<Buf> = RefCell::new(Buf::default());
}

/// Rows that are rounded at a time: room for more would gain nothing.
pub const ROWS: usize = 512;

/// Calls `round` with rows of `x` and room for so many words of each, then `f` with which is the first and
/// what is in there, until it had all of them.
pub fn with_rounded(
    x: Rows,
    words: usize,
    round: impl Fn(Rows, &mut [f32]),
    f: impl Fn(usize, Rows),
) {
    // Taken out while `f` runs: a product within a product finds an empty one and makes its own.
    let mut rounded = ROUNDED.take();
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
        let rows_of_it = Rows {
            data: room,
            stride: words,
            rows,
        };
        f(first, rows_of_it);
    }
    ROUNDED.set(rounded);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_within_a_product_has_rows_of_its_own() {
        let x = [1.0, 2.0];
        let rows = |data| Rows {
            data,
            stride: 1,
            rows: 2,
        };
        let double = |from: Rows, to: &mut [f32]| {
            for (to, from) in to.iter_mut().zip(from.data) {
                *to = 2.0 * from;
            }
        };
        let seen = RefCell::new(Vec::new());
        with_rounded(rows(&x), 1, double, |_, outer| {
            with_rounded(rows(&[5.0, 6.0]), 1, double, |_, inner| {
                seen.borrow_mut().extend_from_slice(&inner.data[..2]);
            });
            seen.borrow_mut().extend_from_slice(&outer.data[..2]);
        });
        assert_eq!(seen.into_inner(), [10.0, 12.0, 2.0, 4.0]);
    }
}
