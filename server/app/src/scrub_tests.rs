//! What is damaged is found, set aside, and replaced by what is sound.
#![allow(clippy::unwrap_used)]

use hone_blobs::FsBlobs;
use hone_checkpoint::{AdapterDtype, LoraConfig, Target};
use hone_ledger::{Import, Ledger};
use hone_ledger_sql::{SqliteConfig, SqliteLedger, SqliteStore, StoredLedger as _};
use hone_nn::Adapter;
use hone_runtime::SystemClock;
use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::adapters::tiny_model;

struct Rig {
    folder: TempDir,
    ledger: Arc<SqliteLedger>,
    scrub: Arc<Scrub>,
}

impl Rig {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::in_folder(folder.path());
        let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
        let blobs = FsBlobs::open(&folder.path().join("blobs"), 1 << 20).unwrap();
        let scrub = Scrub {
            ledger: ledger.clone(),
            versions: ledger.clone(),
            blobs: Arc::new(blobs),
            policies: Latest::new(Policies::default()),
            troubles: Troubles::default(),
            clock: Arc::new(SystemClock::default()),
            every: None,
        };
        Self {
            folder,
            ledger,
            scrub: Arc::new(scrub),
        }
    }

    fn scope(&self) -> Scope {
        Scope::of("ann", None)
    }

    /// Publishes an adapter of its own weights; where it lies.
    async fn publish(&self, seed: u64) -> BlobKey {
        let lora = LoraConfig {
            rank: 2,
            alpha: 4.0,
            targets: vec![Target::Q, Target::V],
            rslora: false,
            dtype: AdapterDtype::F32,
        };
        let adapter = Adapter::random(&tiny_model().config, lora, seed);
        let blob = BlobKey::new(format!("adapters/ann/{seed}")).unwrap();
        let files = peft::to_files(&adapter, "base", &Value::Null);
        self.scrub.blobs.put(&blob, &files).unwrap();
        let digest = Digest(adapter.digest());
        let import = Import {
            scope: self.scope(),
            digest,
            blob: blob.clone(),
            report: Value::Null,
            note: None,
            now_ms: 1,
        };
        let policy = self.ledger.import(&import).await.unwrap();
        self.scrub
            .policies
            .update(|heads| heads.with(policy.clone()));
        blob
    }

    fn damage(&self, blob: &BlobKey, how: impl FnOnce(&std::path::Path)) {
        let place = self.folder.path().join("blobs").join(blob.as_str());
        how(&place);
    }

    async fn served(&self) -> Policy {
        let told = self.scrub.policies.get().newest(&self.scope()).cloned();
        let heads = self.ledger.heads().await.unwrap();
        assert_eq!(
            told.as_ref(),
            heads.first(),
            "what is served is what is published"
        );
        told.unwrap()
    }
}

fn flip(path: &std::path::Path) {
    let file = path.join(peft::WEIGHTS_FILE);
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

fn cut(path: &std::path::Path) {
    let file = path.join(peft::WEIGHTS_FILE);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
}

fn remove_weights(path: &std::path::Path) {
    std::fs::remove_file(path.join(peft::WEIGHTS_FILE)).unwrap();
}

fn remove_folder(path: &std::path::Path) {
    std::fs::remove_dir_all(path).unwrap();
}

fn spoil_config(path: &std::path::Path) {
    std::fs::write(path.join(peft::CONFIG_FILE), b"{}").unwrap();
}

#[tokio::test]
async fn every_kind_of_damage_falls_back_and_says_so() {
    let kinds: [fn(&std::path::Path); 5] = [flip, cut, remove_weights, remove_folder, spoil_config];
    for damage in kinds {
        let rig = Rig::new().await;
        let first = rig.publish(1).await;
        rig.scrub.at_start().await;
        assert_eq!(rig.served().await.blob, first, "what is sound stays");
        assert!(rig.scrub.troubles.ids().is_empty());
        rig.damage(&first, damage);
        rig.scrub.at_start().await;
        // An import continues the base model.
        assert!(rig.served().await.is_base());
        assert_eq!(rig.scrub.troubles.ids(), [DAMAGED]);
        let text = &rig.scrub.troubles.alerts()[0].alert.text;
        assert!(text.contains("version 1"), "{text}");
        let kept = rig.ledger.kept_blobs().await.unwrap();
        assert!(kept.is_empty(), "no backup needs it");
        assert!(rig.scrub.blobs.list("adapters").unwrap().is_empty());
        // Once more finds nothing to do, and the alert stays.
        let before = rig.served().await;
        rig.scrub.at_start().await;
        assert_eq!(rig.served().await, before);
        assert_eq!(rig.scrub.troubles.ids(), [DAMAGED]);
        let query = hone_ledger::AuditQuery {
            limit: 9,
            ..Default::default()
        };
        let log = hone_ledger::People::audit(&*rig.ledger, &query).await;
        let acts: Vec<String> = log.unwrap().into_iter().map(|row| row.entry.act).collect();
        assert!(acts.contains(&"version.damaged".to_owned()), "{acts:?}");
        assert!(rig.ledger.check_laws().await.unwrap().is_empty());
    }
}

/// The nearest version before it, along its lineage, whose files are whole.
#[tokio::test]
async fn the_nearest_sound_ancestor_takes_its_place() {
    let rig = Rig::new().await;
    let mut blobs = Vec::new();
    for seed in 1..=3 {
        blobs.push(rig.publish(seed).await);
    }
    // Version 4 is version 1 again, and version 5 is version 3 again, which continues it.
    for to in [1, 3] {
        let policy = rig
            .ledger
            .rollback(&rig.scope(), PolicyVersion(to), 2)
            .await
            .unwrap();
        rig.scrub
            .policies
            .update(|heads| heads.with(policy.clone()));
    }
    rig.damage(&blobs[2], flip);
    rig.scrub.at_start().await;
    // 5 restores 3, 3 was imported: nothing sound is before it but the base model.
    assert!(rig.served().await.is_base());
    let policy = rig
        .ledger
        .rollback(&rig.scope(), PolicyVersion(1), 3)
        .await
        .unwrap();
    rig.scrub
        .policies
        .update(|heads| heads.with(policy.clone()));
    rig.scrub.at_start().await;
    assert_eq!(rig.served().await.blob, blobs[0]);
    let refused = rig.ledger.rollback(&rig.scope(), PolicyVersion(3), 4).await;
    assert!(refused.unwrap_err().to_string().contains("damaged"));
}

/// Rights that are wrong say nothing of the files.
#[test]
fn what_cannot_be_read_is_not_taken_for_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = FsBlobs::open(folder.path(), 1 << 20).unwrap();
    let key = BlobKey::new("adapters/a/1").unwrap();
    blobs
        .put(&key, &[(peft::CONFIG_FILE.to_owned(), b"{}".to_vec())])
        .unwrap();
    let place = folder.path().join(key.as_str()).join(peft::WEIGHTS_FILE);
    std::fs::create_dir(place).unwrap();
    let told = health(&blobs, &key, Digest::NONE);
    assert!(matches!(told, Health::Unreadable(_)), "{told:?}");
}
