//! What goes into binding and what comes out.

use std::sync::Arc;

use crate::{
    Message, Millis, NextState, Scope, SessionId, ShownMemory, ShownSkill, Token, TurnId, TurnKind,
};

/// Bounds of the index.
#[derive(Clone, Copy, Debug)]
pub struct SessionIndexConfig {
    /// Most sessions remembered; beyond, the longest idle one of the owner who has most goes.
    pub sessions_max: usize,
    /// Most turns remembered per session; the oldest goes first.
    pub turns_per_session_max: usize,
    /// Most bytes of transcripts; the oldest goes first, and its session then re-tokenises.
    pub transcript_bytes_max: usize,
    /// How long after a completion that was never delivered the same request again is its retry.
    pub retry_ms: Millis,
}

/// A turn of the same scope that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continued {
    /// Its session.
    pub session: SessionId,
    /// The turn.
    pub turn: TurnId,
    /// Where in the request the messages after it begin.
    pub next_from: usize,
}

/// A request as far as binding needs it.
#[derive(Clone, Copy, Debug)]
pub struct BindRequest<'a> {
    /// With whose sessions it counts: the owner of the API key, or the keeper of one who is an agent.
    pub owner: &'a str,
    /// Whose policy.
    pub scope: &'a Scope,
    /// The session's key, where the client sent one.
    pub session_key: Option<&'a str>,
    /// Main or side.
    pub kind: TurnKind,
    /// The turn that the client names as the one it continues.
    pub continues: Option<Continued>,
    /// Whether it is kept as what it answers; what is not kept takes nobody's place.
    pub keeps: bool,
    /// All messages of the request.
    pub messages: &'a [Message],
    /// The id to use if this begins a session.
    pub new_session: SessionId,
    /// Now.
    pub now_ms: Millis,
}

/// How a request was bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindHow {
    /// By the client's session key.
    Key,
    /// By its messages.
    Chain,
    /// It begins a session.
    New,
    /// Its history was rewritten, or the turn it continues was continued otherwise before.
    Fork,
    /// It continues one of several sessions that said the same; it begins one of its own.
    Ambiguous,
}

impl BindHow {
    /// The counted name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Chain => "chain",
            Self::New => "new",
            Self::Fork => "fork",
            Self::Ambiguous => "ambiguous",
        }
    }
}

/// Text and exact tokens of a recorded prompt with its completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Transcript {
    /// The rendered text, special tokens included.
    pub text: Arc<str>,
    /// Its tokens as the engine saw and sampled them.
    pub tokens: Arc<[Token]>,
}

impl Transcript {
    pub(super) fn bytes(&self) -> usize {
        self.text.len() + self.tokens.len() * size_of::<Token>()
    }
}

/// The outcome of binding.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// The session.
    pub session: SessionId,
    /// How it was found.
    pub how: BindHow,
    /// The turn this request continues.
    pub parent: Option<TurnId>,
    /// What the request answers to the parent. Empty where there is no parent, where the parent
    /// already has its next state, or where the request is a side turn or not kept.
    pub next_state: NextState,
    /// The parent's recorded tokens, for reuse.
    pub transcript: Option<Transcript>,
    /// Messages of the request that are recorded completions of its session which clients send
    /// back in another form (calls apart, reasoning left out): their places, and the texts as
    /// they were sampled.
    pub recorded: Vec<(usize, Arc<str>)>,
    /// What the turn it continues was shown; none where it begins a conversation.
    pub shown: Option<Arc<Shown>>,
    /// The turn whose answer never arrived and that this request repeats; it is answered again
    /// under the same id.
    pub retry_of: Option<TurnId>,
}

impl Binding {
    pub(super) fn without_parent(session: SessionId, how: BindHow) -> Self {
        Self {
            session,
            how,
            parent: None,
            next_state: NextState::default(),
            transcript: None,
            recorded: Vec::new(),
            shown: None,
            retry_of: None,
        }
    }
}

/// What the prompt of a turn holds beside the client's messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Memories.
    pub memories: Vec<ShownMemory>,
    /// Skills.
    pub skills: Vec<ShownSkill>,
}

impl Shown {
    pub(super) fn by(turn: &PendingTurn) -> Self {
        Self {
            memories: turn.memories.clone(),
            skills: turn.skills.clone(),
        }
    }
}

/// A turn that requests may continue.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingTurn {
    /// The turn.
    pub turn: TurnId,
    /// Its session.
    pub session: SessionId,
    /// Key of that session.
    pub session_key: Option<String>,
    /// With whose sessions that one counts.
    pub owner: String,
    /// Whose policy.
    pub scope: Scope,
    /// The messages of its request.
    pub messages: Vec<Message>,
    /// Its completion as an assistant message.
    pub completion: Message,
    /// The turn it continues.
    pub parent: Option<TurnId>,
    /// The memories that its prompt holds.
    pub memories: Vec<ShownMemory>,
    /// The skills that its prompt holds.
    pub skills: Vec<ShownSkill>,
    /// Main or side; nothing continues a side turn.
    pub kind: TurnKind,
    /// Whether the client was there for its end.
    pub delivered: bool,
    /// Whether it already has its next state.
    pub continued: bool,
    /// When it ended.
    pub ended_ms: Millis,
}
