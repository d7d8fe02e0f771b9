//! [`Jobs`]: tasks and orders to try them. What becomes of the work is in `jobs`.

use std::collections::BTreeMap;

use async_trait::async_trait;
use hone_domain::{
    Digest, GroupId, Job, JobId, JobKind, JobState, Millis, RolloutId, RolloutSpec, Scope,
    TaskFiles, TaskId, TaskSetId, TaskState,
};
use hone_ledger::{
    JobClaim, JobEnd, JobLease, Jobs, LedgerError, NewGroups, NewRollout, NewTaskSet, NewTasks,
    OpenRollout, QueueRow, RECENT_EPISODES, RolloutRow, Room, ScalingRow, Success, TaskRow,
    TaskSetRow, Window,
};
use sqlx::AssertSqlSafe;

use super::jobs;
use super::texts::{limit, named, some_text, text, unsigned};
use super::{Held as _, SqlLedger, Store, Tries, policies, rows, task_sets};
use crate::db::{self, Connection, Fault, Row, corrupt};

#[async_trait]
impl<S: Store> Jobs for SqlLedger<S> {
    async fn add_task_set(
        &self,
        set: &NewTaskSet,
        scope: &Scope,
        now_ms: Millis,
    ) -> Result<(), LedgerError> {
        transact!(self, connection => task_sets::add(connection, set, scope, now_ms))
    }

    async fn add_tasks(
        &self,
        owner: &str,
        set: TaskSetId,
        new: &NewTasks,
        scope: &Scope,
        now_ms: Millis,
    ) -> Result<bool, LedgerError> {
        transact!(self, connection => task_sets::extend(connection, (owner, set), new, scope, now_ms))
    }

    async fn stored_contents(
        &self,
        owner: &str,
        set: TaskSetId,
        digests: &[Digest],
    ) -> Result<BTreeMap<Digest, u64>, LedgerError> {
        look!(self, connection => task_sets::stored(connection, (owner, set), digests))
    }

    async fn task_sets(&self, owner: &str) -> Result<Vec<TaskSetRow>, LedgerError> {
        look!(self, connection => sets(connection, owner, None))
    }

    async fn task_set(
        &self,
        owner: &str,
        set: TaskSetId,
    ) -> Result<Option<(TaskSetRow, Vec<TaskRow>)>, LedgerError> {
        look!(self, connection => one_set(connection, owner, set))
    }

    async fn remove_task_set(&self, owner: &str, set: TaskSetId) -> Result<bool, LedgerError> {
        transact!(self, connection => task_sets::remove(connection, owner, set))
    }

    async fn task(&self, task: TaskId) -> Result<Option<(TaskRow, TaskFiles)>, LedgerError> {
        look!(self, connection => one_task(connection, task))
    }

    async fn note_task(
        &self,
        task: TaskId,
        state: TaskState,
        note: Option<&str>,
    ) -> Result<(), LedgerError> {
        transact!(self, connection => note_task(connection, task, state, note))
    }

    async fn release_task(
        &self,
        owner: &str,
        set: TaskSetId,
        task: TaskId,
        scope: &Scope,
        now_ms: Millis,
    ) -> Result<bool, LedgerError> {
        transact!(self, connection => task_sets::release(connection, (owner, set), task, scope, now_ms))
    }

    async fn add_rollout(&self, new: &NewRollout, now_ms: Millis) -> Result<bool, LedgerError> {
        transact!(self, connection => add_rollout(connection, new, now_ms))
    }

    async fn rollouts(&self, owner: &str, page: Window) -> Result<Vec<RolloutRow>, LedgerError> {
        look!(self, connection => rollouts(connection, owner, page))
    }

    async fn rollout(&self, owner: &str, id: RolloutId) -> Result<Option<RolloutRow>, LedgerError> {
        look!(self, connection => rollout(connection, Some(owner), id))
    }

    async fn rollout_of(&self, id: RolloutId) -> Result<Option<RolloutRow>, LedgerError> {
        look!(self, connection => rollout(connection, None, id))
    }

    async fn cancel_rollout(
        &self,
        owner: &str,
        id: RolloutId,
        now_ms: Millis,
    ) -> Result<bool, LedgerError> {
        transact!(self, connection => cancel(connection, owner, id, now_ms))
    }

    async fn episodes(
        &self,
        rollout: RolloutId,
        page: Window,
    ) -> Result<Vec<(i64, Job)>, LedgerError> {
        look!(self, connection => jobs::episodes(connection, rollout.0.as_bytes(), page))
    }

    async fn job(&self, owner: &str, id: JobId) -> Result<Option<Job>, LedgerError> {
        look!(self, connection => jobs::job(connection, owner, id))
    }

    async fn open_rollouts(
        &self,
        limit: usize,
        room: Room,
    ) -> Result<Vec<OpenRollout>, LedgerError> {
        look!(self, connection => open_rollouts(connection, limit, room))
    }

    async fn add_groups(&self, new: &NewGroups, now_ms: Millis) -> Result<bool, LedgerError> {
        transact!(self, connection => jobs::add_groups(connection, new, now_ms))
    }

    async fn claim_jobs(&self, claim: &JobClaim) -> Result<Vec<Job>, LedgerError> {
        let lease_now_ms = self.store.lease_time(claim.now_ms);
        let now_ms = claim.now_ms;
        if !look!(self, connection => jobs::has_work(connection, now_ms, lease_now_ms))? {
            return Ok(Vec::new());
        }
        transact!(self, connection => jobs::claim(connection, claim, lease_now_ms))
    }

    async fn renew_jobs(
        &self,
        leases: &[JobLease],
        now_ms: Millis,
        lease_ms: Millis,
    ) -> Result<Vec<JobId>, LedgerError> {
        let until_ms = self.store.lease_time(now_ms).saturating_add(lease_ms);
        transact!(self, connection => jobs::renew(connection, leases, until_ms))
    }

    async fn end_job(
        &self,
        lease: JobLease,
        end: &JobEnd,
        now_ms: Millis,
    ) -> Result<(), LedgerError> {
        transact!(self, connection => jobs::end(connection, lease, end, now_ms))
    }

    async fn group(&self, group: GroupId) -> Result<Vec<Job>, LedgerError> {
        look!(self, connection => jobs::group(connection, group))
    }

    async fn queues(&self, owner: Option<&str>) -> Result<Vec<QueueRow>, LedgerError> {
        look!(self, connection => jobs::queues(connection, owner))
    }

    async fn scaling(&self) -> Result<Vec<ScalingRow>, LedgerError> {
        look!(self, connection => jobs::scaling(connection))
    }
}

async fn sets(
    connection: &mut Connection<'_>,
    owner: &str,
    id: Option<TaskSetId>,
) -> Result<Vec<TaskSetRow>, Fault> {
    let found = db::query(
        "select task_sets.number, task_sets.id, task_sets.name, created_ms, tasks.state,
                count(tasks.number) as count, count(case when tasks.held_out = 1 then 1 end) as held_out
         from task_sets left join tasks on tasks.set_number = task_sets.number
         where owner = $1 and (length($2) = 0 or task_sets.id = $2)
         group by task_sets.number, task_sets.id, task_sets.name, created_ms, tasks.state
         order by task_sets.number desc",
    )
    .bind(owner)
    .bind(id.map(|id| id.0.as_bytes().to_vec()).unwrap_or_default())
    .fetch_all(connection)
    .await?;
    let mut sets: Vec<TaskSetRow> = Vec::new();
    for row in &found {
        let id = rows::task_set_id(row.try_get("id")?)?;
        if sets.last().is_none_or(|set| set.id != id) {
            sets.push(TaskSetRow {
                id,
                name: text(row.try_get("name")?)?,
                created_ms: row.try_get("created_ms")?,
                states: BTreeMap::new(),
                held_out: 0,
            });
        }
        let state: Option<String> = row.try_get("state")?;
        if let (Some(set), Some(state)) = (sets.last_mut(), state) {
            set.held_out += unsigned(row.try_get("held_out")?)?;
            let count = unsigned(row.try_get("count")?)?;
            set.states.insert(named::<TaskState>(state)?, count);
        }
    }
    Ok(sets)
}

/// Tasks with what their newest episodes came to.
const TASKS: &str = "select tasks.id, tasks.name, held_out, spec, has_solution, state, note,
        coalesce(tries, 0) as tries, coalesce(rewards, cast(0 as double precision)) as rewards
    from tasks left join (
        select task_number, count(*) as tries, sum(reward) as rewards from (
            select task_number, reward,
                   row_number() over (partition by task_number order by number desc) as back
            from jobs where reward is not null and kind = 'episode'
              and task_number in (select number from tasks where set_number = $1)
        ) as newest where back <= $2 group by task_number
    ) as success on success.task_number = tasks.number
    where tasks.set_number = $1";

fn task_row(row: &Row) -> Result<TaskRow, Fault> {
    Ok(TaskRow {
        id: rows::task_id(row.try_get("id")?)?,
        name: text(row.try_get("name")?)?,
        held_out: row.try_get("held_out")?,
        spec: serde_json::from_slice(row.try_get("spec")?)?,
        has_solution: row.try_get("has_solution")?,
        state: named(row.try_get("state")?)?,
        note: some_text(row.try_get("note")?)?,
        tries: unsigned(row.try_get("tries")?)?,
        rewards: row.try_get("rewards")?,
    })
}

async fn tasks_of(
    connection: &mut Connection<'_>,
    set_number: i64,
    which: &'static str,
) -> Result<Vec<TaskRow>, Fault> {
    let found = db::query(AssertSqlSafe(format!("{TASKS}{which} order by tasks.name")))
        .bind(set_number)
        .bind(limit(RECENT_EPISODES))
        .fetch_all(connection)
        .await?;
    found.iter().map(task_row).collect()
}

async fn one_set(
    connection: &mut Connection<'_>,
    owner: &str,
    set: TaskSetId,
) -> Result<Option<(TaskSetRow, Vec<TaskRow>)>, Fault> {
    let Some(number) = task_sets::number_of(connection, (owner, set)).await? else {
        return Ok(None);
    };
    let row = sets(connection, owner, Some(set)).await?.pop();
    let row = row.ok_or_else(|| corrupt("a task set without itself"))?;
    Ok(Some((row, tasks_of(connection, number, "").await?)))
}

async fn one_task(
    connection: &mut Connection<'_>,
    task: TaskId,
) -> Result<Option<(TaskRow, TaskFiles)>, Fault> {
    let row = db::query(
        "select id, set_number, name, held_out, spec, files, has_solution, state, note, 0 as tries, cast(0 as double precision) as rewards
         from tasks where id = $1",
    )
    .bind(&task.0.as_bytes()[..])
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let files = task_sets::files(connection, &row).await?;
    Ok(Some((task_row(&row)?, files)))
}

async fn note_task(
    connection: &mut Connection<'_>,
    task: TaskId,
    state: TaskState,
    note: Option<&str>,
) -> Result<(), Fault> {
    db::query("update tasks set state = $2, note = $3 where id = $1")
        .bind(&task.0.as_bytes()[..])
        .bind(state.as_str())
        .bind(note.map(str::as_bytes))
        .execute(connection)
        .await?;
    Ok(())
}

async fn add_rollout(
    connection: &mut Connection<'_>,
    new: &NewRollout,
    now_ms: Millis,
) -> Result<bool, Fault> {
    let Some(set_number) = task_sets::number_of(connection, (&new.owner, new.set)).await? else {
        return Ok(false);
    };
    let scope_number = policies::make_scope(connection, &new.scope).await?;
    db::query(
        "insert into rollouts (id, owner, scope_number, set_number, spec, group_count, created_ms)
         values ($1, $2, $3, $4, $5, $6, $7) on conflict (id) do nothing",
    )
    .bind(&new.id.0.as_bytes()[..])
    .bind(&new.owner)
    .bind(scope_number)
    .bind(set_number)
    .bind(&serde_json::to_vec(&new.spec)?[..])
    .bind(new.spec.groups)
    .bind(now_ms)
    .execute(connection)
    .await?;
    Ok(true)
}

/// The columns of [`rollout_row`].
const ROLLOUT: &str = "select rollouts.number, rollouts.id, rollouts.owner, scopes.name as scope,
        task_sets.id as set_id, task_sets.name as set_name, spec, rollouts.created_ms, cancelled_ms,
        groups_made
    from rollouts join scopes on scopes.number = rollouts.scope_number
    join task_sets on task_sets.number = rollouts.set_number";

async fn rollout_row(connection: &mut Connection<'_>, row: &Row) -> Result<RolloutRow, Fault> {
    let number: i64 = row.try_get("number")?;
    let groups_made: i64 = row.try_get("groups_made")?;
    let mut rollout = RolloutRow {
        number,
        id: rows::rollout_id(row.try_get("id")?)?,
        owner: row.try_get("owner")?,
        scope: rows::scope(row.try_get("scope")?)?,
        set: rows::task_set_id(row.try_get("set_id")?)?,
        set_name: text(row.try_get("set_name")?)?,
        spec: serde_json::from_slice(row.try_get("spec")?)?,
        created_ms: row.try_get("created_ms")?,
        cancelled_ms: row.try_get("cancelled_ms")?,
        ended_ms: None,
        groups_made: u32::try_from(groups_made).map_err(|_| corrupt("too many groups"))?,
        episodes: BTreeMap::new(),
        open_jobs: 0,
        versions: BTreeMap::new(),
    };
    let counts = db::query(
        "select kind, state, count(*) as count, max(ended_ms) as ended_ms from jobs
         where rollout_number = $1 group by kind, state",
    )
    .bind(number)
    .fetch_all(&mut *connection)
    .await?;
    let mut ended_ms: Option<i64> = None;
    for row in &counts {
        let (kind, state): (JobKind, JobState) =
            (named(row.try_get("kind")?)?, named(row.try_get("state")?)?);
        let count = unsigned(row.try_get("count")?)?;
        ended_ms = ended_ms.max(row.try_get("ended_ms")?);
        if !state.is_terminal() {
            rollout.open_jobs += count;
        }
        if kind == JobKind::Episode {
            rollout.episodes.insert(state, count);
        }
    }
    rollout.ended_ms = ended_ms.filter(|_| rollout.is_done());
    let versions = db::query(
        "select version, count(*) as episodes, sum(reward) as rewards,
                count(case when reward >= 1.0 then 1 end) as passed
         from jobs where rollout_number = $1 and reward is not null and version is not null
         group by version",
    )
    .bind(number)
    .fetch_all(connection)
    .await?;
    for row in &versions {
        let success = Success {
            episodes: unsigned(row.try_get("episodes")?)?,
            passed: unsigned(row.try_get("passed")?)?,
            rewards: row.try_get("rewards")?,
        };
        rollout
            .versions
            .insert(unsigned(row.try_get("version")?)?, success);
    }
    Ok(rollout)
}

async fn rollouts(
    connection: &mut Connection<'_>,
    owner: &str,
    page: Window,
) -> Result<Vec<RolloutRow>, Fault> {
    let found = db::query(AssertSqlSafe(format!(
        "{ROLLOUT} where rollouts.owner = $1 and rollouts.number < $2
         order by rollouts.number desc limit $3"
    )))
    .bind(owner)
    .bind(page.before.unwrap_or(i64::MAX))
    .bind(limit(page.limit))
    .fetch_all(&mut *connection)
    .await?;
    let mut rows = Vec::with_capacity(found.len());
    for row in &found {
        rows.push(rollout_row(connection, row).await?);
    }
    Ok(rows)
}

async fn rollout(
    connection: &mut Connection<'_>,
    owner: Option<&str>,
    id: RolloutId,
) -> Result<Option<RolloutRow>, Fault> {
    let found = db::query(AssertSqlSafe(format!(
        "{ROLLOUT} where rollouts.id = $1 and ($2 = '' or rollouts.owner = $2)"
    )))
    .bind(&id.0.as_bytes()[..])
    .bind(owner.unwrap_or_default())
    .fetch_optional(&mut *connection)
    .await?;
    match found {
        Some(row) => Ok(Some(rollout_row(connection, &row).await?)),
        None => Ok(None),
    }
}

async fn cancel(
    connection: &mut Connection<'_>,
    owner: &str,
    id: RolloutId,
    now_ms: Millis,
) -> Result<bool, Fault> {
    let number: Option<i64> = db::query_scalar(
        "update rollouts set cancelled_ms = coalesce(cancelled_ms, $3)
         where id = $1 and owner = $2 returning number",
    )
    .bind(&id.0.as_bytes()[..])
    .bind(owner)
    .bind(now_ms)
    .fetch_optional(&mut *connection)
    .await?;
    let Some(number) = number else {
        return Ok(false);
    };
    db::query(
        "update jobs set state = 'cancelled', reason = 'cancelled', ended_ms = $2, fence = fence + 1
         where rollout_number = $1 and state in ('queued', 'running')",
    )
    .bind(number)
    .bind(now_ms)
    .execute(connection)
    .await?;
    Ok(true)
}

async fn open_rollouts(
    connection: &mut Connection<'_>,
    most: usize,
    room: Room,
) -> Result<Vec<OpenRollout>, Fault> {
    let found = db::query(
        "select number, id, set_number, spec, groups_made,
                (select count(*) from jobs where rollout_number = rollouts.number
                 and state = 'queued') as queued,
                (select count(*) from turns indexed by turns_ready
                 where turns.scope_number = rollouts.scope_number
                   and turns.stage = 'awaiting_training') as untrained
         from rollouts where cancelled_ms is null and groups_made < group_count
         order by number limit $1",
    )
    .bind(limit(most))
    .fetch_all(&mut *connection)
    .await?;
    let mut open = Vec::with_capacity(found.len());
    for row in &found {
        let spec: RolloutSpec = serde_json::from_slice(row.try_get("spec")?)?;
        let queued_jobs = unsigned(row.try_get("queued")?)?;
        let untrained = unsigned(row.try_get("untrained")?)?;
        if queued_jobs >= room.jobs || (!spec.evaluates && untrained > room.untrained) {
            continue;
        }
        let which = match spec.evaluates {
            true => " and state = 'ready' and held_out = 1",
            false => " and state = 'ready' and held_out = 0",
        };
        let groups_made: i64 = row.try_get("groups_made")?;
        open.push(OpenRollout {
            id: rows::rollout_id(row.try_get("id")?)?,
            groups_made: u32::try_from(groups_made).map_err(|_| corrupt("too many groups"))?,
            queued_jobs,
            tasks: tasks_of(connection, row.try_get("set_number")?, which).await?,
            spec,
        });
    }
    Ok(open)
}
