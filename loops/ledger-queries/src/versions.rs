//! Versions as people look at them: lineage both ways, refusals, scopes; and what may be pruned.

use hone_domain::{BatchId, BlobKey, Digest, Millis, Policy, PolicyVersion, Reason, Scope};
use sqlx::AssertSqlSafe;

use super::texts::{limit, signed, unsigned};
use super::unreadable::readable;
use super::{audit, policies, rows, standings, unreadable};
use crate::db::{self, Connection, Fault, Row, corrupt};
use hone_ledger::{
    AuditEntry, HeldOut, LedgerError, Prunable, Publish, RefusalRecord, ScopeRow, VersionSample,
    VersionView, Window,
};

/// Longest lineage that is told.
const LINEAGE_MAX: i64 = 10_000;

pub(crate) async fn version(
    connection: &mut Connection<'_>,
    scope: &Scope,
    version: PolicyVersion,
    samples_max: usize,
) -> Result<Option<VersionView>, Fault> {
    let Some(number) = policies::find_scope(connection, scope).await? else {
        return Ok(None);
    };
    let wanted = signed(version.0)?;
    let Some(record) = policies::record(connection, number, wanted).await? else {
        return Ok(None);
    };
    let lineage: Vec<i64> = db::query_scalar(
        "with recursive lineage (version, depth) as (
             select parent, 0 from versions where scope_number = $1 and version = $2
             union all
             select versions.parent, depth + 1 from lineage
             join versions on versions.scope_number = $1 and versions.version = lineage.version
             where depth < $3
         )
         select version from lineage order by depth",
    )
    .bind(number)
    .bind(wanted)
    .bind(LINEAGE_MAX)
    .fetch_all(&mut *connection)
    .await?;
    let children: Vec<i64> = db::query_scalar(
        "select version from versions where scope_number = $1 and parent = $2 order by version
         limit $3",
    )
    .bind(number)
    .bind(wanted)
    .bind(LINEAGE_MAX)
    .fetch_all(&mut *connection)
    .await?;
    let versions = |numbers: Vec<i64>| -> Result<Vec<PolicyVersion>, Fault> {
        numbers.into_iter().map(rows::version).collect()
    };
    Ok(Some(VersionView {
        record,
        lineage: versions(lineage)?,
        children: versions(children)?,
        samples: samples(connection, number, wanted, samples_max).await?,
    }))
}

async fn samples(
    connection: &mut Connection<'_>,
    scope: i64,
    version: i64,
    most: usize,
) -> Result<Vec<VersionSample>, Fault> {
    let found: Vec<(Vec<u8>, Option<f64>)> = db::query_as(
        "select turns.id, turns.score from version_samples
         join transitions on transitions.number = version_samples.transition_number
         join turns on turns.number = transitions.turn_number
         where version_samples.scope_number = $1 and version_samples.version = $2
         order by turns.number limit $3",
    )
    .bind(scope)
    .bind(version)
    .bind(limit(most))
    .fetch_all(connection)
    .await?;
    found
        .into_iter()
        .map(|(turn, score)| {
            Ok(VersionSample {
                turn: rows::turn_id(&turn)?,
                score: rows::score(score),
            })
        })
        .collect()
}

pub(crate) async fn refusals(
    connection: &mut Connection<'_>,
    scope: Option<&Scope>,
    page: Window,
) -> Result<Vec<RefusalRecord>, Fault> {
    let number = match scope {
        None => None,
        Some(scope) => match policies::find_scope(connection, scope).await? {
            None => return Ok(Vec::new()),
            number => number,
        },
    };
    let found = db::query(
        "select refusals.number, scopes.name as scope, parent, digest, batch_id, reason, samples,
                report, refused_ms
         from refusals join scopes on scopes.number = refusals.scope_number
         where refusals.number < $1 and ($2 is null or refusals.scope_number = $2)
         order by refusals.number desc limit $3",
    )
    .bind(page.before.unwrap_or(i64::MAX))
    .bind(number)
    .bind(limit(page.limit))
    .fetch_all(connection)
    .await?;
    found.iter().map(refusal).collect()
}

fn refusal(row: &Row) -> Result<RefusalRecord, Fault> {
    let batch = <[u8; 16]>::try_from(row.try_get::<&[u8], _>("batch_id")?)
        .map_err(|_| corrupt("a batch id of broken length"))?;
    let digest = row.try_get::<Option<&[u8]>, _>("digest")?;
    Ok(RefusalRecord {
        number: row.try_get("number")?,
        scope: rows::scope(row.try_get("scope")?)?,
        parent: rows::version(row.try_get("parent")?)?,
        digest: digest.map(rows::digest).transpose()?,
        batch: BatchId(uuid::Uuid::from_bytes(batch)),
        reason: rows::reason(row.try_get("reason")?)?,
        samples: unsigned(row.try_get("samples")?)?,
        report: serde_json::from_str(row.try_get("report")?)?,
        refused_ms: row.try_get("refused_ms")?,
    })
}

pub(crate) async fn scopes(
    connection: &mut Connection<'_>,
    page: Window,
) -> Result<Vec<ScopeRow>, Fault> {
    let found = db::query(
        "select scopes.number, scopes.name as scope,
                (select coalesce(max(version), 0) from versions
                 where versions.scope_number = scopes.number) as current,
                (select count(*) from versions
                 where versions.scope_number = scopes.number) as versions,
                (select cast(coalesce(sum(turns), 0) as bigint) from scope_counts
                 where scope_counts.scope_number = scopes.number) as turns,
                (select finished_ms from turns where turns.scope_number = scopes.number
                 order by turns.number desc limit 1) as last_turn_ms,
                (select cast(sum(total) as double precision) / 1073741824.0 / nullif(sum(judged), 0) from version_scores
                 where version_scores.scope_number = scopes.number) as mean_score,
                standings.*
         from scopes left join standings on standings.scope_number = scopes.number
         where scopes.number < $1 order by scopes.number desc limit $2",
    )
    .bind(page.before.unwrap_or(i64::MAX))
    .bind(limit(page.limit))
    .fetch_all(connection)
    .await?;
    found
        .iter()
        .map(|row| {
            Ok(ScopeRow {
                number: row.try_get("number")?,
                scope: rows::scope(row.try_get("scope")?)?,
                current: rows::version(row.try_get("current")?)?,
                standing: standings::of_row(row)?,
                turns: unsigned(row.try_get("turns")?)?,
                versions: unsigned(row.try_get("versions")?)?,
                last_turn_ms: row.try_get("last_turn_ms")?,
                mean_score: row.try_get("mean_score")?,
            })
        })
        .collect()
}

pub(crate) async fn held_out(
    connection: &mut Connection<'_>,
    scope: &Scope,
    base: Digest,
    most: usize,
) -> Result<Vec<HeldOut>, Fault> {
    let Some(number) = policies::find_scope(connection, scope).await? else {
        return Ok(Vec::new());
    };
    let found: Vec<(i64, f64)> = db::query_as(
        "select turns.number, score from turns indexed by turns_held_out
         join arithmetics on arithmetics.number = turns.arithmetic_number
         where scope_number = $1 and reason = 'held_out' and score is not null
           and extent = 2 and arithmetics.base = $2
         order by turns.number desc limit $3",
    )
    .bind(number)
    .bind(&base.0[..])
    .bind(limit(most))
    .fetch_all(&mut *connection)
    .await?;
    let mut held = Vec::with_capacity(found.len());
    for (number, score) in found {
        let Some((turn, _)) = readable(rows::load_turn(connection, number).await)? else {
            unreadable::skip(connection, number).await?;
            continue;
        };
        let score = score as f32;
        held.push(HeldOut { turn, score });
    }
    Ok(held)
}

/// Which versions are looked at.
#[derive(Clone, Copy)]
pub enum Of {
    All,
    /// The blob `$5` of the scope `$4`. A blob's name says whose it is, so what other scopes need
    /// does not matter.
    OneBlob,
}

/// Prunable blobs: those of no needed version. Needed are the newest of each scope, the newest `$1`
/// of it, what is on trial and its measure, and what each of these continues or restores.
pub fn prunable_sql(of: Of) -> String {
    let (scope, blob) = match of {
        Of::All => ("true", "true"),
        Of::OneBlob => ("scope_number = $4", "blob = $5"),
    };
    format!(
        "with kept (scope_number, version) as (
             select scope_number, version from (
                 select scope_number, version,
                        row_number() over (
                            partition by scope_number order by version desc
                        ) as place
                 from versions where {scope}
             ) as places where place <= max(1, $1)
             union
             select scope_number, trial_version from standings
             where trial_version is not null and {scope}
             union
             select scope_number, trial_proven from standings
             where trial_proven is not null and {scope}
         ),
         needed (scope_number, version) as (
             select scope_number, version from kept
             union
             select kept.scope_number, versions.parent from kept
             join versions on versions.scope_number = kept.scope_number
                 and versions.version = kept.version
         ),
         needed_blobs (blob) as (
             select distinct versions.blob from needed
             cross join versions on versions.scope_number = needed.scope_number
                 and versions.version = needed.version
         )
         select scopes.name as scope, versions.blob, versions.digest,
                group_concat(versions.version) as versions
         from versions join scopes on scopes.number = versions.scope_number
         where {scope} and {blob}
           and versions.pruned_ms is null and versions.digest <> $2
           and versions.blob not in (select blob from needed_blobs)
         group by scopes.number, versions.blob, versions.digest
         order by min(versions.number) limit $3"
    )
}

pub(crate) async fn prunable(
    connection: &mut Connection<'_>,
    keep: usize,
    most: usize,
) -> Result<Vec<Prunable>, Fault> {
    let found = db::query(AssertSqlSafe(prunable_sql(Of::All)))
        .bind(limit(keep))
        .bind(&Digest::NONE.0[..])
        .bind(limit(most))
        .fetch_all(connection)
        .await?;
    found.iter().map(prunable_row).collect()
}

fn prunable_row(row: &Row) -> Result<Prunable, Fault> {
    let numbers: String = row.try_get("versions")?;
    let number = |text: &str| {
        let number = text.parse::<u64>();
        number.map_err(|_| corrupt(format!("the version number {text:?}")))
    };
    let versions: Result<Vec<u64>, Fault> = numbers.split(',').map(number).collect();
    let mut versions = versions?;
    versions.sort_unstable();
    Ok(Prunable {
        scope: rows::scope(row.try_get("scope")?)?,
        versions: versions.into_iter().map(PolicyVersion).collect(),
        digest: rows::digest(row.try_get("digest")?)?,
        blob: BlobKey::new(row.try_get::<String, _>("blob")?)?,
    })
}

/// Asks again inside the writing transaction, because a rollback may have come in between.
pub(crate) async fn prune(
    connection: &mut Connection<'_>,
    wanted: &Prunable,
    keep: usize,
    now_ms: Millis,
) -> Result<(), Fault> {
    let needed = || {
        let blob = wanted.blob.as_str();
        Fault::Ledger(LedgerError::Conflict(format!(
            "blob {blob} is needed again"
        )))
    };
    let scope = policies::find_scope(connection, &wanted.scope).await?;
    let scope = scope.ok_or_else(needed)?;
    let still = db::query(AssertSqlSafe(prunable_sql(Of::OneBlob)))
        .bind(limit(keep))
        .bind(&Digest::NONE.0[..])
        .bind(i64::MAX)
        .bind(scope)
        .bind(wanted.blob.as_str())
        .fetch_all(&mut *connection)
        .await?;
    let still: Vec<Prunable> = still
        .iter()
        .map(prunable_row)
        .collect::<Result<_, Fault>>()?;
    if !still.contains(wanted) {
        return Err(needed());
    }
    db::query("update versions set pruned_ms = $1 where scope_number = $2 and blob = $3")
        .bind(now_ms)
        .bind(scope)
        .bind(wanted.blob.as_str())
        .execute(connection)
        .await?;
    Ok(())
}

pub(crate) async fn note_damage(
    connection: &mut Connection<'_>,
    blob: &BlobKey,
    entry: &AuditEntry,
) -> Result<Vec<Scope>, Fault> {
    let noted = db::query(
        "update versions
         set damaged_ms = coalesce(damaged_ms, $1), pruned_ms = coalesce(pruned_ms, $1)
         where blob = $2 and damaged_ms is null",
    )
    .bind(entry.at_ms)
    .bind(blob.as_str())
    .execute(&mut *connection)
    .await?;
    if noted.rows_affected() > 0 {
        audit::record(connection, entry).await?;
    }
    let names: Vec<Vec<u8>> = db::query_scalar(
        "select distinct scopes.name from versions
         join scopes on scopes.number = versions.scope_number
         left join standings on standings.scope_number = versions.scope_number
         where versions.blob = $1 and (
             versions.version = standings.trial_proven
             or versions.version = (
                 select max(newest.version) from versions as newest
                 where newest.scope_number = versions.scope_number
             )
         )",
    )
    .bind(blob.as_str())
    .fetch_all(connection)
    .await?;
    names.into_iter().map(rows::scope).collect()
}

pub(crate) async fn damaged(
    connection: &mut Connection<'_>,
    most: usize,
) -> Result<Vec<Policy>, Fault> {
    let found = db::query(
        "select scopes.name as scope, versions.version, versions.digest, versions.blob
         from versions join scopes on scopes.number = versions.scope_number
         where versions.damaged_ms is not null and versions.retired_ms is null
         order by versions.damaged_ms desc, versions.number desc limit $1",
    )
    .bind(limit(most))
    .fetch_all(connection)
    .await?;
    found.iter().map(rows::policy).collect()
}

pub(crate) async fn named_blobs(connection: &mut Connection<'_>) -> Result<Vec<BlobKey>, Fault> {
    let names: Vec<String> =
        db::query_scalar("select distinct blob from versions where pruned_ms is null")
            .fetch_all(connection)
            .await?;
    names
        .into_iter()
        .map(|name| Ok(BlobKey::new(name)?))
        .collect()
}

pub(crate) async fn learned_from_erased(
    connection: &mut Connection<'_>,
    order: &Publish,
) -> Result<bool, Fault> {
    let parent_tainted: Option<i64> = db::query_scalar(
        "select 1 from versions join scopes on scopes.number = versions.scope_number
         where scopes.name = $1 and version = $2 and tainted_ms is not null",
    )
    .bind(order.scope.as_str().as_bytes())
    .bind(signed(order.parent.0)?)
    .fetch_optional(&mut *connection)
    .await?;
    if parent_tainted.is_some() {
        return Ok(true);
    }
    for claim in &order.claims {
        let kept: Option<i64> = db::query_scalar(
            "select 1 from transitions join turns on turns.number = transitions.turn_number
             where transitions.id = $1 and turns.reason is distinct from $2",
        )
        .bind(&claim.transition.0.as_bytes()[..])
        .bind(Reason::Withdrawn.as_str())
        .fetch_optional(&mut *connection)
        .await?;
        if kept.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The adapters that a version may still be served from, with their content hashes.
pub async fn kept_blobs(connection: &mut Connection<'_>) -> Result<Vec<(BlobKey, Digest)>, Fault> {
    let found: Vec<(String, Vec<u8>)> = db::query_as(
        "select distinct blob, digest from versions
         where pruned_ms is null and tainted_ms is null and blob like '%/%' order by blob",
    )
    .fetch_all(connection)
    .await?;
    let keys = found.into_iter();
    keys.map(|(name, digest)| Ok((BlobKey::new(name)?, rows::digest(&digest)?)))
        .collect()
}
