//! A ledger that fails, loses answers and hangs on command, and that watches what passes through.

use std::collections::HashMap;
use std::future::{Future, pending};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use hone_domain::{
    Feedback, Millis, Policy, PolicyVersion, Reason, Receipt, Scope, SessionCredit, SessionReward,
    Transition, TransitionId, Turn, TurnId, Verdict, invariants,
};
use hone_ledger::{
    AuditCount, Claim, Claimed, ClaimedSamples, FeedbackOutcome, Ledger, LedgerCounts, LedgerError,
    OpenPage, OpenTurn, PolicyRecord, Publish, Ready, Refusal, ReplayQuery, Replayed, Rewarded,
    SampleClaim, TurnRow, TurnView,
};
use tokio::sync::{Notify, oneshot};

use super::rng::Rng;

/// A mistake that the simulator must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plant {
    /// No mistake.
    None,
    /// Every fifth write of turns leaves its last turn out and says it is done.
    AcknowledgesWithoutRecording,
    /// A publish leaves its samples ready.
    PublishMarksNothing,
    /// A turn whose client was told that it is not collected stays in the ring.
    ForgetsLateReceipts,
    /// Claims ignore how old a turn is.
    HandsOutStale,
    /// While one loop's call hangs, the calls of the others fail.
    HungCallKeepsTheLedger,
    /// The judge rests until the trainer has taken its notification.
    JudgeWaitsForTrain,
}

/// What happens to the next calls.
#[derive(Debug)]
struct Faults {
    rng: Rng,
    /// Share of calls that do nothing and fail.
    fails_percent: usize,
    /// Share of calls that are done and whose answer is lost.
    loses_percent: usize,
    /// After so many calls one hangs: done before it hangs, or not at all.
    hangs_after: Option<(usize, bool)>,
    /// Every call hangs.
    hangs: bool,
}

enum Outcome {
    Passes,
    Fails,
    LosesAnswer,
    HangsBefore,
    HangsAfter,
}

/// What passed through.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Newest version of each scope.
    heads: HashMap<Scope, PolicyVersion>,
    /// What each version continues, and whether it learned anything.
    parents: HashMap<(Scope, PolicyVersion), (PolicyVersion, bool)>,
    /// Which turn a claimed transition belongs to, and the version that sampled it.
    claimed: HashMap<TransitionId, (TurnId, PolicyVersion)>,
    /// In which version a turn was trained.
    pub(super) trained: HashMap<TurnId, PolicyVersion>,
    /// What should not have passed.
    pub(super) broken: Vec<String>,
    /// Published versions.
    pub(super) publishes: usize,
    /// Refused candidates.
    pub(super) refusals: usize,
    /// Calls that failed because of a lost lease or a moved head.
    pub(super) fenced: usize,
}

/// The ledger that the loops see.
pub(super) struct SimLedger {
    pub(super) inner: Arc<dyn Ledger>,
    plant: Plant,
    staleness_max_versions: u64,
    faults: Mutex<Faults>,
    hung: Notify,
    log: Mutex<Log>,
    writes: Mutex<usize>,
    leaves: Mutex<Option<Waiting>>,
    /// A call that hangs has taken the whole ledger along; shared with the ledgers beside this one.
    kept: Arc<AtomicBool>,
}

/// A client's end of a receipt.
type Waiting = oneshot::Receiver<Receipt>;

impl SimLedger {
    pub(super) fn new(
        inner: Arc<dyn Ledger>,
        plant: Plant,
        (staleness_max_versions, seed): (u64, u64),
    ) -> Self {
        Self {
            inner,
            plant,
            staleness_max_versions,
            faults: Mutex::new(Faults {
                rng: Rng::new(seed),
                fails_percent: 0,
                loses_percent: 0,
                hangs_after: None,
                hangs: false,
            }),
            hung: Notify::new(),
            log: Mutex::default(),
            writes: Mutex::default(),
            leaves: Mutex::default(),
            kept: Arc::default(),
        }
    }

    /// The same ledger as another loop sees it: with faults of its own.
    pub(super) fn beside(&self) -> Self {
        let seen = Self::new(
            self.inner.clone(),
            self.plant,
            (self.staleness_max_versions, 0),
        );
        Self {
            kept: self.kept.clone(),
            ..seen
        }
    }

    /// From now on every call hangs.
    pub(super) fn hang(&self) {
        self.faults.lock().unwrap().hangs = true;
    }

    /// From now on this share of calls fails, and this share loses its answer.
    pub(super) fn trouble(&self, fails_percent: usize, loses_percent: usize) {
        let mut faults = self.faults.lock().unwrap();
        (faults.fails_percent, faults.loses_percent) = (fails_percent, loses_percent);
    }

    /// One of the next calls hangs; [`Self::until_hung`] then ends.
    pub(super) fn hang_after(&self, calls: usize, done: bool) {
        self.faults.lock().unwrap().hangs_after = Some((calls, done));
    }

    /// Nothing will hang any more.
    pub(super) fn hang_never(&self) {
        self.faults.lock().unwrap().hangs_after = None;
    }

    pub(super) async fn until_hung(&self) {
        self.hung.notified().await;
    }

    pub(super) fn log<T>(&self, read: impl FnOnce(&mut Log) -> T) -> T {
        read(&mut self.log.lock().unwrap())
    }

    /// This client stops waiting while the next turns are written; none if nobody does.
    pub(super) fn client_leaves(&self, client: Option<Waiting>) {
        *self.leaves.lock().unwrap() = client;
    }

    fn outcome(&self) -> Outcome {
        let mut faults = self.faults.lock().unwrap();
        if faults.hangs {
            let keeps = self.plant == Plant::HungCallKeepsTheLedger;
            self.kept.store(keeps, Ordering::Relaxed);
            return Outcome::HangsBefore;
        }
        if self.kept.load(Ordering::Relaxed) {
            return Outcome::Fails;
        }
        match &mut faults.hangs_after {
            Some((0, done)) => {
                let done = *done;
                faults.hangs_after = None;
                return if done {
                    Outcome::HangsAfter
                } else {
                    Outcome::HangsBefore
                };
            }
            Some((calls, _)) => *calls -= 1,
            None => {}
        }
        let (fails, loses) = (faults.fails_percent, faults.loses_percent);
        match faults.rng.below(100) {
            n if n < fails => Outcome::Fails,
            n if n < fails + loses => Outcome::LosesAnswer,
            _ => Outcome::Passes,
        }
    }

    pub(super) async fn call<T>(
        &self,
        work: impl Future<Output = Result<T, LedgerError>> + Send,
    ) -> Result<T, LedgerError> {
        let failed = |what: &str| Err(LedgerError::Failed(what.to_owned()));
        match self.outcome() {
            Outcome::Passes => work.await,
            Outcome::Fails => failed("the disk is full, says the simulator"),
            Outcome::LosesAnswer => {
                work.await?;
                failed("the answer was lost, says the simulator")
            }
            Outcome::HangsBefore => {
                self.hung.notify_one();
                pending().await
            }
            Outcome::HangsAfter => {
                let _lost = work.await;
                self.hung.notify_one();
                pending().await
            }
        }
    }

    // === what is watched ===

    async fn watched_claim(&self, claim: &SampleClaim) -> Result<ClaimedSamples, LedgerError> {
        let mut order = claim.clone();
        if self.plant == Plant::HandsOutStale {
            order.staleness_max_versions = u64::MAX;
        }
        let claimed = self.inner.claim_samples(&order).await?;
        let newest = self.inner.versions(Some(&claim.scope), 1).await?;
        let head = newest.first().map(|r| r.policy.version).unwrap_or_default();
        self.log(|log| {
            for material in &claimed.materials {
                let version = material.turn.version();
                let staleness = log.staleness(&claim.scope, head, version);
                let law = invariants::fresh_enough(staleness, self.staleness_max_versions);
                log.broken
                    .extend(law.err().map(|e| format!("at a claim: {e}")));
                let turn = (material.turn.id, version);
                log.claimed.insert(material.claim.transition, turn);
            }
        });
        Ok(claimed)
    }

    async fn watched_publish(&self, publish: &Publish) -> Result<Policy, LedgerError> {
        let mut order = publish.clone();
        if self.plant == Plant::PublishMarksNothing {
            order.claims.clear();
        }
        let published = self.inner.publish(&order).await;
        self.log(|log| match &published {
            Ok(policy) => log.published(publish, policy.version, self.staleness_max_versions),
            Err(_) => log.fenced += 1,
        });
        published
    }
}

impl Log {
    /// Versions learned between two, by what passed through here; everything where the older one
    /// is not an ancestor.
    fn staleness(&self, scope: &Scope, head: PolicyVersion, sampled: PolicyVersion) -> u64 {
        let (mut at, mut steps) = (head, 0);
        while at != sampled {
            let Some((parent, learned)) = self.parents.get(&(scope.clone(), at)) else {
                return u64::MAX;
            };
            (at, steps) = (*parent, steps + u64::from(*learned));
        }
        steps
    }

    fn published(&mut self, order: &Publish, version: PolicyVersion, staleness_max: u64) {
        let head = self.heads.get(&order.scope).copied().unwrap_or_default();
        if version <= head {
            // The answer to an earlier try of the same publish was lost.
            return;
        }
        let law = invariants::versions_grow_by_one(head, version);
        self.broken.extend(law.err().map(|e| e.to_string()));
        self.heads.insert(order.scope.clone(), version);
        let place = (order.scope.clone(), version);
        self.parents.insert(place, (order.parent, true));
        self.publishes += 1;
        for claim in &order.claims {
            let Some((turn, sampled)) = self.claimed.get(&claim.transition).copied() else {
                let what = format!("{} was trained and never claimed", claim.transition);
                self.broken.push(what);
                continue;
            };
            let times = 1 + usize::from(self.trained.insert(turn, version).is_some());
            let laws = [
                invariants::trained_once(times),
                invariants::fresh_enough(
                    self.staleness(&order.scope, order.parent, sampled),
                    staleness_max,
                ),
            ];
            let broken = laws.into_iter().filter_map(Result::err);
            self.broken
                .extend(broken.map(|e| format!("publishing version {version}: {e} ({turn})")));
        }
    }

    /// An operator restored an older version.
    pub(super) fn rolled_back(&mut self, policy: &Policy, to: PolicyVersion) {
        let head = self.heads.get(&policy.scope).copied().unwrap_or_default();
        let law = invariants::versions_grow_by_one(head, policy.version);
        self.broken.extend(law.err().map(|e| e.to_string()));
        self.heads.insert(policy.scope.clone(), policy.version);
        let place = (policy.scope.clone(), policy.version);
        self.parents.insert(place, (to, false));
    }
}

#[async_trait]
impl Ledger for SimLedger {
    async fn record_turns(&self, turns: &[Turn]) -> Result<Vec<TurnId>, LedgerError> {
        let mut turns = turns;
        if self.plant == Plant::AcknowledgesWithoutRecording {
            let mut writes = self.writes.lock().unwrap();
            *writes += 1;
            if writes.is_multiple_of(5) {
                turns = turns.split_last().map_or(turns, |(_, rest)| rest);
            }
        }
        let write = async {
            let done = self.inner.record_turns(turns).await;
            self.client_leaves(None);
            done
        };
        self.call(write).await
    }

    async fn record_spooled(&self, turns: &[Turn], mark: i64) -> Result<Vec<TurnId>, LedgerError> {
        self.call(self.inner.record_spooled(turns, mark)).await
    }

    fn forget_mark(&self) -> i64 {
        self.inner.forget_mark()
    }

    async fn record_transitions(
        &self,
        transitions: &[Transition],
    ) -> Result<Vec<TransitionId>, LedgerError> {
        self.call(self.inner.record_transitions(transitions)).await
    }

    async fn settle_turns(&self, turns: &[(TurnId, Reason)]) -> Result<(), LedgerError> {
        let mut turns = turns.to_vec();
        if self.plant == Plant::ForgetsLateReceipts {
            turns.retain(|(_, reason)| *reason != Reason::LateReceipt);
        }
        self.call(self.inner.settle_turns(&turns)).await
    }

    async fn open_turns(&self, limit: usize) -> Result<Vec<OpenTurn>, LedgerError> {
        self.call(self.inner.open_turns(limit)).await
    }

    async fn open_page(
        &self,
        newest: usize,
        from: Option<i64>,
        limit: usize,
    ) -> Result<OpenPage, LedgerError> {
        self.call(self.inner.open_page(newest, from, limit)).await
    }

    async fn record_feedback(&self, feedback: &Feedback) -> Result<FeedbackOutcome, LedgerError> {
        self.call(self.inner.record_feedback(feedback)).await
    }

    async fn record_reward(
        &self,
        reward: &SessionReward,
        credit: SessionCredit,
    ) -> Result<Option<Rewarded>, LedgerError> {
        self.call(self.inner.record_reward(reward, credit)).await
    }

    async fn claim_transitions(
        &self,
        limit: usize,
        lease_ms: Millis,
        now_ms: Millis,
    ) -> Result<Vec<Claimed>, LedgerError> {
        self.call(self.inner.claim_transitions(limit, lease_ms, now_ms))
            .await
    }

    async fn record_verdict(&self, claim: Claim, verdict: &Verdict) -> Result<(), LedgerError> {
        let done = self.call(self.inner.record_verdict(claim, verdict)).await;
        if matches!(done, Err(LedgerError::Fenced(_))) {
            self.log(|log| log.fenced += 1);
        }
        done
    }

    async fn release(&self, claim: Claim, retry_at_ms: Millis) -> Result<(), LedgerError> {
        self.call(self.inner.release(claim, retry_at_ms)).await
    }

    async fn give_up(&self, claim: Claim) -> Result<(), LedgerError> {
        self.call(self.inner.give_up(claim)).await
    }

    async fn ready(&self, now_ms: Millis) -> Result<Vec<Ready>, LedgerError> {
        self.call(self.inner.ready(now_ms)).await
    }

    async fn claim_samples(&self, claim: &SampleClaim) -> Result<ClaimedSamples, LedgerError> {
        self.call(self.watched_claim(claim)).await
    }

    async fn replay(&self, query: &ReplayQuery) -> Result<Vec<Replayed>, LedgerError> {
        self.call(self.inner.replay(query)).await
    }

    async fn settle_claims(&self, claims: &[Claim], reason: Reason) -> Result<u64, LedgerError> {
        self.call(self.inner.settle_claims(claims, reason)).await
    }

    async fn renew(&self, claims: &[Claim], until_ms: Millis) -> Result<u64, LedgerError> {
        self.call(self.inner.renew(claims, until_ms)).await
    }

    async fn publish(&self, publish: &Publish) -> Result<Policy, LedgerError> {
        self.call(self.watched_publish(publish)).await
    }

    async fn refuse(&self, refusal: &Refusal) -> Result<(), LedgerError> {
        let done = self.call(self.inner.refuse(refusal)).await;
        self.log(|log| log.refusals += usize::from(done.is_ok()));
        done
    }

    async fn heads(&self) -> Result<Vec<Policy>, LedgerError> {
        self.call(self.inner.heads()).await
    }

    async fn versions(
        &self,
        scope: Option<&Scope>,
        limit: usize,
    ) -> Result<Vec<PolicyRecord>, LedgerError> {
        self.call(self.inner.versions(scope, limit)).await
    }

    async fn rollback(
        &self,
        scope: &Scope,
        to: PolicyVersion,
        now_ms: Millis,
    ) -> Result<Policy, LedgerError> {
        self.call(self.inner.rollback(scope, to, now_ms)).await
    }

    async fn turn(&self, id: TurnId) -> Result<Option<TurnView>, LedgerError> {
        self.call(self.inner.turn(id)).await
    }

    async fn turns(
        &self,
        scope: Option<&Scope>,
        limit: usize,
    ) -> Result<Vec<TurnRow>, LedgerError> {
        self.call(self.inner.turns(scope, limit)).await
    }

    async fn audits(&self) -> Result<Vec<AuditCount>, LedgerError> {
        self.call(self.inner.audits()).await
    }

    async fn counts(&self) -> Result<LedgerCounts, LedgerError> {
        self.call(self.inner.counts()).await
    }

    async fn scores_by_version(
        &self,
        scope: &Scope,
    ) -> Result<Vec<(PolicyVersion, f64, u64)>, LedgerError> {
        self.call(self.inner.scores_by_version(scope)).await
    }

    async fn check_laws(&self) -> Result<Vec<String>, LedgerError> {
        self.inner.check_laws().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
