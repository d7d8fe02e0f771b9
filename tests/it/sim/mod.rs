//! The ring under a seeded simulator: no clock, no chance and no order of events but the seed's.
//!
//! The loops' own states and effects run against a real ledger and blob store; a scheduler delivers,
//! delays, reorders, loses and repeats, crashes loops and the whole process, and makes the ledger
//! fail, lose answers and hang half-way. `HONE_SIM_SEED=n` replays one seed, `HONE_SIM_SEEDS=n`
//! runs as many.

mod lane;
mod laws;
mod ledger;
mod reading;
mod rng;
mod seat;
mod spooled;
mod stalls;
mod stock;
mod trainer;
mod users;
mod world;

use ledger::Plant;
use world::{Tally, run};

/// Seeds of an ordinary run.
const SEEDS: u64 = 16;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

fn seeds() -> std::ops::Range<u64> {
    match number("HONE_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HONE_SIM_SEEDS").unwrap_or(SEEDS),
    }
}

#[test]
fn every_law_holds_whatever_happens() {
    let mut sum = Tally::default();
    let seeds = seeds();
    for seed in seeds.clone() {
        match run(seed, Plant::None) {
            Ok(tally) => sum.join(&tally),
            Err(broken) => panic!("HONE_SIM_SEED={seed} breaks laws:\n{}", broken.join("\n")),
        }
    }
    println!("{} seeds: {:#?}", seeds.end - seeds.start, sum.counts);
    if number("HONE_SIM_SEED").is_none() {
        // A simulator in which nothing happens proves nothing.
        let happened = [
            "Crash",
            "CrashAll",
            "publishes",
            "refusals",
            "fenced",
            "rollbacks",
            "trained",
            "stale",
            "late_receipt",
            "not_chosen",
            "no_next_state",
            "abstained",
            "gate_rejected",
            "step_failed",
            "told collected",
            "told spooled",
            "told not collected",
        ];
        let missing: Vec<_> = happened.iter().filter(|what| sum.of(what) == 0).collect();
        assert!(missing.is_empty(), "never happened: {missing:?}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    let first = run(3, Plant::None).unwrap();
    assert_eq!(first, run(3, Plant::None).unwrap());
    assert_ne!(first.trace, run(4, Plant::None).unwrap().trace);
}

/// The first seed that finds the mistake, and what it says.
fn found(plant: Plant) -> String {
    for seed in 0..SEEDS {
        if let Err(broken) = run(seed, plant) {
            println!("{plant:?} at seed {seed}: {}", broken.join("\n"));
            return broken.join("\n");
        }
    }
    panic!("{plant:?} was not found within {SEEDS} seeds");
}

#[test]
fn planted_mistakes_are_found() {
    let acknowledged = "was acknowledged and is not in the ledger";
    let plants: [(Plant, &[&str]); 4] = [
        (Plant::AcknowledgesWithoutRecording, &[acknowledged]),
        (Plant::PublishMarksNothing, &["and entered version"]),
        (
            Plant::ForgetsLateReceipts,
            &["was told it is not collected", "AwaitingNextState"],
        ),
        (Plant::HandsOutStale, &["law L1 is broken"]),
    ];
    for (plant, sentences) in plants {
        let said = found(plant);
        let told = sentences.iter().any(|sentence| said.contains(sentence));
        assert!(told, "{plant:?}: {said}");
    }
}
