//! Cases of recording.

use hone_domain::{
    Check, Completion, Fate, GroupId, Message, Origin, PendingTurn, PolicyVersion, Reason, Role,
    Sampling, Stage, StopReason, ToolCall, Turn, TurnId, TurnKind, Verifier, VersionSpan,
};
use uuid::Uuid;

use super::world::{ALL, NOW, World, ids};
use crate::WaitingTurn;

const OPEN: Fate = Fate::Pending {
    stage: Stage::AwaitingNextState,
};

/// A turn with every optional field set and every text holding U+0000.
fn full_turn(world: &World) -> Turn {
    let n = 1_300;
    let base = world.turn();
    Turn {
        choice_index: 3,
        group: Some(GroupId(Uuid::from_u128(77))),
        session_key: Some("key\0of the client".into()),
        parent: Some(TurnId(Uuid::from_u128(78))),
        scope: hone_domain::Scope::of(&base.owner, Some("user\0name")),
        messages: vec![
            Message::text(Role::System, "s\0".repeat(25_000)),
            Message {
                name: Some("n\0".into()),
                tool_calls: vec![ToolCall {
                    id: "call\0".into(),
                    name: "f".into(),
                    arguments: "{\"a\":\"\\u0000\"}".into(),
                }],
                ..Message::text(Role::Assistant, "")
            },
            Message {
                tool_call_id: Some("call\0".into()),
                ..Message::text(Role::Tool, "grün 🦀 \0\u{10ffff}")
            },
        ],
        prompt_tokens: (0..n).map(|i| i * 3_000_001).collect(),
        completion: Completion::new(
            vec![0, u32::MAX, 5],
            vec![-0.0, -1.0e-30, -3.4e38],
            vec![1.0e-5, -f32::MIN_POSITIVE, -0.1],
            vec![Some([].into()), Some([u32::MAX, 0].into()), None],
            StopReason::ToolCall,
        )
        .expect("aligned arrays"),
        completion_text: "\0 text \u{fffd}".into(),
        sampling: Sampling {
            temperature: 0.1,
            seed: u64::MAX,
            logit_bias: vec![(9, -100.0), (3, 0.333_333_34)],
            top_logprobs: 20,
            ..Sampling::default()
        },
        spans: vec![
            VersionSpan {
                version: PolicyVersion(0),
                start: 0,
                end: 1,
            },
            VersionSpan {
                version: PolicyVersion(1),
                start: 1,
                end: 3,
            },
        ],
        digest: Some(super::world::digest_of(4)),
        untrainable: Some(Reason::Greedy),
        ..base
    }
}

pub(super) async fn turns_come_back_exactly(world: &World) {
    let turns = [full_turn(world), world.turn()];
    world.ledger.record_turns(&turns).await.expect("recorded");
    for turn in &turns {
        let view = world
            .ledger
            .turn(turn.id)
            .await
            .expect("read")
            .expect("known");
        assert_eq!(view.turn, *turn);
        let bits = |t: &Turn| -> Vec<u32> {
            let floats = t.completion.behavior_logprobs().iter();
            floats.map(|x| x.to_bits()).collect()
        };
        assert_eq!(bits(&view.turn), bits(turn));
        assert!(view.transition.is_none() && view.verdict.is_none() && view.feedback.is_empty());
    }
    world
        .ledger
        .record_turns(&[])
        .await
        .expect("an empty batch");
}

/// Prompts and histories that share a beginning, or a middle, are told apart.
pub(super) async fn shared_beginnings_do_not_mix(world: &World) {
    let mut turns = Vec::new();
    for (length, twist) in [
        (2_000, 0),
        (2_000, 1),
        (1_024, 0),
        (512, 0),
        (0, 0),
        (2_000, 0),
    ] {
        let mut turn = world.turn();
        turn.prompt_tokens = (0..length)
            .map(|i| i + u32::from(i == 700) * twist)
            .collect();
        turn.messages = (0..length / 100)
            .map(|i| Message::text(Role::User, format!("m{}", i + u32::from(i == 7) * twist)))
            .collect();
        turns.push(turn);
    }
    world
        .ledger
        .record_turns(&turns[..3])
        .await
        .expect("recorded");
    world
        .ledger
        .record_turns(&turns[3..])
        .await
        .expect("recorded");
    for turn in &turns {
        let view = world
            .ledger
            .turn(turn.id)
            .await
            .expect("read")
            .expect("known");
        assert_eq!(view.turn.prompt_tokens, turn.prompt_tokens);
        assert_eq!(view.turn.messages, turn.messages);
    }
}

pub(super) async fn recording_again_changes_nothing(world: &World) {
    let turn = world.turn();
    world.answered(&turn).await;
    let mut other = turn.clone();
    other.completion_text = "something else".into();
    let batch = [turn.clone(), other, turn.clone()];
    world
        .ledger
        .record_turns(&batch)
        .await
        .expect("recorded again");
    let view = world
        .ledger
        .turn(turn.id)
        .await
        .expect("read")
        .expect("known");
    assert_eq!(view.turn, turn);
    let stage = Stage::AwaitingVerdict;
    assert_eq!(view.fate, Fate::Pending { stage });
    assert_eq!(world.ledger.counts().await.expect("counted").turns, 1);
}

pub(super) async fn a_repetition_replaces_what_was_cut(world: &World) {
    let whole = world.turn();
    let mut cut = whole.clone();
    cut.completion = Completion::new(
        vec![7],
        vec![-0.5],
        vec![-0.5],
        vec![None],
        StopReason::Cancelled,
    )
    .expect("aligned arrays");
    cut.spans[0].end = 1;
    for turn in [&cut, &cut, &whole, &cut] {
        world.record(turn).await;
    }
    assert_eq!(world.ledger.counts().await.expect("read").turns, 1);
    let view = world.ledger.turn(whole.id).await.expect("read");
    let view = view.expect("known");
    assert_eq!((view.turn, view.fate), (whole, OPEN));
}

pub(super) async fn what_cannot_train_is_settled_at_once(world: &World) {
    let empty = |stop| Completion::new(vec![], vec![], vec![], vec![], stop).expect("empty");
    let mut side = world.turn();
    side.kind = TurnKind::Side;
    let mut greedy = world.turn();
    greedy.untrainable = Some(Reason::Greedy);
    greedy.kind = TurnKind::Side;
    let mut nothing = world.turn();
    nothing.completion = empty(StopReason::Length);
    nothing.spans.clear();
    let mut left = world.turn();
    left.completion = empty(StopReason::Cancelled);
    left.spans.clear();
    for (turn, reason) in [
        (side, Reason::SideTurn),
        (greedy, Reason::Greedy),
        (nothing, Reason::EmptyCompletion),
        (left, Reason::Cancelled),
    ] {
        world.record(&turn).await;
        assert_eq!(world.fate(&turn).await, Fate::Settled { reason });
        let transition = world.transition(&turn);
        let new = world.ledger.record_transitions(&[transition]).await;
        assert_eq!(new.expect("ignored"), []);
        assert_eq!(world.fate(&turn).await, Fate::Settled { reason });
    }
    assert!(world.ledger.open_turns(ALL).await.expect("read").is_empty());
}

pub(super) async fn a_next_state_settles_a_turn_once(world: &World) {
    let turn = world.turn();
    let first = world.answered(&turn).await;
    let unknown = world.transition(&world.turn());
    let mut strange = world.transition(&turn);
    strange.scope = hone_domain::Scope::of("somebody", None);
    let new = world
        .ledger
        .record_transitions(&[strange, unknown, first.clone()])
        .await;
    assert_eq!(new.expect("ignored"), []);
    let view = world
        .ledger
        .turn(turn.id)
        .await
        .expect("read")
        .expect("known");
    assert_eq!(view.transition, Some(first));

    let second = world.turn();
    world.record(&second).await;
    let mut transition = world.transition(&second);
    transition.scope = hone_domain::Scope::of("somebody", None);
    transition.next_turn = Some(turn.id);
    let twice = [transition.clone(), world.transition(&second)];
    let new = world.ledger.record_transitions(&twice).await;
    assert_eq!(new.expect("recorded"), [transition.id]);
    let view = world
        .ledger
        .turn(second.id)
        .await
        .expect("read")
        .expect("known");
    let stored = view.transition.expect("settled");
    assert_eq!(stored.scope, second.scope, "the turn's own scope holds");
    assert_eq!(stored.next_turn, Some(turn.id));
}

pub(super) async fn only_open_turns_are_settled(world: &World) {
    let (open, answered) = (world.turn(), world.turn());
    world.record(&open).await;
    world.answered(&answered).await;
    let reason = Reason::NoNextState;
    let settle = [
        (open.id, reason),
        (answered.id, reason),
        (world.turn().id, reason),
    ];
    world.ledger.settle_turns(&settle).await.expect("settled");
    let again = [(open.id, Reason::LateReceipt)];
    world.ledger.settle_turns(&again).await.expect("ignored");
    assert_eq!(world.fate(&open).await, Fate::Settled { reason });
    let stage = Stage::AwaitingVerdict;
    assert_eq!(world.fate(&answered).await, Fate::Pending { stage });
}

pub(super) async fn open_turns_are_newest_first(world: &World) {
    let turns: Vec<Turn> = (0..5).map(|_| world.turn()).collect();
    world.ledger.record_turns(&turns).await.expect("recorded");
    let transition = world.transition(&turns[3]);
    world
        .ledger
        .record_transitions(&[transition])
        .await
        .expect("recorded");
    let feedback = world.feedback(&turns[1], 1.0);
    world
        .ledger
        .record_feedback(&feedback)
        .await
        .expect("recorded");
    assert_eq!(
        world.fate(&turns[1]).await,
        OPEN,
        "feedback alone settles nothing"
    );

    let open = world.ledger.open_turns(ALL).await.expect("read");
    let found: Vec<Turn> = open.iter().map(|o| o.turn.clone()).collect();
    let mut expected = ids(&turns);
    expected.remove(3);
    expected.reverse();
    assert_eq!(ids(&found), expected);
    let with_feedback: Vec<bool> = open.iter().map(|o| o.has_feedback).collect();
    assert_eq!(with_feedback, [false, false, true, false]);
    assert_eq!(found[0], turns[4]);
    assert_eq!(world.ledger.open_turns(2).await.expect("read").len(), 2);
}

pub(super) async fn a_page_has_what_a_start_needs(world: &World) {
    let (mut first, mut checked) = (world.turn(), world.turn());
    first.session_key = Some("a key".into());
    first.group = Some(GroupId(Uuid::from_u128(7)));
    checked.parent = Some(first.id);
    checked.session = first.session;
    checked.messages.push(Message::text(Role::User, "And now?"));
    checked.admission.checks = vec![Check {
        name: "exit".into(),
        verifier: Verifier::ExitCode {},
    }];
    let turns = [first, checked];
    world.ledger.record_turns(&turns).await.expect("recorded");
    let feedback = world.feedback(&turns[0], 1.0);
    let stored = world.ledger.record_feedback(&feedback).await;
    stored.expect("recorded");
    let page = world.ledger.open_page(ALL, None, ALL).await.expect("read");
    assert_eq!(page.turns.len(), turns.len());
    for (waiting, turn) in page.turns.iter().zip(&turns) {
        let expected = PendingTurn {
            turn: turn.id,
            session: turn.session,
            session_key: turn.session_key.clone(),
            owner: turn.owner.clone(),
            scope: turn.scope.clone(),
            messages: turn.messages.clone(),
            completion: turn.completion_message(),
            parent: turn.parent,
            memories: turn.admission.memory.shown.clone(),
            skills: turn.admission.memory.skills.clone(),
            kind: turn.kind,
            delivered: true,
            continued: false,
            ended_ms: turn.finished_ms,
        };
        assert_eq!(waiting.turn, expected);
        assert_eq!(waiting.group, turn.group);
    }
    let marks = |waiting: &WaitingTurn| (waiting.is_checked, waiting.has_feedback);
    let marks: Vec<_> = page.turns.iter().map(marks).collect();
    assert_eq!(marks, [(false, true), (true, false)]);
}

pub(super) async fn open_turns_come_in_pages(world: &World) {
    let turns: Vec<Turn> = (0..7).map(|_| world.turn()).collect();
    world.ledger.record_turns(&turns).await.expect("recorded");
    let settled = [(turns[3].id, Reason::NoNextState)];
    world.ledger.settle_turns(&settled).await.expect("settled");
    let mut expected = ids(&turns);
    expected.remove(3);
    for (newest, limit) in [(ALL, ALL), (ALL, 1), (ALL, 2), (5, 2), (5, 3), (1, 4)] {
        let (mut found, mut seen, mut from) = (Vec::new(), 0, None);
        loop {
            let page = world.ledger.open_page(newest, from, limit).await;
            let page = page.expect("read");
            assert!(page.turns.len() <= limit, "{newest} {limit}");
            seen += page.seen;
            found.extend(page.turns.into_iter().map(|waiting| waiting.turn.turn));
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        let skipped = expected.len().saturating_sub(newest);
        assert_eq!(found, expected[skipped..], "{newest} {limit}");
        assert_eq!(seen, found.len());
    }
}

pub(super) async fn what_came_from_outside_is_no_versions_answer(world: &World) {
    let mut outside = world.turn();
    outside.origin = Origin::Outside;
    outside.completion = Completion::given(vec![7, 8], StopReason::EndToken);
    outside.spans[0].end = 2;
    let own = world.turn();
    // What tasks pay is no person's word either.
    let mut tried = world.turn();
    tried.origin = Origin::Rollout;
    for turn in [&outside, &own, &tried] {
        world.answered(turn).await;
    }
    let view = world.ledger.turn(outside.id).await.expect("read");
    assert_eq!(view.expect("known").turn, outside);
    for claimed in world.claim(ALL, NOW).await {
        let score = if claimed.turn.id == own.id { 0.5 } else { -1.0 };
        let verdict = world.verdict(claimed.claim, Some(score));
        let done = world.ledger.record_verdict(claimed.claim, &verdict).await;
        done.expect("a verdict is recorded");
    }
    let scores = world.ledger.scores_by_version(&world.scope()).await;
    assert_eq!(scores.expect("read"), [(PolicyVersion(0), 0.5, 1)]);
    // It is claimed for training like any other, and says that it has no log-probs.
    let samples = world.claim_samples(&world.sample_claim()).await;
    let sampled: Vec<_> = samples
        .iter()
        .map(|s| s.turn.completion.has_logprobs())
        .collect();
    assert_eq!(sampled, [false, true, true]);
}
