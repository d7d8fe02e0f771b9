//! A swap does not delay first tokens, and what makes it so delays nothing else.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hone_domain::{Ask, Digest, PolicyVersion, Token};
use hone_nn::BLOCK_TOKENS;

use super::support::{Said, World, adapter, ask, model_config, prompt, read, scope, until};
use crate::adapters::{Loaded, Wanted};
use crate::prefix::{BlockPool, HotBlock};
use crate::prewarm::Warming;
use crate::shared::Command;
use crate::{Backend, Config};

/// Prompt tokens: four steps where nothing of it is cached.
const PROMPT: usize = 250;

fn world(tokens_max: usize, ms_max: u64) -> World {
    let config = Config {
        prewarm_tokens_max: tokens_max,
        prewarm_ms_max: ms_max,
        ..Config::for_tests()
    };
    World::with(config, model_config())
}

/// Steps until the first token of an ask, where nothing else runs, and what it said.
fn first_token(world: &World, prompt: &[Token]) -> (u64, Said) {
    let before = world.engine.stats().steps_total;
    let said = world.complete(ask(prompt, 1, 3));
    between_steps(world);
    (world.engine.stats().steps_total - before, said)
}

/// Waits until the step under way is over and counted: commands are handled between two steps.
fn between_steps(world: &World) {
    // Each mark is another: an older one must not be taken for it.
    static MARKS: AtomicU64 = AtomicU64::new(0);
    let error = format!("mark {}.", MARKS.fetch_add(1, Ordering::Relaxed));
    let command = Command::Unfit {
        wanted: Wanted::Newest(scope("nobody")),
        digest: Digest([0; 32]),
        error: error.clone(),
    };
    world.engine.commands.send(command).unwrap();
    until("the step to be counted", || {
        let last = world.registry.snapshot()["serve"].last_error.clone();
        last.is_some_and(|last| last.contains(&error))
    });
}

fn swap(world: &World, name: &str, version: u64, seed: u64) {
    let swaps = world.engine.stats().swaps_total;
    world.publish(name, version, &adapter(&world.model.config, seed));
    until("the swap", || world.engine.stats().swaps_total == swaps + 1);
}

#[test]
fn the_first_token_after_a_swap_takes_as_many_steps_as_before_it() {
    for (tokens_max, after, cached) in [(1_024, 1, 224), (0, 4, 0)] {
        let world = world(tokens_max, 60_000);
        let asked = prompt(PROMPT, 1);
        assert_eq!(first_token(&world, &asked).0, 4, "cold");
        assert_eq!(first_token(&world, &asked).0, 1, "warm");
        for version in 1..4 {
            swap(&world, "a", version, version);
            let (steps, said) = first_token(&world, &asked);
            assert_eq!(said.version, PolicyVersion(version));
            assert_eq!((steps, said.cached), (after, cached), "version {version}");
            // The same bits as where nothing was ever cached.
            let quiet = self::world(0, 0);
            quiet.publish("a", 1, &adapter(&world.model.config, version));
            assert_eq!(quiet.complete(ask(&asked, 1, 3)).bits(), said.bits());
        }
        let stats = world.engine.stats();
        assert_eq!(stats.prewarm_tokens_total, 3 * u64::from(cached));
        assert_eq!(
            (stats.prewarm_cold_tokens_total, stats.failed_total),
            (0, 0)
        );
        until("older versions to go", || {
            world.engine.stats().adapters_resident == 1
        });
    }
}

/// A version that has a chain of so many blocks to warm, block `n` of tokens `n`.
fn warming(blocks: usize) -> Warming {
    let hot = (0..blocks).map(|n| HotBlock {
        tokens: [n as Token; BLOCK_TOKENS],
        parent: n.checked_sub(1),
    });
    let loaded = Arc::new(Loaded {
        adapter: None,
        version: PolicyVersion(1),
        digest: Digest([0; 32]),
        bytes: 0,
        probe: None,
        reaper: None,
    });
    let load = (Wanted::Newest(scope("a")), loaded);
    Warming::new(load, (hot.collect(), 0), 7, 0)
}

/// The cache holds nothing but the beginning of the prefix that goes on.
#[test]
fn what_finds_no_place_leaves_nothing_in_use() {
    let mut pool = BlockPool::new(2);
    let mut before = 7;
    for n in 0..2 {
        let block = pool.take().unwrap();
        before = pool.publish(block, before, &[n as Token; BLOCK_TOKENS]);
        pool.release(block);
    }
    let mut warming = warming(3);
    assert!(!warming.is_done(&pool));
    assert!(warming.take_row(&mut pool, BLOCK_TOKENS, 1).is_none());
    assert_eq!((pool.available(), pool.idle()), (2, 2));
}

/// Between two rows it holds the block that is not full and no other.
#[test]
fn a_block_may_take_several_steps() {
    let mut pool = BlockPool::new(4);
    let mut warming = warming(3);
    let mut seen = Vec::new();
    while !warming.is_done(&pool) {
        let row = warming.take_row(&mut pool, 12, 4).unwrap();
        seen.push((row.start, row.tokens.len(), row.table.len()));
        warming.keep(row, &mut pool);
        let held = usize::from(warming.held().is_some());
        assert_eq!(pool.available(), 4 - held);
        // A step without room for it changes nothing.
        assert!(warming.take_row(&mut pool, 0, 4).is_none());
        assert_eq!(pool.available(), 4 - held);
        if seen.len() == 5 {
            // Somebody needs it: its first tokens are computed again.
            warming.give_back(&mut pool);
            assert_eq!((pool.available(), warming.held()), (4, None));
        }
    }
    let block = |n: usize| [(0, 12), (12, 12), (24, 8)].map(|(at, len)| (32 * n + at, len, n + 1));
    let again = &block(1)[..2];
    assert_eq!(seen, [&block(0), again, &block(1), &block(2)].concat());
    assert_eq!((warming.cold_tokens(&pool), pool.available()), (0, 4));
    // Enough for more than a block ends with one.
    let mut warming = self::warming(4);
    assert!(!warming.is_done(&pool));
    let row = warming.take_row(&mut pool, 80, 4).unwrap();
    assert_eq!((row.start, row.tokens.len()), (96, 32));
}

#[test]
fn the_hottest_come_first_and_the_budget_holds() {
    let world = world(160, 60_000);
    let system = prompt(100, 1);
    let hot = |n: u64| [system.clone(), prompt(40, n)].concat();
    let rare = prompt(PROMPT, 99);
    (10..14).for_each(|n| drop(world.complete(ask(&hot(n), 1, n))));
    world.complete(ask(&rare, 1, 1));
    swap(&world, "a", 1, 1);
    let stats = world.engine.stats();
    // Of 3 + 4 + 7 blocks five: the shared start, then what was used last.
    assert_eq!(stats.prewarm_tokens_total, 160);
    assert_eq!(stats.prewarm_cold_tokens_total, 9 * 32);
    assert_eq!(stats.prewarm_cold_swaps_total, 1);
    assert_eq!(world.complete(ask(&hot(50), 1, 1)).cached, 96);
    assert_eq!(world.complete(ask(&rare, 1, 1)).cached, 64);
}

#[test]
fn serving_does_not_wait_for_it() {
    let world = world(1_024, 60_000);
    let mut long = ask(&prompt(30, 1), 16_000, 1);
    long.stop.ignore_end = true;
    let answer = world.ask(Ask {
        scope: scope("b"),
        ..long
    });
    until("its first token", || {
        world.engine.stats().completion_tokens_total > 0
    });
    for n in 0..4 {
        world.complete(ask(&prompt(PROMPT, n), 1, n));
    }
    let before = world.engine.stats();
    world.publish("a", 1, &adapter(&world.model.config, 1));
    let mut older = 0;
    let mut round = 0;
    while world.engine.stats().swaps_total == 0 {
        // New requests are answered meanwhile, by the version that serves.
        let said = world.complete(ask(&prompt(5, 100 + round), 1, 1));
        older += u64::from(said.version == PolicyVersion::BASE);
        round += 1;
    }
    let after = world.engine.stats();
    let warmed = after.prewarm_tokens_total;
    assert!(warmed >= 4 * 224, "{warmed} tokens");
    // Most steps had no block of it, and the stream got a token in every step.
    let steps = after.steps_total - before.steps_total;
    assert!(steps >= 3 * warmed / 32, "{steps} steps");
    let tokens = after.completion_tokens_total - before.completion_tokens_total;
    assert!(tokens + 1 >= steps, "{tokens} tokens in {steps} steps");
    assert!(older > 0 && after.failed_total == 0, "{older} of {round}");
    answer.cancel.cancel();
    read(answer).unwrap();
    // What was computed in parts of blocks is what is computed at once.
    let asked = prompt(PROMPT, 0);
    let said = world.complete(ask(&asked, 1, 3));
    assert_eq!((said.version, said.cached), (PolicyVersion(1), 224));
    let quiet = self::world(0, 0);
    quiet.publish("a", 1, &adapter(&world.model.config, 1));
    assert_eq!(quiet.complete(ask(&asked, 1, 3)).bits(), said.bits());
}

#[test]
fn time_is_up_even_if_it_is_cold() {
    let world = world(4_096, 0);
    let asked = prompt(PROMPT, 1);
    world.complete(ask(&asked, 1, 1));
    swap(&world, "a", 1, 1);
    let stats = world.engine.stats();
    assert_eq!(
        (stats.prewarm_tokens_total, stats.prewarm_cold_tokens_total),
        (0, 224)
    );
    assert_eq!(first_token(&world, &asked).0, 4);
}

#[test]
fn nothing_crosses_scopes() {
    let world = world(1_024, 60_000);
    let secret = prompt(PROMPT, 1);
    world.complete(ask(&secret, 1, 1));
    let of_b = |len: usize| Ask {
        scope: scope("b"),
        ..ask(&secret[..len], 1, 1)
    };
    world.complete(of_b(40));
    swap(&world, "a", 1, 1);
    // The very same adapter, in another scope: only what that scope had is warm.
    swap(&world, "b", 1, 1);
    assert_eq!(world.complete(of_b(PROMPT)).cached, 32);
    assert_eq!(world.complete(ask(&secret, 1, 1)).cached, 224);
}

#[test]
fn a_fault_while_warming_swaps_at_once_and_costs_nobody() {
    let world = world(1_024, 60_000);
    let asked = prompt(PROMPT, 1);
    world.complete(ask(&asked, 1, 1));
    between_steps(&world);
    let faults = &world.engine.shared.fault;
    faults.store(true, std::sync::atomic::Ordering::Relaxed);
    swap(&world, "a", 1, 1);
    let stats = world.engine.stats();
    assert_eq!((stats.step_failures_total, stats.failed_total), (1, 0));
    assert_eq!(stats.prewarm_cold_tokens_total, 224);
    let said = world.complete(ask(&asked, 1, 1));
    assert_eq!((said.version, said.cached), (PolicyVersion(1), 0));
}
