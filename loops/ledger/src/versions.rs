//! What people and the watch decide about published versions: rollback with a note, pin, trial,
//! lineage both ways, what the gate refused.

use async_trait::async_trait;
use hone_domain::{
    BatchId, BlobKey, Digest, Millis, OnTrial, Policy, PolicyVersion, Reason, Scope, StopReason,
    Token, Turn, TurnId,
};
use serde::Serialize;

use crate::LedgerError;
use crate::ledger::{PolicyRecord, Publish};
use crate::people::AuditEntry;

impl PolicyRecord {
    /// Whether its adapter is kept, clean and in service.
    pub fn can_answer(&self) -> bool {
        !(self.is_pruned || self.is_tainted || self.is_retired)
    }
}

/// A place in a list, newest first.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Most entries.
    pub limit: usize,
    /// Only entries with a smaller number; none begins with the newest.
    pub before: Option<i64>,
}

/// Why an older version is published again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreWhy {
    /// A person wants it.
    Asked,
    /// The watch found that what is served does badly; learning waits until it is resumed.
    Tripped,
    /// What was on trial did not prove itself.
    TrialFailed,
}

/// An older version that is to be published again; 0 is the base model.
#[derive(Clone, Debug)]
pub struct Restore {
    /// Whose.
    pub scope: Scope,
    /// What is to be served again.
    pub to: PolicyVersion,
    /// What must still be the newest; none where it does not matter.
    pub from: Option<PolicyVersion>,
    /// Why.
    pub why: RestoreWhy,
    /// In words, for people.
    pub note: Option<String>,
    /// Now.
    pub now_ms: Millis,
}

/// An adapter that was made elsewhere, to be published as a scope's next version.
#[derive(Clone, Debug)]
pub struct Import {
    /// Whose.
    pub scope: Scope,
    /// Content hash of the adapter as served.
    pub digest: Digest,
    /// Where its files are; durable already.
    pub blob: BlobKey,
    /// What it is, as JSON.
    pub report: serde_json::Value,
    /// In words, for people.
    pub note: Option<String>,
    /// Now.
    pub now_ms: Millis,
}

/// What the watch stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tripped {
    /// Why, in words.
    pub note: String,
    /// The version that was left.
    pub version: PolicyVersion,
    /// When.
    pub at_ms: Millis,
}

/// A version that serves a share of the sessions until it is proven.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// On trial.
    pub version: PolicyVersion,
    /// What the other sessions get.
    pub proven: PolicyVersion,
    /// Share of the sessions that it answers.
    pub share: f64,
    /// Since when.
    pub since_ms: Millis,
}

/// A version that is to answer a share of the sessions.
#[derive(Clone, Debug)]
pub struct TryOut {
    /// Whose.
    pub scope: Scope,
    /// The newest, which is compared with the good version before it; or an older one, which is
    /// published again and compared with the newest.
    pub version: PolicyVersion,
    /// Share of the sessions, above 0 and below 1.
    pub share: f64,
    /// In words, for people.
    pub note: Option<String>,
    /// Now.
    pub now_ms: Millis,
}

/// What one side of a trial has done since it began.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Arm {
    /// The version that answered.
    pub version: PolicyVersion,
    /// Answers.
    pub turns: u64,
    /// How many of them have a verdict with a score.
    pub scored_turns: u64,
    /// How many of these are complaints: below 0.
    pub complaints: u64,
    /// Mean score.
    pub mean_score: Option<f64>,
}

/// What stands between a scope and its next version.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Standing {
    /// What is served stays until it is released.
    pub pinned: bool,
    /// The watch has stopped learning.
    pub tripped: Option<Tripped>,
    /// A version is on trial.
    pub trial: Option<Trial>,
}

impl Standing {
    /// Whether ready turns wait.
    pub fn holds(&self) -> bool {
        self.pinned || self.tripped.is_some() || self.trial.is_some()
    }
}

/// A turn that a version learned from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct VersionSample {
    /// The turn.
    pub turn: TurnId,
    /// Its current verdict's score.
    pub score: Option<f32>,
}

/// A version with its lineage both ways.
#[derive(Clone, Debug)]
pub struct VersionView {
    /// The version.
    pub record: PolicyRecord,
    /// What it continues, nearest first, down to 0.
    pub lineage: Vec<PolicyVersion>,
    /// Versions that continue it, or restore it.
    pub children: Vec<PolicyVersion>,
    /// What it learned from, oldest first, as many as asked for.
    pub samples: Vec<VersionSample>,
}

/// A candidate that was not published.
#[derive(Clone, Debug, Serialize)]
pub struct RefusalRecord {
    /// Its place in the list.
    pub number: i64,
    /// Whose.
    pub scope: Scope,
    /// What it was trained from.
    pub parent: PolicyVersion,
    /// Content hash of the candidate, where there is one.
    pub digest: Option<Digest>,
    /// The batch.
    pub batch: BatchId,
    /// Why its turns were settled.
    pub reason: Reason,
    /// How many.
    pub samples: u64,
    /// What trainer and gate measured.
    pub report: serde_json::Value,
    /// When.
    pub refused_ms: Millis,
}

/// A scope at a glance.
#[derive(Clone, Debug, Serialize)]
pub struct ScopeRow {
    /// Its place in the list.
    pub number: i64,
    /// The scope.
    pub scope: Scope,
    /// Its newest version; 0 where nothing was published.
    pub current: PolicyVersion,
    /// What holds it.
    pub standing: Standing,
    /// Turns.
    pub turns: u64,
    /// Versions published.
    pub versions: u64,
    /// When its last turn ended.
    pub last_turn_ms: Option<Millis>,
    /// Mean score of its current verdicts.
    pub mean_score: Option<f64>,
}

/// A judged turn that is never trained on, for comparing candidates.
#[derive(Clone, Debug)]
pub struct HeldOut {
    /// The turn.
    pub turn: Turn,
    /// Its current verdict's score.
    pub score: f32,
}

/// How far the watch has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchPlace {
    /// Number of the last turn.
    pub turn: i64,
    /// Number of the last verdict.
    pub verdict: i64,
}

/// A turn as the watch sees it when it ends.
#[derive(Clone, Debug)]
pub struct WatchedTurn {
    /// Whose.
    pub scope: Scope,
    /// What sampled it.
    pub version: PolicyVersion,
    /// What was sampled.
    pub tokens: Vec<Token>,
    /// Why it ended.
    pub stop: StopReason,
}

/// A verdict as the watch sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchedVerdict {
    /// Whose.
    pub scope: Scope,
    /// What sampled its turn.
    pub version: PolicyVersion,
    /// -1 to 1.
    pub score: f32,
}

/// What happened since a place.
#[derive(Clone, Debug, Default)]
pub struct WatchNews {
    /// Main turns of users that were not cancelled, oldest first.
    pub turns: Vec<WatchedTurn>,
    /// The first verdict on such a turn that is below 0, and the first that is not; oldest first.
    pub verdicts: Vec<WatchedVerdict>,
    /// How far this reads.
    pub place: WatchPlace,
}

/// Files that no kept version needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prunable {
    /// Whose.
    pub scope: Scope,
    /// The versions that name the blob.
    pub versions: Vec<PolicyVersion>,
    /// Content hash of the adapter.
    pub digest: Digest,
    /// Where its files are.
    pub blob: BlobKey,
}

/// Decisions about versions. Every method is one transaction, durable on return.
#[async_trait]
pub trait Versions: Send + Sync {
    /// One version with its lineage; none where it was not published.
    async fn version(
        &self,
        scope: &Scope,
        version: PolicyVersion,
        samples_max: usize,
    ) -> Result<Option<VersionView>, LedgerError>;

    /// A page of a scope's versions, newest first; `before` is a version's number.
    async fn version_page(
        &self,
        scope: &Scope,
        page: Window,
    ) -> Result<Vec<PolicyRecord>, LedgerError>;

    /// Candidates that were not published, of one scope or of all, newest first.
    async fn refusals(
        &self,
        scope: Option<&Scope>,
        page: Window,
    ) -> Result<Vec<RefusalRecord>, LedgerError>;

    /// Every scope, the newest first.
    async fn scopes(&self, page: Window) -> Result<Vec<ScopeRow>, LedgerError>;

    /// What stands between a scope and its next version.
    async fn standing(&self, scope: &Scope) -> Result<Standing, LedgerError>;

    /// Every standing that holds something; a bounded list, the newest scopes first.
    async fn standings(&self, limit: usize) -> Result<Vec<(Scope, Standing)>, LedgerError>;

    /// Publishes an older version again. `Conflict` if there is none of that number, its files are
    /// gone, it is the newest already, or `from` is not the newest any more.
    async fn restore(&self, restore: &Restore) -> Result<Policy, LedgerError>;

    /// Publishes an adapter that was made elsewhere. It continues the base model, so nothing that
    /// versions before it learned is in it, and turns that they sampled are too old for it.
    /// `Conflict` if the scope is held, a version of it has this adapter and its files, or one of
    /// any scope has it and learned from something that was erased.
    async fn import(&self, import: &Import) -> Result<Policy, LedgerError>;

    /// Keeps `version` served until it is released; one that is not the newest is published again
    /// first. `Conflict` as for [`Self::restore`].
    async fn pin(
        &self,
        scope: &Scope,
        version: PolicyVersion,
        now_ms: Millis,
    ) -> Result<Policy, LedgerError>;

    /// Releases a pin; false where there was none.
    async fn unpin(&self, scope: &Scope) -> Result<bool, LedgerError>;

    /// Lets learning go on after the watch stopped it; false where it had not.
    async fn resume(&self, scope: &Scope) -> Result<bool, LedgerError>;

    /// Puts a version on trial. `Conflict` if the scope is held already, there is nothing to
    /// compare with, or an older one cannot be restored.
    async fn try_out(&self, order: &TryOut) -> Result<OnTrial, LedgerError>;

    /// Everything on trial.
    async fn trials(&self) -> Result<Vec<OnTrial>, LedgerError>;

    /// What both sides of a trial have done, what is on trial first.
    async fn arms(&self, scope: &Scope, trial: &Trial) -> Result<[Arm; 2], LedgerError>;

    /// Ends the trial of a version, which stays. False where it was not on trial.
    async fn end_trial(&self, scope: &Scope, version: PolicyVersion) -> Result<bool, LedgerError>;

    /// Takes a version, and every other of the same adapter, out of service: nothing restores or
    /// names it any more. One on trial loses its trial, and what it was compared with is published
    /// again and returned. `Conflict` if it is served, or there is none.
    async fn retire(
        &self,
        scope: &Scope,
        version: PolicyVersion,
        now_ms: Millis,
    ) -> Result<Option<Policy>, LedgerError>;

    /// Takes a retired version back; false where it was not retired.
    async fn unretire(&self, scope: &Scope, version: PolicyVersion) -> Result<bool, LedgerError>;

    /// The newest turns of a scope that are kept for comparisons, with their scores. Only those of
    /// the base model: another one's tokens are other words. How they were computed does not matter.
    async fn held_out(
        &self,
        scope: &Scope,
        base: Digest,
        limit: usize,
    ) -> Result<Vec<HeldOut>, LedgerError>;

    /// What the watch remembers and how far it has read. `scopes` are those it wants to hear of.
    async fn watch_place(&self) -> Result<WatchPlace, LedgerError>;

    /// What the watch remembers of a scope.
    async fn watch_memory(&self, scope: &Scope) -> Result<Option<String>, LedgerError>;

    /// What happened after `place`, at most `limit` of each kind.
    async fn watch_news(&self, place: WatchPlace, limit: usize) -> Result<WatchNews, LedgerError>;

    /// Keeps what the watch remembers, and how far it has read, together.
    async fn keep_watch(
        &self,
        place: WatchPlace,
        memories: &[(Scope, String)],
    ) -> Result<(), LedgerError>;

    /// Adapters that may be removed: of versions that are neither among the newest `keep` of their
    /// scope, nor the newest, nor on trial or its measure, nor what one of these continues or
    /// restores; at most `limit`.
    async fn prunable(&self, keep: usize, limit: usize) -> Result<Vec<Prunable>, LedgerError>;

    /// Notes that the files of versions are gone. Called before they are removed, so that nothing
    /// restores them meanwhile. `Conflict` if one of them has become needed.
    async fn prune(
        &self,
        prunable: &Prunable,
        keep: usize,
        now_ms: Millis,
    ) -> Result<(), LedgerError>;

    /// Notes that the files of a blob are damaged: no version of it, in whatever scope, is served,
    /// restored, copied or trained from again. Called before they are set aside, with what the audit log
    /// says of it. Returns the scopes that are served it, or measure a trial against it.
    async fn note_damage(
        &self,
        blob: &BlobKey,
        entry: &AuditEntry,
    ) -> Result<Vec<Scope>, LedgerError>;

    /// The versions that are damaged and that nobody has retired since, the newest first.
    async fn damaged(&self, limit: usize) -> Result<Vec<Policy>, LedgerError>;

    /// Blobs of all versions whose files are kept.
    async fn named_blobs(&self) -> Result<Vec<BlobKey>, LedgerError>;

    /// Whether what this order would publish learned from what is gone: a turn of its claims was
    /// erased or withdrawn, or the version it continues learned from such a one. It stays so.
    async fn learned_from_erased(&self, order: &Publish) -> Result<bool, LedgerError>;
}
