//! What was withdrawn answers nobody new, whatever becomes of what takes its place.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_domain::{
    Ask, BlobKey, Delta, Digest, Policy, PolicyChoice, PolicyVersion, ServeError, StopReason,
};
use hone_nn::Adapter;

use super::support::{World, adapter, ask, prompt, read, scope, until};
use crate::Backend;
use crate::adapters::{Loaded, Wanted};
use crate::shared::{Command, NAME};

const TAINTED: PolicyVersion = PolicyVersion(2);

fn asked() -> Ask {
    ask(&prompt(250, 1), 3, 1)
}

/// Where the files of an adapter lie that was published once.
fn place(adapter: &Adapter) -> (Digest, BlobKey) {
    let digest = Digest(adapter.digest());
    let blob = BlobKey::new(format!("adapters/{}", digest.to_hex())).unwrap();
    (digest, blob)
}

/// A world where the tainted version answers, and what is to take its place.
fn world() -> (World, (Digest, BlobKey)) {
    let world = World::new();
    let [clean, tainted] = [1, 2].map(|seed| adapter(&world.model.config, seed));
    world.publish("a", 1, &clean);
    assert_eq!(world.complete(asked()).version, PolicyVersion(1));
    world.publish("a", 2, &tainted);
    until("the swap", || world.engine.stats().swaps_total == 1);
    assert_eq!(world.complete(asked()).version, TAINTED);
    (world, place(&clean))
}

fn missing() -> (Digest, BlobKey) {
    (Digest([7; 32]), BlobKey::new("adapters/missing").unwrap())
}

fn withdraw(world: &World) {
    world.engine.withdraw(&scope("a"), &[TAINTED]);
}

#[test]
fn who_asks_waits_for_what_takes_its_place() {
    let (world, clean) = world();
    let mut long = ask(&prompt(30, 1), 16_000, 1);
    long.stop.ignore_end = true;
    let mut under_way = world.ask(long);
    let begun = under_way.deltas.blocking_recv();
    assert!(matches!(
        begun,
        Some(Delta::Started {
            version: TAINTED,
            ..
        })
    ));
    let slow = world.blobs.hold();
    world.announce("a", 3, clean);
    withdraw(&world);
    let answers = [1, 2].map(|_| world.ask(asked()));
    until("them to be in line", || world.engine.stats().waiting == 2);
    drop(slow);
    for answer in answers {
        assert_eq!(read(answer).unwrap().version, PolicyVersion(3));
    }
    // It ends as it began, and then nothing of that version is left.
    under_way.cancel.cancel();
    let deltas = std::iter::from_fn(|| under_way.deltas.blocking_recv());
    let Some(Delta::End(end)) = deltas.last() else {
        panic!("it has no end");
    };
    assert_eq!((end.version, end.stop), (TAINTED, StopReason::Cancelled));
    until("it to go", || world.engine.stats().adapters_resident == 1);
}

#[test]
fn where_nothing_can_take_its_place_the_base_answers() {
    let (world, clean) = world();
    world.announce("a", 3, missing());
    withdraw(&world);
    for _ in 0..3 {
        let said = world.complete(asked());
        assert_eq!(said.version, PolicyVersion::BASE);
    }
    let stats = world.engine.stats();
    assert_eq!(stats.failed_total, 0);
    assert!(stats.swap_failures_total > 0, "it is told");
    until("it to go", || world.engine.stats().adapters_resident == 0);
    world.announce("a", 4, clean);
    until("a sound version", || world.engine.stats().swaps_total == 2);
    assert_eq!(world.complete(asked()).version, PolicyVersion(4));
}

#[test]
fn a_load_that_failed_before_keeps_nobody_from_the_base() {
    let (world, _) = world();
    world.announce("a", 3, missing());
    until("the failure", || {
        world.engine.stats().swap_failures_total > 0
    });
    assert_eq!(world.complete(asked()).version, TAINTED, "until it is told");
    withdraw(&world);
    assert_eq!(world.complete(asked()).version, PolicyVersion::BASE);
}

#[test]
fn who_waits_does_not_begin_with_it() {
    let (world, clean) = world();
    let (digest, blob) = place(&adapter(&world.model.config, 2));
    let tainted = PolicyChoice::Exact(Policy {
        scope: scope("a"),
        version: TAINTED,
        digest,
        blob,
    });
    let by_name = || Ask {
        policy: tainted.clone(),
        ..asked()
    };
    let switch = world.registry.switch(NAME).unwrap();
    switch.pause(true);
    let (newest, named) = (world.ask(asked()), world.ask(by_name()));
    world.announce("a", 3, clean);
    withdraw(&world);
    let late = world.ask(by_name());
    for refused in [named, late] {
        let Err(ServeError::Adapter(why)) = read(refused) else {
            panic!("it was withdrawn");
        };
        assert!(why.contains("version 2 was withdrawn"), "{why}");
    }
    switch.pause(false);
    assert_eq!(read(newest).unwrap().version, PolicyVersion(3));
    until("nobody to wait", || world.engine.stats().waiting == 0);
}

#[test]
fn a_load_that_ends_late_brings_nothing_back() {
    let (world, clean) = world();
    let late = || Command::Loaded {
        wanted: Wanted::Newest(scope("a")),
        result: Ok(Some(Arc::new(Loaded {
            adapter: None,
            version: PolicyVersion(4),
            digest: Digest([4; 32]),
            bytes: 0,
            probe: None,
            reaper: None,
        }))),
    };
    world.engine.withdraw(&scope("a"), &[PolicyVersion(4)]);
    // Nothing newer is published, and then something is.
    world.engine.commands.send(late()).unwrap();
    assert_eq!(world.complete(asked()).version, TAINTED);
    world.announce("a", 5, clean);
    world.engine.commands.send(late()).unwrap();
    until("the newer one", || {
        let version = world.complete(asked()).version;
        assert_ne!(version, PolicyVersion(4));
        version == PolicyVersion(5)
    });
}
