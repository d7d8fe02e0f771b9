//! An adapter that was made elsewhere becomes a version.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hone_domain::{BlobKey, CheckedAdapter, GivenAdapter, Scope};
use hone_ledger::{Import, Standing};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::act::{self, Act};
use super::common::{check_note, conflict};
use super::target::any_scope;
use super::view::{self, VersionReply};
use crate::Http;
use crate::body::read_json;
use crate::request_context::RequestContext;
use crate::routes::Reply;
use crate::routes::auth::check_no_parameters;
use hone_replies::error::{ApiError, ErrorBody};

/// How the audit log calls it.
const IMPORT: &str = "version.import";
/// Longest text of a scope that may be new.
const SCOPE_BYTES_MAX: usize = 2_048;

/// An adapter in PEFT's layout, and whose it becomes.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ImportBody {
    /// The scope's text; nothing of it needs to be known yet.
    pub scope: String,
    /// Why, for others to read; up to 500 characters.
    pub note: Option<String>,
    /// The content of adapter_config.json.
    #[schema(value_type = Object)]
    pub config: Map<String, Value>,
    /// The content of adapter_model.safetensors, in base64.
    #[schema(content_encoding = "base64")]
    pub weights: String,
}

/// What a body asks for.
struct Wish {
    scope: Scope,
    note: Option<String>,
    given: GivenAdapter,
}

impl Wish {
    fn of(body: ImportBody) -> Result<Self, ApiError> {
        if body.scope.len() > SCOPE_BYTES_MAX {
            let why = format!("scope has at most {SCOPE_BYTES_MAX} bytes");
            return Err(ApiError::invalid("scope", why));
        }
        let scope = any_scope(Some(&body.scope))?;
        check_note(body.note.as_deref())?;
        let weights = STANDARD.decode(&body.weights).map_err(|error| {
            ApiError::invalid("weights", format!("weights is not base64: {error}"))
        })?;
        Ok(Self {
            scope,
            note: body.note.filter(|note| !note.trim().is_empty()),
            given: GivenAdapter {
                config: body.config,
                weights,
            },
        })
    }
}

/// Runs what takes a while off the async threads.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ApiError::Internal("the adapter could not be read".to_owned()))
}

/// Refuses where something holds the scope; the ledger looks once more when it publishes.
fn check_free(standing: &Standing) -> Result<(), ApiError> {
    let why = if standing.pinned {
        "its version is pinned: release it first (`hone versions unpin`)"
    } else if standing.tripped.is_some() {
        "learning is stopped after a rollback: resume it first (`hone versions resume`)"
    } else if standing.trial.is_some() {
        "a version is on trial: promote or retire it first (`hone versions promote N`)"
    } else {
        return Ok(());
    };
    Err(conflict("conflict", format!("the scope is held, {why}")))
}

/// Makes the files durable and publishes them as the scope's next version.
async fn publish(
    http: &Arc<Http>,
    context: &RequestContext,
    scope: Scope,
    note: Option<String>,
    checked: CheckedAdapter,
) -> Reply<VersionReply> {
    let report = checked.report.clone();
    let digest = checked.digest;
    let (id, storing, whose) = (http.ids.next().to_string(), http.clone(), scope.clone());
    let stored = aside(move || storing.importer.store(&whose, &id, &checked)).await?;
    let blob: BlobKey = stored.map_err(|error| {
        tracing::error!(error, "an adapter could not be stored");
        ApiError::Unavailable {
            code: "not_stored",
            message: "the adapter's files could not be written; see the server's log".to_owned(),
        }
    })?;
    let order = Import {
        scope: scope.clone(),
        digest,
        blob: blob.clone(),
        report,
        note,
        now_ms: http.clock.now_ms(),
    };
    let published = http.versions.import(&order).await;
    if published.is_err() {
        let removing = http.clone();
        aside(move || removing.importer.remove(&blob)).await?;
    }
    let policy = Act::new(http, context, IMPORT, &scope)
        .decided(published)
        .await?;
    tracing::info!(version = policy.version.0, "imported");
    act::publish(http, &policy);
    let version = view::lineage(http, &scope, policy.version).await?.version;
    Ok(Json(version))
}

/// The wish of a request, with its adapter checked.
async fn read(
    http: &Arc<Http>,
    request: Request,
) -> Result<(Scope, Option<String>, CheckedAdapter), ApiError> {
    check_no_parameters(&request)?;
    let object = read_json(request, http.import_limits()).await?;
    let wish = aside(move || Wish::of(object.strictly()?)).await??;
    let standing = http.versions.standing(&wish.scope).await;
    check_free(&standing?)?;
    let (checking, Wish { scope, note, given }) = (http.clone(), wish);
    let checked = aside(move || {
        let checked = checking.importer.check(&scope, given);
        checked.map(|checked| (scope, note, checked))
    });
    let checked = checked.await?;
    checked.map_err(|why| ApiError::invalid("", why))
}

/// Publishes an adapter that was made elsewhere as a scope's next version. It is held against the
/// served model first, and continues the base model.
#[utoipa::path(
    post,
    path = "/admin/v1/versions/import",
    request_body = ImportBody,
    responses(
        (status = 200, description = "The new version", body = VersionReply),
        (status = 400, description = "The adapter does not fit, or the body is wrong", body = ErrorBody),
        (status = 409, description = "`already_served`, `conflict`, `no_model`", body = ErrorBody),
        (status = 503, description = "`busy`, `not_stored`, `ledger_failed`", body = ErrorBody),
    )
)]
pub async fn import_adapter(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Reply<VersionReply> {
    if !http.importer.has_model() {
        let why =
            "this process has no model to hold the adapter against (model.engine is \"null\")";
        return Err(conflict("no_model", why.to_owned()));
    }
    let _place = http.importer.place().ok_or_else(|| ApiError::Unavailable {
        code: "busy",
        message: "another adapter is being imported; try again".to_owned(),
    })?;
    let (scope, note, checked) = read(&http, request).await?;
    let served = http.policies.get().newest(&scope).cloned();
    if served.is_some_and(|served| served.digest == checked.digest) {
        return Err(conflict(
            "already_served",
            "this adapter is what the scope is served already".to_owned(),
        ));
    }
    let detail = json!({ "digest": checked.digest, "adapter": checked.report["imported"] });
    let act = Act::new(&http, &context, IMPORT, &scope);
    act.record(detail).await?;
    publish(&http, &context, scope, note, checked).await
}
