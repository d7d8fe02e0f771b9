//! Bodies and replies about agents and teams.

use hone_domain::{Learning, Millis, RateLimits};
use hone_ledger::{Keeper, Team, User};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::limits::LimitFields;

/// Whose agent an account is: exactly one of the two.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct KeeperReply {
    /// The person's name, as their requests' owner.
    pub owner: Option<String>,
    /// The team's name.
    pub team: Option<String>,
}

impl From<Keeper> for KeeperReply {
    fn from(keeper: Keeper) -> Self {
        match keeper {
            Keeper::Owner(owner) => Self {
                owner: Some(owner),
                team: None,
            },
            Keeper::Team(team) => Self {
                owner: None,
                team: Some(team),
            },
        }
    }
}

/// The body that makes an agent.
#[derive(Debug, Deserialize, ToSchema)]
pub struct AgentRequest {
    /// Its name.
    pub name: String,
    /// The team that keeps it; its lead or an admin says so.
    pub team: Option<String>,
    /// The person that keeps it, if not the caller; an admin says so.
    pub owner: Option<String>,
    /// Its own limits; only an admin's may be above those of who makes it.
    pub limits: Option<LimitFields>,
}

/// The body that changes an agent; what is absent stays.
#[derive(Debug, Deserialize, ToSchema)]
pub struct AgentPatch {
    /// Whether its keys are refused.
    pub disabled: Option<bool>,
    /// Its own limits, as a whole.
    pub limits: Option<LimitFields>,
}

/// An agent.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AgentReply {
    /// Always `agent`.
    pub object: &'static str,
    /// Its name, and the owner of what it sends.
    pub name: String,
    /// Whose it is.
    pub keeper: KeeperReply,
    /// Whether the caller decides about it.
    pub manages: bool,
    /// Whether its keys are refused.
    pub disabled: bool,
    /// Its own limits.
    #[schema(value_type = Object)]
    pub limits: RateLimits,
    /// What may be learned from it: `off`, `serve`, `full`.
    #[schema(value_type = String)]
    pub consent: Learning,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_ms: Millis,
}

impl AgentReply {
    /// A stored account; none if it is no agent.
    pub fn of(user: User, manages: bool, consent: Learning) -> Option<Self> {
        Some(Self {
            object: "agent",
            keeper: user.keeper?.into(),
            name: user.name,
            manages,
            disabled: user.disabled,
            limits: user.limits,
            consent,
            created_ms: user.created_ms,
        })
    }
}

/// Somebody in a team.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct MemberItem {
    /// Owner of what they send.
    pub name: String,
    /// Whether they manage the team.
    #[serde(default)]
    pub lead: bool,
}

/// The body that makes a team.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TeamRequest {
    /// Its name.
    pub name: String,
    /// What all of them may use together.
    pub limits: Option<LimitFields>,
    /// Who is in it from the beginning.
    pub members: Option<Vec<MemberItem>>,
}

/// The body that changes a team; what is absent stays.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TeamPatch {
    /// Whether its agents' keys are refused; its members go on as if in no team.
    pub disabled: Option<bool>,
    /// What all of them may use together, as a whole.
    pub limits: Option<LimitFields>,
}

/// The body that puts somebody into a team.
#[derive(Debug, Deserialize, ToSchema)]
pub struct MemberRequest {
    /// Whether they manage it; false if absent.
    pub lead: Option<bool>,
}

/// A team.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TeamReply {
    /// Always `team`.
    pub object: &'static str,
    /// Its name.
    pub name: String,
    /// Whether its agents' keys are refused.
    pub disabled: bool,
    /// What all of them may use together.
    #[schema(value_type = Object)]
    pub limits: RateLimits,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_ms: Millis,
    /// Who is in it, by name.
    pub members: Vec<MemberItem>,
    /// Names of its agents.
    pub agents: Vec<String>,
}

impl TeamReply {
    /// A stored team; `users` are all accounts, among them its agents.
    pub fn of(team: Team, users: &[User]) -> Self {
        let keeper = Keeper::Team(team.name.clone());
        let agents = users.iter().filter(|u| u.keeper.as_ref() == Some(&keeper));
        let members = team.members.into_iter().map(|member| MemberItem {
            name: member.name,
            lead: member.is_lead,
        });
        Self {
            object: "team",
            agents: agents.map(|agent| agent.name.clone()).collect(),
            name: team.name,
            disabled: team.disabled,
            limits: team.limits,
            created_ms: team.created_ms,
            members: members.collect(),
        }
    }
}
