//! Any scope's versions, for the console and the command line.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use hone_domain::Scope;
use hone_ledger::{RefusalRecord, ScopeRow, Window};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::act::{self, HoldReply};
use super::compare::{self, CompareBody, Comparison};
use super::view::{self, LineageReply, VersionList, VersionReply};
use super::{ActBody, ListQuery, any_scope, number, page_limit, read_act};
use crate::Http;
use crate::error::{ApiError, ErrorBody};
use crate::lists;
use crate::request_context::RequestContext;
use crate::routes::auth::strict;
use crate::routes::{Reply, ledger_error};
use hone_api_types::learning::ScopeQuery;

/// A scope at a glance.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ScopeReply {
    /// Its text, which other requests name it by.
    pub scope: String,
    /// Owner of the key.
    pub owner: String,
    /// The `user` field of the requests.
    pub user: Option<String>,
    /// The version that new requests get; 0 is the base model.
    pub current: u64,
    /// Whether it stays until it is released.
    pub pinned: bool,
    /// Why learning is stopped, where the watch stopped it.
    pub tripped: Option<String>,
    /// The version on trial.
    pub canary: Option<u64>,
    /// Turns.
    pub turns: u64,
    /// Versions published.
    pub versions: u64,
    /// When its last turn ended.
    pub last_turn_ms: Option<i64>,
    /// Mean score of its current verdicts.
    pub mean_score: Option<f64>,
}

/// Scopes, the newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ScopeList {
    /// Always `list`.
    pub object: &'static str,
    /// The scopes.
    pub data: Vec<ScopeReply>,
    /// What to send as `before` for more; null at the end.
    pub next: Option<i64>,
}

/// A candidate that was not published.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RefusalReply {
    /// Its place in the list.
    pub id: i64,
    /// Whose.
    pub scope: String,
    /// What it was trained from.
    pub parent: u64,
    /// Content hash of the candidate, where there is one.
    pub digest: Option<String>,
    /// Why its turns were settled: `gate_rejected` or `step_failed`.
    pub reason: &'static str,
    /// What the gate objected to, in words.
    pub reasons: Vec<String>,
    /// Turns it had learned from.
    pub samples: u64,
    /// What trainer and gate measured.
    pub report: Value,
    /// When, in milliseconds since the Unix epoch.
    pub refused_ms: i64,
}

/// Refused candidates, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RefusalList {
    /// Always `list`.
    pub object: &'static str,
    /// The candidates.
    pub data: Vec<RefusalReply>,
    /// What to send as `before` for more; null at the end.
    pub next: Option<i64>,
}

fn scope_reply(row: ScopeRow) -> ScopeReply {
    let (owner, user) = row.scope.parts().unwrap_or((row.scope.as_str(), None));
    ScopeReply {
        owner: owner.to_owned(),
        user: user.map(str::to_owned),
        current: row.current.0,
        pinned: row.standing.pinned,
        tripped: row.standing.tripped.map(|tripped| tripped.note),
        canary: row.standing.trial.map(|trial| trial.version.0),
        turns: row.turns,
        versions: row.versions,
        last_turn_ms: row.last_turn_ms,
        mean_score: row.mean_score,
        scope: row.scope.as_str().to_owned(),
    }
}

fn refusal_reply(record: RefusalRecord) -> RefusalReply {
    let reasons = record
        .report
        .pointer("/gate/reasons")
        .and_then(Value::as_array);
    let words = reasons.into_iter().flatten().filter_map(Value::as_str);
    let error = record.report["error"].as_str();
    RefusalReply {
        id: record.number,
        scope: record.scope.as_str().to_owned(),
        parent: record.parent.0,
        digest: record.digest.map(hone_domain::Digest::to_hex),
        reason: record.reason.as_str(),
        reasons: words.chain(error).map(str::to_owned).collect(),
        samples: record.samples,
        refused_ms: record.refused_ms,
        report: record.report,
    }
}

type ListOr = Result<Query<ListQuery>, QueryRejection>;

fn page_of(query: &ListQuery) -> Result<Window, ApiError> {
    Ok(Window {
        limit: page_limit(query.limit, 50)?,
        before: query.before,
    })
}

/// Every scope with what it is served.
#[utoipa::path(
    get,
    path = "/admin/v1/scopes",
    params(ListQuery),
    responses(
        (status = 200, body = ScopeList),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn list_scopes(State(http): State<Arc<Http>>, query: ListOr) -> Reply<ScopeList> {
    let page = page_of(&lists::query(query)?)?;
    let rows = http.versions.scopes(page).await;
    let rows = rows.map_err(|e| ledger_error(&e))?;
    let next = rows.last().filter(|_| rows.len() == page.limit);
    Ok(Json(ScopeList {
        object: "list",
        next: next.map(|row| row.number),
        data: rows.into_iter().map(scope_reply).collect(),
    }))
}

/// Candidates that were not published, with the gate's reasons and numbers.
#[utoipa::path(
    get,
    path = "/admin/v1/refusals",
    params(ListQuery),
    responses(
        (status = 200, body = RefusalList),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn list_refusals(State(http): State<Arc<Http>>, query: ListOr) -> Reply<RefusalList> {
    let query = lists::query(query)?;
    let page = page_of(&query)?;
    let text = query.scope.as_deref();
    let scope = text.map(|text| any_scope(Some(text))).transpose()?;
    let rows = http.versions.refusals(scope.as_ref(), page).await;
    let rows = rows.map_err(|e| ledger_error(&e))?;
    let next = rows.last().filter(|_| rows.len() == page.limit);
    Ok(Json(RefusalList {
        object: "list",
        next: next.map(|row| row.number),
        data: rows.into_iter().map(refusal_reply).collect(),
    }))
}

/// Published versions of a scope.
#[utoipa::path(
    get,
    path = "/admin/v1/versions",
    params(ListQuery),
    responses(
        (status = 200, body = VersionList),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn list_versions_of(State(http): State<Arc<Http>>, query: ListOr) -> Reply<VersionList> {
    let query = lists::query(query)?;
    let scope = any_scope(query.scope.as_deref())?;
    Ok(Json(view::list(&http, &scope, &query).await?))
}

type ScopeOr = Result<Query<ScopeQuery>, QueryRejection>;

/// One version of a scope with its lineage both ways.
#[utoipa::path(
    get,
    path = "/admin/v1/versions/{version}",
    params(("version" = u64, Path, description = "Its number"), ScopeQuery),
    responses(
        (status = 200, body = LineageReply),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn get_version_of(
    State(http): State<Arc<Http>>,
    Path(version): Path<String>,
    query: ScopeOr,
) -> Reply<LineageReply> {
    let scope = any_scope(Some(&lists::query(query)?.scope))?;
    Ok(Json(view::lineage(&http, &scope, number(&version)?).await?))
}

/// The body, and the scope that it or the query names.
pub(super) async fn act_of(
    http: &Http,
    query: ListOr,
    request: Request,
) -> Result<(Scope, ActBody), ApiError> {
    let query = lists::query(query)?;
    let body = read_act(request, http).await?;
    let scope = any_scope(body.scope.as_deref().or(query.scope.as_deref()))?;
    Ok((scope, body))
}

/// Publishes an older version of a scope again, as a new version; 0 is the base model.
#[utoipa::path(
    post,
    path = "/admin/v1/versions/{version}/rollback",
    params(("version" = u64, Path, description = "What is to be served again")),
    request_body = ActBody,
    responses(
        (status = 200, description = "The new version", body = VersionReply),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, description = "`already_served`, `pruned`, `tainted`, `conflict`", body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn roll_back_of(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(version): Path<String>,
    query: ListOr,
    request: Request,
) -> Reply<VersionReply> {
    let to = number(&version)?;
    let (scope, body) = act_of(&http, query, request).await?;
    let wanted = (act::ROLLBACK, scope, to);
    Ok(Json(act::restore(&http, &context, wanted, body).await?))
}

/// Keeps a version of a scope served until it is released.
#[utoipa::path(
    post,
    path = "/admin/v1/versions/{version}/pin",
    params(("version" = u64, Path, description = "What is to stay")),
    request_body = ActBody,
    responses(
        (status = 200, body = HoldReply),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, description = "`pruned`, `tainted`, `conflict`", body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn pin_of(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(version): Path<String>,
    query: ListOr,
    request: Request,
) -> Reply<HoldReply> {
    let version = number(&version)?;
    let (scope, _) = act_of(&http, query, request).await?;
    Ok(Json(act::keep(&http, &context, &scope, version).await?))
}

/// Releases the pin of a scope, which body or query name.
#[utoipa::path(
    delete,
    path = "/admin/v1/versions/{version}/pin",
    params(("version" = u64, Path, description = "What was pinned"), ListQuery),
    responses(
        (status = 200, body = HoldReply),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn unpin_of(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(version): Path<String>,
    query: ListOr,
    request: Request,
) -> Reply<HoldReply> {
    number(&version)?;
    let (scope, _) = act_of(&http, query, request).await?;
    Ok(Json(act::let_go(&http, &context, &scope).await?))
}

/// Lets a scope learn again after the watch stopped it.
#[utoipa::path(
    post,
    path = "/admin/v1/versions/resume",
    request_body = ActBody,
    responses(
        (status = 200, body = HoldReply),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn resume_of(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    query: ListOr,
    request: Request,
) -> Reply<HoldReply> {
    let (scope, _) = act_of(&http, query, request).await?;
    Ok(Json(act::learn_again(&http, &context, &scope).await?))
}

/// Answers the same prompts with two versions of a scope.
#[utoipa::path(
    post,
    path = "/admin/v1/versions/compare",
    request_body = CompareBody,
    responses(
        (status = 200, body = Comparison),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, description = "`pruned`", body = ErrorBody),
        (status = 408, body = ErrorBody),
        (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody),
        (status = 429, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn compare_of(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Reply<Comparison> {
    let body: CompareBody = strict(&http, request).await?;
    let scope = any_scope(body.scope.as_deref())?;
    // Whoever compares reads what somebody asked and what they were told.
    let detail = json!({"a": body.a, "b": body.b});
    act::record(&http, &context, ("version.compare", &scope), detail).await?;
    Ok(Json(
        compare::side_by_side(&http, &context, &scope, &body).await?,
    ))
}
