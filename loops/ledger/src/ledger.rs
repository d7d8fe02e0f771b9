//! What a ledger can do, in domain types. Every method is one transaction, durable on return.

use async_trait::async_trait;
use hone_domain::{
    BatchId, BlobKey, Digest, Fate, Feedback, GroupId, Millis, PendingTurn, Policy, PolicyVersion,
    Reason, Scope, SessionCredit, SessionId, SessionReward, Stage, StopReason, Transition,
    TransitionId, Turn, TurnId, TurnKind, Verdict,
};
use serde::Serialize;

use crate::rewards::Rewarded;
use crate::turn_view::TurnView;
use crate::{LedgerError, Reading};

/// Who claims work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Consumer {
    /// The judge, claiming transitions without a current verdict.
    Judge,
    /// The trainer, claiming judged transitions of one scope.
    Train,
}

/// A lease on one transition. The fence grows with every claim of it, so that a holder whose
/// lease ran out cannot write after its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// What is claimed.
    pub transition: TransitionId,
    /// By whom.
    pub consumer: Consumer,
    /// Fencing token.
    pub fence: u64,
}

/// A claimed transition with what the judge reads.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The lease.
    pub claim: Claim,
    /// The transition.
    pub transition: Transition,
    /// Its turn.
    pub turn: Turn,
    /// Explicit feedback on the turn, newest last.
    pub feedback: Vec<Feedback>,
    /// How often it was claimed before without a verdict; what was given back last before the process
    /// ended does not count.
    pub attempts: u32,
}

/// A turn that waits for its next state.
#[derive(Clone, Debug)]
pub struct OpenTurn {
    /// The turn.
    pub turn: Turn,
    /// Explicit feedback on it has arrived.
    pub has_feedback: bool,
}

/// What a start needs of a turn that waits for its next state: everything but its tokens.
#[derive(Clone, Debug)]
pub struct WaitingTurn {
    /// The turn, as requests may continue it.
    pub turn: PendingTurn,
    /// The choices of its request, where there are several.
    pub group: Option<GroupId>,
    /// Its request said how its answer is to be checked.
    pub is_checked: bool,
    /// Explicit feedback on it has arrived.
    pub has_feedback: bool,
}

/// Some of the turns that wait for a next state.
#[derive(Clone, Debug, Default)]
pub struct OpenPage {
    /// Those that can be read, oldest first.
    pub turns: Vec<WaitingTurn>,
    /// How many there are with those that cannot.
    pub seen: usize,
    /// Where the next page begins; none if this one is the last.
    pub next: Option<i64>,
}

/// A scope with judged transitions that no version has learned from.
#[derive(Clone, Debug, PartialEq)]
pub struct Ready {
    /// The scope.
    pub scope: Scope,
    /// How many are ready and not leased.
    pub count: usize,
    /// When the oldest of them was judged.
    pub oldest_judged_ms: Millis,
    /// When the oldest of those was judged whose verdict is a person's explicit feedback; none
    /// where none is.
    pub oldest_explicit_ms: Option<Millis>,
}

/// What the trainer wants to claim.
#[derive(Clone, Debug)]
pub struct SampleClaim {
    /// Of which scope.
    pub scope: Scope,
    /// Most transitions; the newest are taken.
    pub limit: usize,
    /// Most ready transitions left waiting; older ones are settled as `queue_dropped`.
    pub queue_cap: usize,
    /// Older turns are settled as `stale`.
    pub staleness_max_versions: u64,
    /// Most of a batch, and of the queue, that one source of a shared scope may take; a batch that
    /// cannot keep to it waits for other sources. 1 is off.
    pub source_share_max: f64,
    /// Turns of another arithmetic or base are settled as `other_fingerprint`.
    pub fingerprint: String,
    /// Content hash of the base model.
    pub base: Digest,
    /// Turns that were claimed this often and never given back are settled as `step_failed`: their
    /// batch ends the process.
    pub attempts_max: u32,
    /// The batch that claims.
    pub batch: BatchId,
    /// How long the lease lasts.
    pub lease_ms: Millis,
    /// Now.
    pub now_ms: Millis,
}

/// A claimed, judged transition with everything training needs.
#[derive(Clone, Debug)]
pub struct SampleMaterial {
    /// The lease.
    pub claim: Claim,
    /// The turn.
    pub turn: Turn,
    /// Versions learned between the one that sampled the turn and the newest, along the lineage;
    /// a rollback learns nothing.
    pub staleness: u64,
    /// Its current verdict's score.
    pub score: f32,
    /// Its current verdict's hint.
    pub hint: Option<String>,
    /// The manner that the hint asks for, where the rules know it.
    pub wish: Option<String>,
    /// What its owner says the completion should have been, newest first to count.
    pub correction: Option<String>,
    /// The rewards of its group of episodes, that of its own among them; empty where it belongs to none.
    pub peers: Vec<f32>,
}

/// What a claim for training came to.
#[derive(Clone, Debug, Default)]
pub struct ClaimedSamples {
    /// What it leased, the oldest first.
    pub materials: Vec<SampleMaterial>,
    /// How many turns it settled: where it leased nothing, the rest may be worth another claim.
    pub settled: usize,
}

/// What the trainer wants to see again.
#[derive(Clone, Debug)]
pub struct ReplayQuery {
    /// Of which scope.
    pub scope: Scope,
    /// Most turns.
    pub limit: usize,
    /// Of this arithmetic only.
    pub fingerprint: String,
    /// Content hash of the base model.
    pub base: Digest,
}

/// A turn that was trained before and whose words can still teach.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Its transition.
    pub transition: TransitionId,
    /// The turn.
    pub turn: Turn,
    /// Its current verdict's hint.
    pub hint: Option<String>,
    /// The manner that the hint asks for, where the rules know it.
    pub wish: Option<String>,
    /// What its owner says the completion should have been.
    pub correction: Option<String>,
}

/// A publish: one transaction that makes a version visible and its samples trained.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Whose.
    pub scope: Scope,
    /// The version it was trained from; must still be the head, or the publish is refused.
    pub parent: PolicyVersion,
    /// Content hash of the adapter as served.
    pub digest: Digest,
    /// Where its files are; durable already.
    pub blob: BlobKey,
    /// The batch.
    pub batch: BatchId,
    /// Leases of the transitions it learned from.
    pub claims: Vec<Claim>,
    /// What the trainer measured, as JSON.
    pub report: serde_json::Value,
    /// What the gate measured, as JSON.
    pub gate: serde_json::Value,
    /// Share of the sessions that it answers on trial; none where it answers all at once.
    pub trial_share: Option<f64>,
    /// Now.
    pub now_ms: Millis,
}

/// A refused candidate.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Whose.
    pub scope: Scope,
    /// The version it was trained from.
    pub parent: PolicyVersion,
    /// Content hash of the candidate, where there is one.
    pub digest: Option<Digest>,
    /// The batch.
    pub batch: BatchId,
    /// Leases of the transitions; they are settled with `reason`.
    pub claims: Vec<Claim>,
    /// Why.
    pub reason: Reason,
    /// What trainer and gate measured, as JSON.
    pub report: serde_json::Value,
    /// Now.
    pub now_ms: Millis,
}

/// What a policy version is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyStatus {
    /// Trained and gated.
    Published,
    /// An older adapter published again.
    Rollback,
    /// An adapter that was made elsewhere.
    Imported,
}

/// A published version with its lineage.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyRecord {
    /// The policy.
    pub policy: Policy,
    /// The version it continues; for a rollback the one it restores; for an import the base model.
    pub parent: PolicyVersion,
    /// How it came about.
    pub status: PolicyStatus,
    /// It learned from something that was erased since.
    pub is_tainted: bool,
    /// Transitions it learned from.
    pub samples: u64,
    /// What the trainer measured.
    pub report: serde_json::Value,
    /// What the gate measured.
    pub gate: serde_json::Value,
    /// Why it was published, where a person or the watch said so.
    pub note: Option<String>,
    /// It was left because it did badly.
    pub is_tripped: bool,
    /// Its files are not there: they were removed for space, or are damaged.
    pub is_pruned: bool,
    /// Its files were found to be damaged, and are kept aside.
    pub is_damaged: bool,
    /// A person took it out of service.
    pub is_retired: bool,
    /// When it was published.
    pub published_ms: Millis,
}

/// Most pieces of feedback kept of one turn: what its owner said last decides.
pub const FEEDBACK_KEPT: usize = 32;

/// How long feedback is kept whose turn is not on record.
pub const EARLY_KEPT_MS: Millis = 3_600_000;

/// Most pieces of such feedback kept of one owner. Few where this crate is tested: each is a write
/// to the disk.
pub const EARLY_KEPT: usize = if cfg!(test) { 16 } else { 1_024 };

/// What became of feedback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedbackOutcome {
    /// Stored; the turn is known.
    Stored,
    /// Replaced what the same client id said before.
    Replaced,
    /// Stored, or replaced what was said before; a version has learned from the turn, so no judge
    /// reads it any more.
    AlreadyLearned,
    /// Stored; the turn is not known yet and may still come.
    TurnUnknown,
    /// The turn belongs to somebody else; nothing was stored. Shown to the client as unknown.
    NotYours,
}

/// A turn in a list.
#[derive(Clone, Debug, Serialize)]
pub struct TurnRow {
    /// The turn.
    pub id: TurnId,
    /// Its session.
    pub session: SessionId,
    /// Its scope.
    pub scope: Scope,
    /// The version that sampled it.
    pub version: PolicyVersion,
    /// What became of it.
    pub fate: Fate,
    /// The current verdict's score.
    pub score: Option<f32>,
    /// When sampling ended.
    pub finished_ms: Millis,
    /// Whether its request said how its answer is checked.
    pub has_checks: bool,
}

/// How often what was executed agreed with a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditCount {
    /// The bucket.
    pub bucket: String,
    /// Executed and found true.
    pub agreed: u64,
    /// Executed.
    pub executed: u64,
}

/// How many turns are where.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LedgerCounts {
    /// All turns.
    pub turns: u64,
    /// Turns on their way, by stage.
    pub pending: Vec<(Stage, u64)>,
    /// Turns that entered a version.
    pub trained: u64,
    /// Turns that will not train, by reason.
    pub settled: Vec<(Reason, u64)>,
    /// Published versions.
    pub versions: u64,
    /// Refused candidates.
    pub refused: u64,
}

/// Why a turn can never train, as far as its record alone tells; none where it may. What serve
/// found comes first, then what the turn is.
pub fn reason_at_record(turn: &Turn) -> Option<Reason> {
    if turn.untrainable.is_some() {
        turn.untrainable
    } else if turn.kind == TurnKind::Side {
        Some(Reason::SideTurn)
    } else if turn.completion.stop() == StopReason::Cancelled {
        Some(Reason::Cancelled)
    } else if turn.completion.is_empty() {
        Some(Reason::EmptyCompletion)
    } else {
        None
    }
}

/// The durable record. Implementations pass [`crate::suite`].
#[async_trait]
pub trait Ledger: Reading {
    // === collect ===

    /// Records ended turns. Idempotent by turn id: what was recorded first stays, unless that was
    /// settled as `cancelled` and this one is its repetition to the end. A turn that can
    /// train begins in stage `awaiting_next_state`; one with a [`reason_at_record`] is settled
    /// with it at once. Returns those that came without their words, because their owner had them
    /// forgotten before they came.
    async fn record_turns(&self, turns: &[Turn]) -> Result<Vec<TurnId>, LedgerError>;

    /// As [`Self::record_turns`], for turns that waited in a spool, perhaps since an earlier process. `mark` is the
    /// [`Self::forget_mark`] of the process that answered: later wishes to have a whole scope forgotten hold for turns
    /// that began before them. What knows no such wishes takes them as any others.
    async fn record_spooled(&self, turns: &[Turn], _mark: i64) -> Result<Vec<TurnId>, LedgerError> {
        self.record_turns(turns).await
    }

    /// The number of the newest wish to be forgotten that is older than this process.
    fn forget_mark(&self) -> i64 {
        0
    }

    /// Settles turns with their next states. A turn that already has a transition, or is settled,
    /// keeps what it has. Unknown turns are ignored. Session and scope are the turn's own,
    /// whatever the transition says. Returns the ids of new transitions.
    async fn record_transitions(
        &self,
        transitions: &[Transition],
    ) -> Result<Vec<TransitionId>, LedgerError>;

    /// Gives turns that still wait for a next state a final reason.
    async fn settle_turns(&self, turns: &[(TurnId, Reason)]) -> Result<(), LedgerError>;

    /// Turns that wait for a next state, newest first; what cannot be read is left out.
    async fn open_turns(&self, limit: usize) -> Result<Vec<OpenTurn>, LedgerError>;

    /// At most `limit` of the `newest` turns that wait for a next state, oldest first, from where the page
    /// before says on. What cannot be read is left out.
    async fn open_page(
        &self,
        newest: usize,
        from: Option<i64>,
        limit: usize,
    ) -> Result<OpenPage, LedgerError>;

    /// Stores feedback, or replaces what the same (turn, owner, client id) said before; the same
    /// feedback id again changes nothing. Of more than [`FEEDBACK_KEPT`] on a turn, the newest
    /// stay. A turn that waits for training, abstained, failed to be
    /// judged, is held back or held out, or held no lesson goes (back) to the judge, and a judge
    /// that claimed it before the feedback came is fenced; who claims it next for training decides
    /// anew what becomes of it. What is said about an erased turn is not kept, also
    /// while it is still being removed. A batch that holds
    /// the turn at `received_ms` keeps it. Feedback that came before its turn counts if the turn
    /// turns out to be the same owner's. Until then it is kept for [`EARLY_KEPT_MS`], and of one
    /// owner the [`EARLY_KEPT`] that came last: what is beyond goes, some at a time, when feedback
    /// on another unknown turn comes, and so does what is further ahead of that one's time, as a
    /// clock that went back leaves it.
    async fn record_feedback(&self, feedback: &Feedback) -> Result<FeedbackOutcome, LedgerError>;

    /// Stores the reward of a session, or replaces what the same (session, owner, client id) said before, and gives its
    /// main turns the returns that `credit` makes of it, as feedback in place of what an earlier reward gave them.
    /// They go back to the judge as by [`Self::record_feedback`]. Turns that wait for
    /// a next state go on waiting: whoever calls settles them. None where the owner has no such session.
    async fn record_reward(
        &self,
        reward: &SessionReward,
        credit: SessionCredit,
    ) -> Result<Option<Rewarded>, LedgerError>;

    // === judge ===

    /// Leases transitions that wait for a verdict, oldest turn first, also those whose lease ran
    /// out. What cannot be read is settled as `judge_failed`.
    async fn claim_transitions(
        &self,
        limit: usize,
        lease_ms: Millis,
        now_ms: Millis,
    ) -> Result<Vec<Claimed>, LedgerError>;

    /// Records a verdict as the current revision. A score sends the turn on to training; no score
    /// settles it as `abstained`. Idempotent by verdict id. `Fenced` if the lease was taken over
    /// (one that only ran out still counts), `Conflict` if the score is outside [-1, 1] or the
    /// claim is another transition's.
    async fn record_verdict(&self, claim: Claim, verdict: &Verdict) -> Result<(), LedgerError>;

    /// Gives a lease back; the transition may be claimed again from `retry_at_ms`. A lease that
    /// was taken over is left to its new holder. A claim for training that is given back does not
    /// count.
    async fn release(&self, claim: Claim, retry_at_ms: Millis) -> Result<(), LedgerError>;

    /// Gives a claimed transition up: its turn is settled as `judge_failed`. Fails with `Fenced`
    /// if the lease was taken over.
    async fn give_up(&self, claim: Claim) -> Result<(), LedgerError>;

    /// How often what was executed agreed with a certificate, per bucket: of the votes of current
    /// and earlier verdicts whose model is `audit:BUCKET`.
    async fn audits(&self) -> Result<Vec<AuditCount>, LedgerError>;

    // === train ===

    /// Scopes with ready transitions, the one that waits longest first. A scope that is pinned,
    /// tripped or on trial waits.
    async fn ready(&self, now_ms: Millis) -> Result<Vec<Ready>, LedgerError>;

    /// In one transaction: settles what is stale, of another fingerprint, claimed too often or beyond
    /// the queue cap (drop oldest), then leases the newest `limit` of the rest and returns them oldest
    /// first. Of a long backlog a part is settled, the oldest first, and the rest by later claims. What
    /// cannot be read is settled as `step_failed`.
    /// Stale is a turn whose version is more than `staleness_max_versions` learned versions behind
    /// the head on its lineage, or that a rollback left behind. A scope without full consent has
    /// its ready turns settled as `withdrawn` and gives none. Of a scope with several sources, each
    /// gets at most `source_share_max` of the batch.
    async fn claim_samples(&self, claim: &SampleClaim) -> Result<ClaimedSamples, LedgerError>;

    /// Turns that entered a version and whose verdict has a hint or whose owner corrected them: those
    /// whose votes disagreed most first, the newest first among equals. Nothing is claimed: they are
    /// learned from by their words, not by their score. What was withdrawn or erased is settled or
    /// gone and so not among them.
    async fn replay(&self, query: &ReplayQuery) -> Result<Vec<Replayed>, LedgerError>;

    /// Gives claimed transitions a final reason without a candidate (`too_long`, `withdrawn`).
    /// Those whose lease was taken over are left to their new holder; returns how many were
    /// settled.
    async fn settle_claims(&self, claims: &[Claim], reason: Reason) -> Result<u64, LedgerError>;

    /// Keeps claims until `until_ms`, as far as they still hold; returns how many do. For work
    /// that takes longer than a lease.
    async fn renew(&self, claims: &[Claim], until_ms: Millis) -> Result<u64, LedgerError>;

    /// Makes a version visible and marks its samples trained, or changes nothing: `Fenced` if a
    /// lease was lost, `Conflict` if the head moved, the scope is held or consent was withdrawn.
    /// Idempotent by batch and digest.
    async fn publish(&self, publish: &Publish) -> Result<Policy, LedgerError>;

    /// Records a refused candidate and settles its samples, as far as their leases still hold.
    /// Idempotent by batch.
    async fn refuse(&self, refusal: &Refusal) -> Result<(), LedgerError>;

    // === policies ===

    /// The newest version of every scope.
    async fn heads(&self) -> Result<Vec<Policy>, LedgerError>;

    /// The newest versions of a scope, or of all, newest first.
    async fn versions(
        &self,
        scope: Option<&Scope>,
        limit: usize,
    ) -> Result<Vec<PolicyRecord>, LedgerError>;

    /// Publishes the adapter of `to` again as a new version; 0 is the base model. `Conflict` if
    /// `to` was not published, has no files any more, is the newest already, or learned from
    /// something that was erased. Samples of the versions that are left behind stay spent.
    async fn rollback(
        &self,
        scope: &Scope,
        to: PolicyVersion,
        now_ms: Millis,
    ) -> Result<Policy, LedgerError>;

    // === views ===

    /// One turn with everything that became of it.
    async fn turn(&self, id: TurnId) -> Result<Option<TurnView>, LedgerError>;

    /// The same of a turn that is only looked at on the way: none, and a line in the log, where it
    /// cannot be read, which must not hold up the others.
    async fn turn_if_readable(&self, id: TurnId) -> Result<Option<TurnView>, LedgerError> {
        match self.turn(id).await {
            Err(LedgerError::Corrupt(_)) => {
                tracing::error!(
                    turn = %id,
                    "a turn cannot be read and is left out; see what `hone doctor` says, then \
                     restore a backup or forget the turn"
                );
                Ok(None)
            }
            read => read,
        }
    }

    /// The newest turns, of one scope or of all.
    async fn turns(&self, scope: Option<&Scope>, limit: usize)
    -> Result<Vec<TurnRow>, LedgerError>;

    /// How many turns are where.
    async fn counts(&self) -> Result<LedgerCounts, LedgerError>;

    /// Mean score of the current verdicts of each version's turns in a scope: (version, mean, n).
    async fn scores_by_version(
        &self,
        scope: &Scope,
    ) -> Result<Vec<(PolicyVersion, f64, u64)>, LedgerError>;

    /// Checks the laws over everything stored (P1, C1, J1, L2, T1, that every publish names an
    /// existing parent, and that fates and counts fit the records); returns each violation as a
    /// sentence. Reads every turn, so it takes time.
    async fn check_laws(&self) -> Result<Vec<String>, LedgerError>;

    /// Whether what is written now is found again: its files are still where they were opened. Every
    /// call that writes asks by itself.
    ///
    /// # Errors
    /// `Unusable` with a sentence and a remedy.
    fn in_place(&self) -> Result<(), LedgerError> {
        Ok(())
    }

    /// What of its schema was removed by somebody else since it was opened, by kind and name: what needs it
    /// fails again and again. Costs next to nothing, so it may be asked often.
    ///
    /// # Errors
    /// What the medium said: then nothing is known.
    async fn missing_parts(&self) -> Result<Vec<String>, LedgerError> {
        Ok(Vec::new())
    }

    /// Reads all that is stored and says what of it is damaged; nothing where the medium looks by itself.
    ///
    /// # Errors
    /// What the medium said: then nothing is known.
    async fn damage(&self) -> Result<Vec<String>, LedgerError> {
        Ok(Vec::new())
    }

    /// Writes what is buffered and closes; later calls fail.
    async fn close(&self);
}
