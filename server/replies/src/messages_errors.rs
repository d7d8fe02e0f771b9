//! What clients of Anthropic's API expect of every answer of it: errors in its envelope, and the header
//! `request-id`.

use axum::Json;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::ApiError;

/// Where the API is.
const PATH: &str = "/v1/messages";
/// What every client of it sends.
const VERSION: &str = "anthropic-version";
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Whether a route is one of that API.
pub fn has_route(path: &str) -> bool {
    path.starts_with(PATH)
}

/// Whether a request is one of that API.
pub fn is_meant(path: &str, headers: &HeaderMap) -> bool {
    has_route(path) || headers.contains_key(VERSION)
}

/// The type of an error, as the API names it.
fn kind(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

/// What clients read, such as those that shorten a conversation when it is too long.
fn message(error: &ApiError) -> String {
    match error {
        ApiError::ContextLength {
            prompt_tokens,
            max_positions,
            ..
        } => {
            format!("prompt is too long: {prompt_tokens} tokens > {max_positions} maximum; {error}")
        }
        other => other.to_string(),
    }
}

/// The `error` object of a reply of that API. `param` and `code` are more than it has.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MessagesErrorObject {
    /// Kind of error, as the API names it.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// What was wrong, where, and what to do.
    pub message: String,
    /// The field it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
    /// Stable name.
    pub code: &'static str,
}

/// The body of every reply of `/v1/messages` that is not a success, and of error events inside a stream.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct MessagesErrorBody {
    /// Always `error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The error.
    pub error: MessagesErrorObject,
    /// The request's id, as in the header `request-id`.
    pub request_id: String,
}

impl MessagesErrorBody {
    /// An error in its envelope.
    pub fn of(error: &ApiError, request: &str) -> Self {
        let plain = error.body().error;
        Self {
            kind: "error",
            error: MessagesErrorObject {
                kind: kind(error.class().0),
                message: message(error),
                param: plain.param,
                code: plain.code,
            },
            request_id: request.to_owned(),
        }
    }
}

/// The response as such clients read it.
pub fn told(response: Response, request: &str) -> Response {
    let (mut parts, mut content) = response.into_parts();
    if let Some(error) = parts.extensions.get::<ApiError>() {
        content = Json(MessagesErrorBody::of(error, request))
            .into_response()
            .into_body();
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    if let Ok(value) = HeaderValue::from_str(request) {
        parts.headers.insert(REQUEST_ID, value);
    }
    Response::from_parts(parts, content)
}
