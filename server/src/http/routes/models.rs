//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::Reply;
use crate::http::Http;
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
    /// The name without `@base`.
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
    names
        .flat_map(|name| [card(name.clone(), name), card(format!("{name}@base"), name)])
        .collect()
}

/// Lists the names a request may use. The plain name is the caller's own newest policy; `@base`
/// is the model without anything learned.
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
pub async fn get_model(State(http): State<Arc<Http>>, Path(id): Path<String>) -> Reply<ModelCard> {
    let card = cards(&http).into_iter().find(|card| card.id == id);
    card.map(Json)
        .ok_or_else(|| ApiError::ModelNotFound(id.chars().take(200).collect()))
}
