//! A writing transaction of PostgreSQL. A connection whose transaction did not end well is closed: then the server
//! undoes it, and lets the next writer in.

use hone_domain::Millis;
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Postgres, Row as _};

use hone_ledger_queries::Held;
use hone_ledger_queries::db::Connection;

/// The connection, while one writer has it.
pub struct Writing {
    /// None once it is given back.
    connection: Option<PoolConnection<Postgres>>,
}

impl Writing {
    /// Begins with the words `begin`, whose last row is the time by the database's clock.
    pub(super) async fn begin(
        connection: PoolConnection<Postgres>,
        begin: &str,
    ) -> Result<(Self, Millis), sqlx::Error> {
        let mut writing = Self {
            connection: Some(connection),
        };
        // The program's own words, with a number in them.
        let begun = sqlx::raw_sql(AssertSqlSafe(begin.to_owned()));
        let rows = begun.fetch_all(&mut **writing.held()).await?;
        let last = rows.last().ok_or(sqlx::Error::RowNotFound)?;
        let database_ms = last.try_get("now_ms")?;
        Ok((writing, database_ms))
    }

    #[expect(
        clippy::expect_used,
        reason = "it is taken only where the writing is consumed"
    )]
    fn held(&mut self) -> &mut PoolConnection<Postgres> {
        self.connection.as_mut().expect("it is held until the end")
    }

    /// Makes the transaction durable.
    pub(super) async fn commit(mut self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("commit").execute(&mut **self.held()).await?;
        self.give_back();
        Ok(())
    }

    /// Undoes the transaction.
    pub(super) async fn undo(mut self) {
        match sqlx::raw_sql("rollback").execute(&mut **self.held()).await {
            Ok(_) => self.give_back(),
            Err(error) => tracing::debug!(%error, "the ledger could not undo a transaction"),
        }
    }

    fn give_back(&mut self) {
        drop(self.connection.take());
    }
}

impl Held for Writing {
    fn connection(&mut self) -> Connection<'_> {
        Connection::Postgres(self.held())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            // Whoever wrote went away in the middle.
            drop(connection.detach());
        }
    }
}
