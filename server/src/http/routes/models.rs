//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
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
    /// Seconds since the Unix epoch when the model was loaded.
    pub created: i64,
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

fn cards(http: &Http) -> Vec<ModelCard> {
    let max_model_len = http
        .door
        .as_ref()
        .map(|door| door.backend.capabilities().max_positions);
    let card = |id: String, root: &str| ModelCard {
        id,
        object: "model",
        created: http.models.created,
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
