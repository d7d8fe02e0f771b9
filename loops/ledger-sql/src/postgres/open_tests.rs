//! What a start refuses: one sentence that says what to do, and nothing written.

#![allow(clippy::unwrap_used)]

use hone_ledger::{Ledger as _, LedgerError};
use sqlx::{Connection as _, PgConnection};

use super::server::Server;
use super::tests::fresh;
use super::{PostgresConfig, PostgresStore, Role};
use crate::StoredLedger as _;

async fn refusal(config: &PostgresConfig) -> String {
    match PostgresStore::open(config).await.err() {
        Some(LedgerError::Unusable(text)) => text,
        other => panic!("{other:?}"),
    }
}

async fn run(config: &PostgresConfig, sql: &str) {
    let mut connection = PgConnection::connect(&config.url).await.unwrap();
    let sql = sql.replace("SCHEMA", &config.schema);
    let ran = sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(&mut connection)
        .await;
    ran.unwrap();
}

/// The schemas of a database, and how many tables each has.
async fn written(url: &str) -> Vec<(String, i64)> {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let tables = "select nspname::text, count(pg_class.oid) from pg_namespace
                  left join pg_class on relnamespace = pg_namespace.oid
                  where nspname !~ '^(pg_|ledger_)' group by 1 order by 1";
    sqlx::query_as(tables)
        .fetch_all(&mut connection)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_wrong_address_is_named_with_a_way_out() {
    let server = Server::shared();
    let secret = "swordfish";
    for (url, says) in [
        (String::new(), "postgres://USER:PASSWORD@HOST"),
        (
            format!("mysql://a:{secret}@b/c"),
            "postgres://USER:PASSWORD@HOST",
        ),
        (
            format!("postgres://a:{secret}@127.0.0.1:1/hone"),
            "does not answer",
        ),
        (
            format!("postgres://a:{secret}@no-such-host.invalid/hone"),
            "does not answer",
        ),
        (server.url_of("hone", "elsewhere"), "createdb"),
        (
            server.url_of("nobody_known", "postgres"),
            "refuses the user",
        ),
    ] {
        let config = PostgresConfig {
            patience_ms: 10_000,
            ..PostgresConfig::at(&url)
        };
        let told = refusal(&config).await;
        assert!(told.contains(says), "{url}: {told}");
        assert!(!told.contains(secret) && !told.contains('\n'), "{told}");
    }
}

#[tokio::test]
async fn a_missing_right_is_named_and_nothing_is_written() {
    let server = Server::shared();
    let owner = PostgresConfig::at(&server.url_of("hone", "postgres"));
    run(&owner, "create role guest login").await;
    server.make_database("guarded");
    let config = PostgresConfig::at(&server.url_of("guest", "guarded"));
    let before = written(&server.url_of("hone", "guarded")).await;
    let told = refusal(&config).await;
    assert!(told.contains("grant create on database"), "{told}");
    assert_eq!(written(&server.url_of("hone", "guarded")).await, before);
    let granting = PostgresConfig::at(&server.url_of("hone", "guarded"));
    run(&granting, "grant create on database guarded to guest").await;
    PostgresStore::open(&config).await.unwrap().close().await;
    // One that may only look is told so as well.
    run(
        &granting,
        "create role visitor login; grant usage on schema hone to visitor",
    )
    .await;
    let told = refusal(&PostgresConfig::at(&server.url_of("visitor", "guarded"))).await;
    assert!(told.contains("lacks a right"), "{told}");
}

#[tokio::test]
async fn another_schema_is_left_alone() {
    for (harm, says) in [
        (
            "insert into SCHEMA._sqlx_migrations (version, description, success, checksum, execution_time)
             values (9999, 'later', true, '', 0)",
            "newer hone",
        ),
        ("drop index SCHEMA.turns_open", "lacks index turns_open"),
        (
            "drop schema SCHEMA cascade; create schema SCHEMA; create table SCHEMA.scopes (name text)",
            "another program",
        ),
        (
            "update SCHEMA._sqlx_migrations set checksum = '\\x00'",
            "does not fit this program",
        ),
    ] {
        let config = fresh();
        PostgresStore::open(&config).await.unwrap().close().await;
        run(&config, harm).await;
        let told = refusal(&config).await;
        assert!(told.contains(says), "{told}");
        let again = refusal(&config).await;
        assert_eq!(told, again, "nothing was written");
    }
}

#[tokio::test]
async fn a_part_that_is_removed_under_an_open_ledger_is_named() {
    let config = fresh();
    let ledger = PostgresStore::open(&config).await.unwrap();
    assert_eq!(ledger.missing_parts().await.unwrap(), Vec::<String>::new());
    run(&config, "drop trigger turns_counted on SCHEMA.turns").await;
    let missing = ledger.check_stored().await.unwrap();
    assert_eq!(missing, ["trigger turns_counted is missing"]);
}

#[tokio::test]
async fn a_role_belongs_to_one_process() {
    let config = |roles: &[Role], schema: &str| PostgresConfig {
        roles: roles.to_vec(),
        schema: schema.to_owned(),
        ..fresh()
    };
    let schema = fresh().schema;
    let all = [Role::Judge, Role::Train, Role::Memory];
    let first = PostgresStore::open(&config(&all, &schema)).await.unwrap();
    let process = format!("hone, process {}", std::process::id());
    for (role, verb) in [
        (Role::Train, "trains already"),
        (Role::Memory, "keeps memories already"),
    ] {
        let error = PostgresStore::open(&config(&[role], &schema)).await.err();
        let Some(LedgerError::RoleTaken(told)) = error else {
            panic!("{error:?}");
        };
        for says in [verb, &process, "--loops"] {
            assert!(told.contains(says), "{told}");
        }
    }
    // Without the role it may; and another ledger has roles of its own.
    PostgresStore::open(&config(&[], &schema)).await.unwrap();
    PostgresStore::open(&config(&all, &fresh().schema))
        .await
        .unwrap();
    first.close().await;
    PostgresStore::open(&config(&all, &schema)).await.unwrap();
}
