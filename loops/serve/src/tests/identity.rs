//! What is served is what was published: every stale, corrupt or foreign adapter is caught when it
//! is loaded, and again while it is served.
#![allow(clippy::unwrap_used)]

use hone_domain::{BlobKey, Blobs, Digest, Policy, PolicyChoice, PolicyVersion, Scope, ServeError};
use hone_kernels::Executor;
use hone_nn::{Adapter, Model, PROBE_FILE, peft, probe};
use serde_json::json;

use super::support::{World, adapter, ask, model_config, prompt, read, scope, until};
use crate::Backend;
use crate::adapters::Wanted;
use crate::shared::{Command, NAME};

type Files = Vec<(String, Vec<u8>)>;

/// The files of an adapter as the trainer writes them, on `model`.
fn files(model: &Model, adapter: &Adapter) -> Files {
    let mut files = peft::to_files(adapter, "tiny", &json!({}));
    let said = probe(model, Some(adapter), &Executor::new(2));
    files.push((PROBE_FILE.to_owned(), said));
    files
}

/// Publishes `files` as a version whose digest is `named`'s.
fn publish(world: &World, version: u64, (files, named): (&Files, &Adapter)) {
    let blob = BlobKey::new(format!("adapters/v{version}")).unwrap();
    world.blobs.put(&blob, files).unwrap();
    world.announce("a", version, (Digest(named.digest()), blob));
}

fn weights(files: &mut Files) -> &mut Vec<u8> {
    let found = files
        .iter_mut()
        .find(|(name, _)| name == "adapter_model.safetensors");
    &mut found.unwrap().1
}

#[test]
fn what_was_published_is_served_and_proven_again_and_again() {
    let world = World::new();
    let good = adapter(&world.model.config, 1);
    publish(&world, 1, (&files(&world.model, &good), &good));
    let said = world.complete(ask(&prompt(20, 1), 4, 1));
    assert_eq!(said.version, PolicyVersion(1));
    until("a few proofs", || {
        world.engine.stats().identity_checks_total >= 3
    });
    let stats = world.engine.stats();
    assert_eq!(
        (stats.identity_failures_total, stats.adapters_unproven_total),
        (0, 0)
    );
}

/// One damage after the other; none of them is ever served, and each is counted within one publish.
#[test]
fn every_damage_is_caught_within_one_publish() {
    let world = World::new();
    let (good, other) = (
        adapter(&world.model.config, 1),
        adapter(&world.model.config, 2),
    );
    publish(&world, 1, (&files(&world.model, &good), &good));
    let first = world.complete(ask(&prompt(20, 1), 6, 1));
    let mut version = 1;
    let mut damage = |what: &str, files: &Files, named: &Adapter| {
        version += 1;
        publish(&world, version, (files, named));
        let named = format!("version {version} (");
        let last_error = || world.registry.snapshot()[NAME].last_error.clone();
        until(what, || {
            last_error().is_some_and(|error| error.contains(&named))
        });
        let said = world.complete(ask(&prompt(20, 1), 6, 1));
        assert_eq!(said.bits(), first.bits(), "{what}");
        assert_eq!(said.version, PolicyVersion(1), "{what}");
    };
    // One bit, anywhere in the file.
    let whole = files(&world.model, &good);
    let length = weights(&mut whole.clone()).len();
    for at in [0, 8, 9, length / 3, length / 2, length - 1] {
        let mut flipped = whole.clone();
        weights(&mut flipped)[at] ^= 0x10;
        damage(&format!("bit at {at}"), &flipped, &good);
    }
    // A file cut short, and an empty one.
    for keep in [length - 4, length / 2, 0] {
        let mut cut = whole.clone();
        weights(&mut cut).truncate(keep);
        damage(&format!("cut to {keep}"), &cut, &good);
    }
    // Two versions' files swapped: whole in themselves, and not what was published.
    damage(
        "another adapter's folder",
        &files(&world.model, &other),
        &good,
    );
    let mut mixed = files(&world.model, &other);
    *weights(&mut mixed) = weights(&mut whole.clone()).clone();
    damage("another adapter's probe", &mixed, &good);
    // Trained on a base model of the same shape with other weights.
    let foreign = Model::random(model_config(), 43);
    damage("another base model", &files(&foreign, &good), &good);
    let stats = world.engine.stats();
    assert!(stats.swap_failures_total >= 12, "every one is counted");
    assert!(
        stats.identity_failures_total >= 4,
        "{}",
        stats.identity_failures_total
    );
    // A sound version after all of that is served.
    publish(&world, 100, (&files(&world.model, &other), &other));
    until("the next sound version", || {
        world.complete(ask(&prompt(20, 1), 6, 1)).version == PolicyVersion(100)
    });
}

#[test]
fn what_turns_out_to_be_something_else_is_taken_out_of_service() {
    let world = World::new();
    let good = adapter(&world.model.config, 1);
    publish(&world, 1, (&files(&world.model, &good), &good));
    let first = world.complete(ask(&prompt(20, 1), 6, 1));
    let unfit = |digest| Command::Unfit {
        wanted: Wanted::Newest(scope("a")),
        digest,
        error: "version 1: it says something else".to_owned(),
    };
    // News about what is not served any more changes nothing.
    world.engine.commands.send(unfit(Digest([9; 32]))).unwrap();
    let mut endless = ask(&prompt(20, 1), 16_000, 1);
    endless.stop.ignore_end = true;
    let under_way = world.ask(endless);
    until("it to run", || world.engine.stats().running == 1);
    let cached = world.complete(ask(&prompt(40, 1), 1, 1)).cached;
    assert_eq!(
        (cached, world.complete(ask(&prompt(40, 1), 1, 1)).cached),
        (0, 32)
    );
    world
        .engine
        .commands
        .send(unfit(Digest(good.digest())))
        .unwrap();
    let blob = BlobKey::new("adapters/v1").unwrap();
    let again = world.complete(ask(&prompt(20, 1), 6, 1));
    assert_eq!(
        again.bits(),
        first.bits(),
        "it is loaded again from its files"
    );
    // What it computed before is neither said nor found again.
    let failed = read(under_way).unwrap_err();
    assert!(matches!(failed, ServeError::Adapter(_)), "{failed}");
    assert_eq!(world.complete(ask(&prompt(40, 1), 1, 1)).cached, 0);
    assert_eq!(world.complete(ask(&prompt(40, 1), 1, 1)).cached, 32);
    let error = world.registry.snapshot()[NAME].last_error.clone().unwrap();
    assert!(error.contains("not served any more"), "{error}");
    // Where the files are gone as well, nothing else is served in its name.
    world.blobs.remove(&blob).unwrap();
    world
        .engine
        .commands
        .send(unfit(Digest(good.digest())))
        .unwrap();
    let refused = read(world.ask(ask(&prompt(20, 1), 6, 1))).unwrap_err();
    assert!(matches!(refused, ServeError::Adapter(_)), "{refused}");
}

#[test]
fn any_version_is_served_by_name_beside_the_newest() {
    let world = World::new();
    let (one, two) = (
        adapter(&world.model.config, 1),
        adapter(&world.model.config, 2),
    );
    let mut before = Vec::new();
    for (version, adapter) in [(1, &one), (2, &two)] {
        publish(&world, version, (&files(&world.model, adapter), adapter));
        until("the version", || {
            world.complete(ask(&prompt(20, 3), 1, 1)).version == PolicyVersion(version)
        });
        before.push(world.complete(ask(&prompt(20, 1), 6, 1)));
    }
    let policy = |version: u64, adapter: &Adapter| Policy {
        scope: scope("a"),
        version: PolicyVersion(version),
        digest: Digest(adapter.digest()),
        blob: BlobKey::new(format!("adapters/v{version}")).unwrap(),
    };
    let by_name = |policy: Policy| {
        let mut named = ask(&prompt(20, 1), 6, 1);
        named.policy = PolicyChoice::Exact(policy);
        named
    };
    for (at, adapter) in [&one, &two].into_iter().enumerate() {
        let version = at as u64 + 1;
        for _ in 0..2 {
            let said = world.complete(by_name(policy(version, adapter)));
            assert_eq!(said.bits(), before[at].bits());
            assert_eq!(said.turn.unwrap().digest, Some(Digest(adapter.digest())));
            assert_eq!(said.version, PolicyVersion(version));
        }
    }
    // The base under a number of its own, as a rollback to version 0 publishes it.
    world
        .policies
        .update(|p| p.with(Policy::base(scope("a"), PolicyVersion(3))));
    until("the base", || {
        world.complete(ask(&prompt(20, 1), 6, 1)).version == PolicyVersion(3)
    });
    let mut base = ask(&prompt(20, 1), 6, 1);
    base.policy = PolicyChoice::Base;
    let (base, restored) = (
        world.complete(base),
        world.complete(ask(&prompt(20, 1), 6, 1)),
    );
    assert_eq!(base.bits(), restored.bits());
    assert_eq!(restored.turn.unwrap().digest, None);
    // Nobody is served by another's name, and what is not there is said.
    let mut stranger = by_name(policy(1, &one));
    stranger.scope = Scope::of("other", None);
    assert!(world.engine.ask(stranger).is_err());
    let missing = read(world.ask(by_name(policy(9, &one)))).unwrap_err();
    assert!(matches!(missing, ServeError::Adapter(_)), "{missing}");
}
