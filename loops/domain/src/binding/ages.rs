//! How long sessions have been idle, and which of them goes first where there is no room.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::{Millis, SessionId};

/// When a session was last used, and which it is.
pub(super) type Age = (Millis, SessionId);

/// Sessions by their age, all of them and each owner's.
#[derive(Debug, Default)]
pub(super) struct Ages {
    all: BTreeSet<Age>,
    owners: HashMap<Arc<str>, BTreeSet<Age>>,
    /// Every owner once: how many sessions they have, and since when the first of them is idle.
    ranks: BTreeSet<Rank>,
}

type Rank = (usize, Reverse<Age>, Arc<str>);

fn rank(owner: &Arc<str>, sessions: &BTreeSet<Age>) -> Option<Rank> {
    let longest_idle = *sessions.first()?;
    Some((sessions.len(), Reverse(longest_idle), owner.clone()))
}

impl Ages {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.owners.is_empty() && self.ranks.is_empty()
    }

    pub(super) fn insert(&mut self, owner: &Arc<str>, age: Age) {
        self.all.insert(age);
        self.change(owner, |sessions| sessions.insert(age));
    }

    pub(super) fn remove(&mut self, owner: &Arc<str>, age: &Age) {
        self.all.remove(age);
        self.change(owner, |sessions| sessions.remove(age));
    }

    fn change(&mut self, owner: &Arc<str>, change: impl FnOnce(&mut BTreeSet<Age>) -> bool) {
        let sessions = self.owners.entry(owner.clone()).or_default();
        if let Some(before) = rank(owner, sessions) {
            self.ranks.remove(&before);
        }
        change(sessions);
        match rank(owner, sessions) {
            Some(after) => drop(self.ranks.insert(after)),
            None => drop(self.owners.remove(owner)),
        }
    }

    /// The session that is idle for longest.
    pub(super) fn longest_idle(&self) -> Option<Age> {
        self.all.first().copied()
    }

    /// The session that goes where there is no room: the longest idle one of whoever has most, so
    /// that who begins many ends their own.
    pub(super) fn first_to_go(&self) -> Option<SessionId> {
        let (_, Reverse((_, session)), _) = self.ranks.last()?;
        Some(*session)
    }
}
