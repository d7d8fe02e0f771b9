//! Cases of rewards that a whole session gets.

use std::collections::BTreeMap;

use hone_domain::{
    Fate, Feedback, FeedbackId, Message, Reason, ReturnRule, Role, SessionCredit, SessionReward,
    Stage, Turn, TurnKind,
};

use super::personal::{begin, remove_all, wish};
use super::world::{ALL, LEASE, NOW, World};
use crate::{ForgetWhat, Missed, Personal, Rewarded};

const TERMINAL: SessionCredit = SessionCredit {
    rule: ReturnRule::Terminal,
    discount: 0.5,
};

fn pending(stage: Stage) -> Fate {
    Fate::Pending { stage }
}

/// A reward of the turn's session by its owner, not recorded.
fn reward(world: &World, of: &Turn, score: f32) -> SessionReward {
    SessionReward {
        id: FeedbackId(world.batch().0),
        session: of.session,
        owner: of.owner.clone(),
        client_id: None,
        score,
        parts: BTreeMap::new(),
        peers: Vec::new(),
        received_ms: NOW,
    }
}

/// Turns of one session, recorded; each continues the one before.
async fn session(world: &World, n: usize) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for step in 0..n {
        let mut turn = world.turn();
        turn.messages[1] = Message::text(Role::User, format!("step {step}"));
        if let Some(before) = turns.last() {
            (turn.session, turn.parent) = (before.session, Some(before.id));
        }
        world.record(&turn).await;
        turns.push(turn);
    }
    turns
}

async fn give(world: &World, reward: &SessionReward, credit: SessionCredit) -> Rewarded {
    let rewarded = world.ledger.record_reward(reward, credit).await;
    rewarded.expect("recorded").expect("a session of its owner")
}

/// Returns by turn, with whether it waits for a next state.
fn reached(rewarded: &Rewarded) -> Vec<(hone_domain::TurnId, f32, bool)> {
    let reached = rewarded.reached.iter();
    reached.map(|r| (r.turn, r.score, r.is_open)).collect()
}

fn missed(rewarded: &Rewarded) -> Vec<(&'static str, u64)> {
    let missed = rewarded.missed.iter();
    missed.map(|(why, n)| (why.as_str(), *n)).collect()
}

async fn feedback(world: &World, turn: &Turn) -> Vec<Feedback> {
    let view = world.ledger.turn(turn.id).await.expect("read");
    view.expect("known").feedback
}

pub(super) async fn stored(world: &World, of: &Turn) -> Vec<SessionReward> {
    let view = world.ledger.session(of.session, None, ALL).await;
    view.expect("read").expect("known").rewards
}

/// A reward with names of its parts, which the turn's session got.
pub(super) async fn named_reward(world: &World, of: &Turn) -> SessionReward {
    let mut given = reward(world, of, 0.5);
    given.parts = BTreeMap::from([("tests".to_owned(), 0.5)]);
    give(world, &given, TERMINAL).await;
    given
}

/// Answers turns and gives them a score.
async fn judge(world: &World, turns: &[&Turn], score: Option<f32>) {
    for turn in turns {
        let transition = world.transition(turn);
        let new = world.ledger.record_transitions(&[transition]).await;
        assert_eq!(new.expect("recorded").len(), 1);
    }
    world.judge_all(score).await;
}

pub(super) async fn a_reward_reaches_every_main_turn(world: &World) {
    let turns = session(world, 3).await;
    judge(world, &[&turns[0]], Some(-1.0)).await;
    judge(world, &[&turns[1]], None).await;
    let mut side = world.turn();
    (side.session, side.kind) = (turns[0].session, TurnKind::Side);
    world.record(&side).await;
    let mut given = reward(world, &turns[0], 0.5);
    given.parts = BTreeMap::from([("style\0".to_owned(), 0.2), ("tests".to_owned(), 0.8)]);

    let mut foreign = given.clone();
    foreign.owner = "somebody".into();
    let mut unknown = given.clone();
    unknown.session = world.turn().session;
    for other in [&foreign, &unknown] {
        let rewarded = world.ledger.record_reward(other, TERMINAL).await;
        assert_eq!(rewarded.expect("read"), None);
    }
    assert_eq!(stored(world, &turns[0]).await, []);

    let rewarded = give(world, &given, TERMINAL).await;
    let [a, b, c] = [turns[0].id, turns[1].id, turns[2].id];
    let expected = [(a, 0.5, false), (b, 0.5, false), (c, 0.5, true)];
    assert_eq!(reached(&rewarded), expected);
    assert_eq!(missed(&rewarded), []);
    assert!(!rewarded.is_replaced && rewarded.scope == world.scope());
    assert_eq!(stored(world, &turns[0]).await, [given]);
    // Who recorded it settles the open one.
    let transition = world.transition(&turns[2]);
    let new = world.ledger.record_transitions(&[transition]).await;
    assert_eq!(new.expect("recorded").len(), 1);
    for turn in &turns {
        assert_eq!(world.fate(turn).await, pending(Stage::AwaitingVerdict));
    }
    for claimed in world.claim(ALL, NOW).await {
        let [said] = &claimed.feedback[..] else {
            panic!("{:?}", claimed.feedback);
        };
        assert!(said.of_session && said.score == Some(0.5));
    }
    assert_eq!(feedback(world, &side).await, []);
}

pub(super) async fn a_reward_tells_whom_it_misses(world: &World) {
    let trained = session(world, 1).await.remove(0);
    judge(world, &[&trained], Some(1.0)).await;
    world.learn_from_ready(0).await;
    let in_session = |mut turn: Turn| {
        turn.session = trained.session;
        turn
    };
    let mut off = in_session(world.turn());
    off.untrainable = Some(Reason::LearningOff);
    let [own, held, open] = [(); 3].map(|()| in_session(world.turn()));
    let mut choice = in_session(world.turn());
    choice.group = Some(hone_domain::GroupId(world.batch().0));
    for turn in [&off, &own, &held, &choice, &open] {
        world.record(turn).await;
    }
    let said = world.feedback(&own, -1.0);
    world.ledger.record_feedback(&said).await.expect("recorded");
    judge(world, &[&held], Some(1.0)).await;
    let claimed = world.claim_samples(&world.sample_claim()).await;
    assert_eq!(claimed.len(), 1);

    let given = reward(world, &trained, 1.0);
    let rewarded = give(world, &given, TERMINAL).await;
    assert_eq!(reached(&rewarded), [(open.id, 1.0, true)]);
    let left_out = [
        ("already_learned", 1),
        ("own_feedback", 1),
        ("not_chosen", 1),
        ("in_training", 1),
        ("learning_off", 1),
    ];
    assert_eq!(missed(&rewarded), left_out);
    assert_eq!(world.fate(&held).await, pending(Stage::AwaitingTraining));
    assert_eq!(feedback(world, &own).await, [said]);
    assert_eq!(feedback(world, &choice).await, []);
    // Once the batch's lease ran out the reward wins.
    let mut later = reward(world, &trained, -1.0);
    later.received_ms = NOW + LEASE;
    let rewarded = give(world, &later, TERMINAL).await;
    assert_eq!(
        reached(&rewarded),
        [(held.id, -1.0, false), (open.id, -1.0, true)]
    );
    assert_eq!(world.fate(&held).await, pending(Stage::AwaitingVerdict));
}

pub(super) async fn a_rule_says_which_turns_a_reward_reaches(world: &World) {
    let turns = session(world, 3).await;
    let said = world.feedback(&turns[1], -0.5);
    world.ledger.record_feedback(&said).await.expect("recorded");
    let ids: Vec<_> = turns.iter().map(|turn| turn.id).collect();
    let newest = SessionCredit {
        rule: ReturnRule::Turn,
        ..TERMINAL
    };
    let given = reward(world, &turns[0], 1.0);
    let rewarded = give(world, &given, newest).await;
    assert_eq!(reached(&rewarded), [(ids[2], 1.0, true)]);
    let left_out = [("own_feedback", 1), ("earlier", 1)];
    assert_eq!(missed(&rewarded), left_out);
    let discounted = SessionCredit {
        rule: ReturnRule::Discounted,
        ..TERMINAL
    };
    // 1; -0.5 + 0.5 * 1 = 0; 0.5 * 0 = 0.
    let expected = [(ids[0], 0.0), (ids[1], 0.0), (ids[2], 1.0)];
    // What is said again counts no more than once.
    for _ in 0..2 {
        let rewarded = give(world, &reward(world, &turns[0], 1.0), discounted).await;
        let scores: Vec<_> = rewarded.reached.iter().map(|r| (r.turn, r.score)).collect();
        assert_eq!(scores, expected);
    }
    let scores = |said: Vec<Feedback>| -> Vec<_> {
        let said = said.iter();
        said.map(|f| (f.score, f.of_session)).collect()
    };
    let both = [(Some(-0.5), false), (Some(0.0), true)];
    assert_eq!(scores(feedback(world, &turns[1]).await), both);
    assert_eq!(
        scores(feedback(world, &turns[2]).await),
        [(Some(1.0), true)]
    );
}

pub(super) async fn the_same_client_id_replaces_a_reward(world: &World) {
    let turns = session(world, 2).await;
    let mut first = reward(world, &turns[0], 1.0);
    first.client_id = Some("end\0".into());
    let other = reward(world, &turns[0], 0.5);
    let mut instead = reward(world, &turns[0], -1.0);
    instead.client_id = Some("end\0".into());
    for (given, replaces) in [(&first, false), (&other, false), (&instead, true)] {
        let rewarded = give(world, given, TERMINAL).await;
        assert_eq!(
            (rewarded.is_replaced, rewarded.reached.len()),
            (replaces, 2)
        );
    }
    assert_eq!(stored(world, &turns[0]).await, [other, instead]);
    for turn in &turns {
        let said = feedback(world, turn).await;
        assert_eq!((said.len(), said[0].score), (1, Some(-1.0)));
    }
}

pub(super) async fn a_reward_goes_with_its_session(world: &World, people: &dyn Personal) {
    let turns = session(world, 2).await;
    let given = reward(world, &turns[0], 1.0);
    give(world, &given, TERMINAL).await;
    // What is being removed is not told anything any more.
    let one = wish(world, ForgetWhat::Turns(vec![turns[1].id]));
    begin(people, &one).await;
    let rewarded = give(world, &reward(world, &turns[0], -1.0), TERMINAL).await;
    assert_eq!(reached(&rewarded), [(turns[0].id, -1.0, true)]);
    assert_eq!(
        missed(&rewarded),
        [(Missed::Settled(Reason::Withdrawn).as_str(), 1)]
    );
    remove_all(people, one.id).await;
    assert_eq!(stored(world, &turns[0]).await.len(), 2);
    let all = wish(world, ForgetWhat::Session(turns[0].session));
    begin(people, &all).await;
    remove_all(people, all.id).await;
    let view = world.ledger.session(given.session, None, ALL).await;
    assert!(view.expect("read").is_none());
    let rewarded = world.ledger.record_reward(&given, TERMINAL).await;
    assert_eq!(rewarded.expect("read"), None);
}
