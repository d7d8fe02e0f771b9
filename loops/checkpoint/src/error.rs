//! Everything that can be wrong with the files of a model.

use std::io;

/// What to do about a file that cannot be read.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::OutOfMemory => {
            "raise the limit of the process (ulimit -v, its container), or take a smaller model"
        }
        _ => "check the path and its permissions",
    }
}

/// Why a model folder cannot be used: one sentence with the file, the tensor or key, and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot read {file}: {source}; {}", remedy(source))]
    Io { file: String, source: io::Error },
    #[error("{file} is missing: {why}")]
    MissingFile { file: String, why: String },
    #[error(
        "{file} is not a usable safetensors file ({why}); it is damaged or was cut short, \
         fetch it again"
    )]
    BadFile { file: String, why: String },
    #[error(
        "{file} is cut short: it holds {held} bytes but its header promises {promised}; \
         fetch it again"
    )]
    Truncated {
        file: String,
        held: u64,
        promised: u64,
    },
    #[error(
        "{file} is not a usable GGUF file ({why}); it is damaged or was cut short, fetch it again"
    )]
    BadGguf { file: String, why: String },
    #[error("{file} cannot be used: {why}")]
    UnfitGguf { file: String, why: String },
    #[error("{file} has no tensor {tensor}, which config.json calls for; the folder is incomplete")]
    MissingTensor { file: String, tensor: String },
    #[error(
        "{file} stores tensor {tensor} with shape {stored:?}, but config.json calls for {wanted:?}; \
         weights and config.json are of different models"
    )]
    WrongShape {
        file: String,
        tensor: String,
        stored: Vec<usize>,
        wanted: Vec<usize>,
    },
    #[error("{file} stores tensor {tensor} as {dtype}; use a folder in F32, F16 or BF16")]
    WrongDtype {
        file: String,
        tensor: String,
        dtype: String,
    },
    #[error(
        "{file}: tensor {tensor} has a NaN or infinite value at index {index}; \
         the weights are damaged, fetch them again"
    )]
    NonFinite {
        file: String,
        tensor: String,
        index: usize,
    },
    #[error(
        "{file} holds tensor {tensor}, which the architecture in config.json does not use; \
         weights and config.json are of different models"
    )]
    UnexpectedTensor { file: String, tensor: String },
    #[error(
        "{file} names architecture {architecture}, which is not supported; \
         use a folder of LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM or Qwen3MoeForCausalLM"
    )]
    UnknownArchitecture { file: String, architecture: String },
    #[error("{file} lacks key {key}; take the config.json that belongs to the weights")]
    MissingKey { file: String, key: String },
    #[error("{file}: key {key} {why}")]
    BadKey {
        file: String,
        key: String,
        why: String,
    },
    #[error("{file} is not valid JSON ({why}); it is damaged, fetch it again")]
    BadJson { file: String, why: String },
    #[error("{file}: {why}")]
    Tokenizer { file: String, why: String },
    #[error("{file}: the chat template does not compile: {why}")]
    Template { file: String, why: String },
}
