//! What the cases share: makers of domain values and short ways through the ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hone_domain::{
    BatchId, BlobKey, Completion, Digest, Fate, Feedback, FeedbackId, Message, Millis, NextItem,
    NextKind, NextState, Origin, Outcome, Policy, PolicyVersion, RequestId, Role, Sampling, Scope,
    SessionId, Signal, StopReason, Transition, TransitionId, Turn, TurnId, TurnKind, Verdict,
    VerdictId, VersionSpan, Vote,
};
use serde_json::json;
use uuid::Uuid;

use crate::{Claim, Claimed, Consumer, Ledger, Publish, ReplayQuery, SampleClaim, SampleMaterial};

/// The time of most calls.
pub(super) const NOW: Millis = 1_700_000_000_000;
/// The length of most leases.
pub(super) const LEASE: Millis = 1_000;
/// More than any case has.
pub(super) const ALL: usize = 10_000;
/// The owner of most turns.
pub(super) const OWNER: &str = "owner";

/// An empty ledger, and makers of values with ids that never repeat.
pub struct World {
    /// The ledger under test.
    pub ledger: Arc<dyn Ledger>,
    next: AtomicU64,
}

impl World {
    /// A world around a ledger.
    pub fn new(ledger: Arc<dyn Ledger>) -> Self {
        Self::beginning_at(ledger, 1)
    }

    /// A world whose ids begin with the `first`, around a ledger that holds earlier ones.
    pub fn beginning_at(ledger: Arc<dyn Ledger>, first: u64) -> Self {
        Self {
            ledger,
            next: AtomicU64::new(first),
        }
    }

    /// Panics where a law is broken.
    pub async fn assert_lawful(&self, after: &str) {
        let broken = match self.ledger.check_laws().await {
            Ok(broken) => broken,
            // The case closed the ledger.
            Err(crate::LedgerError::Failed(_)) => return,
            Err(error) => panic!("after {after} the laws could not be checked: {error}"),
        };
        assert!(broken.is_empty(), "after {after}: {broken:#?}");
    }

    fn uuid(&self) -> Uuid {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        Uuid::from_u64_pair(0x0190_0000_0000_7000, 0x8000_0000_0000_0000 | n)
    }

    /// The scope of most turns.
    pub fn scope(&self) -> Scope {
        Scope::of(OWNER, None)
    }

    /// A trainable turn of version 0, not recorded.
    pub fn turn(&self) -> Turn {
        let completion = Completion::new(
            vec![7, 8, 9],
            vec![-0.5, -0.25, -1.0],
            vec![-0.6, -0.35, -1.1],
            vec![None, Some([8, 3].into()), None],
            StopReason::EndToken,
        );
        Turn {
            id: TurnId(self.uuid()),
            request: RequestId(self.uuid()),
            choice_index: 0,
            group: None,
            session: SessionId(self.uuid()),
            session_key: None,
            parent: None,
            owner: OWNER.into(),
            scope: self.scope(),
            origin: Origin::User,
            kind: TurnKind::Main,
            messages: vec![
                Message::text(Role::System, "Be brief."),
                Message::text(Role::User, "Hello?"),
            ],
            prompt_tokens: vec![1, 2, 3],
            completion: completion
                .and_then(|completion| completion.with_experts(vec![1, 300, 0, 2, 7, 300]))
                .expect("aligned arrays"),
            completion_text: "Hello.".into(),
            sampling: Sampling::default(),
            spans: vec![VersionSpan {
                version: PolicyVersion(0),
                start: 0,
                end: 3,
            }],
            digest: None,
            base: Digest([1; 32]),
            fingerprint: "cpu-f32".into(),
            admission: Default::default(),
            untrainable: None,
            started_ms: NOW,
            finished_ms: NOW + 5,
        }
    }

    /// A turn that `version` sampled.
    pub fn turn_of(&self, version: PolicyVersion) -> Turn {
        let mut turn = self.turn();
        turn.spans[0].version = version;
        turn.digest = (version.0 > 0).then(|| digest_of(version.0));
        turn
    }

    /// A transition of `turn`, not recorded.
    pub fn transition(&self, turn: &Turn) -> Transition {
        Transition {
            id: TransitionId(self.uuid()),
            turn: turn.id,
            session: turn.session,
            scope: turn.scope.clone(),
            next_state: NextState {
                items: vec![NextItem {
                    kind: NextKind::UserReply,
                    text: "Thanks.\0".into(),
                    failed: None,
                }],
            },
            next_turn: None,
            settled_ms: NOW + 10,
        }
    }

    /// A verdict on a claimed transition, not recorded.
    pub fn verdict(&self, claim: Claim, score: Option<f32>) -> Verdict {
        Verdict {
            id: VerdictId(self.uuid()),
            transition: claim.transition,
            score,
            decided_by: score.map(|_| Signal::Rules),
            hint: None,
            wish: None,
            hint_choice: None,
            votes: vec![Vote {
                signal: Signal::Rules,
                outcome: Outcome::Good,
                reason: "thanks".into(),
                model: None,
                latency_ms: 0,
                usage: None,
                prompt: None,
            }],
            judged_ms: NOW + 20,
        }
    }

    /// Feedback of the turn's owner, not recorded.
    pub fn feedback(&self, turn: &Turn, score: f32) -> Feedback {
        Feedback {
            id: FeedbackId(self.uuid()),
            turn: turn.id,
            owner: turn.owner.clone(),
            client_id: None,
            score: Some(score),
            comment: None,
            correction: None,
            of_session: false,
            received_ms: NOW,
        }
    }

    /// A fresh batch id.
    pub fn batch(&self) -> BatchId {
        BatchId(self.uuid())
    }

    /// What to claim for training, with nothing held back.
    pub fn sample_claim(&self) -> SampleClaim {
        SampleClaim {
            scope: self.scope(),
            limit: ALL,
            queue_cap: ALL,
            staleness_max_versions: 1_000,
            source_share_max: 1.0,
            fingerprint: "cpu-f32".into(),
            base: Digest([1; 32]),
            attempts_max: u32::MAX,
            batch: self.batch(),
            lease_ms: LEASE,
            now_ms: NOW,
        }
    }

    /// A publish of what was claimed, not made.
    pub fn publishing(&self, parent: u64, samples: &[SampleMaterial]) -> Publish {
        Publish {
            scope: self.scope(),
            parent: PolicyVersion(parent),
            digest: digest_of(parent + 1),
            blob: BlobKey::new(format!("adapters/{}", parent + 1)).expect("a plain name"),
            batch: self.batch(),
            claims: samples.iter().map(|s| s.claim).collect(),
            report: json!({ "loss": 0.5, "note": "nul \0 kept" }),
            gate: json!({ "kl": 0.01 }),
            trial_share: None,
            now_ms: NOW + 30,
        }
    }

    // === short ways ===

    /// Records one turn.
    pub async fn record(&self, turn: &Turn) {
        let done = self.ledger.record_turns(std::slice::from_ref(turn)).await;
        done.expect("a turn is recorded");
    }

    /// Records `turn` and its transition.
    pub async fn answered(&self, turn: &Turn) -> Transition {
        self.record(turn).await;
        let transition = self.transition(turn);
        let new = self
            .ledger
            .record_transitions(std::slice::from_ref(&transition))
            .await
            .expect("a transition is recorded");
        assert_eq!(new, [transition.id]);
        transition
    }

    /// Claims what waits for the judge.
    pub async fn claim(&self, limit: usize, now_ms: Millis) -> Vec<Claimed> {
        let claimed = self.ledger.claim_transitions(limit, LEASE, now_ms).await;
        claimed.expect("transitions are claimed")
    }

    /// Gives everything that waits for the judge this score.
    pub async fn judge_all(&self, score: Option<f32>) {
        for claimed in self.claim(ALL, NOW).await {
            let verdict = self.verdict(claimed.claim, score);
            let done = self.ledger.record_verdict(claimed.claim, &verdict).await;
            done.expect("a verdict is recorded");
        }
    }

    /// Records `n` turns of a version, answered and judged good; oldest first.
    pub async fn ready_turns(&self, n: usize, version: u64) -> Vec<Turn> {
        let mut turns = Vec::new();
        for _ in 0..n {
            let turn = self.turn_of(PolicyVersion(version));
            self.answered(&turn).await;
            turns.push(turn);
        }
        self.judge_all(Some(1.0)).await;
        turns
    }

    /// Claims for training.
    pub async fn claim_samples(&self, claim: &SampleClaim) -> Vec<SampleMaterial> {
        let claimed = self.ledger.claim_samples(claim).await;
        claimed.expect("samples are claimed").materials
    }

    /// Learns from one new turn on top of the head `parent`.
    pub async fn publish_next(&self, parent: u64) -> Policy {
        self.ready_turns(1, parent).await;
        self.learn_from_ready(parent).await
    }

    /// Learns from what is ready on top of the head `parent`.
    pub async fn learn_from_ready(&self, parent: u64) -> Policy {
        let samples = self.claim_samples(&self.sample_claim()).await;
        let publishing = self.publishing(parent, &samples);
        let policy = self.ledger.publish(&publishing).await;
        policy.expect("a version is published")
    }

    /// Learns from one new turn with a hint on top of the head `parent`.
    pub async fn publish_hinted(&self, parent: u64) -> TurnId {
        let turn = self.turn_of(PolicyVersion(parent));
        self.answered(&turn).await;
        for claimed in self.claim(ALL, NOW).await {
            let mut verdict = self.verdict(claimed.claim, Some(-1.0));
            verdict.hint = Some("be brief".into());
            let done = self.ledger.record_verdict(claimed.claim, &verdict).await;
            done.expect("a verdict is recorded");
        }
        let samples = self.claim_samples(&self.sample_claim()).await;
        let publishing = self.publishing(parent, &samples);
        let policy = self.ledger.publish(&publishing).await;
        policy.expect("a version is published");
        turn.id
    }

    /// The turns that would teach again, in order.
    pub async fn replayed(&self) -> Vec<TurnId> {
        let claim = self.sample_claim();
        let query = ReplayQuery {
            scope: claim.scope,
            limit: ALL,
            fingerprint: claim.fingerprint,
            base: claim.base,
        };
        let replayed = self.ledger.replay(&query).await.expect("read");
        replayed.iter().map(|r| r.turn.id).collect()
    }

    /// What became of a turn.
    pub async fn fate(&self, turn: &Turn) -> Fate {
        let view = self.ledger.turn(turn.id).await.expect("a turn is read");
        view.expect("the turn is known").fate
    }
}

/// The digest that tests give version `n`.
pub(super) fn digest_of(n: u64) -> Digest {
    Digest([n as u8; 32])
}

/// A claim as nobody holds it.
pub(super) fn stranger(claim: Claim) -> Claim {
    Claim {
        fence: claim.fence + 1,
        ..claim
    }
}

/// The same claim in the other loop's name.
pub(super) fn other_loop(claim: Claim) -> Claim {
    Claim {
        consumer: match claim.consumer {
            Consumer::Judge => Consumer::Train,
            Consumer::Train => Consumer::Judge,
        },
        ..claim
    }
}

/// Ids of claimed turns.
pub(super) fn claimed_turns(claimed: &[Claimed]) -> Vec<TurnId> {
    claimed.iter().map(|c| c.turn.id).collect()
}

/// Ids of turns to train on.
pub(super) fn sample_turns(samples: &[SampleMaterial]) -> Vec<TurnId> {
    samples.iter().map(|s| s.turn.id).collect()
}

/// Ids of turns.
pub(super) fn ids(turns: &[Turn]) -> Vec<TurnId> {
    turns.iter().map(|t| t.id).collect()
}

/// Panics unless the call failed because its lease is gone.
pub(super) fn assert_fenced<T: std::fmt::Debug>(done: &Result<T, crate::LedgerError>) {
    assert!(
        matches!(done, Err(crate::LedgerError::Fenced(_))),
        "{done:?}"
    );
}

/// Panics unless the call was refused as a conflict.
pub(super) fn assert_conflict<T: std::fmt::Debug>(done: &Result<T, crate::LedgerError>) {
    assert!(
        matches!(done, Err(crate::LedgerError::Conflict(_))),
        "{done:?}"
    );
}
