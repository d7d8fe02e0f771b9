//! The head and the loss, for the tokens to learn from only.
#![allow(unsafe_code)]

use std::collections::BTreeMap;

use super::batch::{Buffers, LossPosition, MicroBatch, Pacer, Run, Sink};
use super::objective::{SequenceView, TokenView, bounded_exp};
use super::{LearnerConfig, LossKind, Objective, StepError, Term, TokenLoss, TrainRow};
use crate::forward::head;
use crate::weights::Model;
use hone_kernels::cpu::{Kernel, LANES, V16, dispatch, exp, padded};
use hone_kernels::matrix::{PackedMatrix, Rows, RowsMut, Store};
use hone_kernels::ops::log_softmax::Shape;
use hone_kernels::ops::{NormGrad, RmsNorm};

/// Loss tokens whose logits exist at the same time, and more where the vocabulary is small: as many
/// as have this many logits. The head is transposed once for each such chunk.
const CHUNK: usize = 64;
const CHUNK_LOGITS: usize = 1 << 18;
/// Vocabulary panels transposed at a time for the input gradient.
const VOCAB_PANELS: usize = 256;

/// A value per row and loss token.
pub type PerToken<T> = Vec<Vec<T>>;

/// A value to be filled in per loss token.
pub(super) fn per_token<T: Clone>(rows: &[TrainRow], value: T) -> PerToken<T> {
    let of_row = |row: &TrainRow| vec![value.clone(); row.loss.len()];
    rows.iter().map(of_row).collect()
}

/// Log-probs of every loss token, `[row][item]` as in the step's rows.
pub(crate) type Logprobs = PerToken<f32>;

/// What the loss of an update needs besides logits.
pub struct LossInputs<'a> {
    pub rows: &'a [TrainRow],
    pub cfg: &'a LearnerConfig,
    /// Log-probs at the start of the step; `None` takes the current ones (the first update).
    pub proximal: Option<&'a Logprobs>,
    pub reference: Option<&'a Logprobs>,
    /// Sequence ratios per row and loss token, where the objective reads them.
    pub sequences: Option<Vec<Vec<SequenceView>>>,
    pub counts: Counts,
}

/// Loss tokens of an update, by what they are learned by.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    policy: usize,
    supervised: usize,
    /// Those that have a teacher only.
    apart: usize,
    /// All that have a teacher.
    taught: usize,
    /// Those with anything to learn by: an advantage, a token to imitate, a teacher.
    signals: usize,
}

impl Counts {
    pub fn of(rows: &[TrainRow]) -> Self {
        let mut counts = Self::default();
        for loss in rows.iter().flat_map(|row| &row.loss) {
            match loss.kind {
                LossKind::Policy => counts.policy += 1,
                LossKind::Supervised => counts.supervised += 1,
                LossKind::Taught => counts.apart += 1,
            }
            counts.taught += usize::from(loss.teacher.is_some());
            let taught = loss.teacher.is_some() || loss.kind == LossKind::Supervised;
            counts.signals += usize::from(taught || loss.advantage != 0.0);
        }
        counts
    }

    /// Whether there is anything to learn by. What only holds the policy (the divergence, entropy)
    /// is none: on its own it would undo what was learned.
    pub fn teach(&self) -> bool {
        self.signals > 0
    }

    /// All loss tokens.
    pub fn all(&self) -> usize {
        self.policy + self.supervised + self.apart
    }
}

/// Means over the tokens of each sequence, given to each of its tokens.
pub(crate) fn sequences(
    rows: &[TrainRow],
    current: &Logprobs,
    proximal: &Logprobs,
) -> Vec<Vec<SequenceView>> {
    let of_row = |(row, (current, proximal)): (&TrainRow, (&Vec<f32>, &Vec<f32>))| {
        let mut sums: BTreeMap<u32, (f32, f32, f32)> = BTreeMap::new();
        for (item, loss) in row.loss.iter().enumerate() {
            let sum = sums.entry(loss.sequence).or_default();
            sum.0 += current[item] - proximal[item];
            sum.1 += proximal[item] - loss.behavior_logprob;
            sum.2 += 1.0;
        }
        let view = |loss: &TokenLoss| {
            let (importance, correction, n) = sums[&loss.sequence];
            SequenceView {
                importance: importance / n,
                correction: correction / n,
            }
        };
        row.loss.iter().map(view).collect()
    };
    rows.iter()
        .zip(current.iter().zip(proximal))
        .map(of_row)
        .collect()
}

/// Sums over loss tokens.
#[derive(Debug, Clone, Default)]
pub struct Sums {
    pub tokens: usize,
    /// Those of the policy.
    pub policy: usize,
    pub loss: f64,
    pub kl: f64,
    pub clipped: usize,
    pub importance: f64,
    pub max_correction: f64,
    pub weight: f64,
    pub weight2: f64,
    pub entropy: f64,
}

impl Sums {
    pub fn add(&mut self, more: &Self) {
        self.tokens += more.tokens;
        self.policy += more.policy;
        self.loss += more.loss;
        self.kl += more.kl;
        self.clipped += more.clipped;
        self.importance += more.importance;
        self.max_correction = self.max_correction.max(more.max_correction);
        self.weight += more.weight;
        self.weight2 += more.weight2;
        self.entropy += more.entropy;
    }

    /// Effective share of samples over the policy's tokens.
    pub fn ess(&self) -> f64 {
        if self.policy == 0 {
            return 1.0;
        }
        self.weight * self.weight / (self.weight2 * self.policy as f64)
    }
}

/// Loss tokens of a chunk.
fn chunk(model: &Model) -> usize {
    CHUNK.max(CHUNK_LOGITS / padded(model.config.vocab))
}

impl Buffers {
    /// Forward, loss and backward; returns the layers that were not computed again.
    pub(crate) fn micro(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        loss: &mut LossStep,
        pacer: &mut Pacer,
    ) -> Result<usize, StepError> {
        self.forward(run, micro, pacer)?;
        self.loss(run, micro, loss, pacer)?;
        self.backward(run, micro, &mut *loss.sink, pacer)?;
        Ok(self.saved.count())
    }

    /// Shows the logits of the micro-batch's loss positions, from `self.x`, one after the other.
    pub(crate) fn visit(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        see: &mut dyn FnMut(&LossPosition, &[f32]),
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        for positions in micro.positions.chunks(chunk(run.model)) {
            self.chunk_logits(run, positions);
            for (i, position) in positions.iter().enumerate() {
                see(position, self.logits_row(run, i));
            }
            pacer.tick()?;
        }
        Ok(())
    }

    /// Computes the logits of `positions`; `self.picked` holds their residual rows.
    fn chunk_logits(&mut self, run: &Run, positions: &[LossPosition]) {
        let ld = padded(run.model.config.hidden);
        let picked = self.picked.take(positions.len() * ld);
        for (position, to) in positions.iter().zip(picked.chunks_exact_mut(ld)) {
            to.copy_from_slice(&self.x.as_slice()[position.at * ld..][..ld]);
        }
        head(
            run.model,
            picked,
            positions.len(),
            &mut self.logits,
            run.exec,
        );
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
        micro: &MicroBatch,
        step: &mut LossStep,
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        let ld = padded(run.model.config.hidden);
        self.grads.dx.take(micro.tokens * ld).fill(0.0);
        for positions in micro.positions.chunks(chunk(run.model)) {
            self.chunk_logits(run, positions);
            for (i, position) in positions.iter().enumerate() {
                let vocab = run.model.config.vocab;
                let row = &mut self.logits.as_mut()[i * padded(vocab)..][..vocab];
                step.token(position, row);
            }
            self.head_backward(run, positions, &mut *step.sink);
            pacer.tick()?;
        }
        Ok(())
    }

    /// From `dlogits` (in place of the logits) to the residual stream.
    pub(super) fn head_backward(&mut self, run: &Run, positions: &[LossPosition], sink: &mut Sink) {
        let (cfg, weights) = (&run.model.config, &run.model.weights);
        let (ld, stride) = (padded(cfg.hidden), padded(cfg.vocab));
        let n = positions.len();
        let (dlogits, normed) = self.logits.as_slice().split_at(n * stride);
        let dnormed = self.dpicked.take(n * ld);
        dnormed.fill(0.0);
        let transposed = self
            .grads
            .transposed
            .get_or_insert_with(|| PackedMatrix::zeros(0, 0));
        let w = weights.head();
        let panels = w.out.div_ceil(LANES);
        // Continued sums over slices of the vocabulary: ascending, and no transposed copy of a
        // large head.
        for first in (0..panels).step_by(VOCAB_PANELS) {
            w.transpose(
                first..(first + VOCAB_PANELS).min(panels),
                transposed,
                run.exec,
            );
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
        for (i, position) in positions.iter().enumerate() {
            let x = &self.picked.as_slice()[i * ld..];
            let dy = &dnormed[i * ld..];
            let dx = &mut self.grads.dx.as_mut()[position.at * ld..][..ld];
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
pub struct LossStep<'a> {
    pub inputs: &'a LossInputs<'a>,
    pub sums: &'a mut Sums,
    pub current: &'a mut Logprobs,
    pub sink: &'a mut Sink,
}

impl<'a> LossStep<'a> {
    /// Takes the logits of one loss token and leaves their gradient in `row`.
    fn token(&mut self, position: &LossPosition, row: &mut [f32]) {
        let loss = self.item(position);
        let kept = loss.kept.as_deref();
        let shape = Shape::of(row, loss.temperature, kept);
        let asked = self.asks(position);
        let logits: Vec<f32> = asked.iter().map(|&id| row[id as usize]).collect();
        let pull = self.pull(position, &shape, &logits);
        let grad = RowGrad {
            shape,
            slopes: &pull.slopes,
            entropy: pull.bonus,
        };
        let entropy = grad.run(row, kept);
        self.tell(&pull, entropy);
    }

    pub fn item(&self, position: &LossPosition) -> &'a TokenLoss {
        &self.inputs.rows[position.row].loss[position.item]
    }

    /// The ids whose logits make the loss of a token: it, and those of its teacher.
    pub fn asks(&self, position: &LossPosition) -> Vec<u32> {
        let teacher = self.item(position).teacher.as_ref();
        let of_teacher = teacher.map_or(&[][..], |top| &top.ids);
        let soft = self.item(position).soft.as_ref();
        let soft = soft.map_or(&[][..], |soft| &soft.ids);
        [&[position.token], of_teacher, soft].concat()
    }

    /// The loss of a token but for its entropy, from the `logits` that it asks for.
    pub fn pull(&mut self, position: &LossPosition, shape: &Shape, logits: &[f32]) -> TokenPull {
        let LossInputs { cfg, counts, .. } = self.inputs;
        let loss = self.item(position);
        let current = shape.logprob(logits[0]);
        self.current[position.row][position.item] = current;
        let (term, share) = self.policy(loss, position, current);
        let (mut value, mut slope) = (term.loss * share, term.slope * share);
        let per_token = 1.0 / counts.all() as f32;
        let imitated = loss.kind == LossKind::Supervised;
        if let Some(reference) = self.inputs.reference.filter(|_| !imitated) {
            let reference = reference[position.row][position.item];
            let (kl, kl_slope) = cfg.kl_estimator.term(current, reference);
            self.sums.kl += f64::from(kl);
            value += cfg.kl_coef * kl * per_token;
            slope += cfg.kl_coef * kl_slope * per_token;
        }
        let mut slopes = vec![(position.token, slope)];
        let now: Vec<f32> = logits[1..].iter().map(|&z| shape.logprob(z)).collect();
        let (of_teacher, of_soft) =
            now.split_at(loss.teacher.as_ref().map_or(0, |top| top.ids.len()));
        if let Some(soft) = loss.soft.as_ref().filter(|_| imitated) {
            let share = loss.advantage * cfg.supervised_coef / counts.supervised as f32;
            for ((&id, q), now) in soft.ids.iter().zip(&soft.probs).zip(of_soft) {
                value -= q * now * share;
                slopes.push((id, -q * share));
            }
        }
        if let Some(top) = &loss.teacher {
            let (taught, by_id) = cfg.distill.terms(top, of_teacher);
            let share = cfg.distill.coef / counts.taught as f32;
            value += taught * share;
            slopes.extend(top.ids.iter().zip(by_id).map(|(&id, s)| (id, s * share)));
        }
        TokenPull {
            value,
            slopes,
            bonus: cfg.entropy_coef * per_token,
        }
    }

    /// Counts a token whose gradient is made.
    pub fn tell(&mut self, pull: &TokenPull, entropy: f32) {
        let LossInputs { cfg, counts, .. } = self.inputs;
        let per_token = 1.0 / counts.all() as f32;
        let value = pull.value - cfg.entropy_coef * entropy * per_token;
        let sums = &mut *self.sums;
        sums.tokens += 1;
        // A sum over tokens again, so that parts of a step of different size weigh by their tokens.
        sums.loss += f64::from(value) * counts.all() as f64;
        sums.entropy += f64::from(entropy);
    }

    /// What the token is learned by, and its weight in the sum.
    fn policy(&mut self, loss: &TokenLoss, position: &LossPosition, current: f32) -> (Term, f32) {
        let LossInputs {
            cfg,
            proximal,
            sequences,
            counts,
            ..
        } = self.inputs;
        let at = |of: &Logprobs| of[position.row][position.item];
        let view = TokenView {
            advantage: loss.advantage,
            behavior: loss.behavior_logprob,
            proximal: proximal.map_or(current, at),
            current,
            sequence: sequences
                .as_ref()
                .map_or_else(SequenceView::default, |s| s[position.row][position.item]),
        };
        if loss.kind == LossKind::Taught {
            let nothing = TokenView {
                advantage: 0.0,
                ..view
            };
            return (Objective::CrossEntropy.term(&nothing), 0.0);
        }
        if loss.kind == LossKind::Supervised {
            // Soft targets that have the token say how much of it.
            let said = loss
                .soft
                .as_ref()
                .is_some_and(|soft| soft.ids.contains(&position.token));
            let share = cfg.supervised_coef / counts.supervised as f32;
            return (
                Objective::CrossEntropy.term(&view),
                if said { 0.0 } else { share },
            );
        }
        let term = cfg.objective.term(&view);
        let sums = &mut *self.sums;
        sums.policy += 1;
        sums.clipped += usize::from(term.clipped);
        sums.importance += f64::from(bounded_exp(current - loss.behavior_logprob));
        sums.max_correction = sums.max_correction.max(f64::from(term.correction));
        sums.weight += f64::from(term.weight);
        sums.weight2 += f64::from(term.weight) * f64::from(term.weight);
        (term, 1.0 / counts.policy as f32)
    }
}

/// What the loss does to one token's logits.
pub struct TokenPull {
    /// The loss but for the entropy.
    value: f32,
    /// Derivatives by log-probs, those of the token first.
    pub slopes: Vec<(u32, f32)>,
    /// Weight of the entropy.
    pub bonus: f32,
}

/// Gradient of one row of logits. With scaled logits `s = z / temperature`, `p = softmax(s)`,
/// `H` its entropy:
/// `dz_i = (sum_v slope_v (1[i = v] - p_i) + entropy p_i (ln p_i + H)) / temperature`.
pub struct RowGrad<'a> {
    pub shape: Shape,
    /// Derivatives of the loss by log-probs of these tokens.
    pub slopes: &'a [(u32, f32)],
    /// Weight of the entropy bonus.
    pub entropy: f32,
}

impl RowGrad<'_> {
    /// The slopes by place in the row, or among the kept ids.
    pub fn places(&self, kept: Option<&[u32]>) -> Vec<(u32, f32)> {
        let Some(kept) = kept else {
            return self.slopes.to_vec();
        };
        let place = |(id, slope): &(u32, f32)| {
            let place = kept.iter().position(|kept| kept == id)?;
            Some((place as u32, *slope))
        };
        self.slopes.iter().filter_map(place).collect()
    }

    /// Replaces `row` by its gradient and returns the entropy.
    pub(super) fn run(&self, row: &mut [f32], kept: Option<&[u32]>) -> f32 {
        let Some(kept) = kept else {
            return dispatch(RowGradKernel {
                grad: self,
                row,
                slopes: self.slopes,
            });
        };
        let mut picked: Vec<f32> = kept.iter().map(|&id| row[id as usize]).collect();
        let slopes = self.places(Some(kept));
        let entropy = dispatch(RowGradKernel {
            grad: self,
            row: &mut picked,
            slopes: &slopes,
        });
        row.fill(0.0);
        for (&id, g) in kept.iter().zip(picked) {
            row[id as usize] += g;
        }
        entropy
    }
}

struct RowGradKernel<'a> {
    grad: &'a RowGrad<'a>,
    row: &'a mut [f32],
    /// As in `grad`, by place in `row`.
    slopes: &'a [(u32, f32)],
}

impl RowGradKernel<'_> {
    /// Sixteen probabilities and their logs from index `at`; lanes beyond `width` have `p = 0`.
    #[inline(always)]
    unsafe fn group<V: V16>(&self, at: usize, width: usize) -> (V, V) {
        let shape = &self.grad.shape;
        // SAFETY: `width` values exist from `at` on.
        unsafe {
            let scaled = if width == LANES {
                V::load(self.row.as_ptr().add(at)).mul(V::splat(shape.inverse))
            } else {
                // Finite whatever the temperature: of an infinite one `p ln p` would be NaN.
                let mut lanes = [-f32::MAX / 1e4; LANES];
                for (lane, z) in lanes.iter_mut().zip(&self.row[at..at + width]) {
                    *lane = z * shape.inverse;
                }
                V::load(lanes.as_ptr())
            };
            let centred = scaled.sub(V::splat(shape.most));
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
            entropy: bonus,
            ..
        } = self.grad;
        let slope: f32 = self.slopes.iter().map(|(_, slope)| slope).sum();
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
            for (place, slope) in self.slopes {
                self.row[*place as usize] += slope * shape.inverse;
            }
            entropy
        }
    }
}
