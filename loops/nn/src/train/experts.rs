//! Gradient of a layer with experts. Experts and their router are frozen; the gradient passes
//! through what the chosen experts say and through what each of them counts. Which are chosen is
//! no function that has one.

use super::layer::{GradBufs, LayerBack, MixtureGrad};
use crate::experts::Mixture;
use crate::layer::Acts;
use crate::weights::Experts;
use hone_checkpoint::config::ExpertsConfig;
use hone_kernels::cpu::{LANES, padded};
use hone_kernels::matrix::{PackedMatrix, Rows, RowsMut, Store};
use hone_kernels::ops::{GluShape, dot, each_row, swiglu_backward, weighted_sum};

impl LayerBack<'_> {
    /// Sets `bufs.dnormed` to the gradient of the experts' input, from `bufs.dx`, that of their
    /// sum. Uses up `acts.mix.gate_up`.
    pub(super) fn experts(&self, weights: &Experts, acts: &mut Acts, bufs: &mut GradBufs) {
        let (cfg, d, n) = (self.pass.experts_config(), self.pass.dims, self.pass.tokens);
        let (exec, ld) = (self.pass.exec, d.ld_hidden);
        let dx = bufs.dx.as_slice();
        let transposed = bufs
            .transposed
            .get_or_insert_with(|| PackedMatrix::zeros(0, 0));
        self.through_experts(weights, &mut acts.mix, dx, &mut bufs.mixture, transposed);

        let (mix, pairs) = (&acts.mix, bufs.mixture.pairs.as_slice());
        let dnormed = bufs.dnormed.take(n * ld);
        let (once, work) = (vec![1.0; cfg.chosen], n * cfg.chosen * d.hidden);
        each_row(dnormed, n, ld, exec, work, &|row, to| {
            let rows = &mix.route.rows[row * cfg.chosen..(row + 1) * cfg.chosen];
            weighted_sum(&once, rows, pairs, ld, &mut to[..d.hidden]);
        });

        let ld_scores = padded(cfg.count);
        let scores = bufs.mixture.scores.take(n * ld_scores);
        each_row(scores, n, ld_scores, exec, work, &|row, to| {
            score_grad(cfg, mix, row, &dx[row * ld..][..d.hidden], to);
        });
        let router = &weights.router;
        router.transpose(0..router.out.div_ceil(LANES), transposed, exec);
        let rows = Rows {
            data: scores,
            stride: ld_scores,
            rows: n,
        };
        let to = RowsMut {
            data: dnormed,
            stride: ld,
        };
        transposed.linear(rows, to, Store::Continue, exec);
    }

    /// Sets `to.pairs` to the gradient of what every expert heard from each of its tokens.
    fn through_experts(
        &self,
        weights: &Experts,
        mix: &mut Mixture,
        dx: &[f32],
        to: &mut MixtureGrad,
        transposed: &mut PackedMatrix,
    ) {
        let (cfg, ld, exec) = (
            self.pass.experts_config(),
            self.pass.dims.ld_hidden,
            self.pass.exec,
        );
        let (ld_gate_up, ld_act) = (padded(2 * cfg.ffn), padded(cfg.ffn));
        let Mixture { route, gate_up, .. } = mix;
        let count = route.ids.len();
        let pairs = to.pairs.take(count * ld);
        for (pair, to) in route.pairs.iter().zip(pairs.chunks_exact_mut(ld)) {
            let token = *pair as usize / cfg.chosen;
            let weight = route.weights[*pair as usize];
            let from = &dx[token * ld..(token + 1) * ld];
            to.iter_mut().zip(from).for_each(|(to, d)| *to = weight * d);
        }
        let act = to.act.take(count * ld_act);
        let gate_up = gate_up.as_mut();
        for (expert, rows) in route.rows_by_expert() {
            let shape = GluShape {
                rows: rows.len(),
                ffn: cfg.ffn,
                ld_gate_up,
                ld_act,
            };
            let mut back = |w: &PackedMatrix, dy: (&[f32], usize), dx: (&mut [f32], usize)| {
                w.transpose(0..w.out.div_ceil(LANES), transposed, exec);
                let dy = Rows {
                    data: dy.0,
                    stride: dy.1,
                    rows: rows.len(),
                };
                let dx = RowsMut {
                    data: dx.0,
                    stride: dx.1,
                };
                transposed.linear(dy, dx, Store::Set(None), exec);
            };
            let pairs = &mut pairs[rows.start * ld..rows.end * ld];
            let act = &mut act[rows.start * ld_act..rows.end * ld_act];
            let gate_up = &mut gate_up[rows.start * ld_gate_up..rows.end * ld_gate_up];
            back(&weights.down[expert], (pairs, ld), (&mut *act, ld_act));
            swiglu_backward(shape, gate_up, act, exec);
            back(&weights.gate_up[expert], (gate_up, ld_gate_up), (pairs, ld));
        }
    }
}

/// Gradient of the scores of one token. With `g` the gradient of the weights `w` (softmax over the
/// chosen): `w (g - sum w g)`. Where the weights are shares `p` among all experts, those not chosen
/// have it too: `p (g - sum w g)` with `g = 0` for them.
fn score_grad(cfg: &ExpertsConfig, mix: &Mixture, row: usize, dy: &[f32], to: &mut [f32]) {
    let route = &mix.route;
    let of_row = row * cfg.chosen..(row + 1) * cfg.chosen;
    let ids = &route.ids[of_row.clone()];
    let weights = &route.weights[of_row.clone()];
    let (out, ld) = (mix.out.as_slice(), padded(dy.len()));
    let said = |row: &u32| dot(dy, &out[*row as usize * ld..]);
    let grads: Vec<f32> = route.rows[of_row].iter().map(said).collect();
    let mean: f32 = weights.iter().zip(&grads).map(|(w, g)| w * g).sum();
    if cfg.normalised {
        to.fill(0.0);
    } else {
        let shares = &mix.scores.as_slice()[row * padded(cfg.count)..][..cfg.count];
        to.iter_mut()
            .zip(shares)
            .for_each(|(to, p)| *to = -p * mean);
    }
    for ((id, weight), grad) in ids.iter().zip(weights).zip(&grads) {
        to[usize::from(*id)] = weight * (grad - mean);
    }
}
