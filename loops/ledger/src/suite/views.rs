//! Cases of what people look at.

use hone_domain::{Fate, PolicyVersion, Reason, Scope, Stage, Turn};

use super::world::{ALL, NOW, World};
use crate::{LedgerCounts, LedgerError, SampleClaim};

async fn counts(world: &World) -> LedgerCounts {
    world.ledger.counts().await.expect("counted")
}

pub(super) async fn counts_follow_every_turn(world: &World) {
    let empty = counts(world).await;
    assert_eq!(
        (empty.turns, empty.pending.len(), empty.settled.len()),
        (0, 0, 0)
    );
    world.ready_turns(3, 0).await;
    world.answered(&world.turn()).await;
    let turns: Vec<Turn> = (0..4).map(|_| world.turn()).collect();
    world.ledger.record_turns(&turns).await.expect("recorded");
    let settle = [
        (turns[0].id, Reason::NoNextState),
        (turns[1].id, Reason::NotChosen),
    ];
    world.ledger.settle_turns(&settle).await.expect("settled");
    let claim = SampleClaim {
        limit: 2,
        ..world.sample_claim()
    };
    let samples = world.claim_samples(&claim).await;
    world
        .ledger
        .publish(&world.publishing(0, &samples))
        .await
        .expect("published");
    let seen = counts(world).await;
    assert_eq!((seen.turns, seen.trained), (8, 2));
    assert_eq!((seen.versions, seen.refused), (1, 0));
    for (stage, n) in [
        (Stage::AwaitingNextState, 2),
        (Stage::AwaitingVerdict, 1),
        (Stage::AwaitingTraining, 1),
    ] {
        assert!(
            seen.pending.contains(&(stage, n)),
            "{stage:?}: {:?}",
            seen.pending
        );
    }
    for reason in [Reason::NoNextState, Reason::NotChosen] {
        assert!(
            seen.settled.contains(&(reason, 1)),
            "{reason:?}: {:?}",
            seen.settled
        );
    }
    assert_eq!((seen.pending.len(), seen.settled.len()), (3, 2));
}

pub(super) async fn lists_are_newest_first(world: &World) {
    let judged = world.ready_turns(1, 0).await.remove(0);
    let mut later = world.turn();
    later.finished_ms = NOW + 500;
    world.record(&later).await;
    let rows = world.ledger.turns(None, ALL).await.expect("listed");
    assert_eq!(
        rows.iter().map(|r| r.id).collect::<Vec<_>>(),
        [later.id, judged.id]
    );
    assert_eq!((rows[0].score, rows[1].score), (None, Some(1.0)));
    assert_eq!(
        (rows[0].session, &rows[0].scope),
        (later.session, &later.scope)
    );
    assert_eq!(
        (rows[0].version, rows[0].finished_ms),
        (PolicyVersion(0), NOW + 500)
    );
    let stage = Stage::AwaitingTraining;
    assert_eq!(rows[1].fate, Fate::Pending { stage });
    let scope = world.scope();
    assert_eq!(
        world
            .ledger
            .turns(Some(&scope), 1)
            .await
            .expect("listed")
            .len(),
        1
    );
    let nowhere = Scope::of("nobody", None);
    assert!(
        world
            .ledger
            .turns(Some(&nowhere), ALL)
            .await
            .expect("listed")
            .is_empty()
    );
}

pub(super) async fn scores_are_averaged_by_version(world: &World) {
    world.publish_next(0).await;
    for (version, score) in [(0, -1.0), (1, 1.0), (1, 0.0), (1, 0.5)] {
        world.answered(&world.turn_of(PolicyVersion(version))).await;
        world.judge_all(Some(score)).await;
    }
    world.answered(&world.turn_of(PolicyVersion(1))).await;
    world.judge_all(None).await;
    let scores = world
        .ledger
        .scores_by_version(&world.scope())
        .await
        .expect("read");
    assert_eq!(
        scores,
        [(PolicyVersion(0), 0.0, 2), (PolicyVersion(1), 0.5, 3)]
    );
    let nowhere = Scope::of("nobody", None);
    assert!(
        world
            .ledger
            .scores_by_version(&nowhere)
            .await
            .expect("read")
            .is_empty()
    );
}

pub(super) async fn the_unknown_is_none(world: &World) {
    assert!(
        world
            .ledger
            .turn(world.turn().id)
            .await
            .expect("read")
            .is_none()
    );
    assert!(world.ledger.heads().await.expect("read").is_empty());
    assert!(
        world
            .ledger
            .versions(None, ALL)
            .await
            .expect("read")
            .is_empty()
    );
    assert!(world.claim(ALL, NOW).await.is_empty());
    assert!(world.claim_samples(&world.sample_claim()).await.is_empty());
}

pub(super) async fn a_closed_ledger_fails(world: &World) {
    world.record(&world.turn()).await;
    world.ledger.close().await;
    let done = world.ledger.record_turns(&[world.turn()]).await;
    assert!(matches!(done, Err(LedgerError::Failed(_))), "{done:?}");
    assert!(world.ledger.counts().await.is_err());
    world.ledger.close().await;
}
