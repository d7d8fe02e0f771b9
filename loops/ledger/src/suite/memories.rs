//! Cases of memories.

use hone_domain::{
    Consent, Learning, MEMORIES_MAX, Memory, MemoryId, MemoryKind, MemoryMode, MemoryOrigin,
    MemoryUse, Scope, ShownMemory, Signal, Turn,
};

use super::personal::{begin, remove_all, wish};
use super::world::{ALL, NOW, World, assert_conflict};
use crate::{
    Added, Extraction, ForgetWhat, Memories, MemoryChange, MemoryCounts, NewMemory, Personal, Read,
    Window,
};

fn new(world: &World, text: &str) -> NewMemory {
    NewMemory {
        id: MemoryId(world.batch().0),
        kind: MemoryKind::Fact,
        text: text.to_owned(),
        topic: None,
        replaces: None,
        turn: None,
        origin: MemoryOrigin::Said,
    }
}

fn named(world: &World, text: &str) -> NewMemory {
    NewMemory {
        topic: Some("name".to_owned()),
        ..new(world, text)
    }
}

async fn add(world: &World, kept: &dyn Memories, memory: &NewMemory) -> Memory {
    match kept.add_memory(&world.scope(), memory, NOW).await {
        Ok(Added::New(memory)) => memory,
        other => panic!("{:?} is not new: {other:?}", memory.text),
    }
}

async fn all(kept: &dyn Memories, scope: &Scope) -> Vec<Memory> {
    let page = Window {
        limit: ALL,
        before: None,
    };
    let rows = kept.memories(scope, page).await.expect("read");
    rows.into_iter().map(|row| row.memory).collect()
}

fn texts(memories: &[Memory]) -> Vec<&str> {
    memories.iter().map(|memory| memory.text.as_str()).collect()
}

/// A turn that uses memories.
fn turn(world: &World, mode: MemoryMode, shown: &[MemoryId]) -> Turn {
    let mut turn = world.turn();
    let shown = shown
        .iter()
        .map(|id| ShownMemory { id: *id, at: 0 })
        .collect();
    turn.admission.memory = MemoryUse {
        mode,
        shown,
        skills: Vec::new(),
    };
    turn
}

fn extraction(turn: &Turn, memories: Vec<NewMemory>) -> Extraction {
    Extraction {
        read: Read {
            turn: turn.id,
            is_new: true,
            revision: None,
        },
        memories,
        correction: None,
        skill: None,
    }
}

pub(super) async fn equal_texts_are_one_and_a_topic_has_one(
    world: &World,
    _: &dyn Personal,
    kept: &dyn Memories,
) {
    let scope = world.scope();
    let sam = add(world, kept, &named(world, "Call me Sam.")).await;
    let again = kept
        .add_memory(&scope, &named(world, "call me  SAM"), NOW)
        .await;
    assert_eq!(again.expect("asked"), Added::Same(sam.clone()));
    let max = add(world, kept, &named(world, "Call me Max.")).await;
    let nut = add(world, kept, &new(world, "I am allergic to nuts.\0")).await;
    let found = all(kept, &scope).await;
    assert_eq!(found[0], nut);
    assert_eq!(found[1], max);
    let replaced = Memory {
        valid_until_ms: Some(NOW),
        superseded_by: Some(max.id),
        ..sam
    };
    assert_eq!(found[2], replaced);
    // Said again, it holds again.
    let sam = add(world, kept, &named(world, "Call me Sam.")).await;
    let current = all(kept, &scope).await;
    let current: Vec<_> = current.into_iter().filter(Memory::is_current).collect();
    assert_eq!(current, [sam, nut]);
}

pub(super) async fn a_scope_sees_its_own_and_changes_it(
    world: &World,
    _: &dyn Personal,
    kept: &dyn Memories,
) {
    let (mine, theirs) = (world.scope(), Scope::of("somebody", None));
    let memory = add(world, kept, &named(world, "Call me Sam.")).await;
    let other = add(world, kept, &new(world, "I am tall.")).await;
    assert!(all(kept, &theirs).await.is_empty());
    assert_eq!(kept.memory(&theirs, memory.id).await.expect("read"), None);
    let paused = MemoryChange {
        paused: Some(true),
        ..MemoryChange::default()
    };
    let change = |scope, change| async move { kept.change_memory(scope, memory.id, change).await };
    assert_eq!(change(&theirs, &paused).await.expect("asked"), None);
    let set_aside = change(&mine, &paused).await.expect("changed");
    assert!(set_aside.expect("known").paused);
    let newest = kept.newest_memories(None, 8).await.expect("read");
    assert_eq!(newest, std::slice::from_ref(&other));
    let edited = MemoryChange {
        text: Some("Call me Samuel.".to_owned()),
        kind: Some(MemoryKind::Preference),
        paused: Some(false),
        holds: false,
    };
    let edited = change(&mine, &edited).await.expect("changed");
    let edited = edited.expect("known");
    let (text, kind) = (edited.text.as_str(), edited.kind);
    assert_eq!(
        (text, kind, edited.paused),
        ("Call me Samuel.", MemoryKind::Preference, false)
    );
    let same = MemoryChange {
        text: Some("i am tall".to_owned()),
        ..MemoryChange::default()
    };
    assert_conflict(&change(&mine, &same).await);
    let newest = kept.newest_memories(Some(&mine), 1).await.expect("read");
    assert_eq!(newest, [other]);
    let newest = kept.newest_memories(Some(&theirs), 8).await.expect("read");
    assert_eq!(newest, []);
    let gone = kept.forget_memories(&theirs, Some(memory.id)).await;
    assert_eq!(gone.expect("asked"), 0);
    let gone = kept.forget_memories(&mine, Some(memory.id)).await;
    assert_eq!(gone.expect("asked"), 1);
    assert_eq!(texts(&all(kept, &mine).await), ["I am tall."]);
    assert_eq!(kept.forget_memories(&mine, None).await.expect("asked"), 1);
    assert!(all(kept, &mine).await.is_empty());
}

pub(super) async fn a_scope_has_so_many(world: &World, _: &dyn Personal, kept: &dyn Memories) {
    let scope = world.scope();
    add(world, kept, &named(world, "Call me Sam.")).await;
    let houses = (1..MEMORIES_MAX).map(|n| new(world, &format!("I own house {n}.")));
    let houses: Vec<_> = houses.collect();
    for some in houses.chunks(500) {
        let added = kept.add_memories(&scope, some, NOW).await.expect("kept");
        assert!(added.iter().all(|one| matches!(one, Added::New(_))));
    }
    let again = kept.add_memories(&scope, &houses[..2], NOW).await;
    let again = again.expect("asked");
    assert!(again.iter().all(|one| matches!(one, Added::Same(_))) && again.len() == 2);
    // What was replaced makes place, and nothing else does.
    add(world, kept, &named(world, "Call me Max.")).await;
    let one_more = kept
        .add_memory(&scope, &new(world, "I own a boat."), NOW)
        .await;
    assert_eq!(one_more.expect("asked"), Added::Full);
    let found = all(kept, &scope).await;
    assert_eq!(found.len(), MEMORIES_MAX);
    assert!(found.iter().all(Memory::is_current));
}

pub(super) async fn a_newer_fact_replaces_an_older_one(
    world: &World,
    _: &dyn Personal,
    kept: &dyn Memories,
) {
    let leeds = add(world, kept, &new(world, "I live in Leeds.")).await;
    let tall = add(world, kept, &new(world, "I am tall.")).await;
    let york = NewMemory {
        replaces: Some(leeds.id),
        ..new(world, "I live in York.")
    };
    let york = add(world, kept, &york).await;
    let found = all(kept, &world.scope()).await;
    let holds = |id| {
        let one = found.iter().find(|one| one.id == id).expect("known");
        (one.is_current(), one.superseded_by)
    };
    assert_eq!(holds(leeds.id), (false, Some(york.id)));
    assert_eq!(holds(york.id), (true, None));
    let again = MemoryChange {
        holds: true,
        ..MemoryChange::default()
    };
    let both = kept.change_memory(&world.scope(), leeds.id, &again).await;
    let both = both.expect("changed").expect("known");
    assert!(both.is_current() && both.superseded_by.is_none());
    let found = all(kept, &world.scope()).await;
    assert!(found.iter().all(Memory::is_current));
    // Nobody else's is replaced, and what was replaced stays as it was.
    let other = Scope::of("somebody-else", None);
    for replaces in [tall.id, leeds.id] {
        let said = NewMemory {
            replaces: Some(replaces),
            ..new(world, &format!("I am {replaces}."))
        };
        kept.add_memory(&other, &said, NOW).await.expect("kept");
    }
    assert_eq!(all(kept, &world.scope()).await, found);
}

pub(super) async fn a_turn_is_read_once(world: &World, _: &dyn Personal, kept: &dyn Memories) {
    let memory = add(world, kept, &new(world, "I am tall.")).await;
    let full = turn(world, MemoryMode::Full, &[memory.id]);
    let read = turn(world, MemoryMode::Read, &[memory.id]);
    for turn in [&full, &world.turn(), &read] {
        world.record(turn).await;
        world.record(turn).await;
    }
    let stored = world.ledger.turn(full.id).await.expect("read");
    assert_eq!(stored.expect("known").turn, full);
    let unread = kept.unread(ALL).await.expect("read");
    assert_eq!(
        unread.iter().map(|h| (h.turn, h.mode)).collect::<Vec<_>>(),
        [(full.id, MemoryMode::Full), (read.id, MemoryMode::Read)]
    );
    assert_eq!(unread[0].said.as_ref(), Some(&full.messages));
    assert_eq!(unread[1].said.as_ref(), Some(&Vec::new()));
    let said = NewMemory {
        turn: Some(full.id),
        ..new(world, "I live in Leeds.")
    };
    let first = kept
        .store_extraction(&extraction(&full, vec![said.clone()]), NOW)
        .await;
    let counts = MemoryCounts {
        new: 1,
        ..MemoryCounts::default()
    };
    assert_eq!(first.expect("kept"), counts);
    // As after a lost answer: neither the words nor the use count twice.
    let twice = NewMemory {
        id: MemoryId(world.batch().0),
        text: "Twice.".to_owned(),
        ..said
    };
    let second = kept
        .store_extraction(&extraction(&full, vec![twice]), NOW)
        .await;
    assert_eq!(second.expect("asked"), MemoryCounts::default());
    kept.store_extraction(&extraction(&read, Vec::new()), NOW)
        .await
        .expect("kept");
    assert!(kept.unread(ALL).await.expect("read").is_empty());
    let found = all(kept, &world.scope()).await;
    assert_eq!(texts(&found), ["I live in Leeds.", "I am tall."]);
    assert_eq!((found[0].turn, found[1].uses), (Some(full.id), 2));
}

pub(super) async fn a_verdict_is_read_once(world: &World, _: &dyn Personal, kept: &dyn Memories) {
    let asked = turn(world, MemoryMode::Full, &[]);
    world.answered(&asked).await;
    let only_read = turn(world, MemoryMode::Read, &[]);
    world.answered(&only_read).await;
    for turn in [&asked, &only_read] {
        let read = kept
            .store_extraction(&extraction(turn, Vec::new()), NOW)
            .await;
        assert_eq!(read.expect("kept"), MemoryCounts::default());
    }
    let mut comment = world.feedback(&asked, -1.0);
    comment.comment = Some("not so long".to_owned());
    let stored = world.ledger.record_feedback(&comment).await;
    stored.expect("stored");
    for claimed in world.claim(ALL, NOW).await {
        let mut verdict = world.verdict(claimed.claim, Some(-1.0));
        verdict.decided_by = Some(Signal::Feedback);
        verdict.hint = Some("not so long".to_owned());
        verdict.wish = Some("keep it short".to_owned());
        let done = world.ledger.record_verdict(claimed.claim, &verdict).await;
        done.expect("recorded");
    }
    let unread = kept.unread(ALL).await.expect("read");
    assert_eq!((unread.len(), unread[0].turn), (1, asked.id));
    assert_eq!(unread[0].said, None);
    let judged = unread[0].judged.clone().expect("a verdict");
    assert_eq!(
        (judged.by, judged.hint.as_str(), judged.is_comment),
        (Some(Signal::Feedback), "not so long", true)
    );
    assert_eq!(judged.wish.as_deref(), Some("keep it short"));
    let extraction = Extraction {
        read: Read {
            turn: asked.id,
            is_new: false,
            revision: Some(judged.revision),
        },
        memories: vec![new(world, "not so long")],
        correction: None,
        skill: None,
    };
    assert_eq!(
        kept.store_extraction(&extraction, NOW)
            .await
            .expect("kept")
            .new,
        1
    );
    assert_eq!(
        kept.store_extraction(&extraction, NOW)
            .await
            .expect("asked"),
        MemoryCounts::default()
    );
    assert!(kept.unread(ALL).await.expect("read").is_empty());
}

pub(super) async fn erasure_and_consent_remove_them(
    world: &World,
    people: &dyn Personal,
    kept: &dyn Memories,
) {
    let scope = world.scope();
    let said = turn(world, MemoryMode::Full, &[]);
    let other = turn(world, MemoryMode::Full, &[]);
    for (turn, text) in [(&said, "I am tall."), (&other, "I am old.")] {
        world.record(turn).await;
        let memory = NewMemory {
            turn: Some(turn.id),
            ..new(world, text)
        };
        let kept = kept
            .store_extraction(&extraction(turn, vec![memory]), NOW)
            .await;
        assert_eq!(kept.expect("kept").new, 1);
    }
    let unread = turn(world, MemoryMode::Full, &[]);
    world.record(&unread).await;
    let one = wish(world, ForgetWhat::Turns(vec![said.id, unread.id]));
    begin(people, &one).await;
    // From now on, and not only once the turn is removed.
    assert_eq!(texts(&all(kept, &scope).await), ["I am old."]);
    let late = kept
        .store_extraction(&extraction(&unread, vec![new(world, "Late.")]), NOW)
        .await;
    assert_eq!(late.expect("asked"), MemoryCounts::default());
    remove_all(people, one.id).await;
    let everything = wish(world, ForgetWhat::All);
    begin(people, &everything).await;
    assert!(all(kept, &scope).await.is_empty());
    remove_all(people, everything.id).await;
    // What is on its way when consent ends brings nothing either.
    let last = turn(world, MemoryMode::Full, &[]);
    world.record(&last).await;
    add(world, kept, &new(world, "I am here.")).await;
    let off = people.set_consent(&scope, Consent::to(Learning::Off), NOW);
    off.await.expect("stored");
    assert!(all(kept, &scope).await.is_empty());
    assert!(kept.unread(ALL).await.expect("read").is_empty());
    let late = kept
        .store_extraction(&extraction(&last, vec![new(world, "Late.")]), NOW)
        .await;
    assert_eq!(late.expect("asked"), MemoryCounts::default());
    assert!(all(kept, &scope).await.is_empty());
}
