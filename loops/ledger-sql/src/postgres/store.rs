//! The store: begins, ends and repeats transactions.

use std::fs::File;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use hone_domain::Millis;
use hone_ledger::{ForgetReport, ForgetWish, LedgerError, LedgerSize};
use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::{ConnectOptions as _, Connection as _, Postgres, Transaction};

use super::clock;
use super::listener::Listener;
use super::roles::Roles;
use super::writing::Writing;
use super::{fault, schema, size};
use hone_ledger_queries::db::{Connection, Fault, Row};
use hone_ledger_queries::{Store, Unfinished, forget};

/// One schema of a PostgreSQL database with its connections.
pub struct PostgresStore {
    /// The database as people are told of it: without a password.
    pub(super) shown: String,
    pub(super) options: PgConnectOptions,
    pub(super) schema: String,
    pub(super) writers: PgPool,
    pub(super) readers: PgPool,
    /// Begins a writing transaction.
    pub(super) begin: String,
    /// How far the database's clock is ahead of this machine's; 0 where it is less than can be told.
    pub(super) ahead_ms: AtomicI64,
    /// Wishes to be forgotten up to this number are older than this process.
    pub(super) older_forgets: i64,
    pub(super) roles: Roles,
    /// Tells when another process changed something.
    pub(super) listener: Listener,
    /// When the schema was last found whole, in milliseconds of this machine's clock.
    pub(super) whole_ms: AtomicI64,
    /// Ownership of the data folder, until the ledger is closed or dropped.
    pub(super) owner: Mutex<Option<File>>,
    /// The place of who plans what a wish would do, one at a time.
    pub(super) planning: tokio::sync::Mutex<()>,
}

/// How long a schema that was found whole is not looked at again: it is asked about several times a second.
const LOOK_AGAIN_MS: Millis = 5_000;

/// Begins a view of one moment.
const LOOK: &str = "begin isolation level repeatable read, read only";

/// The lists of what goes, as a plan has them for itself.
const OWN_LISTS: &str = "
    create temp table forget_turns on commit drop as
        select turn_number, forget_number from forget_turns;
    create unique index own_turns_once on pg_temp.forget_turns (turn_number);
    create index own_turns_by_forget on pg_temp.forget_turns (forget_number, turn_number);
    create temp table gone_transitions (
        transition_number bigint primary key,
        turn_stays bigint not null
    ) on commit drop";

impl PostgresStore {
    async fn missing(&self) -> Result<Vec<String>, LedgerError> {
        let mut moment = self.look().await?;
        let missing = schema::missing(&mut moment, &self.schema).await;
        missing.map_err(|error| self.fail(error))
    }

    pub(super) fn fail(&self, error: sqlx::Error) -> LedgerError {
        fault::explain(Fault::Sql(error), &self.shown)
    }

    fn unfinished(&self, fault: Fault, may_succeed: fn(&Fault) -> bool) -> Unfinished {
        let again = may_succeed(&fault);
        let error = fault::explain(fault, &self.shown);
        match again {
            true => Unfinished::Again(error),
            false => Unfinished::Failed(error),
        }
    }

    /// Notes what the database's clock said just now.
    fn note_clock(&self, database_ms: Millis) {
        let ahead = clock::ahead_ms(database_ms);
        self.ahead_ms.store(ahead, Ordering::Relaxed);
    }
}

impl Store for PostgresStore {
    type Writing = Writing;
    type Moment = Transaction<'static, Postgres>;
    const SHARED: bool = true;

    async fn changed(&self) {
        self.listener.notified(&self.options, &self.schema).await;
    }

    async fn begin(&self) -> Result<Writing, LedgerError> {
        // One that the server ended while nobody used it is replaced.
        for is_last in [false, true] {
            let connection = self.writers.acquire().await;
            let connection = connection.map_err(|error| self.fail(error))?;
            match Writing::begin(connection, &self.begin).await {
                Ok((writing, database_ms)) => {
                    self.note_clock(database_ms);
                    return Ok(writing);
                }
                Err(error) if is_last || !fault::is_lost(&error) => return Err(self.fail(error)),
                Err(error) => {
                    tracing::debug!(%error, "the ledger's writing connection is made anew");
                }
            }
        }
        unreachable!("the last try returned")
    }

    async fn take_open(&self) -> Result<Writing, LedgerError> {
        self.begin().await
    }

    fn changes(_writing: &Writing) -> i64 {
        0
    }

    async fn finish<T: Send>(
        &self,
        writing: Writing,
        done: Result<T, Fault>,
    ) -> Result<T, Unfinished> {
        match done {
            Ok(value) => {
                self.committed(writing, &[]).await?;
                Ok(value)
            }
            Err(fault) => {
                writing.undo().await;
                Err(self.unfinished(fault, fault::is_transient))
            }
        }
    }

    async fn committed(&self, writing: Writing, _rows: &[Row]) -> Result<(), Unfinished> {
        let Err(error) = writing.commit().await else {
            return Ok(());
        };
        // Whether a commit that was sent has been done is not known once the connection is gone.
        Err(self.unfinished(Fault::Sql(error), fault::is_undone))
    }

    fn lease_time(&self, at_ms: Millis) -> Millis {
        at_ms.saturating_add(self.ahead_ms.load(Ordering::Relaxed))
    }

    async fn look(&self) -> Result<Self::Moment, LedgerError> {
        // Those that the server ended while nobody used them are replaced.
        for _ in 0..self.readers.options().get_max_connections() {
            match self.readers.begin_with(LOOK).await {
                Err(error) if fault::is_lost(&error) => {
                    tracing::debug!(%error, "a reading connection of the ledger is made anew");
                }
                begun => return begun.map_err(|error| self.fail(error)),
            }
        }
        let begun = self.readers.begin_with(LOOK).await;
        begun.map_err(|error| self.fail(error))
    }

    fn explain<T>(&self, done: Result<T, Fault>) -> Result<T, LedgerError> {
        done.map_err(|fault| fault::explain(fault, &self.shown))
    }

    fn older_forgets(&self) -> i64 {
        self.older_forgets
    }

    async fn plan(&self, wish: &ForgetWish) -> Result<ForgetReport, LedgerError> {
        let _place = self.planning.lock().await;
        let planned = async {
            // Its own connection: nobody waits for it, and its lists go with it.
            let mut connection = self.options.connect().await?;
            let mut moment = connection.begin().await?;
            sqlx::raw_sql(OWN_LISTS).execute(&mut *moment).await?;
            let report = forget::plan(&mut Connection::Postgres(&mut moment), wish).await?;
            moment.rollback().await?;
            connection.close().await?;
            Ok::<_, Fault>(report)
        };
        self.explain(planned.await)
    }

    /// What is removed leaves the tables' files when the database's own vacuum has come by.
    async fn empty_log(&self) -> Result<bool, LedgerError> {
        Ok(true)
    }

    fn in_place(&self) -> Result<(), LedgerError> {
        Ok(())
    }

    fn role_lost(&self) -> Option<String> {
        self.roles.lost()
    }

    async fn missing_parts(&self) -> Result<Vec<String>, LedgerError> {
        let now_ms = clock::now_ms();
        if now_ms - self.whole_ms.load(Ordering::Relaxed) < LOOK_AGAIN_MS {
            return Ok(Vec::new());
        }
        let missing = self.missing().await?;
        if missing.is_empty() {
            self.whole_ms.store(now_ms, Ordering::Relaxed);
        }
        Ok(missing)
    }

    async fn size(&self) -> Result<LedgerSize, LedgerError> {
        let mut moment = self.look().await?;
        let measured = size::measure(&mut moment, &self.schema).await;
        measured.map_err(|error| self.fail(error))
    }

    async fn check(&self) -> Result<Vec<String>, LedgerError> {
        let missing = self.missing().await?;
        let missing = missing.into_iter();
        Ok(missing.map(|part| format!("{part} is missing")).collect())
    }

    async fn close(&self) {
        self.readers.close().await;
        self.writers.close().await;
        self.roles.give_up().await;
        let owner = self.owner.lock();
        if let Some(lock) = owner.unwrap_or_else(PoisonError::into_inner).take() {
            let _ends_with_the_file = lock.unlock();
        }
    }
}
