//! What people page through: lists of turns and sessions, and a session's conversation.
//!
//! Pages are keyed, not counted off, so the thousandth costs what the first does. A filter that
//! few rows pass looks at [`SCAN_MAX`] rows per page and may return fewer rows than asked for
//! together with where to go on.

use async_trait::async_trait;
use hone_domain::{
    BatchId, Fate, Feedback, Message, Millis, PolicyVersion, Reason, Scope, SessionId,
    SessionReward, TurnId, TurnKind,
};
use serde::Serialize;

use crate::LedgerError;

/// Most rows that one page looks at.
pub const SCAN_MAX: u32 = 20_000;

/// Most characters of a session's title.
pub const TITLE_CHARS_MAX: usize = 200;

/// Most characters of a completion in a list.
pub const PREVIEW_CHARS_MAX: usize = 160;

/// What became of a turn, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FateState {
    /// On its way.
    Pending,
    /// Entered a version.
    Trained,
    /// Will not train.
    Settled,
}

impl FateState {
    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "pending" => Some(Self::Pending),
            "trained" => Some(Self::Trained),
            "settled" => Some(Self::Settled),
            _ => None,
        }
    }
}

/// Which turns; every field that is set narrows.
#[derive(Clone, Debug, Default)]
pub struct TurnFilter {
    /// Of this scope.
    pub scope: Option<Scope>,
    /// Of this owner.
    pub owner: Option<String>,
    /// Of this session.
    pub session: Option<SessionId>,
    /// With such a fate.
    pub state: Option<FateState>,
    /// Settled for this reason.
    pub reason: Option<Reason>,
    /// Sampled by this version.
    pub version: Option<PolicyVersion>,
    /// Of this kind.
    pub kind: Option<TurnKind>,
    /// With a score of at least this.
    pub score_min: Option<f32>,
    /// With a score of at most this.
    pub score_max: Option<f32>,
}

/// A part of a list.
#[derive(Clone, Debug)]
pub struct Page<T, C> {
    /// The rows.
    pub rows: Vec<T>,
    /// Where the next page begins; none where there is nothing more.
    pub next: Option<C>,
}

/// A turn in a list.
#[derive(Clone, Debug)]
pub struct TurnLine {
    /// The turn.
    pub id: TurnId,
    /// Its session.
    pub session: SessionId,
    /// Its scope.
    pub scope: Scope,
    /// Its owner.
    pub owner: String,
    /// Whether it may train.
    pub kind: TurnKind,
    /// The version that sampled it.
    pub version: PolicyVersion,
    /// What became of it.
    pub fate: Fate,
    /// The current verdict's score.
    pub score: Option<f32>,
    /// When it was admitted.
    pub started_ms: Millis,
    /// When sampling ended.
    pub finished_ms: Millis,
    /// How the completion begins.
    pub preview: String,
}

/// Where a page of sessions begins: last use and number of the last one seen.
pub type SessionCursor = (Millis, u64);

/// A session in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionLine {
    /// The session.
    pub id: SessionId,
    /// Its key as the client gave it, if it did.
    pub key: Option<String>,
    /// How its first user message begins; none where it has no conversation.
    pub title: Option<String>,
    /// When its first turn was admitted.
    pub first_ms: Millis,
    /// When its newest turn ended.
    pub last_ms: Millis,
    /// Turns, side turns included.
    pub turns: u64,
}

/// A session's conversation.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// The session.
    pub line: SessionLine,
    /// Whose.
    pub owner: String,
    /// Whose policy answered.
    pub scope: Scope,
    /// Rewards of the whole session, oldest first.
    pub rewards: Vec<SessionReward>,
    /// Turns, oldest first; a page counts from the newest.
    pub turns: Page<SessionTurn, u64>,
}

/// A turn as a part of its conversation.
#[derive(Clone, Debug)]
pub struct SessionTurn {
    /// The turn.
    pub id: TurnId,
    /// The turn it continues.
    pub parent: Option<TurnId>,
    /// Which of its request's choices.
    pub choice_index: u32,
    /// Whether it may train.
    pub kind: TurnKind,
    /// What the request said beyond its parent's messages and completion; everything it said where
    /// it does not continue them.
    pub messages: Vec<Message>,
    /// The completion.
    pub completion: String,
    /// The version that sampled it.
    pub version: PolicyVersion,
    /// What became of it.
    pub fate: Fate,
    /// The current verdict's score.
    pub score: Option<f32>,
    /// Explicit feedback, oldest first.
    pub feedback: Vec<Feedback>,
    /// When it was admitted.
    pub started_ms: Millis,
}

/// A batch that a turn entered.
#[derive(Clone, Debug, Serialize)]
pub struct TurnEntry {
    /// The batch; none for a version without one.
    pub batch: Option<BatchId>,
    /// The version that learned from it; none where the candidate was refused.
    pub version: Option<PolicyVersion>,
    /// Why the candidate was refused.
    pub refused: Option<Reason>,
    /// When.
    pub at_ms: Millis,
    /// What was measured.
    pub report: serde_json::Value,
}

/// How old a version's sample was when it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleAge {
    /// The version that sampled the turn.
    pub version: PolicyVersion,
    /// When sampling ended.
    pub finished_ms: Millis,
    /// When it was judged.
    pub judged_ms: Millis,
    /// When the last explicit feedback on it came, where some did.
    pub feedback_ms: Option<Millis>,
}

/// When the oldest turn of each stage ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OldestPending {
    /// Of those that wait for a next state.
    pub next_state_ms: Option<Millis>,
    /// Of those that wait for a verdict.
    pub verdict_ms: Option<Millis>,
    /// Of those that wait for a batch.
    pub training_ms: Option<Millis>,
}

/// Reads for people: nothing here changes anything.
#[async_trait]
pub trait Reading: Send + Sync {
    /// The newest turns that pass, older than the one numbered `before`; `limit` at most.
    async fn turn_page(
        &self,
        filter: &TurnFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Page<TurnLine, u64>, LedgerError>;

    /// The sessions of a scope, last used first, whose title contains `search` (letter case
    /// aside); those before the cursor, `limit` at most.
    async fn session_page(
        &self,
        (scope, search): (&Scope, Option<&str>),
        before: Option<SessionCursor>,
        limit: usize,
    ) -> Result<Page<SessionLine, SessionCursor>, LedgerError>;

    /// A session with its newest turns, older than the one numbered `before`; `limit` at most.
    async fn session(
        &self,
        id: SessionId,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Option<SessionView>, LedgerError>;

    /// The batches that a turn entered, oldest first; the last claim that led to nothing is left
    /// out.
    async fn turn_entries(&self, id: TurnId) -> Result<Vec<TurnEntry>, LedgerError>;

    /// How old the samples of a version are.
    async fn sample_ages(
        &self,
        scope: &Scope,
        version: PolicyVersion,
    ) -> Result<Vec<SampleAge>, LedgerError>;

    /// When the oldest turn of each stage ended.
    async fn oldest_pending(&self) -> Result<OldestPending, LedgerError>;
}
