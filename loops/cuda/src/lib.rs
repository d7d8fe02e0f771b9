//! The engine on a CUDA device.
//!
//! The kernels (`src/kernels`) do the operations of the processor's kernels in the same order with the
//! same rounding, so a device says bit for bit what the processor says, and a model proves it
//! before it serves ([`Device::load`]). A learner's passes run on the weights that are there
//! (`train`). Weights stay in the processor's memory as well: proofs and embeddings run there, on
//! the same numbers.
//!
//! [`Driver`] is all that a device has to do. The program brings a GPU's; an emulator for tests
//! (`tests/cuda-emulator`) runs the same kernels on the processor, so that every machine can check them.
//!
//! Never: requests, storage, text, who chose the device.

mod adapter;
mod args;
mod device;
mod draw;
mod driver;
mod experts;
mod jobs;
mod launcher;
mod launches;
mod layers;
mod linear;
mod matrix;
mod pass;
mod places;
mod plan;
mod train;
mod weights;

// The emulator names this crate from outside.
#[cfg(test)]
extern crate self as hone_cuda;
#[cfg(test)]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "it is a crate of its own elsewhere"
)]
#[path = "../../../tests/cuda-emulator/src/lib.rs"]
mod emulator;
#[cfg(test)]
mod expert_tests;
#[cfg(test)]
mod fault_tests;
#[cfg(test)]
#[path = "../../nn/tests/support/mod.rs"]
mod testing;
#[cfg(test)]
mod tests;

pub use self::device::Device;
pub use self::driver::{Driver, Limits};
pub use self::launches::{Launch, Launches, Repeats};
pub use self::layers::KERNELS;
