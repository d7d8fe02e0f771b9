#![allow(clippy::unwrap_used)]

use hone_domain::{BatchId, BlobKey, Digest, Policy};
use hone_ledger::Replayed;
use hone_runtime::{Event, LoopState};
use uuid::Uuid;

use super::*;
use crate::gate::WishMeter;
use crate::share::ShareTotals;
use crate::testing::{candidate, material, transition_of, turn};

const ROUNDS: u32 = 2;

struct Bench {
    train: Train,
    now: Millis,
    version: u64,
}

impl Bench {
    fn new() -> Self {
        let mut config = Config::for_tests();
        config.practice_rounds = ROUNDS;
        let mut bench = Self {
            train: Train::new(config),
            now: 10_000,
            version: 0,
        };
        bench.train.step(bench.now, Event::Started);
        bench.report(Report::Synced(Ok(0)));
        bench
    }

    fn report(&mut self, report: Report) -> Vec<Effect> {
        self.train.step(self.now, Event::Reported(report))
    }

    fn looked(&mut self, ready: Vec<Ready>) -> Option<Effect> {
        self.report(Report::Looked(Ok(ready))).pop()
    }

    fn claimed(
        &mut self,
        materials: Vec<SampleMaterial>,
        replayed: Vec<Replayed>,
    ) -> Arc<TrainJob> {
        let batch = ClaimedBatch {
            batch: BatchId(Uuid::from_u128(u128::from(self.version) + 9)),
            parent: (self.version > 0).then(|| self.policy()),
            memory: None,
            materials,
            left_out: 0,
            first_tries: Vec::new(),
            replayed,
            probes: vec![vec![1]],
            golden: 1,
            held_out: Vec::new(),
        };
        match self
            .report(Report::Claimed(Ok(Claimed::Batch(Box::new(batch)))))
            .pop()
        {
            Some(Effect::Train(job)) => job,
            other => panic!("{other:?}"),
        }
    }

    fn policy(&self) -> Policy {
        Policy {
            scope: scope(),
            version: PolicyVersion(self.version),
            digest: Digest([self.version as u8; 32]),
            blob: BlobKey::new("adapters/x/y").unwrap(),
        }
    }

    /// The candidate whose answers gain so much by the words is trained; what follows.
    fn trained(&mut self, gain: f32, changes: impl FnOnce(&mut Candidate)) -> Effect {
        let mut candidate = candidate(self.version as u8 + 1);
        candidate.measured.wish = Some(WishMeter {
            candidate: gain,
            told: 1.0,
            ..WishMeter::default()
        });
        changes(&mut candidate);
        let report = Report::Trained(Ok(Arc::new(candidate)), ShareTotals::default());
        self.report(report).pop().unwrap()
    }

    /// The job under way becomes a version; the look that follows finds `ready`.
    fn published(&mut self, gain: f32, ready: Vec<Ready>) -> Option<Effect> {
        assert!(matches!(self.trained(gain, |_| ()), Effect::Save(..)));
        let saved = Report::Saved(Ok(BlobKey::new("adapters/x/y").unwrap()));
        let Some(Effect::Publish(order)) = self.report(saved).pop() else {
            panic!("it is published")
        };
        assert_eq!(order.report["practice"] == true, order.claims.is_empty());
        self.version += 1;
        let published = Report::Published(PublishOutcome::Published(self.policy()));
        assert!(matches!(self.report(published)[..], [Effect::Look]));
        self.looked(ready)
    }

    /// A person's complaint is learned from.
    fn complaint(&mut self, gain: f32, then: Vec<Ready>) -> Option<Effect> {
        assert!(matches!(self.looked(vec![ready()]), Some(Effect::Claim(_))));
        let mut said = material(turn(1, &[1], &[2, 3]), -1.0);
        said.hint = Some("shorter".into());
        self.claimed(vec![said], Vec::new());
        self.published(gain, then)
    }
}

fn scope() -> Scope {
    Scope::of("a", None)
}

fn ready() -> Ready {
    Ready {
        scope: scope(),
        count: 8,
        oldest_judged_ms: 0,
        oldest_explicit_ms: None,
    }
}

fn replayed() -> Vec<Replayed> {
    let turn = turn(1, &[1], &[2, 3]);
    vec![Replayed {
        transition: transition_of(&turn),
        turn,
        hint: Some("shorter".into()),
        wish: None,
        correction: None,
    }]
}

#[test]
fn words_are_practised_so_often_and_no_longer() {
    let mut bench = Bench::new();
    let mut next = bench.complaint(0.2, Vec::new());
    for _ in 0..ROUNDS {
        assert!(matches!(next, Some(Effect::Practise(of)) if of == scope()));
        let job = bench.claimed(Vec::new(), replayed());
        assert!(job.rows.is_empty() && job.lessons.is_empty());
        assert_eq!((job.replayed.len(), job.teaching_turns()), (1, 1));
        next = bench.published(0.2, Vec::new());
    }
    assert!(next.is_none());
    assert_eq!(bench.train.counters.versions, 1 + u64::from(ROUNDS));
}

#[test]
fn turns_that_wait_come_before_practice() {
    let mut bench = Bench::new();
    let next = bench.complaint(0.2, vec![ready()]);
    assert!(matches!(next, Some(Effect::Claim(_))));
}

#[test]
fn who_follows_already_does_not_practise() {
    let mut bench = Bench::new();
    assert!(bench.complaint(0.95, Vec::new()).is_none());
    let mut bench = Bench::new();
    assert!(matches!(
        bench.complaint(0.2, Vec::new()),
        Some(Effect::Practise(_))
    ));
    bench.claimed(Vec::new(), replayed());
    assert!(bench.published(0.95, Vec::new()).is_none());
}

#[test]
fn practice_ends_with_a_refusal_which_costs_nothing() {
    let mut bench = Bench::new();
    bench.complaint(0.2, Vec::new());
    bench.claimed(Vec::new(), replayed());
    let refused = bench.trained(0.2, |c| c.measured.kl_to_parent = 99.0);
    let Effect::Refuse(refusal) = refused else {
        panic!("it diverges")
    };
    assert!(refusal.claims.is_empty());
    assert_eq!(refusal.report["practice"], true);
    assert!(matches!(
        bench.report(Report::Refused(Ok(())))[..],
        [Effect::Look]
    ));
    assert!(bench.looked(Vec::new()).is_none());
    assert_eq!(bench.train.scopes.entry(&scope()).memory.lr_scale, 1.0);
}

#[test]
fn where_nothing_can_be_practised_any_more_it_ends() {
    let mut bench = Bench::new();
    bench.complaint(0.2, Vec::new());
    let nothing = Report::Claimed(Ok(Claimed::Nothing));
    assert!(matches!(bench.report(nothing)[..], [Effect::Look]));
    assert!(bench.looked(Vec::new()).is_none());
}

#[test]
fn a_failed_practice_is_not_tried_again() {
    let mut bench = Bench::new();
    bench.complaint(0.2, Vec::new());
    bench.claimed(Vec::new(), replayed());
    let failed = Report::Trained(Err(TrainError::Failed("no".into())), ShareTotals::default());
    let Some(Effect::Release(claims, _)) = bench.report(failed).pop() else {
        panic!("it is given back")
    };
    assert!(claims.is_empty());
    assert!(matches!(bench.report(Report::Released)[..], [Effect::Look]));
    bench.now += 1_000_000;
    assert!(bench.looked(Vec::new()).is_none());
}

/// Who learned too little took no step that was too long.
#[test]
fn only_harm_slows_learning_down() {
    for (change, slower) in [
        (
            (|c: &mut Candidate| c.measured.kl_to_parent = 99.0) as fn(&mut Candidate),
            true,
        ),
        (|c| c.measured.unlearnable = true, false),
    ] {
        let mut bench = Bench::new();
        bench.train.config.refusals_in_row_max = 1;
        assert!(matches!(
            bench.looked(vec![ready()]),
            Some(Effect::Claim(_))
        ));
        bench.claimed(vec![material(turn(1, &[1], &[2, 3]), -1.0)], Vec::new());
        assert!(matches!(bench.trained(0.2, change), Effect::Refuse(_)));
        let scale = bench.train.scopes.entry(&scope()).memory.lr_scale;
        assert_eq!(scale < 1.0, slower, "{scale}");
    }
}
