//! Adapters that were made elsewhere.

use hone_domain::{Digest, Policy, PolicyVersion};
use serde_json::Value;

use super::policies::NewVersion;
use super::standings::conflict;
use super::texts::unsigned;
use super::{policies, standings};
use crate::db::{self, Connection, Fault};
use hone_ledger::{Import, PolicyStatus};

/// Publishes an adapter as the version after the newest; it continues the base model.
pub(crate) async fn import(
    connection: &mut Connection<'_>,
    order: &Import,
) -> Result<Policy, Fault> {
    let scope = policies::make_scope(connection, &order.scope).await?;
    if let Some(why) = standings::held(connection, scope).await? {
        return Err(conflict(&order.scope, why));
    }
    if let Some(why) = objection(connection, scope, order.digest).await? {
        return Err(conflict(&order.scope, &why));
    }
    let head = policies::head(connection, scope).await?;
    let policy = Policy {
        scope: order.scope.clone(),
        version: PolicyVersion(unsigned(head)?).next(),
        digest: order.digest,
        blob: order.blob.clone(),
    };
    let new = NewVersion {
        scope,
        policy: &policy,
        parent: PolicyVersion::BASE,
        status: PolicyStatus::Imported,
        batch: None,
        samples: 0,
        report: &order.report,
        gate: &Value::Null,
        note: order.note.as_ref(),
        published_ms: order.now_ms,
    };
    policies::store(connection, &new).await?;
    Ok(policy)
}

/// Why versions of the same adapter stand in its way.
async fn objection(
    connection: &mut Connection<'_>,
    scope: i64,
    digest: Digest,
) -> Result<Option<String>, Fault> {
    let tainted: Option<i64> = db::query_scalar(
        "select 1 from versions where digest = $1 and tainted_ms is not null limit 1",
    )
    .bind(&digest.0[..])
    .fetch_optional(&mut *connection)
    .await?;
    if tainted.is_some() {
        let why =
            "the adapter learned from something that was erased since, and is not served again";
        return Ok(Some(why.to_owned()));
    }
    // One whose files were removed for space may come back.
    let same: Option<(i64, bool)> = db::query_as(
        "select version, retired_ms is not null from versions
         where scope_number = $1 and digest = $2 and (pruned_ms is null or retired_ms is not null)
         order by version desc limit 1",
    )
    .bind(scope)
    .bind(&digest.0[..])
    .fetch_optional(connection)
    .await?;
    Ok(same.map(|(version, is_retired)| match is_retired {
        true => format!("version {version} is the same adapter, and it is retired"),
        false => format!("version {version} is the same adapter, which a rollback serves again"),
    }))
}
