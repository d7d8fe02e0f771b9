//! What every table of the schema takes, as PostgreSQL keeps account of it.

use hone_ledger::{LedgerSize, TableSize};
use sqlx::PgConnection;

/// Rows are those that the server's statistics count, or its last vacuum where they say nothing.
const TABLES: &str = "
    select pg_class.relname::text, coalesce(nullif(n_live_tup, 0), greatest(reltuples, 0)::bigint),
           pg_table_size(pg_class.oid), pg_indexes_size(pg_class.oid)
    from pg_class left join pg_stat_user_tables on pg_stat_user_tables.relid = pg_class.oid
    where relnamespace = to_regnamespace($1) and relkind = 'r'";

pub(super) async fn measure(
    connection: &mut PgConnection,
    schema: &str,
) -> Result<LedgerSize, sqlx::Error> {
    let found: Vec<(String, i64, i64, i64)> = sqlx::query_as(TABLES)
        .bind(schema)
        .fetch_all(connection)
        .await?;
    let table = |(name, rows, bytes, index_bytes): (String, i64, i64, i64)| TableSize {
        name,
        rows: rows.unsigned_abs(),
        bytes: bytes.unsigned_abs(),
        index_bytes: index_bytes.unsigned_abs(),
    };
    Ok(LedgerSize::of(found.into_iter().map(table).collect()))
}
