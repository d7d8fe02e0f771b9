//! An adapter in memory, what asks for one, and what a request is bound to.

use std::sync::Arc;

use hone_domain::{Digest, Policy, PolicyVersion, Scope};
use hone_nn::Adapter;

use crate::reaper::Reaper;

/// What is to be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wanted {
    /// The newest version of a scope.
    Newest(Scope),
    /// One adapter, whatever is the newest.
    Exact(Policy),
}

impl Wanted {
    pub(crate) fn scope(&self) -> &Scope {
        match self {
            Self::Newest(scope) => scope,
            Self::Exact(policy) => &policy.scope,
        }
    }
}

/// An adapter in memory. Requests hold it by `Arc`, to their end.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// None where the version is the base model.
    pub(crate) adapter: Option<Adapter>,
    pub(crate) version: PolicyVersion,
    pub(crate) digest: Digest,
    pub(crate) bytes: u64,
    /// What it said when it was published, where it carries that.
    pub(crate) probe: Option<Vec<u8>>,
    /// Who drops it, if not the last who uses it.
    pub(crate) reaper: Option<Reaper>,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let (Some(adapter), Some(reaper)) = (self.adapter.take(), &self.reaper) {
            reaper.take(adapter);
        }
    }
}

impl Loaded {
    pub(super) fn is(&self, policy: &Policy) -> bool {
        self.version == policy.version && self.digest == policy.digest
    }
}

/// The version a request is bound to; no adapter is the base model.
#[derive(Clone, Debug)]
pub(crate) struct Pinned(pub(crate) Option<Arc<Loaded>>);

impl Pinned {
    pub(crate) fn base() -> Self {
        Self(None)
    }

    pub(crate) fn version(&self) -> PolicyVersion {
        self.0
            .as_ref()
            .map_or(PolicyVersion::BASE, |loaded| loaded.version)
    }

    pub(crate) fn digest(&self) -> Option<Digest> {
        let adapted = self.0.as_ref().filter(|loaded| loaded.adapter.is_some());
        adapted.map(|loaded| loaded.digest)
    }

    pub(crate) fn adapter(&self) -> Option<&Adapter> {
        self.0.as_deref()?.adapter.as_ref()
    }

    pub(super) fn is(&self, policy: &Policy) -> bool {
        self.0.as_ref().is_some_and(|loaded| loaded.is(policy))
    }

    /// Sorts requests into runs with the same adapter.
    pub(crate) fn group(&self) -> usize {
        let loaded = self.0.as_ref().filter(|loaded| loaded.adapter.is_some());
        loaded.map_or(0, |loaded| Arc::as_ptr(loaded) as usize)
    }
}

/// A finished load: the adapter, none for the base model, or why there is none.
pub(crate) type LoadResult = Result<Option<Arc<Loaded>>, String>;
