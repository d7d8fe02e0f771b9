//! `POST /v1/completions`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::response::Response;
use hone_domain::{Message, PolicyChoice, Role, TurnKind};

use super::name_ignored;
use super::talk::{
    Admitted, Wanted, Wants, admit, capture_of, choose, includes_usage, limit_of, sampling_of,
    serving,
};
use crate::Http;
use crate::body::read_json;
use crate::request_context::RequestContext;
use hone_api_types::JsonObject;
use hone_api_types::capture::Capture;
use hone_api_types::completions::{CompletionRequest, Prompt};
use hone_api_types::foreign::Aliases;
use hone_api_types::replies::TextCompletion;
use hone_api_types::sampling::{limit_of_logprobs, whole};
use hone_api_types::session::SessionWish;
use hone_inference::{InferenceService, PromptSource, Shape};
use hone_replies::Dialect;
use hone_replies::error::{ApiError, ErrorBody};
use hone_replies::openai::{streamed, whole as reply_whole};

/// Tokens sampled where the request does not say; the default this API always had.
const MAX_TOKENS_DEFAULT: u32 = 16;

/// Continues a text.
#[utoipa::path(
    post,
    path = "/v1/completions",
    request_body = CompletionRequest,
    responses(
        (status = 200, description = "The completion; with `stream` an event stream of the same shape", body = TextCompletion),
        (status = 404, description = "No such model", body = ErrorBody),
        (status = 500, body = ErrorBody),
    )
)]
pub async fn completions(
    State(http): State<Arc<Http>>,
    context: RequestContext,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let object = read_json(request, http.body_limits()).await?;
    let whose = (&*http, &context, &headers);
    let Begun {
        admitted,
        stream,
        ignored,
    } = begin(whose, object, (Dialect::Text, "prompt")).await?;
    let (frame, merged, about) = admitted.parts();
    let mut response = if stream {
        streamed(frame, merged)
    } else {
        reply_whole(frame, merged).await?
    };
    Admitted::headers(&about, &mut response);
    name_ignored(&mut response, &ignored);
    Ok(response)
}

/// Completions that were admitted.
pub(super) struct Begun {
    /// On their way to a reply.
    pub(super) admitted: Admitted,
    /// Whether the reply is a stream.
    pub(super) stream: bool,
    /// Fields without effect.
    pub(super) ignored: Vec<String>,
}

/// Begins what a text completion's body asks for, whose prompt is in the caller's field `param`.
pub(super) async fn begin(
    (http, context, headers): (&Http, &RequestContext, &HeaderMap),
    object: JsonObject,
    (dialect, param): (Dialect, &'static str),
) -> Result<Begun, ApiError> {
    let (mut body, mut ignored) = CompletionRequest::from_object(object)?;
    body.text.prompt_at = Some(param);
    ignored.extend(body.session.not_kept());
    let inference = serving(http)?;
    let wish = body.session.resolve(headers, &http.binding)?;
    let policy = choose(http, &body.text.model, wish.user.as_deref(), context).await?;
    let wanted = Wanted {
        form: std::mem::take(&mut body.shape),
        offer: None,
        ignore_end: body.sampling.ignore_eos.unwrap_or(false),
    };
    let (shape, _) = wanted.shape(inference, context.caller.counts_as()).await?;
    let stream = body.text.stream.unwrap_or(false);
    let capture = capture_of(
        http,
        inference,
        &context.caller,
        &body.capture,
        &mut ignored,
    )?;
    let how = (policy, shape, capture);
    let (plans, logprobs) = plans((http, inference), how, (&body, &wish, context))?;
    let wants = Wants {
        stream,
        include_usage: includes_usage(body.text.stream_options.as_ref()),
        logprobs,
        capture,
        model: body.text.model,
        dialect,
        aliases: Aliases::default(),
        request: context.public_id.clone(),
    };
    let mut opened = Vec::with_capacity(plans.len());
    for plan in plans {
        let answer = inference.open(plan).await;
        opened.push(answer.map_err(ApiError::of_prompt(param))?);
    }
    Ok(Begun {
        admitted: admit(http, inference, (opened, &wants)).await?,
        stream,
        ignored,
    })
}

/// One plan per prompt, and how many alternatives to report per token.
fn plans(
    (http, inference): (&Http, &InferenceService),
    (policy, shape, capture): (PolicyChoice, Option<Shape>, Capture),
    (body, wish, context): (&CompletionRequest, &SessionWish, &RequestContext),
) -> Result<(Vec<hone_inference::Request>, Option<u8>), ApiError> {
    let able = inference.backend.capabilities();
    let (prompts, max_positions) = (body.prompts(able.vocab)?, able.max_positions);
    let choices_max = http.config.choices_max as i64;
    let n = whole("n", body.text.n, (1, choices_max))?.unwrap_or(1) as u32;
    if n as usize * prompts.len() > http.config.choices_max {
        return Err(ApiError::invalid(
            "n",
            format!("prompts times n is at most {choices_max} (http.choices_max)"),
        ));
    }
    let logprobs = whole("logprobs", body.text.logprobs, (0, 20))?.map(|l| l as u8);
    let mut sampling = sampling_of(http, inference, &body.sampling)?;
    sampling.top_logprobs = logprobs.unwrap_or(0);
    sampling.top_behavior = !capture.raw;
    let max_tokens = limit_of("max_tokens", body.text.max_tokens)?;
    let max_tokens = limit_of_logprobs(
        "logprobs",
        Some(max_tokens.unwrap_or(MAX_TOKENS_DEFAULT)),
        logprobs,
        n as usize * prompts.len(),
        max_positions,
    )?;
    let stops = body.sampling.stops()?;
    let (scope, said_by) = inference
        .rules
        .scope(&context.caller.owner, wish.user.as_deref());
    let plans = prompts.into_iter().zip(0u32..).map(|(prompt, at)| {
        let prompt_at = body.text.prompt_at.unwrap_or("prompt");
        let (text, source) = source_of(inference, prompt, prompt_at)?;
        Ok(hone_inference::Request {
            id: context.id,
            scope: scope.clone(),
            source: said_by.clone(),
            owner: context.caller.owner.clone(),
            keeper: context.caller.keeper().cloned(),
            policy: policy.clone(),
            origin: hone_domain::Origin::User,
            session_key: wish.session_key.clone(),
            kind: wish.kind,
            continues: None,
            done: wish.done && wish.kind != Some(TurnKind::Side),
            store: wish.store,
            despite_store_false: context.caller.despite_store_false,
            memory: wish.memory.or(context.caller.memory),
            checks: wish.checks.clone(),
            messages: vec![Message::text(Role::User, text)],
            prompt: source,
            n,
            first_index: at * n,
            sampling: sampling.clone(),
            max_tokens,
            stops: stops.clone(),
            ignore_end: body.sampling.ignore_eos.unwrap_or(false),
            prediction: None,
            prompt_logprobs: capture.prompt_logprobs,
            single_call: false,
            shape: shape.clone(),
            form_members: None,
            metadata: wish.metadata.clone(),
            parent: context.parent,
            episode: None,
            branch: None,
        })
    });
    Ok((plans.collect::<Result<_, ApiError>>()?, logprobs))
}

/// The text of a prompt, and where its tokens come from. The field `param` holds it.
fn source_of(
    inference: &InferenceService,
    prompt: Prompt,
    param: &'static str,
) -> Result<(String, PromptSource), ApiError> {
    let able = inference.backend.capabilities();
    match prompt {
        Prompt::Text(text) => Ok((text.clone(), PromptSource::Text(text))),
        Prompt::Tokens(tokens) if tokens.len() > able.max_positions => {
            Err(ApiError::ContextLength {
                param,
                prompt_tokens: tokens.len(),
                max_positions: able.max_positions,
                model_positions: able.model_positions,
            })
        }
        Prompt::Tokens(tokens) => Ok((
            inference.language.decode(&tokens),
            PromptSource::Tokens(tokens),
        )),
    }
}
