//! Named arrays of f32 and a description of them in one safetensors file, bit for bit.

use std::collections::HashMap;

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::Value;

/// The metadata entry that holds the description.
const KEY: &str = "hone";

/// A file of these arrays.
///
/// # Panics
/// If a name is there twice.
pub fn to_bytes(about: &Value, arrays: &[(String, &[f32])]) -> Vec<u8> {
    let le_bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let data: Vec<Vec<u8>> = arrays.iter().map(|(_, values)| le_bytes(values)).collect();
    let views = arrays.iter().zip(&data).map(|((name, _), bytes)| {
        let view = TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes);
        (name.as_str(), view.expect("four bytes per value"))
    });
    // One entry: several would be written in an order that changes from run to run.
    let metadata = HashMap::from([(KEY.to_owned(), about.to_string())]);
    serialize(views, Some(metadata)).expect("names are distinct and views are valid")
}

/// The description of a file.
///
/// # Errors
/// What is damaged.
pub fn about(bytes: &[u8]) -> Result<Value, String> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    let about = header.metadata().as_ref().and_then(|m| m.get(KEY));
    let about = about.ok_or_else(|| format!("no {KEY} entry"))?;
    serde_json::from_str(about).map_err(|e| e.to_string())
}

/// The arrays of a file.
pub struct NamedArrays<'a>(SafeTensors<'a>);

impl<'a> NamedArrays<'a> {
    /// Opens a file.
    ///
    /// # Errors
    /// What is damaged.
    pub fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
        Ok(Self(file))
    }

    /// The array of that name, which has to hold `length` values.
    ///
    /// # Errors
    /// It is not there, or holds something else.
    pub fn array(&self, name: &str, length: usize) -> Result<Vec<f32>, String> {
        let view = self.0.tensor(name).map_err(|e| e.to_string())?;
        if view.dtype() != Dtype::F32 || view.data().len() != length * 4 {
            return Err(format!("{name} does not hold {length} values"));
        }
        let value = |b: &[u8]| f32::from_le_bytes(b.try_into().expect("chunks of four"));
        Ok(view.data().chunks_exact(4).map(value).collect())
    }
}
