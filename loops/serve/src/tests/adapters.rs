#![allow(clippy::unwrap_used)]
use hone_domain::{BlobKey, Policy};
use hone_nn::{AdapterDtype, LoraConfig, Target};

use super::*;
use crate::tests::support::model_config;

fn loaded(version: u64, bytes: u64) -> Arc<Loaded> {
    let lora = LoraConfig {
        rank: 1,
        alpha: 1.0,
        targets: vec![Target::Q],
        rslora: false,
        dtype: AdapterDtype::F32,
    };
    let adapter = Adapter::zero(&model_config(), lora);
    let digest = Digest([version as u8; 32]);
    Arc::new(Loaded {
        adapter: Some(adapter),
        version: PolicyVersion(version),
        digest,
        bytes,
        probe: None,
        reaper: None,
    })
}

fn scope(name: &str) -> Scope {
    Scope::of(name, None)
}

fn policies(names: &[&str]) -> Policies {
    Policies::from_heads(names.iter().map(|name| Policy {
        scope: scope(name),
        version: PolicyVersion(1),
        digest: Digest([1; 32]),
        blob: BlobKey::new("a").unwrap(),
    }))
}

fn table(bytes_max: u64, scopes_max: usize) -> AdapterTable {
    AdapterTable::new(TableLimits {
        bytes_max,
        scopes_max,
        retry_ms: 100,
    })
}

fn version(pick: &(Pick, bool)) -> Option<u64> {
    match &pick.0 {
        Pick::Ready(pinned) => Some(pinned.version().0),
        Pick::Wait | Pick::Failed(_) => None,
    }
}

fn failed(pick: &(Pick, bool)) -> bool {
    matches!(pick, (Pick::Failed(error), false) if error == "broken")
}

#[test]
fn one_load_at_a_time_and_the_older_version_serves_meanwhile() {
    let mut t = table(1_000, 10);
    let a = scope("a");
    let none = Policies::default;
    assert!(!t.announce(&a), "nobody asked for it");
    let pick = t.pick(&a, 0, none);
    assert_eq!(
        (version(&pick), pick.1),
        (Some(0), false),
        "nothing published: the base"
    );
    assert!(
        t.announce(&a),
        "known, so it is loaded ahead of the next ask"
    );
    assert!(
        !t.announce(&a),
        "a second load of the scope waits for the first"
    );
    assert_eq!(version(&t.pick(&a, 0, none)), Some(0));
    let changed = t.finish(&a, &Ok(Some(loaded(1, 10))), (None, 0));
    assert_eq!(
        changed,
        Changed {
            swapped: true,
            load: true
        },
        "and the second follows"
    );
    assert_eq!(version(&t.pick(&a, 0, none)), Some(1));
    assert_eq!(
        t.finish(&a, &Ok(Some(loaded(2, 10))), (None, 0)),
        Changed {
            swapped: true,
            load: false
        }
    );
    let older = t.finish(&a, &Ok(Some(loaded(1, 10))), (None, 0));
    assert_eq!(
        older,
        Changed::default(),
        "an older version never comes back"
    );
    assert_eq!(version(&t.pick(&a, 0, none)), Some(2));
    assert_eq!(t.resident(), (1, 10));
}

#[test]
fn a_scope_that_is_not_in_memory_waits_for_its_own_load_only() {
    let mut t = table(1_000, 10);
    let (a, b) = (scope("a"), scope("b"));
    let heads = || policies(&["a"]);
    let first = t.pick(&a, 0, heads);
    assert_eq!((version(&first), first.1), (None, true));
    let second = t.pick(&a, 0, heads);
    assert_eq!(
        (version(&second), second.1),
        (None, false),
        "one load is enough"
    );
    assert_eq!(
        version(&t.pick(&b, 0, heads)),
        Some(0),
        "others do not wait"
    );
    t.finish(&a, &Err("broken".to_owned()), (None, 0));
    assert!(t.serving(&a).is_none());
    assert!(failed(&t.pick(&a, 99, heads)), "nothing serves");
    let again = t.pick(&a, 100, heads);
    assert_eq!((version(&again), again.1), (None, true));
}

#[test]
fn a_failed_load_keeps_the_older_version_and_is_tried_again_later() {
    let mut t = table(1_000, 10);
    let a = scope("a");
    t.pick(&a, 0, || policies(&["a"]));
    t.finish(&a, &Ok(Some(loaded(1, 10))), (None, 0));
    assert!(t.announce(&a));
    t.finish(&a, &Err("broken".to_owned()), (None, 1_000));
    let pick = t.pick(&a, 1_050, Policies::default);
    assert_eq!((version(&pick), pick.1), (Some(1), false));
    let pick = t.pick(&a, 1_100, Policies::default);
    assert_eq!((version(&pick), pick.1), (Some(1), true));
    t.finish(&a, &Ok(Some(loaded(2, 10))), (None, 1_200));
    let pick = t.pick(&a, 9_000, Policies::default);
    assert_eq!(
        (version(&pick), pick.1),
        (Some(2), false),
        "no longer behind"
    );
}

#[test]
fn the_longest_unused_goes_and_what_is_in_use_stays() {
    let mut t = table(25, 10);
    let heads = || policies(&["a", "b", "c"]);
    let load = |t: &mut AdapterTable, name: &str| {
        t.pick(&scope(name), 0, heads);
        t.finish(&scope(name), &Ok(Some(loaded(1, 10))), (None, 0));
    };
    load(&mut t, "a");
    let held = match t.pick(&scope("a"), 0, heads).0 {
        Pick::Ready(pinned) => pinned,
        Pick::Wait | Pick::Failed(_) => panic!("it is loaded"),
    };
    load(&mut t, "b");
    load(&mut t, "c");
    assert_eq!(t.resident(), (2, 20));
    assert!(t.serving(&scope("b")).is_none(), "a is older but in use");
    assert_eq!(held.version(), PolicyVersion(1));
    // An older version counts as long as a request uses it.
    t.announce(&scope("a"));
    t.finish(&scope("a"), &Ok(Some(loaded(2, 10))), (None, 0));
    assert_eq!(
        t.resident().0,
        2,
        "version 2 of a, and version 1 that is held"
    );
    drop(held);
    t.drop_retired();
    assert_eq!(t.resident(), (1, 10));
}

#[test]
fn what_is_used_or_on_its_way_is_held() {
    let mut t = table(1_000, 10);
    assert_eq!(t.held(), (0, 0));
    let a = scope("a");
    t.pick(&a, 0, || policies(&["a"]));
    t.finish(&a, &Ok(Some(loaded(1, 10))), (None, 0));
    assert_eq!(t.held(), (0, 10));
    let pick = t.pick(&a, 0, Policies::default);
    assert_eq!(t.held(), (10, 10));
    t.announce(&a);
    t.finish(&a, &Ok(Some(loaded(2, 30))), (None, 0));
    assert_eq!(t.held(), (10, 30), "an older version");
    drop(pick);
    assert_eq!(t.held(), (0, 30));
    t.announce(&a);
    assert_eq!(t.held(), (0, 30), "it can go if it must");
    t.expect((1, 5));
    assert_eq!(t.held(), (5, 30));
    // What serves nobody new tells the size of others as well, as long as somebody uses it.
    let pick = t.pick(&a, 0, Policies::default);
    t.discard(&Wanted::Newest(a.clone()), Digest([2; 32]));
    assert_eq!(t.held(), (35, 30));
    drop(pick);
    assert_eq!(t.held(), (5, 0));
}

#[test]
fn a_load_that_was_given_up_is_begun_again_by_the_next_ask() {
    let mut t = table(1_000, 10);
    let heads = || policies(&["a"]);
    let (a, exact) = (scope("a"), policy("a", 7));
    assert!(t.pick(&a, 0, heads).1 && t.pick_exact(&exact, 0).1);
    assert!(!t.pick(&a, 0, heads).1 && !t.pick_exact(&exact, 0).1);
    t.give_up(&Wanted::Newest(a.clone()));
    t.give_up(&Wanted::Exact(exact.clone()));
    assert!(t.pick(&a, 0, heads).1 && t.pick_exact(&exact, 0).1);
}

fn policy(name: &str, version: u64) -> Policy {
    Policy {
        scope: scope(name),
        version: PolicyVersion(version),
        digest: Digest([version as u8; 32]),
        blob: BlobKey::new("a").unwrap(),
    }
}

#[test]
fn what_a_trial_is_measured_against_stays_until_it_is_over() {
    let mut t = table(1_000, 10);
    let (a, proven) = (scope("a"), policy("a", 1));
    t.pick(&a, 0, || policies(&["a"]));
    t.finish(&a, &Ok(Some(loaded(1, 10))), (None, 0));
    t.announce(&a);
    t.finish(&a, &Ok(Some(loaded(2, 10))), (Some(&proven), 0));
    assert_eq!(version(&t.pick(&a, 0, Policies::default)), Some(2));
    let pick = t.pick_exact(&proven, 0);
    assert_eq!(
        (version(&pick), pick.1),
        (Some(1), false),
        "nothing to load"
    );
    assert_eq!(t.resident(), (2, 20));
    // Another one on trial against the same leaves it where it is.
    t.announce(&a);
    t.finish(&a, &Ok(Some(loaded(3, 10))), (Some(&proven), 0));
    t.drop_retired();
    assert_eq!(t.resident(), (2, 20));
    t.let_go(&proven);
    assert_eq!(t.resident(), (2, 20), "a request uses it still");
    drop(pick);
    t.drop_retired();
    assert_eq!(t.resident(), (1, 10));
    let pick = t.pick_exact(&proven, 0);
    assert_eq!((version(&pick), pick.1), (None, true), "asked for by name");
    t.let_go(&proven);
    t.finish_exact(&proven, &Ok(Some(loaded(1, 10))), 0);
    assert!(t.exact(&proven).is_some(), "a load under way is somebody's");
}

#[test]
fn what_is_kept_beside_a_trial_counts_once_and_goes_when_memory_is_short() {
    let mut t = table(25, 10);
    let (a, proven) = (scope("a"), policy("a", 1));
    // It was asked for by name before it became the newest in memory.
    assert!(t.pick_exact(&proven, 0).1);
    t.pick(&a, 0, || policies(&["a"]));
    t.finish(&a, &Ok(Some(loaded(1, 10))), (None, 0));
    t.finish(&a, &Ok(Some(loaded(2, 10))), (Some(&proven), 0));
    let kept = t.exact(&proven).unwrap();
    t.finish_exact(&proven, &Err("broken".to_owned()), 0);
    t.finish_exact(&proven, &Ok(Some(loaded(1, 10))), 0);
    assert_eq!(t.resident(), (2, 20));
    drop(kept);
    t.pick(&scope("b"), 0, || policies(&["b"]));
    t.finish(&scope("b"), &Ok(Some(loaded(1, 10))), (None, 0));
    assert_eq!(t.resident(), (2, 20), "the longest unused of them went");
    assert!(t.exact(&proven).is_none());
    assert!(t.serving(&a).is_some() && t.serving(&scope("b")).is_some());
}

#[test]
fn what_a_trial_moved_aside_is_taken_out_where_it_is_unfit() {
    let mut t = table(1_000, 10);
    let (a, proven) = (scope("a"), policy("a", 1));
    t.pick(&a, 0, || policies(&["a"]));
    t.finish(&a, &Ok(Some(loaded(1, 10))), (None, 0));
    t.finish(&a, &Ok(Some(loaded(2, 10))), (Some(&proven), 0));
    // It was loaded as the newest of its scope, and is proven as that.
    assert!(t.discard(&Wanted::Newest(a.clone()), proven.digest));
    assert!(t.exact(&proven).is_none() && t.serving(&a).is_some());
    assert!(!t.discard(&Wanted::Newest(a), proven.digest));
    t.drop_retired();
    assert_eq!(t.resident(), (1, 10));
}

#[test]
fn the_number_of_known_scopes_is_limited() {
    let mut t = table(1_000, 16);
    for i in 0..200 {
        t.pick(&scope(&format!("s{i}")), 0, Policies::default);
    }
    assert!(t.known.len() <= 16);
    assert!(t.serving(&scope("s199")).is_some(), "the newest is known");
}

#[test]
fn a_load_that_failed_is_not_tried_at_every_ask() {
    let mut t = table(1_000, 10);
    let heads = || policies(&["a"]);
    let (a, exact) = (scope("a"), policy("a", 7));
    assert!(t.pick(&a, 0, heads).1 && t.pick_exact(&exact, 0).1);
    t.finish(&a, &Err("broken".to_owned()), (None, 50));
    t.finish_exact(&exact, &Err("broken".to_owned()), 50);
    for now_ms in [50, 149] {
        assert!(failed(&t.pick(&a, now_ms, heads)));
        assert!(failed(&t.pick_exact(&exact, now_ms)));
    }
    assert!(t.pick(&a, 150, heads).1 && t.pick_exact(&exact, 150).1);
    // While it is tried again, who asks waits.
    assert!(matches!(t.pick(&a, 151, heads), (Pick::Wait, false)));
    assert!(matches!(t.pick_exact(&exact, 151), (Pick::Wait, false)));
    t.finish_exact(&exact, &Ok(Some(loaded(7, 10))), 160);
    assert_eq!(version(&t.pick_exact(&exact, 161)), Some(7));
    // A newer version that is announced is loaded, whatever the one before did.
    t.finish(&a, &Err("broken".to_owned()), (None, 160));
    assert!(t.announce(&a));
    assert!(matches!(t.pick(&a, 161, heads), (Pick::Wait, false)));
    t.give_up(&Wanted::Newest(a.clone()));
    assert!(matches!(t.pick(&a, 161, heads), (Pick::Wait, true)));
    assert!(!t.announce(&a), "one load at a time");
    let changed = t.finish(&a, &Err("broken".to_owned()), (None, 170));
    assert!(changed.load, "of the newer one");
    t.give_up(&Wanted::Newest(a.clone()));
    assert!(matches!(t.pick(&a, 170, heads), (Pick::Wait, true)));
}

#[test]
fn what_failed_once_and_was_kept_since_counts() {
    let mut t = table(1 << 20, 10);
    let (a, proven) = (scope("a"), policy("a", 1));
    assert!(t.pick_exact(&proven, 0).1);
    t.finish_exact(&proven, &Err("broken".to_owned()), 0);
    assert!(t.pick(&a, 0, || policies(&["a"])).1);
    t.finish(&a, &Ok(Some(loaded(1, 10))), (None, 0));
    t.announce(&a);
    t.finish(&a, &Ok(Some(loaded(2, 10))), (Some(&proven), 0));
    // More than are remembered, all of which failed.
    for n in 0..=EXACT_MAX as u64 {
        let other = policy("b", n);
        assert!(t.pick_exact(&other, 0).1);
        t.finish_exact(&other, &Err("broken".to_owned()), 0);
    }
    assert_eq!(t.resident(), (2, 20));
    assert!(t.exact(&proven).is_some());
    assert!(t.exact.len() <= EXACT_MAX);
}

#[test]
fn the_longest_unused_goes_first_however_it_was_asked_for() {
    let mut t = table(30, 10);
    let (a, b) = (scope("a"), scope("b"));
    let (named, heads) = (policy("c", 7), || policies(&["a", "b"]));
    assert!(t.pick_exact(&named, 0).1);
    t.finish_exact(&named, &Ok(Some(loaded(7, 10))), 0);
    for scope in [&a, &b] {
        assert!(t.pick(scope, 0, heads).1);
        t.finish(scope, &Ok(Some(loaded(1, 10))), (None, 0));
    }
    // By name, but what serves: this keeps it, too.
    assert_eq!(version(&t.pick_exact(&named, 0)), Some(7));
    assert_eq!(version(&t.pick_exact(&policy("a", 1), 0)), Some(1));
    t.make_room(10);
    assert!(t.serving(&b).is_none() && t.serving(&a).is_some());
    t.make_room(20);
    assert!(t.exact(&named).is_none() && t.serving(&a).is_some());
}
