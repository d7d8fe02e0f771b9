//! Migrations that are embedded in the program.

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// The migrations of files, each a name and a text.
pub(crate) fn of(files: &'static [(&'static str, &'static str)]) -> Migrator {
    let each = files.iter().map(|(name, text)| migration(name, text));
    Migrator::with_migrations(each.collect())
}

fn migration(name: &str, text: &'static str) -> Migration {
    let (version, description) = name.split_once('_').unwrap_or((name, ""));
    Migration::new(
        version.parse().expect("the name begins with a number"),
        description.replace('_', " ").into(),
        MigrationType::Simple,
        text.into_sql_str(),
        false,
    )
}

/// What is known of a migration that was applied.
#[cfg(test)]
type Told = (i64, String, (MigrationType, bool), Vec<u8>);

/// The same of each.
#[cfg(test)]
pub(crate) fn told(migrator: &Migrator) -> Vec<Told> {
    let each = migrator.iter().map(|m| {
        let (version, description) = (m.version, m.description.to_string());
        let how = (m.migration_type, m.no_tx);
        (version, description, how, m.checksum.to_vec())
    });
    each.collect()
}
