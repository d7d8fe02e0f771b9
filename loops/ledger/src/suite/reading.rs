//! Cases of lists, conversations and what a turn went through.

use hone_domain::{
    Fate, Message, Origin, PolicyVersion, Reason, Role, Scope, Turn, TurnId, TurnKind,
};

use super::world::{ALL, NOW, OWNER, World, ids};
use crate::{FateState, Refusal, SampleAge, TurnFilter, TurnLine};

async fn page(world: &World, filter: &TurnFilter) -> Vec<TurnLine> {
    let page = world.ledger.turn_page(filter, None, ALL).await;
    page.expect("a page is read").rows
}

async fn found(world: &World, filter: TurnFilter) -> Vec<TurnId> {
    page(world, &filter).await.iter().map(|t| t.id).collect()
}

/// Every page of a filter, two rows at a time.
async fn walked(world: &World, filter: &TurnFilter) -> Vec<TurnId> {
    let (mut before, mut seen) = (None, Vec::new());
    loop {
        let page = world.ledger.turn_page(filter, before, 2).await;
        let page = page.expect("a page is read");
        assert!(page.rows.len() <= 2);
        seen.extend(page.rows.iter().map(|t| t.id));
        before = page.next;
        if before.is_none() {
            return seen;
        }
    }
}

pub(super) async fn pages_cover_every_turn_once(world: &World) {
    let turns: Vec<Turn> = (0..7).map(|_| world.turn()).collect();
    world.ledger.record_turns(&turns).await.expect("recorded");
    let mut newest_first = ids(&turns);
    newest_first.reverse();
    let of_scope = TurnFilter {
        scope: Some(world.scope()),
        ..TurnFilter::default()
    };
    for filter in [TurnFilter::default(), of_scope] {
        assert_eq!(walked(world, &filter).await, newest_first);
    }
    let elsewhere = TurnFilter {
        scope: Some(Scope::of("nobody", None)),
        ..TurnFilter::default()
    };
    assert!(walked(world, &elsewhere).await.is_empty());
}

/// A trained turn, a side turn, and a turn of somebody else that version 1 sampled.
async fn three_turns(world: &World) -> [Turn; 3] {
    let trained = world.ready_turns(1, 0).await.remove(0);
    let samples = world.claim_samples(&world.sample_claim()).await;
    let publishing = world.publishing(0, &samples);
    world.ledger.publish(&publishing).await.expect("published");
    let mut side = world.turn();
    side.kind = TurnKind::Side;
    let mut other = world.turn_of(PolicyVersion(1));
    other.owner = "other".into();
    other.scope = Scope::of("other", Some("ann"));
    other.completion_text = "ä".repeat(500);
    let new = [side.clone(), other.clone()];
    world.ledger.record_turns(&new).await.expect("recorded");
    [trained, side, other]
}

fn filter(change: impl FnOnce(&mut TurnFilter)) -> TurnFilter {
    let mut filter = TurnFilter::default();
    change(&mut filter);
    filter
}

pub(super) async fn filters_narrow_a_list(world: &World) {
    let [trained, side, other] = three_turns(world).await;
    let (t, s, o) = (trained.id, side.id, other.id);
    let scores = |from, to| filter(|f| (f.score_min, f.score_max) = (Some(from), Some(to)));
    let state = |state| filter(|f| f.state = Some(state));
    let reason = |reason| filter(|f| f.reason = Some(reason));
    let strange = filter(|f| {
        f.session = Some(side.session);
        f.owner = Some("other".into());
    });
    let rows = [
        (TurnFilter::default(), vec![o, s, t]),
        (filter(|f| f.scope = Some(other.scope.clone())), vec![o]),
        (filter(|f| f.owner = Some(OWNER.into())), vec![s, t]),
        (filter(|f| f.session = Some(side.session)), vec![s]),
        (strange, vec![]),
        (state(FateState::Pending), vec![o]),
        (state(FateState::Trained), vec![t]),
        (state(FateState::Settled), vec![s]),
        (reason(Reason::SideTurn), vec![s]),
        (reason(Reason::Stale), vec![]),
        (filter(|f| f.version = Some(PolicyVersion(1))), vec![o]),
        (filter(|f| f.kind = Some(TurnKind::Side)), vec![s]),
        (scores(0.5, 1.0), vec![t]),
        (scores(-1.0, 0.5), vec![]),
    ];
    for (filter, expected) in rows {
        assert_eq!(found(world, filter.clone()).await, expected, "{filter:?}");
    }
}

pub(super) async fn a_line_says_what_a_turn_is(world: &World) {
    let [_, _, other] = three_turns(world).await;
    let lines = page(world, &TurnFilter::default()).await;
    let (first, last) = (&lines[0], &lines[2]);
    assert_eq!((&first.preview, first.score), (&"ä".repeat(160), None));
    assert_eq!((first.session, &first.owner), (other.session, &other.owner));
    assert_eq!((first.started_ms, first.finished_ms), (NOW, NOW + 5));
    let fate = Fate::Trained {
        version: PolicyVersion(1),
    };
    assert_eq!((last.fate, last.score), (fate, Some(1.0)));
}

/// A turn of `session` after the earlier one: the earlier messages and answer, then `text`.
fn next_turn(world: &World, earlier: &Turn, text: &str) -> Turn {
    let mut turn = world.turn();
    turn.session = earlier.session;
    turn.parent = Some(earlier.id);
    turn.messages.clone_from(&earlier.messages);
    turn.messages.push(earlier.completion_message());
    turn.messages.push(Message::text(Role::User, text));
    turn
}

pub(super) async fn a_session_is_told_without_repeating_itself(world: &World) {
    let first = world.turn();
    let second = next_turn(world, &first, "And why?");
    let mut rewritten = next_turn(world, &second, "Start over.");
    rewritten.messages = vec![Message::text(Role::User, "Start over.")];
    let mut stranger = world.turn();
    stranger
        .messages
        .push(Message::text(Role::User, "Not of this session."));
    let all = [first.clone(), second.clone(), stranger, rewritten.clone()];
    world.ledger.record_turns(&all).await.expect("recorded");
    let feedback = world.feedback(&second, -1.0);
    world
        .ledger
        .record_feedback(&feedback)
        .await
        .expect("recorded");
    let read = async |before, limit| {
        let view = world.ledger.session(first.session, before, limit).await;
        view.expect("read").expect("known")
    };
    let view = read(None, ALL).await;
    assert_eq!((view.owner.as_str(), &view.scope), (OWNER, &world.scope()));
    assert_eq!(
        (view.line.turns, view.line.title.as_deref()),
        (3, Some("Hello?"))
    );
    let told: Vec<(TurnId, Vec<&str>)> = view
        .turns
        .rows
        .iter()
        .map(|t| {
            (
                t.id,
                t.messages.iter().map(|m| m.content.as_str()).collect(),
            )
        })
        .collect();
    let expected = [
        (first.id, vec!["Be brief.", "Hello?"]),
        (second.id, vec!["And why?"]),
        (rewritten.id, vec!["Start over."]),
    ];
    assert_eq!(told, expected);
    assert_eq!(view.turns.rows[1].feedback, [feedback]);
    assert_eq!(view.turns.rows[1].parent, Some(first.id));
    let newest = read(None, 2).await;
    assert_eq!(newest.turns.rows[0].id, second.id);
    let older = read(newest.turns.next, 2).await;
    assert_eq!(
        (older.turns.rows.len(), older.turns.rows[0].id),
        (1, first.id)
    );
    assert!(older.turns.next.is_none());
}

pub(super) async fn sessions_are_listed_by_last_use_and_found_by_title(world: &World) {
    let mut turns = Vec::new();
    for (at, title) in ["Über\n  Wien", "tea  time", "Tea again"]
        .iter()
        .enumerate()
    {
        let mut turn = world.turn();
        turn.messages = vec![
            Message::text(Role::System, "tea"),
            Message::text(Role::User, *title),
        ];
        turn.finished_ms = NOW + 10 * at as i64;
        turns.push(turn);
    }
    let mut silent = world.turn();
    silent.kind = TurnKind::Side;
    silent.finished_ms = NOW - 1;
    turns.push(silent.clone());
    // An episode is no conversation of anybody's.
    let mut tried = world.turn();
    tried.origin = Origin::Rollout;
    turns.push(tried);
    world.ledger.record_turns(&turns).await.expect("recorded");
    // The oldest session is used again.
    let mut again = next_turn(world, &turns[0], "More.");
    again.finished_ms = NOW + 100;
    again.session_key = Some("my key".into());
    world.record(&again).await;
    let (first, second, third) = (turns[0].session, turns[1].session, turns[2].session);
    let rows = [
        (None, vec![first, third, second, silent.session]),
        (Some("TEA"), vec![third, second]),
        (Some("über wien"), vec![first]),
        (Some("%"), vec![]),
    ];
    let scope = world.scope();
    for (search, expected) in rows {
        let (mut before, mut seen) = (None, Vec::new());
        loop {
            let page = world.ledger.session_page((&scope, search), before, 1).await;
            let page = page.expect("a page is read");
            seen.extend(page.rows.iter().map(|s| s.id));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(seen, expected, "{search:?}");
    }
    let page = world.ledger.session_page((&scope, None), None, ALL).await;
    let lines = page.expect("a page is read").rows;
    assert_eq!(
        (lines[0].title.as_deref(), lines[0].turns),
        (Some("Über Wien"), 2)
    );
    assert_eq!((lines[0].first_ms, lines[0].last_ms), (NOW, NOW + 100));
    assert_eq!((&lines[3].title, &lines[3].key), (&None, &None));
    assert_eq!(lines[0].key.as_deref(), Some("my key"));
}

pub(super) async fn a_turn_tells_the_batches_it_entered(world: &World) {
    let turn = world.ready_turns(1, 0).await.remove(0);
    let entries = async || world.ledger.turn_entries(turn.id).await.expect("read");
    assert!(entries().await.is_empty());
    let samples = world.claim_samples(&world.sample_claim()).await;
    let publishing = world.publishing(0, &samples);
    world.ledger.publish(&publishing).await.expect("published");
    let entered = entries().await;
    assert_eq!(entered.len(), 1);
    assert_eq!(entered[0].batch, Some(publishing.batch));
    assert_eq!(entered[0].version, Some(PolicyVersion(1)));
    assert_eq!((entered[0].refused, entered[0].at_ms), (None, NOW + 30));
    assert_eq!(entered[0].report["loss"], 0.5);

    let refused = world.ready_turns(1, 1).await.remove(0);
    let claim = world.sample_claim();
    let samples = world.claim_samples(&claim).await;
    let refusal = Refusal {
        scope: world.scope(),
        parent: PolicyVersion(1),
        digest: None,
        batch: claim.batch,
        claims: samples.iter().map(|s| s.claim).collect(),
        reason: Reason::GateRejected,
        report: serde_json::json!({ "why": "kl" }),
        now_ms: NOW + 60,
    };
    world.ledger.refuse(&refusal).await.expect("refused");
    let entered = world.ledger.turn_entries(refused.id).await.expect("read");
    assert_eq!(entered.len(), 1);
    assert_eq!(entered[0].refused, Some(Reason::GateRejected));
    assert_eq!((entered[0].version, entered[0].at_ms), (None, NOW + 60));
}

pub(super) async fn ages_and_waits_are_told(world: &World) {
    let empty = world.ledger.oldest_pending().await.expect("read");
    assert_eq!(empty, crate::OldestPending::default());
    let turn = world.turn();
    world.answered(&turn).await;
    let feedback = world.feedback(&turn, 1.0);
    world
        .ledger
        .record_feedback(&feedback)
        .await
        .expect("recorded");
    let waits = world.ledger.oldest_pending().await.expect("read");
    assert_eq!((waits.verdict_ms, waits.training_ms), (Some(NOW + 5), None));
    world.judge_all(Some(1.0)).await;
    world.record(&world.turn()).await;
    let waits = world.ledger.oldest_pending().await.expect("read");
    assert_eq!(
        (waits.next_state_ms, waits.verdict_ms),
        (Some(NOW + 5), None)
    );
    assert_eq!(waits.training_ms, Some(NOW + 5));
    let samples = world.claim_samples(&world.sample_claim()).await;
    let publishing = world.publishing(0, &samples);
    world.ledger.publish(&publishing).await.expect("published");
    let scope = world.scope();
    let ages = world.ledger.sample_ages(&scope, PolicyVersion(1)).await;
    let age = SampleAge {
        version: PolicyVersion(0),
        finished_ms: NOW + 5,
        judged_ms: NOW + 20,
        feedback_ms: Some(NOW),
    };
    assert_eq!(ages.expect("read"), [age]);
    let none = world.ledger.sample_ages(&scope, PolicyVersion(2)).await;
    assert!(none.expect("read").is_empty());
}
