//! `/admin/v1`: what the console and the command line need.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use hone_ledger::LedgerCounts;
use hone_runtime::LoopStatus;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};
use utoipa::{IntoParams, ToSchema};

use super::Reply;
use crate::request_context::RequestContext;
use crate::{Http, lists};
use hone_accounts::Caller;
use hone_api_types::under_way::UnderWayReply;
use hone_domain::Loop;
use hone_inference::computed::Computed;
use hone_monitor::numbers::{EngineStatus, GatewayStatus};
use hone_replies::error::{ApiError, ErrorBody};
use hone_replies::sse;

/// Longest that a status waits for the ledger's counts.
const COUNTS_TIMEOUT: Duration = Duration::from_secs(2);

/// What is served.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelStatus {
    /// Its name.
    pub name: String,
    /// What answers: `hone` (the built-in engine) or `null` (no model, for load tests).
    pub backend: &'static str,
    /// Whether its turns may train.
    pub can_train: bool,
    /// Arithmetic, weight and key-value format.
    pub fingerprint: String,
    /// Content hash of the base model.
    pub base_digest: String,
    /// Most tokens of prompt and completion together.
    pub max_positions: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// What computes it, and how; null without the built-in engine.
    pub computed: Option<Computed>,
}

/// The whole process at a glance.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct StatusReply {
    /// Version of the program.
    pub version: &'static str,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Whether it is stopping.
    pub draining: bool,
    /// What is served; null where serve does not run here.
    pub model: Option<ModelStatus>,
    /// The engine's counters.
    pub engine: Option<EngineStatus>,
    /// The loops.
    #[schema(value_type = Object)]
    pub loops: BTreeMap<&'static str, LoopStatus>,
    /// Turns by how far their hints came since the loops began: `turns`, `judged`, `hinted` (somebody
    /// said what should have been done), `accepted` (and it was kept), `chosen` (by the policy, among several), `trained` (and learned
    /// from).
    #[schema(value_type = Object)]
    pub funnel: BTreeMap<&'static str, u64>,
    /// How many turns are where; null if the ledger did not answer in time.
    #[schema(value_type = Option<Object>)]
    pub ledger: Option<LedgerCounts>,
    /// What the gateway holds.
    #[serde(flatten)]
    pub gateway: GatewayStatus,
    /// The training job under way; null where there is none.
    pub learning: Option<JobStatus>,
}

/// A training job, and whose it is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct JobStatus {
    /// Whose policy learns.
    pub scope: String,
    /// How far it is.
    #[serde(flatten)]
    pub job: UnderWayReply,
}

fn job(http: &Http) -> Option<JobStatus> {
    (http.under_way)().map(|job| JobStatus {
        scope: job.scope.to_string(),
        job: UnderWayReply::new(&job),
    })
}

fn engine(http: &Http) -> Option<EngineStatus> {
    let inference = http.inference.as_ref()?;
    Some(EngineStatus::from(&inference.backend.stats()))
}

/// The whole process at a glance.
#[utoipa::path(
    get,
    path = "/admin/v1/status",
    responses(
        (status = 200, body = StatusReply),
    )
)]
pub async fn status(State(http): State<Arc<Http>>) -> Json<StatusReply> {
    let counts = timeout(COUNTS_TIMEOUT, http.ledger.counts()).await;
    let ledger = match counts {
        Ok(Ok(counts)) => Some(counts),
        Ok(Err(error)) => {
            tracing::error!(%error, "the ledger could not be counted");
            None
        }
        Err(_) => None,
    };
    let model = http.inference.as_ref().map(|inference| {
        let capabilities = inference.backend.capabilities();
        ModelStatus {
            name: http.models.name.clone(),
            backend: capabilities.name,
            can_train: capabilities.can_train,
            fingerprint: capabilities.fingerprint,
            base_digest: capabilities.base.to_hex(),
            max_positions: capabilities.max_positions,
            vocab: capabilities.vocab,
            computed: http.computed.clone(),
        }
    });
    let loops = http.registry.snapshot();
    Json(StatusReply {
        version: env!("CARGO_PKG_VERSION"),
        uptime_s: http.started.elapsed().as_secs(),
        draining: http.life.is_draining(),
        model,
        engine: engine(&http),
        funnel: hone_monitor::funnel::funnel(&loops).into_iter().collect(),
        loops,
        ledger,
        gateway: http.gateway(),
        learning: job(&http),
    })
}

/// What a `status` event holds.
#[derive(Serialize)]
struct Event {
    at_ms: i64,
    loops: BTreeMap<&'static str, LoopStatus>,
    engine: Option<EngineStatus>,
    scopes_with_policy: usize,
}

/// From when on samples are sent.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Samples after this time, in milliseconds since the Unix epoch; the newest one if absent. The
    /// header Last-Event-ID, which browsers send when they come back, wins.
    pub since_ms: Option<i64>,
}

struct Watcher {
    http: Arc<Http>,
    /// The last sample that was sent.
    sampled_ms: i64,
    last: Option<String>,
    beat: Instant,
    _place: OwnedSemaphorePermit,
}

impl Watcher {
    /// Gives the samples that were not sent yet, then waits for the next change, at most one per
    /// interval, with a heartbeat in between.
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let interval = Duration::from_millis(self.http.config.events_interval_ms);
        loop {
            if let Some(sample) = self.http.watch.after(self.sampled_ms) {
                self.sampled_ms = sample.at_ms;
                let event = sse::numbered_event("sample", sample.at_ms, &sample);
                return Some((event, self));
            }
            if self.last.is_some() {
                tokio::time::sleep(interval).await;
            }
            if self.http.life.is_stopping() {
                return None;
            }
            let mut event = Event {
                at_ms: 0,
                loops: self.http.registry.snapshot(),
                engine: engine(&self.http),
                scopes_with_policy: self.http.policies.get().len(),
            };
            // A tick of an idle loop is no news.
            let news = event.loops.iter().map(|(name, status)| {
                (
                    *name,
                    (
                        status.state,
                        status.queue_depth,
                        status.restarts,
                        &status.numbers,
                    ),
                )
            });
            let news = serde_json::to_string(&(
                news.collect::<BTreeMap<_, _>>(),
                &event.engine,
                event.scopes_with_policy,
            ))
            .unwrap_or_default();
            if self.last.as_ref() != Some(&news) {
                self.last = Some(news);
                self.beat = Instant::now();
                event.at_ms = self.http.clock.now_ms();
                return Some((sse::named_event(Some("status"), &event), self));
            }
            if self.beat.elapsed() >= sse::HEARTBEAT {
                self.beat = Instant::now();
                return Some((Bytes::from_static(sse::COMMENT), self));
            }
        }
    }
}

/// Follows samples and status as server-sent events. A sample's id is its time, so that a follower
/// that comes back gets every sample once; the status comes on change, at a bounded rate.
#[utoipa::path(
    get,
    path = "/admin/v1/events",
    params(EventsQuery),
    responses(
        (status = 200, description = "Events named `sample` and `status`", body = String, content_type = "text/event-stream"),
        (status = 429, description = "Too many watchers", body = ErrorBody),
    )
)]
pub async fn events(
    State(http): State<Arc<Http>>,
    headers: HeaderMap,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let query = lists::query(query)?;
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let last = last.and_then(|id| id.parse().ok());
    // Somebody new begins with the newest sample.
    let newest = || http.watch.newest_ms().map_or(i64::MIN, |newest| newest - 1);
    let sampled_ms = last.or(query.since_ms).unwrap_or_else(newest);
    let place = http.watchers.clone().try_acquire_owned();
    let place = place.map_err(|_| ApiError::Overloaded {
        message: "as many watch already as http.watchers_max allows".to_owned(),
        retry_after_ms: 5_000,
    })?;
    let watcher = Watcher {
        http,
        sampled_ms,
        last: None,
        beat: Instant::now(),
        _place: place,
    };
    Ok(sse::response(futures::stream::unfold(
        watcher,
        Watcher::next,
    )))
}

/// A loop after its switch was set.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LoopReply {
    /// The loop.
    pub name: String,
    /// Whether it is switched off.
    pub paused: bool,
}

async fn switch(http: &Http, caller: &Caller, name: String, paused: bool) -> Reply<LoopReply> {
    // The work beside the loops is in the status registry too, and goes on.
    let switch = Loop::named(&name).and_then(|_| http.registry.switch(&name));
    let Some(switch) = switch else {
        let shown: String = name.chars().take(100).collect();
        return Err(ApiError::NotFound(format!(
            "no loop {shown:?} runs in this process"
        )));
    };
    let act = if paused { "loop.pause" } else { "loop.resume" };
    http.audit.record(caller, act, &name, json!({})).await?;
    switch.pause(paused);
    tracing::info!(name, paused, "a loop was switched");
    Ok(Json(LoopReply { name, paused }))
}

/// Switches a loop off; its work waits meanwhile.
#[utoipa::path(
    post,
    path = "/admin/v1/loops/{name}/pause",
    params(("name" = String, Path, description = "A loop, as GET /admin/v1/status names it")),
    responses(
        (status = 200, body = LoopReply),
        (status = 404, description = "No such loop here", body = ErrorBody),
        (status = 503, description = "The act could not be recorded", body = ErrorBody),
    )
)]
pub async fn pause(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(name): Path<String>,
) -> Reply<LoopReply> {
    switch(&http, &context.caller, name, true).await
}

/// Switches a loop on again.
#[utoipa::path(
    post,
    path = "/admin/v1/loops/{name}/resume",
    params(("name" = String, Path, description = "A loop, as GET /admin/v1/status names it")),
    responses(
        (status = 200, body = LoopReply),
        (status = 404, description = "No such loop here", body = ErrorBody),
        (status = 503, description = "The act could not be recorded", body = ErrorBody),
    )
)]
pub async fn resume(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(name): Path<String>,
) -> Reply<LoopReply> {
    switch(&http, &context.caller, name, false).await
}
