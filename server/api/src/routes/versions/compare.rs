//! Two versions side by side: the same prompts, the same random numbers, live.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use hone_domain::{
    Ask, AskContext, Collect, Delta, Message, Origin, PolicyChoice, PolicyVersion, Reason,
    RequestId, Sampling, Scope, SessionId, StopReason, StopRules, Token, TurnId, TurnKind,
};
use hone_serve::Answer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use utoipa::ToSchema;

use super::act::{Act, usable};
use super::target::Target;
use crate::Http;
use crate::lists;
use crate::request_context::RequestContext;
use crate::routes::Reply;
use crate::routes::auth::strict;
use crate::routes::talk::serving;
use hone_accounts::Caller;
use hone_accounts::rate_limit::UsageRecorder;
use hone_api_types::content::Reader;
use hone_api_types::messages::{parse_messages, template_message};
use hone_inference::{InferenceService, OpenError, chars_of};
use hone_replies::error::{ApiError, ErrorBody};

/// Most prompts of one comparison.
const PROMPTS_MAX: usize = 8;
/// Most recent turns that are looked through for prompts.
const TURNS_LOOKED_AT: usize = 64;
/// Token limit of each answer: without a wish, and at most.
const TOKENS_DEFAULT: u32 = 256;
const TOKENS_MAX: u32 = 1_024;

/// What to compare.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct CompareBody {
    /// The `user` field of the requests in question; for `/v1`.
    pub user: Option<String>,
    /// The scope's text; for `/admin/v1`.
    pub scope: Option<String>,
    /// One version; 0 is the base model.
    pub a: u64,
    /// The other.
    pub b: u64,
    /// Up to 8 conversations to answer.
    #[schema(value_type = Option<Vec<Vec<Object>>>)]
    pub prompts: Option<Vec<Vec<Value>>>,
    /// Or that many of the scope's newest prompts, up to 8; 3 where neither is given.
    pub recent: Option<usize>,
    /// Seed of both; fixed if absent, so that a repetition gives the same.
    pub seed: Option<u64>,
    /// Most tokens of each answer, up to 1024; 256 if absent.
    pub max_tokens: Option<u32>,
}

/// One answer.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Said {
    /// What was said.
    pub text: String,
    /// How many tokens.
    pub tokens: usize,
    /// Why it ended.
    #[schema(value_type = String)]
    pub stop: StopReason,
    /// The version that said it.
    pub version: u64,
}

/// One prompt answered twice.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Pair {
    /// The prompt.
    #[schema(value_type = Vec<Object>)]
    pub messages: Vec<Value>,
    /// Answered by one version.
    pub a: Said,
    /// And by the other.
    pub b: Said,
}

/// Both versions' answers.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Comparison {
    /// Always `comparison`.
    pub object: &'static str,
    /// One per prompt.
    pub data: Vec<Pair>,
}

struct Prompt {
    messages: Vec<Message>,
    tokens: Vec<Token>,
}

/// Answers the same prompts with two versions of the caller's policy. Nothing of it is collected.
#[utoipa::path(
    post,
    path = "/v1/versions/compare",
    request_body = CompareBody,
    responses(
        (status = 200, body = Comparison),
        (status = 404, body = ErrorBody),
        (status = 409, description = "`pruned`", body = ErrorBody),
    )
)]
pub async fn compare(
    State(http): State<Arc<Http>>,
    target: Target,
    context: RequestContext,
    request: Request,
) -> Reply<Comparison> {
    let body: CompareBody = strict(&http, request).await?;
    let scope = target.scope(&http, &context, body.user.as_deref(), body.scope.as_deref())?;
    if target == Target::Any {
        // Whoever compares reads what somebody asked and what they were told.
        let detail = json!({"a": body.a, "b": body.b});
        let act = Act::new(&http, &context, "version.compare", &scope);
        act.record(detail).await?;
    }
    Ok(Json(side_by_side(&http, &context, &scope, &body).await?))
}

async fn side_by_side(
    http: &Http,
    context: &RequestContext,
    scope: &Scope,
    body: &CompareBody,
) -> Result<Comparison, ApiError> {
    let inference = serving(http)?;
    let max_tokens = body.max_tokens.unwrap_or(TOKENS_DEFAULT);
    if !(1..=TOKENS_MAX).contains(&max_tokens) {
        return Err(ApiError::invalid(
            "max_tokens",
            format!("max_tokens must be between 1 and {TOKENS_MAX}"),
        ));
    }
    let a = choice(http, scope, lists::version("a", body.a)?).await?;
    let b = choice(http, scope, lists::version("b", body.b)?).await?;
    let prompts = prompts_of(http, context, scope, body).await?;
    let sampling = Sampling {
        seed: body.seed.unwrap_or_default(),
        ..inference.language.defaults()
    };
    let asks = Asks {
        http,
        inference,
        scope,
        caller: &context.caller,
        usage: http.rate_limiter.usage_recorder(context.id),
        sampling,
        max_tokens,
    };
    timeout(
        inference.limits.completion_timeout,
        answered(&asks, prompts, &a, &b),
    )
    .await
    .map_err(|_| ApiError::Unavailable {
        code: "compare_timeout",
        message: "the answers took longer than http.completion_timeout_ms; ask for fewer \
                  prompts or tokens"
            .to_owned(),
    })?
}

/// The prompts that the body gives, or those of the scope's latest turns.
async fn prompts_of(
    http: &Http,
    context: &RequestContext,
    scope: &Scope,
    body: &CompareBody,
) -> Result<Vec<Prompt>, ApiError> {
    let Some(prompts) = body.prompts.clone() else {
        return recent(http, scope, body.recent.unwrap_or(3)).await;
    };
    let chars = prompts.iter().flatten().map(chars_of).sum();
    let most = http.config.messages_max;
    let read = serving(http)?.apart(context.caller.counts_as(), chars, move |inference| {
        given(inference, &prompts, most)
    });
    read.await?
}

/// Asks both versions for every prompt, all at once, and reads the answers in their order.
async fn answered(
    asks: &Asks<'_>,
    prompts: Vec<Prompt>,
    a: &PolicyChoice,
    b: &PolicyChoice,
) -> Result<Comparison, ApiError> {
    let mut begun = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let answers = (asks.ask(&prompt, a)?, asks.ask(&prompt, b)?);
        begun.push((prompt, answers));
    }
    let mut data = Vec::with_capacity(begun.len());
    for (prompt, (a, b)) in begun {
        data.push(Pair {
            messages: prompt.messages.iter().map(template_message).collect(),
            a: asks.said(a).await?,
            b: asks.said(b).await?,
        });
    }
    Ok(Comparison {
        object: "comparison",
        data,
    })
}

/// How serve is asked for that version.
async fn choice(
    http: &Http,
    scope: &Scope,
    version: PolicyVersion,
) -> Result<PolicyChoice, ApiError> {
    let view = usable(http, scope, version).await?;
    let policy = view.map(|view| view.record.policy);
    Ok(policy.map_or(PolicyChoice::Base, PolicyChoice::Exact))
}

fn prompts_wanted(count: usize, param: &str) -> Result<(), ApiError> {
    if (1..=PROMPTS_MAX).contains(&count) {
        return Ok(());
    }
    Err(ApiError::invalid(
        param,
        format!("{param}: between 1 and {PROMPTS_MAX} prompts are compared at a time"),
    ))
}

fn given(
    inference: &InferenceService,
    prompts: &[Vec<Value>],
    messages_max: usize,
) -> Result<Vec<Prompt>, ApiError> {
    prompts_wanted(prompts.len(), "prompts")?;
    let prompt = |wire: &Vec<Value>| {
        let messages = parse_messages(wire, messages_max, &mut Reader::default())?;
        let text = inference.rendered(&messages, &[], None, &Map::new());
        let text = text.map_err(|error| ApiError::invalid("prompts", error.to_string()))?;
        Ok(Prompt {
            tokens: inference.language.encode(&text, false),
            messages,
        })
    };
    prompts.iter().map(prompt).collect()
}

/// The newest prompts of a scope, as they were asked.
async fn recent(http: &Http, scope: &Scope, count: usize) -> Result<Vec<Prompt>, ApiError> {
    prompts_wanted(count, "recent")?;
    let rows = http.ledger.turns(Some(scope), TURNS_LOOKED_AT).await;
    let mut prompts: Vec<Prompt> = Vec::new();
    for row in rows? {
        if prompts.len() >= count {
            break;
        }
        let view = http.ledger.turn(row.id).await;
        let Some(view) = view? else {
            continue;
        };
        let turn = view.turn;
        let is_new = prompts.iter().all(|p| p.tokens != turn.prompt_tokens);
        if turn.kind == TurnKind::Main && !turn.messages.is_empty() && is_new {
            prompts.push(Prompt {
                messages: turn.messages,
                tokens: turn.prompt_tokens,
            });
        }
    }
    if prompts.is_empty() {
        return Err(ApiError::invalid(
            "prompts",
            "this scope has no recent turns to compare on; send prompts",
        ));
    }
    Ok(prompts)
}

/// What all asks of a comparison share.
struct Asks<'a> {
    http: &'a Http,
    inference: &'a InferenceService,
    scope: &'a Scope,
    caller: &'a Caller,
    usage: Option<UsageRecorder>,
    sampling: Sampling,
    max_tokens: u32,
}

impl Asks<'_> {
    fn ask(&self, prompt: &Prompt, policy: &PolicyChoice) -> Result<Answer, ApiError> {
        let ids = &self.http.ids;
        let ask = Ask {
            turn: TurnId(ids.next()),
            request: RequestId(ids.next()),
            choice_index: 0,
            group: None,
            scope: self.scope.clone(),
            policy: policy.clone(),
            origin: Origin::Gate,
            kind: TurnKind::Side,
            prompt_tokens: prompt.tokens.clone(),
            form: None,
            given: Vec::new(),
            predicted: Arc::default(),
            sampling: self.sampling.clone(),
            stop: StopRules {
                max_tokens: self.max_tokens,
                strings: Vec::new(),
                ignore_end: false,
                ..StopRules::default()
            },
            collect: Collect::No(Reason::SideTurn),
            context: AskContext {
                session: SessionId(ids.next()),
                session_key: None,
                parent: None,
                owner: self.caller.owner.clone(),
                keeper: self.caller.keeper().cloned(),
                messages: Default::default(),
                admission: hone_domain::Admission::default(),
                untrainable: None,
                admitted_ms: self.http.clock.now_ms(),
            },
        };
        let answer = self.inference.backend.ask(ask).map_err(OpenError::Serve);
        let answer = answer.map_err(ApiError::of_prompt("prompts"))?;
        self.pay(prompt.tokens.len());
        Ok(answer)
    }

    fn pay(&self, tokens: usize) {
        if let Some(usage) = &self.usage {
            usage.record(tokens);
        }
    }

    async fn said(&self, mut answer: Answer) -> Result<Said, ApiError> {
        let mut text = String::new();
        let mut paid = 0;
        while let Some(delta) = answer.deltas.recv().await {
            match delta {
                Delta::Started { .. } => {}
                Delta::Token(token) => {
                    text.push_str(&token.text);
                    // At once, because a client may leave.
                    self.pay(1);
                    paid += 1;
                }
                Delta::Failed(error) => return Err(error.into()),
                Delta::End(end) => {
                    text.push_str(&end.text);
                    let tokens = end.completion.len();
                    self.pay(tokens.saturating_sub(paid));
                    return Ok(Said {
                        text,
                        tokens,
                        stop: end.stop,
                        version: end.version.0,
                    });
                }
            }
        }
        Err(ApiError::Internal("the engine broke off".to_owned()))
    }
}
