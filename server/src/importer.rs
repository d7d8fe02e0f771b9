//! Adapters that were made elsewhere: held against the model that is served, and their files made
//! durable before a version names them.

use std::cell::Cell;
use std::sync::Arc;

use hone_checkpoint::AdapterConfig;
use hone_domain::{BlobKey, Blobs, Digest, Scope};
use hone_kernels::Executor;
use hone_nn::{Adapter, Model, PROBE_FILE, peft, without_copies};
use hone_train::{adapter_key, scope_hash};
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most characters of the base model's name that are kept.
const NAME_CHARS_MAX: usize = 200;
/// Most characters of what is wrong with an adapter.
const FAULT_CHARS_MAX: usize = 600;
/// Bytes that a learner's checkpoint has per weight: it and two moments.
const CHECKPOINT_BYTES: u64 = 12;

/// What adapters are held against.
#[derive(Clone)]
pub struct Base {
    /// The model that is served.
    pub model: Arc<Model>,
    /// Threads that compute what an adapter says.
    pub executor: Arc<Executor>,
    /// The model's name, for the files.
    pub name: String,
}

/// An adapter as it was given: the two files of a PEFT folder.
pub struct Given {
    /// adapter_config.json.
    pub config: Map<String, Value>,
    /// adapter_model.safetensors.
    pub weights: Vec<u8>,
}

/// An adapter that the served model computes.
pub struct Checked {
    /// Content hash as served.
    pub digest: Digest,
    /// What it is: rank, scale, projections, and the base model that its maker names.
    pub report: Value,
    files: Vec<(String, Vec<u8>)>,
}

/// Checks and stores adapters.
pub struct Importer {
    base: Option<Base>,
    blobs: Arc<dyn Blobs>,
    file_bytes_max: u64,
    place: Arc<Semaphore>,
}

impl Importer {
    /// For a model, where this process has one. No file may have more bytes than that.
    pub fn new(base: Option<Base>, (blobs, file_bytes_max): (Arc<dyn Blobs>, u64)) -> Self {
        Self {
            base,
            blobs,
            file_bytes_max,
            place: Arc::new(Semaphore::new(1)),
        }
    }

    /// What adapters are held against; none where this process has no model.
    pub fn base(&self) -> Option<&Base> {
        self.base.as_ref()
    }

    /// The place of the one import under way, until it is dropped; none where it is taken.
    pub fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.place.clone().try_acquire_owned().ok()
    }

    /// Whether the model computes what is given, and what it is then. Takes a while, off the async
    /// threads.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub fn check(&self, base: &Base, scope: &Scope, given: Given) -> Result<Checked, String> {
        let checked = self.checked(base, scope, given);
        checked.map_err(|why| why.chars().take(FAULT_CHARS_MAX).collect())
    }

    fn checked(&self, base: &Base, scope: &Scope, given: Given) -> Result<Checked, String> {
        let Given { config, weights } = given;
        let mut settings = config.clone();
        let weights = without_copies(&mut settings, weights, &base.model);
        let weights = Cell::new(Some(weights.map_err(|error| error.to_string())?));
        let file = |name: &str| match name {
            peft::CONFIG_FILE => serde_json::to_vec(&settings).ok(),
            peft::WEIGHTS_FILE => weights.take(),
            _ => None,
        };
        let adapter = peft::load(&file, &base.model.config).map_err(|error| error.to_string())?;
        self.can_learn(base, &adapter)?;
        let probe = hone_nn::probe(&base.model, Some(&adapter), &base.executor);
        if !hone_nn::is_sound(&probe) {
            return Err(
                "with this adapter the model computes values that are no numbers; its weights or \
                 lora_alpha are too large"
                    .to_owned(),
            );
        }
        let digest = Digest(adapter.digest());
        let manifest = json!({
            "scope": scope_hash(scope),
            "digest": digest,
            "base": Digest(base.model.digest),
            "fingerprint": hone_nn::fingerprint(&base.model),
            "parent": Value::Null,
            "transitions": [],
        });
        let mut files = peft::to_files(&adapter, &base.name, &manifest);
        files.push((PROBE_FILE.to_owned(), probe));
        Ok(Checked {
            digest,
            report: report(&adapter.config, &config),
            files,
        })
    }

    /// That learning can go on from it: a checkpoint can be written.
    fn can_learn(&self, base: &Base, adapter: &Adapter) -> Result<(), String> {
        let weights = adapter.config.weights(&base.model.config) as u64;
        let (checkpoint, most) = (CHECKPOINT_BYTES * weights, self.file_bytes_max);
        if checkpoint <= most {
            return Ok(());
        }
        Err(format!(
            "learning on from this adapter writes checkpoints of {checkpoint} bytes, and \
             store.blob_file_bytes_max is {most}; raise it, or import an adapter of a smaller rank \
             or fewer target_modules"
        ))
    }

    /// Makes its files durable under a name that nothing else has. Blocks.
    ///
    /// # Errors
    /// What the disk said.
    pub fn store(&self, scope: &Scope, id: &str, checked: &Checked) -> Result<BlobKey, String> {
        let key = adapter_key(scope, checked.digest);
        let key = BlobKey::new(format!("{}.{id}", key.as_str()));
        let key = key.map_err(|error| error.to_string())?;
        let stored = self.blobs.put(&key, &checked.files);
        stored.map_err(|error| error.to_string())?;
        Ok(key)
    }

    /// Removes the files of an adapter that no version names. Blocks.
    pub fn remove(&self, blob: &BlobKey) {
        if let Err(error) = self.blobs.remove(blob) {
            tracing::warn!(%error, "files of an adapter that was refused stay until they are pruned");
        }
    }
}

fn report(adapter: &AdapterConfig, config: &Map<String, Value>) -> Value {
    let modules: Vec<&str> = adapter.targets().iter().map(|t| t.module()).collect();
    let made_on = config.get("base_model_name_or_path");
    let made_on = made_on.and_then(Value::as_str).unwrap_or_default();
    let made_on: String = made_on.chars().take(NAME_CHARS_MAX).collect();
    json!({
        "imported": {
            "rank": adapter.rank(),
            "scale": adapter.scale(),
            "target_modules": modules,
            "base_model": made_on,
        },
    })
}

#[cfg(test)]
#[path = "importer_tests.rs"]
mod tests;
