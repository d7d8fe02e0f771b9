//! A model folder or GGUF file: its shape, and its weights opened but not yet read.

use std::path::Path;

use crate::config::ModelConfig;
use crate::error::LoadError;
use crate::files::{CONFIG, Files};
use crate::tensor_files::TensorFiles;

/// Shape and weights of a model. Weights are opened but not yet read.
#[derive(Debug)]
pub struct Checkpoint {
    config: ModelConfig,
    tensors: TensorFiles,
}

impl Checkpoint {
    /// Opens a folder on disk, or a GGUF file.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        Self::from_files(&existing(path)?)
    }

    /// Reads the shape, and opens the weights.
    pub fn from_files(files: &Files) -> Result<Self, LoadError> {
        let raw = files.read(CONFIG, &why_config(files))?;
        let mut config = ModelConfig::from_json(&raw, &files.label(CONFIG))?;
        let tensors = TensorFiles::from_files(files)?;
        config.dtype = tensors.dtype();
        Ok(Self { config, tensors })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn tensors(&self) -> &TensorFiles {
        &self.tensors
    }
}

/// The files at `path`, which must exist.
pub fn existing(path: &Path) -> Result<Files, LoadError> {
    if !path.is_file() && !path.is_dir() {
        return Err(LoadError::MissingFile {
            file: path.display().to_string(),
            why:
                "there is no such folder or file; give the path of a model folder or of a GGUF file"
                    .to_owned(),
        });
    }
    Files::open(path)
}

/// What a folder without a config.json may be.
fn why_config(files: &Files) -> String {
    let Files::Folder(root) = files else {
        return "every model folder has one".to_owned();
    };
    let names = root.read_dir().into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    match names.filter(|name| name.ends_with(".gguf")).min() {
        Some(name) => format!("of a folder of GGUF files give one file, such as {name}"),
        None => "every model folder has one".to_owned(),
    }
}
