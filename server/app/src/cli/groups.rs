//! `hone agent` and `hone team`: who belongs to whom, from the command line.

use std::process::ExitCode;

use clap::{ArgGroup, Args, Subcommand};
use hone_accounts::changes::check_name;
use hone_domain::RateLimits;
use hone_ledger::{Keeper, Team, TeamChange, User};

use super::accounts::{LimitArgs, change, print, read, sentence};
use super::place::Place;
use crate::table::{Side, table};

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
    let (name, disabled, limits, place) = match command {
        AgentCommand::Add(new) => return add_agent(new),
        AgentCommand::List { place } => return list_agents(&place),
        AgentCommand::Disable { name, place } => (name, Some(true), None, place),
        AgentCommand::Enable { name, place } => (name, Some(false), None, place),
        AgentCommand::Limits {
            name,
            limits,
            place,
        } => (name, None, Some(limits.rates()), place),
    };
    change(&place, async |changes| {
        changes.change_agent(&name, disabled, limits).await
    })?;
    Ok(ExitCode::SUCCESS)
}

fn add_agent(new: NewAgent) -> Result<ExitCode, String> {
    check_name(&new.name).map_err(sentence)?;
    change(&new.place, async |changes| {
        let limits = new.limits.rates();
        let added = changes.add_agent(new.name, new.owner, new.team, limits);
        added.await
    })?;
    Ok(ExitCode::SUCCESS)
}

fn list_agents(place: &Place) -> Result<ExitCode, String> {
    let users = read(place, async |people| people.users().await)?;
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

/// `hone team`.
pub(crate) fn team(command: TeamCommand) -> Result<ExitCode, String> {
    match command {
        TeamCommand::List { place } => list_teams(&place)?,
        TeamCommand::Put {
            team,
            member,
            lead,
            place,
        } => change(&place, async |changes| {
            changes.put_member(&team, &member, lead).await
        })?,
        TeamCommand::Add {
            name,
            limits,
            place,
        } => {
            check_name(&name).map_err(sentence)?;
            change(&place, async |changes| {
                changes.add_team(name, Vec::new(), limits.rates()).await
            })?;
        }
        TeamCommand::Drop {
            team,
            member,
            place,
        } => change(&place, async |changes| {
            changes.drop_member(&team, &member).await
        })?,
        TeamCommand::Limits {
            name,
            limits,
            place,
        } => change_team(&name, None, Some(limits.rates()), &place)?,
        TeamCommand::Disable { name, place } => change_team(&name, Some(true), None, &place)?,
        TeamCommand::Enable { name, place } => change_team(&name, Some(false), None, &place)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn change_team(
    name: &str,
    disabled: Option<bool>,
    limits: Option<RateLimits>,
    place: &Place,
) -> Result<(), String> {
    let wanted = TeamChange { disabled, limits };
    change(place, async |changes| {
        changes.change_team(name, wanted).await
    })
}

fn list_teams(place: &Place) -> Result<(), String> {
    let teams = read(place, async |people| people.teams().await)?;
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
    Ok(())
}
