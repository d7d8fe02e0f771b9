#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_domain::{ChosenBy, HintChoice, Verdict};
use hone_runtime::{Event, LoopState, SeededIds};

use tokio::sync::oneshot::error::TryRecvError;

use super::super::State;
use crate::testing::claimed;
use crate::{Completed, Config, Effect, HintRule, ModelConfig, Report, WeighAsk};

const METRIC: &str = "HINT_START Use metric units only. HINT_END \\boxed{-1}";
const SHORTER: &str = "HINT_START Answer in one sentence. HINT_END \\boxed{-1}";

fn state(change: impl Fn(&mut ModelConfig)) -> State {
    let mut model = ModelConfig::for_tests();
    change(&mut model);
    let config = Config {
        model: Some(model),
        ..Config::for_tests()
    };
    State::new(config, Arc::new(SeededIds::new(1)), true)
}

/// Claims a transition and casts these votes on it.
fn voted(state: &mut State, words: &[&str]) -> Vec<Effect> {
    let claims = Report::Claimed(Ok(vec![claimed(1, 1, "What about Mars?")]));
    let asks = state.step(0, Event::Reported(claims));
    let asks = asks.into_iter().filter_map(|effect| match effect {
        Effect::Ask(ask) => Some(ask),
        _ => None,
    });
    let mut effects = Vec::new();
    for (ask, words) in asks.zip(words) {
        effects = state.step(
            1,
            Event::Reported(Report::Voted {
                claim: ask.claim,
                index: ask.index,
                result: Ok(Completed::from(*words)),
                latency_ms: 5,
            }),
        );
    }
    effects
}

fn weighing(effects: Vec<Effect>) -> Box<WeighAsk> {
    let mut asks = effects.into_iter().filter_map(|effect| match effect {
        Effect::Weigh(ask) => Some(ask),
        _ => None,
    });
    asks.next().unwrap()
}

fn verdict(effects: Vec<Effect>) -> Box<Verdict> {
    let mut records = effects.into_iter().filter_map(|effect| match effect {
        Effect::Record { verdict, .. } => Some(verdict),
        _ => None,
    });
    records.next().unwrap()
}

fn answer(state: &mut State, ask: &WeighAsk, result: Result<Vec<f32>, String>) -> Vec<Effect> {
    let claim = ask.claim;
    state.step(2, Event::Reported(Report::Weighed { claim, result }))
}

fn shares(choice: &HintChoice) -> Vec<Option<f32>> {
    choice.candidates.iter().map(|c| c.agreement).collect()
}

#[test]
fn of_several_hints_the_one_the_policy_agrees_with_is_kept() {
    for (weighed, chosen, part) in [
        (vec![0.25, 0.75], 1, "most of the policy's"),
        (vec![0.75, 0.25], 0, "most of the policy's"),
        (vec![0.5, 0.5], 0, "the first"),
    ] {
        let mut state = state(|_| {}).with_weigher();
        let ask = weighing(voted(&mut state, &[METRIC, SHORTER]));
        assert_eq!(
            ask.hints,
            ["Use metric units only.", "Answer in one sentence."]
        );
        assert_eq!((ask.compared.top_k, ask.compared.tokens_max), (4, 512));
        assert!(!state.is_idle());
        let verdict = verdict(answer(&mut state, &ask, Ok(weighed.clone())));
        let choice = verdict.hint_choice.unwrap();
        assert_eq!((choice.chosen, choice.by), (chosen, ChosenBy::Agreement));
        assert_eq!(verdict.hint.as_ref(), Some(&ask.hints[chosen]));
        assert_eq!(
            shares(&choice),
            weighed.into_iter().map(Some).collect::<Vec<_>>()
        );
        assert!(choice.reason.contains(part), "{}", choice.reason);
        assert_eq!((verdict.score, verdict.votes.len()), (Some(-1.0), 4));
        assert_eq!(verdict.votes[2].reason, "not needed");
    }
}

#[test]
fn where_the_policy_cannot_tell_the_first_is_kept_and_says_why() {
    type Ends = fn(&mut State, &WeighAsk) -> Vec<Effect>;
    let ends: [(Ends, &str); 4] = [
        (
            |state, ask| answer(state, ask, Err("no answer within 9 ms".to_owned())),
            "no answer within 9 ms",
        ),
        (
            |state, ask| answer(state, ask, Ok(vec![1.0])),
            "not every hint was weighed",
        ),
        (
            |state, _| state.step(7_500, Event::Ticked),
            "no free place before the lease ran out",
        ),
        (
            // A vote that was withdrawn reports in between; it settles nothing.
            |state, ask| {
                let late = Report::Voted {
                    claim: ask.claim,
                    index: 2,
                    result: Err(crate::VoteError::Withdrawn),
                    latency_ms: 1,
                };
                assert!(state.step(2, Event::Reported(late)).is_empty());
                answer(state, ask, Err("the engine is stopping".to_owned()))
            },
            "the engine is stopping",
        ),
    ];
    for (end, why) in ends {
        let mut state = state(|_| {}).with_weigher();
        let ask = weighing(voted(&mut state, &[METRIC, SHORTER]));
        let verdict = verdict(end(&mut state, &ask));
        let choice = verdict.hint_choice.unwrap();
        assert_eq!((choice.chosen, choice.by), (0, ChosenBy::Rule));
        assert_eq!(shares(&choice), [None, None]);
        assert_eq!(choice.reason, why);
        assert_eq!(verdict.hint.as_deref(), Some("Use metric units only."));
        // What comes later is not heard.
        assert!(answer(&mut state, &ask, Ok(vec![0.0, 1.0])).is_empty());
    }
}

#[test]
fn nobody_is_asked_where_there_is_nothing_to_choose_or_nobody_to_ask() {
    let mut alone = state(|_| {});
    let choice = verdict(voted(&mut alone, &[METRIC, SHORTER]))
        .hint_choice
        .unwrap();
    assert_eq!(choice.by, ChosenBy::Rule);
    assert!(
        choice
            .reason
            .contains("no policy is served in this process")
    );
    let mut first = state(|model| model.hint_choice = HintRule::First).with_weigher();
    let choice = verdict(voted(&mut first, &[METRIC, SHORTER]))
        .hint_choice
        .unwrap();
    assert!(choice.reason.contains("judge.model.hint_choice"));
    for words in [
        [METRIC, METRIC],
        [METRIC, r"\boxed{-1}"],
        [r"\boxed{-1}", METRIC],
    ] {
        let mut state = state(|_| {}).with_weigher();
        let verdict = verdict(voted(&mut state, &words));
        assert_eq!(verdict.hint_choice, None);
        assert_eq!(verdict.hint.as_deref(), Some("Use metric units only."));
    }
}

#[test]
fn a_drain_gives_the_lease_back_while_hints_are_weighed() {
    let mut state = state(|_| {}).with_weigher();
    let ask = weighing(voted(&mut state, &[METRIC, SHORTER]));
    let effects = state.step(2, Event::Draining);
    assert!(
        matches!(effects[..], [Effect::Release { .. }]),
        "{effects:?}"
    );
    let mut ask = ask;
    assert!(
        ask.withdrawn
            .try_recv()
            .is_err_and(|error| error == TryRecvError::Closed)
    );
    assert!(answer(&mut state, &ask, Err("withdrawn".to_owned())).is_empty());
}
