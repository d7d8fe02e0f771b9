//! What every API of completions does: one way from a checked conversation to the ask, and one way
//! from its choices to a reply.

use hone_domain::{Ask, Message, Origin, PolicyChoice, PolicyVersion, Sampling, Scope};
use serde_json::{Map, Value};

use super::set_header;
use crate::Http;
use crate::lists;
use crate::request_context::RequestContext;
use hone_accounts::Caller;
use hone_api_types::capture::{Capture, CaptureFields, PromptLogprobs, mode_of, prompt_logprobs};
use hone_api_types::foreign::Aliases;
use hone_api_types::formats::ShapeFields;
use hone_api_types::sampling::{SamplingBounds, SamplingFields, whole as whole_number};
use hone_api_types::session::SessionWish;
use hone_api_types::tools::Offer;
use hone_api_types::wishes::{Granted, Wish};
use hone_inference::{Calls, InferenceService, Opened, PromptSource, Shape};
use hone_ledger::PolicyRecord;
use hone_replies::error::ApiError;
use hone_replies::sse;
use hone_replies::{Dialect, Frame, Merged};

use std::sync::Arc;

use axum::response::Response;
use tokio::time::timeout;

/// The inference service, or why there is none.
pub(super) fn serving(http: &Http) -> Result<&Arc<InferenceService>, ApiError> {
    if let Some(why) = http.life.unwelcome() {
        return Err(ApiError::Unavailable {
            code: "stopping",
            message: why.to_owned(),
        });
    }
    http.inference
        .as_ref()
        .ok_or_else(|| ApiError::Unavailable {
            code: "no_serve",
            message: "the serve loop does not run in this process; start it with --loops serve,..."
                .to_owned(),
        })
}

/// What the part of a model name behind the `@` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// Nothing: the newest, or what the session gets of a trial.
    Newest,
    /// `@base`.
    Base,
    /// `@stable`: what is not on trial.
    Stable,
    /// `@v12`.
    Version(PolicyVersion),
}

/// Parses a model name; an error where there is no such model.
pub(super) fn named(http: &Http, model: &str) -> Result<Named, ApiError> {
    let unknown = || ApiError::ModelNotFound(model.chars().take(200).collect());
    let models = &http.models;
    let known = |name: &str| models.name == name || models.aliases.iter().any(|a| a == name);
    let (name, named) = match model.rsplit_once('@') {
        _ if known(model) => (model, Named::Newest),
        None => return Err(unknown()),
        Some((name, "base")) => (name, Named::Base),
        Some((name, "stable")) => (name, Named::Stable),
        Some((name, version)) => {
            let digits = version.strip_prefix('v');
            let digits = digits.filter(|d| d.bytes().all(|b| b.is_ascii_digit()));
            let number = digits.and_then(|digits| digits.parse().ok());
            let version = number.and_then(|number| lists::version("model", number).ok());
            (name, Named::Version(version.ok_or_else(unknown)?))
        }
    };
    if known(name) {
        return Ok(named);
    }
    Err(unknown())
}

/// Which version of the caller's policy a model name asks for; an error where there is none.
pub(super) async fn choose(
    http: &Http,
    model: &str,
    user: Option<&str>,
    context: &RequestContext,
) -> Result<PolicyChoice, ApiError> {
    if let Some(episode) = &context.episode {
        // An agent asks for the model that it knows; there is one.
        return Ok(episode.terms.policy.clone());
    }
    let named = named(http, model)?;
    let scope = || http.rules.scope(&context.caller.owner, user).0;
    match named {
        Named::Newest => Ok(PolicyChoice::Newest),
        Named::Base | Named::Version(PolicyVersion::BASE) => Ok(PolicyChoice::Base),
        Named::Stable => Ok(http.policies.get().stable(&scope())),
        Named::Version(version) => numbered(http, &scope(), model, version).await,
    }
}

/// A version of a scope by its number, if it can be served.
async fn numbered(
    http: &Http,
    scope: &Scope,
    model: &str,
    version: PolicyVersion,
) -> Result<PolicyChoice, ApiError> {
    let policies = http.policies.get();
    let served = policies.newest(scope);
    if let Some(policy) = served.filter(|policy| policy.version == version) {
        return Ok(PolicyChoice::of(policy));
    }
    let record = http
        .versions
        .version(scope, version, 0)
        .await?
        .map(|view| view.record);
    let servable = record.filter(PolicyRecord::can_answer);
    servable
        .map(|record| PolicyChoice::of(&record.policy))
        .ok_or_else(|| ApiError::VersionNotFound(model.chars().take(200).collect()))
}

/// Sampling of a request; without a seed, fresh randomness.
pub(super) fn sampling_of(
    http: &Http,
    inference: &InferenceService,
    fields: &SamplingFields,
) -> Result<Sampling, ApiError> {
    let bounds = SamplingBounds {
        defaults: inference.language.defaults(),
        vocab: inference.backend.capabilities().vocab,
    };
    let (high, low) = http.ids.next().as_u64_pair();
    Ok(fields.sampling(&bounds, high.rotate_left(32) ^ low)?)
}

/// What a trainer asks for, as far as it has an effect here. A key's word goes before the configuration's.
pub(super) fn capture_of(
    http: &Http,
    inference: &InferenceService,
    caller: &Caller,
    fields: &CaptureFields,
    ignored: &mut Vec<String>,
) -> Result<Capture, ApiError> {
    let chosen = inference.backend.capabilities().experts_chosen;
    let of_key: Option<&str> = caller.raw_logprobs.map(mode_of);
    let mode = of_key.unwrap_or(&http.config.logprobs_mode);
    Ok(fields.checked(mode, chosen, ignored)?)
}

/// Whether a stream ends with its usage.
pub(super) fn includes_usage(options: Option<&hone_api_types::openai::StreamOptions>) -> bool {
    options.is_some_and(|o| o.include_usage.unwrap_or(false))
}

/// The token limit of a request.
pub(super) fn limit_of(name: &str, value: Option<i64>) -> Result<Option<u32>, ApiError> {
    let value = whole_number(name, value, (1, i64::from(i32::MAX)))?;
    Ok(value.map(|v| v as u32))
}

/// What an answer is to look like.
pub(super) struct Wanted {
    /// Fields that hold it to a form.
    pub(super) form: ShapeFields,
    /// Tools the model is shown.
    pub(super) offer: Option<Offer>,
    /// Whether end tokens do not stop.
    pub(super) ignore_end: bool,
}

impl Wanted {
    /// The form of the answer, and the tools. It is made off the async threads: a schema may be short and
    /// take long.
    pub(super) async fn shape(
        self,
        inference: &Arc<InferenceService>,
        owner: &str,
    ) -> Result<(Option<Shape>, Option<Offer>), ApiError> {
        let held = self.form.is_any() || self.offer.as_ref().is_some_and(Offer::is_held);
        let chars = if held { usize::MAX } else { 0 };
        let made = inference.apart(owner, chars, move |inference| self.made(inference));
        made.await?
    }

    fn made(
        self,
        inference: &InferenceService,
    ) -> Result<(Option<Shape>, Option<Offer>), ApiError> {
        let style = inference.language.manner().calls;
        let (mut shape, mut single) = (self.form.shape()?, false);
        let mut offer = self.offer;
        if let Some(offer) = &mut offer {
            // More calls than one could not be sent back.
            offer.single |= !inference.takes().many_calls;
            single = offer.single;
            shape = offer.shape(style, shape)?;
        }
        let ends = |shape: &Shape| single || !matches!(shape.calls, Calls::Alone(_));
        if self.ignore_end && shape.as_ref().is_some_and(ends) {
            return Err(ApiError::invalid(
                "ignore_eos",
                "an answer that is held to a form ends where the form ends; leave ignore_eos out",
            ));
        }
        Ok((shape, offer))
    }
}

/// Grants wishes about reasoning and verbosity as far as the model's template can.
pub(super) fn grant(
    inference: &InferenceService,
    (effort, verbosity): (Wish<'_>, Wish<'_>),
    (talk, ignored): (&mut Talk, &mut Vec<String>),
) -> Result<(), ApiError> {
    let mut granted = Granted {
        reads: &|name| inference.language.reads(name),
        variables: &mut talk.template,
        ignored,
    };
    granted.effort(effort)?;
    Ok(granted.verbosity(verbosity)?)
}

/// A conversation that wants its next turn, whichever API it came by.
pub(super) struct Talk {
    /// The checked messages.
    pub(super) messages: Vec<Message>,
    /// What the answer is to look like.
    pub(super) wanted: Wanted,
    /// How to sample.
    pub(super) sampling: Sampling,
    /// Stop strings.
    pub(super) stops: Vec<String>,
    /// Most tokens to sample.
    pub(super) max_tokens: Option<u32>,
    /// How many completions.
    pub(super) n: u32,
    /// Variables for the model's chat template.
    pub(super) template: Map<String, Value>,
    /// What the client thinks that the answer will be.
    pub(super) prediction: Option<String>,
    /// Alternatives to report per token of the prompt, where its log-probs are wanted.
    pub(super) prompt_logprobs: Option<u8>,
}

impl Talk {
    /// Messages and tools of which the prompt is wanted, and nothing is sampled.
    pub(super) fn prompt_of(
        inference: &InferenceService,
        messages: Vec<Message>,
        tools: &[Value],
    ) -> Result<Self, ApiError> {
        Ok(Self {
            messages,
            wanted: Wanted {
                form: ShapeFields::default(),
                offer: Offer::of(tools, None, None)?,
                ignore_end: false,
            },
            sampling: inference.language.defaults(),
            stops: Vec::new(),
            max_tokens: None,
            n: 1,
            template: Map::new(),
            prediction: None,
            prompt_logprobs: None,
        })
    }

    /// Asks for what a trainer wants of the sampler.
    pub(super) fn captures(&mut self, capture: Capture) {
        self.sampling.top_behavior = !capture.raw;
        self.prompt_logprobs = capture.prompt_logprobs;
    }

    /// The ask.
    pub(super) async fn plan(
        self,
        inference: &Arc<InferenceService>,
        policy: PolicyChoice,
        wish: SessionWish,
        context: &RequestContext,
    ) -> Result<hone_inference::Request, ApiError> {
        let ignore_end = self.wanted.ignore_end;
        let form_members = self.wanted.form.members();
        let (shape, offer) = self
            .wanted
            .shape(inference, context.caller.counts_as())
            .await?;
        let single_call = offer.as_ref().is_some_and(|offer| offer.single);
        let (scope, source) = inference
            .rules
            .scope(&context.caller.owner, wish.user.as_deref());
        let mut plan = hone_inference::Request {
            id: context.id,
            scope,
            source,
            owner: context.caller.owner.clone(),
            keeper: context.caller.keeper().cloned(),
            policy,
            session_key: wish.session_key,
            origin: Origin::User,
            kind: wish.kind,
            continues: None,
            done: wish.done,
            store: wish.store,
            despite_store_false: context.caller.despite_store_false,
            memory: wish.memory.or(context.caller.memory),
            prompt: PromptSource::Chat {
                tools: offer.map(|offer| offer.tools),
                extra: self.template,
            },
            messages: self.messages,
            n: self.n,
            first_index: 0,
            sampling: self.sampling,
            max_tokens: self.max_tokens,
            stops: self.stops,
            ignore_end,
            prediction: self.prediction,
            prompt_logprobs: self.prompt_logprobs,
            single_call,
            shape,
            form_members,
            metadata: wish.metadata,
            parent: context.parent,
            checks: wish.checks,
            episode: None,
            branch: None,
        };
        if let Some(episode) = &context.episode {
            plan.bind(episode)?;
        }
        Ok(plan)
    }
}

/// What the reply should look like.
pub(super) struct Wants {
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) logprobs: Option<u8>,
    pub(super) capture: Capture,
    pub(super) model: String,
    pub(super) dialect: Dialect,
    /// How the client knows the functions that the model is shown.
    pub(super) aliases: Aliases,
    /// The request's id as its client sees it.
    pub(super) request: String,
}

/// An admitted request, on its way to a reply.
pub(super) struct Admitted {
    /// What its reply repeats.
    pub(super) frame: Frame,
    /// Its choices.
    pub(super) merged: Merged,
    headers: Vec<(&'static str, String)>,
}

impl Admitted {
    /// Adds the headers that every completion has.
    pub(super) fn headers(headers: &[(&'static str, String)], response: &mut Response) {
        for (name, value) in headers {
            set_header(response, name, value);
        }
    }

    /// The parts, and the headers for the response made of them.
    pub(super) fn parts(self) -> (Frame, Merged, Vec<(&'static str, String)>) {
        (self.frame, self.merged, self.headers)
    }
}

/// Waits for the first choice to be admitted, so that failures before that have a status. A stream
/// that waits for longer than a connection may be silent begins without it.
pub(super) async fn admit(
    http: &Http,
    inference: &InferenceService,
    (mut opened, wants): (Vec<Opened>, &Wants),
) -> Result<Admitted, ApiError> {
    let capabilities = inference.backend.capabilities();
    let (session, turn) = (opened[0].session, opened[0].choices[0].turn);
    let mut frame = Frame {
        dialect: wants.dialect,
        aliases: wants.aliases.clone(),
        request: wants.request.clone(),
        id: format!("{}{turn}", wants.dialect.id_prefix()),
        created: http.clock.now_ms() / 1_000,
        clock: http.clock.clone(),
        model: wants.model.clone(),
        base: capabilities.base.to_hex()[..12].to_owned(),
        language: inference.language.clone(),
        end_tokens: capabilities.end_tokens,
        logprobs: wants.logprobs,
        include_usage: wants.include_usage,
        capture: wants.capture,
        experts_chosen: capabilities.experts_chosen,
        choices_each: opened[0].choices.len(),
        prompt_tokens: opened.iter().map(|o| o.prompt_tokens.len()).sum(),
        prompts: opened.iter().map(|o| o.prompt_tokens.clone()).collect(),
        prompt_logprobs: Vec::new(),
    };
    let scoring: Vec<Ask> = opened.iter_mut().filter_map(|o| o.scoring.take()).collect();
    let choices = opened.iter_mut().flat_map(|o| o.choices.drain(..));
    let mut merged = Merged::new(choices.collect());
    // What stands in the first event has to be known.
    let begun = match wants.stream && scoring.is_empty() {
        true => timeout(sse::HEARTBEAT, merged.begin()).await.ok(),
        false => Some(merged.begin().await),
    };
    let mut headers = vec![
        ("x-hone-turn-id", turn.prefixed()),
        ("x-hone-session-id", session.prefixed()),
    ];
    if let Some(begun) = begun.transpose()? {
        headers.push(("x-hone-policy-version", begun.version.to_string()));
        frame.prompt_logprobs = scored((http, inference), scoring, (begun.version, wants)).await?;
    }
    Ok(Admitted {
        frame,
        merged,
        headers,
    })
}

/// Log-probs of the prompts that these asks score, by the version that answers.
async fn scored(
    (http, inference): (&Http, &InferenceService),
    asks: Vec<Ask>,
    (version, wants): (PolicyVersion, &Wants),
) -> Result<Vec<PromptLogprobs>, ApiError> {
    let mut all = Vec::with_capacity(asks.len());
    for ask in asks {
        let scored = match ask.given.is_empty() {
            true => Some(Vec::new()),
            false => inference.score(ask.clone(), version).await?,
        };
        let scored = match scored {
            Some(scored) => scored,
            // A newer version began to serve meanwhile.
            None => {
                let policy = match version {
                    PolicyVersion::BASE => PolicyChoice::Base,
                    version => numbered(http, &ask.scope, &wants.model, version).await?,
                };
                let scored = inference.score(Ask { policy, ..ask }, version).await?;
                scored.ok_or_else(|| ApiError::Unavailable {
                    code: "version_gone",
                    message: "the version that answered serves no more; ask again".to_owned(),
                })?
            }
        };
        all.push(prompt_logprobs(&scored, &*inference.language));
    }
    Ok(all)
}
