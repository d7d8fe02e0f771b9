//! What many routes have in common.

use axum::Json;
use axum::http::HeaderValue;
use axum::response::Response;

use hone_replies::error::ApiError;

/// Names the fields that had no effect, bounded in number and length.
pub(crate) fn name_ignored(response: &mut Response, ignored: &[String]) {
    const NAMES_MAX: usize = 32;
    let names: Vec<&str> = ignored
        .iter()
        .map(String::as_str)
        .filter(|name| name.len() <= 64 && name.bytes().all(|b| b.is_ascii_graphic() && b != b','))
        .take(NAMES_MAX)
        .collect();
    let mut text = names.join(",");
    let unnamed = ignored.len() - names.len();
    if unnamed > 0 {
        let comma = if text.is_empty() { "" } else { "," };
        text.push_str(&format!("{comma}+{unnamed}"));
    }
    set_header(response, "x-hone-ignored-fields", &text);
}

pub(crate) fn set_header(response: &mut Response, name: &'static str, value: &str) {
    if value.is_empty() {
        return;
    }
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// A JSON reply.
pub(crate) type Reply<T> = Result<Json<T>, ApiError>;
