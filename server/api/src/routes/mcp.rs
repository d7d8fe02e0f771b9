//! `POST /mcp`: the Model Context Protocol over streamable HTTP, without sessions, so that any of several servers
//! answers any request.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::Response;
use http_body_util::{BodyExt, Full};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use crate::Http;
use crate::body::read_bytes;
use crate::mcp::Tools;
use crate::request_context::RequestContext;
use hone_replies::error::{ApiError, ErrorBody};

/// A message of the Model Context Protocol. Its tools are `memory_search`, `memory_note`, `memory_forget` and
/// `feedback`; both generations of the protocol are spoken, without sessions.
#[utoipa::path(
    post,
    path = "/mcp",
    request_body = serde_json::Value,
    responses(
        (status = 200, description = "The answer, as JSON or as a stream of events", body = serde_json::Value),
        (status = 202, description = "A notification was taken"),
        (status = 400, description = "No message of the protocol, or the header accept lacks application/json or text/event-stream", body = ErrorBody),
    )
)]
pub async fn mcp(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    let limits = http.body_limits();
    let (parts, body) = request.into_parts();
    let bytes = read_bytes(&parts.headers, body, limits).await?;
    // Host and origin were looked at with everything else that says who calls.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(limits.bytes_max)
        .disable_allowed_hosts();
    let tools = move || {
        Ok(Tools {
            http: http.clone(),
            context: context.clone(),
        })
    };
    let sessions = Arc::new(NeverSessionManager::default());
    let service = StreamableHttpService::new(tools, sessions, config);
    let request = Request::from_parts(parts, Full::new(bytes));
    let response = service.handle(request).await;
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_message = kind.is_some_and(|kind| kind.as_bytes() != b"text/plain");
    if response.status().is_client_error() && !is_message {
        // Words of the library about headers and syntax, in the form of every other refusal.
        let Ok(words) = response.into_body().collect().await;
        let words = String::from_utf8_lossy(&words.to_bytes()).into_owned();
        return Err(ApiError::invalid("body", words));
    }
    Ok(response.map(Body::new))
}
