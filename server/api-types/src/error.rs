//! What can be wrong with a request before anything is done about it.

/// A field, or the whole body, that cannot be taken. Messages say what was wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The body is not JSON.
    #[error("the request body is not valid JSON: {0}")]
    Syntax(String),
    /// A field has the wrong type or value.
    #[error("{message}")]
    Invalid {
        /// Path of the field.
        param: String,
        /// What is wrong with it.
        message: String,
    },
    /// A field that is known but does nothing here, so it is refused instead of ignored.
    #[error("{message}")]
    Unsupported {
        /// Path of the field.
        param: String,
        /// What it would need.
        message: String,
    },
}

impl RequestError {
    /// A field with the wrong type or value.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid {
            param: param.into(),
            message: message.into(),
        }
    }

    /// A known field that does nothing here.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Unsupported {
            param: param.into(),
            message: message.into(),
        }
    }

    /// The stable name.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Syntax(_) => "invalid_json",
            Self::Invalid { .. } => "invalid_value",
            Self::Unsupported { .. } => "unsupported_parameter",
        }
    }

    /// Path of the field; none where it is the whole body.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Syntax(_) => None,
            Self::Invalid { param, .. } | Self::Unsupported { param, .. } => Some(param),
        }
    }
}
