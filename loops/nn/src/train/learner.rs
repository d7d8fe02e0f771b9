//! The learner: rows in, a better model out.

use std::sync::Arc;

use super::adam::{AdamW, Moments, norm};
use super::batch::{Buffers, LossPosition, MicroBatch, Pacer, Run, Sink};
use super::check::{check, check_model, check_rows};
use super::loss::{Counts, Logprobs, LossInputs, LossStep, PerToken, Sums, per_token, sequences};
use super::params::{Mark, Params};
use super::state::{StateError, load, save};
use super::totals::Totals;
use super::{
    Control, LearnerConfig, LearnerError, LossKind, StepError, StepReport, TrainRow, Trainable,
    Under, ess_scale,
};
use crate::adapter::Adapter;
use crate::backend::{Asking, DeviceModel, TrainBackend};
use crate::device_error::DeviceError;
use crate::weights::Model;
use hone_checkpoint::config::StoredDtype;
use hone_kernels::ops::log_softmax::Shape;
use hone_kernels::thread_pool::Executor;

/// Trains an adapter or all weights of a model. Deterministic: the same rows in the same order
/// give the same bits, whatever the number of threads, and across save and resume.
pub struct Learner {
    params: Params,
    pub(super) cfg: LearnerConfig,
    moments: Moments,
    pub(super) sink: Sink,
    pub(super) buffers: Buffers,
    /// Computes the passes instead, where there is one.
    device: Option<Box<dyn TrainBackend>>,
    /// The processor had to take over.
    fell_back: bool,
    exec: Arc<Executor>,
}

impl Learner {
    /// A learner that starts from the model's weights, or from a fresh adapter (which changes
    /// nothing yet). Runs on the calling thread unless given an executor by [`Self::on`].
    pub fn new(model: Arc<Model>, cfg: LearnerConfig) -> Result<Self, LearnerError> {
        check(&cfg)?;
        check_model(&cfg, &model.config)?;
        let params = match cfg.trainable.adapter() {
            None => {
                let mut own = Model {
                    config: model.config.clone(),
                    weights: model.weights.widened(),
                    digest: model.digest,
                    kv: model.kv,
                };
                own.config.dtype = StoredDtype::F32;
                Params::Full(Box::new(own))
            }
            Some(config) => {
                let masters = Adapter::fresh(&model.config, config, cfg.seed);
                let served = masters.served();
                Params::Adapter {
                    base: model,
                    masters,
                    served,
                }
            }
        };
        Ok(Self::with(params, cfg))
    }

    /// A learner that goes on from `adapter` with fresh moments; its configuration replaces that
    /// of `cfg.trainable`.
    pub fn from_adapter(
        model: Arc<Model>,
        mut cfg: LearnerConfig,
        adapter: &Adapter,
    ) -> Result<Self, LearnerError> {
        check(&cfg)?;
        if cfg.trainable == Trainable::Full {
            return Err(LearnerError::NotAnAdapter);
        }
        let (found, wanted) = (adapter.layer_count(), model.config.layers);
        if found != wanted {
            return Err(LearnerError::OtherModel { found, wanted });
        }
        cfg.trainable = adapter.config.clone().into();
        let masters = adapter.widened();
        let served = masters.served();
        Ok(Self::with(
            Params::Adapter {
                base: model,
                masters,
                served,
            },
            cfg,
        ))
    }

    /// A learner exactly as it was when [`Self::state`] was taken: it goes on with the same bits.
    pub fn resume(model: Arc<Model>, cfg: LearnerConfig, state: &[u8]) -> Result<Self, StateError> {
        let mut learner = Self::new(model, cfg)?;
        let arrays = learner.params.arrays_mut();
        let lengths: Vec<usize> = arrays.iter().map(|(a, _)| a.len()).collect();
        let saved = load(state, &learner.params.identity(), &lengths)?;
        learner.params.restore(&saved.masters);
        learner.moments = saved.moments;
        Ok(learner)
    }

    fn with(mut params: Params, cfg: LearnerConfig) -> Self {
        let mut sink = match &params {
            Params::Full(model) => Sink::Full(Box::new(model.weights.clone())),
            Params::Adapter { masters, .. } => Sink::Adapter(masters.clone()),
        };
        clear(&mut sink);
        let lengths: Vec<usize> = params.arrays_mut().iter().map(|(a, _)| a.len()).collect();
        Self {
            params,
            cfg,
            moments: Moments::zeros(&lengths),
            sink,
            buffers: Buffers::default(),
            device: None,
            fell_back: false,
            exec: Arc::new(Executor::new(1)),
        }
    }

    /// Uses this executor from now on.
    #[must_use]
    pub fn on(mut self, exec: Arc<Executor>) -> Self {
        self.exec = exec;
        self
    }

    /// Computes its passes on the device that serves its model from now on, which changes no bit of
    /// a result. Where the device has no room for them, the processor computes, and so it does with
    /// updates of a model with experts.
    ///
    /// # Errors
    /// The device holds another model, every weight is trained, or the device failed.
    pub fn use_device(&mut self, device: &Arc<dyn DeviceModel>) -> Result<(), DeviceError> {
        let Params::Adapter { base, .. } = &self.params else {
            let why = "every weight of a model is trained by the processor only";
            return Err(DeviceError::Unsupported(why.to_owned()));
        };
        if !Arc::ptr_eq(base, device.model()) {
            let why = "the device holds another model than the one that is trained";
            return Err(DeviceError::Unsupported(why.to_owned()));
        }
        self.device = Some(Arc::clone(device).passes()?);
        Ok(())
    }

    /// Whether the processor had to take over from a device.
    pub fn fell_back(&self) -> bool {
        self.fell_back
    }

    /// Sets the learning rate of the coming updates (schedules belong to the caller).
    pub fn set_lr(&mut self, lr: f32) {
        self.cfg.lr = lr;
    }

    /// Updates applied so far, over all resumes.
    pub fn updates(&self) -> u64 {
        self.moments.updates
    }

    /// Gives back the memory of its passes; the next one takes it anew.
    pub fn rest(&mut self) {
        self.buffers = Buffers::default();
        if let Some(device) = &mut self.device {
            device.rest();
            if let Params::Adapter { served, .. } = &mut self.params {
                served.copies.clear();
            }
        }
    }

    /// Says once that the processor computes instead.
    fn fall_back(&mut self, error: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.fell_back, true) {
            tracing::warn!(%error, "training falls back to the processor");
        }
    }

    /// Makes a call where the passes are computed: on the processor where the device does not take
    /// the rows or has no room for them.
    fn somewhere<T>(
        &mut self,
        rows: &[TrainRow],
        call: &mut dyn FnMut(&mut Self) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        let limit = self.cfg.minibatch_tokens;
        let Some(mut device) = self.device.take() else {
            return call(self);
        };
        if device.takes(rows, limit) {
            self.device = Some(device);
            match call(self) {
                Err(StepError::Device(error @ DeviceError::Memory { .. })) => {
                    let Some(full) = self.device.take() else {
                        return Err(error.into());
                    };
                    device = full;
                    device.rest();
                    self.fall_back(&error);
                }
                result => return result,
            }
        } else {
            self.fall_back(&"a text is longer than the device takes at once");
        }
        let result = call(self);
        self.device = Some(device);
        result
    }

    /// The current weights, to go back to by [`Self::half_way`]. The moments go on from where they are.
    pub fn mark(&mut self) -> Mark {
        Mark(self.params.copy())
    }

    /// Goes to half the way from `from` to `to`.
    pub fn half_way(&mut self, from: &Mark, to: &Mark) {
        let arrays = from.0.iter().zip(&to.0);
        let half = |(a, b): (&Vec<f32>, &Vec<f32>)| -> Vec<f32> {
            a.iter().zip(b).map(|(a, b)| a + (b - a) / 2.0).collect()
        };
        let masters: Vec<Vec<f32>> = arrays.map(half).collect();
        self.params.restore(&masters);
    }

    /// The adapter as it would be served now; `None` when all weights are trained.
    pub fn adapter(&self) -> Option<Adapter> {
        self.params.adapter().cloned()
    }

    /// The model as trained so far (a copy, in f32); for an adapter, the frozen base.
    pub fn model(&self) -> Model {
        let model = self.params.model();
        Model::new(model.config.clone(), model.weights.clone()).with_kv(model.kv)
    }

    /// The current weights without a copy, e.g. to generate or score with. For full training the
    /// digest is that of the starting point.
    pub fn current(&self) -> &Model {
        self.params.model()
    }

    /// Everything needed to go on with the same bits, as safetensors bytes.
    pub fn state(&mut self) -> Vec<u8> {
        let identity = self.params.identity();
        let arrays = self.params.arrays_mut();
        let masters: Vec<&[f32]> = arrays.iter().map(|(a, _)| &**a).collect();
        save(&identity, &masters, &self.moments)
    }

    /// Log-probs of every loss token under the current weights, without training.
    pub fn logprobs(
        &mut self,
        rows: &[TrainRow],
        pause: &mut dyn FnMut() -> Control,
    ) -> Result<Vec<Vec<f32>>, StepError> {
        check_rows(rows, &self.params.model().config)?;
        self.somewhere(rows, &mut |learner| {
            learner.forward_logprobs(rows, true, &mut Pacer::new(pause))
        })
    }

    /// The `k` most likely ids at every loss token with their log-probs, the likeliest first
    /// (lower ids first among equals), by each token's own temperature and kept ids;
    /// `[row][loss token][k]`, fewer where fewer were kept.
    pub fn top_logprobs(
        &mut self,
        rows: &[TrainRow],
        under: Under,
        k: usize,
        pause: &mut dyn FnMut() -> Control,
    ) -> Result<PerToken<Vec<(u32, f32)>>, StepError> {
        check_rows(rows, &self.params.model().config)?;
        let top = |position: &LossPosition, logits: &[f32]| {
            let loss = &rows[position.row].loss[position.item];
            let kept = loss.kept.as_deref();
            let shape = Shape::of(logits, loss.temperature, kept);
            let all = 0..logits.len() as u32;
            let mut ids: Vec<u32> = kept.map_or_else(|| all.collect(), <[u32]>::to_vec);
            let logit = |id: &u32| logits[*id as usize];
            let order = |a: &u32, b: &u32| logit(b).total_cmp(&logit(a)).then(a.cmp(b));
            if k < ids.len() {
                ids.select_nth_unstable_by(k, order);
                ids.truncate(k);
            }
            ids.sort_unstable_by(order);
            let with_logprob = |id: u32| (id, shape.logprob(logits[id as usize]));
            ids.into_iter().map(with_logprob).collect()
        };
        self.somewhere(rows, &mut |learner| {
            let mut to = per_token(rows, Vec::new());
            let see = &mut |position: &LossPosition, logits: &[f32]| {
                to[position.row][position.item] = top(position, logits);
            };
            let current = under == Under::Current;
            learner.see_logits(rows, current, &mut Pacer::new(pause), see)?;
            Ok(to)
        })
    }

    /// Log-probs of `ids[row][loss token]`, in the order given.
    pub fn logprobs_of(
        &mut self,
        rows: &[TrainRow],
        under: Under,
        ids: &[Vec<Vec<u32>>],
        pause: &mut dyn FnMut() -> Control,
    ) -> Result<PerToken<Vec<f32>>, StepError> {
        check_rows(rows, &self.params.model().config)?;
        let asked = |position: &LossPosition| -> Vec<u32> {
            let ids = ids.get(position.row).and_then(|row| row.get(position.item));
            ids.cloned().unwrap_or_default()
        };
        self.somewhere(rows, &mut |learner| {
            let mut to = per_token(rows, Vec::new());
            let see = &mut |position: &LossPosition, shape: &Shape, logits: &[f32]| {
                let logprobs = logits.iter().map(|&z| shape.logprob(z));
                to[position.row][position.item] = logprobs.collect();
            };
            let with_adapter = under == Under::Current;
            learner.see_asked(rows, with_adapter, &asked, see, &mut Pacer::new(pause))?;
            Ok(to)
        })
    }

    /// One step: `updates_per_step` optimizer updates on `rows`.
    ///
    /// `pause` is asked between slices (one layer forward or backward of one micro-batch, or one
    /// chunk of the head). On [`Control::Stop`], and on any error, the learner is as before.
    pub fn step(
        &mut self,
        rows: &[TrainRow],
        pause: &mut dyn FnMut() -> Control,
    ) -> Result<StepReport, StepError> {
        check_rows(rows, &self.params.model().config)?;
        self.somewhere(rows, &mut |learner| {
            learner.step_here(rows, &mut Pacer::new(pause))
        })
    }

    fn step_here(&mut self, rows: &[TrainRow], pacer: &mut Pacer) -> Result<StepReport, StepError> {
        let parts = self.cfg.updates_per_step.min(rows.len()).max(1);
        // One update changes nothing before its last slice is over.
        let before = (parts > 1).then(|| (self.params.copy(), self.moments.clone()));
        let result = self.updates_of(rows, parts, pacer);
        if let (Err(_), Some((masters, moments))) = (&result, before) {
            self.params.restore(&masters);
            self.moments = moments;
        }
        let (slices, longest_slice_us) = (pacer.slices, pacer.longest_us);
        result.map(|report| StepReport {
            slices,
            longest_slice_us,
            ..report
        })
    }

    fn updates_of(
        &mut self,
        rows: &[TrainRow],
        parts: usize,
        pacer: &mut Pacer,
    ) -> Result<StepReport, StepError> {
        let objective = self.cfg.objective;
        // In the first (often only) update the proximal log-probs are the current ones. They are
        // told of every objective, whether it reads them or not.
        let ahead = parts > 1 || objective.is_sequential();
        let proximal = if ahead {
            Some(self.forward_logprobs(rows, true, pacer)?)
        } else {
            None
        };
        // Only what is not imitated is held to the reference; imitated rows usually stand last.
        let is_held = |row: &TrainRow| row.loss.iter().any(|l| l.kind != LossKind::Supervised);
        let reference = if self.cfg.kl_coef > 0.0 {
            let held = rows.iter().rposition(is_held).map_or(0, |last| last + 1);
            Some(self.forward_logprobs(&rows[..held], false, pacer)?)
        } else {
            None
        };
        let mut totals = Totals::new(rows);
        for part in 0..parts {
            let range = rows.len() * part / parts..rows.len() * (part + 1) / parts;
            let counts = Counts::of(&rows[range.clone()]);
            if counts.all() == 0 {
                continue;
            }
            let sequences = match &proximal {
                Some(proximal) if objective.is_sequential() => {
                    let current = self.forward_logprobs(rows, true, pacer)?;
                    Some(sequences(rows, &current, proximal))
                }
                _ => None,
            };
            let micros = MicroBatch::pack(rows, range, self.cfg.minibatch_tokens);
            let cfg = self.cfg.clone();
            let inputs = LossInputs {
                rows,
                cfg: &cfg,
                proximal: proximal.as_ref(),
                reference: reference.as_ref(),
                sequences,
                counts,
            };
            self.update(&micros, &inputs, &mut totals, pacer)?;
        }
        let proximal = proximal.unwrap_or_else(|| std::mem::take(&mut totals.current));
        Ok(totals.report(proximal, reference.is_some()))
    }

    /// One optimizer update. Parameters change at its end only.
    fn update(
        &mut self,
        micros: &[MicroBatch],
        inputs: &LossInputs,
        totals: &mut Totals,
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        clear(&mut self.sink);
        let run = Run {
            model: self.params.model(),
            adapter: self.params.adapter(),
            exec: &self.exec,
            backward: Some(self.cfg.activation_bytes_max),
        };
        let mut sums = Sums::default();
        let mut device = self.device.as_mut().filter(|device| device.trains());
        if let Some(device) = &mut device {
            device.begin(run.adapter)?;
        }
        for micro in micros {
            totals.tokens += micro.tokens;
            let mut loss = LossStep {
                inputs,
                sums: &mut sums,
                current: &mut totals.current,
                sink: &mut self.sink,
            };
            let kept = match &mut device {
                Some(device) => device.micro(&run, micro, &mut loss, pacer)?,
                None => self.buffers.micro(&run, micro, &mut loss, pacer)?,
            };
            totals.layers_kept = totals.layers_kept.min(kept);
        }
        if let Some(device) = device {
            device.gradients(&mut self.sink)?;
        }
        let grads = self.sink.arrays_mut();
        let grad_norm = norm(&grads);
        let finite = grad_norm.is_finite() && sums.loss.is_finite();
        totals.sums.add(&sums);
        if !finite {
            totals.skipped = true;
            return Ok(());
        }
        totals.grad_norm = totals.grad_norm.max(grad_norm);
        if !inputs.counts.teach() {
            // Momentum of earlier updates would move the weights for nothing.
            return Ok(());
        }
        totals.updates += 1;
        let warm = (self.moments.updates + 1) as f32 / self.cfg.warmup_steps.max(1) as f32;
        let clip = f64::from(self.cfg.clip_norm) / (grad_norm + 1e-6);
        let trust = ess_scale(sums.ess() as f32, self.cfg.ess_base);
        let adam = AdamW {
            lr: self.cfg.lr * warm.min(1.0) * trust,
            beta1: self.cfg.beta1,
            beta2: self.cfg.beta2,
            eps: self.cfg.eps,
            weight_decay: self.cfg.weight_decay,
            grad_scale: clip.min(1.0) as f32,
        };
        self.moments.update(self.params.arrays_mut(), grads, adam);
        self.params.publish();
        Ok(())
    }

    /// Log-probs of all loss tokens, with or without the adapter.
    fn forward_logprobs(
        &mut self,
        rows: &[TrainRow],
        with_adapter: bool,
        pacer: &mut Pacer,
    ) -> Result<Logprobs, StepError> {
        let mut to = per_token(rows, 0.0);
        let token = |position: &LossPosition| vec![position.token];
        let see = &mut |position: &LossPosition, shape: &Shape, logits: &[f32]| {
            to[position.row][position.item] = shape.logprob(logits[0]);
        };
        self.see_asked(rows, with_adapter, &token, see, pacer)?;
        Ok(to)
    }

    /// Shows, for every loss token, what turns its logits into probabilities and its logits of `ids`.
    fn see_asked(
        &mut self,
        rows: &[TrainRow],
        with_adapter: bool,
        ids: &dyn Fn(&LossPosition) -> Vec<u32>,
        see: &mut dyn FnMut(&LossPosition, &Shape, &[f32]),
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        let Some(device) = &mut self.device else {
            return self.see_logits(rows, with_adapter, pacer, &mut |position, logits| {
                let loss = &rows[position.row].loss[position.item];
                let shape = Shape::of(logits, loss.temperature, loss.kept.as_deref());
                let asked: Vec<f32> = ids(position)
                    .iter()
                    .map(|&id| logits[id as usize])
                    .collect();
                see(position, &shape, &asked);
            });
        };
        let run = Run {
            model: self.params.model(),
            adapter: self.params.adapter().filter(|_| with_adapter),
            exec: &self.exec,
            backward: None,
        };
        let mut asking = Asking { rows, ids, see };
        for micro in &MicroBatch::pack(rows, 0..rows.len(), self.cfg.minibatch_tokens) {
            device.ask(&run, micro, &mut asking, pacer)?;
        }
        Ok(())
    }

    /// Shows the logits that predict every loss token.
    fn see_logits(
        &mut self,
        rows: &[TrainRow],
        with_adapter: bool,
        pacer: &mut Pacer,
        see: &mut dyn FnMut(&LossPosition, &[f32]),
    ) -> Result<(), StepError> {
        let run = Run {
            model: self.params.model(),
            adapter: self.params.adapter().filter(|_| with_adapter),
            exec: &self.exec,
            backward: None,
        };
        for micro in &MicroBatch::pack(rows, 0..rows.len(), self.cfg.minibatch_tokens) {
            if let Some(device) = &mut self.device {
                device.visit(&run, micro, see, pacer)?;
                continue;
            }
            self.buffers.forward(&run, micro, pacer)?;
            self.buffers.visit(&run, micro, see, pacer)?;
        }
        Ok(())
    }
}

fn clear(sink: &mut Sink) {
    sink.arrays_mut().into_iter().for_each(|(a, _)| a.fill(0.0));
}
