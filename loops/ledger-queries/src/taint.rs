//! Erasure, the versions: which of them learned from what goes, and what is served instead.

use hone_domain::Millis;

use super::policies;
use crate::db::{self, Connection, Fault};

/// Every version that learned from what goes, with those that continue or restore one of them, and
/// the copies of all these that were imported since, whoever's they are.
pub const TAINTED: &str = "
    with recursive tainted (number, scope_number, version, digest) as (
        select versions.number, versions.scope_number, versions.version, versions.digest
        from gone_transitions
        join version_samples
            on version_samples.transition_number = gone_transitions.transition_number
        join versions on versions.scope_number = version_samples.scope_number
            and versions.version = version_samples.version
        union
        select later.number, later.scope_number, later.version, later.digest
        from tainted
        join versions as later
            on (later.scope_number = tainted.scope_number and later.parent = tainted.version)
            or (later.digest = tainted.digest and later.status = 'imported'
                and later.number > tainted.number)
    )
    select scope_number, version from tainted order by scope_number, version";

/// A scope with versions that are tainted.
pub(crate) struct Touched {
    pub(crate) scope: i64,
    /// These, ascending.
    pub(crate) versions: Vec<i64>,
    /// None where the newest is clean.
    pub(crate) back: Option<Back>,
}

/// What a scope is served instead of its newest version.
pub(crate) struct Back {
    /// 0 is the base model.
    pub(crate) to: i64,
    /// Transitions that may train again, each with the version that learned from it.
    pub(crate) freed: Vec<(i64, i64)>,
}

/// Finds out what the transitions that go mean for versions; changes nothing.
pub(crate) async fn find(connection: &mut Connection<'_>) -> Result<Vec<Touched>, Fault> {
    let tainted: Vec<(i64, i64)> = db::query_as(TAINTED).fetch_all(&mut *connection).await?;
    let mut touched = Vec::new();
    for same in tainted.chunk_by(|one, next| one.0 == next.0) {
        let (scope, versions) = (same[0].0, same.iter().map(|(_, version)| *version));
        let versions: Vec<i64> = versions.collect();
        touched.push(Touched {
            scope,
            back: way_back(connection, scope, &versions).await?,
            versions,
        });
    }
    Ok(touched)
}

async fn way_back(
    connection: &mut Connection<'_>,
    scope: i64,
    tainted: &[i64],
) -> Result<Option<Back>, Fault> {
    let head = policies::head(connection, scope).await?;
    let to = clean_ancestor(connection, scope, head, tainted).await?;
    if to == head {
        return Ok(None);
    }
    let freed = freed(connection, scope, head, to).await?;
    Ok(Some(Back { to, freed }))
}

/// The nearest ancestor of the newest version that learned from nothing that was erased; the newest
/// where it is clean itself. One whose files were removed for space, or that was retired, cannot be
/// restored.
async fn clean_ancestor(
    connection: &mut Connection<'_>,
    scope: i64,
    head: i64,
    tainted: &[i64],
) -> Result<i64, Fault> {
    let clean = db::query_scalar(
        "with recursive
             gone (version) as (
                 select cast(value as bigint) from json_each($3)
                 union
                 select version from versions
                 where scope_number = $1
                   and coalesce(tainted_ms, pruned_ms, retired_ms) is not null
             ),
             lineage (version, parent) as (
                 select version, parent from versions where scope_number = $1 and version = $2
                 union all
                 select versions.version, versions.parent
                 from lineage join versions on versions.version = lineage.parent
                 where versions.scope_number = $1
                   and lineage.version in (select version from gone)
             )
         select coalesce(max(version), 0) from lineage
         where version not in (select version from gone)",
    )
    .bind(scope)
    .bind(head)
    .bind(serde_json::to_string(tainted)?)
    .fetch_one(connection)
    .await?;
    Ok(clean)
}

/// Samples of the tainted versions between the newest and the restored one that may train again:
/// those that a version which stays on the chain sampled. What a tainted version sampled may repeat
/// what was erased, so it stays spent, and so does what lost something with age.
async fn freed(
    connection: &mut Connection<'_>,
    scope: i64,
    head: i64,
    restored: i64,
) -> Result<Vec<(i64, i64)>, Fault> {
    let freed = db::query_as(
        "with recursive
             left_behind (version) as (
                 select $2
                 union
                 select versions.parent from left_behind
                 join versions on versions.version = left_behind.version
                 where versions.scope_number = $1 and versions.parent <> $3
             ),
             kept (version) as (
                 select $3
                 union
                 select versions.parent from kept
                 join versions on versions.version = kept.version
                 where versions.scope_number = $1
             )
         select version_samples.transition_number, version_samples.version from version_samples
         join transitions on transitions.number = version_samples.transition_number
         join turns on turns.number = transitions.turn_number
         where version_samples.scope_number = $1
           and version_samples.version in (select version from left_behind)
           and turns.version in (select version from kept) and turns.score is not null
           and turns.extent = 2 and transitions.number not in (select transition_number from gone_transitions)",
    )
    .bind(scope)
    .bind(head)
    .bind(restored)
    .fetch_all(connection)
    .await?;
    Ok(freed)
}

/// Marks the versions, and their files as ones to be removed for the wish's scope.
pub(crate) async fn mark(
    connection: &mut Connection<'_>,
    touched: &[Touched],
    wish_scope: i64,
    now_ms: Millis,
) -> Result<(), Fault> {
    let each = |touched: &Touched| {
        let scope = touched.scope;
        let each = touched.versions.iter();
        each.map(|version| (scope, *version)).collect::<Vec<_>>()
    };
    let tainted: Vec<(i64, i64)> = touched.iter().flat_map(each).collect();
    for (scope, version) in &tainted {
        db::query(
            "update versions set tainted_ms = coalesce(tainted_ms, $1)
             where scope_number = $2 and version = $3",
        )
        .bind(now_ms)
        .bind(scope)
        .bind(version)
        .execute(&mut *connection)
        .await?;
    }
    for (scope, version) in &tainted {
        db::query(
            "insert into loose_blobs (blob, scope_number, digest)
             select blob, $1, digest from versions
             where scope_number = $2 and version = $3 and not exists (
                 select 1 from versions as clean
                 where clean.blob = versions.blob and clean.tainted_ms is null
             )
             on conflict do nothing",
        )
        .bind(wish_scope)
        .bind(scope)
        .bind(version)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}

/// Lets samples of a scope train again.
pub(crate) async fn free(
    connection: &mut Connection<'_>,
    scope: i64,
    freed: &[(i64, i64)],
) -> Result<(), Fault> {
    for (transition, version) in freed {
        db::query("delete from version_samples where transition_number = $1 and scope_number = $2")
            .bind(transition)
            .bind(scope)
            .execute(&mut *connection)
            .await?;
        db::query(
            "update versions set samples_gone = samples_gone + 1
             where scope_number = $1 and version = $2",
        )
        .bind(scope)
        .bind(version)
        .execute(&mut *connection)
        .await?;
        db::query(
            "update turns set stage = 'awaiting_training', trained_version = null
             where number = (select turn_number from transitions where number = $1)",
        )
        .bind(transition)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
