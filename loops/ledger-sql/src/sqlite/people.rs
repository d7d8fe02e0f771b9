//! Users, keys, sign-ins, invitations.

use hone_domain::{Digest, Millis, UserRole};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::fault::{Fault, corrupt};
use super::rows::digest;
use super::texts::{text, unsigned};
use super::{audit, teams};
use hone_ledger::{
    ApiKey, AuditEntry, Changed, Invite, Keeper, KeyChange, PeopleChange, SignIn, User, UserChange,
    Uses,
};

const USER: &str = "select users.name, role, password, users.disabled, users.limits, keeper,
                    teams.name as keeper_team, users.created_ms, signed_in_ms
                    from users left join teams on teams.number = users.keeper_team";
const KEY: &str = "select id, owner, label, role, sha256, limits, despite_store_false, raw_logprobs, \
                   created_ms, expires_ms, revoked_ms, used_ms";

/// Does a change and records it, or does neither.
pub(super) async fn change(
    connection: &mut SqliteConnection,
    change: &PeopleChange,
    entry: &AuditEntry,
) -> Result<Changed, Fault> {
    let changed = match change {
        PeopleChange::AddUser(new) => add_user(connection, new).await?,
        PeopleChange::ChangeUser(name, change) => change_user(connection, name, change).await?,
        PeopleChange::AddKey(new) => add_key(connection, new).await?,
        PeopleChange::ChangeKey(id, wanted) => change_key(connection, id, *wanted).await?,
        PeopleChange::RevokeKey(id, now_ms) => revoke_key(connection, id, *now_ms).await?,
        PeopleChange::RotateKey(old, new, ends_ms) => {
            rotate_key(connection, old, new, *ends_ms).await?
        }
        PeopleChange::SignIn(new) => begin_sign_in(connection, new).await?,
        PeopleChange::SignOut(token) => {
            let ended = sqlx::query("delete from sign_ins where token = ?")
                .bind(&token.0[..])
                .execute(&mut *connection)
                .await?;
            Changed::of_rows(ended.rows_affected())
        }
        PeopleChange::Invite(new) => add_invite(connection, new).await?,
        PeopleChange::TakeInvite(token, new) => take_invite(connection, *token, new).await?,
        PeopleChange::AddTeam(new) => teams::add(connection, new).await?,
        PeopleChange::ChangeTeam(name, change) => teams::change(connection, name, *change).await?,
        PeopleChange::PutMember(team, member) => {
            teams::put_member(connection, team, member).await?
        }
        PeopleChange::DropMember(team, member) => {
            teams::drop_member(connection, team, member).await?
        }
    };
    if changed == Changed::Done {
        audit::record(connection, entry).await?;
    }
    Ok(changed)
}

fn role(name: &str) -> Result<UserRole, Fault> {
    UserRole::from_name(name).ok_or_else(|| corrupt(format!("the role {name:?}")))
}

async fn add_user(connection: &mut SqliteConnection, new: &User) -> Result<Changed, Fault> {
    let (keeper, team) = match &new.keeper {
        None => (None, None),
        Some(Keeper::Owner(owner)) => (Some(owner), None),
        Some(Keeper::Team(team)) => match teams::number(connection, team).await? {
            None => return Ok(Changed::Missing),
            number => (None, number),
        },
    };
    let added = sqlx::query(
        "insert into users (
             name, role, password, disabled, limits, keeper, keeper_team, created_ms, signed_in_ms
         ) values (?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (name) do nothing",
    )
    .bind(&new.name)
    .bind(new.role.as_str())
    .bind(&new.password)
    .bind(new.disabled)
    .bind(serde_json::to_string(&new.limits)?)
    .bind(keeper)
    .bind(team)
    .bind(new.created_ms)
    .bind(new.signed_in_ms)
    .execute(connection)
    .await?;
    Ok(match added.rows_affected() {
        0 => Changed::Taken,
        _ => Changed::Done,
    })
}

async fn change_user(
    connection: &mut SqliteConnection,
    name: &str,
    change: &UserChange,
) -> Result<Changed, Fault> {
    let limits = change.limits.map(|limits| serde_json::to_string(&limits));
    let changed = sqlx::query(
        "update users set role = coalesce(?1, role), password = coalesce(?2, password),
             disabled = coalesce(?3, disabled), limits = coalesce(?4, limits)
         where name = ?5 and (?2 is null or coalesce(keeper, keeper_team) is null)",
    )
    .bind(change.role.map(UserRole::as_str))
    .bind(&change.password)
    .bind(change.disabled)
    .bind(limits.transpose()?)
    .bind(name)
    .execute(&mut *connection)
    .await?;
    if change.password.is_some() || change.disabled == Some(true) {
        sqlx::query("delete from sign_ins where user_name = ?")
            .bind(name)
            .execute(connection)
            .await?;
    }
    Ok(Changed::of_rows(changed.rows_affected()))
}

async fn add_key(connection: &mut SqliteConnection, new: &ApiKey) -> Result<Changed, Fault> {
    let added = sqlx::query(
        "insert into api_keys (
             id, owner, label, role, sha256, limits, despite_store_false, raw_logprobs, created_ms,
             expires_ms, revoked_ms, used_ms
         ) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (id) do nothing",
    )
    .bind(&new.id)
    .bind(&new.owner)
    .bind(new.label.as_bytes())
    .bind(new.role.as_str())
    .bind(new.sha256.map(|sha256| sha256.0.to_vec()))
    .bind(serde_json::to_string(&new.limits)?)
    .bind(new.despite_store_false)
    .bind(new.raw_logprobs)
    .bind(new.created_ms)
    .bind(new.expires_ms)
    .bind(new.revoked_ms)
    .bind(new.used_ms)
    .execute(connection)
    .await?;
    Ok(match added.rows_affected() {
        0 => Changed::Taken,
        _ => Changed::Done,
    })
}

async fn change_key(
    connection: &mut SqliteConnection,
    id: &str,
    change: KeyChange,
) -> Result<Changed, Fault> {
    let changed = sqlx::query(
        "update api_keys set despite_store_false = coalesce(?, despite_store_false),
             raw_logprobs = iif(?, ?, raw_logprobs)
         where id = ? and revoked_ms is null",
    )
    .bind(change.despite_store_false)
    .bind(change.raw_logprobs.is_some())
    .bind(change.raw_logprobs.flatten())
    .bind(id)
    .execute(connection)
    .await?;
    Ok(Changed::of_rows(changed.rows_affected()))
}

async fn revoke_key(
    connection: &mut SqliteConnection,
    id: &str,
    now_ms: Millis,
) -> Result<Changed, Fault> {
    let revoked =
        sqlx::query("update api_keys set revoked_ms = ? where id = ? and revoked_ms is null")
            .bind(now_ms)
            .bind(id)
            .execute(connection)
            .await?;
    Ok(Changed::of_rows(revoked.rows_affected()))
}

async fn rotate_key(
    connection: &mut SqliteConnection,
    old: &str,
    new: &ApiKey,
    ends_ms: Millis,
) -> Result<Changed, Fault> {
    let ended = sqlx::query(
        "update api_keys set expires_ms = min(coalesce(expires_ms, ?), ?)
         where id = ? and revoked_ms is null",
    )
    .bind(ends_ms)
    .bind(ends_ms)
    .bind(old)
    .execute(&mut *connection)
    .await?;
    if ended.rows_affected() == 0 {
        return Ok(Changed::Missing);
    }
    match add_key(connection, new).await? {
        // The end of the old one must not stay without its successor.
        Changed::Taken => Err(corrupt(format!("two keys of id {}", new.id))),
        other => Ok(other),
    }
}

async fn begin_sign_in(connection: &mut SqliteConnection, new: &SignIn) -> Result<Changed, Fault> {
    let known = sqlx::query("update users set signed_in_ms = ? where name = ? and disabled = 0")
        .bind(new.created_ms)
        .bind(&new.user)
        .execute(&mut *connection)
        .await?;
    if known.rows_affected() == 0 {
        return Ok(Changed::Missing);
    }
    sqlx::query("insert into sign_ins (token, user_name, created_ms, used_ms) values (?, ?, ?, ?)")
        .bind(&new.token.0[..])
        .bind(&new.user)
        .bind(new.created_ms)
        .bind(new.used_ms)
        .execute(connection)
        .await?;
    Ok(Changed::Done)
}

async fn add_invite(connection: &mut SqliteConnection, new: &Invite) -> Result<Changed, Fault> {
    sqlx::query(
        "insert into invites (token, role, user_name, created_by, created_ms, expires_ms)
         values (?, ?, ?, ?, ?, ?)",
    )
    .bind(&new.token.0[..])
    .bind(new.role.as_str())
    .bind(&new.name)
    .bind(&new.by)
    .bind(new.created_ms)
    .bind(new.expires_ms)
    .execute(connection)
    .await?;
    Ok(Changed::Done)
}

async fn take_invite(
    connection: &mut SqliteConnection,
    token: Digest,
    new: &User,
) -> Result<Changed, Fault> {
    let open = invite(connection, token).await?;
    let open = open.filter(|i| i.expires_ms > new.created_ms && i.role == new.role);
    let Some(open) = open else {
        return Ok(Changed::Missing);
    };
    if user(connection, &new.name).await?.is_some() {
        return Ok(Changed::Taken);
    }
    if open.name.is_some_and(|name| name != new.name) {
        return Ok(Changed::Missing);
    }
    sqlx::query("update invites set taken_ms = ? where token = ?")
        .bind(new.created_ms)
        .bind(&token.0[..])
        .execute(&mut *connection)
        .await?;
    add_user(connection, new).await
}

fn user_of(row: &SqliteRow) -> Result<User, Fault> {
    let team: Option<String> = row.try_get("keeper_team")?;
    let owner: Option<String> = row.try_get("keeper")?;
    Ok(User {
        keeper: team.map(Keeper::Team).or(owner.map(Keeper::Owner)),
        name: row.try_get("name")?,
        role: role(row.try_get("role")?)?,
        password: row.try_get("password")?,
        disabled: row.try_get("disabled")?,
        limits: serde_json::from_str(row.try_get("limits")?)?,
        created_ms: row.try_get("created_ms")?,
        signed_in_ms: row.try_get("signed_in_ms")?,
    })
}

pub(super) async fn user(
    connection: &mut SqliteConnection,
    name: &str,
) -> Result<Option<User>, Fault> {
    let row = sqlx::query(sqlx::AssertSqlSafe(format!("{USER} where users.name = ?")))
        .bind(name)
        .fetch_optional(connection)
        .await?;
    row.as_ref().map(user_of).transpose()
}

pub(super) async fn users(connection: &mut SqliteConnection) -> Result<Vec<User>, Fault> {
    let rows = sqlx::query(sqlx::AssertSqlSafe(format!("{USER} order by users.name")))
        .fetch_all(connection)
        .await?;
    rows.iter().map(user_of).collect()
}

fn key_of(row: &SqliteRow) -> Result<ApiKey, Fault> {
    Ok(ApiKey {
        id: row.try_get("id")?,
        owner: row.try_get("owner")?,
        label: text(row.try_get("label")?)?,
        role: role(row.try_get("role")?)?,
        sha256: row
            .try_get::<Option<&[u8]>, _>("sha256")?
            .map(digest)
            .transpose()?,
        limits: serde_json::from_str(row.try_get("limits")?)?,
        despite_store_false: row.try_get("despite_store_false")?,
        raw_logprobs: row.try_get("raw_logprobs")?,
        created_ms: row.try_get("created_ms")?,
        expires_ms: row.try_get("expires_ms")?,
        revoked_ms: row.try_get("revoked_ms")?,
        used_ms: row.try_get("used_ms")?,
    })
}

pub(super) async fn key(
    connection: &mut SqliteConnection,
    id: &str,
) -> Result<Option<ApiKey>, Fault> {
    let row = sqlx::query(sqlx::AssertSqlSafe(format!(
        "{KEY} from api_keys where id = ?"
    )))
    .bind(id)
    .fetch_optional(connection)
    .await?;
    row.as_ref().map(key_of).transpose()
}

pub(super) async fn keys(
    connection: &mut SqliteConnection,
    owner: Option<&str>,
) -> Result<Vec<ApiKey>, Fault> {
    let rows = match owner {
        Some(owner) => {
            let sql = format!("{KEY} from api_keys where owner = ? order by number desc");
            sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(owner)
                .fetch_all(connection)
                .await?
        }
        None => {
            let sql = format!("{KEY} from api_keys order by number desc");
            sqlx::query(sqlx::AssertSqlSafe(sql))
                .fetch_all(connection)
                .await?
        }
    };
    rows.iter().map(key_of).collect()
}

pub(super) async fn sign_in(
    connection: &mut SqliteConnection,
    token: Digest,
) -> Result<Option<SignIn>, Fault> {
    let row: Option<(String, i64, i64)> =
        sqlx::query_as("select user_name, created_ms, used_ms from sign_ins where token = ?")
            .bind(&token.0[..])
            .fetch_optional(connection)
            .await?;
    Ok(row.map(|(user, created_ms, used_ms)| SignIn {
        token,
        user,
        created_ms,
        used_ms,
    }))
}

pub(super) async fn invite(
    connection: &mut SqliteConnection,
    token: Digest,
) -> Result<Option<Invite>, Fault> {
    // Nobody's invitation lets in the first one only.
    let row = sqlx::query(
        "select token, role, user_name, created_by, created_ms, expires_ms from invites
         where token = ? and taken_ms is null
             and (created_by <> '' or not exists (select 1 from users))",
    )
    .bind(&token.0[..])
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = row else {
        return Ok(None);
    };
    let invite = Invite {
        token: digest(row.try_get("token")?)?,
        role: role(row.try_get("role")?)?,
        name: row.try_get("user_name")?,
        by: row.try_get("created_by")?,
        created_ms: row.try_get("created_ms")?,
        expires_ms: row.try_get("expires_ms")?,
    };
    Ok(is_backed(connection, &invite).await?.then_some(invite))
}

/// Whether who made an invitation may still invite, which is for admins. An account may be closed or
/// demoted since; a key of the configuration, or somebody known elsewhere, has none.
async fn is_backed(connection: &mut SqliteConnection, invite: &Invite) -> Result<bool, Fault> {
    let host = user(connection, &invite.by).await?;
    Ok(host.is_none_or(|host| !host.disabled && host.role.covers(UserRole::Admin)))
}

pub(super) async fn note_uses(
    connection: &mut SqliteConnection,
    uses: &Uses,
    idle_ms: Millis,
) -> Result<(), Fault> {
    for (id, at_ms) in &uses.keys {
        sqlx::query("update api_keys set used_ms = max(coalesce(used_ms, 0), ?) where id = ?")
            .bind(at_ms)
            .bind(id)
            .execute(&mut *connection)
            .await?;
    }
    for (token, at_ms) in &uses.sign_ins {
        sqlx::query("update sign_ins set used_ms = max(used_ms, ?) where token = ?")
            .bind(at_ms)
            .bind(&token.0[..])
            .execute(&mut *connection)
            .await?;
    }
    sqlx::query("delete from sign_ins where used_ms < ?")
        .bind(idle_ms)
        .execute(connection)
        .await?;
    Ok(())
}

pub(super) async fn revision(connection: &mut SqliteConnection) -> Result<u64, Fault> {
    let revision: i64 = sqlx::query_scalar("select revision from people_revision")
        .fetch_one(connection)
        .await?;
    unsigned(revision)
}
