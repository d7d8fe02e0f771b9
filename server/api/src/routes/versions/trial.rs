//! Trials: a version answers a share of the sessions, is promoted to all of them, or retired.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use hone_domain::{PolicyVersion, Scope};
use hone_ledger::{Arm, LedgerError, Standing, TryOut};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::act::{HoldReply, decided, held, known, publish, record, restore, usable, whose};
use super::any::act_of;
use super::{ActBody, ListQuery, conflict, number, read_act};
use crate::Http;
use crate::error::{ApiError, ErrorBody};
use crate::lists;
use crate::request_context::RequestContext;
use crate::routes::{Reply, ledger_error};
use hone_api_types::learning::UserQuery;

/// Share of the sessions where a request names none.
const SHARE_DEFAULT: f64 = 0.1;

/// A version on trial.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TrialReply {
    /// On trial.
    pub version: u64,
    /// What the other sessions get.
    pub proven: u64,
    /// Share of the sessions that it answers.
    pub share: f64,
    /// Since when, in milliseconds since the Unix epoch.
    pub since_ms: i64,
    /// What both have done since then; what is on trial first.
    pub arms: Vec<ArmReply>,
}

/// What one side of a trial has done since it began.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ArmReply {
    /// The version that answered.
    pub version: u64,
    /// Answers.
    pub turns: u64,
    /// How many of them have a verdict with a score.
    pub scored_turns: u64,
    /// How many of these are below 0.
    pub complaints: u64,
    /// Mean score.
    pub mean_score: Option<f64>,
}

impl From<Arm> for ArmReply {
    fn from(arm: Arm) -> Self {
        Self {
            version: arm.version.0,
            turns: arm.turns,
            scored_turns: arm.scored_turns,
            complaints: arm.complaints,
            mean_score: arm.mean_score,
        }
    }
}

/// The trial of a scope with what both sides have done.
pub(super) async fn trial_reply(
    http: &Http,
    scope: &Scope,
    standing: &Standing,
) -> Result<Option<TrialReply>, ApiError> {
    let Some(trial) = &standing.trial else {
        return Ok(None);
    };
    let arms = http.versions.arms(scope, trial).await;
    let arms = arms.map_err(|e| ledger_error(&e))?;
    Ok(Some(TrialReply {
        version: trial.version.0,
        proven: trial.proven.0,
        share: trial.share,
        since_ms: trial.since_ms,
        arms: arms.map(ArmReply::from).into(),
    }))
}

fn share_of(body: &ActBody) -> Result<f64, ApiError> {
    let share = body.share.unwrap_or(SHARE_DEFAULT);
    if (0.01..=0.99).contains(&share) {
        return Ok(share);
    }
    Err(ApiError::invalid(
        "share",
        "share must be between 0.01 and 0.99, a part of the sessions",
    ))
}

/// Puts a version on trial.
async fn begin(
    http: &Http,
    context: &RequestContext,
    (scope, version): (&Scope, PolicyVersion),
    body: ActBody,
) -> Result<HoldReply, ApiError> {
    let share = share_of(&body)?;
    usable(http, scope, version).await?;
    let detail = json!({ "version": version, "share": share });
    record(http, context, ("version.canary", scope), detail).await?;
    let order = TryOut {
        scope: scope.clone(),
        version,
        share,
        note: body.note.filter(|note| !note.trim().is_empty()),
        now_ms: http.clock.now_ms(),
    };
    let begun = http.versions.try_out(&order).await;
    let trial = decided(http, context, ("version.canary", scope), begun).await?;
    tracing::info!(version = trial.policy.version.0, share, "on trial");
    http.policies.update(|heads| heads.on_trial(trial.clone()));
    held(http, scope, true).await
}

/// Whether a version has the adapter of what is on trial: an older one is tried under a number of its own.
async fn is_tried(
    http: &Http,
    scope: &Scope,
    version: PolicyVersion,
    on_trial: PolicyVersion,
) -> Result<bool, ApiError> {
    let tried = known(http, scope, on_trial).await?.record.policy;
    Ok(match version {
        PolicyVersion::BASE => tried.is_base(),
        _ => known(http, scope, version).await?.record.policy.digest == tried.digest,
    })
}

/// Ends a trial well, or publishes an older version again.
async fn serve_all(
    http: &Http,
    context: &RequestContext,
    scope: &Scope,
    version: PolicyVersion,
    body: ActBody,
) -> Result<HoldReply, ApiError> {
    let standing = http.versions.standing(scope).await;
    let standing = standing.map_err(|e| ledger_error(&e))?;
    let on_trial = standing.trial.map(|trial| trial.version);
    let tried = match on_trial {
        Some(on_trial) => is_tried(http, scope, version, on_trial).await?,
        None => false,
    };
    let Some(version) = on_trial.filter(|_| tried) else {
        let wanted = ("version.promote", scope.clone(), version);
        restore(http, context, wanted, body).await?;
        return held(http, scope, true).await;
    };
    let detail = json!({ "version": version });
    record(http, context, ("version.promote", scope), detail).await?;
    let ended = http.versions.end_trial(scope, version).await;
    let ended = match ended {
        Ok(false) => Err(LedgerError::Conflict(format!(
            "the trial of version {version} has just ended"
        ))),
        ended => ended,
    };
    decided(http, context, ("version.promote", scope), ended).await?;
    tracing::info!(version = version.0, "promoted");
    http.policies.update(|heads| heads.proven(scope, version));
    held(http, scope, true).await
}

/// Takes a version out of service.
async fn take_away(
    http: &Http,
    context: &RequestContext,
    scope: &Scope,
    version: PolicyVersion,
    body: ActBody,
) -> Result<HoldReply, ApiError> {
    if version == PolicyVersion::BASE {
        return Err(conflict(
            "conflict",
            "version 0 is the base model, which cannot be retired; GET /v1/versions or `hone versions list` \
             shows what can"
                .to_owned(),
        ));
    }
    known(http, scope, version).await?;
    let detail = json!({ "version": version, "note": body.note });
    record(http, context, ("version.retire", scope), detail).await?;
    let now_ms = http.clock.now_ms();
    let retired = http.versions.retire(scope, version, now_ms).await;
    if let Some(policy) = decided(http, context, ("version.retire", scope), retired).await? {
        publish(http, &policy);
    }
    tracing::info!(version = version.0, "retired");
    held(http, scope, true).await
}

/// Takes a retired version back into service.
async fn take_back(
    http: &Http,
    context: &RequestContext,
    scope: &Scope,
    version: PolicyVersion,
    _body: ActBody,
) -> Result<HoldReply, ApiError> {
    if version != PolicyVersion::BASE {
        known(http, scope, version).await?;
    }
    let detail = json!({ "version": version });
    record(http, context, ("version.unretire", scope), detail).await?;
    let changed = http.versions.unretire(scope, version).await;
    let changed = decided(http, context, ("version.unretire", scope), changed).await?;
    held(http, scope, changed).await
}

type UserOr = Result<Query<UserQuery>, QueryRejection>;
type ListOr = Result<Query<ListQuery>, QueryRejection>;

/// What an act of the caller is about: their scope, the version, what they say of it.
async fn own(
    http: &Http,
    context: &RequestContext,
    (version, query): (&str, UserOr),
    request: Request,
) -> Result<(Scope, PolicyVersion, ActBody), ApiError> {
    let (version, query) = (number(version)?, lists::query(query)?);
    let body = read_act(request, http).await?;
    Ok((whose(http, context, &body, &query)?, version, body))
}

/// What an act of an admin is about.
async fn any(
    http: &Http,
    (version, query): (&str, ListOr),
    request: Request,
) -> Result<(Scope, PolicyVersion, ActBody), ApiError> {
    let version = number(version)?;
    let (scope, body) = act_of(http, query, request).await?;
    Ok((scope, version, body))
}

/// Lets a version of the caller's policy answer a share of the sessions, while the others get what
/// was served before. The newest is compared with the one before it; an older one is published
/// again.
#[utoipa::path(
    post,
    path = "/v1/versions/{version}/canary",
    params(("version" = u64, Path, description = "What is tried"), UserQuery),
    request_body(content = ActBody, description = "May be left out"),
    responses(
        (status = 200, body = HoldReply),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 408, body = ErrorBody),
        (status = 409, description = "`already_served`, `pruned`, `tainted`, `retired`, `conflict`", body = ErrorBody),
        (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn try_out(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(version): Path<String>,
    query: UserOr,
    request: Request,
) -> Reply<HoldReply> {
    let (scope, version, body) = own(&http, &context, (&version, query), request).await?;
    Ok(Json(begin(&http, &context, (&scope, version), body).await?))
}

/// Lets a version of any scope answer a share of the sessions, while the others get what was served
/// before. The newest is compared with the one before it; an older one is published again.
#[utoipa::path(
    post,
    path = "/admin/v1/versions/{version}/canary",
    params(("version" = u64, Path, description = "What is tried"), ListQuery),
    request_body(content = ActBody, description = "May be left out"),
    responses(
        (status = 200, body = HoldReply),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 408, body = ErrorBody),
        (status = 409, description = "`already_served`, `pruned`, `tainted`, `retired`, `conflict`", body = ErrorBody),
        (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn try_out_of(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(version): Path<String>,
    query: ListOr,
    request: Request,
) -> Reply<HoldReply> {
    let (scope, version, body) = any(&http, (&version, query), request).await?;
    Ok(Json(begin(&http, &context, (&scope, version), body).await?))
}

/// Lets a version of the caller's policy answer every session: one on trial has proven itself,
/// another is published again.
#[utoipa::path(
    post,
    path = "/v1/versions/{version}/promote",
    params(("version" = u64, Path, description = "What is to answer"), UserQuery),
    request_body(content = ActBody, description = "May be left out"),
    responses(
        (status = 200, body = HoldReply),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 408, body = ErrorBody),
        (status = 409, description = "`already_served`, `pruned`, `tainted`, `retired`, `conflict`", body = ErrorBody),
        (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn promote(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(version): Path<String>,
    query: UserOr,
    request: Request,
) -> Reply<HoldReply> {
    let (scope, version, body) = own(&http, &context, (&version, query), request).await?;
    Ok(Json(
        serve_all(&http, &context, &scope, version, body).await?,
    ))
}

/// Lets a version of any scope answer every session: one on trial has proven itself, another is
/// published again.
#[utoipa::path(
    post,
    path = "/admin/v1/versions/{version}/promote",
    params(("version" = u64, Path, description = "What is to answer"), ListQuery),
    request_body(content = ActBody, description = "May be left out"),
    responses(
        (status = 200, body = HoldReply),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 408, body = ErrorBody),
        (status = 409, description = "`already_served`, `pruned`, `tainted`, `retired`, `conflict`", body = ErrorBody),
        (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn promote_of(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(version): Path<String>,
    query: ListOr,
    request: Request,
) -> Reply<HoldReply> {
    let (scope, version, body) = any(&http, (&version, query), request).await?;
    Ok(Json(
        serve_all(&http, &context, &scope, version, body).await?,
    ))
}

/// Takes a version of the caller's policy, and every other of the same adapter, out of service. One
/// on trial loses its trial.
#[utoipa::path(
    post,
    path = "/v1/versions/{version}/retire",
    params(("version" = u64, Path, description = "What is to go"), UserQuery),
    request_body(content = ActBody, description = "May be left out"),
    responses(
        (status = 200, body = HoldReply),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 408, body = ErrorBody),
        (status = 409, description = "`conflict`: it is served", body = ErrorBody),
        (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn retire(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(version): Path<String>,
    query: UserOr,
    request: Request,
) -> Reply<HoldReply> {
    let (scope, version, body) = own(&http, &context, (&version, query), request).await?;
    Ok(Json(
        take_away(&http, &context, &scope, version, body).await?,
    ))
}

/// Takes a version of any scope, and every other of the same adapter, out of service. One on trial
/// loses its trial.
#[utoipa::path(
    post,
    path = "/admin/v1/versions/{version}/retire",
    params(("version" = u64, Path, description = "What is to go"), ListQuery),
    request_body(content = ActBody, description = "May be left out"),
    responses(
        (status = 200, body = HoldReply),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 408, body = ErrorBody),
        (status = 409, description = "`conflict`: it is served", body = ErrorBody),
        (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn retire_of(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(version): Path<String>,
    query: ListOr,
    request: Request,
) -> Reply<HoldReply> {
    let (scope, version, body) = any(&http, (&version, query), request).await?;
    Ok(Json(
        take_away(&http, &context, &scope, version, body).await?,
    ))
}

/// Takes a retired version of the caller's policy back into service.
#[utoipa::path(
    delete,
    path = "/v1/versions/{version}/retire",
    params(("version" = u64, Path, description = "What was retired"), UserQuery),
    request_body(content = ActBody, description = "May be left out"),
    responses(
        (status = 200, body = HoldReply),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 408, body = ErrorBody),
        (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn unretire(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(version): Path<String>,
    query: UserOr,
    request: Request,
) -> Reply<HoldReply> {
    let (scope, version, body) = own(&http, &context, (&version, query), request).await?;
    Ok(Json(
        take_back(&http, &context, &scope, version, body).await?,
    ))
}

/// Takes a retired version of any scope back into service.
#[utoipa::path(
    delete,
    path = "/admin/v1/versions/{version}/retire",
    params(("version" = u64, Path, description = "What was retired"), ListQuery),
    request_body(content = ActBody, description = "May be left out"),
    responses(
        (status = 200, body = HoldReply),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 408, body = ErrorBody),
        (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn unretire_of(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(version): Path<String>,
    query: ListOr,
    request: Request,
) -> Reply<HoldReply> {
    let (scope, version, body) = any(&http, (&version, query), request).await?;
    Ok(Json(
        take_back(&http, &context, &scope, version, body).await?,
    ))
}
