#![allow(clippy::unwrap_used)]
use hone_checkpoint::{AdapterDtype, LoraConfig, Target};
use hone_domain::{BlobKey, Policy};
use hone_nn::Adapter;
use proptest::prelude::*;

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
    let changed = t.finish(&a, &Ok(Some(loaded(1, 10))), None, 0);
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
        t.finish(&a, &Ok(Some(loaded(2, 10))), None, 0),
        Changed {
            swapped: true,
            load: false
        }
    );
    let older = t.finish(&a, &Ok(Some(loaded(1, 10))), None, 0);
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
    t.finish(&a, &Err("broken".to_owned()), None, 0);
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
    t.finish(&a, &Ok(Some(loaded(1, 10))), None, 0);
    assert!(t.announce(&a));
    t.finish(&a, &Err("broken".to_owned()), None, 1_000);
    let pick = t.pick(&a, 1_050, Policies::default);
    assert_eq!((version(&pick), pick.1), (Some(1), false));
    let pick = t.pick(&a, 1_100, Policies::default);
    assert_eq!((version(&pick), pick.1), (Some(1), true));
    t.finish(&a, &Ok(Some(loaded(2, 10))), None, 1_200);
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
        t.finish(&scope(name), &Ok(Some(loaded(1, 10))), None, 0);
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
    t.finish(&scope("a"), &Ok(Some(loaded(2, 10))), None, 0);
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
    assert_eq!(t.pinned_bytes(), (0, 0));
    let a = scope("a");
    t.pick(&a, 0, || policies(&["a"]));
    t.finish(&a, &Ok(Some(loaded(1, 10))), None, 0);
    assert_eq!(t.pinned_bytes(), (0, 10));
    let pick = t.pick(&a, 0, Policies::default);
    assert_eq!(t.pinned_bytes(), (10, 10));
    t.announce(&a);
    t.finish(&a, &Ok(Some(loaded(2, 30))), None, 0);
    assert_eq!(t.pinned_bytes(), (10, 30), "an older version");
    drop(pick);
    assert_eq!(t.pinned_bytes(), (0, 30));
    t.announce(&a);
    assert_eq!(t.pinned_bytes(), (0, 30), "it can go if it must");
    t.expect((1, 5));
    assert_eq!(t.pinned_bytes(), (5, 30));
    // What serves nobody new tells the size of others as well, as long as somebody uses it.
    let pick = t.pick(&a, 0, Policies::default);
    t.discard(&Wanted::Newest(a.clone()), Digest([2; 32]));
    assert_eq!(t.pinned_bytes(), (35, 30));
    drop(pick);
    assert_eq!(t.pinned_bytes(), (5, 0));
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
    t.finish(&a, &Ok(Some(loaded(1, 10))), None, 0);
    t.announce(&a);
    t.finish(&a, &Ok(Some(loaded(2, 10))), Some(&proven), 0);
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
    t.finish(&a, &Ok(Some(loaded(3, 10))), Some(&proven), 0);
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
    t.finish(&a, &Ok(Some(loaded(1, 10))), None, 0);
    t.finish(&a, &Ok(Some(loaded(2, 10))), Some(&proven), 0);
    let kept = t.exact(&proven).unwrap();
    t.finish_exact(&proven, &Err("broken".to_owned()), 0);
    t.finish_exact(&proven, &Ok(Some(loaded(1, 10))), 0);
    assert_eq!(t.resident(), (2, 20));
    drop(kept);
    t.pick(&scope("b"), 0, || policies(&["b"]));
    t.finish(&scope("b"), &Ok(Some(loaded(1, 10))), None, 0);
    assert_eq!(t.resident(), (2, 20), "the longest unused of them went");
    assert!(t.exact(&proven).is_none());
    assert!(t.serving(&a).is_some() && t.serving(&scope("b")).is_some());
}

#[test]
fn what_a_trial_moved_aside_is_taken_out_where_it_is_unfit() {
    let mut t = table(1_000, 10);
    let (a, proven) = (scope("a"), policy("a", 1));
    t.pick(&a, 0, || policies(&["a"]));
    t.finish(&a, &Ok(Some(loaded(1, 10))), None, 0);
    t.finish(&a, &Ok(Some(loaded(2, 10))), Some(&proven), 0);
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
    t.finish(&a, &Err("broken".to_owned()), None, 50);
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
    t.finish(&a, &Err("broken".to_owned()), None, 160);
    assert!(t.announce(&a));
    assert!(matches!(t.pick(&a, 161, heads), (Pick::Wait, false)));
    t.give_up(&Wanted::Newest(a.clone()));
    assert!(matches!(t.pick(&a, 161, heads), (Pick::Wait, true)));
    assert!(!t.announce(&a), "one load at a time");
    let changed = t.finish(&a, &Err("broken".to_owned()), None, 170);
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
    t.finish(&a, &Ok(Some(loaded(1, 10))), None, 0);
    t.announce(&a);
    t.finish(&a, &Ok(Some(loaded(2, 10))), Some(&proven), 0);
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
        t.finish(scope, &Ok(Some(loaded(1, 10))), None, 0);
    }
    // By name, but what serves: this keeps it, too.
    assert_eq!(version(&t.pick_exact(&named, 0)), Some(7));
    assert_eq!(version(&t.pick_exact(&policy("a", 1), 0)), Some(1));
    t.make_room(10);
    assert!(t.serving(&b).is_none() && t.serving(&a).is_some());
    t.make_room(20);
    assert!(t.exact(&named).is_none() && t.serving(&a).is_some());
}

#[test]
fn what_was_withdrawn_is_gone_however_it_was_asked_for() {
    let mut t = table(1_000, 10);
    let (a, proven) = (scope("a"), policy("a", 1));
    let tainted = [1, 2].map(PolicyVersion);
    t.pick(&a, 0, || policies(&["a"]));
    t.finish(&a, &Ok(Some(loaded(1, 10))), None, 0);
    // Beside a trial, in use, being loaded, and failed.
    t.finish(&a, &Ok(Some(loaded(2, 10))), Some(&proven), 0);
    let used = t.pick(&a, 0, Policies::default);
    assert!(t.pick_exact(&policy("a", 3), 0).1 && t.pick_exact(&policy("b", 1), 0).1);
    t.finish_exact(&policy("b", 1), &Ok(Some(loaded(1, 10))), 0);
    let gone = t.withdraw(&a, &tainted);
    assert_eq!(gone, [2, 1].map(|n| Digest([n; 32])));
    t.drop_retired();
    assert_eq!(t.resident(), (2, 20), "one in use, and somebody else's");
    drop(used);
    for version in [1, 2] {
        let pick = t.pick_exact(&policy("a", version), 0);
        assert!(matches!(pick, (Pick::Failed(_), false)), "{version}");
    }
    assert_eq!(version(&t.pick_exact(&policy("b", 1), 0)), Some(1));
    assert!(matches!(
        t.pick_exact(&policy("a", 3), 0),
        (Pick::Wait, false)
    ));
    assert!(matches!(
        t.pick(&a, 0, Policies::default),
        (Pick::Wait, true)
    ));
    // While a newer one is on its way, who waits waits for that.
    assert!(!t.announce(&a));
    t.finish(&a, &Err("broken".to_owned()), None, 0);
    assert!(t.serving(&a).is_none());
    t.finish(&a, &Err("broken".to_owned()), None, 0);
    assert_eq!(version(&t.pick(&a, 0, Policies::default)), Some(0));
    t.finish(&a, &Ok(Some(loaded(4, 10))), None, 0);
    assert_eq!(version(&t.pick(&a, 0, Policies::default)), Some(4));
    t.drop_retired();
    assert_eq!(t.resident(), (2, 20));
    // What is remembered is bounded.
    for n in 0..2 * WITHDRAWN_MAX {
        t.withdraw(&scope(&n.to_string()), &tainted);
        assert!(t.withdrawn.len() <= WITHDRAWN_MAX);
    }
}

/// What may happen to a table; numbers are of scopes, of versions and of bytes.
#[derive(Clone, Copy, Debug)]
enum Act {
    Ask(u64),
    AskExact(u64, u64),
    Loaded(u64, Option<u64>, bool),
    LoadedExact(u64, u64, bool),
    Announce(u64),
    End(usize),
    MakeRoom(u64),
    GiveWay(u64),
    LetGo(u64, u64),
    GiveUp(u64),
    Withdraw(u64, u64),
    Discard(u64, u64),
    Expect(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let (scope, version) = (0..6u64, 1..6u64);
    let both = || (scope.clone(), version.clone());
    let loaded = (scope.clone(), proptest::option::of(version.clone()));
    let act = prop_oneof![
        4 => scope.clone().prop_map(Act::Ask),
        4 => both().prop_map(|(s, v)| Act::AskExact(s, v)),
        4 => (loaded, any::<bool>()).prop_map(|((s, v), trial)| Act::Loaded(s, v, trial)),
        4 => (both(), any::<bool>()).prop_map(|((s, v), ok)| Act::LoadedExact(s, v, ok)),
        2 => scope.clone().prop_map(Act::Announce),
        4 => any::<usize>().prop_map(Act::End),
        1 => (0..30u64).prop_map(Act::MakeRoom),
        1 => (0..90u64).prop_map(Act::GiveWay),
        1 => both().prop_map(|(s, v)| Act::LetGo(s, v)),
        1 => scope.clone().prop_map(Act::GiveUp),
        1 => both().prop_map(|(s, v)| Act::Withdraw(s, v)),
        1 => both().prop_map(|(s, v)| Act::Discard(s, v)),
        1 => (0..20u64).prop_map(Act::Expect),
    ];
    proptest::collection::vec(act, 0..80)
}

/// A table, the requests that hold something of it, and everything that was ever loaded.
struct Played {
    table: AdapterTable,
    held: Vec<Pinned>,
    all: Vec<std::sync::Weak<Loaded>>,
}

impl Played {
    fn load(&mut self, version: u64) -> LoadResult {
        let loaded = loaded(version, 3 * version);
        self.all.push(Arc::downgrade(&loaded));
        Ok(Some(loaded))
    }

    fn keep(&mut self, (pick, _): (Pick, bool)) {
        if let Pick::Ready(pinned) = pick {
            self.held.push(pinned);
        }
    }

    fn play(&mut self, act: Act) {
        let name = |n: u64| n.to_string();
        let heads = || policies(&["0", "1", "2", "3"]);
        match act {
            Act::Ask(s) => {
                let pick = self.table.pick(&scope(&name(s)), 0, heads);
                self.keep(pick);
            }
            Act::AskExact(s, v) => {
                let pick = self.table.pick_exact(&policy(&name(s), v), 0);
                self.keep(pick);
            }
            Act::Loaded(s, v, trial) => {
                let broken = Err("broken".to_owned());
                let result = v.map_or(broken, |v| self.load(v));
                let (s, before) = (scope(&name(s)), v.unwrap_or(1).saturating_sub(1));
                let proven = trial.then(|| policy(s.parts().unwrap().0, before));
                self.table.finish(&s, &result, proven.as_ref(), 0);
                drop(result);
                self.held.extend(self.table.hand_out(&s));
            }
            Act::LoadedExact(s, v, ok) => {
                let broken = Err("broken".to_owned());
                let result = if ok { self.load(v) } else { broken };
                self.table.finish_exact(&policy(&name(s), v), &result, 0);
            }
            Act::Announce(s) => {
                self.table.announce(&scope(&name(s)));
            }
            Act::End(n) if !self.held.is_empty() => {
                self.held.swap_remove(n % self.held.len());
            }
            Act::End(_) => {}
            Act::MakeRoom(bytes) => self.table.make_room(bytes),
            Act::GiveWay(bytes) => self.table.give_way(bytes),
            Act::LetGo(s, v) => self.table.let_go(&policy(&name(s), v)),
            Act::GiveUp(s) => self.table.give_up(&Wanted::Newest(scope(&name(s)))),
            Act::Withdraw(s, v) => {
                self.table.withdraw(&scope(&name(s)), &[PolicyVersion(v)]);
            }
            Act::Discard(s, v) => {
                let newest = Wanted::Newest(scope(&name(s)));
                self.table.discard(&newest, Digest([v as u8; 32]));
            }
            Act::Expect(bytes) => self.table.expect((1, bytes)),
        }
        self.table.drop_retired();
    }

    /// What is counted is what a walk over everything finds.
    fn check(&mut self) {
        let alive: Vec<_> = self
            .all
            .iter()
            .filter_map(std::sync::Weak::upgrade)
            .collect();
        let sizes: Vec<u64> = alive.iter().map(|loaded| loaded.bytes).collect();
        drop(alive);
        let mut used: Vec<_> = self
            .held
            .iter()
            .filter_map(|pinned| pinned.0.as_ref())
            .collect();
        used.sort_by_key(|loaded| Arc::as_ptr(loaded));
        used.dedup_by_key(|loaded| Arc::as_ptr(loaded));
        let used = used.iter().map(|loaded| loaded.bytes).sum::<u64>();
        let t = &mut self.table;
        let coming = t.cache.coming;
        let resident = (sizes.len() + coming.0, sizes.iter().sum::<u64>() + coming.1);
        assert_eq!(t.resident(), resident);
        let largest = sizes.iter().max().copied().unwrap_or(0);
        assert_eq!(t.pinned_bytes(), (used + coming.1, largest));
        // Every scope is in line to be forgotten, and nothing else is.
        let mut order: Vec<_> = t.known.iter().map(|(s, known)| (known.used, s)).collect();
        order.sort_unstable();
        assert!(t.order.iter().map(|(used, s)| (*used, s)).eq(order));
    }
}

proptest! {
    #[test]
    fn what_is_counted_is_what_is_there(acts in acts()) {
        let mut played = Played { table: table(40, 4), held: Vec::new(), all: Vec::new() };
        for act in acts {
            played.play(act);
            played.check();
        }
        // Without requests everything can go.
        played.held.clear();
        played.table.drop_retired();
        played.check();
        played.table.make_room(40);
        assert_eq!(played.table.resident(), played.table.cache.coming);
    }
}
