//! Training on the served forward: hand-written backward, losses, optimizer, exact resume.

mod adam;
mod attention;
mod batch;
mod check;
mod experts;
mod layer;
mod learner;
mod loss;
mod objective;
mod params;
mod saved_activations;
mod state;
mod totals;

#[cfg(test)]
mod expert_tests;
#[cfg(test)]
mod objective_tests;
#[cfg(test)]
mod op_tests;
#[cfg(test)]
mod saved_activations_tests;
#[cfg(test)]
mod tests;

pub use batch::{LossPosition, MicroBatch, Pacer, Run, Sink};
pub use learner::Learner;
pub use loss::{LossStep, PerToken, RowGrad, TokenPull};
pub use objective::{
    Distill, KlEstimator, Objective, SequenceView, SoftTargets, Term, TokenView, TopK, ess_scale,
};
pub use params::Mark;
pub use saved_activations::layers_that_fit;
pub use state::StateError;

use std::sync::Arc;

use crate::device_error::DeviceError;
use hone_checkpoint::{AdapterConfig, AdapterError, DenseConfig, LoraConfig};

/// What is trained.
#[derive(Debug, Clone, PartialEq)]
pub enum Trainable {
    /// Every weight, in f32.
    Full,
    /// An adapter over frozen weights. The forward uses the rounded adapter that would be served;
    /// gradients go straight through to f32 masters.
    Lora(LoraConfig),
    /// Every weight of some projections, as a change of frozen weights that starts at 0; forward
    /// and gradients as with [`Self::Lora`].
    Dense(DenseConfig),
}

impl From<AdapterConfig> for Trainable {
    fn from(config: AdapterConfig) -> Self {
        match config {
            AdapterConfig::Lora(lora) => Self::Lora(lora),
            AdapterConfig::Dense(dense) => Self::Dense(dense),
        }
    }
}

impl Trainable {
    /// The adapter that is trained; none where every weight is.
    pub fn adapter(&self) -> Option<AdapterConfig> {
        match self {
            Self::Full => None,
            Self::Lora(lora) => Some(lora.clone().into()),
            Self::Dense(dense) => Some(dense.clone().into()),
        }
    }
}

/// One independent token sequence with any number of tokens to learn from.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainRow {
    pub tokens: Vec<u32>,
    pub loss: Vec<TokenLoss>,
}

/// One token to learn from.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLoss {
    /// Index in `tokens` of the token being predicted, at least 1.
    pub position: usize,
    /// Advantage, or the weight of the token for cross-entropy.
    pub advantage: f32,
    /// Log-prob of the token under the distribution it was sampled from.
    pub behavior_logprob: f32,
    /// Temperature it was sampled at.
    pub temperature: f32,
    /// Ids that truncated sampling (top-k, top-p, min-p) had kept.
    pub kept: Option<Arc<[u32]>>,
    /// Experts that a model of experts had chosen where it predicted the token (see
    /// [`crate::Logits::experts`]), to be used again whatever the weights are now.
    pub experts: Option<Vec<u16>>,
    /// Which of the row's sampled sequences it belongs to; read by objectives with one ratio per
    /// sequence.
    pub sequence: u32,
    /// What it is learned by.
    pub kind: LossKind,
    /// A teacher to follow besides.
    pub teacher: Option<TopK>,
    /// What is imitated instead of the token alone.
    pub soft: Option<SoftTargets>,
}

impl TokenLoss {
    /// A token to imitate at `position`, at temperature 1 with nothing cut.
    pub fn imitated(position: usize) -> Self {
        Self {
            position,
            advantage: 1.0,
            behavior_logprob: 0.0,
            temperature: 1.0,
            kept: None,
            experts: None,
            sequence: 0,
            kind: LossKind::Supervised,
            teacher: None,
            soft: None,
        }
    }
}

/// What a token is learned by. Each kind is a mean over its own tokens of the update, so that a
/// few tokens of one kind are not drowned by many of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossKind {
    /// [`LearnerConfig::objective`].
    Policy,
    /// Cross-entropy with the advantage as weight, times [`LearnerConfig::supervised_coef`]; with
    /// [`TokenLoss::soft`] to what those say.
    Supervised,
    /// Its teacher only.
    Taught,
}

/// Whose log-probs are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Under {
    /// The current weights.
    Current,
    /// The model without adapter.
    Reference,
}

/// How a learner learns.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnerConfig {
    pub trainable: Trainable,
    pub objective: Objective,
    pub lr: f32,
    pub beta1: f32,
    pub beta2: f32,
    pub eps: f32,
    /// Decoupled weight decay; matrices only.
    pub weight_decay: f32,
    /// Largest global gradient norm.
    pub clip_norm: f32,
    /// Weight of the estimate of KL(current || reference); the reference is the model without
    /// adapter, so this must be 0 for [`Trainable::Full`].
    pub kl_coef: f32,
    /// Which estimate.
    pub kl_estimator: KlEstimator,
    /// Weight of imitated tokens beside the policy's.
    pub supervised_coef: f32,
    /// How teachers are followed.
    pub distill: Distill,
    /// Effective share of samples from which the rate shrinks, see [`ess_scale`]; 0 is off.
    pub ess_base: f32,
    /// Weight of the entropy bonus.
    pub entropy_coef: f32,
    /// Updates over which the learning rate rises linearly.
    pub warmup_steps: u64,
    /// Tokens that run through the model together. Bounds memory; a longer row runs alone.
    pub minibatch_tokens: usize,
    /// Bytes of activations that stay in memory for the backward pass, besides the inputs of all
    /// layers and the last layer's; layers that do not fit are computed again. Changes no bit of a
    /// result.
    pub activation_bytes_max: usize,
    /// Optimizer updates per step; rows are cut into that many contiguous parts.
    pub updates_per_step: usize,
    /// Seed of a fresh adapter.
    pub seed: u64,
}

impl LearnerConfig {
    /// Usual values for `trainable` and `objective`: AdamW (0.9, 0.999, 1e-8), no decay, norm
    /// clipped at 1, one update per step.
    pub fn new(trainable: Trainable, objective: Objective, lr: f32) -> Self {
        Self {
            trainable,
            objective,
            lr,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            clip_norm: 1.0,
            kl_coef: 0.0,
            kl_estimator: KlEstimator::K3,
            supervised_coef: 1.0,
            distill: Distill {
                coef: 1.0,
                clip: 1.0,
                ratio_low: 0.2,
                ratio_high: 0.28,
            },
            ess_base: 0.0,
            entropy_coef: 0.0,
            warmup_steps: 0,
            minibatch_tokens: 2048,
            activation_bytes_max: 256 << 20,
            updates_per_step: 1,
            seed: 0,
        }
    }
}

/// Answer of the pause callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    Continue,
    /// Abandon the step; the learner stays as it was before.
    Stop,
}

/// What one step did.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Tokens run through the model, and those learned from.
    pub tokens: usize,
    pub loss_tokens: usize,
    /// Mean loss (all terms) over loss tokens.
    pub loss: f64,
    /// Mean estimate of KL(current || reference); `None` when `kl_coef` is 0.
    pub kl_to_reference: Option<f64>,
    /// Share of loss tokens whose ratio was clipped (no gradient from the policy term).
    pub clip_share: f64,
    /// Mean of `current / behavior` over loss tokens.
    pub mean_importance_ratio: f64,
    /// Largest `proximal / behavior` before the cap.
    pub max_correction: f64,
    /// Effective share of samples `(sum w)^2 / (n sum w^2)` over capped corrections `w` of the
    /// policy's tokens; 1 where there are none.
    pub ess: f64,
    /// Mean entropy (nats) of the predicted distributions.
    pub entropy: f64,
    /// Gradient norm before clipping, the largest over the step's updates.
    pub grad_norm: f64,
    /// Updates applied.
    pub updates: usize,
    /// An update was left out because its loss or gradient was not finite.
    pub skipped_nonfinite: bool,
    /// Log-probs at the start of the step, per row and loss token.
    pub proximal_logprobs: Vec<Vec<f32>>,
    /// Layers that the backward pass did not compute again, in the micro-batch with fewest.
    pub layers_kept: usize,
    /// Times the pause callback was asked, and the longest time between two.
    pub slices: usize,
    pub longest_slice_us: u64,
}

/// Why a step did nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum StepError {
    #[error("the step was stopped; the learner is unchanged")]
    Stopped,
    #[error("no row has a token to learn from")]
    NothingToLearn,
    #[error("row {row}: {why}")]
    BadRow { row: usize, why: String },
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why a learner cannot be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LearnerError {
    #[error("kl_coef needs a reference, the model without adapter; set it to 0 for full training")]
    NoReference,
    #[error("learner setting {name} is {value}; it must be {rule}")]
    BadSetting {
        name: &'static str,
        value: f64,
        rule: &'static str,
    },
    #[error("the adapter has {found} layers; the model has {wanted}")]
    OtherModel { found: usize, wanted: usize },
    #[error(
        "the weights of a model with experts are not trained as a whole; train an adapter on its \
         attention"
    )]
    Experts,
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error("this learner trains all weights and cannot start from an adapter")]
    NotAnAdapter,
}
