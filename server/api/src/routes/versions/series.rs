//! What was measured of a scope's versions, as series that a chart can draw however many there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use hone_domain::Scope;
use hone_ledger::{PolicyRecord, Window};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::target::any_scope;
use crate::routes::Reply;
use crate::{Http, lists};
use hone_replies::error::ApiError;

/// Most names of one request.
const NAMES_MAX: usize = 32;
/// Points where nothing is said, and the most.
const POINTS: (usize, usize) = (400, 2_000);
/// Most versions that one request reads, the newest of those it asks for.
const VERSIONS_MAX: u64 = 20_000;
/// Versions read at once.
const PIECE: usize = 500;

/// Which numbers of which versions.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct VersionSeriesQuery {
    /// A scope's text.
    pub scope: String,
    /// Names with commas between them: `mean_score`, `scored_turns`, `samples`, or a number out of
    /// a version's report or gate, dotted where it stands deeper.
    pub names: String,
    /// The first version; 1 if absent.
    pub from: Option<u64>,
    /// The last version; the newest if absent.
    pub to: Option<u64>,
    /// Most points, 2 to 2000; 400 if absent.
    pub points: Option<usize>,
}

/// Numbers of versions, oldest first.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct VersionSeriesReply {
    /// Always `version_series`.
    pub object: &'static str,
    /// Versions that one point stands for.
    pub step: u64,
    /// The last version of each point.
    pub versions: Vec<u64>,
    /// By name one value per point: the mean of its versions (the largest where the name ends in
    /// `_max`); null where nothing was measured.
    #[schema(value_type = Object)]
    pub data: BTreeMap<String, Vec<Option<f64>>>,
}

/// One value of a point while it is gathered.
#[derive(Clone, Copy, Debug, Default)]
struct Gathered {
    sum: f64,
    count: u32,
    largest: Option<f64>,
}

impl Gathered {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
        self.largest = Some(self.largest.map_or(value, |most| most.max(value)));
    }

    fn value(self, name: &str) -> Option<f64> {
        match name.ends_with("_max") {
            true => self.largest,
            false => (self.count > 0).then(|| self.sum / f64::from(self.count)),
        }
    }
}

/// Versions in equal steps.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: u64,
    to: u64,
    step: u64,
}

impl Span {
    /// Of `from` to `to`, both of them included, in at most so many points.
    fn new(from: u64, to: u64, points: usize) -> Self {
        let count = (to + 1).saturating_sub(from);
        let step = count.div_ceil(points as u64).max(1);
        Self { from, to, step }
    }

    fn points(&self) -> usize {
        usize::try_from((self.to + 1).saturating_sub(self.from).div_ceil(self.step)).unwrap_or(0)
    }

    fn place(&self, version: u64) -> Option<usize> {
        let is_in = (self.from..=self.to).contains(&version);
        is_in.then(|| usize::try_from((version - self.from) / self.step).unwrap_or(usize::MAX))
    }

    fn versions(&self) -> Vec<u64> {
        let last = |point: usize| self.from + (point as u64 + 1) * self.step - 1;
        let points = 0..self.points();
        points.map(|point| last(point).min(self.to)).collect()
    }
}

fn names_of(text: &str) -> Result<Vec<String>, ApiError> {
    let names = text.split(',').map(str::trim).filter(|n| !n.is_empty());
    let names: Vec<String> = names.map(str::to_owned).collect();
    if (1..=NAMES_MAX).contains(&names.len()) {
        return Ok(names);
    }
    Err(ApiError::invalid(
        "names",
        format!("names must be 1 to {NAMES_MAX}, not {}", names.len()),
    ))
}

/// A number of a version: of itself, its step, its batch, its gate, or its report.
fn measured(record: &PolicyRecord, score: Option<(f64, u64)>, name: &str) -> Option<f64> {
    match name {
        "mean_score" => return score.map(|(mean, _)| mean),
        "scored_turns" => return score.map(|(_, count)| count as f64),
        "samples" => return Some(record.samples as f64),
        _ => {}
    }
    let (report, gate) = (&record.report, &record.gate);
    let places = [
        &report["step"],
        &report["batch"],
        &gate["measured"],
        gate,
        report,
    ];
    places.into_iter().find_map(|place| below(place, name))
}

/// A dotted name below a value.
fn below(value: &Value, name: &str) -> Option<f64> {
    let found = name.split('.').try_fold(value, |at, part| at.get(part))?;
    found.as_f64().filter(|number| number.is_finite())
}

/// Reads the versions of a span piece by piece, newest first.
async fn gather(
    http: &Http,
    scope: &Scope,
    span: Span,
    names: &[String],
) -> Result<Vec<Vec<Gathered>>, ApiError> {
    let scores = http.ledger.scores_by_version(scope).await?;
    let mut gathered = vec![vec![Gathered::default(); span.points()]; names.len()];
    let mut before = span.to.saturating_add(1);
    while before > span.from {
        let page = Window {
            limit: PIECE,
            before: i64::try_from(before).ok(),
        };
        let records = http.versions.version_page(scope, page).await?;
        let Some(last) = records.last() else { break };
        before = last.policy.version.0;
        for record in &records {
            let version = record.policy.version;
            let Some(place) = span.place(version.0) else {
                continue;
            };
            let score = scores.binary_search_by_key(&version, |(v, ..)| *v);
            let score = score.ok().map(|at| (scores[at].1, scores[at].2));
            for (name, points) in names.iter().zip(&mut gathered) {
                if let Some(value) = measured(record, score, name) {
                    points[place].add(value);
                }
            }
        }
    }
    Ok(gathered)
}

/// What was measured of a scope's versions.
#[utoipa::path(
    get,
    path = "/admin/v1/versions/series",
    params(VersionSeriesQuery),
    responses(
        (status = 200, body = VersionSeriesReply),
    )
)]
pub async fn version_series(
    State(http): State<Arc<Http>>,
    query: Result<Query<VersionSeriesQuery>, QueryRejection>,
) -> Reply<VersionSeriesReply> {
    let query = lists::query(query)?;
    let scope = any_scope(Some(&query.scope))?;
    let names = names_of(&query.names)?;
    let points = query.points.unwrap_or(POINTS.0);
    if !(2..=POINTS.1).contains(&points) {
        return Err(ApiError::invalid(
            "points",
            format!("points must be between 2 and {}, not {points}", POINTS.1),
        ));
    }
    let newest = http.policies.get().version(&scope).0;
    let to = query.to.unwrap_or(newest).min(newest);
    let from = query.from.unwrap_or(1).max(1);
    let span = Span::new(from.max((to + 1).saturating_sub(VERSIONS_MAX)), to, points);
    let gathered = gather(&http, &scope, span, &names).await?;
    let data = names.into_iter().zip(gathered).map(|(name, points)| {
        let values = points.into_iter().map(|point| point.value(&name));
        (name.clone(), values.collect())
    });
    Ok(Json(VersionSeriesReply {
        object: "version_series",
        step: span.step,
        versions: span.versions(),
        data: data.collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_cover_every_version_once() {
        for (from, to, points) in [
            (1, 1_000, 400),
            (1, 5, 2),
            (3, 3, 2),
            (7, 6, 9),
            (1, 800, 400),
        ] {
            let span = Span::new(from, to, points);
            assert!(span.points() <= points, "{span:?}");
            let versions = span.versions();
            assert_eq!(versions.len(), span.points(), "{span:?}");
            assert_eq!(versions.last().copied(), (from <= to).then_some(to));
            for version in from..=to {
                let place = span.place(version).map(|at| versions[at]);
                assert!(place.is_some_and(|last| last >= version && last < version + span.step));
            }
            assert_eq!(span.place(to + 1), None);
        }
    }
}
