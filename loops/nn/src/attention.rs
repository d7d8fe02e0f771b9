//! Causal attention over block tables: one row per new token and query head.
//!
//! A row sees positions `lo ..= pos` with `lo = max(0, pos + 1 - window)`. Key `j` always takes
//! lane `j mod 16` and sums run over ascending positions, so a row's bits do not depend on the
//! block table, on how the sequence was cut into chunks, or on the rows computed beside it.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::batch::SeqInput;
use crate::kv::{BLOCK_TOKENS, KvLayer};
use crate::kv_format::KvFormat;
use hone_kernels::cpu::{Buf, Kernel, LANES, V16, dispatch, exp, fetch, padded};
use hone_kernels::gemm::{Element, Epilogue, Gemm, Half};
use hone_kernels::thread_pool::{Executor, Shards};

/// Query rows handled together, all heads of a group of a few tokens: enough to reuse keys from
/// registers, few enough that their scores stay in the first-level cache.
const TILE_ROWS: usize = 12;

/// Blocks of keys, and of values, that are asked for before they are needed: blocks lie anywhere, so
/// that a processor does not see them coming.
const AHEAD_BLOCKS: usize = 8;

/// Blocks of keys that are scored between two looks ahead.
const SCORED_BLOCKS: usize = 2;

/// One attention call over a batch.
pub(crate) struct Attention<'a> {
    pub(crate) batch: &'a [SeqInput<'a>],
    pub(crate) kv: &'a KvLayer,
    pub(crate) heads: usize,
    pub(crate) window: Option<usize>,
    /// Rotated queries `[tokens][stride]`, also the stride of the result.
    pub(crate) queries: &'a [f32],
    pub(crate) stride: usize,
}

/// Rows of one sequence and key-value head that are computed together.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Query heads per key-value head.
    pub(crate) group: usize,
    /// Position of the first row's token, and tokens.
    pub(crate) first: usize,
    pub(crate) tokens: usize,
    pub(crate) window: usize,
}

impl Tile {
    pub(crate) fn rows(&self) -> usize {
        self.group * self.tokens
    }

    /// First visible position of the tile.
    pub(crate) fn lo(&self) -> usize {
        (self.first + 1).saturating_sub(self.window)
    }

    /// First position of the first key panel.
    pub(crate) fn base(&self) -> usize {
        self.lo() / LANES * LANES
    }

    /// One past the last visible position.
    pub(crate) fn end(&self) -> usize {
        self.first + self.tokens
    }

    /// Score columns: whole key panels.
    pub(crate) fn width(&self) -> usize {
        padded(self.end() - self.base())
    }

    /// Visible columns of row `m` (token `m / group`).
    pub(crate) fn visible(&self, m: usize) -> Range<usize> {
        let pos = self.first + m / self.group;
        let lo = (pos + 1).saturating_sub(self.window);
        lo - self.base()..pos + 1 - self.base()
    }
}

impl Attention<'_> {
    fn group(&self) -> usize {
        self.heads / self.kv.kv_heads
    }

    fn tokens_per_tile(&self) -> usize {
        (TILE_ROWS / self.group()).max(1)
    }

    fn window(&self) -> usize {
        self.window.unwrap_or(usize::MAX)
    }

    fn tile(&self, seq: &SeqInput, tokens: Range<usize>) -> Tile {
        Tile {
            group: self.group(),
            first: seq.start + tokens.start,
            tokens: tokens.len(),
            window: self.window(),
        }
    }

    /// All tiles of all heads.
    fn jobs(&self) -> impl Iterator<Item = TileJob<'_>> {
        let per_tile = self.tokens_per_tile();
        let rows = self.batch.iter().scan(0, |next, seq| {
            let row = *next;
            *next += seq.tokens.len();
            Some((seq, row))
        });
        rows.flat_map(move |(seq, row)| {
            let count = seq.tokens.len();
            let firsts = (0..count).step_by(per_tile);
            firsts.flat_map(move |token| {
                let tokens = token..(token + per_tile).min(count);
                (0..self.kv.kv_heads).map(move |head| TileJob {
                    call: self,
                    tile: self.tile(seq, tokens.clone()),
                    blocks: seq.blocks,
                    head,
                    row: row + token,
                })
            })
        })
    }

    /// Writes the attention output `[tokens][stride]` to `out`.
    pub(crate) fn run(&self, out: &mut [f32], scratch: &mut Buf, exec: &Executor) {
        let per_tile = self.tokens_per_tile();
        let (mut work, mut widest) = (0, 0);
        for seq in self.batch {
            let end = seq.start + seq.tokens.len();
            let span = end.min(self.window().saturating_add(per_tile));
            work += seq.tokens.len() * span * self.heads * self.kv.head_dim * 2;
            widest = widest.max(span + 2 * LANES);
        }
        let rows = self.group() * per_tile;
        let need = rows * (padded(widest) + 2 * padded(self.kv.head_dim)) + padded(rows);
        let parts = exec.parts(work);
        let scratch = Shards::new(&mut scratch.take(parts * need)[..parts * need]);
        let out = Shards::new(out);
        exec.run(parts, &|part| {
            // SAFETY: every part has its own scratch.
            let scratch = unsafe { scratch.slice(part * need..(part + 1) * need) };
            dispatch(Share {
                call: self,
                out,
                scratch,
                part,
                parts,
            });
        });
    }
}

/// One worker's share of the tiles: every `parts`-th, because later tiles of a sequence cost more.
struct Share<'a, 'b> {
    call: &'a Attention<'a>,
    out: Shards<f32>,
    scratch: &'b mut [f32],
    part: usize,
    parts: usize,
}

impl Kernel for Share<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        let out = self.out.ptr();
        let mut jobs = self
            .call
            .jobs()
            .skip(self.part)
            .step_by(self.parts)
            .peekable();
        while let Some(job) = jobs.next() {
            let next = jobs.peek();
            // SAFETY: a tile writes its own rows and heads of `out` only.
            unsafe {
                match self.call.kv.format {
                    KvFormat::F32 => job.run::<V, f32>((out, self.scratch), next),
                    KvFormat::F16 => job.run::<V, Half>((out, self.scratch), next),
                }
            }
        }
    }
}

struct TileJob<'a> {
    call: &'a Attention<'a>,
    tile: Tile,
    blocks: &'a [u32],
    head: usize,
    /// Row of the first token in the batch's buffers.
    row: usize,
}

impl TileJob<'_> {
    #[inline(always)]
    unsafe fn run<V: V16, E: Element>(
        &self,
        (out, scratch): (*mut f32, &mut [f32]),
        next: Option<&Self>,
    ) {
        let Tile { group, tokens, .. } = self.tile;
        let (dim, width, rows) = (self.call.kv.head_dim, self.tile.width(), self.tile.rows());
        let line = padded(dim);
        let (queries, rest) = scratch.split_at_mut(rows * line);
        let (sums, rest) = rest.split_at_mut(rows * line);
        let (inverses, rest) = rest.split_at_mut(padded(rows));
        let scores = &mut rest[..rows * width];
        let scale = 1.0 / (dim as f32).sqrt();
        for token in 0..tokens {
            for g in 0..group {
                let from = self.column(token, g);
                let query = &self.call.queries[from..from + dim];
                let to = &mut queries[(token * group + g) * line..][..dim];
                to.iter_mut().zip(query).for_each(|(t, q)| *t = q * scale);
            }
        }
        // SAFETY: scratch was cut to size; key and value panels lie inside the pool.
        unsafe {
            self.scores::<V, E>(queries, scores, next);
            for m in 0..rows {
                let row = &mut scores[m * width..(m + 1) * width];
                inverses[m] = softmax_row::<V>(row, self.tile.visible(m), false);
            }
            self.weighted_values::<V, E>(scores, sums, next);
            for token in 0..tokens {
                for g in 0..group {
                    let m = token * group + g;
                    let inverse = inverses[m];
                    let to = out.add(self.column(token, g));
                    for (d, sum) in sums[m * line..m * line + dim].iter().enumerate() {
                        *to.add(d) = sum * inverse;
                    }
                }
            }
        }
    }

    /// Blocks that are seen.
    fn seen(&self) -> &[u32] {
        &self.blocks[self.tile.lo() / BLOCK_TOKENS..self.tile.end().div_ceil(BLOCK_TOKENS)]
    }

    /// Keys of its blocks, then values of them.
    fn passing(&self, at: usize) -> Option<&[u8]> {
        let (seen, kv) = (self.seen(), &self.call.kv);
        match at.checked_sub(seen.len()) {
            None => Some(kv.keys_of(seen[at], self.head)),
            Some(at) => Some(kv.values_of(*seen.get(at)?, self.head)),
        }
    }

    /// Asks for what passes [`AHEAD_BLOCKS`] after this, of `next` behind the last. Only a single token passes
    /// quicker than what it sees arrives.
    #[inline(always)]
    fn fetch_after(&self, at: usize, next: Option<&Self>) {
        if self.tile.tokens > 1 {
            return;
        }
        let (at, all) = (at + AHEAD_BLOCKS, 2 * self.seen().len());
        let then = match next {
            Some(next) if at >= all => next.passing(at - all),
            _ => self.passing(at),
        };
        then.into_iter().for_each(fetch);
    }

    /// Start of a query head in the batch's buffers.
    fn column(&self, token: usize, g: usize) -> usize {
        let head = self.head * self.tile.group + g;
        (self.row + token) * self.call.stride + head * self.call.kv.head_dim
    }

    #[inline(always)]
    unsafe fn scores<V: V16, E: Element>(
        &self,
        queries: &[f32],
        scores: &mut [f32],
        next: Option<&Self>,
    ) {
        let width = self.tile.width();
        let gemm = Gemm {
            x: queries.as_ptr(),
            xm: padded(self.call.kv.head_dim),
            xk: 1,
            rows: self.tile.rows(),
            k: self.call.kv.head_dim,
            src: self
                .call
                .kv
                .key_panels::<E>(self.blocks, self.head, self.tile.base() / LANES),
            y: scores.as_mut_ptr(),
            ym: width,
            yn: LANES,
            cols: width,
            out: Epilogue::Set(std::ptr::null()),
        };
        let (panels, each) = (gemm.panels(), SCORED_BLOCKS * BLOCK_TOKENS / LANES);
        for (at, first) in (0..panels).step_by(each).enumerate() {
            for block in 0..SCORED_BLOCKS {
                self.fetch_after(at * SCORED_BLOCKS + block, next);
            }
            // SAFETY: the caller sized the buffers.
            unsafe { gemm.run::<V>(0..gemm.rows, first..panels.min(first + each)) }
        }
    }

    /// `sums[m] = sum_j scores[m][j] value[j]`, positions ascending, block by block.
    #[inline(always)]
    unsafe fn weighted_values<V: V16, E: Element>(
        &self,
        scores: &[f32],
        sums: &mut [f32],
        next: Option<&Self>,
    ) {
        let (base, width) = (self.tile.base(), self.tile.width());
        let dim = self.call.kv.head_dim;
        sums.fill(0.0);
        let mut position = self.tile.lo();
        let mut at = self.seen().len();
        while position < self.tile.end() {
            self.fetch_after(at, next);
            at += 1;
            let slot = position % BLOCK_TOKENS;
            let count = (BLOCK_TOKENS - slot).min(self.tile.end() - position);
            let block = self.blocks[position / BLOCK_TOKENS];
            let gemm = Gemm {
                x: scores[position - base..].as_ptr(),
                xm: width,
                xk: 1,
                rows: self.tile.rows(),
                k: count,
                src: self.call.kv.value_rows::<E>(block, self.head, slot),
                y: sums.as_mut_ptr(),
                ym: padded(dim),
                yn: LANES,
                cols: dim,
                out: Epilogue::Continue,
            };
            // SAFETY: the caller sized the buffers.
            unsafe { gemm.run::<V>(0..gemm.rows, 0..gemm.panels()) };
            position += count;
        }
    }
}

/// Turns a row of scores into `exp(score - max)` over `visible` and zeros elsewhere; returns the
/// reciprocal of the sum. With `normalise` the row is multiplied by it.
///
/// # Safety
/// `row` is whole lines; below [`dispatch`].
#[inline(always)]
pub(crate) unsafe fn softmax_row<V: V16>(
    row: &mut [f32],
    visible: Range<usize>,
    normalise: bool,
) -> f32 {
    let from = visible.start / LANES * LANES;
    let to = padded(visible.end);
    row[from..visible.start].fill(f32::NEG_INFINITY);
    row[visible.end..to].fill(f32::NEG_INFINITY);
    row[..from].fill(0.0);
    row[to..].fill(0.0);
    let p = row.as_mut_ptr();
    // SAFETY: `from..to` is whole lines of the row.
    unsafe {
        let mut most = V::splat(f32::NEG_INFINITY);
        for at in (from..to).step_by(LANES) {
            most = V::load(p.add(at)).max(most);
        }
        let most = V::splat(most.max_lane());
        let mut sum = V::zero();
        for at in (from..to).step_by(LANES) {
            let e = exp(V::load(p.add(at)).sub(most));
            e.store(p.add(at));
            sum = sum.add(e);
        }
        let inverse = 1.0 / sum.sum();
        if normalise {
            let inverse = V::splat(inverse);
            for at in (from..to).step_by(LANES) {
                V::load(p.add(at)).mul(inverse).store(p.add(at));
            }
        }
        inverse
    }
}
