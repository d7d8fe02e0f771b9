//! Where tensors come from, and everything that can be wrong with a model folder.

use std::io;

use crate::gguf::Blocks;

/// Values of one tensor as stored, row-major. Half precision (f16) arrives widened to f32;
/// bf16 keeps its 16 bits because widening is an exact shift, and blocks of quantised weights (in
/// whole rows) their bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum TensorData {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
    Blocks(Blocks),
}

impl TensorData {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(v) => v.len(),
            Self::Bf16(v) => v.len(),
            Self::Blocks(blocks) => blocks.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values as f32 (exact for all stored forms).
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            Self::F32(v) => v,
            Self::Bf16(v) => v.into_iter().map(bf16_to_f32).collect(),
            Self::Blocks(blocks) => blocks.dequantise(),
        }
    }
}

/// Widens one bf16 value; exact.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// A named row-major f32 tensor, the form in which weights and adapters leave the crate.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
}

/// Reads tensors by their Hugging Face name.
pub trait TensorSource {
    /// Values of tensor `name`, which must be stored with exactly `shape` and hold finite values.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<TensorData, LoadError>;
    /// Every stored tensor name, sorted.
    fn names(&self) -> Vec<String>;
}

/// Tensors held in memory (tests, freshly trained weights).
impl TensorSource for Vec<NamedTensor> {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<TensorData, LoadError> {
        let file = || "memory".to_owned();
        let found =
            self.iter()
                .find(|t| t.name == name)
                .ok_or_else(|| LoadError::MissingTensor {
                    file: file(),
                    tensor: name.to_owned(),
                })?;
        if found.shape != shape || found.data.len() != shape.iter().product::<usize>() {
            return Err(LoadError::WrongShape {
                file: file(),
                tensor: name.to_owned(),
                stored: found.shape.clone(),
                wanted: shape.to_vec(),
            });
        }
        if let Some(index) = found.data.iter().position(|v| !v.is_finite()) {
            return Err(LoadError::NonFinite {
                file: file(),
                tensor: name.to_owned(),
                index,
            });
        }
        Ok(TensorData::F32(found.data.clone()))
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.iter().map(|t| t.name.clone()).collect();
        names.sort();
        names
    }
}

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
