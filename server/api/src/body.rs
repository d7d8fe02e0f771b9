//! Reads a JSON body: media type, size, time, syntax.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, header};
use hone_api_types::{JsonObject, RequestError};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use hone_replies::error::ApiError;

/// Longer bodies are parsed off the async threads.
const INLINE_BYTES_MAX: usize = 256 * 1_024;

/// Bounds of a body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Most bytes.
    pub bytes_max: usize,
    /// The setting that says so.
    pub key: &'static str,
    /// Longest time until the last byte.
    pub timeout_ms: u64,
}

/// Reads the body of `request`.
pub async fn read_json(request: Request<Body>, limits: BodyLimits) -> Result<JsonObject, ApiError> {
    let (parts, body) = request.into_parts();
    let bytes = read_bytes(&parts.headers, body, limits).await?;
    if bytes.len() <= INLINE_BYTES_MAX {
        return Ok(JsonObject::parse(&bytes)?);
    }
    let parsed = tokio::task::spawn_blocking(move || JsonObject::parse(&bytes)).await;
    let parsed = parsed.map_err(|_| ApiError::Internal("the body could not be read".to_owned()))?;
    Ok(parsed?)
}

/// Reads a body that its headers say is JSON.
pub async fn read_bytes(
    headers: &HeaderMap,
    body: Body,
    limits: BodyLimits,
) -> Result<Bytes, ApiError> {
    check_headers(headers, limits)?;
    let body = Limited::new(body, limits.bytes_max).collect();
    Ok(
        match tokio::time::timeout(Duration::from_millis(limits.timeout_ms), body).await {
            Err(_) => {
                return Err(ApiError::BodyTimeout {
                    limit_ms: limits.timeout_ms,
                });
            }
            Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(too_large(limits)),
            Ok(Err(error)) => {
                let why = format!("the body broke off ({error})");
                return Err(RequestError::Syntax(why).into());
            }
            Ok(Ok(collected)) => collected.to_bytes(),
        },
    )
}

fn too_large(limits: BodyLimits) -> ApiError {
    ApiError::TooLarge {
        limit: limits.bytes_max,
        key: limits.key,
    }
}

fn check_headers(headers: &HeaderMap, limits: BodyLimits) -> Result<(), ApiError> {
    // A web page can send other media types to this machine without asking it first, so JSON is
    // demanded by name.
    let media = headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default();
    let essence = media
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    if essence != "application/json" && !essence.ends_with("+json") {
        return Err(ApiError::MediaType(
            "send the body as JSON with the header content-type: application/json".to_owned(),
        ));
    }
    let encoding = headers.get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|e| !e.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(ApiError::MediaType(
            "compressed bodies are not taken; send the JSON as it is".to_owned(),
        ));
    }
    if announced(headers).is_some_and(|n| n > limits.bytes_max) {
        return Err(too_large(limits));
    }
    Ok(())
}

/// Bytes of the body, where the headers say so.
pub fn announced(headers: &HeaderMap) -> Option<usize> {
    let length = headers.get(header::CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}
