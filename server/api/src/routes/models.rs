//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use hone_domain::civil;
use serde::Serialize;
use utoipa::ToSchema;

use super::Reply;
use super::talk::choose;
use crate::Http;
use crate::request_context::RequestContext;
use hone_replies::error::{ApiError, ErrorBody};

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
    /// Most tokens of prompt and completion together; none where serve does not run here. The same
    /// number has other names, because clients look for it under the one that their provider has.
    pub max_model_len: Option<usize>,
    /// As `max_model_len`.
    pub context_length: Option<usize>,
    /// As `max_model_len`.
    pub context_window: Option<usize>,
    /// As `max_model_len`.
    pub max_context_length: Option<usize>,
    /// As `max_model_len`.
    pub max_input_tokens: Option<usize>,
    /// As `max_model_len`: an answer may take all that the prompt leaves.
    pub max_tokens: Option<usize>,
    /// As `max_tokens`.
    pub max_output_tokens: Option<usize>,
    /// The same where llama.cpp's server has it.
    pub meta: ModelMeta,
}

/// The length of a model under the names of llama.cpp's server.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelMeta {
    /// Most tokens of prompt and completion together.
    pub n_ctx: Option<usize>,
    /// Most tokens that the model itself takes.
    pub n_ctx_train: Option<usize>,
}

/// A list of models.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelList {
    /// Always `list`.
    pub object: &'static str,
    /// The models.
    pub data: Vec<ModelCard>,
    /// Whether there are more; always false.
    pub has_more: bool,
    /// The first of these.
    pub first_id: Option<String>,
    /// The last of these.
    pub last_id: Option<String>,
}

/// A time in seconds since the Unix epoch as `2026-11-21T09:08:07Z`.
fn rfc3339(seconds: i64) -> String {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

fn cards(http: &Http) -> Vec<ModelCard> {
    let able = http.inference.as_ref();
    let able = able.map(|inference| inference.backend.capabilities());
    let max_model_len = able.as_ref().map(|able| able.max_positions);
    let n_ctx_train = able.as_ref().map(|able| able.model_positions);
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
        context_length: max_model_len,
        context_window: max_model_len,
        max_context_length: max_model_len,
        max_input_tokens: max_model_len,
        max_tokens: max_model_len,
        max_output_tokens: max_model_len,
        meta: ModelMeta {
            n_ctx: max_model_len,
            n_ctx_train,
        },
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
    )
)]
pub async fn list_models(State(http): State<Arc<Http>>) -> Json<ModelList> {
    let data = cards(&http);
    let id = |card: Option<&ModelCard>| card.map(|card| card.id.clone());
    Json(ModelList {
        object: "list",
        has_more: false,
        first_id: id(data.first()),
        last_id: id(data.last()),
        data,
    })
}

/// One model; the id may hold slashes.
#[utoipa::path(
    get,
    path = "/v1/models/{*id}",
    params(("id" = String, Path, description = "A name that the list has")),
    responses(
        (status = 200, body = ModelCard),
        (status = 404, body = ErrorBody),
    )
)]
pub async fn get_model(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Reply<ModelCard> {
    let mut card = cards(&http).into_iter().find(|card| card.id == id);
    if card.is_none() {
        choose(&http, &id, None, &context).await?;
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
