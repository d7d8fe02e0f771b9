//! The blob store as loops see it: named folders of files, written once, never changed.

use serde::{Deserialize, Serialize};

/// What keys of damaged folders begin with.
const ASIDE: &str = "damaged/";

/// Names a folder in the blob store: lower-case letters, digits, `-`, `_`, `.` and `/` between
/// non-empty parts that do not begin with a dot. It cannot leave the store's root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BlobKey(String);

impl BlobKey {
    /// Checks and wraps a key.
    pub fn new(text: impl Into<String>) -> Result<Self, BlobError> {
        let text = text.into();
        let good = !text.is_empty()
            && text.len() <= 255
            && text.split('/').all(|part| {
                !part.is_empty()
                    && !part.starts_with('.')
                    && part.bytes().all(|b| {
                        b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b)
                    })
            });
        if good {
            Ok(Self(text))
        } else {
            Err(BlobError::BadKey(text))
        }
    }

    /// Where a damaged folder of this key is kept. It has the parts of the key behind `damaged`, so that
    /// nothing takes it for one that is served; one that lies there already is its own.
    #[must_use]
    pub fn aside(&self) -> Self {
        match self.0.strip_prefix(ASIDE) {
            Some(_) => self.clone(),
            None => Self(format!("{ASIDE}{}", self.0)),
        }
    }

    /// The key's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for BlobKey {
    type Error = BlobError;

    fn try_from(text: String) -> Result<Self, BlobError> {
        Self::new(text)
    }
}

impl From<BlobKey> for String {
    fn from(key: BlobKey) -> Self {
        key.0
    }
}

/// Why a blob could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// The key has characters or parts that are not allowed.
    #[error("blob key {0:?} is not allowed: use lower-case letters, digits, - _ . and / only")]
    BadKey(String),
    /// Nothing is stored there.
    #[error("no file {file} in blob {key}")]
    Missing {
        /// Blob key.
        key: String,
        /// File name.
        file: String,
    },
    /// The store itself cannot be opened; the text names the folder and the remedy.
    #[error("{0}")]
    Unusable(String),
    /// The medium failed.
    #[error("blob {key}: {message}")]
    Io {
        /// Blob key.
        key: String,
        /// What happened, with the path and a remedy.
        message: String,
    },
}

/// Reads and writes immutable folders. Calls block, so they are made off the hot path.
pub trait Blobs: Send + Sync {
    /// Stores `files` under `key` so that either all are there and durable, or none. Writing a
    /// key that exists with the same content is a success; with other content it is an error.
    fn put(&self, key: &BlobKey, files: &[(String, Vec<u8>)]) -> Result<(), BlobError>;

    /// Reads one file.
    fn get(&self, key: &BlobKey, file: &str) -> Result<Vec<u8>, BlobError>;

    /// Folders of one kind, which is the first part of their keys (`kind/scope/digest`), with the
    /// milliseconds since they were stored; in no order.
    fn list(&self, kind: &str) -> Result<Vec<(BlobKey, u64)>, BlobError>;

    /// Removes a folder; a missing one is a success.
    fn remove(&self, key: &BlobKey) -> Result<(), BlobError>;

    /// Moves a damaged folder to its [`BlobKey::aside`], where nothing reads it and people can look at
    /// it; one that was moved there before goes. A missing one is a success.
    fn set_aside(&self, key: &BlobKey) -> Result<(), BlobError>;

    /// Whether a folder is stored.
    fn has(&self, key: &BlobKey) -> Result<bool, BlobError>;

    /// Every file of a folder, by name; none where it is not stored.
    fn files(&self, key: &BlobKey) -> Result<Vec<String>, BlobError>;

    /// What every kind takes, by name.
    fn sizes(&self) -> Result<Vec<BlobsSize>, BlobError>;

    /// Removes local copies of what another process removed, where there are copies.
    fn tidy(&self) -> Result<(), BlobError> {
        Ok(())
    }
}

/// What the folders of one kind take, which is the first part of their keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlobsSize {
    /// The kind.
    pub kind: String,
    /// Files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_cannot_leave_the_root() {
        for bad in [
            "", "/", "a/", "/a", "../a", "a/../b", "a/.b", "A", "a b", "a\\b", "a\0",
        ] {
            assert!(BlobKey::new(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "adapters/0123ab/v1", "a-b_c.d/e"] {
            assert!(BlobKey::new(good).is_ok(), "{good:?}");
        }
    }
}
