//! API keys: one's own at `/v1/keys`, everybody's at `/admin/v1/keys`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use hone_accounts::changes::NewKey;
use hone_domain::RateLimits;
use hone_ledger::KeyChange;

use super::Reply;
use super::auth::{Made, strict};
use crate::Http;
use crate::request_context::RequestContext;
use hone_api_types::List;
use hone_api_types::people::{
    KeyPatch, KeyReply, KeyRequest, parse_label, parse_logprobs, parse_memory, parse_role,
};
use hone_replies::error::{ApiError, ErrorBody};

/// One's own keys.
#[utoipa::path(
    get,
    path = "/v1/keys",
    responses(
        (status = 200, body = List<KeyReply>),
    )
)]
pub async fn list_keys(
    State(http): State<Arc<Http>>,
    context: RequestContext,
) -> Reply<List<KeyReply>> {
    list(&http, Some(&context.caller.owner)).await
}

/// Everybody's keys.
#[utoipa::path(
    get,
    path = "/admin/v1/keys",
    responses(
        (status = 200, body = List<KeyReply>),
    )
)]
pub async fn list_all_keys(State(http): State<Arc<Http>>) -> Reply<List<KeyReply>> {
    list(&http, None).await
}

async fn list(http: &Http, owner: Option<&str>) -> Reply<List<KeyReply>> {
    let keys = http.people.store().keys(owner).await?;
    Ok(Json(List::whole(
        keys.into_iter().map(|k| KeyReply::of(k, None)),
    )))
}

/// Makes a key of one's own. The reply is the only place where it ever stands.
#[utoipa::path(
    post,
    path = "/v1/keys",
    request_body = KeyRequest,
    responses(
        (status = 201, description = "The key, once", body = KeyReply),
        (status = 403, description = "The role is above yours", body = ErrorBody),
        (status = 409, description = "Too many keys", body = ErrorBody),
    )
)]
pub async fn make_key(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Made<KeyReply> {
    let body: KeyRequest = strict(&http, request).await?;
    let caller = &context.caller;
    let new = NewKey {
        owner: caller.owner.clone(),
        label: parse_label(&body.name)?,
        role: parse_role(body.role.as_deref())?,
        limits: http
            .rate_limiter
            .of_key(caller, body.limits.map(RateLimits::from)),
        despite_store_false: body.despite_store_false.unwrap_or(false),
        raw_logprobs: parse_logprobs(body.logprobs_mode.as_deref())?.flatten(),
        memory: parse_memory(body.memory.as_deref())?.flatten(),
        expires_ms: body.expires_ms,
    };
    let (stored, key) = http.changes(caller).add_key(new).await?;
    let reply = KeyReply::of(stored, Some(key));
    Ok((StatusCode::CREATED, Json(reply)))
}

/// Makes a new key in place of an old one, which goes on for `people.key_overlap_ms`.
#[utoipa::path(
    post,
    path = "/v1/keys/{id}/rotate",
    params(("id" = String, Path, description = "Its public part")),
    responses(
        (status = 201, description = "The new key, once", body = KeyReply),
        (status = 404, description = "No such key of yours", body = ErrorBody),
        (status = 409, description = "`too_many_keys`", body = ErrorBody),
    )
)]
pub async fn rotate_key(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Made<KeyReply> {
    let (stored, key) = http.changes(&context.caller).rotate_key(&id).await?;
    let reply = KeyReply::of(stored, Some(key));
    Ok((StatusCode::CREATED, Json(reply)))
}

/// Says whether the calls of one's own key are collected although they say `store: false`, which log-probs
/// their replies have, and what they do with memories.
#[utoipa::path(
    patch,
    path = "/v1/keys/{id}",
    params(("id" = String, Path, description = "Its public part")),
    request_body = KeyPatch,
    responses(
        (status = 200, body = KeyReply),
        (status = 404, description = "No such key of yours", body = ErrorBody),
    )
)]
pub async fn change_key(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    request: Request,
) -> Reply<KeyReply> {
    let body: KeyPatch = strict(&http, request).await?;
    let mode = body.logprobs_mode.as_deref();
    let change = KeyChange {
        despite_store_false: body.despite_store_false,
        raw_logprobs: parse_logprobs(mode)?,
        memory: parse_memory(body.memory.as_deref())?,
    };
    if change == KeyChange::default() {
        let why = "say despite_store_false, logprobs_mode or memory: nothing else of a key changes";
        return Err(ApiError::invalid("despite_store_false", why));
    }
    let changes = http.changes(&context.caller);
    let key = changes.change_key(&id, change, mode).await?;
    Ok(Json(KeyReply::of(key, None)))
}

/// Revokes one's own key, at once.
#[utoipa::path(
    delete,
    path = "/v1/keys/{id}",
    params(("id" = String, Path, description = "Its public part")),
    responses(
        (status = 204, description = "Revoked"),
        (status = 404, description = "No such key of yours", body = ErrorBody),
    )
)]
pub async fn revoke_key(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    http.changes(&context.caller).revoke_key(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Revokes anybody's key, at once.
#[utoipa::path(
    delete,
    path = "/admin/v1/keys/{id}",
    params(("id" = String, Path, description = "Its public part")),
    responses(
        (status = 204, description = "Revoked"),
        (status = 404, description = "No such key", body = ErrorBody),
    )
)]
pub async fn revoke_any_key(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    http.changes(&context.caller).revoke_any_key(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}
