//! Every scope, and candidates that were not published, for the console and the command line.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use hone_ledger::{RefusalRecord, ScopeRow, Window};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::common::{ListQuery, page_limit};
use super::target::any_scope;
use crate::Http;
use crate::lists;
use crate::routes::Reply;
use hone_api_types::NumberedList;
use hone_replies::error::ApiError;

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
        (status = 200, body = NumberedList<ScopeReply>),
    )
)]
pub async fn list_scopes(
    State(http): State<Arc<Http>>,
    query: ListOr,
) -> Reply<NumberedList<ScopeReply>> {
    let page = page_of(&lists::query(query)?)?;
    let rows = http.versions.scopes(page).await?;
    let next = rows.last().filter(|_| rows.len() == page.limit);
    let next = next.map(|row| row.number);
    let data = rows.into_iter().map(scope_reply).collect();
    Ok(Json(NumberedList::page(data, next)))
}

/// Candidates that were not published, with the gate's reasons and numbers.
#[utoipa::path(
    get,
    path = "/admin/v1/refusals",
    params(ListQuery),
    responses(
        (status = 200, body = NumberedList<RefusalReply>),
    )
)]
pub async fn list_refusals(
    State(http): State<Arc<Http>>,
    query: ListOr,
) -> Reply<NumberedList<RefusalReply>> {
    let query = lists::query(query)?;
    let page = page_of(&query)?;
    let text = query.scope.as_deref();
    let scope = text.map(|text| any_scope(Some(text))).transpose()?;
    let rows = http.versions.refusals(scope.as_ref(), page).await?;
    let next = rows.last().filter(|_| rows.len() == page.limit);
    let next = next.map(|row| row.number);
    let data = rows.into_iter().map(refusal_reply).collect();
    Ok(Json(NumberedList::page(data, next)))
}
