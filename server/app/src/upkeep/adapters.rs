//! Where commands read the files of adapters: in the data folder, or in copies of what an object store has.

use std::path::{Path, PathBuf};

use hone_blobs::ObjectBlobs;
use hone_domain::{BlobKey, Blobs as _, BlobsSize};
use tempfile::TempDir;

use crate::config::Config;

/// The adapters of a server.
pub(super) struct Adapters {
    folder: PathBuf,
    /// The store, and where its copies go: apart from those of a server that runs.
    store: Option<(ObjectBlobs, TempDir)>,
}

impl Adapters {
    /// Those of a configuration; `folder` is its data folder.
    ///
    /// # Errors
    /// A sentence with a remedy.
    pub(super) fn open(config: &Config, folder: &Path) -> Result<Self, String> {
        let store = &config.store;
        let folder = folder.join("blobs");
        if store.objects.is_empty() {
            return Ok(Self {
                folder,
                store: None,
            });
        }
        let copies = TempDir::new().map_err(|error| format!("no folder for copies: {error}"))?;
        let cache = copies.path().join("cache");
        let opened = ObjectBlobs::open(&store.objects, &cache, u64::MAX, store.blob_file_bytes_max);
        let opened = opened.map_err(|error| error.to_string())?;
        Ok(Self {
            folder,
            store: Some((opened, copies)),
        })
    }

    /// What every kind takes, by name.
    ///
    /// # Errors
    /// A sentence.
    pub(super) fn sizes(&self) -> Result<Vec<BlobsSize>, String> {
        match &self.store {
            Some((store, _)) => store.sizes().map_err(|error| error.to_string()),
            None => hone_blobs::sizes(&self.folder)
                .map_err(|error| format!("{} cannot be read ({error})", self.folder.display())),
        }
    }

    /// The folder with the files of an adapter.
    ///
    /// # Errors
    /// Why there is none, as a sentence's part.
    pub(super) fn folder_of(&self, key: &BlobKey) -> Result<PathBuf, String> {
        let Some((store, copies)) = &self.store else {
            return Ok(self.folder.join(key.as_str()));
        };
        let to = copies.path().join(key.as_str());
        std::fs::create_dir_all(&to).map_err(|error| error.to_string())?;
        for file in store.files(key).map_err(|error| error.to_string())? {
            let bytes = store.get(key, &file).map_err(|error| error.to_string())?;
            std::fs::write(to.join(&file), bytes).map_err(|error| error.to_string())?;
        }
        Ok(to)
    }
}
