//! What the routes about versions have in common.

use axum::body::HttpBody;
use axum::extract::Request;
use hone_domain::PolicyVersion;
use hone_ledger::LedgerError;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::Http;
use crate::lists;
use crate::routes::auth::strict_body;
use hone_replies::error::ApiError;

/// Whose versions, how many, from where on.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// The `user` field of the requests in question.
    pub user: Option<String>,
    /// A scope's text; only under `/admin`.
    pub scope: Option<String>,
    /// Most entries.
    pub limit: Option<usize>,
    /// Only entries older than this one, which is the last answer's `next`.
    pub before: Option<i64>,
}

/// What an act on a version may say. The body may be left out.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct ActBody {
    /// The `user` field of the requests in question; for `/v1`.
    pub user: Option<String>,
    /// The scope's text; for `/admin/v1`.
    pub scope: Option<String>,
    /// Why, for others to read; up to 500 characters.
    pub note: Option<String>,
    /// Share of the sessions that a version on trial answers, 0.01 to 0.99; 0.1 if absent.
    pub share: Option<f64>,
}

impl ActBody {
    /// The note, where it says anything.
    pub(super) fn note(&self) -> Option<String> {
        self.note.clone().filter(|note| !note.trim().is_empty())
    }
}

/// Longest note.
const NOTE_CHARS_MAX: usize = 500;

/// The body of an act; an absent one is empty.
pub(super) async fn read_act(request: Request, http: &Http) -> Result<ActBody, ApiError> {
    if request.body().is_end_stream() {
        return Ok(ActBody::default());
    }
    let body: ActBody = strict_body(http, request).await?;
    check_note(body.note.as_deref())?;
    Ok(body)
}

pub(super) fn check_note(note: Option<&str>) -> Result<(), ApiError> {
    match note {
        Some(note) if note.chars().count() > NOTE_CHARS_MAX => Err(ApiError::invalid(
            "note",
            format!("note may have at most {NOTE_CHARS_MAX} characters"),
        )),
        _ => Ok(()),
    }
}

pub(super) fn number(text: &str) -> Result<PolicyVersion, ApiError> {
    let number = text.parse().map_err(|_| {
        let shown: String = text.chars().take(40).collect();
        ApiError::invalid("version", format!("{shown:?} is not a version number"))
    })?;
    lists::version("version", number)
}

pub(super) fn page_limit(limit: Option<usize>, default: usize) -> Result<usize, ApiError> {
    lists::limit_up_to(1_000, limit.unwrap_or(default))
}

pub(super) fn unknown(version: PolicyVersion) -> ApiError {
    ApiError::NotFound(format!(
        "no version {version} of this scope was published; GET /v1/versions or `hone versions list` \
         shows what was"
    ))
}

pub(super) fn conflict(code: &'static str, message: String) -> ApiError {
    ApiError::Conflict { code, message }
}

/// A decision that the ledger refused, or a failure to read it.
pub(super) fn decision_error(error: LedgerError) -> ApiError {
    match error {
        LedgerError::Conflict(what) => conflict("conflict", format!("{what}; look again")),
        error => error.into(),
    }
}
