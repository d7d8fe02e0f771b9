//! What survives a restart of the room within its process.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hone_domain::TurnId;

/// Turns whose receipts were lost when the room failed between writing and signing, and whether
/// the session index was restored already. Made once per process; every run gets a clone.
#[derive(Clone, Debug, Default)]
pub struct Carry(Arc<Mutex<Carried>>);

#[derive(Debug, Default)]
struct Carried {
    in_doubt: HashSet<TurnId>,
    restored: bool,
}

impl Carry {
    /// Notes that `turns` are being written and nobody was told yet.
    pub(crate) fn doubt(&self, turns: impl IntoIterator<Item = TurnId>) {
        self.carried().in_doubt.extend(turns);
    }

    /// Notes that it is settled what `turns` are.
    pub(crate) fn clear(&self, turns: impl IntoIterator<Item = TurnId>) {
        let mut carried = self.carried();
        for turn in turns {
            carried.in_doubt.remove(&turn);
        }
    }

    /// The turns in doubt.
    pub(crate) fn in_doubt(&self) -> Vec<TurnId> {
        self.carried().in_doubt.iter().copied().collect()
    }

    /// Whether the index is still to be restored; true once per process.
    pub(crate) fn take_restore(&self) -> bool {
        !std::mem::replace(&mut self.carried().restored, true)
    }

    fn carried(&self) -> MutexGuard<'_, Carried> {
        // A set stays a set whatever panicked while it was held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
