//! Attention where every sequence has one new token: whether one kernel does it, in how many blocks, and how much
//! of a processor's memory each gets. None of it changes a bit.

use super::driver::{Limits, Size};
use crate::kv::BLOCK_TOKENS;

/// Threads of a block: eight warps that compute, and one that copies.
const THREADS: u32 = 32 * 9;
/// Dimensions of a block, where it does not have all.
const SPLIT: usize = 32;
/// Most bytes that a block asks for: blocks of the kernels before and after find room beside it.
const ROOM_MAX: u32 = 104 << 10;
/// Bytes that a block needs beside them.
const BESIDE: u32 = 36 << 10;
/// Blocks of values that a block of threads holds at least, and at most.
const PARTS: (u32, u32) = (2, 16);
/// Most positions of a text for which a block of threads scores all of them, though processors are idle.
const WIDTH_MAX: usize = 1_024;

/// What is to be attended to.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) tokens: usize,
    pub(super) kv_heads: usize,
    pub(super) dim: usize,
    /// Query heads of a key-value head, rounded up to what a kernel has.
    pub(super) rows: usize,
    /// Scores of a row.
    pub(super) width: usize,
}

/// One launch.
#[derive(Clone, Copy)]
pub(super) struct One {
    pub(super) kernel: &'static str,
    pub(super) size: Size,
    /// Dimensions of a block.
    pub(super) dims: u32,
}

/// The launch; none where kernels for all cases are quicker or needed.
pub(super) fn attend_one(shape: Shape, limits: &Limits) -> Option<One> {
    let kernel = match shape.rows {
        1 => "attend_one_1",
        2 => "attend_one_2",
        4 => "attend_one_4",
        8 => "attend_one_8",
        _ => return None,
    };
    let heads = shape.tokens * shape.kv_heads;
    let processors = limits.processors as usize;
    let long = shape.width > WIDTH_MAX && heads * 2 < processors;
    if long || !shape.dim.is_multiple_of(4) {
        return None;
    }
    let chunks = shape.dim / SPLIT;
    let split = shape.dim.is_multiple_of(SPLIT) && heads * chunks <= processors;
    let (dims, chunks) = if split {
        (SPLIT, chunks)
    } else {
        (shape.dim, 1)
    };
    let scores = (shape.rows * shape.width * size_of::<f32>()) as u32;
    let part = (BLOCK_TOKENS * dims * size_of::<f32>()) as u32;
    let most = ROOM_MAX.min(limits.room.saturating_sub(BESIDE));
    let parts = most.saturating_sub(scores) / part;
    if parts < PARTS.0 {
        return None;
    }
    let needed = (shape.width / BLOCK_TOKENS) as u32;
    let parts = parts.min(PARTS.1).min(needed.max(PARTS.0));
    let size = Size {
        grid: [shape.tokens as u32, shape.kv_heads as u32, chunks as u32],
        block: THREADS,
        room: scores + parts * part,
    };
    Some(One {
        kernel,
        size,
        dims: dims as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        processors: 132,
        room: 228 << 10,
        cache: 0,
    };

    fn shape(tokens: usize, width: usize) -> Shape {
        Shape {
            tokens,
            kv_heads: 8,
            dim: 128,
            rows: 4,
            width,
        }
    }

    #[test]
    fn few_tokens_share_out_dimensions_and_many_do_not() {
        for (tokens, dims) in [(1, 32), (4, 32), (5, 128), (64, 128)] {
            let one = attend_one(shape(tokens, 512), &LIMITS).expect("a launch");
            assert_eq!(one.dims, dims, "{tokens}");
            assert_eq!(one.size.grid[2] * one.dims, 128);
            assert!(one.size.room <= ROOM_MAX);
        }
    }

    #[test]
    fn long_texts_of_a_few_and_what_does_not_fit_are_left_to_others() {
        assert!(attend_one(shape(1, 2_048), &LIMITS).is_none());
        assert!(attend_one(shape(9, 2_048), &LIMITS).is_some());
        assert!(attend_one(shape(64, 8_192), &LIMITS).is_none());
        let dim = 6;
        let odd = Shape {
            dim,
            ..shape(1, 128)
        };
        assert!(attend_one(odd, &LIMITS).is_none());
        let small = Limits {
            room: 40 << 10,
            ..LIMITS
        };
        assert!(attend_one(shape(64, 512), &small).is_none());
    }
}
