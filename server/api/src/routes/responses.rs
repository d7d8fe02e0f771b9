//! `POST /v1/responses`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use hone_domain::{Continued, Message, Role, Turn};
use serde_json::{Map, Value, json};

use super::name_ignored;
use super::stored_responses::{own_turn, stored};
use super::talk::{
    Admitted, Talk, Wanted, Wants, admit, capture_of, choose, grant, limit_of, sampling_of, serving,
};
use crate::Http;
use crate::body::read_json;
use crate::request_context::RequestContext;
use hone_api_types::content::{Reader, hide};
use hone_api_types::feedback::parse_turn_id;
use hone_api_types::foreign::Aliases;
use hone_api_types::responses::{ResponsesRequest, Stored};
use hone_api_types::sampling::{limit_of_logprobs, whole as whole_number};
use hone_api_types::tools::Offer;
use hone_replies::error::{ApiError, ErrorBody};
use hone_replies::{Dialect, responses as reply};

/// Marks the message that holds a response's instructions, which the next response does not
/// inherit.
const INSTRUCTIONS: &str = "instructions";

/// Answers with a response.
#[utoipa::path(
    post,
    path = "/v1/responses",
    request_body = ResponsesRequest,
    responses(
        (status = 200, description = "The response; with `stream` its events", body = Value),
        (status = 404, description = "No such model, or no such previous response", body = ErrorBody),
        (status = 500, body = ErrorBody),
    )
)]
pub async fn create_response(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let object = read_json(request, http.body_limits()).await?;
    let (body, mut ignored) = ResponsesRequest::from_object(object)?;
    ignored.extend(body.session.not_kept());
    let inference = serving(&http)?;
    let mut wish = body.session.resolve(&headers, &http.binding)?;
    let policy = choose(&http, &body.response.model, wish.user.as_deref(), &context).await?;
    let previous = previous(&http, &body, &context).await?;
    if let Some(turn) = &previous
        && wish.session_key.is_none()
    {
        wish.session_key.clone_from(&turn.session_key);
    }
    let echo = echo(&body, wish.store);
    let stored = stored(&http, &body, &context).await?;
    let said = (&body, previous.as_ref(), &stored);
    let (mut talk, next_from, aliases) = talk((&http, inference), said, &mut ignored)?;
    grant(inference, body.wishes()?, (&mut talk, &mut ignored))?;
    let stream = body.response.stream.unwrap_or(false);
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
        logprobs: body.wants_logprobs().then_some(talk.sampling.top_logprobs),
        capture,
        model: body.response.model,
        dialect: Dialect::Responses,
        aliases,
        request: context.public_id.clone(),
    };
    let mut planned = talk.plan(inference, policy, wish, &context).await?;
    let named = previous.filter(|turn| turn.scope == planned.scope);
    planned.continues = named.map(|turn| Continued {
        session: turn.session,
        turn: turn.id,
        next_from,
    });
    let opened = inference.open(planned).await;
    let opened = opened.map_err(ApiError::of_prompt("input"))?;
    let admitted = admit(&http, inference, (vec![opened], &wants)).await?;
    let (frame, merged, about) = admitted.parts();
    let mut response = if wants.stream {
        reply::streamed(frame, merged, echo)
    } else {
        reply::whole(frame, merged, echo).await?
    };
    Admitted::headers(&about, &mut response);
    name_ignored(&mut response, &ignored);
    Ok(response)
}

/// The turn of the response that this one continues.
async fn previous(
    http: &Http,
    body: &ResponsesRequest,
    context: &RequestContext,
) -> Result<Option<Turn>, ApiError> {
    let Some(id) = &body.response.previous_response_id else {
        return Ok(None);
    };
    let unknown = || {
        let shown: String = id.chars().take(100).collect();
        ApiError::NotFound(format!(
            "no response {shown} of yours is known; responses with store false are not kept"
        ))
    };
    let turn = parse_turn_id(id).ok_or_else(unknown)?;
    let turn = own_turn(http, turn, context).await?;
    turn.map(Some).ok_or_else(unknown)
}

/// What is asked, and where in its messages those after the previous response begin.
fn talk(
    (http, inference): (&Http, &hone_inference::InferenceService),
    (body, previous, stored): (&ResponsesRequest, Option<&Turn>, &Stored),
    ignored: &mut Vec<String>,
) -> Result<(Talk, usize, Aliases), ApiError> {
    let fields = &body.response;
    let instructions = fields.instructions.as_ref().map(|text| Message {
        name: Some(INSTRUCTIONS.to_owned()),
        ..Message::text(Role::System, text)
    });
    let mut messages: Vec<Message> = instructions.into_iter().collect();
    if let Some(turn) = previous {
        let said = turn.completion_message();
        let is_instructions = |m: &Message| m.name.as_deref() == Some(INSTRUCTIONS);
        let before = turn.messages.iter().filter(|m| !is_instructions(m));
        messages.extend(before.cloned());
        messages.push(said);
    }
    let next_from = messages.len();
    let mut reader = Reader::default();
    messages.extend(body.messages(http.config.messages_max, (&mut reader, stored))?);
    hide(&mut messages, &http.binding.unshown, &mut reader);
    let functions = body.functions(&mut reader)?;
    ignored.extend(reader.ignored());
    let offer = Offer::of(
        &functions.tools,
        body.choice().as_ref(),
        fields.parallel_tool_calls,
    )?;
    let mut sampling = sampling_of(http, inference, &body.sampling)?;
    let top = whole_number("top_logprobs", fields.top_logprobs, (0, 20))?;
    sampling.top_logprobs = top.unwrap_or(0) as u8;
    let alternatives = body.wants_logprobs().then_some(sampling.top_logprobs);
    let max_tokens = limit_of("max_output_tokens", fields.max_output_tokens)?;
    let max_tokens = limit_of_logprobs(
        "top_logprobs",
        max_tokens,
        alternatives,
        1,
        inference.backend.capabilities().max_positions,
    )?;
    let talk = Talk {
        messages,
        wanted: Wanted {
            form: body.shape_fields(),
            offer,
            ignore_end: body.sampling.ignore_eos.unwrap_or(false),
        },
        sampling,
        stops: body.sampling.stops()?,
        max_tokens,
        n: 1,
        template: fields.chat_template_kwargs.clone().unwrap_or_default(),
        prediction: None,
        prompt_logprobs: None,
    };
    Ok((talk, next_from, functions.aliases))
}

/// What the response object repeats of its request.
fn echo(body: &ResponsesRequest, store: bool) -> Map<String, Value> {
    let fields = &body.response;
    let text = fields
        .text
        .clone()
        .map_or_else(|| json!({"format": {"type": "text"}}), Value::Object);
    let echo = json!({
        "instructions": fields.instructions,
        "previous_response_id": fields.previous_response_id,
        "max_output_tokens": fields.max_output_tokens,
        "max_tool_calls": fields.max_tool_calls,
        "tools": fields.tools.clone().unwrap_or_default(),
        "tool_choice": fields.tool_choice.clone().unwrap_or_else(|| json!("auto")),
        "parallel_tool_calls": fields.parallel_tool_calls.unwrap_or(true),
        "text": text,
        "temperature": body.sampling.temperature,
        "top_p": body.sampling.top_p,
        "top_logprobs": fields.top_logprobs.unwrap_or(0),
        "presence_penalty": body.sampling.presence_penalty.unwrap_or(0.0),
        "frequency_penalty": body.sampling.frequency_penalty.unwrap_or(0.0),
        "reasoning": {"effort": body.wishes().ok().and_then(|(effort, _)| effort.1), "summary": Value::Null},
        "truncation": "disabled",
        "background": false,
        "service_tier": "default",
        "store": store,
        "user": body.session.user,
        "metadata": body.session.metadata.clone().unwrap_or_default(),
        "safety_identifier": Value::Null,
        "prompt_cache_key": body.session.prompt_cache_key,
    });
    match echo {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}
