//! What a process answers while it stands by for another one: probes find it alive and not ready, and everything else says whom
//! it waits for.

use axum::Router;
use axum::response::IntoResponse as _;
use axum::routing::get;
use tokio::sync::watch;

use hone_replies::error::ApiError;

/// The routes of a process that stands by, and why it does by now.
pub fn router(why: watch::Receiver<String>) -> Router {
    let refused = async move || {
        let code = "standing_by";
        let message = format!("this process stands by: {}", *why.borrow());
        ApiError::Unavailable { code, message }.into_response()
    };
    Router::new()
        .route("/livez", get("ok\n"))
        .route("/startupz", get("ok\n"))
        .route(
            "/metrics",
            get(
                "# HELP hone_standing_by 1 while this process waits for another one to end.\n\
                 # TYPE hone_standing_by gauge\nhone_standing_by 1\n",
            ),
        )
        .fallback(refused)
}
