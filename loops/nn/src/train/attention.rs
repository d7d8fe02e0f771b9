//! Gradient of causal attention, recomputing the probabilities.
#![allow(unsafe_code)]

use crate::attention::{Tile, softmax_row};
use crate::kv::{BLOCK_TOKENS, KvLayer};
use crate::kv_format::KvFormat;
use crate::pass::{Dims, Pass};
use hone_kernels::cpu::{Buf, Kernel, LANES, V16, dispatch, padded};
use hone_kernels::gemm::{Epilogue, Gemm, Half, Source, Stepped, Strided};
use hone_kernels::thread_pool::Shards;

/// Query tokens handled together: their probabilities are one matrix, against which key and value
/// gradients are products of useful depth.
const TILE_TOKENS: usize = BLOCK_TOKENS;

/// One attention call, backwards. All sequences start at position 0.
pub(crate) struct AttentionGrad<'a> {
    pub(crate) pass: &'a Pass<'a>,
    pub(crate) window: Option<usize>,
    pub(crate) kv: &'a KvLayer,
    /// Rotated queries `[tokens][ld_q]` and keys `[tokens][ld_kv]`.
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    /// Rows of query, key, value before norm and rotation `[tokens][ld_qkv]`; values are read.
    pub(crate) qkv: &'a [f32],
    /// Gradient of the attention output `[tokens][ld_q]`.
    pub(crate) dout: &'a [f32],
}

impl AttentionGrad<'_> {
    /// Writes gradients of rotated queries, rotated keys and values to `dqkv [tokens][ld_qkv]`.
    pub(crate) fn run(&self, dqkv: &mut [f32], scratch: &mut Buf) {
        let (cfg, d) = (self.pass.cfg, self.pass.dims);
        let group = cfg.heads / cfg.kv_heads;
        let longest = self
            .pass
            .batch
            .iter()
            .map(|s| s.tokens.len())
            .max()
            .unwrap_or(0);
        let span = longest.min(
            self.window
                .unwrap_or(usize::MAX)
                .saturating_add(TILE_TOKENS),
        );
        let rows = group * TILE_TOKENS;
        let line = padded(cfg.head_dim);
        let need =
            padded(longest) * line + rows * (2 * (padded(span) + 2 * LANES) + 2 * line) + 4 * LANES;
        let items = self.pass.batch.len() * cfg.kv_heads;
        let work = self.pass.tokens * span * cfg.heads * cfg.head_dim * 5;
        let parts = self.pass.exec.parts(work).min(items);
        let scratch = Shards::new(&mut scratch.take(parts * need)[..parts * need]);
        dqkv[..self.pass.tokens * d.ld_qkv].fill(0.0);
        let out = Shards::new(dqkv);
        self.pass.exec.run(parts, &|part| {
            // SAFETY: every part has its own scratch.
            let scratch = unsafe { scratch.slice(part * need..(part + 1) * need) };
            let mut row = 0;
            for (index, seq) in self.pass.batch.iter().enumerate() {
                for head in 0..cfg.kv_heads {
                    if (index * cfg.kv_heads + head) % parts == part {
                        let tokens = seq.tokens.len();
                        let item = Item {
                            call: self,
                            d,
                            blocks: seq.blocks,
                            head,
                            row,
                            tokens,
                            group,
                        };
                        dispatch(ItemKernel { item, out, scratch });
                    }
                }
                row += seq.tokens.len();
            }
        });
    }
}

/// One sequence and key-value head.
struct Item<'a> {
    call: &'a AttentionGrad<'a>,
    d: Dims,
    blocks: &'a [u32],
    head: usize,
    /// First row of the sequence in the buffers.
    row: usize,
    tokens: usize,
    group: usize,
}

struct ItemKernel<'a, 'b> {
    item: Item<'a>,
    out: Shards<f32>,
    scratch: &'b mut [f32],
}

impl Kernel for ItemKernel<'_, '_> {
    type Out = ();
    #[inline(always)]
    fn run<V: V16>(self) {
        let item = &self.item;
        let dim = item.call.pass.cfg.head_dim;
        let (values, rest) = self.scratch.split_at_mut(padded(item.tokens) * dim);
        item.transpose_values(values);
        let mut first = 0;
        while first < item.tokens {
            let tokens = TILE_TOKENS.min(item.tokens - first);
            let window = item.call.window.unwrap_or(usize::MAX);
            let tile = Tile {
                group: item.group,
                first,
                tokens,
                window,
            };
            // SAFETY: an item writes its own rows and heads only; scratch is sized for a tile.
            unsafe { item.tile::<V>(&tile, values, self.out.ptr(), rest) };
            first += tokens;
        }
    }
}

/// Buffers of one tile.
struct TileBufs<'b> {
    /// Scaled queries and output gradients `[rows][line]`.
    q: &'b mut [f32],
    dout: &'b mut [f32],
    /// Probabilities and their gradients `[rows][width]`.
    p: &'b mut [f32],
    ds: &'b mut [f32],
}

impl Item<'_> {
    /// Value columns as panels `[positions / 16][head_dim][16]`.
    fn transpose_values(&self, to: &mut [f32]) {
        let dim = self.call.pass.cfg.head_dim;
        let column = self.d.q + self.d.kv + self.head * dim;
        to.fill(0.0);
        for token in 0..self.tokens {
            let from = &self.call.qkv[(self.row + token) * self.d.ld_qkv + column..][..dim];
            let panel = &mut to[token / LANES * dim * LANES..];
            for (k, v) in from.iter().enumerate() {
                panel[k * LANES + token % LANES] = *v;
            }
        }
    }

    /// Column of query head `g` in rows of `ld_q`, relative to the row.
    fn query_column(&self, g: usize) -> usize {
        (self.head * self.group + g) * self.call.pass.cfg.head_dim
    }

    #[inline(always)]
    unsafe fn tile<V: V16>(&self, tile: &Tile, values: &[f32], out: *mut f32, scratch: &mut [f32]) {
        let dim = self.call.pass.cfg.head_dim;
        let (line, rows, width) = (padded(dim), tile.rows(), tile.width());
        let (q, rest) = scratch.split_at_mut(rows * line);
        let (dout, rest) = rest.split_at_mut(rows * line);
        let (p, rest) = rest.split_at_mut(rows * width);
        let mut bufs = TileBufs {
            q,
            dout,
            p,
            ds: &mut rest[..rows * width],
        };
        self.gather(tile, &mut bufs);
        // SAFETY: buffers were cut to size; sources cover the tile's positions; outputs are this
        // item's columns of its own rows.
        unsafe {
            let shape = Shape {
                rows,
                k: dim,
                cols: width,
            };
            let (kv, at) = (self.call.kv, (self.blocks, self.head, tile.base() / LANES));
            let q = (&*bufs.q, line, 1);
            match kv.format {
                KvFormat::F32 => {
                    let keys = kv.key_panels::<f32>(at.0, at.1, at.2);
                    product::<V, _>(shape, q, keys, bufs.p, width);
                }
                KvFormat::F16 => {
                    let keys = kv.key_panels::<Half>(at.0, at.1, at.2);
                    product::<V, _>(shape, q, keys, bufs.p, width);
                }
            }
            let values = Strided {
                base: values[tile.base() * dim..].as_ptr(),
                panel: dim * LANES,
                step: LANES,
            };
            product::<V, _>(shape, (bufs.dout, line, 1), values, bufs.ds, width);
            for m in 0..rows {
                let p = &mut bufs.p[m * width..(m + 1) * width];
                softmax_row::<V>(p, tile.visible(m), true);
                softmax_backward::<V>(p, &mut bufs.ds[m * width..(m + 1) * width]);
            }
            self.query_grads::<V>(tile, &bufs, out);
            let skip = tile.lo() - tile.base();
            let row = self.row + tile.lo();
            let dk = out.add(row * self.d.ld_qkv + self.d.q + self.head * dim);
            let dv = dk.add(self.d.kv);
            let shape = Shape {
                rows: tile.end() - tile.lo(),
                k: rows,
                cols: dim,
            };
            self.outer::<V>(&shape, &bufs.ds[skip..], (width, bufs.q), dk);
            self.outer::<V>(&shape, &bufs.p[skip..], (width, bufs.dout), dv);
        }
    }

    /// Copies scaled queries and output gradients of the tile.
    #[inline(always)]
    fn gather(&self, tile: &Tile, bufs: &mut TileBufs) {
        let dim = self.call.pass.cfg.head_dim;
        let line = padded(dim);
        let scale = 1.0 / (dim as f32).sqrt();
        for m in 0..tile.rows() {
            let row = self.row + tile.first + m / self.group;
            let from = row * self.d.ld_q + self.query_column(m % self.group);
            let q = bufs.q[m * line..][..dim].iter_mut();
            q.zip(&self.call.q[from..])
                .for_each(|(to, q)| *to = q * scale);
            bufs.dout[m * line..][..dim].copy_from_slice(&self.call.dout[from..from + dim]);
        }
    }

    /// `dq = scale * dS K`, keys ascending.
    #[inline(always)]
    unsafe fn query_grads<V: V16>(&self, tile: &Tile, bufs: &TileBufs, out: *mut f32) {
        let dim = self.call.pass.cfg.head_dim;
        let width = tile.width();
        let scale = 1.0 / (dim as f32).sqrt();
        let skip = tile.lo() - tile.base();
        let first_key = (self.row + tile.lo()) * self.d.ld_kv + self.head * dim;
        let keys = Strided {
            base: self.call.k[first_key..].as_ptr(),
            panel: LANES,
            step: self.d.ld_kv,
        };
        for g in 0..self.group {
            // SAFETY: rows `m = token * group + g` of `ds`; outputs are this head's columns.
            unsafe {
                let row = (self.row + tile.first) * self.d.ld_qkv;
                let gemm = Gemm {
                    x: bufs.ds[g * width + skip..].as_ptr(),
                    xm: self.group * width,
                    xk: 1,
                    rows: tile.tokens,
                    k: tile.end() - tile.lo(),
                    src: keys,
                    y: out.add(row + self.query_column(g)),
                    ym: self.d.ld_qkv,
                    yn: LANES,
                    cols: dim,
                    // The rows are zero before.
                    out: Epilogue::AddScaled(scale),
                };
                gemm.run::<V>(0..gemm.rows, 0..gemm.panels());
            }
        }
    }

    /// `to[j] += sum_m weights[m][j] rows[m]`, query rows ascending.
    #[inline(always)]
    unsafe fn outer<V: V16>(
        &self,
        shape: &Shape,
        weights: &[f32],
        from: (usize, &[f32]),
        to: *mut f32,
    ) {
        let (width, rows) = from;
        let gemm = Gemm {
            x: weights.as_ptr(),
            xm: 1,
            xk: width,
            rows: shape.rows,
            k: shape.k,
            src: Strided {
                base: rows.as_ptr(),
                panel: LANES,
                step: padded(shape.cols),
            },
            y: to,
            ym: self.d.ld_qkv,
            yn: LANES,
            cols: shape.cols,
            out: Epilogue::Continue,
        };
        // SAFETY: the caller vouches for sizes and exclusive columns.
        unsafe { gemm.run::<V>(0..gemm.rows, 0..gemm.panels()) }
    }
}

#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    k: usize,
    cols: usize,
}

/// `y = x src` into a buffer with rows at distance `ym`.
#[inline(always)]
unsafe fn product<V: V16, S: Source<Factors: Stepped>>(
    shape: Shape,
    x: (&[f32], usize, usize),
    src: S,
    y: &mut [f32],
    ym: usize,
) {
    let gemm = Gemm {
        x: x.0.as_ptr(),
        xm: x.1,
        xk: x.2,
        rows: shape.rows,
        k: shape.k,
        src,
        y: y.as_mut_ptr(),
        ym,
        yn: LANES,
        cols: shape.cols,
        out: Epilogue::Set(std::ptr::null()),
    };
    // SAFETY: the caller vouches for sizes.
    unsafe { gemm.run::<V>(0..gemm.rows, 0..gemm.panels()) }
}

/// Turns `ds` from the gradient of probabilities into that of scores: `p (dp - sum p dp)`.
#[inline(always)]
unsafe fn softmax_backward<V: V16>(p: &[f32], ds: &mut [f32]) {
    let n = p.len();
    debug_assert_eq!(n % LANES, 0);
    let (p, ds) = (p.as_ptr(), ds.as_mut_ptr());
    // SAFETY: both hold `n` values, whole lines.
    unsafe {
        let mut dot = V::zero();
        for at in (0..n).step_by(LANES) {
            dot = V::load(p.add(at)).fma(V::load(ds.add(at)), dot);
        }
        let dot = V::splat(dot.sum());
        for at in (0..n).step_by(LANES) {
            let grad = V::load(ds.add(at)).sub(dot);
            V::load(p.add(at)).mul(grad).store(ds.add(at));
        }
    }
}
