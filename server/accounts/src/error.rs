//! What can go wrong with accounts, keys, sign-ins and limits.

use hone_ledger::LedgerError;

use crate::secrets;

/// A refusal or a failure. Messages say what was wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A value that cannot be taken.
    #[error("{message}")]
    Invalid {
        /// The field.
        param: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// A thing that does not exist.
    #[error("{0}")]
    NotFound(String),
    /// A password or a sign-in that is not valid.
    #[error("{message}")]
    Credentials {
        /// The stable name.
        code: &'static str,
        /// What to do.
        message: String,
    },
    /// The caller may not do this.
    #[error("{message}")]
    Forbidden {
        /// The stable name.
        code: &'static str,
        /// Who may.
        message: String,
    },
    /// A limit of the caller's own is reached.
    #[error("{message}")]
    Limited {
        /// The stable name.
        code: &'static str,
        /// Which limit, and what to do.
        message: String,
        /// When to try again.
        retry_after_ms: u64,
    },
    /// What is asked for does not fit how things stand.
    #[error("{message}")]
    Conflict {
        /// The stable name.
        code: &'static str,
        /// What stands in the way.
        message: String,
    },
    /// The store or the processor has no room at present.
    #[error("{message}")]
    Unavailable {
        /// The stable name.
        code: &'static str,
        /// What is missing and what to do.
        message: String,
    },
    /// Something inside broke.
    #[error("{0}")]
    Internal(String),
}

/// A failure of the store as clients see it; the details are for the log.
impl From<LedgerError> for Error {
    fn from(error: LedgerError) -> Self {
        tracing::error!(%error, "accounts could not be read or written");
        Self::Unavailable {
            code: "ledger_failed",
            message: "the ledger could not be used; see the server's log".to_owned(),
        }
    }
}

pub(crate) fn secret_error(error: &secrets::SecretError) -> Error {
    tracing::error!(%error, "a secret could not be made");
    Error::Internal("a secret could not be made; see the server's log".to_owned())
}

pub(crate) fn too_many(wait_ms: u64) -> Error {
    Error::Limited {
        code: "too_many_attempts",
        message: format!(
            "too many failed attempts; wait {} s and try again",
            wait_ms.div_ceil(1_000)
        ),
        retry_after_ms: wait_ms,
    }
}

/// A key whose stored form is of an older version.
pub(crate) fn outdated_key(id: &str) -> Error {
    Error::Credentials {
        code: "key_outdated",
        message: format!(
            "the key {id} was stored by an older version and cannot be checked any more; \
             make a new one with `hone key rotate {id}` or on the account page"
        ),
    }
}

pub(crate) fn wrong_password() -> Error {
    Error::Credentials {
        code: "wrong_password",
        message: "name or password is wrong".to_owned(),
    }
}
