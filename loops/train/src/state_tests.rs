#![allow(clippy::unwrap_used)]

use hone_domain::{BatchId, BlobKey, Digest, Policy};
use hone_ledger::SampleMaterial;
use hone_runtime::{Event, LoopState};
use uuid::Uuid;

use super::*;
use crate::credit::Method;
use crate::credit::{Baseline, RecentMean};
use crate::event::Memory;
use crate::share::ShareTotals;
use crate::testing::{candidate, material, turn};

fn scope(name: &str) -> Scope {
    Scope::of(name, None)
}

fn ready(name: &str, count: usize, oldest_judged_ms: Millis) -> Ready {
    Ready {
        scope: scope(name),
        count,
        oldest_judged_ms,
        oldest_explicit_ms: None,
    }
}

fn materials(scores: &[f32]) -> Vec<SampleMaterial> {
    let make = |(i, score): (usize, &f32)| material(turn(i as u8, &[1, i as u32], &[2, 3]), *score);
    scores.iter().enumerate().map(make).collect()
}

/// A loop past its start, with a hand on its clock.
struct Bench {
    train: Train,
    now: Millis,
    head: u64,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self {
            train: Train::new(Config::for_tests()),
            now: 10_000,
            head: 0,
        };
        let started = bench.train.step(bench.now, Event::Started);
        assert!(matches!(started[..], [Effect::Sync, Effect::Look]));
        bench.report(Report::Synced(Ok(0)));
        assert!(bench.report(Report::Looked(Ok(Vec::new()))).is_empty());
        let ticked = bench.tick(0);
        assert!(matches!(ticked[..], [Effect::Prune, Effect::Look]));
        bench.report(Report::Pruned(Ok(0)));
        assert!(bench.report(Report::Looked(Ok(Vec::new()))).is_empty());
        bench
    }

    fn report(&mut self, report: Report) -> Vec<Effect> {
        self.train.step(self.now, Event::Reported(report))
    }

    fn notify(&mut self) -> Vec<Effect> {
        self.train.step(self.now, Event::Arrived(Notification))
    }

    fn tick(&mut self, after_ms: Millis) -> Vec<Effect> {
        self.now += after_ms;
        self.train.step(self.now, Event::Ticked)
    }

    /// From a look to the scope that is claimed.
    fn look(&mut self, found: Vec<Ready>) -> Option<Scope> {
        match self.report(Report::Looked(Ok(found))).pop() {
            Some(Effect::Claim(scope)) => Some(scope),
            None => None,
            Some(other) => panic!("{other:?}"),
        }
    }

    fn batch(&self, scores: &[f32], memory: Option<Memory>) -> Report {
        Report::Claimed(Ok(Claimed::Batch(Box::new(ClaimedBatch {
            batch: BatchId(Uuid::from_u128(9)),
            parent: (self.head > 0).then(|| policy(self.head)),
            memory,
            materials: materials(scores),
            left_out: 0,
            first_tries: Vec::new(),
            replayed: Vec::new(),
            probes: vec![vec![1]],
            golden: 1,
            held_out: Vec::new(),
        }))))
    }

    /// A notification, a look, a claim: the job that is trained.
    fn job(&mut self, scores: &[f32]) -> Arc<TrainJob> {
        assert!(matches!(self.notify()[..], [Effect::Look]));
        assert!(self.look(vec![ready("a", 8, 0)]).is_some());
        let batch = self.batch(scores, None);
        match self.report(batch).pop() {
            Some(Effect::Train(job)) => job,
            other => panic!("{other:?}"),
        }
    }

    fn trained(&mut self, outcome: Result<Candidate, TrainError>) -> Effect {
        let report = Report::Trained(outcome.map(Arc::new), ShareTotals::default());
        let mut effects = self.report(report);
        assert_eq!(effects.len(), 1);
        effects.remove(0)
    }
}

fn policy(version: u64) -> Policy {
    Policy {
        scope: scope("a"),
        version: PolicyVersion(version),
        digest: Digest([version as u8; 32]),
        blob: blob(),
    }
}

fn blob() -> BlobKey {
    BlobKey::new("adapters/x/y").unwrap()
}

#[test]
fn a_scope_trains_when_it_has_enough_or_has_waited() {
    // batch_turns 8, batch_turns_min 2, batch_wait_ms 500; the clock stands at 10,000.
    let rows = [
        (ready("a", 8, 9_999), true),
        (ready("a", 7, 9_999), false),
        (ready("a", 2, 9_501), false),
        (ready("a", 2, 9_500), true),
        (ready("a", 1, 0), false),
    ];
    for (found, expected) in rows {
        let mut bench = Bench::new();
        bench.notify();
        assert_eq!(
            bench.look(vec![found.clone()]).is_some(),
            expected,
            "{found:?}"
        );
    }
}

#[test]
fn explicit_feedback_trains_alone_and_soon() {
    // explicit_wait_ms 100; the clock stands at 10,000.
    for (explicit, expected) in [(Some(9_900), true), (Some(9_901), false), (None, false)] {
        let mut bench = Bench::new();
        bench.notify();
        let found = Ready {
            oldest_explicit_ms: explicit,
            ..ready("a", 1, 9_900)
        };
        assert_eq!(bench.look(vec![found]).is_some(), expected, "{explicit:?}");
    }
}

#[test]
fn lessons_go_along_and_a_method_may_leave_scores_out() {
    for (method, advantages, lessons) in [
        (Method::BinaryReward, [1.0, -1.0], vec![]),
        (Method::Combined, [1.0, -1.0], vec!["hint", "correction"]),
        (Method::Distillation, [0.0, 0.0], vec!["hint"]),
        (Method::Supervised, [0.0, 0.0], vec!["correction"]),
    ] {
        let mut bench = Bench::new();
        bench.train.config.method = method;
        bench.train.config.baseline = Baseline::None;
        bench.notify();
        bench.look(vec![ready("a", 8, 0)]);
        let mut materials = materials(&[1.0, -1.0]);
        materials[0].hint = Some("hint".into());
        materials[1].hint = Some("what is corrected needs no hint".into());
        materials[1].correction = Some("correction".into());
        let Report::Claimed(Ok(Claimed::Batch(mut batch))) = bench.batch(&[], None) else {
            panic!("a batch")
        };
        batch.materials = materials;
        let claimed = Report::Claimed(Ok(Claimed::Batch(batch)));
        let Some(Effect::Train(job)) = bench.report(claimed).pop() else {
            panic!("it trains")
        };
        let given: Vec<f32> = job
            .rows
            .iter()
            .map(|r| r.sample.parts()[0].advantages[0])
            .collect();
        assert_eq!(given, advantages, "{method:?}");
        let words = |l: &crate::trainer::Lesson| l.hint.clone().or(l.correction.clone());
        let said: Vec<String> = job.lessons.iter().filter_map(words).collect();
        if method == Method::Distillation {
            // Nothing else is used, so the hint is.
            assert_eq!(said.len(), 2);
        } else {
            assert_eq!(said, lessons, "{method:?}");
        }
    }
}

#[test]
fn what_came_from_outside_is_imitated_and_no_part_of_the_gradient() {
    let mut bench = Bench::new();
    bench.train.config.method = Method::Combined;
    bench.train.config.baseline = Baseline::None;
    bench.notify();
    bench.look(vec![ready("a", 8, 0)]);
    let mut materials = materials(&[1.0, -1.0]);
    let turn = &mut materials[0].turn;
    turn.completion = hone_domain::Completion::given(vec![2, 3], hone_domain::StopReason::EndToken);
    let text = turn.completion_text.clone();
    let Report::Claimed(Ok(Claimed::Batch(mut batch))) = bench.batch(&[], None) else {
        panic!("a batch")
    };
    batch.materials = materials;
    let claimed = Report::Claimed(Ok(Claimed::Batch(batch)));
    let Some(Effect::Train(job)) = bench.report(claimed).pop() else {
        panic!("it trains")
    };
    let [row] = &job.rows[..] else {
        panic!("{} rows", job.rows.len())
    };
    assert_eq!(row.sample.parts()[0].advantages, [-1.0; 2]);
    let [lesson] = &job.lessons[..] else {
        panic!("{} lessons", job.lessons.len())
    };
    assert_eq!(lesson.correction, Some(text));
}

#[test]
fn a_step_goes_from_claim_to_publish_and_reports_what_it_did() {
    let mut bench = Bench::new();
    let job = bench.job(&[1.0, -1.0]);
    assert_eq!((job.rows.len(), job.lr_scale, &job.parent), (2, 1.0, &None));
    let advantages: Vec<f32> = job
        .rows
        .iter()
        .map(|r| r.sample.parts()[0].advantages[0])
        .collect();
    assert_eq!(advantages, [1.2, -1.2]);

    let Effect::Save(of, saved) = bench.trained(Ok(candidate(5))) else {
        panic!()
    };
    assert_eq!((of, saved.digest), (scope("a"), Digest([5; 32])));
    let Some(Effect::Publish(order)) = bench.report(Report::Saved(Ok(blob()))).pop() else {
        panic!()
    };
    assert_eq!(order.parent, PolicyVersion::BASE);
    assert_eq!((order.digest, order.claims.len()), (Digest([5; 32]), 2));
    assert_eq!(order.gate["passed"], true);
    assert_eq!(order.report["batch"]["turns"], 2);
    let noted = order.report["advantages"].as_object().unwrap().values();
    let mut noted: Vec<f64> = noted.filter_map(serde_json::Value::as_f64).collect();
    noted.sort_by(f64::total_cmp);
    assert_eq!(noted, [-1.2, 1.2]);
    assert_eq!(order.report["memory"]["history"]["weight"], 2.0);
    let next = bench.report(Report::Published(PublishOutcome::Published(policy(1))));
    assert!(matches!(next[..], [Effect::Look]));
    let counters = bench.train.counters();
    assert_eq!((counters.versions, counters.turns_trained), (1, 2));
    assert!(bench.look(vec![]).is_none());
    assert!(bench.train.is_idle());
}

#[test]
fn a_published_report_brings_the_scope_back_after_a_restart() {
    let mut bench = Bench::new();
    bench.notify();
    bench.look(vec![ready("a", 8, 0)]);
    let memory = Memory {
        history: RecentMean {
            mean: 0.5,
            weight: 4.0,
        },
        lr_scale: 0.25,
    };
    let batch = bench.batch(&[1.0], Some(memory));
    let Some(Effect::Train(job)) = bench.report(batch).pop() else {
        panic!()
    };
    assert_eq!(job.lr_scale, 0.25);
    assert_eq!(job.rows[0].sample.parts()[0].advantages, [0.75, 0.75]);
}

#[test]
fn busy_scopes_do_not_starve_the_others_and_only_one_job_runs() {
    let mut bench = Bench::new();
    let mut served = std::collections::HashMap::new();
    for _ in 0..30 {
        bench.notify();
        // "a" always has the oldest turns and the most of them.
        let found = vec![ready("a", 500, 0), ready("b", 8, 5), ready("c", 8, 9)];
        let next = bench.look(found).unwrap();
        *served.entry(next).or_insert(0) += 1;
        assert!(bench.notify().is_empty(), "a second job began");
        assert!(bench.tick(1).is_empty(), "a second job began");
        let batch = bench.batch(&[1.0, -1.0], None);
        bench.report(batch);
        bench.trained(Ok(candidate(1)));
        bench.report(Report::Saved(Ok(blob())));
        bench.report(Report::Published(PublishOutcome::Lost("x".into())));
        let next = bench.report(Report::Released);
        assert!(matches!(next[..], [Effect::Look]));
        bench.look(vec![]);
        bench.notify();
        bench.look(vec![]);
    }
    assert_eq!(served.values().copied().collect::<Vec<i32>>(), [10, 10, 10]);
    assert_eq!(bench.train.counters().lost, 30);
    assert_eq!(bench.train.counters().versions, 0);
}

#[test]
fn what_the_gate_refuses_is_never_saved_and_halves_the_rate_in_time() {
    let mut bench = Bench::new();
    let mut scales = Vec::new();
    for _ in 0..3 {
        let job = bench.job(&[1.0, -1.0]);
        scales.push(job.lr_scale);
        let mut bad = candidate(5);
        bad.measured.kl_to_reference = 9.0;
        let Effect::Refuse(refusal) = bench.trained(Ok(bad)) else {
            panic!()
        };
        assert_eq!(refusal.reason, Reason::GateRejected);
        assert_eq!(refusal.digest, Some(Digest([5; 32])));
        let reasons = refusal.report["gate"]["reasons"].as_array().unwrap();
        assert!(
            reasons[0].as_str().unwrap().contains("base model"),
            "{reasons:?}"
        );
        bench.report(Report::Refused(Ok(())));
        bench.look(vec![]);
    }
    assert_eq!(scales, [1.0, 1.0, 0.5]);
    assert_eq!(bench.train.counters().gate_refusals, 3);
    assert_eq!(bench.train.counters().versions, 0);
}

#[test]
fn a_step_that_is_not_finite_settles_its_batch() {
    let mut bench = Bench::new();
    bench.job(&[1.0, -1.0]);
    let Effect::Refuse(refusal) = bench.trained(Err(TrainError::NotFinite("loss NaN".into())))
    else {
        panic!()
    };
    assert_eq!((refusal.reason, refusal.digest), (Reason::StepFailed, None));
    assert_eq!(refusal.claims.len(), 2);
}

#[test]
fn a_failing_step_is_tried_again_later_and_given_up_in_the_end() {
    let mut bench = Bench::new();
    for pause in [10, 20] {
        bench.job(&[1.0, -1.0]);
        let failed = bench.trained(Err(TrainError::Failed("no such file".into())));
        let Effect::Release(claims, retry_at) = failed else {
            panic!()
        };
        assert_eq!((claims.len(), retry_at), (2, bench.now + pause));
        assert!(matches!(bench.report(Report::Released)[..], [Effect::Look]));
        // Even if the ledger offered it, the scope is left alone until then.
        assert!(bench.look(vec![ready("a", 8, 0)]).is_none());
        bench.now += pause;
    }
    bench.job(&[1.0, -1.0]);
    let failed = bench.trained(Err(TrainError::Failed("no such file".into())));
    let Effect::Refuse(refusal) = failed else {
        panic!()
    };
    assert_eq!(refusal.reason, Reason::StepFailed);
    assert_eq!(bench.train.counters().step_failures, 3);
}

#[test]
fn a_device_that_fails_costs_no_batch_an_attempt() {
    let mut bench = Bench::new();
    let config = Config::for_tests();
    for _ in 0..2 * config.attempts_max {
        bench.job(&[1.0, -1.0]);
        let failed = bench.trained(Err(TrainError::Device("it is gone".into())));
        let Effect::Release(claims, retry_at) = failed else {
            panic!()
        };
        let later = bench.now + config.backoff_max_ms;
        assert_eq!((claims.len(), retry_at), (2, later));
        bench.report(Report::Released);
        bench.look(vec![]);
        bench.now = later;
    }
    // Nor is what fails for another reason tried less often then.
    bench.job(&[1.0, -1.0]);
    let failed = bench.trained(Err(TrainError::Failed("no such file".into())));
    assert!(matches!(failed, Effect::Release(..)), "{failed:?}");
}

#[test]
fn saving_and_publishing_are_tried_again_on_ticks_and_then_the_claims_go_back() {
    let mut bench = Bench::new();
    bench.job(&[1.0, -1.0]);
    bench.trained(Ok(candidate(5)));
    assert!(
        bench
            .report(Report::Saved(Err("disk full".into())))
            .is_empty()
    );
    assert!(bench.tick(5).is_empty());
    assert!(matches!(bench.tick(5)[..], [Effect::Save(..)]));
    assert!(matches!(
        bench.report(Report::Saved(Ok(blob())))[..],
        [Effect::Publish(_)]
    ));
    for _ in 0..2 {
        let failed = PublishOutcome::Failed("locked".into());
        assert!(bench.report(Report::Published(failed)).is_empty());
        assert!(matches!(bench.tick(50)[..], [Effect::Publish(_)]));
    }
    let failed = PublishOutcome::Failed("locked".into());
    let given_up = bench.report(Report::Published(failed));
    assert!(matches!(given_up[..], [Effect::Release(..)]));
    assert_eq!(bench.train.counters().versions, 0);
    assert_eq!(bench.train.counters().given_up, 1);
}

#[test]
fn a_step_longer_than_its_leases_keeps_them() {
    let mut bench = Bench::new();
    let job = bench.job(&[1.0, -1.0]);
    let lease_ms = Config::for_tests().lease_ms;
    let renewal = |effects: Vec<Effect>| match &effects[..] {
        [] => None,
        [Effect::Renew(claims, until_ms)] => Some((claims.len(), *until_ms)),
        other => panic!("{other:?}"),
    };
    assert_eq!(renewal(bench.tick(lease_ms / 3 - 1)), None);
    for _ in 0..5 {
        let found = renewal(bench.tick(lease_ms / 3));
        assert_eq!(found, Some((job.transitions().len(), bench.now + lease_ms)));
        assert_eq!(renewal(bench.tick(1)), None, "once per third of a lease");
        assert!(bench.report(Report::Renewed(Ok(2))).is_empty());
    }
    assert_eq!(bench.train.counters().leases_lost, 0);
    bench.report(Report::Renewed(Ok(1)));
    assert_eq!(bench.train.counters().leases_lost, 1);
    // The step goes on; the publish will be refused by the ledger.
    assert!(matches!(bench.trained(Ok(candidate(1))), Effect::Save(..)));
}

#[test]
fn draining_begins_nothing_and_ends_what_is_under_way() {
    // While a step runs: it is stopped, its claims go back.
    let mut bench = Bench::new();
    bench.job(&[1.0, -1.0]);
    assert!(bench.train.step(bench.now, Event::Draining).is_empty());
    assert!(!bench.train.is_idle());
    assert!(matches!(
        bench.trained(Err(TrainError::Stopped)),
        Effect::Release(..)
    ));
    assert!(bench.report(Report::Released).is_empty());
    assert!(bench.train.is_idle());
    assert!(bench.notify().is_empty());

    // While a save waits for another attempt: it is not waited for.
    let mut bench = Bench::new();
    bench.job(&[1.0, -1.0]);
    bench.trained(Ok(candidate(5)));
    bench.report(Report::Saved(Err("disk full".into())));
    assert!(matches!(
        bench.train.step(bench.now, Event::Draining)[..],
        [Effect::Release(..)]
    ));
    assert!(bench.report(Report::Released).is_empty());
    assert!(bench.train.is_idle());

    // Between save and publish: the version still comes out.
    let mut bench = Bench::new();
    bench.job(&[1.0, -1.0]);
    bench.trained(Ok(candidate(5)));
    bench.train.step(bench.now, Event::Draining);
    assert!(matches!(
        bench.report(Report::Saved(Ok(blob())))[..],
        [Effect::Publish(_)]
    ));
    bench.report(Report::Published(PublishOutcome::Published(policy(1))));
    assert!(bench.train.is_idle());
    assert_eq!(bench.train.counters().versions, 1);
}

#[test]
fn folders_are_looked_through_however_many_versions_are_kept() {
    let mut bench = Bench::new();
    let interval_ms = bench.train.config.prune.interval_ms;
    assert_eq!(bench.train.config.prune.keep_versions, 0);
    let prunes = |effects: Vec<Effect>| effects.iter().any(|e| matches!(e, Effect::Prune));
    assert!(!prunes(bench.tick(20)), "it is too early");
    assert!(prunes(bench.tick(interval_ms)));
    assert!(!prunes(bench.tick(interval_ms)), "one round at a time");
    bench.report(Report::Pruned(Ok(3)));
    assert!(prunes(bench.tick(20)));
    assert_eq!(bench.train.counters().folders_pruned, 3);
}

#[test]
fn a_scope_whose_claim_finds_nothing_is_left_alone_and_the_others_come_at_once() {
    let mut bench = Bench::new();
    // Those that are shared by too few have the oldest turns, and never had a job.
    let shared = vec![ready("s", 500, 0), ready("t", 500, 0)];
    let found = [shared.clone(), vec![ready("a", 8, 5)]].concat();
    for pause in [10, 20, 40, 80, 80] {
        bench.notify();
        for name in ["s", "t"] {
            assert_eq!(bench.look(found.clone()), Some(scope(name)));
            let next = bench.report(Report::Claimed(Ok(Claimed::Nothing)));
            assert!(matches!(next[..], [Effect::Look]), "{next:?}");
        }
        assert_eq!(bench.look(found.clone()), Some(scope("a")));
        let batch = bench.batch(&[1.0, -1.0], None);
        bench.report(batch);
        bench.trained(Err(TrainError::Stopped));
        bench.report(Report::Released);
        assert!(bench.look(shared.clone()).is_none());
        bench.tick(pause - 1);
        assert!(bench.look(shared.clone()).is_none(), "{pause}");
        bench.now += 1;
    }
    // It failed at nothing: its first failing step is tried again.
    bench.notify();
    assert_eq!(bench.look(found.clone()), Some(scope("s")));
    let batch = bench.batch(&[1.0, -1.0], None);
    bench.report(batch);
    let failed = bench.trained(Err(TrainError::Failed("no such file".into())));
    assert!(matches!(failed, Effect::Release(..)), "{failed:?}");
}

#[test]
fn a_scope_whose_backlog_is_settled_goes_on_at_once_and_the_others_get_their_turns() {
    let mut bench = Bench::new();
    let found = vec![ready("a", 5_000, 0), ready("b", 8, 5)];
    bench.notify();
    for name in ["a", "b", "a", "b"] {
        assert_eq!(bench.look(found.clone()), Some(scope(name)));
        let next = bench.report(Report::Claimed(Ok(Claimed::Settled)));
        assert!(matches!(next[..], [Effect::Look]), "{next:?}");
    }
}

#[test]
fn a_batch_of_which_nothing_may_train_is_followed_by_the_next_look() {
    let mut bench = Bench::new();
    bench.notify();
    bench.look(vec![ready("a", 8, 0)]);
    let batch = bench.batch(&[], None);
    assert!(matches!(bench.report(batch)[..], [Effect::Look]));
    assert!(bench.look(vec![ready("a", 8, 0)]).is_some());
}

#[test]
fn the_heads_are_read_until_they_were_read_once() {
    let mut train = Train::new(Config::for_tests());
    train.step(0, Event::Started);
    train.step(0, Event::Reported(Report::Looked(Ok(Vec::new()))));
    train.step(0, Event::Reported(Report::Synced(Err("locked".into()))));
    let again = train.step(20, Event::Ticked);
    assert!(matches!(
        again[..],
        [Effect::Sync, Effect::Prune, Effect::Look]
    ));
    train.step(20, Event::Reported(Report::Synced(Ok(1))));
    train.step(20, Event::Reported(Report::Looked(Ok(Vec::new()))));
    assert!(matches!(train.step(40, Event::Ticked)[..], [Effect::Look]));
}
