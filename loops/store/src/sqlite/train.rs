//! What the trainer claims and writes.

use std::collections::HashMap;

use hone_domain::{Policy, PolicyVersion, Reason, take_fairly};
use sqlx::{Row, SqliteConnection};

use super::consent;
use super::fault::{Fault, corrupt};
use super::leases::{self, Taking};
use super::policies;
use super::rows;
use super::standings;
use super::texts::{signed, unsigned};
use super::trials;
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
         left join standings on standings.scope_number = turns.scope_number
         where turns.stage = 'awaiting_training' and coalesce(leases.free_from_ms, ?1) <= ?1
           and standings.pinned_ms is null and standings.tripped_ms is null
           and standings.trial_ms is null
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
    staleness: u64,
    same_arithmetic: bool,
    source: Option<Vec<u8>>,
}

pub(super) async fn claim_samples(
    connection: &mut SqliteConnection,
    claim: &SampleClaim,
) -> Result<Vec<SampleMaterial>, Fault> {
    let Some(scope) = policies::find_scope(connection, &claim.scope).await? else {
        return Ok(Vec::new());
    };
    let is_barred = consent::is_barred(connection, scope).await?;
    let fresh = fresh_versions(connection, scope, claim.staleness_max_versions).await?;
    let mut queue = Queue::new(claim);
    let mut good = Vec::new();
    for mut candidate in candidates(connection, scope, claim).await? {
        let staleness = fresh.get(&candidate.version);
        let reason = if is_barred {
            Reason::Withdrawn
        } else if staleness.is_none() {
            Reason::Stale
        } else if !candidate.same_arithmetic {
            Reason::OtherFingerprint
        } else if !queue.has_room(candidate.source.as_deref()) {
            Reason::QueueDropped
        } else {
            candidate.staleness = staleness.copied().unwrap_or_default();
            good.push(candidate);
            continue;
        };
        leases::settle_turn(connection, candidate.turn_number, reason).await?;
    }
    let sources: Vec<Option<&[u8]>> = good.iter().map(|c| c.source.as_deref()).collect();
    let fair = take_fairly(&sources, claim.limit, claim.source_share_max);
    let mut materials = Vec::with_capacity(fair.len());
    for at in fair.into_iter().rev() {
        materials.push(take(connection, claim, &good[at]).await?);
    }
    Ok(materials)
}

/// The ready queue, with a place for everybody of a shared scope.
struct Queue {
    room: usize,
    room_per_source: usize,
    held: HashMap<Vec<u8>, usize>,
}

impl Queue {
    fn new(claim: &SampleClaim) -> Self {
        let share = (claim.queue_cap as f64 * claim.source_share_max).floor() as usize;
        Self {
            room: claim.queue_cap,
            room_per_source: share.max(1),
            held: HashMap::new(),
        }
    }

    /// Takes a place for the newest first.
    fn has_room(&mut self, source: Option<&[u8]>) -> bool {
        if self.room == 0 {
            return false;
        }
        if let Some(source) = source {
            let held = self.held.entry(source.to_vec()).or_default();
            if *held >= self.room_per_source {
                return false;
            }
            *held += 1;
        }
        self.room -= 1;
        true
    }
}

/// Versions young enough with their age: on the lineage of the head, and not more learned versions
/// back than allowed. What a rollback left behind is not on it, and going back costs no age.
async fn fresh_versions(
    connection: &mut SqliteConnection,
    scope: i64,
    staleness_max: u64,
) -> Result<HashMap<i64, u64>, Fault> {
    let head = policies::head(connection, scope).await?;
    let fresh: Vec<(i64, i64)> = sqlx::query_as(
        "with recursive lineage (version, age) as (
             select ?1, 0
             union all
             select versions.parent, age + (versions.status = 'published') from lineage
             join versions on versions.scope_number = ?2 and versions.version = lineage.version
             where age + (versions.status = 'published') <= ?3
         )
         select version, age from lineage",
    )
    .bind(head)
    .bind(scope)
    .bind(i64::try_from(staleness_max).unwrap_or(i64::MAX))
    .fetch_all(connection)
    .await?;
    fresh
        .into_iter()
        .map(|(version, age)| Ok((version, unsigned(age)?)))
        .collect()
}

/// Newest first.
async fn candidates(
    connection: &mut SqliteConnection,
    scope: i64,
    claim: &SampleClaim,
) -> Result<Vec<Candidate>, Fault> {
    let rows = sqlx::query(
        "select transitions.number as transition_number, turns.number as turn_number,
                turns.version, turns.source,
                arithmetics.fingerprint = ?1 and arithmetics.base = ?2 as same_arithmetic
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
    rows.into_iter()
        .map(|row| {
            Ok(Candidate {
                transition_number: row.try_get("transition_number")?,
                turn_number: row.try_get("turn_number")?,
                version: row.try_get("version")?,
                staleness: 0,
                same_arithmetic: row.try_get("same_arithmetic")?,
                source: row.try_get("source")?,
            })
        })
        .collect()
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
        staleness: candidate.staleness,
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
    if consent::is_barred(connection, scope).await? {
        return Err(conflict(format!(
            "consent to learn from scope {:?} was withdrawn",
            publish.scope.as_str()
        )));
    }
    let head = policies::head(connection, scope).await?;
    if signed(publish.parent.0)? != head {
        return Err(conflict(format!(
            "version {} of scope {:?} is no longer the newest: {head} is",
            publish.parent,
            publish.scope.as_str()
        )));
    }
    if let Some(why) = standings::held(connection, scope).await? {
        let scope = publish.scope.as_str();
        return Err(conflict(format!("scope {scope:?} is held: {why}")));
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
    if let Some(share) = publish.trial_share {
        let sides = (head, signed(policy.version.0)?);
        trials::begin(connection, scope, (sides, share, publish.now_ms)).await?;
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
