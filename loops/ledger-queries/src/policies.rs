//! Scopes, versions, heads and rollback.

use hone_domain::{BatchId, Millis, Policy, PolicyVersion, Scope};
use serde_json::Value;
use sqlx::AssertSqlSafe;

use super::rows;
use super::texts::{limit, signed, text_bytes};
use crate::db::{self, Connection, Fault};
use hone_ledger::{PolicyRecord, PolicyStatus, Window};

/// The scope's number, where anything of it is stored.
pub(crate) async fn find_scope(
    connection: &mut Connection<'_>,
    scope: &Scope,
) -> Result<Option<i64>, Fault> {
    let number = db::query_scalar("select number from scopes where name = $1")
        .bind(scope.as_str().as_bytes())
        .fetch_optional(connection)
        .await?;
    Ok(number)
}

/// The scope's number, new where it was not stored.
pub(crate) async fn make_scope(
    connection: &mut Connection<'_>,
    scope: &Scope,
) -> Result<i64, Fault> {
    if let Some(number) = find_scope(connection, scope).await? {
        return Ok(number);
    }
    let number = db::query_scalar("insert into scopes (name) values ($1) returning number")
        .bind(scope.as_str().as_bytes())
        .fetch_one(connection)
        .await?;
    Ok(number)
}

/// The scope of that number.
pub(crate) async fn scope_at(connection: &mut Connection<'_>, number: i64) -> Result<Scope, Fault> {
    let name = db::query_scalar("select name from scopes where number = $1")
        .bind(number)
        .fetch_one(connection)
        .await?;
    rows::scope(name)
}

/// The newest version of a scope; 0 where none was published.
pub(crate) async fn head(connection: &mut Connection<'_>, scope: i64) -> Result<i64, Fault> {
    let head =
        db::query_scalar("select coalesce(max(version), 0) from versions where scope_number = $1")
            .bind(scope)
            .fetch_one(connection)
            .await?;
    Ok(head)
}

/// A version to be stored.
pub(crate) struct NewVersion<'a> {
    pub(crate) scope: i64,
    pub(crate) policy: &'a Policy,
    pub(crate) parent: PolicyVersion,
    pub(crate) status: PolicyStatus,
    pub(crate) batch: Option<BatchId>,
    pub(crate) samples: usize,
    pub(crate) report: &'a Value,
    pub(crate) gate: &'a Value,
    pub(crate) note: Option<&'a String>,
    pub(crate) published_ms: Millis,
}

pub(crate) async fn store(
    connection: &mut Connection<'_>,
    new: &NewVersion<'_>,
) -> Result<(), Fault> {
    let status = match new.status {
        PolicyStatus::Published => "published",
        PolicyStatus::Rollback => "rollback",
        PolicyStatus::Imported => "imported",
    };
    db::query(
        "insert into versions (
             scope_number, version, parent, digest, blob, status, batch_id, samples, report, gate,
             note, published_ms
         ) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    )
    .bind(new.scope)
    .bind(signed(new.policy.version.0)?)
    .bind(signed(new.parent.0)?)
    .bind(&new.policy.digest.0[..])
    .bind(new.policy.blob.as_str())
    .bind(status)
    .bind(new.batch.as_ref().map(|b| &b.0.as_bytes()[..]))
    .bind(limit(new.samples))
    .bind(new.report.to_string())
    .bind(new.gate.to_string())
    .bind(text_bytes(new.note))
    .bind(new.published_ms)
    .execute(connection)
    .await?;
    Ok(())
}

pub(crate) async fn heads(connection: &mut Connection<'_>) -> Result<Vec<Policy>, Fault> {
    let rows = db::query(
        "select scopes.name as scope, versions.version, versions.digest, versions.blob
         from scopes
         join versions on versions.scope_number = scopes.number
         where versions.version = (
             select max(newest.version) from versions as newest
             where newest.scope_number = scopes.number
         )
         order by scopes.number",
    )
    .fetch_all(connection)
    .await?;
    rows.iter().map(rows::policy).collect()
}

/// A version as [`rows::policy_record`] reads it.
const RECORD: &str = "select scopes.name as scope, versions.version, parent, digest, blob, status, \
                      samples, report, gate, published_ms, note, tripped_ms, pruned_ms, damaged_ms, \
                      retired_ms, tainted_ms is not null as is_tainted \
                      from versions join scopes on scopes.number = versions.scope_number";

pub(crate) async fn versions(
    connection: &mut Connection<'_>,
    scope: Option<&Scope>,
    most: usize,
) -> Result<Vec<PolicyRecord>, Fault> {
    if let Some(scope) = scope {
        let newest = Window {
            limit: most,
            before: None,
        };
        return page(connection, scope, newest).await;
    }
    let rows = db::query(AssertSqlSafe(format!(
        "{RECORD} order by versions.number desc limit $1"
    )))
    .bind(limit(most))
    .fetch_all(connection)
    .await?;
    rows.iter().map(rows::policy_record).collect()
}

/// Versions of a scope below a number, newest first.
pub(crate) async fn page(
    connection: &mut Connection<'_>,
    scope: &Scope,
    page: Window,
) -> Result<Vec<PolicyRecord>, Fault> {
    let rows = db::query(AssertSqlSafe(format!(
        "{RECORD} where scopes.name = $1 and versions.version < $2
         order by versions.version desc limit $3"
    )))
    .bind(scope.as_str().as_bytes())
    .bind(page.before.unwrap_or(i64::MAX))
    .bind(limit(page.limit))
    .fetch_all(connection)
    .await?;
    rows.iter().map(rows::policy_record).collect()
}

/// One version, where it was published.
pub(crate) async fn record(
    connection: &mut Connection<'_>,
    scope: i64,
    version: i64,
) -> Result<Option<PolicyRecord>, Fault> {
    let row = db::query(AssertSqlSafe(format!(
        "{RECORD} where scope_number = $1 and version = $2"
    )))
    .bind(scope)
    .bind(version)
    .fetch_optional(connection)
    .await?;
    row.as_ref().map(rows::policy_record).transpose()
}
