//! The files of a model: config.json, safetensors, GGUF, PEFT adapters. Files in, names and tensors out.
//!
//! [`Checkpoint::open`] reads the shape of a model and opens its weights; a [`TensorSource`] gives tensors
//! by their Hugging Face names, whatever the file calls them. Everything that can be wrong with a file is
//! found here and told in one sentence ([`LoadError`]).
//!
//! Never: what a model computes, what a tokenizer does with a text, devices.

pub mod adapter_config;
pub mod checkpoint;
pub mod config;
pub mod digest;
pub mod error;
pub mod files;
pub mod gguf;
mod mmap;
pub mod named_arrays;
pub mod peft;
mod saved_embeddings;
pub mod tensor_files;
pub mod tensor_source;

pub use self::adapter_config::{
    AdapterConfig, AdapterDtype, AdapterError, DenseConfig, LoraConfig, Part, Target,
};
pub use self::checkpoint::Checkpoint;
pub use self::config::{ExpertsConfig, Family, ModelConfig, RopeScaling, StoredDtype};
pub use self::digest::Digest32;
pub use self::error::LoadError;
pub use self::files::Files;
pub use self::saved_embeddings::{BaseEmbeddings, without_copies};
pub use self::tensor_files::TensorFiles;
pub use self::tensor_source::{NamedTensor, TensorSource};
