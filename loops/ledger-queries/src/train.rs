//! What the trainer claims and writes.

use std::collections::{BTreeMap, HashMap};

use hone_domain::{Origin, Policy, PolicyVersion, Reason, take_fairly};
use sqlx::AssertSqlSafe;

use super::leases::Taking;
use super::texts::{limit, signed, unsigned};
use super::trials::Sides;
use super::unreadable::readable;
use super::{consent, leases, policies, rewards, rows, standings, trials, unreadable};
use crate::db::{self, Connection, Fault, corrupt};
use hone_ledger::{
    Claim, ClaimedSamples, Consumer, LedgerError, PolicyStatus, Publish, Ready, Refusal,
    SampleClaim, SampleMaterial,
};

/// Most turns that one claim settles: a backlog may be long, and others wait to write.
const SETTLED_MAX: usize = 256;

/// What waits in a scope that is held is left out before anything is looked up about it.
pub const READY: &str = "
    select scopes.name as scope, count(*) as count, min(verdicts.judged_ms) as oldest,
           min(case when verdicts.decided_by = 'feedback' then verdicts.judged_ms end)
               as oldest_explicit
    from turns indexed by turns_ready
    join transitions on transitions.turn_number = turns.number
    join verdicts on verdicts.transition_number = transitions.number and verdicts.current = 1
    join scopes on scopes.number = turns.scope_number
    left join leases on leases.transition_number = transitions.number
        and leases.consumer = 'train'
    where turns.stage = 'awaiting_training' and coalesce(leases.free_from_ms, $1) <= $1
      and turns.scope_number not in (
          select scope_number from standings
          where pinned_ms is not null or tripped_ms is not null or trial_ms is not null
      )
    group by scopes.number order by oldest, scopes.number";

pub(crate) async fn ready(
    connection: &mut Connection<'_>,
    now_ms: i64,
) -> Result<Vec<Ready>, Fault> {
    let rows = db::query(READY).bind(now_ms).fetch_all(connection).await?;
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
    /// How often it was claimed and never given back.
    attempts: u32,
    source: Option<Vec<u8>>,
}

pub(crate) async fn claim_samples(
    connection: &mut Connection<'_>,
    claim: &SampleClaim,
) -> Result<ClaimedSamples, Fault> {
    let Some(scope) = policies::find_scope(connection, &claim.scope).await? else {
        return Ok(ClaimedSamples::default());
    };
    let mut sorter = Sorter {
        is_barred: consent::is_barred(connection, scope).await?,
        fresh: fresh_versions(connection, scope, claim.staleness_max_versions).await?,
        attempts_max: claim.attempts_max,
        queue: Queue::new(claim),
    };
    let most = claim.queue_cap.saturating_add(SETTLED_MAX);
    let newest = candidates(connection, scope, claim, Walk::Newest(most)).await?;
    let is_more = newest.len() == most;
    let last = newest.last().map_or(0, |candidate| candidate.turn_number);
    let (mut good, mut newer) = (Vec::new(), Vec::new());
    for mut candidate in newest {
        match sorter.objection(&mut candidate) {
            Some(reason) => newer.push((candidate.turn_number, reason)),
            None => good.push(candidate),
        }
    }
    let mut objections = Vec::new();
    // Behind a full queue nothing has a place.
    if is_more && sorter.queue.room == 0 {
        for mut candidate in candidates(connection, scope, claim, Walk::OldestTo(last)).await? {
            let reason = sorter.objection(&mut candidate);
            objections.extend(reason.map(|reason| (candidate.turn_number, reason)));
        }
    }
    objections.extend(newer.into_iter().rev());
    // What may train is claimed when a backlog is gone: a batch is not made of what is left of it.
    let is_backlog = objections.len() > SETTLED_MAX;
    objections.truncate(SETTLED_MAX);
    settle(connection, &objections).await?;
    let mut claimed = ClaimedSamples {
        materials: Vec::new(),
        settled: objections.len(),
    };
    if is_backlog {
        return Ok(claimed);
    }
    let sources: Vec<Option<&[u8]>> = good.iter().map(|c| c.source.as_deref()).collect();
    let fair = take_fairly(&sources, claim.limit, claim.source_share_max);
    for at in fair.into_iter().rev() {
        match take(connection, claim, &good[at]).await? {
            Some(material) => claimed.materials.push(material),
            None => claimed.settled += 1,
        }
    }
    Ok(claimed)
}

/// Settles turns, each with its reason.
async fn settle(
    connection: &mut Connection<'_>,
    objections: &[(i64, Reason)],
) -> Result<(), Fault> {
    let mut by_reason: BTreeMap<Reason, Vec<i64>> = BTreeMap::new();
    for (turn, reason) in objections {
        by_reason.entry(*reason).or_default().push(*turn);
    }
    for (reason, turns) in by_reason {
        if reason == Reason::StepFailed {
            tracing::error!(
                turns = turns.len(),
                "turns were claimed for training again and again and never given back: training on \
                 them seems to end the process; they are settled as step_failed"
            );
        }
        leases::settle_turns(connection, &turns, reason).await?;
    }
    Ok(())
}

/// What decides whether a candidate may train.
struct Sorter {
    is_barred: bool,
    /// Versions that are young enough, with their age.
    fresh: HashMap<i64, u64>,
    attempts_max: u32,
    queue: Queue,
}

impl Sorter {
    /// Why a candidate may not train; where it may, it has its age now and a place in the queue.
    fn objection(&mut self, candidate: &mut Candidate) -> Option<Reason> {
        if self.is_barred {
            return Some(Reason::Withdrawn);
        }
        let Some(age) = self.fresh.get(&candidate.version) else {
            return Some(Reason::Stale);
        };
        candidate.staleness = *age;
        if !candidate.same_arithmetic {
            Some(Reason::OtherFingerprint)
        } else if candidate.attempts >= self.attempts_max {
            Some(Reason::StepFailed)
        } else if !self.queue.has_room(candidate.source.as_deref()) {
            Some(Reason::QueueDropped)
        } else {
            None
        }
    }
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
    connection: &mut Connection<'_>,
    scope: i64,
    staleness_max: u64,
) -> Result<HashMap<i64, u64>, Fault> {
    let head = policies::head(connection, scope).await?;
    let fresh: Vec<(i64, i64)> = db::query_as(
        "with recursive lineage (version, age) as (
             select $1, 0
             union all
             select versions.parent, age + case when versions.status = 'rollback' then 0 else 1 end from lineage
             join versions on versions.scope_number = $2 and versions.version = lineage.version
             where age + case when versions.status = 'rollback' then 0 else 1 end <= $3
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

/// Which way to walk through what waits.
#[derive(Clone, Copy)]
enum Walk {
    /// From the newest, so many.
    Newest(usize),
    /// From the oldest, before this turn, as many as a claim settles.
    OldestTo(i64),
}

async fn candidates(
    connection: &mut Connection<'_>,
    scope: i64,
    claim: &SampleClaim,
    walk: Walk,
) -> Result<Vec<Candidate>, Fault> {
    let (before, order, most) = match walk {
        Walk::Newest(most) => (i64::MAX, "desc", most),
        Walk::OldestTo(before) => (before, "asc", SETTLED_MAX),
    };
    let sql = format!(
        "select transitions.number as transition_number, turns.number as turn_number,
                turns.version, turns.source, coalesce(leases.attempts, 0) as attempts,
                arithmetics.fingerprint = $1 and arithmetics.base = $2 as same_arithmetic
         from turns indexed by turns_ready
         join transitions on transitions.turn_number = turns.number
         join arithmetics on arithmetics.number = turns.arithmetic_number
         left join leases on leases.transition_number = transitions.number
             and leases.consumer = 'train'
         where turns.stage = 'awaiting_training' and turns.scope_number = $3
           and turns.number < $5 and coalesce(leases.free_from_ms, $4) <= $4
         order by turns.number {order} limit $6"
    );
    let rows = db::query(AssertSqlSafe(sql))
        .bind(&claim.fingerprint)
        .bind(&claim.base.0[..])
        .bind(scope)
        .bind(claim.now_ms)
        .bind(before)
        .bind(limit(most))
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
                attempts: row.try_get("attempts")?,
                source: row.try_get("source")?,
            })
        })
        .collect()
}

/// None where it cannot be read: then it is settled.
async fn take(
    connection: &mut Connection<'_>,
    claim: &SampleClaim,
    candidate: &Candidate,
) -> Result<Option<SampleMaterial>, Fault> {
    let Some(mut material) = readable(read(connection, candidate).await)? else {
        unreadable::settle(connection, candidate.turn_number, Reason::StepFailed).await?;
        return Ok(None);
    };
    let taking = Taking {
        transition_number: candidate.transition_number,
        consumer: Consumer::Train,
        until_ms: claim.now_ms.saturating_add(claim.lease_ms),
        batch: Some(claim.batch),
    };
    (material.claim.fence, _) = leases::take(connection, &taking).await?;
    Ok(Some(material))
}

/// What a candidate is, with a claim that holds nothing yet.
async fn read(
    connection: &mut Connection<'_>,
    candidate: &Candidate,
) -> Result<SampleMaterial, Fault> {
    let (turn, _) = rows::load_turn(connection, candidate.turn_number).await?;
    let id: Vec<u8> = db::query_scalar("select id from transitions where number = $1")
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
    let peers = match turn.origin {
        Origin::Rollout => rewards::peers_of(connection, candidate.turn_number).await?,
        _ => Vec::new(),
    };
    Ok(SampleMaterial {
        claim: Claim {
            transition,
            consumer: Consumer::Train,
            fence: 0,
        },
        turn,
        staleness: candidate.staleness,
        score,
        hint: verdict.hint,
        wish: verdict.wish,
        correction: rows::newest_correction(feedback),
        peers,
    })
}

pub(crate) async fn publish(
    connection: &mut Connection<'_>,
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
            note: None,
            published_ms: publish.now_ms,
        },
    )
    .await?;
    for claim in &publish.claims {
        mark_trained(connection, *claim, scope, policy.version).await?;
    }
    if let Some(share) = publish.trial_share {
        let sides = Sides {
            proven: head,
            on_trial: signed(policy.version.0)?,
        };
        trials::begin(connection, scope, sides, share, publish.now_ms).await?;
    }
    Ok(policy)
}

fn conflict(what: String) -> Fault {
    Fault::Ledger(LedgerError::Conflict(what))
}

/// The policy that this batch published, where the caller asks again after a lost answer.
async fn published_before(
    connection: &mut Connection<'_>,
    publish: &Publish,
) -> Result<Option<Policy>, Fault> {
    let row = db::query(
        "select scopes.name as scope, version, digest, blob from versions
         join scopes on scopes.number = versions.scope_number
         where batch_id = $1",
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
    connection: &mut Connection<'_>,
    claim: Claim,
    scope: i64,
    version: PolicyVersion,
) -> Result<(), Fault> {
    let held = leases::hold(connection, claim).await?;
    if claim.consumer != Consumer::Train || held.scope_number != scope {
        return Err(conflict(format!(
            "transition {} is not claimed for training this scope",
            claim.transition
        )));
    }
    let version = signed(version.0)?;
    db::query("update turns set stage = null, trained_version = $1 where number = $2")
        .bind(version)
        .bind(held.turn_number)
        .execute(&mut *connection)
        .await?;
    db::query(
        "insert into version_samples (scope_number, version, transition_number) values ($1, $2, $3)",
    )
    .bind(scope)
    .bind(version)
    .bind(held.transition_number)
    .execute(&mut *connection)
    .await?;
    leases::finish(connection, held.transition_number, Consumer::Train).await
}

pub(crate) async fn refuse(
    connection: &mut Connection<'_>,
    refusal: &Refusal,
) -> Result<(), Fault> {
    let scope = policies::make_scope(connection, &refusal.scope).await?;
    let settled = leases::settle(connection, &refusal.claims, refusal.reason).await?;
    db::query(
        "insert into refusals (
             scope_number, parent, digest, batch_id, reason, samples, report, refused_ms
         ) values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (batch_id) do nothing",
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
