//! [`Skills`]: folders with a SKILL.md, and what is read of them.

use async_trait::async_trait;
use hone_domain::{
    CORRECTIONS_KEPT, Correction, Millis, SKILLS_MAX, Scope, Skill, SkillFile, SkillId,
    SkillOrigin, SkillState, SkillVersion,
};
use hone_ledger::{
    ActiveSkill, LedgerError, NewSkill, PutSkill, SkillChange, SkillKey, SkillRow, Skills, Window,
    WishState,
};
use sqlx::AssertSqlSafe;

use super::texts::{limit, named, text, unsigned};
use super::{Held as _, SqlLedger, Store, Tries, policies, rows, skill_writes};
use crate::db::{self, Connection, Fault, Query, Row, corrupt};

/// The columns of [`skill_row`], of skills with their current versions.
const SKILL: &str = "select skills.number, skills.id, scopes.name as scope, skills.name as name,
        skills.created_ms as made_ms, changed_ms, paused, listed, uses,
        skill_versions.number as version_number, skill_versions.version as version, origin, description,
        findings, released, skill_versions.created_ms as written_ms, files, bytes, digest
    from skills join scopes on scopes.number = skills.scope_number
    join skill_versions on skill_versions.skill_number = skills.number
        and skill_versions.version = skills.version";

/// The columns of [`version_of`].
const VERSION: &str =
    "select number as version_number, version, origin, description, findings, released,
        created_ms as written_ms, files, bytes, digest
    from skill_versions";

#[async_trait]
impl<S: Store> Skills for SqlLedger<S> {
    async fn put_skill(
        &self,
        scope: &Scope,
        new: &NewSkill,
        now_ms: Millis,
    ) -> Result<PutSkill, LedgerError> {
        transact!(self, connection => skill_writes::put(connection, scope, new, now_ms))
    }

    async fn skills(&self, scope: &Scope, page: Window) -> Result<Vec<SkillRow>, LedgerError> {
        look!(self, connection => list(connection, scope, page))
    }

    async fn skill(&self, scope: &Scope, key: &SkillKey) -> Result<Option<Skill>, LedgerError> {
        look!(self, connection => one(connection, scope, key))
    }

    async fn skill_versions(
        &self,
        scope: &Scope,
        key: &SkillKey,
    ) -> Result<Vec<SkillVersion>, LedgerError> {
        look!(self, connection => versions(connection, scope, key))
    }

    async fn skill_files(
        &self,
        scope: &Scope,
        key: &SkillKey,
        version: Option<u32>,
    ) -> Result<Option<(SkillVersion, Vec<SkillFile>)>, LedgerError> {
        look!(self, connection => files(connection, scope, key, version))
    }

    async fn change_skill(
        &self,
        scope: &Scope,
        key: &SkillKey,
        change: SkillChange,
        now_ms: Millis,
    ) -> Result<Option<Skill>, LedgerError> {
        transact!(self, connection => skill_writes::change(connection, scope, key, change, now_ms))
    }

    async fn skill_used(&self, scope: &Scope, id: SkillId) -> Result<(), LedgerError> {
        transact!(self, connection => skill_writes::used(connection, scope, id))
    }

    async fn forget_skills(
        &self,
        scope: &Scope,
        key: Option<&SkillKey>,
    ) -> Result<u64, LedgerError> {
        let gone = transact!(self, connection => skill_writes::forget(connection, scope, key))?;
        if gone > 0 {
            // Where a reader keeps the log, it is emptied when that reader has gone.
            let _is_empty = self.store.empty_log().await?;
        }
        Ok(gone)
    }

    async fn active_skills(&self, scope: Option<&Scope>) -> Result<Vec<ActiveSkill>, LedgerError> {
        look!(self, connection => active(connection, scope))
    }

    async fn wish_state(&self, scope: &Scope, wish: &str) -> Result<WishState, LedgerError> {
        look!(self, connection => wish_state(connection, scope, wish))
    }
}

/// The skill of a row; reads the turns that its version was made from.
async fn skill_row(connection: &mut Connection<'_>, row: &Row) -> Result<SkillRow, Fault> {
    let skill = Skill {
        id: rows::skill_id(row.try_get("id")?)?,
        scope: rows::scope(row.try_get("scope")?)?,
        name: row.try_get("name")?,
        created_ms: row.try_get("made_ms")?,
        changed_ms: row.try_get("changed_ms")?,
        paused: row.try_get("paused")?,
        listed: unsigned(row.try_get("listed")?)?,
        uses: unsigned(row.try_get("uses")?)?,
        current: version_of(connection, row).await?,
    };
    Ok(SkillRow {
        number: row.try_get("number")?,
        skill,
    })
}

fn small(number: i64) -> Result<u32, Fault> {
    u32::try_from(number).map_err(|_| corrupt(format!("the number {number} of a skill")))
}

async fn version_of(connection: &mut Connection<'_>, row: &Row) -> Result<SkillVersion, Fault> {
    let number: i64 = row.try_get("version_number")?;
    let origin: SkillOrigin = named(row.try_get("origin")?)?;
    let turns = match origin {
        SkillOrigin::Corrections => {
            let turns = db::query(
                "select turn_id from skill_turns where version_number = $1 order by number",
            );
            turns.bind(number).fetch_all(connection).await?
        }
        SkillOrigin::Imported | SkillOrigin::Written => Vec::new(),
    };
    let turns = turns
        .iter()
        .map(|row| rows::turn_id(row.try_get("turn_id")?));
    Ok(SkillVersion {
        version: small(row.try_get("version")?)?,
        description: text(row.try_get("description")?)?,
        origin,
        created_ms: row.try_get("written_ms")?,
        findings: serde_json::from_slice(row.try_get("findings")?)?,
        released: row.try_get("released")?,
        turns: turns.collect::<Result<_, _>>()?,
        files: small(row.try_get("files")?)?,
        bytes: unsigned(row.try_get("bytes")?)?,
        digest: rows::digest(row.try_get("digest")?)?,
    })
}

/// [`SKILL`] of one scope's skill.
fn of_key(scope: &Scope, key: &SkillKey) -> Query {
    let column = match key {
        SkillKey::Id(_) => "skills.id",
        SkillKey::Name(_) => "skills.name",
    };
    let sql = format!("{SKILL} where scopes.name = $1 and {column} = $2");
    let query = db::query(AssertSqlSafe(sql)).bind(scope.as_str().as_bytes());
    match key {
        SkillKey::Id(id) => query.bind(&id.0.as_bytes()[..]),
        SkillKey::Name(name) => query.bind(name),
    }
}

/// A skill of a scope with its number.
pub(super) async fn row_of(
    connection: &mut Connection<'_>,
    scope: &Scope,
    key: &SkillKey,
) -> Result<Option<SkillRow>, Fault> {
    let found = of_key(scope, key).fetch_optional(&mut *connection).await?;
    match found {
        Some(row) => Ok(Some(skill_row(connection, &row).await?)),
        None => Ok(None),
    }
}

async fn one(
    connection: &mut Connection<'_>,
    scope: &Scope,
    key: &SkillKey,
) -> Result<Option<Skill>, Fault> {
    Ok(row_of(connection, scope, key).await?.map(|row| row.skill))
}

async fn list(
    connection: &mut Connection<'_>,
    scope: &Scope,
    page: Window,
) -> Result<Vec<SkillRow>, Fault> {
    let sql = format!(
        "{SKILL} where scopes.name = $1 and skills.number < $2
         order by skills.number desc limit $3"
    );
    let found = db::query(AssertSqlSafe(sql))
        .bind(scope.as_str().as_bytes())
        .bind(page.before.unwrap_or(i64::MAX))
        .bind(limit(page.limit))
        .fetch_all(&mut *connection)
        .await?;
    let mut skills = Vec::with_capacity(found.len());
    for row in &found {
        skills.push(skill_row(connection, row).await?);
    }
    Ok(skills)
}

async fn versions(
    connection: &mut Connection<'_>,
    scope: &Scope,
    key: &SkillKey,
) -> Result<Vec<SkillVersion>, Fault> {
    let Some(SkillRow { number, .. }) = row_of(connection, scope, key).await? else {
        return Ok(Vec::new());
    };
    let sql = format!("{VERSION} where skill_number = $1 order by version desc");
    let found = db::query(AssertSqlSafe(sql)).bind(number);
    let found = found.fetch_all(&mut *connection).await?;
    let mut versions = Vec::with_capacity(found.len());
    for row in &found {
        versions.push(version_of(connection, row).await?);
    }
    Ok(versions)
}

async fn files(
    connection: &mut Connection<'_>,
    scope: &Scope,
    key: &SkillKey,
    version: Option<u32>,
) -> Result<Option<(SkillVersion, Vec<SkillFile>)>, Fault> {
    let Some(SkillRow { number, skill }) = row_of(connection, scope, key).await? else {
        return Ok(None);
    };
    let sql = format!("{VERSION} where skill_number = $1 and version = $2");
    let found = db::query(AssertSqlSafe(sql))
        .bind(number)
        .bind(version.unwrap_or(skill.current.version))
        .fetch_optional(&mut *connection)
        .await?;
    let Some(row) = found else { return Ok(None) };
    let number: i64 = row.try_get("version_number")?;
    let version = version_of(connection, &row).await?;
    let found =
        db::query("select path, content from skill_files where version_number = $1 order by path");
    let found = found.bind(number).fetch_all(connection).await?;
    let file = |row: &Row| {
        Ok::<_, Fault>(SkillFile {
            path: text(row.try_get("path")?)?,
            content: row.try_get("content")?,
        })
    };
    let files = found.iter().map(file).collect::<Result<_, _>>()?;
    Ok(Some((version, files)))
}

async fn active(
    connection: &mut Connection<'_>,
    scope: Option<&Scope>,
) -> Result<Vec<ActiveSkill>, Fault> {
    let of = match scope {
        Some(_) => "and scopes.name = $1",
        None => "",
    };
    let sql = format!("{SKILL} where paused = 0 {of} order by skills.number desc");
    let mut query = db::query(AssertSqlSafe(sql));
    if let Some(scope) = scope {
        query = query.bind(scope.as_str().as_bytes());
    }
    let found = query.fetch_all(&mut *connection).await?;
    let mut skills = Vec::with_capacity(found.len().min(SKILLS_MAX));
    for row in &found {
        let SkillRow { skill, .. } = skill_row(connection, row).await?;
        if skill.state() != SkillState::Active {
            continue;
        }
        let number: i64 = row.try_get("version_number")?;
        let main: Vec<u8> = db::query_scalar(
            "select content from skill_files where version_number = $1 and path = $2",
        )
        .bind(number)
        .bind(&b"SKILL.md"[..])
        .fetch_one(&mut *connection)
        .await?;
        let main = text(main)?;
        skills.push(ActiveSkill { skill, main });
    }
    Ok(skills)
}

async fn wish_state(
    connection: &mut Connection<'_>,
    scope: &Scope,
    wish: &str,
) -> Result<WishState, Fault> {
    let Some(number) = policies::find_scope(connection, scope).await? else {
        return Ok(WishState::default());
    };
    let found = db::query(
        "select words, turn_id, session_id, created_ms from corrections
         where scope_number = $1 and wish = $2 order by number desc limit $3",
    )
    .bind(number)
    .bind(wish.as_bytes())
    .bind(limit(CORRECTIONS_KEPT))
    .fetch_all(&mut *connection)
    .await?;
    let correction = |row: &Row| {
        Ok::<_, Fault>(Correction {
            wish: wish.to_owned(),
            words: text(row.try_get("words")?)?,
            turn: rows::turn_id(row.try_get("turn_id")?)?,
            session: rows::session_id(row.try_get("session_id")?)?,
            created_ms: row.try_get("created_ms")?,
        })
    };
    let corrections = found
        .iter()
        .rev()
        .map(correction)
        .collect::<Result<_, _>>()?;
    let skills = db::query("select name, wish from skills where scope_number = $1");
    let skills = skills.bind(number).fetch_all(connection).await?;
    let mut state = WishState {
        corrections,
        ..WishState::default()
    };
    for row in &skills {
        let of: Option<Vec<u8>> = row.try_get("wish")?;
        state.has_skill |= of.is_some_and(|of| of == wish.as_bytes());
        state.names.push(row.try_get("name")?);
    }
    Ok(state)
}
