//! Gives back what is free in the tables. The server does the work; nothing of it is in a transaction.

use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use hone_ledger::LedgerError;

use super::fault;
use super::open::PostgresConfig;
use super::store::PostgresStore;
use hone_ledger_queries::db::Fault;

/// How thoroughly space is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thoroughness {
    /// What was removed is free for what comes next, and what is free at the end of a table goes back to the disk. Nobody
    /// waits.
    BesideServing,
    /// Every table is written anew; nobody reads or writes a table meanwhile.
    Rewriting,
}

impl PostgresStore {
    /// Gives back what is free, and reports how many bytes of how many are done.
    ///
    /// # Errors
    /// What the database said.
    pub async fn compact(
        config: &PostgresConfig,
        thoroughness: Thoroughness,
        on_progress: &mut (dyn FnMut(u64, u64) + Send),
    ) -> Result<(), LedgerError> {
        let ledger = Self::open_beside(config).await?;
        let done = vacuum(&ledger.store, thoroughness, on_progress).await;
        let done = done.map_err(|error| fault::explain(Fault::Sql(error), &ledger.store.shown));
        hone_ledger::Ledger::close(&ledger).await;
        done
    }
}

async fn vacuum(
    store: &PostgresStore,
    thoroughness: Thoroughness,
    on_progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<(), sqlx::Error> {
    let mut connection = store.options.connect().await?;
    let tables: Vec<(String, i64)> = sqlx::query_as(
        "select format('%I.%I', $1::text, relname), pg_total_relation_size(oid) from pg_class
         where relnamespace = to_regnamespace($1) and relkind = 'r' order by 2, 1",
    )
    .bind(&store.schema)
    .fetch_all(&mut connection)
    .await?;
    let whole = tables.iter().map(|(_, bytes)| bytes.unsigned_abs()).sum();
    let how = match thoroughness {
        Thoroughness::BesideServing => "vacuum (analyze)",
        Thoroughness::Rewriting => "vacuum (full, analyze)",
    };
    let mut done = 0;
    on_progress(done, whole);
    for (table, bytes) in tables {
        // The server wrote the names itself.
        let sql = format!("{how} {table}");
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut connection)
            .await?;
        done += bytes.unsigned_abs();
        on_progress(done, whole);
    }
    connection.close().await
}
