//! Completions that are held to a grammar.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hone_domain::{Ask, Grammar, Reason, Sampling, StopReason};
use hone_nn::{Executor, score};

use super::support::{World, ask, prompt, scope};
use crate::Backend;

fn held(lark: &str, seed: u64) -> Ask {
    Ask {
        grammar: Some(Grammar(Arc::from(lark))),
        ..ask(&prompt(5, seed), 60, seed)
    }
}

const CHOICE: &str = "start: \"abab\" | \"bb\" | \"c\"";

#[test]
fn only_what_the_grammar_allows_is_said_and_then_it_ends() {
    let world = World::new();
    let asks: Vec<Ask> = (0..24).map(|seed| held(CHOICE, seed)).collect();
    let mut seen = std::collections::BTreeSet::new();
    for said in world.complete_all(asks) {
        assert!(
            ["abab", "bb", "c"].contains(&said.text.as_str()),
            "{:?}",
            said.text
        );
        assert_eq!(said.stop, StopReason::EndToken);
        seen.insert(said.text);
    }
    assert!(seen.len() > 1, "it is still sampled: {seen:?}");
}

#[test]
fn the_recorded_kept_sets_replay_the_behavior() {
    let world = World::new();
    let said = world.complete(Ask {
        sampling: Sampling {
            temperature: 0.7,
            top_k: 3,
            ..ask(&[1], 1, 4).sampling
        },
        ..held("start: /[a-d]{8}/", 4)
    });
    let turn = said.turn.expect("collected");
    assert_eq!(
        (turn.untrainable, turn.sampling.is_replayable()),
        (None, true)
    );
    let (completion, tokens) = (&turn.completion, turn.completion.tokens());
    let text: Vec<u32> = turn.prompt_tokens.iter().chain(tokens).copied().collect();
    let exec = Executor::new(1);
    let scores = score(&world.model, None, &text, &exec);
    for (at, kept) in completion.kept().iter().enumerate() {
        let kept = kept
            .as_ref()
            .expect("every position of a held completion has a kept set");
        assert!(kept.contains(&tokens[at]) && kept.len() <= 3, "{kept:?}");
        let position = turn.prompt_tokens.len() + at;
        let again = scores.logprob(position, 0.7, Some(kept));
        assert_eq!(
            completion.behavior_logprobs()[at].to_bits(),
            again.to_bits()
        );
        let raw = scores.logprob(position, 1.0, None);
        assert_eq!(completion.raw_logprobs()[at].to_bits(), raw.to_bits());
    }
}

#[test]
fn a_seed_gives_the_same_text_in_any_batch() {
    let world = World::new();
    let alone: Vec<String> = (0..6)
        .map(|seed| world.complete(held("start: /[a-f]{4,12}/", seed)).text)
        .collect();
    let mut asks: Vec<Ask> = (0..6)
        .map(|seed| held("start: /[a-f]{4,12}/", seed))
        .collect();
    asks.extend((0..6).map(|seed| ask(&prompt(9, seed), 30, seed)));
    let together: Vec<String> = world
        .complete_all(asks)
        .into_iter()
        .map(|s| s.text)
        .collect();
    assert_eq!(alone[..], together[..6]);
}

#[test]
fn an_unsound_grammar_is_refused_before_anything_happens() {
    let world = World::new();
    for lark in ["start: nowhere", "start: /[/", ""] {
        let grammar = Grammar(Arc::from(lark));
        let checked = world.engine.check_grammar(&grammar);
        assert!(
            matches!(checked, Err(hone_domain::ServeError::Grammar(_))),
            "{lark}"
        );
        assert!(world.engine.ask(held(lark, 0)).is_err(), "{lark}");
    }
    assert_eq!(world.engine.stats().requests_total, 0);
}

#[test]
fn greedy_turns_are_held_as_well() {
    let world = World::new();
    let mut greedy = held(CHOICE, 1);
    greedy.sampling.temperature = 0.0;
    let said = world.complete(greedy);
    assert!(
        ["abab", "bb", "c"].contains(&said.text.as_str()),
        "{:?}",
        said.text
    );
    assert_eq!(said.turn.expect("collected").untrainable, None::<Reason>);
}

/// Masks that take far longer than a step delay their own completion and nobody else's.
#[test]
fn slow_masks_stall_nobody_else() {
    let world = World::new();
    let free = |seed| Ask {
        scope: scope("other"),
        ..ask(&prompt(5, seed), 120, seed)
    };
    let began = Instant::now();
    world.complete_all((0..4).map(free).collect());
    let alone = began.elapsed();
    world.engine.shared.masks.slow(Duration::from_millis(20));
    let slow = world
        .engine
        .ask(held("start: /[a-d]{20}/", 3))
        .expect("taken");
    let began = Instant::now();
    world.complete_all((0..4).map(free).collect());
    let beside = began.elapsed();
    let said = super::support::read(slow).expect("it ends");
    let needed = began.elapsed();
    assert_eq!(said.text.len(), 20, "{:?}", said.text);
    assert!(
        needed >= Duration::from_millis(20 * 20),
        "the masks were slow: {needed:?}"
    );
    assert!(
        beside < alone * 3 + Duration::from_millis(100),
        "120 steps took {beside:?} beside slow masks and {alone:?} alone"
    );
}
