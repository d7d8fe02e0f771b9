//! What is remembered is bounded, and what goes first.

use super::*;

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
            parent: None,
            memories: Vec::new(),
            skills: Vec::new(),
            kind: TurnKind::Main,
            delivered: true,
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
        assert!(w.index.by_key.len() <= 3 && w.index.by_trail.len() <= 6);
    }
    w.index.evict_idle(100);
    assert!(w.index.is_empty() && w.index.transcript_bytes == 0 && w.index.ages.is_empty());
    assert!(w.index.texts.is_empty());
}

#[test]
fn the_oldest_transcript_goes_first_and_none_is_looked_at_twice() {
    let mut w = World::new();
    w.index.config.transcript_bytes_max = 100;
    let transcript = || {
        Some(Transcript {
            text: "x".repeat(40).into(),
            tokens: vec![].into(),
        })
    };
    let mut say = |key: &str, texts: &[&str], answer: &str| {
        let binding = w.bind("u", Some(key), texts);
        let id = turn(w.next);
        let pending = w.pending(("u", Some(key)), &binding, (id, texts, answer));
        w.index.record(&pending, transcript());
        (binding, w.index.texts.len())
    };
    assert_eq!(say("a", &["u:hi"], "one").1, 1);
    assert_eq!(say("b", &["u:ho"], "two").1, 2);
    // The session is the newest now, and its first transcript the oldest.
    let (second, left) = say("a", &["u:hi", "a:one", "u:on"], "three");
    assert_eq!((second.transcript, left), (transcript(), 2));
    let (other, left) = say("b", &["u:ho", "a:two", "u:on"], "four");
    assert_eq!((other.transcript, left), (transcript(), 2));
    let again = w.bind("u", Some("a"), &["u:hi", "a:one", "u:else"]);
    assert_eq!((again.how, again.transcript), (BindHow::Fork, None));
}

#[test]
fn who_begins_many_sessions_ends_their_own() {
    let mut w = World::new();
    w.index.config.sessions_max = 6;
    let mut begin = |owner: &str, key: &str| {
        w.next += 1;
        let binding = w.index.bind(&BindRequest {
            owner,
            scope: &Scope::of(owner, None),
            session_key: Some(key),
            kind: TurnKind::Main,
            continues: None,
            keeps: true,
            messages: &messages(&["u:hi"]),
            new_session: session(w.next),
            now_ms: w.next as Millis,
        });
        assert!(w.index.len() <= 6);
        binding.session
    };
    let quiet = [begin("ann", "a"), begin("bob", "b"), begin("bob", "c")];
    let flood: Vec<SessionId> = (0..50).map(|n| begin("eve", &n.to_string())).collect();
    let still = [begin("ann", "a"), begin("bob", "b"), begin("bob", "c")];
    assert_eq!(still, quiet);
    assert_eq!(begin("eve", "49"), flood[49]);
    assert_ne!(begin("eve", "46"), flood[46], "the longest idle of theirs");
    // Where all have as many, the longest idle of all goes.
    let new = ["fay", "gil", "hal", "zoe"].map(|owner| begin(owner, "k"));
    assert_eq!(new, ["fay", "gil", "hal", "zoe"].map(|o| begin(o, "k")));
    assert_ne!(begin("ann", "a"), quiet[0]);
}
