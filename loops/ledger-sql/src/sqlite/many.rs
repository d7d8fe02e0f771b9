//! Many statements in one call: a call to the database's own thread costs more than most statements
//! do.

use sqlx::error::BoxDynError;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments as _, AssertSqlSafe, Encode, Sqlite, SqliteConnection, Type};

use super::fault::Fault;
use super::writer::COMMIT;

/// Most rows of one call. Each number of rows is prepared once and kept, so there are not too many.
const ROWS_MAX: usize = 16;

/// Values for the parameters of statements, in their order. Parameters are plain `?`.
#[derive(Default)]
pub(super) struct Values {
    arguments: SqliteArguments,
    /// The first value that could not be encoded.
    wrong: Option<BoxDynError>,
}

impl Values {
    pub(super) fn bind<'v>(mut self, value: impl Encode<'v, Sqlite> + Type<Sqlite>) -> Self {
        if let Err(error) = self.arguments.add(value) {
            self.wrong.get_or_insert(error);
        }
        self
    }

    pub(super) async fn run(
        self,
        connection: &mut SqliteConnection,
        text: String,
    ) -> Result<Vec<SqliteRow>, Fault> {
        if let Some(error) = self.wrong {
            return Err(Fault::Sql(sqlx::Error::Encode(error)));
        }
        // Values are bound and never written into the text, which is the program's own.
        let query = sqlx::query_with(AssertSqlSafe(text), self.arguments);
        Ok(query.fetch_all(connection).await?)
    }
}

/// Runs `sql` for every row, in order; `bind` adds the row's values. Returns what the statements
/// returned, in the same order. A later row sees what an earlier one wrote.
pub(super) async fn each<T>(
    connection: &mut SqliteConnection,
    sql: &'static str,
    rows: &[T],
    bind: impl Fn(Values, &T) -> Values,
) -> Result<Vec<SqliteRow>, Fault> {
    let mut returned = Vec::new();
    for chunk in rows.chunks(ROWS_MAX) {
        let values = chunk.iter().fold(Values::default(), &bind);
        let text = [sql].repeat(chunk.len()).join(";");
        returned.extend(values.run(connection, text).await?);
    }
    Ok(returned)
}

/// Statements of several kinds for a batch, which return nothing, and the end of its transaction.
/// Those of a small batch run together, in one call; of a large one each kind by itself, because
/// every mixture of lengths would have to be prepared anew.
pub(super) struct Script {
    is_small: bool,
    text: String,
    values: Values,
}

impl Script {
    pub(super) fn new(is_small: bool) -> Self {
        Self {
            is_small,
            text: String::new(),
            values: Values::default(),
        }
    }

    /// As [`each`], now or later: the last ones wait for [`Self::commit`].
    pub(super) async fn each<T>(
        &mut self,
        connection: &mut SqliteConnection,
        sql: &'static str,
        rows: &[T],
        bind: impl Fn(Values, &T) -> Values,
    ) -> Result<(), Fault> {
        for chunk in rows.chunks(ROWS_MAX) {
            if !self.is_small {
                self.run(connection).await?;
            }
            for row in chunk {
                self.text.push_str(sql);
                self.text.push(';');
                self.values = bind(std::mem::take(&mut self.values), row);
            }
        }
        Ok(())
    }

    /// Runs what has not run yet and makes everything durable; `changes` is the parameter of [`COMMIT`],
    /// whose rows this returns.
    pub(super) async fn commit(
        mut self,
        connection: &mut SqliteConnection,
        changes: i64,
    ) -> Result<Vec<SqliteRow>, Fault> {
        self.text.push_str(COMMIT);
        self.values = std::mem::take(&mut self.values).bind(changes);
        self.run(connection).await
    }

    async fn run(&mut self, connection: &mut SqliteConnection) -> Result<Vec<SqliteRow>, Fault> {
        let (text, values) = (
            std::mem::take(&mut self.text),
            std::mem::take(&mut self.values),
        );
        match text.is_empty() {
            true => Ok(Vec::new()),
            false => values.run(connection, text).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, Row as _};

    use super::super::writer::BEGIN;
    use super::*;

    const INSERT: &str = "insert into numbers (value, before)
         values (?, (select count(*) from numbers where value < ?))
         on conflict (value) do nothing returning value, before";

    async fn table() -> SqliteConnection {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let tables = sqlx::raw_sql(
            "create table numbers (value integer unique, before integer);
             create table commits (number integer); insert into commits (number) values (0)",
        );
        tables.execute(&mut connection).await.unwrap();
        connection
    }

    fn twice(values: Values, value: &i64) -> Values {
        values.bind(*value).bind(*value)
    }

    #[tokio::test]
    async fn every_row_is_bound_to_its_own_statement_and_sees_those_before() {
        let mut connection = table().await;
        // Several calls, a remainder, and values that repeat.
        let values: Vec<i64> = (0..103).map(|i| i % 100).collect();
        for _ in 0..2 {
            let rows = each(&mut connection, INSERT, &values, twice).await.unwrap();
            let seen: Vec<(i64, i64)> = rows.iter().map(|r| (r.get(0), r.get(1))).collect();
            assert_eq!(seen, (0..100).map(|i| (i, i)).collect::<Vec<_>>());
            sqlx::query("delete from numbers")
                .execute(&mut connection)
                .await
                .unwrap();
        }
        let none = each::<i64>(&mut connection, "select ?", &[], |values, value| {
            values.bind(*value)
        });
        assert!(none.await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_script_does_the_same_together_and_apart() {
        let mut seen = Vec::new();
        for is_small in [true, false] {
            let mut connection = table().await;
            sqlx::query(BEGIN).execute(&mut connection).await.unwrap();
            let mut script = Script::new(is_small);
            for values in [&[1, 2][..], &[], &[7, 2, 4]] {
                script
                    .each(&mut connection, INSERT, values, twice)
                    .await
                    .unwrap();
            }
            let grown = "update numbers set before = before + ? where value = ?";
            let bind = |values: Values, value: &i64| values.bind(10).bind(*value);
            script
                .each(&mut connection, grown, &[4], bind)
                .await
                .unwrap();
            let last = script.commit(&mut connection, -1).await.unwrap();
            // How many were counted, and what the connection changed so far: five rows, one of them twice, the
            // count, and its row.
            let last: Vec<i64> = last[last.len() - 2..]
                .iter()
                .map(|row| row.get(0))
                .collect();
            assert_eq!(last, [1, 7]);
            let rows: Vec<(i64, i64)> = sqlx::query_as("select value, before from numbers")
                .fetch_all(&mut connection)
                .await
                .unwrap();
            seen.push(rows);
        }
        assert_eq!(seen[0], [(1, 0), (2, 1), (7, 2), (4, 12)]);
        assert_eq!(seen[0], seen[1]);
    }
}
