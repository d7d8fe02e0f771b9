//! What everybody decided about their data, for the console.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use hone_domain::{Learning, Scope};
use hone_ledger::{ConsentRow, ForgetRow, Window};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Reply;
use crate::Http;
use crate::lists;
use hone_api_types::List;
use hone_replies::error::ApiError;

/// A decision about consent.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ConsentItem {
    /// Whose.
    pub scope: String,
    /// Owner of the key.
    pub owner: String,
    /// The `user` field of the requests.
    pub user: Option<String>,
    /// `off`, `serve` or `full`.
    #[schema(value_type = String)]
    pub learning: Learning,
    /// Whether requests that say `store: false` are learned from all the same.
    pub despite_store_false: bool,
    /// Whether sessions may be held back; null leaves it to the operator.
    pub holdback: Option<bool>,
    /// When, in milliseconds since the Unix epoch.
    pub decided_ms: i64,
    /// Turns that are kept.
    pub turns: u64,
}

/// A wish to be forgotten.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ForgetItem {
    /// The wish.
    pub id: String,
    /// Whose.
    pub scope: String,
    /// Owner of the key.
    pub owner: String,
    /// The `user` field of the requests.
    pub user: Option<String>,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// Turns that go.
    pub turns: u64,
    /// Turns that are still to be removed.
    pub turns_left: u64,
    /// Versions that learned from what goes.
    pub versions_tainted: Vec<u64>,
    /// The version that is served instead; 0 is the base model, null where nothing changed.
    pub rolls_back_to: Option<u64>,
    /// `done` or `running`.
    pub state: &'static str,
}

/// Which page.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PrivacyPage {
    /// Most entries, 1 to 200; 50 if absent.
    pub limit: Option<usize>,
    /// Only entries older than this one, which is the last answer's `next`.
    pub before: Option<String>,
}

type PageOr = Result<Query<PrivacyPage>, QueryRejection>;

fn window(query: PageOr) -> Result<Window, ApiError> {
    let query = lists::query(query)?;
    lists::window(query.limit, query.before.as_deref())
}

/// Owner and user of a scope.
fn whose(scope: &Scope) -> (String, Option<String>) {
    let (owner, user) = scope.parts().unwrap_or((scope.as_str(), None));
    (owner.to_owned(), user.map(str::to_owned))
}

fn consent_item(row: &ConsentRow) -> (i64, ConsentItem) {
    let (owner, user) = whose(&row.scope);
    let item = ConsentItem {
        scope: row.scope.as_str().to_owned(),
        owner,
        user,
        learning: row.consent.learning,
        despite_store_false: row.consent.despite_store_false,
        holdback: row.consent.holdback,
        decided_ms: row.decided_ms,
        turns: row.turns,
    };
    (row.number, item)
}

fn forget_item(row: &ForgetRow) -> (i64, ForgetItem) {
    let report = &row.report;
    let (owner, user) = whose(&report.scope);
    let item = ForgetItem {
        id: format!("fgt_{}", report.id),
        scope: report.scope.as_str().to_owned(),
        owner,
        user,
        at_ms: report.at_ms,
        turns: report.turns,
        turns_left: report.turns_left,
        versions_tainted: report.versions_tainted.iter().map(|v| v.0).collect(),
        rolls_back_to: report.rolls_back_to.map(|v| v.0),
        state: if report.is_done { "done" } else { "running" },
    };
    (row.number, item)
}

/// Everybody's decisions about consent, newest scopes first. Who decided nothing has the operator's
/// default.
#[utoipa::path(
    get,
    path = "/admin/v1/consents",
    params(PrivacyPage),
    responses(
        (status = 200, body = List<ConsentItem>),
    )
)]
pub async fn list_consents(
    State(http): State<Arc<Http>>,
    query: PageOr,
) -> Reply<List<ConsentItem>> {
    let wanted = window(query)?;
    let rows = http.personal.consent_rows(wanted).await?;
    Ok(Json(lists::page(&rows, wanted.limit, consent_item)))
}

/// Everybody's wishes to be forgotten, newest first, with how far they have come.
#[utoipa::path(
    get,
    path = "/admin/v1/forgets",
    params(PrivacyPage),
    responses(
        (status = 200, body = List<ForgetItem>),
    )
)]
pub async fn list_forgets(State(http): State<Arc<Http>>, query: PageOr) -> Reply<List<ForgetItem>> {
    let wanted = window(query)?;
    let rows = http.personal.forgets(wanted).await?;
    Ok(Json(lists::page(&rows, wanted.limit, forget_item)))
}
