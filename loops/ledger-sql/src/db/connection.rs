//! A connection to either database, borrowed for a transaction.

use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments as _, SqlStr, SqliteConnection};

use super::Row;
use super::value::Value;

/// A connection in a transaction.
pub enum Connection<'c> {
    Sqlite(&'c mut SqliteConnection),
}

/// What a statement did that returns no rows.
pub(crate) struct Done {
    rows_affected: u64,
}

impl Done {
    /// How many rows it wrote or removed.
    pub(crate) fn rows_affected(&self) -> u64 {
        self.rows_affected
    }
}

impl Connection<'_> {
    pub(super) async fn execute(
        &mut self,
        text: SqlStr,
        values: Vec<Value>,
    ) -> Result<Done, sqlx::Error> {
        let rows_affected = match self {
            Self::Sqlite(connection) => {
                let query = sqlx::query_with(text, sqlite_arguments(values)?);
                query.execute(&mut **connection).await?.rows_affected()
            }
        };
        Ok(Done { rows_affected })
    }

    pub(super) async fn fetch_all(
        &mut self,
        text: SqlStr,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, sqlx::Error> {
        match self {
            Self::Sqlite(connection) => {
                let query = sqlx::query_with(text, sqlite_arguments(values)?);
                let rows = query.fetch_all(&mut **connection).await?;
                Ok(rows.into_iter().map(Row::Sqlite).collect())
            }
        }
    }

    pub(super) async fn fetch_optional(
        &mut self,
        text: SqlStr,
        values: Vec<Value>,
    ) -> Result<Option<Row>, sqlx::Error> {
        match self {
            Self::Sqlite(connection) => {
                let query = sqlx::query_with(text, sqlite_arguments(values)?);
                let row = query.fetch_optional(&mut **connection).await?;
                Ok(row.map(Row::Sqlite))
            }
        }
    }
}

fn sqlite_arguments(values: Vec<Value>) -> Result<SqliteArguments, sqlx::Error> {
    let mut arguments = SqliteArguments::default();
    arguments.reserve(values.len(), 0);
    for value in values {
        let added = match value {
            Value::Integer(integer) => arguments.add(integer),
            Value::Real(real) => arguments.add(real),
            Value::Text(text) => arguments.add(text),
            Value::Blob(bytes) => arguments.add(bytes),
        };
        added.map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}
