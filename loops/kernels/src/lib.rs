//! Matrix products and vector operations on the CPU, with the same bits at every instruction level,
//! on every number of threads and in every batch.
//!
//! Read from the bottom up:
//! 1. [`thread_pool`] splits one operation over threads.
//! 2. [`cpu`] detects the instruction level and defines sixteen f32 lanes, [`cpu::V16`].
//! 3. [`format`] stores weights: f32, bf16, exponent-coded bf16, int8 and int4 blocks.
//! 4. [`gemm`] is the one inner loop; [`matrix`] packs weights for it ([`matrix::PackedMatrix`]).
//! 5. [`ops`] is what a transformer does between two products.
//!
//! Never: models, layers, tensors by name, files, tokens.

pub mod cpu;
pub mod format;
pub mod gemm;
pub mod matrix;
pub mod ops;
pub mod rng;
pub mod thread_pool;

#[cfg(test)]
extern crate self as hone_kernels;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;

pub use self::cpu::SimdLevel;
pub use self::format::{TensorData, WeightFormat};
pub use self::matrix::ComputeType;
pub use self::ops::log_softmax::token_logprob;
pub use self::thread_pool::Executor;
