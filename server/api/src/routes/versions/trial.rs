//! Trials: a version answers a share of the sessions, is promoted to all of them, or retired.

use hone_domain::{PolicyVersion, Scope};
use hone_ledger::{LedgerError, TryOut};
use serde_json::json;

use super::act::{HoldReply, VersionRequest, held, known, publish, restore, usable};
use super::common::{ActBody, conflict};
use crate::Http;
use crate::routes::Reply;
use hone_api_types::learning::UserQuery;
use hone_replies::error::{ApiError, ErrorBody};

/// Share of the sessions where a request names none.
const SHARE_DEFAULT: f64 = 0.1;

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
        (status = 404, body = ErrorBody),
        (status = 409, description = "`already_served`, `pruned`, `tainted`, `retired`, `conflict`", body = ErrorBody),
    )
)]
pub async fn try_out(request: VersionRequest) -> Reply<HoldReply> {
    let (http, scope, version) = (&request.http, &request.scope, request.version);
    let share = share_of(&request.body)?;
    usable(http, scope, version).await?;
    let act = request.act("version.canary");
    act.record(json!({ "version": version, "share": share }))
        .await?;
    let order = TryOut {
        scope: scope.clone(),
        version,
        share,
        note: request.body.note(),
        now_ms: http.clock.now_ms(),
    };
    let begun = http.versions.try_out(&order).await;
    let trial = act.decided(begun).await?;
    tracing::info!(version = trial.policy.version.0, share, "on trial");
    http.policies.update(|heads| heads.on_trial(trial.clone()));
    held(http, scope, true).await
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
        (status = 404, body = ErrorBody),
        (status = 409, description = "`already_served`, `pruned`, `tainted`, `retired`, `conflict`", body = ErrorBody),
    )
)]
pub async fn promote(request: VersionRequest) -> Reply<HoldReply> {
    let (http, scope, version) = (&request.http, &request.scope, request.version);
    let standing = http.versions.standing(scope).await?;
    let on_trial = standing.trial.map(|trial| trial.version);
    let tried = match on_trial {
        Some(on_trial) => is_tried(http, scope, version, on_trial).await?,
        None => false,
    };
    let Some(version) = on_trial.filter(|_| tried) else {
        restore("version.promote", &request).await?;
        return held(http, scope, true).await;
    };
    let act = request.act("version.promote");
    act.record(json!({ "version": version })).await?;
    let ended = http.versions.end_trial(scope, version).await;
    let ended = match ended {
        Ok(false) => Err(LedgerError::Conflict(format!(
            "the trial of version {version} has just ended"
        ))),
        ended => ended,
    };
    act.decided(ended).await?;
    tracing::info!(version = version.0, "promoted");
    http.policies.update(|heads| heads.proven(scope, version));
    held(http, scope, true).await
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
        (status = 404, body = ErrorBody),
        (status = 409, description = "`conflict`: it is served", body = ErrorBody),
    )
)]
pub async fn retire(request: VersionRequest) -> Reply<HoldReply> {
    let (http, scope, version) = (&request.http, &request.scope, request.version);
    if version == PolicyVersion::BASE {
        return Err(conflict(
            "conflict",
            "version 0 is the base model, which cannot be retired; GET /v1/versions or `hone versions list` \
             shows what can"
                .to_owned(),
        ));
    }
    known(http, scope, version).await?;
    let act = request.act("version.retire");
    act.record(json!({ "version": version, "note": request.body.note }))
        .await?;
    let now_ms = http.clock.now_ms();
    let retired = http.versions.retire(scope, version, now_ms).await;
    if let Some(policy) = act.decided(retired).await? {
        publish(http, &policy);
    }
    tracing::info!(version = version.0, "retired");
    held(http, scope, true).await
}

/// Takes a retired version of the caller's policy back into service.
#[utoipa::path(
    delete,
    path = "/v1/versions/{version}/retire",
    params(("version" = u64, Path, description = "What was retired"), UserQuery),
    request_body(content = ActBody, description = "May be left out"),
    responses(
        (status = 200, body = HoldReply),
        (status = 404, body = ErrorBody),
    )
)]
pub async fn unretire(request: VersionRequest) -> Reply<HoldReply> {
    let (http, scope, version) = (&request.http, &request.scope, request.version);
    if version != PolicyVersion::BASE {
        known(http, scope, version).await?;
    }
    let act = request.act("version.unretire");
    act.record(json!({ "version": version })).await?;
    let changed = http.versions.unretire(scope, version).await;
    let changed = act.decided(changed).await?;
    held(http, scope, changed).await
}
