//! Binding: which session a request belongs to and which turn it continues.
//!
//! A pure function over an in-memory index. The door runs it before the ask, because adapter,
//! learning and token reuse depend on it. An explicit session key always wins; without one, a
//! hash chain over the messages finds the turn whose prompt and completion the request extends.
//! Chains are seeded with the scope, so two users with equal words never meet.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::speech::Heard;
use crate::{Message, Millis, NextState, Role, Scope, SessionId, Token, TurnId, TurnKind};

type Hash = [u8; 32];

/// Bounds of the index.
#[derive(Clone, Copy, Debug)]
pub struct SessionIndexConfig {
    /// Most sessions remembered; the longest idle one goes first.
    pub sessions_max: usize,
    /// Most turns remembered per session; the oldest goes first.
    pub turns_per_session_max: usize,
    /// Most bytes of transcripts; the oldest goes first, and its session then re-tokenises.
    pub transcript_bytes_max: usize,
}

/// A request as far as binding needs it.
#[derive(Clone, Copy, Debug)]
pub struct BindRequest<'a> {
    /// Owner of the API key.
    pub owner: &'a str,
    /// Whose policy.
    pub scope: &'a Scope,
    /// The session's key, where the client sent one.
    pub session_key: Option<&'a str>,
    /// Main or side.
    pub kind: TurnKind,
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
}

impl BindHow {
    /// The counted name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Chain => "chain",
            Self::New => "new",
            Self::Fork => "fork",
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
    fn bytes(&self) -> usize {
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
    /// already has its next state, or where the request is a side turn.
    pub next_state: NextState,
    /// The parent's recorded tokens, for reuse.
    pub transcript: Option<Transcript>,
    /// Messages of the request that are recorded completions of its session which clients send
    /// back in another form (calls apart, reasoning left out): their places, and the texts as
    /// they were sampled.
    pub recorded: Vec<(usize, Arc<str>)>,
}

/// A turn that requests may continue.
#[derive(Clone, Debug)]
pub struct PendingTurn {
    /// The turn.
    pub turn: TurnId,
    /// Its session.
    pub session: SessionId,
    /// Key of that session.
    pub session_key: Option<String>,
    /// Owner of the API key.
    pub owner: String,
    /// Whose policy.
    pub scope: Scope,
    /// The messages of its request.
    pub messages: Vec<Message>,
    /// Its completion as an assistant message.
    pub completion: Message,
    /// Whether it already has its next state.
    pub continued: bool,
    /// When it ended.
    pub ended_ms: Millis,
}

#[derive(Debug)]
struct Known {
    turn: TurnId,
    chain: Hash,
    completion: Hash,
    continued_with: Option<Hash>,
    transcript: Option<Transcript>,
    /// The completion as sampled, where clients send it back in another form.
    sampled: Option<Arc<str>>,
}

impl Known {
    fn bytes(&self) -> usize {
        self.transcript.as_ref().map_or(0, Transcript::bytes)
            + self.sampled.as_ref().map_or(0, |text| text.len())
    }

    /// Gives up what only saves re-tokenising.
    fn shrink(&mut self) -> usize {
        let bytes = self.bytes();
        (self.transcript, self.sampled) = (None, None);
        bytes
    }
}

#[derive(Debug)]
struct Session {
    key: Option<(String, String)>,
    scope: Scope,
    turns: Vec<Known>,
    last_ms: Millis,
}

/// What is remembered of recent sessions.
#[derive(Debug)]
pub struct SessionIndex {
    config: SessionIndexConfig,
    sessions: HashMap<SessionId, Session>,
    by_key: HashMap<(String, String), SessionId>,
    by_chain: HashMap<Hash, (SessionId, TurnId)>,
    by_age: BTreeMap<(Millis, SessionId), ()>,
    transcript_bytes: usize,
}

impl SessionIndex {
    /// An empty index.
    pub fn new(config: SessionIndexConfig) -> Self {
        Self {
            config,
            sessions: HashMap::new(),
            by_key: HashMap::new(),
            by_chain: HashMap::new(),
            by_age: BTreeMap::new(),
            transcript_bytes: 0,
        }
    }

    /// Number of sessions remembered.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Finds the session and the continued turn of a request, and notes the continuation so that
    /// a second, different continuation of the same turn is a fork.
    pub fn bind(&mut self, request: &BindRequest<'_>) -> Binding {
        let chains = chain(request.scope, request.messages);
        let found = match request.session_key {
            Some(key) => self.find_by_key(request, key, &chains),
            None => self.find_by_chain(&chains),
        };
        let Some((session, place)) = found else {
            return self.begin(request);
        };
        let Some((turn, next_from)) = place else {
            return self.bind_without_parent(request, session);
        };
        let recorded = self.recorded(session, &request.messages[..next_from]);
        Binding {
            recorded,
            ..self.continue_turn(request, session, (turn, next_from))
        }
    }

    /// Which of `messages` are completions of the session that came back in another form.
    fn recorded(&self, session: SessionId, messages: &[Message]) -> Vec<(usize, Arc<str>)> {
        let Some(session) = self.sessions.get(&session) else {
            return Vec::new();
        };
        let sampled: HashMap<Hash, &Arc<str>> = session
            .turns
            .iter()
            .filter_map(|known| Some((known.completion, known.sampled.as_ref()?)))
            .collect();
        if sampled.is_empty() {
            return Vec::new();
        }
        let places = messages.iter().enumerate();
        places
            .filter(|(_, message)| message.role == Role::Assistant)
            .filter_map(|(at, message)| {
                let text = *sampled.get(&message.chain_hash())?;
                let differs = !message.tool_calls.is_empty() || *message.content != **text;
                differs.then(|| (at, text.clone()))
            })
            .collect()
    }

    /// Remembers an ended turn, so that the next request can continue it. Side turns are not
    /// remembered: nothing continues a title request.
    pub fn record(&mut self, turn: &PendingTurn, transcript: Option<Transcript>) {
        let chains = chain(&turn.scope, &turn.messages);
        let completion = turn.completion.chain_hash();
        let whole = extend(chains.last().copied().unwrap_or_default(), completion);
        let key = turn
            .session_key
            .clone()
            .map(|key| (turn.owner.clone(), key));
        if let Some(key) = &key {
            self.by_key.insert(key.clone(), turn.session);
        }
        let most = self.config.turns_per_session_max.max(1);
        let session = self
            .sessions
            .entry(turn.session)
            .or_insert_with(|| Session {
                key,
                scope: turn.scope.clone(),
                turns: Vec::new(),
                last_ms: turn.ended_ms,
            });
        self.by_age.remove(&(session.last_ms, turn.session));
        session.last_ms = session.last_ms.max(turn.ended_ms);
        self.by_age.insert((session.last_ms, turn.session), ());
        let known = Known {
            turn: turn.turn,
            chain: whole,
            completion,
            continued_with: turn.continued.then_some([0; 32]),
            sampled: transcript.as_ref().and_then(|_| sampled(&turn.completion)),
            transcript,
        };
        self.transcript_bytes += known.bytes();
        session.turns.push(known);
        self.by_chain.insert(whole, (turn.session, turn.turn));
        if session.turns.len() > most {
            let old = session.turns.remove(0);
            self.forget_turn(&old);
        }
        self.enforce_bounds();
    }

    /// Forgets sessions that were idle since before `before_ms`.
    pub fn evict_idle(&mut self, before_ms: Millis) {
        while let Some((&(last_ms, session), ())) = self.by_age.first_key_value() {
            if last_ms >= before_ms {
                return;
            }
            self.forget_session(session);
        }
    }

    /// Forgets one session, because its client said it is done or its user wants it gone.
    pub fn forget_session(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.remove(&id) {
            self.by_age.remove(&(session.last_ms, id));
            if let Some(key) = &session.key
                && self.by_key.get(key) == Some(&id)
            {
                self.by_key.remove(key);
            }
            for turn in &session.turns {
                self.forget_turn(turn);
            }
        }
    }

    /// Forgets turns of one session; what came before them can still be continued.
    pub fn forget_turns(&mut self, id: SessionId, turns: &[TurnId]) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let (gone, kept): (Vec<Known>, Vec<Known>) = std::mem::take(&mut session.turns)
            .into_iter()
            .partition(|known| turns.contains(&known.turn));
        session.turns = kept;
        for known in gone {
            self.forget_turn(&known);
        }
    }

    /// The session a client's key stands for.
    pub fn session_of_key(&self, owner: &str, key: &str) -> Option<SessionId> {
        self.by_key
            .get(&(owner.to_owned(), key.to_owned()))
            .copied()
    }

    fn find_by_key(
        &self,
        request: &BindRequest<'_>,
        key: &str,
        chains: &[Hash],
    ) -> Option<(SessionId, Option<(TurnId, usize)>)> {
        let id = self.session_of_key(request.owner, key)?;
        let session = self.sessions.get(&id)?;
        if session.scope != *request.scope {
            return Some((id, None));
        }
        let by_chain = session.turns.iter().rev().find_map(|known| {
            let at = chains.iter().rposition(|c| *c == known.chain)?;
            Some((known.turn, at + 1))
        });
        // Clients add passing messages that are gone from the next request, so under an explicit
        // key the completion alone is enough to find the turn.
        let by_completion = || {
            request
                .messages
                .iter()
                .enumerate()
                .rev()
                .find_map(|(at, message)| {
                    if message.role != Role::Assistant {
                        return None;
                    }
                    let hash = message.chain_hash();
                    let known = session.turns.iter().rev().find(|k| k.completion == hash)?;
                    Some((known.turn, at + 1))
                })
        };
        Some((id, by_chain.or_else(by_completion)))
    }

    fn find_by_chain(&self, chains: &[Hash]) -> Option<(SessionId, Option<(TurnId, usize)>)> {
        chains.iter().enumerate().rev().find_map(|(at, hash)| {
            let (session, turn) = self.by_chain.get(hash)?;
            Some((*session, Some((*turn, at + 1))))
        })
    }

    fn begin(&mut self, request: &BindRequest<'_>) -> Binding {
        let how = if request.session_key.is_some() {
            BindHow::Key
        } else {
            BindHow::New
        };
        if let (Some(key), TurnKind::Main) = (request.session_key, request.kind) {
            self.open(request, key);
        }
        let (session, next_state) = (request.new_session, NextState::default());
        Binding {
            session,
            how,
            parent: None,
            next_state,
            transcript: None,
            recorded: Vec::new(),
        }
    }

    /// Two requests that open one keyed session at once must land in the same one.
    fn open(&mut self, request: &BindRequest<'_>, key: &str) {
        let key = (request.owner.to_owned(), key.to_owned());
        self.by_key.insert(key.clone(), request.new_session);
        self.by_age
            .insert((request.now_ms, request.new_session), ());
        self.sessions.insert(
            request.new_session,
            Session {
                key: Some(key),
                scope: request.scope.clone(),
                turns: Vec::new(),
                last_ms: request.now_ms,
            },
        );
        self.enforce_bounds();
    }

    fn bind_without_parent(&self, request: &BindRequest<'_>, session: SessionId) -> Binding {
        let had_turns = self
            .sessions
            .get(&session)
            .is_some_and(|s| !s.turns.is_empty());
        let has_history = request.messages.iter().any(|m| m.role == Role::Assistant);
        let rewritten = had_turns && has_history && request.kind == TurnKind::Main;
        let how = if rewritten {
            BindHow::Fork
        } else {
            BindHow::Key
        };
        Binding {
            session,
            how,
            parent: None,
            next_state: NextState::default(),
            transcript: None,
            recorded: Vec::new(),
        }
    }

    fn continue_turn(
        &mut self,
        request: &BindRequest<'_>,
        id: SessionId,
        (turn, next_from): (TurnId, usize),
    ) -> Binding {
        let how = if request.session_key.is_some() {
            BindHow::Key
        } else {
            BindHow::Chain
        };
        let mut binding = Binding {
            session: id,
            how,
            parent: None,
            next_state: NextState::default(),
            transcript: None,
            recorded: Vec::new(),
        };
        let Some(session) = self.sessions.get_mut(&id) else {
            return binding;
        };
        let Some(known) = session.turns.iter_mut().find(|k| k.turn == turn) else {
            return binding;
        };
        binding.transcript = known.transcript.clone();
        if request.kind == TurnKind::Side {
            return binding;
        }
        binding.parent = Some(turn);
        let next = request.messages.get(next_from..).unwrap_or_default();
        let with = next
            .iter()
            .fold([0; 32], |hash, m| extend(hash, m.chain_hash()));
        match known.continued_with {
            None => {
                let next_state = NextState::from_messages(next);
                if !next_state.is_empty() {
                    known.continued_with = Some(with);
                }
                binding.next_state = next_state;
            }
            Some(before) if before == with || before == [0; 32] => {}
            Some(_) => {
                binding.how = BindHow::Fork;
                if request.session_key.is_none() {
                    binding.session = request.new_session;
                }
            }
        }
        self.by_age.remove(&(session.last_ms, id));
        session.last_ms = session.last_ms.max(request.now_ms);
        self.by_age.insert((session.last_ms, id), ());
        binding
    }

    fn forget_turn(&mut self, known: &Known) {
        if self
            .by_chain
            .get(&known.chain)
            .is_some_and(|(_, turn)| *turn == known.turn)
        {
            self.by_chain.remove(&known.chain);
        }
        self.transcript_bytes -= known.bytes();
    }

    fn enforce_bounds(&mut self) {
        while self.sessions.len() > self.config.sessions_max.max(1) {
            let Some((&(_, oldest), ())) = self.by_age.first_key_value() else {
                return;
            };
            self.forget_session(oldest);
        }
        if self.transcript_bytes <= self.config.transcript_bytes_max {
            return;
        }
        let ids: Vec<SessionId> = self.by_age.keys().map(|(_, id)| *id).collect();
        for id in ids {
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            for known in &mut session.turns {
                if self.transcript_bytes <= self.config.transcript_bytes_max {
                    return;
                }
                self.transcript_bytes -= known.shrink();
            }
        }
    }
}

/// The completion's text, where clients send it back in another form.
fn sampled(completion: &Message) -> Option<Arc<str>> {
    let heard = Heard::meaning(&completion.content);
    let differs = !heard.calls.is_empty() || heard.content != completion.content;
    differs.then(|| Arc::from(completion.content.as_str()))
}

fn extend(chain: Hash, message: Hash) -> Hash {
    let mut hash = Sha256::new();
    hash.update(chain);
    hash.update(message);
    hash.finalize().into()
}

/// One hash per prefix of `messages`: entry `i` covers messages `0..=i`.
fn chain(scope: &Scope, messages: &[Message]) -> Vec<Hash> {
    let mut at: Hash = Sha256::digest(scope.as_str().as_bytes()).into();
    messages
        .iter()
        .map(|message| {
            at = extend(at, message.chain_hash());
            at
        })
        .collect()
}

#[cfg(test)]
#[path = "binding_tests.rs"]
mod tests;
