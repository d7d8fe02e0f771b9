//! The suite on PostgreSQL.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hone_ledger::{
    Answers, Changes as _, Ledger, Memories, People, Personal, Reading as _, TurnFilter, suite,
};
use sqlx::{Connection as _, PgConnection};

use super::server::Server;
use super::{PostgresConfig, PostgresLedger, PostgresStore};
use hone_ledger_queries::{Held as _, Store as _};

/// A schema of its own on this process's server.
pub(crate) fn fresh() -> PostgresConfig {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    PostgresConfig {
        schema: format!("ledger_{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        // Many ledgers are open at once.
        readers: 2,
        patience_ms: 60_000,
        ..PostgresConfig::at(&Server::shared().url_of("hone", "postgres"))
    }
}

pub(super) async fn open() -> Arc<PostgresLedger> {
    Arc::new(PostgresStore::open(&fresh()).await.unwrap())
}

#[tokio::test]
async fn postgresql_passes_the_suite() {
    suite::run(async || open().await as Arc<dyn Ledger>).await;
}

#[tokio::test]
async fn postgresql_passes_the_suite_of_people() {
    suite::personal(async || {
        let ledger = open().await;
        (
            ledger.clone() as Arc<dyn Ledger>,
            ledger as Arc<dyn Personal>,
        )
    })
    .await;
}

#[tokio::test]
async fn postgresql_passes_the_suite_of_memories() {
    suite::memories(async || {
        let ledger = open().await;
        (
            ledger.clone() as Arc<dyn Ledger>,
            ledger.clone() as Arc<dyn Personal>,
            ledger as Arc<dyn Memories>,
        )
    })
    .await;
}

#[tokio::test]
async fn postgresql_passes_the_suite_of_progress() {
    suite::progress(async || open().await).await;
}

#[tokio::test]
async fn postgresql_passes_the_suite_of_skills() {
    suite::skills(async || open().await).await;
}

#[tokio::test]
async fn postgresql_passes_the_suite_of_jobs() {
    suite::jobs(async || open().await).await;
}

#[tokio::test]
async fn postgresql_passes_the_suite_of_changes() {
    suite::changes(async || open().await).await;
}

/// Another process hears of a change when it is made, and of nothing where nothing is.
#[tokio::test]
async fn another_process_is_told_of_a_change() {
    let config = fresh();
    let one = Arc::new(PostgresStore::open(&config).await.unwrap());
    let other = PostgresStore::open_beside(&config).await.unwrap();
    let wait = |patience_ms| {
        tokio::time::timeout(
            std::time::Duration::from_millis(patience_ms),
            other.changed(),
        )
    };
    // The first call begins to listen and says so.
    wait(30_000).await.unwrap();
    assert!(wait(300).await.is_err(), "nothing changed");
    let world = suite::World::new(one.clone());
    let publishing = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        world.publish_next(0).await
    };
    let (heard, published) = tokio::join!(wait(30_000), publishing);
    heard.unwrap();
    let changes = other.changes_after(0, 10).await.unwrap();
    assert_eq!(changes[0].scope, published.scope);
    assert_eq!(other.newest_change().await.unwrap(), changes[0].number);
}

#[tokio::test]
async fn postgresql_passes_the_suite_of_storage() {
    suite::storage(async || open().await).await;
}

#[tokio::test]
async fn postgresql_passes_the_suite_of_versions() {
    suite::versions::run(async || open().await).await;
}

#[tokio::test]
async fn random_calls_keep_the_laws() {
    let mut trained = 0;
    for seed in 0..4 {
        let ledger = open().await;
        trained += suite::random(ledger.clone(), seed, 400).await;
        ledger.close().await;
    }
    assert!(
        trained > 15,
        "only {trained} turns were trained, so the runs prove little"
    );
}

#[tokio::test]
async fn postgresql_passes_the_suite_of_accounts() {
    suite::people(async || open().await as Arc<dyn People>).await;
}

#[tokio::test]
async fn postgresql_passes_the_suite_of_answers() {
    suite::answers(async || {
        let ledger = open().await;
        (
            ledger.clone() as Arc<dyn Ledger>,
            ledger.clone() as Arc<dyn Answers>,
            ledger as Arc<dyn Personal>,
        )
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_passes_the_suite_of_two_processes() {
    suite::concurrent(async || {
        let config = fresh();
        let open = async || Arc::new(PostgresStore::open(&config).await.unwrap());
        [open().await, open().await]
    })
    .await;
}

/// What writes at once waits for its turn inside the database, and is read in the order of numbers: a number that was given
/// out and is not committed yet keeps every later one waiting.
#[tokio::test]
async fn a_number_that_is_not_committed_yet_keeps_later_ones_waiting() {
    let config = fresh();
    let [one, other] = [
        Arc::new(PostgresStore::open(&config).await.unwrap()),
        Arc::new(PostgresStore::open(&config).await.unwrap()),
    ];
    let worlds = [
        suite::World::new(one.clone()),
        suite::World::beginning_at(other.clone(), 1_000),
    ];
    worlds[0].record(&worlds[0].turn()).await;
    let mut writing = one.store.begin().await.unwrap();
    let taken = hone_ledger_queries::db::query_scalar::<i64>(
        "insert into scopes (name) values ($1) returning number",
    );
    let taken = taken.bind(&b"held"[..]);
    let held = taken.fetch_one(&mut writing.connection()).await.unwrap();
    let turn = worlds[1].turn();
    let mut later = Box::pin(other.record_turns(std::slice::from_ref(&turn)));
    let waits = tokio::time::timeout(Duration::from_millis(300), &mut later).await;
    assert!(
        waits.is_err(),
        "a later number was committed before number {held}"
    );
    // Who reads waits for nobody.
    assert_eq!(other.counts().await.unwrap().turns, 1);
    writing.commit().await.unwrap();
    later.await.unwrap();
    assert_eq!(one.counts().await.unwrap().turns, 2);
}

/// Sends a statement over a connection of its own.
async fn run(config: &PostgresConfig, sql: String) {
    let mut connection = PgConnection::connect(&config.url).await.unwrap();
    let sql = sql.replace("SCHEMA", &config.schema);
    let ran = sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
        .execute(&mut connection)
        .await;
    ran.unwrap();
}

/// What the database undoes for another's sake is done again, until it gives up by itself.
#[tokio::test]
async fn what_the_database_undid_is_done_again() {
    for (code, fails, succeeds) in [
        ("40001", 3, true),
        ("40P01", 3, true),
        ("40001", 100, false),
        ("23514", 1, false),
    ] {
        let config = fresh();
        let ledger = Arc::new(PostgresStore::open(&config).await.unwrap());
        // A sequence counts on when its transaction is undone.
        let trip = format!(
            "create sequence SCHEMA.tries;
             create function SCHEMA.trip() returns trigger language plpgsql as $$
             begin
                 if nextval('SCHEMA.tries') <= {fails} then
                     raise exception 'undone' using errcode = '{code}';
                 end if;
                 return new;
             end $$;
             create trigger trip before insert on SCHEMA.turns for each row execute function SCHEMA.trip()"
        );
        run(&config, trip).await;
        let world = suite::World::new(ledger.clone());
        let turn = world.turn();
        let recorded = ledger.record_turns(std::slice::from_ref(&turn)).await;
        assert_eq!(recorded.is_ok(), succeeds, "{code}: {recorded:?}");
        let turns = u64::from(succeeds);
        assert_eq!(ledger.counts().await.unwrap().turns, turns, "{code}");
        world.assert_lawful(code).await;
        ledger.close().await;
    }
}

/// Connections that the server ended are made anew, for readers and for the writer.
#[tokio::test]
async fn connections_that_ended_are_made_anew() {
    let server = Server::start();
    // Its own: other tests keep their connections.
    let config = PostgresConfig::at(&server.url_of("hone", "postgres"));
    let ledger = Arc::new(PostgresStore::open(&config).await.unwrap());
    let world = suite::World::new(ledger.clone());
    for n in 1..=3 {
        let end = "select pg_terminate_backend(pid) from pg_stat_activity
                   where application_name like 'hone, process %'";
        run(&config, end.to_owned()).await;
        world.record(&world.turn()).await;
        assert_eq!(ledger.counts().await.unwrap().turns, n);
    }
}

/// U+0000 in every text that a caller chooses, and the character that stands for it.
#[tokio::test]
async fn every_character_comes_back() {
    let ledger = open().await;
    let world = suite::World::new(ledger.clone());
    for owner in ["nul \0 owner", "\u{10FFFF}", "\u{10FFFF}0"] {
        let mut turn = world.turn();
        turn.owner = owner.to_owned();
        turn.fingerprint = format!("cpu {owner}");
        turn.completion_text = owner.to_owned();
        world.record(&turn).await;
        let view = ledger.turn(turn.id).await.unwrap().unwrap();
        assert_eq!(view.turn.owner, owner);
        assert_eq!(view.turn.fingerprint, turn.fingerprint);
        assert_eq!(view.turn.completion_text, owner);
        let filter = TurnFilter {
            owner: Some(owner.to_owned()),
            ..TurnFilter::default()
        };
        let page = ledger.turn_page(&filter, None, 9).await.unwrap();
        assert_eq!(page.rows.len(), 1, "{owner:?}");
    }
}
