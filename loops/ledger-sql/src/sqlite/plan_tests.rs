//! What is looked up for one scope, blob or row does not walk through those of all others.

#![allow(clippy::unwrap_used)]

use sqlx::Row;

use super::{SqliteConfig, SqliteLedger, SqliteStore};
use hone_ledger_queries::versions::{Of, prunable_sql};
use hone_ledger_queries::{early, lift, replay, taint, train};

#[tokio::test]
async fn nothing_walks_through_what_is_not_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::in_folder(folder.path());
    let ledger = SqliteStore::open(&config).await.unwrap();
    let cases = [
        ("replay", replay::CANDIDATES.to_owned(), "SCAN votes"),
        ("ready", train::READY.to_owned(), "SEARCH standings"),
        ("prune", prunable_sql(Of::OneBlob), "SCAN versions"),
        ("prune", prunable_sql(Of::OneBlob), "SCAN standings"),
        ("taint", taint::TAINTED.to_owned(), "SCAN versions"),
        ("taint", taint::TAINTED.to_owned(), "SCAN later"),
        ("taint", taint::TAINTED.to_owned(), "SCAN copies"),
        ("early", early::SURPLUS.to_owned(), "SCAN early_feedback"),
        (
            "early",
            early::SURPLUS.to_owned(),
            "TEMP B-TREE FOR ORDER BY",
        ),
        ("early", early::REMOVE.to_owned(), "SCAN"),
        ("improvement", lift::SCORED.to_owned(), "SCAN turns"),
        ("improvement", lift::SCORED.to_owned(), "turns_by_scope"),
        ("learned", lift::VERSIONS.to_owned(), "SCAN turns"),
        ("learned", lift::VERSIONS.to_owned(), "INDEX turns_"),
        ("learned", lift::VERSIONS.to_owned(), "SCAN version_scores"),
    ];
    check(&ledger, &cases).await;
    // The same where a plan has lists of its own.
    let mut writer = ledger.store.writer.take().await.unwrap();
    let own = sqlx::raw_sql(super::OWN_LISTS).execute(&mut *writer).await;
    own.unwrap();
    drop(writer);
    let listed = "select count(*) from forget_turns where forget_number = 1";
    check(&ledger, &[("plan", listed.to_owned(), "SCAN")]).await;
}

async fn check(ledger: &SqliteLedger, cases: &[(&str, String, &str)]) {
    for (name, sql, walk) in cases {
        let sql = format!("explain query plan {sql}");
        let mut writer = ledger.store.writer.take().await.unwrap();
        let plan = sqlx::query(sqlx::AssertSqlSafe(sql))
            .fetch_all(&mut *writer)
            .await
            .unwrap();
        let plan: Vec<String> = plan.iter().map(|row| row.get("detail")).collect();
        assert!(
            !plan.iter().any(|step| step.contains(walk)),
            "{name}: {plan:#?}"
        );
    }
}
