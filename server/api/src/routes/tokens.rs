//! `POST /tokenize` and `POST /detokenize`, as vLLM has them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use hone_domain::{PolicyChoice, Token};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::Reply;
use super::talk::{Talk, named, serving};
use crate::Http;
use crate::body::read_json;
use crate::request_context::RequestContext;
use hone_api_types::content::Reader;
use hone_api_types::messages::parse_messages;
use hone_api_types::session::SessionFields;
use hone_inference::InferenceService;
use hone_replies::error::{ApiError, ErrorBody};

/// A text or a conversation to tokenise.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    /// A name that `GET /v1/models` lists; absent is the served model.
    pub model: Option<String>,
    /// A text.
    pub prompt: Option<String>,
    /// Or a conversation, which the model's template turns into a text.
    #[schema(value_type = Option<Vec<Object>>)]
    pub messages: Option<Vec<Value>>,
    /// Tools the template shows.
    #[schema(value_type = Option<Vec<Object>>)]
    pub tools: Option<Vec<Value>>,
    /// Whether the tokenizer adds its own tokens to a text; true if absent.
    pub add_special_tokens: Option<bool>,
    /// Whether to add each token's text.
    pub return_token_strs: Option<bool>,
    /// Variables for the model's chat template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

/// Tokens of a text.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TokenizeReply {
    /// How many.
    pub count: usize,
    /// Most tokens of prompt and completion together.
    pub max_model_len: usize,
    /// Their ids.
    pub tokens: Vec<Token>,
    /// Their texts, where asked for.
    pub token_strs: Option<Vec<String>>,
}

/// Tokenises a text or a conversation.
#[utoipa::path(
    post,
    path = "/tokenize",
    request_body = TokenizeRequest,
    responses(
        (status = 200, body = TokenizeReply),
        (status = 404, description = "No such model", body = ErrorBody),
    )
)]
pub async fn tokenize(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Reply<TokenizeReply> {
    let headers = request.headers().clone();
    let mut object = read_json(request, http.body_limits()).await?;
    let body: TokenizeRequest = object.read()?;
    let inference = serving(&http)?;
    if let Some(model) = &body.model {
        named(&http, model)?;
    }
    let chars = body.prompt.as_ref().map_or(0, String::len);
    let tokens = match (body.prompt, &body.messages) {
        (Some(text), None) => {
            let special = body.add_special_tokens.unwrap_or(true);
            let encode =
                move |inference: &InferenceService| inference.language.encode(&text, special);
            inference
                .apart(context.caller.counts_as(), chars, encode)
                .await?
        }
        (None, Some(messages)) => {
            let wish = SessionFields::default().resolve(&headers, &http.binding)?;
            let tools = body.tools.as_deref().unwrap_or_default();
            let most = http.config.messages_max;
            let messages = parse_messages(messages, most, &mut Reader::default())?;
            let mut talk = Talk::prompt_of(inference, messages, tools)?;
            talk.template = body.chat_template_kwargs.clone().unwrap_or_default();
            let plan = talk.plan(inference, PolicyChoice::Newest, wish, &context);
            let plan = plan.await?;
            inference.tokens_of(plan).await?
        }
        _ => {
            return Err(ApiError::invalid(
                "prompt",
                "send a prompt, or messages, and not both",
            ));
        }
    };
    let (count, wants_texts) = (tokens.len(), body.return_token_strs.unwrap_or(false));
    let texts = move |inference: &InferenceService| {
        let texts = wants_texts.then(|| tokens.iter().map(|t| text_of(inference, *t)).collect());
        (tokens, texts)
    };
    let (tokens, token_strs) = inference
        .apart(context.caller.counts_as(), count, texts)
        .await?;
    Ok(Json(TokenizeReply {
        count,
        max_model_len: inference.backend.capabilities().max_positions,
        token_strs,
        tokens,
    }))
}

fn text_of(inference: &InferenceService, token: Token) -> String {
    String::from_utf8_lossy(&inference.language.token_bytes(token)).into_owned()
}

/// Tokens to turn into text.
#[derive(Debug, Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    /// A name that `GET /v1/models` lists; absent is the served model.
    pub model: Option<String>,
    /// Token ids.
    pub tokens: Vec<Token>,
}

/// The text of tokens.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DetokenizeReply {
    /// The text, special tokens included.
    pub prompt: String,
}

/// Turns tokens into text.
#[utoipa::path(
    post,
    path = "/detokenize",
    request_body = DetokenizeRequest,
    responses(
        (status = 200, body = DetokenizeReply),
        (status = 404, description = "No such model", body = ErrorBody),
    )
)]
pub async fn detokenize(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Reply<DetokenizeReply> {
    let mut object = read_json(request, http.body_limits()).await?;
    let body: DetokenizeRequest = object.read()?;
    let inference = serving(&http)?;
    if let Some(model) = &body.model {
        named(&http, model)?;
    }
    let vocab = inference.backend.capabilities().vocab;
    if let Some(at) = body
        .tokens
        .iter()
        .position(|token| *token as usize >= vocab)
    {
        return Err(ApiError::invalid(
            format!("tokens[{at}]"),
            format!("tokens[{at}] is not a token id below {vocab}"),
        ));
    }
    let count = body.tokens.len();
    let decode = move |inference: &InferenceService| inference.language.decode(&body.tokens);
    let prompt = inference
        .apart(context.caller.counts_as(), count, decode)
        .await?;
    Ok(Json(DetokenizeReply { prompt }))
}
