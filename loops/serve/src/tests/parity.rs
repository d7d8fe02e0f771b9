//! What a request gets depends on itself alone, and can be recomputed.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hone_checkpoint::ModelConfig;
use hone_domain::{Ask, PolicyChoice, Sampling, Token, Turn};
use hone_kernels::{ComputeType, Executor, WeightFormat};
use hone_nn::{Adapter, KvFormat, KvPool, Model, Weights, score};
use proptest::prelude::*;

use super::support::{Said, World, adapter, ask, model_config, prompt, read, scope, tokenizer};
use crate::{Answer, Backend, Config};

const SCOPES: [&str; 3] = ["a", "b", "c"];

/// Greedy and seeded, cut and uncut, of three scopes, short and long.
pub(super) fn asks(count: usize) -> Vec<Ask> {
    let kinds = [
        Sampling {
            temperature: 0.0,
            ..Sampling::default()
        },
        Sampling {
            seed: 5,
            ..Sampling::default()
        },
        Sampling {
            seed: 6,
            temperature: 0.7,
            top_p: 0.8,
            ..Sampling::default()
        },
        Sampling {
            seed: 7,
            top_k: 9,
            min_tokens: 0,
            ..Sampling::default()
        },
        Sampling {
            seed: 8,
            min_p: 0.05,
            min_tokens: 4,
            ..Sampling::default()
        },
        Sampling {
            seed: 9,
            repetition_penalty: 1.3,
            frequency_penalty: 0.2,
            ..Sampling::default()
        },
    ];
    (0..count)
        .map(|i| Ask {
            scope: scope(SCOPES[i % 3]),
            sampling: kinds[i % kinds.len()].clone(),
            ..ask(&prompt(7 + 23 * i, i as u64), 24, 0)
        })
        .collect()
}

pub(super) fn adapters(config: &ModelConfig) -> Vec<(&'static str, Adapter)> {
    vec![("a", adapter(config, 1)), ("b", adapter(config, 2))]
}

fn world(config: Config, model: ModelConfig) -> World {
    published(World::with(config, model))
}

fn published(world: World) -> World {
    for (name, adapter) in adapters(&world.model.config) {
        world.publish(name, 1, &adapter);
    }
    world
}

/// A token of every scope, so that nobody waits for an adapter later, while others run and end.
fn load_adapters(world: &World) {
    for name in SCOPES {
        let scope = scope(name);
        world.complete(Ask {
            scope,
            ..ask(&prompt(3, 9), 1, 0)
        });
    }
}

/// Every ask on an engine of its own kind, one after the other and without cache hits.
fn alone(model: &ModelConfig, count: usize) -> Vec<Said> {
    let world = world(Config::for_tests(), model.clone());
    asks(count)
        .into_iter()
        .map(|ask| world.complete(ask))
        .collect()
}

pub(super) fn same(wanted: &[Said], got: &[Said], what: &str) {
    for (i, (wanted, got)) in wanted.iter().zip(got).enumerate() {
        assert_eq!(wanted.bits(), got.bits(), "request {i}: {what}");
        assert_eq!(
            (&wanted.text, wanted.stop),
            (&got.text, got.stop),
            "request {i}: {what}"
        );
    }
}

/// Makes every draft worth its time.
pub(super) fn eager(world: &World) {
    world.engine.shared.eager.store(true, Relaxed);
}

/// What was said, but for every so many tokens.
pub(super) fn nearly(said: &Said, wrong: usize) -> Vec<Token> {
    let tokens = said.tokens.iter().enumerate();
    let nearly = |(at, token): (usize, &Token)| match at % wrong == wrong - 1 {
        true => (token + 1) % 256,
        false => *token,
    };
    tokens.map(nearly).collect()
}

pub(super) fn sliding() -> ModelConfig {
    ModelConfig {
        windows: vec![Some(40), Some(33)],
        ..model_config()
    }
}

#[test]
fn a_batch_changes_nothing() {
    for model in [model_config(), sliding()] {
        let wanted = alone(&model, 8);
        let world = world(Config::for_tests(), model);
        same(&wanted, &world.complete_all(asks(8)), "in a batch of 8");
        assert!(
            world.engine.stats().batch_rows.quantile(1.0) > 1,
            "there was a batch"
        );
    }
}

/// As [`world`], computed by the emulated device.
pub(super) fn device_world(config: Config, model: ModelConfig) -> World {
    let world = World::on_device(config, model);
    for (name, adapter) in adapters(&world.model.config) {
        world.publish(name, 1, &adapter);
    }
    world
}

#[test]
fn a_device_changes_nothing() {
    for model in [model_config(), sliding()] {
        let wanted = alone(&model, 6);
        let tight = Config {
            prefill_chunk_tokens_max: 19,
            // Few enough blocks that requests are paused and computed again.
            kv_cache_bytes_max: 16 * KvPool::bytes_per_block(&model, KvFormat::F32) as u64,
            ..Config::for_tests()
        };
        for config in [Config::for_tests(), tight] {
            let world = device_world(config, model.clone());
            same(&wanted, &world.complete_all(asks(6)), "on a device");
            // What was said is in the prefix cache now.
            same(&wanted, &world.complete_all(asks(6)), "on a device, again");
        }
    }
}

#[test]
fn chunked_prefill_changes_nothing() {
    let wanted = alone(&model_config(), 6);
    for chunk in [1, 5, 32] {
        let config = Config {
            prefill_chunk_tokens_max: chunk,
            ..Config::for_tests()
        };
        let world = world(config, model_config());
        same(
            &wanted,
            &world.complete_all(asks(6)),
            &format!("chunks of {chunk}"),
        );
    }
}

#[test]
fn a_prefix_hit_changes_nothing() {
    for model in [model_config(), sliding()] {
        let wanted = alone(&model, 8);
        let world = world(Config::for_tests(), model);
        world.complete_all(asks(8));
        let again: Vec<Said> = asks(8).into_iter().map(|ask| world.complete(ask)).collect();
        same(&wanted, &again, "the second time");
        let long = again.last().unwrap();
        assert!(
            long.cached >= 128,
            "{} of {} tokens cached",
            long.cached,
            7 + 23 * 7
        );
        assert!(world.engine.stats().cached_prompt_tokens_total > 0);
    }
}

#[test]
fn the_next_turn_finds_prompt_and_completion() {
    let world = World::new();
    let first = world.complete(ask(&prompt(50, 1), 60, 3));
    let mut next = prompt(50, 1);
    next.extend(&first.tokens);
    next.extend(prompt(10, 2));
    let second = world.complete(ask(&next, 4, 3));
    let full = (50 + first.tokens.len() - 1) / 32 * 32;
    assert_eq!(second.cached as usize, full);
    let quiet = World::new().complete(ask(&next, 4, 3));
    assert_eq!((second.bits(), quiet.cached), (quiet.bits(), 0));
}

#[test]
fn scopes_and_versions_never_share_blocks() {
    // Nothing is computed ahead of the swap, so whatever is found was shared.
    let config = Config {
        prewarm_tokens_max: 0,
        ..Config::for_tests()
    };
    let world = world(config, model_config());
    let long = prompt(200, 1);
    let of = |name: &str| Ask {
        scope: scope(name),
        ..ask(&long, 2, 1)
    };
    assert_eq!(world.complete(of("a")).cached, 0);
    assert_eq!(world.complete(of("a")).cached, 192);
    assert_eq!(world.complete(of("c")).cached, 0, "another scope");
    assert_eq!(
        world.complete(of("d")).cached,
        0,
        "another scope of the same base"
    );
    world.publish("a", 2, &adapter(&world.model.config, 9));
    super::support::until("the swap", || world.engine.stats().swaps_total == 1);
    let newer = world.complete(of("a"));
    assert_eq!((newer.cached, newer.version.0), (0, 2), "another version");
}

#[test]
fn equal_prompts_at_the_same_time_are_computed_once() {
    let world = World::new();
    let long = prompt(300, 1);
    let all = world.complete_all((0..4).map(|seed| ask(&long, 8, seed)).collect());
    let cached: Vec<u32> = all.iter().map(|said| said.cached).collect();
    assert_eq!(cached, [0, 288, 288, 288]);
    for (seed, said) in all.iter().enumerate() {
        let quiet = World::new().complete(ask(&long, 8, seed as u64));
        assert_eq!(said.bits(), quiet.bits());
    }
}

/// All of them, of whom nobody begins before all have come.
fn together(world: &World, asks: Vec<Ask>) -> Vec<Said> {
    let switch = || world.registry.switch(crate::shared::NAME);
    super::support::until("the engine", || switch().is_some());
    let switch = switch().unwrap();
    switch.pause(true);
    let answers: Vec<Answer> = asks.into_iter().map(|ask| world.ask(ask)).collect();
    switch.pause(false);
    let said = answers.into_iter().map(|answer| read(answer).unwrap());
    said.collect()
}

/// Completions of one prompt compute its last block, which is not full, once: the others copy it
/// before each writes its own tokens behind.
#[test]
fn the_end_of_an_equal_prompt_is_copied() {
    for (model, words) in [(model_config(), 1), (sliding(), 70)] {
        // One block and less, whole blocks and one token, and whole blocks but one token.
        for (len, copies) in [(2, 3), (20, 3), (32, 3), (33, 0), (34, 3), (300, 3)] {
            let shared = prompt(len, words);
            let of = |seed| ask(&shared, 40, seed);
            let world = world(Config::for_tests(), model.clone());
            let all = together(&world, (0..4).map(of).collect());
            let quiet: Vec<Said> = (0..4)
                .map(|seed| self::world(Config::for_tests(), model.clone()).complete(of(seed)))
                .collect();
            same(&quiet, &all, &format!("{len} tokens"));
            let copied = world.engine.stats().kv_blocks_copied_total;
            assert_eq!(copied, copies, "{len} tokens");
        }
    }
}

#[test]
fn the_end_of_a_prompt_is_copied_within_scope_and_version_only() {
    let world = World::new();
    world.publish("a", 1, &adapter(&world.model.config, 5));
    let shared = prompt(50, 3);
    let of = |name: &str, policy| Ask {
        scope: scope(name),
        policy,
        ..ask(&shared, 40, 1)
    };
    // The version of "a" serves.
    assert_eq!(world.complete(of("a", PolicyChoice::Newest)).version.0, 1);
    let asks = vec![
        of("a", PolicyChoice::Newest),
        of("b", PolicyChoice::Newest),
        of("a", PolicyChoice::Base),
    ];
    together(&world, asks);
    assert_eq!(world.engine.stats().kv_blocks_copied_total, 0);
}

#[test]
fn pausing_and_computing_again_changes_nothing() {
    for model in [model_config(), sliding()] {
        let big = |count| -> Vec<Ask> {
            (0..count)
                .map(|i: usize| Ask {
                    scope: scope(SCOPES[i % 3]),
                    ..ask(&prompt(40 + i, i as u64), 150, i as u64)
                })
                .map(|mut ask| {
                    ask.stop.ignore_end = true;
                    ask
                })
                .collect()
        };
        let quiet = world(Config::for_tests(), model.clone());
        let wanted: Vec<Said> = big(8).into_iter().map(|ask| quiet.complete(ask)).collect();
        let each = KvPool::bytes_per_block(&model, KvFormat::F32) as u64;
        let config = Config {
            kv_cache_bytes_max: 20 * each,
            ..Config::for_tests()
        };
        let tight = world(config, model.clone());
        // All at once: one that ended before the last had come would leave its blocks.
        load_adapters(&tight);
        same(&wanted, &together(&tight, big(8)), "with 20 blocks");
        let stats = tight.engine.stats();
        if model.windows[0].is_none() {
            assert!(stats.preemptions_total > 0, "blocks were scarce");
        }
        super::support::until("blocks given back", || {
            tight.engine.stats().kv_blocks_used == 0
        });
    }
}

/// A model as it is served: how its matrices are kept and computed, and its keys and values.
type Kind = (WeightFormat, ComputeType, KvFormat);

const KINDS: [Kind; 5] = [
    (WeightFormat::F32, ComputeType::F32, KvFormat::F32),
    (WeightFormat::Bf16, ComputeType::Bf16, KvFormat::F16),
    (WeightFormat::Q8, ComputeType::Int8, KvFormat::F16),
    (WeightFormat::Q4, ComputeType::Int8, KvFormat::F16),
    (WeightFormat::Q8, ComputeType::Bf16, KvFormat::F32),
];

fn kind_of(shape: ModelConfig, (format, compute_type, kv): Kind) -> Model {
    let weights = Weights::random(&shape, 42).into_format(format);
    let model = Model::new(shape, weights);
    model.with_compute_type(compute_type).with_kv(kv)
}

/// What happens around requests.
#[derive(Clone, Debug)]
struct Around {
    threads: usize,
    step: usize,
    chunk: usize,
    /// Blocks of keys and values; few of them pause requests.
    blocks: u64,
    /// The order of the requests, more than once each, which then find their prefixes.
    order: Vec<usize>,
    /// How many there are at the same time.
    at_once: usize,
    /// One in so many tokens of what is predicted is wrong; nothing is predicted where 0.
    wrong: usize,
}

const ASKS: usize = 7;

fn any_around() -> impl Strategy<Value = Around> {
    let order = Just((0..2 * ASKS).map(|i| i % ASKS).collect::<Vec<_>>()).prop_shuffle();
    let sizes = (9usize..80, 1usize..80, prop_oneof![Just(14u64), Just(400)]);
    (1usize..5, sizes, order, 1..=2 * ASKS, 0usize..9).prop_map(
        |(threads, (step, chunk, blocks), order, at_once, wrong)| Around {
            threads,
            step,
            chunk,
            blocks,
            order,
            at_once,
            wrong,
        },
    )
}

fn asked_around(
    (shape, kind): (&ModelConfig, Kind),
    around: &Around,
    predicted: &[(usize, Said)],
) -> (World, Vec<(usize, Said)>) {
    let each = KvPool::bytes_per_block(shape, kind.2) as u64;
    let config = Config {
        running_max: 8,
        step_tokens_max: around.step,
        prefill_chunk_tokens_max: around.chunk,
        kv_cache_bytes_max: around.blocks * each,
        ..Config::for_tests()
    };
    let model = kind_of(shape.clone(), kind);
    let world = published(World::on_threads(config, model, around.threads));
    load_adapters(&world);
    let mut all = asks(ASKS);
    if around.wrong > 0 {
        eager(&world);
        let both = all.iter_mut().zip(predicted);
        both.for_each(|(ask, (_, said))| ask.predicted = nearly(said, around.wrong).into());
    }
    let mut told = Vec::new();
    for part in around.order.chunks(around.at_once) {
        let said = together(&world, part.iter().map(|i| all[*i].clone()).collect());
        told.extend(part.iter().copied().zip(said));
    }
    (world, told)
}

/// Batches, chunks, prefixes found, pauses, adapters, drafts and threads at random, for every arithmetic: a
/// request gets what it gets alone, bit for bit, and what its tokens in one piece recompute.
#[test]
fn whatever_happens_around_it_changes_nothing() {
    for windows in [vec![None, None], vec![Some(40), Some(33)]] {
        let shape = ModelConfig {
            ffn: 64,
            windows,
            ..model_config()
        };
        let (paused, cached) = (Cell::new(0), Cell::new(0));
        let (drafted, right) = (Cell::new(0), Cell::new(0));
        for kind in KINDS {
            let quiet = Around {
                threads: 1,
                step: 512,
                chunk: 512,
                blocks: 400,
                order: (0..ASKS).collect(),
                at_once: 1,
                wrong: 0,
            };
            let (_, alone) = asked_around((&shape, kind), &quiet, &[]);
            let same = |around: &Around| {
                let (world, told) = asked_around((&shape, kind), around, &alone);
                let exec = Executor::new(around.threads);
                for (i, said) in &told {
                    let wanted = &alone[*i].1;
                    assert_eq!(wanted.bits(), said.bits(), "request {i} of {kind:?}");
                    let turn = said.turn.as_deref();
                    turn.into_iter()
                        .for_each(|turn| recomputed(&world.model, turn, &exec));
                }
                let stats = world.engine.stats();
                paused.set(paused.get() + stats.preemptions_total);
                cached.set(cached.get() + stats.cached_prompt_tokens_total);
                drafted.set(drafted.get() + stats.draft_tokens_total);
                right.set(right.get() + stats.draft_tokens_accepted_total);
            };
            // More at once than there are blocks for: chance alone pauses nobody now and then.
            same(&Around {
                threads: 2,
                blocks: 14,
                order: (0..2 * ASKS).map(|i| i % ASKS).collect(),
                at_once: 2 * ASKS,
                ..quiet
            });
            let config = ProptestConfig::with_cases(8);
            proptest!(config, |(around in any_around())| same(&around));
        }
        assert!(cached.get() > 0 && (paused.get() > 0 || shape.windows[0].is_some()));
        assert!(drafted.get() > right.get() && right.get() > 0);
    }
}

/// That a turn's log-probs are those of its tokens in one piece.
fn recomputed(model: &Model, turn: &Turn, exec: &Executor) {
    let adapters = adapters(&model.config);
    let adapter = adapters.iter().find(|(name, _)| scope(name) == turn.scope);
    assert_eq!(turn.version().0, u64::from(adapter.is_some()));
    let mut tokens = turn.prompt_tokens.clone();
    tokens.extend(turn.completion.tokens());
    let scores = score(model, adapter.map(|(_, a)| a), &tokens, exec);
    for i in 0..turn.completion.len() {
        let at = turn.prompt_tokens.len() + i;
        let raw = scores.logprob(at, 1.0, None);
        assert_eq!(raw.to_bits(), turn.completion.raw_logprobs()[i].to_bits());
        if turn.sampling.is_replayable() {
            let kept = turn.completion.kept()[i].as_deref();
            let behavior = scores.logprob(at, turn.sampling.temperature, kept);
            let served = turn.completion.behavior_logprobs()[i];
            assert_eq!(behavior.to_bits(), served.to_bits(), "token {i}");
        }
    }
}

/// Keys and values in f16 are rounded once, whoever reads them: in batches, in small chunks, from
/// cached prefixes, paused and computed again, and in one piece afterwards.
#[test]
fn with_keys_and_values_in_f16_nothing_changes_either() {
    for config in [model_config(), sliding()] {
        let model = Model::random(config, 42).with_kv(KvFormat::F16);
        let new = |config| published(World::of(config, model.clone(), Arc::new(tokenizer())));
        let quiet = new(Config::for_tests());
        let wanted: Vec<Said> = asks(8).into_iter().map(|ask| quiet.complete(ask)).collect();
        let tight = new(Config {
            prefill_chunk_tokens_max: 19,
            kv_cache_bytes_max: 16 * KvPool::bytes_per_block(&model.config, model.kv) as u64,
            ..Config::for_tests()
        });
        assert_eq!(
            tight.engine.stats().kv_blocks_total,
            16,
            "they take half as much"
        );
        for what in ["computed", "once more, cached in part"] {
            same(&wanted, &tight.complete_all(asks(8)), what);
        }
        let exec = Executor::new(1);
        for said in wanted {
            let turn = said.turn.unwrap();
            assert!(turn.fingerprint.ends_with("kv=f16"), "{}", turn.fingerprint);
            recomputed(&model, &turn, &exec);
        }
    }
}

#[test]
fn recorded_log_probs_can_be_recomputed_bit_for_bit() {
    let exec = Executor::new(1);
    for model in [model_config(), sliding()] {
        for batch in [1, 3, 8] {
            let world = world(Config::for_tests(), model.clone());
            let mut asks = asks(8);
            let mut turns = Vec::new();
            while !asks.is_empty() {
                let now = asks.drain(..batch.min(asks.len())).collect();
                turns.extend(world.complete_all(now).into_iter().map(|s| s.turn.unwrap()));
            }
            for turn in &turns {
                recomputed(&world.model, turn, &exec);
            }
            let replayable = turns.iter().filter(|t| t.sampling.is_replayable()).count();
            assert!(replayable >= 5, "{replayable} turns were compared");
        }
    }
}

#[test]
fn end_tokens_wait_for_min_tokens() {
    let world = World::new();
    let mut wanted = ask(&prompt(9, 1), 30, 1);
    wanted.sampling.logit_bias = vec![(super::support::END, 100.0)];
    wanted.sampling.min_tokens = 7;
    let said = world.complete(wanted.clone());
    assert_eq!(
        (said.tokens.len(), said.stop),
        (8, hone_domain::StopReason::EndToken)
    );
    wanted.stop.ignore_end = true;
    let said = world.complete(wanted);
    assert_eq!(
        (said.tokens.len(), said.stop),
        (30, hone_domain::StopReason::Length)
    );
}
