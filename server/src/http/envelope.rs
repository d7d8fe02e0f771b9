//! Around every request: its id, who calls, panics, counters, one log line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use hone_domain::RequestId;

use super::Http;
use super::error::ApiError;
use super::guard::Caller;
use super::rights::{self, Right};

/// Longest request id taken over from a client.
const ID_BYTES_MAX: usize = 128;

/// What a handler knows of its request.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Minted here.
    pub id: RequestId,
    /// Who calls.
    pub caller: Caller,
}

/// The middleware.
pub async fn wrap(State(http): State<Arc<Http>>, mut request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = RequestId(http.ids.next());
    let shown = shown_id(request.headers(), id);
    let method = method_name(request.method());
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route = matched.as_ref().map(MatchedPath::as_str);
    let path = route.unwrap_or("unmatched").to_owned();
    let _in_flight = http.traffic.enter();
    let peer = request
        .extensions()
        .get::<ConnectInfo<SocketAddr>>()
        .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.0.ip());
    let mut response = match admit(&http, (request.method(), route), (peer, request.headers())) {
        Err(error) => refused(&error, route),
        Ok(caller) => {
            request.extensions_mut().insert(Asked { id, caller });
            match AssertUnwindSafe(next.run(request)).catch_unwind().await {
                Ok(response) => response,
                Err(_) => {
                    tracing::error!(request = %shown, path, "a handler panicked");
                    ApiError::Internal("the request could not be handled".to_owned())
                        .into_response()
                }
            }
        }
    };
    if let Ok(value) = HeaderValue::from_str(&shown) {
        response.headers_mut().insert("x-request-id", value);
    }
    let (status, took) = (response.status().as_u16(), began.elapsed());
    http.traffic.answered((method, &path, status), took);
    tracing::info!(
        request = %shown,
        method,
        path,
        status,
        ms = took.as_millis() as u64,
        "answered"
    );
    response
}

fn refused(error: &ApiError, route: Option<&str>) -> Response {
    let mut response = error.clone().into_response();
    if let (ApiError::Method(_), Some(route)) = (error, route)
        && let Ok(methods) = HeaderValue::from_str(&rights::methods(route))
    {
        response.headers_mut().insert(header::ALLOW, methods);
    }
    response
}

/// Who calls, if they may: the table of rights decides.
fn admit(
    http: &Http,
    (method, path): (&Method, Option<&str>),
    (peer, headers): (IpAddr, &HeaderMap),
) -> Result<Caller, ApiError> {
    let needed = rights::needed(method, path);
    if matches!(needed, Ok(Right::Open)) {
        return Ok(Caller::stranger());
    }
    // Who is calling comes before what they want: strangers learn nothing about routes.
    let caller = http.guard.admit(peer, headers)?;
    caller.check(needed?)?;
    Ok(caller)
}

/// Clients cannot mint counter labels.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        _ => "other",
    }
}

fn shown_id(headers: &HeaderMap, id: RequestId) -> String {
    headers
        .get("x-request-id")
        .and_then(|v| v.to_str().ok())
        .filter(|v| !v.is_empty() && v.len() <= ID_BYTES_MAX)
        .map_or_else(|| format!("req_{id}"), str::to_owned)
}

/// Nothing is served there.
pub async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::UnknownPath(uri.path().chars().take(200).collect())
}

/// Something is served there, for other methods.
pub async fn wrong_method(method: Method) -> ApiError {
    ApiError::Method(method.as_str().chars().take(40).collect())
}
