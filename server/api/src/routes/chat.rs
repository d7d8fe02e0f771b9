//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;

use super::name_ignored;
use super::talk::{
    Admitted, Talk, Wanted, Wants, admit, capture_of, choose, grant, includes_usage, limit_of,
    sampling_of, serving,
};
use crate::Http;
use crate::body::read_json;
use crate::request_context::RequestContext;
use hone_api_types::content::{Reader, hide};
use hone_api_types::foreign::Aliases;
use hone_api_types::messages::{parse_messages, parse_prediction};
use hone_api_types::openai::ChatRequest;
use hone_api_types::replies::ChatCompletion;
use hone_api_types::sampling::{limit_of_logprobs, whole as whole_number};
use hone_api_types::tools::Offer;
use hone_inference::InferenceService;
use hone_replies::Dialect;
use hone_replies::error::{ApiError, ErrorBody};
use hone_replies::openai::{streamed, whole};

/// Answers a conversation.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    request_body = ChatRequest,
    responses(
        (status = 200, description = "The completion; with `stream` an event stream of chunks", body = ChatCompletion),
        (status = 404, description = "No such model", body = ErrorBody),
        (status = 500, body = ErrorBody),
    )
)]
pub async fn chat_completions(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let object = read_json(request, http.body_limits()).await?;
    let (mut body, mut ignored) = ChatRequest::from_object(object)?;
    ignored.extend(body.session.not_kept());
    let inference = serving(&http)?;
    let wish = body.session.resolve(&headers, &http.binding)?;
    let policy = choose(&http, &body.chat.model, wish.user.as_deref(), &context).await?;
    let (mut talk, aliases) = talk((&http, inference), &mut body, &mut ignored)?;
    let wishes = (
        ("reasoning_effort", body.chat.reasoning_effort.as_deref()),
        ("verbosity", body.chat.verbosity.as_deref()),
    );
    grant(inference, wishes, (&mut talk, &mut ignored))?;
    let stream = body.chat.stream.unwrap_or(false);
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
        include_usage: includes_usage(body.chat.stream_options.as_ref()),
        logprobs: body
            .chat
            .logprobs
            .unwrap_or(false)
            .then_some(talk.sampling.top_logprobs),
        capture,
        model: body.chat.model,
        dialect: Dialect::Chat,
        aliases,
        request: context.public_id.clone(),
    };
    let mut plan = talk.plan(inference, policy, wish, &context).await?;
    if plan.prediction.is_some() && !plan.may_draft(inference) {
        plan.prediction = None;
        ignored.push("prediction".to_owned());
    }
    let opened = inference.open(plan).await?;
    let admitted = admit(&http, inference, (vec![opened], &wants)).await?;
    let (frame, merged, about) = admitted.parts();
    let mut response = if wants.stream {
        streamed(frame, merged)
    } else {
        whole(frame, merged).await?
    };
    Admitted::headers(&about, &mut response);
    name_ignored(&mut response, &ignored);
    Ok(response)
}

fn talk(
    (http, inference): (&Http, &InferenceService),
    body: &mut ChatRequest,
    ignored: &mut Vec<String>,
) -> Result<(Talk, Aliases), ApiError> {
    let form = std::mem::take(&mut body.shape);
    let chat = &body.chat;
    let mut reader = Reader::default();
    let mut messages = parse_messages(&chat.messages, http.config.messages_max, &mut reader)?;
    hide(&mut messages, &http.binding.unshown, &mut reader);
    let functions = chat.functions(&mut reader)?;
    ignored.extend(reader.ignored());
    let n = whole_number("n", chat.n, (1, http.config.choices_max as i64))?.unwrap_or(1);
    let mut sampling = sampling_of(http, inference, &body.sampling)?;
    sampling.top_logprobs = top_logprobs(body)?;
    let limit = limit_of("max_completion_tokens", chat.max_completion_tokens)?;
    let max_tokens = match limit {
        Some(limit) => Some(limit),
        None => limit_of("max_tokens", chat.max_tokens)?,
    };
    let logprobs = chat.logprobs.unwrap_or(false);
    let max_tokens = limit_of_logprobs(
        "top_logprobs",
        max_tokens,
        logprobs.then_some(sampling.top_logprobs),
        n as usize,
        inference.backend.capabilities().max_positions,
    )?;
    let tools = &functions.tools;
    let talk = Talk {
        messages,
        wanted: Wanted {
            form,
            offer: Offer::of(tools, chat.tool_choice.as_ref(), chat.parallel_tool_calls)?,
            ignore_end: body.sampling.ignore_eos.unwrap_or(false),
        },
        sampling,
        stops: body.sampling.stops()?,
        max_tokens,
        n: n as u32,
        template: chat.chat_template_kwargs.clone().unwrap_or_default(),
        prediction: parse_prediction(chat.prediction.as_ref())?,
        prompt_logprobs: None,
    };
    Ok((talk, functions.aliases))
}

fn top_logprobs(body: &ChatRequest) -> Result<u8, ApiError> {
    let top = whole_number("top_logprobs", body.chat.top_logprobs, (0, 20))?.unwrap_or(0);
    if top > 0 && !body.chat.logprobs.unwrap_or(false) {
        return Err(ApiError::invalid(
            "top_logprobs",
            "top_logprobs needs logprobs: true",
        ));
    }
    Ok(top as u8)
}
