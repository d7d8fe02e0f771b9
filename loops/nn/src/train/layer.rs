//! Gradient of one transformer layer.

use super::attention::AttentionGrad;
use crate::adapter::{Adapter, Change, Changes, Pair};
use crate::kv::KvLayer;
use crate::layer::{Acts, Temp};
use crate::pass::Pass;
use crate::rope::rotate;
use crate::weights::{LayerWeights, Linear, Mlp};
use hone_checkpoint::Target;
use hone_kernels::cpu::{Buf, LANES, padded};
use hone_kernels::matrix::{PackedMatrix, Rows, RowsMut, Store};
use hone_kernels::ops::{NormGrad, RmsNorm, add_to, each_row, swiglu_backward};

/// Where the gradients of one layer's parameters go.
pub(crate) enum LayerSink<'a> {
    Full(&'a mut LayerWeights),
    Adapter(&'a mut Changes),
}

/// Buffers of the gradient of a layer with experts.
#[derive(Default)]
pub(super) struct MixtureGrad {
    /// Of what each expert said, then of what it heard `[pairs][hidden]`.
    pub(super) pairs: Buf,
    pub(super) act: Buf,
    /// Of the router's scores `[tokens][experts]`.
    pub(super) scores: Buf,
}

/// Buffers of the backward pass, reused by all layers.
#[derive(Default)]
pub(crate) struct GradBufs {
    /// Gradient of the residual stream `[tokens][hidden]`.
    pub(crate) dx: Buf,
    /// Of attention's output, and of a norm's output after that `[tokens][q]`, `[tokens][hidden]`.
    pub(super) dnormed: Buf,
    /// Of the feed-forward's inner values, and of query, key and value after that.
    dwide: Buf,
    attention: Buf,
    /// Of weights, and of changes to them: what the two are stored as may differ.
    pub(crate) transposed: Option<PackedMatrix>,
    transposed_change: Option<PackedMatrix>,
    low: Buf,
    dlow: Buf,
    pub(super) mixture: MixtureGrad,
}

/// One layer with everything its forward left behind.
pub(crate) struct LayerBack<'a> {
    pub(crate) pass: &'a Pass<'a>,
    pub(crate) index: usize,
    pub(crate) weights: &'a LayerWeights,
    pub(crate) adapter: Option<&'a Adapter>,
    pub(crate) kv: &'a KvLayer,
    pub(crate) temp: &'a Temp,
    /// The layer's input `[tokens][hidden]`.
    pub(crate) input: &'a Buf,
}

/// A linear layer backwards: its input, and its place in the layer.
pub(super) struct Step<'a> {
    pub(super) linear: &'a Linear,
    pub(super) x: (&'a [f32], usize),
    pub(super) dy: (&'a [f32], usize),
    pub(super) targets: &'a [(Target, usize)],
}

impl Step<'_> {
    /// Its input and the gradient of its output, for so many tokens.
    fn rows(&self, rows: usize) -> (Rows<'_>, Rows<'_>) {
        let of = |(data, stride)| Rows { data, stride, rows };
        (of(self.x), of(self.dy))
    }
}

/// Parts of [`GradBufs`] a linear layer needs.
struct LinearBufs<'a> {
    transposed: &'a mut Option<PackedMatrix>,
    transposed_change: &'a mut Option<PackedMatrix>,
    low: &'a mut Buf,
    dlow: &'a mut Buf,
}

macro_rules! linear_bufs {
    ($bufs:expr) => {
        LinearBufs {
            transposed: &mut $bufs.transposed,
            transposed_change: &mut $bufs.transposed_change,
            low: &mut $bufs.low,
            dlow: &mut $bufs.dlow,
        }
    };
}

impl LayerBack<'_> {
    /// Turns `bufs.dx` from the gradient of the layer's output into that of its input, unless an
    /// adapter is trained and the layer is the first. Uses up `acts.gate_up`.
    pub(crate) fn run(&self, acts: &mut Acts, bufs: &mut GradBufs, sink: &mut LayerSink) {
        self.mlp(acts, bufs, sink);
        self.attention(acts, bufs, sink);
    }

    fn mlp(&self, acts: &mut Acts, bufs: &mut GradBufs, sink: &mut LayerSink) {
        match &self.weights.mlp {
            Mlp::Dense { gate_up, down } => self.dense([gate_up, down], acts, bufs, sink),
            Mlp::Sparse(experts) => self.experts(experts, acts, bufs),
        }
        let dw = match sink {
            LayerSink::Full(grads) => Some(grads.norm2.as_mut_slice()),
            LayerSink::Adapter(_) => None,
        };
        let norm = self.pass.norm(&self.weights.norm2);
        let (mid, dnormed) = (acts.mid.as_slice(), bufs.dnormed.as_slice());
        self.norm(&norm, (mid, dnormed), bufs.dx.as_mut(), dw);
    }

    /// Sets `bufs.dnormed` to the gradient of the input of a dense layer.
    fn dense(
        &self,
        [gate_up, down]: [&Linear; 2],
        acts: &mut Acts,
        bufs: &mut GradBufs,
        sink: &mut LayerSink,
    ) {
        let (d, n) = (self.pass.dims, self.pass.tokens);
        let dact = bufs.dwide.take(n * d.ld_ffn);
        let step = Step {
            linear: down,
            x: (acts.act.as_slice(), d.ld_ffn),
            dy: (bufs.dx.as_slice(), d.ld_hidden),
            targets: &[(Target::Down, 0)],
        };
        self.linear(&step, Some(dact), linear_bufs!(bufs), sink);
        swiglu_backward(self.pass.glu(), acts.gate_up.as_mut(), dact, self.pass.exec);
        let dnormed = bufs.dnormed.take(n * d.ld_hidden);
        let step = Step {
            linear: gate_up,
            x: (acts.h2.as_slice(), d.ld_hidden),
            dy: (acts.gate_up.as_slice(), d.ld_gate_up),
            targets: &[(Target::Gate, 0), (Target::Up, d.ffn)],
        };
        self.linear(&step, Some(dnormed), linear_bufs!(bufs), sink);
    }

    fn attention(&self, acts: &mut Acts, bufs: &mut GradBufs, sink: &mut LayerSink) {
        let (d, n) = (self.pass.dims, self.pass.tokens);
        let dattn = bufs.dnormed.take(n * d.ld_q);
        let step = Step {
            linear: &self.weights.o,
            x: (acts.attn.as_slice(), d.ld_q),
            dy: (bufs.dx.as_slice(), d.ld_hidden),
            targets: &[(Target::O, 0)],
        };
        self.linear(&step, Some(dattn), linear_bufs!(bufs), sink);
        let dqkv = bufs.dwide.take(n * d.ld_qkv);
        let attention = AttentionGrad {
            pass: self.pass,
            window: self.pass.cfg.windows[self.index],
            kv: self.kv,
            q: acts.q.as_slice(),
            k: acts.k.as_slice(),
            qkv: acts.qkv.as_slice(),
            dout: dattn,
        };
        attention.run(dqkv, &mut bufs.attention);
        self.unrotate(acts.qkv.as_slice(), dqkv, sink);
        let dnormed = bufs.dnormed.take(n * d.ld_hidden);
        let step = Step {
            linear: &self.weights.qkv,
            x: (acts.h1.as_slice(), d.ld_hidden),
            dy: (dqkv, d.ld_qkv),
            targets: &[(Target::Q, 0), (Target::K, d.q), (Target::V, d.q + d.kv)],
        };
        if self.index == 0 && matches!(sink, LayerSink::Adapter(_)) {
            // Below it are frozen embeddings: nobody reads the gradient of its input.
            self.linear(&step, None, linear_bufs!(bufs), sink);
            return;
        }
        self.linear(&step, Some(&mut *dnormed), linear_bufs!(bufs), sink);
        let dw = match sink {
            LayerSink::Full(grads) => Some(grads.norm1.as_mut_slice()),
            LayerSink::Adapter(_) => None,
        };
        let norm = self.pass.norm(&self.weights.norm1);
        self.norm(
            &norm,
            (self.input.as_slice(), dnormed),
            bufs.dx.as_mut(),
            dw,
        );
    }

    /// Adds the gradient through a norm to `dx` (the residual path is there already).
    fn norm(
        &self,
        norm: &RmsNorm,
        from: (&[f32], &[f32]),
        dx: &mut [f32],
        mut dw: Option<&mut [f32]>,
    ) {
        let (n, ld) = (self.pass.tokens, self.pass.dims.ld_hidden);
        let (x, dy) = from;
        if dw.is_some() {
            // One weight gradient for all rows: rows in order, on one thread.
            for (row, dx) in dx[..n * ld].chunks_exact_mut(ld).enumerate() {
                let (x, dy) = (&x[row * ld..], &dy[row * ld..]);
                norm.backward_row(NormGrad {
                    x,
                    dy,
                    dx,
                    dw: dw.as_deref_mut(),
                    add: true,
                });
            }
            return;
        }
        each_row(dx, n, ld, self.pass.exec, 4 * n * ld, &|row, dx| {
            let (x, dy) = (&x[row * ld..], &dy[row * ld..]);
            norm.backward_row(NormGrad {
                x,
                dy,
                dx,
                dw: None,
                add: true,
            });
        });
    }

    /// Gradient through rotation and head norms, in place in `dqkv`.
    fn unrotate(&self, qkv: &[f32], dqkv: &mut [f32], sink: &mut LayerSink) {
        let (n, ld) = (self.pass.tokens, self.pass.dims.ld_qkv);
        if let LayerSink::Full(grads) = sink {
            // One weight gradient for all rows: rows in order, on one thread.
            for (row, grad) in dqkv.chunks_exact_mut(ld).enumerate().take(n) {
                let norms = [grads.q_norm.as_deref_mut(), grads.k_norm.as_deref_mut()];
                self.unrotate_row(row, qkv, grad, norms);
            }
            return;
        }
        each_row(dqkv, n, ld, self.pass.exec, 4 * n * ld, &|row, grad| {
            self.unrotate_row(row, qkv, grad, [None, None]);
        });
    }

    /// One token; `norms` take the gradients of the head norms' weights.
    fn unrotate_row(
        &self,
        row: usize,
        qkv: &[f32],
        grad: &mut [f32],
        mut norms: [Option<&mut [f32]>; 2],
    ) {
        let (cfg, d) = (self.pass.cfg, self.pass.dims);
        let dim = cfg.head_dim;
        let pair = 2 * self.pass.rope.pairs();
        let angles = &self.temp.angles.as_slice()[row * pair..][..pair];
        let raw = &qkv[row * d.ld_qkv..][..d.q + d.kv];
        let heads = grad[..d.q + d.kv].chunks_exact_mut(dim);
        let mut dy = vec![0.0; dim];
        for (index, (dx, x)) in heads.zip(raw.chunks_exact(dim)).enumerate() {
            rotate(dx, angles, true);
            let [dq_norm, dk_norm] = &mut norms;
            let (weight, dw) = if index < cfg.heads {
                (&self.weights.q_norm, dq_norm)
            } else {
                (&self.weights.k_norm, dk_norm)
            };
            if let Some(weight) = weight {
                dy.copy_from_slice(dx);
                let norm = RmsNorm {
                    weight,
                    eps: cfg.rms_eps,
                    groups: 1,
                };
                norm.backward_row(NormGrad {
                    x,
                    dy: &dy,
                    dx,
                    dw: dw.as_deref_mut(),
                    add: false,
                });
            }
        }
    }

    /// `dx = dy W` plus the adapter's path, where `dx` is wanted, and parameter gradients.
    fn linear(
        &self,
        step: &Step,
        mut dx: Option<&mut [f32]>,
        bufs: LinearBufs,
        sink: &mut LayerSink,
    ) {
        let exec = self.pass.exec;
        let rows = self.pass.tokens;
        let w = &step.linear.w;
        let LinearBufs {
            transposed,
            transposed_change,
            low,
            dlow,
        } = bufs;
        let room = || PackedMatrix::zeros(0, 0);
        let (x, dy) = step.rows(rows);
        if let Some(dx) = dx.as_deref_mut() {
            let transposed = transposed.get_or_insert_with(room);
            w.transpose(0..w.out.div_ceil(LANES), transposed, exec);
            let to = RowsMut {
                data: dx,
                stride: x.stride,
            };
            transposed.linear(dy, to, Store::Set(None), exec);
        }
        match sink {
            LayerSink::Full(grads) => {
                let grad = self.same_linear(step, grads);
                grad.w.add_outer(dy, x, exec);
                if let Some(bias) = &mut grad.bias {
                    for row in dy.data.chunks(dy.stride).take(rows) {
                        add_to(row, bias);
                    }
                }
            }
            LayerSink::Adapter(grads) => {
                let transposed = transposed_change.get_or_insert_with(room);
                self.changes(step, dx, low, dlow, transposed, grads);
            }
        }
    }

    /// The adapter's part of [`Self::linear`].
    fn changes(
        &self,
        step: &Step,
        mut dx: Option<&mut [f32]>,
        low: &mut Buf,
        dlow: &mut Buf,
        transposed: &mut PackedMatrix,
        grads: &mut Changes,
    ) {
        let Some(adapter) = self.adapter else { return };
        let (x, dy) = step.rows(self.pass.tokens);
        for &(target, column) in step.targets {
            let change = adapter.change(self.index, target);
            let (Some(change), Some(grad)) = (change, &mut grads[target as usize]) else {
                continue;
            };
            let dy = Rows {
                data: &step.dy.0[column..],
                ..dy
            };
            let (scale, exec) = (adapter.config.scale(), self.pass.exec);
            let path = Path { scale, x, dy, exec };
            match (change, grad) {
                (Change::LowRank(pair), Change::LowRank(grad)) => {
                    path.low_rank(
                        pair,
                        grad,
                        &mut *low,
                        &mut *dlow,
                        transposed,
                        dx.as_deref_mut(),
                    );
                }
                (Change::Dense(d), Change::Dense(grad)) => {
                    path.dense(d, grad, transposed, dx.as_deref_mut());
                }
                _ => unreachable!("gradients have the form of what is trained"),
            }
        }
    }

    /// [`Self::linear`] alone, for the test of this operation.
    #[cfg(test)]
    pub(super) fn linear_in(
        &self,
        step: &Step,
        dx: &mut [f32],
        bufs: &mut GradBufs,
        sink: &mut LayerSink,
    ) {
        self.linear(step, Some(dx), linear_bufs!(bufs), sink);
    }

    /// The gradient that belongs to the weights of `step`.
    fn same_linear<'g>(&self, step: &Step, grads: &'g mut LayerWeights) -> &'g mut Linear {
        let w = self.weights;
        let is = |linear: &Linear| std::ptr::eq(step.linear, linear);
        if is(&w.qkv) {
            &mut grads.qkv
        } else if is(&w.o) {
            &mut grads.o
        } else {
            let dense = w.mlp.dense().zip(grads.mlp.dense_mut());
            let ([gate_up, _], [to_gate_up, to_down]) = dense.expect("experts are not trained");
            if is(gate_up) { to_gate_up } else { to_down }
        }
    }
}

/// A change of a projection, backwards.
struct Path<'a> {
    scale: f32,
    x: Rows<'a>,
    dy: Rows<'a>,
    exec: &'a hone_kernels::thread_pool::Executor,
}

impl Path<'_> {
    /// `y += x D^T`, backwards: `dD += dy^T x`, `dx += dy D`.
    fn dense(
        &self,
        d: &PackedMatrix,
        grad: &mut PackedMatrix,
        transposed: &mut PackedMatrix,
        dx: Option<&mut [f32]>,
    ) {
        grad.add_outer(self.dy, self.x, self.exec);
        let Some(dx) = dx else { return };
        d.transpose(0..d.out.div_ceil(LANES), transposed, self.exec);
        let to = RowsMut {
            data: dx,
            stride: self.x.stride,
        };
        transposed.linear(self.dy, to, Store::Continue, self.exec);
    }

    /// `y += scale (x A^T) B^T`, backwards. With `s = x A^T`: `dB += dy^T (scale s)`,
    /// `ds = scale (dy B)`, `dA += ds^T x`, `dx += ds A`.
    fn low_rank(
        &self,
        pair: &Pair,
        grad: &mut Pair,
        low: &mut Buf,
        dlow: &mut Buf,
        transposed: &mut PackedMatrix,
        dx: Option<&mut [f32]>,
    ) {
        let (rows, exec) = (self.x.rows, self.exec);
        let rank = pair.a.out;
        let ld = padded(rank);
        let s = low.take(rows * ld);
        pair.a.linear(
            self.x,
            RowsMut {
                data: s,
                stride: ld,
            },
            Store::Set(None),
            exec,
        );
        s[..rows * ld].iter_mut().for_each(|v| *v *= self.scale);
        grad.b.add_outer(
            self.dy,
            Rows {
                data: s,
                stride: ld,
                rows,
            },
            exec,
        );

        let ds = dlow.take(rows * ld);
        pair.b
            .transpose(0..pair.b.out.div_ceil(LANES), transposed, exec);
        transposed.linear(
            self.dy,
            RowsMut {
                data: ds,
                stride: ld,
            },
            Store::Set(None),
            exec,
        );
        ds[..rows * ld].iter_mut().for_each(|v| *v *= self.scale);
        let ds = Rows {
            data: ds,
            stride: ld,
            rows,
        };
        grad.a.add_outer(ds, self.x, exec);
        let Some(dx) = dx else { return };
        pair.a.transpose(0..rank.div_ceil(LANES), transposed, exec);
        transposed.linear(
            ds,
            RowsMut {
                data: dx,
                stride: self.x.stride,
            },
            Store::Continue,
            exec,
        );
    }
}

/// Adds the gradient of the looked-up embeddings, tokens ascending.
pub(crate) fn embedding_grad(pass: &Pass, dx: &Buf, grad: &mut PackedMatrix) {
    let d = pass.dims;
    pass.each_token(|at| {
        let row = &dx.as_slice()[at.row * d.ld_hidden..][..d.hidden];
        grad.add_row(at.id as usize, row);
    });
}
