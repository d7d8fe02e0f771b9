//! Task sets: what is added to them and removed, and the contents of their files, each once in a set.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use hone_domain::{
    Digest, GroupId, JobKind, Millis, Scope, TASK_SET_BYTES_MAX, TASKS_MAX, TaskFiles, TaskFolders,
    TaskId, TaskSetId, TaskState,
};
use hone_ledger::{LedgerError, NewTask, NewTaskSet, NewTasks};
use serde::Deserialize;

use super::jobs::{self, NewJob};
use super::policies;
use super::texts::unsigned;
use crate::db::{self, Connection, Fault, Row, corrupt};

/// A set as somebody names it: whose, and which.
pub(crate) type Named<'a> = (&'a str, TaskSetId);

/// What a row costs beside its content, in bytes.
const ROW_BYTES: i64 = 256;

/// What stands for a content in `tasks.files`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Stored {
    Digest(Digest),
    /// The content itself, in rows from before contents had a table.
    Content(Vec<u8>),
}

fn conflict(what: String) -> Fault {
    Fault::Ledger(LedgerError::Conflict(what))
}

/// A JSON list of digests.
fn list<'a>(digests: impl IntoIterator<Item = &'a Digest>) -> Result<String, Fault> {
    let hex: Vec<String> = digests.into_iter().map(|digest| digest.to_hex()).collect();
    Ok(serde_json::to_string(&hex)?)
}

fn digest(row: &Row) -> Result<Digest, Fault> {
    let bytes: Vec<u8> = row.try_get("digest")?;
    let bytes = bytes.try_into().map_err(|_| corrupt("no SHA-256"))?;
    Ok(Digest(bytes))
}

/// The number of a set of an owner.
pub(crate) async fn number_of(
    connection: &mut Connection<'_>,
    (owner, set): Named<'_>,
) -> Result<Option<i64>, Fault> {
    let number = db::query_scalar("select number from task_sets where id = $1 and owner = $2")
        .bind(&set.0.as_bytes()[..])
        .bind(owner)
        .fetch_optional(connection)
        .await?;
    Ok(number)
}

pub(crate) async fn add(
    connection: &mut Connection<'_>,
    set: &NewTaskSet,
    scope: &Scope,
    now_ms: Millis,
) -> Result<(), Fault> {
    let number: Option<i64> = db::query_scalar(
        "insert into task_sets (id, owner, name, created_ms) values ($1, $2, $3, $4)
         on conflict (owner, name) do nothing returning number",
    )
    .bind(&set.id.0.as_bytes()[..])
    .bind(&set.owner)
    .bind(set.name.as_bytes())
    .bind(now_ms)
    .fetch_optional(&mut *connection)
    .await?;
    let Some(number) = number else {
        return Err(conflict(format!(
            "there is a task set {:?} already; remove it, or choose another name",
            set.name
        )));
    };
    let adding = Adding {
        owner: &set.owner,
        number,
        scope_number: policies::make_scope(connection, scope).await?,
        now_ms,
    };
    adding.add(connection, &set.tasks).await
}

pub(crate) async fn extend(
    connection: &mut Connection<'_>,
    set: Named<'_>,
    new: &NewTasks,
    scope: &Scope,
    now_ms: Millis,
) -> Result<bool, Fault> {
    let Some(number) = number_of(connection, set).await? else {
        return Ok(false);
    };
    let adding = Adding {
        owner: set.0,
        number,
        scope_number: policies::make_scope(connection, scope).await?,
        now_ms,
    };
    adding.add(connection, new).await?;
    Ok(true)
}

/// Puts a quarantined task back, to be checked once more.
pub(crate) async fn release(
    connection: &mut Connection<'_>,
    set: Named<'_>,
    task: TaskId,
    scope: &Scope,
    now_ms: Millis,
) -> Result<bool, Fault> {
    let Some(set_number) = number_of(connection, set).await? else {
        return Ok(false);
    };
    let row = db::query(
        "select number, state, (select count(*) from jobs
                where jobs.task_number = tasks.number and jobs.kind = 'check') as checks
         from tasks where id = $1 and set_number = $2",
    )
    .bind(&task.0.as_bytes()[..])
    .bind(set_number)
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else {
        return Ok(false);
    };
    let state: String = row.try_get("state")?;
    if state != TaskState::Quarantined.as_str() {
        return Err(conflict(format!(
            "the task is {state}; only a quarantined one can be released"
        )));
    }
    let (number, checks): (i64, i64) = (row.try_get("number")?, row.try_get("checks")?);
    db::query("update tasks set state = 'new', note = null where number = $1")
        .bind(number)
        .execute(&mut *connection)
        .await?;
    let adding = Adding {
        owner: set.0,
        number: set_number,
        scope_number: policies::make_scope(connection, scope).await?,
        now_ms,
    };
    // Each check of a task has a place of its own.
    let member = u32::try_from(checks).unwrap_or(u32::MAX);
    adding.check(connection, task, number, member).await?;
    Ok(true)
}

/// The set that tasks are added to, and for whom they are checked.
struct Adding<'a> {
    owner: &'a str,
    number: i64,
    scope_number: i64,
    now_ms: Millis,
}

impl Adding<'_> {
    async fn add(&self, connection: &mut Connection<'_>, new: &NewTasks) -> Result<(), Fault> {
        for (digest, content) in &new.contents {
            db::query(
                "insert into task_contents (set_number, digest, content) values ($1, $2, $3)
                 on conflict (set_number, digest) do nothing",
            )
            .bind(self.number)
            .bind(&digest.0[..])
            .bind(&content[..])
            .execute(&mut *connection)
            .await?;
        }
        for task in &new.tasks {
            self.add_task(connection, task).await?;
        }
        self.fits(connection).await
    }

    async fn add_task(&self, connection: &mut Connection<'_>, task: &NewTask) -> Result<(), Fault> {
        let number: Option<i64> = db::query_scalar(
            "insert into tasks (id, set_number, name, held_out, spec, files, has_solution, state)
             values ($1, $2, $3, $4, $5, $6, $7, 'new')
             on conflict (set_number, name) do nothing returning number",
        )
        .bind(&task.id.0.as_bytes()[..])
        .bind(self.number)
        .bind(task.name.as_bytes())
        .bind(task.held_out)
        .bind(&serde_json::to_vec(&task.spec)?[..])
        .bind(&serde_json::to_vec(&task.files)?[..])
        .bind(!task.files.solution.is_empty())
        .fetch_optional(&mut *connection)
        .await?;
        let Some(task_number) = number else {
            return Err(conflict(format!(
                "the set has a task {:?} already",
                task.name
            )));
        };
        self.check(connection, task.id, task_number, 0).await
    }

    /// Orders the check of a task.
    async fn check(
        &self,
        connection: &mut Connection<'_>,
        task: TaskId,
        task_number: i64,
        member: u32,
    ) -> Result<(), Fault> {
        let check = NewJob {
            kind: JobKind::Check,
            owner: self.owner,
            scope_number: self.scope_number,
            rollout_number: None,
            group: GroupId(task.0),
            member,
            task_number,
            attempt: 1,
            priority: 2.0,
            not_before_ms: self.now_ms,
            now_ms: self.now_ms,
        };
        jobs::order(connection, &check).await
    }

    /// Refuses what is too much for one set.
    async fn fits(&self, connection: &mut Connection<'_>) -> Result<(), Fault> {
        let row = db::query(
            "select (select count(*) from tasks where set_number = $1) as tasks,
                    (select coalesce(cast(sum(length(content) + $2) as bigint), 0)
                     from task_contents where set_number = $1) as contents,
                    (select coalesce(cast(sum(length(files) + $2) as bigint), 0)
                     from tasks where set_number = $1) as manifests",
        )
        .bind(self.number)
        .bind(ROW_BYTES)
        .fetch_one(connection)
        .await?;
        let tasks = unsigned(row.try_get("tasks")?)?;
        if tasks > TASKS_MAX as u64 {
            return Err(conflict(format!("a set has at most {TASKS_MAX} tasks")));
        }
        let bytes = unsigned(row.try_get("contents")?)? + unsigned(row.try_get("manifests")?)?;
        if bytes > TASK_SET_BYTES_MAX {
            return Err(conflict(format!(
                "a set has at most {TASK_SET_BYTES_MAX} bytes of files; make another one"
            )));
        }
        Ok(())
    }
}

pub(crate) async fn stored(
    connection: &mut Connection<'_>,
    set: Named<'_>,
    digests: &[Digest],
) -> Result<BTreeMap<Digest, u64>, Fault> {
    let Some(number) = number_of(connection, set).await? else {
        return Ok(BTreeMap::new());
    };
    let found = db::query(
        "select digest, length(content) as bytes from task_contents
         where set_number = $1 and digest in (select unhex(value) from json_each($2))",
    )
    .bind(number)
    .bind(list(digests)?)
    .fetch_all(connection)
    .await?;
    found
        .iter()
        .map(|row| Ok((digest(row)?, unsigned(row.try_get("bytes")?)?)))
        .collect()
}

/// The files of a row of `tasks`.
pub(crate) async fn files(connection: &mut Connection<'_>, row: &Row) -> Result<TaskFiles, Fault> {
    let stored: TaskFolders<Stored> = serde_json::from_slice(row.try_get("files")?)?;
    let named = stored.all().filter_map(|(_, stored)| match stored {
        Stored::Digest(digest) => Some(digest),
        Stored::Content(_) => None,
    });
    let named: BTreeSet<&Digest> = named.collect();
    let number: i64 = row.try_get("set_number")?;
    let found = db::query(
        "select digest, content from task_contents
         where set_number = $1 and digest in (select unhex(value) from json_each($2))",
    )
    .bind(number)
    .bind(list(named)?)
    .fetch_all(connection)
    .await?;
    let mut contents: HashMap<Digest, Vec<u8>> = HashMap::with_capacity(found.len());
    for row in &found {
        contents.insert(digest(row)?, row.try_get("content")?);
    }
    stored.try_map(|stored| match stored {
        Stored::Content(content) => Ok(content),
        Stored::Digest(digest) => {
            let content = contents.get(&digest).cloned();
            content.ok_or_else(|| corrupt("a file of a task without its content"))
        }
    })
}

pub(crate) async fn remove(
    connection: &mut Connection<'_>,
    owner: &str,
    set: TaskSetId,
) -> Result<bool, Fault> {
    let Some(number) = number_of(connection, (owner, set)).await? else {
        return Ok(false);
    };
    let open: i64 = db::query_scalar(
        "select count(*) from jobs join tasks on tasks.number = jobs.task_number
         where tasks.set_number = $1 and jobs.state = 'running'",
    )
    .bind(number)
    .fetch_one(&mut *connection)
    .await?;
    if open > 0 {
        return Err(conflict(
            "tasks of this set are being checked or tried; wait for that, or cancel its rollouts"
                .to_owned(),
        ));
    }
    for text in [
        "delete from jobs where task_number in (select number from tasks where set_number = $1)",
        "delete from rollouts where set_number = $1",
        "delete from tasks where set_number = $1",
        "delete from task_contents where set_number = $1",
        "delete from task_sets where number = $1",
    ] {
        db::query(text)
            .bind(number)
            .execute(&mut *connection)
            .await?;
    }
    Ok(true)
}
