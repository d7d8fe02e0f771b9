//! Binding: which session a request belongs to and which turn it continues.
//!
//! A pure function over an in-memory index. The gateway runs it before the ask, because adapter,
//! learning and token reuse depend on it. An explicit session key always wins, and in it a turn
//! that is named; without both, a hash chain over the messages finds the turn whose prompt and
//! completion the request extends, or, where a history was trimmed, the last messages do. Everything is seeded with the scope, so
//! two users with equal words never meet. Where two sessions are equally likely nothing is guessed:
//! the request begins a session of its own.

mod ages;
mod alike;
mod habits;
mod trail;
mod types;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ages::Ages;
use alike::{Gone, Same};
pub use habits::{Habits, Look};
use trail::Hash;
pub use trail::Trail;
pub use types::{
    BindHow, BindRequest, Binding, Continued, PendingTurn, SessionIndexConfig, Shown, Transcript,
};

use crate::output::ParsedOutput;
use crate::{Message, Millis, NextState, Role, Scope, SessionId, TurnId, TurnKind};

/// Answers of housekeeping turns that are remembered per session.
const SIDE_MAX: usize = 16;
/// Shortest answer, in bytes, that alone tells a turn of a keyed session.
const TELLING_BYTES: usize = 24;

#[derive(Debug)]
struct Known {
    turn: TurnId,
    parent: Option<TurnId>,
    asked: Hash,
    /// Last messages of its request.
    ends: Vec<Hash>,
    /// Everything it is found by.
    trails: Vec<Hash>,
    /// What tells it from a turn that differs in the numbers of its instructions only.
    strict: Vec<Hash>,
    completion: Hash,
    is_telling: bool,
    continued_with: Option<Hash>,
    /// Its place among the turns with transcripts.
    number: u64,
    shown: Arc<Shown>,
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
    owner: Arc<str>,
    key: Option<(Scope, String)>,
    turns: Vec<Known>,
    side: Vec<Hash>,
    last_ms: Millis,
}

/// What is remembered of recent sessions.
#[derive(Debug)]
pub struct SessionIndex {
    config: SessionIndexConfig,
    habits: Arc<Habits>,
    sessions: HashMap<SessionId, Session>,
    by_key: HashMap<(Scope, String), SessionId>,
    by_trail: HashMap<Hash, Same>,
    gone: Gone,
    /// Turns whose answer never arrived, by their request.
    undelivered: HashMap<Hash, (SessionId, TurnId, Millis)>,
    ages: Ages,
    /// Turns that have transcripts, in the order they were recorded.
    texts: BTreeMap<u64, (SessionId, TurnId)>,
    transcript_bytes: usize,
    recorded: u64,
}

/// A turn that a request continues, and where in the request its next messages begin.
type Place = (SessionId, TurnId, usize);

enum Found {
    Nothing,
    One(Place),
    Several,
}

impl SessionIndex {
    /// An empty index.
    pub fn new(config: SessionIndexConfig) -> Self {
        Self {
            config,
            habits: Arc::default(),
            sessions: HashMap::new(),
            by_key: HashMap::new(),
            by_trail: HashMap::new(),
            gone: Gone::default(),
            undelivered: HashMap::new(),
            ages: Ages::default(),
            texts: BTreeMap::new(),
            transcript_bytes: 0,
            recorded: 0,
        }
    }

    /// The same with habits of clients that it knows.
    #[must_use]
    pub fn with_habits(mut self, habits: Habits) -> Self {
        self.habits = Arc::new(habits);
        self
    }

    /// The habits it knows, for what need not be done while others wait for the index.
    pub fn habits(&self) -> Arc<Habits> {
        self.habits.clone()
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
        let trail = Trail::of(request.scope, request.messages, &self.habits);
        self.bind_by(request, &trail)
    }

    /// The same by the trail of the request's scope and messages.
    pub fn bind_by(&mut self, request: &BindRequest<'_>, trail: &Trail) -> Binding {
        let binding = match self.retry(request, trail) {
            Some(retry) => retry,
            None => self.place(request, trail),
        };
        Binding {
            recorded: self.recorded(binding.session, request.messages, trail),
            ..binding
        }
    }

    fn place(&mut self, request: &BindRequest<'_>, trail: &Trail) -> Binding {
        let session = request
            .session_key
            .map(|key| self.session_of_key(request.scope, key));
        let named = request.continues.filter(|named| self.knows(named));
        if let Some(named) = named
            && session.is_none_or(|session| session == Some(named.session))
        {
            let place = (named.session, named.turn, named.next_from);
            return self.continue_turn(request, place, trail);
        }
        match session {
            // A key that nobody used yet begins a session, whatever the messages resemble.
            Some(None) => self.begin(request, BindHow::Key),
            Some(Some(id)) => match self.find_in(id, trail) {
                Some(place) => self.continue_turn(request, place, trail),
                None => self.bind_without_parent(request, id),
            },
            None => match self.find(trail) {
                Found::One(place) => self.continue_turn(request, place, trail),
                Found::Several => self.begin(request, BindHow::Ambiguous),
                Found::Nothing => self.begin(request, BindHow::New),
            },
        }
    }

    fn knows(&self, named: &Continued) -> bool {
        let session = self.sessions.get(&named.session);
        session.is_some_and(|session| session.turns.iter().any(|k| k.turn == named.turn))
    }

    /// Which of `messages` are completions of the session that came back in another form.
    fn recorded(
        &self,
        session: SessionId,
        messages: &[Message],
        trail: &Trail,
    ) -> Vec<(usize, Arc<str>)> {
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
        let said = trail.steps.iter();
        said.filter(|step| step.role == Role::Assistant)
            .filter_map(|step| {
                let (text, message) = (*sampled.get(&step.own)?, &messages[step.at]);
                let differs = !message.tool_calls.is_empty() || *message.content != **text;
                differs.then(|| (step.at, text.clone()))
            })
            .collect()
    }

    /// Remembers an ended turn, so that the next request can continue it. Nothing continues a
    /// side turn; only its answer is remembered, to be told from others in a history.
    pub fn record(&mut self, turn: &PendingTurn, transcript: Option<Transcript>) {
        let trail = Trail::of(&turn.scope, &turn.messages, &self.habits);
        self.record_by(turn, &trail, transcript);
    }

    /// The same by the trail of the turn's scope and messages.
    pub fn record_by(&mut self, turn: &PendingTurn, trail: &Trail, transcript: Option<Transcript>) {
        let completion = turn.completion.chain_hash();
        if turn.kind == TurnKind::Side {
            if let Some(session) = self.sessions.get_mut(&turn.session) {
                if session.side.len() == SIDE_MAX {
                    session.side.remove(0);
                }
                session.side.push(completion);
            }
            return;
        }
        let owned = |key: String| (turn.scope.clone(), key);
        let key = turn.session_key.clone().map(owned);
        self.open(&turn.owner, turn.session, key, turn.ended_ms);
        self.recorded += 1;
        let known = Known {
            turn: turn.turn,
            parent: turn.parent,
            asked: trail.asked(),
            ends: trail
                .ends()
                .iter()
                .map(|end| trail.steps[*end].own)
                .collect(),
            strict: trail.strict_chains(completion),
            trails: [trail.chains(completion), trail.windows(completion)].concat(),
            completion,
            is_telling: turn.completion.content.len() >= TELLING_BYTES,
            continued_with: turn.continued.then_some([0; 32]),
            number: self.recorded,
            shown: Arc::new(Shown::by(turn)),
            sampled: transcript.as_ref().and_then(|_| sampled(&turn.completion)),
            transcript,
        };
        let place = (turn.session, turn.turn);
        if known.bytes() > 0 {
            self.transcript_bytes += known.bytes();
            self.texts.insert(known.number, place);
        }
        for trail in &known.trails {
            self.by_trail.entry(*trail).or_default().push(place);
        }
        if !turn.delivered && trail.is_said() {
            let until = turn.ended_ms.saturating_add(self.config.retry_ms);
            self.undelivered
                .insert(known.asked, (place.0, place.1, until));
        }
        self.keep(turn.session, known);
        self.enforce_bounds();
    }

    fn keep(&mut self, id: SessionId, known: Known) {
        let most = self.config.turns_per_session_max.max(1);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.turns.push(known);
        if session.turns.len() > most {
            let old = session.turns.remove(0);
            old.trails.iter().for_each(|trail| self.gone.insert(trail));
            self.forget_turn(&old);
        }
    }

    /// Forgets sessions that were idle since before `before_ms`.
    pub fn evict_idle(&mut self, before_ms: Millis) {
        while let Some((last_ms, session)) = self.ages.longest_idle() {
            if last_ms >= before_ms {
                return;
            }
            self.evict(session);
        }
    }

    /// Forgets a session that nobody asked to forget.
    fn evict(&mut self, id: SessionId) {
        let turns = self.sessions.get(&id).map(|s| s.turns.as_slice());
        for trail in turns.unwrap_or_default().iter().flat_map(|k| &k.trails) {
            self.gone.insert(trail);
        }
        self.forget_session(id);
    }

    /// Whether a request is housekeeping by its words and its look.
    pub fn kind_of(&self, look: &Look<'_>) -> TurnKind {
        self.habits.kind(look)
    }

    /// Forgets one session, because its client said it is done or its user wants it gone.
    pub fn forget_session(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.remove(&id) {
            self.ages.remove(&session.owner, &(session.last_ms, id));
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

    /// Whether a turn of a session was recorded.
    pub fn has_turn(&self, session: SessionId, turn: TurnId) -> bool {
        let session = self.sessions.get(&session);
        session.is_some_and(|session| session.turns.iter().any(|known| known.turn == turn))
    }

    /// The session a client's key stands for. Users of one owner may choose the same key.
    pub fn session_of_key(&self, scope: &Scope, key: &str) -> Option<SessionId> {
        let key = (scope.clone(), key.to_owned());
        self.by_key.get(&key).copied()
    }

    /// The turn that this request repeats because its answer never arrived.
    fn retry(&mut self, request: &BindRequest<'_>, trail: &Trail) -> Option<Binding> {
        let asked = trail.asked();
        let (id, turn, until) = *self.undelivered.get(&asked)?;
        let session = self.sessions.get_mut(&id)?;
        let key = session.key.as_ref().map(|(_, key)| key.as_str());
        if request.kind == TurnKind::Side || key != request.session_key || request.now_ms > until {
            return None;
        }
        self.undelivered.remove(&asked);
        let at = session.turns.iter().position(|known| known.turn == turn)?;
        let known = session.turns.remove(at);
        let parent = session.turns.iter().find(|k| Some(k.turn) == known.parent);
        let transcript = parent.and_then(|parent| parent.transcript.clone());
        // Its prompt is the same again.
        let shown = Some(known.shown.clone());
        self.forget_turn(&known);
        self.touch(id, request.now_ms);
        let how = match request.session_key {
            Some(_) => BindHow::Key,
            None => BindHow::Chain,
        };
        Some(Binding {
            parent: known.parent,
            transcript,
            shown,
            retry_of: Some(turn),
            ..Binding::without_parent(id, how)
        })
    }

    /// The turn of a keyed session that a request continues. From the end, because a deeper match
    /// of any kind says more than a shallow one.
    fn find_in(&self, id: SessionId, trail: &Trail) -> Option<Place> {
        let session = self.sessions.get(&id)?;
        let turns = || session.turns.iter().rev();
        let steps = trail.steps.iter().enumerate().rev();
        let mut answers = steps.filter(|(_, step)| step.role == Role::Assistant);
        let known = answers.find_map(|(at, step)| {
            // Sub-agents under one key may be told apart by a number in their instructions alone; a
            // clock in them is no reason not to be found. Of equal turns the newest goes on.
            let mut alike = turns().filter(|known| known.trails.contains(&step.chain));
            let strict = alike
                .clone()
                .find(|known| known.strict.contains(&step.strict));
            let exact = strict.or_else(|| alike.next());
            // A client may trim, add passing messages or rewrite instructions: the last messages,
            // the question with its answer, or an answer nobody else gave are enough under an
            // explicit key, as long as they name one turn.
            let window = trail.window_at(at);
            let in_window = |known: &Known| window.is_some_and(|w| known.trails.contains(&w));
            let before = at.checked_sub(1).map(|before| trail.steps[before].own);
            let answered = |known: &Known| {
                let asked = before.is_some_and(|own| known.ends.contains(&own));
                known.completion == step.own && asked
            };
            let said = |known: &Known| known.completion == step.own;
            let one = |fits: &dyn Fn(&Known) -> bool| {
                let mut fitting = turns().filter(|known| fits(known));
                let first = fitting.next();
                first.filter(|_| fitting.next().is_none())
            };
            let known = exact
                .or_else(|| one(&in_window))
                .or_else(|| one(&answered))
                .or_else(|| one(&said).filter(|known| known.is_telling))?;
            Some((known.turn, step.at + 1))
        });
        known.map(|(turn, next_from)| (id, turn, next_from))
    }

    /// The turn that a request without a key continues.
    fn find(&self, trail: &Trail) -> Found {
        let steps = || {
            let steps = trail.steps.iter().enumerate().rev();
            steps.filter(|(_, step)| step.role == Role::Assistant)
        };
        for (_, step) in steps() {
            match self.only(&step.chain, step.at + 1) {
                Found::Nothing => {}
                found => return found,
            }
        }
        for (at, step) in steps() {
            let Some(window) = trail.window_at(at) else {
                continue;
            };
            match self.only(&window, step.at + 1) {
                Found::Nothing => {}
                found => return found,
            }
        }
        Found::Nothing
    }

    /// The one turn with this trail. Several in one session are as good as one; of several sessions
    /// none is chosen.
    fn only(&self, hash: &Hash, next_from: usize) -> Found {
        let Some(same) = self.by_trail.get(hash) else {
            return Found::Nothing;
        };
        let Some((session, turn)) = same.places.last().copied() else {
            return Found::Nothing;
        };
        let is_one = same.places.iter().all(|(other, _)| *other == session);
        if is_one && !same.is_crowded && !self.gone.holds(hash) {
            Found::One((session, turn, next_from))
        } else {
            Found::Several
        }
    }

    fn begin(&mut self, request: &BindRequest<'_>, how: BindHow) -> Binding {
        if let Some(key) = request.session_key {
            // Two requests that open one keyed session at once must land in the same one.
            let key = Some((request.scope.clone(), key.to_owned()));
            self.open(request.owner, request.new_session, key, request.now_ms);
            self.enforce_bounds();
        }
        Binding::without_parent(request.new_session, how)
    }

    /// Makes a session where there is none, and notes that it is alive.
    fn open(&mut self, owner: &str, id: SessionId, key: Option<(Scope, String)>, at_ms: Millis) {
        if let Some(key) = &key {
            self.by_key.insert(key.clone(), id);
        }
        self.sessions.entry(id).or_insert_with(|| Session {
            owner: owner.into(),
            key,
            turns: Vec::new(),
            side: Vec::new(),
            last_ms: at_ms,
        });
        self.touch(id, at_ms);
    }

    fn touch(&mut self, id: SessionId, at_ms: Millis) {
        if let Some(session) = self.sessions.get_mut(&id) {
            self.ages.remove(&session.owner, &(session.last_ms, id));
            session.last_ms = session.last_ms.max(at_ms);
            self.ages.insert(&session.owner, (session.last_ms, id));
        }
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
        let last = self.sessions.get(&session).and_then(|s| s.turns.last());
        Binding {
            shown: last.map(|known| known.shown.clone()),
            ..Binding::without_parent(session, how)
        }
    }

    fn continue_turn(
        &mut self,
        request: &BindRequest<'_>,
        (id, turn, next_from): Place,
        trail: &Trail,
    ) -> Binding {
        let how = if request.session_key.is_some() {
            BindHow::Key
        } else {
            BindHow::Chain
        };
        let mut binding = Binding::without_parent(id, how);
        let Some(session) = self.sessions.get_mut(&id) else {
            return binding;
        };
        let side = &session.side;
        let Some(known) = session.turns.iter_mut().find(|k| k.turn == turn) else {
            return binding;
        };
        binding.transcript = known.transcript.clone();
        binding.shown = Some(known.shown.clone());
        if request.kind == TurnKind::Side {
            return binding;
        }
        binding.parent = Some(turn);
        let with = trail.rest(next_from);
        match known.continued_with {
            None if !request.keeps => {}
            None => {
                let next = trail.answers(request.messages, &self.habits, next_from, side);
                let next_state = NextState::from_messages(&next);
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
        self.touch(id, request.now_ms);
        binding
    }

    fn forget_turn(&mut self, known: &Known) {
        for trail in &known.trails {
            if let Some(same) = self.by_trail.get_mut(trail) {
                same.places.retain(|(_, turn)| *turn != known.turn);
                if same.places.is_empty() {
                    self.by_trail.remove(trail);
                }
            }
        }
        let undelivered = self.undelivered.get(&known.asked);
        if undelivered.is_some_and(|(_, turn, _)| *turn == known.turn) {
            self.undelivered.remove(&known.asked);
        }
        self.transcript_bytes -= known.bytes();
        self.texts.remove(&known.number);
    }

    fn enforce_bounds(&mut self) {
        while self.sessions.len() > self.config.sessions_max.max(1) {
            let Some(first) = self.ages.first_to_go() else {
                return;
            };
            self.evict(first);
        }
        while self.transcript_bytes > self.config.transcript_bytes_max {
            let Some((_, (id, turn))) = self.texts.pop_first() else {
                return;
            };
            let session = self.sessions.get_mut(&id);
            let known = session.and_then(|s| s.turns.iter_mut().find(|k| k.turn == turn));
            self.transcript_bytes -= known.map_or(0, Known::shrink);
        }
    }
}

/// The completion's text, where clients send it back in another form.
fn sampled(completion: &Message) -> Option<Arc<str>> {
    let parsed = ParsedOutput::meaning(&completion.content);
    let differs = !parsed.calls.is_empty() || parsed.content != completion.content;
    differs.then(|| Arc::from(completion.content.as_str()))
}

#[cfg(test)]
mod tests;
