//! The ledger as judge and train see it where traces are sent: what they claim is remembered, and
//! what they settle becomes a span. The loops know nothing of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use hone_domain::{
    Feedback, Millis, Policy, PolicyVersion, Reason, Scope, SessionCredit, SessionId,
    SessionReward, Signal, Transition, TransitionId, Turn, TurnId, Verdict,
};
use hone_ledger::{
    AuditCount, Claim, Claimed, ClaimedSamples, FeedbackOutcome, Ledger, LedgerCounts, LedgerError,
    OldestPending, OpenPage, OpenTurn, Page, PolicyRecord, Publish, Reading, Ready, Refusal,
    ReplayQuery, Replayed, Rewarded, SampleAge, SampleClaim, SessionCursor, SessionLine,
    SessionView, TurnEntry, TurnFilter, TurnLine, TurnRow, TurnView,
};
use hone_runtime::Clock;

use super::{Judged, Telemetry, Trained, TurnMark};

/// Most claims remembered; beyond, all are forgotten, and their spans lack links.
const HELD_MAX: usize = 20_000;

/// What is known of a claim: the turn, and since when it is worked on.
type Held = HashMap<TransitionId, (TurnMark, Millis)>;

/// A ledger whose verdicts and versions are traced.
pub struct Traced {
    inner: Arc<dyn Ledger>,
    telemetry: Arc<Telemetry>,
    clock: Arc<dyn Clock>,
    held: Mutex<Held>,
}

impl Traced {
    /// Traces what is settled in `inner`.
    pub fn new(inner: Arc<dyn Ledger>, telemetry: Arc<Telemetry>, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner,
            telemetry,
            clock,
            held: Mutex::default(),
        }
    }

    fn hold<'a>(&self, turns: impl Iterator<Item = (Claim, &'a Turn)>) {
        let now_ms = self.clock.now_ms();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for (claim, turn) in turns {
            if held.len() >= HELD_MAX {
                held.clear();
            }
            held.insert(claim.transition, (TurnMark::of(turn), now_ms));
        }
    }

    fn take(&self, claims: &[Claim]) -> Vec<(TurnMark, Millis)> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = claims
            .iter()
            .filter_map(|claim| held.remove(&claim.transition));
        taken.collect()
    }

    fn trained(
        &self,
        claims: &[Claim],
        (batch, parent): (uuid::Uuid, PolicyVersion),
        outcome: Result<PolicyVersion, &'static str>,
    ) {
        let ended_ms = self.clock.now_ms();
        let held = self.take(claims);
        let began_ms = held.iter().map(|(_, ms)| *ms).min().unwrap_or(ended_ms);
        let marks: Vec<TurnMark> = held.into_iter().map(|(mark, _)| mark).collect();
        self.telemetry.trained(&Trained {
            marks: &marks,
            began_ms,
            ended_ms,
            batch,
            parent,
            outcome,
        });
    }
}

#[async_trait]
impl Reading for Traced {
    async fn turn_page(
        &self,
        filter: &TurnFilter,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Page<TurnLine, u64>, LedgerError> {
        self.inner.turn_page(filter, before, limit).await
    }

    async fn session_page(
        &self,
        wanted: (&Scope, Option<&str>),
        before: Option<SessionCursor>,
        limit: usize,
    ) -> Result<Page<SessionLine, SessionCursor>, LedgerError> {
        self.inner.session_page(wanted, before, limit).await
    }

    async fn session(
        &self,
        id: SessionId,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Option<SessionView>, LedgerError> {
        self.inner.session(id, before, limit).await
    }

    async fn turn_entries(&self, id: TurnId) -> Result<Vec<TurnEntry>, LedgerError> {
        self.inner.turn_entries(id).await
    }

    async fn sample_ages(
        &self,
        scope: &Scope,
        version: PolicyVersion,
    ) -> Result<Vec<SampleAge>, LedgerError> {
        self.inner.sample_ages(scope, version).await
    }

    async fn oldest_pending(&self) -> Result<OldestPending, LedgerError> {
        self.inner.oldest_pending().await
    }
}

#[async_trait]
impl Ledger for Traced {
    async fn claim_transitions(
        &self,
        limit: usize,
        lease_ms: Millis,
        now_ms: Millis,
    ) -> Result<Vec<Claimed>, LedgerError> {
        let claimed = self
            .inner
            .claim_transitions(limit, lease_ms, now_ms)
            .await?;
        self.hold(claimed.iter().map(|c| (c.claim, &c.turn)));
        Ok(claimed)
    }

    async fn record_verdict(&self, claim: Claim, verdict: &Verdict) -> Result<(), LedgerError> {
        self.inner.record_verdict(claim, verdict).await?;
        for (mark, began_ms) in self.take(&[claim]) {
            self.telemetry.judged(&Judged {
                mark,
                began_ms,
                ended_ms: self.clock.now_ms(),
                score: verdict.score,
                decided_by: verdict.decided_by.map(Signal::as_str),
                votes: verdict.votes.len(),
            });
        }
        Ok(())
    }

    async fn release(&self, claim: Claim, retry_at_ms: Millis) -> Result<(), LedgerError> {
        self.take(&[claim]);
        self.inner.release(claim, retry_at_ms).await
    }

    async fn give_up(&self, claim: Claim) -> Result<(), LedgerError> {
        self.take(&[claim]);
        self.inner.give_up(claim).await
    }

    async fn claim_samples(&self, claim: &SampleClaim) -> Result<ClaimedSamples, LedgerError> {
        let claimed = self.inner.claim_samples(claim).await?;
        let materials = claimed.materials.iter();
        self.hold(materials.map(|sample| (sample.claim, &sample.turn)));
        Ok(claimed)
    }

    async fn publish(&self, publish: &Publish) -> Result<Policy, LedgerError> {
        let policy = self.inner.publish(publish).await?;
        let step = (publish.batch.0, publish.parent);
        self.trained(&publish.claims, step, Ok(policy.version));
        Ok(policy)
    }

    async fn refuse(&self, refusal: &Refusal) -> Result<(), LedgerError> {
        self.inner.refuse(refusal).await?;
        let step = (refusal.batch.0, refusal.parent);
        self.trained(&refusal.claims, step, Err(refusal.reason.as_str()));
        Ok(())
    }

    async fn record_turns(&self, turns: &[Turn]) -> Result<Vec<TurnId>, LedgerError> {
        self.inner.record_turns(turns).await
    }

    async fn record_transitions(
        &self,
        transitions: &[Transition],
    ) -> Result<Vec<TransitionId>, LedgerError> {
        self.inner.record_transitions(transitions).await
    }

    async fn settle_turns(&self, turns: &[(TurnId, Reason)]) -> Result<(), LedgerError> {
        self.inner.settle_turns(turns).await
    }

    async fn open_turns(&self, limit: usize) -> Result<Vec<OpenTurn>, LedgerError> {
        self.inner.open_turns(limit).await
    }

    async fn open_page(
        &self,
        newest: usize,
        from: Option<i64>,
        limit: usize,
    ) -> Result<OpenPage, LedgerError> {
        self.inner.open_page(newest, from, limit).await
    }

    async fn record_feedback(&self, feedback: &Feedback) -> Result<FeedbackOutcome, LedgerError> {
        self.inner.record_feedback(feedback).await
    }

    async fn record_reward(
        &self,
        reward: &SessionReward,
        credit: SessionCredit,
    ) -> Result<Option<Rewarded>, LedgerError> {
        self.inner.record_reward(reward, credit).await
    }

    async fn ready(&self, now_ms: Millis) -> Result<Vec<Ready>, LedgerError> {
        self.inner.ready(now_ms).await
    }

    async fn replay(&self, query: &ReplayQuery) -> Result<Vec<Replayed>, LedgerError> {
        self.inner.replay(query).await
    }

    async fn settle_claims(&self, claims: &[Claim], reason: Reason) -> Result<u64, LedgerError> {
        self.inner.settle_claims(claims, reason).await
    }

    async fn renew(&self, claims: &[Claim], until_ms: Millis) -> Result<u64, LedgerError> {
        self.inner.renew(claims, until_ms).await
    }

    async fn heads(&self) -> Result<Vec<Policy>, LedgerError> {
        self.inner.heads().await
    }

    async fn versions(
        &self,
        scope: Option<&Scope>,
        limit: usize,
    ) -> Result<Vec<PolicyRecord>, LedgerError> {
        self.inner.versions(scope, limit).await
    }

    async fn rollback(
        &self,
        scope: &Scope,
        to: PolicyVersion,
        now_ms: Millis,
    ) -> Result<Policy, LedgerError> {
        self.inner.rollback(scope, to, now_ms).await
    }

    async fn turn(&self, id: TurnId) -> Result<Option<TurnView>, LedgerError> {
        self.inner.turn(id).await
    }

    async fn turns(
        &self,
        scope: Option<&Scope>,
        limit: usize,
    ) -> Result<Vec<TurnRow>, LedgerError> {
        self.inner.turns(scope, limit).await
    }

    async fn audits(&self) -> Result<Vec<AuditCount>, LedgerError> {
        self.inner.audits().await
    }

    async fn counts(&self) -> Result<LedgerCounts, LedgerError> {
        self.inner.counts().await
    }

    async fn scores_by_version(
        &self,
        scope: &Scope,
    ) -> Result<Vec<(PolicyVersion, f64, u64)>, LedgerError> {
        self.inner.scores_by_version(scope).await
    }

    async fn check_laws(&self) -> Result<Vec<String>, LedgerError> {
        self.inner.check_laws().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
