//! Adapters that are asked for by name, and loads that failed.

use std::sync::Arc;

use super::loaded::Loaded;

/// A load that failed, and when it is worth another try.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) error: String,
    pub(super) retry_at_ms: i64,
}

impl Failed {
    pub(super) fn rests(&self, now_ms: i64) -> bool {
        now_ms < self.retry_at_ms
    }
}

/// An exact version that was asked for.
#[derive(Debug)]
pub(super) struct Exact {
    pub(super) state: ExactState,
    /// The number of its last use, which no other adapter has.
    pub(super) used: u64,
}

#[derive(Debug)]
pub(super) enum ExactState {
    Loading,
    Loaded(Arc<Loaded>),
    Failed(Failed),
}

impl Exact {
    pub(super) fn loading() -> Self {
        let state = ExactState::Loading;
        Self { state, used: 0 }
    }

    pub(super) fn loaded(&self) -> Option<&Arc<Loaded>> {
        match &self.state {
            ExactState::Loaded(loaded) => Some(loaded),
            ExactState::Loading | ExactState::Failed(_) => None,
        }
    }

    pub(super) fn into_loaded(self) -> Option<Arc<Loaded>> {
        match self.state {
            ExactState::Loaded(loaded) => Some(loaded),
            ExactState::Loading | ExactState::Failed(_) => None,
        }
    }
}
