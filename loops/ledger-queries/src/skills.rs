//! [`Skills`]: folders with a SKILL.md, and what is read of them.

use async_trait::async_trait;
use hone_domain::{
    CORRECTIONS_KEPT, Correction, Millis, SKILLS_MAX, Scope, Skill, SkillFile, SkillId, SkillState,
    SkillVersion,
};
use hone_ledger::{
    ActiveSkill, LedgerError, NewSkill, PutSkill, SkillChange, SkillKey, SkillRow, Skills, Window,
    WishState,
};
use sqlx::AssertSqlSafe;

use super::skill_rows::{SKILL, VERSION, row_of, skill_row, version_of};
use super::texts::{limit, text};
use super::{Held as _, SqlLedger, Store, Tries, policies, rows, skill_writes};
use crate::db::{self, Connection, Fault, Row};

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
