#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use hone_domain::{Outcome, Signal, Verdict};
use hone_runtime::{Event, LoopState, SeededIds};
use tokio::sync::oneshot::error::TryRecvError;

use super::super::State;
use crate::reading::{Reading, Unreadable};
use crate::testing::{claimed, feedback};
use crate::{Config, Effect, ModelConfig, ReadAsk, Report, VoteError};

fn state(model: Option<ModelConfig>) -> State {
    let config = Config {
        model,
        ..Config::for_tests()
    };
    State::new(config, Arc::new(SeededIds::new(1)), true).with_reader()
}

fn arrive(state: &mut State, reply: &str) -> Vec<Effect> {
    let claims = Report::Claimed(Ok(vec![claimed(1, 1, reply)]));
    state.step(0, Event::Reported(claims))
}

fn asked(effects: Vec<Effect>) -> Option<Box<ReadAsk>> {
    effects.into_iter().find_map(|effect| match effect {
        Effect::Read(ask) => Some(ask),
        _ => None,
    })
}

fn verdict(effects: Vec<Effect>) -> Option<Box<Verdict>> {
    effects.into_iter().find_map(|effect| match effect {
        Effect::Record { verdict, .. } => Some(verdict),
        _ => None,
    })
}

fn reading(outcome: Outcome, has_wish: bool) -> Reading {
    Reading {
        outcome,
        has_wish,
        good: 0.1,
        bad: 0.4,
        wish: 0.3,
    }
}

fn answer(
    state: &mut State,
    ask: &ReadAsk,
    result: Result<Option<Reading>, Unreadable>,
) -> Vec<Effect> {
    let claim = ask.claim;
    state.step(2, Event::Reported(Report::Read { claim, result }))
}

#[test]
fn a_reading_comes_before_the_rules_and_its_wish_is_the_hint() {
    use Outcome::{Abstain, Bad, Good};
    let me = " Call me Sam ";
    let long = "Way too long. My boss reads on a phone.";
    let sure = |outcome, has_wish| Ok(Some(reading(outcome, has_wish)));
    let read = Some(Signal::Reading);
    for (reply, result, score, by, hint, wish) in [
        (
            me,
            sure(Abstain, true),
            Some(0.0),
            read,
            Some("Call me Sam"),
            None,
        ),
        (
            me,
            sure(Good, true),
            Some(1.0),
            read,
            Some("Call me Sam"),
            None,
        ),
        // A complaint without a wish has no hint, whatever the rules say.
        (long, sure(Bad, false), Some(-1.0), read, None, None),
        (
            long,
            sure(Bad, true),
            Some(-1.0),
            read,
            Some(long),
            Some("keep it short"),
        ),
        // Where it is unsure, does not come or is not there yet, the rules decide.
        (
            long,
            sure(Abstain, false),
            Some(-1.0),
            Some(Signal::Rules),
            Some(long),
            Some("keep it short"),
        ),
        (
            long,
            Err(Unreadable::Failed("late".to_owned())),
            Some(-1.0),
            Some(Signal::Rules),
            Some(long),
            Some("keep it short"),
        ),
        ("And what about Mars?", Ok(None), None, None, None, None),
        // What the rules say does not stand where it is unlikely.
        (
            long,
            Ok(Some(Reading {
                bad: 0.3,
                ..reading(Abstain, false)
            })),
            None,
            None,
            None,
            None,
        ),
    ] {
        let mut state = state(None);
        let ask = asked(arrive(&mut state, reply)).unwrap();
        assert_eq!(&*ask.reply, reply);
        assert!(!state.is_idle());
        let verdict = verdict(answer(&mut state, &ask, result)).unwrap();
        assert_eq!((verdict.score, verdict.decided_by), (score, by), "{reply}");
        let words = (verdict.hint.as_deref(), verdict.wish.as_deref());
        assert_eq!(words, (hint, wish), "{reply}");
    }
}

#[test]
fn nothing_is_read_where_a_more_trusted_signal_decides() {
    let mut state = state(None);
    let mut thumb = claimed(1, 1, "Call me Sam");
    thumb.feedback = vec![feedback(1, Some(1.0))];
    let effects = state.step(0, Event::Reported(Report::Claimed(Ok(vec![thumb]))));
    assert_eq!(verdict(effects).unwrap().decided_by, Some(Signal::Feedback));
}

#[test]
fn a_reply_is_read_once_the_votes_abstain() {
    let mut state = state(Some(ModelConfig::for_tests()));
    let votes = arrive(&mut state, "Call me Sam");
    let asks: Vec<_> = votes
        .iter()
        .filter_map(|effect| match effect {
            Effect::Ask(ask) => Some((ask.claim, ask.index)),
            _ => None,
        })
        .collect();
    let mut effects = Vec::new();
    for (claim, index) in asks {
        let report = Report::Voted {
            claim,
            index,
            result: Err(VoteError::Deadline),
            latency_ms: 1,
        };
        effects = state.step(1, Event::Reported(report));
    }
    let ask = asked(effects).unwrap();
    let read = Ok(Some(reading(Outcome::Bad, true)));
    let verdict = verdict(answer(&mut state, &ask, read)).unwrap();
    assert_eq!(verdict.decided_by, Some(Signal::Reading));
    assert_eq!(verdict.votes.len(), 5);
}

#[test]
fn a_reading_ends_with_its_time_and_is_withdrawn_on_drain() {
    let mut late = state(None);
    let ask = asked(arrive(&mut late, "Way too long.")).unwrap();
    let ended = late.step(9_000, Event::Ticked);
    assert_eq!(verdict(ended).unwrap().decided_by, Some(Signal::Rules));
    assert!(answer(&mut late, &ask, Ok(None)).is_empty());

    let mut draining = state(None);
    let mut ask = asked(arrive(&mut draining, "Way too long.")).unwrap();
    let effects = draining.step(2, Event::Draining);
    assert!(
        matches!(effects[..], [Effect::Release { .. }]),
        "{effects:?}"
    );
    let withdrawn = ask.withdrawn.try_recv();
    assert!(withdrawn.is_err_and(|error| error == TryRecvError::Closed));
    assert!(answer(&mut draining, &ask, Err("withdrawn".to_owned().into())).is_empty());
}

#[test]
fn replies_without_a_verdict_are_counted() {
    let mut state = state(None);
    let ask = asked(arrive(&mut state, "And what about Mars?")).unwrap();
    let effects = answer(&mut state, &ask, Ok(Some(reading(Outcome::Abstain, false))));
    let recorded = Report::Recorded {
        claim: ask.claim,
        verdict: verdict(effects).unwrap(),
        result: Ok(()),
    };
    state.step(3, Event::Reported(recorded));
    let numbers: BTreeMap<&str, f64> = state.observe().into_iter().collect();
    let counted = [
        "readings_total",
        "by_reading_total",
        "replies_total",
        "replies_abstained_total",
    ];
    assert_eq!(counted.map(|name| numbers[name]), [1.0, 0.0, 1.0, 1.0]);
}

#[test]
fn a_reply_that_only_a_reading_could_decide_waits_for_the_probe() {
    let mut state = state(None);
    let mut waits = Vec::new();
    for attempts in 0.. {
        let mut claimed = claimed(1, 1, "In Klingon, from now on.");
        claimed.attempts = attempts;
        let effects = state.step(0, Event::Reported(Report::Claimed(Ok(vec![claimed]))));
        let ask = asked(effects).unwrap();
        let effects = answer(&mut state, &ask, Err(Unreadable::NotYet));
        let Some(Effect::Release { retry_at_ms, .. }) = effects.first() else {
            assert_eq!(verdict(effects).unwrap().score, None);
            break;
        };
        waits.push(*retry_at_ms - 2);
    }
    assert_eq!(waits, [15_000, 60_000]);
    // What the rules decide waits for nothing.
    let ask = asked(arrive(&mut state, "That is wrong.")).unwrap();
    let effects = answer(&mut state, &ask, Err(Unreadable::NotYet));
    assert_eq!(verdict(effects).unwrap().score, Some(-1.0));
}
