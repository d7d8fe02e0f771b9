//! Reads the weights of a checkpoint into a model.

use std::cell::RefCell;
use std::collections::BTreeSet;

use hone_checkpoint::gguf::ROPE_FACTORS;
use hone_checkpoint::{Checkpoint, LoadError, ModelConfig, TensorFiles, TensorSource};
use hone_kernels::format::{TensorData, WeightFormat};
use hone_kernels::matrix::ComputeType;

use crate::weights::{Keep, Model, Weights, is_compact};

/// What takes its time while a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadStage {
    /// Counted in bytes of the files.
    Reading,
    /// Its digest is taken, over four bytes for each parameter.
    Hashing,
}

/// Is told (stage, bytes done, bytes in all) after every tensor.
pub type LoadProgress<'a> = dyn FnMut(LoadStage, u64, u64) + 'a;

/// How a model is to be loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadAs {
    /// How matrices are kept.
    pub format: WeightFormat,
    /// What will compute it, as far as that is known: weights that [`Weights::with_compute_type`] then keeps in less
    /// memory are so from the moment they are read.
    pub compute_type: ComputeType,
}

/// Reads all weights as they are stored.
pub fn load_model(
    checkpoint: &Checkpoint,
    progress: &mut LoadProgress,
) -> Result<Model, LoadError> {
    load_model_as(checkpoint, LoadAs::default(), progress)
}

/// As [`load_model`], as `wanted`.
pub fn load_model_as(
    checkpoint: &Checkpoint,
    wanted: LoadAs,
    progress: &mut LoadProgress,
) -> Result<Model, LoadError> {
    let names = checkpoint.tensors().names();
    let bytes = names
        .iter()
        .map(|name| checkpoint.tensors().stored_bytes(name));
    let total = bytes.sum();
    let keep = Keep {
        format: wanted.format,
        compact: is_compact(wanted.compute_type, total as usize),
    };
    let source = Watched {
        files: checkpoint.tensors(),
        total,
        seen: RefCell::new(Seen {
            done: 0,
            names: BTreeSet::new(),
            progress: &mut *progress,
        }),
    };
    let weights = Weights::from_source_as(checkpoint.config(), &source, keep)?;
    let used = source.seen.into_inner().names;
    let unused = names
        .iter()
        .find(|name| !used.contains(*name) && !spare(name, checkpoint.config()));
    if let Some(name) = unused {
        return Err(LoadError::UnexpectedTensor {
            file: checkpoint.tensors().label_of(name).to_owned(),
            tensor: name.clone(),
        });
    }
    let (mut done, total) = (0, 4 * weights.parameters(checkpoint.config()) as u64);
    let mut hashed = |bytes| {
        done += bytes;
        progress(LoadStage::Hashing, done, total);
    };
    Ok(Model::watched(
        checkpoint.config().clone(),
        weights,
        &mut hashed,
    ))
}

/// Tensors that some writers store although nothing needs them: rotary tables, and the head of a
/// model whose head is the embedding.
fn spare(name: &str, config: &ModelConfig) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name == ROPE_FACTORS
        || (config.tied && name == "lm_head.weight")
}

/// Passes reads through, and remembers what was read.
struct Watched<'a> {
    files: &'a TensorFiles,
    total: u64,
    seen: RefCell<Seen<'a>>,
}

struct Seen<'a> {
    done: u64,
    names: BTreeSet<String>,
    progress: &'a mut LoadProgress<'a>,
}

impl TensorSource for Watched<'_> {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<TensorData, LoadError> {
        let data = self.files.tensor(name, shape)?;
        let mut seen = self.seen.borrow_mut();
        if seen.names.insert(name.to_owned()) {
            seen.done += self.files.stored_bytes(name);
        }
        let done = seen.done;
        (seen.progress)(LoadStage::Reading, done, self.total);
        Ok(data)
    }

    fn names(&self) -> Vec<String> {
        self.files.names()
    }
}
