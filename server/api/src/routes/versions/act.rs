//! Rollback, pin, release, resume.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use hone_domain::{OnTrial, Policy, PolicyVersion, Scope};
use hone_ledger::{LedgerError, Restore, RestoreWhy, VersionView};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::common::{ActBody, conflict, decision_error, number, unknown};
use super::target::Target;
use super::view::{self, TrialReply, VersionReply, trial_reply};
use crate::Http;
use crate::error::{ApiError, ErrorBody};
use crate::request_context::RequestContext;
use crate::routes::Reply;
use hone_api_types::learning::UserQuery;

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
    act: Act<'_>,
    to: PolicyVersion,
    body: ActBody,
) -> Result<VersionReply, ApiError> {
    let Act { http, scope, .. } = act;
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
        note: body.note.filter(|note| !note.trim().is_empty()),
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

/// Keeps a version served, restoring it first where it is not.
pub(super) async fn keep(
    http: &Http,
    context: &RequestContext,
    scope: &Scope,
    version: PolicyVersion,
) -> Result<HoldReply, ApiError> {
    let current = http.policies.get().version(scope);
    if version != current {
        usable(http, scope, version).await?;
    }
    let detail = json!({ "version": version });
    let act = Act::new(http, context, "version.pin", scope);
    act.record(detail).await?;
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

pub(super) async fn let_go(
    http: &Http,
    context: &RequestContext,
    scope: &Scope,
) -> Result<HoldReply, ApiError> {
    let act = Act::new(http, context, "version.unpin", scope);
    act.record(json!({})).await?;
    let changed = http.versions.unpin(scope).await;
    let changed = act.decided(changed).await?;
    held(http, scope, changed).await
}

pub(super) async fn learn_again(
    http: &Http,
    context: &RequestContext,
    scope: &Scope,
) -> Result<HoldReply, ApiError> {
    let act = Act::new(http, context, "learning.resume", scope);
    act.record(json!({})).await?;
    let changed = http.versions.resume(scope).await;
    let changed = act.decided(changed).await?;
    held(http, scope, changed).await
}

/// What holds a scope now.
pub(super) async fn held(http: &Http, scope: &Scope, changed: bool) -> Result<HoldReply, ApiError> {
    let standing = http.versions.standing(scope).await?;
    Ok(HoldReply {
        object: "hold",
        current: http.policies.get().version(scope).0,
        pinned: standing.pinned,
        trial: trial_reply(http, scope, &standing).await?,
        tripped: standing.tripped.map(|tripped| tripped.note),
        changed,
    })
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
        (status = 503, body = ErrorBody),
    )
)]
pub async fn roll_back(
    State(http): State<Arc<Http>>,
    target: Target,
    context: RequestContext,
    Path(version): Path<String>,
    request: Request,
) -> Reply<VersionReply> {
    let to = number(&version)?;
    let (scope, body) = target.act(&http, &context, request).await?;
    let act = Act::new(&http, &context, "version.rollback", &scope);
    Ok(Json(restore(act, to, body).await?))
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
        (status = 503, body = ErrorBody),
    )
)]
pub async fn pin(
    State(http): State<Arc<Http>>,
    target: Target,
    context: RequestContext,
    Path(version): Path<String>,
    request: Request,
) -> Reply<HoldReply> {
    let version = number(&version)?;
    let (scope, _) = target.act(&http, &context, request).await?;
    Ok(Json(keep(&http, &context, &scope, version).await?))
}

/// Releases the pin of the caller's policy.
#[utoipa::path(
    delete,
    path = "/v1/versions/{version}/pin",
    params(("version" = u64, Path, description = "What was pinned"), UserQuery),
    responses(
        (status = 200, body = HoldReply),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn unpin(
    State(http): State<Arc<Http>>,
    target: Target,
    context: RequestContext,
    Path(version): Path<String>,
    request: Request,
) -> Reply<HoldReply> {
    number(&version)?;
    let (scope, _) = target.act(&http, &context, request).await?;
    Ok(Json(let_go(&http, &context, &scope).await?))
}

/// Lets the caller's policy learn again after the watch stopped it.
#[utoipa::path(
    post,
    path = "/v1/versions/resume",
    params(UserQuery),
    request_body(content = ActBody, description = "May be left out"),
    responses(
        (status = 200, body = HoldReply),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn resume(
    State(http): State<Arc<Http>>,
    target: Target,
    context: RequestContext,
    request: Request,
) -> Reply<HoldReply> {
    let (scope, _) = target.act(&http, &context, request).await?;
    Ok(Json(learn_again(&http, &context, &scope).await?))
}
