//! Why a jail could not be made or used.

/// Why a jail could not be made or used. Each text says what to do, where something can be done.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ToolsError {
    /// This machine has no jails yet.
    #[error("{0}")]
    NotAvailable(String),
    /// A specification that no jail can be made from.
    #[error("{0}")]
    Spec(String),
    /// Files that are refused: a path that leaves the folder, a device, too much.
    #[error("{0}")]
    Refused(String),
    /// The files are not there, or cannot be read or written.
    #[error("{0}")]
    Files(String),
    /// The jail is gone; what ran in it has an unknown outcome.
    #[error("the jail is gone: {0}")]
    Lost(String),
}
