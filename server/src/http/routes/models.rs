//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use hone_domain::civil;
use serde::Serialize;
use utoipa::ToSchema;

use super::Reply;
use super::talk::choose;
use crate::http::Http;
use crate::http::envelope::Asked;
use crate::http::error::{ApiError, ErrorBody};

/// A model name that requests may use.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelCard {
    /// The name.
    pub id: String,
    /// Always `model`.
    pub object: &'static str,
    /// Always `model`, as Anthropic's libraries read it.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The name, for people.
    pub display_name: String,
    /// Seconds since the Unix epoch when the model was loaded.
    pub created: i64,
    /// The same as RFC 3339 writes it.
    pub created_at: String,
    /// Always `hone`.
    pub owned_by: &'static str,
    /// The name without what is behind an `@`.
    pub root: String,
    /// Most tokens of prompt and completion together; none where serve does not run here.
    pub max_model_len: Option<usize>,
}

/// A list of models.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    pub object: &'static str,
    /// The models.
    pub data: Vec<ModelCard>,
}

/// A time in seconds since the Unix epoch as `2026-11-21T09:08:07Z`.
fn rfc3339(seconds: i64) -> String {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

fn cards(http: &Http) -> Vec<ModelCard> {
    let max_model_len = http
        .door
        .as_ref()
        .map(|door| door.backend.capabilities().max_positions);
    let created = http.models.created;
    let card = |id: String, root: &str| ModelCard {
        display_name: id.clone(),
        id,
        object: "model",
        kind: "model",
        created,
        created_at: rfc3339(created),
        owned_by: "hone",
        root: root.to_owned(),
        max_model_len,
    };
    let names = std::iter::once(&http.models.name).chain(&http.models.aliases);
    let forms = |name: &String| {
        let suffixed = |suffix: &str| card(format!("{name}@{suffix}"), name);
        [
            card(name.clone(), name),
            suffixed("stable"),
            suffixed("base"),
        ]
    };
    names.flat_map(forms).collect()
}

/// The card of one version, which no list names.
fn versioned(http: &Http, id: &str) -> Option<ModelCard> {
    let name = id.rsplit_once('@')?.0;
    let card = cards(http).into_iter().find(|card| card.id == name)?;
    Some(ModelCard {
        id: id.to_owned(),
        display_name: id.to_owned(),
        ..card
    })
}

/// Lists the names a request may use. The plain name is the caller's own newest policy; `@stable`
/// is the newest that is not on trial, `@base` the model without anything learned, and `@v12`,
/// which is not listed, version 12 of the caller's policy.
#[utoipa::path(
    get,
    path = "/v1/models",
    responses(
        (status = 200, body = ModelList),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
    )
)]
pub async fn list_models(State(http): State<Arc<Http>>) -> Json<ModelList> {
    Json(ModelList {
        object: "list",
        data: cards(&http),
    })
}

/// One model; the id may hold slashes.
#[utoipa::path(
    get,
    path = "/v1/models/{*id}",
    params(("id" = String, Path, description = "A name that the list has")),
    responses(
        (status = 200, body = ModelCard),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, body = ErrorBody),
    )
)]
pub async fn get_model(
    State(http): State<Arc<Http>>,
    asked: Asked,
    Path(id): Path<String>,
) -> Reply<ModelCard> {
    let mut card = cards(&http).into_iter().find(|card| card.id == id);
    if card.is_none() {
        choose(&http, &id, (None, &asked)).await?;
        card = versioned(&http, &id);
    }
    card.map(Json)
        .ok_or_else(|| ApiError::ModelNotFound(id.chars().take(200).collect()))
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(seconds), expected);
        }
    }
}
