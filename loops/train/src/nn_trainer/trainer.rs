//! The trainer, as it is made from the configuration.

use std::sync::{Mutex, PoisonError};

use hone_checkpoint::{AdapterConfig, AdapterDtype, DenseConfig, LoraConfig, Target};
use hone_nn::Model;

use super::learners::{Fresh, Learners};
use super::memo::Memo;
use super::parts::NnParts;
use crate::config::{AdapterForm, AdapterPrecision, Config, GateConfig, LearnerConfig};

/// Trains adapters on [`NnParts::model`].
pub struct NnTrainer {
    pub(super) parts: NnParts,
    pub(super) learner: LearnerConfig,
    /// What scopes that have learned nothing yet begin with.
    pub(super) adapter: AdapterConfig,
    pub(super) gate: GateConfig,
    pub(super) row_tokens_max: usize,
    pub(super) fingerprint: String,
    /// Learners by the adapter they stand at. A learner is taken out while it steps, so that one
    /// that was stopped, failed or panicked is simply gone and read back from its checkpoint.
    pub(super) learners: Mutex<Learners>,
    /// The newest candidate, until it is evaluated.
    pub(super) fresh: Mutex<Option<Fresh>>,
    /// What was computed already.
    pub(super) memo: Memo,
    /// Share of the last job that each phase took.
    pub(super) usual: Mutex<Option<[f64; 4]>>,
}

impl NnTrainer {
    /// A trainer by the keys in `config`.
    ///
    /// # Errors
    /// The key that is out of range.
    pub fn new(parts: NnParts, config: &Config) -> Result<Self, String> {
        config.validate()?;
        let learner = config.learner.clone();
        let adapter = adapter_config(&parts.model, &learner)?;
        if let Some(device) = &parts.device {
            if device.trains() {
                tracing::info!(device = device.name(), "training computes on the device");
            } else {
                tracing::info!(
                    device = device.name(),
                    "the gate and log-probs compute on the device; the processor computes updates, because the model has experts"
                );
            }
        }
        Ok(Self {
            fingerprint: hone_nn::fingerprint(&parts.model),
            learners: Mutex::new(Learners::new(learner.learners_cached_max)),
            fresh: Mutex::default(),
            memo: Memo::default(),
            usual: Mutex::default(),
            gate: config.gate.clone(),
            row_tokens_max: config.row_tokens_max,
            parts,
            learner,
            adapter,
        })
    }

    /// Bytes of a learner's checkpoint, and of a learner in memory; both rise, for a moment, to
    /// twice as much while a version is saved.
    pub fn learner_bytes(&self) -> (u64, u64) {
        let weights = self.adapter.weights(&self.parts.model.config) as u64;
        // Masters and two moments; gradients and what is served besides.
        (12 * weights, 20 * weights)
    }

    pub(super) fn learner_config(&self, lr_scale: f32) -> hone_nn::LearnerConfig {
        let l = &self.learner;
        hone_nn::LearnerConfig {
            trainable: self.adapter.clone().into(),
            objective: l.objective(),
            lr: l.lr * lr_scale,
            beta1: l.beta1,
            beta2: l.beta2,
            eps: l.eps,
            weight_decay: l.weight_decay,
            clip_norm: l.clip_norm,
            kl_coef: l.kl_coef,
            kl_estimator: l.kl_estimator(),
            supervised_coef: l.correction_coef,
            distill: l.distill(),
            ess_base: l.ess_base,
            entropy_coef: l.entropy_coef,
            warmup_steps: u64::from(l.warmup_steps),
            minibatch_tokens: l.minibatch_tokens,
            activation_bytes_max: l.activation_bytes_max,
            updates_per_step: l.updates_per_step,
            seed: l.seed,
        }
    }

    pub(super) fn usual(&self) -> std::sync::MutexGuard<'_, Option<[f64; 4]>> {
        self.usual.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fresh(&self) -> std::sync::MutexGuard<'_, Option<Fresh>> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn learners(&self) -> std::sync::MutexGuard<'_, Learners> {
        // A cache is a cache whatever panicked while it was held.
        self.learners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is trained, by the keys.
pub(super) fn adapter_config(
    model: &Model,
    learner: &LearnerConfig,
) -> Result<AdapterConfig, String> {
    let targets = targets_of(model, learner)?;
    let dtype = match learner.adapter_dtype {
        AdapterPrecision::F32 => AdapterDtype::F32,
        AdapterPrecision::Bf16 => AdapterDtype::Bf16,
    };
    Ok(match learner.form {
        AdapterForm::Lora => AdapterConfig::Lora(LoraConfig {
            rank: learner.lora_rank,
            alpha: learner.lora_alpha,
            targets,
            rslora: learner.rslora,
            dtype,
        }),
        AdapterForm::Full => AdapterConfig::Dense(DenseConfig { targets, dtype }),
    })
}

/// The projections that adapters of this model act on.
fn targets_of(model: &Model, learner: &LearnerConfig) -> Result<Vec<Target>, String> {
    let mut targets = learner.targets()?;
    if model.config.experts.is_some() {
        targets.retain(|target| Target::ATTENTION.contains(target));
    }
    if targets.is_empty() {
        let why = "names no projection of the attention, and of a model with experts nothing else \
                   is trained";
        return Err(format!("train.learner.lora_targets {why}"));
    }
    Ok(targets)
}
