//! Saving: a candidate's files, durable before anything names them.

use hone_domain::{BlobError, BlobKey, Blobs, Digest, Scope};
use sha2::{Digest as _, Sha256};

use crate::trainer::Candidate;

/// Kind of the folders of adapters.
pub(crate) const ADAPTERS: &str = "adapters";
/// Kind of the folders of learners' states.
pub(crate) const LEARNERS: &str = "learner";

/// Name of the learner's state in its folder.
pub const CHECKPOINT_FILE: &str = "learner.safetensors";

/// Where the adapter of that digest lies.
///
/// # Panics
/// Never: the parts are hexadecimal.
pub fn adapter_key(scope: &Scope, digest: Digest) -> BlobKey {
    key(ADAPTERS, scope, digest)
}

/// Where the learner's state after that adapter lies.
///
/// # Panics
/// Never: the parts are hexadecimal.
pub fn checkpoint_key(scope: &Scope, digest: Digest) -> BlobKey {
    key(LEARNERS, scope, digest)
}

/// First 16 hexadecimal digits of the scope's hash: a folder name without user text.
pub fn scope_hash(scope: &Scope) -> String {
    let hash = Sha256::digest(scope.as_str().as_bytes());
    hash.iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn key(kind: &str, scope: &Scope, digest: Digest) -> BlobKey {
    let text = format!("{kind}/{}/{}", scope_hash(scope), &digest.to_hex()[..16]);
    BlobKey::new(text).expect("hexadecimal parts are allowed")
}

/// Writes the checkpoint, then the adapter, and reads the adapter back.
///
/// # Errors
/// What the medium said, or that it returned other bytes than were written.
pub(crate) fn save(
    blobs: &dyn Blobs,
    scope: &Scope,
    candidate: &Candidate,
) -> Result<BlobKey, String> {
    let checkpoint = [(CHECKPOINT_FILE.to_owned(), candidate.checkpoint.clone())];
    put(blobs, &checkpoint_key(scope, candidate.digest), &checkpoint)?;
    let key = adapter_key(scope, candidate.digest);
    put(blobs, &key, &candidate.files)?;
    Ok(key)
}

fn put(blobs: &dyn Blobs, key: &BlobKey, files: &[(String, Vec<u8>)]) -> Result<(), String> {
    let sentence = |e: BlobError| e.to_string();
    blobs.put(key, files).map_err(sentence)?;
    for (name, bytes) in files {
        if blobs.get(key, name).map_err(sentence)? != *bytes {
            return Err(format!(
                "{name} in blob {} reads back with other bytes",
                key.as_str()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn keys_are_stable_distinct_and_hold_no_user_text() {
        let (anna, bert) = (Scope::of("o", Some("Anna")), Scope::of("o", Some("Bert")));
        let digest = Digest([0xab; 32]);
        let key = adapter_key(&anna, digest);
        assert!(
            key.as_str().starts_with("adapters/") && key.as_str().ends_with("/abababababababab")
        );
        assert!(!key.as_str().contains("nna"));
        assert_ne!(key, adapter_key(&bert, digest));
        assert_ne!(key, checkpoint_key(&anna, digest));
        assert_eq!(key, adapter_key(&anna, digest));
    }
}
