//! Wrong passwords count by name and by address: guessing ends, and nobody is locked out by what others try.

#![allow(clippy::unwrap_used)]

use hone_domain::RateLimits;
use hone_ledger::{ApiKey, UserChange};
use hone_ledger_sql::{SqliteConfig, SqliteStore};
use hone_runtime::ManualClock;

use super::*;
use crate::defaults::defaults;
use crate::known::Recall;

const RIGHT: &str = "correct horse";
/// Wrong passwords of a name from one address.
const TRIES: u32 = 2;

struct Rig {
    people: Directory,
    clock: Arc<ManualClock>,
    _folder: tempfile::TempDir,
}

impl Rig {
    async fn new(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&SqliteConfig::in_folder(folder.path())).await;
        let clock = Arc::new(ManualClock::at(1_000));
        let config = PeopleConfig {
            attempts_max: TRIES,
            ..defaults("people")
        };
        let outbound = Arc::new(Outbound::new(&defaults("outbound")).unwrap());
        let opened = Directory::open(
            (Arc::new(store.unwrap()), clock.clone()),
            config,
            Some(outbound),
        );
        let people = opened.await.unwrap();
        for name in names {
            let user = User {
                name: (*name).to_owned(),
                role: UserRole::User,
                password: Some(secrets::hash_with(RIGHT, secrets::Cost::LOW).unwrap()),
                disabled: false,
                limits: RateLimits::default(),
                keeper: None,
                created_ms: 0,
                signed_in_ms: None,
            };
            let entry = AuditEntry {
                at_ms: 0,
                actor: String::new(),
                act: "user.add".to_owned(),
                object: (*name).to_owned(),
                detail: json!({}),
            };
            let changed = people.change(&PeopleChange::AddUser(user), &entry).await;
            assert_eq!(changed.unwrap(), Changed::Done);
        }
        Self {
            people,
            clock,
            _folder: folder,
        }
    }

    /// What comes of a try: `in`, `wrong`, or `wait`.
    async fn tries(&self, from: &str, name: &str, password: &str) -> &'static str {
        self.tries_on(from, None, (name, password)).await
    }

    /// The same on a device.
    async fn tries_on(
        &self,
        from: &str,
        device: Option<&str>,
        (name, password): (&str, &str),
    ) -> &'static str {
        let from = (from.parse().unwrap(), device);
        let sent = (name, password.to_owned());
        match self.people.sign_in(from, sent).await {
            Ok(_) => "in",
            Err(Error::Credentials { .. }) => "wrong",
            Err(Error::Limited { .. }) => "wait",
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn who_tries_elsewhere_locks_out_nobody_who_is_known_here() {
    let rig = Rig::new(&["ann", "bob"]).await;
    assert_eq!(rig.tries("192.0.2.1", "ann", RIGHT).await, "in");
    // Everywhere together, a name has as many tries as that many addresses.
    for n in 1..=TRIES_PER_NAME {
        let from = format!("198.51.100.{n}");
        for _ in 0..TRIES {
            assert_eq!(rig.tries(&from, "ann", "guess").await, "wrong", "{from}");
        }
        assert_eq!(rig.tries(&from, "ann", "guess").await, "wait", "{from}");
    }
    let rows = [
        ("203.0.113.1", "ann", "wait", "nobody knows this address"),
        ("192.0.2.1", "ann", "in", "she signed in from here"),
        ("127.0.0.1", "ann", "in", "this machine"),
        ("203.0.113.1", "bob", "in", "another name"),
    ];
    for (from, name, wanted, why) in rows {
        assert_eq!(rig.tries(from, name, RIGHT).await, wanted, "{why}");
    }
    // Where she is known, tries count as everywhere else.
    for _ in 0..TRIES {
        assert_eq!(rig.tries("192.0.2.1", "ann", "guess").await, "wrong");
    }
    assert_eq!(rig.tries("192.0.2.1", "ann", RIGHT).await, "wait");
    rig.clock.advance(rig.people.config().attempts_window_ms);
    assert_eq!(rig.tries("203.0.113.1", "ann", RIGHT).await, "in");
}

/// Behind a proxy that nobody named everybody has the proxy's address.
#[tokio::test]
async fn who_guesses_at_the_same_address_locks_out_no_device_that_is_known() {
    const PROXY: &str = "127.0.0.1";
    let rig = Rig::new(&["ann", "bob"]).await;
    let sign_in = async |name: &str| {
        let from = (PROXY.parse().unwrap(), None);
        let signed = rig.people.sign_in(from, (name, RIGHT.to_owned())).await;
        signed.unwrap().device
    };
    let (ann, bob) = (sign_in("ann").await, sign_in("bob").await);
    for name in ["ann", "bob", "c1", "c2", "c3", "c4", "c5"] {
        for _ in 0..=TRIES {
            rig.tries(PROXY, name, "guess").await;
        }
    }
    assert_eq!(rig.tries(PROXY, "ann", RIGHT).await, "wait");
    let forged = format!("{}.{}", &ann[..52], &bob[53..]);
    let rows = [
        (ann.as_str(), "in", "her own"),
        (bob.as_str(), "wait", "another's"),
        (forged.as_str(), "wait", "forged"),
        ("", "wait", "empty"),
        (&ann[..60], "wait", "cut"),
    ];
    for (device, wanted, why) in rows {
        let came = rig.tries_on(PROXY, Some(device), ("ann", RIGHT)).await;
        assert_eq!(came, wanted, "{why}");
    }
    // A device has no more tries than anybody else.
    for _ in 0..TRIES {
        let came = rig.tries_on(PROXY, Some(&ann), ("ann", "guess")).await;
        assert_eq!(came, "wrong");
    }
    let came = rig.tries_on(PROXY, Some(&ann), ("ann", RIGHT)).await;
    assert_eq!(came, "wait");
    // A new password ends what was known under the old one.
    rig.clock.advance(rig.people.config().attempts_window_ms);
    let changed = UserChange {
        password: Some(secrets::hash_with("another horse", secrets::Cost::LOW).unwrap()),
        ..UserChange::default()
    };
    let entry = AuditEntry {
        at_ms: 0,
        actor: String::new(),
        act: "user.password".to_owned(),
        object: "ann".to_owned(),
        detail: json!({}),
    };
    let change = PeopleChange::ChangeUser("ann".to_owned(), changed);
    rig.people.change(&change, &entry).await.unwrap();
    for _ in 0..TRIES {
        rig.tries(PROXY, "ann", "guess").await;
    }
    let came = rig
        .tries_on(PROXY, Some(&ann), ("ann", "another horse"))
        .await;
    assert_eq!(came, "wait");
}

#[tokio::test]
async fn one_address_does_not_try_name_after_name() {
    let names = ["a1", "a2", "a3", "a4", "a5", "bob"];
    let rig = Rig::new(&names).await;
    // Of IPv6 the network counts, which one person has as a whole.
    let from = |n: u32| format!("2001:db8::{n:x}");
    let (mut n, most) = (0, usize::try_from(TRIES_PER_ADDRESS).unwrap());
    for name in &names[..most] {
        for _ in 0..TRIES {
            n += 1;
            assert_eq!(rig.tries(&from(n), name, "guess").await, "wrong", "{name}");
        }
    }
    assert_eq!(rig.tries(&from(n + 1), "bob", RIGHT).await, "wait");
    assert_eq!(rig.tries("2001:db8:1::1", "bob", RIGHT).await, "in");
}

#[tokio::test]
async fn a_sign_in_has_nobody_verified_anew_and_a_change_has_everybody() {
    let rig = Rig::new(&[]).await;
    let (people, now_ms) = (&rig.people, rig.people.now_ms());
    let ann = User {
        name: "ann".to_owned(),
        role: UserRole::User,
        password: None,
        disabled: false,
        limits: RateLimits::default(),
        keeper: None,
        created_ms: now_ms,
        signed_in_ms: None,
    };
    let entry = audit::entry(&Caller::stranger(), now_ms, ("test", "ann"), json!({}));
    let change = async |change: PeopleChange| people.change(&change, &entry).await.unwrap();
    change(PeopleChange::AddUser(ann.clone())).await;
    let token = people.begin_session(ann.clone()).await.unwrap().token;
    assert!(people.session(&token).await.unwrap().is_some());
    let secret = secrets::digest(&token);
    let is_known = || {
        let recalled = locked(&people.memory).recall(&secret, now_ms);
        matches!(recalled, Recall::Known(_))
    };
    assert!(is_known());
    people.begin_session(ann).await.unwrap();
    assert!(is_known());
    let closed = UserChange {
        disabled: Some(true),
        ..UserChange::default()
    };
    change(PeopleChange::ChangeUser("ann".to_owned(), closed)).await;
    assert!(!is_known());
}

#[tokio::test]
async fn a_key_is_whose_digest_is_stored_and_an_older_form_says_what_to_do() {
    let rig = Rig::new(&["ann"]).await;
    let (people, from) = (&rig.people, "192.0.2.1".parse().unwrap());
    let entry = audit::entry(&Caller::stranger(), 0, ("key.make", "x"), json!({}));
    let add = async |sha256: &dyn Fn(&str) -> Option<Digest>| {
        let made = secrets::new_key().unwrap();
        let key = ApiKey {
            id: made.id,
            owner: "ann".to_owned(),
            label: String::new(),
            role: UserRole::User,
            sha256: sha256(&made.key),
            limits: RateLimits::default(),
            despite_store_false: false,
            raw_logprobs: None,
            memory: None,
            created_ms: 0,
            expires_ms: None,
            revoked_ms: None,
            used_ms: None,
        };
        let changed = people.change(&PeopleChange::AddKey(key), &entry).await;
        assert_eq!(changed.unwrap(), Changed::Done);
        made.key
    };
    let right = add(&|key| Some(secrets::digest(key))).await;
    let found = people.key(from, &right).await.unwrap();
    assert_eq!(found.map(|caller| caller.owner).as_deref(), Some("ann"));
    let wrong = add(&|_| Some(secrets::digest("another"))).await;
    assert!(people.key(from, &wrong).await.unwrap().is_none());
    let older = add(&|_| None).await;
    match people.key(from, &older).await {
        Err(Error::Credentials { code, message }) => {
            assert_eq!(code, "key_outdated");
            assert!(message.contains("hone key rotate"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}
