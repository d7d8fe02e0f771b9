//! The one connection that writes. A pool would look after it with a call to the database's thread
//! before and after every transaction, and each call wakes two threads.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard};

use super::mark::Mark;
use hone_ledger_queries::db::connection::{BEGIN, COMMIT, Connection};
use hone_ledger_queries::db::query::query;
use hone_ledger_queries::db::row::Row;

/// Longest wait for those who write before.
const PATIENCE: Duration = Duration::from_secs(30);

/// The connection, for one at a time.
pub(super) struct Writer {
    options: SqliteConnectOptions,
    mark: Mark,
    /// None once it is closed.
    place: Arc<Mutex<Option<Place>>>,
}

struct Place {
    connection: SqliteConnection,
    /// A transaction was begun and not ended.
    is_open: bool,
    /// Changes that this connection had made when it last committed; more are of the transaction that is open.
    changes: i64,
}

/// Of a connection that committed nothing yet: whatever it did counts.
const NO_CHANGES: i64 = -1;

impl Place {
    /// Undoes what was not ended. SQLite ends some failed transactions (a full disk) by itself; a
    /// connection that cannot be trusted is replaced.
    async fn clean(&mut self, options: &SqliteConnectOptions) -> Result<(), sqlx::Error> {
        if self.is_open {
            let undone = sqlx::query("rollback").execute(&mut self.connection);
            if let Err(error) = undone.await {
                tracing::debug!(%error, "the ledger could not undo a transaction");
                self.connection = options.connect().await?;
                self.changes = NO_CHANGES;
            }
            self.is_open = false;
        }
        Ok(())
    }
}

impl Writer {
    pub(super) async fn connect(
        options: SqliteConnectOptions,
        mark: Mark,
    ) -> Result<Arc<Self>, sqlx::Error> {
        let place = Place {
            connection: options.connect().await?,
            is_open: false,
            changes: NO_CHANGES,
        };
        Ok(Arc::new(Self {
            options,
            mark,
            place: Arc::new(Mutex::new(Some(place))),
        }))
    }

    /// The connection without a transaction.
    pub(super) async fn take(self: &Arc<Self>) -> Result<Writing, sqlx::Error> {
        let wait = tokio::time::timeout(PATIENCE, self.place.clone().lock_owned());
        let place = wait.await.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let place = OwnedMutexGuard::try_map(place, Option::as_mut);
        let mut place = place.map_err(|_| sqlx::Error::PoolClosed)?;
        place.clean(&self.options).await?;
        Ok(Writing {
            place,
            writer: self.clone(),
        })
    }

    /// The connection with a transaction.
    pub(super) async fn begin(self: &Arc<Self>) -> Result<Writing, sqlx::Error> {
        let mut writing = self.take_open().await?;
        sqlx::query(BEGIN).execute(&mut *writing).await?;
        Ok(writing)
    }

    /// The connection for a transaction whose first words ([`BEGIN`]) and last ([`COMMIT`]) the caller
    /// sends among its own. [`Writing::committed`] tells that it did.
    pub(super) async fn take_open(self: &Arc<Self>) -> Result<Writing, sqlx::Error> {
        let mut writing = self.take().await?;
        writing.place.is_open = true;
        Ok(writing)
    }

    /// Waits for who writes, and closes the connection for good.
    pub(super) async fn close(&self) {
        let Some(place) = self.place.lock().await.take() else {
            return;
        };
        if let Err(error) = place.connection.close().await {
            tracing::debug!(%error, "the ledger's writing connection did not close well");
        }
    }
}

/// The connection in the hands of one.
pub struct Writing {
    place: OwnedMappedMutexGuard<Option<Place>, Place>,
    writer: Arc<Writer>,
}

impl Writing {
    /// Makes the transaction durable.
    pub(super) async fn commit(mut self) -> Result<(), sqlx::Error> {
        let counted = query(COMMIT).bind(self.changes());
        let rows = counted
            .fetch_all(&mut Connection::Sqlite(&mut self))
            .await?;
        self.committed(&rows)
    }

    /// The parameter of [`COMMIT`].
    pub(super) fn changes(&self) -> i64 {
        self.place.changes
    }

    /// The caller's own words made it durable; `rows` is what they returned, those of [`COMMIT`] last.
    pub(super) fn committed(mut self, rows: &[Row]) -> Result<(), sqlx::Error> {
        self.place.is_open = false;
        let numbers: Result<Vec<i64>, _> = rows.iter().map(|row| row.try_get(0)).collect();
        match numbers?[..] {
            [.., number, changes] => {
                self.writer.mark.note(number);
                self.place.changes = changes;
            }
            // Nothing was changed.
            [changes] => self.place.changes = changes,
            [] => {}
        }
        Ok(())
    }

    /// Undoes the transaction.
    pub(super) async fn undo(mut self) -> Result<(), sqlx::Error> {
        let writer = self.writer.clone();
        self.place.clean(&writer.options).await
    }
}

impl Deref for Writing {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.place.connection
    }
}

impl DerefMut for Writing {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.place.connection
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // Whoever wrote went away in the middle: the lock must not outlast it until somebody writes again.
        if self.place.is_open
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let writer = self.writer.clone();
            runtime.spawn(async move {
                if let Err(error) = writer.take().await {
                    tracing::debug!(%error, "what was left of a transaction could not be undone");
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};

    use super::*;

    fn options(file: &Path) -> SqliteConnectOptions {
        let options = SqliteConnectOptions::new().filename(file);
        options
            .create_if_missing(true)
            .busy_timeout(Duration::from_millis(1))
    }

    async fn numbers(connection: &mut SqliteConnection) -> Vec<i64> {
        let all = sqlx::query_scalar("select value from numbers order by value");
        all.fetch_all(connection).await.unwrap()
    }

    async fn insert(connection: &mut SqliteConnection, value: i64) {
        let insert = sqlx::query("insert into numbers (value) values (?)").bind(value);
        insert.execute(connection).await.unwrap();
    }

    async fn table(file: &Path) -> Arc<Writer> {
        let mark = Mark::open(file).unwrap();
        let writer = Writer::connect(options(file), mark).await.unwrap();
        let mut writing = writer.take().await.unwrap();
        let table = sqlx::raw_sql(
            "create table numbers (value integer unique); create table commits (number integer);
             insert into commits (number) values (0)",
        );
        table.execute(&mut *writing).await.unwrap();
        writer
    }

    #[tokio::test]
    async fn what_is_committed_stays_and_what_is_dropped_in_the_middle_is_undone_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("numbers.db");
        let writer = table(&file).await;
        let mut writing = writer.begin().await.unwrap();
        insert(&mut writing, 1).await;
        writing.commit().await.unwrap();
        let mut writing = writer.begin().await.unwrap();
        insert(&mut writing, 2).await;
        writing.undo().await.unwrap();
        let mut writing = writer.begin().await.unwrap();
        insert(&mut writing, 3).await;
        drop(writing);
        // Nobody writes here again, yet another process may.
        let mut beside = options(&file).connect().await.unwrap();
        for tries in 0.. {
            let begun = sqlx::query(BEGIN).execute(&mut beside).await;
            if begun.is_ok() {
                break;
            }
            assert!(tries < 1_000, "{begun:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(numbers(&mut beside).await, [1]);
    }

    #[tokio::test]
    async fn a_transaction_that_sqlite_ended_itself_does_not_stand_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let writer = table(&folder.path().join("numbers.db")).await;
        let mut writing = writer.begin().await.unwrap();
        insert(&mut writing, 1).await;
        let ended = sqlx::query("insert or rollback into numbers (value) values (1)");
        assert!(ended.execute(&mut *writing).await.is_err());
        writing.undo().await.unwrap();
        let mut writing = writer.begin().await.unwrap();
        insert(&mut writing, 2).await;
        writing.commit().await.unwrap();
        assert_eq!(numbers(&mut writer.take().await.unwrap()).await, [2]);
    }

    /// Microseconds of a small transaction without its count and its mark, and how many more with them; medians of
    /// rounds, each of which does both.
    async fn costs_us(writer: &Arc<Writer>) -> (i128, i128) {
        const ROUNDS: usize = 15;
        const EACH: i128 = 30;
        let (mut plain_us, mut more_us, mut value) = (Vec::new(), Vec::new(), 0);
        for _ in 0..ROUNDS {
            let mut took_us = [0; 2];
            for (is_plain, took_us) in took_us.iter_mut().enumerate() {
                let began = Instant::now();
                for _ in 0..EACH {
                    value += 1;
                    let mut writing = writer.begin().await.unwrap();
                    insert(&mut writing, value).await;
                    if is_plain == 0 {
                        writing.commit().await.unwrap();
                    } else {
                        let commit = sqlx::query("commit").execute(&mut *writing).await;
                        commit.unwrap();
                        writing.place.is_open = false;
                    }
                }
                *took_us = began.elapsed().as_micros() as i128 / EACH;
            }
            let [counted, plain] = took_us;
            plain_us.push(plain);
            more_us.push(counted - plain);
        }
        let median = |mut us: Vec<i128>| {
            us.sort_unstable();
            us[ROUNDS / 2]
        };
        (median(plain_us), median(more_us))
    }

    #[tokio::test]
    async fn counting_what_was_acknowledged_costs_less_than_the_transaction() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("numbers.db");
        let durable = options(&file)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        drop(table(&file).await);
        let mark = Mark::open(&file).unwrap();
        let writer = Writer::connect(durable, mark).await.unwrap();
        let (plain, more) = costs_us(&writer).await;
        println!("a transaction takes {plain} us, its count and its mark {more} us more");
        assert!(more < plain + 200, "{more} us more than {plain} us");
    }

    #[tokio::test]
    async fn a_closed_one_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let writer = table(&folder.path().join("numbers.db")).await;
        writer.close().await;
        writer.close().await;
        assert!(matches!(writer.begin().await, Err(sqlx::Error::PoolClosed)));
    }
}
