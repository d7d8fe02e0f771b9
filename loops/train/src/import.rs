//! Adapters that were made elsewhere: held against the model that is served, and their files made
//! durable before a version names them.

use std::cell::Cell;
use std::sync::Arc;

use hone_checkpoint::{AdapterConfig, BaseEmbeddings, without_copies};
use hone_domain::{
    AdapterImporter, BlobKey, Blobs, CheckedAdapter, Digest, GivenAdapter, Scope, adapter_key,
    scope_hash,
};
use hone_kernels::Executor;
use hone_nn::{Adapter, Model, PROBE_FILE, peft};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

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

/// Checks and stores adapters.
pub struct Importer {
    base: Option<Base>,
    blobs: Arc<dyn Blobs>,
    file_bytes_max: u64,
    place: Arc<Semaphore>,
}

impl Importer {
    /// For a model, where this process has one. No file may have more bytes than that.
    pub fn new(base: Option<Base>, blobs: Arc<dyn Blobs>, file_bytes_max: u64) -> Self {
        Self {
            base,
            blobs,
            file_bytes_max,
            place: Arc::new(Semaphore::new(1)),
        }
    }

    fn checked(
        &self,
        base: &Base,
        scope: &Scope,
        given: GivenAdapter,
    ) -> Result<CheckedAdapter, String> {
        let GivenAdapter { config, weights } = given;
        let mut settings = config.clone();
        let embeddings = BaseEmbeddings {
            embed: &base.model.weights.embed,
            head: base.model.weights.head(),
        };
        let weights = without_copies(&mut settings, weights, embeddings);
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
        Ok(CheckedAdapter {
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
}

impl AdapterImporter for Importer {
    fn has_model(&self) -> bool {
        self.base.is_some()
    }

    fn place(&self) -> Option<Box<dyn Send + Sync>> {
        let place = self.place.clone().try_acquire_owned().ok()?;
        Some(Box::new(place))
    }

    fn check(&self, scope: &Scope, given: GivenAdapter) -> Result<CheckedAdapter, String> {
        let base = self.base.as_ref().ok_or("this process has no model")?;
        let checked = self.checked(base, scope, given);
        checked.map_err(|why| why.chars().take(FAULT_CHARS_MAX).collect())
    }

    fn store(&self, scope: &Scope, id: &str, checked: &CheckedAdapter) -> Result<BlobKey, String> {
        let key = adapter_key(scope, checked.digest);
        let key = BlobKey::new(format!("{}.{id}", key.as_str()));
        let key = key.map_err(|error| error.to_string())?;
        let stored = self.blobs.put(&key, &checked.files);
        stored.map_err(|error| error.to_string())?;
        Ok(key)
    }

    fn remove(&self, blob: &BlobKey) {
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
#[path = "import_tests.rs"]
mod tests;
