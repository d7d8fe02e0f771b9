//! A schema that a ledger is being moved into: noted in the database, so that nobody takes half of one for a whole.

use hone_ledger::LedgerError;
use sqlx::{AssertSqlSafe, PgConnection};

use super::store::PostgresStore;

/// What a schema holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marking {
    /// Part of a ledger; the rest is still to come.
    Moving,
    /// A ledger.
    Whole,
}

/// The comment of a schema that holds part of a ledger.
const HALF: &str = "part of a ledger that is being moved here";

/// What a schema is marked as.
pub(super) async fn marking(
    connection: &mut PgConnection,
    schema: &str,
) -> Result<Marking, sqlx::Error> {
    let comment: Option<String> =
        sqlx::query_scalar("select obj_description(to_regnamespace($1), 'pg_namespace')")
            .bind(schema)
            .fetch_one(connection)
            .await?;
    Ok(match comment.as_deref() {
        Some(HALF) => Marking::Moving,
        _ => Marking::Whole,
    })
}

impl PostgresStore {
    /// What the schema is marked as.
    pub(crate) async fn marking(&self) -> Result<Marking, LedgerError> {
        let connection = self.writers.acquire().await;
        let mut connection = connection.map_err(|error| self.fail(error))?;
        let marking = marking(&mut connection, &self.schema).await;
        marking.map_err(|error| self.fail(error))
    }

    /// Marks the schema.
    pub(crate) async fn mark(&self, marking: Marking) -> Result<(), LedgerError> {
        let comment = match marking {
            Marking::Moving => format!("'{HALF}'"),
            Marking::Whole => "null".to_owned(),
        };
        // The program's own words; the schema's name has no character that means anything else.
        self.run(format!("comment on schema {} is {comment}", self.schema))
            .await
    }

    /// Makes the next number of each table follow the greatest one that was copied.
    pub(crate) async fn count_on(
        &self,
        tables: impl Iterator<Item = &'static str>,
    ) -> Result<(), LedgerError> {
        for table in tables {
            let sql = format!(
                "select setval(pg_get_serial_sequence('{table}', 'number'), max(number)) from {table}"
            );
            self.run(sql).await?;
        }
        Ok(())
    }

    async fn run(&self, sql: String) -> Result<(), LedgerError> {
        let ran = sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&self.writers)
            .await;
        ran.map(drop).map_err(|error| self.fail(error))
    }
}
