//! One statement over the rows of a batch in one call: a call to the database's own thread costs more
//! than most statements do.

use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Sqlite, SqliteConnection};

use super::fault::Fault;

/// A statement that values are bound to.
pub(super) type Asked<'q> = Query<'q, Sqlite, SqliteArguments>;

/// Rows of one call. Each length is prepared once and kept, so there are few.
const LENGTHS: [usize; 6] = [32, 16, 8, 4, 2, 1];

/// Runs `sql` for every row, in order; `bind` gives the row's values to its parameters, which are
/// plain `?`. Returns what the statements returned, in the same order. A later row sees what an
/// earlier one wrote.
pub(super) async fn each<T>(
    connection: &mut SqliteConnection,
    sql: &'static str,
    rows: &[T],
    bind: impl for<'q> Fn(Asked<'q>, &'q T) -> Asked<'q>,
) -> Result<Vec<SqliteRow>, Fault> {
    let (mut returned, mut rest) = (Vec::new(), rows);
    for length in LENGTHS {
        while let Some((chunk, after)) = rest.split_at_checked(length) {
            // Values are bound and never written into the text, which is the program's own.
            let text = AssertSqlSafe([sql].repeat(length).join(";"));
            let asked = chunk.iter().fold(sqlx::query(text), &bind);
            returned.extend(asked.fetch_all(&mut *connection).await?);
            rest = after;
        }
    }
    Ok(returned)
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, Row as _};

    use super::*;

    #[tokio::test]
    async fn every_row_is_bound_to_its_own_statement_and_sees_those_before() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let table = "create table numbers (value integer unique, before integer)";
        sqlx::query(table).execute(&mut connection).await.unwrap();
        // More than any length, a remainder, and values that repeat.
        let values: Vec<i64> = (0..103).map(|i| i % 100).collect();
        for _ in 0..2 {
            let rows = each(
                &mut connection,
                "insert into numbers (value, before)
                 values (?, (select count(*) from numbers where value < ?))
                 on conflict (value) do nothing returning value, before",
                &values,
                |asked, value| asked.bind(*value).bind(*value),
            );
            let rows = rows.await.unwrap();
            let seen: Vec<(i64, i64)> = rows.iter().map(|r| (r.get(0), r.get(1))).collect();
            assert_eq!(seen, (0..100).map(|i| (i, i)).collect::<Vec<_>>());
            sqlx::query("delete from numbers")
                .execute(&mut connection)
                .await
                .unwrap();
        }
        let none = each::<i64>(&mut connection, "select ?", &[], |asked, value| {
            asked.bind(*value)
        });
        assert!(none.await.unwrap().is_empty());
    }
}
