//! Scopes, versions, heads and rollback.

use hone_domain::{BatchId, Millis, Policy, PolicyVersion, Scope};
use serde_json::Value;
use sqlx::SqliteConnection;

use super::fault::Fault;
use super::rows;
use super::texts::{limit, signed, text_bytes};
use hone_ledger::{PolicyRecord, PolicyStatus, Window};

/// The scope's number, where anything of it is stored.
pub(super) async fn find_scope(
    connection: &mut SqliteConnection,
    scope: &Scope,
) -> Result<Option<i64>, Fault> {
    let number = sqlx::query_scalar("select number from scopes where name = ?")
        .bind(scope.as_str().as_bytes())
        .fetch_optional(connection)
        .await?;
    Ok(number)
}

/// The scope's number, new where it was not stored.
pub(super) async fn make_scope(
    connection: &mut SqliteConnection,
    scope: &Scope,
) -> Result<i64, Fault> {
    if let Some(number) = find_scope(connection, scope).await? {
        return Ok(number);
    }
    let number = sqlx::query_scalar("insert into scopes (name) values (?) returning number")
        .bind(scope.as_str().as_bytes())
        .fetch_one(connection)
        .await?;
    Ok(number)
}

/// The scope of that number.
pub(super) async fn scope_at(
    connection: &mut SqliteConnection,
    number: i64,
) -> Result<Scope, Fault> {
    let name = sqlx::query_scalar("select name from scopes where number = ?")
        .bind(number)
        .fetch_one(connection)
        .await?;
    rows::scope(name)
}

/// The newest version of a scope; 0 where none was published.
pub(super) async fn head(connection: &mut SqliteConnection, scope: i64) -> Result<i64, Fault> {
    let head =
        sqlx::query_scalar("select coalesce(max(version), 0) from versions where scope_number = ?")
            .bind(scope)
            .fetch_one(connection)
            .await?;
    Ok(head)
}

/// A version to be stored.
pub(super) struct NewVersion<'a> {
    pub(super) scope: i64,
    pub(super) policy: &'a Policy,
    pub(super) parent: PolicyVersion,
    pub(super) status: PolicyStatus,
    pub(super) batch: Option<BatchId>,
    pub(super) samples: usize,
    pub(super) report: &'a Value,
    pub(super) gate: &'a Value,
    pub(super) note: Option<&'a String>,
    pub(super) published_ms: Millis,
}

pub(super) async fn store(
    connection: &mut SqliteConnection,
    new: &NewVersion<'_>,
) -> Result<(), Fault> {
    let status = match new.status {
        PolicyStatus::Published => "published",
        PolicyStatus::Rollback => "rollback",
        PolicyStatus::Imported => "imported",
    };
    sqlx::query(
        "insert into versions (
             scope_number, version, parent, digest, blob, status, batch_id, samples, report, gate,
             note, published_ms
         ) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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

pub(super) async fn heads(connection: &mut SqliteConnection) -> Result<Vec<Policy>, Fault> {
    let rows = sqlx::query(
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

pub(super) async fn versions(
    connection: &mut SqliteConnection,
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
    let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
        "{RECORD} order by versions.number desc limit ?"
    )))
    .bind(limit(most))
    .fetch_all(connection)
    .await?;
    rows.iter().map(rows::policy_record).collect()
}

/// Versions of a scope below a number, newest first.
pub(super) async fn page(
    connection: &mut SqliteConnection,
    scope: &Scope,
    page: Window,
) -> Result<Vec<PolicyRecord>, Fault> {
    let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
        "{RECORD} where scopes.name = ? and versions.version < ?
         order by versions.version desc limit ?"
    )))
    .bind(scope.as_str().as_bytes())
    .bind(page.before.unwrap_or(i64::MAX))
    .bind(limit(page.limit))
    .fetch_all(connection)
    .await?;
    rows.iter().map(rows::policy_record).collect()
}

/// One version, where it was published.
pub(super) async fn record(
    connection: &mut SqliteConnection,
    scope: i64,
    version: i64,
) -> Result<Option<PolicyRecord>, Fault> {
    let row = sqlx::query(sqlx::AssertSqlSafe(format!(
        "{RECORD} where scope_number = ? and version = ?"
    )))
    .bind(scope)
    .bind(version)
    .fetch_optional(connection)
    .await?;
    row.as_ref().map(rows::policy_record).transpose()
}
