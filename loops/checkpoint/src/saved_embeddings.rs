//! Embeddings that lie beside an adapter. PEFT writes them where the vocabulary was resized or
//! `modules_to_save` names them, whether or not they were trained. A copy of the base's own says nothing and
//! is left out; anything else is a model of its own, which no adapter holds.

use half::f16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};

use crate::peft::{PeftError, WEIGHTS_FILE};
use hone_kernels::format::tensor_data::bf16_to_f32;
use hone_kernels::matrix::PackedMatrix;

const SAVED_KEY: &str = "modules_to_save";

/// The embeddings of a base model.
#[derive(Clone, Copy)]
pub struct BaseEmbeddings<'a> {
    /// `[vocab, hidden]`.
    pub embed: &'a PackedMatrix,
    /// `[vocab, hidden]`; the same where the head reuses it.
    pub head: &'a PackedMatrix,
}

impl<'a> BaseEmbeddings<'a> {
    /// The module and matrix that a saved tensor is of.
    fn find(self, name: &str) -> Option<(&'static str, &'a PackedMatrix)> {
        let name = name.strip_suffix(".weight")?;
        let name = name
            .strip_suffix(".modules_to_save.default")
            .unwrap_or(name);
        match name.rsplit('.').next()? {
            "embed_tokens" => Some(("embed_tokens", self.embed)),
            "lm_head" => Some(("lm_head", self.head)),
            _ => None,
        }
    }
}

/// Values of a row in f32.
fn row(view: &TensorView<'_>, at: usize, width: usize) -> Option<Vec<f32>> {
    let words = |bytes: usize| {
        let data = view
            .data()
            .get(at * width * bytes..(at + 1) * width * bytes);
        data.map(move |data| data.chunks_exact(bytes))
    };
    let half = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    Some(match view.dtype() {
        Dtype::F32 => words(4)?
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect(),
        Dtype::BF16 => words(2)?.map(|b| bf16_to_f32(half(b))).collect(),
        Dtype::F16 => words(2)?
            .map(|b| f16::from_bits(half(b)).to_f32())
            .collect(),
        _ => return None,
    })
}

/// Whether a saved tensor is the base's matrix. Rows that only one of them has belong to tokens that are
/// never used, such as a pad token that was added for training.
fn is_copy(view: &TensorView<'_>, base: &PackedMatrix) -> bool {
    let (vocab, hidden) = (base.out, base.inp);
    let &[rows, width] = view.shape() else {
        return false;
    };
    let mut own = vec![0.0; hidden];
    width == hidden
        && rows > 0
        && (0..rows.min(vocab)).all(|at| {
            base.lookup(at, &mut own);
            row(view, at, width).is_some_and(|saved| saved == own)
        })
}

/// The weights without copies of the base's embeddings, and the settings without the word about them.
///
/// # Errors
/// Embeddings that are not the base's.
pub fn without_copies(
    settings: &mut Map<String, Value>,
    weights: Vec<u8>,
    base: BaseEmbeddings<'_>,
) -> Result<Vec<u8>, PeftError> {
    let damaged = |why: safetensors::SafeTensorError| PeftError::Damaged {
        file: WEIGHTS_FILE,
        why: why.to_string(),
    };
    let file = SafeTensors::deserialize(&weights).map_err(damaged)?;
    let (mut left, mut copies) = (Vec::new(), Vec::new());
    for (name, view) in file.tensors() {
        match base.find(&name) {
            None => left.push((name, view)),
            Some((module, base)) if is_copy(&view, base) => copies.push(module),
            Some(_) => {
                return Err(PeftError::TrainedEmbedding(
                    name.chars().take(100).collect(),
                ));
            }
        }
    }
    if copies.is_empty() {
        return Ok(weights);
    }
    let named = settings.get(SAVED_KEY).and_then(Value::as_array);
    let is_told = |name: &Value| name.as_str().is_some_and(|name| copies.contains(&name));
    if named.is_some_and(|names| names.iter().all(is_told)) {
        settings.remove(SAVED_KEY);
    }
    safetensors::serialize(left, None).map_err(damaged)
}

#[cfg(test)]
#[path = "saved_embeddings_tests.rs"]
mod tests;
