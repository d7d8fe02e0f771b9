//! The loop with a real ledger and real blobs; the trainer is replaced where its numbers do not
//! matter.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hone_domain::{
    BatchId, Blobs, Digest, Fate, Feedback, FeedbackId, ForgetId, Policy, PolicyVersion, Reason,
    Scope, TransitionId, Turn, TurnId,
};
use hone_ledger::{AuditEntry, ForgetWhat, ForgetWish, Ledger, Personal, SampleClaim, Versions};
use hone_runtime::{Clock, Notification, ShutdownTrigger};
use sha2::Digest as _;
use uuid::Uuid;

use crate::effects::TrainEffects;
use crate::faults::{Fault, FaultyBlobs, FaultyLedger, Plan};
use crate::fixture::Fixture;
use crate::prune::Pruner;
use crate::testing::candidate;
use crate::{
    CandidateFiles, EvaluationJob, Evaluator, Measured, NAME, TrainError, TrainJob, Trained,
    Trainer, WishAnswers,
};
use hone_domain::{ADAPTERS, LEARNERS};

const FILE: &str = "adapter";

type Hook = dyn Fn(&TrainJob, &mut dyn FnMut() -> bool) -> Result<(), TrainError> + Send + Sync;

/// A trainer whose adapter is the hash of what it learned from.
struct Hashes {
    hook: Box<Hook>,
    change: fn(&mut Measured),
}

impl Hashes {
    fn plain() -> Arc<Self> {
        Self::with(|_, _| Ok(()))
    }

    fn with(
        hook: impl Fn(&TrainJob, &mut dyn FnMut() -> bool) -> Result<(), TrainError>
        + Send
        + Sync
        + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            hook: Box::new(hook),
            change: |_| {},
        })
    }
}

impl Trainer for Hashes {
    fn train(
        &self,
        job: &TrainJob,
        pause: &mut dyn FnMut() -> bool,
    ) -> Result<Trained, TrainError> {
        (self.hook)(job, pause)?;
        let usual = candidate(1);
        Ok(Trained {
            digest: Digest(
                sha2::Sha256::digest(text_of(job.parent_digest(), &job.transitions()).as_bytes())
                    .into(),
            ),
            numbers: usual.numbers,
            parity: usual.parity,
            wishes: usual.wishes,
            answers: WishAnswers::default(),
        })
    }

    fn files(&self, job: &EvaluationJob) -> Result<CandidateFiles, TrainError> {
        Ok(CandidateFiles {
            adapter: vec![(FILE.into(), job.candidate.0.to_vec())],
            checkpoint: text_of(job.parent_digest(), &job.transitions()).into_bytes(),
        })
    }

    fn fingerprint(&self) -> String {
        "test".into()
    }

    fn base(&self) -> Digest {
        Digest([7; 32])
    }
}

fn text_of(parent: Option<Digest>, transitions: &[TransitionId]) -> String {
    format!("{parent:?} {transitions:?}")
}

impl Evaluator for Hashes {
    fn evaluate(
        &self,
        _job: &EvaluationJob,
        _pause: &mut dyn FnMut() -> bool,
    ) -> Result<Measured, TrainError> {
        let mut measured = candidate(1).measured;
        (self.change)(&mut measured);
        Ok(measured)
    }
}

fn anna() -> Scope {
    Scope::of("o", Some("anna"))
}

impl Fixture {
    /// Four judged turns of anna's.
    async fn four_turns(&self) -> Vec<TurnId> {
        let turn = |i: u32| {
            (
                self.turn(&anna(), &[1, i], &[2, 3]),
                if i.is_multiple_of(2) { 1.0 } else { -1.0 },
            )
        };
        let turns: Vec<_> = (0..4).map(turn).collect();
        self.judge(&turns).await;
        turns.iter().map(|(turn, _)| turn.id).collect()
    }

    /// Keeps judged turns that `base` sampled for comparisons, as a claim of theirs would.
    async fn keep_for_comparisons(&self, base: Digest) {
        let claim = SampleClaim {
            scope: anna(),
            limit: 100,
            queue_cap: 100,
            staleness_max_versions: 4,
            source_share_max: 1.0,
            fingerprint: "test".into(),
            base,
            attempts_max: 3,
            batch: BatchId(Uuid::from_u128(u128::from(base.0[0]))),
            lease_ms: 1_000,
            now_ms: self.clock.now_ms(),
        };
        let claimed = self.ledger.claim_samples(&claim).await.unwrap();
        let claims: Vec<_> = claimed
            .materials
            .iter()
            .map(|material| material.claim)
            .collect();
        let settled = self.ledger.settle_claims(&claims, Reason::HeldOut).await;
        assert!(settled.unwrap() > 0);
    }

    /// A pruner to whom everything is old.
    fn pruner(&self, keep_versions: usize) -> Pruner {
        let mut config = crate::Config::for_tests();
        (config.prune.keep_versions, config.prune.orphan_age_ms) = (keep_versions, 0);
        Pruner {
            versions: self.ledger.clone(),
            blobs: self.blobs.clone(),
            clock: self.clock.clone(),
            config: Arc::new(config),
            shipping: Arc::default(),
        }
    }

    /// Folders of adapters and of learners.
    fn folders(&self) -> usize {
        let count = |kind: &str| self.blobs.list(kind).unwrap().len();
        count(ADAPTERS) + count(LEARNERS)
    }

    /// Anna wishes turns to be forgotten.
    async fn forget(&self, turns: Vec<TurnId>) {
        let wish = ForgetWish {
            id: ForgetId(Uuid::from_u128(7)),
            scope: anna(),
            owner: "o".into(),
            what: ForgetWhat::Turns(turns),
            now_ms: self.clock.now_ms(),
            entry: AuditEntry {
                at_ms: self.clock.now_ms(),
                actor: "o".into(),
                act: "forget".into(),
                object: "fgt_7".into(),
                detail: serde_json::json!({}),
            },
        };
        let begun = self.ledger.begin_forget(&wish).await.unwrap();
        for policy in begun.restored {
            self.policies.update(|heads| heads.with(policy.clone()));
        }
    }

    fn on_disk(&self, policy: &Policy) -> Digest {
        let bytes = self.blobs.get(&policy.blob, FILE).unwrap();
        Digest(bytes.try_into().unwrap())
    }

    async fn check_hashes(&self) {
        self.check(|policy| self.on_disk(policy)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_turns_judged_turns_into_a_version() {
    let fixture = Fixture::new().await;
    let running = Fixture::start(fixture.ctx(Hashes::plain()));
    let turns = fixture.four_turns().await;
    running.notifications.send(Notification).unwrap();
    fixture.until_settled(50).await;
    running.stop().await;
    for turn in turns {
        let version = PolicyVersion(1);
        assert_eq!(fixture.fate(turn).await, Fate::Trained { version });
    }
    let record = &fixture.ledger.versions(Some(&anna()), 1).await.unwrap()[0];
    assert_eq!(record.samples, 4);
    assert_eq!(record.report["batch"]["score_mean"], 0.0);
    assert_eq!(record.gate["passed"], true);
    fixture.check_hashes().await;
}

/// Runs four turns with a fault at one call, a new loop after a death, and checks that each turn
/// is in exactly one version. Returns whether the call was reached.
async fn survives(at: usize, fault: Fault) -> bool {
    let fixture = Fixture::new().await;
    let turns = fixture.four_turns().await;
    let plan = Plan::new(Some((at, fault)));
    let in_step = plan.clone();
    let trainer = Hashes::with(move |_, _| {
        in_step.blocking(|| TrainError::Failed("injected".into()), || Ok(()))
    });
    let mut ctx = fixture.ctx(trainer);
    ctx.ledger = Arc::new(FaultyLedger(ctx.ledger, plan.clone()));
    ctx.blobs = Arc::new(FaultyBlobs(ctx.blobs, plan.clone()));
    let running = Fixture::start(ctx);
    // Done is a version that serve was told of; one that is only in the ledger may be a dead
    // loop's, whose successor has to tell.
    let done = || async { fixture.policies.get().len() == 1 };
    tokio::select! {
        () = plan.died.notified() => {
            running.kill().await;
            plan.bury();
            let restarted = Fixture::start(fixture.ctx(Hashes::plain()));
            fixture.until(5_000, done).await;
            restarted.stop().await;
        }
        () = fixture.until(500, done) => running.stop().await,
    }
    let versions = fixture.ledger.versions(Some(&anna()), 10).await.unwrap();
    let trained: u64 = versions.iter().map(|v| v.samples).sum();
    assert_eq!((versions.len(), trained), (1, 4), "call {at}, {fault:?}");
    for turn in turns {
        let version = PolicyVersion(1);
        assert_eq!(
            fixture.fate(turn).await,
            Fate::Trained { version },
            "call {at}, {fault:?}"
        );
    }
    fixture.check_hashes().await;
    plan.was_hit()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_at_any_call_leaves_nothing_or_one_whole_version() {
    let faults = [
        Fault::DiesBefore,
        Fault::DiesAfter,
        Fault::FailsBefore,
        Fault::FailsAfter,
    ];
    for fault in faults {
        let mut calls = 0;
        while survives(calls, fault).await {
            calls += 1;
        }
        // heads, claim, versions, turns, step, two puts, publish.
        assert!(calls >= 8, "{fault:?} was injected at {calls} calls only");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_fails_half_way_is_given_back() {
    let fixture = Fixture::new().await;
    fixture.four_turns().await;
    let trigger = ShutdownTrigger::new();
    // The claim itself is done; what is read with it is not.
    let plan = Plan::new(Some((1, Fault::FailsBefore)));
    let mut ctx = fixture.ctx(Hashes::plain());
    ctx.ledger = Arc::new(FaultyLedger(ctx.ledger, plan.clone()));
    let effects = TrainEffects::start(ctx, trigger.signal()).unwrap();
    assert!(effects.claimer.claim(anna()).await.is_err());
    assert!(plan.was_hit());
    let ready = fixture.ledger.ready(fixture.clock.now_ms()).await.unwrap();
    assert_eq!(ready[0].count, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_whose_lease_was_taken_over_is_thrown_away() {
    let fixture = Arc::new(Fixture::new().await);
    fixture.four_turns().await;
    let (runtime, inside) = (tokio::runtime::Handle::current(), fixture.clone());
    let stolen = AtomicBool::new(false);
    let trainer = Hashes::with(move |_, _| {
        if !stolen.swap(true, Ordering::SeqCst) {
            inside.clock.advance(120_000);
            let thief = SampleClaim {
                scope: anna(),
                limit: 1,
                queue_cap: 8,
                staleness_max_versions: 4,
                source_share_max: 1.0,
                fingerprint: "test".into(),
                base: Digest([7; 32]),
                attempts_max: 3,
                batch: BatchId(Uuid::from_u128(99)),
                lease_ms: 30_000,
                now_ms: inside.clock.now_ms(),
            };
            let taken = runtime
                .block_on(inside.ledger.claim_samples(&thief))
                .unwrap();
            assert_eq!(taken.materials.len(), 1);
        }
        Ok(())
    });
    let running = Fixture::start(fixture.ctx(trainer));
    fixture
        .until(50, || async {
            fixture.number("candidates_lost_total") == 1.0
        })
        .await;
    assert!(fixture.ledger.heads().await.unwrap().is_empty());
    assert!(fixture.policies.get().is_empty());
    // The three that were given back train; the stolen one's lease runs out, and a single turn
    // waits for company.
    fixture
        .until(50, || async { fixture.number("versions_total") == 1.0 })
        .await;
    running.stop().await;
    let trained = fixture.ledger.counts().await.unwrap().trained;
    assert!(trained == 3 || trained == 4, "{trained}");
    fixture.check_hashes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_ran_out_but_was_not_taken_over_still_publishes() {
    let fixture = Arc::new(Fixture::new().await);
    fixture.four_turns().await;
    let inside = fixture.clone();
    let trainer = Hashes::with(move |_, _| {
        inside.clock.advance(120_000);
        Ok(())
    });
    let running = Fixture::start(fixture.ctx(trainer));
    fixture.until_settled(50).await;
    running.stop().await;
    assert_eq!(fixture.ledger.counts().await.unwrap().trained, 4);
    fixture.check_hashes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_moved_during_a_step_is_never_overwritten() {
    let fixture = Arc::new(Fixture::new().await);
    let (runtime, inside) = (tokio::runtime::Handle::current(), fixture.clone());
    let rolled_back = AtomicBool::new(false);
    let trainer = Hashes::with(move |job, _| {
        let parent = job.parent.as_ref().map_or(0, |p| p.version.0);
        if parent == 2 && !rolled_back.swap(true, Ordering::SeqCst) {
            let now = inside.clock.now_ms();
            let scope = anna();
            let restored = inside.ledger.rollback(&scope, PolicyVersion(1), now);
            let policy = runtime.block_on(restored).unwrap();
            inside.policies.update(|heads| heads.with(policy));
        }
        Ok(())
    });
    let running = Fixture::start(fixture.ctx(trainer));
    for _ in 0..3 {
        fixture.four_turns().await;
        fixture.until_settled(50).await;
    }
    running.stop().await;
    let versions = fixture.ledger.versions(Some(&anna()), 10).await.unwrap();
    let chain: Vec<_> = versions
        .iter()
        .map(|v| (v.policy.version.0, v.parent.0))
        .collect();
    assert_eq!(chain, [(4, 3), (3, 1), (2, 1), (1, 0)]);
    assert_eq!(fixture.number("candidates_lost_total"), 1.0);
    fixture.check_hashes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_gate_refuses_leaves_no_trace_but_its_reasons() {
    let fixture = Fixture::new().await;
    let trainer = Hashes {
        hook: Box::new(|_, _| Ok(())),
        change: |measured| measured.candidate.empty_share = 1.0,
    };
    let running = Fixture::start(fixture.ctx(Arc::new(trainer)));
    let turns = fixture.four_turns().await;
    fixture.until_settled(50).await;
    running.stop().await;
    for turn in turns {
        let reason = Reason::GateRejected;
        assert_eq!(fixture.fate(turn).await, Fate::Settled { reason });
    }
    assert!(fixture.policies.get().is_empty());
    let counts = fixture.ledger.counts().await.unwrap();
    assert_eq!((counts.versions, counts.refused, counts.trained), (0, 1, 0));
    fixture.check_hashes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_stops_the_step_and_a_resume_does_it_after_all() {
    let fixture = Fixture::new().await;
    let began = Arc::new(AtomicU64::new(0));
    let steps = began.clone();
    // The first step never ends by itself.
    let trainer = Hashes::with(move |_, pause| {
        if steps.fetch_add(1, Ordering::SeqCst) == 0 {
            while !pause() {
                std::thread::yield_now();
            }
            return Err(TrainError::Stopped);
        }
        Ok(())
    });
    let running = Fixture::start(fixture.ctx(trainer));
    fixture.four_turns().await;
    fixture
        .until(50, || async { began.load(Ordering::SeqCst) == 1 })
        .await;
    let switch = fixture.registry.switch(NAME).unwrap();
    switch.pause(true);
    let free = || async {
        fixture
            .ledger
            .ready(fixture.clock.now_ms())
            .await
            .unwrap()
            .len()
            == 1
    };
    fixture.until(0, free).await;
    assert_eq!(fixture.ledger.counts().await.unwrap().versions, 0);
    switch.pause(false);
    fixture.until_settled(50).await;
    running.stop().await;
    assert_eq!(began.load(Ordering::SeqCst), 2);
    fixture.check_hashes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopping_ends_a_long_step_and_gives_its_turns_back() {
    let fixture = Fixture::new().await;
    let began = Arc::new(AtomicBool::new(false));
    let tell = began.clone();
    let trainer = Hashes::with(move |_, pause| {
        tell.store(true, Ordering::SeqCst);
        while !pause() {
            std::thread::yield_now();
        }
        Err(TrainError::Stopped)
    });
    let running = Fixture::start(fixture.ctx(trainer));
    fixture.four_turns().await;
    fixture
        .until(50, || async { began.load(Ordering::SeqCst) })
        .await;
    running.stop().await;
    let ready = fixture.ledger.ready(fixture.clock.now_ms()).await.unwrap();
    assert_eq!(ready[0].count, 4);
    fixture.check_hashes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scope_whose_steps_panic_does_not_stop_the_others() {
    let fixture = Fixture::new().await;
    let bert = Scope::of("o", Some("bert"));
    let trainer = Hashes::with(|job, _| {
        assert!(job.scope == anna(), "cannot train this one");
        Ok(())
    });
    let running = Fixture::start(fixture.ctx(trainer));
    let poison: Vec<_> = (0..4)
        .map(|i| (fixture.turn(&bert, &[1, i], &[2]), 1.0))
        .collect();
    fixture.judge(&poison).await;
    fixture.four_turns().await;
    fixture.until_settled(50).await;
    running.stop().await;
    let reason = Reason::StepFailed;
    assert_eq!(fixture.fate(poison[0].0.id).await, Fate::Settled { reason });
    assert_eq!(fixture.policies.get().version(&anna()), PolicyVersion(1));
    assert_eq!(fixture.policies.get().version(&bert), PolicyVersion::BASE);
    fixture.check_hashes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_do_not_fit_are_settled_and_the_rest_trains() {
    let fixture = Fixture::new().await;
    let running = Fixture::start(fixture.ctx(Hashes::plain()));
    let mut turns: Vec<_> = (0..3)
        .map(|i| (fixture.turn(&anna(), &[1, i], &[2]), 1.0))
        .collect();
    turns[1].0.prompt_tokens = vec![1; 4_000];
    fixture.judge(&turns).await;
    fixture.until_settled(50).await;
    running.stop().await;
    let reason = Reason::TooLong;
    assert_eq!(fixture.fate(turns[1].0.id).await, Fate::Settled { reason });
    let version = PolicyVersion(1);
    assert_eq!(fixture.fate(turns[2].0.id).await, Fate::Trained { version });
    assert_eq!(fixture.number("turns_left_out_total"), 1.0);
    fixture.check_hashes().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_backlog_is_settled_at_once() {
    let fixture = Fixture::new().await;
    let old = |i| {
        let mut turn = fixture.turn(&anna(), &[1, i], &[2]);
        turn.fingerprint = "old".into();
        (turn, 1.0)
    };
    let turns: Vec<_> = (0..600).map(old).collect();
    fixture.judge(&turns).await;
    let running = Fixture::start(fixture.ctx(Hashes::plain()));
    // The clock stands still: no pause would end.
    fixture.until_settled(0).await;
    running.stop().await;
    let reason = Reason::OtherFingerprint;
    for (turn, _) in [&turns[0], &turns[599]] {
        assert_eq!(fixture.fate(turn.id).await, Fate::Settled { reason });
    }
}

/// A scope that is served well for a while and then complained about: the version it began under
/// is left, learning stops, and a person lets it go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn complaints_bring_the_last_good_version_back_and_stop_learning() {
    let fixture = Fixture::new().await;
    let learning = Fixture::start(fixture.ctx(Hashes::plain()));
    for _ in 0..2 {
        fixture.four_turns().await;
        fixture.until_settled(50).await;
    }
    learning.stop().await;
    // A loop that watches, and never has enough turns to learn.
    let mut ctx = fixture.ctx(Hashes::plain());
    ctx.config.watch.enabled = true;
    (ctx.config.batch_turns, ctx.config.batch_turns_min) = (1_000, 1_000);
    ctx.config.queue_turns_max = 1_000;
    let running = Fixture::start(ctx);
    let sampled = |n: u32, version: u64, score: f32| {
        let turn = |i| {
            let mut turn = fixture.turn(&anna(), &[1, i], &[2, 3]);
            turn.spans[0].version = PolicyVersion(version);
            (turn, score)
        };
        (0..n).map(turn).collect::<Vec<_>>()
    };
    fixture.judge(&sampled(40, 1, 1.0)).await;
    fixture.judge(&sampled(30, 2, -1.0)).await;
    fixture
        .until(50, || async { fixture.number("trips_total") >= 1.0 })
        .await;
    let records = fixture.ledger.versions(Some(&anna()), 10).await.unwrap();
    let chain: Vec<_> = records
        .iter()
        .map(|r| (r.policy.version.0, r.parent.0, r.is_tripped))
        .collect();
    assert_eq!(chain, [(3, 1, false), (2, 1, true), (1, 0, false)]);
    assert_eq!(records[0].policy.digest, records[2].policy.digest);
    let note = records[0].note.clone().unwrap();
    assert!(note.starts_with("auto: complaint rate"), "{note}");
    assert_eq!(fixture.policies.get().version(&anna()), PolicyVersion(3));
    running.stop().await;
    // Nothing is learned until somebody says so, whatever is ready.
    assert!(fixture.ledger.ready(i64::MAX).await.unwrap().is_empty());
    assert!(fixture.ledger.resume(&anna()).await.unwrap());
    assert_eq!(fixture.ledger.ready(i64::MAX).await.unwrap()[0].count, 70);
    assert_eq!(fixture.number("trips_total"), 1.0);
    fixture.check_hashes().await;
}

/// What a scope needs stays; the rest goes, candidates that became nothing included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_nobody_needs_go_and_all_others_stay() {
    let fixture = Fixture::new().await;
    let learning = Fixture::start(fixture.ctx(Hashes::plain()));
    for _ in 0..5 {
        fixture.four_turns().await;
        fixture.until_settled(50).await;
    }
    learning.stop().await;
    let records = fixture.ledger.versions(Some(&anna()), 10).await.unwrap();
    assert_eq!(records.len(), 5);
    let orphan = hone_domain::adapter_key(&anna(), Digest([0xee; 32]));
    fixture
        .blobs
        .put(&orphan, &[(FILE.into(), vec![1])])
        .unwrap();
    let mut ctx = fixture.ctx(Hashes::plain());
    (ctx.config.prune.keep_versions, ctx.config.prune.interval_ms) = (2, 20);
    let running = Fixture::start(ctx);
    // Versions 1 and 2; 3 is what 4 continues. Each has an adapter and a learner.
    let done = || async { fixture.number("folders_pruned_total") >= 4.0 };
    fixture.until(50, done).await;
    running.stop().await;
    let is_there = |key: &hone_domain::BlobKey| fixture.blobs.get(key, FILE).is_ok();
    for record in &records {
        let stays = record.policy.version.0 >= 3;
        assert_eq!(
            is_there(&record.policy.blob),
            stays,
            "{}",
            record.policy.version
        );
        let learner = hone_domain::checkpoint_key(&anna(), record.policy.digest);
        let learner = fixture.blobs.get(&learner, crate::CHECKPOINT_FILE);
        assert_eq!(learner.is_ok(), stays, "{}", record.policy.version);
    }
    assert!(is_there(&orphan), "it is too young to be an orphan");
    // Old enough, it goes; a version that is published again keeps what it names.
    fixture
        .ledger
        .rollback(&anna(), PolicyVersion(3), 1)
        .await
        .unwrap();
    assert_eq!(
        fixture.pruner(1).prune().await,
        Ok(5),
        "versions 4 and 5, and the orphan"
    );
    assert!(!is_there(&orphan) && is_there(&records[2].policy.blob));
    assert_eq!(fixture.pruner(1).prune().await, Ok(0));
    let heads = fixture.ledger.heads().await.unwrap();
    assert_eq!(fixture.on_disk(&heads[0]), heads[0].digest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_version_names_goes_where_every_version_is_kept() {
    let fixture = Fixture::new().await;
    let learning = Fixture::start(fixture.ctx(Hashes::plain()));
    for _ in 0..3 {
        fixture.four_turns().await;
        fixture.until_settled(50).await;
    }
    learning.stop().await;
    let orphan = hone_domain::adapter_key(&anna(), Digest([0xee; 32]));
    fixture
        .blobs
        .put(&orphan, &[(FILE.into(), vec![1])])
        .unwrap();
    assert_eq!(fixture.folders(), 7);
    // It may be one that lay there when a step that is being published made it again.
    let pruner = fixture.pruner(0);
    pruner.ship(Some(orphan.clone())).await;
    assert_eq!(pruner.prune().await, Ok(0));
    pruner.ship(None).await;
    assert_eq!(pruner.prune().await, Ok(1));
    assert!(fixture.blobs.get(&orphan, FILE).is_err());
    assert_eq!(fixture.folders(), 6);
    fixture.check_hashes().await;
}

/// Turns are erased while a step learns from them, or from a version that did: what the step wrote
/// goes at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_whose_turns_are_erased_leaves_no_folder() {
    for parents_are_erased in [false, true] {
        let fixture = Arc::new(Fixture::new().await);
        let (runtime, inside) = (tokio::runtime::Handle::current(), fixture.clone());
        let wish = Arc::new(std::sync::Mutex::new(Vec::new()));
        let wished = wish.clone();
        let trainer = Hashes::with(move |_, _| {
            let turns = std::mem::take(&mut *wished.lock().unwrap());
            if !turns.is_empty() {
                runtime.block_on(inside.forget(turns));
            }
            Ok(())
        });
        let running = Fixture::start(fixture.ctx(trainer));
        let first = fixture.four_turns().await;
        fixture.until_settled(50).await;
        assert_eq!(fixture.folders(), 2);
        if parents_are_erased {
            wish.lock().unwrap().push(first[0]);
        }
        let second = fixture.four_turns().await;
        if !parents_are_erased {
            wish.lock().unwrap().extend(second);
        }
        let lost = || async { fixture.number("candidates_lost_total") == 1.0 };
        fixture.until(50, lost).await;
        fixture.until_settled(50).await;
        running.stop().await;
        // The eraser removes version 1, where that is tainted; version 3 is what learned again.
        let stay = if parents_are_erased { 4 } else { 2 };
        assert_eq!(fixture.folders(), stay, "{parents_are_erased}");
        fixture.check_hashes().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_try_is_told_again_though_the_first_was_trained_before() {
    let fixture = Fixture::new().await;
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = seen.clone();
    let trainer = Hashes::with(move |job, _| {
        told.lock().unwrap().push(job.retold.clone());
        Ok(())
    });
    let mut ctx = fixture.ctx(trainer);
    ctx.config.method = crate::Method::RltfSd;
    ctx.config.gate.held_out_share = 0.0;
    let running = Fixture::start(ctx);
    let first = fixture.turn(&anna(), &[1, 2], &[3]);
    let opening = fixture.turn(&anna(), &[4, 5], &[6]);
    fixture
        .judge(&[(first.clone(), -1.0), (opening.clone(), 1.0)])
        .await;
    fixture.until_settled(50).await;
    let mut third = fixture.turn(&anna(), &[4, 5, 6, 9], &[10]);
    // What follows praise is another request, not a second try.
    third.parent = Some(opening.id);
    let mut second = fixture.turn(&anna(), &[1, 2, 3, 9], &[7, 8]);
    second.parent = Some(first.id);
    fixture.judge(&[(second, 1.0), (third, 1.0)]).await;
    fixture.until_settled(50).await;
    running.stop().await;
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[0], []);
    let told = crate::Retold {
        tokens: vec![1, 2, 7, 8],
        start: 2,
        advantage: 2.0,
    };
    assert_eq!(seen[1], [told]);
    fixture.check_hashes().await;
}

/// The data folder was used with another base model, whose tokens are other words, or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_base_model_sampled_is_no_prompt_to_measure_on() {
    let fixture = Fixture::new().await;
    let jobs = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = jobs.clone();
    let trainer = Hashes::with(move |job, _| {
        let told = (job.probes.clone(), job.held_out.clone(), job.retold.clone());
        seen.lock().unwrap().push(told);
        Ok(())
    });
    let mut ctx = fixture.ctx(trainer);
    ctx.config.method = crate::Method::RltfSd;
    let of_other = |prompt: &[u32]| {
        let mut turn = fixture.turn(&anna(), prompt, &[50_001]);
        turn.base = Digest([8; 32]);
        turn
    };
    let (held, first) = (of_other(&[50_000]), of_other(&[50_002]));
    let own = fixture.turn(&anna(), &[9, 8], &[7]);
    fixture.judge(&[(held, 1.0)]).await;
    fixture.keep_for_comparisons(Digest([8; 32])).await;
    fixture.judge(&[(own, 0.5)]).await;
    fixture.keep_for_comparisons(Digest([7; 32])).await;
    let mut second = fixture.turn(&anna(), &[1, 2], &[3]);
    second.parent = Some(first.id);
    let another = fixture.turn(&anna(), &[4, 5, 6], &[6]);
    let judged = [(first, -1.0), (second, 1.0), (another, -1.0)];
    fixture.judge(&judged).await;
    let running = Fixture::start(ctx);
    fixture.until_settled(50).await;
    running.stop().await;
    let jobs = std::mem::take(&mut *jobs.lock().unwrap());
    let [(probes, held_out, retold)] = &jobs[..] else {
        panic!("one step: {jobs:?}");
    };
    assert!(probes.contains(&vec![9, 8]), "{probes:?}");
    assert!(
        probes.iter().flatten().all(|token| *token < 50_000),
        "{probes:?}"
    );
    let compared: Vec<_> = held_out.iter().map(|judged| &judged.tokens).collect();
    assert_eq!(compared, [&vec![9, 8, 7]]);
    assert_eq!(*retold, []);
    fixture.check_hashes().await;
}

/// Feedback that comes late has a held-out turn judged again: it is held out as before, with the
/// new score, or trains where it was corrected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_out_turn_is_heard_again_and_trains_only_where_it_is_corrected() {
    let fixture = Fixture::new().await;
    let mut ctx = fixture.ctx(Hashes::plain());
    ctx.config.gate.held_out_share = 0.5;
    ctx.config.queue_turns_max = 100;
    let turn = |i| (fixture.turn(&anna(), &[1, i], &[2, 3]), 1.0);
    let turns: Vec<_> = (0..16).map(turn).collect();
    let is_held_out = |turn: &&Turn| crate::gate::is_held_out(turn.id, 0.5);
    let held: Vec<&Turn> = turns
        .iter()
        .map(|(turn, _)| turn)
        .filter(is_held_out)
        .collect();
    let running = Fixture::start(ctx);
    fixture.judge(&turns).await;
    fixture.until_settled(50).await;
    let reason = Reason::HeldOut;
    for turn in &held[..2] {
        assert_eq!(fixture.fate(turn.id).await, Fate::Settled { reason });
    }
    for (turn, correction) in [(held[0], None), (held[1], Some("4".to_owned()))] {
        let said = Feedback {
            id: FeedbackId(turn.id.0),
            turn: turn.id,
            owner: turn.owner.clone(),
            client_id: None,
            score: Some(-1.0),
            comment: None,
            correction,
            of_session: false,
            received_ms: fixture.clock.now_ms(),
        };
        fixture.ledger.record_feedback(&said).await.unwrap();
    }
    let again = [held[0], held[1]].map(|turn| (turn.clone(), -1.0));
    fixture.judge(&again).await;
    fixture.until_settled(50).await;
    running.stop().await;
    assert_eq!(fixture.fate(held[0].id).await, Fate::Settled { reason });
    let compared = fixture.ledger.held_out(&anna(), Digest([7; 32]), 100).await;
    let compared = compared.unwrap();
    let found = compared.iter().find(|c| c.turn.id == held[0].id).unwrap();
    assert_eq!((found.score, compared.len()), (-1.0, held.len() - 1));
    let fate = fixture.fate(held[1].id).await;
    assert!(matches!(fate, Fate::Trained { .. }), "{fate:?}");
    fixture.check_hashes().await;
}

/// The first thumb of somebody new is heard, whatever would be held out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_batch_is_never_held_out_as_a_whole() {
    let fixture = Fixture::new().await;
    let mut ctx = fixture.ctx(Hashes::plain());
    ctx.config.gate.held_out_share = 0.5;
    let running = Fixture::start(ctx);
    let turns: Vec<_> = (0..16)
        .map(|i| (fixture.turn(&anna(), &[1, i], &[2, 3]), 1.0))
        .filter(|(turn, _)| crate::gate::is_held_out(turn.id, 0.5))
        .collect();
    let (first, second) = turns.split_at(4);
    fixture.judge(first).await;
    fixture.until_settled(50).await;
    fixture.judge(second).await;
    fixture.until_settled(50).await;
    running.stop().await;
    assert!(second.len() > 1);
    for (turn, _) in first {
        let fate = fixture.fate(turn.id).await;
        assert!(matches!(fate, Fate::Trained { .. }), "{fate:?}");
    }
    let reason = Reason::HeldOut;
    for (turn, _) in second {
        assert_eq!(fixture.fate(turn.id).await, Fate::Settled { reason });
    }
    fixture.check_hashes().await;
}

/// What refusals made of the learning rate is known to the next process, and what versions after
/// them made of it as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lowered_learning_rate_outlives_the_process() {
    let fixture = Fixture::new().await;
    let rates = Arc::new(std::sync::Mutex::new(Vec::new()));
    let process = async |refuses: bool, steps: usize| {
        let seen = rates.clone();
        let hook = move |job: &TrainJob, _: &mut dyn FnMut() -> bool| {
            seen.lock().unwrap().push(job.lr_scale);
            Ok(())
        };
        let trainer = Hashes {
            hook: Box::new(hook),
            change: if refuses {
                |measured| measured.candidate.empty_share = 1.0
            } else {
                |_| {}
            },
        };
        let running = Fixture::start(fixture.ctx(Arc::new(trainer)));
        for _ in 0..steps {
            fixture.four_turns().await;
            fixture.until_settled(50).await;
        }
        running.stop().await;
        std::mem::take(&mut *rates.lock().unwrap())
    };
    assert_eq!(process(false, 1).await, [1.0]);
    assert_eq!(process(true, 2).await, [1.0, 1.0]);
    assert_eq!(process(false, 3).await, [0.5; 3]);
    assert_eq!(process(false, 1).await, [1.0]);
    fixture.check_hashes().await;
}
