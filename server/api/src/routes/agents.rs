//! Agents: one's own and one's team's at `/v1/agents`, everybody's at `/admin/v1/agents`. Keys and
//! data of an agent are at the paths of everybody's own, with the header `x-hone-agent`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use hone_domain::{RateLimits, UserRole};
use hone_ledger::{Changed, Keeper, PeopleChange, User, UserChange};
use serde_json::json;

use super::Reply;
use super::auth::{Made, strict};
use super::teams::{is_known, unknown_team};
use crate::Http;
use crate::error::{ApiError, ErrorBody};
use crate::request_context::RequestContext;
use hone_accounts::Caller;
use hone_accounts::audit;
use hone_accounts::links::name_taken;
use hone_api_types::List;
use hone_api_types::groups::{AgentPatch, AgentReply, AgentRequest};
use hone_api_types::people::parse_name;

/// One's own agents, and those of one's team.
#[utoipa::path(
    get,
    path = "/v1/agents",
    responses(
        (status = 200, body = List<AgentReply>),
        (status = 503, body = ErrorBody),
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
        (status = 503, body = ErrorBody),
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
    let manages = decides(http, caller, &user.name);
    AgentReply::of(user, manages, consent)
}

/// Whether a caller may change an agent.
fn decides(http: &Http, caller: &Caller, agent: &str) -> bool {
    let groups = http.people.groups();
    groups.keeps(&caller.owner, agent) || (caller.role == UserRole::Admin && groups.is_agent(agent))
}

/// Nobody gives an agent looser limits than their own; an admin sets what they like.
fn limits_for(http: &Http, caller: &Caller, wanted: RateLimits) -> RateLimits {
    if caller.role == UserRole::Admin {
        return wanted;
    }
    wanted.within(
        caller.allowance.owner,
        http.rate_limiter.limits().owner.rates(),
    )
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
        (status = 503, body = ErrorBody),
    )
)]
pub async fn add_agent(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Made<AgentReply> {
    let body: AgentRequest = strict(&http, request).await?;
    let (people, caller) = (&http.people, &context.caller);
    parse_name(&body.name)?;
    if http.is_configured_owner(&body.name) {
        return Err(name_taken(&body.name).into());
    }
    let keeper = keeper_of(&http, caller, (body.owner, body.team)).await?;
    check_number(&http, &keeper).await?;
    let limits = body.limits.map(RateLimits::from).unwrap_or_default();
    let user = User {
        name: body.name,
        role: UserRole::User,
        password: None,
        disabled: false,
        limits: limits_for(&http, caller, limits),
        keeper: Some(keeper),
        created_ms: people.now_ms(),
        signed_in_ms: None,
    };
    let detail = match &user.keeper {
        Some(Keeper::Owner(owner)) => json!({"owner": owner}),
        Some(Keeper::Team(team)) => json!({"team": team}),
        None => json!({}),
    };
    let act = ("agent.add", user.name.as_str());
    let entry = audit::entry(caller, people.now_ms(), act, detail);
    let change = PeopleChange::AddUser(user.clone());
    let changed = people.change(&change, &entry).await;
    match changed? {
        Changed::Done => {}
        Changed::Taken => return Err(name_taken(&user.name).into()),
        Changed::Missing => return Err(unknown_team("of that name")),
    }
    let reply = shown(&http, caller, user);
    let reply = reply.ok_or_else(|| ApiError::Internal("an agent without keeper".to_owned()))?;
    Ok((StatusCode::CREATED, Json(reply)))
}

/// Whose a new agent is to be, if the caller may say so.
async fn keeper_of(
    http: &Http,
    caller: &Caller,
    wanted: (Option<String>, Option<String>),
) -> Result<Keeper, ApiError> {
    let is_admin = caller.role == UserRole::Admin;
    let forbidden = |message: &str| ApiError::Forbidden {
        code: "not_your_agent",
        message: message.to_owned(),
    };
    match wanted {
        (Some(_), Some(_)) => Err(ApiError::invalid("team", "say owner or team, not both")),
        (None, None) => Ok(Keeper::Owner(caller.owner.clone())),
        (None, Some(team)) => {
            if is_admin || http.people.groups().leads(&caller.owner, &team) {
                return Ok(Keeper::Team(team));
            }
            Err(forbidden(
                "a team's agents are made by its lead or an admin",
            ))
        }
        (Some(owner), None) => {
            if owner == caller.owner {
                return Ok(Keeper::Owner(owner));
            }
            if !is_admin {
                return Err(forbidden("only an admin makes agents for somebody else"));
            }
            is_known(http, &owner).await?;
            Ok(Keeper::Owner(owner))
        }
    }
}

async fn check_number(http: &Http, keeper: &Keeper) -> Result<(), ApiError> {
    let users = http.people.store().users().await?;
    let is_counted = |user: &&User| user.keeper.as_ref() == Some(keeper) && !user.disabled;
    let most = http.people.config().agents_per_keeper_max;
    if users.iter().filter(is_counted).count() < most {
        return Ok(());
    }
    Err(ApiError::Conflict {
        code: "too_many_agents",
        message: format!(
            "there are {most} agents already (people.agents_per_keeper_max); disable one first"
        ),
    })
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
        (status = 503, body = ErrorBody),
    )
)]
pub async fn change_agent(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(name): Path<String>,
    request: Request,
) -> Reply<AgentReply> {
    let body: AgentPatch = strict(&http, request).await?;
    let (people, caller) = (&http.people, &context.caller);
    let unknown = || {
        let shown: String = name.chars().take(64).collect();
        ApiError::NotFound(format!("no agent {shown} of yours is known"))
    };
    if !decides(&http, caller, &name) {
        return Err(unknown());
    }
    let limits = body.limits.map(RateLimits::from);
    let change = UserChange {
        disabled: body.disabled,
        limits: limits.map(|limits| limits_for(&http, caller, limits)),
        ..UserChange::default()
    };
    let detail = json!({"disabled": change.disabled, "limits": change.limits});
    let entry = audit::entry(caller, people.now_ms(), ("agent.change", &name), detail);
    let change = PeopleChange::ChangeUser(name.clone(), change);
    let changed = people.change(&change, &entry).await;
    changed?;
    let user = people.store().user(&name).await?;
    let reply = user.and_then(|user| shown(&http, caller, user));
    Ok(Json(reply.ok_or_else(unknown)?))
}
