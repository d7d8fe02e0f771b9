//! People on SQLite: the suite, a log that tells when it was changed, a second process.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use hone_domain::{BlobKey, ForgetId, RateLimits, Scope, UserRole};
use serde_json::json;
use tempfile::TempDir;

use super::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_ledger::{
    AuditEntry, AuditQuery, ForgetWhat, ForgetWish, Import, Ledger, People, PeopleChange, Personal,
    User, Versions, suite,
};
use hone_ledger_queries::{Held as _, Store as _};

#[tokio::test]
async fn sqlite_passes_the_suite_of_people() {
    let folders = Mutex::new(Vec::<TempDir>::new());
    let make = async || {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::in_folder(folder.path());
        folders.lock().unwrap().push(folder);
        let people: Arc<dyn People> = Arc::new(SqliteStore::open(&config).await.unwrap());
        people
    };
    suite::people(make).await;
}

/// Who holds a copy of what somebody erases hears what became of it, and not of whom.
#[tokio::test]
async fn the_log_tells_every_scope_that_an_erasure_touches() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::in_folder(folder.path());
    let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
    let world = suite::World::new(ledger.clone());
    let taught = world.ready_turns(1, 0).await;
    let learned = world.learn_from_ready(0).await;
    let copy = Import {
        scope: Scope::of("ben", None),
        digest: learned.digest,
        blob: BlobKey::new("adapters/ben/1").unwrap(),
        report: json!({}),
        note: None,
        now_ms: 0,
    };
    ledger.import(&copy).await.unwrap();
    let wish = ForgetWish {
        id: ForgetId(world.batch().0),
        scope: world.scope(),
        owner: "owner".into(),
        what: ForgetWhat::Turns(vec![taught[0].id]),
        now_ms: 7,
        entry: entry(7),
    };
    // Repeated, it says nothing again.
    for _ in 0..2 {
        ledger.begin_forget(&wish).await.unwrap();
    }
    let all = AuditQuery {
        act: None,
        before: None,
        limit: 9,
    };
    let told = ledger.audit(&all).await.unwrap();
    let told: Vec<AuditEntry> = told.into_iter().map(|record| record.entry).collect();
    let elsewhere = AuditEntry {
        at_ms: 7,
        actor: "an erasure".into(),
        act: "version.taint".into(),
        object: copy.scope.as_str().into(),
        detail: json!({"versions": [1], "rolls_back_to": 0}),
    };
    assert_eq!(told, [entry(7), elsewhere]);
    assert_eq!(ledger.verify_audit().await.unwrap().first_broken, None);
}

fn entry(n: usize) -> AuditEntry {
    AuditEntry {
        at_ms: n as i64,
        actor: "root".into(),
        act: "loop.pause".into(),
        object: format!("{n}"),
        detail: json!({"n": n}),
    }
}

/// A hash of the older form cannot be converted: its key stays in the list, without one.
#[tokio::test]
async fn a_key_from_before_its_digest_was_stored_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::in_folder(folder.path());
    let ledger = SqliteStore::open(&config).await.unwrap();
    let before = "alter table api_keys drop column sha256;
         alter table api_keys add column hash text not null default '';
         insert into api_keys (id, owner, label, role, hash, limits, created_ms)
         values ('k1', 'ann', x'61', 'user', '$argon2id$v=19$m=1024', '{}', 7);
         delete from _sqlx_migrations where version = 25";
    let mut writer = ledger.store.writer.take().await.unwrap();
    let done = sqlx::raw_sql(before).execute(&mut *writer).await;
    done.unwrap();
    drop(writer);
    ledger.close().await;
    drop(ledger);
    let ledger = SqliteStore::open(&config).await.unwrap();
    let key = ledger.key("k1").await.unwrap().unwrap();
    assert_eq!((key.owner.as_str(), key.sha256), ("ann", None));
}

#[tokio::test]
async fn a_changed_log_is_told_and_the_database_refuses_to_change_it() {
    let rows = [
        "update audit set actor = 'eve' where number = 1500",
        "update audit set at_ms = 7 where number = 1500",
        "update audit set detail = cast('[]' as blob) where number = 1500",
        "update audit set detail = cast('{' as blob) where number = 1500",
        "update audit set hash = zeroblob(32) where number = 1500",
        "update audit set hash = zeroblob(3) where number = 1500",
        "delete from audit where number = 1500",
        "insert into audit (number, at_ms, actor, act, object, detail, hash)
         select 3000, at_ms, actor, act, object, detail, hash from audit where number = 1",
    ];
    for sql in rows {
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::in_folder(folder.path());
        let ledger = SqliteStore::open(&config).await.unwrap();
        let mut transaction = ledger.store.begin().await.unwrap();
        for n in 0..1_999 {
            hone_ledger_queries::audit::record(&mut transaction.connection(), &entry(n))
                .await
                .unwrap();
        }
        ledger.store.finish(transaction, Ok(())).await.unwrap();
        let check = ledger.verify_audit().await.unwrap();
        assert_eq!((check.entries, check.first_broken), (1_999, None));
        if !sql.starts_with("insert") {
            let refused = sqlx::query(sql)
                .execute(&mut *ledger.store.writer.take().await.unwrap())
                .await
                .unwrap_err();
            assert!(refused.to_string().contains("append-only"), "{refused}");
        }
        for trigger in ["audit_keeps_rows", "audit_loses_none"] {
            let drop = sqlx::AssertSqlSafe(format!("drop trigger {trigger}"));
            sqlx::query(drop)
                .execute(&mut *ledger.store.writer.take().await.unwrap())
                .await
                .unwrap();
        }
        sqlx::query(sql)
            .execute(&mut *ledger.store.writer.take().await.unwrap())
            .await
            .unwrap();
        let check = ledger.verify_audit().await.unwrap();
        let wanted = if sql.starts_with("insert") {
            2_000
        } else {
            1_500
        };
        assert_eq!(check.first_broken, Some(wanted), "{sql}");
    }
}

fn user(name: String) -> User {
    User {
        name,
        role: UserRole::User,
        password: None,
        disabled: false,
        limits: RateLimits::default(),
        keeper: None,
        created_ms: 1,
        signed_in_ms: None,
    }
}

/// The owner of the folder and a visitor write at the same time; the log stays one chain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_visitor_works_beside_the_owner() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::in_folder(folder.path());
    let owner = Arc::new(SqliteStore::open(&config).await.unwrap());
    let visitor = Arc::new(SqliteStore::open_beside(&config).await.unwrap());
    let before = owner.revision().await.unwrap();
    let add = |ledger: Arc<SqliteLedger>, name: &'static str| {
        tokio::spawn(async move {
            for n in 0..40 {
                let change = PeopleChange::AddUser(user(format!("{name}{n}")));
                ledger.change(&change, &entry(n)).await.unwrap();
            }
        })
    };
    let tasks = [add(owner.clone(), "owner"), add(visitor.clone(), "visitor")];
    for task in tasks {
        task.await.unwrap();
    }
    visitor.close().await;
    assert_eq!(owner.users().await.unwrap().len(), 80);
    assert_eq!(owner.revision().await.unwrap(), before + 80);
    let check = owner.verify_audit().await.unwrap();
    assert_eq!((check.entries, check.first_broken), (80, None));
    owner.close().await;

    // Without an owner the visitor becomes one, and makes the database where there is none.
    for folder in [folder.path().to_path_buf(), folder.path().join("new")] {
        let config = SqliteConfig::in_folder(&folder);
        let alone = SqliteStore::open_beside(&config).await.unwrap();
        assert!(SqliteStore::open(&config).await.is_err());
        alone.close().await;
    }
}

#[tokio::test]
async fn a_visitor_of_another_schema_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::in_folder(folder.path());
    let owner = SqliteStore::open(&config).await.unwrap();
    sqlx::query("pragma user_version = 1")
        .execute(&mut *owner.store.writer.take().await.unwrap())
        .await
        .unwrap();
    let Err(error) = SqliteStore::open_beside(&config).await else {
        panic!("it opened");
    };
    assert!(error.to_string().contains("another schema"), "{error}");
}
