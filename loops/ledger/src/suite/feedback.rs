//! Cases of explicit feedback.

use hone_domain::{Fate, Feedback, Millis, PolicyVersion, Reason, Stage, Turn};

use super::world::{ALL, LEASE, NOW, World, assert_fenced};
use crate::{EARLY_KEPT, EARLY_KEPT_MS, FEEDBACK_KEPT, FeedbackOutcome};

const TO_JUDGE: Fate = Fate::Pending {
    stage: Stage::AwaitingVerdict,
};
const TO_TRAIN: Fate = Fate::Pending {
    stage: Stage::AwaitingTraining,
};

async fn say(world: &World, feedback: &Feedback) -> FeedbackOutcome {
    let outcome = world.ledger.record_feedback(feedback).await;
    outcome.expect("feedback is recorded")
}

pub(super) async fn it_may_come_before_its_turn(world: &World) {
    let turn = world.turn();
    let mut own = world.feedback(&turn, -1.0);
    own.comment = Some("no\0".into());
    own.correction = Some("this instead".into());
    own.client_id = Some("c\0".into());
    let mut other = world.feedback(&turn, 1.0);
    other.owner = "somebody".into();
    assert_eq!(say(world, &own).await, FeedbackOutcome::TurnUnknown);
    assert_eq!(say(world, &other).await, FeedbackOutcome::TurnUnknown);
    world.record(&turn).await;
    let view = world
        .ledger
        .turn(turn.id)
        .await
        .expect("read")
        .expect("known");
    assert_eq!(view.feedback, [own.clone()], "only the owner's");
    assert!(world.ledger.open_turns(1).await.expect("read")[0].has_feedback);
    let transition = world.transition(&turn);
    world
        .ledger
        .record_transitions(&[transition])
        .await
        .expect("recorded");
    assert_eq!(world.claim(1, NOW).await[0].feedback, [own]);
}

/// Says something of a turn that is not on record, and returns it.
async fn say_early(world: &World, turn: &Turn, received_ms: Millis) -> Feedback {
    let mut feedback = world.feedback(turn, 0.5);
    feedback.received_ms = received_ms;
    assert_eq!(say(world, &feedback).await, FeedbackOutcome::TurnUnknown);
    feedback
}

/// What is kept of what was said of a turn on record.
async fn kept(world: &World, turn: &Turn) -> Vec<Feedback> {
    let view = world.ledger.turn(turn.id).await.expect("read");
    view.expect("known").feedback
}

pub(super) async fn what_is_early_is_kept_for_an_hour(world: &World) {
    let [old, mut other, came, replaced, young, new] = [(); 6].map(|()| world.turn());
    other.owner = "somebody".into();
    say_early(world, &old, NOW).await;
    say_early(world, &other, NOW).await;
    let of_came = say_early(world, &came, NOW).await;
    world.record(&came).await;
    let mut instead = world.feedback(&replaced, 0.5);
    instead.client_id = Some("c".into());
    say(world, &instead).await;
    instead.id = world.feedback(&replaced, 0.5).id;
    instead.received_ms = NOW + 1;
    say(world, &instead).await;
    let of_young = say_early(world, &young, NOW + 1).await;
    // What a client sends again is no newer for it.
    let mut again = of_young.clone();
    again.received_ms = NOW + 1 + EARLY_KEPT_MS;
    say(world, &again).await;
    let of_new = say_early(world, &new, NOW + 1 + EARLY_KEPT_MS).await;
    for turn in [&old, &other, &replaced, &young, &new] {
        world.record(turn).await;
    }
    for gone in [&old, &other] {
        assert_eq!(kept(world, gone).await, []);
    }
    for (turn, wanted) in [
        (&came, of_came),
        (&replaced, instead),
        (&young, of_young),
        (&new, of_new),
    ] {
        assert_eq!(kept(world, turn).await, [wanted]);
    }
    let last = NOW + 2 + 3 * EARLY_KEPT_MS;
    say_early(world, &world.turn(), last).await;
    assert_eq!(kept(world, &came).await.len(), 1, "its turn has come");
}

pub(super) async fn a_clock_that_goes_back_keeps_nothing_for_ever(world: &World) {
    let turns = [(); 4].map(|()| world.turn());
    let ahead = 10 * EARLY_KEPT_MS;
    for (turn, at) in turns.iter().zip([ahead, 1, 0, EARLY_KEPT_MS]) {
        say_early(world, turn, NOW + at).await;
    }
    for (turn, wanted) in turns.iter().zip([0, 1, 1, 1]) {
        world.record(turn).await;
        assert_eq!(kept(world, turn).await.len(), wanted);
    }
}

pub(super) async fn the_newest_early_ones_of_an_owner_stay(world: &World) {
    let mut other = world.turn();
    other.owner = "somebody".into();
    say_early(world, &other, NOW).await;
    let turns: Vec<Turn> = (0..EARLY_KEPT + 4).map(|_| world.turn()).collect();
    say_early(world, &turns[0], NOW).await;
    world.record(&turns[0]).await;
    for (ago, turn) in turns.iter().enumerate().skip(1) {
        // The clock goes back while they come: the order is theirs, not the clock's.
        say_early(world, turn, NOW - ago as Millis).await;
    }
    for (turn, wanted) in [
        (&other, 1),
        (&turns[0], 1),
        (&turns[1], 0),
        (&turns[3], 0),
        (&turns[4], 1),
        (&turns[EARLY_KEPT + 3], 1),
    ] {
        if turn.id != turns[0].id {
            world.record(turn).await;
        }
        assert_eq!(kept(world, turn).await.len(), wanted, "{}", turn.id);
    }
}

pub(super) async fn the_same_client_id_replaces(world: &World) {
    let turn = world.turn();
    world.record(&turn).await;
    let with = |client: Option<&str>, score, at| {
        let mut feedback = world.feedback(&turn, score);
        feedback.client_id = client.map(Into::into);
        feedback.received_ms = NOW + at;
        feedback
    };
    let first = with(Some("a"), 1.0, 1);
    let (second, third) = (with(Some("b"), 1.0, 2), with(None, 0.5, 3));
    let (fourth, instead) = (with(None, 0.25, 4), with(Some("a"), -1.0, 5));
    for feedback in [&first, &second, &third, &fourth] {
        assert_eq!(say(world, feedback).await, FeedbackOutcome::Stored);
    }
    assert_eq!(
        say(world, &fourth).await,
        FeedbackOutcome::Stored,
        "the same id again"
    );
    assert_eq!(say(world, &instead).await, FeedbackOutcome::Replaced);
    let view = world
        .ledger
        .turn(turn.id)
        .await
        .expect("read")
        .expect("known");
    assert_eq!(
        view.feedback,
        [second, third, fourth, instead],
        "newest last"
    );
}

pub(super) async fn the_newest_of_many_stay(world: &World) {
    let (turn, other) = (world.turn(), world.turn());
    world.record(&turn).await;
    let at = |of, at: usize| {
        let mut feedback = world.feedback(of, 0.5);
        feedback.received_ms = NOW + at as Millis;
        feedback
    };
    let first = at(&other, 0);
    say(world, &first).await;
    let said: Vec<Feedback> = (0..FEEDBACK_KEPT + 3).map(|n| at(&turn, n)).collect();
    for feedback in &said {
        assert_eq!(say(world, feedback).await, FeedbackOutcome::Stored);
    }
    world.record(&other).await;
    for (of, wanted) in [(&turn, &said[3..]), (&other, &[first][..])] {
        let view = world.ledger.turn(of.id).await.expect("read");
        assert_eq!(view.expect("known").feedback, wanted);
    }
}

pub(super) async fn only_the_owner_is_heard(world: &World) {
    let turn = world.ready_turns(1, 0).await.remove(0);
    let mut feedback = world.feedback(&turn, -1.0);
    feedback.owner = "somebody".into();
    assert_eq!(say(world, &feedback).await, FeedbackOutcome::NotYours);
    let view = world
        .ledger
        .turn(turn.id)
        .await
        .expect("read")
        .expect("known");
    assert!(view.feedback.is_empty());
    assert_eq!(view.fate, TO_TRAIN);
}

pub(super) async fn a_judged_turn_goes_back_to_the_judge(world: &World) {
    let turn = world.ready_turns(1, 0).await.remove(0);
    let feedback = world.feedback(&turn, -1.0);
    assert_eq!(say(world, &feedback).await, FeedbackOutcome::Stored);
    assert_eq!(world.fate(&turn).await, TO_JUDGE);
    assert!(world.claim_samples(&world.sample_claim()).await.is_empty());

    // A judge that read it before the next feedback came is too late.
    let early = world.claim(ALL, NOW).await.remove(0);
    assert_eq!((early.feedback.len(), early.attempts), (1, 0));
    say(world, &world.feedback(&turn, -0.5)).await;
    let verdict = world.verdict(early.claim, Some(1.0));
    assert_fenced(&world.ledger.record_verdict(early.claim, &verdict).await);
    let again = world.claim(ALL, NOW).await.remove(0);
    assert_eq!(again.feedback.len(), 2);
    let verdict = world.verdict(again.claim, Some(-1.0));
    world
        .ledger
        .record_verdict(again.claim, &verdict)
        .await
        .expect("recorded");
    let samples = world.claim_samples(&world.sample_claim()).await;
    assert_eq!(samples[0].score, -1.0, "the newest verdict trains");
}

pub(super) async fn an_abstained_turn_goes_back_to_the_judge(world: &World) {
    let turn = world.turn();
    world.answered(&turn).await;
    world.judge_all(None).await;
    let reason = Reason::Abstained;
    assert_eq!(world.fate(&turn).await, Fate::Settled { reason });
    say(world, &world.feedback(&turn, 1.0)).await;
    assert_eq!(world.fate(&turn).await, TO_JUDGE);
    let claimed = world.claim(1, NOW).await.remove(0);
    world.ledger.give_up(claimed.claim).await.expect("given up");
    say(world, &world.feedback(&turn, 1.0)).await;
    assert_eq!(world.fate(&turn).await, TO_JUDGE);
    world.judge_all(Some(1.0)).await;
    assert_eq!(world.fate(&turn).await, TO_TRAIN);
}

pub(super) async fn what_was_held_out_or_held_no_lesson_goes_back_to_the_judge(world: &World) {
    for reason in [Reason::HeldOut, Reason::NoLesson, Reason::TooLong] {
        let turn = world.ready_turns(1, 0).await.remove(0);
        let samples = world.claim_samples(&world.sample_claim()).await;
        let claims = [samples[0].claim];
        let settled = world.ledger.settle_claims(&claims, reason).await;
        assert_eq!(settled.expect("settled"), 1);
        let mut said = world.feedback(&turn, -1.0);
        said.correction = Some("this instead".into());
        assert_eq!(say(world, &said).await, FeedbackOutcome::Stored);
        if reason == Reason::TooLong {
            let fate = Fate::Settled { reason };
            assert_eq!(world.fate(&turn).await, fate, "no words make it shorter");
            continue;
        }
        assert_eq!(world.fate(&turn).await, TO_JUDGE, "{reason:?}");
        world.judge_all(Some(-1.0)).await;
        let samples = world.claim_samples(&world.sample_claim()).await;
        assert_eq!((samples[0].turn.id, samples[0].score), (turn.id, -1.0));
        assert_eq!(samples[0].correction.as_deref(), Some("this instead"));
    }
}

pub(super) async fn a_batch_keeps_what_it_holds(world: &World) {
    let turns = world.ready_turns(2, 0).await;
    let samples = world.claim_samples(&world.sample_claim()).await;
    let mut feedback = world.feedback(&turns[0], -1.0);
    feedback.received_ms = NOW + LEASE - 1;
    assert_eq!(say(world, &feedback).await, FeedbackOutcome::Stored);
    assert_eq!(world.fate(&turns[0]).await, TO_TRAIN, "the batch goes on");
    // Once the lease ran out the feedback wins, and the batch cannot publish any more.
    feedback = world.feedback(&turns[1], -1.0);
    feedback.received_ms = NOW + LEASE;
    say(world, &feedback).await;
    assert_eq!(world.fate(&turns[1]).await, TO_JUDGE);
    let publishing = world.publishing(0, &samples);
    assert_fenced(&world.ledger.publish(&publishing).await);
    assert_eq!(
        world.fate(&turns[0]).await,
        TO_TRAIN,
        "nothing was published"
    );
}

pub(super) async fn a_trained_turn_stays_trained(world: &World) {
    world.publish_next(0).await;
    let row = world.ledger.turns(None, 1).await.expect("listed").remove(0);
    let view = world
        .ledger
        .turn(row.id)
        .await
        .expect("read")
        .expect("known");
    let mut feedback = world.feedback(&view.turn, -1.0);
    feedback.client_id = Some("a".into());
    let mut instead = world.feedback(&view.turn, 1.0);
    instead.client_id.clone_from(&feedback.client_id);
    for said in [&feedback, &instead] {
        assert_eq!(say(world, said).await, FeedbackOutcome::AlreadyLearned);
    }
    let view = world.ledger.turn(row.id).await.expect("read");
    let view = view.expect("known");
    assert_eq!(view.feedback, [instead], "it is kept all the same");
    let version = PolicyVersion(1);
    assert_eq!(world.fate(&view.turn).await, Fate::Trained { version });
    assert!(world.claim(ALL, NOW).await.is_empty());
}
