//! What a blob in an object store is made of.

use std::collections::BTreeMap;

use hone_domain::BlobKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A file of a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// SHA-256 of its content, in hex.
    pub(crate) sha256: String,
    bytes: u64,
}

/// What a blob is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The key below whose name its files lie.
    pub(crate) folder: String,
    pub(crate) files: BTreeMap<String, Entry>,
}

impl Manifest {
    /// Of files below a key.
    pub(crate) fn of(key: &BlobKey, files: &[(String, Vec<u8>)]) -> Self {
        let entry = |bytes: &Vec<u8>| Entry {
            sha256: digest(bytes),
            bytes: bytes.len() as u64,
        };
        Self {
            folder: key.as_str().to_owned(),
            files: files
                .iter()
                .map(|(name, bytes)| (name.clone(), entry(bytes)))
                .collect(),
        }
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.values().map(|entry| entry.bytes).sum()
    }

    /// The digest of a file's content.
    pub(crate) fn digest_of(&self, file: &str) -> Option<&str> {
        self.files.get(file).map(|entry| &*entry.sha256)
    }
}

/// SHA-256 in hex.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
