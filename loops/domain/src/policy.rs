//! Policies: whose weights, which version, and how they are named.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{BlobKey, Holdback, SessionId};

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

    /// The scope that a person means: by its text, or an owner's own by the owner's name.
    pub fn meant(text: &str) -> Self {
        let scope = Self::from_stored(text);
        match scope.parts() {
            Some(_) => scope,
            None => Self::of(text, None),
        }
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

/// A SHA-256: of an adapter's canonical configuration and its tensors as served, or of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Stands where there is no adapter.
    pub const NONE: Self = Self([0; 32]);

    /// The SHA-256 of a content.
    pub fn of(content: &[u8]) -> Self {
        Self(Sha256::digest(content).into())
    }

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

/// A newest version that only a share of its scope's sessions gets, until it is proven.
#[derive(Clone, Debug, PartialEq)]
pub struct OnTrial {
    /// On trial.
    pub policy: Policy,
    /// What the other sessions get.
    pub proven: Policy,
    /// Share of the sessions that it answers, above 0 and below 1.
    pub share: f64,
}

impl OnTrial {
    /// Whether it answers a session. A function of version and session alone, so a session stays
    /// where it is.
    pub fn draws(&self, session: SessionId) -> bool {
        let draw = Holdback {
            share: self.share,
            seed: !self.policy.version.0,
        };
        draw.draws(session)
    }
}

/// What is published for a scope.
#[derive(Clone, Debug)]
struct Published {
    newest: Policy,
    trial: Option<OnTrial>,
}

/// The newest policy of every scope that has one; scopes without an entry are served the base.
#[derive(Clone, Debug, Default)]
pub struct Policies(Arc<HashMap<Scope, Published>>);

impl Policies {
    /// From the heads the ledger holds, none of them on trial.
    pub fn from_heads(heads: impl IntoIterator<Item = Policy>) -> Self {
        let published = |newest: Policy| {
            let trial = None;
            (newest.scope.clone(), Published { newest, trial })
        };
        Self(Arc::new(heads.into_iter().map(published).collect()))
    }

    /// The newest policy of `scope`.
    pub fn newest(&self, scope: &Scope) -> Option<&Policy> {
        self.0.get(scope).map(|published| &published.newest)
    }

    /// What of `scope` is on trial.
    pub fn trial(&self, scope: &Scope) -> Option<&OnTrial> {
        self.0.get(scope)?.trial.as_ref()
    }

    /// The newest version of `scope`; 0 where none was published.
    pub fn version(&self, scope: &Scope) -> PolicyVersion {
        self.newest(scope)
            .map_or(PolicyVersion::BASE, |p| p.version)
    }

    /// What a session of `scope` gets that asks for no version by name.
    pub fn choice(&self, scope: &Scope, session: SessionId) -> PolicyChoice {
        match self.trial(scope) {
            Some(trial) if !trial.draws(session) => PolicyChoice::of(&trial.proven),
            _ => PolicyChoice::Newest,
        }
    }

    /// What of `scope` has proven itself: its newest version, or what that is on trial against.
    pub fn stable(&self, scope: &Scope) -> PolicyChoice {
        let proven = self.trial(scope).map(|trial| &trial.proven);
        let stable = proven.or_else(|| self.newest(scope));
        stable.map_or(PolicyChoice::Base, PolicyChoice::of)
    }

    /// The same with what another process published: the newer version of each scope, and where both know the same one,
    /// what `read` says of its trial.
    #[must_use]
    pub fn merged(&self, read: &Self) -> Self {
        let mut all = (*self.0).clone();
        for (scope, published) in read.0.iter() {
            if self.version(scope) <= published.newest.version {
                all.insert(scope.clone(), published.clone());
            }
        }
        Self(Arc::new(all))
    }

    /// The same with `policy` as its scope's newest, which ends a trial. An older version never
    /// replaces a newer one, so a late message cannot move a scope backwards.
    #[must_use]
    pub fn with(&self, policy: Policy) -> Self {
        if self.version(&policy.scope) >= policy.version {
            return self.clone();
        }
        self.put(policy, None)
    }

    /// The same with a version as its scope's newest, and on trial; unless there is a newer one.
    #[must_use]
    pub fn on_trial(&self, trial: OnTrial) -> Self {
        if self.version(&trial.policy.scope) > trial.policy.version {
            return self.clone();
        }
        self.put(trial.policy.clone(), Some(trial))
    }

    /// The same with `version` for every session of its scope, where it was on trial.
    #[must_use]
    pub fn proven(&self, scope: &Scope, version: PolicyVersion) -> Self {
        match self.trial(scope) {
            Some(trial) if trial.policy.version == version => self.put(trial.policy.clone(), None),
            _ => self.clone(),
        }
    }

    fn put(&self, newest: Policy, trial: Option<OnTrial>) -> Self {
        let mut map = (*self.0).clone();
        map.insert(newest.scope.clone(), Published { newest, trial });
        Self(Arc::new(map))
    }

    /// Every head, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.0.values().map(|published| &published.newest)
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

impl PolicyChoice {
    /// This policy and no other.
    pub fn of(policy: &Policy) -> Self {
        if policy.version == PolicyVersion::BASE {
            return Self::Base;
        }
        Self::Exact(policy.clone())
    }
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
            assert_eq!(
                Scope::meant(Scope::of(owner, user).as_str()),
                Scope::of(owner, user)
            );
        }
        for text in ["", "a", "5:abc", "1:ab", "x:a", "1:é"] {
            assert_eq!(Scope::from_stored(text).parts(), None, "{text}");
            assert_eq!(Scope::meant(text), Scope::of(text, None));
        }
    }

    #[test]
    fn a_late_policy_does_not_replace_a_newer_one() {
        let scope = Scope::of("o", None);
        let policies = Policies::default()
            .with(policy(&scope, 1))
            .with(policy(&scope, 3))
            .with(policy(&scope, 2));
        assert_eq!(policies.version(&scope), PolicyVersion(3));
    }

    fn policy(scope: &Scope, version: u64) -> Policy {
        Policy {
            scope: scope.clone(),
            version: PolicyVersion(version),
            digest: Digest([version as u8; 32]),
            blob: BlobKey::new(format!("v{version}")).expect("plain name"),
        }
    }

    fn session(n: u128) -> SessionId {
        SessionId(uuid::Uuid::from_u128(n << 64 | n))
    }

    #[test]
    fn a_trial_takes_its_share_of_the_sessions_and_no_other() {
        let scope = Scope::of("o", None);
        let trial = |share| OnTrial {
            policy: policy(&scope, 3),
            proven: policy(&scope, 2),
            share,
        };
        let heads = Policies::default().with(policy(&scope, 2));
        for share in [0.05, 0.3, 0.9] {
            let heads = heads.on_trial(trial(share));
            let drawn = (0..20_000).filter(|n| {
                let choice = heads.choice(&scope, session(*n));
                assert_eq!(choice, heads.choice(&scope, session(*n)), "it stays");
                let other = PolicyChoice::Exact(policy(&scope, 2));
                assert!(choice == PolicyChoice::Newest || choice == other);
                choice == PolicyChoice::Newest
            });
            let drawn = drawn.count() as f64 / 20_000.0;
            // Four standard deviations of a binomial share.
            assert!((drawn - share).abs() <= 4.0 * (share * (1.0 - share) / 2e4).sqrt());
        }
    }

    #[test]
    fn a_trial_ends_by_proof_or_by_a_newer_version() {
        let scope = Scope::of("o", None);
        let exact = |version| PolicyChoice::Exact(policy(&scope, version));
        let heads = Policies::default();
        assert_eq!(heads.stable(&scope), PolicyChoice::Base);
        let trial = OnTrial {
            policy: policy(&scope, 1),
            proven: Policy::base(scope.clone(), PolicyVersion::BASE),
            share: 0.5,
        };
        let tried = heads.on_trial(trial.clone());
        assert_eq!(tried.version(&scope), PolicyVersion(1));
        assert_eq!(tried.stable(&scope), PolicyChoice::Base);
        assert_eq!(tried.with(policy(&scope, 1)).trial(&scope), Some(&trial));
        assert_eq!(
            tried.proven(&scope, PolicyVersion(2)).trial(&scope),
            Some(&trial)
        );
        let proven = tried.proven(&scope, PolicyVersion(1));
        assert_eq!(
            (proven.trial(&scope), proven.stable(&scope)),
            (None, exact(1))
        );
        let newer = tried.with(policy(&scope, 2));
        assert_eq!(
            (newer.trial(&scope), newer.stable(&scope)),
            (None, exact(2))
        );
        // News of a trial that a newer version has ended comes too late.
        assert_eq!(newer.on_trial(trial).trial(&scope), None);
    }

    #[test]
    fn digest_hex_round_trips() {
        let digest = Digest([0xab; 32]);
        assert_eq!(Digest::from_hex(&digest.to_hex()), Some(digest));
        assert_eq!(Digest::from_hex("zz"), None);
    }
}
