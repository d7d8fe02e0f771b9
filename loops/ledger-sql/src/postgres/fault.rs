//! What PostgreSQL says, turned into what a person can act on.

use hone_ledger::LedgerError;

use hone_ledger_queries::db::Fault;
use hone_ledger_queries::db::fault::is_unreadable;

/// Codes of <https://www.postgresql.org/docs/current/errcodes-appendix.html>.
mod code {
    pub(super) const SERIALIZATION_FAILURE: &str = "40001";
    pub(super) const DEADLOCK: &str = "40P01";
    pub(super) const LOCK_NOT_AVAILABLE: &str = "55P03";
    pub(super) const INSUFFICIENT_PRIVILEGE: &str = "42501";
    pub(super) const READ_ONLY: &str = "25006";
    pub(super) const DISK_FULL: &str = "53100";
    pub(super) const TOO_MANY_CONNECTIONS: &str = "53300";
    pub(super) const NO_DATABASE: &str = "3D000";
    pub(super) const CANNOT_CONNECT_NOW: &str = "57P03";
    pub(super) const IDLE_IN_TRANSACTION: &str = "25P03";
    pub(super) const WRONG_PASSWORD: &str = "28P01";
    pub(super) const REFUSED: &str = "28000";
    pub(super) const DAMAGED: [&str; 2] = ["XX001", "XX002"];
    /// The server ends, or ends the connection.
    pub(super) const ENDED: [&str; 3] = ["57P01", "57P02", IDLE_IN_TRANSACTION];
}

fn code_of(error: &sqlx::Error) -> Option<String> {
    let code = error.as_database_error()?.code()?;
    Some(code.into_owned())
}

/// Whether the connection is gone, and another one may do.
pub(super) fn is_lost(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => true,
        other => code_of(other).is_some_and(|code| code::ENDED.contains(&code.as_str())),
    }
}

/// Whether the database undid the transaction for the sake of another one.
pub(super) fn is_undone(fault: &Fault) -> bool {
    let Fault::Sql(error) = fault else {
        return false;
    };
    let code = code_of(error);
    [code::SERIALIZATION_FAILURE, code::DEADLOCK].contains(&code.as_deref().unwrap_or_default())
}

/// Whether a transaction that was not committed may succeed another time.
pub(super) fn is_transient(fault: &Fault) -> bool {
    is_undone(fault) || matches!(fault, Fault::Sql(error) if is_lost(error))
}

/// As the caller sees it; `shown` is the database.
pub(super) fn explain(fault: Fault, shown: &str) -> LedgerError {
    match fault {
        Fault::Ledger(error) => error,
        Fault::Sql(error) => explain_sql(&error, shown),
    }
}

/// As the caller sees it while opening: whatever is wrong, the database cannot be used.
pub(super) fn explain_opening(fault: Fault, shown: &str) -> LedgerError {
    match explain(fault, shown) {
        LedgerError::Failed(text) => LedgerError::Unusable(text),
        other => other,
    }
}

fn explain_sql(error: &sqlx::Error, shown: &str) -> LedgerError {
    LedgerError::Failed(match error {
        sqlx::Error::PoolClosed => format!("the ledger {shown} is closed"),
        sqlx::Error::PoolTimedOut => format!(
            "the database {shown} did not answer in time; see whether it runs and how busy it is"
        ),
        sqlx::Error::Io(error) => format!(
            "the database {shown} does not answer ({error}); start it, or correct store.url"
        ),
        sqlx::Error::Tls(error) => format!(
            "no TLS connection to the database {shown} could be made ({error}); see sslmode and sslrootcert in store.url"
        ),
        error if is_unreadable(error) => return LedgerError::Corrupt(error.to_string()),
        error => {
            let code = code_of(error).unwrap_or_default();
            if code::DAMAGED.contains(&code.as_str()) {
                return LedgerError::Unusable(format!(
                    "the database {shown} is damaged ({error}); restore it from a backup"
                ));
            }
            explain_code(&code, &error.to_string(), shown)
        }
    })
}

/// The message for a code: which database, what is wrong, what to do.
fn explain_code(code: &str, detail: &str, shown: &str) -> String {
    match code {
        code::INSUFFICIENT_PRIVILEGE => format!(
            "the user of store.url lacks a right in the database {shown} ({detail}); its owner gives it with \
             `grant create on database NAME to USER`, or makes the user the owner of the schema"
        ),
        code::NO_DATABASE => format!(
            "there is no such database as {shown} names ({detail}); make it with `createdb NAME`, or correct store.url"
        ),
        code::WRONG_PASSWORD | code::REFUSED => format!(
            "the database {shown} refuses the user of store.url ({detail}); correct user and password in store.url, or see \
             pg_hba.conf"
        ),
        code::READ_ONLY => format!(
            "the database {shown} can only be read ({detail}); name the primary server in store.url, not a standby"
        ),
        code::DISK_FULL => format!(
            "the database {shown} cannot grow: the disk of its server is full; free space there (what was \
             acknowledged is safe)"
        ),
        code::TOO_MANY_CONNECTIONS => format!(
            "the database {shown} has no connection left ({detail}); raise its max_connections, or lower store.readers"
        ),
        code::CANNOT_CONNECT_NOW => {
            format!(
                "the database {shown} is starting or stopping ({detail}); try again in a moment"
            )
        }
        code::LOCK_NOT_AVAILABLE => format!(
            "another process has written to the ledger {shown} for too long; see what pg_stat_activity says about it"
        ),
        _ => format!("the ledger {shown} failed: {detail}"),
    }
}
