//! Probes, which never touch the ledger, and `/metrics`, which asks it for the work that waits, for at most a second.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hone_runtime::LoopPhase;
use tokio::time::timeout;

use crate::Http;
use crate::metrics;
use hone_replies::error::{ApiError, ErrorBody};

/// How long the ledger may take to say how much work waits; `/metrics` goes out without that number then.
const LEDGER_MAX: Duration = Duration::from_secs(1);

/// Whether the process lives.
#[utoipa::path(get, path = "/livez", responses((status = 200, description = "It lives", body = String, content_type = "text/plain")))]
pub async fn livez() -> &'static str {
    "ok\n"
}

/// Whether new requests are welcome.
#[utoipa::path(
    get,
    path = "/readyz",
    responses(
        (status = 200, description = "They are", body = String, content_type = "text/plain"),
        (status = 503, description = "They are not, and why", body = ErrorBody),
    )
)]
pub async fn readyz(State(http): State<Arc<Http>>) -> Response {
    if let Some(why) = http.life.unwelcome() {
        return not_ready(why);
    }
    // An engine without work learns of its switch with the next request.
    let switch = http.registry.switch("serve");
    if switch.is_some_and(|switch| switch.is_paused()) {
        return not_ready(
            "the serve loop is switched off; POST /admin/v1/loops/serve/resume switches it on",
        );
    }
    let serve = http.registry.snapshot().get("serve").map(|s| s.state);
    match serve {
        Some(LoopPhase::Stopped | LoopPhase::Restarting) => {
            not_ready("the serve loop does not run at present")
        }
        _ => ready(&http).into_response(),
    }
}

/// Why it is ready, and what needs attention all the same: names of alerts, which `/admin/v1/why` explains.
fn ready(http: &Http) -> String {
    let attention = http.watch.troubles.ids();
    attention.iter().fold("ok\n".to_owned(), |text, id| {
        format!("{text}attention: {id}\n")
    })
}

/// Whether answers are recorded and learned from. Serving may be ready all the same.
#[utoipa::path(
    get,
    path = "/readyz/learning",
    responses(
        (status = 200, description = "They are", body = String, content_type = "text/plain"),
        (status = 503, description = "They are not, and the name of the alert that says why", body = ErrorBody),
    )
)]
pub async fn readyz_learning(State(http): State<Arc<Http>>) -> Response {
    match http.watch.troubles.stops_learning() {
        None => ready(&http).into_response(),
        Some(trouble) => not_ready(&format!(
            "nothing is learned at present ({}); GET /admin/v1/why says more",
            trouble.id
        )),
    }
}

fn not_ready(why: &str) -> Response {
    ApiError::Unavailable {
        code: "not_ready",
        message: why.to_owned(),
    }
    .into_response()
}

/// Whether the start is over. The port is bound after the model is loaded, so an answer is a yes.
#[utoipa::path(get, path = "/startupz", responses((status = 200, description = "It is", body = String, content_type = "text/plain")))]
pub async fn startupz() -> &'static str {
    "ok\n"
}

/// Everything that is counted, for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    responses(
        (status = 200, description = "Prometheus text format 0.0.4", body = String, content_type = "text/plain"),
    )
)]
pub async fn metrics(State(http): State<Arc<Http>>) -> Response {
    let content = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let work = timeout(LEDGER_MAX, http.jobs.scaling()).await;
    let work = work.ok().and_then(Result::ok).unwrap_or_default();
    (
        StatusCode::OK,
        [(header::CONTENT_TYPE, content)],
        metrics::render(&http, &work),
    )
        .into_response()
}
