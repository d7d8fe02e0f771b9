//! The real trainer: LoRA on the model that is served, by nn's learner.

mod answers;
mod learners;
mod measure;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use hone_domain::{Blobs, Digest, SamplePart, Token};
use hone_nn::{
    AdapterDtype, Control, Executor, Learner, LoraConfig, Model, Objective, StepError, StepReport,
    TokenLoss, TrainRow, Trainable, peft,
};
use serde_json::json;

use crate::config::{AdapterPrecision, Config, GateConfig, LearnerConfig};
use crate::nn_trainer::learners::Learners;
use crate::pack::PackedRow;
use crate::save::scope_hash;
use crate::trainer::{Candidate, Parity, TrainError, TrainJob, Trainer};

/// What the trainer shares with the rest of the process.
#[derive(Clone)]
pub struct NnParts {
    /// The model that is served; the one copy of its weights.
    pub model: Arc<Model>,
    /// Threads to compute on.
    pub exec: Arc<Executor>,
    /// Where adapters and checkpoints are read from.
    pub blobs: Arc<dyn Blobs>,
    /// What PEFT shows as an adapter's base model.
    pub base_name: String,
    /// Tokens that end a completion.
    pub end_tokens: Vec<Token>,
}

/// Trains adapters on [`NnParts::model`].
pub struct NnTrainer {
    parts: NnParts,
    learner: LearnerConfig,
    lora: LoraConfig,
    gate: GateConfig,
    fingerprint: String,
    /// Learners by the adapter they stand at. A learner is taken out while it steps, so that one
    /// that was stopped, failed or panicked is simply gone and read back from its checkpoint.
    learners: Mutex<Learners>,
}

impl NnTrainer {
    /// A trainer by the keys in `config`.
    ///
    /// # Errors
    /// The key that is out of range.
    pub fn new(parts: NnParts, config: &Config) -> Result<Self, String> {
        config.validate()?;
        let learner = config.learner.clone();
        let lora = LoraConfig {
            rank: learner.lora_rank,
            alpha: learner.lora_alpha,
            targets: learner.targets()?,
            rslora: learner.rslora,
            dtype: match learner.adapter_dtype {
                AdapterPrecision::F32 => AdapterDtype::F32,
                AdapterPrecision::Bf16 => AdapterDtype::Bf16,
            },
        };
        Ok(Self {
            fingerprint: hone_nn::fingerprint(&parts.model),
            learners: Mutex::new(Learners::new(learner.learners_cached_max)),
            gate: config.gate.clone(),
            parts,
            learner,
            lora,
        })
    }

    fn learner_config(&self, lr_scale: f32) -> hone_nn::LearnerConfig {
        let l = &self.learner;
        hone_nn::LearnerConfig {
            trainable: Trainable::Lora(self.lora.clone()),
            objective: Objective::DecoupledPpo {
                clip_low: l.clip_low,
                clip_high: l.clip_high,
                correction_cap: l.correction_cap,
            },
            lr: l.lr * lr_scale,
            beta1: l.beta1,
            beta2: l.beta2,
            eps: l.eps,
            weight_decay: l.weight_decay,
            clip_norm: l.clip_norm,
            kl_coef: l.kl_coef,
            entropy_coef: l.entropy_coef,
            warmup_steps: u64::from(l.warmup_steps),
            minibatch_tokens: l.minibatch_tokens,
            updates_per_step: 1,
            seed: l.seed,
        }
    }

    fn learners(&self) -> std::sync::MutexGuard<'_, Learners> {
        // A cache is a cache whatever panicked while it was held.
        self.learners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn steps(
        &self,
        learner: &mut Learner,
        rows: &[PackedRow],
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<StepReport>, TrainError> {
        let rows: Vec<TrainRow> = rows.iter().map(train_row).collect();
        let mut control = || match pause() {
            true => Control::Stop,
            false => Control::Continue,
        };
        let mut reports = Vec::new();
        for _ in 0..self.learner.steps_per_batch {
            let report = learner
                .step(&rows, &mut control)
                .map_err(|error| match error {
                    StepError::Stopped => TrainError::Stopped,
                    error => TrainError::Failed(error.to_string()),
                })?;
            if report.skipped_nonfinite || !report.loss.is_finite() || !report.grad_norm.is_finite()
            {
                return Err(TrainError::NotFinite(format!(
                    "loss {}, gradient norm {}",
                    report.loss, report.grad_norm
                )));
            }
            reports.push(report);
        }
        Ok(reports)
    }

    fn files(&self, job: &TrainJob, adapter: &hone_nn::Adapter) -> Vec<(String, Vec<u8>)> {
        let manifest = json!({
            "scope": scope_hash(&job.scope),
            "digest": adapter_digest(adapter),
            "base": self.base(),
            "fingerprint": self.fingerprint,
            "parent": job.parent_digest(),
            "transitions": job.transitions(),
        });
        peft::to_files(adapter, &self.parts.base_name, &manifest)
    }
}

impl Trainer for NnTrainer {
    fn train(
        &self,
        job: &TrainJob,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Candidate, TrainError> {
        let config = self.learner_config(job.lr_scale);
        let lr = config.lr;
        let cached = self.learners().take(&job.scope, job.parent_digest());
        let mut learner = match cached {
            Some(learner) => learner,
            None => learners::load(&self.parts, config, (&job.scope, job.parent.as_ref()))
                .map_err(TrainError::Failed)?,
        };
        learner.set_lr(lr);
        let parent = learners::adapter_of(&learner);
        let reports = self.steps(&mut learner, &job.rows, pause)?;
        let adapter = learners::adapter_of(&learner);
        if adapter
            .to_tensors()
            .iter()
            .any(|t| t.data.iter().any(|v| !v.is_finite()))
        {
            return Err(TrainError::NotFinite("a trained weight".to_owned()));
        }
        let parity = Parity::compare(
            &job.rows,
            &reports[0].proximal_logprobs,
            job.parent_digest(),
        )
        .map_err(TrainError::Failed)?;
        let policies = measure::Compared {
            candidate: &adapter,
            parent: job.parent.is_some().then_some(&parent),
        };
        let mut measured = measure::measure((&self.parts, &self.gate), job, policies, pause)?;
        let digest = adapter_digest(&adapter);
        measured.changed = digest != adapter_digest(&parent);
        let candidate = Candidate {
            digest,
            files: self.files(job, &adapter),
            checkpoint: learner.state(),
            measured,
            numbers: numbers(&reports, f64::from(lr)),
            parity,
        };
        self.learners()
            .put(job.scope.clone(), Some(digest), learner);
        Ok(candidate)
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn base(&self) -> Digest {
        Digest(self.parts.model.digest)
    }
}

fn adapter_digest(adapter: &hone_nn::Adapter) -> Digest {
    Digest(adapter.digest())
}

/// A packed row as nn's learner reads it.
fn train_row(row: &PackedRow) -> TrainRow {
    TrainRow {
        tokens: row.sample.tokens().to_vec(),
        loss: row.sample.parts().iter().flat_map(token_losses).collect(),
    }
}

fn token_losses(part: &SamplePart) -> impl Iterator<Item = TokenLoss> + '_ {
    part.advantages
        .iter()
        .enumerate()
        .map(|(i, advantage)| TokenLoss {
            position: part.start + i,
            advantage: *advantage,
            behavior_logprob: part.behavior_logprobs[i],
            temperature: part.temperature,
            kept: part.kept[i].clone(),
        })
}

/// What is reported of the steps on one batch: readings of the first, where the proximal policy is
/// the served one, and the largest gradient norm.
fn numbers(reports: &[StepReport], lr: f64) -> BTreeMap<&'static str, f64> {
    let first = &reports[0];
    let norm = reports.iter().map(|r| r.grad_norm).fold(0.0, f64::max);
    let slice_us = reports
        .iter()
        .map(|r| r.longest_slice_us)
        .max()
        .unwrap_or_default();
    BTreeMap::from([
        ("loss", first.loss),
        ("loss_last", reports[reports.len() - 1].loss),
        ("kl_at_start", first.kl_to_reference.unwrap_or_default()),
        ("clip_share", first.clip_share),
        ("mean_importance_ratio", first.mean_importance_ratio),
        ("max_correction", first.max_correction),
        ("ess", first.ess),
        ("entropy", first.entropy),
        ("grad_norm_max", norm),
        ("steps", reports.len() as f64),
        (
            "updates",
            reports.iter().map(|r| r.updates).sum::<usize>() as f64,
        ),
        ("tokens", first.tokens as f64),
        ("loss_tokens", first.loss_tokens as f64),
        (
            "slices",
            reports.iter().map(|r| r.slices).sum::<usize>() as f64,
        ),
        ("slice_ms_max", slice_us as f64 / 1e3),
        ("lr", lr),
    ])
}
