use uuid::Uuid;

use super::*;
use crate::NextKind;

mod bounds;

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
    keeps: bool,
}

impl World {
    fn new() -> Self {
        let config = SessionIndexConfig {
            sessions_max: 100,
            turns_per_session_max: 16,
            transcript_bytes_max: 10_000,
            retry_ms: 50,
        };
        let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let side = words(&["user: give this chat a title", "user: heartbeat"]);
        let habits = Habits::new(&words(&["<passing"]), &side).expect("patterns");
        let habits = habits.with_injected(&words(&["note"])).expect("names");
        let added = habits.with_added(&words(&["Remember the form"]), &words(&["Ok."]));
        let habits = added.expect("texts");
        Self {
            index: SessionIndex::new(config).with_habits(habits),
            next: 0,
            keeps: true,
        }
    }

    fn kind_of(&self, messages: &[Message]) -> TurnKind {
        self.index.kind_of(&Look {
            messages,
            offers_tools: true,
            ..Look::default()
        })
    }

    fn bind(&mut self, user: &str, key: Option<&str>, texts: &[&str]) -> Binding {
        self.next += 1;
        let scope = Scope::of("owner", Some(user));
        self.index.bind(&BindRequest {
            owner: "owner",
            scope: &scope,
            session_key: key,
            kind: self.kind_of(&messages(texts)),
            continues: None,
            keeps: self.keeps,
            messages: &messages(texts),
            new_session: session(self.next),
            now_ms: self.next as Millis,
        })
    }

    /// Binds a request whose answer the client does not get to its end.
    fn cut(&mut self, key: Option<&str>, texts: &[&str], so_far: &str) -> (Binding, TurnId) {
        let binding = self.bind("u", key, texts);
        let id = binding.retry_of.unwrap_or(turn(self.next));
        let pending = PendingTurn {
            delivered: false,
            ..self.pending(("u", key), &binding, (id, texts, so_far))
        };
        self.index.record(&pending, None);
        (binding, id)
    }

    fn pending(
        &self,
        (user, key): (&str, Option<&str>),
        binding: &Binding,
        (turn, texts, answer): (TurnId, &[&str], &str),
    ) -> PendingTurn {
        PendingTurn {
            turn,
            session: binding.session,
            session_key: key.map(str::to_owned),
            owner: "owner".into(),
            scope: Scope::of("owner", Some(user)),
            messages: messages(texts),
            completion: Message::text(Role::Assistant, answer),
            parent: binding.parent,
            memories: Vec::new(),
            skills: Vec::new(),
            kind: self.kind_of(&messages(texts)),
            delivered: true,
            continued: false,
            ended_ms: self.next as Millis,
        }
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
        let pending = self.pending((user, key), &binding, (id, texts, answer));
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

/// What a client puts before and behind a person's words in one request only, with answers of its own.
#[test]
fn a_history_that_its_client_writes_anew_each_time_is_found() {
    let mut w = World::new();
    let first = [
        "s:be kind",
        "u:<passing files: one>",
        "a:Ok.",
        "u:hi\n\nRemember the form of answers.",
    ];
    let (first, t1) = w.turn("u", None, &first, "hello\n");
    let second = [
        "s:be kind",
        "u:<passing map>",
        "a:Ok.",
        "u:hi",
        "a:hello",
        "u:<passing commit>",
        "a:Ok.",
        "u:<passing files: two>",
        "a:Ok.",
        "u:it failed\n\nRemember the form of answers.",
    ];
    let second = w.bind("u", None, &second);
    assert_eq!((second.how, second.parent), (BindHow::Chain, Some(t1)));
    assert_eq!(second.session, first.session);
    assert_eq!(said(&second), ["it failed"]);
}

#[test]
fn what_is_not_kept_takes_no_place_of_what_is() {
    use BindHow::{Chain, Fork};
    // Continuations of one turn, in order: whether each is kept, and what it says → how it is bound, and
    // whether it is the next state.
    let rows: [&[(bool, &str, BindHow, bool)]; 4] = [
        &[(false, "one", Chain, false), (true, "two", Chain, true)],
        &[(false, "one", Chain, false), (true, "one", Chain, true)],
        &[
            (false, "one", Chain, false),
            (false, "two", Chain, false),
            (true, "three", Chain, true),
            (true, "two", Fork, false),
        ],
        &[
            (true, "one", Chain, true),
            (false, "two", Fork, false),
            (true, "one", Chain, false),
        ],
    ];
    for row in rows {
        let mut w = World::new();
        let (_, first) = w.turn("u", None, &["u:hi"], "hello");
        for (keeps, says, how, is_next) in row {
            w.keeps = *keeps;
            let next = w.bind("u", None, &["u:hi", "a:hello", says]);
            let seen = (next.parent, next.how, !next.next_state.is_empty());
            assert_eq!(seen, (Some(first), *how, *is_next), "{says} of {row:?}");
        }
    }
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
    let title = ["u:hi", "a:hello", "u:give this chat a title"];
    let (side, _) = w.turn("u", Some("k"), &title, "Greetings");
    assert_eq!((side.session, side.parent), (first.session, None));
    assert!(side.next_state.is_empty());
    let real = w.bind("u", Some("k"), &["u:hi", "a:hello", "u:thanks"]);
    assert_eq!((real.parent, real.next_state.items.len()), (Some(t1), 1));
}

#[test]
fn what_is_found_by_a_trail_is_found_by_its_messages() {
    let mut w = World::new();
    let (first, t1) = w.turn("u", None, &["u:hi"], "hello");
    let scope = Scope::of("owner", Some("u"));
    let all = messages(&["u:hi", "u:<passing> x", "a:hello", "u:on"]);
    let trail = Trail::of(&scope, &all, &w.index.habits());
    let next = w.index.bind_by(
        &BindRequest {
            owner: "owner",
            scope: &scope,
            session_key: None,
            kind: TurnKind::Main,
            continues: None,
            keeps: true,
            messages: &all,
            new_session: session(9),
            now_ms: 9,
        },
        &trail,
    );
    assert_eq!((next.session, next.parent), (first.session, Some(t1)));
}

/// What was answered, as texts.
fn said(binding: &Binding) -> Vec<&str> {
    let items = binding.next_state.items.iter();
    items.map(|item| item.text.as_str()).collect()
}

#[test]
fn passing_context_is_no_answer_and_breaks_no_chain() {
    // With a known mark, with an unknown one, and after a tool's result.
    for passing in ["u:<passing> it is noon", "u:[context] it is noon"] {
        let mut w = World::new();
        let (_, t1) = w.turn("u", None, &["s:x", "u:hi there", passing], "hello you");
        let next = ["s:x", "u:hi there", "a:hello you", "t:42", passing];
        let (second, t2) = w.turn("u", None, &next, "it is 42");
        assert_eq!(
            (second.how, second.parent),
            (BindHow::Chain, Some(t1)),
            "{passing}"
        );
        assert_eq!(said(&second)[0], "42");
        let last = [
            "s:x",
            "u:hi there",
            "a:hello you",
            "t:42",
            "a:it is 42",
            "u:thanks",
        ];
        let third = w.bind("u", None, &last);
        assert_eq!((third.parent, said(&third)), (Some(t2), vec!["thanks"]));
        assert_eq!(third.session, second.session);
    }
    let mut w = World::new();
    w.turn("u", Some("k"), &["u:hi"], "hello");
    let marked = w.bind(
        "u",
        Some("k"),
        &["u:hi", "a:hello", "u:real", "u:<passing> x"],
    );
    assert_eq!(
        said(&marked),
        ["real"],
        "the last message is not the next state"
    );
}

#[test]
fn a_heartbeat_settles_nothing_even_when_it_is_rewritten() {
    let mut w = World::new();
    let (_, t1) = w.turn("u", Some("k"), &["s:be kind", "u:hi"], "hello");
    let beat = [
        "s:wake up",
        "u:hi",
        "a:hello",
        "u:heartbeat: anything to do?",
    ];
    let (side, _) = w.turn("u", Some("k"), &beat, "HEARTBEAT_OK");
    assert!(side.next_state.is_empty() && side.parent.is_none());
    let history = [
        "s:be kind",
        "u:hi",
        "a:hello",
        "u:(a check)",
        "a:HEARTBEAT_OK",
        "u:thanks",
    ];
    let real = w.bind("u", Some("k"), &history);
    assert_eq!((real.parent, said(&real)), (Some(t1), vec!["thanks"]));
}

#[test]
fn a_new_conversation_under_an_old_key_continues_nothing() {
    let mut w = World::new();
    let (first, _) = w.turn("u", Some("k"), &["s:x", "u:hi"], "hello");
    let (new, t2) = w.turn("u", Some("k"), &["s:x", "u:other topic"], "sure");
    assert_eq!((new.session, new.parent), (first.session, None));
    let next = w.bind("u", Some("k"), &["s:x", "u:other topic", "a:sure", "u:go"]);
    assert_eq!((next.parent, said(&next)), (Some(t2), vec!["go"]));
}

#[test]
fn a_cut_stream_repeated_is_one_turn() {
    for key in [None, Some("k")] {
        let mut w = World::new();
        let (first, t1) = w.turn("u", key, &["u:hi"], "hello");
        let again = ["u:hi", "a:hello", "u:tell me more"];
        let (cut, t2) = w.cut(key, &again, "Once up");
        assert_eq!((cut.parent, said(&cut)), (Some(t1), vec!["tell me more"]));
        for _ in 0..7 {
            let (retry, id) = w.cut(key, &again, "Once upon");
            assert_eq!((retry.retry_of, id), (Some(t2), t2), "{key:?}");
            assert_eq!((retry.session, retry.parent), (first.session, Some(t1)));
            assert!(retry.next_state.is_empty());
        }
        let last = w.bind("u", key, &again);
        assert_eq!(last.retry_of, Some(t2));
        let pending = w.pending(("u", key), &last, (t2, &again, "Once upon a time"));
        w.index.record(&pending, None);
        let sibling = w.bind("u", key, &again);
        assert_eq!(
            (sibling.retry_of, sibling.parent),
            (None, Some(t1)),
            "it was delivered"
        );
        let next = [
            "u:hi",
            "a:hello",
            "u:tell me more",
            "a:Once upon a time",
            "u:nice",
        ];
        let next = w.bind("u", key, &next);
        assert_eq!((next.parent, said(&next)), (Some(t2), vec!["nice"]));
    }
}

#[test]
fn the_first_request_of_a_conversation_can_be_retried_too() {
    let mut w = World::new();
    let (first, t1) = w.cut(None, &["u:hi"], "he");
    let retry = w.bind("u", None, &["u:hi"]);
    assert_eq!((retry.session, retry.retry_of), (first.session, Some(t1)));
    let other = w.bind("u", None, &["u:hi"]);
    assert_eq!((other.how, other.retry_of), (BindHow::New, None), "once");
    let (first, _) = w.cut(None, &["u:again"], "he");
    w.next += 100;
    let late = w.bind("u", None, &["u:again"]);
    assert_eq!((late.how, late.retry_of), (BindHow::New, None), "too late");
    assert_ne!(late.session, first.session);
}

#[test]
fn two_sessions_that_said_the_same_are_never_mixed_up() {
    let mut w = World::new();
    let (a, _) = w.turn("u", None, &["u:hi"], "hello");
    let (b, _) = w.turn("u", None, &["u:hi"], "hello");
    assert_ne!(a.session, b.session);
    let unclear = w.bind("u", None, &["u:hi", "a:hello", "u:go on"]);
    assert_eq!((unclear.how, unclear.parent), (BindHow::Ambiguous, None));
    assert!(unclear.session != a.session && unclear.session != b.session);
    // The same with the other one gone: it may be the one that comes back.
    let mut w = World::new();
    w.turn("u", None, &["u:hi"], "hello");
    w.index.evict_idle(100);
    w.turn("u", None, &["u:hi"], "hello");
    let unclear = w.bind("u", None, &["u:hi", "a:hello", "u:go on"]);
    assert_eq!(unclear.how, BindHow::Ambiguous);
    // More of them than are kept.
    let mut w = World::new();
    for _ in 0..20 {
        w.turn("u", None, &["u:hi"], "hello");
    }
    let unclear = w.bind("u", None, &["u:hi", "a:hello", "u:go on"]);
    assert_eq!(unclear.how, BindHow::Ambiguous);
}

#[test]
fn trimmed_and_dated_histories_are_found_by_their_last_messages() {
    let mut w = World::new();
    let talk = [
        "s:it is 09:15",
        "u:one",
        "a:first",
        "u:two",
        "a:second",
        "u:three",
    ];
    w.turn("u", None, &talk[..2], "first");
    let (second, _) = w.turn("u", None, &talk[..4], "second");
    let (_, t3) = w.turn("u", None, &talk, "third");
    let trimmed = [
        "s:be someone else",
        "a:second",
        "u:three",
        "a:third",
        "u:four",
    ];
    let next = w.bind("u", None, &trimmed);
    assert_eq!((next.how, next.parent), (BindHow::Chain, Some(t3)));
    assert_eq!((next.session, said(&next)), (second.session, vec!["four"]));
    // One exchange alone may have happened anywhere.
    let short = w.bind(
        "u",
        None,
        &["s:be someone else", "u:three", "a:third", "u:four"],
    );
    assert_eq!((short.how, short.parent), (BindHow::New, None));
    let mut w = World::new();
    let (_, t1) = w.turn("u", None, &["s:it is 09:15", "u:one"], "first");
    let later = w.bind("u", None, &["s:it is 10:27", "u:one", "a:first", "u:two"]);
    assert_eq!(later.parent, Some(t1), "only the time changed");
}

#[test]
fn sub_agents_of_one_key_do_not_take_each_others_answers() {
    let mut w = World::new();
    let (_, t1) = w.turn("u", Some("k"), &["s:you search", "u:find a"], "done");
    let (_, t2) = w.turn("u", Some("k"), &["s:you write", "u:write b"], "done");
    let one = w.bind(
        "u",
        Some("k"),
        &["s:you search", "u:find a", "a:done", "u:more a"],
    );
    let two = w.bind(
        "u",
        Some("k"),
        &["s:you write", "u:write b", "a:done", "u:more b"],
    );
    assert_eq!((one.parent, two.parent), (Some(t1), Some(t2)));
    let strange = w.bind(
        "u",
        Some("k"),
        &["s:you plan", "u:plan c", "a:done", "u:more c"],
    );
    assert_eq!((strange.how, strange.parent), (BindHow::Fork, None));
}

#[test]
fn sub_agents_that_differ_in_a_number_are_told_apart_and_a_clock_is_no_number() {
    let mut world = World::new();
    let key = Some("k");
    let (_, one) = world.turn("u", key, &["s:You are helper 1.", "hi"], "Sure.");
    let (_, two) = world.turn("u", key, &["s:You are helper 2.", "hi"], "Sure.");
    for (system, parent) in [("s:You are helper 1.", one), ("s:You are helper 2.", two)] {
        let next = world.bind("u", key, &[system, "hi", "a:Sure.", "go on"]);
        assert_eq!(next.parent, Some(parent), "{system}");
    }
    let (_, noon) = world.turn("u", Some("c"), &["s:It is 12:00.", "hi"], "Sure.");
    let later = world.bind(
        "u",
        Some("c"),
        &["s:It is 12:05.", "hi", "a:Sure.", "go on"],
    );
    assert_eq!(later.parent, Some(noon));
}

#[test]
fn parallel_calls_are_answered_by_all_their_results() {
    let call = |id: &str, arguments: &str| crate::ToolCall {
        id: id.into(),
        name: "look".into(),
        arguments: arguments.into(),
    };
    let calls = |ids: [&str; 2], arguments: [&str; 2]| Message {
        tool_calls: vec![call(ids[0], arguments[0]), call(ids[1], arguments[1])],
        ..Message::text(Role::Assistant, "")
    };
    let mut w = World::new();
    let first = w.bind("u", None, &["u:look twice"]);
    let mut pending = w.pending(("u", None), &first, (turn(1), &["u:look twice"], ""));
    pending.completion = calls(
        ["call_a", "call_b"],
        [r#"{"x":1.0}"#, r#"{"x": 2, "y": []}"#],
    );
    w.index.record(&pending, None);
    // Ids without underscores, arguments serialised anew, content null.
    let back = calls(["calla", "callb"], [r#"{"x":1}"#, r#"{"y":[],"x":2}"#]);
    let mut all = messages(&["u:look twice"]);
    all.push(back);
    all.extend(messages(&["t:two", "t:one", "u:<passing> now"]));
    let scope = Scope::of("owner", Some("u"));
    let next = w.index.bind(&BindRequest {
        owner: "owner",
        scope: &scope,
        session_key: None,
        kind: TurnKind::Main,
        continues: None,
        keeps: true,
        messages: &all,
        new_session: session(99),
        now_ms: 99,
    });
    assert_eq!(
        (next.parent, said(&next)),
        (Some(turn(1)), vec!["two", "one"])
    );
}

#[test]
fn a_turn_that_is_named_is_continued_whatever_is_said_before_it() {
    let mut w = World::new();
    let (first, t1) = w.turn("u", None, &["s:be brief", "u:hi"], "hello");
    // The same words twice, so that nothing but the name tells them apart.
    let (other, _) = w.turn("u", None, &["s:be brief", "u:hi"], "hello");
    assert_ne!(first.session, other.session);
    let all = messages(&["u:hi", "a:hello", "u:wrong"]);
    let scope = Scope::of("owner", Some("u"));
    let mut ask = BindRequest {
        owner: "owner",
        scope: &scope,
        session_key: None,
        kind: TurnKind::Main,
        continues: Some(Continued {
            session: first.session,
            turn: t1,
            next_from: 2,
        }),
        keeps: true,
        messages: &all,
        new_session: session(98),
        now_ms: 98,
    };
    let next = w.index.bind(&ask);
    assert_eq!((next.session, next.parent), (first.session, Some(t1)));
    assert_eq!(said(&next), ["wrong"]);
    // Another continuation of it is a fork, as ever.
    let again = messages(&["u:hi", "a:hello", "u:else"]);
    ask.messages = &again;
    assert_eq!(w.index.bind(&ask).how, BindHow::Fork);
    // What is not known is as if nothing were named.
    ask.continues = Some(Continued {
        session: first.session,
        turn: turn(77),
        next_from: 2,
    });
    let unknown = w.index.bind(&ask);
    assert_eq!((unknown.how, unknown.parent), (BindHow::New, None));
}

#[test]
fn two_users_may_choose_the_same_key() {
    let mut w = World::new();
    let (a, _) = w.turn("a", Some("1"), &["u:hi"], "hello");
    let b = w.bind("b", Some("1"), &["u:hi", "a:hello", "u:more"]);
    assert_eq!((b.how, b.parent), (BindHow::Key, None));
    assert_ne!(a.session, b.session);
}

#[test]
fn forgotten_turns_cannot_be_continued_and_the_others_can() {
    let mut w = World::new();
    let (first, t1) = w.turn("u", None, &["u:one"], "first");
    let talk = ["u:one", "a:first", "u:two"];
    let (_, t2) = w.turn("u", None, &talk, "second");
    w.index.forget_turns(first.session, &[t2]);
    let next = w.bind(
        "u",
        None,
        &["u:one", "a:first", "u:two", "a:second", "u:three"],
    );
    assert_eq!(next.parent, Some(t1));
    w.index.forget_session(first.session);
    assert!(w.index.is_empty() && w.index.by_trail.is_empty());
}

#[test]
fn the_persons_words_alone_are_the_reply_and_the_retry() {
    let note = |text: &str| format!("user: <note>{text}</note>");
    for (at, text) in [
        "<note>x</note>\nThat is wrong.",
        "That is wrong.<note>y</note>",
    ]
    .into_iter()
    .enumerate()
    {
        let mut bench = World::new();
        let key = format!("k{at}");
        bench.turn("u", Some(&key), &["user: one"], "first");
        let reply = format!("user: {text}");
        let asked = ["user: one<note>z</note>", "a:first", &reply];
        let (binding, _) = bench.turn("u", Some(&key), &asked, "second");
        assert_eq!(binding.next_state.items[0].text, "That is wrong.");
    }
    // Nothing but what clients add is no retry of it.
    let mut bench = World::new();
    bench.cut(None, &[&note("same")], "");
    assert_eq!(bench.bind("u", None, &[&note("same")]).retry_of, None);
    let mut bench = World::new();
    bench.cut(None, &["user: <note>same</note>one"], "");
    let other = bench.bind("u", None, &["user: <note>same</note>two"]);
    assert_eq!(other.retry_of, None);
    let (_, cut) = bench.cut(None, &["user: <note>a</note>three"], "");
    let same = bench.bind("u", None, &["user: <note>b</note>three"]);
    assert_eq!(same.retry_of, Some(cut));
}
