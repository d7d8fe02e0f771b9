//! Calls from web pages of other origins: what a browser has to be told before such a page may ask, and
//! before it may read the answer. Only the origins of `http.origins_allowed` are told, and never that
//! cookies may come along: such a page shows a key, or its browser is at this machine.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::guard::Guard;

/// What a page may send.
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE");
/// Headers of answers that a page may read, besides those that every page may.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "x-request-id, x-hone-turn-id, x-hone-session-id, x-hone-policy-version, \
     x-hone-ignored-fields, idempotent-replayed, retry-after, retry-after-ms, \
     x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, \
     x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens",
);
/// How long a browser need not ask again, in seconds.
const ASKED_S: HeaderValue = HeaderValue::from_static("600");
/// Longest list of headers that a page asks to send.
const WISHED_BYTES_MAX: usize = 4_096;

/// What the answer to one request says to the browser.
#[derive(Clone, Debug)]
pub struct Cors {
    /// The page's origin, where it is allowed.
    origin: Option<HeaderValue>,
    /// Whether the answer would be another for another origin.
    varies: bool,
}

impl Cors {
    /// For the request with these headers.
    pub fn of(guard: &Guard, headers: &HeaderMap) -> Self {
        let origin = headers.get(header::ORIGIN);
        let allowed = origin.filter(|o| o.to_str().is_ok_and(|o| guard.allows_origin(o)));
        Self {
            origin: allowed.cloned(),
            varies: !guard.origins_allowed.is_empty(),
        }
    }

    /// The answer where the browser of an allowed page asks first what it may send. It carries no key
    /// yet, so nobody is told more than that.
    pub fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Response> {
        let asks = method == Method::OPTIONS
            && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if !asks || self.origin.is_none() {
            return None;
        }
        let mut response = StatusCode::NO_CONTENT.into_response();
        let told = response.headers_mut();
        told.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        told.insert(header::ACCESS_CONTROL_MAX_AGE, ASKED_S);
        if let Some(wished) = wished(headers) {
            told.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wished.clone());
        }
        for name in [
            header::ACCESS_CONTROL_REQUEST_METHOD,
            header::ACCESS_CONTROL_REQUEST_HEADERS,
        ] {
            told.append(header::VARY, name.into());
        }
        Some(response)
    }

    /// Lets an allowed page read the answer.
    pub fn tell(self, response: &mut Response) {
        let told = response.headers_mut();
        if self.varies {
            told.append(header::VARY, header::ORIGIN.into());
        }
        if let Some(origin) = self.origin {
            told.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            told.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
    }
}

/// The headers that a page wants to send, if they are a list of names.
fn wished(headers: &HeaderMap) -> Option<&HeaderValue> {
    let value = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS)?;
    let is_name = |name: &str| HeaderName::from_bytes(name.trim().as_bytes()).is_ok();
    let names = value
        .to_str()
        .ok()
        .filter(|n| n.len() <= WISHED_BYTES_MAX)?;
    names.split(',').all(is_name).then_some(value)
}
