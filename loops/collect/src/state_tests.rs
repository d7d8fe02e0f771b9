#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use hone_domain::{Check, GroupId, Subject, Verifier, invariants};
use hone_runtime::SeededIds;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::testing::{feedback, observed, turn};
use crate::{Batch, Ship};

type Signed = oneshot::Receiver<Receipt>;

fn state() -> State {
    state_of(Config::for_tests())
}

fn state_of(config: Config) -> State {
    let mut state = State::new(config, Arc::new(SeededIds::new(1)));
    let effects = state.step(0, Event::Started);
    assert!(matches!(effects[..], [Effect::Load]));
    state
}

fn loaded_state() -> State {
    loaded(state())
}

fn loaded(mut state: State) -> State {
    let loaded = Report::Loaded(Ok(Loaded::default()));
    assert!(state.step(0, Event::Reported(loaded)).is_empty());
    state
}

fn id(n: u128) -> TurnId {
    TurnId(Uuid::from_u128(n))
}

fn send_turn(state: &mut State, now_ms: i64, turn: Turn) -> (Vec<Effect>, Signed) {
    let (receipt, signed) = oneshot::channel();
    let turn = Box::new(turn);
    let effects = state.step(now_ms, Event::Arrived(Input::Turn { turn, receipt }));
    (effects, signed)
}

/// The one write among `effects`.
fn batch(effects: Vec<Effect>) -> Batch {
    let mut writes = effects.into_iter().filter_map(|effect| match effect {
        Effect::Write(batch) => Some(*batch),
        _ => None,
    });
    let batch = writes.next().expect("a write");
    assert!(writes.next().is_none(), "one write at a time");
    batch
}

/// Reports that all of `batch` was written and new, and signs its receipts.
fn all_written(state: &mut State, now_ms: i64, batch: Batch) -> Vec<Effect> {
    let mut wrote = Wrote {
        recorded: batch.turns.len() as u64,
        transitions: batch.transitions.len() as u64,
        settled: batch.settles.len() as u64,
        ..Wrote::default()
    };
    for receipt in batch.receipts {
        let _told = receipt.send(Receipt::Collected);
    }
    wrote
        .closed
        .extend(batch.transitions.iter().map(|t| t.turn));
    wrote.closed.extend(batch.settles.iter().map(|(t, _)| *t));
    state.step(now_ms, Event::Reported(Report::Wrote(Box::new(wrote))))
}

/// A turn to be checked: at once where the answer alone is looked at, else at the end of its session.
#[test]
fn a_checked_turn_goes_to_the_judge_even_if_nothing_answers_it() {
    for (verifier, at_once) in [
        (Verifier::ExitCode {}, false),
        (
            Verifier::Exact {
                expected: "4".to_owned(),
                ignore_case: false,
                of: Subject::Answer,
            },
            true,
        ),
    ] {
        let mut state = loaded_state();
        let name = "c".to_owned();
        let mut one = turn(1, 1);
        one.admission.checks = vec![Check { name, verifier }];
        let session = one.session;
        let (effects, _signed) = send_turn(&mut state, 1, one);
        let mut written = batch(effects);
        let count = written.transitions.len();
        assert_eq!(count, usize::from(at_once));
        if !at_once {
            all_written(&mut state, 2, written);
            let done = Event::Arrived(Input::SessionDone(session));
            written = batch(state.step(3, done));
        }
        assert_eq!(written.transitions[0].next_state, NextState::default());
        assert!(written.settles.is_empty());
    }
}

#[test]
fn what_comes_while_a_write_runs_goes_into_the_next() {
    let mut state = loaded_state();
    let (effects, _one) = send_turn(&mut state, 1, turn(1, 1));
    let first = batch(effects);
    assert_eq!(first.turns.len(), 1, "an idle collect writes at once");
    let mut kept = Vec::new();
    for n in 2..=11 {
        let (effects, signed) = send_turn(&mut state, 2, turn(n, 1));
        assert!(effects.is_empty());
        kept.push(signed);
    }
    let second = batch(all_written(&mut state, 3, first));
    assert_eq!(second.turns.len(), 8, "at most batch_turns_max");
    let third = batch(all_written(&mut state, 4, second));
    assert_eq!(third.turns.len(), 2);
    assert!(all_written(&mut state, 5, third).is_empty());
    assert!(state.is_idle());
}

#[test]
fn a_queue_full_of_bytes_refuses_turns_and_writes_a_quarter_at_once() {
    let each = turn(1, 1).bytes();
    let mut config = Config::for_tests();
    config.held_bytes_max = 8 * each;
    let mut state = loaded(state_of(config));
    let (effects, _one) = send_turn(&mut state, 1, turn(1, 1));
    let first = batch(effects);
    let mut large = turn(2, 1);
    large.completion_text = "x".repeat(8 * each as usize);
    let (effects, _two) = send_turn(&mut state, 1, large);
    assert!(effects.is_empty(), "it waits for the write under way");
    let (effects, _three) = send_turn(&mut state, 1, turn(3, 1));
    let refused = |effect: &Effect| matches!(effect, Effect::Refuse(_, Reason::QueueFull));
    assert!(effects.iter().all(refused) && effects.len() == 1);
    let second = batch(all_written(&mut state, 2, first));
    assert_eq!(second.turns.len(), 1);
    let mut signed = Vec::new();
    for n in 4..=10 {
        let (effects, receipt) = send_turn(&mut state, 3, turn(n, 1));
        assert!(effects.is_empty());
        signed.push(receipt);
    }
    let third = batch(all_written(&mut state, 4, second));
    assert_eq!(third.turns.len(), 2, "a quarter of the bytes");
    // Next states count as well, those that came before their turn among them.
    let next = |n: u128, bytes: u64| {
        let mut next = observed(n, 1);
        next.next_state.items[0].text = "x".repeat(bytes as usize);
        Event::Arrived(Input::Next(next))
    };
    state.step(5, next(4, 8 * each));
    state.step(5, next(5, 1));
    assert_eq!(
        (state.counts.next_states, state.counts.next_states_dropped),
        (2, 1)
    );
    state.step(6, next(90, 8 * each));
    assert_eq!(state.early.len(), 1);
    state.step(6, next(91, 1));
    assert_eq!(
        (state.early.len(), state.counts.next_states_dropped),
        (1, 2)
    );
}

#[test]
fn a_full_queue_refuses_turns_with_a_reason_and_accounts_for_all() {
    let mut state = loaded_state();
    let mut refused = 0;
    let mut kept = Vec::new();
    for n in 1..=40 {
        let (effects, signed) = send_turn(&mut state, 1, turn(n, 1));
        kept.push(signed);
        for effect in effects {
            if let Effect::Refuse(_, reason) = effect {
                assert_eq!(reason, Reason::QueueFull);
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 40 - 32 - 1, "one in the write, 32 held");
    accounted(&state).unwrap();
}

fn accounted(state: &State) -> Result<(), invariants::Broken> {
    let numbers: BTreeMap<&str, f64> = state.observe().into_iter().collect();
    let count = |name| numbers[name] as u64;
    invariants::turns_are_accounted(
        count("turns_handed_total"),
        count("turns_recorded_total") + count("turns_spooled_total"),
        count("turns_dropped_total"),
        count("turns_held"),
    )
}

#[test]
fn a_next_state_follows_its_turn_even_when_it_comes_first() {
    let mut state = loaded_state();
    assert!(
        state
            .step(1, Event::Arrived(Input::Next(observed(1, 1))))
            .is_empty()
    );
    let (effects, _signed) = send_turn(&mut state, 2, turn(1, 1));
    let first = batch(effects);
    assert_eq!(first.turns.len(), 1);
    let second = first.transitions.len();
    let rest = all_written(&mut state, 3, first);
    let written = second
        + if rest.is_empty() {
            0
        } else {
            batch(rest).transitions.len()
        };
    assert_eq!(written, 1);
    // Nobody knows this one; after a while the ledger decides.
    assert!(
        state
            .step(10, Event::Arrived(Input::Next(observed(9, 9))))
            .is_empty()
    );
    let mut state = loaded_state();
    assert!(
        state
            .step(10, Event::Arrived(Input::Next(observed(9, 9))))
            .is_empty()
    );
    assert!(
        !state
            .step(509, Event::Ticked)
            .iter()
            .any(|e| matches!(e, Effect::Write(_)))
    );
    assert_eq!(
        batch(state.step(510, Event::Ticked)).transitions[0].turn,
        id(9)
    );
}

#[test]
fn the_second_next_state_of_a_turn_is_ignored() {
    let mut state = loaded_state();
    let (effects, _signed) = send_turn(&mut state, 1, turn(1, 1));
    let first = batch(effects);
    state.step(2, Event::Arrived(Input::Next(observed(1, 1))));
    state.step(2, Event::Arrived(Input::Next(observed(1, 1))));
    assert_eq!(
        batch(all_written(&mut state, 3, first)).transitions.len(),
        1
    );
    assert_eq!(state.counts.next_states_ignored, 1);
}

#[test]
fn siblings_that_were_not_continued_are_not_chosen() {
    let mut state = loaded_state();
    let group = Some(GroupId(Uuid::from_u128(5)));
    let sibling = |n| Turn {
        group,
        ..turn(n, 1)
    };
    let (effects, _a) = send_turn(&mut state, 1, sibling(1));
    let first = batch(effects);
    let (_, _b) = send_turn(&mut state, 1, sibling(2));
    let (_, _c) = send_turn(&mut state, 1, turn(3, 1));
    state.step(2, Event::Arrived(Input::Next(observed(1, 1))));
    let (_, _d) = send_turn(&mut state, 3, sibling(4));
    let second = batch(all_written(&mut state, 4, first));
    assert_eq!(second.transitions[0].turn, id(1));
    assert_eq!(
        second.settles,
        [(id(2), Reason::NotChosen), (id(4), Reason::NotChosen)]
    );
}

#[test]
fn sessions_end_by_word_and_by_silence() {
    let mut state = loaded_state();
    for n in 1..=2 {
        let (effects, _signed) = send_turn(&mut state, 1, turn(n, n));
        let batch = batch(effects);
        all_written(&mut state, 1, batch);
    }
    let session = SessionId(Uuid::from_u128(1));
    let effects = state.step(2, Event::Arrived(Input::SessionDone(session)));
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::Forget(s) if *s == session))
    );
    let done = batch(effects);
    assert_eq!(done.settles, [(id(1), Reason::NoNextState)]);
    all_written(&mut state, 2, done);
    let quiet = state.step(10_001, Event::Ticked);
    assert!(!quiet.iter().any(|e| matches!(e, Effect::Write(_))));
    let effects = state.step(10_002, Event::Ticked);
    assert!(effects.iter().any(|e| matches!(e, Effect::Evict(2))));
    assert_eq!(batch(effects).settles, [(id(2), Reason::NoNextState)]);
}

#[test]
fn a_branch_that_was_left_and_an_overflow_end_too() {
    let mut state = loaded_state();
    let (effects, _signed) = send_turn(&mut state, 1, turn(1, 1));
    let first = batch(effects);
    all_written(&mut state, 1, first);
    for now_ms in (5_000..65_000).step_by(5_000) {
        let mut alive = observed(99, 1);
        alive.next_state = NextState::default();
        state.step(now_ms, Event::Arrived(Input::Next(alive)));
    }
    assert_eq!(
        batch(state.step(60_002, Event::Ticked)).settles,
        [(id(1), Reason::NoNextState)]
    );

    let mut state = loaded_state();
    let mut settled = Vec::new();
    for n in 1..=66 {
        let (effects, _signed) = send_turn(&mut state, 1, turn(n, 1));
        let mut effects = effects;
        while effects.iter().any(|e| matches!(e, Effect::Write(_))) {
            let written = batch(effects);
            settled.extend(written.settles.clone());
            effects = all_written(&mut state, 1, written);
        }
    }
    assert_eq!(
        settled,
        [(id(1), Reason::NoNextState), (id(2), Reason::NoNextState)]
    );
}

#[test]
fn feedback_settles_when_it_is_clear_and_waits_when_it_is_not() {
    let hear = |score, owner: &str| {
        let mut state = loaded_state();
        let said = feedback(1, 7, score);
        let heard = Heard::Early {
            turn: id(7),
            owner: said.owner.clone(),
            settles: Said::settles(&said),
        };
        let wrote = Wrote {
            heard: vec![heard],
            ..Wrote::default()
        };
        state.step(1, Event::Reported(Report::Wrote(Box::new(wrote))));
        let whose = Turn {
            owner: owner.to_owned(),
            ..turn(7, 1)
        };
        let (effects, _signed) = send_turn(&mut state, 2, whose);
        let first = batch(effects);
        let now = first.transitions.len();
        let rest = all_written(&mut state, 3, first);
        let settled_now = now
            + if rest.is_empty() {
                0
            } else {
                batch(rest).transitions.len()
            };
        let late = state.step(20_000, Event::Ticked);
        let settled_late = late.into_iter().find_map(|e| match e {
            Effect::Write(batch) => Some((batch.transitions.len(), batch.settles.len())),
            _ => None,
        });
        (settled_now, settled_late)
    };
    assert_eq!(hear(Some(1.0), "ann").0, 1, "a score settles at once");
    assert_eq!(
        hear(None, "ann"),
        (0, Some((1, 0))),
        "a comment when nothing else came"
    );
    assert_eq!(
        hear(Some(1.0), "eve"),
        (0, Some((0, 1))),
        "but never of somebody else"
    );
}

#[test]
fn what_cannot_be_written_is_isolated_and_left_for_the_others() {
    let mut state = loaded_state();
    let (effects, _a) = send_turn(&mut state, 1, turn(1, 1));
    let first = batch(effects);
    all_written(&mut state, 1, first);
    state.step(2, Event::Arrived(Input::Next(observed(1, 1))));
    let (_, signed) = send_turn(&mut state, 2, turn(2, 2));
    // The write of the next state is under way; it fails again and again.
    let mut effects = Vec::new();
    let mut pauses = Vec::new();
    let mut unfinished = Batch::default();
    unfinished.transitions.push(Transition {
        id: TransitionId(Uuid::from_u128(1)),
        turn: id(1),
        session: SessionId(Uuid::from_u128(1)),
        scope: hone_domain::Scope::of("ann", None),
        next_state: NextState::feedback(),
        next_turn: None,
        settled_ms: 0,
    });
    for _ in 0..4 {
        let wrote = Wrote {
            unfinished: std::mem::take(&mut unfinished),
            error: Some("poison".into()),
            ..Wrote::default()
        };
        for effect in state.step(3, Event::Reported(Report::Wrote(Box::new(wrote)))) {
            if let Effect::Pause(ms) = effect {
                pauses.push(ms);
            }
        }
        effects = state.step(4, Event::Reported(Report::Resumed));
        if let Some(Effect::Write(batch)) = effects.pop() {
            if batch.turns.is_empty() {
                unfinished = *batch;
            } else {
                effects.push(Effect::Write(batch));
            }
        }
    }
    assert_eq!(pauses, [10, 20, 40, 80]);
    let next = batch(effects);
    assert_eq!(next.turns[0].id, id(2), "the next item has its turn");
    drop(signed);
    assert_eq!(state.counts.left, 1);
    assert!(
        !state.open.get(id(1)).unwrap().closing,
        "it will be closed with its session"
    );
}

/// Reports that nothing of a write was done, as far as anybody knows; the next write.
fn failed(state: &mut State, wrote: Wrote) -> (Vec<Effect>, Batch) {
    let error = Some("disk full".into());
    let wrote = Box::new(Wrote { error, ..wrote });
    let effects = state.step(2, Event::Reported(Report::Wrote(wrote)));
    let resumed = state.step(3, Event::Reported(Report::Resumed));
    (effects, batch(resumed))
}

#[test]
fn turns_dropped_or_refused_after_a_failed_write_are_settled_as_late() {
    let mut state = loaded_state();
    let (effects, _gone) = send_turn(&mut state, 1, turn(1, 1));
    assert_eq!(batch(effects).turns.len(), 1);
    let dropped = vec![id(1)];
    let wrote = Wrote {
        dropped,
        ..Wrote::default()
    };
    let (_, next) = failed(&mut state, wrote);
    assert_eq!(next.settles, [(id(1), Reason::LateReceipt)]);
    assert!(!state.is_idle());
    assert!(state.open.get(id(1)).is_none());
    all_written(&mut state, 3, next);
    assert!(state.is_idle());

    let (effects, mut signed) = send_turn(&mut state, 4, turn(2, 2));
    let mut next = batch(effects);
    let mut refused = None;
    while next.settles.is_empty() {
        assert_eq!(next.turns[0].id, id(2));
        let wrote = Wrote {
            unfinished: next,
            ..Wrote::default()
        };
        let (effects, then) = failed(&mut state, wrote);
        next = then;
        refused = effects.into_iter().find_map(|effect| match effect {
            Effect::Refuse(receipt, reason) => Some((receipt, reason)),
            _ => None,
        });
    }
    let (receipt, reason) = refused.unwrap();
    assert_eq!(reason, Reason::LedgerFailed);
    receipt.send(Receipt::NotCollected(reason)).unwrap();
    assert!(signed.try_recv().is_ok());
    assert_eq!(next.settles, [(id(2), Reason::LateReceipt)]);
}

#[test]
fn loading_is_repeated_until_it_works_and_until_all_is_read() {
    let mut state = state();
    state.step(1, Event::Reported(Report::Loaded(Err("locked".into()))));
    state.step(1, Event::Arrived(Input::Next(observed(3, 1))));
    let effects = state.step(2, Event::Ticked);
    assert!(matches!(effects[..], [Effect::Load]), "{effects:?}");
    let meta = |n, settled| OpenMeta {
        is_checked: false,
        has_feedback: settled,
        is_settled_by_feedback: settled,
        ..OpenMeta::of(&turn(n, n)).unwrap()
    };
    let loaded = Loaded {
        open: vec![meta(3, false), meta(2, true), meta(1, false)],
        truncated: true,
    };
    let first = batch(state.step(3, Event::Reported(Report::Loaded(Ok(loaded)))));
    let turns: BTreeSet<TurnId> = first.transitions.iter().map(|t| t.turn).collect();
    assert_eq!(
        turns,
        [id(2), id(3)].into(),
        "what waited for the load, and the feedback"
    );
    all_written(&mut state, 3, first);
    assert!(
        state
            .step(4, Event::Ticked)
            .iter()
            .any(|e| matches!(e, Effect::Load))
    );
}

/// What a ledger would hold, for random runs.
#[derive(Default)]
struct World {
    turns: BTreeMap<TurnId, (Turn, Option<&'static str>)>,
    /// What a spool holds, where there is one.
    spool: Option<VecDeque<Spooled>>,
}

enum Spooled {
    Turn(Box<Turn>),
    Next(Transition),
    Settle(TurnId),
}

/// Records that the spool of the model takes.
const SPOOLED_MAX: usize = 40;

impl World {
    fn end(&mut self, turn: TurnId, how: &'static str) -> bool {
        match self.turns.get_mut(&turn) {
            Some((_, end @ None)) => {
                *end = Some(how);
                true
            }
            _ => false,
        }
    }

    fn write(&mut self, mut batch: Batch, fails: bool) -> Wrote {
        if fails && self.spool.is_some() {
            return self.put(batch);
        }
        let mut wrote = self.told();
        if fails {
            wrote.error = Some("disk full".into());
            wrote.unfinished = batch;
            return wrote;
        }
        for (turn, receipt) in batch.turns.drain(..).zip(batch.receipts.drain(..)) {
            wrote.recorded += 1;
            let id = turn.id;
            self.turns.entry(id).or_insert((turn, None));
            if receipt.send(Receipt::Collected).is_err() {
                wrote.late.push(id);
                self.end(id, "late");
            }
        }
        for transition in batch.transitions.drain(..) {
            let new = self.end(transition.turn, "transition");
            wrote.transitions += u64::from(new);
            wrote.ignored += u64::from(!new);
            wrote.closed.push(transition.turn);
        }
        for (turn, _) in batch.settles.drain(..) {
            self.end(turn, "reason");
            wrote.closed.push(turn);
        }
        wrote
    }

    fn told(&self) -> Wrote {
        Wrote {
            status: self.status(),
            ..Wrote::default()
        }
    }

    fn status(&self) -> SpoolStatus {
        SpoolStatus {
            records: self.spool.as_ref().map_or(0, VecDeque::len) as u64,
            ..SpoolStatus::default()
        }
    }

    /// As the effects put a batch into the spool, with turns that found no room refused.
    fn put(&mut self, mut batch: Batch) -> Wrote {
        let mut wrote = Wrote::default();
        let spool = self.spool.as_mut().unwrap();
        let mut late = Vec::new();
        for (turn, receipt) in batch.turns.drain(..).zip(batch.receipts.drain(..)) {
            if spool.len() >= SPOOLED_MAX {
                let _told = receipt.send(Receipt::NotCollected(Reason::SpoolFull));
                wrote.refused.push(turn.id);
                continue;
            }
            wrote.spooled += 1;
            if receipt.send(Receipt::Spooled).is_err() {
                wrote.late.push(turn.id);
                late.push(Spooled::Settle(turn.id));
            }
            spool.push_back(Spooled::Turn(Box::new(turn)));
        }
        wrote.closed = batch.transitions.iter().map(|next| next.turn).collect();
        wrote
            .closed
            .extend(batch.settles.iter().map(|(turn, _)| *turn));
        spool.extend(batch.transitions.drain(..).map(Spooled::Next));
        spool.extend(
            batch
                .settles
                .drain(..)
                .map(|(turn, _)| Spooled::Settle(turn)),
        );
        spool.extend(late);
        wrote.status = self.status();
        wrote
    }

    fn ship(&mut self, ship: Ship, fails: bool) -> Shipped {
        let mut shipped = Shipped::default();
        for _ in 0..ship.most {
            let Some(first) = self.spool.as_mut().and_then(VecDeque::pop_front) else {
                break;
            };
            match first {
                Spooled::Turn(turn) => {
                    let id = turn.id;
                    self.turns.entry(id).or_insert((*turn, None));
                    shipped.turns += 1;
                }
                Spooled::Next(next) => {
                    shipped.transitions += u64::from(self.end(next.turn, "transition"));
                }
                Spooled::Settle(turn) => drop(self.end(turn, "reason")),
            }
        }
        shipped.error = fails.then(|| "it does not answer".to_owned());
        shipped.status = self.status();
        shipped
    }

    fn load(&self) -> Loaded {
        let open = self.turns.values().filter(|(_, end)| end.is_none());
        Loaded {
            open: open.filter_map(|(turn, _)| OpenMeta::of(turn)).collect(),
            truncated: false,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A failing ledger, duplicates, clients that leave, and crashes between any two steps: every
    /// acknowledged turn is there, and in the end every recorded turn has a next state or a reason.
    #[test]
    fn every_turn_ends_whatever_happens(
        chaos in proptest::collection::vec((any::<u8>(), 1_u128..12, any::<bool>()), 1..300),
        has_spool in any::<bool>(),
    ) {
        let mut world = World {
            spool: has_spool.then(VecDeque::new),
            ..World::default()
        };
        let (mut now_ms, mut collect) = (0, State::new(Config::for_tests(), Arc::new(SeededIds::new(1))));
        let mut under_way = collect.step(0, Event::Started);
        let mut waiting: Vec<(TurnId, Signed)> = Vec::new();
        let mut told: BTreeSet<TurnId> = BTreeSet::new();
        for (what, n, flag) in chaos {
            now_ms += 7;
            match what {
                0..60 => {
                    let (effects, signed) = send_turn(&mut collect, now_ms, turn(n, n % 3));
                    under_way.extend(effects);
                    if flag {
                        waiting.push((id(n), signed));
                    }
                }
                60..100 => under_way.extend(collect.step(now_ms, Event::Arrived(Input::Next(observed(n, n % 3))))),
                100..110 => {
                    let session = SessionId(Uuid::from_u128(n % 3));
                    under_way.extend(collect.step(now_ms, Event::Arrived(Input::SessionDone(session))));
                }
                110..116 => {
                    collect = State::new(Config::for_tests(), Arc::new(SeededIds::new(u64::from(what))));
                    collect = collect.behind(world.status());
                    under_way = collect.step(now_ms, Event::Started);
                }
                116..130 => under_way.extend(collect.step(now_ms, Event::Ticked)),
                _ => if let Some(effect) = under_way.pop() {
                    under_way.extend(perform(&mut world, &mut collect, (effect, now_ms, flag && what % 2 == 0)));
                }
            }
            if !(110..116).contains(&what) {
                prop_assert!(accounted(&collect).is_ok());
            }
            prop_assert!(collect.queue.len() <= 32 + 16 + 64);
        }
        for _ in 0..1_200 {
            now_ms += 100;
            under_way.extend(collect.step(now_ms, Event::Ticked));
            while let Some(effect) = under_way.pop() {
                under_way.extend(perform(&mut world, &mut collect, (effect, now_ms, false)));
            }
        }
        for (turn, mut signed) in waiting {
            if matches!(signed.try_recv(), Ok(Receipt::Collected | Receipt::Spooled)) {
                told.insert(turn);
            }
        }
        prop_assert!(told.iter().all(|turn| world.turns.contains_key(turn)));
        let open: Vec<_> = world.turns.iter().filter(|(_, (_, end))| end.is_none()).collect();
        prop_assert!(open.is_empty(), "{} turns have no end", open.len());
        prop_assert!(collect.is_idle() && collect.open.len() == 0 && collect.open.sessions() == 0);
        prop_assert!(collect.early.is_empty());
    }
}

fn perform(
    world: &mut World,
    collect: &mut State,
    (effect, now_ms, fails): (Effect, i64, bool),
) -> Vec<Effect> {
    let report = match effect {
        Effect::Load if fails => Report::Loaded(Err("locked".into())),
        Effect::Load => Report::Loaded(Ok(world.load())),
        Effect::Write(batch) => Report::Wrote(Box::new(world.write(*batch, fails))),
        Effect::Spool(batch) => Report::Wrote(Box::new(world.put(*batch))),
        Effect::Ship(ship) => Report::Shipped(world.ship(ship, fails)),
        Effect::Rest(_) => Report::Rested,
        Effect::Pause(_) => Report::Resumed,
        Effect::Refuse(receipt, reason) => {
            let _told = receipt.send(Receipt::NotCollected(reason));
            Report::Done
        }
        Effect::Decline(..) | Effect::DeclineReward(..) | Effect::Evict(_) | Effect::Forget(_) => {
            Report::Done
        }
    };
    collect.step(now_ms, Event::Reported(report))
}
