//! Saving: a candidate's files, durable before anything names them.

use hone_domain::{BlobError, BlobKey, Blobs, Digest, Scope, adapter_key, checkpoint_key};
use sha2::{Digest as _, Sha256};

use crate::candidate::Candidate;

/// Name of the learner's state in its folder.
pub const CHECKPOINT_FILE: &str = "learner.safetensors";

/// Name of the file beside it that has the SHA-256 of its bytes, in hexadecimal digits.
pub(crate) const CHECKPOINT_DIGEST_FILE: &str = "learner.sha256";

/// Writes the checkpoint, then the adapter, and reads the adapter back.
///
/// # Errors
/// What the medium said, or that it returned other bytes than were written.
pub(crate) fn save(
    blobs: &dyn Blobs,
    scope: &Scope,
    candidate: &Candidate,
) -> Result<BlobKey, String> {
    let digest = digest_of(&candidate.files.checkpoint).to_hex().into_bytes();
    let checkpoint = [
        (
            CHECKPOINT_FILE.to_owned(),
            candidate.files.checkpoint.clone(),
        ),
        (CHECKPOINT_DIGEST_FILE.to_owned(), digest),
    ];
    put(blobs, &checkpoint_key(scope, candidate.digest), &checkpoint)?;
    let key = adapter_key(scope, candidate.digest);
    put(blobs, &key, &candidate.files.adapter)?;
    Ok(key)
}

fn digest_of(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

/// Reads a learner's state; none where there is none, or where its bytes are not those that were saved. One
/// of an older program has no digest beside it, and is taken as it is.
///
/// # Errors
/// What the medium said.
pub(crate) fn read_checkpoint(
    blobs: &dyn Blobs,
    key: &BlobKey,
) -> Result<Option<Vec<u8>>, BlobError> {
    let there = |file: &str| match blobs.get(key, file) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(BlobError::Missing { .. }) => Ok(None),
        Err(error) => Err(error),
    };
    let Some(state) = there(CHECKPOINT_FILE)? else {
        tracing::info!(blob = key.as_str(), "no checkpoint; fresh moments");
        return Ok(None);
    };
    let saved = there(CHECKPOINT_DIGEST_FILE)?;
    if saved.is_some_and(|saved| saved != digest_of(&state).to_hex().as_bytes()) {
        tracing::warn!(
            blob = key.as_str(),
            "the checkpoint is damaged; fresh moments"
        );
        return Ok(None);
    }
    Ok(Some(state))
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

    #[test]
    fn a_damaged_checkpoint_is_no_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = hone_blobs::FsBlobs::open(folder.path(), 1_000).unwrap();
        let key = checkpoint_key(&Scope::of("o", None), Digest([1; 32]));
        let read = || read_checkpoint(&blobs, &key).unwrap();
        assert_eq!(read(), None);
        let state = (CHECKPOINT_FILE.to_owned(), b"moments".to_vec());
        put(&blobs, &key, std::slice::from_ref(&state)).unwrap();
        assert_eq!(read().as_deref(), Some(&*state.1), "of an older program");
        blobs.remove(&key).unwrap();
        let digest = digest_of(&state.1).to_hex().into_bytes();
        put(
            &blobs,
            &key,
            &[state, (CHECKPOINT_DIGEST_FILE.to_owned(), digest)],
        )
        .unwrap();
        assert_eq!(read().as_deref(), Some(&b"moments"[..]));
        let file = folder.path().join(key.as_str()).join(CHECKPOINT_FILE);
        std::fs::write(file, b"momentz").unwrap();
        assert_eq!(read(), None, "one flipped bit");
    }
}
