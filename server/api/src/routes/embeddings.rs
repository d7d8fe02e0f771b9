//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use hone_domain::Token;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Reply;
use super::talk::{named, serving};
use crate::Http;
use crate::body::read_json;
use crate::request_context::RequestContext;
use hone_api_types::completions::{Prompt, prompts_of};
use hone_inference::{InferenceService, chars_of};
use hone_replies::error::{ApiError, ErrorBody};

/// Most inputs of one request.
const INPUTS_MAX: usize = 256;
/// Most tokens of all inputs together.
const TOKENS_MAX: usize = 65_536;

/// A request for embeddings.
#[derive(Debug, Deserialize, ToSchema)]
pub struct EmbeddingsRequest {
    /// A name that `GET /v1/models` lists; the base model answers whichever it is.
    pub model: String,
    /// A text, token ids, or up to 256 of either.
    pub input: Value,
    /// `float` (default) or `base64`: little-endian f32.
    pub encoding_format: Option<String>,
    /// Refused unless it is the model's own.
    pub dimensions: Option<usize>,
    /// Taken, without effect.
    pub user: Option<String>,
}

/// One embedding.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Embedding {
    /// Always `embedding`.
    pub object: &'static str,
    /// Which input.
    pub index: usize,
    /// Numbers of length 1 in all, or their bytes in base64.
    pub embedding: Value,
}

/// Token counts of an embeddings request.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct EmbeddingsUsage {
    /// Tokens of all inputs.
    pub prompt_tokens: usize,
    /// The same.
    pub total_tokens: usize,
}

/// Embeddings, in the order of the inputs.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EmbeddingsReply {
    /// Always `list`.
    pub object: &'static str,
    /// One per input.
    pub data: Vec<Embedding>,
    /// The name the client asked for.
    pub model: String,
    /// Token counts.
    pub usage: EmbeddingsUsage,
}

/// Embeds texts: the mean of the base model's last hidden states, scaled to length 1.
#[utoipa::path(
    post,
    path = "/v1/embeddings",
    request_body = EmbeddingsRequest,
    responses(
        (status = 200, body = EmbeddingsReply),
        (status = 404, description = "No such model", body = ErrorBody),
        (status = 500, body = ErrorBody),
    )
)]
pub async fn embeddings(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Reply<EmbeddingsReply> {
    let mut object = read_json(request, http.body_limits()).await?;
    let body: EmbeddingsRequest = object.read()?;
    let inference = serving(&http)?;
    named(&http, &body.model)?;
    let base64 = match body.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            return Err(ApiError::invalid(
                "encoding_format",
                "encoding_format must be float or base64",
            ));
        }
    };
    let input = body.input;
    let chars = chars_of(&input);
    let inputs = inference
        .apart(context.caller.counts_as(), chars, move |inference| {
            inputs(inference, &input)
        })
        .await??;
    let prompt_tokens = inputs.iter().map(Vec::len).sum();
    let vectors = inference
        .embed((context.caller.counts_as(), context.id), inputs)
        .await?;
    if let (Some(wanted), Some(first)) = (body.dimensions, vectors.first())
        && wanted != first.len()
    {
        return Err(ApiError::unsupported(
            "dimensions",
            format!(
                "this model's embeddings have {} dimensions and are not cut",
                first.len()
            ),
        ));
    }
    let data = vectors
        .into_iter()
        .enumerate()
        .map(|(index, vector)| Embedding {
            object: "embedding",
            index,
            embedding: match base64 {
                true => Value::from(base64_of(&vector)),
                false => Value::from(vector),
            },
        });
    Ok(Json(EmbeddingsReply {
        object: "list",
        data: data.collect(),
        model: body.model,
        usage: EmbeddingsUsage {
            prompt_tokens,
            total_tokens: prompt_tokens,
        },
    }))
}

fn inputs(inference: &InferenceService, input: &Value) -> Result<Vec<Vec<Token>>, ApiError> {
    let capabilities = inference.backend.capabilities();
    let prompts = prompts_of("input", input, capabilities.vocab, INPUTS_MAX)?;
    let tokens: Vec<Vec<Token>> = prompts
        .into_iter()
        .map(|prompt| match prompt {
            Prompt::Text(text) => inference.language.encode(&text, true),
            Prompt::Tokens(tokens) => tokens,
        })
        .collect();
    if let Some(long) = tokens.iter().find(|t| t.len() > capabilities.max_positions) {
        return Err(ApiError::ContextLength {
            param: "input",
            prompt_tokens: long.len(),
            max_positions: capabilities.max_positions,
            model_positions: capabilities.model_positions,
        });
    }
    if tokens.iter().map(Vec::len).sum::<usize>() > TOKENS_MAX {
        return Err(ApiError::invalid(
            "input",
            format!("all inputs together have at most {TOKENS_MAX} tokens; send fewer at a time"),
        ));
    }
    Ok(tokens)
}

/// The little-endian bytes of numbers, in base64.
fn base64_of(vector: &[f32]) -> String {
    use base64::Engine as _;
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
