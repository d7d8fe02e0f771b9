//! Teams: one's own at `/v1/teams`, everybody's at `/admin/v1/teams`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use hone_domain::RateLimits;
use hone_ledger::{Team, TeamChange};

use super::Reply;
use super::auth::{Made, strict};
use crate::Http;
use crate::request_context::RequestContext;
use hone_accounts::changes::Refusal;
use hone_api_types::List;
use hone_api_types::groups::{MemberRequest, TeamPatch, TeamReply, TeamRequest};
use hone_replies::error::{ApiError, ErrorBody};

/// The team that the caller is in.
#[utoipa::path(
    get,
    path = "/v1/teams",
    responses(
        (status = 200, body = List<TeamReply>),
    )
)]
pub async fn own_teams(
    State(http): State<Arc<Http>>,
    context: RequestContext,
) -> Reply<List<TeamReply>> {
    let own = http.people.groups();
    let own = own.team_of(&context.caller.owner);
    list(&http, |team| own == Some(&*team.name)).await
}

/// Every team.
#[utoipa::path(
    get,
    path = "/admin/v1/teams",
    responses(
        (status = 200, body = List<TeamReply>),
    )
)]
pub async fn list_teams(State(http): State<Arc<Http>>) -> Reply<List<TeamReply>> {
    list(&http, |_| true).await
}

async fn list(http: &Http, sees: impl Fn(&Team) -> bool) -> Reply<List<TeamReply>> {
    let store = http.people.store();
    let teams = store.teams().await?;
    let users = store.users().await?;
    let seen = teams.into_iter().filter(sees);
    Ok(Json(List::whole(
        seen.map(|team| TeamReply::of(team, &users)),
    )))
}

/// One team as it is now.
async fn team(http: &Http, name: &str) -> Result<TeamReply, ApiError> {
    let found = list(http, |team| team.name == name).await?;
    found
        .0
        .data
        .into_iter()
        .next()
        .ok_or_else(|| Refusal::NoTeam(name.to_owned()).into())
}

/// Makes a team.
#[utoipa::path(
    post,
    path = "/admin/v1/teams",
    request_body = TeamRequest,
    responses(
        (status = 201, body = TeamReply),
        (status = 404, description = "No such account", body = ErrorBody),
        (status = 409, description = "The name is taken, or a member is in another team", body = ErrorBody),
    )
)]
pub async fn add_team(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Made<TeamReply> {
    let body: TeamRequest = strict(&http, request).await?;
    let members = body.members.unwrap_or_default().into_iter();
    let members = members.map(|member| (member.name, member.lead)).collect();
    let limits = body.limits.map(RateLimits::from).unwrap_or_default();
    let changes = http.changes(&context.caller);
    let added = changes.add_team(body.name.clone(), members, limits);
    added.await?;
    Ok((StatusCode::CREATED, Json(team(&http, &body.name).await?)))
}

/// Changes a team: its limits, closed or not.
#[utoipa::path(
    patch,
    path = "/admin/v1/teams/{name}",
    params(("name" = String, Path, description = "The team")),
    request_body = TeamPatch,
    responses(
        (status = 200, body = TeamReply),
        (status = 404, description = "No such team", body = ErrorBody),
    )
)]
pub async fn change_team(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(name): Path<String>,
    request: Request,
) -> Reply<TeamReply> {
    let body: TeamPatch = strict(&http, request).await?;
    let change = TeamChange {
        disabled: body.disabled,
        limits: body.limits.map(RateLimits::from),
    };
    let changes = http.changes(&context.caller);
    changes.change_team(&name, change).await?;
    Ok(Json(team(&http, &name).await?))
}

/// Puts somebody into a team, or gives them another part in it. Its lead may, and admins.
#[utoipa::path(
    put,
    path = "/v1/teams/{name}/members/{member}",
    params(
        ("name" = String, Path, description = "The team"),
        ("member" = String, Path, description = "Owner of what they send: name of an account, `oidc:` and the subject, or `local`"),
    ),
    request_body = MemberRequest,
    responses(
        (status = 200, body = TeamReply),
        (status = 403, description = "You do not lead this team", body = ErrorBody),
        (status = 404, description = "No such team or account", body = ErrorBody),
        (status = 409, description = "They are in another team, or there are too many", body = ErrorBody),
    )
)]
pub async fn put_member(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path((name, member)): Path<(String, String)>,
    request: Request,
) -> Reply<TeamReply> {
    let body: MemberRequest = strict(&http, request).await?;
    let changes = http.changes(&context.caller);
    let put = changes.put_member(&name, &member, body.lead.unwrap_or(false));
    put.await?;
    Ok(Json(team(&http, &name).await?))
}

/// Takes somebody out of a team. Its lead may, admins, and everybody for themselves.
#[utoipa::path(
    delete,
    path = "/v1/teams/{name}/members/{member}",
    params(
        ("name" = String, Path, description = "The team"),
        ("member" = String, Path, description = "Who leaves"),
    ),
    responses(
        (status = 204, description = "They are in no team"),
        (status = 403, description = "You do not lead this team", body = ErrorBody),
        (status = 404, description = "No such team or member", body = ErrorBody),
    )
)]
pub async fn drop_member(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path((name, member)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let changes = http.changes(&context.caller);
    changes.drop_member(&name, &member).await?;
    Ok(StatusCode::NO_CONTENT)
}
