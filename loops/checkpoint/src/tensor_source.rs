//! Where tensors come from.

use crate::error::LoadError;
use hone_kernels::format::TensorData;

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
