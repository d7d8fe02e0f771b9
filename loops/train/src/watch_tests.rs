#![allow(clippy::unwrap_used)]

use hone_domain::{BlobKey, Digest, Policy};
use hone_ledger::{PolicyStatus, WatchedTurn, WatchedVerdict};
use serde_json::Value;

use super::*;
use crate::config::Config;

/// SplitMix64 (Steele et al. 2014) as uniform numbers.
struct Rng(u64);

impl Rng {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn config() -> WatchConfig {
    WatchConfig {
        base_turns: 50,
        ratio: 2.0,
        threshold: 7.0,
        rate_min: 0.05,
        ..Config::for_tests().watch
    }
}

/// Alarms among so many observations of a rate that depends on their number, by number from 1.
fn alarms_of(seed: u64, most: u32, rate: &dyn Fn(u32) -> f64) -> Vec<u32> {
    let (config, mut rng, mut chart) = (config(), Rng(seed << 20), Chart::default());
    let mut alarms = Vec::new();
    for at in 0..most {
        let seen = (PolicyVersion(1), rng.uniform() < rate(at));
        if chart.observe(&config, seen).is_some() {
            alarms.push(at + 1);
        }
    }
    alarms
}

/// Without a change: observations up to the first alarm (at most `most`), and alarms per 10,000
/// observations of the first half and of the second. Means over `seeds` scopes.
fn calm(rate: f64, (seeds, most): (u64, u32)) -> [f64; 3] {
    let mut sums = [0.0; 3];
    for seed in 0..seeds {
        let alarms = alarms_of(seed, most, &|_| rate);
        let half = alarms.partition_point(|at| *at <= most / 2);
        let halves = [half, alarms.len() - half].map(|n| n as f64 * 2e4 / f64::from(most));
        sums[0] += f64::from(*alarms.first().unwrap_or(&most));
        sums[1] += halves[0];
        sums[2] += halves[1];
    }
    sums.map(|sum| sum / seeds as f64)
}

/// What configs/default.toml and docs/operations.md say of the default parameters. However many
/// observations there were, none may make the next alarm likelier.
#[test]
fn alarms_are_rare_without_change() {
    for rate in [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.6] {
        let [length, early, late] = calm(rate, (60, 40_000));
        println!(
            "rate {rate}: first alarm after {length:.0} of at most 40000 turns; per 10000 turns \
             {early:.2} alarms in the first half, {late:.2} in the second"
        );
        assert!(length >= 12_000.0, "{length} turns at a rate of {rate}");
        assert!(early <= 2.5 && late <= 2.5, "{early}, {late} at {rate}");
    }
}

/// Observations from a change at `at` to the alarm, median of 101 scopes; 5,000 is never.
fn delay(at: u32, rate: &dyn Fn(u32) -> f64) -> u32 {
    let delays = (0..101).map(|seed| {
        let alarms = alarms_of(seed, at + 5_000, rate);
        let after = alarms.into_iter().find(|alarm| *alarm > at);
        after.map_or(5_000, |alarm| alarm - at)
    });
    let mut delays: Vec<u32> = delays.collect();
    delays.sort_unstable();
    delays[delays.len() / 2]
}

#[test]
fn alarms_come_soon_after_a_change() {
    let rows = [
        // Twice and ten times what was usual, early.
        (150, 0.1, 0.2, 500),
        (150, 0.3, 0.6, 60),
        (150, 0.05, 0.5, 40),
        (150, 0.1, 0.9, 20),
        // Before what is usual is known well.
        (60, 0.1, 0.3, 150),
        (60, 0.3, 0.6, 90),
        (75, 0.1, 0.5, 40),
        // Twice, where the rate is known well.
        (1_000, 0.1, 0.2, 300),
        (1_000, 0.3, 0.6, 60),
        (10_000, 0.1, 0.2, 300),
        (10_000, 0.2, 0.4, 90),
        (10_000, 0.3, 0.6, 50),
    ];
    for (at, before, now, most) in rows {
        let rate = |turn| if turn < at { before } else { now };
        let delay = delay(at, &rate);
        println!("{before} to {now} at turn {at}: alarm after {delay}");
        assert!(delay <= most, "{before} to {now} at {at} took {delay}");
    }
    // What was learned is defended: it began bad, became good, and broke, early and late.
    for (good, broke) in [(50, 250), (3_900, 4_200), (40_000, 40_500)] {
        let rate = |turn| match turn {
            _ if turn < good => 0.6,
            _ if turn < broke => 0.1,
            _ => 0.5,
        };
        let delay = delay(broke, &rate);
        println!("0.6, from turn {good} on 0.1, from {broke} on 0.5: alarm after {delay}");
        assert!((1..=60).contains(&delay), "{good}, {broke}: {delay}");
    }
}

/// A memory from before periods were counted may hold a usual rate that drifted below the true one.
#[test]
fn an_old_memory_learns_anew_what_is_usual() {
    let old = r#"{"seen":3,"bad":1,"usual":0.05,"sum":0.0,"since":null,"run":[0,0]}"#;
    let mut chart: Chart = serde_json::from_str(old).unwrap();
    assert_eq!((chart.usual, chart.looks), (Some(0.05), 0));
    for at in 0..97 {
        let seen = (PolicyVersion::BASE, at % 2 == 0);
        assert_eq!(chart.observe(&config(), seen), None);
    }
    let usual = chart.usual.unwrap();
    assert!((0.5..0.6).contains(&usual), "{usual}");
}

#[test]
fn an_alarm_names_where_it_began() {
    let (config, mut chart) = (config(), Chart::default());
    let good = |chart: &mut Chart, version, n| {
        for _ in 0..n {
            assert_eq!(
                chart.observe(&config, (PolicyVersion(version), false)),
                None
            );
        }
    };
    good(&mut chart, 0, 50);
    good(&mut chart, 3, 20);
    let mut alarm = None;
    for at in 0..40 {
        let version = PolicyVersion(if at < 4 { 4 } else { 5 });
        alarm = alarm.or(chart.observe(&config, (version, true)));
    }
    let alarm = alarm.unwrap();
    assert_eq!((alarm.since, alarm.now), (PolicyVersion(4), 1.0));
    assert!(alarm.usual <= 0.06, "{}", alarm.usual);
    let text = note(&alarm, "complaint rate");
    assert!(
        text.starts_with("auto: complaint rate 100 % since version 4"),
        "{text}"
    );
}

#[test]
fn the_base_model_is_never_to_blame() {
    let (config, mut chart) = (config(), Chart::default());
    for at in 0..1_000 {
        let seen = (PolicyVersion::BASE, at > 100);
        assert_eq!(chart.observe(&config, seen), None);
    }
}

#[test]
fn broken_outputs_are_told_from_whole_ones() {
    let rows: &[(&[Token], StopReason, bool)] = &[
        (&[], StopReason::EndToken, true),
        (&[9], StopReason::EndToken, true),
        (&[1, 9], StopReason::EndToken, false),
        (&[1, 2, 3], StopReason::Length, true),
        (&[5; 9], StopReason::EndToken, true),
        (&[1], StopReason::StopString, false),
    ];
    for (tokens, stop, expected) in rows {
        assert_eq!(is_broken(tokens, *stop), *expected, "{tokens:?} {stop:?}");
    }
}

fn scope() -> Scope {
    Scope::of("o", None)
}

fn news(verdicts: usize, score: f32) -> WatchNews {
    news_of(2, verdicts, score)
}

fn news_of(version: u64, verdicts: usize, score: f32) -> WatchNews {
    let version = PolicyVersion(version);
    let turn = WatchedTurn {
        scope: scope(),
        version,
        tokens: vec![1, 2, 9],
        stop: StopReason::EndToken,
    };
    let verdict = WatchedVerdict {
        scope: scope(),
        version,
        score,
    };
    WatchNews {
        turns: vec![turn; verdicts],
        verdicts: vec![verdict; verdicts],
        place: WatchPlace {
            turn: 7,
            verdict: 8,
        },
    }
}

fn looked(memory: WatchMemory, held: Held, news: WatchNews) -> WatchDecision {
    let scopes = vec![(scope(), memory, held)];
    let canary = CanaryConfig {
        share: 0.5,
        turns: 25,
    };
    look(&config(), &canary, WatchLook { news, scopes })
}

#[test]
fn a_trial_fails_by_its_own_arm_and_is_proven_by_it() {
    let on_trial = Held {
        trial: Some(PolicyVersion(3)),
        ..Held::default()
    };
    // What is usual is known from before, or from the other side meanwhile.
    let known = looked(WatchMemory::default(), Held::default(), news(60, 1.0));
    let measured = looked(WatchMemory::default(), on_trial.clone(), news(12, 1.0));
    for before in [known, measured] {
        let memory = before.memories[0].1;
        let bad = looked(memory, on_trial.clone(), news_of(3, 20, -1.0));
        assert_eq!((bad.trips.len(), bad.proofs.len()), (0, 0));
        let (_, version, alarm, what) = &bad.failures[0];
        assert_eq!((*version, *what), (PolicyVersion(3), "complaint rate"));
        assert_eq!((alarm.since, alarm.now), (PolicyVersion(3), 1.0));
        let few = looked(memory, on_trial.clone(), news_of(3, 24, 1.0));
        assert_eq!((few.failures.len(), few.proofs.len()), (0, 0));
        let text = serde_json::to_string(&few.memories[0].1).unwrap();
        let stored: WatchMemory = serde_json::from_str(&text).unwrap();
        let enough = looked(stored, on_trial.clone(), news_of(3, 1, 1.0));
        assert_eq!(enough.proofs, [(scope(), PolicyVersion(3))]);
        // Another trial begins anew.
        let other = Held {
            trial: Some(PolicyVersion(4)),
            ..Held::default()
        };
        let fresh = looked(few.memories[0].1, other, news_of(4, 1, 1.0));
        assert_eq!(fresh.proofs, []);
    }
    // Without anything to compare with it is neither bad nor proven before its time.
    let blind = looked(WatchMemory::default(), on_trial, news_of(3, 20, -1.0));
    assert_eq!((blind.failures.len(), blind.proofs.len()), (0, 0));
}

#[test]
fn a_look_trips_holds_and_resumes() {
    let calm = looked(WatchMemory::default(), Held::default(), news(60, 1.0));
    assert_eq!((calm.trips.len(), calm.resumes.len()), (0, 0));
    assert_eq!((calm.place.turn, calm.place.verdict), (7, 8));
    let memory = calm.memories[0].1;
    let stored: WatchMemory =
        serde_json::from_str(&serde_json::to_string(&memory).unwrap()).unwrap();
    assert_eq!(stored, memory);
    let storm = looked(memory, Held::default(), news(30, -1.0));
    assert_eq!(storm.trips.len(), 1);
    let (_, alarm, what) = &storm.trips[0];
    assert_eq!((alarm.since, *what), (PolicyVersion(2), "complaint rate"));
    // A person's pin is not overruled.
    let pinned = Held {
        pinned: true,
        ..Held::default()
    };
    assert_eq!(looked(memory, pinned, news(30, -1.0)).trips, []);
    // Once tripped it counts turns, and lets learning go on when there were enough.
    let tripped = Held {
        tripped: Some(PolicyVersion(2)),
        ..Held::default()
    };
    let few = looked(storm.memories[0].1, tripped.clone(), news(30, -1.0));
    assert_eq!((few.trips.len(), few.resumes.len()), (0, 0));
    assert_eq!(few.memories[0].1.since_trip, 0);
    let many = looked(few.memories[0].1, tripped, news(300, 1.0));
    assert_eq!(many.resumes, [scope()]);
}

/// A process that ends between a trip and its memory reads the same news again, and remembers the
/// turns of before: of no trip, or of an earlier one.
#[test]
fn turns_are_counted_from_the_trip_whatever_was_remembered() {
    let tripped = |version| Held {
        tripped: Some(PolicyVersion(version)),
        ..Held::default()
    };
    let never = looked(WatchMemory::default(), Held::default(), news(300, 1.0));
    let seen = looked(never.memories[0].1, tripped(2), news(1, 1.0));
    let earlier = looked(seen.memories[0].1, tripped(2), news(300, 1.0));
    assert_eq!(earlier.resumes, [scope()]);
    for remembered in [never, earlier] {
        let mut memory = remembered.memories[0].1;
        assert_eq!(memory.since_trip, 300);
        for (turns, since_trip) in [(300, 0), (60, 60), (39, 99)] {
            let look = looked(memory, tripped(4), news(turns, 1.0));
            memory = look.memories[0].1;
            assert_eq!((look.resumes.len(), memory.since_trip), (0, since_trip));
        }
        assert_eq!(looked(memory, tripped(4), news(1, 1.0)).resumes, [scope()]);
    }
}

#[test]
fn what_was_left_says_nothing_of_what_is_served() {
    let calm = looked(WatchMemory::default(), Held::default(), news(60, 1.0));
    let nearly = looked(calm.memories[0].1, Held::default(), news_of(3, 3, -1.0));
    assert_eq!(nearly.trips, []);
    let memory = nearly.memories[0].1;
    // What a person took back begins no alarm of what is served instead.
    let left = Held {
        left: [PolicyVersion(3)].into(),
        ..Held::default()
    };
    let late = looked(memory, left.clone(), news_of(3, 40, -1.0));
    assert_eq!((late.trips.len(), late.memories[0].1.since_trip), (0, 63));
    let after = looked(late.memories[0].1, left, news_of(4, 20, -1.0));
    assert_eq!(after.trips[0].1.since, PolicyVersion(4));
    let blamed = looked(memory, Held::default(), news_of(4, 20, -1.0));
    assert_eq!(blamed.trips[0].1.since, PolicyVersion(3));
}

#[test]
fn the_last_good_version_is_the_nearest_sound_one() {
    let record = |version: u64, parent: u64, digest: u8| PolicyRecord {
        policy: Policy {
            scope: scope(),
            version: PolicyVersion(version),
            digest: Digest([digest; 32]),
            blob: BlobKey::new(format!("b{digest}")).unwrap(),
        },
        parent: PolicyVersion(parent),
        status: PolicyStatus::Published,
        samples: 1,
        report: Value::Null,
        gate: Value::Null,
        note: None,
        is_tripped: false,
        is_pruned: false,
        is_damaged: false,
        is_retired: false,
        is_tainted: false,
        published_ms: 0,
    };
    let chain = || {
        vec![
            record(4, 3, 4),
            record(3, 2, 3),
            record(2, 1, 2),
            record(1, 0, 1),
        ]
    };
    let good = |records: &[PolicyRecord], since| {
        last_good(records, PolicyVersion(since)).map(|version| version.0)
    };
    assert_eq!(good(&chain(), 4), Some(3));
    assert_eq!(good(&chain(), 3), Some(2));
    assert_eq!(good(&chain(), 1), Some(0));
    let mut spoiled = chain();
    spoiled[1].is_tripped = true;
    spoiled[2].is_pruned = true;
    assert_eq!(good(&spoiled, 4), Some(1));
    // What is served again under a new number is not its own remedy.
    let restored = [vec![record(5, 2, 2)], chain()].concat();
    assert_eq!(good(&restored, 5), Some(1));
    assert_eq!(good(&restored, 2), Some(1));
    assert_eq!(good(&restored, 4), None, "it was left already");
    let gone =
        |records: &[PolicyRecord]| left(records).into_iter().map(|v| v.0).collect::<Vec<_>>();
    assert_eq!(gone(&chain()), [0; 0]);
    assert_eq!(gone(&restored), [3, 4]);
    let grown = [vec![record(7, 5, 2), record(6, 5, 6)], restored.clone()].concat();
    assert_eq!(gone(&grown), [3, 4, 6]);
    let base = [vec![record(5, 0, 0)], chain()].concat();
    assert_eq!(gone(&base), [1, 2, 3, 4]);
    assert_eq!(
        good(&base, 5),
        None,
        "the base model is served and there is nothing else"
    );
    assert_eq!(
        good(&chain()[..2], 3),
        Some(0),
        "what is forgotten counts as the base"
    );
    assert_eq!(good(&[], 1), None);
    // An adapter from elsewhere continues the base model, and took the place of what was served.
    let imported = PolicyRecord {
        status: PolicyStatus::Imported,
        ..record(5, 0, 5)
    };
    let imported = [vec![record(6, 5, 6), imported], chain()].concat();
    assert_eq!((good(&imported, 6), good(&imported, 5)), (Some(5), Some(4)));
}
