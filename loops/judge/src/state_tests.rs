#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use hone_domain::{Outcome, TransitionId};
use hone_runtime::SeededIds;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::CompleterError;
use crate::testing::{callback, claimed, feedback, says};

fn state(model: Option<ModelConfig>) -> State {
    let config = Config {
        model,
        ..Config::for_tests()
    };
    State::new(config, Arc::new(SeededIds::new(1)), true)
}

fn arrive(state: &mut State, now_ms: i64, claims: Vec<Claimed>) -> Vec<Effect> {
    state.step(now_ms, Event::Reported(Report::Claimed(Ok(claims))))
}

fn verdicts(effects: &[Effect]) -> Vec<&Verdict> {
    let mut verdicts = Vec::new();
    for effect in effects {
        if let Effect::Record { verdict, .. } = effect {
            verdicts.push(&**verdict);
        }
    }
    verdicts
}

fn asked(effects: &[Effect]) -> Vec<(Claim, usize)> {
    let ask = |effect: &Effect| match effect {
        Effect::Ask(ask) => Some((ask.claim, ask.index)),
        _ => None,
    };
    effects.iter().filter_map(ask).collect()
}

fn vote(state: &mut State, ask: (Claim, usize), result: Result<&str, VoteError>) -> Vec<Effect> {
    let report = Report::Voted {
        claim: ask.0,
        index: ask.1,
        result: result.map(Completed::from),
        latency_ms: 5,
    };
    state.step(10, Event::Reported(report))
}

#[test]
fn a_claim_for_the_last_free_place_is_followed_by_the_next() {
    let mut state = State::new(
        Config {
            in_hand_max: 1,
            ..Config::for_tests()
        },
        Arc::new(SeededIds::new(1)),
        false,
    );
    let is_claim = |e: &&Effect| matches!(e, Effect::Claim { limit: 1 });
    assert_eq!(
        state
            .step(0, Event::Started)
            .iter()
            .filter(is_claim)
            .count(),
        1
    );
    let effects = arrive(&mut state, 1, vec![claimed(1, 1, "Thanks!")]);
    let Some(Effect::Record { claim, verdict, .. }) = effects.into_iter().next() else {
        panic!("the rules can tell");
    };
    let report = Report::Recorded {
        claim,
        verdict,
        result: Ok(()),
    };
    let effects = state.step(2, Event::Reported(report));
    // Nobody notifies it: one of one was found, so there may be more.
    assert_eq!(effects.iter().filter(is_claim).count(), 1);
}

#[test]
fn a_wake_claims_once_and_a_second_one_is_not_lost() {
    let mut state = state(None);
    let claims = |effects: &[Effect]| {
        let claims = effects.iter().filter(|e| matches!(e, Effect::Claim { .. }));
        claims.count()
    };
    assert_eq!(claims(&state.step(0, Event::Started)), 1);
    assert_eq!(claims(&state.step(1, Event::Arrived(Notification))), 0);
    assert_eq!(
        claims(&arrive(&mut state, 2, vec![])),
        1,
        "the notification that came meanwhile"
    );
    assert_eq!(claims(&arrive(&mut state, 3, vec![])), 0);
    assert_eq!(claims(&state.step(4, Event::Ticked)), 1);
    let failed = Report::Claimed(Err("locked".into()));
    assert_eq!(claims(&state.step(5, Event::Reported(failed))), 0);
    assert_eq!(
        claims(&state.step(6, Event::Arrived(Notification))),
        0,
        "not before the pause ends"
    );
    assert_eq!(claims(&state.step(15, Event::Ticked)), 1);
}

#[test]
fn signals_are_heard_in_order_of_trust() {
    let said = |score| vec![feedback(1, Some(score))];
    for (model, feedback, reply, score, by) in [
        (
            false,
            vec![],
            "Thanks, perfect!",
            Some(1.0),
            Some(Signal::Rules),
        ),
        (false, vec![], "What about Mars?", None, None),
        (
            false,
            said(-1.0),
            "Thanks, perfect!",
            Some(-1.0),
            Some(Signal::Feedback),
        ),
        (true, said(0.5), "wrong", Some(0.5), Some(Signal::Feedback)),
    ] {
        let mut state = state(model.then(ModelConfig::for_tests));
        let one = Claimed {
            feedback,
            ..claimed(1, 1, reply)
        };
        let effects = arrive(&mut state, 5, vec![one]);
        let verdicts = verdicts(&effects);
        assert_eq!(
            (verdicts[0].score, verdicts[0].decided_by),
            (score, by),
            "{reply}"
        );
        assert!(
            asked(&effects).is_empty(),
            "nobody is asked when feedback decides"
        );
    }
}

#[test]
fn a_majority_decides_at_once_and_withdraws_the_rest() {
    let mut state = state(Some(ModelConfig::for_tests()));
    let effects = arrive(&mut state, 0, vec![claimed(1, 1, "What about Mars?")]);
    let asks = asked(&effects);
    assert_eq!(asks.len(), 3);
    assert!(vote(&mut state, asks[0], Ok(r"\boxed{-1}")).is_empty());
    let effects = vote(
        &mut state,
        asks[2],
        Ok("HINT_START Answer in kilometres only. HINT_END \\boxed{-1}"),
    );
    let verdict = verdicts(&effects)[0];
    assert_eq!(
        (verdict.score, verdict.decided_by),
        (Some(-1.0), Some(Signal::Model))
    );
    assert_eq!(verdict.hint.as_deref(), Some("Answer in kilometres only."));
    let reasons: Vec<&str> = verdict.votes.iter().map(|v| v.reason.as_str()).collect();
    assert_eq!(reasons[1], "not needed");
    assert_eq!(
        verdict.votes.len(),
        4,
        "three of the model, one of the rules"
    );
    assert!(vote(&mut state, asks[1], Err(VoteError::Withdrawn)).is_empty());
    assert!(!state.breaker.is_open());
}

#[test]
fn failures_ties_and_unreadable_votes_abstain_and_rules_decide() {
    let failed = || {
        Err(VoteError::Failed(CompleterError::Unreachable(
            "refused".into(),
        )))
    };
    for (votes, score, by) in [
        (
            [Ok(r"\boxed{1}"), Ok(r"\boxed{-1}"), Ok(r"\boxed{0}")],
            Some(-1.0),
            Some(Signal::Rules),
        ),
        (
            [failed(), Err(VoteError::Deadline), Ok("hm")],
            Some(-1.0),
            Some(Signal::Rules),
        ),
        (
            [Ok(r"\boxed{1}"), failed(), Ok(r"\boxed{1}")],
            Some(1.0),
            Some(Signal::Model),
        ),
    ] {
        let mut state = state(Some(ModelConfig::for_tests()));
        let asks = asked(&arrive(
            &mut state,
            0,
            vec![claimed(1, 1, "That is wrong.")],
        ));
        let mut effects = Vec::new();
        for (ask, result) in asks.into_iter().zip(votes) {
            effects = vote(&mut state, ask, result);
        }
        let verdict = verdicts(&effects)[0];
        assert_eq!((verdict.score, verdict.decided_by), (score, by));
        assert!(verdict.votes.iter().all(|v| !v.reason.is_empty()));
    }
}

#[test]
fn a_failing_model_is_left_alone_and_tried_again() {
    let mut state = state(Some(ModelConfig::for_tests()));
    let asks = asked(&arrive(
        &mut state,
        0,
        vec![claimed(1, 1, "wrong"), claimed(2, 1, "wrong")],
    ));
    assert_eq!(asks.len(), 6);
    for ask in asks {
        vote(&mut state, ask, Err(VoteError::Deadline));
    }
    let effects = arrive(&mut state, 100, vec![claimed(3, 1, "wrong")]);
    let verdict = verdicts(&effects)[0];
    assert_eq!(verdict.decided_by, Some(Signal::Rules));
    assert!(
        verdict.votes[0].reason.starts_with("left alone"),
        "{:?}",
        verdict.votes
    );
    let asks = asked(&arrive(
        &mut state,
        6_000,
        vec![claimed(4, 1, "x"), claimed(5, 1, "x")],
    ));
    assert_eq!(asks.len(), 3, "one probe");
    vote(&mut state, asks[0], Ok(r"\boxed{1}"));
    let asks = asked(&arrive(&mut state, 6_001, vec![claimed(6, 1, "x")]));
    assert_eq!(asks.len(), 3);
}

#[test]
fn a_vote_that_never_reports_strands_nothing() {
    // It is asked for anew under the next claim; under the last one the rules decide.
    for (attempts, released, by) in [(0, 1, None), (1, 1, None), (2, 0, Some(Signal::Rules))] {
        let mut state = state(Some(ModelConfig::for_tests()));
        let one = Claimed {
            attempts,
            ..claimed(1, 1, "wrong")
        };
        let asks = asked(&arrive(&mut state, 0, vec![one]));
        vote(&mut state, asks[0], Ok(r"\boxed{1}"));
        assert_eq!(ended(&state.step(7_499, Event::Ticked)), (0, None));
        let effects = state.step(7_500, Event::Ticked);
        assert_eq!(ended(&effects), (released, by), "after {attempts} claims");
    }
}

/// How many leases are given back, and what decided the first verdict.
fn ended(effects: &[Effect]) -> (usize, Option<Signal>) {
    let released = effects
        .iter()
        .filter(|e| matches!(e, Effect::Release { .. }));
    let verdict = verdicts(effects).into_iter().next();
    (released.count(), verdict.and_then(|v| v.decided_by))
}

/// Three votes each, six at a time, 5 s a vote: the votes of all of them take twice as long as a lease.
#[test]
fn a_backlog_longer_than_a_lease_is_judged_by_its_votes() {
    let config = Config {
        claim_batch: 32,
        in_hand_max: 64,
        lease_ms: 60_000,
        model: Some(ModelConfig {
            vote_deadline_ms: 20_000,
            ..ModelConfig::for_tests()
        }),
        ..Config::for_tests()
    };
    let mut state = State::new(config, Arc::new(SeededIds::new(1)), true);
    let mut backlog: Vec<Claimed> = (1..=64)
        .map(|n| claimed(n, 1, "What about Mars?"))
        .collect();
    let (mut now_ms, mut judged, mut busy) = (0, 0, 0);
    let mut effects = state.step(now_ms, Event::Started);
    for round in 0..100 {
        let mut asks = Vec::new();
        while let Some(effect) = effects.pop() {
            let report = match effect {
                Effect::Claim { limit } => {
                    let rest = backlog.split_off(limit.min(backlog.len()));
                    Report::Claimed(Ok(std::mem::replace(&mut backlog, rest)))
                }
                Effect::Ask(ask) => {
                    asks.push((ask.claim, ask.index));
                    continue;
                }
                Effect::Record { claim, verdict, .. } => {
                    assert_eq!(verdict.decided_by, Some(Signal::Model), "at {now_ms} ms");
                    judged += 1;
                    Report::Recorded {
                        claim,
                        verdict,
                        result: Ok(()),
                    }
                }
                other => panic!("{other:?}"),
            };
            effects.extend(state.step(now_ms, Event::Reported(report)));
        }
        // Full rounds from the first on.
        busy += usize::from(round == busy && asks.len() == 6);
        now_ms += 5_000;
        for (claim, index) in asks {
            let report = Report::Voted {
                claim,
                index,
                result: Ok(Completed::from(r"\boxed{1}")),
                latency_ms: 5_000,
            };
            effects.extend(state.step(now_ms, Event::Reported(report)));
        }
        effects.extend(state.step(now_ms, Event::Ticked));
    }
    // Whoever votes was kept busy all the time.
    assert_eq!((judged, busy), (64, 32));
}

#[test]
fn what_was_tried_too_often_is_given_up() {
    let mut state = state(None);
    let often = Claimed {
        attempts: 3,
        ..claimed(1, 4, "wrong")
    };
    let effects = arrive(&mut state, 0, vec![often]);
    assert!(matches!(effects[..], [Effect::GiveUp(_)]), "{effects:?}");
}

#[test]
fn a_verdict_is_retried_until_its_lease_ends() {
    let mut state = state(None);
    let mut effects = arrive(&mut state, 0, vec![claimed(1, 1, "wrong")]);
    let (mut now_ms, mut tries) = (0, 0);
    while let Some(Effect::Record {
        claim,
        verdict,
        after_ms,
    }) = effects.pop()
    {
        now_ms += i64::try_from(after_ms).unwrap() + 1;
        tries += 1;
        effects = state.step(
            now_ms,
            Event::Reported(Report::Recorded {
                claim,
                verdict,
                result: Err(RecordError::Failed("disk full".into())),
            }),
        );
    }
    assert!(
        tries > 20 && now_ms < 10_000,
        "{tries} tries in {now_ms} ms"
    );
    assert!(state.is_idle());
}

#[test]
fn a_drain_gives_leases_back_and_ends_idle() {
    let mut state = state(Some(ModelConfig::for_tests()));
    let asks = asked(&arrive(&mut state, 0, vec![claimed(1, 1, "wrong")]));
    let effects = state.step(1, Event::Draining);
    assert!(
        matches!(effects[..], [Effect::Release { .. }]),
        "{effects:?}"
    );
    for ask in asks {
        vote(&mut state, ask, Err(VoteError::Withdrawn));
    }
    state.step(2, Event::Reported(Report::Released(Ok(()))));
    assert!(state.is_idle());
    assert!(state.step(3, Event::Arrived(Notification)).is_empty());
}

/// A vote whose hint no other vote has.
fn hinting(index: usize) -> String {
    format!("HINT_START Say it in {index} words. HINT_END \\boxed{{-1}}")
}

/// A small ledger with leases, for random runs.
#[derive(Default)]
struct World {
    waiting: BTreeMap<TransitionId, Lease>,
    done: BTreeSet<TransitionId>,
    fence: u64,
}

#[derive(Clone, Copy, Default)]
struct Lease {
    fence: u64,
    until_ms: i64,
    attempts: u32,
}

impl World {
    fn claim(&mut self, limit: usize, now_ms: i64) -> Vec<Claimed> {
        let mut taken = Vec::new();
        for (id, lease) in &mut self.waiting {
            if lease.until_ms <= now_ms && taken.len() < limit {
                self.fence += 1;
                let attempts = lease.attempts;
                *lease = Lease {
                    fence: self.fence,
                    until_ms: now_ms + 10_000,
                    attempts: attempts + 1,
                };
                let mut one = claimed(id.0.as_u128(), self.fence, "That is wrong.");
                one.attempts = attempts;
                if id.0.as_u128() % 3 == 0 {
                    one.turn.admission.checks = vec![callback()];
                }
                taken.push(one);
            }
        }
        taken
    }

    /// Ends a transition; false where the lease was lost.
    fn end(&mut self, claim: &Claim) -> bool {
        if self
            .waiting
            .get(&claim.transition)
            .is_none_or(|l| l.fence != claim.fence)
        {
            return false;
        }
        self.waiting.remove(&claim.transition);
        assert!(self.done.insert(claim.transition), "one verdict each");
        true
    }

    /// Performs an effect with the given luck; none where it hangs for ever.
    fn perform(&mut self, effect: Effect, now_ms: i64, luck: u8) -> Option<Report> {
        Some(match effect {
            Effect::Claim { limit } if luck < 200 => Report::Claimed(Ok(self.claim(limit, now_ms))),
            Effect::Claim { .. } => Report::Claimed(Err("locked".into())),
            Effect::Ask(ask) => Report::Voted {
                claim: ask.claim,
                index: ask.index,
                result: match luck {
                    0..90 => Ok(hinting(ask.index).as_str().into()),
                    90..120 => Ok("I cannot say".into()),
                    120..200 => Err(VoteError::Failed(CompleterError::Unreachable("no".into()))),
                    200..230 => Err(VoteError::Deadline),
                    _ => return None,
                },
                latency_ms: 1,
            },
            Effect::Weigh(ask) => Report::Weighed {
                claim: ask.claim,
                result: match luck {
                    0..90 => Ok(vec![0.5; ask.hints.len()]),
                    90..230 => Err("no answer".into()),
                    _ => return None,
                },
            },
            Effect::Read(ask) => Report::Read {
                claim: ask.claim,
                result: match luck {
                    0..90 => Ok(Some(reading(luck.is_multiple_of(2)))),
                    90..120 => Ok(None),
                    120..200 => Err("no answer".to_owned().into()),
                    200..230 => Err(crate::reading::Unreadable::NotYet),
                    _ => return None,
                },
            },
            Effect::Check(ask) => Report::Checked {
                claim: ask.claim,
                index: ask.index,
                result: match luck {
                    0..90 => Ok(says(-1.0)),
                    90..230 => Err("no answer".into()),
                    _ => return None,
                },
                latency_ms: 1,
            },
            Effect::Record { claim, verdict, .. } => {
                let result = match luck {
                    200.. => Err(RecordError::Failed("disk full".into())),
                    _ if self.end(&claim) => Ok(()),
                    _ => Err(RecordError::Fenced),
                };
                Report::Recorded {
                    claim,
                    verdict,
                    result,
                }
            }
            Effect::GiveUp(claim) => {
                self.end(&claim);
                Report::GaveUp(Ok(()))
            }
            Effect::Release { claim, retry_at_ms } => {
                if let Some(lease) = self.waiting.get_mut(&claim.transition)
                    && lease.fence == claim.fence
                {
                    lease.until_ms = retry_at_ms;
                }
                Report::Released(Ok(()))
            }
        })
    }
}

/// A reply read as a complaint.
fn reading(has_wish: bool) -> crate::reading::Reading {
    crate::reading::Reading {
        outcome: Outcome::Bad,
        has_wish,
        good: 0.0,
        bad: 1.0,
        wish: 0.5,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Lost notifications, hanging votes, a failing ledger, reordered reports and crashes: in the end
    /// every transition has exactly one verdict, or was given up.
    #[test]
    fn every_transition_ends_whatever_happens(
        with_model: bool,
        turns in 1_u128..30,
        chaos in proptest::collection::vec((any::<u8>(), any::<u8>()), 0..400),
    ) {
        let mut world = World::default();
        world.waiting.extend((1..=turns).map(|n| (TransitionId(Uuid::from_u128(n)), Lease::default())));
        let model = || with_model.then(ModelConfig::for_tests);
        let (mut now_ms, mut judge) = (0, state(model()).with_weigher().with_reader());
        let mut under_way = judge.step(0, Event::Started);
        for (luck, pick) in chaos {
            now_ms += i64::from(luck % 50);
            if pick > 250 {
                judge = state(model()).with_weigher().with_reader();
                under_way = judge.step(now_ms, Event::Started);
            } else if under_way.is_empty() || pick % 7 == 0 {
                under_way.extend(judge.step(now_ms, Event::Ticked));
            } else {
                let effect = under_way.swap_remove(usize::from(pick) % under_way.len());
                if let Some(report) = world.perform(effect, now_ms, luck) {
                    under_way.extend(judge.step(now_ms, Event::Reported(report)));
                }
            }
            prop_assert!(judge.in_hand() <= judge.config.in_hand_max);
            prop_assert!(judge.votes_in_flight <= 6);
        }
        for _ in 0..2_000 {
            now_ms += 100;
            under_way.extend(judge.step(now_ms, Event::Ticked));
            while let Some(effect) = under_way.pop() {
                if let Some(report) = world.perform(effect, now_ms, 0) {
                    under_way.extend(judge.step(now_ms, Event::Reported(report)));
                }
            }
        }
        prop_assert!(world.waiting.is_empty(), "{} left", world.waiting.len());
        prop_assert_eq!(world.done.len() as u128, turns);
    }
}

#[test]
fn outcomes_are_counted() {
    let mut state = state(None);
    let effects = arrive(
        &mut state,
        0,
        vec![claimed(1, 1, "wrong"), claimed(2, 2, "Thanks!")],
    );
    for effect in effects {
        if let Effect::Record { claim, verdict, .. } = effect {
            let outcome = verdict.votes[0].outcome;
            assert!(matches!(outcome, Outcome::Good | Outcome::Bad));
            let result = Ok(());
            state.step(
                1,
                Event::Reported(Report::Recorded {
                    claim,
                    verdict,
                    result,
                }),
            );
        }
    }
    let numbers: BTreeMap<&str, f64> = state.observe().into_iter().collect();
    assert_eq!(
        (
            numbers["judged_total"],
            numbers["good_total"],
            numbers["bad_total"]
        ),
        (2.0, 1.0, 1.0)
    );
}
