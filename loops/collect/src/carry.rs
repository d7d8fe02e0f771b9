//! What survives a restart of the loop within its process.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hone_domain::TurnId;
use tokio::sync::SetOnce;

/// Turns that may be in the ledger without a signed receipt, and whether the session index was
/// restored already. Made once per process; every run gets a clone.
#[derive(Clone, Debug, Default)]
pub struct Carry {
    carried: Arc<Mutex<Carried>>,
    restored: Arc<SetOnce<()>>,
}

#[derive(Debug, Default)]
struct Carried {
    /// The run that wrote them will sign or settle them.
    in_doubt: HashSet<TurnId>,
    /// Their run is gone, and their receipts with it.
    orphaned: HashSet<TurnId>,
}

impl Carry {
    /// Waits until the sessions of earlier processes are in the index. Before that a request of
    /// one of them would begin another session.
    pub async fn restored(&self) {
        self.restored.wait().await;
    }

    /// Takes over turns that an earlier process left unsettled: the next run settles them before it writes
    /// anything.
    pub fn inherit(&self, turns: impl IntoIterator<Item = TurnId>) {
        self.carried().orphaned.extend(turns);
    }

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

    /// Whether the index is still to be restored.
    pub(crate) fn is_to_restore(&self) -> bool {
        !self.restored.initialized()
    }

    /// The index is restored, once per process.
    pub(crate) fn tell_restored(&self) {
        // Told already: a restart of the loop restores nothing.
        let _again = self.restored.set(());
    }

    fn carried(&self) -> MutexGuard<'_, Carried> {
        // A set stays a set whatever panicked while it was held.
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
