//! Two processes on one ledger, which share nothing but what is stored.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hone_domain::{TurnId, Verdict};

use super::World;
use super::world::{ALL, LEASE, NOW, assert_conflict, assert_fenced, claimed_turns};
use crate::{Claim, Ledger, Versions};

/// Ids of the second process begin here.
const OTHER_FIRST: u64 = 1_000_000;
/// Turns that each process records.
const EACH: usize = 40;

/// Two worlds on one ledger, with ids of their own.
fn worlds<L: Ledger + 'static>([one, other]: [&Arc<L>; 2]) -> [World; 2] {
    [
        World::new(one.clone()),
        World::beginning_at(other.clone(), OTHER_FIRST),
    ]
}

/// A reader that goes on after the last number it saw meets every row, however many write: the order of commits is the
/// order of numbers.
pub(super) async fn who_pages_by_number_skips_nothing<L: Ledger + Versions + 'static>(
    ledgers: [&Arc<L>; 2],
) {
    let worlds = worlds(ledgers);
    let ended = AtomicUsize::new(0);
    let write = async |world: &World| {
        for _ in 0..EACH {
            world.record(&world.turn()).await;
        }
        ended.fetch_add(1, Ordering::Relaxed);
    };
    let read = async {
        let (mut place, mut seen) = (ledgers[0].watch_place().await.expect("a place"), 0);
        loop {
            // What was acknowledged before this look must be in it.
            let is_last = ended.load(Ordering::Relaxed) == 2;
            let news = ledgers[0].watch_news(place, 3).await.expect("news");
            (place, seen) = (news.place, seen + news.turns.len());
            if is_last && news.turns.is_empty() {
                return seen;
            }
            tokio::task::yield_now().await;
        }
    };
    let (seen, (), ()) = tokio::join!(read, write(&worlds[0]), write(&worlds[1]));
    assert_eq!(seen, 2 * EACH);
}

/// Of two publishes on the same head one is refused as a whole.
pub(super) async fn one_of_two_publishes<L: Ledger + Versions + 'static>(ledgers: [&Arc<L>; 2]) {
    let worlds = worlds(ledgers);
    for parent in 0..5 {
        worlds[0].ready_turns(2, parent).await;
        let one_each = |world: &World| crate::SampleClaim {
            limit: 1,
            ..world.sample_claim()
        };
        let samples = worlds[0].claim_samples(&one_each(&worlds[0])).await;
        let others = worlds[1].claim_samples(&one_each(&worlds[1])).await;
        let publishing = worlds[0].publishing(parent, &samples);
        let mut beside = worlds[1].publishing(parent, &others);
        beside.digest.0[0] ^= 1;
        let (one, other) =
            tokio::join!(ledgers[0].publish(&publishing), ledgers[1].publish(&beside));
        let (published, refused, left) = match one.is_ok() {
            true => (one, other, others),
            false => (other, one, samples),
        };
        assert_eq!(published.expect("one is published").version.0, parent + 1);
        assert_conflict(&refused);
        for sample in left {
            let released = ledgers[0].release(sample.claim, NOW).await;
            released.expect("it is given back");
        }
        // What was refused trains in the next round, or is too old by then; the laws tell.
    }
}

/// What one claims the other does not get.
pub(super) async fn nothing_is_claimed_twice<L: Ledger + Versions + 'static>(
    ledgers: [&Arc<L>; 2],
) {
    let worlds = worlds(ledgers);
    for _ in 0..EACH {
        worlds[0].answered(&worlds[0].turn()).await;
    }
    let claim = async |world: &World| {
        let mut all: Vec<TurnId> = Vec::new();
        loop {
            let claimed = world.claim(3, NOW).await;
            if claimed.is_empty() {
                return all;
            }
            all.extend(claimed_turns(&claimed));
        }
    };
    let (one, other) = tokio::join!(claim(&worlds[0]), claim(&worlds[1]));
    let all: HashSet<TurnId> = one.iter().chain(&other).copied().collect();
    assert_eq!((one.len() + other.len(), all.len()), (EACH, EACH));
}

/// Who holds a lease that ran out and was taken over changes nothing any more.
pub(super) async fn a_late_holder_changes_nothing<L: Ledger + Versions + 'static>(
    ledgers: [&Arc<L>; 2],
) {
    let worlds = worlds(ledgers);
    worlds[0].answered(&worlds[0].turn()).await;
    let held = worlds[0].claim(ALL, NOW).await.remove(0).claim;
    let taken = worlds[1].claim(ALL, NOW + LEASE + 1).await.remove(0).claim;
    assert!(taken.fence > held.fence);
    let verdict = |world: &World, claim: Claim| -> Verdict { world.verdict(claim, Some(1.0)) };
    let late = verdict(&worlds[0], held);
    assert_fenced(&ledgers[0].record_verdict(held, &late).await);
    let renewed = ledgers[0].renew(&[held], NOW + 10 * LEASE).await;
    assert_eq!(renewed.expect("told"), 0);
    let right = verdict(&worlds[1], taken);
    let recorded = ledgers[1].record_verdict(taken, &right).await;
    recorded.expect("the holder's verdict is recorded");
}

/// Two gateways may record one session, with the same beginning.
pub(super) async fn two_record_one_session<L: Ledger + Versions + 'static>(ledgers: [&Arc<L>; 2]) {
    let worlds = worlds(ledgers);
    let session = worlds[0].turn().session;
    let write = async |world: &World| {
        let mut ids = Vec::new();
        for n in 0..10 {
            let mut turn = world.turn();
            turn.session = session;
            turn.prompt_tokens = (0..600 + n).collect();
            world.record(&turn).await;
            ids.push(turn.id);
        }
        ids
    };
    let (one, other) = tokio::join!(write(&worlds[0]), write(&worlds[1]));
    let view = ledgers[0].session(session, None, ALL).await;
    let view = view.expect("told").expect("it is known");
    let seen: HashSet<TurnId> = view.turns.rows.iter().map(|turn| turn.id).collect();
    assert_eq!(seen, one.into_iter().chain(other).collect());
}
