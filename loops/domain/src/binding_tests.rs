use uuid::Uuid;

use super::*;
use crate::NextKind;

fn session(n: u128) -> SessionId {
    SessionId(Uuid::from_u128(n))
}

fn turn(n: u128) -> TurnId {
    TurnId(Uuid::from_u128(n))
}

fn messages(texts: &[&str]) -> Vec<Message> {
    texts
        .iter()
        .map(|text| match text.split_once(':') {
            Some(("a", rest)) => Message::text(Role::Assistant, rest),
            Some(("s", rest)) => Message::text(Role::System, rest),
            Some(("t", rest)) => Message::text(Role::Tool, rest),
            Some((_, rest)) => Message::text(Role::User, rest),
            None => Message::text(Role::User, *text),
        })
        .collect()
}

struct World {
    index: SessionIndex,
    next: u128,
}

impl World {
    fn new() -> Self {
        let config = SessionIndexConfig {
            sessions_max: 100,
            turns_per_session_max: 16,
            transcript_bytes_max: 10_000,
        };
        Self {
            index: SessionIndex::new(config),
            next: 0,
        }
    }

    fn bind(&mut self, user: &str, key: Option<&str>, texts: &[&str]) -> Binding {
        self.next += 1;
        let scope = Scope::of("owner", Some(user));
        self.index.bind(&BindRequest {
            owner: "owner",
            scope: &scope,
            session_key: key,
            kind: TurnKind::Main,
            messages: &messages(texts),
            new_session: session(self.next),
            now_ms: self.next as Millis,
        })
    }

    /// Binds a request and records its turn with `answer`.
    fn turn(
        &mut self,
        user: &str,
        key: Option<&str>,
        texts: &[&str],
        answer: &str,
    ) -> (Binding, TurnId) {
        let binding = self.bind(user, key, texts);
        let id = turn(self.next);
        let pending = PendingTurn {
            turn: id,
            session: binding.session,
            session_key: key.map(str::to_owned),
            owner: "owner".into(),
            scope: Scope::of("owner", Some(user)),
            messages: messages(texts),
            completion: Message::text(Role::Assistant, answer),
            continued: false,
            ended_ms: self.next as Millis,
        };
        self.index.record(&pending, None);
        (binding, id)
    }
}

#[test]
fn a_resent_history_is_the_same_session_and_brings_the_next_state() {
    let mut w = World::new();
    let (first, t1) = w.turn("u", None, &["s:be kind", "u:hi"], "hello");
    assert_eq!((first.how, first.parent), (BindHow::New, None));
    let (second, _) = w.turn(
        "u",
        None,
        &["s:be kind", "u:hi", "a: hello ", "u:bye"],
        "ciao",
    );
    assert_eq!((second.how, second.parent), (BindHow::Chain, Some(t1)));
    assert_eq!(second.session, first.session);
    assert_eq!(second.next_state.items.len(), 1);
    assert_eq!(second.next_state.items[0].kind, NextKind::UserReply);
    assert_eq!(second.next_state.items[0].text, "bye");
}

#[test]
fn equal_openings_of_two_users_never_meet() {
    let mut w = World::new();
    let (a, _) = w.turn("a", None, &["u:hi"], "hello");
    let b = w.bind("b", None, &["u:hi", "a:hello", "u:more"]);
    assert_eq!((b.how, b.parent), (BindHow::New, None));
    assert_ne!(a.session, b.session);
}

#[test]
fn a_key_wins_and_survives_passing_messages() {
    let mut w = World::new();
    let (first, t1) = w.turn("u", Some("k"), &["u:hi", "u:<passing context>"], "hello");
    let (second, _) = w.turn(
        "u",
        Some("k"),
        &["u:hi", "a:hello", "t:42", "u:<other>"],
        "fine",
    );
    assert_eq!(second.session, first.session);
    assert_eq!((second.how, second.parent), (BindHow::Key, Some(t1)));
    assert_eq!(second.next_state.items[0].kind, NextKind::ToolResult);
    let other = w.bind("u", Some("k2"), &["u:hi", "a:hello", "u:x"]);
    assert_eq!((other.how, other.parent), (BindHow::Key, None));
    assert_ne!(other.session, first.session);
}

#[test]
fn a_second_continuation_is_a_fork_and_a_retry_is_not() {
    let mut w = World::new();
    let (first, t1) = w.turn("u", None, &["u:hi"], "hello");
    let one = w.bind("u", None, &["u:hi", "a:hello", "u:one"]);
    assert_eq!((one.how, one.next_state.items.len()), (BindHow::Chain, 1));
    let retry = w.bind("u", None, &["u:hi", "a:hello", "u:one"]);
    assert_eq!(
        (retry.how, retry.parent, retry.session),
        (BindHow::Chain, Some(t1), first.session)
    );
    assert!(retry.next_state.is_empty(), "the next state is given once");
    let two = w.bind("u", None, &["u:hi", "a:hello", "u:two"]);
    assert_eq!(two.how, BindHow::Fork);
    assert_ne!(two.session, first.session);
    assert!(two.next_state.is_empty());
}

#[test]
fn rewritten_history_under_a_key_forks_and_an_emptied_one_does_not() {
    let mut w = World::new();
    w.turn("u", Some("k"), &["u:hi"], "hello");
    assert_eq!(
        w.bind("u", Some("k"), &["u:hi", "a:edited", "u:x"]).how,
        BindHow::Fork
    );
    let fresh = w.bind("u", Some("k"), &["u:new topic"]);
    assert_eq!((fresh.how, fresh.parent), (BindHow::Key, None));
}

#[test]
fn side_turns_belong_to_the_session_and_settle_nothing() {
    let mut w = World::new();
    let (first, t1) = w.turn("u", Some("k"), &["u:hi"], "hello");
    let scope = Scope::of("owner", Some("u"));
    let title = messages(&["u:hi", "a:hello", "u:give this chat a title"]);
    let side = w.index.bind(&BindRequest {
        owner: "owner",
        scope: &scope,
        session_key: Some("k"),
        kind: TurnKind::Side,
        messages: &title,
        new_session: session(900),
        now_ms: 900,
    });
    assert_eq!((side.session, side.parent), (first.session, None));
    assert!(side.next_state.is_empty());
    let real = w.bind("u", Some("k"), &["u:hi", "a:hello", "u:thanks"]);
    assert_eq!((real.parent, real.next_state.items.len()), (Some(t1), 1));
}

#[test]
fn the_index_stays_within_its_bounds() {
    let mut w = World::new();
    w.index.config.sessions_max = 3;
    w.index.config.transcript_bytes_max = 100;
    for i in 0..20 {
        let pending = PendingTurn {
            turn: turn(i),
            session: session(i),
            session_key: Some(format!("k{i}")),
            owner: "owner".into(),
            scope: Scope::of("owner", None),
            messages: messages(&["u:hi"]),
            completion: Message::text(Role::Assistant, format!("answer {i}")),
            continued: false,
            ended_ms: i as Millis,
        };
        let transcript = Transcript {
            text: "x".repeat(40).into(),
            tokens: vec![1; 5].into(),
        };
        w.index.record(&pending, Some(transcript));
        assert!(w.index.len() <= 3);
        assert!(w.index.transcript_bytes <= 100);
        assert!(w.index.by_key.len() <= 3 && w.index.by_chain.len() <= 3);
    }
    w.index.evict_idle(100);
    assert!(w.index.is_empty() && w.index.transcript_bytes == 0 && w.index.by_age.is_empty());
}
