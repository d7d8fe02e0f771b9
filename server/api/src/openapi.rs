//! `GET /openapi.json`: generated from the same macros that register the routes.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::routing::get;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use hone_api_types::Cursor;
use hone_replies::error::ErrorBody;

#[derive(utoipa::OpenApi)]
#[openapi(
    components(schemas(ErrorBody, Cursor)),
    info(
        title = "Hone",
        description = "An OpenAI-compatible server whose model gets better by being used. With the header \
                   `x-hone-agent: NAME`, keys and data of an agent are at the paths of one's own."
    )
)]
struct Document;

/// The document without paths.
pub fn base() -> OpenApi {
    Document::openapi()
}

/// The route that serves the finished document.
pub fn route<S: Clone + Send + Sync + 'static>(document: &OpenApi) -> Router<S> {
    let text = document
        .to_json()
        .expect("the document is made of strings and maps");
    // The router's "rest of the path" is no OpenAPI notion.
    let text: Arc<str> = text.replace("/{*id}", "/{id}").into();
    Router::new().route(
        "/openapi.json",
        get(move || {
            let json = HeaderValue::from_static("application/json");
            let text = text.to_string();
            async move { ([(header::CONTENT_TYPE, json)], text) }
        }),
    )
}
