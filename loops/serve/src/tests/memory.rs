//! A device that lacks memory, or fails.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hone_checkpoint::{AdapterDtype, LoraConfig, Target};
use hone_cuda::Driver;
use hone_cuda_emulator::Emulator;
use hone_domain::{Ask, ServeError};
use hone_nn::Adapter;
use hone_runtime::LoopPhase;

use super::support::{World, ask, model_config, prompt, read, scope, until};
use crate::{Backend, Config};

fn emulator() -> Arc<Emulator> {
    Arc::new(Emulator::new().unwrap())
}

/// Wider than what is reserved for.
fn adapter(rank: usize) -> Adapter {
    let lora = LoraConfig {
        rank,
        alpha: 8.0,
        targets: Target::ALL.to_vec(),
        rslora: false,
        dtype: AdapterDtype::F32,
    };
    Adapter::random(&model_config(), lora, 1)
}

/// One token of such an adapter is more than what is reserved.
const WIDEST: usize = 1_024;

/// A device with the smallest steps that there are, whose scope has been asked for.
fn smallest(prewarm_tokens_max: usize) -> (Arc<Emulator>, World) {
    let config = Config {
        running_max: 1,
        step_tokens_max: 2,
        prewarm_tokens_max,
        prewarm_ms_max: 60_000,
        ..Config::for_tests()
    };
    let device = emulator();
    let world = World::on(&device, config, model_config()).unwrap();
    world.complete(ask(&prompt(70, 1), 1, 1));
    (device, world)
}

/// Publishes the widest adapter, and returns once it serves.
fn publish(world: &World) {
    world.publish("a", 1, &adapter(WIDEST));
    until("it serves", || world.engine.stats().swaps_total == 1);
}

fn holds_nothing(world: &World) {
    until("the blocks", || world.engine.stats().kv_blocks_used == 0);
}

#[test]
fn a_step_without_memory_is_made_smaller_and_says_the_same() {
    let (device, elsewhere) = (emulator(), World::new());
    let world = World::on(&device, Config::for_tests(), model_config()).unwrap();
    let asks: Vec<Ask> = (2..6).map(|n| ask(&prompt(150, n), 12, n)).collect();
    for world in [&world, &elsewhere] {
        world.publish("a", 1, &adapter(512));
        world.complete(ask(&prompt(9, 1), 1, 1));
    }
    device.leave(0);
    let said = world.complete_all(asks.clone());
    for (said, wanted) in said.iter().zip(elsewhere.complete_all(asks)) {
        assert_eq!(said.bits(), wanted.bits());
        assert_eq!((said.version.0, &said.text), (1, &wanted.text));
    }
    let stats = world.engine.stats();
    assert!(stats.step_failures_total > 0, "{stats:?}");
    assert_eq!(stats.failed_total, 0);
    holds_nothing(&world);
}

#[test]
fn a_token_without_memory_costs_its_own_request_only() {
    let (device, world) = smallest(0);
    publish(&world);
    device.leave(0);
    let asked = ask(&prompt(9, 2), 3, 2);
    let error = read(world.ask(asked.clone())).unwrap_err();
    assert_eq!(error, ServeError::Memory);
    world.complete(Ask {
        scope: scope("b"),
        ..asked.clone()
    });
    let stats = world.engine.stats();
    // Two tokens, and then one.
    assert_eq!((stats.step_failures_total, stats.failed_total), (2, 1));
    holds_nothing(&world);
    device.leave(1 << 30);
    let elsewhere = World::new();
    elsewhere.publish("a", 1, &adapter(WIDEST));
    let wanted = elsewhere.complete(asked.clone());
    assert_eq!(world.complete(asked).bits(), wanted.bits());
}

/// A draft is given up where it does not fit; the token that it is beside does.
#[test]
fn a_draft_without_memory_is_given_up() {
    let config = Config {
        running_max: 1,
        step_tokens_max: 8,
        prewarm_tokens_max: 0,
        ..Config::for_tests()
    };
    let device = emulator();
    let world = World::on(&device, config, model_config()).unwrap();
    let elsewhere = World::new();
    for world in [&world, &elsewhere] {
        world.complete(ask(&prompt(70, 1), 1, 1));
        publish(world);
    }
    world.engine.shared.eager.store(true, Relaxed);
    // Two tokens of this adapter at a time are what is reserved for eight of a narrow one.
    device.leave(0);
    let failures = [2, 3].map(|seed| {
        let mut asked = ask(&prompt(9, seed), 30, seed);
        asked.stop.ignore_end = true;
        let wanted = elsewhere.complete(asked.clone());
        if seed == 3 {
            asked.predicted = wanted.tokens.as_slice().into();
        }
        let before = world.engine.stats().step_failures_total;
        assert_eq!(world.complete(asked).bits(), wanted.bits());
        world.engine.stats().step_failures_total - before
    });
    assert_eq!(failures[1], failures[0] + 1, "of the only draft");
    let stats = world.engine.stats();
    assert_eq!(stats.failed_total, 0);
    holds_nothing(&world);
}

#[test]
fn a_version_that_there_is_no_memory_to_warm_serves_as_it_is() {
    let free = |device: &Emulator| device.memory().unwrap().0;
    let bytes = {
        let (device, world) = smallest(0);
        let before = free(&device);
        publish(&world);
        before - free(&device)
    };
    let (device, world) = smallest(1_024);
    // Room for the adapter, and no more.
    device.leave(bytes);
    publish(&world);
    let stats = world.engine.stats();
    assert_eq!((stats.step_failures_total, stats.failed_total), (1, 0));
    assert_eq!(
        (stats.prewarm_tokens_total, stats.prewarm_cold_tokens_total),
        (0, 64)
    );
    holds_nothing(&world);
    device.leave(1 << 30);
    let said = world.complete(ask(&prompt(70, 1), 1, 1));
    assert_eq!((said.version.0, said.cached), (1, 0));
}

#[test]
fn a_device_that_goes_on_failing_ends_the_engine() {
    let device = emulator();
    let world = World::on(&device, Config::for_tests(), model_config()).unwrap();
    let mut wanted = ask(&prompt(40, 1), 16_000, 1);
    wanted.stop.ignore_end = true;
    let doomed = world.ask(wanted);
    until("it to run", || {
        world.engine.stats().completion_tokens_total > 0
    });
    device.fail(true);
    let error = read(doomed).unwrap_err();
    assert!(matches!(error, ServeError::Internal(_)), "{error:?}");
    assert!(!world.engine.is_live());
    assert_eq!(world.engine.stats().step_failures_total, 3);
    until("the registry", || {
        world.registry.snapshot()["serve"].state == LoopPhase::Stopped
    });
    let told = world.registry.snapshot()["serve"].last_error.clone();
    assert!(
        told.as_ref()
            .is_some_and(|e| e.contains("has stopped working")),
        "{told:?}"
    );
}

#[test]
fn a_device_that_fails_once_costs_nothing() {
    let (device, elsewhere) = (emulator(), World::new());
    let world = World::on(&device, Config::for_tests(), model_config()).unwrap();
    let asks: Vec<Ask> = (2..5).map(|n| ask(&prompt(70, n), 12, n)).collect();
    for launches in [1, 2] {
        let failed = world.engine.stats().step_failures_total;
        device.fail_times(launches);
        let said = world.complete_all(asks.clone());
        for (said, wanted) in said.iter().zip(elsewhere.complete_all(asks.clone())) {
            assert_eq!(said.bits(), wanted.bits());
        }
        let stats = world.engine.stats();
        assert_eq!(stats.step_failures_total - failed, launches, "{stats:?}");
        assert_eq!(stats.failed_total, 0);
    }
    assert!(world.engine.is_live());
    holds_nothing(&world);
}

#[test]
fn a_cache_that_leaves_no_memory_for_steps_is_refused_with_its_key() {
    let device = emulator();
    device.leave(60 << 20);
    let config = Config {
        kv_cache_bytes_max: 1 << 40,
        ..Config::for_tests()
    };
    let error = World::on(&device, config, model_config()).err().unwrap();
    let error = error.to_string();
    assert!(error.contains("lower serve.kv_cache_bytes_max"), "{error}");
}
