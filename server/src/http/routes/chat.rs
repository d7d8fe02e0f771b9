//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use hone_domain::{Message, PolicyChoice, Role};
use serde_json::Value;

use super::name_ignored;
use super::set_header;
use crate::door::{self, Door, OpenError, Opened, PromptSource, session_text, turn_text};
use crate::http::Http;
use crate::http::envelope::Asked;
use crate::http::error::{ApiError, ErrorBody};
use crate::http::reply::{Dialect, Frame, Merged, streamed, whole};
use crate::http::wire::body::read_json;
use crate::http::wire::messages::{parse_messages, template_message};
use crate::http::wire::openai::ChatRequest;
use crate::http::wire::replies::ChatCompletion;
use crate::http::wire::sampling::{SamplingBounds, SamplingFields, whole as whole_number};
use crate::http::wire::session::SessionWish;

/// Answers a conversation.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    request_body = ChatRequest,
    responses(
        (status = 200, description = "The completion; with `stream` an event stream of chunks", body = ChatCompletion),
        (status = 400, description = "What is wrong, and where", body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 403, body = ErrorBody),
        (status = 404, description = "No such model", body = ErrorBody),
        (status = 408, body = ErrorBody),
        (status = 413, body = ErrorBody),
        (status = 415, body = ErrorBody),
        (status = 429, description = "The waiting line is full; see retry-after", body = ErrorBody),
        (status = 500, body = ErrorBody),
        (status = 503, body = ErrorBody),
    )
)]
pub async fn chat_completions(
    State(http): State<Arc<Http>>,
    asked: Asked,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let object = read_json(request, http.body_limits()).await?;
    let (body, ignored) = ChatRequest::from_object(object)?;
    let door = serving(&http)?;
    let wish = body.session.resolve(&headers, &http.binding)?;
    let plan = plan(&http, door, (&body, wish, &asked))?;
    let wants = Wants {
        stream: body.chat.stream.unwrap_or(false),
        include_usage: includes_usage(body.chat.stream_options.as_ref()),
        logprobs: body
            .chat
            .logprobs
            .unwrap_or(false)
            .then_some(plan.sampling.top_logprobs),
        token_ids: body.chat.return_token_ids.unwrap_or(false),
        model: body.chat.model,
        dialect: Dialect::Chat,
    };
    let opened = door.open(plan).await?;
    let mut response = answer(&http, door, (vec![opened], wants)).await?;
    name_ignored(&mut response, &ignored);
    Ok(response)
}

/// The door, or why there is none.
pub(super) fn serving(http: &Http) -> Result<&Arc<Door>, ApiError> {
    if http.life.is_draining() {
        return Err(ApiError::Unavailable {
            code: "stopping",
            message: "the server is stopping; try again in a moment".to_owned(),
        });
    }
    http.door.as_ref().ok_or_else(|| ApiError::Unavailable {
        code: "no_serve",
        message: "the serve loop does not run in this process; start it with --loops serve,..."
            .to_owned(),
    })
}

/// Which version a model name asks for; an error where there is no such model.
pub(super) fn choose(http: &Http, model: &str) -> Result<PolicyChoice, ApiError> {
    let (name, choice) = match model.strip_suffix("@base") {
        Some(name) => (name, PolicyChoice::Base),
        None => (model, PolicyChoice::Newest),
    };
    let models = &http.models;
    if models.name == name || models.aliases.iter().any(|alias| alias == name) {
        return Ok(choice);
    }
    Err(ApiError::ModelNotFound(model.chars().take(200).collect()))
}

/// Sampling of a request; without a seed, fresh randomness.
pub(super) fn sampling_of(
    http: &Http,
    door: &Door,
    fields: &SamplingFields,
) -> Result<hone_domain::Sampling, ApiError> {
    let bounds = SamplingBounds {
        defaults: door.language.defaults(),
        vocab: door.backend.capabilities().vocab,
    };
    let (high, low) = http.ids.next().as_u64_pair();
    fields.sampling(&bounds, high.rotate_left(32) ^ low)
}

pub(super) fn includes_usage(options: Option<&crate::http::wire::openai::StreamOptions>) -> bool {
    options.is_some_and(|o| o.include_usage.unwrap_or(false))
}

/// The token limit of a request.
pub(super) fn limit_of(name: &str, value: Option<i64>) -> Result<Option<u32>, ApiError> {
    let value = whole_number(name, value, (1, i64::from(i32::MAX)))?;
    Ok(value.map(|v| v as u32))
}

fn plan(
    http: &Http,
    door: &Door,
    (body, wish, asked): (&ChatRequest, SessionWish, &Asked),
) -> Result<door::Request, ApiError> {
    let chat = &body.chat;
    let policy = choose(http, &chat.model)?;
    let messages = parse_messages(&chat.messages, http.config.messages_max)?;
    let n = whole_number("n", chat.n, (1, http.config.choices_max as i64))?.unwrap_or(1);
    let mut sampling = sampling_of(http, door, &body.sampling)?;
    sampling.top_logprobs = top_logprobs(body)?;
    let limit = limit_of("max_completion_tokens", chat.max_completion_tokens)?;
    let max_tokens = match limit {
        Some(limit) => Some(limit),
        None => limit_of("max_tokens", chat.max_tokens)?,
    };
    let rendered = merge_leading_system(&messages);
    let (scope, source) = door.rules.scope(&asked.caller.owner, wish.user.as_deref());
    Ok(door::Request {
        id: asked.id,
        scope,
        source,
        owner: asked.caller.owner.clone(),
        policy,
        session_key: wish.session_key,
        kind: wish.kind,
        done: wish.done,
        store: wish.store,
        prompt: PromptSource::Chat {
            rendered,
            tools: chat.tools.clone().filter(|tools| !tools.is_empty()),
            extra: chat.chat_template_kwargs.clone().unwrap_or_default(),
        },
        messages,
        n: n as u32,
        first_index: 0,
        sampling,
        max_tokens,
        stops: body.sampling.stops()?,
        ignore_end: body.sampling.ignore_eos.unwrap_or(false),
    })
}

/// Messages for the template. Leading system and developer messages become one, because many
/// templates read only the first.
fn merge_leading_system(messages: &[Message]) -> Vec<Value> {
    let is_system = |m: &&Message| matches!(m.role, Role::System | Role::Developer);
    let leading = messages.iter().take_while(is_system).count();
    if leading < 2 {
        return messages.iter().map(template_message).collect();
    }
    let texts: Vec<&str> = messages[..leading]
        .iter()
        .map(|m| m.content.as_str())
        .collect();
    let merged = Message::text(Role::System, texts.join("\n\n"));
    std::iter::once(&merged)
        .chain(&messages[leading..])
        .map(template_message)
        .collect()
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

/// What the reply should look like.
pub(super) struct Wants {
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) logprobs: Option<u8>,
    pub(super) token_ids: bool,
    pub(super) model: String,
    pub(super) dialect: Dialect,
}

/// Waits for the first choice to be admitted, then answers whole or as a stream.
pub(super) async fn answer(
    http: &Http,
    door: &Door,
    (mut opened, wants): (Vec<Opened>, Wants),
) -> Result<Response, ApiError> {
    let capabilities = door.backend.capabilities();
    let (session, turn) = (opened[0].session, opened[0].choices[0].turn);
    let prefix = match wants.dialect {
        Dialect::Chat => "chatcmpl",
        Dialect::Text => "cmpl",
    };
    let frame = Frame {
        dialect: wants.dialect,
        id: format!("{prefix}-{turn}"),
        created: http.clock.now_ms() / 1_000,
        model: wants.model,
        base: capabilities.base.to_hex()[..12].to_owned(),
        language: door.language.clone(),
        end_tokens: capabilities.end_tokens,
        logprobs: wants.logprobs,
        include_usage: wants.include_usage,
        token_ids: wants.token_ids,
        prompt_tokens: opened.iter().map(|o| o.prompt_tokens.len()).sum(),
        prompt_token_ids: wants.token_ids.then(|| opened[0].prompt_tokens.to_vec()),
    };
    let choices = opened.iter_mut().flat_map(|o| o.choices.drain(..));
    let mut merged = Merged::new(choices.collect());
    let begun = merged.begin().await?;
    let mut response = if wants.stream {
        streamed(frame, merged, begun)
    } else {
        whole(frame, merged, begun).await?
    };
    set_header(&mut response, "x-hone-turn-id", &turn_text(turn));
    set_header(&mut response, "x-hone-session-id", &session_text(session));
    let version = begun.version.to_string();
    set_header(&mut response, "x-hone-policy-version", &version);
    Ok(response)
}

impl From<OpenError> for ApiError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Language(error) => Self::invalid("messages", error.to_string()),
            OpenError::Empty => Self::invalid("messages", error.to_string()),
            OpenError::Serve(error) => error.into(),
            OpenError::Broken(_) => Self::Internal(error.to_string()),
        }
    }
}
