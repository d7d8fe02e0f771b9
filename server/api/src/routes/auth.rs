//! `/v1/me` and `/v1/auth`: who is calling, signing in and out.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hone_ledger::{Changed, PeopleChange, UserChange};
use serde_json::json;

use crate::Http;
use crate::body::read_json;
use crate::guard::{
    Credential, credential, device, device_cookie, ended_cookie, fresh_cookie, is_by_tls,
};
use crate::request_context::RequestContext;
use hone_accounts::links::Guest;
use hone_accounts::secrets::{self, csrf};
use hone_accounts::{AuthMethod, Caller};
use hone_accounts::{Signed, audit};
use hone_api_types::people::{
    InviteTaken, MeReply, PasswordRequest, SignInRequest, parse_name, parse_password,
};
use hone_replies::error::{ApiError, ErrorBody};

/// Most bytes of a body from somebody whom nobody knows yet.
const STRANGERS_BYTES_MAX: usize = 16 * 1_024;

fn me_of(http: &Http, caller: &Caller, token: Option<&str>) -> MeReply {
    MeReply {
        object: "me",
        name: caller.owner.clone(),
        role: caller.role,
        via: caller.via,
        csrf: token.map(csrf),
        users_exist: http.people.has_users(),
        team: http
            .people
            .groups()
            .team_of(&caller.owner)
            .map(str::to_owned),
        consent: http.rules.own_consent(&caller.owner).learning,
    }
}

/// Who is calling.
#[utoipa::path(
    get,
    path = "/v1/me",
    responses(
        (status = 200, body = MeReply),
        (status = 401, description = "Nobody: sign in, or send a key", body = ErrorBody),
    )
)]
pub async fn me(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    headers: HeaderMap,
) -> Json<MeReply> {
    let token = match (context.caller.via, credential(&headers)) {
        (AuthMethod::Session, Credential::Cookie(token)) => Some(token),
        _ => None,
    };
    Json(me_of(&http, &context.caller, token))
}

/// The reply to somebody who is signed in from now on.
fn signed(http: &Http, signed: &Signed, by_tls: bool) -> Response {
    let me = me_of(http, &signed.caller, Some(&signed.token));
    let mut response = Json(me).into_response();
    if let Some(cookie) = fresh_cookie(&signed.token, http.people.config(), by_tls) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    if let Some(cookie) = device_cookie(&signed.device, by_tls) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

pub(super) fn by_tls(http: &Http, context: &RequestContext, headers: &HeaderMap) -> bool {
    is_by_tls(&http.config, http.people.config(), context.peer, headers)
}

/// Signs in; the reply sets the cookies `hone_session` and `hone_device`.
#[utoipa::path(
    post,
    path = "/v1/auth/sign-in",
    request_body = SignInRequest,
    responses(
        (status = 200, description = "Signed in", body = MeReply),
        (status = 401, description = "Name or password is wrong", body = ErrorBody),
        (status = 429, description = "Too many failed attempts", body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn sign_in(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    let by_tls = by_tls(&http, &context, request.headers());
    let device = device(request.headers()).map(str::to_owned);
    let body: SignInRequest = of_strangers(&http, request).await?;
    let entry = http
        .people
        .sign_in(
            (context.client, device.as_deref()),
            (&body.name, body.password),
        )
        .await?;
    Ok(signed(&http, &entry, by_tls))
}

/// Ends the sign-in of the cookie; without one it changes nothing.
#[utoipa::path(
    post,
    path = "/v1/auth/sign-out",
    responses(
        (status = 204, description = "Signed out"),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn sign_out(
    State(http): State<Arc<Http>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if let Credential::Cookie(token) = credential(&headers)
        && let Some(caller) = http.people.session(token).await?
    {
        let change = PeopleChange::SignOut(secrets::digest(token));
        let act = ("sign_out", caller.owner.as_str());
        let entry = audit::entry(&caller, http.people.now_ms(), act, json!({}));
        let ended = http.people.change(&change, &entry).await;
        ended?;
    }
    Ok((
        StatusCode::NO_CONTENT,
        [(header::SET_COOKIE, ended_cookie())],
    )
        .into_response())
}

/// Takes an invitation: makes its account and signs in.
#[utoipa::path(
    post,
    path = "/v1/auth/invite",
    request_body = InviteTaken,
    responses(
        (status = 200, description = "The account exists and is signed in", body = MeReply),
        (status = 404, description = "The link was used, or is too old", body = ErrorBody),
        (status = 409, description = "The name is taken", body = ErrorBody),
        (status = 429, description = "Too many failed attempts", body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn take_invite(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    let by_tls = by_tls(&http, &context, request.headers());
    let body: InviteTaken = of_strangers(&http, request).await?;
    parse_name(&body.name)?;
    parse_password("password", &body.password)?;
    let guest = Guest {
        token: body.token,
        name: body.name,
        password: body.password,
    };
    let taken = |name: &str| http.is_configured_owner(name);
    let entry = http
        .people
        .take_invite(context.client, guest, taken)
        .await?;
    Ok(signed(&http, &entry, by_tls))
}

/// Changes one's own password; ends every sign-in, this one as well.
#[utoipa::path(
    post,
    path = "/v1/auth/password",
    request_body = PasswordRequest,
    responses(
        (status = 204, description = "Changed; sign in again"),
        (status = 429, description = "Too many failed attempts", body = ErrorBody),
    )
)]
pub async fn password(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    let body: PasswordRequest = strict(&http, request).await?;
    parse_password("new", &body.new)?;
    let (people, caller) = (&http.people, &context.caller);
    // A key that leaked must not be able to take over its owner's account.
    if caller.via != AuthMethod::Session {
        return Err(ApiError::Forbidden {
            code: "needs_sign_in",
            message: "sign in on the page to change your password".to_owned(),
        });
    }
    if !people.check_password(&caller.owner, body.old).await? {
        return Err(ApiError::invalid("old", "the present password is another"));
    }
    let change = UserChange {
        password: Some(people.hash_password(body.new).await?),
        ..UserChange::default()
    };
    let change = PeopleChange::ChangeUser(caller.owner.clone(), change);
    let act = ("user.password", caller.owner.as_str());
    let entry = audit::entry(caller, people.now_ms(), act, json!({}));
    match people.change(&change, &entry).await {
        Err(error) => Err(error.into()),
        Ok(Changed::Done) => Ok((
            StatusCode::NO_CONTENT,
            [(header::SET_COOKIE, ended_cookie())],
        )
            .into_response()),
        Ok(_) => Err(ApiError::NotFound("this account is gone".to_owned())),
    }
}

/// Reads what somebody sends whom nobody knows yet.
async fn of_strangers<T: serde::de::DeserializeOwned>(
    http: &Http,
    request: Request,
) -> Result<T, ApiError> {
    let mut limits = http.body_limits();
    limits.bytes_max = limits.bytes_max.min(STRANGERS_BYTES_MAX);
    check_no_parameters(&request)?;
    Ok(read_json(request, limits).await?.strictly()?)
}

/// Reads a body of JSON into `T`, refusing fields that it lacks, and parameters in the address.
pub(crate) async fn strict<T: serde::de::DeserializeOwned>(
    http: &Http,
    request: Request,
) -> Result<T, ApiError> {
    check_no_parameters(&request)?;
    strict_body(http, request).await
}

/// What says in the address whom a request is about must not be about the caller.
pub(crate) fn check_no_parameters(request: &Request) -> Result<(), ApiError> {
    let query = request.uri().query().filter(|query| !query.is_empty());
    let Some(name) = query.and_then(|query| query.split(['=', '&']).next()) else {
        return Ok(());
    };
    let name: String = name.chars().take(64).collect();
    let message = format!("this address takes no parameters; {name} belongs in the body");
    Err(ApiError::invalid(name, message))
}

/// The same where parameters are read by others.
pub(crate) async fn strict_body<T: serde::de::DeserializeOwned>(
    http: &Http,
    request: Request,
) -> Result<T, ApiError> {
    Ok(read_json(request, http.body_limits()).await?.strictly()?)
}

/// A JSON reply with a status of its own.
pub(super) type Made<T> = Result<(StatusCode, Json<T>), ApiError>;
