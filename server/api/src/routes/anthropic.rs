//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::name_ignored;
use super::talk::{
    Admitted, Talk, Wanted, Wants, admit, capture_of, choose, grant, limit_of, sampling_of, serving,
};
use crate::Http;
use crate::body::read_json;
use crate::request_context::RequestContext;
use hone_api_types::anthropic::MessagesRequest;
use hone_api_types::content::{Reader, hide};
use hone_api_types::foreign::Aliases;
use hone_api_types::sampling::Stop;
use hone_api_types::tools::Offer;
use hone_inference::InferenceService;
use hone_replies::error::ApiError;
use hone_replies::messages_errors::MessagesErrorBody;
use hone_replies::{Dialect, anthropic as reply};

/// Answers a conversation in Anthropic's form.
#[utoipa::path(
    post,
    path = "/v1/messages",
    request_body = MessagesRequest,
    responses(
        (status = 200, description = "The message; with `stream` its events", body = Value),
        (status = 404, description = "No such model", body = MessagesErrorBody),
        (status = 500, body = MessagesErrorBody),
    )
)]
pub async fn create_message(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let object = read_json(request, http.body_limits()).await?;
    let (body, mut ignored) = MessagesRequest::from_object(object)?;
    ignored.extend(body.session.not_kept());
    let inference = serving(&http)?;
    let wish = body.session.resolve(&headers, &http.binding)?;
    let policy = choose(&http, &body.message.model, wish.user.as_deref(), &context).await?;
    if body.message.max_tokens.is_none() {
        return Err(ApiError::invalid("max_tokens", "max_tokens is missing"));
    }
    let mut talk = talk((&http, inference), &body, &mut ignored)?;
    grant(inference, body.wishes()?, (&mut talk, &mut ignored))?;
    let stops = talk.stops.clone();
    let stream = body.message.stream.unwrap_or(false);
    let capture = capture_of(
        &http,
        inference,
        &context.caller,
        &body.capture,
        &mut ignored,
    )?;
    talk.captures(capture);
    let wants = Wants {
        stream,
        include_usage: true,
        logprobs: None,
        capture,
        model: body.message.model,
        dialect: Dialect::Messages,
        aliases: Aliases::default(),
        request: context.public_id.clone(),
    };
    let plan = talk.plan(inference, policy, wish, &context).await?;
    let opened = inference.open(plan).await?;
    let admitted = admit(&http, inference, (vec![opened], &wants)).await?;
    let (frame, merged, about) = admitted.parts();
    let mut response = if wants.stream {
        reply::streamed(frame, merged, stops)
    } else {
        reply::whole(frame, merged, stops).await?
    };
    Admitted::headers(&about, &mut response);
    name_ignored(&mut response, &ignored);
    Ok(response)
}

/// How long a conversation is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TokenCount {
    /// Tokens of the prompt.
    pub input_tokens: usize,
}

/// Counts the tokens of a conversation, and asks nothing.
#[utoipa::path(
    post,
    path = "/v1/messages/count_tokens",
    request_body = MessagesRequest,
    responses(
        (status = 200, body = TokenCount),
        (status = 404, description = "No such model", body = MessagesErrorBody),
    )
)]
pub async fn count_tokens(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let object = read_json(request, http.body_limits()).await?;
    let (body, mut ignored) = MessagesRequest::from_object(object)?;
    let inference = serving(&http)?;
    let wish = body.session.resolve(&headers, &http.binding)?;
    let policy = choose(&http, &body.message.model, wish.user.as_deref(), &context).await?;
    let mut talk = talk((&http, inference), &body, &mut ignored)?;
    grant(inference, body.wishes()?, (&mut talk, &mut ignored))?;
    let plan = talk.plan(inference, policy, wish, &context).await?;
    let input_tokens = inference.tokens_of(plan).await?.len();
    let mut response = Json(TokenCount { input_tokens }).into_response();
    name_ignored(&mut response, &ignored);
    Ok(response)
}

fn talk(
    (http, inference): (&Http, &InferenceService),
    body: &MessagesRequest,
    ignored: &mut Vec<String>,
) -> Result<Talk, ApiError> {
    let fields = &body.message;
    let mut reader = Reader::default();
    let mut messages = body.messages(http.config.messages_max, &mut reader)?;
    hide(&mut messages, &http.binding.unshown, &mut reader);
    let (choice, parallel) = body.chat_choice()?;
    let tools = body.functions(&mut reader)?.tools;
    ignored.extend(reader.ignored());
    let mut sampling = body.sampling.clone();
    if let Some(stops) = &fields.stop_sequences {
        sampling.stop = Some(Stop::Many(stops.clone()));
    }
    Ok(Talk {
        messages,
        wanted: Wanted {
            form: body.shape_fields(),
            offer: Offer::of(&tools, choice.as_ref(), parallel)?,
            ignore_end: sampling.ignore_eos.unwrap_or(false),
        },
        stops: sampling.stops()?,
        max_tokens: limit_of("max_tokens", fields.max_tokens)?,
        n: 1,
        template: body.template(),
        prediction: None,
        prompt_logprobs: None,
        sampling: sampling_of(http, inference, &sampling)?,
    })
}
