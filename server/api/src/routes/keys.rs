//! API keys: one's own at `/v1/keys`, everybody's at `/admin/v1/keys`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use hone_domain::{Millis, RateLimits, UserRole};
use hone_ledger::{ApiKey, Changed, KeyChange, PeopleChange};
use serde_json::{Value, json};

use super::Reply;
use super::auth::{Made, strict};
use crate::Http;
use crate::error::{ApiError, ErrorBody};
use crate::request_context::RequestContext;
use hone_accounts::Caller;
use hone_accounts::secrets;
use hone_accounts::{audit, expiry};
use hone_api_types::List;
use hone_api_types::people::{
    KeyPatch, KeyReply, KeyRequest, parse_label, parse_logprobs, parse_role,
};

/// One's own keys.
#[utoipa::path(
    get,
    path = "/v1/keys",
    responses(
        (status = 200, body = List<KeyReply>),
        (status = 503, body = ErrorBody),
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
        (status = 503, body = ErrorBody),
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
        (status = 503, body = ErrorBody),
    )
)]
pub async fn make_key(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Made<KeyReply> {
    let body: KeyRequest = strict(&http, request).await?;
    let (people, caller) = (&http.people, &context.caller);
    let now_ms = people.now_ms();
    let (label, role) = (parse_label(&body.name)?, parse_role(body.role.as_deref())?);
    check_role(caller, role)?;
    if caller.acted_by.is_some() && role != UserRole::User {
        return Err(ApiError::invalid(
            "role",
            "an agent's keys have the role user",
        ));
    }
    expiry::check(body.expires_ms, now_ms)
        .map_err(|message| ApiError::invalid("expires_ms", message))?;
    check_number(&http, &caller.owner, Makes::Another, now_ms).await?;
    let wanted = body.limits.map(RateLimits::from).unwrap_or_default();
    let wanted = Wanted {
        owner: caller.owner.clone(),
        label,
        role,
        limits: limits_for(&http, caller, wanted),
        despite_store_false: body.despite_store_false.unwrap_or(false),
        raw_logprobs: parse_logprobs(body.logprobs_mode.as_deref())?.flatten(),
        expires_ms: body.expires_ms,
    };
    let (stored, key) = fresh(&http, wanted).await?;
    let detail =
        json!({"owner": stored.owner, "role": role.as_str(), "expires_ms": stored.expires_ms});
    let change = PeopleChange::AddKey(stored.clone());
    done(&http, caller, (change, "key.make", &stored.id), detail).await?;
    let reply = KeyReply::of(stored, Some(key));
    Ok((StatusCode::CREATED, Json(reply)))
}

/// What a new key is to be.
struct Wanted {
    owner: String,
    label: String,
    role: UserRole,
    limits: RateLimits,
    despite_store_false: bool,
    raw_logprobs: Option<bool>,
    expires_ms: Option<Millis>,
}

/// A key that nothing knows yet, and its text.
async fn fresh(http: &Http, wanted: Wanted) -> Result<(ApiKey, String), ApiError> {
    let made = secrets::new_key();
    let made = made.map_err(|error| ApiError::Internal(error.to_string()))?;
    let stored = ApiKey {
        id: made.id,
        owner: wanted.owner,
        label: wanted.label,
        role: wanted.role,
        sha256: Some(secrets::digest(&made.key)),
        limits: wanted.limits,
        despite_store_false: wanted.despite_store_false,
        raw_logprobs: wanted.raw_logprobs,
        created_ms: http.people.now_ms(),
        expires_ms: wanted.expires_ms,
        revoked_ms: None,
        used_ms: None,
    };
    Ok((stored, made.key))
}

fn check_role(caller: &Caller, role: UserRole) -> Result<(), ApiError> {
    if caller.role.covers(role) {
        return Ok(());
    }
    Err(ApiError::Forbidden {
        code: "role_above_yours",
        message: format!(
            "a key may do at most what you may; {} is not within {}",
            role.as_str(),
            caller.role.as_str()
        ),
    })
}

/// Nobody makes a key with looser limits than their own; an admin sets what they like.
fn limits_for(http: &Http, caller: &Caller, wanted: RateLimits) -> RateLimits {
    if caller.role == UserRole::Admin {
        return wanted;
    }
    let own = caller.allowance.key.as_ref().map(|(_, own)| *own);
    wanted.within(
        own.unwrap_or_default(),
        http.rate_limiter.limits().key.rates(),
    )
}

/// What a new key is made for.
enum Makes {
    Another,
    /// It takes the place of an old one, which goes on for a while.
    Successor,
}

async fn check_number(
    http: &Http,
    owner: &str,
    makes: Makes,
    now_ms: Millis,
) -> Result<(), ApiError> {
    let keys = http.people.store().keys(Some(owner)).await?;
    let is_live = |k: &&ApiKey| {
        k.revoked_ms.is_none() && k.expires_ms.is_none_or(|expires_ms| expires_ms > now_ms)
    };
    let live = keys.iter().filter(is_live).count();
    let most = http.people.config().keys_per_owner_max;
    // Old keys that go on for a while beside their successors.
    let most_by = match makes {
        Makes::Another => most,
        Makes::Successor => most.saturating_mul(2),
    };
    if live < most_by {
        return Ok(());
    }
    Err(ApiError::Conflict {
        code: "too_many_keys",
        message: format!(
            "you have {live} keys in use (people.keys_per_owner_max is {most}); revoke one first"
        ),
    })
}

/// Does a change to keys and records it.
async fn done(
    http: &Http,
    caller: &Caller,
    (change, act, id): (PeopleChange, &'static str, &str),
    detail: Value,
) -> Result<(), ApiError> {
    let entry = audit::entry(caller, http.people.now_ms(), (act, id), detail);
    match http.people.change(&change, &entry).await {
        Err(error) => Err(error.into()),
        Ok(Changed::Done) => Ok(()),
        Ok(Changed::Missing) => Err(unknown(id)),
        Ok(Changed::Taken) => Err(ApiError::Internal(
            "two keys of one id; try again".to_owned(),
        )),
    }
}

fn unknown(id: &str) -> ApiError {
    let shown: String = id.chars().take(40).collect();
    ApiError::NotFound(format!("no key {shown} of yours is in use"))
}

/// One's own key that is in use.
async fn own(http: &Http, caller: &Caller, id: &str) -> Result<ApiKey, ApiError> {
    let key = http.people.store().key(id).await?;
    key.filter(|k| k.owner == caller.owner && k.revoked_ms.is_none())
        .ok_or_else(|| unknown(id))
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
        (status = 503, body = ErrorBody),
    )
)]
pub async fn rotate_key(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Made<KeyReply> {
    let caller = &context.caller;
    let old = own(&http, caller, &id).await?;
    check_role(caller, old.role)?;
    let now_ms = http.people.now_ms();
    expiry::check_rotated(old.expires_ms, now_ms, "POST /v1/keys").map_err(ApiError::NotFound)?;
    check_number(&http, &old.owner, Makes::Successor, now_ms).await?;
    let wanted = Wanted {
        owner: old.owner,
        label: old.label,
        role: old.role,
        limits: old.limits,
        despite_store_false: old.despite_store_false,
        raw_logprobs: old.raw_logprobs,
        expires_ms: old.expires_ms,
    };
    let (stored, key) = fresh(&http, wanted).await?;
    let ends_ms = http.people.now_ms() + http.people.config().key_overlap_ms;
    let change = PeopleChange::RotateKey(id.clone(), stored.clone(), ends_ms);
    let detail = json!({"successor": stored.id, "ends_ms": ends_ms});
    done(&http, caller, (change, "key.rotate", &id), detail).await?;
    let reply = KeyReply::of(stored, Some(key));
    Ok((StatusCode::CREATED, Json(reply)))
}

/// Says whether the calls of one's own key are collected although they say `store: false`, and which log-probs
/// their replies have.
#[utoipa::path(
    patch,
    path = "/v1/keys/{id}",
    params(("id" = String, Path, description = "Its public part")),
    request_body = KeyPatch,
    responses(
        (status = 200, body = KeyReply),
        (status = 404, description = "No such key of yours", body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn change_key(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    request: Request,
) -> Reply<KeyReply> {
    let body: KeyPatch = strict(&http, request).await?;
    let mut key = own(&http, &context.caller, &id).await?;
    let wanted = KeyChange {
        despite_store_false: body.despite_store_false,
        raw_logprobs: parse_logprobs(body.logprobs_mode.as_deref())?,
    };
    let mut detail = json!({});
    if let Some(despite) = wanted.despite_store_false {
        key.despite_store_false = despite;
        detail["despite_store_false"] = json!(despite);
    }
    if let Some(raw) = wanted.raw_logprobs {
        key.raw_logprobs = raw;
        detail["logprobs_mode"] = json!(body.logprobs_mode);
    }
    if detail == json!({}) {
        let why = "say despite_store_false or logprobs_mode: nothing else of a key changes";
        return Err(ApiError::invalid("despite_store_false", why));
    }
    let change = PeopleChange::ChangeKey(id.clone(), wanted);
    done(&http, &context.caller, (change, "key.change", &id), detail).await?;
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
        (status = 503, body = ErrorBody),
    )
)]
pub async fn revoke_key(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    own(&http, &context.caller, &id).await?;
    revoke(&http, &context.caller, id).await
}

/// Revokes anybody's key, at once.
#[utoipa::path(
    delete,
    path = "/admin/v1/keys/{id}",
    params(("id" = String, Path, description = "Its public part")),
    responses(
        (status = 204, description = "Revoked"),
        (status = 404, description = "No such key", body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn revoke_any_key(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    revoke(&http, &context.caller, id).await
}

async fn revoke(http: &Http, caller: &Caller, id: String) -> Result<StatusCode, ApiError> {
    let change = PeopleChange::RevokeKey(id.clone(), http.people.now_ms());
    done(http, caller, (change, "key.revoke", &id), json!({})).await?;
    Ok(StatusCode::NO_CONTENT)
}
