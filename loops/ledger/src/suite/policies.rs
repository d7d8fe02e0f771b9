//! Cases of versions and rollback.

use hone_domain::{Fate, PolicyVersion, Reason, Scope};

use super::world::{ALL, NOW, World, assert_conflict, digest_of, ids, sample_turns};
use crate::{PolicyStatus, SampleClaim};

pub(super) async fn versions_grow_and_name_their_parents(world: &World) {
    for parent in 0..3 {
        let policy = world.publish_next(parent).await;
        assert_eq!(policy.version, PolicyVersion(parent + 1));
    }
    let records = world
        .ledger
        .versions(Some(&world.scope()), ALL)
        .await
        .expect("read");
    let lineage: Vec<(u64, u64)> = records
        .iter()
        .map(|r| (r.policy.version.0, r.parent.0))
        .collect();
    assert_eq!(lineage, [(3, 2), (2, 1), (1, 0)]);
    let newest = &records[0];
    assert_eq!(
        (newest.status, newest.samples),
        (PolicyStatus::Published, 1)
    );
    assert_eq!(newest.report["note"], "nul \0 kept");
    assert_eq!(newest.gate["kl"], 0.01);
    assert_eq!(newest.published_ms, NOW + 30);
    assert_eq!(newest.policy.digest, digest_of(3));
    assert_eq!(world.ledger.versions(None, 2).await.expect("read").len(), 2);
}

pub(super) async fn a_rollback_publishes_again(world: &World) {
    for parent in 0..3 {
        world.publish_next(parent).await;
    }
    let scope = world.scope();
    let restored = world
        .ledger
        .rollback(&scope, PolicyVersion(1), NOW + 40)
        .await
        .expect("rolled back");
    assert_eq!(restored.version, PolicyVersion(4));
    assert_eq!(restored.digest, digest_of(1));
    assert_eq!(restored.blob.as_str(), "adapters/1");
    assert_eq!(world.ledger.heads().await.expect("read"), [restored]);
    let record = world
        .ledger
        .versions(Some(&scope), 1)
        .await
        .expect("read")
        .remove(0);
    assert_eq!(
        (record.parent, record.status),
        (PolicyVersion(1), PolicyStatus::Rollback)
    );
    assert_eq!((record.samples, record.published_ms), (0, NOW + 40));

    let next = world.publish_next(4).await;
    assert_eq!(next.version, PolicyVersion(5), "the chain goes on");
    for to in [5, 6] {
        let done = world.ledger.rollback(&scope, PolicyVersion(to), NOW).await;
        assert_conflict(&done);
    }
    let nowhere = Scope::of("nobody", None);
    assert_conflict(&world.ledger.rollback(&nowhere, PolicyVersion(1), NOW).await);
    let again = world.ledger.rollback(&scope, PolicyVersion(4), NOW).await;
    assert_eq!(
        again.expect("a rollback can be restored").digest,
        digest_of(1)
    );
    let base = world.ledger.rollback(&scope, PolicyVersion(0), NOW).await;
    let base = base.expect("the base model can be restored");
    assert!(base.is_base() && base.version == PolicyVersion(7));
    let next = world.publish_next(7).await;
    assert_eq!((next.version, next.is_base()), (PolicyVersion(8), false));
}

pub(super) async fn a_rollback_leaves_its_turns_behind(world: &World) {
    for parent in 0..3 {
        world.publish_next(parent).await;
    }
    let kept = world.ready_turns(1, 1).await;
    let tainted = world.ready_turns(2, 3).await;
    let newest = SampleClaim {
        limit: 1,
        ..world.sample_claim()
    };
    let held = world.claim_samples(&newest).await;
    let scope = world.scope();
    world
        .ledger
        .rollback(&scope, PolicyVersion(1), NOW)
        .await
        .expect("rolled back");
    let done = world.ledger.publish(&world.publishing(3, &held)).await;
    assert_conflict(&done);
    world
        .ledger
        .release(held[0].claim, NOW)
        .await
        .expect("released");
    let fresh = world.ready_turns(1, 4).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    assert_eq!(sample_turns(&samples), [ids(&kept), ids(&fresh)].concat());
    for turn in &tainted {
        let reason = Reason::Stale;
        assert_eq!(world.fate(turn).await, Fate::Settled { reason });
    }
}

pub(super) async fn scopes_are_apart(world: &World) {
    world.publish_next(0).await;
    let other = Scope::of("somebody", Some("else"));
    let mut turn = world.turn();
    turn.scope = other.clone();
    turn.owner = "somebody".into();
    world.answered(&turn).await;
    world.judge_all(Some(-1.0)).await;
    let mine = world.ready_turns(1, 1).await;
    let ready = world.ledger.ready(NOW).await.expect("read");
    assert_eq!(ready.len(), 2);
    let claim = SampleClaim {
        scope: other.clone(),
        ..world.sample_claim()
    };
    let samples = world.claim_samples(&claim).await;
    assert_eq!(sample_turns(&samples), [turn.id]);
    let publishing = crate::Publish {
        scope: other.clone(),
        ..world.publishing(0, &samples)
    };
    let policy = world.ledger.publish(&publishing).await.expect("published");
    assert_eq!((policy.version, &policy.scope), (PolicyVersion(1), &other));
    assert_eq!(world.ledger.heads().await.expect("read").len(), 2);
    let samples = world.claim_samples(&world.sample_claim()).await;
    assert_eq!(sample_turns(&samples), ids(&mine));
    let listed = world.ledger.turns(Some(&other), ALL).await.expect("listed");
    assert_eq!(listed.len(), 1);
}
