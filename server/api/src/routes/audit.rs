//! `/admin/v1/audit`: who did what.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use hone_ledger::AuditQuery;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Reply;
use crate::Http;
use crate::lists;
use hone_api_types::List;
use hone_api_types::people::{AuditItem, AuditVerdict};

/// Which entries.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct AuditPage {
    /// Only entries of this act, such as `key.make`.
    pub act: Option<String>,
    /// Only entries before this number: `next` of the page before.
    pub before: Option<u32>,
    /// Most entries, 1 to 200; 50 if absent.
    pub limit: Option<u32>,
}

/// The audit log, newest first.
#[utoipa::path(
    get,
    path = "/admin/v1/audit",
    params(AuditPage),
    responses(
        (status = 200, body = List<AuditItem>),
    )
)]
pub async fn list_audit(
    State(http): State<Arc<Http>>,
    query: Result<Query<AuditPage>, QueryRejection>,
) -> Reply<List<AuditItem>> {
    let page = lists::query(query)?;
    let query = AuditQuery {
        before: page.before.map(u64::from),
        act: page.act,
        limit: lists::limit(page.limit.map(|limit| limit as usize))?,
    };
    let records = http.people.store().audit(&query).await?;
    let is_full = records.len() == query.limit;
    let last = records.last().map(|record| record.number.to_string());
    Ok(Json(List::page(
        records.into_iter().map(AuditItem::from).collect(),
        last.filter(|_| is_full),
    )))
}

/// Reads the whole audit log and checks every hash.
#[utoipa::path(
    get,
    path = "/admin/v1/audit/verify",
    responses(
        (status = 200, body = AuditVerdict),
    )
)]
pub async fn verify_audit(State(http): State<Arc<Http>>) -> Reply<AuditVerdict> {
    let check = http.people.store().verify_audit().await?;
    Ok(Json(AuditVerdict {
        object: "audit_check",
        intact: check.first_broken.is_none(),
        entries: check.entries,
        first_broken: check.first_broken,
        head: check.head.to_hex(),
    }))
}
