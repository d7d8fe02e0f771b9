use hone_domain::{MemoryMode, Message, Role, Scope, SessionId, TurnId};
use uuid::Uuid;

use super::*;

struct Counted(std::sync::atomic::AtomicU64);

impl Ids for Counted {
    fn next(&self) -> Uuid {
        let n = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Uuid::from_u128(u128::from(n))
    }
}

fn state(read_batch: usize) -> State {
    let config = Config {
        mode: MemoryMode::Full,
        tokens_max: 400,
        skill_tokens_max: 600,
        read_batch,
        tick_ms: 1_000,
        retry_ms: 500,
        drain_ms: 1_000,
    };
    State::new(config, Arc::new(Counted(1.into())))
}

fn turn(n: u128, text: &str) -> UnreadTurn {
    UnreadTurn {
        turn: TurnId(Uuid::from_u128(n)),
        session: SessionId(Uuid::from_u128(n)),
        scope: Scope::of("ann", None),
        mode: MemoryMode::Full,
        said: Some(vec![Message::text(Role::User, text)]),
        judged: None,
    }
}

fn reads(effects: &[Effect]) -> bool {
    matches!(effects, [Effect::Read { .. }])
}

fn number(state: &State, name: &str) -> f64 {
    let found = state.observe().into_iter().find(|(n, _)| *n == name);
    found.expect("a number").1
}

fn unread(turns: Vec<UnreadTurn>) -> Event<Notification, Report> {
    Event::Reported(Report::Read(Ok(turns)))
}

fn stored(new: u64) -> Event<Notification, Report> {
    Event::Reported(Report::Stored(Ok(MemoryCounts {
        new,
        ..MemoryCounts::default()
    })))
}

#[test]
fn a_turn_is_read_and_kept_and_then_it_rests() {
    let mut state = state(8);
    assert!(reads(&state.step(0, Event::Started)));
    assert!(state.step(1, Event::Ticked).is_empty(), "one at a time");
    let effects = state.step(2, unread(vec![turn(1, "Call me Sam."), turn(2, "Hello.")]));
    let kept: Vec<usize> = effects
        .iter()
        .map(|effect| match effect {
            Effect::Store { extraction, .. } => extraction.memories.len(),
            Effect::Read { .. } => panic!("it reads before it has kept"),
        })
        .collect();
    assert_eq!(kept, [1, 0]);
    assert!(!state.is_idle());
    assert!(state.step(3, stored(1)).is_empty());
    // The tick of meanwhile is not lost.
    assert!(reads(&state.step(4, stored(0))));
    assert!(state.step(5, unread(Vec::new())).is_empty());
    assert!(state.is_idle());
    assert_eq!(number(&state, "written_total"), 1.0);
    assert_eq!(number(&state, "turns_read_total"), 2.0);
}

#[test]
fn a_full_batch_is_followed_by_another() {
    let mut state = state(1);
    state.step(0, Event::Started);
    state.step(1, unread(vec![turn(1, "Hello.")]));
    assert!(reads(&state.step(2, stored(0))));
}

#[test]
fn after_a_failure_it_waits() {
    let mut state = state(8);
    state.step(0, Event::Started);
    let failed = Event::Reported(Report::Read(Err("the disk is full".into())));
    assert!(state.step(1, failed).is_empty());
    assert!(state.step(2, Event::Arrived(Notification)).is_empty());
    assert!(reads(&state.step(501, Event::Ticked)));
    state.step(502, unread(vec![turn(1, "Call me Sam.")]));
    let failed = Event::Reported(Report::Stored(Err("gone".into())));
    assert!(state.step(503, failed).is_empty());
    assert!(state.is_idle());
    assert!(reads(&state.step(1_003, Event::Ticked)), "it is read again");
    assert_eq!(number(&state, "ledger_failures_total"), 2.0);
}

#[test]
fn a_stop_begins_nothing_new() {
    let mut state = state(1);
    state.step(0, Event::Started);
    assert!(state.step(1, Event::Draining).is_empty());
    state.step(2, unread(vec![turn(1, "Call me Sam.")]));
    assert!(state.step(3, stored(1)).is_empty());
    assert!(state.is_idle());
}

#[test]
fn refusals_are_counted_by_reason() {
    let mut state = state(8);
    state.step(0, Event::Started);
    let said = "Remember that my password is swordfish.";
    state.step(1, unread(vec![turn(1, said)]));
    assert_eq!(number(&state, "refused_password_total"), 1.0);
    assert_eq!(number(&state, "refused_card_total"), 0.0);
}
