//! Answers for retries on SQLite: over a restart, and in the files after an erasure.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hone_domain::{Digest, RequestId};
use uuid::Uuid;

use super::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_ledger::{
    Answer, AnswerLimits, AnswerName, Answered, Answers as _, AuditEntry, ForgetWhat, ForgetWish,
    Ledger as _, Personal as _, suite,
};

const LIMITS: AnswerLimits = AnswerLimits {
    answers_max: 3,
    bytes_max: 100,
    keep_ms: 1_000,
};

fn name(n: u8) -> AnswerName {
    AnswerName {
        name: Digest([n; 32]),
        owner: "owner".to_owned(),
        body: Digest([7; 32]),
        request: RequestId(Uuid::from_u128(u128::from(n) + 1)),
    }
}

fn answer(text: &str) -> Answer {
    Answer {
        status: 200,
        headers: b"[]".to_vec(),
        body: text.as_bytes().to_vec(),
    }
}

async fn open(folder: &std::path::Path) -> Arc<SqliteLedger> {
    let config = SqliteConfig::in_folder(folder);
    Arc::new(SqliteStore::open(&config).await.unwrap())
}

#[tokio::test]
async fn an_answer_outlives_the_process_and_one_that_was_cut_names_its_turn() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path()).await;
    let world = suite::World::new(ledger.clone());
    let whole = name(1);
    ledger.begin_answer(&whole, LIMITS, 5).await.unwrap();
    assert!(
        ledger
            .keep_answer(&whole, &answer("hi"), LIMITS)
            .await
            .unwrap()
    );
    // Of one the turn is recorded, of the other nothing, when the process ends.
    let mut turn = world.turn();
    let cut = AnswerName {
        request: turn.request,
        ..name(2)
    };
    let nothing = name(3);
    for name in [&cut, &nothing] {
        ledger.begin_answer(name, LIMITS, 6).await.unwrap();
    }
    turn.choice_index = 0;
    world.record(&turn).await;
    drop((world, ledger));

    let ledger = open(folder.path()).await;
    let told = async |name: &AnswerName| ledger.answered(name, 0).await.unwrap();
    assert_eq!(told(&whole).await, Answered::Whole(answer("hi")));
    let other = AnswerName {
        body: Digest([8; 32]),
        ..whole.clone()
    };
    assert_eq!(told(&other).await, Answered::Other);
    assert_eq!(told(&cut).await, Answered::Lost(turn.id));
    assert_eq!(told(&nothing).await, Answered::Unknown);
    assert_eq!(ledger.answered(&whole, 6).await.unwrap(), Answered::Unknown);
    ledger.drop_answer(&whole).await.unwrap();
    assert_eq!(told(&whole).await, Answered::Unknown);
}

#[tokio::test]
async fn an_owner_who_forgets_leaves_no_answer_behind() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path()).await;
    let world = suite::World::new(ledger.clone());
    world.record(&world.turn()).await;
    for n in [1, 2] {
        ledger.begin_answer(&name(n), LIMITS, 1).await.unwrap();
    }
    let secret = answer("quixomarvel");
    ledger.keep_answer(&name(1), &secret, LIMITS).await.unwrap();
    let wish = ForgetWish {
        id: hone_domain::ForgetId(Uuid::from_u128(1)),
        scope: world.scope(),
        owner: "owner".to_owned(),
        what: ForgetWhat::All,
        now_ms: i64::MAX / 2,
        entry: AuditEntry {
            at_ms: 1,
            actor: "owner".to_owned(),
            act: "forget".to_owned(),
            object: String::new(),
            detail: serde_json::Value::Null,
        },
    };
    ledger.begin_forget(&wish).await.unwrap();
    // The second one's answer comes after the wish.
    assert!(!ledger.keep_answer(&name(2), &secret, LIMITS).await.unwrap());
    while ledger.forget_piece(wish.id, 9).await.unwrap() != hone_ledger::ForgetStep::Done {}
    ledger.close().await;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(11).any(|window| window == b"quixomarvel"));
    }
}
