//! Who belongs to whom: agents to their keepers, people to their teams. One picture for the whole
//! process, taken anew with every change.

use std::collections::HashMap;

use hone_domain::RateLimits;
use hone_ledger::{Keeper, Team, User};

/// The picture.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    accounts: HashMap<String, Account>,
    teams: HashMap<String, Circle>,
    seats: HashMap<String, Seat>,
}

#[derive(Clone, Debug)]
struct Account {
    disabled: bool,
    limits: RateLimits,
    keeper: Option<Keeper>,
}

#[derive(Clone, Copy, Debug)]
struct Circle {
    disabled: bool,
    limits: RateLimits,
}

#[derive(Clone, Debug)]
struct Seat {
    team: String,
    is_lead: bool,
}

/// Exceptions from configured limits with whose they are.
pub type Of = Option<(String, RateLimits)>;

impl Groups {
    /// From what the store holds.
    pub fn of(users: &[User], teams: &[Team]) -> Self {
        let accounts = users.iter().map(|user| {
            let account = Account {
                disabled: user.disabled,
                limits: user.limits,
                keeper: user.keeper.clone(),
            };
            (user.name.clone(), account)
        });
        let circles = teams.iter().map(|team| {
            let circle = Circle {
                disabled: team.disabled,
                limits: team.limits,
            };
            (team.name.clone(), circle)
        });
        let seats = teams.iter().flat_map(|team| {
            team.members.iter().map(|member| {
                let seat = Seat {
                    team: team.name.clone(),
                    is_lead: member.is_lead,
                };
                (member.name.clone(), seat)
            })
        });
        Self {
            accounts: accounts.collect(),
            teams: circles.collect(),
            seats: seats.collect(),
        }
    }

    fn keeper(&self, name: &str) -> Option<&Keeper> {
        self.accounts.get(name)?.keeper.as_ref()
    }

    /// Whether this is an agent's name.
    pub fn is_agent(&self, name: &str) -> bool {
        self.keeper(name).is_some()
    }

    /// Whether `owner` leads the team.
    pub fn leads(&self, owner: &str, team: &str) -> bool {
        let seat = self.seats.get(owner);
        seat.is_some_and(|seat| seat.is_lead && seat.team == team)
    }

    /// The team that somebody is in, open or closed.
    pub fn team_of(&self, owner: &str) -> Option<&str> {
        self.seats.get(owner).map(|seat| seat.team.as_str())
    }

    /// The first of these who is in a team.
    pub fn first_seated<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Option<String> {
        names
            .find(|name| self.seats.contains_key(*name))
            .map(str::to_owned)
    }

    /// Whether `owner` decides about the agent: it is theirs, or their team's and they lead that.
    pub fn keeps(&self, owner: &str, agent: &str) -> bool {
        match self.keeper(agent) {
            None => false,
            Some(Keeper::Owner(keeper)) => keeper == owner,
            Some(Keeper::Team(team)) => self.leads(owner, team),
        }
    }

    /// Whether nobody closed the account, or what keeps it.
    pub fn is_open(&self, name: &str) -> bool {
        let Some(account) = self.accounts.get(name) else {
            return true;
        };
        let keeper_is_open = match &account.keeper {
            None => true,
            Some(Keeper::Owner(owner)) => self.accounts.get(owner).is_none_or(|a| !a.disabled),
            Some(Keeper::Team(team)) => self.teams.get(team).is_some_and(|t| !t.disabled),
        };
        !account.disabled && keeper_is_open
    }

    /// Whose limits hold besides an owner's own: the keeper's of an agent, and the team's.
    pub fn above(&self, owner: &str) -> (Of, Of) {
        let (keeper, team) = match self.keeper(owner) {
            None => (None, self.team_of(owner)),
            Some(Keeper::Owner(keeper)) => (Some(keeper), self.team_of(keeper)),
            Some(Keeper::Team(team)) => (None, Some(team.as_str())),
        };
        let keeper = keeper.map(|name| {
            let limits = self.accounts.get(name).map(|account| account.limits);
            (name.clone(), limits.unwrap_or_default())
        });
        let team = team.and_then(|name| {
            let circle = self.teams.get(name).filter(|circle| !circle.disabled)?;
            Some((name.to_owned(), circle.limits))
        });
        (keeper, team)
    }
}

#[cfg(test)]
mod tests {
    use hone_domain::UserRole;
    use hone_ledger::Member;

    use super::*;

    fn account(name: &str, disabled: bool, keeper: Option<Keeper>) -> User {
        User {
            name: name.to_owned(),
            role: UserRole::User,
            password: None,
            disabled,
            limits: RateLimits::default(),
            keeper,
            created_ms: 1,
            signed_in_ms: None,
        }
    }

    fn team(name: &str, disabled: bool, members: &[(&str, bool)]) -> Team {
        let members = members.iter().map(|(name, is_lead)| Member {
            name: (*name).to_owned(),
            is_lead: *is_lead,
            joined_ms: 1,
        });
        Team {
            name: name.to_owned(),
            disabled,
            limits: RateLimits::default(),
            created_ms: 1,
            members: members.collect(),
        }
    }

    fn picture() -> Groups {
        let owner = |name: &str| Some(Keeper::Owner(name.to_owned()));
        let of_team = |name: &str| Some(Keeper::Team(name.to_owned()));
        let users = [
            account("ann", false, None),
            account("bob", true, None),
            account("a1", false, owner("ann")),
            account("b1", false, owner("bob")),
            account("off", true, owner("ann")),
            account("o1", false, owner("oidc:7")),
            account("t1", false, of_team("desk")),
            account("t2", false, of_team("shut")),
        ];
        let teams = [
            team("desk", false, &[("ann", true), ("oidc:7", false)]),
            team("shut", true, &[("eve", true)]),
        ];
        Groups::of(&users, &teams)
    }

    #[test]
    fn an_agent_is_decided_about_by_its_keeper_alone() {
        let rows = [
            ("ann", "a1", true),
            ("ann", "t1", true),
            ("ann", "b1", false),
            ("ann", "ann", false),
            ("oidc:7", "o1", true),
            // A member who does not lead.
            ("oidc:7", "t1", false),
            ("a1", "a1", false),
            ("eve", "t1", false),
            ("eve", "none", false),
        ];
        for (who, agent, keeps) in rows {
            assert_eq!(picture().keeps(who, agent), keeps, "{who} {agent}");
        }
    }

    #[test]
    fn an_agent_is_closed_with_what_keeps_it() {
        let rows = [
            ("a1", true),
            ("off", false),
            ("b1", false),
            ("o1", true),
            ("t1", true),
            ("t2", false),
            ("bob", false),
            ("local", true),
        ];
        for (name, open) in rows {
            assert_eq!(picture().is_open(name), open, "{name}");
        }
    }

    #[test]
    fn limits_of_keeper_and_team_hold_too() {
        let rows = [
            ("ann", None, Some("desk")),
            ("a1", Some("ann"), Some("desk")),
            ("o1", Some("oidc:7"), Some("desk")),
            ("t1", None, Some("desk")),
            ("b1", Some("bob"), None),
            ("eve", None, None),
            ("nobody", None, None),
        ];
        for (name, keeper, team) in rows {
            let name_of = |of: Of| of.map(|(name, _)| name);
            let (above, circle) = picture().above(name);
            let found = (name_of(above), name_of(circle));
            let wanted = (keeper.map(str::to_owned), team.map(str::to_owned));
            assert_eq!(found, wanted, "{name}");
        }
    }
}
