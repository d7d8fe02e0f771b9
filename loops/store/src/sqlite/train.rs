//! What the trainer claims and writes.

use std::collections::HashSet;

use hone_domain::{Policy, PolicyVersion, Reason};
use sqlx::{Row, SqliteConnection};

use super::fault::{Fault, corrupt};
use super::leases::{self, Taking};
use super::policies;
use super::rows;
use super::texts::{signed, unsigned};
use crate::LedgerError;
use crate::ledger::{
    Claim, Consumer, PolicyStatus, Publish, Ready, Refusal, SampleClaim, SampleMaterial,
};

pub(super) async fn ready(
    connection: &mut SqliteConnection,
    now_ms: i64,
) -> Result<Vec<Ready>, Fault> {
    let rows = sqlx::query(
        "select scopes.name as scope, count(*) as count, min(verdicts.judged_ms) as oldest,
                min(case when verdicts.decided_by = 'feedback' then verdicts.judged_ms end)
                    as oldest_explicit
         from turns indexed by turns_ready
         join transitions on transitions.turn_number = turns.number
         join verdicts on verdicts.transition_number = transitions.number and verdicts.current = 1
         join scopes on scopes.number = turns.scope_number
         left join leases on leases.transition_number = transitions.number
             and leases.consumer = 'train'
         where turns.stage = 'awaiting_training' and coalesce(leases.free_from_ms, ?1) <= ?1
         group by turns.scope_number order by oldest, scopes.number",
    )
    .bind(now_ms)
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|row| {
            let count = unsigned(row.try_get("count")?)?;
            Ok(Ready {
                scope: rows::scope(row.try_get("scope")?)?,
                count: usize::try_from(count).map_err(|_| corrupt("a count beyond memory"))?,
                oldest_judged_ms: row.try_get("oldest")?,
                oldest_explicit_ms: row.try_get("oldest_explicit")?,
            })
        })
        .collect()
}

/// A free, judged transition.
struct Candidate {
    transition_number: i64,
    turn_number: i64,
    version: i64,
    same_arithmetic: bool,
}

pub(super) async fn claim_samples(
    connection: &mut SqliteConnection,
    claim: &SampleClaim,
) -> Result<Vec<SampleMaterial>, Fault> {
    let Some(scope) = policies::find_scope(connection, &claim.scope).await? else {
        return Ok(Vec::new());
    };
    let fresh = fresh_versions(connection, scope, claim.staleness_max_versions).await?;
    let mut good = Vec::new();
    for candidate in candidates(connection, scope, claim).await? {
        let reason = if !fresh.contains(&candidate.version) {
            Reason::Stale
        } else if !candidate.same_arithmetic {
            Reason::OtherFingerprint
        } else if good.len() >= claim.queue_cap {
            Reason::QueueDropped
        } else {
            good.push(candidate);
            continue;
        };
        leases::settle_turn(connection, candidate.turn_number, reason).await?;
    }
    good.truncate(claim.limit);
    let mut materials = Vec::with_capacity(good.len());
    for candidate in good.iter().rev() {
        materials.push(take(connection, claim, candidate).await?);
    }
    Ok(materials)
}

/// Versions young enough: on the lineage of the head, and not more publishes back than allowed.
/// What a rollback left behind is not on it.
async fn fresh_versions(
    connection: &mut SqliteConnection,
    scope: i64,
    staleness_max: u64,
) -> Result<HashSet<i64>, Fault> {
    let head = policies::head(connection, scope).await?;
    let oldest = head.saturating_sub(i64::try_from(staleness_max).unwrap_or(i64::MAX));
    let fresh = sqlx::query_scalar(
        "with recursive lineage (version) as (
             select ?1
             union all
             select versions.parent from lineage
             join versions on versions.scope_number = ?2 and versions.version = lineage.version
             where versions.parent >= ?3
         )
         select version from lineage",
    )
    .bind(head)
    .bind(scope)
    .bind(oldest)
    .fetch_all(connection)
    .await?;
    Ok(fresh.into_iter().collect())
}

/// Newest first.
async fn candidates(
    connection: &mut SqliteConnection,
    scope: i64,
    claim: &SampleClaim,
) -> Result<Vec<Candidate>, Fault> {
    let rows: Vec<(i64, i64, i64, bool)> = sqlx::query_as(
        "select transitions.number, turns.number, turns.version,
                arithmetics.fingerprint = ?1 and arithmetics.base = ?2
         from turns indexed by turns_ready
         join transitions on transitions.turn_number = turns.number
         join arithmetics on arithmetics.number = turns.arithmetic_number
         left join leases on leases.transition_number = transitions.number
             and leases.consumer = 'train'
         where turns.stage = 'awaiting_training' and turns.scope_number = ?3
           and coalesce(leases.free_from_ms, ?4) <= ?4
         order by turns.number desc",
    )
    .bind(&claim.fingerprint)
    .bind(&claim.base.0[..])
    .bind(scope)
    .bind(claim.now_ms)
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(
            |(transition_number, turn_number, version, same_arithmetic)| Candidate {
                transition_number,
                turn_number,
                version,
                same_arithmetic,
            },
        )
        .collect())
}

async fn take(
    connection: &mut SqliteConnection,
    claim: &SampleClaim,
    candidate: &Candidate,
) -> Result<SampleMaterial, Fault> {
    let taking = Taking {
        transition_number: candidate.transition_number,
        consumer: Consumer::Train,
        until_ms: claim.now_ms.saturating_add(claim.lease_ms),
        batch: Some(claim.batch),
    };
    let (fence, _) = leases::take(connection, &taking).await?;
    let (turn, _) = rows::load_turn(connection, candidate.turn_number).await?;
    let id: Vec<u8> = sqlx::query_scalar("select id from transitions where number = ?")
        .bind(candidate.transition_number)
        .fetch_one(&mut *connection)
        .await?;
    let transition = rows::transition_id(&id)?;
    let verdict = rows::load_verdict(connection, candidate.transition_number, transition)
        .await?
        .ok_or_else(|| corrupt(format!("no current verdict of transition {transition}")))?;
    let score = verdict
        .score
        .ok_or_else(|| corrupt(format!("no score of transition {transition}")))?;
    let feedback = rows::load_feedback(connection, &turn).await?;
    Ok(SampleMaterial {
        claim: Claim {
            transition,
            consumer: Consumer::Train,
            fence,
        },
        turn,
        score,
        hint: verdict.hint,
        correction: rows::newest_correction(feedback),
    })
}

pub(super) async fn publish(
    connection: &mut SqliteConnection,
    publish: &Publish,
) -> Result<Policy, Fault> {
    if let Some(policy) = published_before(connection, publish).await? {
        return Ok(policy);
    }
    let scope = policies::make_scope(connection, &publish.scope).await?;
    let head = policies::head(connection, scope).await?;
    if signed(publish.parent.0)? != head {
        return Err(conflict(format!(
            "version {} of scope {:?} is no longer the newest: {head} is",
            publish.parent,
            publish.scope.as_str()
        )));
    }
    let policy = Policy {
        scope: publish.scope.clone(),
        version: PolicyVersion(unsigned(head)?).next(),
        digest: publish.digest,
        blob: publish.blob.clone(),
    };
    policies::store(
        connection,
        &policies::NewVersion {
            scope,
            policy: &policy,
            parent: publish.parent,
            status: PolicyStatus::Published,
            batch: Some(publish.batch),
            samples: publish.claims.len(),
            report: &publish.report,
            gate: &publish.gate,
            published_ms: publish.now_ms,
        },
    )
    .await?;
    for claim in &publish.claims {
        mark_trained(connection, *claim, (scope, policy.version)).await?;
    }
    Ok(policy)
}

fn conflict(what: String) -> Fault {
    Fault::Ledger(LedgerError::Conflict(what))
}

/// The policy that this batch published, where the caller asks again after a lost answer.
async fn published_before(
    connection: &mut SqliteConnection,
    publish: &Publish,
) -> Result<Option<Policy>, Fault> {
    let row = sqlx::query(
        "select scopes.name as scope, version, digest, blob from versions
         join scopes on scopes.number = versions.scope_number
         where batch_id = ?",
    )
    .bind(&publish.batch.0.as_bytes()[..])
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let policy = rows::policy(&row)?;
    if policy.scope == publish.scope && policy.digest == publish.digest {
        return Ok(Some(policy));
    }
    Err(conflict(format!(
        "batch {} has published another adapter as version {}",
        publish.batch, policy.version
    )))
}

async fn mark_trained(
    connection: &mut SqliteConnection,
    claim: Claim,
    (scope, version): (i64, PolicyVersion),
) -> Result<(), Fault> {
    let held = leases::hold(connection, claim).await?;
    if claim.consumer != Consumer::Train || held.scope_number != scope {
        return Err(conflict(format!(
            "transition {} is not claimed for training this scope",
            claim.transition
        )));
    }
    let version = signed(version.0)?;
    sqlx::query("update turns set stage = null, trained_version = ? where number = ?")
        .bind(version)
        .bind(held.turn_number)
        .execute(&mut *connection)
        .await?;
    sqlx::query(
        "insert into version_samples (scope_number, version, transition_number) values (?, ?, ?)",
    )
    .bind(scope)
    .bind(version)
    .bind(held.transition_number)
    .execute(&mut *connection)
    .await?;
    leases::finish(connection, held.transition_number, Consumer::Train).await
}

pub(super) async fn refuse(
    connection: &mut SqliteConnection,
    refusal: &Refusal,
) -> Result<(), Fault> {
    let scope = policies::make_scope(connection, &refusal.scope).await?;
    let settled = leases::settle(connection, &refusal.claims, refusal.reason).await?;
    sqlx::query(
        "insert into refusals (
             scope_number, parent, digest, batch_id, reason, samples, report, refused_ms
         ) values (?, ?, ?, ?, ?, ?, ?, ?) on conflict (batch_id) do nothing",
    )
    .bind(scope)
    .bind(signed(refusal.parent.0)?)
    .bind(refusal.digest.as_ref().map(|d| &d.0[..]))
    .bind(&refusal.batch.0.as_bytes()[..])
    .bind(refusal.reason.as_str())
    .bind(signed(settled)?)
    .bind(refusal.report.to_string())
    .bind(refusal.now_ms)
    .execute(connection)
    .await?;
    Ok(())
}
