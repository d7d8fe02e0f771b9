//! Responses that were kept: items that a request names, and `GET`, `DELETE` and `cancel` of
//! `/v1/responses/{id}`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use hone_domain::{ParsedOutput, StopReason, ToolCall, Turn, TurnId};
use hone_ledger::{Extent, LedgerError};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use utoipa::ToSchema;

use super::Reply;
use super::learning::erase_turn;
use crate::Http;
use crate::request_context::RequestContext;
use hone_api_types::feedback::parse_turn_id;
use hone_api_types::responses::{ResponsesRequest, Stored, StoredItem};
use hone_inference::call_id;
use hone_replies::error::{ApiError, ErrorBody};

/// Longest wait for a turn.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(5);

/// The stored items that a request names.
pub(super) async fn stored(
    http: &Http,
    body: &ResponsesRequest,
    context: &RequestContext,
) -> Result<Stored, ApiError> {
    let mut found = Stored::new();
    for id in body.references() {
        if found.contains_key(id) {
            continue;
        }
        let Some(turn) = turn_of_item(id) else {
            continue;
        };
        if let Some(turn) = own_turn(http, turn, context).await? {
            found.extend(items_of(&turn));
        }
    }
    Ok(found)
}

/// The turn that an item's id is made of.
fn turn_of_item(id: &str) -> Option<TurnId> {
    let (_, rest) = id.split_once('_')?;
    let uuid = uuid::Uuid::try_parse(rest.get(..32)?).ok()?;
    Some(TurnId(uuid))
}

/// A turn of the caller, if there is one.
pub(super) async fn own_turn(
    http: &Http,
    turn: TurnId,
    context: &RequestContext,
) -> Result<Option<Turn>, ApiError> {
    let is_own = |turn: &Turn| turn.owner == context.caller.owner;
    if let Some(turn) = http.spool.turn(turn).await {
        return Ok(Some(turn).filter(is_own));
    }
    let looked = timeout(LEDGER_TIMEOUT, http.ledger.turn(turn)).await;
    let view =
        looked.unwrap_or_else(|_| Err(LedgerError::Failed("it took too long".to_owned())))?;
    // One that lost its words with age is nothing that anybody can go on from.
    let view = view.filter(|view| is_own(&view.turn) && view.extent != Extent::Row);
    Ok(view.map(|view| view.turn))
}

/// The items of a stored response by the ids that they have in it, whole or streamed.
fn items_of(turn: &Turn) -> Stored {
    let parsed = ParsedOutput::whole(&turn.completion_text);
    let id = |prefix: &str, at: usize| format!("{prefix}_{}{at}", turn.id.0.simple());
    let mut items = Stored::new();
    let mut at = 0;
    if !parsed.reasoning.is_empty() {
        items.insert(id("rs", at), StoredItem::Reasoning);
        at += 1;
    }
    if !parsed.content.trim().is_empty() || parsed.calls.is_empty() {
        items.insert(id("msg", at), StoredItem::Said(parsed.content));
        at += 1;
    }
    for (number, call) in parsed.calls.into_iter().enumerate() {
        let call = ToolCall {
            id: call_id(turn.id, number),
            name: call.name,
            arguments: call.arguments,
        };
        for prefix in ["fc", "ctc"] {
            items.insert(id(prefix, at + number), StoredItem::Call(call.clone()));
        }
    }
    items
}

/// The caller's response of this id.
async fn response_of(http: &Http, id: &str, context: &RequestContext) -> Result<Turn, ApiError> {
    let unknown = || {
        let shown: String = id.chars().take(100).collect();
        ApiError::NotFound(format!(
            "no response {shown} of yours is known; responses with store false are not kept"
        ))
    };
    let turn = parse_turn_id(id).ok_or_else(unknown)?;
    own_turn(http, turn, context).await?.ok_or_else(unknown)
}

/// A kept response as it was answered; what its request repeated is not kept with it.
fn object_of(http: &Http, turn: &Turn) -> Value {
    let parsed = ParsedOutput::whole(&turn.completion_text);
    let id = |prefix: &str, at: usize| format!("{prefix}_{}{at}", turn.id.0.simple());
    let is_cut = turn.completion.stop() == StopReason::Length;
    let mut output = Vec::new();
    if !parsed.reasoning.is_empty() {
        let content = json!([{"type": "reasoning_text", "text": parsed.reasoning}]);
        let id = id("rs", output.len());
        output.push(json!({"type": "reasoning", "id": id, "summary": [], "content": content}));
    }
    if !parsed.content.trim().is_empty() || parsed.calls.is_empty() {
        let status = if is_cut { "incomplete" } else { "completed" };
        let part = json!({"type": "output_text", "text": parsed.content, "annotations": [], "logprobs": []});
        let id = id("msg", output.len());
        output.push(
            json!({"type": "message", "id": id, "status": status, "role": "assistant",
            "content": [part]}),
        );
    }
    for (number, call) in parsed.calls.iter().enumerate() {
        let id = id("fc", output.len());
        output.push(
            json!({"type": "function_call", "id": id, "status": "completed",
            "call_id": call_id(turn.id, number), "name": call.name, "arguments": call.arguments}),
        );
    }
    let (input, sampled) = (turn.prompt_tokens.len(), turn.completion.len());
    json!({
        "id": format!("resp_{}", turn.id), "object": "response",
        "created_at": turn.started_ms / 1_000, "completed_at": turn.finished_ms / 1_000,
        "status": if is_cut { "incomplete" } else { "completed" },
        "model": http.models.name, "error": Value::Null,
        "incomplete_details": is_cut.then(|| json!({"reason": "max_output_tokens"})),
        "output": output, "metadata": turn.admission.metadata, "store": true,
        "instructions": Value::Null, "previous_response_id": Value::Null,
        "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
        "temperature": turn.sampling.temperature, "top_p": turn.sampling.top_p,
        "usage": {
            "input_tokens": input, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": sampled, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": input + sampled,
        },
    })
}

/// A response that was kept.
#[utoipa::path(
    get,
    path = "/v1/responses/{id}",
    params(("id" = String, Path, description = "The response's id")),
    responses(
        (status = 200, description = "The response", body = Value),
        (status = 404, description = "No such response of the caller", body = ErrorBody),
    )
)]
pub async fn get_response(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Reply<Value> {
    let turn = response_of(&http, &id, &context).await?;
    Ok(Json(object_of(&http, &turn)))
}

/// What became of a response that was deleted.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DeletedResponse {
    /// Its id.
    pub id: String,
    /// Always `response.deleted`.
    pub object: &'static str,
    /// Whether it is gone; what was learned from it is taken back as well.
    pub deleted: bool,
}

/// Deletes a response that was kept, and what was learned from it.
#[utoipa::path(
    delete,
    path = "/v1/responses/{id}",
    params(("id" = String, Path, description = "The response's id")),
    responses(
        (status = 200, body = DeletedResponse),
        (status = 404, description = "No such response of the caller", body = ErrorBody),
    )
)]
pub async fn delete_response(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Reply<DeletedResponse> {
    let turn = response_of(&http, &id, &context).await?;
    erase_turn(&http, &turn, &context).await?;
    Ok(Json(DeletedResponse {
        id,
        object: "response.deleted",
        deleted: true,
    }))
}

/// Cancels a response that is made in the background. None is here: a response ends when its client
/// leaves.
#[utoipa::path(
    post,
    path = "/v1/responses/{id}/cancel",
    params(("id" = String, Path, description = "The response's id")),
    responses(
        (status = 400, description = "It was not made in the background", body = ErrorBody),
        (status = 404, description = "No such response of the caller", body = ErrorBody),
    )
)]
pub async fn cancel_response(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    Path(id): Path<String>,
) -> Reply<Value> {
    response_of(&http, &id, &context).await?;
    Err(ApiError::invalid(
        "id",
        "this response has ended; only responses of the background can be cancelled, and one under way \
         ends when its client closes the connection",
    ))
}
