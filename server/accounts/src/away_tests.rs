//! Whoever the store knew is still known while it does not answer, for a time, and nobody else.

#![allow(clippy::unwrap_used)]

use std::net::IpAddr;

use hone_domain::RateLimits;
use hone_ledger::{ApiKey, Ledger as _};
use hone_ledger_sql::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_runtime::ManualClock;

use super::*;
use crate::defaults::defaults;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const AWAY_MS_MAX: Millis = 60_000;

struct Rig {
    people: Directory,
    store: Arc<SqliteLedger>,
    clock: Arc<ManualClock>,
    _folder: tempfile::TempDir,
}

impl Rig {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&SqliteConfig::in_folder(folder.path())).await;
        let (store, clock) = (Arc::new(store.unwrap()), Arc::new(ManualClock::at(1_000)));
        let config = PeopleConfig {
            away_ms_max: AWAY_MS_MAX,
            ..defaults("people")
        };
        let people = Directory::open((store.clone(), clock.clone()), config, None).await;
        Self {
            people: people.unwrap(),
            store,
            clock,
            _folder: folder,
        }
    }

    async fn change(&self, change: PeopleChange) {
        let entry = audit::entry(&Caller::stranger(), 0, ("test", "it"), json!({}));
        let changed = self.people.change(&change, &entry).await.unwrap();
        assert_eq!(changed, Changed::Done);
    }

    /// A new key, which nobody has used yet.
    async fn add_key(&self) -> secrets::NewKey {
        let key = secrets::new_key().unwrap();
        let stored = ApiKey {
            id: key.id.clone(),
            sha256: Some(secrets::digest(&key.key)),
            label: String::new(),
            owner: "ann".to_owned(),
            role: UserRole::User,
            limits: RateLimits::default(),
            despite_store_false: false,
            raw_logprobs: None,
            memory: None,
            created_ms: 0,
            expires_ms: None,
            used_ms: None,
            revoked_ms: None,
        };
        self.change(PeopleChange::AddKey(stored)).await;
        key
    }

    /// Whether a key is somebody's; none where nobody can tell.
    async fn knows(&self, key: &secrets::NewKey) -> Option<bool> {
        let found = self.people.key(HERE, &key.key).await.ok()?;
        Some(found.is_some())
    }
}

#[tokio::test]
async fn whoever_was_known_is_known_for_a_time() {
    let rig = Rig::new().await;
    let [known, unknown] = [rig.add_key().await, rig.add_key().await];
    assert_eq!(rig.knows(&known).await, Some(true));
    rig.people.look().await.unwrap();
    rig.store.close().await;
    // People had changed just before, so it would have been verified anew.
    assert!(rig.people.look().await.is_err());
    for _ in 0..2 {
        assert_eq!(rig.knows(&known).await, Some(true));
        assert_eq!(rig.knows(&unknown).await, None);
    }
    rig.clock.advance(AWAY_MS_MAX);
    assert_eq!(rig.knows(&known).await, Some(true));
    rig.clock.advance(1);
    assert_eq!(rig.knows(&known).await, None);
}

#[tokio::test]
async fn who_was_just_verified_counts_from_the_last_time_that_the_store_answered() {
    let rig = Rig::new().await;
    let key = rig.add_key().await;
    rig.people.look().await.unwrap();
    assert_eq!(rig.knows(&key).await, Some(true));
    rig.clock.advance(AWAY_MS_MAX);
    rig.people.look().await.unwrap();
    rig.store.close().await;
    rig.clock.advance(AWAY_MS_MAX);
    assert_eq!(rig.knows(&key).await, Some(true));
    rig.clock.advance(1);
    assert_eq!(rig.knows(&key).await, None);
}

#[tokio::test]
async fn a_key_that_was_revoked_here_is_gone_at_once() {
    let rig = Rig::new().await;
    let [revoked, other] = [rig.add_key().await, rig.add_key().await];
    for key in [&revoked, &other] {
        assert_eq!(rig.knows(key).await, Some(true));
    }
    let revoke = PeopleChange::RevokeKey(revoked.id.clone(), 5);
    rig.change(revoke).await;
    rig.store.close().await;
    assert_eq!(rig.knows(&revoked).await, None);
}
