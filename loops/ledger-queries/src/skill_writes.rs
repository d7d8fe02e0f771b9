//! What is written of skills, and what goes with a turn or a person.

use hone_domain::{
    CORRECTIONS_KEPT, CORRECTIONS_MAX, Correction, Millis, SKILL_VERSIONS_MAX, SKILLS_BYTES_MAX,
    SKILLS_MAX, Scope, ShownSkill, Skill, SkillId,
};
use hone_ledger::{LedgerError, NewSkill, PutSkill, SkillChange, SkillKey, SkillRow, SkillsFull};

use super::texts::{limit, signed, text_bytes};
use super::{policies, skill_rows};
use crate::db::{self, Connection, Fault, corrupt};

/// Keeps a version of the skill of its name.
pub(super) async fn put(
    connection: &mut Connection<'_>,
    scope: &Scope,
    new: &NewSkill,
    now_ms: Millis,
) -> Result<PutSkill, Fault> {
    let number = policies::make_scope(connection, scope).await?;
    let key = SkillKey::Name(new.folder.header().name.clone());
    let before = skill_rows::row_of(connection, scope, &key).await?;
    if let Some(before) = &before
        && before.skill.current.digest == new.folder.digest()
    {
        return Ok(PutSkill::Same(before.skill.clone()));
    }
    if let Some(full) = is_full(connection, number, new, before.is_none()).await? {
        return Ok(PutSkill::Full(full));
    }
    let skill = match &before {
        Some(before) => before.number,
        None => insert(connection, number, new, now_ms).await?,
    };
    let version = insert_version(connection, skill, new, now_ms).await?;
    db::query("update skills set version = $1, changed_ms = $2 where number = $3")
        .bind(version)
        .bind(now_ms)
        .bind(skill)
        .execute(&mut *connection)
        .await?;
    drop_oldest(connection, skill).await?;
    let after = skill_rows::row_of(connection, scope, &key).await?;
    let skill = after
        .ok_or_else(|| corrupt("a skill that was just stored"))?
        .skill;
    Ok(match before {
        Some(_) => PutSkill::Changed(skill),
        None => PutSkill::New(skill),
    })
}

/// Why a scope has no place for a version.
async fn is_full(
    connection: &mut Connection<'_>,
    scope: i64,
    new: &NewSkill,
    is_new: bool,
) -> Result<Option<SkillsFull>, Fault> {
    let count: i64 = db::query_scalar("select count(*) from skills where scope_number = $1")
        .bind(scope)
        .fetch_one(&mut *connection)
        .await?;
    if is_new && count >= limit(SKILLS_MAX) {
        return Ok(Some(SkillsFull::Count));
    }
    let bytes: i64 = db::query_scalar(
        "select cast(coalesce(sum(bytes), 0) as bigint) from skill_versions
         join skills on skills.number = skill_versions.skill_number
         where skills.scope_number = $1",
    )
    .bind(scope)
    .fetch_one(connection)
    .await?;
    let takes = signed(new.folder.bytes())?;
    let is_over = bytes.saturating_add(takes) > signed(SKILLS_BYTES_MAX)?;
    Ok(is_over.then_some(SkillsFull::Bytes))
}

async fn insert(
    connection: &mut Connection<'_>,
    scope: i64,
    new: &NewSkill,
    now_ms: Millis,
) -> Result<i64, Fault> {
    let number = db::query_scalar(
        "insert into skills (id, scope_number, name, version, wish, created_ms, changed_ms)
         values ($1, $2, $3, 0, $4, $5, $5) returning number",
    )
    .bind(&new.id.0.as_bytes()[..])
    .bind(scope)
    .bind(&new.folder.header().name)
    .bind(text_bytes(new.wish.as_ref()))
    .bind(now_ms)
    .fetch_one(connection)
    .await?;
    Ok(number)
}

/// The number of the version that is added, from 1.
async fn insert_version(
    connection: &mut Connection<'_>,
    skill: i64,
    new: &NewSkill,
    now_ms: Millis,
) -> Result<i64, Fault> {
    let newest: i64 = db::query_scalar(
        "select coalesce(max(version), 0) from skill_versions where skill_number = $1",
    )
    .bind(skill)
    .fetch_one(&mut *connection)
    .await?;
    let version = newest + 1;
    let number: i64 = db::query_scalar(
        "insert into skill_versions (
             skill_number, version, origin, description, findings, created_ms, files, bytes, digest
         ) values ($1, $2, $3, $4, $5, $6, $7, $8, $9) returning number",
    )
    .bind(skill)
    .bind(version)
    .bind(new.origin.as_str())
    .bind(new.folder.header().description.as_bytes())
    .bind(serde_json::to_vec(&new.findings)?)
    .bind(now_ms)
    .bind(limit(new.folder.files().len()))
    .bind(signed(new.folder.bytes())?)
    .bind(&new.folder.digest().0[..])
    .fetch_one(&mut *connection)
    .await?;
    for file in new.folder.files() {
        db::query("insert into skill_files (version_number, path, content) values ($1, $2, $3)")
            .bind(number)
            .bind(file.path.as_bytes())
            .bind(&file.content)
            .execute(&mut *connection)
            .await?;
    }
    for turn in &new.turns {
        db::query("insert into skill_turns (version_number, turn_id) values ($1, $2)")
            .bind(number)
            .bind(&turn.0.as_bytes()[..])
            .execute(&mut *connection)
            .await?;
    }
    Ok(version)
}

/// Of too many versions the oldest that is not the current one goes.
async fn drop_oldest(connection: &mut Connection<'_>, skill: i64) -> Result<(), Fault> {
    let count: i64 =
        db::query_scalar("select count(*) from skill_versions where skill_number = $1")
            .bind(skill)
            .fetch_one(&mut *connection)
            .await?;
    if count <= limit(SKILL_VERSIONS_MAX) {
        return Ok(());
    }
    let oldest: Option<i64> = db::query_scalar(
        "select min(skill_versions.number) from skill_versions
         join skills on skills.number = skill_versions.skill_number
         where skill_number = $1 and skill_versions.version <> skills.version",
    )
    .bind(skill)
    .fetch_one(&mut *connection)
    .await?;
    match oldest {
        Some(oldest) => drop_version(connection, oldest).await,
        None => Ok(()),
    }
}

async fn drop_version(connection: &mut Connection<'_>, version: i64) -> Result<(), Fault> {
    for statement in [
        "delete from skill_files where version_number = $1",
        "delete from skill_turns where version_number = $1",
        "delete from skill_versions where number = $1",
    ] {
        db::query(statement)
            .bind(version)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Changes a skill of a scope.
pub(super) async fn change(
    connection: &mut Connection<'_>,
    scope: &Scope,
    key: &SkillKey,
    change: SkillChange,
    now_ms: Millis,
) -> Result<Option<Skill>, Fault> {
    let Some(SkillRow { number, skill }) = skill_rows::row_of(connection, scope, key).await? else {
        return Ok(None);
    };
    let version = change.version.unwrap_or(skill.current.version);
    let known: i64 = db::query_scalar(
        "select count(*) from skill_versions where skill_number = $1 and version = $2",
    )
    .bind(number)
    .bind(version)
    .fetch_one(&mut *connection)
    .await?;
    if known == 0 {
        let why = format!("skill {} has no version {version}", skill.name);
        return Err(Fault::Ledger(LedgerError::Conflict(why)));
    }
    if change.released {
        let released =
            "update skill_versions set released = 1 where skill_number = $1 and version = $2";
        db::query(released)
            .bind(number)
            .bind(version)
            .execute(&mut *connection)
            .await?;
    }
    db::query("update skills set version = $1, paused = $2, changed_ms = $3 where number = $4")
        .bind(version)
        .bind(change.paused.unwrap_or(skill.paused))
        .bind(now_ms)
        .bind(number)
        .execute(&mut *connection)
        .await?;
    let after = skill_rows::row_of(connection, scope, key).await?;
    Ok(after.map(|row| row.skill))
}

/// Counts that the body of a skill was given to a model.
pub(super) async fn used(
    connection: &mut Connection<'_>,
    scope: &Scope,
    id: SkillId,
) -> Result<(), Fault> {
    db::query(
        "update skills set uses = uses + 1
         where id = $1 and scope_number = (select number from scopes where name = $2)",
    )
    .bind(&id.0.as_bytes()[..])
    .bind(scope.as_str().as_bytes())
    .execute(connection)
    .await?;
    Ok(())
}

/// Counts what a turn was shown, each skill once.
pub(super) async fn count(
    connection: &mut Connection<'_>,
    shown: &[ShownSkill],
) -> Result<(), Fault> {
    let mut ids: Vec<SkillId> = shown.iter().map(|one| one.id).collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        let is_whole = shown.iter().any(|one| one.id == id && one.is_whole);
        db::query("update skills set listed = listed + 1, uses = uses + $2 where id = $1")
            .bind(&id.0.as_bytes()[..])
            .bind(i64::from(is_whole))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Removes one skill of a scope, or all of them.
pub(super) async fn forget(
    connection: &mut Connection<'_>,
    scope: &Scope,
    key: Option<&SkillKey>,
) -> Result<u64, Fault> {
    let Some(number) = policies::find_scope(connection, scope).await? else {
        return Ok(0);
    };
    match key {
        Some(key) => match skill_rows::row_of(connection, scope, key).await? {
            Some(row) => drop_skills(connection, &[row.number]).await,
            None => Ok(0),
        },
        None => {
            let all = of_scope(connection, number).await?;
            drop_skills(connection, &all).await
        }
    }
}

async fn of_scope(connection: &mut Connection<'_>, scope: i64) -> Result<Vec<i64>, Fault> {
    let numbers = db::query_scalar("select number from skills where scope_number = $1")
        .bind(scope)
        .fetch_all(connection)
        .await?;
    Ok(numbers)
}

/// Removes skills with all that belongs to them, and the corrections that they were made from, so that new ones are needed to
/// make such a skill again.
async fn drop_skills(connection: &mut Connection<'_>, skills: &[i64]) -> Result<u64, Fault> {
    for skill in skills {
        for statement in [
            "delete from skill_files where version_number in (select number from skill_versions where skill_number = $1)",
            "delete from skill_turns where version_number in (select number from skill_versions where skill_number = $1)",
            "delete from skill_versions where skill_number = $1",
            "delete from corrections where exists (
                 select 1 from skills where skills.number = $1
                   and skills.scope_number = corrections.scope_number and skills.wish = corrections.wish
             )",
            "delete from skills where number = $1",
        ] {
            db::query(statement)
                .bind(*skill)
                .execute(&mut *connection)
                .await?;
        }
    }
    Ok(skills.len() as u64)
}

/// Removes everything of a scope.
pub(super) async fn drop_all(connection: &mut Connection<'_>, scope: i64) -> Result<(), Fault> {
    let all = of_scope(connection, scope).await?;
    drop_skills(connection, &all).await?;
    db::query("delete from corrections where scope_number = $1")
        .bind(scope)
        .execute(connection)
        .await?;
    Ok(())
}

/// Removes what was made of the turns that a wish names: skills that hold words of one go as a whole.
pub(super) async fn drop_of_turns(
    connection: &mut Connection<'_>,
    forget: i64,
) -> Result<(), Fault> {
    let made: Vec<i64> = db::query_scalar(
        "select distinct skill_versions.skill_number from forget_turns
         join turns on turns.number = forget_turns.turn_number
         join skill_turns on skill_turns.turn_id = turns.id
         join skill_versions on skill_versions.number = skill_turns.version_number
         where forget_turns.forget_number = $1",
    )
    .bind(forget)
    .fetch_all(&mut *connection)
    .await?;
    let told = "delete from corrections where turn_id in (
             select turns.id from forget_turns
             join turns on turns.number = forget_turns.turn_number
             where forget_turns.forget_number = $1
         )";
    db::query(told)
        .bind(forget)
        .execute(&mut *connection)
        .await?;
    drop_skills(connection, &made).await?;
    Ok(())
}

/// Keeps what a person said should have been done; of too many the oldest go.
pub(super) async fn note(
    connection: &mut Connection<'_>,
    scope: i64,
    correction: &Correction,
) -> Result<(), Fault> {
    db::query(
        "insert into corrections (scope_number, wish, words, turn_id, session_id, created_ms)
         values ($1, $2, $3, $4, $5, $6)
         on conflict (turn_id, wish) do update set words = excluded.words",
    )
    .bind(scope)
    .bind(correction.wish.as_bytes())
    .bind(correction.words.as_bytes())
    .bind(&correction.turn.0.as_bytes()[..])
    .bind(&correction.session.0.as_bytes()[..])
    .bind(correction.created_ms)
    .execute(&mut *connection)
    .await?;
    db::query(
        "delete from corrections where scope_number = $1 and wish = $2 and number not in (
             select number from corrections where scope_number = $1 and wish = $2
             order by number desc limit $3
         )",
    )
    .bind(scope)
    .bind(correction.wish.as_bytes())
    .bind(limit(CORRECTIONS_KEPT))
    .execute(&mut *connection)
    .await?;
    db::query(
        "delete from corrections where scope_number = $1 and number not in (
             select number from corrections where scope_number = $1
             order by number desc limit $2
         )",
    )
    .bind(scope)
    .bind(limit(CORRECTIONS_MAX))
    .execute(connection)
    .await?;
    Ok(())
}

/// Keeps a skill that corrections make, unless one of them is gone or their wish has a skill by now.
pub(super) async fn draft(
    connection: &mut Connection<'_>,
    scope: &Scope,
    new: &NewSkill,
    now_ms: Millis,
) -> Result<bool, Fault> {
    let Some(wish) = &new.wish else {
        return Ok(false);
    };
    let number = policies::make_scope(connection, scope).await?;
    for turn in &new.turns {
        let known: i64 = db::query_scalar(
            "select count(*) from corrections
             where scope_number = $1 and wish = $2 and turn_id = $3",
        )
        .bind(number)
        .bind(wish.as_bytes())
        .bind(&turn.0.as_bytes()[..])
        .fetch_one(&mut *connection)
        .await?;
        if known == 0 {
            return Ok(false);
        }
    }
    let taken: i64 = db::query_scalar(
        "select count(*) from skills where scope_number = $1 and (wish = $2 or name = $3)",
    )
    .bind(number)
    .bind(wish.as_bytes())
    .bind(&new.folder.header().name)
    .fetch_one(&mut *connection)
    .await?;
    if taken > 0 {
        return Ok(false);
    }
    let put = put(connection, scope, new, now_ms).await?;
    Ok(matches!(put, PutSkill::New(_)))
}
