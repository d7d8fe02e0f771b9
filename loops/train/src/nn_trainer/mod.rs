//! The real trainer: an adapter on the model that is served, by nn's learner.

mod answers;
mod base_answers;
mod choose;
mod context;
mod guided;
mod learners;
mod lessons;
mod measure;
mod memo;
mod meter;
mod reference;
mod rehearsal;
mod steps;
mod telling;
mod wishes;

#[cfg(test)]
mod device_tests;
#[cfg(test)]
mod form_tests;
#[cfg(test)]
mod lesson_tests;
#[cfg(test)]
mod rehearsal_tests;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use hone_checkpoint::{AdapterConfig, AdapterDtype, DenseConfig, LoraConfig, Target};
use hone_domain::{Blobs, Digest, SamplePart, Scope, Token};
use hone_kernels::Executor;
use hone_nn::{DeviceError, DeviceModel};
use hone_nn::{Learner, LossKind, Model, Runner, StepError, TokenLoss, TrainRow, peft};
use serde_json::json;

use crate::config::{AdapterForm, AdapterPrecision, Config, GateConfig, LearnerConfig};
use crate::gate::Measured;
use crate::nn_trainer::learners::Learners;
use crate::objective::DistillForm;
use crate::pack::PackedRow;
use crate::progress::Phase;
use crate::trainer::{Candidate, Parity, TrainError, TrainJob, Trainer, Wording};
use hone_domain::scope_hash;

pub use lessons::{hint_words, hinted_prompt};
pub use reference::{Fact, Reference, generic_prompts};

/// What the trainer shares with the rest of the process.
#[derive(Clone)]
pub struct NnParts {
    /// The model that is served; the one copy of its weights.
    pub model: Arc<Model>,
    /// Threads to compute on.
    pub exec: Arc<Executor>,
    /// The device that serves the model, which computes the learner's passes too.
    pub device: Option<Arc<dyn DeviceModel>>,
    /// Where adapters and checkpoints are read from.
    pub blobs: Arc<dyn Blobs>,
    /// What PEFT shows as an adapter's base model.
    pub base_name: String,
    /// Tokens that end a completion.
    pub end_tokens: Vec<Token>,
    /// Makes tokens of hints and corrections.
    pub wording: Arc<dyn Wording>,
    /// What anybody could ask: hints are rehearsed on it beside the scope's own openings.
    pub everyday: Arc<Vec<String>>,
    /// Facts that no version may lose, and how a complaint becomes an instruction.
    pub reference: Arc<Reference>,
}

impl NnParts {
    /// Computes forwards where training computes, with this many blocks of keys and values and at most so
    /// many rows at a time, of which so many are picked: after serving, and on the processor where the
    /// device has no room for them.
    fn runner(&self, blocks: usize, (rows, picked): (usize, usize)) -> Result<Runner, TrainError> {
        let Some(device) = &self.device else {
            return Ok(self.runner_here(blocks));
        };
        let runner = Runner::second_on_device(device, blocks);
        let runner = runner.and_then(|runner| runner.reserved(rows, picked));
        runner.or_else(|error| self.instead(&error, blocks))
    }

    fn runner_here(&self, blocks: usize) -> Runner {
        Runner::on_processor(self.model.clone(), self.exec.clone(), blocks)
    }

    /// The processor, where a device lacks memory; it has no keys and values yet.
    fn instead(&self, error: &DeviceError, blocks: usize) -> Result<Runner, TrainError> {
        if !matches!(error, DeviceError::Memory { .. }) {
            return Err(failed(error));
        }
        tracing::warn!(%error, "the gate computes on the processor");
        Ok(self.runner_here(blocks))
    }
}

/// A device that stopped working.
fn failed(error: &DeviceError) -> TrainError {
    TrainError::Device(error.to_string())
}

/// Trains adapters on [`NnParts::model`].
pub struct NnTrainer {
    parts: NnParts,
    learner: LearnerConfig,
    /// What scopes that have learned nothing yet begin with.
    adapter: AdapterConfig,
    gate: GateConfig,
    row_tokens_max: usize,
    fingerprint: String,
    /// Learners by the adapter they stand at. A learner is taken out while it steps, so that one
    /// that was stopped, failed or panicked is simply gone and read back from its checkpoint.
    learners: Mutex<Learners>,
    /// What was computed already.
    memo: memo::Memo,
    /// Share of the last job that each phase took.
    usual: Mutex<Option<[f64; 4]>>,
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
            memo: memo::Memo::default(),
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

    fn learner_config(&self, lr_scale: f32) -> hone_nn::LearnerConfig {
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

    fn usual(&self) -> std::sync::MutexGuard<'_, Option<[f64; 4]>> {
        self.usual.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learners(&self) -> std::sync::MutexGuard<'_, Learners> {
        // A cache is a cache whatever panicked while it was held.
        self.learners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the gate judges.
    fn measured(
        &self,
        learner: &mut Learner,
        (job, stepped): (&TrainJob, &steps::Stepped),
        policies: measure::Compared<'_>,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Measured, TrainError> {
        let distilled = &stepped.taught.distilled;
        let kept = self.kept(learner, &distilled.wishes, pause)?;
        job.progress.at(0.4);
        let asked = (distilled, stepped.unseen_before.as_slice());
        let wish = self.meter(learner, asked, policies, pause)?;
        // What its passes held is for those of the gate.
        learner.rest();
        job.progress.at(0.7);
        let with = (&self.parts, &self.gate, Some(&self.memo));
        let measured = measure::measure(with, job, policies, pause)?;
        Ok(Measured {
            generic_loss: kept.generic_loss,
            fact_gains: kept.fact_gains,
            wish,
            unlearnable: !distilled.wishes.is_empty() && distilled.kept == 0,
            at_a_loss: distilled.at_a_loss,
            told_tokens: distilled.told_tokens,
            ..measured
        })
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
        let mut files = peft::to_files(adapter, &self.parts.base_name, &manifest);
        let (model, exec) = (&self.parts.model, &self.parts.exec);
        let probe = hone_nn::probe(model, Some(adapter), exec);
        files.push((hone_nn::PROBE_FILE.to_owned(), probe));
        files
    }

    /// The candidate of a job.
    fn candidate(
        &self,
        job: &TrainJob,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Candidate, TrainError> {
        let progress = &job.progress;
        progress.begin(*self.usual());
        progress.enter(Phase::Answers);
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
        let stepped = self.steps(&mut learner, (job, lr), pause)?;
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
            &stepped.reports[0].proximal_logprobs[..job.rows.len()],
            job.parent_digest(),
        )
        .map_err(TrainError::Failed)?;
        let policies = measure::Compared {
            candidate: &adapter,
            parent: job.parent_digest().is_some().then_some(&parent),
        };
        progress.enter(Phase::Gate);
        let mut measured = self.measured(&mut learner, (job, &stepped), policies, pause)?;
        let digest = adapter_digest(&adapter);
        *self.usual() = Some(progress.shares());
        measured.changed = digest != adapter_digest(&parent);
        let candidate = Candidate {
            digest,
            files: self.files(job, &adapter),
            checkpoint: learner.state(),
            measured,
            numbers: steps::numbers(&stepped)
                .into_iter()
                .chain(progress.took())
                .collect(),
            parity,
            wishes: stepped.taught.distilled.turns(job),
        };
        self.learners()
            .put(job.scope.clone(), Some(digest), learner);
        Ok(candidate)
    }
}

impl Trainer for NnTrainer {
    fn train(
        &self,
        job: &TrainJob,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Candidate, TrainError> {
        let candidate = self.candidate(job, pause);
        self.memo.forget();
        candidate
    }

    fn prepare(&self, pause: &mut dyn FnMut() -> bool) -> Result<(), TrainError> {
        if self.learner.hint_form != DistillForm::Context {
            return Ok(());
        }
        let scope = Scope::from_stored(String::new());
        let learner = learners::load(&self.parts, self.learner_config(1.0), (&scope, None));
        let mut learner = learner.map_err(TrainError::Failed)?;
        self.base_of_gate(&mut learner, pause)?;
        self.memo.settle();
        Ok(())
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn base(&self) -> Digest {
        Digest(self.parts.model.digest)
    }
}

/// Mean of log-probs or gains; 0 without any.
fn mean(values: &[f32]) -> f32 {
    values.iter().sum::<f32>() / values.len().max(1) as f32
}

fn adapter_digest(adapter: &hone_nn::Adapter) -> Digest {
    Digest(adapter.digest())
}

/// What is trained, by the keys.
fn adapter_config(model: &Model, learner: &LearnerConfig) -> Result<AdapterConfig, String> {
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

fn stopped(error: StepError) -> TrainError {
    match error {
        StepError::Stopped => TrainError::Stopped,
        StepError::Device(error) => failed(&error),
        error => TrainError::Failed(error.to_string()),
    }
}

/// A packed row as nn's learner reads it.
fn train_row(row: &PackedRow) -> TrainRow {
    let parts = row.sample.parts().iter().enumerate();
    TrainRow {
        tokens: row.sample.tokens().to_vec(),
        loss: parts.flat_map(token_losses).collect(),
    }
}

fn token_losses((sequence, part): (usize, &SamplePart)) -> impl Iterator<Item = TokenLoss> + '_ {
    let loss = move |(i, advantage): (usize, &f32)| TokenLoss {
        position: part.start + i,
        advantage: *advantage,
        behavior_logprob: part.behavior_logprobs[i],
        temperature: part.temperature,
        kept: part.kept[i].clone(),
        experts: part.experts_of(i).map(<[u16]>::to_vec),
        sequence: sequence as u32,
        kind: LossKind::Policy,
        teacher: None,
        soft: None,
    };
    part.advantages.iter().enumerate().map(loss)
}
