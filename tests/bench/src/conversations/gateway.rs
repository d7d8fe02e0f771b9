//! The gateway's way from a request's headers and body to its session, without a model, and a table of
//! what came of it. What it is given is generated or recorded, so a request that cannot be read is a
//! mistake of whoever made it, and ends the measurement.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use hone::config::{Config, Sources};
use hone_api_types::content::{Reader, hide};
use hone_api_types::messages::parse_messages;
use hone_api_types::session::SessionFields;
use hone_domain::{
    BindRequest, Binding, Look, PendingTurn, Scope, SessionId, SessionIndex, SessionIndexConfig,
    TurnId, TurnKind,
};
use hone_inference::BindingConfig;
use serde_json::{Value, json};
use uuid::Uuid;

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Came {
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
pub struct Table {
    rows: BTreeMap<&'static str, BTreeMap<Came, usize>>,
    /// The requests that came to a wrong turn or session, as they were sent.
    pub wrong: Vec<Sent>,
}

impl Table {
    fn count(&mut self, class: &'static str, came: Came) {
        *self.rows.entry(class).or_default().entry(came).or_default() += 1;
    }

    fn sum(&self, came: Came) -> usize {
        self.rows.values().filter_map(|row| row.get(&came)).sum()
    }

    /// Requests that landed in another conversation.
    pub fn cross_links(&self) -> usize {
        self.sum(Came::Crossed)
    }

    /// Requests that landed at another turn of their own conversation.
    pub fn wrong_turns(&self) -> usize {
        self.sum(Came::WrongTurn)
    }

    /// All requests.
    pub fn requests(&self) -> usize {
        self.rows.values().flat_map(BTreeMap::values).sum()
    }

    /// The share of a class that came where it belongs.
    pub fn share_right(&self, class: &str) -> f64 {
        let row = self.rows.get(class);
        let right = row.and_then(|row| row.get(&Came::Right)).copied();
        let all: usize = row.map_or(0, |row| row.values().sum());
        right.unwrap_or(0) as f64 / all.max(1) as f64
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (a, b, c, d) = ("right", "not found", "other turn", "other session");
        writeln!(f, "{:<26}{a:>9}{b:>11}{c:>12}{d:>15}", "request")?;
        for (class, row) in &self.rows {
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
pub struct Sent {
    /// The conversation it really belongs to.
    pub conversation: usize,
    /// What it is, for the table.
    pub class: &'static str,
    /// The turn it really continues.
    pub continues: Option<TurnId>,
    /// Whether the repetition of a cut stream has to be recognised.
    pub retries: Option<TurnId>,
    /// The field `user`.
    pub user: Option<String>,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// Fields of the body besides the messages.
    pub fields: Value,
    /// The messages.
    pub messages: Vec<Value>,
    /// The assistant's message.
    pub answer: Value,
    /// Whether the client is gone before the end.
    pub cut: bool,
}

/// A gateway that answers what it is told to.
pub struct Gateway {
    places: BindingConfig,
    index: SessionIndex,
    owners: HashMap<SessionId, usize>,
    turns: HashMap<TurnId, usize>,
    next: u128,
    /// The time.
    pub now_ms: i64,
    /// What came of the requests.
    pub table: Table,
}

impl Gateway {
    /// A gateway that remembers so many sessions.
    pub fn new(sessions_max: usize) -> Self {
        let config = Config::load(&Sources::default()).expect("the defaults are sound");
        let bounds = SessionIndexConfig {
            sessions_max,
            turns_per_session_max: 256,
            transcript_bytes_max: 1,
            retry_ms: config.binding.retry_ms,
        };
        let habits = config.binding.habits().expect("the defaults are sound");
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

    /// Forgets sessions idle since then.
    pub fn evict_idle(&mut self, before_ms: i64) {
        self.index.evict_idle(before_ms);
    }

    fn id(&mut self) -> Uuid {
        self.next += 1;
        Uuid::from_u128(self.next)
    }

    /// Binds, compares, answers; the turn that was made.
    pub fn ask(&mut self, sent: &Sent) -> TurnId {
        let mut reader = Reader::default();
        let mut messages = parse_messages(&sent.messages, 4_096, &mut reader).expect("messages");
        hide(&mut messages, &self.places.unshown, &mut reader);
        let mut headers = HeaderMap::new();
        for (name, value) in &sent.headers {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a header");
            headers.insert(name, HeaderValue::from_str(value).expect("a header"));
        }
        let fields: SessionFields = serde_json::from_value(sent.fields.clone()).expect("fields");
        let wish = fields.resolve(&headers, &self.places).expect("fields");
        let look = Look {
            messages: &messages,
            offers_tools: sent.fields.get("tools").is_some(),
            ..Look::default()
        };
        let kind = wish.kind.unwrap_or_else(|| self.index.kind_of(&look));
        let scope = Scope::of("owner", sent.user.as_deref());
        let new_session = SessionId(self.id());
        let binding = self.index.bind(&BindRequest {
            owner: "owner",
            scope: &scope,
            session_key: wish.session_key.as_deref(),
            kind,
            continues: None,
            keeps: true,
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
        let answer = std::slice::from_ref(&sent.answer);
        let answer = parse_messages(answer, 1, &mut reader).expect("an answer");
        let pending = PendingTurn {
            turn,
            session: binding.session,
            session_key: wish.session_key,
            owner: "owner".into(),
            scope,
            messages,
            completion: answer.into_iter().next().expect("an answer"),
            parent: binding.parent,
            memories: Vec::new(),
            skills: Vec::new(),
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
        if matches!(came, Came::Crossed | Came::WrongTurn) {
            self.table.wrong.push(sent.clone());
        }
        self.table.count(sent.class, came);
    }
}

/// A message with text.
pub fn say(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}
