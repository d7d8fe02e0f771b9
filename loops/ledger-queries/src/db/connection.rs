//! A connection to either database, borrowed for a transaction.

use sqlx::postgres::PgArguments;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments as _, PgConnection, SqlStr, SqliteConnection};

use super::dialect;
use super::row::Row;
use super::value::Value;

/// Begins a transaction; the lock is taken at once, so that it cannot fail half-way.
pub const BEGIN: &str = "begin immediate";
/// Ends one; then the disk has it. A transaction that changed something is counted. Its parameter is what
/// [`crate::db::Script::commit`] says, and its rows belong to the writer.
pub const COMMIT: &str = "update commits set number = number + 1 where total_changes() > $1 \
                                 returning number; select total_changes(); commit";

/// A connection in a transaction.
pub enum Connection<'c> {
    Sqlite(&'c mut SqliteConnection),
    Postgres(&'c mut PgConnection),
}

/// What a statement did that returns no rows.
pub struct Done {
    rows_affected: u64,
}

impl Done {
    /// How many rows it wrote or removed.
    pub fn rows_affected(&self) -> u64 {
        self.rows_affected
    }
}

/// The same call of either driver.
macro_rules! ask {
    ($connection:expr, $text:expr, $values:expr, $call:ident, |$found:ident| $sqlite:expr, $postgres:expr) => {
        match $connection {
            Self::Sqlite(connection) => {
                let query = sqlx::query_with($text, sqlite_arguments($values)?);
                let $found = query.$call(&mut **connection).await?;
                Ok($sqlite)
            }
            Self::Postgres(connection) => {
                let text = dialect::postgres($text);
                let query = sqlx::query_with(text, postgres_arguments($values)?);
                let $found = query.$call(&mut **connection).await?;
                Ok($postgres)
            }
        }
    };
}

impl Connection<'_> {
    /// Whether one call may have several statements with parameters.
    pub(super) fn takes_several(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// The words that begin a transaction among other statements.
    pub(super) fn opening(&self) -> Option<&'static str> {
        self.takes_several().then_some(BEGIN)
    }

    /// The words that end one among other statements.
    pub(super) fn closing(&self) -> Option<&'static str> {
        self.takes_several().then_some(COMMIT)
    }

    pub(super) async fn execute(
        &mut self,
        text: SqlStr,
        values: Vec<Value>,
    ) -> Result<Done, sqlx::Error> {
        let rows_affected: Result<u64, sqlx::Error> = ask!(
            self,
            text,
            values,
            execute,
            |done| done.rows_affected(),
            done.rows_affected()
        );
        rows_affected.map(|rows_affected| Done { rows_affected })
    }

    pub(super) async fn fetch_all(
        &mut self,
        text: SqlStr,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, sqlx::Error> {
        ask!(
            self,
            text,
            values,
            fetch_all,
            |rows| rows.into_iter().map(Row::Sqlite).collect(),
            rows.into_iter().map(Row::of_postgres).collect()
        )
    }

    pub(super) async fn fetch_optional(
        &mut self,
        text: SqlStr,
        values: Vec<Value>,
    ) -> Result<Option<Row>, sqlx::Error> {
        ask!(
            self,
            text,
            values,
            fetch_optional,
            |row| row.map(Row::Sqlite),
            row.map(Row::of_postgres)
        )
    }
}

/// Values as a driver takes them.
macro_rules! arguments {
    ($function:ident, $arguments:ty, $text:expr) => {
        fn $function(values: Vec<Value>) -> Result<$arguments, sqlx::Error> {
            let mut arguments = <$arguments>::default();
            arguments.reserve(values.len(), 0);
            for value in values {
                let added = match value {
                    Value::Integer(integer) => arguments.add(integer),
                    Value::Real(real) => arguments.add(real),
                    Value::Text(text) => arguments.add(text.map($text)),
                    Value::Blob(bytes) => arguments.add(bytes),
                };
                added.map_err(sqlx::Error::Encode)?;
            }
            Ok(arguments)
        }
    };
}
arguments!(sqlite_arguments, SqliteArguments, |text: String| text);
arguments!(postgres_arguments, PgArguments, dialect::escaped);
