//! Users, keys, sign-ins, invitations.

use hone_domain::{Digest, MemoryMode, Millis, UserRole};
use sqlx::AssertSqlSafe;

use super::rows::digest;
use super::texts::{named, text, unsigned};
use super::{audit, teams};
use crate::db::{self, Connection, Fault, Row, corrupt};
use hone_ledger::{
    ApiKey, AuditEntry, Changed, Invite, Keeper, KeyChange, PeopleChange, SignIn, User, UserChange,
    Uses,
};

const USER: &str = "select users.name, role, password, users.disabled, users.limits, keeper,
                    teams.name as keeper_team, users.created_ms, signed_in_ms
                    from users left join teams on teams.number = users.keeper_team";
const KEY: &str = "select id, owner, label, role, sha256, limits, despite_store_false, raw_logprobs, memory, \
                   created_ms, expires_ms, revoked_ms, used_ms";

/// Does a change and records it, or does neither.
pub(crate) async fn change(
    connection: &mut Connection<'_>,
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
            let ended = db::query("delete from sign_ins where token = $1")
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

async fn add_user(connection: &mut Connection<'_>, new: &User) -> Result<Changed, Fault> {
    let (keeper, team) = match &new.keeper {
        None => (None, None),
        Some(Keeper::Owner(owner)) => (Some(owner), None),
        Some(Keeper::Team(team)) => match teams::number(connection, team).await? {
            None => return Ok(Changed::Missing),
            number => (None, number),
        },
    };
    let added = db::query(
        "insert into users (
             name, role, password, disabled, limits, keeper, keeper_team, created_ms, signed_in_ms
         ) values ($1, $2, $3, $4, $5, $6, $7, $8, $9) on conflict (name) do nothing",
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
    connection: &mut Connection<'_>,
    name: &str,
    change: &UserChange,
) -> Result<Changed, Fault> {
    let limits = change.limits.map(|limits| serde_json::to_string(&limits));
    let changed = db::query(
        "update users set role = coalesce($1, role), password = coalesce($2, password),
             disabled = coalesce($3, disabled), limits = coalesce($4, limits)
         where name = $5 and ($2 is null or (keeper is null and keeper_team is null))",
    )
    .bind(change.role.map(UserRole::as_str))
    .bind(&change.password)
    .bind(change.disabled)
    .bind(limits.transpose()?)
    .bind(name)
    .execute(&mut *connection)
    .await?;
    if change.password.is_some() || change.disabled == Some(true) {
        db::query("delete from sign_ins where user_name = $1")
            .bind(name)
            .execute(connection)
            .await?;
    }
    Ok(Changed::of_rows(changed.rows_affected()))
}

async fn add_key(connection: &mut Connection<'_>, new: &ApiKey) -> Result<Changed, Fault> {
    let added = db::query(
        "insert into api_keys (
             id, owner, label, role, sha256, limits, despite_store_false, raw_logprobs, memory,
             created_ms, expires_ms, revoked_ms, used_ms
         ) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) on conflict (id) do nothing",
    )
    .bind(&new.id)
    .bind(&new.owner)
    .bind(new.label.as_bytes())
    .bind(new.role.as_str())
    .bind(new.sha256.map(|sha256| sha256.0.to_vec()))
    .bind(serde_json::to_string(&new.limits)?)
    .bind(new.despite_store_false)
    .bind(new.raw_logprobs)
    .bind(new.memory.map(MemoryMode::as_str))
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
    connection: &mut Connection<'_>,
    id: &str,
    change: KeyChange,
) -> Result<Changed, Fault> {
    let changed = db::query(
        "update api_keys set despite_store_false = coalesce($1, despite_store_false),
             raw_logprobs = case when $2 = 1 then $3 else raw_logprobs end,
             memory = case when $4 = 1 then $5 else memory end
         where id = $6 and revoked_ms is null",
    )
    .bind(change.despite_store_false)
    .bind(change.raw_logprobs.is_some())
    .bind(change.raw_logprobs.flatten())
    .bind(change.memory.is_some())
    .bind(change.memory.flatten().map(MemoryMode::as_str))
    .bind(id)
    .execute(connection)
    .await?;
    Ok(Changed::of_rows(changed.rows_affected()))
}

async fn revoke_key(
    connection: &mut Connection<'_>,
    id: &str,
    now_ms: Millis,
) -> Result<Changed, Fault> {
    let revoked =
        db::query("update api_keys set revoked_ms = $1 where id = $2 and revoked_ms is null")
            .bind(now_ms)
            .bind(id)
            .execute(connection)
            .await?;
    Ok(Changed::of_rows(revoked.rows_affected()))
}

async fn rotate_key(
    connection: &mut Connection<'_>,
    old: &str,
    new: &ApiKey,
    ends_ms: Millis,
) -> Result<Changed, Fault> {
    let ended = db::query(
        "update api_keys set expires_ms = min(coalesce(expires_ms, $1), $2)
         where id = $3 and revoked_ms is null",
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

async fn begin_sign_in(connection: &mut Connection<'_>, new: &SignIn) -> Result<Changed, Fault> {
    let known = db::query("update users set signed_in_ms = $1 where name = $2 and disabled = 0")
        .bind(new.created_ms)
        .bind(&new.user)
        .execute(&mut *connection)
        .await?;
    if known.rows_affected() == 0 {
        return Ok(Changed::Missing);
    }
    db::query(
        "insert into sign_ins (token, user_name, created_ms, used_ms) values ($1, $2, $3, $4)",
    )
    .bind(&new.token.0[..])
    .bind(&new.user)
    .bind(new.created_ms)
    .bind(new.used_ms)
    .execute(connection)
    .await?;
    Ok(Changed::Done)
}

async fn add_invite(connection: &mut Connection<'_>, new: &Invite) -> Result<Changed, Fault> {
    db::query(
        "insert into invites (token, role, user_name, created_by, created_ms, expires_ms)
         values ($1, $2, $3, $4, $5, $6)",
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
    connection: &mut Connection<'_>,
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
    db::query("update invites set taken_ms = $1 where token = $2")
        .bind(new.created_ms)
        .bind(&token.0[..])
        .execute(&mut *connection)
        .await?;
    add_user(connection, new).await
}

fn user_of(row: &Row) -> Result<User, Fault> {
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

pub(crate) async fn user(
    connection: &mut Connection<'_>,
    name: &str,
) -> Result<Option<User>, Fault> {
    let row = db::query(AssertSqlSafe(format!("{USER} where users.name = $1")))
        .bind(name)
        .fetch_optional(connection)
        .await?;
    row.as_ref().map(user_of).transpose()
}

pub(crate) async fn users(connection: &mut Connection<'_>) -> Result<Vec<User>, Fault> {
    let rows = db::query(AssertSqlSafe(format!("{USER} order by users.name")))
        .fetch_all(connection)
        .await?;
    rows.iter().map(user_of).collect()
}

fn key_of(row: &Row) -> Result<ApiKey, Fault> {
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
        memory: row
            .try_get::<Option<String>, _>("memory")?
            .map(named)
            .transpose()?,
        created_ms: row.try_get("created_ms")?,
        expires_ms: row.try_get("expires_ms")?,
        revoked_ms: row.try_get("revoked_ms")?,
        used_ms: row.try_get("used_ms")?,
    })
}

pub(crate) async fn key(
    connection: &mut Connection<'_>,
    id: &str,
) -> Result<Option<ApiKey>, Fault> {
    let row = db::query(AssertSqlSafe(format!("{KEY} from api_keys where id = $1")))
        .bind(id)
        .fetch_optional(connection)
        .await?;
    row.as_ref().map(key_of).transpose()
}

pub(crate) async fn keys(
    connection: &mut Connection<'_>,
    owner: Option<&str>,
) -> Result<Vec<ApiKey>, Fault> {
    let rows = match owner {
        Some(owner) => {
            let sql = format!("{KEY} from api_keys where owner = $1 order by number desc");
            db::query(AssertSqlSafe(sql))
                .bind(owner)
                .fetch_all(connection)
                .await?
        }
        None => {
            let sql = format!("{KEY} from api_keys order by number desc");
            db::query(AssertSqlSafe(sql)).fetch_all(connection).await?
        }
    };
    rows.iter().map(key_of).collect()
}

pub(crate) async fn sign_in(
    connection: &mut Connection<'_>,
    token: Digest,
) -> Result<Option<SignIn>, Fault> {
    let row: Option<(String, i64, i64)> =
        db::query_as("select user_name, created_ms, used_ms from sign_ins where token = $1")
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

pub(crate) async fn invite(
    connection: &mut Connection<'_>,
    token: Digest,
) -> Result<Option<Invite>, Fault> {
    // Nobody's invitation lets in the first one only.
    let row = db::query(
        "select token, role, user_name, created_by, created_ms, expires_ms from invites
         where token = $1 and taken_ms is null
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
async fn is_backed(connection: &mut Connection<'_>, invite: &Invite) -> Result<bool, Fault> {
    let host = user(connection, &invite.by).await?;
    Ok(host.is_none_or(|host| !host.disabled && host.role.covers(UserRole::Admin)))
}

pub(crate) async fn note_uses(
    connection: &mut Connection<'_>,
    uses: &Uses,
    idle_ms: Millis,
) -> Result<(), Fault> {
    for (id, at_ms) in &uses.keys {
        db::query("update api_keys set used_ms = max(coalesce(used_ms, 0), $1) where id = $2")
            .bind(at_ms)
            .bind(id)
            .execute(&mut *connection)
            .await?;
    }
    for (token, at_ms) in &uses.sign_ins {
        db::query("update sign_ins set used_ms = max(used_ms, $1) where token = $2")
            .bind(at_ms)
            .bind(&token.0[..])
            .execute(&mut *connection)
            .await?;
    }
    db::query("delete from sign_ins where used_ms < $1")
        .bind(idle_ms)
        .execute(connection)
        .await?;
    Ok(())
}

pub(crate) async fn revision(connection: &mut Connection<'_>) -> Result<u64, Fault> {
    let revision: i64 = db::query_scalar("select revision from people_revision")
        .fetch_one(connection)
        .await?;
    unsigned(revision)
}
