//! The schema, embedded; migrations only move forward.

use std::sync::LazyLock;

use sqlx::migrate::Migrator;

use crate::migrations;

/// Names and texts of the files.
macro_rules! files {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../../../migrations/sqlite/", $name, ".sql"))),)*]
    };
}

static FILES: &[(&str, &str)] = &files!(
    "0001_ledger"
    "0002_people"
    "0003_mine"
    "0004_versions"
    "0005_reading"
    "0006_trials"
    "0007_traces"
    "0008_checks"
    "0009_key_store"
    "0010_usage"
    "0011_hint_choice"
    "0013_agents_teams"
    "0014_experts"
    "0015_watch_places"
    "0016_early_feedback"
    "0017_copies"
    "0018_orphans"
    "0019_damage"
    "0020_answers"
    "0021_scope_counts"
    "0022_wishes"
    "0023_commits"
    "0024_key_logprobs"
    "0025_key_sha256"
    "0026_memory"
    "0027_retention"
    "0028_session_rewards"
    "0029_outside"
    "0030_jobs"
    "0031_task_contents"
    "0032_changes"
    "0033_progress"
    "0034_skills"
    "0036_branches"
    "0037_scaling"
);

pub(super) static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| migrations::of(FILES));

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// What is applied to a file is known by version and checksum, so both must stay what they were; and a
    /// file in the folder that is not in the list would be applied nowhere.
    #[tokio::test]
    async fn what_is_embedded_is_what_lies_in_the_folder() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations/sqlite");
        let read = Migrator::new(folder).await.unwrap();
        assert_eq!(migrations::told(&MIGRATIONS), migrations::told(&read));
    }
}
