//! Teams: one's own at `/v1/teams`, everybody's at `/admin/v1/teams`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use hone_domain::{RateLimits, UserRole};
use hone_ledger::{Changed, Member, PeopleChange, Team, TeamChange};
use serde_json::{Value, json};

use super::Reply;
use super::auth::{Made, strict};
use crate::Http;
use crate::error::{ApiError, ErrorBody};
use crate::request_context::RequestContext;
use hone_accounts::Caller;
use hone_accounts::links::name_taken;
use hone_accounts::{audit, oidc};
use hone_api_types::List;
use hone_api_types::groups::{MemberRequest, TeamPatch, TeamReply, TeamRequest};
use hone_api_types::people::parse_name;
use hone_domain::LOCAL_OWNER;

/// Most members of one team.
const MEMBERS_MAX: usize = 1_000;

/// The team that the caller is in.
#[utoipa::path(
    get,
    path = "/v1/teams",
    responses(
        (status = 200, body = List<TeamReply>),
        (status = 503, body = ErrorBody),
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
        (status = 503, body = ErrorBody),
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
        .ok_or_else(|| unknown_team(name))
}

/// Nobody knows a team of that name.
pub(super) fn unknown_team(name: &str) -> ApiError {
    let shown: String = name.chars().take(64).collect();
    ApiError::NotFound(format!("no team {shown} is known"))
}

/// Whether somebody of that name can call: with an account of their own, by a key of the
/// configuration, by a token, or at this machine.
pub(super) async fn is_known(http: &Http, name: &str) -> Result<(), ApiError> {
    let has_key = http.is_configured_owner(name);
    if has_key || name == LOCAL_OWNER || oidc::is_owner(name) {
        return Ok(());
    }
    let user = http.people.store().user(name).await;
    match user? {
        Some(user) if user.keeper.is_none() => Ok(()),
        Some(_) => Err(ApiError::invalid(
            "name",
            "an agent is in the team of its keeper and in no other",
        )),
        None => {
            let shown: String = name.chars().take(64).collect();
            Err(ApiError::NotFound(format!("no account {shown} is known")))
        }
    }
}

/// Does a change to a team and records it.
async fn done(
    http: &Http,
    caller: &Caller,
    (change, act, name): (PeopleChange, &'static str, &str),
    detail: Value,
) -> Result<Changed, ApiError> {
    let entry = audit::entry(caller, http.people.now_ms(), (act, name), detail);
    let changed = http.people.change(&change, &entry).await;
    Ok(changed?)
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
        (status = 503, body = ErrorBody),
    )
)]
pub async fn add_team(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Made<TeamReply> {
    let body: TeamRequest = strict(&http, request).await?;
    parse_name(&body.name)?;
    let members = body.members.unwrap_or_default();
    if members.len() > MEMBERS_MAX {
        return Err(ApiError::invalid(
            "members",
            format!("a team has at most {MEMBERS_MAX} members"),
        ));
    }
    let now_ms = http.people.now_ms();
    let mut known: Vec<Member> = Vec::with_capacity(members.len());
    for member in members {
        is_known(&http, &member.name).await?;
        known.push(Member {
            name: member.name,
            is_lead: member.lead,
            joined_ms: now_ms,
        });
    }
    let new = Team {
        name: body.name.clone(),
        disabled: false,
        limits: body.limits.map(RateLimits::from).unwrap_or_default(),
        created_ms: now_ms,
        members: known,
    };
    let detail = json!({"members": new.members.len(), "limits": new.limits});
    let is_member_taken = http
        .people
        .groups()
        .first_seated(new.members.iter().map(|member| &*member.name));
    let change = PeopleChange::AddTeam(new);
    let act = (change, "team.add", &*body.name);
    match done(&http, &context.caller, act, detail).await? {
        Changed::Done => Ok((StatusCode::CREATED, Json(team(&http, &body.name).await?))),
        _ => Err(match is_member_taken {
            Some(member) => in_another_team(&member),
            None => name_taken(&body.name).into(),
        }),
    }
}

fn in_another_team(member: &str) -> ApiError {
    ApiError::Conflict {
        code: "in_another_team",
        message: format!("{member} is in another team; everybody is in one at most"),
    }
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
        (status = 503, body = ErrorBody),
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
    let detail = json!({"disabled": change.disabled, "limits": change.limits});
    let change = PeopleChange::ChangeTeam(name.clone(), change);
    let act = (change, "team.change", &*name);
    done(&http, &context.caller, act, detail).await?;
    Ok(Json(team(&http, &name).await?))
}

/// Whether the caller manages the team. To others it does not exist, unless they are in it.
fn check_lead(http: &Http, caller: &Caller, name: &str) -> Result<(), ApiError> {
    let groups = http.people.groups();
    if caller.role == UserRole::Admin || groups.leads(&caller.owner, name) {
        return Ok(());
    }
    if groups.team_of(&caller.owner) != Some(name) {
        return Err(unknown_team(name));
    }
    Err(ApiError::Forbidden {
        code: "not_lead",
        message: "a team's lead or an admin decides who is in it".to_owned(),
    })
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
        (status = 503, body = ErrorBody),
    )
)]
pub async fn put_member(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path((name, member)): Path<(String, String)>,
    request: Request,
) -> Reply<TeamReply> {
    let body: MemberRequest = strict(&http, request).await?;
    check_lead(&http, &context.caller, &name)?;
    let present = team(&http, &name).await?;
    is_known(&http, &member).await?;
    let is_new = !present.members.iter().any(|known| known.name == member);
    if is_new && present.members.len() >= MEMBERS_MAX {
        return Err(ApiError::Conflict {
            code: "too_many_members",
            message: format!("a team has at most {MEMBERS_MAX} members"),
        });
    }
    let lead = body.lead.unwrap_or(false);
    let change = Member {
        name: member.clone(),
        is_lead: lead,
        joined_ms: http.people.now_ms(),
    };
    let change = PeopleChange::PutMember(name.clone(), change);
    let detail = json!({"member": member, "lead": lead});
    let act = (change, "team.member", &*name);
    match done(&http, &context.caller, act, detail).await? {
        Changed::Done => Ok(Json(team(&http, &name).await?)),
        Changed::Taken => Err(in_another_team(&member)),
        Changed::Missing => Err(unknown_team(&name)),
    }
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
        (status = 503, body = ErrorBody),
    )
)]
pub async fn drop_member(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path((name, member)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    if member != context.caller.owner {
        check_lead(&http, &context.caller, &name)?;
    }
    let change = PeopleChange::DropMember(name.clone(), member.clone());
    let act = (change, "team.leave", &*name);
    match done(&http, &context.caller, act, json!({"member": member})).await? {
        Changed::Done => Ok(StatusCode::NO_CONTENT),
        _ => {
            let shown: String = member.chars().take(64).collect();
            Err(ApiError::NotFound(format!("{shown} is not in this team")))
        }
    }
}
