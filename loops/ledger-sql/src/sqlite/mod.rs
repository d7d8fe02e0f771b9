//! SQLite: one file, one writing connection, a few that read.
//!
//! Every method that writes is one `begin immediate` transaction with `synchronous = full`: when it
//! returns, the disk has it. Readers see the last commit and never wait for the writer (WAL).

mod compact;
mod copy;
mod fault;
mod mark;
mod mover;
mod open;
mod paths;
mod place;
mod schema;
mod size;
mod whole;
mod writer;

#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod early_tests;
#[cfg(test)]
mod erasure_tests;
#[cfg(test)]
mod law_tests;
#[cfg(test)]
mod open_tests;
#[cfg(test)]
mod page_tests;
#[cfg(test)]
mod people_tests;
#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod restart_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unreadable_tests;

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use sqlx::sqlite::SqlitePool;
use sqlx::{ConnectOptions as _, Connection as _, Sqlite, Transaction};

use hone_domain::Millis;

pub(crate) use copy::kept_blobs_of;
use fault::{Explained as _, Fault};
use hone_ledger::{ForgetReport, ForgetWish, LedgerError, LedgerSize};
use hone_ledger_queries::db::{Connection, Row};
use hone_ledger_queries::{Held, SqlLedger, Store, Unfinished, forget};
pub(crate) use mark::FILE as MARK_FILE;
use mover::Mover;
pub use open::{SqliteConfig, make_private};
pub(crate) use open::{folder_unusable, take_folder};
pub(crate) use paths::{MOVING, RESTORING, folder_of};
use place::Place;
pub use place::check_not_lost;
use writer::{Writer, Writing};

/// The ledger in one SQLite file.
pub type SqliteLedger = SqlLedger<SqliteStore>;

/// One SQLite file with its connections.
pub struct SqliteStore {
    file: PathBuf,
    config: SqliteConfig,
    writer: Arc<Writer>,
    readers: SqlitePool,
    mover: Arc<Mover>,
    /// Where its files are.
    place: Place,
    /// Whether somebody changed the schema.
    schema: whole::Looked,
    /// Wishes to be forgotten up to this number are older than this process.
    older_forgets: i64,
    /// The place of who plans what a wish would do, one at a time: a plan has a connection and lists of
    /// its own.
    planning: tokio::sync::Mutex<()>,
    /// Ownership of the data folder, until the ledger is closed or dropped.
    owner: Mutex<Option<File>>,
}

impl SqliteStore {
    /// Opens the file, creates it where it is missing, and brings its schema up to date.
    ///
    /// # Errors
    /// `Unusable`, naming the file or folder and a remedy: the folder cannot be written or belongs
    /// to another process, the file is locked, damaged, no ledger, or of a newer program.
    pub async fn open(config: &SqliteConfig) -> Result<SqliteLedger, LedgerError> {
        let store = Self::of(config, open::open(config).await?);
        Ok(SqliteLedger { store })
    }

    /// Opens the file also while another process owns its folder, for short work beside it:
    /// SQLite's own lock orders the writes. Creates and updates the schema only where it is owner.
    ///
    /// # Errors
    /// As [`Self::open`], but for a folder in use; also where the running process has another schema.
    pub async fn open_beside(config: &SqliteConfig) -> Result<SqliteLedger, LedgerError> {
        let store = Self::of(config, open::open_beside(config).await?);
        Ok(SqliteLedger { store })
    }

    fn of(config: &SqliteConfig, opened: open::Opened) -> Self {
        Self {
            file: config.file.clone(),
            config: config.clone(),
            writer: opened.writer,
            readers: opened.readers,
            mover: Mover::new(opened.mover),
            place: opened.place,
            schema: whole::Looked::default(),
            older_forgets: opened.older_forgets,
            planning: tokio::sync::Mutex::default(),
            owner: Mutex::new(opened.lock),
        }
    }
}

/// The lists of what goes, as a plan has them for itself: it writes nothing else.
const OWN_LISTS: &str = "
    create temp table forget_turns (
        turn_number integer primary key,
        forget_number integer not null
    );
    insert into forget_turns (turn_number, forget_number)
    select turn_number, forget_number from main.forget_turns;
    create index temp.forget_turns_by_forget on forget_turns (forget_number, turn_number);
    create temp table gone_transitions (
        transition_number integer primary key,
        turn_stays integer not null
    )";

impl Held for Writing {
    fn connection(&mut self) -> Connection<'_> {
        Connection::Sqlite(&mut *self)
    }
}

impl Store for SqliteStore {
    type Writing = Writing;
    type Moment = Transaction<'static, Sqlite>;
    const SHARED: bool = false;

    async fn changed(&self) {
        // Nobody else writes here.
        std::future::pending::<()>().await;
    }

    async fn begin(&self) -> Result<Writing, LedgerError> {
        let begun = self.writer.begin().await;
        let begun = self.explain(begun.map_err(Fault::Sql))?;
        self.place.check()?;
        Ok(begun)
    }

    async fn take_open(&self) -> Result<Writing, LedgerError> {
        let taken = self.writer.take_open().await;
        let taken = self.explain(taken.map_err(Fault::Sql))?;
        self.place.check()?;
        Ok(taken)
    }

    fn changes(writing: &Writing) -> i64 {
        writing.changes()
    }

    /// What was committed to a file that is gone by now is not durable, and nobody is told that it is.
    async fn finish<T: Send>(
        &self,
        writing: Writing,
        done: Result<T, Fault>,
    ) -> Result<T, Unfinished> {
        let ended = match done {
            Ok(value) => {
                let committed = writing.commit().await;
                self.mover.note_commit();
                let committed = committed.map_err(Fault::Sql);
                committed.and_then(|()| Ok(self.place.check().map(|()| value)?))
            }
            Err(fault) => {
                // The first failure is the one to tell; whoever writes next undoes what this did not.
                if let Err(error) = writing.undo().await {
                    tracing::debug!(%error, "the ledger could not undo a transaction");
                }
                Err(fault)
            }
        };
        self.explain(ended).map_err(Unfinished::Failed)
    }

    async fn committed(&self, writing: Writing, rows: &[Row]) -> Result<(), Unfinished> {
        let counted = writing.committed(rows).map_err(Fault::Sql);
        self.mover.note_commit();
        let counted = self.explain(counted).and_then(|()| self.place.check());
        counted.map_err(Unfinished::Failed)
    }

    /// One process has the file, so its own clock is the only one.
    fn lease_time(&self, at_ms: Millis) -> Millis {
        at_ms
    }

    async fn look(&self) -> Result<Self::Moment, LedgerError> {
        let begun = self.readers.begin().await;
        self.explain(begun.map_err(Fault::Sql))
    }

    fn explain<T>(&self, done: Result<T, Fault>) -> Result<T, LedgerError> {
        done.map_err(|fault| fault.explain(&self.file))
    }

    fn older_forgets(&self) -> i64 {
        self.older_forgets
    }

    async fn plan(&self, wish: &ForgetWish) -> Result<ForgetReport, LedgerError> {
        let _place = self.planning.lock().await;
        let planned = async {
            // Its own connection, which cannot write the ledger: nobody waits for it, and its lists go
            // with it.
            let options = open::options(&self.config).create_if_missing(false);
            let mut connection = options.read_only(true).connect().await?;
            let mut moment = connection.begin().await?;
            sqlx::raw_sql(OWN_LISTS).execute(&mut *moment).await?;
            let report = forget::plan(&mut Connection::Sqlite(&mut moment), wish).await?;
            moment.rollback().await?;
            connection.close().await?;
            Ok::<_, Fault>(report)
        };
        self.explain(planned.await)
    }

    async fn empty_log(&self) -> Result<bool, LedgerError> {
        let emptied = self.mover.empty(&self.writer).await;
        self.explain(emptied.map_err(Fault::Sql))
    }

    fn in_place(&self) -> Result<(), LedgerError> {
        self.place.check()
    }

    async fn missing_parts(&self) -> Result<Vec<String>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(self.schema.missing(&mut moment).await)
    }

    async fn size(&self) -> Result<LedgerSize, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(size::measure(&mut moment, &self.file).await)
    }

    async fn check(&self) -> Result<Vec<String>, LedgerError> {
        let mut moment = self.look().await?;
        self.explain(whole::check_file(&mut moment).await)
    }

    async fn close(&self) {
        // Readers first: the last connection moves the write-ahead log into the main file.
        self.readers.close().await;
        self.mover.close().await;
        self.writer.close().await;
        let owner = self.owner.lock();
        if let Some(lock) = owner.unwrap_or_else(PoisonError::into_inner).take() {
            // Said, and not left to the drop: a child that was just forked holds the file until it
            // runs its own program, and with it the lock.
            let _ends_with_the_file = lock.unlock();
        }
    }
}
