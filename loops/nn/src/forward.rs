//! The forward pass: one function for prefill, decode, scoring and training.

use crate::adapter::{Adapter, Target};
use crate::attention::Attention;
use crate::config::ModelConfig;
use crate::exec::Executor;
use crate::kv::{BLOCK_TOKENS, KvLayer, KvPool};
use crate::ops::{GluShape, RmsNorm, Rope, add, rotate, swiglu};
use crate::panels::{Panels, Rows, RowsMut, Store};
use crate::simd::{Buf, padded};
use crate::weights::{LayerWeights, Linear, Model};

/// Which logits a sequence wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsWanted {
    None,
    /// Of the last new token.
    Last,
    /// Of every new token.
    All,
}

/// New tokens of one sequence.
#[derive(Clone, Copy)]
pub struct SeqInput<'a> {
    pub tokens: &'a [u32],
    /// Position of `tokens[0]`; everything before is in the pool already.
    pub start: usize,
    /// Block table: position `p` lives in `blocks[p / 32]`.
    pub blocks: &'a [u32],
    pub adapter: Option<&'a Adapter>,
    pub logits: LogitsWanted,
}

/// Buffers of the forward pass. They grow on demand and are reused, so a warm pass allocates
/// nothing.
#[derive(Default)]
pub struct Scratch {
    pub(crate) x: Buf,
    acts: Acts,
    tmp: Temp,
    picked: Buf,
    logits: Buf,
}

/// Intermediate results of one layer, kept apart so that training can use them again.
#[derive(Default)]
pub(crate) struct Acts {
    /// Normed input `[tokens][hidden]`.
    pub(crate) h1: Buf,
    /// Query, key and value before norm and rotation `[tokens][q + 2 kv]`.
    pub(crate) qkv: Buf,
    /// Query and key after norm and rotation `[tokens][q]`, `[tokens][kv]`.
    pub(crate) q: Buf,
    pub(crate) k: Buf,
    /// Attention output before the projection `[tokens][q]`.
    pub(crate) attn: Buf,
    /// Residual stream after attention `[tokens][hidden]`.
    pub(crate) mid: Buf,
    pub(crate) h2: Buf,
    /// Gate and up `[tokens][2 ffn]`.
    pub(crate) gate_up: Buf,
    pub(crate) act: Buf,
}

/// Short-lived buffers shared by all layers.
#[derive(Default)]
pub(crate) struct Temp {
    /// cos and sin per token `[tokens][2][pairs]`.
    pub(crate) angles: Buf,
    proj: Buf,
    pub(crate) low_rank: Buf,
    attention: Buf,
}

/// Row lengths of a model's buffers: widths and padded strides.
#[derive(Clone, Copy)]
pub(crate) struct Dims {
    pub(crate) hidden: usize,
    pub(crate) q: usize,
    pub(crate) kv: usize,
    pub(crate) ffn: usize,
    pub(crate) ld_hidden: usize,
    pub(crate) ld_q: usize,
    pub(crate) ld_kv: usize,
    pub(crate) ld_qkv: usize,
    pub(crate) ld_gate_up: usize,
    pub(crate) ld_ffn: usize,
}

impl Dims {
    pub(crate) fn new(cfg: &ModelConfig) -> Self {
        let (q, kv) = (cfg.heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim);
        Self {
            hidden: cfg.hidden,
            q,
            kv,
            ffn: cfg.ffn,
            ld_hidden: padded(cfg.hidden),
            ld_q: padded(q),
            ld_kv: padded(kv),
            ld_qkv: padded(q + 2 * kv),
            ld_gate_up: padded(2 * cfg.ffn),
            ld_ffn: padded(cfg.ffn),
        }
    }
}

/// What every layer of one pass needs.
pub(crate) struct Pass<'a> {
    pub(crate) cfg: &'a ModelConfig,
    pub(crate) dims: Dims,
    pub(crate) rope: &'a Rope,
    pub(crate) batch: &'a [SeqInput<'a>],
    pub(crate) tokens: usize,
    pub(crate) exec: &'a Executor,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(model: &'a Model, batch: &'a [SeqInput<'a>], exec: &'a Executor) -> Self {
        Self {
            cfg: &model.config,
            dims: Dims::new(&model.config),
            rope: &model.weights.rope,
            batch,
            tokens: batch.iter().map(|s| s.tokens.len()).sum(),
            exec,
        }
    }

    /// Token index in the batch, id, position and block of every new token.
    pub(crate) fn each_token(&self, mut each: impl FnMut(Place)) {
        let mut row = 0;
        for seq in self.batch {
            for (i, &id) in seq.tokens.iter().enumerate() {
                let position = seq.start + i;
                let block = seq.blocks[position / BLOCK_TOKENS];
                each(Place { row, id, position, block });
                row += 1;
            }
        }
    }

    /// Looks up embeddings into `x [tokens][hidden]` and prepares rotation angles.
    pub(crate) fn embed(&self, embed: &Panels, x: &mut Buf, angles: &mut Buf) {
        let ld = self.dims.ld_hidden;
        let x = x.take(self.tokens * ld);
        let pair = 2 * self.rope.pairs();
        let angles = angles.take(self.tokens * pair);
        self.each_token(|at| {
            assert!((at.id as usize) < self.cfg.vocab, "token {} is not in the vocabulary", at.id);
            embed.lookup(at.id as usize, &mut x[at.row * ld..][..self.dims.hidden]);
            self.rope.angles(at.position, &mut angles[at.row * pair..][..pair]);
        });
    }

    pub(crate) fn norm<'w>(&self, weight: &'w [f32]) -> RmsNorm<'w> {
        RmsNorm { weight, eps: self.cfg.rms_eps, groups: 1 }
    }

    /// One layer: `x` in place, intermediates to `acts`, keys and values to `kv`.
    pub(crate) fn layer(&self, at: LayerAt, kv: &mut KvLayer, x: &mut Buf, bufs: (&mut Acts, &mut Temp)) {
        let LayerAt { index, weights } = at;
        let (acts, tmp) = bufs;
        let (d, n) = (self.dims, self.tokens);
        let rows = (n, d.ld_hidden);
        let norm = self.norm(&weights.norm1);
        norm.forward(x.as_slice(), acts.h1.take(n * d.ld_hidden), rows, self.exec);
        let out = Output { buf: &mut acts.qkv, stride: d.ld_qkv };
        let targets = [(Target::Q, 0), (Target::K, d.q), (Target::V, d.q + d.kv)];
        self.linear(index, &weights.qkv, (&acts.h1, d.ld_hidden), out, &targets, &mut tmp.low_rank);
        self.rotate_and_store(weights, kv, acts, &tmp.angles);
        let attention = Attention {
            batch: self.batch,
            kv,
            heads: self.cfg.heads,
            window: self.cfg.windows[index],
            queries: acts.q.as_slice(),
            stride: d.ld_q,
        };
        attention.run(acts.attn.take(n * d.ld_q), &mut tmp.attention, self.exec);
        let out = Output { buf: &mut tmp.proj, stride: d.ld_hidden };
        let targets = [(Target::O, 0)];
        self.linear(index, &weights.o, (&acts.attn, d.ld_q), out, &targets, &mut tmp.low_rank);
        let mid = &mut acts.mid.take(n * d.ld_hidden)[..n * d.ld_hidden];
        add(x.as_slice(), tmp.proj.as_slice(), mid, self.exec);

        let norm = self.norm(&weights.norm2);
        norm.forward(acts.mid.as_slice(), acts.h2.take(n * d.ld_hidden), rows, self.exec);
        let out = Output { buf: &mut acts.gate_up, stride: d.ld_gate_up };
        let targets = [(Target::Gate, 0), (Target::Up, d.ffn)];
        let h2 = (&acts.h2, d.ld_hidden);
        self.linear(index, &weights.gate_up, h2, out, &targets, &mut tmp.low_rank);
        swiglu(self.glu(), acts.gate_up.as_slice(), acts.act.take(n * d.ld_ffn), self.exec);
        let out = Output { buf: &mut tmp.proj, stride: d.ld_hidden };
        let targets = [(Target::Down, 0)];
        self.linear(index, &weights.down, (&acts.act, d.ld_ffn), out, &targets, &mut tmp.low_rank);
        let x = &mut x.take(n * d.ld_hidden)[..n * d.ld_hidden];
        add(acts.mid.as_slice(), tmp.proj.as_slice(), x, self.exec);
    }

    pub(crate) fn glu(&self) -> GluShape {
        GluShape {
            rows: self.tokens,
            ffn: self.dims.ffn,
            ld_gate_up: self.dims.ld_gate_up,
            ld_act: self.dims.ld_ffn,
        }
    }

    /// Head norms, rotation, and the write of keys and values into the pool.
    fn rotate_and_store(&self, weights: &LayerWeights, kv: &mut KvLayer, acts: &mut Acts, angles: &Buf) {
        let (d, dim) = (self.dims, self.cfg.head_dim);
        let q = acts.q.take(self.tokens * d.ld_q);
        let k = acts.k.take(self.tokens * d.ld_kv);
        let qkv = acts.qkv.as_slice();
        let pair = 2 * self.rope.pairs();
        self.each_token(|at| {
            let raw = &qkv[at.row * d.ld_qkv..][..d.q + 2 * d.kv];
            let q = &mut q[at.row * d.ld_q..][..d.q];
            let k = &mut k[at.row * d.ld_kv..][..d.kv];
            head_norm(weights.q_norm.as_deref(), self.cfg, &raw[..d.q], q);
            head_norm(weights.k_norm.as_deref(), self.cfg, &raw[d.q..d.q + d.kv], k);
            let angles = &angles.as_slice()[at.row * pair..][..pair];
            q.chunks_exact_mut(dim).for_each(|head| rotate(head, angles, false));
            k.chunks_exact_mut(dim).for_each(|head| rotate(head, angles, false));
            kv.write(at.block, at.position % BLOCK_TOKENS, k, &raw[d.q + d.kv..]);
        });
    }

    /// `y = x W^T + b`, plus the adapters of each run of sequences.
    fn linear(
        &self,
        layer: usize,
        linear: &Linear,
        x: (&Buf, usize),
        y: Output,
        targets: &[(Target, usize)],
        low_rank: &mut Buf,
    ) {
        let (x, ldx) = (x.0.as_slice(), x.1);
        let out = y.buf.take(self.tokens * y.stride);
        let rows = Rows { data: x, stride: ldx, rows: self.tokens };
        let to = RowsMut { data: out, stride: y.stride };
        linear.w.linear(rows, to, Store::Set(linear.bias.as_deref()), self.exec);
        let mut row = 0;
        for same in self.batch.chunk_by(|a, b| same_adapter(a.adapter, b.adapter)) {
            let count = same.iter().map(|s| s.tokens.len()).sum();
            if let Some(adapter) = same[0].adapter {
                let rows = Rows { data: &x[row * ldx..], stride: ldx, rows: count };
                for &(target, column) in targets {
                    let Some(pair) = adapter.pair(layer, target) else { continue };
                    let ld = padded(pair.a.out);
                    let s = low_rank.take(count * ld);
                    pair.a.linear(rows, RowsMut { data: s, stride: ld }, Store::Set(None), self.exec);
                    let s = Rows { data: s, stride: ld, rows: count };
                    let data = &mut out[row * y.stride + column..];
                    let to = RowsMut { data, stride: y.stride };
                    pair.b.linear(s, to, Store::AddScaled(adapter.config.scale()), self.exec);
                }
            }
            row += count;
        }
    }
}

fn same_adapter(a: Option<&Adapter>, b: Option<&Adapter>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => std::ptr::eq(a, b),
        _ => false,
    }
}

/// Norm of each head where the model has one, else a copy.
fn head_norm(weight: Option<&[f32]>, cfg: &ModelConfig, raw: &[f32], to: &mut [f32]) {
    match weight {
        Some(weight) => {
            let groups = raw.len() / weight.len();
            RmsNorm { weight, eps: cfg.rms_eps, groups }.forward_row(raw, to);
        }
        None => to.copy_from_slice(raw),
    }
}

/// Which layer a call computes.
pub(crate) struct LayerAt<'a> {
    pub(crate) index: usize,
    pub(crate) weights: &'a LayerWeights,
}

/// One new token of a batch.
pub(crate) struct Place {
    pub(crate) row: usize,
    pub(crate) id: u32,
    pub(crate) position: usize,
    pub(crate) block: u32,
}

struct Output<'a> {
    buf: &'a mut Buf,
    stride: usize,
}

/// Rows of logits in batch order.
pub struct Logits<'s> {
    data: &'s [f32],
    stride: usize,
    vocab: usize,
    rows: usize,
}

impl Logits<'_> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Row `i`, one value per vocabulary entry.
    ///
    /// # Panics
    /// When there is no row `i`.
    pub fn row(&self, i: usize) -> &[f32] {
        assert!(i < self.rows, "logits row {i} of {}", self.rows);
        &self.data[i * self.stride..][..self.vocab]
    }
}

/// Computes new tokens of every sequence: writes their keys and values to `kv` and returns the
/// wanted logits.
///
/// A row depends only on its own sequence's tokens and adapter: batch, chunking, block table,
/// threads and instruction level do not change its bits.
///
/// # Panics
/// When a token is not in the vocabulary, a block table is too short or names a block the pool
/// lacks, or an adapter was made for another number of layers.
pub fn forward<'s>(
    model: &Model,
    kv: &mut KvPool,
    batch: &[SeqInput],
    exec: &Executor,
    scratch: &'s mut Scratch,
) -> Logits<'s> {
    hidden_states(model, kv, batch, exec, scratch);
    let Scratch { x, picked, logits, .. } = scratch;
    let ld = padded(model.config.hidden);
    let mut rows = 0;
    let mut row = 0;
    for seq in batch {
        let count = seq.tokens.len();
        let wanted = match seq.logits {
            LogitsWanted::None => 0,
            LogitsWanted::Last => count.min(1),
            LogitsWanted::All => count,
        };
        let from = (row + count - wanted) * ld;
        let picked = picked.take((rows + wanted) * ld);
        picked[rows * ld..(rows + wanted) * ld].copy_from_slice(&x.as_slice()[from..][..wanted * ld]);
        rows += wanted;
        row += count;
    }
    let stride = padded(model.config.vocab);
    head(model, picked.as_slice(), rows, logits, exec);
    Logits { data: logits.as_slice(), stride, vocab: model.config.vocab, rows }
}

/// Logits `[rows][padded vocab]` of residual rows `[rows][padded hidden]` that are not normed yet.
pub(crate) fn head(model: &Model, x: &[f32], rows: usize, logits: &mut Buf, exec: &Executor) {
    let cfg = &model.config;
    let (ld, stride) = (padded(cfg.hidden), padded(cfg.vocab));
    let to = logits.take(rows * (stride + ld));
    let (to, normed) = to.split_at_mut(rows * stride);
    let norm = RmsNorm { weight: &model.weights.norm, eps: cfg.rms_eps, groups: 1 };
    norm.forward(x, normed, (rows, ld), exec);
    let normed = Rows { data: normed, stride: ld, rows };
    let to = RowsMut { data: to, stride };
    model.weights.head().linear(normed, to, Store::Set(None), exec);
}

/// Runs all layers; `scratch.x` then holds the residual stream `[tokens][padded hidden]`.
pub(crate) fn hidden_states(
    model: &Model,
    kv: &mut KvPool,
    batch: &[SeqInput],
    exec: &Executor,
    scratch: &mut Scratch,
) {
    for seq in batch {
        let needed = (seq.start + seq.tokens.len()).div_ceil(BLOCK_TOKENS);
        assert!(seq.blocks.len() >= needed, "block table too short");
        let layers = seq.adapter.map_or(model.config.layers, Adapter::layer_count);
        assert_eq!(layers, model.config.layers, "the adapter is of another model");
    }
    let pass = Pass::new(model, batch, exec);
    pass.embed(&model.weights.embed, &mut scratch.x, &mut scratch.tmp.angles);
    for (index, weights) in model.weights.layers.iter().enumerate() {
        let bufs = (&mut scratch.acts, &mut scratch.tmp);
        pass.layer(LayerAt { index, weights }, &mut kv.layers[index], &mut scratch.x, bufs);
    }
}
