//! What every table of the file takes: SQLite tells it page by page.

use std::collections::BTreeMap;
use std::path::Path;

use hone_ledger::{LedgerSize, TableSize};
use sqlx::SqliteConnection;

use super::fault::Fault;
use super::paths::log_of;

/// Pages of each table and index by kind, with the cells in them. A table without rowid has rows in all of its pages,
/// another one in its leaves.
const PAGES: &str = "
    select coalesce(owners.tbl_name, pages.name) as owner,
           coalesce(owners.type, 'table') = 'index' as is_index,
           sum(pages.pgsize) as bytes,
           sum(case when pages.pagetype = 'leaf'
                      or pages.pagetype = 'internal' and coalesce(lists.wr, 0) = 1
               then pages.ncell else 0 end) as cells
    from dbstat as pages
    left join sqlite_schema as owners on owners.name = pages.name
    left join pragma_table_list as lists on lists.name = pages.name and lists.schema = 'main'
    group by 1, 2";

/// Measures the file of a connection.
pub(super) async fn measure(
    connection: &mut SqliteConnection,
    file: &Path,
) -> Result<LedgerSize, Fault> {
    let found: Vec<(String, bool, i64, i64)> =
        sqlx::query_as(PAGES).fetch_all(&mut *connection).await?;
    let mut tables: BTreeMap<String, TableSize> = BTreeMap::new();
    for (name, is_index, bytes, cells) in found {
        let table = tables.entry(name.clone()).or_insert(TableSize {
            name,
            rows: 0,
            bytes: 0,
            index_bytes: 0,
        });
        let (bytes, cells) = (bytes.unsigned_abs(), cells.unsigned_abs());
        if is_index {
            table.index_bytes += bytes;
        } else {
            table.bytes += bytes;
            table.rows += cells;
        }
    }
    let (pages, free, page_bytes): (i64, i64, i64) = sqlx::query_as(
        "select (select page_count from pragma_page_count),
                (select freelist_count from pragma_freelist_count),
                (select page_size from pragma_page_size)",
    )
    .fetch_one(connection)
    .await?;
    let bytes = |pages: i64| (pages * page_bytes).unsigned_abs();
    let log = std::fs::metadata(log_of(file));
    Ok(LedgerSize {
        bytes: bytes(pages),
        free_bytes: Some(bytes(free)),
        log_bytes: Some(log.map_or(0, |log| log.len())),
        is_counted: true,
        ..LedgerSize::of(tables.into_values().collect())
    })
}
