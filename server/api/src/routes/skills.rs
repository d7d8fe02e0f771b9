//! Skills: folders with a SKILL.md that answers are shown, their versions, and what the scan found in them.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use hone_domain::{Scope, Skill, SkillFile, SkillFolder, SkillId, SkillOrigin, SkillState};
use hone_inference::Listed;
use hone_ledger::{LedgerError, NewSkill, PutSkill, SkillChange, SkillKey};
use serde_json::json;

use super::Reply;
use super::auth::{Made, strict};
use super::learning::whole_scope;
use super::memories::{may_keep, modes};
use crate::Http;
use crate::lists;
use crate::request_context::RequestContext;
use hone_api_types::learning::UserQuery;
use hone_api_types::skills::{
    ExportFormat, ExportQuery, LoadedReply, OfferedReply, ScannedSkill, SkillDetailReply,
    SkillFilesReply, SkillPage, SkillPatch, SkillReply, SkillRequest, SkillRestore,
    SkillVersionReply, SkillVersionsReply, SkillsForgotten, SkillsReply, VersionQuery,
};
use hone_api_types::{List, RequestError, skill_tar};
use hone_replies::error::{ApiError, ErrorBody};

/// Most skills that a search gives.
const FOUND_MAX: usize = 20;

fn unknown(id: &str) -> ApiError {
    ApiError::unknown("skill", id)
}

fn unknown_version(id: &str, version: Option<u32>) -> ApiError {
    match version {
        Some(version) => {
            let shown: String = id.chars().take(100).collect();
            ApiError::NotFound(format!(
                "skill {shown} has no version {version}; GET /v1/skills/{shown}/versions lists them"
            ))
        }
        None => unknown(id),
    }
}

fn conflict(message: String) -> ApiError {
    ApiError::Conflict {
        code: "skill_conflict",
        message,
    }
}

/// The caller's skills, newest first.
#[utoipa::path(
    get,
    path = "/v1/skills",
    params(SkillPage),
    responses(
        (status = 200, body = SkillsReply),
    )
)]
pub async fn list_skills(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    query: Result<Query<SkillPage>, QueryRejection>,
) -> Reply<SkillsReply> {
    let query = lists::query(query)?;
    let scope = whole_scope(&http, &context, query.user.as_deref())?;
    let window = lists::window(query.limit, query.before.as_deref())?;
    let page = match &query.q {
        None => {
            let rows = http.skills.skills(&scope, window).await?;
            if query.before.is_none() {
                let active = rows
                    .iter()
                    .filter(|row| row.skill.state() == SkillState::Active);
                let listed = Listed::Skills(active.map(|row| row.skill.id).collect());
                http.remembered.show_listed(&scope, listed).await;
            }
            lists::page(rows, window.limit, |row| (row.number, row.skill.into()))
        }
        Some(_) if query.before.is_some() => {
            let why = "q gives the best ones, which have no further page";
            return Err(ApiError::invalid("before", why));
        }
        Some(words) => List::whole(search(&http, &scope, words, window.limit).await?),
    };
    let (mode, mode_max) = modes(&http, &context, &scope);
    Ok(Json(SkillsReply {
        page,
        mode,
        mode_max,
    }))
}

/// The skills of a scope that may be shown and fit `words`, the best first.
pub(crate) async fn search(
    http: &Http,
    scope: &Scope,
    words: &str,
    most: usize,
) -> Result<Vec<SkillReply>, ApiError> {
    let known = http.remembered.skills_of(scope);
    let fitting = known.fitting(words);
    let mut found = Vec::new();
    // What fits this question comes before what fits every one.
    for is_general in [false, true] {
        let of = fitting
            .iter()
            .filter(|fit| fit.skill.is_general == is_general);
        for fit in of.take(FOUND_MAX.min(most).saturating_sub(found.len())) {
            let skill = http
                .skills
                .skill(scope, &SkillKey::Id(fit.skill.id))
                .await?;
            found.extend(skill.map(SkillReply::from));
        }
    }
    Ok(found)
}

/// Names and descriptions of the skills that fit, for a program that loads one.
pub(crate) async fn offered(
    http: &Http,
    scope: &Scope,
    words: &str,
    most: usize,
) -> Result<Vec<OfferedReply>, ApiError> {
    let found = search(http, scope, words, most).await?.into_iter();
    Ok(found.map(OfferedReply::from).collect())
}

/// The text of an active skill with the paths of its files, or one of these files. The text is counted as a use.
pub(crate) async fn load(
    http: &Http,
    scope: &Scope,
    id: &str,
    file: Option<&str>,
) -> Result<LoadedReply, ApiError> {
    let skill = known(http, scope, id).await?;
    if skill.state() != SkillState::Active {
        let state = skill.state().as_str();
        return Err(conflict(format!(
            "skill {} is {state}; its person decides about it under Learned, or with hone skill",
            skill.name
        )));
    }
    let (version, files) = folder_of(http, scope, id, None).await?;
    let Some(path) = file else {
        http.skills.skill_used(scope, skill.id).await?;
        return Ok(LoadedReply::text(skill.name, version, &files));
    };
    let shown: String = path.chars().take(200).collect();
    let file = files.into_iter().find(|file| file.path == path);
    let file = file.ok_or_else(|| {
        let why = format!(
            "skill {} has no file {shown:?}; load it without file to see its files",
            skill.name
        );
        ApiError::NotFound(why)
    })?;
    Ok(LoadedReply::file(skill.name, version, file))
}

/// Adds a skill, or a version to the skill of its name. What the scan finds is quarantined until you release it.
#[utoipa::path(
    post,
    path = "/v1/skills",
    request_body = SkillRequest,
    responses(
        (status = 200, description = "The skill of that name has this as its current version", body = SkillReply),
        (status = 201, description = "A new skill is on disk", body = SkillReply),
        (status = 403, description = "The consent is `off`, or several people share this policy", body = ErrorBody),
        (status = 409, description = "There is no place for it", body = ErrorBody),
    )
)]
pub async fn add_skill(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Made<SkillReply> {
    let body: SkillRequest = strict(&http, request).await?;
    let scope = whole_scope(&http, &context, body.user.as_deref())?;
    may_keep(&http, &context, &scope)?;
    let scanned = apart(move || body.scanned()).await?;
    noted(
        &http,
        &context,
        "skill.add",
        &scope,
        &scanned.folder.header().name,
    )
    .await?;
    put(&http, &scope, scanned, SkillOrigin::Imported).await
}

/// Scans off the async threads: a skill may have a megabyte.
async fn apart(
    work: impl FnOnce() -> Result<ScannedSkill, RequestError> + Send + 'static,
) -> Result<ScannedSkill, ApiError> {
    let scanned = tokio::task::spawn_blocking(work).await;
    let scanned = scanned.map_err(|_| ApiError::Internal("the skill could not be read".to_owned()));
    Ok(scanned??)
}

async fn put(
    http: &Http,
    scope: &Scope,
    scanned: ScannedSkill,
    origin: SkillOrigin,
) -> Made<SkillReply> {
    let new = NewSkill {
        id: SkillId(http.ids.next()),
        folder: scanned.folder,
        findings: scanned.findings,
        origin,
        wish: None,
        turns: Vec::new(),
    };
    let put = http
        .skills
        .put_skill(scope, &new, http.clock.now_ms())
        .await;
    http.remembered.refresh(scope).await;
    let (status, skill) = match put? {
        PutSkill::New(skill) => (StatusCode::CREATED, skill),
        PutSkill::Changed(skill) | PutSkill::Same(skill) => (StatusCode::OK, skill),
        PutSkill::Full(why) => return Err(conflict(why.to_string())),
    };
    Ok((status, Json(skill.into())))
}

/// The folder of a version of a skill.
async fn folder_of(
    http: &Http,
    scope: &Scope,
    id: &str,
    version: Option<u32>,
) -> Result<(u32, Vec<SkillFile>), ApiError> {
    let key = SkillKey::of(id);
    let found = http.skills.skill_files(scope, &key, version).await?;
    let (version, files) = found.ok_or_else(|| unknown_version(id, version))?;
    Ok((version.version, files))
}

/// A skill with its text, by id or name.
#[utoipa::path(
    get,
    path = "/v1/skills/{id}",
    params(("id" = String, Path, description = "The skill's id or name"), VersionQuery),
    responses(
        (status = 200, body = SkillDetailReply),
        (status = 404, description = "No such skill of yours, or no such version", body = ErrorBody),
    )
)]
pub async fn get_skill(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    query: Result<Query<VersionQuery>, QueryRejection>,
) -> Reply<SkillDetailReply> {
    let query = lists::query(query)?;
    let scope = whole_scope(&http, &context, query.user.as_deref())?;
    let skill = known(&http, &scope, &id).await?;
    let (version, files) = folder_of(&http, &scope, &id, query.version).await?;
    let folder = SkillFolder::new(Some(&skill.name), files);
    let folder = folder.map_err(|why| ApiError::Internal(why.to_string()))?;
    Ok(Json(SkillDetailReply::new(skill, version, &folder)))
}

/// A skill of a scope, by id or name.
pub(crate) async fn known(http: &Http, scope: &Scope, id: &str) -> Result<Skill, ApiError> {
    let found = http.skills.skill(scope, &SkillKey::of(id)).await?;
    found.ok_or_else(|| unknown(id))
}

/// Changes a skill: its text, whether it is set aside, whether it is released. Holds from the next request on.
#[utoipa::path(
    patch,
    path = "/v1/skills/{id}",
    params(("id" = String, Path, description = "The skill's id or name")),
    request_body = SkillPatch,
    responses(
        (status = 200, body = SkillReply),
        (status = 404, description = "No such skill of yours", body = ErrorBody),
        (status = 409, description = "There is no place for another version", body = ErrorBody),
    )
)]
pub async fn change_skill(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    request: Request,
) -> Reply<SkillReply> {
    let body: SkillPatch = strict(&http, request).await?;
    let scope = whole_scope(&http, &context, body.user.as_deref())?;
    let change = body.change()?;
    let skill = known(&http, &scope, &id).await?;
    let act = if change.released {
        "skill.release"
    } else {
        "skill.change"
    };
    let scanned = match body.text {
        None => None,
        Some(text) => {
            may_keep(&http, &context, &scope)?;
            let (_, files) = folder_of(&http, &scope, &id, None).await?;
            let name = skill.name.clone();
            Some(apart(move || SkillPatch::scanned(&name, text, files)).await?)
        }
    };
    noted(&http, &context, act, &scope, &skill.name).await?;
    if let Some(scanned) = scanned {
        let (_, Json(put)) = put(&http, &scope, scanned, SkillOrigin::Written).await?;
        if change == SkillChange::default() {
            return Ok(Json(put));
        }
    }
    changed(&http, &scope, &id, change).await
}

async fn changed(http: &Http, scope: &Scope, id: &str, change: SkillChange) -> Reply<SkillReply> {
    let now_ms = http.clock.now_ms();
    let changed = http
        .skills
        .change_skill(scope, &SkillKey::of(id), change, now_ms)
        .await;
    http.remembered.refresh(scope).await;
    match changed {
        Err(LedgerError::Conflict(_)) => Err(unknown_version(id, change.version)),
        changed => {
            let skill = changed?.ok_or_else(|| unknown(id))?;
            Ok(Json(skill.into()))
        }
    }
}

/// Removes a skill with all its versions. The next request is not shown it, also in conversations that were.
#[utoipa::path(
    delete,
    path = "/v1/skills/{id}",
    params(("id" = String, Path, description = "The skill's id or name"), UserQuery),
    responses(
        (status = 200, body = SkillsForgotten),
        (status = 404, description = "No such skill of yours", body = ErrorBody),
    )
)]
pub async fn forget_skill(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    query: Result<Query<UserQuery>, QueryRejection>,
) -> Reply<SkillsForgotten> {
    let query = lists::query(query)?;
    let scope = whole_scope(&http, &context, query.user.as_deref())?;
    let skill = known(&http, &scope, &id).await?;
    noted(&http, &context, "skill.forget", &scope, &skill.name).await?;
    match forget(&http, &scope, Some(&SkillKey::Id(skill.id))).await? {
        0 => Err(unknown(&id)),
        forgotten => Ok(Json(SkillsForgotten::new(forgotten))),
    }
}

/// Removes every skill of the caller.
#[utoipa::path(
    delete,
    path = "/v1/skills",
    params(UserQuery),
    responses(
        (status = 200, body = SkillsForgotten),
    )
)]
pub async fn forget_skills(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    query: Result<Query<UserQuery>, QueryRejection>,
) -> Reply<SkillsForgotten> {
    let query = lists::query(query)?;
    let scope = whole_scope(&http, &context, query.user.as_deref())?;
    noted(&http, &context, "skill.forget", &scope, "all").await?;
    let forgotten = forget(&http, &scope, None).await?;
    Ok(Json(SkillsForgotten::new(forgotten)))
}

async fn forget(http: &Http, scope: &Scope, key: Option<&SkillKey>) -> Result<u64, ApiError> {
    let forgotten = http.skills.forget_skills(scope, key).await;
    // Also after a failure: what the ledger no longer has is not shown.
    http.remembered.refresh(scope).await;
    Ok(forgotten?)
}

/// The versions of a skill that are kept, newest first.
#[utoipa::path(
    get,
    path = "/v1/skills/{id}/versions",
    params(("id" = String, Path, description = "The skill's id or name"), UserQuery),
    responses(
        (status = 200, body = SkillVersionsReply),
        (status = 404, description = "No such skill of yours", body = ErrorBody),
    )
)]
pub async fn list_versions(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    query: Result<Query<UserQuery>, QueryRejection>,
) -> Reply<SkillVersionsReply> {
    let query = lists::query(query)?;
    let scope = whole_scope(&http, &context, query.user.as_deref())?;
    let skill = known(&http, &scope, &id).await?;
    let versions = http
        .skills
        .skill_versions(&scope, &SkillKey::Id(skill.id))
        .await?;
    Ok(Json(SkillVersionsReply {
        page: List::whole(versions.into_iter().map(SkillVersionReply::from)),
        current: skill.current.version,
    }))
}

/// Makes a version the current one again. Holds from the next request on.
#[utoipa::path(
    post,
    path = "/v1/skills/{id}/restore",
    params(("id" = String, Path, description = "The skill's id or name")),
    request_body = SkillRestore,
    responses(
        (status = 200, body = SkillReply),
        (status = 404, description = "No such skill of yours, or no such version", body = ErrorBody),
    )
)]
pub async fn restore_version(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    request: Request,
) -> Reply<SkillReply> {
    let body: SkillRestore = strict(&http, request).await?;
    let scope = whole_scope(&http, &context, body.user.as_deref())?;
    let skill = known(&http, &scope, &id).await?;
    noted(&http, &context, "skill.restore", &scope, &skill.name).await?;
    let change = SkillChange {
        version: Some(body.version),
        ..SkillChange::default()
    };
    changed(&http, &scope, &id, change).await
}

/// The folder of a skill, as a tar archive or as JSON.
#[utoipa::path(
    get,
    path = "/v1/skills/{id}/export",
    params(("id" = String, Path, description = "The skill's id or name"), ExportQuery),
    responses(
        (status = 200, description = "The folder", body = SkillFilesReply),
        (status = 404, description = "No such skill of yours, or no such version", body = ErrorBody),
    )
)]
pub async fn export_skill(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    query: Result<Query<ExportQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let query = lists::query(query)?;
    let scope = whole_scope(&http, &context, query.user.as_deref())?;
    let Skill { name, .. } = known(&http, &scope, &id).await?;
    let (version, files) = folder_of(&http, &scope, &id, query.version).await?;
    if query.format == Some(ExportFormat::Json) {
        return Ok(Json(SkillFilesReply::new(name, version, files)).into_response());
    }
    let tar = skill_tar::write(&name, &files);
    let tar = tar.map_err(|error| ApiError::Internal(error.to_string()))?;
    let headers = [
        (CONTENT_TYPE, "application/x-tar".to_owned()),
        (
            CONTENT_DISPOSITION,
            format!("attachment; filename=\"{name}.tar\""),
        ),
    ];
    Ok((headers, tar).into_response())
}

/// Writes an act into the audit log, before it is done; without the texts.
async fn noted(
    http: &Http,
    context: &RequestContext,
    act: &'static str,
    scope: &Scope,
    name: &str,
) -> Result<(), ApiError> {
    let detail = json!({"scope": scope.as_str()});
    let recorded = http.audit.record(&context.caller, act, name, detail);
    Ok(recorded.await?)
}
