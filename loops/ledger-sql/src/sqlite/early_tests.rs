//! The table behind what is said of turns that are not on record.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_domain::{Feedback, ForgetId, Scope};
use serde_json::json;
use tempfile::TempDir;

use super::{SqliteConfig, SqliteLedger, SqliteStore, schema};
use hone_ledger::{AuditEntry, ForgetStep, ForgetWhat, ForgetWish, Ledger, Personal, suite};

struct Case {
    _folder: TempDir,
    ledger: Arc<SqliteLedger>,
    world: suite::World,
}

async fn case() -> Case {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::in_folder(folder.path());
    let ledger = Arc::new(SqliteStore::open(&config).await.unwrap());
    Case {
        _folder: folder,
        world: suite::World::new(ledger.clone()),
        ledger,
    }
}

impl Case {
    async fn run(&self, sql: &str) {
        let mut writer = self.ledger.store.writer.take().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))
            .execute(&mut *writer)
            .await
            .unwrap();
    }

    async fn say(&self, feedback: &Feedback) {
        self.ledger.record_feedback(feedback).await.unwrap();
    }

    /// Numbers of all feedback, and of what waits for its turn.
    async fn numbers(&self) -> (Vec<i64>, Vec<i64>) {
        let mut writer = self.ledger.store.writer.take().await.unwrap();
        let all = sqlx::query_scalar("select number from feedback order by number")
            .fetch_all(&mut *writer)
            .await
            .unwrap();
        let early = sqlx::query_scalar("select feedback_number from early_feedback order by rowid")
            .fetch_all(&mut *writer)
            .await
            .unwrap();
        (all, early)
    }
}

/// A reply that came without a write, or that no full disk could stop, would tell another's turn from one that
/// does not exist.
#[tokio::test]
async fn what_is_said_of_another_s_turn_is_written_like_any_and_leaves_nothing() {
    let case = case().await;
    let turn = case.world.turn();
    case.world.record(&turn).await;
    let mark = || {
        let file = case._folder.path().join("ledger.db");
        super::mark::read(&file).unwrap()
    };
    let said = |owner: &str, client_id: Option<&str>| {
        let mut feedback = case.world.feedback(&turn, -1.0);
        feedback.owner = owner.into();
        feedback.comment = Some("Quixomarvel".repeat(1_000));
        feedback.client_id = client_id.map(Into::into);
        feedback
    };
    for feedback in [
        said("other", None),
        said("other", Some("a")),
        said("other", Some("a")),
    ] {
        let before = mark();
        case.say(&feedback).await;
        assert_eq!(mark(), before + 1);
    }
    assert_eq!(case.numbers().await, (vec![], vec![]));
    // Nor is anything of it in the log.
    let log = std::fs::read(case._folder.path().join("ledger.db-wal")).unwrap();
    let found = log.windows(11).any(|bytes| bytes == b"Quixomarvel");
    assert!(!found);
    // A turn that is not on record takes the same single write, and is kept.
    let mut unknown = said("other", None);
    unknown.turn = case.world.turn().id;
    let before = mark();
    case.say(&unknown).await;
    assert_eq!(mark(), before + 1);
    assert_eq!(case.numbers().await.1.len(), 1);
}

#[tokio::test]
async fn what_waited_for_its_turn_before_is_found() {
    let case = case().await;
    let (known, later) = (case.world.turn(), case.world.turn());
    case.world.record(&known).await;
    case.say(&case.world.feedback(&known, 1.0)).await;
    case.say(&case.world.feedback(&case.world.turn(), 1.0))
        .await;
    case.say(&case.world.feedback(&later, 1.0)).await;
    let mut stranger = case.world.feedback(&later, 1.0);
    stranger.owner = "somebody".into();
    case.say(&stranger).await;
    case.world.record(&later).await;
    case.run("drop table early_feedback").await;
    let migration = schema::MIGRATIONS.iter().find(|m| m.version == 16).unwrap();
    case.run(migration.sql.as_str()).await;
    assert_eq!(case.numbers().await, (vec![1, 2, 3, 4], vec![2, 4]));
}

#[tokio::test]
async fn a_row_goes_with_its_feedback() {
    let case = case().await;
    let (never, came) = (case.world.turn(), case.world.turn());
    for _ in 0..2 {
        let mut feedback = case.world.feedback(&never, 1.0);
        feedback.client_id = Some("the same".into());
        case.say(&feedback).await;
    }
    assert_eq!(case.numbers().await, (vec![1], vec![1]), "replaced");
    let of_came = case.world.feedback(&came, 1.0);
    let mut stranger = case.world.feedback(&came, 1.0);
    stranger.owner = "somebody".into();
    case.say(&of_came).await;
    case.say(&stranger).await;
    case.world.record(&came).await;
    assert_eq!(case.numbers().await, (vec![1, 2, 3], vec![1, 2, 3]));
    for (owner, left) in [("somebody", vec![1, 2]), ("owner", vec![])] {
        let id = ForgetId(case.world.batch().0);
        let wish = ForgetWish {
            id,
            scope: Scope::of(owner, None),
            owner: owner.into(),
            what: ForgetWhat::All,
            now_ms: came.finished_ms,
            entry: AuditEntry {
                at_ms: 1,
                actor: owner.into(),
                act: "forget".into(),
                object: String::new(),
                detail: json!({}),
            },
        };
        case.ledger.begin_forget(&wish).await.unwrap();
        let mut step = ForgetStep::More;
        while step == ForgetStep::More {
            step = case.ledger.forget_piece(id, 9).await.unwrap();
        }
        assert_eq!(case.numbers().await, (left.clone(), left), "{owner}");
    }
}

/// A number that is given again is another's.
#[tokio::test]
async fn a_number_given_again_is_noted_anew() {
    let case = case().await;
    case.say(&case.world.feedback(&case.world.turn(), 1.0))
        .await;
    case.run("delete from feedback").await;
    let known = case.world.turn();
    case.world.record(&known).await;
    case.say(&case.world.feedback(&known, 1.0)).await;
    assert_eq!(case.numbers().await, (vec![1], vec![]));
    // As a tool that looks at no references may leave it.
    case.run(
        "pragma foreign_keys = off; insert into early_feedback values (1, 'owner', 0), (2, 'x', 0)",
    )
    .await;
    case.run("pragma foreign_keys = on").await;
    case.say(&case.world.feedback(&case.world.turn(), 1.0))
        .await;
    assert_eq!(case.numbers().await, (vec![1, 2], vec![2]));
}

#[tokio::test]
async fn a_backlog_goes_some_at_a_time() {
    let case = case().await;
    case.run(
        "with recursive numbers (n) as (values (1) union all select n + 1 from numbers where n < 150)
         insert into feedback (id, turn_id, owner, received_ms)
         select randomblob(16), randomblob(16), 'somebody', 0 from numbers;
         insert into early_feedback select number, owner, received_ms from feedback",
    )
    .await;
    for left in [87, 24, 3, 4] {
        case.say(&case.world.feedback(&case.world.turn(), 1.0))
            .await;
        let (all, early) = case.numbers().await;
        assert_eq!((all.len(), early.len()), (left, left));
    }
}
