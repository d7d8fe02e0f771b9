//! Secrets: how they are made, hashed and compared. None of these functions logs or stores one.

use argon2::password_hash::phc::PasswordHash;
use argon2::{Algorithm, Argon2, Params, PasswordHasher, PasswordVerifier, Version};
use hone_domain::Digest;
use hone_ledger::User;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

/// Begin of every key.
const KEY_BEGIN: &str = "hone_";
/// Signs of a key's public part: 60 bits.
const ID_SIGNS: usize = 12;
/// Signs of a secret: 260 bits.
const SECRET_SIGNS: usize = 52;
/// 32 signs that are hard to take for one another.
const SIGNS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// Why a secret could not be made or hashed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SecretError(String);

/// A fresh key.
pub struct NewKey {
    /// Its public part.
    pub id: String,
    /// The whole key, to be shown once.
    pub key: String,
}

/// Makes a key: `hone_` + public part + `_` + secret.
pub fn new_key() -> Result<NewKey, SecretError> {
    let id = random_signs(ID_SIGNS)?;
    let key = format!("{}_{}", prefix(&id), random_signs(SECRET_SIGNS)?);
    Ok(NewKey { id, key })
}

/// What of a key may be shown.
pub fn prefix(id: &str) -> String {
    format!("{KEY_BEGIN}{id}")
}

/// Whether a text begins like a key of ours.
pub fn looks_like_key(text: &str) -> bool {
    text.starts_with(KEY_BEGIN)
}

/// The public part of a key, where the text has a key's form.
pub fn id_of(key: &str) -> Option<&str> {
    let rest = key.strip_prefix(KEY_BEGIN)?;
    let (id, secret) = rest.split_once('_')?;
    let is_made_of_signs = |text: &str| text.bytes().all(|b| SIGNS.contains(&b));
    let fits = id.len() == ID_SIGNS && secret.len() == SECRET_SIGNS;
    (fits && is_made_of_signs(id) && is_made_of_signs(secret)).then_some(id)
}

/// A random token for a cookie or a link.
pub fn new_token() -> Result<String, SecretError> {
    random_signs(SECRET_SIGNS)
}

fn random_signs(count: usize) -> Result<String, SecretError> {
    let mut bytes = [0u8; SECRET_SIGNS];
    let bytes = &mut bytes[..count];
    getrandom::fill(bytes)
        .map_err(|error| SecretError(format!("no randomness from the system: {error}")))?;
    let sign = |byte: &u8| char::from(SIGNS[usize::from(byte % 32)]);
    Ok(bytes.iter().map(sign).collect())
}

/// The stored form of a key, a cookie or a link: its 260 random bits cannot be guessed, so a fast hash is enough.
pub fn digest(secret: &str) -> Digest {
    Digest(Sha256::digest(secret.as_bytes()).into())
}

/// The value that a page sends beside its cookie.
pub fn csrf(token: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(b"hone csrf\0");
    hash.update(token.as_bytes());
    Digest(hash.finalize().into()).to_hex()
}

/// A token by which a device is known on which this account signed in.
pub fn new_device(user: &User) -> Result<String, SecretError> {
    let number = new_token()?;
    let proof = device_proof(user, &number).to_hex();
    Ok(format!("{number}.{proof}"))
}

/// The device of such a token, where it was made for this account and its present password.
pub fn device_of(user: &User, token: &str) -> Option<Digest> {
    let (number, proof) = token.split_once('.')?;
    let known = device_proof(user, number).to_hex();
    let is_ours = number.len() == SECRET_SIGNS && same(known.as_bytes(), proof.as_bytes());
    is_ours.then(|| digest(token))
}

/// Only who knows the stored hash can make it. Every part has one length, so none can be moved into another.
fn device_proof(user: &User, number: &str) -> Digest {
    let mut hash = Sha256::new();
    hash.update(b"hone device\0");
    for part in [
        user.password.as_deref().unwrap_or_default(),
        &user.name,
        number,
    ] {
        hash.update(digest(part).0);
    }
    Digest(hash.finalize().into())
}

/// Compares in constant time; only the lengths may show.
pub fn same(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

/// Memory in KiB and passes of Argon2id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    memory_kib: u32,
    passes: u32,
}

impl Cost {
    /// OWASP's minimum: 19 MiB, 2 passes.
    pub(crate) const PASSWORD: Self = Self {
        memory_kib: 19_456,
        passes: 2,
    };
    /// For tests, which sign in many times.
    #[cfg(test)]
    pub(crate) const LOW: Self = Self {
        memory_kib: 1_024,
        passes: 1,
    };
}

/// Argon2id of a password as a PHC string. Slow on purpose: not for async threads.
pub fn hash_password(password: &str) -> Result<String, SecretError> {
    hash_with(password, Cost::PASSWORD)
}

pub(crate) fn hash_with(password: &str, cost: Cost) -> Result<String, SecretError> {
    let failed = |what: String| SecretError(format!("a password could not be hashed: {what}"));
    let params = Params::new(cost.memory_kib, cost.passes, 1, None);
    let params = params.map_err(|error| failed(error.to_string()))?;
    let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let mut salt = [0u8; 16];
    getrandom::fill(&mut salt).map_err(|error| failed(error.to_string()))?;
    let hash = argon.hash_password_with_salt(password.as_bytes(), &salt);
    hash.map(|hash| hash.to_string())
        .map_err(|error| failed(error.to_string()))
}

/// Whether the Argon2id hash is of this password. Slow on purpose: not for async threads.
pub(crate) fn verify_password(hash: &str, password: &str) -> bool {
    let Ok(parsed) = PasswordHash::new(hash) else {
        tracing::error!("a stored password hash cannot be read; nobody can sign in with it");
        return false;
    };
    Argon2::default()
        .verify_password(password.as_bytes(), &parsed)
        .is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn keys_have_a_public_part_and_never_repeat() {
        let (a, b) = (new_key().unwrap(), new_key().unwrap());
        assert_ne!(a.key, b.key);
        assert_eq!(id_of(&a.key), Some(a.id.as_str()));
        assert!(a.key.starts_with(&prefix(&a.id)) && looks_like_key(&a.key));
        let cut = &a.key[..a.key.len() - 1];
        for wrong in [
            "",
            "hone_",
            "sk-x",
            cut,
            &format!("{}x", a.key),
            &a.key.to_uppercase(),
        ] {
            assert_eq!(id_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn hashes_are_salted_and_tell_secrets_apart() {
        for cost in [Cost::LOW, Cost::PASSWORD] {
            let hash = hash_with("right", cost).unwrap();
            assert!(hash.starts_with("$argon2id$v=19$"), "{hash}");
            assert!(verify_password(&hash, "right") && !verify_password(&hash, "wrong"));
            assert_ne!(hash, hash_with("right", cost).unwrap());
        }
        assert!(!verify_password("nonsense", "right"));
    }

    #[test]
    fn tokens_and_their_csrf_values_differ() {
        let token = new_token().unwrap();
        assert_eq!(token.len(), SECRET_SIGNS);
        assert_ne!(csrf(&token), digest(&token).to_hex());
        assert!(same(b"ab", b"ab") && !same(b"ab", b"ac") && !same(b"ab", b"a"));
    }
}
