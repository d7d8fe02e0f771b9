//! Tokens in, numbers out: weights, kernels, forward and backward, adapters, losses, optimizer,
//! tokenizer, chat template, sampler.
//!
//! One forward serves prefill, decode, scoring and training, and a row's result depends on its own
//! tokens and adapter only, bit for bit (see [`gemm`] for how). The crate never knows requests,
//! users, rewards' origins, files other than model and adapter folders, or clocks.

mod adapter;
mod arithmetic;
mod attention;
pub mod bench;
mod compact;
mod computing;
pub mod device;
mod exec;
mod experts;
mod files;
mod forward;
mod gemm;
mod gguf;
mod identity;
mod kv;
mod layer;
mod logprob;
mod lora;
mod ops;
mod pairs;
mod panels;
mod quads;
mod quant;
mod rng;
mod rope;
mod rounded;
mod runner;
mod saved;
mod score;
mod simd;
mod train;
mod weights;

#[cfg(test)]
mod forward_tests;
#[cfg(test)]
mod testing;

pub mod config;
pub mod detok;
pub mod folder;
pub mod grammar;
pub mod peft;
pub mod sample;
pub mod source;
pub mod template;
pub mod tensors;
pub mod tokenizer;

pub use adapter::{
    Adapter, AdapterConfig, AdapterDtype, AdapterError, DenseConfig, LoraConfig, Part, Target,
};
pub use arithmetic::Arithmetic;
pub use computing::Computing;
pub use config::{ExpertsConfig, Family, ModelConfig, RopeScaling, StoredDtype};
pub use exec::Executor;
pub use forward::{Logits, LogitsWanted, Scratch, SeqInput, forward};
pub use identity::{IdentityError, PROBE_FILE, check_probe, is_sound, probe, prove};
pub use kv::{BLOCK_TOKENS, KvAllocator, KvFormat, KvPool, blocks_out_of_sight};
pub use logprob::token_logprob;
pub use quant::WeightFormat;
pub use runner::Runner;
pub use saved::without_copies;
pub use score::{GenerateOptions, Scores, embed, generate, score, score_chunked, states};
pub use simd::SimdLevel;
pub use source::{LoadError, NamedTensor, TensorData, TensorSource};
pub use train::{
    Control, Distill, KlEstimator, Learner, LearnerConfig, LearnerError, LossKind, Mark, Objective,
    PerToken, SequenceView, SoftTargets, StateError, StepError, StepReport, Term, TokenLoss,
    TokenView, TopK, TrainRow, Trainable, Under, ess_scale,
};
pub use weights::{Digest32, Model, Weights, fingerprint};

#[cfg(test)]
mod goldens_test;
