//! What other processes change of what this one remembers.

use async_trait::async_trait;
use hone_domain::Scope;

use crate::LedgerError;

/// What of a scope changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Its versions, and what is on trial.
    Policy,
    /// What may be learned from it.
    Consent,
    /// Its memories.
    Memory,
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

/// Changes, whichever process made them.
#[async_trait]
pub trait Changes: Send + Sync {
    /// The number of the newest change; 0 where there is none.
    async fn newest_change(&self) -> Result<u64, LedgerError>;

    /// The oldest changes behind a number, at most `limit`. What is read of the ledger after this is no older than they
    /// are.
    async fn changes_after(&self, number: u64, limit: usize) -> Result<Vec<Change>, LedgerError>;

    /// The number of the newest turn, for [`crate::Ledger::open_page`]: turns get theirs in the order in which they are
    /// stored. 0 where there is none.
    async fn newest_turn(&self) -> Result<i64, LedgerError>;

    /// Whether other processes may change what this one remembers.
    fn is_shared(&self) -> bool;

    /// Waits until something may have changed. That may be missed, and may come without reason.
    async fn rung(&self);
}
