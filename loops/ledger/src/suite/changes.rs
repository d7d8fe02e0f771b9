//! Cases of what other processes changed.

use hone_domain::{Consent, Learning, MemoryId, MemoryKind, MemoryOrigin, Turn};

use super::personal::{begin, remove_all, wish};
use super::world::{ALL, NOW, World};
use crate::{
    Added, Changes, ForgetWhat, Ledger, Memories, MemoryChange, NewMemory, OpenPage, Personal,
    Topic,
};

/// Topics and numbers of what changed behind a number; all of it is of the world's scope.
async fn behind<L: Changes>(world: &World, ledger: &L, number: u64) -> Vec<(Topic, u64)> {
    let found = ledger.changes_after(number, ALL).await.expect("read");
    assert!(found.iter().all(|change| change.scope == world.scope()));
    assert!(found.is_sorted_by_key(|change| change.number));
    let rows = found.into_iter();
    rows.map(|change| (change.topic, change.number)).collect()
}

/// Every change of what processes remember is told once per scope and topic, behind all that was told before.
pub(super) async fn what_is_remembered_elsewhere_is_told<L>(ledger: &L, world: &World)
where
    L: Ledger + Personal + Memories + Changes,
{
    assert_eq!(ledger.newest_change().await.expect("read"), 0);
    world.publish_next(0).await;
    let first = behind(world, ledger, 0).await;
    let [(Topic::Policy, first)] = first[..] else {
        panic!("a publish is a change of the policy: {first:?}");
    };
    world.publish_next(1).await;
    let [(Topic::Policy, second)] = behind(world, ledger, 0).await[..] else {
        panic!("a newer change takes the place of an older one");
    };
    assert!(second > first);
    assert_eq!(behind(world, ledger, second).await, []);

    let consent = Consent::to(Learning::Serve);
    let set = ledger.set_consent(&world.scope(), consent, NOW).await;
    set.expect("a decision");
    let behind_second = behind(world, ledger, second).await;
    assert_eq!(behind_second.last().expect("a change").0, Topic::Consent);

    let seen = ledger.newest_change().await.expect("read");
    let memory = NewMemory {
        id: MemoryId(world.batch().0),
        kind: MemoryKind::Fact,
        text: "likes tea".to_owned(),
        topic: None,
        replaces: None,
        turn: None,
        origin: MemoryOrigin::Said,
    };
    let full = Consent::to(Learning::Full);
    let set = ledger.set_consent(&world.scope(), full, NOW).await;
    set.expect("a decision");
    let added = ledger.add_memory(&world.scope(), &memory, NOW).await;
    let Ok(Added::New(memory)) = added else {
        panic!("it is new: {added:?}");
    };
    let topics = |rows: Vec<(Topic, u64)>| rows.into_iter().map(|(topic, _)| topic);
    let told: Vec<Topic> = topics(behind(world, ledger, seen).await).collect();
    assert_eq!(told, [Topic::Consent, Topic::Memory]);
    let seen = ledger.newest_change().await.expect("read");
    let change = MemoryChange {
        paused: Some(true),
        ..MemoryChange::default()
    };
    let changed = ledger
        .change_memory(&world.scope(), memory.id, &change)
        .await;
    assert!(changed.expect("a change").is_some());
    let told: Vec<Topic> = topics(behind(world, ledger, seen).await).collect();
    assert_eq!(told, [Topic::Memory]);

    // Files are gone once the erasure is done, and not before.
    let wish = wish(world, ForgetWhat::All);
    begin(ledger, &wish).await;
    let seen = ledger.newest_change().await.expect("read");
    remove_all(ledger, wish.id).await;
    let told: Vec<Topic> = topics(behind(world, ledger, seen).await).collect();
    assert_eq!(told, [Topic::Files]);
}

/// Turns of other processes are read, and those that are known are not.
pub(super) async fn turns_of_others_are_read<L>(ledger: &L, world: &World)
where
    L: Ledger + Changes,
{
    let turns: Vec<Turn> = (0..5).map(|_| world.turn()).collect();
    for turn in &turns {
        world.record(turn).await;
    }
    world.answered(&world.turn()).await;
    let own = [&turns[1], &turns[2]];
    let is_known = |session, turn| {
        let is_own = |one: &&Turn| (one.session, one.id) == (session, turn);
        own.iter().any(is_own)
    };
    for limit in [1, 2, ALL] {
        let (mut from, mut found) = (Some(0), Vec::new());
        while let Some(number) = from {
            let page = ledger.unknown_page(number, limit, &is_known).await;
            let page = page.expect("read");
            found.extend(page.turns.iter().map(|waiting| waiting.turn.turn));
            from = page.next;
        }
        assert_eq!(found, [turns[0].id, turns[3].id, turns[4].id], "{limit}");
    }
    let newest = ledger.newest_turn().await.expect("read");
    let page = ledger.unknown_page(newest, ALL, &|_, _| false).await;
    assert!(page.expect("read").turns.is_empty(), "it does not wait");
    let page = ledger.open_page(ALL, None, ALL).await.expect("read");
    let all = ledger.unknown_page(0, ALL, &|_, _| false).await;
    let names = |page: &OpenPage| {
        page.turns
            .iter()
            .map(|w| w.turn.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&all.expect("read")), names(&page));
}
