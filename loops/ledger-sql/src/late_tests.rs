//! Turns that a full ledger left in a file, against the SQLite ledger.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_domain::{Fate, Reason, Stage};

use crate::{SqliteConfig, SqliteStore};
use hone_ledger::{LateTurns, Ledger, suite};

/// The process dies between the word to the client and the settling of the turn.
#[tokio::test]
async fn a_noted_turn_never_trains_and_another_one_still_may() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::in_folder(folder.path());
    let open = || async { Arc::new(SqliteStore::open(&config).await.unwrap()) };
    let ledger = open().await;
    let world = suite::World::new(ledger.clone());
    let (late, other) = (world.turn(), world.turn());
    // Both are on disk when the clock of the first one's client runs out.
    ledger
        .record_turns(&[late.clone(), other.clone()])
        .await
        .unwrap();
    let notes = LateTurns::open(folder.path()).unwrap();
    notes.note(late.id).unwrap();
    std::mem::forget(notes);
    drop((world, ledger));

    let ledger = open().await;
    let notes = LateTurns::open(folder.path()).unwrap();
    assert_eq!(notes.settle(&*ledger).await.unwrap(), 1);
    let fate = |id| {
        let ledger = ledger.clone();
        async move { ledger.turn(id).await.unwrap().unwrap().fate }
    };
    let reason = Reason::LateReceipt;
    assert_eq!(fate(late.id).await, Fate::Settled { reason });
    let stage = Stage::AwaitingNextState;
    assert_eq!(fate(other.id).await, Fate::Pending { stage });
    assert_eq!(ledger.open_turns(9).await.unwrap().len(), 1);
    assert_eq!(
        notes.settle(&*ledger).await.unwrap(),
        0,
        "they are forgotten"
    );
}
