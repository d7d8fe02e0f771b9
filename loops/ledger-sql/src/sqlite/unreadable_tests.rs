//! One row that cannot be read does not hold up the others; it is spoiled behind the ledger's back.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_domain::{Fate, Reason, Turn};
use tempfile::TempDir;

use super::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_ledger::suite::World;
use hone_ledger::{Ledger, Versions, WatchPlace};

struct Case {
    ledger: Arc<SqliteLedger>,
    world: World,
    _folder: TempDir,
}

async fn case() -> Case {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::in_folder(folder.path());
    let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
    Case {
        world: World::new(ledger.clone()),
        ledger,
        _folder: folder,
    }
}

/// Ways to spoil a turn; its number follows.
const SPOILED: &[&str] = &[
    "update turn_payloads set completion_tokens = x'01' where turn_number = ",
    "update turn_payloads set completion_text = x'ff' where turn_number = ",
    "delete from turn_payloads where turn_number = ",
];

impl Case {
    async fn run(&self, sql: &str) {
        let sql = sqlx::AssertSqlSafe(sql.to_owned());
        let mut writer = self.ledger.store.writer.take().await.unwrap();
        sqlx::raw_sql(sql).execute(&mut *writer).await.unwrap();
    }

    /// Answered turns of which the oldest are spoiled, each in its way.
    async fn spoiled(&self) -> Vec<Turn> {
        let mut turns = Vec::new();
        for _ in 0..=SPOILED.len() {
            let turn = self.world.turn();
            self.world.answered(&turn).await;
            turns.push(turn);
        }
        self.spoil().await;
        turns
    }

    async fn spoil(&self) {
        for (turn, spoil) in (1..).zip(SPOILED) {
            self.run(&format!("{spoil}{turn}")).await;
        }
    }

    /// Fates as they are stored: such turns cannot be looked at.
    async fn reasons(&self) -> Vec<Option<String>> {
        let mut writer = self.ledger.store.writer.take().await.unwrap();
        sqlx::query_scalar("select reason from turns order by number")
            .fetch_all(&mut *writer)
            .await
            .unwrap()
    }
}

fn settled(reason: Reason) -> Vec<Option<String>> {
    let reasons = SPOILED.iter().map(|_| Some(reason.as_str().to_owned()));
    reasons.chain([None]).collect()
}

#[tokio::test]
async fn the_judge_goes_on() {
    let case = case().await;
    let turns = case.spoiled().await;
    let claimed = case.ledger.claim_transitions(10, 1_000, 0).await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].turn.id, turns[SPOILED.len()].id);
    assert_eq!(case.reasons().await, settled(Reason::JudgeFailed));
}

#[tokio::test]
async fn training_goes_on() {
    let case = case().await;
    let turns = case.world.ready_turns(1 + SPOILED.len(), 0).await;
    case.spoil().await;
    let claim = case.world.sample_claim();
    let samples = case.ledger.claim_samples(&claim).await.unwrap().materials;
    assert_eq!(samples.len(), 1);
    assert_eq!(samples[0].turn.id, turns[SPOILED.len()].id);
    assert_eq!(case.reasons().await, settled(Reason::StepFailed));
}

#[tokio::test]
async fn what_is_compared_on_and_told_again_leaves_it_out() {
    let case = case().await;
    let mut hinted = Vec::new();
    for parent in 0..=SPOILED.len() as u64 {
        hinted.push(case.world.publish_hinted(parent).await);
    }
    case.spoil().await;
    assert_eq!(case.world.replayed().await, hinted[SPOILED.len()..]);
    case.run("update turns set reason = 'held_out', trained_version = null")
        .await;
    let claim = case.world.sample_claim();
    let held = case.ledger.held_out(&claim.scope, claim.base, 10).await;
    let held: Vec<_> = held.unwrap().iter().map(|held| held.turn.id).collect();
    assert_eq!(held, hinted[SPOILED.len()..]);
}

#[tokio::test]
async fn a_start_leaves_it_out_and_the_watch_reads_past_it() {
    let case = case().await;
    let mut turns = Vec::new();
    for _ in 0..=SPOILED.len() {
        let turn = case.world.turn();
        case.world.record(&turn).await;
        turns.push(turn);
    }
    // The newest are spoiled: others come in their places.
    for (turn, spoil) in (2..).zip(SPOILED) {
        case.run(&format!("{spoil}{turn}")).await;
    }
    let open = case.ledger.open_turns(1).await.unwrap();
    assert_eq!(open.len(), 1);
    assert_eq!(open[0].turn.id, turns[0].id);
    // Tokens are not needed before somebody continues the turn.
    let page = case.ledger.open_page(10, None, 10).await.unwrap();
    let waiting: Vec<_> = page.turns.iter().map(|waiting| waiting.turn.turn).collect();
    assert_eq!(waiting, [turns[0].id, turns[1].id]);
    assert_eq!((page.seen, page.next), (turns.len(), None));
    let news = case.ledger.watch_news(WatchPlace::default(), 10).await;
    let news = news.unwrap();
    // The first, and the one whose text alone is spoiled; the last has nothing to be read past.
    assert_eq!((news.turns.len(), news.place.turn), (2, 3));
}

#[tokio::test]
async fn a_database_that_fails_is_no_unreadable_row() {
    let case = case().await;
    let turn = case.world.turn();
    case.world.answered(&turn).await;
    case.run("alter table feedback rename to gone").await;
    assert!(case.ledger.claim_transitions(1, 1_000, 0).await.is_err());
    case.run("alter table gone rename to feedback").await;
    assert_eq!(
        case.ledger
            .claim_transitions(1, 1_000, 0)
            .await
            .unwrap()
            .len(),
        1
    );
    assert!(matches!(case.world.fate(&turn).await, Fate::Pending { .. }));
}
