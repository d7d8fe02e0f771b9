//! What a process leaves open keeps the next one from nothing, also where the clock was put back in
//! between; and who plans keeps nobody waiting.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use hone_domain::{Fate, ForgetId, Millis, Reason};
use serde_json::json;

use super::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_ledger::{AuditEntry, ForgetWhat, ForgetWish, Ledger, Personal, SampleClaim, suite};
use hone_ledger_queries::Store as _;

/// The time, and one that a wrong clock told.
const NOW: Millis = 1_700_000_000_000;
const WRONG: Millis = NOW + 365 * 24 * 3_600_000;
const LEASE: Millis = 1_000;

async fn open(folder: &Path, first: u64) -> (Arc<SqliteLedger>, suite::World) {
    let ledger = SqliteStore::open(&SqliteConfig::in_folder(folder)).await;
    let ledger = Arc::new(ledger.unwrap());
    let world = suite::World::beginning_at(ledger.clone(), first);
    (ledger, world)
}

fn forget_all(world: &suite::World) -> ForgetWish {
    ForgetWish {
        id: ForgetId(world.batch().0),
        scope: world.scope(),
        owner: "owner".into(),
        what: ForgetWhat::All,
        now_ms: WRONG,
        entry: AuditEntry {
            at_ms: WRONG,
            actor: "owner".into(),
            act: "forget".into(),
            object: String::new(),
            detail: json!({}),
        },
    }
}

#[tokio::test]
async fn an_earlier_wish_does_not_reach_what_began_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let reason = Reason::Withdrawn;
    for (first, is_gone) in [(1, true), (1_000, false)] {
        let (ledger, world) = open(folder.path(), first).await;
        if is_gone {
            ledger.begin_forget(&forget_all(&world)).await.unwrap();
        }
        let turn = world.turn();
        assert_eq!(turn.started_ms, NOW);
        world.record(&turn).await;
        let fate = world.fate(&turn).await;
        assert_eq!(fate == Fate::Settled { reason }, is_gone, "{fate:?}");
        ledger.close().await;
    }
}

#[tokio::test]
async fn what_was_held_or_waited_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, world) = open(folder.path(), 1).await;
    world.ready_turns(1, 0).await;
    world.answered(&world.turn()).await;
    world.answered(&world.turn()).await;
    let claim = SampleClaim {
        now_ms: WRONG,
        ..world.sample_claim()
    };
    assert_eq!(world.claim_samples(&claim).await.len(), 1);
    let claimed = world.claim(9, WRONG).await;
    assert_eq!(claimed.len(), 2);
    ledger.release(claimed[0].claim, WRONG).await.unwrap();
    ledger.close().await;
    let (ledger, world) = open(folder.path(), 1_000).await;
    assert_eq!(world.claim_samples(&world.sample_claim()).await.len(), 1);
    assert_eq!(world.claim(9, NOW).await.len(), 2);
    ledger.close().await;
}

#[tokio::test]
async fn only_what_is_not_given_back_counts_as_tried() {
    let folder = tempfile::tempdir().unwrap();
    // Whether the judge gives it back when it stops; how often it was tried when it is claimed.
    let rows = [
        (true, 0),
        (true, 0),
        (false, 0),
        (true, 1),
        (false, 1),
        (true, 2),
    ];
    for (first, (gives_back, tried)) in (0..).zip(rows) {
        let (ledger, world) = open(folder.path(), 1 + 1_000 * first).await;
        if first == 0 {
            world.answered(&world.turn()).await;
        }
        let claimed = world.claim(9, NOW).await.remove(0);
        assert_eq!(claimed.attempts, tried, "{first}");
        if gives_back {
            ledger.release(claimed.claim, NOW).await.unwrap();
        }
        ledger.close().await;
        // A start that claims nothing changes nothing.
        open(folder.path(), 1).await.0.close().await;
    }
    // Within one process every claim counts, so a judge that never decides ends.
    let (ledger, world) = open(folder.path(), 900_000).await;
    for (times, tried) in (0..).zip(2..5) {
        let claimed = world.claim(9, NOW + times * LEASE).await.remove(0);
        assert_eq!(claimed.attempts, tried);
        let back = ledger.release(claimed.claim, NOW + times * LEASE).await;
        back.unwrap();
    }
    ledger.close().await;
}

#[tokio::test]
async fn a_plan_waits_for_nobody_and_nobody_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, world) = open(folder.path(), 1).await;
    world.record(&world.turn()).await;
    let writing = ledger.store.begin().await.unwrap();
    let wish = forget_all(&world);
    let planning = ledger.plan_forget(&wish);
    // Well below what one who writes waits for another.
    let plan = tokio::time::timeout(std::time::Duration::from_secs(20), planning).await;
    assert_eq!(plan.expect("it waits").unwrap().turns, 1);
    writing.undo().await.unwrap();
    ledger.close().await;
}

#[tokio::test]
async fn one_plan_is_made_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let (ledger, world) = open(folder.path(), 1).await;
    world.record(&world.turn()).await;
    let wish = forget_all(&world);
    let place = ledger.store.planning.lock().await;
    let planning = {
        let (ledger, wish) = (ledger.clone(), wish.clone());
        tokio::spawn(async move { ledger.plan_forget(&wish).await })
    };
    // Another process has a place of its own, and makes many meanwhile.
    let beside = SqliteStore::open_beside(&SqliteConfig::in_folder(folder.path())).await;
    let beside = beside.unwrap();
    for _ in 0..8 {
        assert_eq!(beside.plan_forget(&wish).await.unwrap().turns, 1);
    }
    assert!(!planning.is_finished());
    drop(place);
    assert_eq!(planning.await.unwrap().unwrap().turns, 1);
    beside.close().await;
    ledger.close().await;
}
