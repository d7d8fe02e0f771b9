//! Versions on trial, and versions out of service.

use hone_domain::{Digest, Millis, OnTrial, Policy, PolicyVersion, Scope};

use super::texts::{limit, signed, unsigned};
use super::{policies, rows, standings};
use crate::db::{self, Connection, Fault, corrupt};
use hone_ledger::{Arm, Restore, RestoreWhy, Trial, TryOut};

/// Most trials that are told.
const TRIALS_MAX: usize = 100_000;

/// The numbers of the versions that a trial compares.
#[derive(Clone, Copy)]
pub(crate) struct Sides {
    pub(crate) proven: i64,
    pub(crate) on_trial: i64,
}

/// Puts a version on trial, restoring it first where it is not the newest.
pub(crate) async fn try_out(
    connection: &mut Connection<'_>,
    order: &TryOut,
) -> Result<OnTrial, Fault> {
    let conflict = |what: &str| standings::conflict(&order.scope, what);
    let number = policies::find_scope(connection, &order.scope)
        .await?
        .ok_or_else(|| conflict("nothing was published"))?;
    if let Some(why) = standings::held(connection, number).await? {
        return Err(conflict(why));
    }
    let head = policies::head(connection, number).await?;
    let (proven, on_trial) = if signed(order.version.0)? == head {
        (measure_of(connection, number, order).await?, head)
    } else {
        let served = digest_at(connection, number, head).await?;
        if served == digest_at(connection, number, signed(order.version.0)?).await? {
            return Err(conflict("it is the adapter that is served already"));
        }
        let restore = Restore {
            scope: order.scope.clone(),
            to: order.version,
            from: None,
            why: RestoreWhy::Asked,
            note: order.note.clone(),
            now_ms: order.now_ms,
        };
        let restored = standings::restore(connection, &restore).await?;
        (head, signed(restored.version.0)?)
    };
    let sides = Sides { proven, on_trial };
    begin(connection, number, sides, order.share, order.now_ms).await?;
    on_trial_of(connection, &order.scope, number, sides, order.share).await
}

/// What the newest version is compared with: the nearest good version of another adapter.
async fn measure_of(
    connection: &mut Connection<'_>,
    scope: i64,
    order: &TryOut,
) -> Result<i64, Fault> {
    let head = signed(order.version.0)?;
    let digest = digest_at(connection, scope, head).await?;
    let measure: Option<i64> = db::query_scalar(
        "select max(version) from versions
         where scope_number = $1 and version < $2 and digest <> $3 and pruned_ms is null
           and tainted_ms is null and retired_ms is null and tripped_ms is null",
    )
    .bind(scope)
    .bind(head)
    .bind(&digest.0[..])
    .fetch_one(connection)
    .await?;
    match measure {
        Some(version) => Ok(version),
        None if digest != Digest::NONE => Ok(0),
        None => Err(standings::conflict(
            &order.scope,
            "there is nothing to compare it with",
        )),
    }
}

async fn digest_at(
    connection: &mut Connection<'_>,
    scope: i64,
    version: i64,
) -> Result<Digest, Fault> {
    let record = policies::record(connection, scope, version).await?;
    Ok(record.map_or(Digest::NONE, |record| record.policy.digest))
}

/// Writes down that a trial begins: both sides, the share, and when.
pub(crate) async fn begin(
    connection: &mut Connection<'_>,
    scope: i64,
    sides: Sides,
    share: f64,
    now_ms: Millis,
) -> Result<(), Fault> {
    db::query(
        "insert into standings (scope_number, trial_version, trial_proven, trial_share, trial_ms)
         values ($1, $2, $3, $4, $5)
         on conflict (scope_number) do update
         set trial_version = $2, trial_proven = $3, trial_share = $4, trial_ms = $5",
    )
    .bind(scope)
    .bind(sides.on_trial)
    .bind(sides.proven)
    .bind(share)
    .bind(now_ms)
    .execute(connection)
    .await?;
    Ok(())
}

/// Ends the trial of one version.
pub(crate) async fn prove(
    connection: &mut Connection<'_>,
    scope: &Scope,
    version: PolicyVersion,
) -> Result<bool, Fault> {
    let Some(number) = policies::find_scope(connection, scope).await? else {
        return Ok(false);
    };
    if trial_of(connection, scope).await?.map(|t| t.version) != Some(version) {
        return Ok(false);
    }
    standings::end_trial(connection, number).await?;
    Ok(true)
}

/// Ends a trial whose measure was tainted, so that nobody is served what was erased.
pub(crate) async fn end_tainted(
    connection: &mut Connection<'_>,
    scope: i64,
) -> Result<bool, Fault> {
    let done = db::query(
        "update standings
         set trial_version = null, trial_proven = null, trial_share = null, trial_ms = null
         where scope_number = $1 and trial_proven in (
             select version from versions where scope_number = $1 and tainted_ms is not null
         )",
    )
    .bind(scope)
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

async fn trial_of(connection: &mut Connection<'_>, scope: &Scope) -> Result<Option<Trial>, Fault> {
    Ok(standings::standing(connection, scope).await?.trial)
}

async fn on_trial_of(
    connection: &mut Connection<'_>,
    scope: &Scope,
    number: i64,
    sides: Sides,
    share: f64,
) -> Result<OnTrial, Fault> {
    Ok(OnTrial {
        policy: policy_at(connection, scope, number, sides.on_trial).await?,
        proven: policy_at(connection, scope, number, sides.proven).await?,
        share,
    })
}

async fn policy_at(
    connection: &mut Connection<'_>,
    scope: &Scope,
    number: i64,
    version: i64,
) -> Result<Policy, Fault> {
    if version == 0 {
        return Ok(Policy::base(scope.clone(), PolicyVersion::BASE));
    }
    let record = policies::record(connection, number, version).await?;
    let record = record.ok_or_else(|| corrupt(format!("a trial without version {version}")))?;
    Ok(record.policy)
}

pub(crate) async fn trials(connection: &mut Connection<'_>) -> Result<Vec<OnTrial>, Fault> {
    let rows = db::query(
        "select scopes.name as scope, standings.* from standings
         join scopes on scopes.number = standings.scope_number
         where trial_ms is not null order by scopes.number limit $1",
    )
    .bind(limit(TRIALS_MAX))
    .fetch_all(&mut *connection)
    .await?;
    let mut found = Vec::with_capacity(rows.len());
    for row in &rows {
        let scope = rows::scope(row.try_get("scope")?)?;
        let number = row.try_get("scope_number")?;
        let sides = Sides {
            proven: row.try_get("trial_proven")?,
            on_trial: row.try_get("trial_version")?,
        };
        let share = row.try_get("trial_share")?;
        found.push(on_trial_of(connection, &scope, number, sides, share).await?);
    }
    Ok(found)
}

pub(crate) async fn arms(
    connection: &mut Connection<'_>,
    scope: &Scope,
    trial: &Trial,
) -> Result<[Arm; 2], Fault> {
    let number = policies::find_scope(connection, scope).await?.unwrap_or(0);
    Ok([
        arm(connection, number, trial.version, trial.since_ms).await?,
        arm(connection, number, trial.proven, trial.since_ms).await?,
    ])
}

async fn arm(
    connection: &mut Connection<'_>,
    scope: i64,
    version: PolicyVersion,
    since_ms: Millis,
) -> Result<Arm, Fault> {
    let row = db::query(
        "select count(*) as turns, count(score) as scored, avg(score) as mean,
                count(case when score < 0 then 1 end) as complaints
         from turns where scope_number = $1 and version = $2 and started_ms >= $3
           and kind = 'main' and origin = 'user'",
    )
    .bind(scope)
    .bind(signed(version.0)?)
    .bind(since_ms)
    .fetch_one(connection)
    .await?;
    Ok(Arm {
        version,
        turns: unsigned(row.try_get("turns")?)?,
        scored_turns: unsigned(row.try_get("scored")?)?,
        complaints: unsigned(row.try_get("complaints")?)?,
        mean_score: row.try_get("mean")?,
    })
}

/// Takes an adapter out of service, ending its trial where it is on one.
pub(crate) async fn retire(
    connection: &mut Connection<'_>,
    scope: &Scope,
    version: PolicyVersion,
    now_ms: Millis,
) -> Result<Option<Policy>, Fault> {
    let conflict = |what: &str| standings::conflict(scope, what);
    let unknown = || conflict(&format!("there is no published version {version}"));
    let number = policies::find_scope(connection, scope)
        .await?
        .ok_or_else(unknown)?;
    let record = policies::record(connection, number, signed(version.0)?)
        .await?
        .ok_or_else(unknown)?;
    let digest = record.policy.digest;
    if digest == Digest::NONE {
        return Err(conflict("the base model cannot be retired"));
    }
    let trial = trial_of(connection, scope).await?;
    let mut published = None;
    if let Some(trial) = trial {
        if trial.version == version {
            let restore = Restore {
                scope: scope.clone(),
                to: trial.proven,
                from: Some(version),
                why: RestoreWhy::Asked,
                note: Some(format!("version {version} was retired")),
                now_ms,
            };
            published = Some(standings::restore(connection, &restore).await?);
        } else if digest_at(connection, number, signed(trial.proven.0)?).await? == digest {
            return Err(conflict("a version on trial is compared with it"));
        }
    }
    let head = policies::head(connection, number).await?;
    if digest_at(connection, number, head).await? == digest {
        return Err(conflict(&format!(
            "version {version} is served; go back to another one first"
        )));
    }
    mark(connection, number, digest, Some(now_ms)).await?;
    Ok(published)
}

/// Takes an adapter back into service.
pub(crate) async fn unretire(
    connection: &mut Connection<'_>,
    scope: &Scope,
    version: PolicyVersion,
) -> Result<bool, Fault> {
    let Some(number) = policies::find_scope(connection, scope).await? else {
        return Ok(false);
    };
    let record = policies::record(connection, number, signed(version.0)?).await?;
    match record {
        Some(record) if record.is_retired => {
            mark(connection, number, record.policy.digest, None).await?;
            Ok(true)
        }
        _ => Ok(false),
    }
}

async fn mark(
    connection: &mut Connection<'_>,
    scope: i64,
    digest: Digest,
    retired_ms: Option<Millis>,
) -> Result<(), Fault> {
    db::query("update versions set retired_ms = $1 where scope_number = $2 and digest = $3")
        .bind(retired_ms)
        .bind(scope)
        .bind(&digest.0[..])
        .execute(connection)
        .await?;
    Ok(())
}
