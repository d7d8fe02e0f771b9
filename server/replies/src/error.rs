//! Every failure a client can see, as one enum: status, OpenAI error object, headers.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hone_accounts::changes::Refusal;
use hone_accounts::expiry;
use hone_accounts::links::name_taken;
use hone_api_types::RequestError;
use hone_api_types::people::not_a_name;
use hone_domain::ServeError;
use hone_inference::{OpenError, StepsUsedUp};
use hone_ledger::LedgerError;
use serde::Serialize;
use utoipa::ToSchema;

/// What can go wrong with a request. Messages say what was wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// A body that cannot be taken, or a field of it.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Prompt and completion do not fit.
    #[error(
        "this model's maximum context length is {max_positions} tokens, but the prompt has {prompt_tokens} and needs room for at least one more; shorten the field `{param}`{}",
        longer(*max_positions, *model_positions)
    )]
    ContextLength {
        /// The field that the prompt is made of.
        param: &'static str,
        /// Prompt length.
        prompt_tokens: usize,
        /// The limit here.
        max_positions: usize,
        /// What the model itself takes; more where memory for keys and values is the limit.
        model_positions: usize,
    },
    /// No model of that name.
    #[error("the model `{0}` does not exist here; GET /v1/models lists what does")]
    ModelNotFound(String),
    /// A version of that number cannot be served: unknown, retired, or its files are gone.
    #[error(
        "the model `{0}` does not exist here; GET /v1/versions lists the versions of your policy"
    )]
    VersionNotFound(String),
    /// A thing that does not exist, or that belongs to somebody else.
    #[error("{0}")]
    NotFound(String),
    /// No such path.
    #[error("unknown path {0}; GET /openapi.json lists what exists")]
    UnknownPath(String),
    /// The path exists for other methods.
    #[error("{0} is not allowed on this path")]
    Method(String),
    /// The body is over the limit.
    #[error("the request body is larger than {limit} bytes ({key})")]
    TooLarge {
        /// The limit.
        limit: usize,
        /// The setting that it is.
        key: &'static str,
    },
    /// Not JSON by its header.
    #[error("{0}")]
    MediaType(String),
    /// The body did not arrive in time.
    #[error("the request body did not arrive within {limit_ms} ms (http.body_timeout_ms)")]
    BodyTimeout {
        /// The limit.
        limit_ms: u64,
    },
    /// No key, or an unknown one.
    #[error("{0}")]
    Unauthorized(String),
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
        /// What to do.
        message: String,
    },
    /// A key that belongs to another request.
    #[error("{0}")]
    Mismatch(String),
    /// The engine's waiting line is full.
    #[error("{message}")]
    Overloaded {
        /// What is full.
        message: String,
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The caller is over a limit of their own.
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
    /// A part of the process is not there, at present or at all.
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

/// The details are for the log.
impl From<LedgerError> for ApiError {
    fn from(error: LedgerError) -> Self {
        tracing::error!(%error, "the ledger could not be used");
        Self::Unavailable {
            code: "ledger_failed",
            message: "the ledger could not be used; see the server's log".to_owned(),
        }
    }
}

impl From<hone_accounts::Error> for ApiError {
    fn from(error: hone_accounts::Error) -> Self {
        use hone_accounts::Error;
        match error {
            Error::Invalid { param, message } => Self::invalid(param, message),
            Error::NotFound(message) => Self::NotFound(message),
            Error::Credentials { code, message } => Self::Credentials { code, message },
            Error::Forbidden { code, message } => Self::Forbidden { code, message },
            Error::Limited {
                code,
                message,
                retry_after_ms,
            } => Self::Limited {
                code,
                message,
                retry_after_ms,
            },
            Error::Conflict { code, message } => Self::Conflict { code, message },
            Error::Unavailable { code, message } => Self::Unavailable { code, message },
            Error::Internal(message) => Self::Internal(message),
        }
    }
}

/// How HTTP words what changes of accounts are refused for.
impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let missing = |what: &str, name: &str, chars: usize, how: &str| {
            let shown: String = name.chars().take(chars).collect();
            Self::NotFound(format!("{what}{shown} {how}"))
        };
        match refusal {
            Refusal::Name(_) => not_a_name().into(),
            Refusal::Taken(name) => name_taken(&name).into(),
            Refusal::NoAccount(name) => missing("no account ", &name, 64, "is known"),
            Refusal::NoAgent(name) => missing("no agent ", &name, 64, "of yours is known"),
            Refusal::NoTeam(name) => missing("no team ", &name, 64, "is known"),
            Refusal::NoKey(id) => missing("no key ", &id, 40, "of yours is in use"),
            Refusal::NotMember { member, .. } => missing("", &member, 64, "is not in this team"),
            Refusal::Expired => Self::NotFound(expiry::over("POST /v1/keys")),
            Refusal::NoPerson(_) => Self::invalid(
                "name",
                "an agent is in the team of its keeper and in no other",
            ),
            Refusal::IsAgent(name) => Self::Conflict {
                code: "is_agent",
                message: format!(
                    "{name} is an agent: it has the role user, and nobody signs in as it"
                ),
            },
            Refusal::InAnotherTeam(member) => Self::Conflict {
                code: "in_another_team",
                message: format!("{member} is in another team; everybody is in one at most"),
            },
            Refusal::RoleAbove { most, role, .. } => Self::Forbidden {
                code: "role_above_yours",
                message: format!(
                    "a key may do at most what you may; {} is not within {}",
                    role.as_str(),
                    most.as_str()
                ),
            },
            Refusal::Other(error) => error.into(),
            Refusal::Ledger(error) => error.into(),
        }
    }
}

/// The `error` object of a reply.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorObject {
    /// What was wrong, where, and what to do.
    pub message: String,
    /// Kind of error.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The field it is about.
    pub param: Option<String>,
    /// Stable name.
    pub code: &'static str,
}

/// The body of every reply that is not a success, and of error events inside a stream.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorObject,
}

impl ApiError {
    /// Nothing of that id is there, or it is somebody else's.
    pub fn unknown(what: &str, id: &str) -> Self {
        let shown: String = id.chars().take(100).collect();
        Self::NotFound(format!("no {what} {shown} of yours is known"))
    }

    /// A field with the wrong type or value.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        RequestError::invalid(param, message).into()
    }

    /// Why a request could not be opened whose prompt is in the field `param`.
    pub fn of_prompt(param: &'static str) -> impl Fn(OpenError) -> Self {
        move |error| match error {
            OpenError::Language(_) | OpenError::Empty => Self::invalid(param, error.to_string()),
            OpenError::Shape { param, message } => Self::invalid(param, message),
            OpenError::Serve(ServeError::TooLong {
                prompt_tokens,
                max_positions,
                model_positions,
            }) => Self::ContextLength {
                param,
                prompt_tokens,
                max_positions,
                model_positions,
            },
            OpenError::Serve(error) => error.into(),
            OpenError::Broken(_) => Self::Internal(error.to_string()),
        }
    }

    /// A known field that does nothing here.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        RequestError::unsupported(param, message).into()
    }

    /// Status, type and code.
    pub fn class(&self) -> (StatusCode, &'static str, &'static str) {
        const REQUEST: &str = "invalid_request_error";
        match self {
            Self::Request(error) => (StatusCode::BAD_REQUEST, REQUEST, error.code()),
            Self::ContextLength { .. } => {
                (StatusCode::BAD_REQUEST, REQUEST, "context_length_exceeded")
            }
            Self::ModelNotFound(_) | Self::VersionNotFound(_) => {
                (StatusCode::NOT_FOUND, REQUEST, "model_not_found")
            }
            Self::NotFound(_) => (StatusCode::NOT_FOUND, REQUEST, "not_found"),
            Self::UnknownPath(_) => (StatusCode::NOT_FOUND, REQUEST, "unknown_url"),
            Self::Method(_) => (
                StatusCode::METHOD_NOT_ALLOWED,
                REQUEST,
                "method_not_allowed",
            ),
            Self::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, REQUEST, "body_too_large"),
            Self::MediaType(_) => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                REQUEST,
                "unsupported_media_type",
            ),
            Self::BodyTimeout { .. } => (StatusCode::REQUEST_TIMEOUT, REQUEST, "body_timeout"),
            Self::Unauthorized(_) => (
                StatusCode::UNAUTHORIZED,
                "authentication_error",
                "invalid_api_key",
            ),
            Self::Credentials { code, .. } => {
                (StatusCode::UNAUTHORIZED, "authentication_error", code)
            }
            Self::Limited { code, .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", code),
            Self::Conflict { code, .. } => (StatusCode::CONFLICT, REQUEST, code),
            Self::Forbidden { code, .. } => (StatusCode::FORBIDDEN, "permission_error", code),
            Self::Mismatch(_) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                REQUEST,
                "idempotency_mismatch",
            ),
            Self::Overloaded { .. } => (
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_error",
                "overloaded",
            ),
            Self::Unavailable { code, .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "server_error", code)
            }
            Self::Internal(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "server_error",
                "internal_error",
            ),
        }
    }

    /// The error object.
    pub fn body(&self) -> ErrorBody {
        let (_, kind, code) = self.class();
        let param = match self {
            Self::Request(error) => error.param().filter(|p| !p.is_empty()).map(str::to_owned),
            Self::ContextLength { param, .. } => Some((*param).to_owned()),
            Self::ModelNotFound(_) | Self::VersionNotFound(_) => Some("model".to_owned()),
            _ => None,
        };
        ErrorBody {
            error: ErrorObject {
                message: self.to_string(),
                kind,
                param,
                code,
            },
        }
    }

    fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::Overloaded { retry_after_ms, .. } | Self::Limited { retry_after_ms, .. } => {
                Some(*retry_after_ms)
            }
            Self::Unavailable { .. } => Some(1_000),
            _ => None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, ..) = self.class();
        let mut response = (status, Json(self.body())).into_response();
        // For those who tell it in the words of another API.
        response.extensions_mut().insert(self.clone());
        let headers = response.headers_mut();
        if let Some(ms) = self.retry_after_ms() {
            headers.insert(
                header::RETRY_AFTER,
                HeaderValue::from(ms.div_ceil(1_000).max(1)),
            );
            headers.insert("retry-after-ms", HeaderValue::from(ms.max(1)));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"hone\""),
            );
        }
        if matches!(self, Self::TooLarge { .. } | Self::BodyTimeout { .. }) {
            // The rest of the body is not read, so the connection cannot be used again.
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// What else than a shorter prompt helps.
fn longer(max_positions: usize, model_positions: usize) -> String {
    match model_positions > max_positions {
        true => format!(
            ", or have an admin raise serve.kv_cache_bytes_max (the model itself takes {model_positions} tokens)"
        ),
        false => String::new(),
    }
}

impl From<ServeError> for ApiError {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Overloaded { retry_after_ms, .. } => Self::Overloaded {
                message: error.to_string(),
                retry_after_ms,
            },
            ServeError::TooLong {
                prompt_tokens,
                max_positions,
                model_positions,
            } => Self::ContextLength {
                param: "messages",
                prompt_tokens,
                max_positions,
                model_positions,
            },
            ServeError::Unsupported(message) => Self::unsupported("model", message),
            ServeError::Grammar(message) => Self::invalid("response_format", message),
            ServeError::Stopping => Self::Unavailable {
                code: "stopping",
                message: "the server is stopping; try again in a moment".to_owned(),
            },
            ServeError::Memory => Self::Unavailable {
                code: "no_memory",
                message: "there is no memory for this request at the moment; try again in a moment"
                    .to_owned(),
            },
            ServeError::Late => Self::Unavailable {
                code: "completion_timeout",
                message:
                    "it was not answered within http.completion_timeout_ms; ask for less, or try \
                          again in a moment"
                        .to_owned(),
            },
            ServeError::Adapter(_) => Self::Unavailable {
                code: "adapter_unavailable",
                // Why is in the log and the console: paths and digests are nobody else's business.
                message: "what was learned for you cannot be loaded at the moment; try again in a \
                          moment, or tell whoever runs this server"
                    .to_owned(),
            },
            ServeError::Internal(_) => Self::Internal(error.to_string()),
        }
    }
}

impl From<StepsUsedUp> for ApiError {
    fn from(used_up: StepsUsedUp) -> Self {
        Self::Forbidden {
            code: "episode_over",
            message: format!("{used_up}; end now"),
        }
    }
}

impl From<OpenError> for ApiError {
    fn from(error: OpenError) -> Self {
        Self::of_prompt("messages")(error)
    }
}
