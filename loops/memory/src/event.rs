//! What the loop wants done and what comes back.

use hone_domain::Scope;
use hone_ledger::{Extraction, MemoryCounts, UnreadTurn};

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Read up to so many turns.
    Read {
        /// Most turns.
        limit: usize,
    },
    /// Keep what came of a turn.
    Store {
        /// Whose.
        scope: Scope,
        /// What.
        extraction: Box<Extraction>,
    },
}

/// What came of it.
#[derive(Debug)]
pub enum Report {
    /// The turns.
    Read(Result<Vec<UnreadTurn>, String>),
    /// What a turn came to.
    Stored(Result<MemoryCounts, String>),
}
