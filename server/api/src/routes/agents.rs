//! Agents: one's own and one's team's at `/v1/agents`, everybody's at `/admin/v1/agents`. Keys and
//! data of an agent are at the paths of everybody's own, with the header `x-hone-agent`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use hone_domain::RateLimits;
use hone_ledger::{Keeper, User};

use super::Reply;
use super::auth::{Made, strict};
use crate::Http;
use crate::request_context::RequestContext;
use hone_accounts::Caller;
use hone_accounts::changes::Refusal;
use hone_api_types::List;
use hone_api_types::groups::{AgentPatch, AgentReply, AgentRequest};
use hone_replies::error::{ApiError, ErrorBody};

/// One's own agents, and those of one's team.
#[utoipa::path(
    get,
    path = "/v1/agents",
    responses(
        (status = 200, body = List<AgentReply>),
    )
)]
pub async fn list_agents(
    State(http): State<Arc<Http>>,
    context: RequestContext,
) -> Reply<List<AgentReply>> {
    let (groups, owner) = (http.people.groups(), &context.caller.owner);
    let sees = |user: &User| match &user.keeper {
        None => false,
        Some(Keeper::Owner(keeper)) => keeper == owner,
        Some(Keeper::Team(team)) => groups.team_of(owner) == Some(team),
    };
    list(&http, &context.caller, sees).await
}

/// Everybody's agents.
#[utoipa::path(
    get,
    path = "/admin/v1/agents",
    responses(
        (status = 200, body = List<AgentReply>),
    )
)]
pub async fn list_all_agents(
    State(http): State<Arc<Http>>,
    context: RequestContext,
) -> Reply<List<AgentReply>> {
    list(&http, &context.caller, |_| true).await
}

async fn list(
    http: &Http,
    caller: &Caller,
    sees: impl Fn(&User) -> bool,
) -> Reply<List<AgentReply>> {
    let users = http.people.store().users().await?;
    let seen = users.into_iter().filter(sees);
    Ok(Json(List::whole(
        seen.filter_map(|user| shown(http, caller, user)),
    )))
}

fn shown(http: &Http, caller: &Caller, user: User) -> Option<AgentReply> {
    let consent = http.rules.own_consent(&user.name).learning;
    let manages = http.changes(caller).decides(&user.name);
    AgentReply::of(user, manages, consent)
}

/// Makes an agent: an account of a program, which nobody signs in to.
#[utoipa::path(
    post,
    path = "/v1/agents",
    request_body = AgentRequest,
    responses(
        (status = 201, body = AgentReply),
        (status = 403, description = "Only its lead makes an agent of a team, and only an admin one of somebody else", body = ErrorBody),
        (status = 404, description = "No such team or person", body = ErrorBody),
        (status = 409, description = "The name is taken, or there are too many", body = ErrorBody),
    )
)]
pub async fn add_agent(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Made<AgentReply> {
    let body: AgentRequest = strict(&http, request).await?;
    let caller = &context.caller;
    let limits = http
        .rate_limiter
        .of_agent(caller, body.limits.map(RateLimits::from));
    let changes = http.changes(caller);
    let added = changes.add_agent(body.name, body.owner, body.team, limits);
    let reply = shown(&http, caller, added.await?);
    let reply = reply.ok_or_else(|| ApiError::Internal("an agent without keeper".to_owned()))?;
    Ok((StatusCode::CREATED, Json(reply)))
}

/// Changes an agent: its limits, closed or not. Its keeper may, the lead of its team, and admins.
#[utoipa::path(
    patch,
    path = "/v1/agents/{name}",
    params(("name" = String, Path, description = "The agent")),
    request_body = AgentPatch,
    responses(
        (status = 200, body = AgentReply),
        (status = 404, description = "No such agent of yours", body = ErrorBody),
    )
)]
pub async fn change_agent(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(name): Path<String>,
    request: Request,
) -> Reply<AgentReply> {
    let body: AgentPatch = strict(&http, request).await?;
    let caller = &context.caller;
    let of_agent = |limits| http.rate_limiter.of_agent(caller, Some(limits));
    let limits = body.limits.map(RateLimits::from).map(of_agent);
    let changes = http.changes(caller);
    let agent = changes.change_agent(&name, body.disabled, limits).await?;
    let reply = shown(&http, caller, agent);
    Ok(Json(reply.ok_or(Refusal::NoAgent(name))?))
}
