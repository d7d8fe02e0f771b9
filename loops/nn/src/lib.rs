//! Tokens in, numbers out: a model's forward and backward, adapters, losses, optimizer, sampler.
//!
//! One forward serves prefill, decode, scoring and training, and a row's result depends on its own tokens
//! and adapter only, bit for bit (see [`hone_kernels::gemm`] for how). [`backend`] is what a device
//! implements to compute instead of the processor.
//!
//! Never: text, files other than by `hone-checkpoint`, requests, users, which device, clocks.

mod adapter;
mod attention;
pub mod backend;
mod batch;
mod computing;
mod device_copies;
mod device_error;
mod experts;
mod forward;
mod identity;
mod kv;
mod kv_format;
mod layer;
mod load;
mod lora;
mod pass;
mod rope;
mod runner;
mod score;
mod train;
mod weights;

#[cfg(test)]
mod forward_tests;
#[cfg(test)]
#[path = "../../kernels/tests/support/mod.rs"]
mod kernel_support;
#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod one_function_tests;
#[cfg(test)]
extern crate self as hone_nn;
#[cfg(test)]
#[path = "../tests/support/shapes.rs"]
mod shapes;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod testing;

pub mod peft;
pub mod sample;

pub use adapter::Adapter;
pub use backend::{DeviceError, DeviceModel, ForwardBackend, TrainBackend};
pub use batch::{LogitsWanted, SeqInput};
pub use computing::Computing;
pub use forward::{Logits, LogitsShape, Scratch, forward};
pub use identity::{IdentityError, PROBE_FILE, check_probe, is_sound, probe, prove};
pub use kv::{BLOCK_TOKENS, KvAllocator, KvPool, blocks_out_of_sight};
pub use kv_format::KvFormat;
pub use load::{LoadAs, LoadProgress, LoadStage, load_model, load_model_as};
pub use runner::Runner;
pub use score::{GenerateOptions, Scores, embed, generate, score, score_chunked, states};
pub use train::{
    Control, Distill, KlEstimator, Learner, LearnerConfig, LearnerError, LossKind, Mark, Objective,
    PerToken, SequenceView, SoftTargets, StateError, StepError, StepReport, Term, TokenLoss,
    TokenView, TopK, TrainRow, Trainable, Under, ess_scale,
};
pub use weights::{Model, Weights, fingerprint};

#[cfg(test)]
mod goldens_test;
