//! Cases of judging.

use hone_domain::{
    Check, ChosenBy, Fate, HintCandidate, HintChoice, Outcome, Reason, Signal, Stage, Subject,
    Turn, Usage, Verifier, Vote,
};

use crate::AuditCount;

use super::world::{
    ALL, LEASE, NOW, World, assert_conflict, assert_fenced, claimed_turns, ids, other_loop,
    stranger,
};

async fn answered(world: &World, n: usize) -> Vec<Turn> {
    let mut turns = Vec::new();
    for _ in 0..n {
        let turn = world.turn();
        world.answered(&turn).await;
        turns.push(turn);
    }
    turns
}

pub(super) async fn the_oldest_are_claimed_once(world: &World) {
    let turns = answered(world, 5).await;
    world.record(&world.turn()).await;
    let first = world.claim(2, NOW).await;
    assert_eq!(claimed_turns(&first), ids(&turns[..2]));
    assert_eq!(first[0].turn, turns[0]);
    assert_eq!(first[0].transition.turn, turns[0].id);
    assert_eq!(first[0].transition.id, first[0].claim.transition);
    assert!(first.iter().all(|c| c.attempts == 0));
    let rest = world.claim(ALL, NOW).await;
    assert_eq!(claimed_turns(&rest), ids(&turns[2..]));
    assert!(world.claim(ALL, NOW + LEASE - 1).await.is_empty());
    assert!(world.claim(0, NOW + LEASE).await.is_empty());
}

pub(super) async fn a_lease_that_ran_out_is_taken_over(world: &World) {
    answered(world, 2).await;
    let early = world.claim(1, NOW).await.remove(0);
    let late = world.claim(1, NOW + LEASE).await.remove(0);
    assert_eq!(late.claim.transition, early.claim.transition);
    assert!(late.claim.fence > early.claim.fence);
    assert_eq!(late.attempts, 1);
    let verdict = world.verdict(early.claim, Some(1.0));
    assert_fenced(&world.ledger.record_verdict(early.claim, &verdict).await);
    assert_fenced(&world.ledger.give_up(early.claim).await);
    world
        .ledger
        .release(early.claim, NOW)
        .await
        .expect("ignored");
    let second = world.claim(ALL, NOW + LEASE).await;
    assert_eq!(second.len(), 1, "the late release gave nothing back");
    // A lease that only ran out still counts.
    let verdict = world.verdict(late.claim, Some(1.0));
    world
        .ledger
        .record_verdict(late.claim, &verdict)
        .await
        .expect("recorded");
}

pub(super) async fn a_released_claim_waits_for_its_time(world: &World) {
    answered(world, 1).await;
    let claimed = world.claim(1, NOW).await.remove(0);
    world
        .ledger
        .release(claimed.claim, NOW + 50)
        .await
        .expect("released");
    let verdict = world.verdict(claimed.claim, Some(1.0));
    assert_fenced(&world.ledger.record_verdict(claimed.claim, &verdict).await);
    assert!(world.claim(1, NOW + 49).await.is_empty());
    let again = world.claim(1, NOW + 50).await.remove(0);
    assert_eq!(again.attempts, 1);
}

/// One vote of each outcome and signal; only a model's that answered has a price.
fn votes_of_every_kind() -> Vec<Vote> {
    let kinds = [
        (Outcome::Good, Signal::Feedback),
        (Outcome::Bad, Signal::Verifier),
        (Outcome::Neutral, Signal::Model),
        (Outcome::Abstain, Signal::Rules),
    ];
    let vote = |(outcome, signal)| Vote {
        signal,
        outcome,
        reason: "why\0".into(),
        model: Some("judge".into()),
        latency_ms: 12,
        usage: (outcome == Outcome::Neutral).then_some(Usage {
            prompt_tokens: 812,
            completion_tokens: 9,
            cost: 0.000_123,
        }),
        prompt: Some("vote/1".into()),
    };
    kinds.map(vote).to_vec()
}

pub(super) async fn a_verdict_comes_back_and_its_revision_is_current(world: &World) {
    let turn = answered(world, 1).await.remove(0);
    let claimed = world.claim(1, NOW).await.remove(0);
    let mut first = world.verdict(claimed.claim, Some(0.1));
    first.hint = Some("say it\0shorter".into());
    first.decided_by = Some(Signal::Model);
    first.wish = Some("keep it\0short".into());
    first.hint_choice = Some(HintChoice {
        candidates: [("say it\0shorter", Some(0.75)), ("say less", None)]
            .map(|(hint, agreement)| HintCandidate {
                hint: hint.into(),
                agreement,
            })
            .to_vec(),
        chosen: 0,
        by: ChosenBy::Agreement,
        reason: "it agrees most".into(),
    });
    first.votes = votes_of_every_kind();
    world
        .ledger
        .record_verdict(claimed.claim, &first)
        .await
        .expect("recorded");
    let view = world
        .ledger
        .turn(turn.id)
        .await
        .expect("read")
        .expect("known");
    assert_eq!(view.verdict, Some(first));
    let stage = Stage::AwaitingTraining;
    assert_eq!(view.fate, Fate::Pending { stage });
    assert!(
        world.claim(ALL, NOW + 10 * LEASE).await.is_empty(),
        "judged"
    );

    world
        .ledger
        .record_feedback(&world.feedback(&turn, 1.0))
        .await
        .expect("recorded");
    let claimed = world.claim(1, NOW).await.remove(0);
    let second = world.verdict(claimed.claim, None);
    world
        .ledger
        .record_verdict(claimed.claim, &second)
        .await
        .expect("recorded");
    let view = world
        .ledger
        .turn(turn.id)
        .await
        .expect("read")
        .expect("known");
    assert_eq!(view.verdict, Some(second));
    let reason = Reason::Abstained;
    assert_eq!(view.fate, Fate::Settled { reason });
}

pub(super) async fn a_verdict_is_recorded_once(world: &World) {
    let turn = answered(world, 1).await.remove(0);
    let claimed = world.claim(1, NOW).await.remove(0);
    let verdict = world.verdict(claimed.claim, Some(1.0));
    for _ in 0..2 {
        let done = world.ledger.record_verdict(claimed.claim, &verdict).await;
        done.expect("the same verdict again is no mistake");
    }
    let other = world.verdict(claimed.claim, Some(-1.0));
    assert_fenced(&world.ledger.record_verdict(claimed.claim, &other).await);
    let view = world
        .ledger
        .turn(turn.id)
        .await
        .expect("read")
        .expect("known");
    assert_eq!(view.verdict, Some(verdict));
}

pub(super) async fn what_cannot_be_judged_is_settled(world: &World) {
    let turn = answered(world, 1).await.remove(0);
    let claimed = world.claim(1, NOW).await.remove(0);
    assert_fenced(&world.ledger.give_up(stranger(claimed.claim)).await);
    world.ledger.give_up(claimed.claim).await.expect("given up");
    let reason = Reason::JudgeFailed;
    assert_eq!(world.fate(&turn).await, Fate::Settled { reason });
    assert!(world.claim(ALL, NOW + 10 * LEASE).await.is_empty());
}

pub(super) async fn wrong_verdicts_are_refused(world: &World) {
    let turn = answered(world, 2).await.remove(0);
    let claimed = world.claim(2, NOW).await;
    let claim = claimed[0].claim;
    for score in [1.01, -2.0, f32::NAN, f32::INFINITY] {
        let verdict = world.verdict(claim, Some(score));
        assert_conflict(&world.ledger.record_verdict(claim, &verdict).await);
    }
    let about_the_other = world.verdict(claimed[1].claim, Some(1.0));
    assert_conflict(&world.ledger.record_verdict(claim, &about_the_other).await);
    let verdict = world.verdict(claim, Some(1.0));
    assert_conflict(
        &world
            .ledger
            .record_verdict(other_loop(claim), &verdict)
            .await,
    );
    assert_fenced(&world.ledger.record_verdict(stranger(claim), &verdict).await);
    let stage = Stage::AwaitingVerdict;
    assert_eq!(world.fate(&turn).await, Fate::Pending { stage });
    world
        .ledger
        .record_verdict(claim, &verdict)
        .await
        .expect("still held");
}

pub(super) async fn checks_come_back_and_audits_are_counted(world: &World) {
    let mut turn = world.turn();
    let name = "sum\0".to_owned();
    let verifier = Verifier::Numeric {
        expected: 0.1,
        tolerance: 1e-9,
        of: Subject::Answer,
    };
    turn.admission.checks = vec![Check { name, verifier }];
    world.answered(&turn).await;
    let claimed = world.claim(1, NOW).await.remove(0);
    assert_eq!(claimed.turn, turn);
    assert!(world.ledger.audits().await.expect("read").is_empty());
    let mut verdict = world.verdict(claimed.claim, Some(1.0));
    let vote = |outcome, model: &str| Vote {
        signal: Signal::Verifier,
        outcome,
        reason: String::new(),
        model: Some(model.to_owned()),
        latency_ms: 0,
        usage: None,
        prompt: None,
    };
    verdict.votes = vec![
        vote(Outcome::Good, "audit:b"),
        vote(Outcome::Bad, "audit:b"),
        vote(Outcome::Good, "audit:a"),
        vote(Outcome::Good, "judge"),
    ];
    let recorded = world.ledger.record_verdict(claimed.claim, &verdict).await;
    recorded.expect("recorded");
    let counted = |bucket: &str, agreed, executed| AuditCount {
        bucket: bucket.to_owned(),
        agreed,
        executed,
    };
    let mut audits = world.ledger.audits().await.expect("read");
    audits.sort_by(|a, b| a.bucket.cmp(&b.bucket));
    assert_eq!(audits, [counted("a", 1, 1), counted("b", 1, 2)]);
}
