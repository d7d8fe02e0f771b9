//! Adapters as PEFT folders: [`hone_checkpoint::peft`] with [`Adapter`] instead of named tensors.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde_json::Value;

use crate::adapter::Adapter;
use hone_checkpoint::config::ModelConfig;
pub use hone_checkpoint::peft::{
    CONFIG_FILE, MANIFEST_FILE, PICKLE_FILE, PeftError, WEIGHTS_FILE, digest, for_peft,
};

/// The files of `adapter`: (name, content). `base_name` is what PEFT shows as its base model.
pub fn to_files(adapter: &Adapter, base_name: &str, manifest: &Value) -> Vec<(String, Vec<u8>)> {
    hone_checkpoint::peft::to_files(&adapter.config, &adapter.to_tensors(), base_name, manifest)
}

/// Writes the files of `adapter` into the existing, empty folder `dir`, and returns when they and
/// the folder's entries are on disk. Renaming the folder to its final place is the caller's part.
pub fn save(dir: &Path, adapter: &Adapter, base_name: &str, manifest: &Value) -> io::Result<()> {
    for (name, bytes) in to_files(adapter, base_name, manifest) {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(dir.join(name))?;
        file.write_all(&bytes)?;
        file.sync_all()?;
    }
    File::open(dir)?.sync_all()
}

/// Reads an adapter for a model of shape `cfg`; `files` gives the content of a file by name.
pub fn load(
    files: &dyn Fn(&str) -> Option<Vec<u8>>,
    cfg: &ModelConfig,
) -> Result<Adapter, PeftError> {
    let (config, tensors) = hone_checkpoint::peft::read(files)?;
    Ok(Adapter::from_tensors(cfg, config, tensors)?)
}

#[cfg(test)]
#[path = "peft_tests.rs"]
mod tests;
