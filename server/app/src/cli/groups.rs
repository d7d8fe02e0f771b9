//! `hone agent` and `hone team`: who belongs to whom, from the command line.

use std::process::ExitCode;

use clap::{ArgGroup, Args, Subcommand};
use hone_domain::UserRole;
use hone_ledger::{
    Changed, Keeper, Member, People, PeopleChange, Team, TeamChange, User, UserChange,
};
use serde_json::{Value, json};

use super::accounts::{Desk, LimitArgs, at_desk, at_old_desk, no_account, not_a_name, print};
use super::place::Place;
use crate::table::{Side, table};
use hone_accounts::{is_name, oidc};
use hone_domain::LOCAL_OWNER;

/// Accounts of programs, which somebody keeps.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  hone agent add builder --owner ann\n  \
    hone agent add helpdesk --team support --requests-per-minute 60\n  \
    KEY=$(hone key add builder --name server)\n  hone agent list\n  hone agent disable builder")]
pub(crate) enum AgentCommand {
    /// Make an agent; `hone key add` makes its keys.
    Add(NewAgent),
    /// List the agents.
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Refuse the agent's keys from now on.
    Disable {
        /// The agent.
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Take the agent's keys again.
    Enable {
        /// The agent.
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Give the agent other limits, as a whole.
    Limits {
        /// The agent.
        name: String,
        #[command(flatten)]
        limits: LimitArgs,
        #[command(flatten)]
        place: Place,
    },
}

/// A new agent.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("keeper").required(true).args(["owner", "team"])))]
pub(crate) struct NewAgent {
    /// Its name: a-z, 0-9, `.`, `_`, `-`, `@`.
    name: String,
    /// The account that keeps it and decides about it; or `local`, or `oidc:SUBJECT`.
    #[arg(long)]
    owner: Option<String>,
    /// The team that keeps it; its leads decide about it.
    #[arg(long)]
    team: Option<String>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    place: Place,
}

/// Accounts that share limits and keep agents together.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  hone team add support --tokens-per-day 2000000\n  \
    hone team put support ann --lead\n  hone team put support bob\n  hone team list\n  \
    hone team drop support bob\n  hone team limits support --streams-max 8"
)]
pub(crate) enum TeamCommand {
    /// Make a team.
    Add {
        /// Its name: a-z, 0-9, `.`, `_`, `-`, `@`.
        name: String,
        #[command(flatten)]
        limits: LimitArgs,
        #[command(flatten)]
        place: Place,
    },
    /// List the teams with who is in them.
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Put somebody into a team; everybody is in one at most.
    Put {
        /// The team.
        team: String,
        /// An account, `local`, or `oidc:SUBJECT`.
        member: String,
        /// They decide who is in it, and about its agents.
        #[arg(long)]
        lead: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Take somebody out of a team.
    Drop {
        /// The team.
        team: String,
        /// Who leaves.
        member: String,
        #[command(flatten)]
        place: Place,
    },
    /// Give a team other limits, as a whole.
    Limits {
        /// The team.
        name: String,
        #[command(flatten)]
        limits: LimitArgs,
        #[command(flatten)]
        place: Place,
    },
    /// Refuse the keys of the team's agents; its members go on as if in no team.
    Disable {
        /// The team.
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Open the team again.
    Enable {
        /// The team.
        name: String,
        #[command(flatten)]
        place: Place,
    },
}

/// `hone agent`.
pub(crate) fn agent(command: AgentCommand) -> Result<ExitCode, String> {
    let (name, change, place) = match command {
        AgentCommand::Add(new) => return add_agent(&new),
        AgentCommand::List { place } => return list_agents(&place),
        AgentCommand::Disable { name, place } => (name, closed(true), place),
        AgentCommand::Enable { name, place } => (name, closed(false), place),
        AgentCommand::Limits {
            name,
            limits,
            place,
        } => {
            let change = UserChange {
                limits: Some(limits.rates()),
                ..UserChange::default()
            };
            (name, change, place)
        }
    };
    at_desk(&place, async |desk| {
        let known = desk.user(&name).await?;
        if known.is_none_or(|user| user.keeper.is_none()) {
            return Err(format!(
                "there is no agent {name}; `hone agent list` shows them"
            ));
        }
        let detail = json!({"disabled": change.disabled, "limits": change.limits});
        let change = PeopleChange::ChangeUser(name.clone(), change);
        desk.change(change, "agent.change", &name, detail).await
    })?;
    Ok(ExitCode::SUCCESS)
}

fn closed(disabled: bool) -> UserChange {
    UserChange {
        disabled: Some(disabled),
        ..UserChange::default()
    }
}

fn add_agent(new: &NewAgent) -> Result<ExitCode, String> {
    if !is_name(&new.name) {
        return Err(not_a_name(&new.name));
    }
    at_desk(&new.place, async |desk| {
        let (keeper, detail) = match (&new.owner, &new.team) {
            (Some(owner), _) => {
                check_person(desk, owner).await?;
                (Keeper::Owner(owner.clone()), json!({"owner": owner}))
            }
            (None, team) => {
                let team = team.clone().unwrap_or_default();
                let detail = json!({"team": team});
                (Keeper::Team(team), detail)
            }
        };
        let user = User {
            name: new.name.clone(),
            role: UserRole::User,
            password: None,
            disabled: false,
            limits: new.limits.rates(),
            keeper: Some(keeper),
            created_ms: desk.now_ms,
            signed_in_ms: None,
        };
        let change = PeopleChange::AddUser(user);
        match desk.change(change, "agent.add", &new.name, detail).await? {
            Changed::Done => Ok(ExitCode::SUCCESS),
            Changed::Taken => Err(format!("the name {} is taken", new.name)),
            Changed::Missing => Err(no_team(&new.team.clone().unwrap_or_default())),
        }
    })
}

/// Whether somebody of that name can call, as far as the database and the form of the name tell.
async fn check_person(desk: &Desk, name: &str) -> Result<(), String> {
    if name == LOCAL_OWNER || oidc::is_owner(name) {
        return Ok(());
    }
    match desk.user(name).await? {
        Some(user) if user.keeper.is_none() => Ok(()),
        Some(_) => Err(format!(
            "{name} is an agent; name the person or team that keeps it"
        )),
        None => Err(no_account(name)),
    }
}

fn no_team(name: &str) -> String {
    format!("there is no team {name}; `hone team list` shows them, `hone team add` makes one")
}

fn list_agents(place: &Place) -> Result<ExitCode, String> {
    let users = at_old_desk(place, async |desk| {
        desk.ledger.users().await.map_err(|e| e.to_string())
    })?;
    let row = |user: User| {
        let keeper = match user.keeper? {
            Keeper::Owner(owner) => owner,
            Keeper::Team(team) => format!("team {team}"),
        };
        let state = if user.disabled { "disabled" } else { "" };
        Some(vec![user.name, keeper, state.to_owned()])
    };
    let rows: Vec<Vec<String>> = users.into_iter().filter_map(row).collect();
    let names = [("agent", Side::Left), ("of", Side::Left), ("", Side::Left)];
    print(&table(&names, &rows));
    Ok(ExitCode::SUCCESS)
}

/// What a command does to a team.
struct Act {
    place: Place,
    team: String,
    change: PeopleChange,
    act: &'static str,
    detail: Value,
}

/// `hone team`.
pub(crate) fn team(command: TeamCommand) -> Result<ExitCode, String> {
    let act = match command {
        TeamCommand::List { place } => return list_teams(&place),
        TeamCommand::Put {
            team,
            member,
            lead,
            place,
        } => return put_member(&team, &member, lead, &place),
        TeamCommand::Add {
            name,
            limits,
            place,
        } => return add_team(&name, limits, &place),
        TeamCommand::Drop {
            team,
            member,
            place,
        } => Act {
            place,
            change: PeopleChange::DropMember(team.clone(), member.clone()),
            act: "team.leave",
            detail: json!({"member": member}),
            team,
        },
        TeamCommand::Limits {
            name,
            limits,
            place,
        } => {
            let limits = Some(limits.rates());
            let change = TeamChange {
                limits,
                ..TeamChange::default()
            };
            changed(name, change, place)
        }
        TeamCommand::Disable { name, place } => changed(name, shut(true), place),
        TeamCommand::Enable { name, place } => changed(name, shut(false), place),
    };
    at_desk(&act.place, async |desk| {
        let done = desk.change(act.change, act.act, &act.team, act.detail);
        match done.await? {
            Changed::Done => Ok(ExitCode::SUCCESS),
            _ if act.act == "team.leave" => Err(format!(
                "they are not in the team {}; `hone team list` shows who is",
                act.team
            )),
            _ => Err(no_team(&act.team)),
        }
    })
}

fn shut(disabled: bool) -> TeamChange {
    TeamChange {
        disabled: Some(disabled),
        ..TeamChange::default()
    }
}

fn changed(team: String, change: TeamChange, place: Place) -> Act {
    Act {
        place,
        detail: json!({"disabled": change.disabled, "limits": change.limits}),
        change: PeopleChange::ChangeTeam(team.clone(), change),
        act: "team.change",
        team,
    }
}

fn add_team(name: &str, limits: LimitArgs, place: &Place) -> Result<ExitCode, String> {
    if !is_name(name) {
        return Err(not_a_name(name));
    }
    at_desk(place, async |desk| {
        let team = Team {
            name: name.to_owned(),
            disabled: false,
            limits: limits.rates(),
            created_ms: desk.now_ms,
            members: Vec::new(),
        };
        let detail = json!({"members": 0, "limits": team.limits});
        let change = PeopleChange::AddTeam(team);
        match desk.change(change, "team.add", name, detail).await? {
            Changed::Done => Ok(ExitCode::SUCCESS),
            _ => Err(format!("the name {name} is taken")),
        }
    })
}

fn put_member(team: &str, member: &str, lead: bool, place: &Place) -> Result<ExitCode, String> {
    at_desk(place, async |desk| {
        check_person(desk, member).await?;
        let detail = json!({"member": member, "lead": lead});
        let put = Member {
            name: member.to_owned(),
            is_lead: lead,
            joined_ms: desk.now_ms,
        };
        let change = PeopleChange::PutMember(team.to_owned(), put);
        match desk.change(change, "team.member", team, detail).await? {
            Changed::Done => Ok(ExitCode::SUCCESS),
            Changed::Taken => Err(format!(
                "{member} is in another team, and everybody is in one at most; `hone team drop` takes them out"
            )),
            Changed::Missing => Err(no_team(team)),
        }
    })
}

fn list_teams(place: &Place) -> Result<ExitCode, String> {
    let teams = at_old_desk(place, async |desk| {
        desk.ledger.teams().await.map_err(|e| e.to_string())
    })?;
    let row = |team: Team| {
        let names = team.members.iter().map(|member| {
            let part = if member.is_lead { " (lead)" } else { "" };
            format!("{}{part}", member.name)
        });
        let members = names.collect::<Vec<_>>().join(", ");
        let state = if team.disabled { "disabled" } else { "" };
        vec![
            team.name,
            team.members.len().to_string(),
            state.to_owned(),
            members,
        ]
    };
    let rows: Vec<Vec<String>> = teams.into_iter().map(row).collect();
    let names = [
        ("team", Side::Left),
        ("members", Side::Right),
        ("", Side::Left),
        ("who", Side::Left),
    ];
    print(&table(&names, &rows));
    Ok(ExitCode::SUCCESS)
}
