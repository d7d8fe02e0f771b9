//! What the loop wants done and what comes back.

use hone_domain::Scope;
use hone_ledger::{HeardTurn, Learnt, Lesson};

/// What is to be done.
#[derive(Debug)]
pub enum Effect {
    /// Read up to so many turns.
    Read {
        /// Most turns.
        limit: usize,
    },
    /// Keep what came of a turn.
    Learn {
        /// Whose.
        scope: Scope,
        /// What.
        lesson: Box<Lesson>,
    },
}

/// What came of it.
#[derive(Debug)]
pub enum Report {
    /// The turns.
    Heard(Result<Vec<HeardTurn>, String>),
    /// What a turn came to.
    Learnt(Result<Learnt, String>),
}
