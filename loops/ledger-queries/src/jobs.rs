//! Jobs: what waits, who has it, and how it ended.

use hone_domain::{
    GroupId, Job, JobId, JobKind, JobReason, JobState, Millis, RolloutSpec, uuid_of,
};
use hone_ledger::{
    JOB_ATTEMPTS_MAX, JobClaim, JobEnd, JobLease, LedgerError, NewGroups, QueueRow, ScalingRow,
    Window,
};
use sha2::{Digest as _, Sha256};
use sqlx::AssertSqlSafe;

use super::rows;
use super::texts::{limit, named, signed, unsigned};
use crate::db::{self, Connection, Fault, Row, corrupt};

/// The columns of [`job_row`].
pub(super) const JOB: &str = "select jobs.number, jobs.id, jobs.kind, jobs.owner,
        scopes.name as scope, rollouts.id as rollout_id, group_id, member, tasks.id as task_id,
        attempt, jobs.state, reason, priority, not_before_ms, jobs.created_ms, started_ms, ended_ms,
        fence, reward, version, session_id, result
    from jobs join scopes on scopes.number = jobs.scope_number
    join tasks on tasks.number = jobs.task_number
    left join rollouts on rollouts.number = jobs.rollout_number";

pub(super) fn job_row(row: &Row) -> Result<(i64, Job), Fault> {
    let bytes = |name| row.try_get::<Option<&[u8]>, _>(name);
    let reason: Option<String> = row.try_get("reason")?;
    let version: Option<i64> = row.try_get("version")?;
    let job = Job {
        id: rows::job_id(row.try_get("id")?)?,
        kind: named(row.try_get("kind")?)?,
        owner: row.try_get("owner")?,
        scope: rows::scope(row.try_get("scope")?)?,
        rollout: bytes("rollout_id")?.map(rows::rollout_id).transpose()?,
        group: rows::group_id(row.try_get("group_id")?)?,
        member: small(row.try_get("member")?)?,
        task: rows::task_id(row.try_get("task_id")?)?,
        attempt: small(row.try_get("attempt")?)?,
        state: named(row.try_get("state")?)?,
        reason: reason.map(named).transpose()?,
        priority: row.try_get::<f64, _>("priority")? as f32,
        not_before_ms: row.try_get("not_before_ms")?,
        created_ms: row.try_get("created_ms")?,
        started_ms: row.try_get("started_ms")?,
        ended_ms: row.try_get("ended_ms")?,
        fence: unsigned(row.try_get("fence")?)?,
        reward: rows::score(row.try_get("reward")?),
        version: version.map(unsigned).transpose()?,
        session: bytes("session_id")?.map(rows::session_id).transpose()?,
        result: bytes("result")?.map(serde_json::from_slice).transpose()?,
    };
    Ok((row.try_get("number")?, job))
}

fn small(number: i64) -> Result<u32, Fault> {
    u32::try_from(number).map_err(|_| corrupt(format!("the number {number} is too large")))
}

/// The id of an attempt at a place of a group: the same, whoever orders it.
fn job_id(group: GroupId, kind: JobKind, member: u32, attempt: u32) -> JobId {
    let mut hash = Sha256::new();
    hash.update(group.0.as_bytes());
    hash.update(kind.as_str());
    hash.update(member.to_le_bytes());
    hash.update(attempt.to_le_bytes());
    JobId(uuid_of(&hash.finalize().into()))
}

/// A job to be stored.
pub(super) struct NewJob<'a> {
    pub(super) kind: JobKind,
    pub(super) owner: &'a str,
    pub(super) scope_number: i64,
    pub(super) rollout_number: Option<i64>,
    pub(super) group: GroupId,
    pub(super) member: u32,
    pub(super) task_number: i64,
    pub(super) attempt: u32,
    pub(super) priority: f64,
    pub(super) not_before_ms: Millis,
    pub(super) now_ms: Millis,
}

/// Stores a job, unless it is there.
pub(super) async fn order(connection: &mut Connection<'_>, new: &NewJob<'_>) -> Result<(), Fault> {
    let id = job_id(new.group, new.kind, new.member, new.attempt);
    db::query(
        "insert into jobs (
             id, kind, owner, scope_number, rollout_number, group_id, member, task_number, attempt,
             state, priority, not_before_ms, created_ms
         ) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'queued', $10, $11, $12)
         on conflict (id) do nothing",
    )
    .bind(&id.0.as_bytes()[..])
    .bind(new.kind.as_str())
    .bind(new.owner)
    .bind(new.scope_number)
    .bind(new.rollout_number)
    .bind(&new.group.0.as_bytes()[..])
    .bind(new.member)
    .bind(new.task_number)
    .bind(new.attempt)
    .bind(new.priority)
    .bind(new.not_before_ms)
    .bind(new.now_ms)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn add_groups(
    connection: &mut Connection<'_>,
    new: &NewGroups,
    now_ms: Millis,
) -> Result<bool, Fault> {
    let count = i64::try_from(new.groups.len()).unwrap_or(i64::MAX);
    let begun = db::query(
        "update rollouts set groups_made = groups_made + $3
         where id = $1 and groups_made = $2 and cancelled_ms is null
         returning number, owner, scope_number, spec",
    )
    .bind(&new.rollout.0.as_bytes()[..])
    .bind(i64::from(new.after))
    .bind(count)
    .fetch_optional(&mut *connection)
    .await?;
    let Some(rollout) = begun else {
        return Ok(false);
    };
    let owner: String = rollout.try_get("owner")?;
    let spec: RolloutSpec = serde_json::from_slice(rollout.try_get("spec")?)?;
    for (group, task) in &new.groups {
        let task_number: i64 = db::query_scalar("select number from tasks where id = $1")
            .bind(&task.0.as_bytes()[..])
            .fetch_one(&mut *connection)
            .await?;
        for member in 0..spec.attempts {
            let job = NewJob {
                kind: JobKind::Episode,
                owner: &owner,
                scope_number: rollout.try_get("scope_number")?,
                rollout_number: Some(rollout.try_get("number")?),
                group: *group,
                member,
                task_number,
                attempt: 1,
                priority: f64::from(new.priority),
                not_before_ms: now_ms,
                now_ms,
            };
            order(connection, &job).await?;
        }
    }
    Ok(true)
}

pub(super) async fn claim(
    connection: &mut Connection<'_>,
    claim: &JobClaim,
    lease_now_ms: Millis,
) -> Result<Vec<Job>, Fault> {
    let lost = db::query(AssertSqlSafe(format!(
        "{JOB} where jobs.state = 'running' and free_from_ms <= $1 order by jobs.number limit $2"
    )))
    .bind(lease_now_ms)
    .bind(limit(claim.limit.max(1)))
    .fetch_all(&mut *connection)
    .await?;
    for row in &lost {
        let (number, job) = job_row(row)?;
        let failed = Failed {
            reason: JobReason::Worker,
            result: serde_json::Value::Null,
            retry_ms: claim.now_ms,
        };
        fail(connection, number, &job, failed, claim.now_ms).await?;
    }
    let waiting = db::query(
        "select number from jobs indexed by jobs_queued where state = 'queued' and not_before_ms <= $1
         order by priority desc, number limit $2",
    )
    .bind(claim.now_ms)
    .bind(limit(claim.limit))
    .fetch_all(&mut *connection)
    .await?;
    let mut taken = Vec::with_capacity(waiting.len());
    for row in &waiting {
        let number: i64 = row.try_get("number")?;
        let took = db::query(
            "update jobs set state = 'running', fence = fence + 1, started_ms = $2, free_from_ms = $3
             where number = $1 and state = 'queued'",
        )
        .bind(number)
        .bind(claim.now_ms)
        .bind(lease_now_ms.saturating_add(claim.lease_ms))
        .execute(&mut *connection)
        .await?;
        if took.rows_affected() == 1 {
            taken.push(at(connection, number).await?);
        }
    }
    Ok(taken)
}

/// Whether a claim would find something: asked before, so that a server with nothing to do takes no turn to write.
pub(super) async fn has_work(
    connection: &mut Connection<'_>,
    now_ms: Millis,
    lease_now_ms: Millis,
) -> Result<bool, Fault> {
    let queued = "select number from jobs where state = 'queued' and not_before_ms <= $1 limit 1";
    let lost = "select number from jobs where state = 'running' and free_from_ms <= $1 limit 1";
    for (find, at_ms) in [(queued, now_ms), (lost, lease_now_ms)] {
        let found = db::query(find).bind(at_ms).fetch_optional(&mut *connection);
        if found.await?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn at(connection: &mut Connection<'_>, number: i64) -> Result<Job, Fault> {
    let row = db::query(AssertSqlSafe(format!("{JOB} where jobs.number = $1")))
        .bind(number)
        .fetch_one(connection)
        .await?;
    Ok(job_row(&row)?.1)
}

pub(super) async fn renew(
    connection: &mut Connection<'_>,
    leases: &[JobLease],
    until_ms: Millis,
) -> Result<Vec<JobId>, Fault> {
    let mut lost = Vec::new();
    for lease in leases {
        let held = db::query(
            "update jobs set free_from_ms = $3 where id = $1 and fence = $2 and state = 'running'",
        )
        .bind(&lease.job.0.as_bytes()[..])
        .bind(signed(lease.fence)?)
        .bind(until_ms)
        .execute(&mut *connection)
        .await?;
        if held.rows_affected() == 0 {
            lost.push(lease.job);
        }
    }
    Ok(lost)
}

/// A failure for no fault of the job.
struct Failed {
    reason: JobReason,
    result: serde_json::Value,
    retry_ms: Millis,
}

pub(super) async fn end(
    connection: &mut Connection<'_>,
    lease: JobLease,
    end: &JobEnd,
    now_ms: Millis,
) -> Result<(), Fault> {
    let held = db::query(AssertSqlSafe(format!(
        "{JOB} where jobs.id = $1 and fence = $2 and jobs.state = 'running'"
    )))
    .bind(&lease.job.0.as_bytes()[..])
    .bind(signed(lease.fence)?)
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = held else {
        let what = format!("job {}", lease.job);
        return Err(Fault::Ledger(LedgerError::Fenced(what)));
    };
    let (number, job) = job_row(&row)?;
    match end {
        JobEnd::Released => {
            db::query("update jobs set state = 'queued', free_from_ms = 0 where number = $1")
                .bind(number)
                .execute(connection)
                .await?;
            Ok(())
        }
        JobEnd::Failed {
            reason,
            result,
            retry_ms,
        } => {
            let failed = Failed {
                reason: *reason,
                result: result.clone(),
                retry_ms: *retry_ms,
            };
            fail(connection, number, &job, failed, now_ms).await
        }
        JobEnd::Settled {
            state,
            reason,
            outcome,
        } => {
            db::query(
                "update jobs set state = $2, reason = $3, reward = $4, version = $5, session_id = $6,
                     result = $7, ended_ms = $8
                 where number = $1",
            )
            .bind(number)
            .bind(state.as_str())
            .bind(reason.as_str())
            .bind(outcome.reward.map(f64::from))
            .bind(outcome.version.map(signed).transpose()?)
            .bind(outcome.session.as_ref().map(|id| &id.0.as_bytes()[..]))
            .bind(&serde_json::to_vec(&outcome.result)?[..])
            .bind(now_ms)
            .execute(&mut *connection)
            .await?;
            group_ended(connection, number, &job, now_ms).await
        }
    }
}

/// Another attempt takes the place of a job; where it had its last, it is skipped, and its task with it.
async fn fail(
    connection: &mut Connection<'_>,
    number: i64,
    job: &Job,
    failed: Failed,
    now_ms: Millis,
) -> Result<(), Fault> {
    let is_last = job.attempt >= JOB_ATTEMPTS_MAX;
    let state = match is_last {
        true => JobState::Skipped,
        false => JobState::Retried,
    };
    db::query(
        "update jobs set state = $2, reason = $3, result = $4, ended_ms = $5 where number = $1",
    )
    .bind(number)
    .bind(state.as_str())
    .bind(failed.reason.as_str())
    .bind(&serde_json::to_vec(&failed.result)?[..])
    .bind(now_ms)
    .execute(&mut *connection)
    .await?;
    if !is_last {
        let next = job_id(job.group, job.kind, job.member, job.attempt + 1);
        db::query(
            "insert into jobs (
                 id, kind, owner, scope_number, rollout_number, group_id, member, task_number,
                 attempt, state, priority, not_before_ms, created_ms
             )
             select $2, kind, owner, scope_number, rollout_number, group_id, member, task_number,
                 attempt + 1, 'queued', priority, $3, $4
             from jobs where number = $1",
        )
        .bind(number)
        .bind(&next.0.as_bytes()[..])
        .bind(failed.retry_ms)
        .bind(now_ms)
        .execute(connection)
        .await?;
        return Ok(());
    }
    // What the model or this server lacks is no fault of the task.
    if job.kind != JobKind::Credit && failed.reason == JobReason::Jail {
        db::query(
            "update tasks set state = 'quarantined', note = $2 where id = $1 and state in ('new', 'ready')",
        )
        .bind(&job.task.0.as_bytes()[..])
        .bind(format!("it failed {JOB_ATTEMPTS_MAX} times: {}", failed.reason.as_str()).into_bytes())
        .execute(&mut *connection)
        .await?;
    }
    group_ended(connection, number, job, now_ms).await
}

/// With its last episode a group that is learned from gets a job that gives its rewards.
async fn group_ended(
    connection: &mut Connection<'_>,
    number: i64,
    job: &Job,
    now_ms: Millis,
) -> Result<(), Fault> {
    let (JobKind::Episode, Some(_)) = (job.kind, job.rollout) else {
        return Ok(());
    };
    let row = db::query(
        "select jobs.scope_number, rollout_number, task_number, spec,
                (select count(*) from jobs as others where others.group_id = jobs.group_id
                 and others.kind = 'episode' and others.state in ('queued', 'running')) as open
         from jobs join rollouts on rollouts.number = jobs.rollout_number
         where jobs.number = $1",
    )
    .bind(number)
    .fetch_one(&mut *connection)
    .await?;
    let spec: RolloutSpec = serde_json::from_slice(row.try_get("spec")?)?;
    let open: i64 = row.try_get("open")?;
    if open > 0 || spec.evaluates {
        return Ok(());
    }
    let credit = NewJob {
        kind: JobKind::Credit,
        owner: &job.owner,
        scope_number: row.try_get("scope_number")?,
        rollout_number: row.try_get("rollout_number")?,
        group: job.group,
        member: 0,
        task_number: row.try_get("task_number")?,
        attempt: 1,
        // What is done teaches before more is begun.
        priority: f64::from(job.priority) + 1.0,
        not_before_ms: now_ms,
        now_ms,
    };
    order(connection, &credit).await
}

pub(super) async fn group(
    connection: &mut Connection<'_>,
    group: GroupId,
) -> Result<Vec<Job>, Fault> {
    let found = db::query(AssertSqlSafe(format!(
        "{JOB} where group_id = $1 and jobs.kind = 'episode' and jobs.state <> 'retried'
         order by member, attempt"
    )))
    .bind(&group.0.as_bytes()[..])
    .fetch_all(connection)
    .await?;
    found.iter().map(|row| Ok(job_row(row)?.1)).collect()
}

pub(super) async fn episodes(
    connection: &mut Connection<'_>,
    rollout: &[u8],
    page: Window,
) -> Result<Vec<(i64, Job)>, Fault> {
    let found = db::query(AssertSqlSafe(format!(
        "{JOB} where rollouts.id = $1 and jobs.kind = 'episode' and jobs.number < $2
         order by jobs.number desc limit $3"
    )))
    .bind(rollout)
    .bind(page.before.unwrap_or(i64::MAX))
    .bind(limit(page.limit))
    .fetch_all(connection)
    .await?;
    found.iter().map(job_row).collect()
}

pub(super) async fn job(
    connection: &mut Connection<'_>,
    owner: &str,
    id: JobId,
) -> Result<Option<Job>, Fault> {
    let row = db::query(AssertSqlSafe(format!(
        "{JOB} where jobs.id = $1 and jobs.owner = $2"
    )))
    .bind(&id.0.as_bytes()[..])
    .bind(owner)
    .fetch_optional(connection)
    .await?;
    row.map(|row| Ok(job_row(&row)?.1)).transpose()
}

pub(super) async fn queues(
    connection: &mut Connection<'_>,
    owner: Option<&str>,
) -> Result<Vec<QueueRow>, Fault> {
    let found = db::query(
        "select kind, state, reason, count(*) as count, min(created_ms) as oldest_ms from jobs
         where $1 = '' or owner = $1
         group by kind, state, reason order by kind, state, reason",
    )
    .bind(owner.unwrap_or_default())
    .fetch_all(connection)
    .await?;
    let queue = |row: &Row| {
        let reason: Option<String> = row.try_get("reason")?;
        Ok(QueueRow {
            kind: named(row.try_get("kind")?)?,
            state: named(row.try_get("state")?)?,
            reason: reason.map(named).transpose()?,
            count: unsigned(row.try_get("count")?)?,
            oldest_ms: row.try_get("oldest_ms")?,
        })
    };
    found.iter().map(queue).collect()
}

pub(super) async fn scaling(connection: &mut Connection<'_>) -> Result<Vec<ScalingRow>, Fault> {
    let found = db::query("select role, queued, running, to_begin, open from scaling")
        .fetch_all(connection)
        .await?;
    let scaling = |row: &Row| {
        Ok(ScalingRow {
            role: row.try_get("role")?,
            queued: unsigned(row.try_get("queued")?)?,
            running: unsigned(row.try_get("running")?)?,
            to_begin: unsigned(row.try_get("to_begin")?)?,
            open: unsigned(row.try_get("open")?)?,
        })
    };
    found.iter().map(scaling).collect()
}

/// Removes what a scope ordered, for a wish to be forgotten.
pub(super) async fn forget_scope(connection: &mut Connection<'_>, scope: i64) -> Result<(), Fault> {
    for text in [
        "delete from jobs where scope_number = $1",
        "delete from rollouts where scope_number = $1",
    ] {
        db::query(text)
            .bind(scope)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Removes what came out of jobs whose turns a wish names; their numbers stay.
pub(super) async fn forget_turns(
    connection: &mut Connection<'_>,
    forget: i64,
) -> Result<(), Fault> {
    db::query(
        "update jobs set result = null, session_id = null where session_id in (
             select sessions.id from forget_turns
             join turns on turns.number = forget_turns.turn_number
             join sessions on sessions.number = turns.session_number
             where forget_turns.forget_number = $1
         )",
    )
    .bind(forget)
    .execute(connection)
    .await?;
    Ok(())
}

/// Jobs that no call can have left so: each counts as one broken law.
const UNLAWFUL: [(&str, &str); 4] = [
    (
        "select count(*) from jobs
         where (state in ('queued', 'running')) <> (ended_ms is null)",
        "ended without a time, or have a time and did not end",
    ),
    (
        "select count(*) from jobs where state = 'retried' and not exists (
             select 1 from jobs as next
             where next.group_id = jobs.group_id and next.kind = jobs.kind
               and next.member = jobs.member and next.attempt = jobs.attempt + 1
         )",
        "were to be tried again, and no later attempt is there",
    ),
    (
        "select count(*) from jobs where kind = 'credit' and exists (
             select 1 from jobs as episodes
             where episodes.group_id = jobs.group_id and episodes.kind = 'episode'
               and episodes.state in ('queued', 'running')
         )",
        "give the rewards of a group whose episodes have not all ended",
    ),
    (
        "select count(*) from jobs where state in ('queued', 'running') and exists (
             select 1 from rollouts
             where rollouts.number = jobs.rollout_number and cancelled_ms is not null
         )",
        "go on although their rollout was cancelled",
    ),
];

pub(super) async fn laws(
    connection: &mut Connection<'_>,
    broken: &mut Vec<String>,
) -> Result<(), Fault> {
    for (counts, what) in UNLAWFUL {
        let count: i64 = db::query_scalar(counts).fetch_one(&mut *connection).await?;
        if count > 0 {
            broken.push(format!("{count} jobs {what}"));
        }
    }
    Ok(())
}
