//! Wishes to be forgotten, as they are looked at.

use hone_domain::{ForgetId, PolicyVersion};
use sqlx::AssertSqlSafe;

use super::rows;
use super::texts::{limit, unsigned};
use crate::db::{self, Connection, Fault, Row};
use hone_ledger::{ForgetReport, ForgetRow, Window};

/// The columns of [`report_row`].
const REPORT: &str = "select forgets.number, forgets.id, scopes.name as scope, at_ms, done, turns,
        transitions, samples, samples_freed, versions_tainted, rolls_back_to,
        (select count(*) from forget_turns
         where forget_turns.forget_number = forgets.number) as turns_left
    from forgets join scopes on scopes.number = forgets.scope_number";

pub(crate) async fn report(
    connection: &mut Connection<'_>,
    id: ForgetId,
) -> Result<Option<ForgetReport>, Fault> {
    let sql = format!("{REPORT} where forgets.id = $1");
    let row = db::query(AssertSqlSafe(sql))
        .bind(&id.0.as_bytes()[..])
        .fetch_optional(connection)
        .await?;
    row.as_ref().map(report_row).transpose()
}

fn report_row(row: &Row) -> Result<ForgetReport, Fault> {
    let count = |name| -> Result<u64, Fault> { unsigned(row.try_get(name)?) };
    let tainted: Vec<u64> = serde_json::from_str(row.try_get("versions_tainted")?)?;
    let back: Option<i64> = row.try_get("rolls_back_to")?;
    Ok(ForgetReport {
        id: rows::forget_id(row.try_get("id")?)?,
        scope: rows::scope(row.try_get("scope")?)?,
        turns: count("turns")?,
        transitions: count("transitions")?,
        samples: count("samples")?,
        samples_freed: count("samples_freed")?,
        versions_tainted: tainted.into_iter().map(PolicyVersion).collect(),
        rolls_back_to: back.map(rows::version).transpose()?,
        turns_left: count("turns_left")?,
        is_done: row.try_get("done")?,
        at_ms: row.try_get("at_ms")?,
    })
}

pub(crate) async fn list(
    connection: &mut Connection<'_>,
    page: Window,
) -> Result<Vec<ForgetRow>, Fault> {
    let sql = format!("{REPORT} where forgets.number < $1 order by forgets.number desc limit $2");
    let found = db::query(AssertSqlSafe(sql))
        .bind(page.before.unwrap_or(i64::MAX))
        .bind(limit(page.limit))
        .fetch_all(connection)
        .await?;
    let row = |row: &Row| {
        Ok(ForgetRow {
            number: row.try_get("number")?,
            report: report_row(row)?,
        })
    };
    found.iter().map(row).collect()
}

/// The number of the newest wish; 0 where there is none.
pub async fn newest(connection: &mut Connection<'_>) -> Result<i64, Fault> {
    let newest = db::query_scalar("select coalesce(max(number), 0) from forgets")
        .fetch_one(connection)
        .await?;
    Ok(newest)
}

pub(crate) async fn under_way(connection: &mut Connection<'_>) -> Result<Vec<ForgetId>, Fault> {
    let ids: Vec<Vec<u8>> =
        db::query_scalar("select id from forgets where done = 0 order by number")
            .fetch_all(connection)
            .await?;
    ids.iter().map(|id| rows::forget_id(id)).collect()
}
