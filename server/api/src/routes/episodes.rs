//! `GET /v1/episodes/{id}`: how an attempt at a task ended, or what an episode or a session recorded in a format.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use hone_api_types::episodes::EpisodeFormat;
use hone_api_types::rollouts::EpisodeReply;
use hone_domain::{Job, JobId, SessionId};
use serde::Deserialize;
use serde_json::Value;
use utoipa::IntoParams;

use super::Reply;
use crate::Http;
use crate::lists;
use crate::recorded::{episode_of, newest_main_turn};
use crate::request_context::RequestContext;
use hone_replies::error::{ApiError, ErrorBody};

/// What a format is asked of.
const WITH_A_TURN: &str = "episode or session with a turn";

/// In which form.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EpisodeQuery {
    /// `hone`, `atif`, `openenv` or `verifiers`: what was recorded, in that format. Without it, how a rollout's episode
    /// ended.
    pub format: Option<String>,
}

/// An episode of the caller: how it ended or, with `format`, what it recorded. With a format the id may be that of a session
/// too.
#[utoipa::path(
    get,
    path = "/v1/episodes/{id}",
    params(("id" = String, Path, description = "Its id, or with a format that of a session"), EpisodeQuery),
    responses(
        (status = 200, description = "The episode; with `format` an object or a list of that format", body = EpisodeReply),
        (status = 404, description = "No such episode or session of yours", body = ErrorBody),
        (status = 409, description = "`not_kept`", body = ErrorBody),
    )
)]
pub async fn get_episode(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
    query: Result<Query<EpisodeQuery>, QueryRejection>,
) -> Reply<Value> {
    let query = lists::query(query)?;
    let known = |name: &str| EpisodeFormat::from_name(name);
    let expected = "hone, atif, openenv or verifiers";
    let format = lists::word("format", query.format.as_deref(), (known, expected))?;
    let job = job_of(&http, &context, &id).await?;
    let Some(format) = format else {
        let job = job.ok_or_else(|| ApiError::unknown("episode", &id))?;
        let reply = serde_json::to_value(EpisodeReply::from(job));
        let reply = reply.map_err(|error| ApiError::Internal(error.to_string()))?;
        return Ok(Json(reply));
    };
    let session = match job {
        Some(job) => job.session,
        None => SessionId::parse(&id),
    };
    let session = session.ok_or_else(|| ApiError::unknown(WITH_A_TURN, &id))?;
    written(&http, &context, (&id, session), format).await
}

async fn job_of(http: &Http, context: &RequestContext, id: &str) -> Result<Option<Job>, ApiError> {
    match JobId::parse(id) {
        Some(job) => Ok(http.jobs.job(&context.caller.owner, job).await?),
        None => Ok(None),
    }
}

async fn written(
    http: &Http,
    context: &RequestContext,
    (id, session): (&str, SessionId),
    format: EpisodeFormat,
) -> Reply<Value> {
    let owner = &context.caller.owner;
    let last = newest_main_turn(&*http.ledger, session).await?;
    let last = last.filter(|view| view.turn.owner == *owner && !view.is_withdrawn());
    let last = last.ok_or_else(|| ApiError::unknown(WITH_A_TURN, id))?;
    let base = http
        .inference
        .as_ref()
        .map(|inference| inference.backend.capabilities().base);
    let model = base.map(|base| (http.models.name.clone(), base));
    let ledgers = (&*http.ledger, &*http.jobs);
    let episode = episode_of(ledgers, last, model).await?;
    let episode = episode.ok_or_else(|| ApiError::Conflict {
        code: "not_kept",
        message: "the words of its newest turn are not kept any more (retention)".to_owned(),
    })?;
    Ok(Json(episode.written(format)))
}
