//! Teams and who is in them.

use crate::db::{self, Connection, Fault};
use hone_ledger::{Changed, Member, Team, TeamChange};

/// A team's place in its table.
pub(crate) async fn number(
    connection: &mut Connection<'_>,
    name: &str,
) -> Result<Option<i64>, Fault> {
    let number = db::query_scalar("select number from teams where name = $1")
        .bind(name)
        .fetch_optional(connection)
        .await?;
    Ok(number)
}

pub(crate) async fn add(connection: &mut Connection<'_>, new: &Team) -> Result<Changed, Fault> {
    for member in &new.members {
        if team_of(connection, &member.name).await?.is_some() {
            return Ok(Changed::Taken);
        }
    }
    let added = db::query(
        "insert into teams (name, disabled, limits, created_ms) values ($1, $2, $3, $4)
         on conflict (name) do nothing",
    )
    .bind(&new.name)
    .bind(new.disabled)
    .bind(serde_json::to_string(&new.limits)?)
    .bind(new.created_ms)
    .execute(&mut *connection)
    .await?;
    if added.rows_affected() == 0 {
        return Ok(Changed::Taken);
    }
    for member in &new.members {
        put_member(connection, &new.name, member).await?;
    }
    Ok(Changed::Done)
}

pub(crate) async fn change(
    connection: &mut Connection<'_>,
    name: &str,
    change: TeamChange,
) -> Result<Changed, Fault> {
    let limits = change.limits.map(|limits| serde_json::to_string(&limits));
    let changed = db::query(
        "update teams set disabled = coalesce($1, disabled), limits = coalesce($2, limits)
         where name = $3",
    )
    .bind(change.disabled)
    .bind(limits.transpose()?)
    .bind(name)
    .execute(connection)
    .await?;
    Ok(Changed::of_rows(changed.rows_affected()))
}

/// The team that somebody is in.
async fn team_of(connection: &mut Connection<'_>, member: &str) -> Result<Option<i64>, Fault> {
    let team = db::query_scalar("select team_number from team_members where member = $1")
        .bind(member)
        .fetch_optional(connection)
        .await?;
    Ok(team)
}

pub(crate) async fn put_member(
    connection: &mut Connection<'_>,
    team: &str,
    member: &Member,
) -> Result<Changed, Fault> {
    let Some(team) = number(connection, team).await? else {
        return Ok(Changed::Missing);
    };
    let present = team_of(connection, &member.name).await?;
    if present.is_some_and(|present| present != team) {
        return Ok(Changed::Taken);
    }
    db::query(
        "insert into team_members (team_number, member, lead, joined_ms) values ($1, $2, $3, $4)
         on conflict (member) do update set lead = excluded.lead",
    )
    .bind(team)
    .bind(&member.name)
    .bind(member.is_lead)
    .bind(member.joined_ms)
    .execute(connection)
    .await?;
    Ok(Changed::Done)
}

pub(crate) async fn drop_member(
    connection: &mut Connection<'_>,
    team: &str,
    member: &str,
) -> Result<Changed, Fault> {
    let gone = db::query(
        "delete from team_members where member = $1
             and team_number = (select number from teams where name = $2)",
    )
    .bind(member)
    .bind(team)
    .execute(connection)
    .await?;
    Ok(Changed::of_rows(gone.rows_affected()))
}

/// Every team, by name, with its members by name.
pub(crate) async fn teams(connection: &mut Connection<'_>) -> Result<Vec<Team>, Fault> {
    let rows = db::query("select name, disabled, limits, created_ms from teams order by name")
        .fetch_all(&mut *connection)
        .await?;
    let mut teams = Vec::with_capacity(rows.len());
    for row in rows {
        let limits: &str = row.try_get("limits")?;
        teams.push(Team {
            name: row.try_get("name")?,
            disabled: row.try_get("disabled")?,
            limits: serde_json::from_str(limits)?,
            created_ms: row.try_get("created_ms")?,
            members: Vec::new(),
        });
    }
    let members = db::query(
        "select teams.name as team, member, lead, joined_ms from team_members
         join teams on teams.number = team_members.team_number order by team, member",
    )
    .fetch_all(connection)
    .await?;
    for row in members {
        let team: &str = row.try_get("team")?;
        let Some(team) = teams.iter_mut().find(|known| known.name == team) else {
            continue;
        };
        team.members.push(Member {
            name: row.try_get("member")?,
            is_lead: row.try_get("lead")?,
            joined_ms: row.try_get("joined_ms")?,
        });
    }
    Ok(teams)
}
