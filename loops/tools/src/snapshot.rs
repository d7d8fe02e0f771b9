//! A work folder at a point in time, as what differs from the files that it began with.

use std::io::Read;

use sha2::{Digest, Sha256};

use crate::ToolsError;

/// What differs in a work folder from the files it began with. It is restored into a jail that began with the same
/// files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// SHA-256 in hexadecimal of the paths, modes and bytes below and of what the jail began with. Times do not count.
    pub digest: String,
    /// What is new or changed.
    pub tar: Vec<u8>,
    /// What is no longer there.
    pub removed: Vec<String>,
}

impl Snapshot {
    pub(crate) fn new(base: &str, tar: Vec<u8>, removed: Vec<String>) -> Result<Self, ToolsError> {
        let digest = digest(base, &tar, &removed)
            .map_err(|e| ToolsError::Files(format!("the snapshot cannot be read: {e}")))?;
        Ok(Self {
            digest,
            tar,
            removed,
        })
    }

    /// Whether the bytes are those that the digest was made from, in a jail that began with `base`.
    pub(crate) fn fits(&self, base: &str) -> bool {
        digest(base, &self.tar, &self.removed).is_ok_and(|d| d == self.digest)
    }
}

fn digest(base: &str, tar: &[u8], removed: &[String]) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(base.as_bytes());
    for path in removed {
        part(path.as_bytes());
    }
    part(b"");
    for entry in tar::Archive::new(tar).entries()? {
        let mut entry = entry?;
        part(&entry.path_bytes());
        part(&[entry.header().entry_type().as_byte()]);
        part(&entry.header().mode()?.to_le_bytes());
        part(&entry.link_name_bytes().unwrap_or_default());
        let mut content = Sha256::new();
        let mut piece = [0; 16 << 10];
        loop {
            match entry.read(&mut piece)? {
                0 => break,
                n => content.update(&piece[..n]),
            }
        }
        part(&content.finalize());
    }
    Ok(hex(&hash.finalize()))
}

/// SHA-256 of bytes, in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
