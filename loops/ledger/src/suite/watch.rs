//! Cases of the watch over served versions.

use hone_domain::{PolicyVersion, StopReason, Turn};

use super::personal::{remove_all, wish};
use super::versions::Case;
use super::world::{ALL, World};
use crate::{ForgetWhat, Standing};

pub(super) async fn it_reads_on_where_it_stopped(case: &Case) {
    let (world, scope) = (&case.world, case.world.scope());
    let begin = case.versions.watch_place().await.expect("read");
    world.ready_turns(2, 0).await;
    let mut cut = world.turn_of(PolicyVersion(1));
    cut.kind = hone_domain::TurnKind::Side;
    world.record(&cut).await;
    let news = case.versions.watch_news(begin, ALL).await.expect("read");
    assert_eq!(
        (news.turns.len(), news.verdicts.len()),
        (2, 2),
        "side turns do not count"
    );
    assert_eq!(news.turns[0].stop, StopReason::EndToken);
    assert_eq!(
        (news.turns[0].tokens.len(), news.verdicts[0].score),
        (3, 1.0)
    );
    assert_eq!(
        case.versions.watch_memory(&scope).await.expect("read"),
        None
    );
    let memory = [(scope.clone(), "{\"seen\":2}".to_owned())];
    case.versions
        .keep_watch(news.place, &memory)
        .await
        .expect("kept");
    assert_eq!(case.versions.watch_place().await.expect("read"), news.place);
    let kept = case.versions.watch_memory(&scope).await.expect("read");
    assert_eq!(kept.as_deref(), Some("{\"seen\":2}"));
    assert_eq!(case.standing().await, Standing::default());
    let none = case
        .versions
        .watch_news(news.place, ALL)
        .await
        .expect("read");
    assert_eq!((none.turns.len(), none.verdicts.len()), (0, 0));
    world.ready_turns(3, 0).await;
    let one = case.versions.watch_news(news.place, 1).await.expect("read");
    assert_eq!((one.turns.len(), one.verdicts.len()), (1, 1));
    let rest = case
        .versions
        .watch_news(one.place, ALL)
        .await
        .expect("read");
    assert_eq!((rest.turns.len(), rest.verdicts.len()), (2, 2));
}

pub(super) async fn it_counts_a_turn_once_either_way(case: &Case) {
    let world = &case.world;
    let begin = case.versions.watch_place().await.expect("read");
    let seen = async |place| {
        let news = case.versions.watch_news(place, ALL).await.expect("read");
        let scores: Vec<f32> = news.verdicts.iter().map(|v| v.score).collect();
        (scores, news.place)
    };
    let again = async |turn: &Turn, score: f32| {
        let said = world.feedback(turn, score);
        world.ledger.record_feedback(&said).await.expect("stored");
        world.judge_all(Some(score)).await;
    };
    let turn = world.ready_turns(1, 0).await.remove(0);
    let (scores, place) = seen(begin).await;
    assert_eq!(scores, [1.0]);
    for score in [0.5, -1.0, -1.0, 1.0, -0.5] {
        again(&turn, score).await;
    }
    assert_eq!(seen(place).await.0, [-1.0], "a complaint that came late");
    assert_eq!(
        seen(begin).await.0,
        [1.0, -1.0],
        "late readers see the same"
    );
    let place = seen(begin).await.1;
    // An abstention is no observation; the first score after it is.
    let turn = world.turn();
    world.answered(&turn).await;
    world.judge_all(None).await;
    for score in [-0.5, 1.0] {
        again(&turn, score).await;
    }
    assert_eq!(seen(place).await.0, [-0.5, 1.0]);
}

/// Forgets the turns, and returns once they are gone.
async fn forget(case: &Case, turns: &[Turn]) {
    let turns = turns.iter().map(|turn| turn.id).collect();
    let wish = wish(&case.world, ForgetWhat::Turns(turns));
    case.people.begin_forget(&wish).await.expect("it begins");
    remove_all(&*case.people, wish.id).await;
}

pub(super) async fn it_sees_what_comes_after_an_erasure(case: &Case) {
    let (world, versions): (&World, _) = (&case.world, &case.versions);
    let begin = versions.watch_place().await.expect("read");
    let old = world.ready_turns(3, 0).await;
    let read = versions.watch_news(begin, ALL).await.expect("read");
    versions.keep_watch(read.place, &[]).await.expect("kept");
    // The numbers of the erased are given again.
    forget(case, &old[1..]).await;
    world.ready_turns(2, 0).await;
    let place = versions.watch_place().await.expect("read");
    let news = versions.watch_news(place, ALL).await.expect("read");
    assert_eq!((news.turns.len(), news.verdicts.len()), (2, 2));
    // Erased between reading and keeping.
    let newest = world.ready_turns(2, 0).await;
    let news = versions.watch_news(place, ALL).await.expect("read");
    forget(case, &newest).await;
    versions.keep_watch(news.place, &[]).await.expect("kept");
    world.ready_turns(1, 0).await;
    let place = versions.watch_place().await.expect("read");
    let news = versions.watch_news(place, ALL).await.expect("read");
    assert_eq!((news.turns.len(), news.verdicts.len()), (1, 1));
}
