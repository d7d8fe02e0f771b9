//! Versions change under load and nobody notices.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hone_domain::{Ask, BlobKey, Blobs, Digest, PolicyChoice, PolicyVersion, ServeError, Token};
use hone_nn::KvPool;

use super::support::{Said, World, adapter, ask, model_config, prompt, read, scope, until};
use crate::shared::NAME;
use crate::{Backend, Config};

const SWAPS: u64 = 200;
const ADAPTERS: u64 = 5;

fn seed_of(version: u64) -> u64 {
    if version == 0 {
        u64::MAX
    } else {
        version % ADAPTERS
    }
}

/// Asks again and again until it is told to stop.
fn client(world: &World, number: u64, stop: &AtomicBool) -> Vec<(u64, Said)> {
    let mut said = Vec::new();
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) || round == 0 {
        let seed = number + 16 * (round % 3);
        said.push((
            seed,
            world.complete(ask(&prompt(20 + number as usize, seed), 20, seed)),
        ));
        round += 1;
    }
    said
}

#[test]
fn two_hundred_swaps_under_sixteen_streams() {
    let world = World::new();
    let adapters: Vec<_> = (0..ADAPTERS)
        .map(|seed| adapter(&world.model.config, seed))
        .collect();
    let stop = AtomicBool::new(false);
    let all: Vec<(u64, Said)> = std::thread::scope(|threads| {
        let (world, stop) = (&world, &stop);
        let clients: Vec<_> = (0..16)
            .map(|n| threads.spawn(move || client(world, n, stop)))
            .collect();
        until("the first answer", || {
            world.engine.stats().completion_tokens_total > 0
        });
        for version in 1..=SWAPS {
            world.publish("a", version, &adapters[seed_of(version) as usize]);
            until("the swap", || world.engine.stats().swaps_total == version);
        }
        stop.store(true, Ordering::Relaxed);
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    });
    let stats = world.engine.stats();
    assert_eq!(
        (
            stats.failed_total,
            stats.swap_failures_total,
            stats.cancelled_total
        ),
        (0, 0, 0)
    );
    assert_eq!(stats.requests_total as usize, all.len());
    let versions: std::collections::BTreeSet<PolicyVersion> =
        all.iter().map(|(_, said)| said.version).collect();
    assert!(versions.len() > 10, "{} versions answered", versions.len());
    // A server that never swaps says the same at each version.
    let mut quiet: HashMap<u64, World> = HashMap::new();
    let mut known: HashMap<(u64, u64), (Vec<Token>, Vec<u32>)> = HashMap::new();
    for (seed, said) in &all {
        let kind = seed_of(said.version.0);
        let wanted = known.entry((kind, *seed)).or_insert_with(|| {
            let world = quiet.entry(kind).or_insert_with(|| {
                let world = World::new();
                if let Some(adapter) = adapters.get(kind as usize) {
                    world.publish("a", 1, adapter);
                }
                world
            });
            let number = (seed % 16) as usize;
            let said = world.complete(ask(&prompt(20 + number, *seed), 20, *seed));
            (said.tokens, said.behavior)
        });
        assert_eq!(
            (said.tokens.as_slice(), said.behavior.as_slice()),
            (&*wanted.0, &*wanted.1)
        );
    }
    until("older versions to be dropped", || {
        world.engine.stats().adapters_resident == 1
    });
}

#[test]
fn a_running_request_keeps_its_version() {
    let world = World::new();
    let (first, second) = (
        adapter(&world.model.config, 1),
        adapter(&world.model.config, 2),
    );
    world.publish("a", 1, &first);
    let mut long = ask(&prompt(30, 1), 16_000, 1);
    long.stop.ignore_end = true;
    let answer = world.ask(long.clone());
    until("its first token", || {
        world.engine.stats().completion_tokens_total > 0
    });
    world.publish("a", 2, &second);
    until("the swap", || world.engine.stats().swaps_total == 1);
    assert_eq!(
        world.engine.stats().running,
        1,
        "it was still running at the swap"
    );
    let newer = world.complete(ask(&prompt(30, 1), 5, 1));
    assert_eq!(newer.version, PolicyVersion(2));
    answer.cancel.cancel();
    let said = read(answer).unwrap();
    let quiet = World::new();
    quiet.publish("a", 1, &first);
    long.stop.max_tokens = said.tokens.len() as u32;
    let wanted = quiet.complete(long);
    assert_eq!(
        (said.version, said.bits()),
        (PolicyVersion(1), wanted.bits())
    );
    let turn = said.turn.unwrap();
    assert_eq!(turn.digest, Some(Digest(first.digest())));
    assert_eq!(
        (turn.spans.len(), turn.spans[0].end as usize),
        (1, said.tokens.len())
    );
}

#[test]
fn a_trial_leaves_the_proven_version_in_memory_with_its_prefixes() {
    let config = Config {
        kv_cache_bytes_max: 32
            * KvPool::bytes_per_block(&model_config(), hone_nn::KvFormat::F32) as u64,
        ..Config::for_tests()
    };
    let world = World::with(config, model_config());
    let adapters = [1, 2, 3].map(|seed| adapter(&world.model.config, seed));
    let of_b = |tokens: Vec<Token>| Ask {
        scope: scope("b"),
        ..ask(&tokens, 1, 1)
    };
    world.publish("a", 1, &adapters[0]);
    // Seven blocks that are unused for longer than those of the proven version.
    world.complete(of_b(prompt(250, 9)));
    let asked = prompt(250, 1);
    let before = world.complete(ask(&asked, 1, 1));
    let trial = world.try_out("a", 2, &adapters[1]);
    until("the swap", || world.engine.stats().swaps_total == 1);
    let newest = world.complete(ask(&asked, 1, 1));
    assert_eq!((newest.version, newest.cached), (PolicyVersion(2), 224));
    // Nothing is read again, and the longest unused goes first, as without a trial.
    world.blobs.remove(&trial.proven.blob).unwrap();
    world.complete(of_b(prompt(340, 10)));
    world.complete(of_b(prompt(200, 11)));
    let said = world.complete(Ask {
        policy: PolicyChoice::of(&trial.proven),
        ..ask(&asked, 1, 1)
    });
    assert_eq!((said.version, said.cached), (PolicyVersion(1), 224));
    assert_eq!(said.bits(), before.bits());
    assert_eq!(world.engine.stats().adapters_resident, 2);
    // Promoted: the other one goes.
    let promoted = |heads: &hone_domain::Policies| heads.proven(&scope("a"), PolicyVersion(2));
    world.policies.update(promoted);
    until("what it was measured against to go", || {
        world.engine.stats().adapters_resident == 1
    });
    // Taken back: so does the one that was on trial, and what it was measured against.
    world.try_out("a", 3, &adapters[2]);
    until("the second swap", || world.engine.stats().swaps_total == 2);
    assert_eq!(world.engine.stats().adapters_resident, 2);
    world.publish("a", 4, &adapters[1]);
    until("the third swap", || world.engine.stats().swaps_total == 3);
    until("all but the newest to go", || {
        world.engine.stats().adapters_resident == 1
    });
}

#[test]
fn a_request_that_waits_is_not_given_a_trial_that_is_not_its_sessions() {
    let world = World::new();
    world.publish("a", 1, &adapter(&world.model.config, 1));
    world.complete(ask(&prompt(20, 1), 1, 1));
    let switch = world.registry.switch(NAME).unwrap();
    switch.pause(true);
    let answer = world.ask(ask(&prompt(20, 1), 1, 1));
    world.try_out("a", 2, &adapter(&world.model.config, 2));
    until("the swap", || world.engine.stats().swaps_total == 1);
    switch.pause(false);
    assert_eq!(read(answer).unwrap().version, PolicyVersion(1));
}

#[test]
fn a_damaged_or_missing_version_leaves_the_older_one_serving() {
    let world = World::new();
    let good = adapter(&world.model.config, 1);
    world.publish("a", 1, &good);
    let before = world.complete(ask(&prompt(30, 1), 5, 1));
    assert_eq!(before.version, PolicyVersion(1));
    let missing = BlobKey::new("adapters/missing").unwrap();
    world.announce("a", 2, (Digest(good.digest()), missing));
    until("the failure", || {
        world.engine.stats().swap_failures_total >= 1
    });
    let other = BlobKey::new(format!("adapters/{}", Digest(good.digest()).to_hex())).unwrap();
    world.announce("a", 3, (Digest([7; 32]), other.clone()));
    until("the second failure", || {
        world.engine.stats().swap_failures_total >= 2
    });
    let weights = world
        .blobs
        .get(&other, "adapter_model.safetensors")
        .unwrap();
    let cut = weights[..weights.len() / 2].to_vec();
    let config = world.blobs.get(&other, "adapter_config.json").unwrap();
    let damaged = BlobKey::new("adapters/damaged").unwrap();
    let files = [
        ("adapter_config.json".into(), config),
        ("adapter_model.safetensors".into(), cut),
    ];
    world.blobs.put(&damaged, &files).unwrap();
    world.announce("a", 4, (Digest(good.digest()), damaged));
    until("the third failure", || {
        world.engine.stats().swap_failures_total >= 3
    });
    let after = world.complete(ask(&prompt(30, 1), 5, 1));
    assert_eq!(
        (after.version, after.bits()),
        (before.version, before.bits())
    );
    // It is counted first and told then.
    until("the damage to be told", || {
        let last = world.registry.snapshot()["serve"].last_error.clone();
        last.is_some_and(|error| error.contains("version 4"))
    });
    world.publish("a", 5, &adapter(&world.model.config, 2));
    until("a sound version", || world.engine.stats().swaps_total == 1);
    assert_eq!(
        world.complete(ask(&prompt(30, 1), 5, 1)).version,
        PolicyVersion(5)
    );
}

#[test]
fn without_any_sound_version_the_ask_fails_with_the_reason() {
    let world = World::new();
    let missing = BlobKey::new("adapters/missing").unwrap();
    world.announce("a", 1, (Digest([1; 32]), missing));
    let error = read(world.ask(ask(&prompt(30, 1), 5, 1))).unwrap_err();
    let ServeError::Adapter(why) = error else {
        panic!("{error:?}")
    };
    assert!(
        why.contains("version 1") && why.contains("adapters/missing"),
        "{why}"
    );
    assert_eq!(world.engine.stats().waiting, 0);
    let base = hone_domain::PolicyChoice::Base;
    let said = world.complete(hone_domain::Ask {
        policy: base,
        ..ask(&prompt(30, 1), 5, 1)
    });
    assert_eq!(said.version, PolicyVersion::BASE, "the base still answers");
}

#[test]
fn adapters_keep_to_their_byte_budget() {
    let probe = World::new();
    let bytes = adapter(&probe.model.config, 2).bytes() as u64;
    let config = Config {
        adapter_bytes_max: 2 * bytes,
        ..Config::for_tests()
    };
    let world = World::with(config, super::support::model_config());
    for n in 0..6u64 {
        world.publish(
            &format!("s{n}"),
            1,
            &adapter(&world.model.config, 2 * n + 2),
        );
    }
    for round in 0..2 {
        for n in 0..6u64 {
            let scope = super::support::scope(&format!("s{n}"));
            let said = world.complete(hone_domain::Ask {
                scope,
                ..ask(&prompt(9, n), 3, n)
            });
            assert_eq!(said.version, PolicyVersion(1), "round {round}");
            let stats = world.engine.stats();
            assert!(
                stats.adapter_bytes <= 2 * bytes,
                "{} bytes",
                stats.adapter_bytes
            );
        }
    }
}

#[test]
fn requests_that_arrive_together_keep_their_adapters_to_the_byte_budget() {
    const SCOPES: u64 = 12;
    let bytes = adapter(&model_config(), 2).bytes() as u64;
    let config = Config {
        adapter_bytes_max: 4 * bytes,
        prewarm_tokens_max: 0,
        prove_interval_ms: 0,
        ..Config::for_tests()
    };
    let world = World::with(config, model_config());
    let name = |n: u64| format!("s{n}");
    let of = |name: &str| Ask {
        scope: scope(name),
        ..ask(&prompt(9, 1), 3, 1)
    };
    let adapter = |n: u64| adapter(&world.model.config, 2 * n);
    (0..SCOPES).for_each(|n| world.publish(&name(n), 1, &adapter(n)));
    world.publish("a", 1, &adapter(20));
    let missing = BlobKey::new("adapters/missing").unwrap();
    world.announce("never", 1, (Digest([1; 32]), missing));
    world.complete(of("a"));
    let switch = world.registry.switch(NAME).unwrap();
    switch.pause(true);
    let resident = world.ask(of("a"));
    let answers: Vec<_> = (0..SCOPES).map(|n| world.ask(of(&name(n)))).collect();
    let cancelled = world.ask(of("never"));
    let held = || world.engine.stats().adapter_bytes;
    until("those that fit", || held() == 4 * bytes);
    // A newer version waits for room like everybody else; the older one serves on.
    world.publish("a", 2, &adapter(21));
    drop(cancelled);
    switch.pause(false);
    assert_eq!(read(resident).unwrap().version, PolicyVersion(1));
    for answer in answers {
        assert_eq!(read(answer).unwrap().version, PolicyVersion(1));
    }
    until("the newer version", || {
        world.complete(of("a")).version == PolicyVersion(2)
    });
    assert!(held() <= 4 * bytes, "{}", held());
    let stats = world.engine.stats();
    // Nobody waits any more for what could not be loaded, so nobody tried.
    assert_eq!((stats.failed_total, stats.swap_failures_total), (0, 0));
    until("the cancelled one", || world.engine.stats().waiting == 0);
}

/// Somebody asks for the one adapter that fits, again before the last answer ends, for ever; others
/// are answered by theirs all the same, and there are never two.
#[test]
fn who_never_ends_gives_way_to_those_who_wait() {
    let bytes = adapter(&model_config(), 2).bytes() as u64;
    let config = Config {
        adapter_bytes_max: bytes,
        prewarm_tokens_max: 0,
        prove_interval_ms: 0,
        ..Config::for_tests()
    };
    let world = World::with(config, model_config());
    let of = |name: &str, tokens| Ask {
        scope: scope(name),
        ..ask(&prompt(9, 1), tokens, 1)
    };
    for (name, seed) in [("loud", 2), ("x", 4), ("y", 6)] {
        world.publish(name, 1, &adapter(&world.model.config, seed));
    }
    let (stop, began) = (AtomicBool::new(false), Instant::now());
    // Bounded also where something fails.
    let goes_on = || !stop.load(Ordering::Relaxed) && began.elapsed() < Duration::from_secs(60);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                while goes_on() {
                    world.complete(of("loud", 200));
                }
            });
        }
        until("it to be loaded", || world.engine.stats().running > 0);
        threads.spawn(|| {
            while goes_on() {
                let held = world.engine.stats().adapter_bytes;
                assert!(held <= bytes, "{held} bytes");
            }
        });
        for name in ["x", "y", "x"] {
            let said = world.complete(of(name, 3));
            assert_eq!(said.version, PolicyVersion(1), "{name}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(world.engine.stats().failed_total, 0);
}

#[test]
fn an_adapter_larger_than_the_byte_budget_is_served() {
    let config = Config {
        adapter_bytes_max: 1,
        ..Config::for_tests()
    };
    let world = World::with(config, model_config());
    let of = |name: &str| Ask {
        scope: scope(name),
        ..ask(&prompt(9, 1), 3, 1)
    };
    for (name, seed) in [("x", 1), ("y", 2)] {
        world.publish(name, 1, &adapter(&world.model.config, seed));
    }
    for said in world.complete_all(vec![of("x"), of("y"), of("x")]) {
        assert_eq!(said.version, PolicyVersion(1));
    }
}
