//! Asks: what enters serve, and what comes out of it.

use std::sync::Arc;

use crate::{
    Admission, CallStyle, Completion, GroupId, Message, Millis, Origin, OutputFormat, PolicyChoice,
    PolicyVersion, Reason, Reasoning, RequestId, Sampling, Scope, SessionId, StopReason, Token,
    Turn, TurnId, TurnKind,
};

/// When sampling ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StopRules {
    /// Most tokens to sample; at least 1.
    pub max_tokens: u32,
    /// Texts that end the completion; they are not part of it.
    pub strings: Vec<String>,
    /// Whether end tokens are sampled like any other and do not stop.
    pub ignore_end: bool,
    /// Where calls are told, `strings` are looked for outside of them, and the first call ends a
    /// completion that is to have a single one.
    pub output_format: OutputFormat,
    /// Names of the functions that calls are of.
    pub functions: Arc<[String]>,
}

/// What the text of a completion must look like: a grammar in llguidance's Lark notation, which
/// embeds JSON schemas and regular expressions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grammar(pub std::sync::Arc<str>);

/// Which part of a completion a grammar rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// All of it.
    Whole(Grammar),
    /// What follows each [`CALL_OPEN`](crate::CALL_OPEN) outside reasoning, up to the end of the grammar;
    /// all else is free.
    Calls {
        /// Of one call.
        grammar: Grammar,
        /// How calls are written.
        style: CallStyle,
        /// Where reasoning may stand.
        reasoning: Reasoning,
        /// Whether the completion ends with its first call.
        single: bool,
    },
}

impl Form {
    /// The grammar.
    pub fn grammar(&self) -> &Grammar {
        match self {
            Self::Whole(grammar) | Self::Calls { grammar, .. } => grammar,
        }
    }
}

/// Whether a turn is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// It becomes a turn in the ledger.
    Yes,
    /// It leaves no trace but a counter with this reason.
    No(Reason),
}

/// Everything about an ask that serve passes on without reading it.
#[derive(Clone, Debug)]
pub struct AskContext {
    /// The session it was bound to.
    pub session: SessionId,
    /// The session's key as the client gave it.
    pub session_key: Option<String>,
    /// The turn it continues.
    pub parent: Option<TurnId>,
    /// Owner of the API key.
    pub owner: String,
    /// The keeper of an owner who is an agent.
    pub keeper: Option<String>,
    /// The request's messages, which its completions share.
    pub messages: Arc<[Message]>,
    /// How it was admitted.
    pub admission: Admission,
    /// Why the turn will not train, where admission knows that already.
    pub untrainable: Option<Reason>,
    /// When it was admitted.
    pub admitted_ms: Millis,
}

impl AskContext {
    /// Whose fair part it takes of what all share: however many agents somebody keeps, one.
    pub fn counts_as(&self) -> &str {
        self.keeper.as_ref().unwrap_or(&self.owner)
    }
}

/// A request for one completion.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Becomes the turn's id.
    pub turn: TurnId,
    /// The HTTP request.
    pub request: RequestId,
    /// Which of its completions.
    pub choice_index: u32,
    /// Set where the request wants several.
    pub group: Option<GroupId>,
    /// Whose policy.
    pub scope: Scope,
    /// Which of its versions.
    pub policy: PolicyChoice,
    /// Who asks; decides priority.
    pub origin: Origin,
    /// Whether the turn may train.
    pub kind: TurnKind,
    /// The tokens to continue.
    pub prompt_tokens: Vec<Token>,
    /// How to sample.
    pub sampling: Sampling,
    /// When to stop.
    pub stop: StopRules,
    /// What its text is held to.
    pub form: Option<Form>,
    /// The completion, where it is known already; empty where it is to be sampled. A known one is
    /// only scored: each of its tokens comes back with its log-prob and the likeliest others. Such
    /// an ask is never collected and follows no grammar.
    pub given: Vec<Token>,
    /// What the asker thinks that it will say, of what is sampled. Where it does, it may say it sooner;
    /// nothing else depends on this.
    pub predicted: std::sync::Arc<[Token]>,
    /// Whether to collect.
    pub collect: Collect,
    /// Passed through to the turn.
    pub context: AskContext,
}

/// One sampled token on its way to the client.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenDelta {
    /// Text that became certain with this token; may be empty inside a character or a possible
    /// stop string, and may hold text of earlier tokens.
    pub text: String,
    /// The token.
    pub token: Token,
    /// Its log-prob at temperature 1 with nothing cut.
    pub logprob: f32,
    /// Its log-prob under the distribution it was sampled from.
    pub behavior_logprob: f32,
    /// The most likely alternatives, best first, where asked for; under the distribution that
    /// [`Sampling::top_behavior`] names.
    pub top: Vec<(Token, f32)>,
}

/// What serve sends while it answers an ask.
#[derive(Debug)]
pub enum Delta {
    /// The ask was admitted under this version; sent once, before the first token.
    Started {
        /// Version that is pinned for the whole completion.
        version: PolicyVersion,
        /// Prompt tokens that did not have to be computed again.
        cached_tokens: u32,
    },
    /// A token.
    Token(TokenDelta),
    /// The completion is whole.
    End(Box<End>),
    /// It failed; nothing follows.
    Failed(ServeError),
}

/// The end of a completion.
#[derive(Debug)]
pub struct End {
    /// Why it ended.
    pub stop: StopReason,
    /// Text held back until the end (a cut character, a stop string that did not complete).
    pub text: String,
    /// Tokens, log-probs, kept sets.
    pub completion: Completion,
    /// The version that sampled all of it.
    pub version: PolicyVersion,
    /// What became of what was predicted, where something was.
    pub predicted: Option<Predicted>,
    /// Present where the turn is being collected: becomes ready when it is durable.
    pub turn: Option<Box<Turn>>,
}

/// Tokens of a prediction that were computed before it was certain that they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Predicted {
    /// They were sampled.
    pub accepted: u32,
    /// They were not.
    pub rejected: u32,
}

impl Predicted {
    /// Adds those of another completion.
    pub fn add(&mut self, other: Self) {
        self.accepted = self.accepted.saturating_add(other.accepted);
        self.rejected = self.rejected.saturating_add(other.rejected);
    }
}

/// What became of a turn's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receipt {
    /// In the ledger, durably.
    Collected,
    /// Durable in the local spool, which ships it to the ledger when that answers again.
    Spooled,
    /// Not collected, and why.
    NotCollected(Reason),
}

/// Why serve could not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// Too many asks are waiting.
    #[error(
        "the engine's waiting line has no place left ({limit} requests); retry in {retry_after_ms} ms"
    )]
    Overloaded {
        /// The limit.
        limit: usize,
        /// When a place is likely to be free.
        retry_after_ms: u64,
    },
    /// Prompt and completion do not fit the model.
    #[error(
        "the prompt has {prompt_tokens} tokens and the model takes at most {max_positions} with its completion"
    )]
    TooLong {
        /// Prompt length.
        prompt_tokens: usize,
        /// The limit here.
        max_positions: usize,
        /// What the model itself takes; more where memory for keys and values is the limit.
        model_positions: usize,
    },
    /// This backend cannot do it at all.
    #[error("{0}")]
    Unsupported(String),
    /// The grammar cannot be followed.
    #[error("{0}")]
    Grammar(String),
    /// The adapter of the wanted version could not be loaded.
    #[error("the adapter of this policy could not be loaded: {0}")]
    Adapter(String),
    /// The device has no memory to compute it, not even a token at a time.
    #[error("there is no memory for this request at the moment")]
    Memory,
    /// The engine stopped.
    #[error("the engine is stopping")]
    Stopping,
    /// It was not answered within the time that it may take, or nobody waits for it any more.
    #[error("it was not answered in time")]
    Late,
    /// Something inside broke.
    #[error("the engine failed: {0}")]
    Internal(String),
}
