//! Many statements in one call: a call to the database's own thread costs more than most statements
//! do.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use sqlx::AssertSqlSafe;

use super::connection::Connection;
use super::dialect;
use super::fault::Fault;
use super::query::Query;
use super::row::Row;
use super::value::{Bind, Value};

/// Most rows of one call. Each number of rows is prepared once and kept, so there are not too many.
const ROWS_MAX: usize = 16;

/// Values for the parameters of one statement, in their order; each parameter occurs once.
#[derive(Default)]
pub struct Values(Vec<Value>);

impl Values {
    pub fn bind(mut self, value: impl Bind) -> Self {
        self.0.push(Bind::value(Some(value)));
        self
    }
}

/// A statement with its values.
struct Statement {
    text: &'static str,
    values: Values,
    /// It needs nothing of another row of the same text, so that one statement may store both.
    is_apart: bool,
}

/// Statements in their order.
#[derive(Default)]
struct Statements(Vec<Statement>);

impl Statements {
    fn push(&mut self, text: &'static str, values: Values) {
        self.0.push(Statement {
            text,
            values,
            is_apart: false,
        });
    }

    /// Runs them in one call where the database takes several in one, else one after the other, but for rows that one
    /// statement may store.
    async fn run(self, connection: &mut Connection<'_>) -> Result<Vec<Row>, Fault> {
        if self.0.is_empty() {
            return Ok(Vec::new());
        }
        if connection.takes_several() {
            return Ok(self.together().fetch_all(connection).await?);
        }
        let mut rows = Vec::new();
        let mut all = self.0.into_iter().peekable();
        while let Some(first) = all.next() {
            let (mut values, mut count) = (first.values.0, 1);
            let is_same = |next: &Statement| {
                first.is_apart && next.is_apart && std::ptr::eq(next.text, first.text)
            };
            while let Some(next) = all.next_if(is_same) {
                values.extend(next.values.0);
                count += 1;
            }
            let query = match count {
                1 => Query::with(first.text, values),
                _ => Query::with(AssertSqlSafe(dialect::repeated(first.text, count)), values),
            };
            rows.extend(query.fetch_all(connection).await?);
        }
        Ok(rows)
    }

    /// One text of all, in which every parameter is the next one. Values are bound and never written into the text, which
    /// is the program's own.
    fn together(self) -> Query {
        let bytes = self.0.iter().map(|statement| statement.text.len() + 1);
        let mut text = String::with_capacity(bytes.sum());
        let mut all = Vec::new();
        for statement in self.0 {
            text.push_str(&unnumbered(statement.text));
            text.push(';');
            all.extend(statement.values.0);
        }
        Query::with(AssertSqlSafe(text), all)
    }
}

/// Texts by the place and the length of the statement that they were made of.
type Made = Mutex<HashMap<(usize, usize), Arc<str>>>;

/// A statement with plain parameters, which follow those of the statement before it in one text. Each is used once, in
/// the order of numbers. Made once for each statement of the program.
fn unnumbered(statement: &'static str) -> Arc<str> {
    static MADE: LazyLock<Made> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = (statement.as_ptr() as usize, statement.len());
    let text = made.entry(place).or_insert_with(|| {
        let mut parts = statement.split('$');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for (place, part) in parts.enumerate() {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            let (number, rest) = part.split_at(digits);
            assert_eq!(number, (place + 1).to_string(), "in its order: {statement}");
            text.push('?');
            text.push_str(rest);
        }
        text.into()
    });
    text.clone()
}

/// Runs statements, in the call that begins the transaction where the database takes both in one. Returns their rows,
/// in the same order.
pub async fn open(
    connection: &mut Connection<'_>,
    statements: impl IntoIterator<Item = (&'static str, Values)>,
) -> Result<Vec<Row>, Fault> {
    let mut all = Statements::default();
    if let Some(statement) = connection.opening() {
        all.push(statement, Values::default());
    }
    for (statement, values) in statements {
        all.push(statement, values);
    }
    all.run(connection).await
}

/// Runs `sql` for every row, in order; `bind` adds the row's values. Returns what the statements
/// returned, in the same order. A later row sees what an earlier one wrote.
pub async fn each<T>(
    connection: &mut Connection<'_>,
    sql: &'static str,
    rows: &[T],
    bind: impl Fn(Values, &T) -> Values,
) -> Result<Vec<Row>, Fault> {
    let mut returned = Vec::new();
    for chunk in rows.chunks(ROWS_MAX) {
        let mut all = Statements::default();
        for row in chunk {
            all.push(sql, bind(Values::default(), row));
        }
        returned.extend(all.run(connection).await?);
    }
    Ok(returned)
}

/// Statements of several kinds for a batch, which return nothing, and the end of its transaction.
/// Those of a small batch run together, in one call; of a large one each kind by itself, because
/// every mixture of lengths would have to be prepared anew.
pub struct Script {
    is_small: bool,
    statements: Statements,
}

impl Script {
    pub fn new(is_small: bool) -> Self {
        Self {
            is_small,
            statements: Statements::default(),
        }
    }

    /// As [`each`], now or later: the last ones wait for [`Self::commit`].
    pub async fn each<T>(
        &mut self,
        connection: &mut Connection<'_>,
        sql: &'static str,
        rows: &[T],
        bind: impl Fn(Values, &T) -> Values,
    ) -> Result<(), Fault> {
        self.add(connection, rows, |row| Statement {
            text: sql,
            values: bind(Values::default(), row),
            is_apart: false,
        })
        .await
    }

    /// The same for rows of an insert, none of which needs another one or has its key.
    pub async fn apart<T>(
        &mut self,
        connection: &mut Connection<'_>,
        sql: &'static str,
        rows: &[T],
        bind: impl Fn(Values, &T) -> Values,
    ) -> Result<(), Fault> {
        self.add(connection, rows, |row| Statement {
            text: sql,
            values: bind(Values::default(), row),
            is_apart: true,
        })
        .await
    }

    async fn add<T>(
        &mut self,
        connection: &mut Connection<'_>,
        rows: &[T],
        statement: impl Fn(&T) -> Statement,
    ) -> Result<(), Fault> {
        for chunk in rows.chunks(ROWS_MAX) {
            self.make_room(connection).await?;
            self.statements.0.extend(chunk.iter().map(&statement));
        }
        Ok(())
    }

    /// Runs what waits, in a large batch.
    async fn make_room(&mut self, connection: &mut Connection<'_>) -> Result<(), Fault> {
        if !self.is_small {
            self.run(connection).await?;
        }
        Ok(())
    }

    /// Runs what has not run yet, and makes everything durable where the database takes that in the same call; `changes`
    /// is the parameter of those words, whose rows this returns.
    pub async fn commit(
        mut self,
        connection: &mut Connection<'_>,
        changes: i64,
    ) -> Result<Vec<Row>, Fault> {
        if let Some(statement) = connection.closing() {
            self.statements
                .push(statement, Values::default().bind(changes));
        }
        self.run(connection).await
    }

    async fn run(&mut self, connection: &mut Connection<'_>) -> Result<Vec<Row>, Fault> {
        std::mem::take(&mut self.statements).run(connection).await
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, SqliteConnection};

    use super::*;

    const INSERT: &str = "insert into numbers (value, before)
         values ($1, (select count(*) from numbers where value < $2))
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

    async fn rows(connection: &mut Connection<'_>) -> Vec<(i64, i64)> {
        let all = crate::db::query::query_as("select value, before from numbers");
        all.fetch_all(connection).await.unwrap()
    }

    #[tokio::test]
    async fn every_row_is_bound_to_its_own_statement_and_sees_those_before() {
        let mut connection = table().await;
        let connection = &mut Connection::Sqlite(&mut connection);
        // Several calls, a remainder, and values that repeat.
        let values: Vec<i64> = (0..103).map(|i| i % 100).collect();
        for _ in 0..2 {
            let rows = each(connection, INSERT, &values, twice).await.unwrap();
            let number = |row: &Row, at: usize| row.try_get::<i64, _>(at).unwrap();
            let seen: Vec<_> = rows.iter().map(|r| (number(r, 0), number(r, 1))).collect();
            assert_eq!(seen, (0..100).map(|i| (i, i)).collect::<Vec<_>>());
            let gone = crate::db::query::query("delete from numbers");
            gone.execute(connection).await.unwrap();
        }
        let none = each::<i64>(connection, "select $1", &[], |values, value| {
            values.bind(*value)
        });
        assert!(none.await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_script_does_the_same_together_and_apart() {
        let mut seen = Vec::new();
        for is_small in [true, false] {
            let mut connection = table().await;
            let connection = &mut Connection::Sqlite(&mut connection);
            let begun = open(connection, []).await;
            assert!(begun.unwrap().is_empty());
            let mut script = Script::new(is_small);
            for values in [&[1, 2][..], &[], &[7, 2, 4]] {
                script
                    .each(connection, INSERT, values, twice)
                    .await
                    .unwrap();
            }
            let grown = "update numbers set before = before + $1 where value = $2";
            let bind = |values: Values, value: &i64| values.bind(10).bind(*value);
            script.each(connection, grown, &[4], bind).await.unwrap();
            let last = script.commit(connection, -1).await.unwrap();
            // How many were counted, and what the connection changed so far: five rows, one of them twice, the
            // count, and its row.
            let last: Vec<i64> = last[last.len() - 2..]
                .iter()
                .map(|row| row.try_get(0).unwrap())
                .collect();
            assert_eq!(last, [1, 7]);
            seen.push(rows(connection).await);
        }
        assert_eq!(seen[0], [(1, 0), (2, 1), (7, 2), (4, 12)]);
        assert_eq!(seen[0], seen[1]);
    }
}
