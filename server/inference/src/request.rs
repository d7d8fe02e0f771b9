//! A checked request for completions.

use std::collections::BTreeMap;
use std::sync::Arc;

use hone_domain::{
    Admission, BranchOf, CallStyle, Check, Continued, Look, MemoryMode, MemoryUse, Message, Origin,
    PolicyChoice, RequestId, Sampling, Scope, SessionId, Token, ToolCall, TurnKind, Wanted,
};
use hone_monitor::telemetry::Parent;
use serde_json::{Map, Value};

use super::InferenceService;
use super::arguments::Offered;
use super::episode::{EpisodeAccess, StepsUsedUp};
use super::shape::{Calls, Shape};

/// Where the prompt comes from.
#[derive(Clone, Debug)]
pub enum PromptSource {
    /// The messages, through the model's template.
    Chat {
        /// Tool definitions; with some, calls are taken out of the completion's text.
        tools: Option<Vec<Value>>,
        /// Further template variables.
        extra: Map<String, Value>,
    },
    /// A text, without template.
    Text(String),
    /// Tokens, as they are.
    Tokens(Vec<Token>),
}

/// A checked request for completions of one prompt.
#[derive(Clone, Debug)]
pub struct Request {
    /// The HTTP request.
    pub id: RequestId,
    /// Owner of the API key.
    pub owner: String,
    /// The keeper of an owner who is an agent.
    pub keeper: Option<String>,
    /// Whose policy.
    pub scope: Scope,
    /// Who says it, where several share the policy.
    pub source: Option<String>,
    /// Which of its versions.
    pub policy: PolicyChoice,
    /// The session's key.
    pub session_key: Option<String>,
    /// Who asks.
    pub origin: Origin,
    /// Main or side; by its words where the client does not say so.
    pub kind: Option<TurnKind>,
    /// The turn that the client names as the one it continues; one of the same scope.
    pub continues: Option<Continued>,
    /// Whether the session ends with this turn.
    pub done: bool,
    /// `store: false` is false here.
    pub store: bool,
    /// Whether the key says that `store: false` of its calls means nothing.
    pub despite_store_false: bool,
    /// What it does with memories, where it or its key says.
    pub memory: Option<MemoryMode>,
    /// The messages.
    pub messages: Vec<Message>,
    /// The prompt.
    pub prompt: PromptSource,
    /// How many completions.
    pub n: u32,
    /// Index of the first of them in the reply.
    pub first_index: u32,
    /// How to sample; choice `i` adds `i` to the seed.
    pub sampling: Sampling,
    /// Most tokens to sample; cut to what fits. None takes what fits.
    pub max_tokens: Option<u32>,
    /// Stop strings.
    pub stops: Vec<String>,
    /// Whether end tokens do not stop.
    pub ignore_end: bool,
    /// What the client thinks that the answer will be.
    pub prediction: Option<String>,
    /// Alternatives to report per token of the prompt, where its log-probs are wanted.
    pub prompt_logprobs: Option<u8>,
    /// Whether at most one tool call is told.
    pub single_call: bool,
    /// The form of the answer.
    pub shape: Option<Shape>,
    /// Names of its members, where that is a JSON object.
    pub form_members: Option<Vec<String>>,
    /// What the client attached, for itself.
    pub metadata: BTreeMap<String, String>,
    /// The span of the client that this request belongs to.
    pub parent: Option<Parent>,
    /// What its completions are to be checked by.
    pub checks: Vec<Check>,
    /// The episode whose agent asks; see [`Request::bind`].
    pub episode: Option<Arc<EpisodeAccess>>,
    /// The answer that its completions go on from, whose tokens its prompt ends with.
    pub branch: Option<BranchOf>,
}

impl Request {
    pub(crate) fn admission(&self, holdback: bool, memory: MemoryUse) -> Admission {
        Admission {
            holdback,
            source: self.source.clone(),
            trace: self.parent.map(|parent| parent.trace),
            metadata: self.metadata.clone(),
            checks: self.checks.clone(),
            memory,
            branch: self.branch,
        }
    }

    /// Whether its prediction can make its answer come sooner: where draws need nothing but the logits.
    pub fn may_draft(&self, inference: &InferenceService) -> bool {
        let sampling = &self.sampling;
        let is_plain = sampling.is_unadjusted() && sampling.top_logprobs == 0;
        let is_held = |shape: &Shape| !matches!(shape.calls, Calls::Alone(_));
        is_plain
            && !self.shape.as_ref().is_some_and(is_held)
            && inference.backend.capabilities().drafts
    }

    /// The tools it offers to a model that knows how to call.
    pub(crate) fn offered(&self, calls: Option<CallStyle>) -> Option<Arc<Offered>> {
        match &self.prompt {
            PromptSource::Chat {
                tools: Some(tools), ..
            } if calls.is_some() => Some(Arc::new(Offered(tools.clone()))),
            _ => None,
        }
    }

    /// What tells whether it is housekeeping.
    pub(crate) fn look(&self) -> Look<'_> {
        Look {
            messages: &self.messages,
            offers_tools: matches!(self.prompt, PromptSource::Chat { tools: Some(_), .. }),
            form: self.form_members.as_deref(),
            max_tokens: self.max_tokens,
        }
    }

    /// Whose fair part of the work it takes.
    pub(crate) fn counts_as(&self) -> &str {
        self.keeper.as_ref().unwrap_or(&self.owner)
    }

    pub(crate) fn wanted(&self, session: SessionId) -> Wanted {
        Wanted {
            policy: self.policy.clone(),
            store: self.store,
            despite_store_false: self.despite_store_false,
            kind: self.kind(),
            session,
        }
    }

    pub(crate) fn kind(&self) -> TurnKind {
        self.kind.unwrap_or(TurnKind::Main)
    }

    /// About how many characters its prompt and its prediction are made of, and what is written around them.
    pub(crate) fn chars(&self) -> usize {
        let some = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let called = |c: &ToolCall| CALL_CHARS + c.id.len() + c.name.len() + c.arguments.len();
        let said = self.messages.iter().map(|m| {
            let calls: usize = m.tool_calls.iter().map(called).sum();
            MESSAGE_CHARS + m.content.len() + some(&m.name) + some(&m.tool_call_id) + calls
        });
        let shown: usize = match &self.prompt {
            PromptSource::Chat { tools, extra } => {
                let tools = tools.iter().flatten();
                tools.chain(extra.values()).map(chars_of).sum()
            }
            // The only message.
            PromptSource::Text(_) | PromptSource::Tokens(_) => 0,
        };
        said.sum::<usize>() + shown + some(&self.prediction)
    }
}

impl Request {
    /// Makes it one of an episode's.
    ///
    /// # Errors
    /// Where the episode has used its steps.
    pub fn bind(&mut self, episode: &Arc<EpisodeAccess>) -> Result<(), StepsUsedUp> {
        let step = episode.step()?;
        let terms = &episode.terms;
        self.owner.clone_from(&terms.owner);
        self.keeper = None;
        self.scope = terms.scope.clone();
        self.source = None;
        self.policy = terms.policy.clone();
        self.session_key = Some(terms.session_key.clone());
        self.origin = Origin::Rollout;
        self.done = false;
        // Some agents ask with `store: false` whatever they are told. It was ordered to be learned from.
        self.store = true;
        self.memory = Some(MemoryMode::Off);
        // The same seed or no temperature would make all attempts at a task alike.
        self.sampling = Sampling {
            temperature: terms.temperature,
            seed: episode.seed_of(step),
            top_logprobs: self.sampling.top_logprobs,
            top_behavior: self.sampling.top_behavior,
            ..Sampling::default()
        };
        let asked = self.max_tokens.unwrap_or(terms.tokens_max);
        self.max_tokens = Some(asked.min(terms.tokens_max));
        self.metadata.clone_from(&terms.metadata);
        self.metadata.insert("step".to_owned(), step.to_string());
        self.episode = Some(episode.clone());
        Ok(())
    }
}

/// About how many characters a template writes around a message, and around a call.
const MESSAGE_CHARS: usize = 16;
const CALL_CHARS: usize = 64;

/// About how many characters a value is written with.
pub fn chars_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 1 + chars_of(item)).sum(),
        Value::Object(map) => map.iter().map(|(k, v)| 2 + k.len() + chars_of(v)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
    }
}
