//! What SQLite says, turned into what a person can act on.

use std::path::Path;

use sqlx::migrate::MigrateError;

use hone_ledger::LedgerError;
pub(super) use hone_ledger_queries::db::Fault;
use hone_ledger_queries::db::fault::is_unreadable;

/// What a fault is to SQLite.
pub(crate) trait Explained {
    /// Whether there was no room for what was written.
    fn is_full(&self) -> bool;

    /// As the caller sees it; `file` is the database.
    fn explain(self, file: &Path) -> LedgerError;

    /// As the caller sees it while opening: whatever is wrong, the file cannot be used.
    fn explain_opening(self, file: &Path) -> LedgerError;
}

impl Explained for Fault {
    fn is_full(&self) -> bool {
        match self {
            Self::Sql(sqlx::Error::Database(error)) => primary_code(&**error) == code::FULL,
            _ => false,
        }
    }

    fn explain(self, file: &Path) -> LedgerError {
        match self {
            Self::Ledger(error) => error,
            Self::Sql(error) => explain_sql(&error, file),
        }
    }

    fn explain_opening(self, file: &Path) -> LedgerError {
        match self.explain(file) {
            LedgerError::Failed(text) => LedgerError::Unusable(text),
            other => other,
        }
    }
}

/// A failed migration: the medium's fault, or a schema that this program does not know.
pub(crate) fn migration_fault(error: MigrateError, file: &Path) -> Fault {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            Fault::Sql(error)
        }
        other => Fault::Ledger(LedgerError::Unusable(format!(
            "the schema of the ledger {} does not fit this program ({other}); start the version \
             of hone that wrote it or a newer one, or choose another data folder",
            file.display()
        ))),
    }
}

/// Primary result codes, <https://www.sqlite.org/rescode.html>.
mod code {
    pub(crate) const BUSY: i32 = 5;
    pub(crate) const LOCKED: i32 = 6;
    pub(crate) const NOMEM: i32 = 7;
    pub(crate) const READONLY: i32 = 8;
    pub(crate) const IOERR: i32 = 10;
    pub(crate) const CORRUPT: i32 = 11;
    pub(crate) const FULL: i32 = 13;
    pub(crate) const CANTOPEN: i32 = 14;
    pub(crate) const NOTADB: i32 = 26;
}

fn explain_sql(error: &sqlx::Error, file: &Path) -> LedgerError {
    let shown = file.display();
    match error {
        sqlx::Error::PoolClosed => LedgerError::Failed(format!("the ledger {shown} is closed")),
        sqlx::Error::PoolTimedOut => LedgerError::Failed(format!(
            "the ledger {shown} was busy for too long; the disk may be very slow"
        )),
        error if is_unreadable(error) => LedgerError::Corrupt(error.to_string()),
        sqlx::Error::Database(database) => {
            explain_code(primary_code(&**database), &error.to_string(), file)
        }
        // The thread of a connection could not be started.
        sqlx::Error::Io(error) => LedgerError::Failed(no_memory(&error.to_string(), file)),
        other => LedgerError::Failed(format!("the ledger {shown} failed: {other}")),
    }
}

/// What is too little, and what to do.
fn no_memory(detail: &str, file: &Path) -> String {
    format!(
        "there is too little memory, or there are too few threads, for the ledger {} ({detail}); raise the \
         limits of the process (ulimit -v, ulimit -u, its container) or lower what serving takes \
         (serve.kv_cache_bytes_max)",
        file.display()
    )
}

fn primary_code(error: &dyn sqlx::error::DatabaseError) -> i32 {
    let extended = error.code().and_then(|c| c.parse::<i32>().ok());
    extended.unwrap_or(0) & 0xff
}

/// The message for a primary result code: which file, what is wrong, what to do.
fn explain_code(code: i32, detail: &str, file: &Path) -> LedgerError {
    let shown = file.display();
    let folder = file.parent().unwrap_or(Path::new(".")).display();
    match code {
        code::BUSY | code::LOCKED => LedgerError::Failed(format!(
            "the ledger {shown} is locked by another process; close the program that has it open \
             (a database browser, a backup) and try again"
        )),
        code::NOMEM => LedgerError::Failed(no_memory(detail, file)),
        code::READONLY => LedgerError::Failed(format!(
            "the ledger {shown} cannot be written; make the file and its folder {folder} writable \
             for this user, or choose another data folder ({detail})"
        )),
        code::CANTOPEN => LedgerError::Failed(format!(
            "the ledger {shown} cannot be opened; check that it is a file and that this user may \
             read and write it and its folder {folder} ({detail})"
        )),
        code::FULL => LedgerError::Failed(format!(
            "the ledger {shown} cannot grow: the disk or the configured size is full; free space \
             in {folder} or raise the limit (what was acknowledged is safe)"
        )),
        code::IOERR => LedgerError::Failed(format!(
            "the disk under the ledger {shown} reports an error; check the disk and its free \
             space ({detail})"
        )),
        code::NOTADB => LedgerError::Unusable(format!(
            "{shown} is not a ledger (not an SQLite database); move it away or choose another \
             data folder"
        )),
        code::CORRUPT => LedgerError::Unusable(format!(
            "the ledger {shown} is damaged; restore it from a backup, or move it away and recover \
             what can be read with `sqlite3 {shown} .recover` ({detail})"
        )),
        _ => LedgerError::Failed(format!("the ledger {shown} failed: {detail}")),
    }
}
