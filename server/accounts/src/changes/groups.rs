//! Changes of agents and teams.

use hone_domain::{RateLimits, UserRole};
use hone_ledger::{Changed, Keeper, Member, PeopleChange, Team, TeamChange, User, UserChange};
use serde_json::json;

use super::{Changes, Refusal, check_name, conflict, forbidden, invalid};
use crate::Caller;

/// Most members of one team.
const MEMBERS_MAX: usize = 1_000;

impl Changes<'_> {
    /// Makes an agent, an account of a program that nobody signs in to: of a person, of a team, or of the caller.
    pub async fn add_agent(
        &self,
        name: String,
        owner: Option<String>,
        team: Option<String>,
        limits: RateLimits,
    ) -> Result<User, Refusal> {
        self.check_free(&name)?;
        let keeper = self.keeper_of(owner, team).await?;
        if self.caller().is_some() {
            self.check_agent_count(&keeper).await?;
        }
        let added = self.add_account(name, UserRole::User, None, limits, Some(keeper));
        added.await
    }

    /// Whose a new agent is to be, if the actor may say so.
    async fn keeper_of(
        &self,
        owner: Option<String>,
        team: Option<String>,
    ) -> Result<Keeper, Refusal> {
        match (owner, team) {
            (Some(_), Some(_)) => Err(invalid("team", "say owner or team, not both")),
            (None, None) => match self.caller() {
                Some(caller) => Ok(Keeper::Owner(caller.owner.clone())),
                None => Err(invalid("owner", "say owner or team")),
            },
            (None, Some(team)) if self.leads(&team) => Ok(Keeper::Team(team)),
            (None, Some(_)) => Err(forbidden(
                "not_your_agent",
                "a team's agents are made by its lead or an admin",
            )),
            (Some(owner), None) if self.is_own(&owner) => Ok(Keeper::Owner(owner)),
            (Some(_), None) if !self.is_admin() => Err(forbidden(
                "not_your_agent",
                "only an admin makes agents for somebody else",
            )),
            (Some(owner), None) => {
                self.check_person(&owner).await?;
                Ok(Keeper::Owner(owner))
            }
        }
    }

    async fn check_agent_count(&self, keeper: &Keeper) -> Result<(), Refusal> {
        let users = self.people.store.users().await?;
        let is_counted = |user: &&User| user.keeper.as_ref() == Some(keeper) && !user.disabled;
        let most = self.people.config.agents_per_keeper_max;
        if users.iter().filter(is_counted).count() < most {
            return Ok(());
        }
        Err(conflict(
            "too_many_agents",
            format!(
                "there are {most} agents already (people.agents_per_keeper_max); disable one first"
            ),
        ))
    }

    /// Whether the actor decides about an agent: their own, their team's where they lead it, anybody's for an admin.
    pub fn decides(&self, agent: &str) -> bool {
        let groups = self.people.groups();
        let keeps = |caller: &Caller| groups.keeps(&caller.owner, agent);
        self.caller().is_some_and(keeps) || (self.is_admin() && groups.is_agent(agent))
    }

    /// Changes an agent: closed or not, its limits.
    pub async fn change_agent(
        &self,
        name: &str,
        disabled: Option<bool>,
        limits: Option<RateLimits>,
    ) -> Result<User, Refusal> {
        let unknown = || Refusal::NoAgent(name.to_owned());
        if !self.decides(name) {
            return Err(unknown());
        }
        let detail = json!({"disabled": disabled, "limits": limits});
        let change = UserChange {
            disabled,
            limits,
            ..UserChange::default()
        };
        let agent = self.change_account(name, change, "agent.change", detail);
        agent.await?.ok_or_else(unknown)
    }

    /// Makes a team of these members, each with whether they lead it.
    pub async fn add_team(
        &self,
        name: String,
        members: Vec<(String, bool)>,
        limits: RateLimits,
    ) -> Result<(), Refusal> {
        check_name(&name)?;
        if members.len() > MEMBERS_MAX {
            return Err(invalid("members", too_many_members()));
        }
        let now_ms = self.people.now_ms();
        let mut team = Team {
            name,
            disabled: false,
            limits,
            created_ms: now_ms,
            members: Vec::with_capacity(members.len()),
        };
        for (name, is_lead) in members {
            self.check_person(&name).await?;
            team.members.push(Member {
                name,
                is_lead,
                joined_ms: now_ms,
            });
        }
        let names = team.members.iter().map(|member| &*member.name);
        let elsewhere = self.people.groups().first_seated(names);
        let detail = json!({"members": team.members.len(), "limits": limits});
        let change = PeopleChange::AddTeam(team.clone());
        match self.make(change, "team.add", &team.name, detail).await? {
            Changed::Done => Ok(()),
            _ => Err(elsewhere.map_or(Refusal::Taken(team.name), Refusal::InAnotherTeam)),
        }
    }

    /// Changes a team: closed or not, its limits.
    pub async fn change_team(&self, name: &str, change: TeamChange) -> Result<(), Refusal> {
        let detail = json!({"disabled": change.disabled, "limits": change.limits});
        let change = PeopleChange::ChangeTeam(name.to_owned(), change);
        match self.make(change, "team.change", name, detail).await? {
            Changed::Done => Ok(()),
            _ => Err(Refusal::NoTeam(name.to_owned())),
        }
    }

    /// Whether the actor manages a team. To others it does not exist, unless they are in it.
    fn check_lead(&self, team: &str) -> Result<(), Refusal> {
        if self.leads(team) {
            return Ok(());
        }
        let groups = self.people.groups();
        let is_in = |caller: &Caller| groups.team_of(&caller.owner) == Some(team);
        if !self.caller().is_some_and(is_in) {
            return Err(Refusal::NoTeam(team.to_owned()));
        }
        Err(forbidden(
            "not_lead",
            "a team's lead or an admin decides who is in it",
        ))
    }

    /// Puts somebody into a team, or makes them its lead or not. Its lead may, and admins.
    pub async fn put_member(&self, team: &str, member: &str, is_lead: bool) -> Result<(), Refusal> {
        self.check_lead(team)?;
        let teams = self.people.store.teams().await?;
        let present = teams.iter().find(|present| present.name == team);
        let present = present.ok_or_else(|| Refusal::NoTeam(team.to_owned()))?;
        self.check_person(member).await?;
        let is_new = present.members.iter().all(|known| known.name != member);
        if is_new && present.members.len() >= MEMBERS_MAX {
            return Err(conflict("too_many_members", too_many_members()));
        }
        let detail = json!({"member": member, "lead": is_lead});
        let put = Member {
            name: member.to_owned(),
            is_lead,
            joined_ms: self.people.now_ms(),
        };
        let change = PeopleChange::PutMember(team.to_owned(), put);
        match self.make(change, "team.member", team, detail).await? {
            Changed::Done => Ok(()),
            Changed::Taken => Err(Refusal::InAnotherTeam(member.to_owned())),
            Changed::Missing => Err(Refusal::NoTeam(team.to_owned())),
        }
    }

    /// Takes somebody out of a team. Its lead may, admins, and everybody for themselves.
    pub async fn drop_member(&self, team: &str, member: &str) -> Result<(), Refusal> {
        if !self.is_own(member) {
            self.check_lead(team)?;
        }
        let change = PeopleChange::DropMember(team.to_owned(), member.to_owned());
        let detail = json!({"member": member});
        match self.make(change, "team.leave", team, detail).await? {
            Changed::Done => Ok(()),
            _ => Err(Refusal::NotMember {
                member: member.to_owned(),
                team: team.to_owned(),
            }),
        }
    }
}

fn too_many_members() -> String {
    format!("a team has at most {MEMBERS_MAX} members")
}
