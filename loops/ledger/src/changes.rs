//! What other processes change of what this one remembers.

use async_trait::async_trait;
use hone_domain::{Scope, SessionId, TurnId};

use crate::{LedgerError, OpenPage};

/// What of a scope changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Its versions, and what is on trial.
    Policy,
    /// What may be learned from it.
    Consent,
    /// Its memories.
    Memory,
    /// Files of its adapters: those of an erasure were removed.
    Files,
}

/// A change; a later one of the same scope and topic takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its place among all: higher than that of every change that was committed before.
    pub number: u64,
    /// What changed.
    pub topic: Topic,
    /// Whose.
    pub scope: Scope,
}

/// Whether the caller knows a turn of a session.
pub type IsKnown<'a> = &'a (dyn Fn(SessionId, TurnId) -> bool + Send + Sync);

/// Changes, whichever process made them.
#[async_trait]
pub trait Changes: Send + Sync {
    /// The number of the newest change; 0 where there is none.
    async fn newest_change(&self) -> Result<u64, LedgerError>;

    /// The oldest changes behind a number, at most `limit`. What is read of the ledger after this is no older than they
    /// are.
    async fn changes_after(&self, number: u64, limit: usize) -> Result<Vec<Change>, LedgerError>;

    /// The number of the newest turn: turns get theirs in the order in which they are stored. 0 where there is none.
    async fn newest_turn(&self) -> Result<i64, LedgerError>;

    /// Turns that wait for a next state, from a number on, but for those that the caller knows: of `limit` turns at
    /// most, in their order. What cannot be read is left out.
    async fn unknown_page(
        &self,
        from: i64,
        limit: usize,
        is_known: IsKnown<'_>,
    ) -> Result<OpenPage, LedgerError>;

    /// Whether other processes may change what this one remembers.
    fn is_shared(&self) -> bool;

    /// Why this process no longer has a role that it took; none where it has all of them. Then another process may
    /// judge or train, and what this one still writes is refused.
    fn role_lost(&self) -> Option<String>;

    /// Waits until something may have changed. That may be missed, and may come without reason.
    async fn changed(&self);
}
