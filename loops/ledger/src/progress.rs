//! What each consumer has read of turns and of the verdicts on them.
//!
//! Judge and train claim work under a lease, because only one may do it, and it decides the fate of a turn. Everything
//! else *follows*: it reads every turn once, and every revision of the verdict on it, whatever that fate is.

use async_trait::async_trait;
use hone_domain::{Millis, TurnId};

use crate::LedgerError;

/// The consumer that keeps memories. It is enrolled from the beginning, and follows turns whose requests used memories.
pub const MEMORY_CONSUMER: &str = "memory";

/// Most consumers that may be enrolled.
pub const FOLLOWERS_MAX: usize = 64;

/// Longest name of a consumer, in bytes.
pub const FOLLOWER_NAME_MAX: usize = 80;

/// A consumer that was enrolled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follower {
    /// Its name.
    pub name: String,
    /// What it asked for when it was enrolled; only the consumer itself understands it.
    pub spec: String,
    /// When it was enrolled.
    pub created_ms: Millis,
    /// When it last acknowledged something.
    pub read_ms: Option<Millis>,
    /// How often it acknowledged a turn or a revised verdict.
    pub read_count: u64,
    /// Turns that it has something to read of. Turns from before it was enrolled count once they are noted.
    pub unread: u64,
}

/// A turn of which a consumer has something to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Its place among unread turns.
    pub number: i64,
    /// The turn.
    pub turn: TurnId,
    /// The turn itself was not read yet.
    pub is_new: bool,
    /// The revision of its verdict that was not read yet.
    pub revision: Option<u64>,
    /// Main turns that continue it.
    pub continued_by: Vec<TurnId>,
}

/// What a consumer has read of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The turn.
    pub turn: TurnId,
    /// It read the turn itself.
    pub is_new: bool,
    /// It read the verdict of this revision; a newer one stays unread.
    pub revision: Option<u64>,
}

impl From<&Unread> for Read {
    fn from(unread: &Unread) -> Self {
        Self {
            turn: unread.turn,
            is_new: unread.is_new,
            revision: unread.revision,
        }
    }
}

/// The progress of consumers. Every method is one transaction, durable on return. Implementations pass
/// `crate::suite::progress`.
///
/// A consumer that keeps what it makes in the ledger acknowledges in the same transaction, as
/// [`crate::Memories::store_extraction`] does: it reads everything exactly once. One that writes elsewhere acknowledges
/// once that is durable: it reads everything at least once.
#[async_trait]
pub trait Progress: Send + Sync {
    /// Enrols a consumer, which has read nothing: from now on it follows every main turn. Turns of before are noted by
    /// [`Self::fill`]. One that is enrolled stays as it is. `Conflict` where it asked for something else then, where
    /// [`FOLLOWERS_MAX`] are enrolled, or where the name is empty, too long, or [`MEMORY_CONSUMER`].
    async fn enrol(&self, name: &str, spec: &str, now_ms: Millis) -> Result<(), LedgerError>;

    /// Notes up to `limit` turns of before the consumer was enrolled as unread, the newest first; whether there may be
    /// more. Goes on where it stopped, also after a restart. False also where none has the name.
    async fn fill(&self, name: &str, limit: usize) -> Result<bool, LedgerError>;

    /// What a consumer has yet to read behind a number, the oldest turn first.
    async fn unread_of(
        &self,
        name: &str,
        after: i64,
        limit: usize,
    ) -> Result<Vec<Unread>, LedgerError>;

    /// Notes what a consumer has read. A turn that was erased meanwhile is passed over, and a verdict that was revised
    /// meanwhile stays unread.
    async fn acknowledge(
        &self,
        name: &str,
        read: &[Read],
        now_ms: Millis,
    ) -> Result<(), LedgerError>;

    /// Enrolled consumers, by name.
    async fn followers(&self) -> Result<Vec<Follower>, LedgerError>;

    /// Removes up to `limit` rows of a consumer, and at last the consumer itself; whether there is more. False also
    /// where none has the name.
    async fn remove_follower(&self, name: &str, limit: usize) -> Result<bool, LedgerError>;
}
