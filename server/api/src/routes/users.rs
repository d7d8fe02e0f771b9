//! `/admin/v1/users` and `/admin/v1/invites`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode};
use hone_domain::{RateLimits, UserRole};
use hone_ledger::{Changed, PeopleChange, User, UserChange};
use serde_json::json;

use super::Reply;
use super::auth::{Made, by_tls, strict};
use crate::Http;
use crate::error::{ApiError, ErrorBody};
use crate::request_context::RequestContext;
use hone_accounts::audit;
use hone_accounts::links::{name_taken, url};
use hone_accounts::secrets;
use hone_api_types::List;
use hone_api_types::people::{
    InviteReply, InviteRequest, UserPatch, UserReply, UserRequest, parse_name, parse_password,
    parse_role,
};

/// Every account.
#[utoipa::path(
    get,
    path = "/admin/v1/users",
    responses(
        (status = 200, body = List<UserReply>),
        (status = 503, body = ErrorBody),
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
        (status = 503, body = ErrorBody),
    )
)]
pub async fn add_user(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Made<UserReply> {
    let body: UserRequest = strict(&http, request).await?;
    parse_name(&body.name)?;
    if http.is_configured_owner(&body.name) {
        return Err(name_taken(&body.name).into());
    }
    let role = parse_role(body.role.as_deref())?;
    let people = &http.people;
    let password = match body.password {
        None => None,
        Some(password) => {
            parse_password("password", &password)?;
            Some(people.hash_password(password).await?)
        }
    };
    let user = User {
        name: body.name,
        role,
        password,
        disabled: false,
        limits: body.limits.map(RateLimits::from).unwrap_or_default(),
        keeper: None,
        created_ms: people.now_ms(),
        signed_in_ms: None,
    };
    let detail = json!({"role": role.as_str()});
    let act = ("user.add", user.name.as_str());
    let entry = audit::entry(&context.caller, people.now_ms(), act, detail);
    let change = PeopleChange::AddUser(user.clone());
    match people.change(&change, &entry).await {
        Err(error) => Err(error.into()),
        Ok(Changed::Done) => Ok((StatusCode::CREATED, Json(UserReply::of(user, None)))),
        Ok(_) => Err(name_taken(&user.name).into()),
    }
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
        (status = 503, body = ErrorBody),
    )
)]
pub async fn change_user(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(name): Path<String>,
    request: Request,
) -> Reply<UserReply> {
    let body: UserPatch = strict(&http, request).await?;
    let people = &http.people;
    let role = match &body.role {
        None => None,
        Some(role) => Some(parse_role(Some(role))?),
    };
    if name == context.caller.owner && (role.is_some() || body.disabled == Some(true)) {
        return Err(ApiError::Conflict {
            code: "own_account",
            message: "you cannot close your own account or change its role; another admin can"
                .to_owned(),
        });
    }
    let wants_account = role.is_some() || body.password_reset == Some(true);
    if wants_account && people.groups().is_agent(&name) {
        return Err(ApiError::Conflict {
            code: "is_agent",
            message: format!("{name} is an agent: it has the role user, and nobody signs in as it"),
        });
    }
    let password = match body.password_reset {
        Some(true) => Some(secrets::new_token().map_err(|e| ApiError::Internal(e.to_string()))?),
        _ => None,
    };
    let hashed = match &password {
        None => None,
        Some(password) => Some(people.hash_password(password.clone()).await?),
    };
    let detail = json!({
        "role": role.map(UserRole::as_str), "disabled": body.disabled,
        "password_reset": password.is_some(), "limits": body.limits,
    });
    let change = UserChange {
        role,
        disabled: body.disabled,
        password: hashed,
        limits: body.limits.map(RateLimits::from),
    };
    let entry = audit::entry(
        &context.caller,
        people.now_ms(),
        ("user.change", &name),
        detail,
    );
    let change = PeopleChange::ChangeUser(name.clone(), change);
    let changed = people.change(&change, &entry).await;
    changed?;
    let user = people.store().user(&name).await?;
    user.map(|user| Json(UserReply::of(user, password)))
        .ok_or_else(|| {
            let shown: String = name.chars().take(64).collect();
            ApiError::NotFound(format!("no account {shown} is known"))
        })
}

/// Makes a link with which somebody makes one account.
#[utoipa::path(
    post,
    path = "/admin/v1/invites",
    request_body = InviteRequest,
    responses(
        (status = 201, body = InviteReply),
        (status = 503, body = ErrorBody),
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
