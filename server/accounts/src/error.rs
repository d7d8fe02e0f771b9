//! What can go wrong with accounts, keys, sign-ins and limits.

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
