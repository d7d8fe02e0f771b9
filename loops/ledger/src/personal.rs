//! What people decide about what is learned from them, and what shows whether it helps them.

use async_trait::async_trait;
use hone_domain::lift::ScoredTurn;
use hone_domain::{
    BlobKey, Consent, Digest, ForgetId, Millis, Policy, PolicyVersion, Scope, SessionId, TurnId,
};

use crate::LedgerError;
use crate::ledger::PolicyStatus;
use crate::people::AuditEntry;
use crate::versions::Window;

/// What is to be forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForgetWhat {
    /// Everything of the scope.
    All,
    /// One session.
    Session(SessionId),
    /// Single turns. What later turns repeat of them goes with them.
    Turns(Vec<TurnId>),
}

/// A wish to be forgotten.
#[derive(Clone, Debug)]
pub struct ForgetWish {
    /// Its id.
    pub id: ForgetId,
    /// Whose turns.
    pub scope: Scope,
    /// Owner of the key; must own the turns.
    pub owner: String,
    /// Which of them.
    pub what: ForgetWhat,
    /// Now.
    pub now_ms: Millis,
    /// What the audit log says of it, in the transaction that begins it: of a refused wish, nothing.
    pub entry: AuditEntry,
}

/// What a wish means, and how far it has come.
#[derive(Clone, Debug, PartialEq)]
pub struct ForgetReport {
    /// The wish.
    pub id: ForgetId,
    /// Whose turns.
    pub scope: Scope,
    /// Turns that go.
    pub turns: u64,
    /// Transitions that go, with their verdicts. A turn that stays loses its own where the answer
    /// to it was in a turn that goes.
    pub transitions: u64,
    /// Samples of versions among them.
    pub samples: u64,
    /// Samples of the scope's tainted versions that may train again.
    pub samples_freed: u64,
    /// Versions of the scope that learned from what goes, or from such a version, and copies of these;
    /// ascending.
    pub versions_tainted: Vec<PolicyVersion>,
    /// What is served instead of the newest; none where that is clean. 0 is the base model.
    pub rolls_back_to: Option<PolicyVersion>,
    /// Turns that are still to be removed.
    pub turns_left: u64,
    /// Whether the last trace is removed.
    pub is_done: bool,
    /// When it was said.
    pub at_ms: Millis,
}

/// A wish in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ForgetRow {
    /// Its place in the list.
    pub number: i64,
    /// What it means, and how far it has come.
    pub report: ForgetReport,
}

/// A decision about consent in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsentRow {
    /// Its place in the list.
    pub number: i64,
    /// Whose.
    pub scope: Scope,
    /// What was decided.
    pub consent: Consent,
    /// When.
    pub decided_ms: Millis,
    /// Turns of the scope that are kept.
    pub turns: u64,
}

/// What the first transaction of a wish changed.
#[derive(Clone, Debug)]
pub struct ForgetBegun {
    /// What it means.
    pub report: ForgetReport,
    /// The wish's scope, then others of which a version was tainted: they hold a copy. Each with its
    /// versions that are.
    pub scopes: Vec<(Scope, Vec<PolicyVersion>)>,
    /// What these are served from now on, where that changed.
    pub restored: Vec<Policy>,
    /// Those whose trial ended because what it measured against goes: what was on trial stays.
    pub trials_ended: Vec<Scope>,
    /// The turns that go.
    pub turns: Vec<TurnId>,
    /// Their sessions; those of a wish for single turns do not go as a whole.
    pub sessions: Vec<SessionId>,
}

/// Files of a tainted version that no clean version shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LooseBlob {
    /// Where the adapter is.
    pub blob: BlobKey,
    /// Whose.
    pub scope: Scope,
    /// Its content hash, after which the learner's checkpoint is named.
    pub digest: Digest,
}

/// What is to be done next for a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForgetStep {
    /// Another piece.
    More,
    /// These files are to be removed; then [`Personal::blobs_removed`].
    RemoveBlobs(Vec<LooseBlob>),
    /// The same again, later: a reader keeps the log, which still holds what went.
    LogBusy,
    /// Nothing; no trace is left in the ledger's files.
    Done,
}

/// What a person's versions learned, and what became of their turns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learned {
    /// All turns.
    pub turns: u64,
    /// Turns with a score.
    pub judged: u64,
    /// Turns that entered a version.
    pub trained: u64,
    /// Turns that are on their way or will not train, by stage or reason.
    pub waiting: Vec<(String, u64)>,
    /// The newest published versions, newest first.
    pub versions: Vec<LearnedVersion>,
    /// How many versions learned something: all but those that were published again.
    pub versions_taught: u64,
    /// The newest of these.
    pub newest_taught: Option<PolicyVersion>,
}

/// One version in [`Learned`].
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedVersion {
    /// Its number.
    pub version: PolicyVersion,
    /// How it came about.
    pub status: PolicyStatus,
    /// Whether it learned from something that was erased since.
    pub is_tainted: bool,
    /// When it was published.
    pub published_ms: Millis,
    /// Turns it learned from.
    pub samples: u64,
    /// Mean score of the turns it learned from.
    pub learned_score: Option<f64>,
    /// Mean score of the turns its parent sampled.
    pub score_before: Option<f64>,
    /// Mean score of the turns it sampled.
    pub score_after: Option<f64>,
}

/// The durable record of people's own decisions. Every method is one transaction, durable on
/// return. Implementations pass `crate::suite::personal`.
#[async_trait]
pub trait Personal: Send + Sync {
    /// Every decision about consent.
    async fn consents(&self) -> Result<Vec<(Scope, Consent)>, LedgerError>;

    /// Decisions about consent with what is kept, newest scopes first.
    async fn consent_rows(&self, page: Window) -> Result<Vec<ConsentRow>, LedgerError>;

    /// Wishes to be forgotten, newest first.
    async fn forgets(&self, page: Window) -> Result<Vec<ForgetRow>, LedgerError>;

    /// Stores a decision. Where it is not full consent, every turn of the scope that is on its way
    /// is settled as `withdrawn`; returns how many. From then on no turn of the scope is claimed
    /// or published, and a turn that is recorded late is settled as `learning_off`.
    async fn set_consent(
        &self,
        scope: &Scope,
        consent: Consent,
        now_ms: Millis,
    ) -> Result<u64, LedgerError>;

    /// What a wish would do; changes nothing, and nobody who writes waits for it; one after the other.
    /// `Conflict` names a turn or session that is not the scope's.
    async fn plan_forget(&self, wish: &ForgetWish) -> Result<ForgetReport, LedgerError>;

    /// Begins a wish: marks what goes, taints versions and the copies of them that were imported in
    /// any scope, publishes the nearest clean ancestor of what is served there, and lets the samples
    /// that tainted versions shared with nobody's erased ones train again where a clean version
    /// sampled them. What is left is to be removed by [`Self::forget_piece`]. Idempotent by id.
    async fn begin_forget(&self, wish: &ForgetWish) -> Result<ForgetBegun, LedgerError>;

    /// Removes at most `limit` turns or shared pieces.
    async fn forget_piece(&self, id: ForgetId, limit: usize) -> Result<ForgetStep, LedgerError>;

    /// Removes shared pieces that nobody uses and no wish waits for, at most `limit` of each kind: what
    /// an older program left behind, and what a repeated turn replaced. `Done` where none is left.
    async fn sweep(&self, limit: usize) -> Result<ForgetStep, LedgerError>;

    /// The files are gone.
    async fn blobs_removed(&self, blobs: &[LooseBlob]) -> Result<(), LedgerError>;

    /// How far a wish has come, and whose it is.
    async fn forget(&self, id: ForgetId) -> Result<Option<ForgetReport>, LedgerError>;

    /// Wishes that are not done, oldest first.
    async fn forgets_under_way(&self) -> Result<Vec<ForgetId>, LedgerError>;

    /// The newest scored turns of a scope since its first version, at most `limit`, oldest first.
    /// What their owner said last of them counts instead of the verdict (a correction alone is a
    /// -1), also where it came after training.
    async fn scored_turns(
        &self,
        scope: &Scope,
        limit: usize,
    ) -> Result<Vec<ScoredTurn>, LedgerError>;

    /// What was learned from a scope; at most `versions_max` versions.
    async fn learned(&self, scope: &Scope, versions_max: usize) -> Result<Learned, LedgerError>;
}
