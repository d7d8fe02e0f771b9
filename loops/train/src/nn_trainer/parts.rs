//! What the trainer shares with the rest of the process, and what all of its files need.

use std::sync::Arc;

use hone_domain::{Blobs, Digest, SamplePart, Token};
use hone_kernels::Executor;
use hone_nn::{
    Control, DeviceError, DeviceModel, LossKind, Model, Runner, StepError, TokenLoss, TrainRow,
};

use super::texts::Reference;
use crate::pack::PackedRow;
use crate::trainer::{TrainError, Wording};

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

/// What a learner asks between slices, by whether the job is to stop.
pub(crate) fn control(pause: &mut dyn FnMut() -> bool) -> impl FnMut() -> Control + '_ {
    move || match pause() {
        true => Control::Stop,
        false => Control::Continue,
    }
}

impl NnParts {
    /// Computes forwards where training computes, with this many blocks of keys and values and at most so
    /// many rows at a time, of which so many are picked: after serving, and on the processor where the
    /// device has no room for them.
    pub(super) fn runner(
        &self,
        blocks: usize,
        rows: usize,
        picked: usize,
    ) -> Result<Runner, TrainError> {
        let Some(device) = &self.device else {
            return Ok(self.runner_here(blocks));
        };
        let runner = Runner::second_on_device(device, blocks);
        let runner = runner.and_then(|runner| runner.reserved(rows, picked));
        runner.or_else(|error| self.instead(&error, blocks))
    }

    pub(super) fn runner_here(&self, blocks: usize) -> Runner {
        Runner::on_processor(self.model.clone(), self.exec.clone(), blocks)
    }

    /// The processor, where a device lacks memory; it has no keys and values yet.
    pub(super) fn instead(&self, error: &DeviceError, blocks: usize) -> Result<Runner, TrainError> {
        if !matches!(error, DeviceError::Memory { .. }) {
            return Err(failed(error));
        }
        tracing::warn!(%error, "the gate computes on the processor");
        Ok(self.runner_here(blocks))
    }
}

/// A device that stopped working.
pub(crate) fn failed(error: &DeviceError) -> TrainError {
    TrainError::Device(error.to_string())
}

/// Mean of log-probs or gains; 0 without any.
pub(crate) fn mean(values: &[f32]) -> f32 {
    values.iter().sum::<f32>() / values.len().max(1) as f32
}

pub(crate) fn adapter_digest(adapter: &hone_nn::Adapter) -> Digest {
    Digest(adapter.digest())
}

pub(crate) fn stopped(error: StepError) -> TrainError {
    match error {
        StepError::Stopped => TrainError::Stopped,
        StepError::Device(error) => failed(&error),
        error => TrainError::Failed(error.to_string()),
    }
}

/// A packed row as nn's learner reads it.
pub(crate) fn train_row(row: &PackedRow) -> TrainRow {
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
