//! Situations and what is said of them.

use hone_domain::{PolicyVersion, Reason, Scope};
use hone_ledger::{LedgerCounts, Standing, Trial, Tripped};
use hone_runtime::StatusRegistry;
use hone_serve::EngineStats;

use super::*;

const NOW: i64 = 1_700_000_000_000;

/// A whole ring at work, with nothing to do.
fn idle() -> Facts {
    let registry = StatusRegistry::new();
    for name in ["serve", "collect", "judge", "train"] {
        registry.enter(name);
        registry.update(name, |s| s.state = LoopPhase::Running);
    }
    Facts {
        now: Look {
            at_ms: NOW,
            loops: registry.snapshot(),
            counts: Some(LedgerCounts::default()),
            ..Look::default()
        },
        can_train: Some(true),
        batch_turns_min: 8,
        ..Facts::default()
    }
}

fn with(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = idle();
    change(&mut facts);
    facts
}

fn counted(change: impl FnOnce(&mut LedgerCounts)) -> Facts {
    with(|facts| change(facts.now.counts.as_mut().expect("counted")))
}

fn status<'a>(facts: &'a mut Facts, name: &str) -> &'a mut LoopStatus {
    facts.now.loops.get_mut(name).expect("a loop")
}

/// A ring with one scope that learned a moment ago and is held now.
fn held(change: impl FnOnce(&mut Standing)) -> Facts {
    let mut standing = Standing::default();
    change(&mut standing);
    with(|facts| {
        facts.last_publish_ms = Some(NOW - 1_000);
        facts.now.gateway.scopes_with_policy = 1;
        facts.now.held = vec![(Scope::of("ann", None), standing)];
    })
}

#[test]
fn a_trial_is_waited_for_and_one_held_scope_of_two_holds_nothing() {
    let trial = Trial {
        version: PolicyVersion(4),
        proven: PolicyVersion(3),
        share: 0.25,
        since_ms: NOW,
    };
    let mut facts = held(|standing| standing.trial = Some(trial));
    let said = why(&facts);
    assert_eq!(said.learning, Learning::Soon);
    assert!(
        said.sentence.contains("version 4 is on trial on 25 %"),
        "{}",
        said.sentence
    );
    facts.now.gateway.scopes_with_policy = 2;
    assert_eq!(why(&facts).learning, Learning::Yes);
}

/// A situation, the word and a part of the sentence.
type Said = (Facts, Learning, &'static str);

fn in_the_way() -> Vec<Said> {
    let state = |name: &'static str, state: LoopPhase| with(|f| status(f, name).state = state);
    let (paused, failed) = (LoopPhase::Paused, LoopPhase::Restarting);
    let all_settled = counted(|c| {
        c.turns = 5;
        c.settled = vec![(Reason::Greedy, 1), (Reason::SideTurn, 4)];
    });
    let rows = [
        (with(|f| f.draining = true), "draining"),
        (with(|f| f.now.counts = None), "the ledger does not answer"),
        (with(|f| f.can_train = Some(false)), "the exact tokens"),
        (
            state("judge", paused),
            "the judge loop, which gives verdicts, is paused",
        ),
        (
            state("train", failed),
            "the train loop, which makes new versions, has failed",
        ),
        (
            with(|f| drop(f.now.loops.remove("collect"))),
            "does not run in this process",
        ),
        (
            with(|f| f.refused_since = 3),
            "the gate refused the last 3 candidates",
        ),
        (all_settled, "Most often (4): it was a side turn"),
        (held(|s| s.pinned = true), "the served version is pinned"),
        (
            held(|s| {
                s.tripped = Some(Tripped {
                    note: "auto: complaint rate".into(),
                    version: PolicyVersion(3),
                    at_ms: NOW,
                });
            }),
            "stopped after a rollback (auto: complaint rate)",
        ),
    ];
    rows.map(|(facts, part)| (facts, Learning::No, part)).into()
}

fn on_its_way() -> Vec<Said> {
    let pending = |stage, n| counted(|c| c.pending = vec![(stage, n)]);
    let under_way = with(|f| {
        status(f, "train").numbers.insert("job_under_way", 1.0);
    });
    let judged = "1 turn is judged and waits for a batch, which needs 8 of one scope";
    let rows = [
        (idle(), "nobody has talked to it"),
        (under_way, "a batch is being trained"),
        (pending(Stage::AwaitingTraining, 1), judged),
        (
            pending(Stage::AwaitingVerdict, 2),
            "2 turns wait for the judge",
        ),
        (
            pending(Stage::AwaitingNextState, 2),
            "2 turns wait for what is answered",
        ),
        (
            counted(|c| (c.turns, c.trained) = (5, 5)),
            "everything there was to learn from",
        ),
    ];
    rows.map(|(facts, part)| (facts, Learning::Soon, part))
        .into()
}

fn at_work() -> Vec<Said> {
    let published = |ago_ms| with(|f| f.last_publish_ms = Some(NOW - ago_ms));
    let rows = [
        (published(30_000), "published 30 s ago"),
        (published(600_000), "published 10 min ago"),
    ];
    rows.map(|(facts, part)| (facts, Learning::Yes, part))
        .into()
}

#[test]
fn the_sentence_says_what_is_the_matter() {
    for (facts, learning, part) in [in_the_way(), on_its_way(), at_work()].concat() {
        let why = why(&facts);
        assert_eq!(why.learning, learning, "{}", why.sentence);
        assert!(
            why.sentence.contains(part),
            "{:?} lacks {part:?}",
            why.sentence
        );
    }
}

#[test]
fn what_is_in_the_way_comes_before_what_is_on_its_way() {
    let facts = with(|f| {
        f.last_publish_ms = Some(NOW);
        status(f, "judge").state = LoopPhase::Paused;
    });
    assert_eq!(why(&facts).learning, Learning::No);
}

/// A situation and the only alert in it, if any.
type Told = (Facts, Option<&'static str>);

fn of_loops() -> Vec<Told> {
    let state = |name: &'static str, state: LoopPhase| with(|f| status(f, name).state = state);
    let line = |name: &'static str, depth: usize, limit: usize| {
        with(|f| {
            let status = status(f, name);
            (status.queue_depth, status.queue_limit) = (depth, limit);
        })
    };
    vec![
        (idle(), None),
        (state("judge", LoopPhase::Paused), Some("judge_paused")),
        (
            state("train", LoopPhase::Restarting),
            Some("train_restarting"),
        ),
        (line("collect", 80, 100), Some("collect_line_full")),
        (line("collect", 79, 100), None),
        (line("judge", 1, 1), None),
    ]
}

fn of_serving() -> Vec<Told> {
    let full = EngineStats {
        kv_blocks_used: 97,
        kv_blocks_total: 100,
        ..EngineStats::default()
    };
    vec![
        (with(|f| f.now.engine = Some(full)), Some("kv_full")),
        (
            with(|f| {
                f.events.insert("overloaded", 1);
            }),
            Some("overloaded"),
        ),
        (
            with(|f| {
                f.events.insert("turns_dropped", 2);
            }),
            Some("turns_dropped"),
        ),
        (
            with(|f| {
                f.events.insert("adapter_loads_failed", 1);
            }),
            Some("adapter_loads_failed"),
        ),
    ]
}

fn of_learning() -> Vec<Told> {
    let numbers = |name: &'static str, rows: &[(&'static str, f64)]| {
        with(|f| status(f, name).numbers.extend(rows.iter().copied()))
    };
    let abstained = |judged, abstained| {
        numbers(
            "judge",
            &[("judged_total", judged), ("abstained_total", abstained)],
        )
    };
    vec![
        (with(|f| f.now.counts = None), Some("ledger_silent")),
        (with(|f| f.refused_since = 3), Some("gate_refuses")),
        (with(|f| f.refused_since = 2), None),
        (abstained(20.0, 19.0), Some("judge_abstains")),
        (abstained(10.0, 10.0), None),
        (
            numbers("judge", &[("breaker_open", 1.0)]),
            Some("judge_model_silent"),
        ),
        (
            numbers("collect", &[("turns_handed_total", 1.0)]),
            Some("turns_unaccounted"),
        ),
        (
            numbers("collect", &[("ledger_away", 1.0), ("spool_records", 3.0)]),
            Some("ledger_away"),
        ),
        // It ships what waits.
        (numbers("collect", &[("spool_records", 3.0)]), None),
        (
            numbers(
                "collect",
                &[("spool_bytes", 80.0), ("spool_bytes_max", 100.0)],
            ),
            Some("spool_nearly_full"),
        ),
        (
            numbers(
                "collect",
                &[("spool_bytes", 79.0), ("spool_bytes_max", 100.0)],
            ),
            None,
        ),
        (
            numbers("collect", &[("spool_lost_total", 1.0)]),
            Some("spool_lost"),
        ),
        (
            numbers(
                "collect",
                &[
                    ("turns_handed_total", 4.0),
                    ("turns_spooled_total", 1.0),
                    ("turns_recorded_total", 1.0),
                    ("turns_dropped_total", 1.0),
                    ("turns_held", 1.0),
                ],
            ),
            None,
        ),
        (
            numbers("train", &[("parity_mismatches", 1.0)]),
            Some("parity_lost"),
        ),
    ]
}

#[test]
fn alerts_say_what_to_do() {
    for (facts, expected) in [of_loops(), of_serving(), of_learning()].concat() {
        let found = alerts(&facts);
        let ids: Vec<&str> = found.iter().map(|alert| alert.id.as_str()).collect();
        assert_eq!(ids, expected.into_iter().collect::<Vec<_>>());
        assert!(found.iter().all(|alert| !alert.what_to_do.is_empty()));
    }
}

#[test]
fn clients_that_want_nothing_kept_are_named_as_the_cause() {
    let said = |n| with(|facts| facts.now.uncollected = vec![(Reason::StoreFalse, n)]);
    let answer = why(&said(1));
    assert_eq!(answer.learning, Learning::No);
    let sentence = answer.sentence;
    assert!(
        sentence.starts_with("No: 1 turn was answered, and none was collected."),
        "{sentence}"
    );
    assert!(sentence.contains("store: false") && sentence.contains("despite_store_false"));

    let is_named = |facts: &Facts| alerts(facts).iter().any(|alert| alert.id == "store_false");
    assert!(!is_named(&said(4)), "a few may be meant");
    assert!(is_named(&said(5)));
    let mut mostly_kept = said(5);
    mostly_kept.now.counts = Some(LedgerCounts {
        turns: 50,
        ..LedgerCounts::default()
    });
    assert!(!is_named(&mostly_kept), "most clients keep their turns");
}
