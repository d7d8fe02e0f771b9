//! Where the files of an adapter and of its learner lie.

use sha2::{Digest as _, Sha256};

use crate::{BlobKey, Digest, Scope};

/// Kind of the folders of adapters.
pub const ADAPTERS: &str = "adapters";
/// Kind of the folders of learners' states.
pub const LEARNERS: &str = "learner";

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
