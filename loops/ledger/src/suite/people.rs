//! The contract of [`People`] as code: every implementation passes [`people`].

use std::sync::Arc;

use hone_domain::{Digest, MemoryMode, RateLimits, UserRole};
use serde_json::json;

use super::teams;
use super::world::NOW;
use crate::{
    AUDIT_ORIGIN, ApiKey, AuditEntry, AuditQuery, Changed, Invite, KeyChange, People, PeopleChange,
    SignIn, User, UserChange, Uses,
};

/// Runs every case; `make` returns an empty store each time.
pub async fn people(make: impl AsyncFn() -> Arc<dyn People>) {
    accounts_come_back_exactly(&*make().await).await;
    keys_live_and_end(&*make().await).await;
    a_rotated_key_has_a_successor(&*make().await).await;
    sign_ins_end_with_their_account(&*make().await).await;
    an_invitation_makes_one_account(&*make().await).await;
    an_invitation_is_refused_while_its_account_is_closed(&*make().await).await;
    an_invitation_is_refused_while_its_account_may_less(&*make().await).await;
    an_invitation_needs_no_account_behind_it(&*make().await).await;
    the_first_link_ends_with_the_first_account(&*make().await).await;
    the_revision_tells_what_a_cache_must_forget(&*make().await).await;
    every_change_is_recorded_once(&*make().await).await;
    the_log_is_listed_in_pages(&*make().await).await;
    teams::an_agent_has_a_keeper_and_never_a_password(&*make().await).await;
    teams::everybody_is_in_one_team_at_most(&*make().await).await;
    teams::a_change_of_a_team_is_told(&*make().await).await;
}

pub(super) fn user(name: &str) -> User {
    User {
        name: name.into(),
        role: UserRole::Developer,
        password: Some("phc".into()),
        disabled: false,
        limits: RateLimits::default(),
        keeper: None,
        created_ms: NOW,
        signed_in_ms: None,
    }
}

fn key(id: &str, owner: &str) -> ApiKey {
    ApiKey {
        id: id.into(),
        owner: owner.into(),
        label: "a\0b".into(),
        role: UserRole::User,
        sha256: Some(Digest([7; 32])),
        limits: RateLimits::default(),
        despite_store_false: false,
        raw_logprobs: None,
        memory: Some(MemoryMode::Read),
        created_ms: NOW,
        expires_ms: None,
        revoked_ms: None,
        used_ms: None,
    }
}

pub(super) fn entry(act: &str) -> AuditEntry {
    AuditEntry {
        at_ms: NOW,
        actor: "root".into(),
        act: act.into(),
        object: "x\0y".into(),
        detail: json!({"a": 1.5, "b": [null, "c"]}),
    }
}

fn sign_in(n: u8, user: &str) -> SignIn {
    SignIn {
        token: Digest([n; 32]),
        user: user.into(),
        created_ms: NOW,
        used_ms: NOW,
    }
}

pub(super) async fn change(people: &dyn People, change: PeopleChange) -> Changed {
    let changed = people.change(&change, &entry("some.act")).await;
    changed.expect("the change is possible")
}

pub(super) async fn done(people: &dyn People, wanted: PeopleChange) {
    let shown = format!("{wanted:?}");
    assert_eq!(change(people, wanted).await, Changed::Done, "{shown}");
}

async fn accounts_come_back_exactly(people: &dyn People) {
    assert!(people.user("ann").await.expect("read").is_none());
    let mut ann = user("ann");
    ann.limits.tokens_per_day = Some(7);
    done(people, PeopleChange::AddUser(user("bob"))).await;
    done(people, PeopleChange::AddUser(ann.clone())).await;
    let again = change(people, PeopleChange::AddUser(user("ann"))).await;
    assert_eq!(again, Changed::Taken);
    assert_eq!(
        people.users().await.expect("read"),
        [ann.clone(), user("bob")]
    );

    let changes = UserChange {
        role: Some(UserRole::Auditor),
        password: Some("new".into()),
        disabled: None,
        limits: Some(RateLimits::default()),
    };
    done(people, PeopleChange::ChangeUser("ann".into(), changes)).await;
    ann.role = UserRole::Auditor;
    ann.password = Some("new".into());
    ann.limits = RateLimits::default();
    assert_eq!(people.user("ann").await.expect("read"), Some(ann));
    let nobody = PeopleChange::ChangeUser("nobody".into(), UserChange::default());
    assert_eq!(change(people, nobody).await, Changed::Missing);
}

async fn keys_live_and_end(people: &dyn People) {
    for (id, owner) in [("k1", "ann"), ("k2", "bob"), ("k3", "ann")] {
        done(people, PeopleChange::AddKey(key(id, owner))).await;
    }
    let again = change(people, PeopleChange::AddKey(key("k1", "eve"))).await;
    assert_eq!(again, Changed::Taken);
    let keys = people.keys(Some("ann")).await.expect("read");
    assert_eq!(keys, [key("k3", "ann"), key("k1", "ann")], "newest first");
    assert_eq!(people.keys(None).await.expect("read").len(), 3);

    let revision = people.revision().await.expect("read");
    let despite = KeyChange {
        despite_store_false: Some(true),
        ..KeyChange::default()
    };
    let raw = |raw| KeyChange {
        raw_logprobs: Some(raw),
        ..KeyChange::default()
    };
    let memory = |memory| KeyChange {
        memory: Some(memory),
        ..KeyChange::default()
    };
    for (wanted, expected) in [
        (KeyChange::default(), Some(MemoryMode::Read)),
        (memory(Some(MemoryMode::Off)), Some(MemoryMode::Off)),
        (memory(None), None),
    ] {
        done(people, PeopleChange::ChangeKey("k3".into(), wanted)).await;
        let changed = people.key("k3").await.expect("read").expect("kept");
        assert_eq!(changed.memory, expected);
    }
    for (wanted, settings) in [
        (despite, (true, None)),
        (raw(Some(true)), (true, Some(true))),
        (KeyChange::default(), (true, Some(true))),
        (raw(None), (true, None)),
    ] {
        done(people, PeopleChange::ChangeKey("k3".into(), wanted)).await;
        let changed = people.key("k3").await.expect("read").expect("kept");
        assert_eq!(
            (changed.despite_store_false, changed.raw_logprobs),
            settings
        );
    }
    assert!(people.revision().await.expect("read") > revision);

    let uses = Uses {
        keys: vec![("k1".to_owned(), NOW + 9), ("gone".to_owned(), NOW)],
        ..Uses::default()
    };
    people.note_uses(&uses, 0).await.expect("noted");
    done(people, PeopleChange::RevokeKey("k1".into(), NOW + 10)).await;
    for id in ["k1", "gone"] {
        let again = PeopleChange::RevokeKey(id.into(), NOW + 11);
        assert_eq!(change(people, again).await, Changed::Missing, "{id}");
        let late = PeopleChange::ChangeKey(id.into(), despite);
        assert_eq!(change(people, late).await, Changed::Missing, "{id}");
    }
    let revoked = people.key("k1").await.expect("read").expect("kept");
    assert_eq!(
        (revoked.revoked_ms, revoked.used_ms),
        (Some(NOW + 10), Some(NOW + 9))
    );
}

async fn a_rotated_key_has_a_successor(people: &dyn People) {
    done(people, PeopleChange::AddKey(key("k1", "ann"))).await;
    let rotate =
        |old: &str, new: &str, ends| PeopleChange::RotateKey(old.to_owned(), key(new, "ann"), ends);
    done(people, rotate("k1", "k2", NOW + 50)).await;
    let ends = |id: &'static str| async move {
        people
            .key(id)
            .await
            .expect("read")
            .expect("kept")
            .expires_ms
    };
    assert_eq!((ends("k1").await, ends("k2").await), (Some(NOW + 50), None));
    done(people, rotate("k1", "k3", NOW + 90)).await;
    assert_eq!(ends("k1").await, Some(NOW + 50), "an end never moves away");
    done(people, PeopleChange::RevokeKey("k2".into(), NOW)).await;
    assert_eq!(
        change(people, rotate("k2", "k4", NOW)).await,
        Changed::Missing
    );
    assert!(people.key("k4").await.expect("read").is_none());
}

async fn sign_ins_end_with_their_account(people: &dyn People) {
    let nobody = change(people, PeopleChange::SignIn(sign_in(1, "ann"))).await;
    assert_eq!(nobody, Changed::Missing);
    done(people, PeopleChange::AddUser(user("ann"))).await;
    done(people, PeopleChange::AddUser(user("bob"))).await;
    for (n, name) in [(1, "ann"), (2, "ann"), (3, "bob")] {
        done(people, PeopleChange::SignIn(sign_in(n, name))).await;
    }
    let is_there = |n: u8| async move {
        let found = people.sign_in(Digest([n; 32])).await.expect("read");
        found.is_some()
    };
    assert_eq!(
        people
            .user("ann")
            .await
            .expect("read")
            .expect("there")
            .signed_in_ms,
        Some(NOW)
    );
    done(people, PeopleChange::SignOut(Digest([1; 32]))).await;
    let again = change(people, PeopleChange::SignOut(Digest([1; 32]))).await;
    assert_eq!(again, Changed::Missing);
    assert!(!is_there(1).await && is_there(2).await);
    let close = UserChange {
        disabled: Some(true),
        ..UserChange::default()
    };
    done(people, PeopleChange::ChangeUser("ann".into(), close)).await;
    assert!(!is_there(2).await && is_there(3).await);
    let closed = change(people, PeopleChange::SignIn(sign_in(4, "ann"))).await;
    assert_eq!(closed, Changed::Missing);

    let uses = Uses {
        sign_ins: vec![(Digest([3; 32]), NOW + 5)],
        ..Uses::default()
    };
    people.note_uses(&uses, NOW + 5).await.expect("noted");
    assert!(is_there(3).await);
    people
        .note_uses(&Uses::default(), NOW + 6)
        .await
        .expect("noted");
    assert!(!is_there(3).await, "idle for too long");
}

async fn an_invitation_makes_one_account(people: &dyn People) {
    let token = Digest([9; 32]);
    let invite = Invite {
        token,
        role: UserRole::Developer,
        name: Some("ann".into()),
        by: "root".into(),
        created_ms: NOW,
        expires_ms: NOW + 10,
    };
    done(people, PeopleChange::Invite(invite.clone())).await;
    assert_eq!(
        people.invite(token).await.expect("read"),
        Some(invite.clone())
    );
    let mut late = user("ann");
    late.created_ms = NOW + 10;
    let mut above = user("ann");
    above.role = UserRole::Admin;
    for wrong in [user("bob"), late, above] {
        let shown = format!("{wrong:?}");
        let taken = change(people, PeopleChange::TakeInvite(token, wrong)).await;
        assert_eq!(taken, Changed::Missing, "{shown}");
    }
    done(people, PeopleChange::TakeInvite(token, user("ann"))).await;
    assert_eq!(people.user("ann").await.expect("read"), Some(user("ann")));
    assert_eq!(people.invite(token).await.expect("read"), None, "used up");
    let again = change(people, PeopleChange::TakeInvite(token, user("ann"))).await;
    assert_eq!(again, Changed::Missing);

    let open = Invite {
        token: Digest([8; 32]),
        name: None,
        ..invite
    };
    done(people, PeopleChange::Invite(open.clone())).await;
    let taken = change(people, PeopleChange::TakeInvite(open.token, user("ann"))).await;
    assert_eq!(taken, Changed::Taken);
    done(people, PeopleChange::TakeInvite(open.token, user("eve"))).await;
}

fn invite(byte: u8, role: UserRole, by: &str) -> Invite {
    Invite {
        token: Digest([byte; 32]),
        role,
        name: None,
        by: by.into(),
        created_ms: NOW,
        expires_ms: NOW + 10,
    }
}

/// An admin with an open invitation to the role of [`user`] (1) and one to the least role (2).
async fn an_admin_invites(people: &dyn People) {
    let mut host = user("host");
    host.role = UserRole::Admin;
    done(people, PeopleChange::AddUser(host)).await;
    for invite in [
        invite(1, UserRole::Developer, "host"),
        invite(2, UserRole::User, "host"),
    ] {
        done(people, PeopleChange::Invite(invite)).await;
    }
}

/// Which of the invitations (1) and (2) are there.
async fn open_invites(people: &dyn People) -> [bool; 2] {
    let is_open = async |byte| {
        let found = people.invite(Digest([byte; 32])).await.expect("read");
        found.is_some()
    };
    [is_open(1).await, is_open(2).await]
}

async fn take(people: &dyn People, byte: u8, name: &str) -> Changed {
    change(
        people,
        PeopleChange::TakeInvite(Digest([byte; 32]), user(name)),
    )
    .await
}

async fn an_invitation_is_refused_while_its_account_is_closed(people: &dyn People) {
    an_admin_invites(people).await;
    assert_eq!(open_invites(people).await, [true, true]);
    let closed = |disabled| UserChange {
        disabled: Some(disabled),
        ..UserChange::default()
    };
    done(
        people,
        PeopleChange::ChangeUser("host".into(), closed(true)),
    )
    .await;
    assert_eq!(open_invites(people).await, [false, false]);
    for name in ["ann", "host"] {
        assert_eq!(take(people, 1, name).await, Changed::Missing, "{name}");
    }
    assert_eq!(people.user("ann").await.expect("read"), None);
    // Like its keys, its invitations hold again with the account.
    done(
        people,
        PeopleChange::ChangeUser("host".into(), closed(false)),
    )
    .await;
    assert_eq!(take(people, 1, "ann").await, Changed::Done);
    assert_eq!(open_invites(people).await, [false, true]);
}

async fn an_invitation_is_refused_while_its_account_may_less(people: &dyn People) {
    an_admin_invites(people).await;
    let demoted = |role| {
        let change = UserChange {
            role: Some(role),
            ..UserChange::default()
        };
        PeopleChange::ChangeUser("host".into(), change)
    };
    for role in [UserRole::User, UserRole::Auditor, UserRole::Developer] {
        done(people, demoted(role)).await;
        assert_eq!(open_invites(people).await, [false, false], "{role:?}");
    }
    done(people, demoted(UserRole::Auditor)).await;
    assert_eq!(take(people, 1, "ann").await, Changed::Missing);
    assert_eq!(people.user("ann").await.expect("read"), None);
    done(people, demoted(UserRole::Admin)).await;
    assert_eq!(take(people, 1, "ann").await, Changed::Done);
}

async fn an_invitation_needs_no_account_behind_it(people: &dyn People) {
    let mut other = user("other");
    (other.role, other.disabled) = (UserRole::User, true);
    done(people, PeopleChange::AddUser(other)).await;
    for (byte, by) in [(1, "a-configured-key"), (2, "local"), (3, "oidc:Ann")] {
        let invite = invite(byte, UserRole::Developer, by);
        done(people, PeopleChange::Invite(invite.clone())).await;
        let found = people.invite(invite.token).await.expect("read");
        assert_eq!(found, Some(invite));
        let name = format!("guest-{byte}");
        assert_eq!(take(people, byte, &name).await, Changed::Done, "{by}");
    }
}

async fn the_first_link_ends_with_the_first_account(people: &dyn People) {
    let [used, other] = [7, 6].map(|byte| invite(byte, UserRole::Developer, ""));
    for invite in [&used, &other] {
        done(people, PeopleChange::Invite(invite.clone())).await;
        let found = people.invite(invite.token).await.expect("read");
        assert_eq!(found.as_ref(), Some(invite));
    }
    done(people, PeopleChange::TakeInvite(used.token, user("ann"))).await;
    assert_eq!(people.invite(other.token).await.expect("read"), None);
    for name in ["ann", "eve"] {
        let taken = change(people, PeopleChange::TakeInvite(other.token, user(name))).await;
        assert_eq!(taken, Changed::Missing, "{name}");
    }
}

async fn the_revision_tells_what_a_cache_must_forget(people: &dyn People) {
    let change_user = |change| PeopleChange::ChangeUser("ann".into(), change);
    let role = UserChange {
        role: Some(UserRole::User),
        ..UserChange::default()
    };
    let rows = [
        PeopleChange::AddUser(user("ann")),
        change_user(role),
        PeopleChange::AddKey(key("k1", "ann")),
        PeopleChange::RotateKey("k1".into(), key("k2", "ann"), NOW),
        PeopleChange::RevokeKey("k1".into(), NOW),
    ];
    for row in rows {
        let before = people.revision().await.expect("read");
        let shown = format!("{row:?}");
        done(people, row).await;
        assert!(people.revision().await.expect("read") > before, "{shown}");
    }
    done(people, PeopleChange::SignIn(sign_in(1, "ann"))).await;
    let before = people.revision().await.expect("read");
    let uses = Uses {
        keys: vec![("k2".to_owned(), NOW)],
        ..Uses::default()
    };
    people.note_uses(&uses, 0).await.expect("noted");
    assert_eq!(people.revision().await.expect("read"), before, "a use");
    done(people, PeopleChange::SignOut(Digest([1; 32]))).await;
    assert!(
        people.revision().await.expect("read") > before,
        "a sign-out"
    );
}

async fn every_change_is_recorded_once(people: &dyn People) {
    let check = people.verify_audit().await.expect("read");
    assert_eq!((check.entries, check.head), (0, AUDIT_ORIGIN));
    done(people, PeopleChange::AddUser(user("ann"))).await;
    change(people, PeopleChange::AddUser(user("ann"))).await;
    change(people, PeopleChange::SignOut(Digest([1; 32]))).await;
    let second = people.record(&entry("other.act")).await.expect("recorded");
    assert_eq!((second.number, &second.entry), (2, &entry("other.act")));
    let query = AuditQuery {
        limit: 10,
        ..AuditQuery::default()
    };
    let records = people.audit(&query).await.expect("read");
    assert_eq!(records.len(), 2, "what changed nothing leaves no record");
    assert_eq!(records[0], second);
    let check = people.verify_audit().await.expect("read");
    assert_eq!((check.entries, check.first_broken), (2, None));
    assert_eq!(check.head, second.hash);
    assert_ne!(records[1].hash, second.hash);
}

async fn the_log_is_listed_in_pages(people: &dyn People) {
    for n in 0..5 {
        let act = if n % 2 == 0 { "even" } else { "odd" };
        people.record(&entry(act)).await.expect("recorded");
    }
    let list = |before, act: Option<&str>, limit| {
        let act = act.map(str::to_owned);
        async move {
            let query = AuditQuery { before, act, limit };
            let records = people.audit(&query).await.expect("read");
            records.iter().map(|r| r.number).collect::<Vec<_>>()
        }
    };
    assert_eq!(list(None, None, 2).await, [5, 4]);
    assert_eq!(list(Some(4), None, 9).await, [3, 2, 1]);
    assert_eq!(list(None, Some("odd"), 9).await, [4, 2]);
    assert_eq!(list(Some(5), Some("even"), 1).await, [3]);
}
