//! One transformer layer, forward: the same code for serving and training.
#![allow(unsafe_code)]

use crate::attention::Attention;
use crate::experts::Mixture;
use crate::kv::{BLOCK_TOKENS, KvLayer};
use crate::pass::Pass;
use crate::rope::rotate;
use crate::weights::{LayerWeights, Linear, Mlp};
use hone_checkpoint::Target;
use hone_checkpoint::config::ModelConfig;
use hone_kernels::cpu::Buf;
use hone_kernels::matrix::{Rows, RowsMut, Store};
use hone_kernels::ops::{RmsNorm, add, swiglu};
use hone_kernels::thread_pool::Shards;

/// What norm, rotation and the write to the cache cost per value, in multiply-adds.
const ROTATE_WORK: usize = 16;

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
    /// Instead of the last two, where the layer has experts.
    pub(crate) mix: Mixture,
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

impl Pass<'_> {
    /// One layer: `x` in place, intermediates to `acts`, keys and values to `kv`.
    pub(crate) fn layer(&self, at: LayerAt, kv: &mut KvLayer, x: &mut Buf, bufs: Bufs) {
        let Bufs { acts, tmp } = bufs;
        self.attention_half(at, kv, x, &mut *acts, &mut *tmp);
        self.mlp_half(at, x, acts, tmp);
    }

    /// Fills in the rest of `acts` and `kv` as [`Self::layer`] leaves them, from its input `x` and
    /// the results of products and attention: `qkv`, `attn`, `mid`, `gate_up` or those of experts.
    pub(crate) fn refill(&self, at: LayerAt, kv: &mut KvLayer, x: &Buf, bufs: Bufs) {
        let Bufs { acts, tmp } = bufs;
        let LayerAt { weights, .. } = at;
        let size = (self.tokens, self.dims.ld_hidden);
        let norm = self.norm(&weights.norm1);
        norm.forward(x.as_slice(), acts.h1.take(size.0 * size.1), size, self.exec);
        self.rotate_and_store(weights, kv, acts, &tmp.angles);
        if let Mlp::Dense { .. } = &weights.mlp {
            let norm = self.norm(&weights.norm2);
            let h2 = acts.h2.take(size.0 * size.1);
            norm.forward(acts.mid.as_slice(), h2, size, self.exec);
            let act = acts.act.take(self.tokens * self.dims.ld_ffn);
            swiglu(self.glu(), acts.gate_up.as_slice(), act, self.exec);
        }
    }

    /// `mid = x + O(attention(norm(x)))`.
    fn attention_half(
        &self,
        at: LayerAt,
        kv: &mut KvLayer,
        x: &Buf,
        acts: &mut Acts,
        tmp: &mut Temp,
    ) {
        let LayerAt { index, weights } = at;
        let (d, n) = (self.dims, self.tokens);
        let norm = self.norm(&weights.norm1);
        let h1 = acts.h1.take(n * d.ld_hidden);
        norm.forward(x.as_slice(), h1, (n, d.ld_hidden), self.exec);
        let qkv = Projection {
            layer: index,
            linear: &weights.qkv,
            x: (&acts.h1, d.ld_hidden),
            stride: d.ld_qkv,
            targets: &[(Target::Q, 0), (Target::K, d.q), (Target::V, d.q + d.kv)],
        };
        self.project(&qkv, &mut acts.qkv, &mut tmp.low_rank);
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
        let o = Projection {
            layer: index,
            linear: &weights.o,
            x: (&acts.attn, d.ld_q),
            stride: d.ld_hidden,
            targets: &[(Target::O, 0)],
        };
        self.project(&o, &mut tmp.proj, &mut tmp.low_rank);
        let mid = &mut acts.mid.take(n * d.ld_hidden)[..n * d.ld_hidden];
        add(x.as_slice(), tmp.proj.as_slice(), mid, self.exec);
    }

    /// `x = mid + down(silu(gate) up)`, gate and up of `norm(mid)`, or what the experts say.
    fn mlp_half(&self, at: LayerAt, x: &mut Buf, acts: &mut Acts, tmp: &mut Temp) {
        let LayerAt { index, weights } = at;
        let (d, n) = (self.dims, self.tokens);
        let norm = self.norm(&weights.norm2);
        let h2 = acts.h2.take(n * d.ld_hidden);
        norm.forward(acts.mid.as_slice(), h2, (n, d.ld_hidden), self.exec);
        match &weights.mlp {
            Mlp::Dense { gate_up, down } => self.dense(index, [gate_up, down], acts, tmp),
            Mlp::Sparse(experts) => {
                self.experts(index, experts, &acts.h2, &mut acts.mix, &mut tmp.proj);
            }
        }
        let x = &mut x.take(n * d.ld_hidden)[..n * d.ld_hidden];
        add(acts.mid.as_slice(), tmp.proj.as_slice(), x, self.exec);
    }

    /// `proj = down(silu(gate) up)`, gate and up of `h2`.
    fn dense(&self, index: usize, [gate_up, down]: [&Linear; 2], acts: &mut Acts, tmp: &mut Temp) {
        let (d, n) = (self.dims, self.tokens);
        let gate_up = Projection {
            layer: index,
            linear: gate_up,
            x: (&acts.h2, d.ld_hidden),
            stride: d.ld_gate_up,
            targets: &[(Target::Gate, 0), (Target::Up, d.ffn)],
        };
        self.project(&gate_up, &mut acts.gate_up, &mut tmp.low_rank);
        let act = acts.act.take(n * d.ld_ffn);
        swiglu(self.glu(), acts.gate_up.as_slice(), act, self.exec);
        let down = Projection {
            layer: index,
            linear: down,
            x: (&acts.act, d.ld_ffn),
            stride: d.ld_hidden,
            targets: &[(Target::Down, 0)],
        };
        self.project(&down, &mut tmp.proj, &mut tmp.low_rank);
    }

    /// Head norms, rotation, and the write of keys and values into the pool. What the pool keeps of
    /// them is what `acts` holds afterwards.
    fn rotate_and_store(
        &self,
        weights: &LayerWeights,
        kv: &mut KvLayer,
        acts: &mut Acts,
        angles: &Buf,
    ) {
        let (d, n) = (self.dims, self.tokens);
        let qkv = Shards::new(&mut acts.qkv.as_mut()[..n * d.ld_qkv]);
        let q = Shards::new(&mut acts.q.take(n * d.ld_q)[..n * d.ld_q]);
        let k = Shards::new(&mut acts.k.take(n * d.ld_kv)[..n * d.ld_kv]);
        let kv = kv.writer();
        let work = n * (d.q + 2 * d.kv) * ROTATE_WORK;
        self.exec.split(n, work, &|part| {
            self.each_token_of(part, |at| {
                let first = at.row * d.ld_qkv;
                // SAFETY: every row goes to one part, and so does its place in the cache: no two
                // rows of a batch have the same.
                unsafe {
                    let raw = qkv.slice(first..first + d.q + 2 * d.kv);
                    let (raw, values) = raw.split_at_mut(d.q + d.kv);
                    let q = q.slice(at.row * d.ld_q..at.row * d.ld_q + d.q);
                    let k = k.slice(at.row * d.ld_kv..at.row * d.ld_kv + d.kv);
                    self.rotate_row(weights, at.row, angles, raw, [&mut *q, &mut *k]);
                    kv.write(at.block, at.position % BLOCK_TOKENS, k, values);
                }
            });
        });
    }

    /// Head norms and rotation of one row: `raw [q + kv]` to `q`, `k`.
    fn rotate_row(
        &self,
        weights: &LayerWeights,
        row: usize,
        angles: &Buf,
        raw: &[f32],
        [q, k]: [&mut [f32]; 2],
    ) {
        let (d, pair) = (self.dims, 2 * self.rope.pairs());
        let angles = &angles.as_slice()[row * pair..][..pair];
        let (raw_q, raw_k) = (&raw[..d.q], &raw[d.q..d.q + d.kv]);
        head_norm(weights.q_norm.as_deref(), self.cfg, raw_q, q);
        head_norm(weights.k_norm.as_deref(), self.cfg, raw_k, k);
        for heads in [q, k] {
            let heads = heads.chunks_exact_mut(self.cfg.head_dim);
            heads.for_each(|head| rotate(head, angles, false));
        }
    }

    /// `y = x W^T + b`, plus the adapters of each run of sequences.
    fn project(&self, step: &Projection, y: &mut Buf, low_rank: &mut Buf) {
        let (x, ldx) = (step.x.0.as_slice(), step.x.1);
        let stride = step.stride;
        let y = y.take(self.tokens * stride);
        let rows = Rows {
            data: x,
            stride: ldx,
            rows: self.tokens,
        };
        let store = Store::Set(step.linear.bias.as_deref());
        let Linear { w, .. } = step.linear;
        w.linear(rows, RowsMut { data: y, stride }, store, self.exec);
        self.adapt_runs(step, rows, y, low_rank);
    }

    /// The output projection of the first layer alone, for the test of this operation.
    #[cfg(test)]
    pub(crate) fn project_o(&self, weights: &LayerWeights, x: &Buf, y: &mut Buf) {
        let o = Projection {
            layer: 0,
            linear: &weights.o,
            x: (x, self.dims.ld_q),
            stride: self.dims.ld_hidden,
            targets: &[(Target::O, 0)],
        };
        self.project(&o, y, &mut Buf::default());
    }
}

/// A linear layer at its place in the model.
pub(crate) struct Projection<'a> {
    pub(crate) layer: usize,
    pub(crate) linear: &'a Linear,
    /// Input rows and their stride.
    x: (&'a Buf, usize),
    /// Stride of the output rows.
    pub(crate) stride: usize,
    /// Adapter targets and their first output column.
    pub(crate) targets: &'a [(Target, usize)],
}

/// Buffers of a layer call.
pub(crate) struct Bufs<'a> {
    pub(crate) acts: &'a mut Acts,
    pub(crate) tmp: &'a mut Temp,
}

/// Norm of each head where the model has one, else a copy.
fn head_norm(weight: Option<&[f32]>, cfg: &ModelConfig, raw: &[f32], to: &mut [f32]) {
    match weight {
        Some(weight) => {
            let groups = raw.len() / weight.len();
            RmsNorm {
                weight,
                eps: cfg.rms_eps,
                groups,
            }
            .forward_row(raw, to);
        }
        None => to.copy_from_slice(raw),
    }
}

/// Which layer a call computes.
#[derive(Clone, Copy)]
pub(crate) struct LayerAt<'a> {
    pub(crate) index: usize,
    pub(crate) weights: &'a LayerWeights,
}
