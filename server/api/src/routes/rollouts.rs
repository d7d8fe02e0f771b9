//! Task sets, rollouts that try them, and the queue of the work that this is.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use hone_domain::{RolloutId, Scope, TaskId, TaskSetId, TaskState};
use hone_ledger::{LedgerError, NewRollout, NewTask, NewTaskSet, NewTasks, PolicyRecord, TaskRow};
use hone_runtime::Notification;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::Reply;
use super::auth::{Made, strict};
use super::learning::whole_scope;
use crate::lists;
use crate::request_context::RequestContext;
use crate::{Http, Workers};
use hone_api_types::List;
use hone_api_types::rollouts::{
    EpisodeReply, QueuesReply, RolloutPage, RolloutReply, RolloutRequest, ScalingReply,
};
use hone_api_types::tasks::{
    CheckedTask, CheckedTasks, TaskSetDetail, TaskSetReply, TaskSetRequest, TasksRequest,
};
use hone_replies::error::{ApiError, ErrorBody};

fn set_id(text: &str) -> Result<TaskSetId, ApiError> {
    TaskSetId::parse(text).ok_or_else(|| ApiError::unknown("task set", text))
}

fn rollout_id(text: &str) -> Result<RolloutId, ApiError> {
    RolloutId::parse(text).ok_or_else(|| ApiError::unknown("rollout", text))
}

/// What stands in the way says itself what to do.
fn conflict(error: LedgerError) -> ApiError {
    match error {
        LedgerError::Conflict(message) => ApiError::Conflict {
            code: "task_set_conflict",
            message,
        },
        other => other.into(),
    }
}

/// Refuses where nothing would ever work on it.
async fn working(http: &Http) -> Result<(), ApiError> {
    stopped(http).await.map_or(Ok(()), |why| {
        Err(ApiError::Unavailable {
            code: "no_rollouts",
            message: format!("this server can try no tasks: {why}"),
        })
    })
}

/// Why nothing is worked on here, where that is so.
async fn stopped(http: &Http) -> Option<String> {
    match &http.rollouts {
        Workers::Nowhere(why) => Some(why.clone()),
        Workers::Elsewhere => None,
        Workers::Here(_) => http.jails.executor().await.err(),
    }
}

/// Wakes the rollout loop.
fn wake(http: &Http) {
    if let Workers::Here(notify) = &http.rollouts {
        // The loop looks by itself as well.
        let _full = notify.send(Notification).is_err();
    }
}

/// Writes an act into the audit log, before it is done.
async fn noted(
    http: &Http,
    context: &RequestContext,
    act: &'static str,
    object: &str,
) -> Result<(), ApiError> {
    let recorded = http.audit.record(&context.caller, act, object, json!({}));
    recorded.await?;
    Ok(())
}

/// Whether a task is kept to measure on: by its name, so that it is so in every set that has it.
fn is_held_out(name: &str, share: f64) -> bool {
    let hash = Sha256::digest(name.as_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash[..8]);
    let draw = (u64::from_be_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64;
    draw < share
}

fn new_tasks(http: &Http, checked: CheckedTasks) -> NewTasks {
    let share = checked.held_out_share;
    let task = |task: CheckedTask| NewTask {
        id: TaskId(http.ids.next()),
        held_out: task
            .held_out
            .unwrap_or_else(|| is_held_out(&task.name, share)),
        name: task.name,
        spec: task.spec,
        files: task.files,
    };
    NewTasks {
        tasks: checked.tasks.into_iter().map(task).collect(),
        contents: checked.contents,
    }
}

/// Adds tasks under a name. Each is checked then: its solution has to pass its tests, and doing nothing must not.
#[utoipa::path(
    post,
    path = "/v1/task-sets",
    request_body = TaskSetRequest,
    responses(
        (status = 201, description = "It is on disk, and its tasks are being checked", body = TaskSetReply),
        (status = 409, description = "There is a set of that name", body = ErrorBody),
        (status = 503, description = "This server has no jails", body = ErrorBody),
    )
)]
pub async fn add_task_set(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Made<TaskSetReply> {
    let body: TaskSetRequest = strict(&http, request).await?;
    working(&http).await?;
    let (name, tasks) = body.checked()?;
    let set = NewTaskSet {
        id: TaskSetId(http.ids.next()),
        owner: context.caller.owner.clone(),
        name,
        tasks: new_tasks(&http, tasks),
    };
    let scope = whole_scope(&http, &context, None)?;
    noted(&http, &context, "task_set.add", &set.id.prefixed()).await?;
    let added = http.jobs.add_task_set(&set, &scope, http.clock.now_ms());
    added.await.map_err(conflict)?;
    wake(&http);
    let (row, _) = one_set(&http, &context, set.id).await?;
    Ok((StatusCode::CREATED, Json(row)))
}

/// Adds tasks to a set of the caller, and contents that later parts may name.
#[utoipa::path(
    post,
    path = "/v1/task-sets/{id}/tasks",
    params(("id" = String, Path, description = "Its id")),
    request_body = TasksRequest,
    responses(
        (status = 201, description = "They are on disk, and are being checked", body = TaskSetReply),
        (status = 404, description = "No such set of yours", body = ErrorBody),
        (status = 409, description = "The set has a task of that name, or cannot have so much", body = ErrorBody),
        (status = 503, description = "This server has no jails", body = ErrorBody),
    )
)]
pub async fn add_tasks(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    request: Request,
) -> Made<TaskSetReply> {
    let set = set_id(&id)?;
    let body: TasksRequest = strict(&http, request).await?;
    working(&http).await?;
    one_set(&http, &context, set).await?;
    let owner = &context.caller.owner;
    let named = body.named_contents();
    let stored = http.jobs.stored_contents(owner, set, &named).await?;
    let new = new_tasks(&http, body.checked(&stored)?);
    let scope = whole_scope(&http, &context, None)?;
    noted(&http, &context, "task_set.extend", &set.prefixed()).await?;
    let added = http
        .jobs
        .add_tasks(owner, set, &new, &scope, http.clock.now_ms());
    if !added.await.map_err(conflict)? {
        return Err(ApiError::unknown("task set", &id));
    }
    wake(&http);
    let (row, _) = one_set(&http, &context, set).await?;
    Ok((StatusCode::CREATED, Json(row)))
}

async fn one_set(
    http: &Http,
    context: &RequestContext,
    id: TaskSetId,
) -> Result<(TaskSetReply, Vec<TaskRow>), ApiError> {
    let found = http.jobs.task_set(&context.caller.owner, id).await?;
    let (row, tasks) = found.ok_or_else(|| ApiError::unknown("task set", &id.prefixed()))?;
    Ok((row.into(), tasks))
}

/// The caller's task sets, newest first.
#[utoipa::path(
    get,
    path = "/v1/task-sets",
    responses((status = 200, body = List<TaskSetReply>))
)]
pub async fn list_task_sets(
    State(http): State<Arc<Http>>,
    context: RequestContext,
) -> Reply<List<TaskSetReply>> {
    let sets = http.jobs.task_sets(&context.caller.owner).await?;
    Ok(Json(List::whole(sets.into_iter().map(Into::into))))
}

/// A task set of the caller with its tasks, and why a task is refused or quarantined.
#[utoipa::path(
    get,
    path = "/v1/task-sets/{id}",
    params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, body = TaskSetDetail),
        (status = 404, description = "No such set of yours", body = ErrorBody),
    )
)]
pub async fn get_task_set(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Reply<TaskSetDetail> {
    let (set, tasks) = one_set(&http, &context, set_id(&id)?).await?;
    Ok(Json(TaskSetDetail {
        set,
        data: tasks.into_iter().map(Into::into).collect(),
    }))
}

/// Puts a quarantined task of the caller back: it is checked again, and tried once it is ready.
#[utoipa::path(
    post,
    path = "/v1/task-sets/{id}/tasks/{task}/release",
    params(("id" = String, Path, description = "The set's id"), ("task" = String, Path, description = "The task's id")),
    responses(
        (status = 200, description = "It is being checked", body = TaskSetReply),
        (status = 404, description = "No such task of yours", body = ErrorBody),
        (status = 409, description = "It is not quarantined", body = ErrorBody),
        (status = 503, description = "This server has no jails", body = ErrorBody),
    )
)]
pub async fn release_task(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path((id, name)): Path<(String, String)>,
) -> Reply<TaskSetReply> {
    let set = set_id(&id)?;
    let task = TaskId::parse(&name).ok_or_else(|| ApiError::unknown("task", &name))?;
    working(&http).await?;
    one_set(&http, &context, set).await?;
    let scope = whole_scope(&http, &context, None)?;
    noted(&http, &context, "task.release", &task.prefixed()).await?;
    let (owner, now_ms) = (&context.caller.owner, http.clock.now_ms());
    let released = http.jobs.release_task(owner, set, task, &scope, now_ms);
    if !released.await.map_err(conflict)? {
        return Err(ApiError::unknown("task", &name));
    }
    wake(&http);
    let (row, _) = one_set(&http, &context, set).await?;
    Ok(Json(row))
}

/// Removes a task set of the caller with its rollouts and their episodes; the turns stay.
#[utoipa::path(
    delete,
    path = "/v1/task-sets/{id}",
    params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 204, description = "It is gone"),
        (status = 404, description = "No such set of yours", body = ErrorBody),
        (status = 409, description = "Its tasks are being tried", body = ErrorBody),
    )
)]
pub async fn remove_task_set(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let set = set_id(&id)?;
    one_set(&http, &context, set).await?;
    noted(&http, &context, "task_set.remove", &set.prefixed()).await?;
    match http
        .jobs
        .remove_task_set(&context.caller.owner, set)
        .await
        .map_err(conflict)?
    {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::unknown("task set", &id)),
    }
}

/// Has an agent try tasks of a set, in groups whose episodes are compared with each other.
#[utoipa::path(
    post,
    path = "/v1/rollouts",
    request_body = RolloutRequest,
    responses(
        (status = 201, description = "It is ordered", body = RolloutReply),
        (status = 404, description = "No such set of yours", body = ErrorBody),
        (status = 409, description = "No task of the set can be tried", body = ErrorBody),
        (status = 503, description = "This server has no jails", body = ErrorBody),
    )
)]
pub async fn add_rollout(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Made<RolloutReply> {
    let body: RolloutRequest = strict(&http, request).await?;
    working(&http).await?;
    let set = set_id(&body.task_set)?;
    let (_, tasks) = one_set(&http, &context, set).await?;
    let may_be_tried = |task: &&TaskRow| {
        task.held_out == body.evaluate && matches!(task.state, TaskState::New | TaskState::Ready)
    };
    let count = tasks.iter().filter(may_be_tried).count();
    if count == 0 {
        return Err(ApiError::Conflict {
            code: "no_tasks",
            message: match body.evaluate {
                true => {
                    "no held-out task of this set can be tried; GET /v1/task-sets/{id} says why"
                }
                false => "no task of this set can be learned from; GET /v1/task-sets/{id} says why",
            }
            .to_owned(),
        });
    }
    let spec = body.spec(count as u64)?;
    let scope = whole_scope(&http, &context, None)?;
    can_answer(&http, &scope, spec.version).await?;
    let new = NewRollout {
        id: RolloutId(http.ids.next()),
        owner: context.caller.owner.clone(),
        scope,
        set,
        spec,
    };
    noted(&http, &context, "rollout.add", &new.id.prefixed()).await?;
    if !http.jobs.add_rollout(&new, http.clock.now_ms()).await? {
        return Err(ApiError::unknown("task set", &body.task_set));
    }
    wake(&http);
    let row = one_rollout(&http, &context, new.id).await?;
    Ok((StatusCode::CREATED, Json(row)))
}

/// Refuses a version that nobody can be answered by.
async fn can_answer(http: &Http, scope: &Scope, version: Option<u64>) -> Result<(), ApiError> {
    let Some(version) = version.filter(|version| *version > 0) else {
        return Ok(());
    };
    let number = lists::version("version", version)?;
    let found = http.versions.version(scope, number, 0).await?;
    let record = found.map(|view| view.record);
    match record.filter(PolicyRecord::can_answer) {
        Some(_) => Ok(()),
        None => Err(ApiError::VersionNotFound(version.to_string())),
    }
}

async fn one_rollout(
    http: &Http,
    context: &RequestContext,
    id: RolloutId,
) -> Result<RolloutReply, ApiError> {
    let found = http.jobs.rollout(&context.caller.owner, id).await?;
    let row = found.ok_or_else(|| ApiError::unknown("rollout", &id.prefixed()))?;
    Ok(row.into())
}

/// The caller's rollouts, newest first.
#[utoipa::path(
    get,
    path = "/v1/rollouts",
    params(RolloutPage),
    responses((status = 200, body = List<RolloutReply>))
)]
pub async fn list_rollouts(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    query: Result<Query<RolloutPage>, QueryRejection>,
) -> Reply<List<RolloutReply>> {
    let query = lists::query(query)?;
    let window = lists::window(query.limit, query.before.as_deref())?;
    let rows = http.jobs.rollouts(&context.caller.owner, window).await?;
    let page = lists::page(rows, window.limit, |row| (row.number, row.into()));
    Ok(Json(page))
}

/// A rollout of the caller: where it stands, and how many episodes passed by version.
#[utoipa::path(
    get,
    path = "/v1/rollouts/{id}",
    params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, body = RolloutReply),
        (status = 404, description = "No such rollout of yours", body = ErrorBody),
    )
)]
pub async fn get_rollout(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Reply<RolloutReply> {
    Ok(Json(one_rollout(&http, &context, rollout_id(&id)?).await?))
}

/// Cancels a rollout of the caller: what waits ends at once, and what runs within a few seconds.
#[utoipa::path(
    post,
    path = "/v1/rollouts/{id}/cancel",
    params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, body = RolloutReply),
        (status = 404, description = "No such rollout of yours", body = ErrorBody),
    )
)]
pub async fn cancel_rollout(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Reply<RolloutReply> {
    let rollout = rollout_id(&id)?;
    one_rollout(&http, &context, rollout).await?;
    noted(&http, &context, "rollout.cancel", &rollout.prefixed()).await?;
    let owner = &context.caller.owner;
    let now_ms = http.clock.now_ms();
    http.jobs.cancel_rollout(owner, rollout, now_ms).await?;
    wake(&http);
    Ok(Json(one_rollout(&http, &context, rollout).await?))
}

/// Episodes of a rollout of the caller, newest first.
#[utoipa::path(
    get,
    path = "/v1/rollouts/{id}/episodes",
    params(("id" = String, Path, description = "The rollout's id"), RolloutPage),
    responses(
        (status = 200, body = List<EpisodeReply>),
        (status = 404, description = "No such rollout of yours", body = ErrorBody),
    )
)]
pub async fn list_episodes(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    query: Result<Query<RolloutPage>, QueryRejection>,
) -> Reply<List<EpisodeReply>> {
    let query = lists::query(query)?;
    let window = lists::window(query.limit, query.before.as_deref())?;
    let rollout = rollout_id(&id)?;
    one_rollout(&http, &context, rollout).await?;
    let rows = http.jobs.episodes(rollout, window).await?;
    let page = lists::page(rows, window.limit, |(number, job)| (number, job.into()));
    Ok(Json(page))
}

async fn queues_of(http: &Http, owner: Option<&str>) -> Reply<QueuesReply> {
    let rows = http.jobs.queues(owner).await?;
    Ok(Json(QueuesReply {
        object: "list",
        data: rows.into_iter().map(Into::into).collect(),
        stopped: stopped(http).await,
    }))
}

/// The caller's jobs: what waits, since when, what runs, and how what ended has ended.
#[utoipa::path(
    get,
    path = "/v1/queues",
    responses((status = 200, body = QueuesReply))
)]
pub async fn queues(State(http): State<Arc<Http>>, context: RequestContext) -> Reply<QueuesReply> {
    queues_of(&http, Some(&context.caller.owner)).await
}

/// The jobs of everybody.
#[utoipa::path(
    get,
    path = "/admin/v1/queues",
    responses((status = 200, body = QueuesReply))
)]
pub async fn all_queues(State(http): State<Arc<Http>>) -> Reply<QueuesReply> {
    queues_of(&http, None).await
}

/// Work for processes that may be started and ended as there is more or less of it, by the loop that they run. The same
/// numbers are in the view `scaling` of the database and, as `hone_scaling_open`, in `/metrics`.
#[utoipa::path(
    get,
    path = "/v1/scaling",
    responses((status = 200, body = List<ScalingReply>))
)]
pub async fn scaling(State(http): State<Arc<Http>>) -> Reply<List<ScalingReply>> {
    let rows = http.jobs.scaling().await?;
    let per_process = http.rollout_concurrency as u64;
    let rows = rows.into_iter();
    let rows = rows.map(|row| ScalingReply::new(row, per_process));
    Ok(Json(List::whole(rows)))
}
