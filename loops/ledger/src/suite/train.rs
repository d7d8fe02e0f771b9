//! Cases of training.

use hone_domain::{Digest, Fate, Outcome, PolicyVersion, Reason, Signal, Stage};
use serde_json::json;

use super::world::{
    ALL, LEASE, NOW, World, assert_conflict, assert_fenced, digest_of, ids, other_loop,
    sample_turns, stranger,
};
use crate::{FeedbackOutcome, Refusal, ReplayQuery, Replayed, SampleClaim, SampleMaterial};

const TO_TRAIN: Fate = Fate::Pending {
    stage: Stage::AwaitingTraining,
};

fn refusal(world: &World, samples: &[SampleMaterial]) -> Refusal {
    Refusal {
        scope: world.scope(),
        parent: PolicyVersion(0),
        digest: Some(digest_of(9)),
        batch: world.batch(),
        claims: samples.iter().map(|s| s.claim).collect(),
        reason: Reason::GateRejected,
        report: json!({ "kl": 3.0 }),
        now_ms: NOW,
    }
}

pub(super) async fn ready_counts_what_is_free(world: &World) {
    assert!(world.ledger.ready(NOW).await.expect("read").is_empty());
    world.ready_turns(3, 0).await;
    world.answered(&world.turn()).await;
    let ready = world.ledger.ready(NOW).await.expect("read");
    assert_eq!((ready.len(), ready[0].count), (1, 3));
    assert_eq!(ready[0].scope, world.scope());
    assert_eq!(ready[0].oldest_judged_ms, NOW + 20);
    let two = SampleClaim {
        limit: 2,
        ..world.sample_claim()
    };
    let samples = world.claim_samples(&two).await;
    assert_eq!(world.ledger.ready(NOW).await.expect("read")[0].count, 1);
    assert_eq!(
        world.ledger.ready(NOW + LEASE).await.expect("read")[0].count,
        3
    );
    world
        .ledger
        .release(samples[0].claim, NOW + 10)
        .await
        .expect("released");
    assert_eq!(
        world.ledger.ready(NOW + 10).await.expect("read")[0].count,
        2
    );
}

pub(super) async fn the_newest_are_claimed_once(world: &World) {
    let turns = world.ready_turns(5, 0).await;
    let three = SampleClaim {
        limit: 3,
        ..world.sample_claim()
    };
    let samples = world.claim_samples(&three).await;
    assert_eq!(
        sample_turns(&samples),
        ids(&turns[2..]),
        "newest, oldest first"
    );
    assert_eq!(samples[0].turn, turns[2]);
    assert_eq!((samples[0].score, &samples[0].hint), (1.0, &None));
    let rest = world.claim_samples(&world.sample_claim()).await;
    assert_eq!(sample_turns(&rest), ids(&turns[..2]));
    let late = SampleClaim {
        now_ms: NOW + LEASE,
        ..world.sample_claim()
    };
    let again = world.claim_samples(&late).await;
    assert_eq!(sample_turns(&again), ids(&turns));
    assert!(again[2].claim.fence > samples[0].claim.fence);
    assert_fenced(&world.ledger.publish(&world.publishing(0, &samples)).await);
}

pub(super) async fn a_renewed_lease_is_not_taken_over(world: &World) {
    world.ready_turns(2, 0).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    let claims: Vec<_> = samples.iter().map(|s| s.claim).collect();
    let later = NOW + 3 * LEASE;
    assert_eq!(
        world.ledger.renew(&claims, later).await.expect("renewed"),
        2
    );
    // An earlier end than the one that was promised changes nothing.
    assert_eq!(world.ledger.renew(&claims, NOW).await.expect("renewed"), 2);
    let at = |now_ms| SampleClaim {
        now_ms,
        ..world.sample_claim()
    };
    assert!(world.claim_samples(&at(NOW + 2 * LEASE)).await.is_empty());
    let taken = world.claim_samples(&at(later)).await;
    assert_eq!(taken.len(), 2, "it runs out in the end");
    // What was taken over is no longer theirs to renew.
    assert_eq!(
        world
            .ledger
            .renew(&claims, later + LEASE)
            .await
            .expect("read"),
        0
    );
    world
        .ledger
        .release(taken[0].claim, later)
        .await
        .expect("released");
    let theirs: Vec<_> = taken.iter().map(|s| s.claim).collect();
    let held = world.ledger.renew(&theirs, later + LEASE).await;
    assert_eq!(held.expect("renewed"), 1, "one was given back");
}

pub(super) async fn the_old_the_strange_and_the_many_are_settled(world: &World) {
    for parent in 0..3 {
        world.publish_next(parent).await;
    }
    let old = world.ready_turns(2, 0).await;
    let mut strange = world.turn_of(PolicyVersion(3));
    strange.fingerprint = "gpu".into();
    let mut elsewhere = world.turn_of(PolicyVersion(3));
    elsewhere.base = Digest([2; 32]);
    world.answered(&strange).await;
    world.answered(&elsewhere).await;
    let many = world.ready_turns(5, 2).await;
    let claim = SampleClaim {
        limit: 2,
        queue_cap: 3,
        staleness_max_versions: 2,
        ..world.sample_claim()
    };
    let samples = world.claim_samples(&claim).await;
    assert_eq!(sample_turns(&samples), ids(&many[3..]));
    for (turn, reason) in [
        (&old[0], Reason::Stale),
        (&old[1], Reason::Stale),
        (&strange, Reason::OtherFingerprint),
        (&elsewhere, Reason::OtherFingerprint),
        (&many[0], Reason::QueueDropped),
        (&many[1], Reason::QueueDropped),
    ] {
        assert_eq!(world.fate(turn).await, Fate::Settled { reason });
    }
    assert_eq!(
        world.fate(&many[2]).await,
        TO_TRAIN,
        "waits for the next batch"
    );
    // What a batch holds is not dropped under it.
    let none = SampleClaim {
        queue_cap: 0,
        ..world.sample_claim()
    };
    assert!(world.claim_samples(&none).await.is_empty());
    let reason = Reason::QueueDropped;
    assert_eq!(world.fate(&many[2]).await, Fate::Settled { reason });
    world
        .ledger
        .publish(&world.publishing(3, &samples))
        .await
        .expect("published");
}

pub(super) async fn a_publish_is_all_or_nothing(world: &World) {
    let turns = world.ready_turns(3, 0).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    let good = world.publishing(0, &samples);
    for spoil in [stranger, other_loop] {
        let mut bad = good.clone();
        bad.claims[2] = spoil(bad.claims[2]);
        assert_fenced(&world.ledger.publish(&bad).await);
    }
    let mut twice = good.clone();
    twice.claims.push(good.claims[0]);
    assert_fenced(&world.ledger.publish(&twice).await);
    assert!(world.ledger.heads().await.expect("read").is_empty());
    for turn in &turns {
        assert_eq!(world.fate(turn).await, TO_TRAIN);
    }
    let mut elsewhere = good.clone();
    elsewhere.scope = hone_domain::Scope::of("somebody", None);
    assert_conflict(&world.ledger.publish(&elsewhere).await);

    let policy = world.ledger.publish(&good).await.expect("published");
    assert_eq!(policy.version, PolicyVersion(1));
    assert_eq!((policy.digest, &policy.blob), (good.digest, &good.blob));
    assert_eq!(world.ledger.heads().await.expect("read"), [policy]);
    for turn in &turns {
        let version = PolicyVersion(1);
        assert_eq!(world.fate(turn).await, Fate::Trained { version });
    }
}

pub(super) async fn a_correction_is_handed_over_and_makes_its_scope_explicit(world: &World) {
    world.ready_turns(1, 0).await;
    let ready = world.ledger.ready(NOW).await.expect("read");
    assert_eq!(ready[0].oldest_explicit_ms, None, "rules are not explicit");
    let turn = world.turn();
    world.answered(&turn).await;
    for (words, at) in [("first", 1), ("second", 2)] {
        let mut said = world.feedback(&turn, -1.0);
        said.correction = Some(words.into());
        said.received_ms = NOW + at;
        world.ledger.record_feedback(&said).await.expect("stored");
    }
    for claimed in world.claim(1, NOW).await {
        let mut verdict = world.verdict(claimed.claim, Some(-1.0));
        verdict.decided_by = Some(Signal::Feedback);
        verdict.judged_ms = NOW + 25;
        let done = world.ledger.record_verdict(claimed.claim, &verdict).await;
        done.expect("a verdict is recorded");
    }
    let ready = world.ledger.ready(NOW + 30).await.expect("read");
    assert_eq!(ready[0].count, 2);
    assert_eq!(ready[0].oldest_explicit_ms, Some(NOW + 25));
    let samples = world.claim_samples(&world.sample_claim()).await;
    let corrections: Vec<_> = samples.iter().map(|s| s.correction.as_deref()).collect();
    assert_eq!(corrections, [None, Some("second")]);
}

pub(super) async fn what_was_trained_teaches_again_by_its_words(world: &World) {
    let query = ReplayQuery {
        scope: world.scope(),
        limit: 2,
        fingerprint: "cpu-f32".into(),
        base: Digest([1; 32]),
    };
    let replay = async |query: &ReplayQuery| world.ledger.replay(query).await.expect("read");
    assert!(replay(&query).await.is_empty(), "the scope is unknown");
    // Without words, with a hint of one mind, with a hint of two minds, corrected, not trained yet.
    let turns: Vec<_> = (0..5).map(|_| world.turn()).collect();
    for turn in &turns {
        world.answered(turn).await;
    }
    let mut said = world.feedback(&turns[3], -1.0);
    said.correction = Some("42".into());
    world.ledger.record_feedback(&said).await.expect("stored");
    for (number, claimed) in world.claim(4, NOW).await.into_iter().enumerate() {
        let mut verdict = world.verdict(claimed.claim, Some(-1.0));
        verdict.hint = (number == 1 || number == 2).then(|| format!("hint {number}"));
        if number == 2 {
            let mut against = verdict.votes[0].clone();
            against.outcome = Outcome::Bad;
            verdict.votes.push(against);
        }
        let done = world.ledger.record_verdict(claimed.claim, &verdict).await;
        done.expect("a verdict is recorded");
    }
    assert!(replay(&query).await.is_empty(), "nothing was trained");
    let samples = world.claim_samples(&world.sample_claim()).await;
    let published = world.ledger.publish(&world.publishing(0, &samples)).await;
    published.expect("a version is published");

    let seen = replay(&query).await;
    let ids: Vec<_> = seen.iter().map(|r| r.turn.id).collect();
    assert_eq!(
        ids,
        [turns[2].id, turns[3].id],
        "two minds first, then the newest"
    );
    assert_eq!(seen[0].hint.as_deref(), Some("hint 2"));
    assert_eq!(seen[1].correction.as_deref(), Some("42"));
    let all = ReplayQuery {
        limit: ALL,
        ..query.clone()
    };
    assert_eq!(replay(&all).await.len(), 3);
    for other in [
        ReplayQuery {
            fingerprint: "gpu".into(),
            ..all.clone()
        },
        ReplayQuery {
            base: Digest([9; 32]),
            ..all.clone()
        },
        ReplayQuery {
            scope: hone_domain::Scope::of("somebody", None),
            ..all.clone()
        },
    ] {
        assert!(replay(&other).await.is_empty(), "{other:?}");
    }
    // A better answer that comes only now is heard as well.
    let mut late = world.feedback(&turns[0], -1.0);
    late.correction = Some("43".into());
    let told = world.ledger.record_feedback(&late).await.expect("stored");
    assert_eq!(told, FeedbackOutcome::AlreadyLearned);
    let seen = replay(&all).await;
    let is_late = |r: &Replayed| r.turn.id == turns[0].id && r.correction.as_deref() == Some("43");
    assert!(seen.len() == 4 && seen.iter().any(is_late));
}

pub(super) async fn what_a_rollback_took_back_teaches_no_more(world: &World) {
    let mut turns = Vec::new();
    for parent in 0..3 {
        turns.push(world.publish_hinted(parent).await);
    }
    assert_eq!(world.replayed().await, [turns[2], turns[1], turns[0]]);
    let back = world
        .ledger
        .rollback(&world.scope(), PolicyVersion(2), NOW)
        .await;
    back.expect("rolled back");
    assert_eq!(world.replayed().await, [turns[1], turns[0]]);
    let next = world.publish_hinted(4).await;
    assert_eq!(world.replayed().await, [next, turns[1], turns[0]]);
    let base = world
        .ledger
        .rollback(&world.scope(), PolicyVersion(0), NOW)
        .await;
    base.expect("rolled back");
    assert_eq!(world.replayed().await, []);
}

pub(super) async fn a_publish_needs_the_head(world: &World) {
    world.publish_next(0).await;
    let turns = world.ready_turns(1, 1).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    for parent in [0, 2] {
        let publishing = world.publishing(parent, &samples);
        assert_conflict(&world.ledger.publish(&publishing).await);
    }
    assert_eq!(world.fate(&turns[0]).await, TO_TRAIN);
    let publishing = world.publishing(1, &samples);
    let policy = world.ledger.publish(&publishing).await.expect("published");
    assert_eq!(policy.version, PolicyVersion(2));
}

pub(super) async fn a_publish_is_repeated_safely(world: &World) {
    world.ready_turns(2, 0).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    let publishing = world.publishing(0, &samples);
    let first = world.ledger.publish(&publishing).await.expect("published");
    let again = world
        .ledger
        .publish(&publishing)
        .await
        .expect("the same answer");
    assert_eq!(first, again);
    assert_eq!(world.ledger.counts().await.expect("counted").versions, 1);
    let mut other = publishing;
    other.digest = digest_of(77);
    assert_conflict(&world.ledger.publish(&other).await);
}

pub(super) async fn nothing_trains_twice(world: &World) {
    world.ready_turns(2, 0).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    world
        .ledger
        .publish(&world.publishing(0, &samples))
        .await
        .expect("published");
    let late = SampleClaim {
        now_ms: NOW + 100 * LEASE,
        ..world.sample_claim()
    };
    assert!(world.claim_samples(&late).await.is_empty());
    assert_fenced(&world.ledger.publish(&world.publishing(1, &samples)).await);
    let settled = world
        .ledger
        .settle_claims(&[samples[0].claim], Reason::TooLong)
        .await;
    assert_eq!(settled.expect("ignored"), 0);
    let record = world
        .ledger
        .versions(None, ALL)
        .await
        .expect("read")
        .remove(0);
    assert_eq!(record.samples, 2);
}

pub(super) async fn a_refusal_settles_what_it_holds(world: &World) {
    let turns = world.ready_turns(2, 0).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    world
        .ledger
        .release(samples[0].claim, NOW)
        .await
        .expect("released");
    let refused = refusal(world, &samples);
    for _ in 0..2 {
        world.ledger.refuse(&refused).await.expect("refused");
    }
    let reason = Reason::GateRejected;
    assert_eq!(world.fate(&turns[0]).await, TO_TRAIN, "given back before");
    assert_eq!(world.fate(&turns[1]).await, Fate::Settled { reason });
    let counts = world.ledger.counts().await.expect("counted");
    assert_eq!((counts.refused, counts.versions), (1, 0));
    assert!(world.ledger.heads().await.expect("read").is_empty());
    // A step that failed has no candidate.
    let failed = Refusal {
        digest: None,
        ..refusal(world, &[])
    };
    world.ledger.refuse(&failed).await.expect("refused");
    assert_eq!(world.ledger.counts().await.expect("counted").refused, 2);
}

pub(super) async fn some_claims_settle_alone(world: &World) {
    let turns = world.ready_turns(3, 0).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    let claims = [samples[0].claim, stranger(samples[1].claim)];
    let settled = world.ledger.settle_claims(&claims, Reason::TooLong).await;
    assert_eq!(settled.expect("settled"), 1);
    let reason = Reason::TooLong;
    assert_eq!(world.fate(&turns[0]).await, Fate::Settled { reason });
    let publishing = world.publishing(0, &samples[1..]);
    world
        .ledger
        .publish(&publishing)
        .await
        .expect("the others go on");
}

pub(super) async fn a_batch_that_never_comes_back_is_not_claimed_for_ever(world: &World) {
    let turns = world.ready_turns(2, 0).await;
    let at = |times: i64| SampleClaim {
        attempts_max: 3,
        now_ms: NOW + times * LEASE,
        ..world.sample_claim()
    };
    // What is given back does not count.
    for times in 0..5 {
        for sample in world.claim_samples(&at(times)).await {
            let back = world.ledger.release(sample.claim, NOW + times).await;
            back.expect("released");
        }
    }
    for times in 5..8 {
        assert_eq!(world.claim_samples(&at(times)).await.len(), 2);
    }
    let young = world.ready_turns(1, 0).await;
    let samples = world.claim_samples(&at(8)).await;
    assert_eq!(sample_turns(&samples), ids(&young));
    let reason = Reason::StepFailed;
    for turn in &turns {
        assert_eq!(world.fate(turn).await, Fate::Settled { reason });
    }
}

pub(super) async fn a_backlog_is_settled_in_pieces(world: &World) {
    let turns = world.ready_turns(600, 0).await;
    let claim = SampleClaim {
        limit: 2,
        queue_cap: 4,
        ..world.sample_claim()
    };
    let claimed = async || {
        let claimed = world.ledger.claim_samples(&claim).await.expect("claimed");
        (claimed.settled, sample_turns(&claimed.materials))
    };
    let first = claimed().await;
    assert_eq!(
        first,
        (256, vec![]),
        "nothing trains before the backlog is gone"
    );
    let dropped = async || {
        let counts = world.ledger.counts().await.expect("counted");
        let settled = counts.settled.iter();
        let dropped = settled.filter(|(reason, _)| *reason == Reason::QueueDropped);
        dropped.map(|(_, turns)| *turns).sum::<u64>()
    };
    assert_eq!(dropped().await, 256);
    let reason = Reason::QueueDropped;
    assert_eq!(world.fate(&turns[255]).await, Fate::Settled { reason });
    assert_eq!(world.fate(&turns[256]).await, TO_TRAIN, "the oldest first");
    assert_eq!(claimed().await, (256, vec![]));
    assert_eq!(claimed().await, (84, ids(&turns[598..])));
    assert_eq!(claimed().await, (0, ids(&turns[596..598])));
    let counts = world.ledger.counts().await.expect("counted");
    assert_eq!(dropped().await, 600 - 4);
    assert_eq!(counts.pending, [(Stage::AwaitingTraining, 4)]);
}
