//! The door's way from a request's headers and body to its session, without a model, and a table of
//! what came of it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use hone::config::{BindingConfig, Config, Sources};
use hone::http::wire::messages::parse_messages;
use hone::http::wire::session::SessionFields;
use hone_domain::{
    BindRequest, Binding, PendingTurn, Scope, SessionId, SessionIndex, SessionIndexConfig, TurnId,
    TurnKind,
};
use serde_json::{Value, json};
use uuid::Uuid;

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Came {
    /// To the turn it continues, or rightly to none.
    Right,
    /// To none, although it continues one.
    Unfound,
    /// To another turn of its own conversation.
    WrongTurn,
    /// Into another conversation.
    Crossed,
}

/// Requests by what they are and what came of them.
#[derive(Debug, Default)]
pub(super) struct Table(BTreeMap<&'static str, BTreeMap<Came, usize>>);

impl Table {
    fn count(&mut self, class: &'static str, came: Came) {
        *self.0.entry(class).or_default().entry(came).or_default() += 1;
    }

    fn sum(&self, came: Came) -> usize {
        self.0.values().filter_map(|row| row.get(&came)).sum()
    }

    pub(super) fn cross_links(&self) -> usize {
        self.sum(Came::Crossed)
    }

    pub(super) fn wrong_turns(&self) -> usize {
        self.sum(Came::WrongTurn)
    }

    pub(super) fn requests(&self) -> usize {
        self.0.values().flat_map(BTreeMap::values).sum()
    }

    pub(super) fn share_right(&self, class: &str) -> f64 {
        let row = self.0.get(class);
        let right = row.and_then(|row| row.get(&Came::Right)).copied();
        let all: usize = row.map_or(0, |row| row.values().sum());
        right.unwrap_or(0) as f64 / all.max(1) as f64
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (a, b, c, d) = ("right", "not found", "other turn", "other session");
        writeln!(f, "{:<26}{a:>9}{b:>11}{c:>12}{d:>15}", "request")?;
        for (class, row) in &self.0 {
            let n = |came| row.get(&came).copied().unwrap_or(0);
            let (right, unfound) = (n(Came::Right), n(Came::Unfound));
            let (wrong, crossed) = (n(Came::WrongTurn), n(Came::Crossed));
            writeln!(
                f,
                "{class:<26}{right:>9}{unfound:>11}{wrong:>12}{crossed:>15}"
            )?;
        }
        Ok(())
    }
}

/// A request as its client sends it, and what is known about it from outside.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent {
    /// The conversation it really belongs to.
    pub(super) conversation: usize,
    /// What it is, for the table.
    pub(super) class: &'static str,
    /// The turn it really continues.
    pub(super) continues: Option<TurnId>,
    /// Whether the repetition of a cut stream has to be recognised.
    pub(super) retries: Option<TurnId>,
    pub(super) user: Option<String>,
    pub(super) headers: Vec<(String, String)>,
    /// Fields of the body besides the messages.
    pub(super) fields: Value,
    pub(super) messages: Vec<Value>,
    /// The assistant's message.
    pub(super) answer: Value,
    /// Whether the client is gone before the end.
    pub(super) cut: bool,
}

/// A door that answers what it is told to.
pub(super) struct Door {
    places: BindingConfig,
    index: SessionIndex,
    owners: HashMap<SessionId, usize>,
    turns: HashMap<TurnId, usize>,
    next: u128,
    pub(super) now_ms: i64,
    pub(super) table: Table,
}

impl Door {
    pub(super) fn new(sessions_max: usize) -> Self {
        let config = Config::load(&Sources::default()).unwrap();
        let bounds = SessionIndexConfig {
            sessions_max,
            turns_per_session_max: 256,
            transcript_bytes_max: 1,
            retry_ms: config.binding.retry_ms,
        };
        let habits = config.binding.habits().unwrap();
        Self {
            places: config.binding,
            index: SessionIndex::new(bounds).with_habits(habits),
            owners: HashMap::new(),
            turns: HashMap::new(),
            next: 0,
            now_ms: 0,
            table: Table::default(),
        }
    }

    pub(super) fn evict_idle(&mut self, before_ms: i64) {
        self.index.evict_idle(before_ms);
    }

    fn id(&mut self) -> Uuid {
        self.next += 1;
        Uuid::from_u128(self.next)
    }

    /// Binds, compares, answers; the turn that was made.
    pub(super) fn ask(&mut self, sent: &Sent) -> TurnId {
        let messages = parse_messages(&sent.messages, 4_096).unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in &sent.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        let fields: SessionFields = serde_json::from_value(sent.fields.clone()).unwrap();
        let wish = fields.resolve(&headers, &self.places).unwrap();
        let kind = wish.kind.unwrap_or_else(|| self.index.kind_of(&messages));
        let scope = Scope::of("owner", sent.user.as_deref());
        let new_session = SessionId(self.id());
        let binding = self.index.bind(&BindRequest {
            owner: "owner",
            scope: &scope,
            session_key: wish.session_key.as_deref(),
            kind,
            messages: &messages,
            new_session,
            now_ms: self.now_ms,
        });
        self.compare(sent, &binding, kind);
        let turn = binding.retry_of.unwrap_or_else(|| TurnId(self.id()));
        self.owners
            .entry(binding.session)
            .or_insert(sent.conversation);
        self.turns.insert(turn, sent.conversation);
        let answer = parse_messages(std::slice::from_ref(&sent.answer), 1).unwrap();
        let pending = PendingTurn {
            turn,
            session: binding.session,
            session_key: wish.session_key,
            owner: "owner".into(),
            scope,
            messages,
            completion: answer.into_iter().next().unwrap(),
            parent: binding.parent,
            kind,
            delivered: !sent.cut,
            continued: false,
            ended_ms: self.now_ms,
        };
        self.index.record(&pending, None);
        turn
    }

    fn compare(&mut self, sent: &Sent, binding: &Binding, kind: TurnKind) {
        let is_foreign = |owner: Option<&usize>| owner.is_some_and(|o| *o != sent.conversation);
        let parent = binding.parent.or(binding.retry_of);
        let crossed = is_foreign(self.owners.get(&binding.session))
            || parent.is_some_and(|turn| is_foreign(self.turns.get(&turn)));
        let wanted = if kind == TurnKind::Side {
            None
        } else {
            sent.continues
        };
        let came = if crossed {
            Came::Crossed
        } else if sent.retries.is_some() && binding.retry_of != sent.retries {
            Came::Unfound
        } else if binding.parent == wanted {
            Came::Right
        } else if binding.parent.is_none() {
            Came::Unfound
        } else {
            Came::WrongTurn
        };
        self.table.count(sent.class, came);
    }
}

/// A message with text.
pub(super) fn say(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}
