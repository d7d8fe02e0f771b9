//! `/admin/v1`: series, the answer to "is it learning", settings, drain.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::Reply;
use super::auth::strict;
use crate::request_context::RequestContext;
use crate::settings::Setting;
use crate::{Http, lists};
use hone_monitor::watch::Since;
use hone_monitor::watch::why::Learning;
use hone_replies::error::ApiError;

/// Most names of one request.
const NAMES_MAX: usize = 64;

/// Which series, from when.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SeriesQuery {
    /// Names with commas between them; all if absent.
    pub names: Option<String>,
    /// Points from this time on, in milliseconds since the Unix epoch; every fine one if absent.
    /// Where it is further back than fine samples are kept, the points are coarse.
    pub since_ms: Option<i64>,
}

/// Series of what was measured.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SeriesReply {
    /// Always `series`.
    pub object: &'static str,
    /// Milliseconds between two points.
    pub step_ms: u64,
    /// Points by name: time in milliseconds since the Unix epoch, and value; null where nothing
    /// was measured.
    #[schema(value_type = Object)]
    pub data: BTreeMap<String, Vec<(i64, Option<f64>)>>,
    /// Every name that was measured so far.
    pub names: Vec<String>,
}

/// What was measured lately.
#[utoipa::path(
    get,
    path = "/admin/v1/series",
    params(SeriesQuery),
    responses(
        (status = 200, body = SeriesReply),
    )
)]
pub async fn series(
    State(http): State<Arc<Http>>,
    query: Result<Query<SeriesQuery>, QueryRejection>,
) -> Reply<SeriesReply> {
    let query = lists::query(query)?;
    let names = query.names.map(|names| {
        let names = names
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        names.map(str::to_owned).collect::<Vec<String>>()
    });
    let count = names.as_ref().map_or(0, Vec::len);
    if count > NAMES_MAX {
        return Err(ApiError::invalid(
            "names",
            format!("names must be at most {NAMES_MAX}, not {count}; leave it out for all"),
        ));
    }
    let series = http.watch.series(names, query.since_ms);
    Ok(Json(SeriesReply {
        object: "series",
        step_ms: series.step_ms,
        data: series.data,
        names: series.names,
    }))
}

/// Whether it is learning, and what needs attention.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WhyReply {
    /// Always `why`.
    pub object: &'static str,
    /// In a word.
    pub learning: Learning,
    /// In a sentence.
    pub sentence: String,
    /// What needs attention.
    pub alerts: Vec<Since>,
}

/// Is it learning, and if not, why not.
#[utoipa::path(
    get,
    path = "/admin/v1/why",
    responses(
        (status = 200, body = WhyReply),
    )
)]
pub async fn why(State(http): State<Arc<Http>>) -> Json<WhyReply> {
    // Before the first sample nothing is known yet.
    if http.watch.newest_ms().is_none() {
        http.watch.sample(&http.sources()).await;
    }
    let (why, alerts) = http.watch.why();
    Json(WhyReply {
        object: "why",
        learning: why.learning,
        sentence: why.sentence,
        alerts,
    })
}

/// The resolved configuration.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ConfigReply {
    /// Always `config`.
    pub object: &'static str,
    /// Every setting.
    pub data: Vec<Setting>,
}

/// Every setting, where its value comes from, and what it is for. Secrets are shown as `(set)`.
#[utoipa::path(
    get,
    path = "/admin/v1/config",
    responses(
        (status = 200, body = ConfigReply),
    )
)]
pub async fn config(State(http): State<Arc<Http>>) -> Json<ConfigReply> {
    Json(ConfigReply {
        object: "config",
        data: http.settings.get().to_vec(),
    })
}

/// Whether new completions are refused.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DrainReply {
    /// Always `drain`.
    pub object: &'static str,
    /// Whether new completions are refused.
    pub draining: bool,
    /// Completions still under way.
    pub completions_live: usize,
}

/// What is wished.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct DrainRequest {
    /// Whether new completions are to be refused; true if absent.
    pub draining: Option<bool>,
}

/// Refuses new completions from now on, or takes them again; those under way finish, and the loops
/// go on.
#[utoipa::path(
    post,
    path = "/admin/v1/drain",
    request_body = DrainRequest,
    responses(
        (status = 200, body = DrainReply),
    )
)]
pub async fn drain(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Reply<DrainReply> {
    let wish: DrainRequest = strict(&http, request).await?;
    let draining = wish.draining.unwrap_or(true);
    let act = if draining { "drain.begin" } else { "drain.end" };
    http.audit
        .record(&context.caller, act, "", json!({}))
        .await?;
    match draining {
        true => http.life.drain(),
        false => http.life.resume(),
    }
    tracing::info!(draining, "the drain was switched");
    Ok(Json(DrainReply {
        object: "drain",
        draining: http.life.is_draining(),
        completions_live: http
            .inference
            .as_ref()
            .map_or(0, |inference| inference.live.count()),
    }))
}
