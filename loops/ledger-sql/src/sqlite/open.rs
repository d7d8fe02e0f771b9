//! Opening the file: owner's lock, settings, schema.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, SqliteConnection};

use super::fault::{Explained as _, Fault, migration_fault};
use super::mark::Mark;
use super::paths::{MOVING, RESTORING, clear_copy, folder_of};
use super::place::Place;
use super::schema::MIGRATIONS;
use super::writer::Writer;
use super::{mark, place, whole};
use hone_ledger::{Consumer, LedgerError};
use hone_ledger_queries::db;
use hone_ledger_queries::{leases, wishes};

/// "HONE" in ASCII, as the first migration sets it.
const APPLICATION_ID: i32 = 0x484f_4e45;

/// Pages in the write-ahead log (4 KiB each) at which the writer moves them to the main file itself,
/// where moving beside it did not keep up.
const CHECKPOINT_PAGES: &str = "16000";

/// Where the ledger is and how it is opened.
#[derive(Clone, Debug)]
pub struct SqliteConfig {
    /// The database file. It and its folder are created when missing; the folder belongs to one
    /// process at a time.
    pub file: PathBuf,
    /// Connections that only read; at least 1.
    pub readers: u32,
    /// How long to wait for another process that holds SQLite's lock.
    pub busy_timeout_ms: u64,
    /// Most bytes the main file may grow to; none leaves it to the disk.
    pub bytes_max: Option<u64>,
}

impl SqliteConfig {
    /// `ledger.db` in `folder` with four readers, five seconds of patience and no size limit.
    pub fn in_folder(folder: &Path) -> Self {
        Self {
            file: folder.join("ledger.db"),
            readers: 4,
            busy_timeout_ms: 5_000,
            bytes_max: None,
        }
    }
}

/// Prepared texts that the writer keeps; those of small batches come in many lengths.
const WRITER_STATEMENTS: usize = 256;

/// Longest that moving the log waits for a reader while the writer waits for it.
const MOVER_PATIENCE: Duration = Duration::from_millis(10);

/// What an open ledger holds.
pub(super) struct Opened {
    /// None where another process owns the folder.
    pub(super) lock: Option<File>,
    pub(super) writer: Arc<Writer>,
    pub(super) readers: SqlitePool,
    /// One connection that moves the write-ahead log to the main file beside the writer.
    pub(super) mover: SqlitePool,
    /// Where its files are.
    pub(super) place: Place,
    /// Wishes to be forgotten up to this number are older than this process; 0 beside another one.
    pub(super) older_forgets: i64,
}

/// Takes the folder, brings the schema up to date and connects.
pub(super) async fn open(config: &SqliteConfig) -> Result<Opened, LedgerError> {
    let file = config.file.as_path();
    let folder = folder_of(file);
    make_folder(folder)?;
    if file.is_dir() {
        return Err(LedgerError::Unusable(format!(
            "{} is a folder, and the ledger must be a file; move it away or choose another data \
             folder",
            file.display()
        )));
    }
    let lock = take_folder(folder)?;
    check_writable(file)?;
    place::check_not_lost(file)?;
    own(config).await?;
    connect(config, Some(lock)).await
}

/// Brings the schema up to date; the folder is this process's.
async fn own(config: &SqliteConfig) -> Result<(), LedgerError> {
    let file = config.file.as_path();
    let folder = folder_of(file);
    clear_copy(file).map_err(|e| folder_unusable(folder, &e))?;
    mark::check_reached(file).await?;
    let prepared = prepare(options(config), file).await;
    prepared.map_err(|fault| fault.explain_opening(file))?;
    sync_folder(folder).map_err(|e| folder_unusable(folder, &e))
}

/// As [`open`], but works beside a process that owns the folder.
pub(super) async fn open_beside(config: &SqliteConfig) -> Result<Opened, LedgerError> {
    let file = config.file.as_path();
    let folder = folder_of(file);
    make_folder(folder)?;
    let lock = try_folder(folder)?;
    if lock.is_some() {
        place::check_not_lost(file)?;
        own(config).await?;
    } else {
        let same = check_same(config, file).await;
        same.map_err(|fault| fault.explain_opening(file))?;
    }
    connect(config, lock).await
}

/// Refuses a schema that is not this program's, without changing anything.
async fn check_same(config: &SqliteConfig, file: &Path) -> Result<(), Fault> {
    let options = options(config).create_if_missing(false);
    let mut connection = options.connect().await?;
    check_ours(&mut connection, file).await?;
    let version: i64 = sqlx::query_scalar("pragma user_version")
        .fetch_one(&mut connection)
        .await?;
    if version == known_version() {
        whole::check_complete(&mut connection, file).await?;
        connection.close().await?;
        return Ok(());
    }
    Err(Fault::Ledger(LedgerError::Unusable(format!(
        "the running hone that owns {} has another schema (version {version}, this program knows \
         {}); use the program that runs, or restart the server with this one first",
        file.display(),
        known_version()
    ))))
}

async fn connect(config: &SqliteConfig, lock: Option<File>) -> Result<Opened, LedgerError> {
    let file = config.file.as_path();
    let explain = |fault: Fault| fault.explain_opening(file);
    let mark = Mark::open(file).map_err(|e| folder_unusable(folder_of(file), &e))?;
    let writer = Writer::connect(writer_options(config), mark).await;
    let writer = writer.map_err(|error| explain(Fault::Sql(error)))?;
    let reading = options(config).pragma("query_only", "on");
    let readers = pool(config.readers.max(1), reading)
        .await
        .map_err(explain)?;
    let moving = options(config)
        .busy_timeout(MOVER_PATIENCE)
        .pragma("wal_autocheckpoint", "0");
    let mover = pool(1, moving).await.map_err(explain)?;
    let older_forgets = match &lock {
        Some(_) => begin_anew(&writer, file).await.map_err(explain)?,
        None => 0,
    };
    let place = Place::of(file).map_err(|e| folder_unusable(folder_of(file), &e))?;
    Ok(Opened {
        place,
        older_forgets,
        lock,
        writer,
        readers,
        mover,
    })
}

/// Ends what the process before left open; returns the number of its newest wish to be forgotten.
async fn begin_anew(writer: &Arc<Writer>, file: &Path) -> Result<i64, Fault> {
    let mut writing = writer.begin().await?;
    let newest = wishes::newest(&mut db::Connection::Sqlite(&mut writing)).await?;
    let freed = match free_leases(&mut db::Connection::Sqlite(&mut writing)).await {
        Ok(()) => writing.commit().await.map_err(Fault::Sql),
        Err(fault) => {
            // Whoever writes next undoes what this does not.
            let _undone = writing.undo().await;
            Err(fault)
        }
    };
    match freed {
        // Answering goes on without room, and every lease ends in time by itself.
        Err(fault) if fault.is_full() => {
            let error = fault.explain(file);
            tracing::warn!(%error, "what the process before had claimed waits for its leases to end");
        }
        freed => freed?,
    }
    Ok(newest)
}

async fn free_leases(connection: &mut db::Connection<'_>) -> Result<(), Fault> {
    for consumer in [Consumer::Judge, Consumer::Train] {
        leases::free_all(connection, consumer).await?;
    }
    Ok(())
}

/// Makes the folder, for this user only: it will hold what people said. One in which a restore was
/// interrupted is refused.
fn make_folder(folder: &Path) -> Result<(), LedgerError> {
    if folder.join(RESTORING).exists() {
        return Err(LedgerError::Unusable(format!(
            "a restore into {} was interrupted; run `hone restore` again",
            folder.display()
        )));
    }
    if folder.join(MOVING).exists() {
        return Err(LedgerError::Unusable(format!(
            "a move into {} was interrupted; run `hone ledger move` again, or remove {}",
            folder.display(),
            folder.join(MOVING).display()
        )));
    }
    make_private(folder).map_err(|e| folder_unusable(folder, &e))
}

/// Makes a folder, and those above it, that nobody else may read.
///
/// # Errors
/// As the system has it.
pub fn make_private(folder: &Path) -> std::io::Result<()> {
    let mut make = std::fs::DirBuilder::new();
    make.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut make, 0o700);
    make.create(folder)
}

/// A file that is there and cannot be written would be found by the first turn only: SQLite opens
/// it for reading then, and says nothing.
fn check_writable(file: &Path) -> Result<(), LedgerError> {
    for end in ["", "-wal", "-shm"] {
        let mut name = file.as_os_str().to_owned();
        name.push(end);
        let path = PathBuf::from(name);
        match OpenOptions::new().write(true).open(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(LedgerError::Unusable(format!(
                    "the ledger's file {} cannot be written ({error}); make it writable for this \
                     user (and not in use by another program), or choose another data folder",
                    path.display()
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn folder_unusable(folder: &Path, error: &std::io::Error) -> LedgerError {
    let shown = folder.display();
    LedgerError::Unusable(match folder.is_file() {
        true => format!("{shown} is a file, not a folder; choose another data folder"),
        false => format!(
            "the data folder {shown} cannot be written ({error}); make it writable for this user, or \
             choose another data folder"
        ),
    })
}

/// Makes this process the folder's only owner until the returned file is dropped. The lock dies
/// with its process, so nothing is left over after a crash.
pub(crate) fn take_folder(folder: &Path) -> Result<File, LedgerError> {
    if let Some(lock) = try_folder(folder)? {
        return Ok(lock);
    }
    let mut owner = String::new();
    let read = File::open(lock_path(folder)).and_then(|f| f.take(32).read_to_string(&mut owner));
    // Only for the message: without a readable number it is shorter.
    let owner = match (read.is_ok(), owner.trim()) {
        (false, _) | (_, "") => String::new(),
        (true, pid) => format!(" (process {pid})"),
    };
    Err(LedgerError::Unusable(format!(
        "the data folder {} is in use by another hone{owner}; stop that one, or choose another \
         data folder",
        folder.display()
    )))
}

fn lock_path(folder: &Path) -> PathBuf {
    folder.join("owner.lock")
}

/// The same; none where another process owns it.
fn try_folder(folder: &Path) -> Result<Option<File>, LedgerError> {
    let mut lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(lock_path(folder))
        .map_err(|e| folder_unusable(folder, &e))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(e)) => return Err(folder_unusable(folder, &e)),
    }
    let note = |lock: &mut File| {
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{}", std::process::id())
    };
    note(&mut lock).map_err(|e| folder_unusable(folder, &e))?;
    Ok(Some(lock))
}

/// Makes the database file's own name durable.
fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

/// What every connection has in common.
pub(super) fn options(config: &SqliteConfig) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(&config.file)
        .create_if_missing(true)
        .foreign_keys(true)
        .busy_timeout(Duration::from_millis(config.busy_timeout_ms))
        .synchronous(SqliteSynchronous::Full)
        .pragma("temp_store", "memory")
        // What is removed is overwritten, in the main file and in every later copy of a page.
        .pragma("secure_delete", "on")
        .disable_statement_logging()
}

fn writer_options(config: &SqliteConfig) -> SqliteConnectOptions {
    let options = options(config)
        .statement_cache_capacity(WRITER_STATEMENTS)
        .journal_mode(SqliteJournalMode::Wal)
        .pragma("wal_autocheckpoint", CHECKPOINT_PAGES);
    match config.bytes_max {
        Some(bytes) => options.pragma("max_page_count", (bytes / 4096).max(1).to_string()),
        None => options,
    }
}

async fn pool(connections: u32, options: SqliteConnectOptions) -> Result<SqlitePool, Fault> {
    let pool = SqlitePoolOptions::new()
        .max_connections(connections)
        .min_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_with(options)
        .await?;
    Ok(pool)
}

/// Looks whose file it is before anything in it changes, then brings the schema up to date.
pub(super) async fn prepare(options: SqliteConnectOptions, file: &Path) -> Result<(), Fault> {
    let mut connection = options.connect().await?;
    check_ours(&mut connection, file).await?;
    MIGRATIONS
        .run(&mut connection)
        .await
        .map_err(|error| migration_fault(error, file))?;
    whole::check_complete(&mut connection, file).await?;
    connection.close().await?;
    Ok(())
}

async fn check_ours(connection: &mut SqliteConnection, file: &Path) -> Result<(), Fault> {
    let application: i32 = sqlx::query_scalar("pragma application_id")
        .fetch_one(&mut *connection)
        .await?;
    let version: i64 = sqlx::query_scalar("pragma user_version")
        .fetch_one(&mut *connection)
        .await?;
    // The migration table alone is what a crash before the first migration leaves behind.
    let tables: i64 = sqlx::query_scalar(
        "select count(*) from sqlite_schema where type = 'table' and name <> '_sqlx_migrations'",
    )
    .fetch_one(&mut *connection)
    .await?;
    let shown = file.display();
    if application != APPLICATION_ID && (tables > 0 || application != 0) {
        return Err(Fault::Ledger(LedgerError::Unusable(format!(
            "{shown} is a database of another program; move it away or choose another data folder"
        ))));
    }
    let known = known_version();
    if version > known {
        return Err(Fault::Ledger(LedgerError::Unusable(format!(
            "the ledger {shown} was written by a newer hone (its schema is version {version}, \
             this program knows {known}); start that version or a newer one, or choose another \
             data folder"
        ))));
    }
    Ok(())
}

/// The newest schema this program can read.
pub(super) fn known_version() -> i64 {
    MIGRATIONS.iter().map(|m| m.version).max().unwrap_or(0)
}
