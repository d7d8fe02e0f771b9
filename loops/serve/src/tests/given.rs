//! A completion that is known is scored as it was served, and behind those who wait for an answer.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_checkpoint::ModelConfig;
use hone_cuda_emulator::Emulator;
use hone_domain::{
    Ask, Collect, Delta, Origin, PolicyVersion, Reason, Sampling, ServeError, StopReason, Token,
};
use proptest::prelude::*;

use super::support::{World, adapter, ask, model_config, prompt, scope, until};
use crate::{Answer, Backend, Config};

/// Tokens with the bits of their raw log-probs and the likeliest others.
type Told = Vec<(Token, u32, Vec<(Token, f32)>)>;

fn told(mut answer: Answer) -> Result<(Told, PolicyVersion, StopReason), ServeError> {
    let mut told = Told::new();
    while let Some(delta) = answer.deltas.blocking_recv() {
        match delta {
            Delta::Started { .. } => {}
            Delta::Token(t) => told.push((t.token, t.logprob.to_bits(), t.top)),
            Delta::Failed(error) => return Err(error),
            Delta::End(end) => {
                let raw = end.completion.raw_logprobs().iter().map(|p| p.to_bits());
                let shown = told.iter().map(|(token, bits, _)| (*token, *bits));
                let tokens = end.completion.tokens().iter().copied();
                assert!(shown.eq(tokens.zip(raw)), "what was shown was recorded");
                assert!(end.turn.is_none() || end.stop != StopReason::Cancelled);
                return Ok((told, end.version, end.stop));
            }
        }
    }
    panic!("the channel closed without an end");
}

fn served(name: &str, (tokens, seed): (usize, u64), max_tokens: u32) -> Ask {
    let mut served = ask(&prompt(tokens, seed), max_tokens, seed);
    served.scope = scope(name);
    served.sampling.top_logprobs = 4;
    served.stop.ignore_end = true;
    served
}

/// The ask that scores what `served` was answered.
fn scoring(served: &Ask, told: &Told) -> Ask {
    Ask {
        given: told.iter().map(|(token, ..)| *token).collect(),
        origin: Origin::Judge,
        collect: Collect::No(Reason::SideTurn),
        ..served.clone()
    }
}

fn sliding() -> ModelConfig {
    ModelConfig {
        windows: vec![Some(40), Some(33)],
        ..model_config()
    }
}

fn worlds() -> Vec<(World, &'static str)> {
    // Fourteen blocks, so that some are paused and computed again.
    let tight = Config {
        kv_cache_bytes_max: 14 * 32 * 2 * 2 * 2 * 16 * 4,
        ..Config::for_tests()
    };
    let worlds = vec![
        (World::new(), "plain"),
        (World::with(tight, model_config()), "few blocks"),
        (
            World::with(Config::for_tests(), sliding()),
            "sliding windows",
        ),
        (
            World::on_device(Config::for_tests(), model_config()),
            "a device",
        ),
    ];
    for (world, _) in &worlds {
        world.publish("a", 1, &adapter(&world.model.config, 1));
    }
    worlds
}

#[test]
fn scores_are_what_serving_recorded_bit_for_bit() {
    let worlds = worlds();
    let strategy = prop::collection::vec((1usize..150, 1u32..70, 0u64..1_000), 1..4);
    let config = ProptestConfig::with_cases(4);
    proptest!(config, |(shapes in strategy)| {
        for (world, what) in &worlds {
            let asks: Vec<Ask> = shapes.iter().enumerate().map(|(i, (tokens, max, seed))| {
                served(["a", "b"][i % 2], (*tokens, *seed), *max)
            }).collect();
            let answers: Vec<Answer> = asks.iter().map(|ask| world.ask(ask.clone())).collect();
            let wanted: Vec<_> = answers.into_iter().map(|a| told(a).unwrap()).collect();
            let scored: Vec<Answer> = asks.iter().zip(&wanted)
                .map(|(ask, (told, ..))| world.ask(scoring(ask, told))).collect();
            for (answer, (wanted, version, _)) in scored.into_iter().zip(&wanted) {
                let (got, pinned, stop) = told(answer).unwrap();
                prop_assert_eq!(&got, wanted, "{}", what);
                prop_assert_eq!((pinned, stop), (*version, StopReason::Length));
            }
        }
    });
    let stats = worlds[0].0.engine.stats();
    assert!(stats.scored_tokens_total > 0 && stats.cached_prompt_tokens_total > 0);
    assert_eq!(
        stats.scored_tokens_total, stats.completion_tokens_total,
        "each token was sampled once and scored once"
    );
}

/// All that many of them want at once was reserved, beside those who wait for an answer.
#[test]
fn a_full_device_scores_as_many_as_run() {
    let device = Arc::new(Emulator::new().unwrap());
    let world = World::on(&device, Config::for_tests(), model_config()).unwrap();
    device.leave(0);
    let asks: Vec<Ask> = (0..12).map(|n| served("a", (40, n), 40)).collect();
    let answers: Vec<Answer> = asks.iter().map(|ask| world.ask(ask.clone())).collect();
    let wanted: Vec<Told> = answers.into_iter().map(|a| told(a).unwrap().0).collect();
    let others: Vec<Answer> = (20..24)
        .map(|n| world.ask(served("a", (40, n), 40)))
        .collect();
    let scored: Vec<Answer> = asks
        .iter()
        .zip(&wanted)
        .map(|(ask, told)| world.ask(scoring(ask, told)))
        .collect();
    for (answer, wanted) in scored.into_iter().zip(&wanted) {
        assert_eq!(told(answer).unwrap().0, *wanted);
    }
    others
        .into_iter()
        .for_each(|answer| drop(told(answer).unwrap()));
    assert_eq!(world.engine.stats().step_failures_total, 0);
}

#[test]
fn a_temperature_is_heeded_and_another_version_says_something_else() {
    let world = World::new();
    let cold = Ask {
        sampling: Sampling {
            temperature: 0.7,
            seed: 3,
            ..Sampling::default()
        },
        ..served("a", (40, 3), 24)
    };
    let said = world.complete(cold.clone());
    let given = Ask {
        given: said.tokens.clone(),
        collect: Collect::No(Reason::SideTurn),
        ..cold
    };
    let scored = world.complete(given.clone());
    assert_eq!(scored.bits(), said.bits());
    assert_eq!((scored.text.as_str(), scored.turn), ("", None));
    world.publish("a", 1, &adapter(&world.model.config, 1));
    until("the adapter serves", || {
        world.complete(given.clone()).version == PolicyVersion(1)
    });
    let taught = world.complete(given);
    assert_eq!(taught.tokens, said.tokens);
    assert_ne!(taught.behavior, said.behavior);
}

#[test]
fn whoever_waits_for_an_answer_goes_first() {
    let config = Config {
        running_max: 1,
        priority_step_ms: 600_000,
        ..Config::for_tests()
    };
    let world = World::with(config, model_config());
    let asked = served("a", (900, 1), 1_500);
    let (wanted, ..) = told(world.ask(asked.clone())).unwrap();
    // The scores must not be there before users come, whom a busy machine may delay.
    let passed = (0..20).any(|_| {
        let pauses = world.engine.stats().preemptions_total;
        let mut judging = world.ask(scoring(&asked, &wanted));
        let first = judging.deltas.blocking_recv();
        assert!(matches!(first, Some(Delta::Started { .. })), "{first:?}");
        for seed in 2..6 {
            told(world.ask(served("a", (40, seed), 8))).unwrap();
        }
        // Far more tokens than the users' answers left time for.
        let before = judging.deltas.len();
        let paused = world.engine.stats().preemptions_total > pauses;
        let (got, ..) = told(judging).unwrap();
        assert_eq!(got, wanted, "pauses change nothing");
        before < wanted.len() && paused
    });
    assert!(passed, "users waited for scores, however often they came");
}

#[test]
fn leaving_frees_what_it_held() {
    let world = World::new();
    let asked = served("a", (300, 1), 600);
    let (wanted, ..) = told(world.ask(asked.clone())).unwrap();
    // It must not be done before it is left, which a busy machine may delay.
    let left = (0..20).any(|_| {
        let scored = world.engine.stats().scored_tokens_total;
        drop(world.ask(scoring(&asked, &wanted)));
        until("it is gone", || {
            let stats = world.engine.stats();
            let whole = stats.scored_tokens_total == scored + wanted.len() as u64;
            let over = stats.cancelled_total == 1 || whole;
            over && stats.kv_blocks_used == 0 && stats.running == 0
        });
        world.engine.stats().cancelled_total > 0
    });
    assert!(left, "whoever left was computed for to the end");
}

#[test]
fn what_cannot_be_scored_is_refused() {
    let world = World::new();
    let asked = served("a", (10, 1), 4);
    let given = vec![(1, 0, Vec::new())];
    let sound = scoring(&asked, &given);
    let most = world.engine.capabilities().max_positions;
    for (ask, part) in [
        (
            Ask {
                collect: Collect::Yes,
                ..sound.clone()
            },
            "neither collected",
        ),
        (
            Ask {
                given: vec![264],
                ..sound.clone()
            },
            "not in the vocabulary",
        ),
        (
            Ask {
                given: vec![1; most - 9],
                ..sound.clone()
            },
            "takes at most",
        ),
    ] {
        let error = world.engine.ask(ask).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(told(world.ask(sound)).unwrap().0.len(), 1);
}
