//! Rows of skills and their versions, as the ledger's types.

use hone_domain::{Scope, Skill, SkillOrigin, SkillVersion};
use hone_ledger::{SkillKey, SkillRow};
use sqlx::AssertSqlSafe;

use super::rows;
use super::texts::{named, text, unsigned};
use crate::db::{self, Connection, Fault, Query, Row, corrupt};

/// The columns of [`skill_row`], of skills with their current versions.
pub(super) const SKILL: &str = "select skills.number, skills.id, scopes.name as scope, skills.name as name,
        skills.created_ms as made_ms, changed_ms, paused, listed, uses,
        skill_versions.number as version_number, skill_versions.version as version, origin, description,
        findings, released, skill_versions.created_ms as written_ms, files, bytes, digest
    from skills join scopes on scopes.number = skills.scope_number
    join skill_versions on skill_versions.skill_number = skills.number
        and skill_versions.version = skills.version";

/// The columns of [`version_of`].
pub(super) const VERSION: &str =
    "select number as version_number, version, origin, description, findings, released,
        created_ms as written_ms, files, bytes, digest
    from skill_versions";

/// The skill of a row; reads the turns that its version was made from.
pub(super) async fn skill_row(
    connection: &mut Connection<'_>,
    row: &Row,
) -> Result<SkillRow, Fault> {
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

pub(super) async fn version_of(
    connection: &mut Connection<'_>,
    row: &Row,
) -> Result<SkillVersion, Fault> {
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
