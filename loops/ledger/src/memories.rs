//! What people said once, kept for later conversations.

use async_trait::async_trait;
use hone_domain::{
    Correction, Memory, MemoryId, MemoryKind, MemoryMode, MemoryOrigin, Message, Millis, Scope,
    SessionId, Signal, TurnId,
};

use crate::LedgerError;
use crate::progress::Read;
use crate::skills::NewSkill;
use crate::versions::Window;

/// A turn whose words, or the verdict on it, no memory was made of yet.
#[derive(Clone, Debug, PartialEq)]
pub struct UnreadTurn {
    /// The turn.
    pub turn: TurnId,
    /// Its session.
    pub session: SessionId,
    /// Whose.
    pub scope: Scope,
    /// What it did with memories.
    pub mode: MemoryMode,
    /// The messages of its request, where they were not read yet.
    pub said: Option<Vec<Message>>,
    /// What a verdict says should have been done, where it was not read yet.
    pub judged: Option<UnreadVerdict>,
}

/// What a verdict says should have been done.
#[derive(Clone, Debug, PartialEq)]
pub struct UnreadVerdict {
    /// Its revision.
    pub revision: u64,
    /// What decided.
    pub by: Option<Signal>,
    /// In whose words.
    pub hint: String,
    /// The manner that it asks for, where the rules know it.
    pub wish: Option<String>,
    /// The hint is a comment that the turn's owner sent, and no correction.
    pub is_comment: bool,
}

/// A memory that is to be kept.
#[derive(Clone, Debug, PartialEq)]
pub struct NewMemory {
    /// Its id.
    pub id: MemoryId,
    /// What it is about.
    pub kind: MemoryKind,
    /// Its text, as [`hone_domain::kept_text`] leaves it.
    pub text: String,
    /// What it replaces an older one of.
    pub topic: Option<String>,
    /// A current memory that it replaces besides.
    pub replaces: Option<MemoryId>,
    /// The turn it was said in or about.
    pub turn: Option<TurnId>,
    /// How it came about.
    pub origin: MemoryOrigin,
}

/// What became of a new memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Added {
    /// It is kept.
    New(Memory),
    /// A memory says the same already.
    Same(Memory),
    /// The scope has no place left.
    Full,
}

/// What was read of a turn, and what is kept of it.
#[derive(Clone, Debug)]
pub struct Extraction {
    /// What was read.
    pub read: Read,
    /// What is kept.
    pub memories: Vec<NewMemory>,
    /// What its verdict says should have been done, in the person's own words.
    pub correction: Option<Correction>,
    /// The skill that this correction and earlier ones make.
    pub skill: Option<NewSkill>,
}

/// What an extraction came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounts {
    /// Memories that are new.
    pub new: u64,
    /// Memories that were there already.
    pub same: u64,
    /// Memories that found no place.
    pub full: u64,
    /// Skills that are new.
    pub skills: u64,
}

/// A memory in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryRow {
    /// Its place in the list.
    pub number: i64,
    /// The memory.
    pub memory: Memory,
}

/// What changes of a memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryChange {
    /// Its text, as [`hone_domain::kept_text`] leaves it.
    pub text: Option<String>,
    /// What it is about.
    pub kind: Option<MemoryKind>,
    /// Whether it is set aside.
    pub paused: Option<bool>,
    /// It holds beside the one that replaced it.
    pub holds: bool,
}

/// The durable record of memories. Every method is one transaction, durable on return.
/// Implementations pass `crate::suite::memories`.
#[async_trait]
pub trait Memories: Send + Sync {
    /// Turns, and verdicts on turns, that were not read yet, oldest first. What cannot be read is left out
    /// and not offered again.
    async fn unread(&self, limit: usize) -> Result<Vec<UnreadTurn>, LedgerError>;

    /// Notes that a turn, or the verdict on it, was read, counts the memories and skills that it was shown, and keeps what
    /// came of it, all at once: what was read before, was forgotten since, or whose scope allows no learning any
    /// more, brings nothing.
    async fn store_extraction(
        &self,
        extraction: &Extraction,
        now_ms: Millis,
    ) -> Result<MemoryCounts, LedgerError>;

    /// Keeps a memory. One with the topic of a current memory replaces that one; one that says the same as a
    /// current memory changes nothing. Where the scope has [`hone_domain::MEMORIES_MAX`], the oldest replaced
    /// one makes place.
    async fn add_memory(
        &self,
        scope: &Scope,
        new: &NewMemory,
        now_ms: Millis,
    ) -> Result<Added, LedgerError>;

    /// Keeps memories as [`Self::add_memory`] does, all at once; returns what became of each.
    async fn add_memories(
        &self,
        scope: &Scope,
        new: &[NewMemory],
        now_ms: Millis,
    ) -> Result<Vec<Added>, LedgerError>;

    /// Memories of a scope, newest first.
    async fn memories(&self, scope: &Scope, page: Window) -> Result<Vec<MemoryRow>, LedgerError>;

    /// A memory of a scope.
    async fn memory(&self, scope: &Scope, id: MemoryId) -> Result<Option<Memory>, LedgerError>;

    /// Changes a memory of a scope; none where it has no such memory. `Conflict` where another one says the same.
    async fn change_memory(
        &self,
        scope: &Scope,
        id: MemoryId,
        change: &MemoryChange,
    ) -> Result<Option<Memory>, LedgerError>;

    /// Removes one memory of a scope, or all of them; returns how many.
    async fn forget_memories(
        &self,
        scope: &Scope,
        id: Option<MemoryId>,
    ) -> Result<u64, LedgerError>;

    /// The newest memories of a scope, or of each, that are not paused, at most `per_scope` of each, newest
    /// first; those that were replaced are among them.
    async fn newest_memories(
        &self,
        scope: Option<&Scope>,
        per_scope: usize,
    ) -> Result<Vec<Memory>, LedgerError>;
}
