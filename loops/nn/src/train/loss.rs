//! The head and the loss, for the tokens to learn from only.
#![allow(unsafe_code)]

use super::batch::{Buffers, Micro, Pacer, Run, Sink, Site};
use super::{LearnerConfig, Objective, StepError, TokenLoss, TrainRow};
use crate::forward::head;
use crate::logprob::{Shape, token_logprob};
use crate::ops::{NormGrad, RmsNorm};
use crate::panels::{Panels, Rows, RowsMut, Store};
use crate::simd::{Kernel, LANES, V16, dispatch, exp, padded};

/// Loss tokens whose logits exist at the same time.
const CHUNK: usize = 64;
/// Vocabulary panels transposed at a time for the input gradient.
const VOCAB_PANELS: usize = 256;
/// Log-ratios are cut to this before exponentials.
const MAX_LOG_RATIO: f32 = 20.0;

/// Log-probs of every loss token, `[row][item]` as in the step's rows.
pub(crate) type Logprobs = Vec<Vec<f32>>;

/// What the loss of an update needs besides logits.
pub(crate) struct LossInputs<'a> {
    pub(crate) rows: &'a [TrainRow],
    pub(crate) cfg: &'a LearnerConfig,
    /// Log-probs at the start of the step; `None` takes the current ones (the first update).
    pub(crate) proximal: Option<&'a Logprobs>,
    pub(crate) reference: Option<&'a Logprobs>,
    /// Loss tokens in the update, over which the loss is a mean.
    pub(crate) count: usize,
}

/// Sums over loss tokens.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sums {
    pub(crate) tokens: usize,
    pub(crate) loss: f64,
    pub(crate) kl: f64,
    pub(crate) clipped: usize,
    pub(crate) importance: f64,
    pub(crate) max_correction: f64,
    pub(crate) weight: f64,
    pub(crate) weight2: f64,
    pub(crate) entropy: f64,
}

impl Sums {
    pub(crate) fn add(&mut self, more: &Self) {
        self.tokens += more.tokens;
        self.loss += more.loss;
        self.kl += more.kl;
        self.clipped += more.clipped;
        self.importance += more.importance;
        self.max_correction = self.max_correction.max(more.max_correction);
        self.weight += more.weight;
        self.weight2 += more.weight2;
        self.entropy += more.entropy;
    }
}

/// Loss of one token and its derivative by the token's log-prob.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Term {
    pub(crate) loss: f32,
    pub(crate) slope: f32,
    pub(crate) clipped: bool,
    /// Correction before and after the cap.
    pub(crate) correction: f32,
    pub(crate) weight: f32,
}

/// The policy term, see [`Objective`].
pub(crate) fn policy_term(
    objective: &Objective,
    loss: &TokenLoss,
    current: f32,
    proximal: f32,
) -> Term {
    let advantage = loss.advantage;
    match *objective {
        Objective::CrossEntropy => Term {
            loss: -advantage * current,
            slope: -advantage,
            clipped: false,
            correction: 1.0,
            weight: 1.0,
        },
        Objective::DecoupledPpo {
            clip_low,
            clip_high,
            correction_cap,
        } => {
            let ratio = bounded_exp(current - proximal);
            let correction = bounded_exp(proximal - loss.behavior_logprob);
            let weight = correction.min(correction_cap);
            let free = ratio * advantage;
            let cut = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage;
            let clipped = cut < free;
            let slope = if clipped { 0.0 } else { -weight * free };
            Term {
                loss: -weight * free.min(cut),
                slope,
                clipped,
                correction,
                weight,
            }
        }
    }
}

/// `e^x` with `x` cut to a sane range; NaN stays NaN.
fn bounded_exp(x: f32) -> f32 {
    x.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
}

/// k3 estimate of KL(current || reference) (Schulman 2020) from one sample, and its derivative by
/// the current log-prob: `e^-x + x - 1`, `1 - e^-x` with `x = current - reference`.
pub(crate) fn k3(current: f32, reference: f32) -> (f32, f32) {
    let inverse = bounded_exp(reference - current);
    (inverse + (current - reference) - 1.0, 1.0 - inverse)
}

impl Buffers {
    /// Log-probs of the micro-batch's sites from `self.x`, into `to`.
    pub(crate) fn logprobs(
        &mut self,
        run: &Run,
        micro: &Micro,
        (rows, to): (&[TrainRow], &mut Logprobs),
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        for sites in micro.sites.chunks(CHUNK) {
            self.chunk_logits(run, sites);
            for (i, site) in sites.iter().enumerate() {
                let loss = &rows[site.row].loss[site.item];
                let row = self.logits_row(run, i);
                let kept = loss.kept.as_deref();
                to[site.row][site.item] = token_logprob(row, site.token, loss.temperature, kept);
            }
            pacer.tick()?;
        }
        Ok(())
    }

    /// Computes the logits of `sites`; `self.picked` holds their residual rows.
    fn chunk_logits(&mut self, run: &Run, sites: &[Site]) {
        let ld = padded(run.model.config.hidden);
        let picked = self.picked.take(sites.len() * ld);
        for (site, to) in sites.iter().zip(picked.chunks_exact_mut(ld)) {
            to.copy_from_slice(&self.x.as_slice()[site.at * ld..][..ld]);
        }
        head(run.model, picked, sites.len(), &mut self.logits, run.exec);
    }

    fn logits_row(&self, run: &Run, i: usize) -> &[f32] {
        let vocab = run.model.config.vocab;
        &self.logits.as_slice()[i * padded(vocab)..][..vocab]
    }

    /// Loss of the micro-batch: adds to `sums`, records current log-probs in `current`, sets
    /// `self.grads.dx` to the gradient of the residual stream and adds to head and norm gradients.
    pub(crate) fn loss(
        &mut self,
        run: &Run,
        micro: &Micro,
        step: &mut LossStep,
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        let ld = padded(run.model.config.hidden);
        self.grads.dx.take(micro.tokens * ld).fill(0.0);
        for sites in micro.sites.chunks(CHUNK) {
            self.chunk_logits(run, sites);
            for (i, site) in sites.iter().enumerate() {
                let vocab = run.model.config.vocab;
                let row = &mut self.logits.as_mut()[i * padded(vocab)..][..vocab];
                step.token(site, row);
            }
            self.head_backward(run, sites, &mut *step.sink);
            pacer.tick()?;
        }
        Ok(())
    }

    /// From `dlogits` (in place of the logits) to the residual stream.
    fn head_backward(&mut self, run: &Run, sites: &[Site], sink: &mut Sink) {
        let (cfg, weights) = (&run.model.config, &run.model.weights);
        let (ld, stride) = (padded(cfg.hidden), padded(cfg.vocab));
        let n = sites.len();
        let (dlogits, normed) = self.logits.as_slice().split_at(n * stride);
        let dnormed = self.dpicked.take(n * ld);
        dnormed.fill(0.0);
        let transposed = self
            .grads
            .transposed
            .get_or_insert_with(|| Panels::zeros(0, 0));
        let w = weights.head();
        let panels = w.out.div_ceil(LANES);
        // Continued sums over slices of the vocabulary: ascending, and no transposed copy of a
        // large head.
        for first in (0..panels).step_by(VOCAB_PANELS) {
            w.transpose(first..(first + VOCAB_PANELS).min(panels), transposed);
            let dy = Rows {
                data: &dlogits[first * LANES..],
                stride,
                rows: n,
            };
            let to = RowsMut {
                data: &mut *dnormed,
                stride: ld,
            };
            transposed.linear(dy, to, Store::Continue, run.exec);
        }
        let mut dw = None;
        if let Sink::Full(grads) = sink {
            let grad = grads.head.as_mut().unwrap_or(&mut grads.embed);
            let dy = Rows {
                data: self.logits.as_slice(),
                stride,
                rows: n,
            };
            grad.add_outer(
                dy,
                Rows {
                    data: normed,
                    stride: ld,
                    rows: n,
                },
                run.exec,
            );
            dw = Some(grads.norm.as_mut_slice());
        }
        let norm = RmsNorm {
            weight: &weights.norm,
            eps: cfg.rms_eps,
            groups: 1,
        };
        for (i, site) in sites.iter().enumerate() {
            let x = &self.picked.as_slice()[i * ld..];
            let dy = &dnormed[i * ld..];
            let dx = &mut self.grads.dx.as_mut()[site.at * ld..][..ld];
            norm.backward_row(NormGrad {
                x,
                dy,
                dx,
                dw: dw.as_deref_mut(),
                add: true,
            });
        }
    }
}

/// The loss of an update while its micro-batches pass by.
pub(crate) struct LossStep<'a> {
    pub(crate) inputs: &'a LossInputs<'a>,
    pub(crate) sums: &'a mut Sums,
    pub(crate) current: &'a mut Logprobs,
    pub(crate) sink: &'a mut Sink,
}

impl LossStep<'_> {
    /// Takes the logits of one loss token and leaves their gradient in `row`.
    fn token(&mut self, site: &Site, row: &mut [f32]) {
        let LossInputs {
            rows,
            cfg,
            proximal,
            reference,
            count,
        } = self.inputs;
        let loss = &rows[site.row].loss[site.item];
        let kept = loss.kept.as_deref();
        let shape = Shape::of(row, loss.temperature, kept);
        let current = shape.logprob(row[site.token as usize]);
        self.current[site.row][site.item] = current;
        let proximal = proximal.map_or(current, |p| p[site.row][site.item]);
        let term = policy_term(&cfg.objective, loss, current, proximal);
        let (mut value, mut slope) = (term.loss, term.slope);
        if let Some(reference) = reference {
            let (kl, kl_slope) = k3(current, reference[site.row][site.item]);
            self.sums.kl += f64::from(kl);
            value += cfg.kl_coef * kl;
            slope += cfg.kl_coef * kl_slope;
        }
        let share = 1.0 / *count as f32;
        let grad = RowGrad {
            shape,
            token: site.token as usize,
            slope: slope * share,
            entropy: cfg.entropy_coef * share,
        };
        let entropy = grad.run(row, kept);
        value -= cfg.entropy_coef * entropy;
        let sums = &mut *self.sums;
        sums.tokens += 1;
        sums.loss += f64::from(value);
        sums.clipped += usize::from(term.clipped);
        sums.importance += f64::from(bounded_exp(current - loss.behavior_logprob));
        sums.max_correction = sums.max_correction.max(f64::from(term.correction));
        sums.weight += f64::from(term.weight);
        sums.weight2 += f64::from(term.weight) * f64::from(term.weight);
        sums.entropy += f64::from(entropy);
    }
}

/// Gradient of one row of logits. With scaled logits `s = z / temperature`, `p = softmax(s)`,
/// `H` its entropy: `dz_i = (slope (1[i = token] - p_i) + entropy p_i (ln p_i + H)) / temperature`.
struct RowGrad {
    shape: Shape,
    token: usize,
    /// Derivative of the loss by the log-prob.
    slope: f32,
    /// Weight of the entropy bonus.
    entropy: f32,
}

impl RowGrad {
    /// Replaces `row` by its gradient and returns the entropy.
    fn run(&self, row: &mut [f32], kept: Option<&[u32]>) -> f32 {
        let Some(kept) = kept else {
            return dispatch(RowGradKernel {
                grad: self,
                row,
                token: Some(self.token),
            });
        };
        let mut picked: Vec<f32> = kept.iter().map(|&id| row[id as usize]).collect();
        let token = kept.iter().position(|&id| id as usize == self.token);
        let entropy = dispatch(RowGradKernel {
            grad: self,
            row: &mut picked,
            token,
        });
        row.fill(0.0);
        for (&id, g) in kept.iter().zip(picked) {
            row[id as usize] += g;
        }
        entropy
    }
}

struct RowGradKernel<'a> {
    grad: &'a RowGrad,
    row: &'a mut [f32],
    token: Option<usize>,
}

impl RowGradKernel<'_> {
    /// Sixteen probabilities and their logs from index `at`; lanes beyond `width` have `p = 0`.
    #[inline(always)]
    unsafe fn group<V: V16>(&self, at: usize, width: usize) -> (V, V) {
        let shape = &self.grad.shape;
        // SAFETY: `width` values exist from `at` on.
        unsafe {
            let z = if width == LANES {
                V::load(self.row.as_ptr().add(at))
            } else {
                let mut lanes = [-f32::MAX / 1e4; LANES];
                lanes[..width].copy_from_slice(&self.row[at..at + width]);
                V::load(lanes.as_ptr())
            };
            let centred = z.mul(V::splat(shape.inverse)).sub(V::splat(shape.most));
            let p = exp(centred).mul(V::splat(1.0 / shape.sum));
            (p, centred.sub(V::splat(shape.log_sum())))
        }
    }
}

impl Kernel for RowGradKernel<'_> {
    /// The entropy.
    type Out = f32;
    #[inline(always)]
    fn run<V: V16>(self) -> f32 {
        let n = self.row.len();
        let RowGrad {
            shape,
            slope,
            entropy: bonus,
            ..
        } = self.grad;
        // SAFETY: groups stay inside the row.
        unsafe {
            let mut sum = V::zero();
            for at in (0..n).step_by(LANES) {
                let (p, ln_p) = self.group::<V>(at, LANES.min(n - at));
                sum = p.fma(ln_p, sum);
            }
            let entropy = -sum.sum();
            let (pull, bonus, h) = (V::splat(-slope), V::splat(*bonus), V::splat(entropy));
            let inverse = V::splat(shape.inverse);
            let out = self.row.as_mut_ptr();
            for at in (0..n).step_by(LANES) {
                let width = LANES.min(n - at);
                let (p, ln_p) = self.group::<V>(at, width);
                let grad = p.mul(ln_p.add(h).fma(bonus, pull)).mul(inverse);
                if width == LANES {
                    grad.store(out.add(at));
                } else {
                    grad.store_part(out.add(at), width);
                }
            }
            if let Some(token) = self.token {
                self.row[token] += slope * shape.inverse;
            }
            entropy
        }
    }
}
