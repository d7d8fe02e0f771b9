//! What survives a restart of the room within its process.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hone_domain::TurnId;

/// Turns that may be in the ledger without a signed receipt, and whether the session index was
/// restored already. Made once per process; every run gets a clone.
#[derive(Clone, Debug, Default)]
pub struct Carry(Arc<Mutex<Carried>>);

#[derive(Debug, Default)]
struct Carried {
    /// The run that wrote them will sign or settle them.
    in_doubt: HashSet<TurnId>,
    /// Their run is gone, and their receipts with it.
    orphaned: HashSet<TurnId>,
    restored: bool,
}

impl Carry {
    /// A run begins: what the one before it left in doubt is orphaned.
    pub(crate) fn begin_run(&self) {
        let mut carried = self.carried();
        let left = std::mem::take(&mut carried.in_doubt);
        carried.orphaned.extend(left);
    }

    /// Notes that `turns` are being written and nobody was told yet. They stay in doubt when the
    /// write fails, because a failed answer does not prove that nothing was written.
    pub(crate) fn doubt(&self, turns: impl IntoIterator<Item = TurnId>) {
        self.carried().in_doubt.extend(turns);
    }

    /// Notes that it is settled what `turns` are.
    pub(crate) fn clear(&self, turns: impl IntoIterator<Item = TurnId>) {
        let mut carried = self.carried();
        for turn in turns {
            carried.in_doubt.remove(&turn);
            carried.orphaned.remove(&turn);
        }
    }

    /// The turns that an earlier run left in doubt.
    pub(crate) fn orphaned(&self) -> Vec<TurnId> {
        self.carried().orphaned.iter().copied().collect()
    }

    /// Whether `turn` is in doubt, whoever left it so.
    pub(crate) fn doubts(&self, turn: TurnId) -> bool {
        let carried = self.carried();
        carried.in_doubt.contains(&turn) || carried.orphaned.contains(&turn)
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
