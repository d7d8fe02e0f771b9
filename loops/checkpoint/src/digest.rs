//! Digests over named tensors: two models with equal digests hold the same values.

use sha2::{Digest, Sha256};

/// A SHA-256 digest.
pub type Digest32 = [u8; 32];

/// Feeds one tensor to a digest: name, shape, values, each with its length.
pub fn hash_tensor(hash: &mut Sha256, name: &str, shape: &[usize], data: &[f32]) {
    hash_head(hash, name, shape);
    hash_values(hash, data, &mut Vec::new());
}

/// Feeds name and shape of a tensor to a digest.
pub fn hash_head(hash: &mut Sha256, name: &str, shape: &[usize]) {
    hash.update((name.len() as u64).to_le_bytes());
    hash.update(name.as_bytes());
    hash.update((shape.len() as u64).to_le_bytes());
    for &n in shape {
        hash.update((n as u64).to_le_bytes());
    }
}

/// Feeds values to a digest; `bytes` is reused.
pub fn hash_values(hash: &mut Sha256, values: &[f32], bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    hash.update(bytes);
}
