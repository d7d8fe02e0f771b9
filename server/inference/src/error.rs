//! Why a request is refused before the engine answers.

use hone_domain::ServeError;

use crate::language::LanguageError;

/// Why a request could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The model's template refused the messages.
    #[error(transparent)]
    Language(#[from] LanguageError),
    /// The prompt has no tokens.
    #[error("the prompt is empty once it is rendered")]
    Empty,
    /// The form of the answer cannot be followed.
    #[error("{param}: {message}")]
    Shape {
        /// The field it is from.
        param: String,
        /// What is wrong with it.
        message: String,
    },
    /// Serve refused.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Work on the prompt broke.
    #[error("the prompt could not be prepared: {0}")]
    Broken(String),
}

impl OpenError {
    // By value, as `map_err` hands it over.
    pub(crate) fn broken<E: std::error::Error>(error: E) -> Self {
        Self::Broken(error.to_string())
    }
}
