//! Backups under live writes.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hone_domain::{BlobKey, Blobs, TurnId};

use super::*;
use crate::SqliteLedger;
use hone_blobs::FsBlobs;
use hone_ledger::Ledger;
use hone_ledger::suite::World;

/// An adapter is whole where it has weights that nobody has damaged.
fn check(folder: &Path, _digest: Digest) -> Result<(), String> {
    let weights = fs::read(folder.join("adapter.bin")).map_err(|error| error.to_string())?;
    match weights == b"weights" {
        true => Ok(()),
        false => Err("other weights".to_owned()),
    }
}

fn maker(now_ms: Millis) -> Maker<'static> {
    let (program, check) = ("test", &check);
    Maker {
        program,
        now_ms,
        check,
    }
}

fn replacing(replace: bool, now_ms: Millis) -> Replacing<'static> {
    let check = &check;
    Replacing {
        replace,
        now_ms,
        check,
    }
}

async fn open(folder: &Path) -> Arc<SqliteLedger> {
    let ledger = SqliteStore::open(&SqliteConfig::in_folder(folder)).await;
    Arc::new(ledger.unwrap())
}

/// Writes turns until it is told to stop; every id in the result was acknowledged.
async fn write_turns(ledger: Arc<SqliteLedger>, stop: Arc<AtomicBool>) -> Vec<TurnId> {
    let world = World::beginning_at(ledger.clone(), 1 << 32);
    let mut written = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let turn = world.turn();
        ledger
            .record_turns(std::slice::from_ref(&turn))
            .await
            .unwrap();
        written.push(turn.id);
    }
    written
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_under_writes_has_every_turn_that_was_acknowledged_before_it() {
    let place = tempfile::tempdir().unwrap();
    let (data, copy) = (place.path().join("data"), place.path().join("copy"));
    let ledger = open(&data).await;
    let world = World::new(ledger.clone());
    let mut before = Vec::new();
    for _ in 0..50 {
        let turn = world.turn();
        ledger
            .record_turns(std::slice::from_ref(&turn))
            .await
            .unwrap();
        before.push(turn.id);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write_turns(ledger.clone(), stop.clone()));
    while ledger.counts().await.unwrap().turns < 60 {
        tokio::task::yield_now().await;
    }
    // The live ledger's owner lock is held by this very process meanwhile.
    let manifest = back_up(&SqliteConfig::in_folder(&data), &copy, maker(1))
        .await
        .unwrap();
    let after = ledger.counts().await.unwrap().turns;
    stop.store(true, Ordering::Relaxed);
    let during = writer.await.unwrap();
    assert!(
        manifest.turns >= 60 && manifest.turns <= after,
        "{manifest:?} {after}"
    );
    assert!(
        ledger.counts().await.unwrap().turns > manifest.turns,
        "writes went on"
    );
    ledger.close().await;

    let fresh = place.path().join("fresh");
    let (_, aside) = restore(&copy, &SqliteConfig::in_folder(&fresh), replacing(false, 2))
        .await
        .unwrap();
    assert_eq!(aside, None);
    let restored = open(&fresh).await;
    let mut found = 0;
    for id in before.iter().chain(&during) {
        found += u64::from(restored.turn(*id).await.unwrap().is_some());
    }
    for id in &before {
        assert!(restored.turn(*id).await.unwrap().is_some(), "{id} is gone");
    }
    assert_eq!(found, manifest.turns, "one moment: no turn in part");
    World::new(restored.clone())
        .assert_lawful("a restore")
        .await;
    restored.close().await;
}

#[tokio::test]
async fn adapters_come_along_and_a_missing_one_is_said() {
    let place = tempfile::tempdir().unwrap();
    let (data, copy) = (place.path().join("data"), place.path().join("copy"));
    let config = SqliteConfig::in_folder(&data);
    let ledger = open(&data).await;
    let world = World::new(ledger.clone());
    world.publish_next(0).await;
    let keys = ledger.kept_blobs().await.unwrap();
    assert_eq!(keys.len(), 1);
    let missing = back_up(&config, &copy, maker(1))
        .await
        .unwrap_err()
        .to_string();
    assert!(missing.contains(keys[0].0.as_str()), "{missing}");
    assert!(!copy.exists() && !beside(&copy, ".unfinished").exists());

    let blobs = FsBlobs::open(&data.join("blobs"), 1 << 20).unwrap();
    let files = [("adapter.bin".to_owned(), b"weights".to_vec())];
    blobs.put(&keys[0].0, &files).unwrap();
    let unnamed = BlobKey::new("adapters/nobody/names-it").unwrap();
    blobs.put(&unnamed, &files).unwrap();
    let weights = data
        .join("blobs")
        .join(keys[0].0.as_str())
        .join("adapter.bin");
    fs::write(&weights, b"weighty").unwrap();
    let damaged = back_up(&config, &copy, maker(1)).await.unwrap_err();
    assert!(damaged.to_string().contains("is damaged"), "{damaged}");
    assert!(!copy.exists(), "a backup of it is none");
    fs::write(&weights, b"weights").unwrap();
    back_up(&config, &copy, maker(1)).await.unwrap();
    verify_whole(&copy, &check).await.unwrap();
    let bad = |_: &Path, _: Digest| Err("it was damaged before".to_owned());
    let damaged = verify_whole(&copy, &bad).await.unwrap_err();
    assert!(
        damaged.to_string().contains(keys[0].0.as_str()),
        "{damaged}"
    );
    ledger.close().await;
    // Into the same folder: what was there is kept aside.
    let refused = restore(&copy, &config, replacing(false, 7))
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("--replace"), "{refused}");
    let (manifest, aside) = restore(&copy, &config, replacing(true, 7)).await.unwrap();
    assert_eq!(manifest.versions, 1);
    assert!(aside.unwrap().join("ledger.db").exists());
    let blobs = FsBlobs::open(&data.join("blobs"), 1 << 20).unwrap();
    assert_eq!(blobs.get(&keys[0].0, "adapter.bin").unwrap(), b"weights");
    assert!(blobs.get(&unnamed, "adapter.bin").is_err());
    assert_eq!(open(&data).await.heads().await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_not_whole_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let (data, copy) = (place.path().join("data"), place.path().join("copy"));
    let config = SqliteConfig::in_folder(&data);
    let none = back_up(&config, &copy, maker(1))
        .await
        .unwrap_err()
        .to_string();
    assert!(none.contains("no ledger"), "{none}");
    let ledger = open(&data).await;
    back_up(&config, &copy, maker(1)).await.unwrap();
    let twice = back_up(&config, &copy, maker(1))
        .await
        .unwrap_err()
        .to_string();
    assert!(twice.contains("not empty"), "{twice}");
    let in_use = restore(&copy, &config, replacing(true, 1))
        .await
        .unwrap_err()
        .to_string();
    assert!(in_use.contains("in use"), "{in_use}");
    ledger.close().await;

    let mut bytes = fs::read(copy.join("ledger.db")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(copy.join("ledger.db"), bytes).unwrap();
    let changed = restore(&copy, &config, replacing(true, 1))
        .await
        .unwrap_err()
        .to_string();
    assert!(changed.contains("not what was backed up"), "{changed}");
    assert!(config.file.exists(), "the old ledger stays");

    let text = fs::read_to_string(copy.join(MANIFEST)).unwrap();
    fs::write(
        copy.join(MANIFEST),
        text.replace("ledger.db", "../ledger.db"),
    )
    .unwrap();
    let leads = verify(&copy).unwrap_err().to_string();
    assert!(leads.contains("leads elsewhere"), "{leads}");

    fs::create_dir(data.join(RESTORING)).unwrap();
    let interrupted = SqliteStore::open(&config).await.err().unwrap().to_string();
    assert!(interrupted.contains("hone restore"), "{interrupted}");
}

/// A data folder with one turn and an adapter file that says `text`.
async fn inhabited(data: &Path, (text, first_id): (&str, u64)) -> TurnId {
    let ledger = open(data).await;
    let turn = World::beginning_at(ledger.clone(), first_id).turn();
    ledger
        .record_turns(std::slice::from_ref(&turn))
        .await
        .unwrap();
    let blobs = FsBlobs::open(&data.join("blobs"), 1 << 20).unwrap();
    let key = BlobKey::new("adapters/somebody/one").unwrap();
    let files = [("adapter.bin".to_owned(), text.as_bytes().to_vec())];
    blobs.put(&key, &files).unwrap();
    ledger.close().await;
    turn.id
}

/// A restore is killed after every one of its steps in turn. The next one finds the old data whole and
/// puts it aside in one piece.
#[tokio::test]
async fn a_restore_killed_half_way_loses_nothing_of_the_old_data() {
    let place = tempfile::tempdir().unwrap();
    let (new, copy) = (place.path().join("new"), place.path().join("copy"));
    let new_turn = inhabited(&new, ("new", 1 << 32)).await;
    back_up(&SqliteConfig::in_folder(&new), &copy, maker(1))
        .await
        .unwrap();
    let steps = OLD_PARTS.len() + 2;
    for killed_after in 0..=steps {
        let data = place.path().join(format!("data-{killed_after}"));
        let config = SqliteConfig::in_folder(&data);
        let old_turn = inhabited(&data, ("old", 1 << 33)).await;
        // A log that was not folded into the ledger belongs to the old files as well.
        fs::write(data.join("ledger.db-wal"), b"").unwrap();

        let (staging, aside) = (data.join(RESTORING), data.join("before-restore-7"));
        let unfinished = beside(&aside, UNFINISHED);
        fs::create_dir(&staging).unwrap();
        stage(&copy, &staging, &verify(&copy).unwrap())
            .await
            .unwrap();
        fs::create_dir(&unfinished).unwrap();
        let moves = moves(&data, &staging, Some(&unfinished));
        assert_eq!(moves.len(), steps);
        for (from, to) in moves.iter().take(killed_after) {
            rename(from, to).unwrap();
        }
        let refused = SqliteStore::open(&config).await.err().unwrap().to_string();
        assert!(refused.contains("interrupted"), "{killed_after}: {refused}");

        // What is there counts as the old data again, and is not replaced unasked.
        let unasked = restore(&copy, &config, replacing(false, 8))
            .await
            .unwrap_err();
        assert!(unasked.to_string().contains("--replace"), "{killed_after}");
        let again = open(&data).await;
        assert!(again.turn(old_turn).await.unwrap().is_some());
        again.close().await;
        let (_, aside) = restore(&copy, &config, replacing(true, 8)).await.unwrap();
        let aside = aside.unwrap();
        let blob = "blobs/adapters/somebody/one/adapter.bin";
        assert_eq!(
            fs::read(aside.join(blob)).unwrap(),
            b"old",
            "{killed_after}"
        );
        let old = open(&aside).await;
        assert!(old.turn(old_turn).await.unwrap().is_some());
        assert!(old.check_stored().await.unwrap().is_empty());
        old.close().await;
        let restored = open(&data).await;
        assert!(restored.turn(new_turn).await.unwrap().is_some());
        restored.close().await;
        assert!(!unfinished.exists());
    }
}
