//! Versions as they are: a list, and one with its lineage.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::Uri;
use hone_domain::{PolicyVersion, Scope};
use hone_ledger::{Arm, PolicyRecord, Standing, Window};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::common::{ListQuery, number, page_limit, unknown};
use super::target::Target;
use crate::Http;
use crate::lists;
use crate::request_context::RequestContext;
use crate::routes::Reply;
use hone_api_types::NumberedList;
use hone_api_types::learning::UserQuery;
use hone_replies::error::{ApiError, ErrorBody};

/// Most samples of one version that are listed.
const SAMPLES_MAX: usize = 1_000;

/// One published version.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct VersionReply {
    /// Always `version`.
    pub object: &'static str,
    /// Its number.
    pub version: u64,
    /// The version it continues; for a rollback the one it restores; 0 for an import.
    pub parent: u64,
    /// `published`, `rollback` or `imported`.
    #[schema(value_type = String)]
    pub status: hone_ledger::PolicyStatus,
    /// Content hash of the adapter; null where it is the base model.
    pub digest: Option<String>,
    /// Turns it learned from.
    pub samples: u64,
    /// Mean verdict of the turns it sampled.
    pub mean_score: Option<f64>,
    /// How many of its turns have a verdict with a score.
    pub scored_turns: u64,
    /// It is served until it is released.
    pub pinned: bool,
    /// The gate had too few prompts to compare on; the watch looks after it.
    pub provisional: bool,
    /// It was left because it did badly.
    pub tripped: bool,
    /// Its files are not there; it cannot be served again.
    pub pruned: bool,
    /// Its files were found to be damaged, and are kept aside.
    pub damaged: bool,
    /// It learned from something that was erased since; it cannot be served again.
    pub tainted: bool,
    /// A person took it out of service.
    pub retired: bool,
    /// It answers a share of the sessions.
    pub on_trial: bool,
    /// Why it was published, where a person or the watch said so.
    pub note: Option<String>,
    /// What the trainer measured.
    pub report: Value,
    /// What the gate measured.
    pub gate: Value,
    /// When, in milliseconds since the Unix epoch.
    pub published_ms: i64,
}

/// Versions of a scope, newest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct VersionList {
    /// The versions.
    #[serde(flatten)]
    pub page: NumberedList<VersionReply>,
    /// The version that new requests get; 0 is the base model.
    pub current: u64,
    /// What holds the scope: a pin, a trip, a trial.
    #[schema(value_type = Object)]
    pub standing: Standing,
    /// The trial, with what both sides have done.
    pub trial: Option<TrialReply>,
}

/// A version on trial.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TrialReply {
    /// On trial.
    pub version: u64,
    /// What the other sessions get.
    pub proven: u64,
    /// Share of the sessions that it answers.
    pub share: f64,
    /// Since when, in milliseconds since the Unix epoch.
    pub since_ms: i64,
    /// What both have done since then; what is on trial first.
    pub arms: Vec<ArmReply>,
}

/// What one side of a trial has done since it began.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ArmReply {
    /// The version that answered.
    pub version: u64,
    /// Answers.
    pub turns: u64,
    /// How many of them have a verdict with a score.
    pub scored_turns: u64,
    /// How many of these are below 0.
    pub complaints: u64,
    /// Mean score.
    pub mean_score: Option<f64>,
}

impl From<Arm> for ArmReply {
    fn from(arm: Arm) -> Self {
        Self {
            version: arm.version.0,
            turns: arm.turns,
            scored_turns: arm.scored_turns,
            complaints: arm.complaints,
            mean_score: arm.mean_score,
        }
    }
}

/// The trial of a scope with what both sides have done.
pub(super) async fn trial_reply(
    http: &Http,
    scope: &Scope,
    standing: &Standing,
) -> Result<Option<TrialReply>, ApiError> {
    let Some(trial) = &standing.trial else {
        return Ok(None);
    };
    let arms = http.versions.arms(scope, trial).await?;
    Ok(Some(TrialReply {
        version: trial.version.0,
        proven: trial.proven.0,
        share: trial.share,
        since_ms: trial.since_ms,
        arms: arms.map(ArmReply::from).into(),
    }))
}

/// A turn that a version learned from.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SampleReply {
    /// The turn.
    pub turn_id: String,
    /// Its current verdict's score.
    pub score: Option<f32>,
}

/// A version with its lineage both ways.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LineageReply {
    /// The version.
    #[serde(flatten)]
    pub version: VersionReply,
    /// What it continues, nearest first, down to 0.
    pub lineage: Vec<u64>,
    /// Versions that continue or restore it.
    pub children: Vec<u64>,
    /// Turns it learned from, oldest first; at most 1000.
    pub turns: Vec<SampleReply>,
}

type Score = (PolicyVersion, f64, u64);

pub(super) fn reply(
    record: PolicyRecord,
    standing: &Standing,
    current: PolicyVersion,
    scores: &[Score],
) -> VersionReply {
    let version = record.policy.version;
    let score = scores.binary_search_by_key(&version, |(v, ..)| *v);
    let score = score.ok().map(|at| &scores[at]);
    VersionReply {
        object: "version",
        version: version.0,
        parent: record.parent.0,
        status: record.status,
        digest: (!record.policy.is_base()).then(|| record.policy.digest.to_hex()),
        samples: record.samples,
        mean_score: score.map(|(_, mean, _)| *mean),
        scored_turns: score.map_or(0, |(.., n)| *n),
        pinned: standing.pinned && version == current,
        provisional: record.gate["provisional"] == true,
        tripped: record.is_tripped,
        pruned: record.is_pruned,
        damaged: record.is_damaged,
        tainted: record.is_tainted,
        retired: record.is_retired,
        on_trial: standing.trial.is_some_and(|trial| trial.version == version),
        note: record.note,
        report: record.report,
        gate: record.gate,
        published_ms: record.published_ms,
    }
}

pub(super) async fn list(
    http: &Http,
    scope: &Scope,
    query: &ListQuery,
) -> Result<VersionList, ApiError> {
    let page = Window {
        limit: page_limit(query.limit, 100)?,
        before: query.before,
    };
    // Before the list: where a trial has ended, what it left is in the list.
    let standing = http.versions.standing(scope).await?;
    let records = http.versions.version_page(scope, page).await?;
    let last = records.last().filter(|_| records.len() == page.limit);
    let next = last
        .map(|record| record.policy.version.0)
        .filter(|v| *v > 1);
    let scores = http.ledger.scores_by_version(scope).await?;
    let current = http.policies.get().version(scope);
    let data = records
        .into_iter()
        .map(|record| reply(record, &standing, current, &scores));
    Ok(VersionList {
        page: NumberedList::page(
            data.collect(),
            next.and_then(|next| i64::try_from(next).ok()),
        ),
        current: current.0,
        trial: trial_reply(http, scope, &standing).await?,
        standing,
    })
}

/// One version with its lineage.
pub(super) async fn lineage(
    http: &Http,
    scope: &Scope,
    version: PolicyVersion,
) -> Result<LineageReply, ApiError> {
    let view = http.versions.version(scope, version, SAMPLES_MAX).await?;
    let view = view.ok_or_else(|| unknown(version))?;
    let scores = http.ledger.scores_by_version(scope).await?;
    let standing = http.versions.standing(scope).await?;
    let current = http.policies.get().version(scope);
    let turns = view.samples.iter().map(|sample| SampleReply {
        turn_id: sample.turn.prefixed(),
        score: sample.score,
    });
    Ok(LineageReply {
        turns: turns.collect(),
        version: reply(view.record, &standing, current, &scores),
        lineage: view.lineage.iter().map(|v| v.0).collect(),
        children: view.children.iter().map(|v| v.0).collect(),
    })
}

/// Published versions of the caller's policy.
#[utoipa::path(
    get,
    path = "/v1/versions",
    params(ListQuery),
    responses(
        (status = 200, body = VersionList),
    )
)]
pub async fn list_versions(
    State(http): State<Arc<Http>>,
    target: Target,
    context: RequestContext,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Reply<VersionList> {
    let query = lists::query(query)?;
    let scope = target.listed(&http, &context, &query)?;
    Ok(Json(list(&http, &scope, &query).await?))
}

/// One version of the caller's policy with its lineage both ways.
#[utoipa::path(
    get,
    path = "/v1/versions/{version}",
    params(("version" = u64, Path, description = "Its number"), UserQuery),
    responses(
        (status = 200, body = LineageReply),
        (status = 404, body = ErrorBody),
    )
)]
pub async fn get_version(
    State(http): State<Arc<Http>>,
    target: Target,
    context: RequestContext,
    Path(version): Path<String>,
    uri: Uri,
) -> Reply<LineageReply> {
    let scope = target.read(&http, &context, &uri)?;
    Ok(Json(lineage(&http, &scope, number(&version)?).await?))
}
