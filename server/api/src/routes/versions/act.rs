//! Rollback, pin, release, resume.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Path, Request, State};
use axum::response::{IntoResponse, Response};
use hone_domain::{OnTrial, Policy, PolicyVersion, Scope};
use hone_ledger::{LedgerError, Restore, RestoreWhy, VersionView};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::common::{ActBody, conflict, decision_error, number, unknown};
use super::target::Target;
use super::view::{self, TrialReply, VersionReply, trial_reply};
use crate::Http;
use crate::request_context::RequestContext;
use crate::routes::Reply;
use hone_api_types::learning::UserQuery;
use hone_replies::error::{ApiError, ErrorBody};

/// What holds a scope after an act.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct HoldReply {
    /// Always `hold`.
    pub object: &'static str,
    /// The version that is served.
    pub current: u64,
    /// Whether it is pinned.
    pub pinned: bool,
    /// Why learning is stopped, where the watch stopped it.
    pub tripped: Option<String>,
    /// What is on trial.
    pub trial: Option<TrialReply>,
    /// Whether this act changed anything.
    pub changed: bool,
}

/// A decision about a scope's versions, as the audit log names it.
#[derive(Clone, Copy)]
pub(super) struct Act<'a> {
    http: &'a Http,
    context: &'a RequestContext,
    name: &'static str,
    scope: &'a Scope,
}

/// A request for an act on a version of a policy.
pub struct VersionRequest {
    pub(super) http: Arc<Http>,
    pub(super) context: RequestContext,
    pub(super) scope: Scope,
    pub(super) version: PolicyVersion,
    pub(super) body: ActBody,
}

impl FromRequest<Arc<Http>> for VersionRequest {
    type Rejection = Response;

    async fn from_request(request: Request, http: &Arc<Http>) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let target = Target::from_request_parts(&mut parts, http).await;
        let context = RequestContext::from_request_parts(&mut parts, http).await;
        let path = Path::<String>::from_request_parts(&mut parts, http).await;
        let Path(version) = path.map_err(IntoResponse::into_response)?;
        let read = async {
            let (target, context, version) = (target?, context?, number(&version)?);
            let request = Request::from_parts(parts, body);
            let (scope, body) = target.act(http, &context, request).await?;
            Ok(Self {
                http: http.clone(),
                context,
                scope,
                version,
                body,
            })
        };
        read.await.map_err(ApiError::into_response)
    }
}

impl VersionRequest {
    pub(super) fn act(&self, name: &'static str) -> Act<'_> {
        Act::new(&self.http, &self.context, name, &self.scope)
    }
}

impl<'a> Act<'a> {
    pub(super) fn new(
        http: &'a Http,
        context: &'a RequestContext,
        name: &'static str,
        scope: &'a Scope,
    ) -> Self {
        Self {
            http,
            context,
            name,
            scope,
        }
    }

    /// Enters the act into the audit log.
    pub(super) async fn record(self, detail: Value) -> Result<(), ApiError> {
        let (caller, scope) = (&self.context.caller, self.scope.as_str());
        let audit = &self.http.audit;
        Ok(audit.record(caller, self.name, scope, detail).await?)
    }

    /// What the ledger answered to a recorded act. A refusal is recorded too, so that the log does not
    /// tell of what was not done.
    pub(super) async fn decided<T>(self, answer: Result<T, LedgerError>) -> Result<T, ApiError> {
        let error = match answer {
            Ok(done) => return Ok(done),
            Err(error) => decision_error(error),
        };
        let detail = json!({ "refused": error.to_string() });
        // Where the log cannot be written either, the answer is still about the act.
        let _told = self.record(detail).await.is_ok();
        Err(error)
    }
}

/// The version with that number; none is the base model, which is always there.
pub(super) async fn usable(
    http: &Http,
    scope: &Scope,
    version: PolicyVersion,
) -> Result<Option<VersionView>, ApiError> {
    if version == PolicyVersion::BASE {
        return Ok(None);
    }
    let view = known(http, scope, version).await?;
    if view.record.is_retired {
        return Err(conflict(
            "retired",
            format!("version {version} is retired; take it back into service first"),
        ));
    }
    if view.record.is_pruned {
        return Err(conflict(
            "pruned",
            format!("the files of version {version} were removed for space; choose a newer one"),
        ));
    }
    if view.record.is_tainted {
        return Err(conflict(
            "tainted",
            format!("version {version} learned from something that was erased since"),
        ));
    }
    Ok(Some(view))
}

/// The published version with that number.
pub(super) async fn known(
    http: &Http,
    scope: &Scope,
    version: PolicyVersion,
) -> Result<VersionView, ApiError> {
    let view = http.versions.version(scope, version, 0).await?;
    view.ok_or_else(|| unknown(version))
}

/// Publishes an older version again.
pub(super) async fn restore(
    name: &'static str,
    request: &VersionRequest,
) -> Result<VersionReply, ApiError> {
    let (http, scope, to) = (&request.http, &request.scope, request.version);
    let act = request.act(name);
    let wanted = usable(http, scope, to).await?;
    let heads = http.policies.get();
    let served = heads.newest(scope);
    let is_served = match (&wanted, served) {
        (_, Some(served)) if served.version == to => true,
        (Some(wanted), Some(served)) => wanted.record.policy.digest == served.digest,
        (None, Some(served)) => served.is_base(),
        (_, None) => true,
    };
    if is_served {
        return Err(served_already(to, heads.trial(scope)));
    }
    act.record(json!({ "to": to })).await?;
    let order = Restore {
        scope: scope.clone(),
        to,
        from: None,
        why: RestoreWhy::Asked,
        note: request.body.note(),
        now_ms: http.clock.now_ms(),
    };
    let restored = http.versions.restore(&order).await;
    let policy = act.decided(restored).await?;
    tracing::info!(version = policy.version.0, restores = to.0, "rolled back");
    publish(http, &policy);
    Ok(view::lineage(http, scope, policy.version).await?.version)
}

/// Why a version whose adapter is the newest one's is not published again: all sessions get it, or those
/// of its trial do.
fn served_already(version: PolicyVersion, trial: Option<&OnTrial>) -> ApiError {
    let Some(trial) = trial else {
        return conflict(
            "already_served",
            format!("version {version} is what this scope is served already"),
        );
    };
    let tried = trial.policy.version;
    let under = match tried == version {
        true => String::new(),
        false => format!(" as version {tried}"),
    };
    conflict(
        "conflict",
        format!(
            "version {version} is on trial{under}; `hone versions promote {tried}` lets it answer every \
             session"
        ),
    )
}

/// Tells serve.
pub(super) fn publish(http: &Http, policy: &Policy) {
    http.policies.update(|heads| heads.with(policy.clone()));
}

/// What holds a scope now.
pub(super) async fn held(http: &Http, scope: &Scope, changed: bool) -> Reply<HoldReply> {
    let standing = http.versions.standing(scope).await?;
    Ok(Json(HoldReply {
        object: "hold",
        current: http.policies.get().version(scope).0,
        pinned: standing.pinned,
        trial: trial_reply(http, scope, &standing).await?,
        tripped: standing.tripped.map(|tripped| tripped.note),
        changed,
    }))
}

/// Publishes an older version of the caller's policy again, as a new version; 0 is the base model.
#[utoipa::path(
    post,
    path = "/v1/versions/{version}/rollback",
    params(("version" = u64, Path, description = "What is to be served again"), UserQuery),
    request_body(content = ActBody, description = "May be left out"),
    responses(
        (status = 200, description = "The new version", body = VersionReply),
        (status = 404, body = ErrorBody),
        (status = 409, description = "`already_served`, `pruned`, `tainted`, `conflict`", body = ErrorBody),
    )
)]
pub async fn roll_back(request: VersionRequest) -> Reply<VersionReply> {
    Ok(Json(restore("version.rollback", &request).await?))
}

/// Keeps a version of the caller's policy served: nothing newer is published until it is released.
/// A version that is not served is published again first.
#[utoipa::path(
    post,
    path = "/v1/versions/{version}/pin",
    params(("version" = u64, Path, description = "What is to stay"), UserQuery),
    request_body(content = ActBody, description = "May be left out"),
    responses(
        (status = 200, body = HoldReply),
        (status = 404, body = ErrorBody),
        (status = 409, description = "`pruned`, `tainted`, `conflict`", body = ErrorBody),
    )
)]
pub async fn pin(request: VersionRequest) -> Reply<HoldReply> {
    let (http, scope, version) = (&request.http, &request.scope, request.version);
    if version != http.policies.get().version(scope) {
        usable(http, scope, version).await?;
    }
    let act = request.act("version.pin");
    act.record(json!({ "version": version })).await?;
    let now_ms = http.clock.now_ms();
    let pinned = http.versions.pin(scope, version, now_ms).await;
    let pinned = act.decided(pinned).await?;
    if pinned.version > PolicyVersion::BASE {
        publish(http, &pinned);
        http.policies
            .update(|heads| heads.proven(scope, pinned.version));
    }
    tracing::info!(version = pinned.version.0, "pinned");
    held(http, scope, true).await
}

/// Releases the pin of the caller's policy.
#[utoipa::path(
    delete,
    path = "/v1/versions/{version}/pin",
    params(("version" = u64, Path, description = "What was pinned"), UserQuery),
    responses(
        (status = 200, body = HoldReply),
    )
)]
pub async fn unpin(request: VersionRequest) -> Reply<HoldReply> {
    let (http, scope) = (&request.http, &request.scope);
    let act = request.act("version.unpin");
    act.record(json!({})).await?;
    let changed = http.versions.unpin(scope).await;
    let changed = act.decided(changed).await?;
    held(http, scope, changed).await
}

/// Lets the caller's policy learn again after the watch stopped it.
#[utoipa::path(
    post,
    path = "/v1/versions/resume",
    params(UserQuery),
    request_body(content = ActBody, description = "May be left out"),
    responses(
        (status = 200, body = HoldReply),
    )
)]
pub async fn resume(
    State(http): State<Arc<Http>>,
    target: Target,
    context: RequestContext,
    request: Request,
) -> Reply<HoldReply> {
    let (scope, _) = target.act(&http, &context, request).await?;
    let act = Act::new(&http, &context, "learning.resume", &scope);
    act.record(json!({})).await?;
    let changed = http.versions.resume(&scope).await;
    let changed = act.decided(changed).await?;
    held(&http, &scope, changed).await
}
