//! `/admin/v1/users` and `/admin/v1/invites`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use hone_domain::RateLimits;
use hone_ledger::UserChange;

use super::Reply;
use super::auth::{Made, by_tls, strict};
use crate::Http;
use crate::request_context::RequestContext;
use hone_accounts::links::url;
use hone_accounts::secrets;
use hone_api_types::List;
use hone_api_types::people::{
    InviteReply, InviteRequest, UserPatch, UserReply, UserRequest, parse_name, parse_role,
};
use hone_replies::error::{ApiError, ErrorBody};

/// Every account.
#[utoipa::path(
    get,
    path = "/admin/v1/users",
    responses(
        (status = 200, body = List<UserReply>),
    )
)]
pub async fn list_users(State(http): State<Arc<Http>>) -> Reply<List<UserReply>> {
    let users = http.people.store().users().await?;
    Ok(Json(List::whole(
        users.into_iter().map(|u| UserReply::of(u, None)),
    )))
}

/// Makes an account.
#[utoipa::path(
    post,
    path = "/admin/v1/users",
    request_body = UserRequest,
    responses(
        (status = 201, body = UserReply),
        (status = 409, description = "The name is taken", body = ErrorBody),
    )
)]
pub async fn add_user(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Made<UserReply> {
    let body: UserRequest = strict(&http, request).await?;
    let role = parse_role(body.role.as_deref())?;
    let limits = body.limits.map(RateLimits::from).unwrap_or_default();
    let changes = http.changes(&context.caller);
    let added = changes.add_user(body.name, role, body.password, limits);
    let user = added.await?;
    Ok((StatusCode::CREATED, Json(UserReply::of(user, None))))
}

/// Changes an account: role, limits, closed or not, a new password.
#[utoipa::path(
    patch,
    path = "/admin/v1/users/{name}",
    params(("name" = String, Path, description = "The account")),
    request_body = UserPatch,
    responses(
        (status = 200, body = UserReply),
        (status = 404, description = "No such account", body = ErrorBody),
        (status = 409, description = "An admin cannot close or demote their own account, and an agent has no password and no other role", body = ErrorBody),
    )
)]
pub async fn change_user(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(name): Path<String>,
    request: Request,
) -> Reply<UserReply> {
    let body: UserPatch = strict(&http, request).await?;
    let role = match &body.role {
        None => None,
        Some(role) => Some(parse_role(Some(role))?),
    };
    let password = match body.password_reset {
        Some(true) => Some(secrets::new_token().map_err(|e| ApiError::Internal(e.to_string()))?),
        _ => None,
    };
    let change = UserChange {
        role,
        disabled: body.disabled,
        password: password.clone(),
        limits: body.limits.map(RateLimits::from),
    };
    let changes = http.changes(&context.caller);
    let user = changes.change_user(&name, change).await?;
    Ok(Json(UserReply::of(user, password)))
}

/// Makes a link with which somebody makes one account.
#[utoipa::path(
    post,
    path = "/admin/v1/invites",
    request_body = InviteRequest,
    responses(
        (status = 201, body = InviteReply),
    )
)]
pub async fn invite(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    headers: HeaderMap,
    request: Request,
) -> Made<InviteReply> {
    let body: InviteRequest = strict(&http, request).await?;
    let role = parse_role(body.role.as_deref())?;
    if let Some(name) = &body.name {
        parse_name(name)?;
    }
    let link = http
        .people
        .invite(&context.caller, (role, body.name))
        .await?;
    let guard = http.guard.get();
    let host = guard.known_host(&headers);
    let base = match http.people.config().public_url.as_str() {
        // Under a name that anybody could have sent the link stays one within this server.
        "" if host.is_none() => String::new(),
        "" => {
            let scheme = if by_tls(&http, &context, &headers) {
                "https"
            } else {
                "http"
            };
            format!("{scheme}://{}", host.unwrap_or("127.0.0.1"))
        }
        public => public.to_owned(),
    };
    let reply = InviteReply {
        object: "invite",
        url: url(&base, &link.token),
        token: link.token,
        expires_ms: link.expires_ms,
    };
    Ok((StatusCode::CREATED, Json(reply)))
}
