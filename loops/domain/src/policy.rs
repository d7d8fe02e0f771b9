//! Policies: whose weights, which version, and how they are named.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::BlobKey;

/// Whose policy. Built from the key owner and the request's `user` field, never across owners.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Scope(String);

impl Scope {
    /// The scope of `user` under `owner`; without a user it is the owner's own.
    /// Both parts are length-prefixed, so no choice of names makes two scopes equal.
    pub fn of(owner: &str, user: Option<&str>) -> Self {
        match user {
            Some(user) => Self(format!("{}:{owner}/{user}", owner.len())),
            None => Self(format!("{}:{owner}", owner.len())),
        }
    }

    /// Owner of the key; none where the text is no scope.
    pub fn owner(&self) -> Option<&str> {
        let (length, rest) = self.0.split_once(':')?;
        rest.get(..length.parse().ok()?)
    }

    /// Restores a scope from its stored text.
    pub fn from_stored(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Owner and user; none where the text is no scope.
    pub fn parts(&self) -> Option<(&str, Option<&str>)> {
        let (length, rest) = self.0.split_once(':')?;
        let owner = rest.get(..length.parse().ok()?)?;
        match rest.get(owner.len()..)? {
            "" => Some((owner, None)),
            user => Some((owner, Some(user.strip_prefix('/')?))),
        }
    }

    /// The stored text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names a published policy within its scope: 0 is the base model, +1 per publish.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PolicyVersion(pub u64);

impl PolicyVersion {
    /// The base model.
    pub const BASE: Self = Self(0);

    /// The version the next publish gets.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// SHA-256 over an adapter's canonical configuration and the tensors as served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Stands where there is no adapter.
    pub const NONE: Self = Self([0; 32]);

    /// Lower-case hexadecimal.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Parses 64 hexadecimal characters.
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({}…)", &self.to_hex()[..12])
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_hex())
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::from_hex(&text).ok_or_else(|| serde::de::Error::custom("not a SHA-256 in hex"))
    }
}

/// A published policy: names and places, never tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Policy {
    /// Whose.
    pub scope: Scope,
    /// Its number in that scope.
    pub version: PolicyVersion,
    /// Content hash of the adapter as served.
    pub digest: Digest,
    /// Where its files are.
    pub blob: BlobKey,
}

impl Policy {
    /// The base model published under a number of its own, as a rollback to version 0 does. It has
    /// no adapter: its digest is all zeros and no blob is read.
    ///
    /// # Panics
    /// Never: the blob's name is a plain word.
    pub fn base(scope: Scope, version: PolicyVersion) -> Self {
        Self {
            scope,
            version,
            digest: Digest::NONE,
            blob: BlobKey::new("base").expect("a plain word"),
        }
    }

    /// Whether it is the base model without an adapter.
    pub fn is_base(&self) -> bool {
        self.digest == Digest::NONE
    }
}

/// The newest policy of every scope that has one; scopes without an entry are served the base.
#[derive(Clone, Debug, Default)]
pub struct Policies(Arc<HashMap<Scope, Policy>>);

impl Policies {
    /// From the heads the ledger holds.
    pub fn from_heads(heads: impl IntoIterator<Item = Policy>) -> Self {
        Self(Arc::new(
            heads.into_iter().map(|p| (p.scope.clone(), p)).collect(),
        ))
    }

    /// The newest policy of `scope`.
    pub fn newest(&self, scope: &Scope) -> Option<&Policy> {
        self.0.get(scope)
    }

    /// The newest version of `scope`; 0 where none was published.
    pub fn version(&self, scope: &Scope) -> PolicyVersion {
        self.newest(scope)
            .map_or(PolicyVersion::BASE, |p| p.version)
    }

    /// The same with `policy` as its scope's newest. An older version never replaces a newer one,
    /// so a late message cannot move a scope backwards.
    #[must_use]
    pub fn with(&self, policy: Policy) -> Self {
        if self.version(&policy.scope) >= policy.version {
            return self.clone();
        }
        let mut map = (*self.0).clone();
        map.insert(policy.scope.clone(), policy);
        Self(Arc::new(map))
    }

    /// Every head, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.0.values()
    }

    /// Number of scopes with a published policy.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing was published yet.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Which policy an ask wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PolicyChoice {
    /// The newest of the ask's scope.
    Newest,
    /// The base model.
    Base,
    /// This adapter of the ask's scope, whatever is the newest.
    Exact(Policy),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_of_different_owners_never_collide() {
        assert_ne!(Scope::of("a/b", None), Scope::of("a", Some("b")));
        assert_ne!(Scope::of("a/b", Some("c")), Scope::of("a", Some("b/c")));
        assert_eq!(Scope::of("ä/b:", Some("c")).owner(), Some("ä/b:"));
        assert_eq!(Scope::of("a", None).owner(), Some("a"));
        assert_eq!(Scope::from_stored("9:a").owner(), None);
    }

    #[test]
    fn a_scope_tells_its_parts() {
        for (owner, user) in [
            ("a/b", None),
            ("a", Some("b/c")),
            ("o", Some("")),
            ("é:1", None),
        ] {
            assert_eq!(Scope::of(owner, user).parts(), Some((owner, user)));
        }
        for text in ["", "a", "5:abc", "1:ab", "x:a", "1:é"] {
            assert_eq!(Scope::from_stored(text).parts(), None, "{text}");
        }
    }

    #[test]
    fn a_late_policy_does_not_replace_a_newer_one() {
        let scope = Scope::of("o", None);
        let policy = |version| Policy {
            scope: scope.clone(),
            version: PolicyVersion(version),
            digest: Digest([version as u8; 32]),
            blob: BlobKey::new(format!("v{version}")).expect("plain name"),
        };
        let policies = Policies::default()
            .with(policy(1))
            .with(policy(3))
            .with(policy(2));
        assert_eq!(policies.version(&scope), PolicyVersion(3));
    }

    #[test]
    fn digest_hex_round_trips() {
        let digest = Digest([0xab; 32]);
        assert_eq!(Digest::from_hex(&digest.to_hex()), Some(digest));
        assert_eq!(Digest::from_hex("zz"), None);
    }
}
