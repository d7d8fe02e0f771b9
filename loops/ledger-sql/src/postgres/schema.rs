//! The schema, embedded; migrations only move forward.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use sqlx::PgConnection;
use sqlx::migrate::Migrator;

use crate::migrations;

/// Each number is that of SQLite's migration with the same content.
static FILES: &[(&str, &str)] = &[
    (
        "0025_ledger",
        include_str!("../../../../migrations/postgres/0025_ledger.sql"),
    ),
    (
        "0026_memory",
        include_str!("../../../../migrations/postgres/0026_memory.sql"),
    ),
    (
        "0027_retention",
        include_str!("../../../../migrations/postgres/0027_retention.sql"),
    ),
    (
        "0028_session_rewards",
        include_str!("../../../../migrations/postgres/0028_session_rewards.sql"),
    ),
    (
        "0029_outside",
        include_str!("../../../../migrations/postgres/0029_outside.sql"),
    ),
    (
        "0030_jobs",
        include_str!("../../../../migrations/postgres/0030_jobs.sql"),
    ),
    (
        "0031_task_contents",
        include_str!("../../../../migrations/postgres/0031_task_contents.sql"),
    ),
    (
        "0032_changes",
        include_str!("../../../../migrations/postgres/0032_changes.sql"),
    ),
    (
        "0033_progress",
        include_str!("../../../../migrations/postgres/0033_progress.sql"),
    ),
    (
        "0034_skills",
        include_str!("../../../../migrations/postgres/0034_skills.sql"),
    ),
    (
        "0036_branches",
        include_str!("../../../../migrations/postgres/0036_branches.sql"),
    ),
    (
        "0037_scaling",
        include_str!("../../../../migrations/postgres/0037_scaling.sql"),
    ),
];

pub(super) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| migrations::of(FILES));

/// Most missing parts of a schema that are named.
const SHOWN_MAX: usize = 5;

/// The parts of a whole schema that are not there; the first few.
pub(super) async fn missing(
    connection: &mut PgConnection,
    schema: &str,
) -> Result<Vec<String>, sqlx::Error> {
    let found: Vec<(String, String)> = sqlx::query_as(
        "select case relkind when 'r' then 'table' else 'index' end, relname::text from pg_class
         where relnamespace = to_regnamespace($1) and relkind in ('r', 'i')
         union all
         select 'trigger', tgname::text from pg_trigger
         join pg_class on pg_class.oid = tgrelid
         where relnamespace = to_regnamespace($1) and not tgisinternal and tgenabled <> 'D'",
    )
    .bind(schema)
    .fetch_all(connection)
    .await?;
    let found: BTreeSet<(&str, &str)> = found
        .iter()
        .map(|(kind, name)| (kind.as_str(), name.as_str()))
        .collect();
    let parts = parts().into_iter();
    let missing = parts.filter(|part| !found.contains(part));
    let missing = missing.map(|(kind, name)| format!("{kind} {name}"));
    Ok(missing.take(SHOWN_MAX).collect())
}

/// Tables, indexes and triggers, by kind and name, as the migrations make them and leave them.
fn parts() -> Vec<(&'static str, &'static str)> {
    let mut parts = Vec::new();
    for line in FILES.iter().flat_map(|(_, text)| text.lines()) {
        if let Some(made) = line.strip_prefix("create ") {
            parts.extend(part(made.strip_prefix("unique ").unwrap_or(made)));
        } else if let Some(gone) = line.strip_prefix("drop ").and_then(part) {
            parts.retain(|part| *part != gone);
        }
    }
    parts
}

/// Kind and name, from a statement without its first word.
fn part(statement: &'static str) -> Option<(&'static str, &'static str)> {
    let (kind, rest) = statement.split_once(' ')?;
    let name = rest.split([' ', '(', ';']).next()?;
    ["table", "index", "trigger"]
        .contains(&kind)
        .then_some((kind, name))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// What is applied is known by version and checksum, so both must stay what they were; and a file in the folder
    /// that is not in the list would be applied nowhere. Both databases have the same newest schema.
    #[tokio::test]
    async fn what_is_embedded_is_what_lies_in_the_folder() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
        let read = Migrator::new(folder.join("postgres")).await.unwrap();
        assert_eq!(migrations::told(&MIGRATIONS), migrations::told(&read));
        let sqlite = Migrator::new(folder.join("sqlite")).await.unwrap();
        let newest = |migrator: &Migrator| migrator.iter().map(|m| m.version).max();
        assert_eq!(newest(&MIGRATIONS), newest(&sqlite));
    }

    #[test]
    fn the_parts_are_those_that_the_files_make() {
        let parts = parts();
        for part in [
            ("table", "scopes"),
            ("index", "transitions_id_once"),
            ("trigger", "audit_keeps_all"),
        ] {
            assert!(parts.contains(&part), "{part:?}");
        }
        assert!(!parts.contains(&("index", "turn_memories_unread")));
        assert!(
            parts.contains(&("trigger", "forgets_noted_done")),
            "made again"
        );
    }
}
