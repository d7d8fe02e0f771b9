//! Local copies of what an object store has. They are checked whenever they are read, so a damaged one is fetched again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use hone_domain::{BlobError, BlobKey};

use crate::manifest::{Manifest, digest};

/// The name of a manifest's copy; no file of a blob has it.
const MANIFEST: &str = ".manifest";

/// A folder per blob, with copies of some of its files.
pub(crate) struct Cache {
    root: PathBuf,
    bytes_max: u64,
    next: AtomicU64,
}

impl Cache {
    /// Opens the folder, which no other process uses.
    pub(crate) fn open(root: &Path, bytes_max: u64) -> Result<Self, BlobError> {
        fs::create_dir_all(root).map_err(|error| {
            BlobError::Unusable(format!(
                "the folder {} cannot be made ({error}); make it writable for this user",
                root.display()
            ))
        })?;
        Ok(Self {
            root: root.to_owned(),
            bytes_max,
            next: AtomicU64::new(0),
        })
    }

    fn folder(&self, key: &BlobKey) -> PathBuf {
        // One level, so that a folder is a key.
        self.root.join(key.as_str().replace('/', "~"))
    }

    /// A file, where there is a copy that is what the manifest says.
    pub(crate) fn get(&self, key: &BlobKey, file: &str) -> Option<Vec<u8>> {
        let folder = self.folder(key);
        let manifest = fs::read(folder.join(MANIFEST)).ok()?;
        let manifest: Manifest = serde_json::from_slice(&manifest).ok()?;
        let path = folder.join(file);
        let bytes = fs::read(&path).ok()?;
        if manifest.digest_of(file) != Some(&*digest(&bytes)) {
            tracing::warn!(path = %path.display(), "a cached file is damaged and is fetched again");
            let _ = fs::remove_file(&path);
            return None;
        }
        // What was read lately goes last.
        if let Ok(used) = fs::File::open(&folder) {
            let _ = used.set_modified(SystemTime::now());
        }
        Some(bytes)
    }

    /// Keeps copies of files of a blob. Where that fails, they are fetched again.
    pub(crate) fn keep<'a>(
        &self,
        key: &BlobKey,
        manifest: &Manifest,
        files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) {
        if let Err(error) = self.write(key, manifest, files) {
            tracing::warn!(%error, folder = %self.root.display(), "an adapter could not be kept in the cache");
        }
    }

    /// The first files of a blob bring its manifest along, and make room for all of them.
    fn write<'a>(
        &self,
        key: &BlobKey,
        manifest: &Manifest,
        files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> io::Result<()> {
        let folder = self.folder(key);
        fs::create_dir_all(&folder)?;
        for (name, bytes) in files {
            self.put(&folder, name, bytes)?;
        }
        let written = serde_json::to_vec(manifest)?;
        if fs::read(folder.join(MANIFEST)).is_ok_and(|kept| kept == written) {
            return Ok(());
        }
        self.put(&folder, MANIFEST, &written)?;
        self.evict(key, manifest.bytes() + written.len() as u64)
    }

    /// Renames a file into place, so that nobody reads half of it.
    fn put(&self, folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.root.join(format!(".{number}"));
        fs::write(&unfinished, bytes)?;
        fs::rename(&unfinished, folder.join(name))
    }

    /// Removes the copies of a blob.
    pub(crate) fn forget(&self, key: &BlobKey) {
        let folder = self.folder(key);
        if let Err(error) = fs::remove_dir_all(&folder)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, folder = %folder.display(), "copies could not be removed");
        }
    }

    /// Blobs of which there are copies.
    pub(crate) fn keys(&self) -> Vec<BlobKey> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter_map(|name| BlobKey::new(name.replace('~', "/")).ok())
            .collect()
    }

    /// Removes what was used longest ago, until the rest fits beside a blob of so many bytes, which stays.
    fn evict(&self, stays: &BlobKey, bytes: u64) -> io::Result<()> {
        let mut folders = Vec::new();
        let mut all = bytes;
        for key in self.keys() {
            if key == *stays {
                continue;
            }
            let folder = self.folder(&key);
            let used = fs::metadata(&folder)?.modified()?;
            let mut bytes = 0;
            for entry in fs::read_dir(&folder)? {
                bytes += entry?.metadata()?.len();
            }
            all += bytes;
            folders.push((used, key, bytes));
        }
        folders.sort_unstable_by_key(|(used, _, _)| *used);
        for (_, key, bytes) in folders {
            if all <= self.bytes_max {
                break;
            }
            self.forget(&key);
            all -= bytes;
        }
        Ok(())
    }
}
