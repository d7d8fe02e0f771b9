//! A folder for data while measuring.

use std::path::{Path, PathBuf};

use uuid::Uuid;

/// A folder that goes away with its value.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// A new one under `root`.
    pub(super) fn new(root: &Path) -> Result<Self, String> {
        let path = root.join(format!("hone-bench-{}", Uuid::now_v7()));
        std::fs::create_dir_all(&path).map_err(|error| {
            format!(
                "the folder {} cannot be made: {error}; choose another with --folder",
                path.display()
            )
        })?;
        Ok(Self(path))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Where it is, as configuration takes it.
    pub(super) fn text(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            let path = self.0.display();
            eprintln!("hone-bench: the data folder {path} could not be removed: {error}");
        }
    }
}
