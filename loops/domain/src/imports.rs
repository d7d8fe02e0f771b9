//! Adapters that were made elsewhere, as those who take them in see it.

use serde_json::{Map, Value};

use crate::{BlobKey, Digest, Scope};

/// An adapter as it was given: the two files of a PEFT folder.
pub struct GivenAdapter {
    /// adapter_config.json.
    pub config: Map<String, Value>,
    /// adapter_model.safetensors.
    pub weights: Vec<u8>,
}

/// An adapter that the served model computes.
pub struct CheckedAdapter {
    /// Content hash as served.
    pub digest: Digest,
    /// What it is: rank, scale, projections, and the base model that its maker names.
    pub report: Value,
    /// Its files by name.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Checks and stores adapters.
pub trait AdapterImporter: Send + Sync {
    /// Whether this process has a model to hold adapters against.
    fn has_model(&self) -> bool;

    /// The place of the one import under way, until it is dropped; none where it is taken.
    fn place(&self) -> Option<Box<dyn Send + Sync>>;

    /// Whether the model computes what is given, and what it is then. Takes a while, off the async
    /// threads.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    fn check(&self, scope: &Scope, given: GivenAdapter) -> Result<CheckedAdapter, String>;

    /// Makes its files durable under a name that nothing else has. Blocks.
    ///
    /// # Errors
    /// What the disk said.
    fn store(&self, scope: &Scope, id: &str, checked: &CheckedAdapter) -> Result<BlobKey, String>;

    /// Removes the files of an adapter that no version names. Blocks.
    fn remove(&self, blob: &BlobKey);
}
