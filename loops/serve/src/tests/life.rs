//! Limits, cancellation, failure and the end.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hone_checkpoint::ModelConfig;
use hone_domain::{Ask, Collect, Delta, Origin, Reason, ServeError, StopReason};
use hone_runtime::{LoopPhase, SystemClock};

use super::support::{World, adapter, ask, model_config, prompt, read, until};
use crate::{Backend, Config, NullBackend, NullCompletion};

fn endless(seed: u64) -> Ask {
    let mut wanted = ask(&prompt(40, seed), 16_000, seed);
    wanted.stop.ignore_end = true;
    wanted
}

#[test]
fn cancelling_frees_the_blocks_within_a_step() {
    let world = World::new();
    let cancelled = world.ask(endless(1));
    let dropped = world.ask(endless(2));
    until("both to run", || world.engine.stats().running == 2);
    until("some tokens", || {
        world.engine.stats().completion_tokens_total > 10
    });
    cancelled.cancel.cancel();
    drop(dropped);
    let steps = world.engine.stats().steps_total;
    until("the blocks", || {
        let stats = world.engine.stats();
        stats.running == 0 && stats.kv_blocks_used == 0
    });
    let later = world.engine.stats().steps_total - steps;
    assert!(later <= 1, "{later} more steps after the one under way");
    let said = read(cancelled).unwrap();
    assert_eq!(said.stop, StopReason::Cancelled);
    let turn = said.turn.expect("what was sampled is a turn");
    assert!(!turn.completion.is_empty());
    assert_eq!(turn.completion_text, said.text);
    assert_eq!(world.engine.stats().cancelled_total, 2);
}

#[test]
fn a_request_that_waits_for_its_adapter_can_be_cancelled() {
    let world = World::new();
    world.publish("a", 1, &adapter(&world.model.config, 1));
    let held = world.blobs.hold();
    let stays = world.ask(ask(&prompt(9, 1), 3, 1));
    let cancelled = world.ask(ask(&prompt(9, 2), 3, 2));
    let dropped = world.ask(ask(&prompt(9, 3), 3, 3));
    cancelled.cancel.cancel();
    drop(dropped);
    until("both to be gone", || {
        world.engine.stats().cancelled_total == 2
    });
    assert_eq!(world.engine.stats().waiting, 1);
    assert_eq!(read(cancelled).unwrap().stop, StopReason::Cancelled);
    drop(held);
    assert_eq!(read(stays).unwrap().version.0, 1);
    assert_eq!(world.engine.stats().waiting, 0);
}

#[test]
fn nobody_waits_for_a_reader_that_never_reads() {
    let world = World::new();
    let silent: Vec<_> = (0..8)
        .map(|seed| world.ask(ask(&prompt(20, seed), 100, seed)))
        .collect();
    for seed in 0..8 {
        world.complete(ask(&prompt(20, 50 + seed), 100, seed));
    }
    until("the silent ones", || world.engine.stats().running == 0);
    for (seed, answer) in silent.into_iter().enumerate() {
        let quiet = World::new().complete(ask(&prompt(20, seed as u64), 100, seed as u64));
        assert_eq!(
            read(answer).unwrap().bits(),
            quiet.bits(),
            "nothing was lost"
        );
    }
}

#[test]
fn a_full_line_refuses_and_says_when_to_come_back() {
    let config = Config {
        running_max: 1,
        waiting_max: 2,
        ..Config::for_tests()
    };
    let world = World::with(config, model_config());
    let running = world.ask(endless(1));
    until("it to run", || world.engine.stats().running == 1);
    let waiting: Vec<_> = (0..2)
        .map(|seed| world.ask(ask(&prompt(9, seed), 3, seed)))
        .collect();
    let error = world.engine.ask(ask(&prompt(9, 9), 3, 9)).unwrap_err();
    let ServeError::Overloaded {
        limit: 2,
        retry_after_ms,
    } = error
    else {
        panic!("{error:?}")
    };
    assert!((100..=60_000).contains(&retry_after_ms));
    drop(running);
    for answer in waiting {
        read(answer).unwrap();
    }
    let stats = world.engine.stats();
    assert_eq!((stats.waiting, stats.overloaded_total), (0, 1));
}

#[test]
fn one_owner_cannot_fill_the_line_alone() {
    let config = Config {
        running_max: 1,
        waiting_max: 3,
        waiting_per_owner_max: 2,
        ..Config::for_tests()
    };
    let world = World::with(config, model_config());
    let of = |owner: &str, seed: u64| {
        let mut wanted = ask(&prompt(9, seed), 3, seed);
        // Agents are one with who keeps them.
        let agent = seed.is_multiple_of(2).then(|| format!("agent {seed}"));
        wanted.context.keeper = agent.as_ref().map(|_| owner.to_owned());
        wanted.context.owner = agent.unwrap_or(owner.to_owned());
        world.engine.ask(wanted)
    };
    let running = world.ask(endless(1));
    until("it to run", || world.engine.stats().running == 1);
    let mut waiting = vec![of("many", 2).unwrap(), of("many", 3).unwrap()];
    let refused = of("many", 4).err();
    assert!(
        matches!(refused, Some(ServeError::Overloaded { limit: 2, .. })),
        "{refused:?}"
    );
    waiting.push(of("other", 5).unwrap());
    let refused = of("third", 6).err();
    assert!(
        matches!(refused, Some(ServeError::Overloaded { limit: 3, .. })),
        "{refused:?}"
    );
    drop(running);
    for answer in waiting {
        read(answer).unwrap();
    }
    // Whoever had their places has them again.
    let again = [of("many", 7).unwrap(), of("many", 8).unwrap()];
    for answer in again {
        read(answer).unwrap();
    }
}

#[test]
fn many_requests_of_one_owner_hold_up_nobody_else() {
    let config = Config {
        running_max: 1,
        ..Config::for_tests()
    };
    let world = World::with(config, model_config());
    let of = |owner: &str, mut wanted: Ask| {
        wanted.context.owner = owner.to_owned();
        world.ask(wanted)
    };
    let running = of("many", endless(1));
    until("it to run", || world.engine.stats().running == 1);
    let flood = (2..8).map(|seed| {
        let mut wanted = endless(seed);
        wanted.context.keeper = Some("many".to_owned());
        of(&format!("agent {seed}"), wanted)
    });
    let flood: Vec<_> = flood.collect();
    let few = of("few", ask(&prompt(9, 9), 3, 9));
    until("all to wait", || world.engine.stats().waiting == 7);
    drop(running);
    read(few).unwrap();
    // In the order of arrival it would have waited for six endless ones.
    assert!(world.engine.stats().waiting >= 5);
    drop(flood);
}

#[test]
fn those_who_wait_for_a_prefix_keep_nobody_from_a_seat() {
    let config = Config {
        step_tokens_max: 40,
        running_max: 32,
        kv_cache_bytes_max: 16 << 20,
        ..Config::for_tests()
    };
    let world = World::with(config, model_config());
    // One owner: a dozen with the same long prompt, which one of them computes for all, and a short one.
    let shared = prompt(12_000, 1);
    let same: Vec<_> = (0..12).map(|n| world.ask(ask(&shared, 2, n))).collect();
    until("it to run", || world.engine.stats().steps_total > 2);
    world.complete(ask(&prompt(12, 2), 1, 2));
    for mut answer in same {
        let first = answer.deltas.try_recv();
        assert!(!matches!(first, Ok(Delta::Token(_))), "{first:?}");
        assert!(
            answer.deltas.try_recv().is_err(),
            "the long prompt is under way"
        );
    }
}

#[test]
fn a_user_goes_before_a_rollout() {
    let config = Config {
        running_max: 1,
        ..Config::for_tests()
    };
    let world = World::with(config, model_config());
    let rollout = world.ask(Ask {
        origin: Origin::Rollout,
        ..endless(1)
    });
    until("it to run", || {
        world.engine.stats().completion_tokens_total > 0
    });
    world.complete(ask(&prompt(9, 1), 3, 1));
    assert_eq!(world.engine.stats().preemptions_total, 1);
    let before = world.engine.stats().completion_tokens_total;
    until("the rollout to go on", || {
        world.engine.stats().completion_tokens_total > before + 20
    });
    rollout.cancel.cancel();
    let said = read(rollout).unwrap();
    let mut same = endless(1);
    same.stop.max_tokens = said.tokens.len() as u32;
    assert_eq!(
        World::new().complete(same).bits(),
        said.bits(),
        "as if nothing had happened"
    );
}

#[test]
fn a_short_prompt_does_not_wait_behind_a_long_one() {
    let config = Config {
        step_tokens_max: 17,
        running_max: 16,
        kv_cache_bytes_max: 16 << 20,
        ..Config::for_tests()
    };
    let model = ModelConfig {
        max_positions: 32_768,
        ..model_config()
    };
    let world = World::with(config, model);
    let mut long = world.ask(ask(&prompt(20_000, 1), 2, 1));
    until("it to run", || world.engine.stats().steps_total > 2);
    world.complete(ask(&prompt(12, 2), 1, 2));
    assert!(matches!(long.deltas.try_recv(), Ok(Delta::Started { .. })));
    assert!(
        long.deltas.try_recv().is_err(),
        "the long one is still in its prompt"
    );
}

#[test]
fn what_cannot_fit_is_refused_and_the_rest_is_cut_to_fit() {
    let model = ModelConfig {
        max_positions: 2_048,
        ..model_config()
    };
    let world = World::with(Config::for_tests(), model);
    let error = world.engine.ask(ask(&prompt(2_048, 1), 1, 1)).unwrap_err();
    assert_eq!(
        error,
        ServeError::TooLong {
            prompt_tokens: 2_048,
            max_positions: 2_048,
            model_positions: 2_048,
        }
    );
    let mut wanted = ask(&prompt(2_040, 1), 100, 1);
    wanted.stop.ignore_end = true;
    let said = world.complete(wanted);
    assert_eq!((said.tokens.len(), said.stop), (8, StopReason::Length));
    for bad in [vec![], vec![1, 264]] {
        let error = world.engine.ask(ask(&bad, 1, 1)).unwrap_err();
        assert!(matches!(error, ServeError::Internal(_)), "{error:?}");
    }
    // A cache smaller than the model's positions is the limit then.
    let each = hone_nn::KvPool::bytes_per_block(&model_config(), hone_nn::KvFormat::F32) as u64;
    let config = Config {
        kv_cache_bytes_max: 3 * each,
        ..Config::for_tests()
    };
    let small = World::with(config, model_config());
    assert_eq!(small.engine.capabilities().max_positions, 96);
    let refused = small.engine.ask(ask(&prompt(96, 1), 1, 1)).unwrap_err();
    assert_eq!(
        refused,
        ServeError::TooLong {
            prompt_tokens: 96,
            max_positions: 96,
            model_positions: 16_384
        }
    );
    let mut wanted = ask(&prompt(80, 1), 100, 1);
    wanted.stop.ignore_end = true;
    assert_eq!(small.complete(wanted).tokens.len(), 16);
}

#[test]
fn a_step_that_panics_costs_its_own_requests_only() {
    let config = Config {
        panics_in_row_max: 2,
        ..Config::for_tests()
    };
    let world = World::with(config, model_config());
    let doomed = world.ask(endless(1));
    until("it to run", || {
        world.engine.stats().completion_tokens_total > 0
    });
    world.engine.shared.fault.store(true, Ordering::Relaxed);
    let error = read(doomed).unwrap_err();
    assert!(matches!(error, ServeError::Internal(_)), "{error:?}");
    assert_eq!(world.engine.stats().step_failures_total, 1);
    let quiet = World::new().complete(ask(&prompt(90, 3), 20, 3));
    assert_eq!(
        world.complete(ask(&prompt(90, 3), 20, 3)).bits(),
        quiet.bits(),
        "it goes on"
    );
    // Twice in a row is a failure that the process has to decide about.
    for seed in 0..2 {
        world.engine.shared.fault.store(true, Ordering::Relaxed);
        read(world.ask(endless(seed))).unwrap_err();
    }
    until("it to give up", || !world.engine.is_live());
    assert!(matches!(
        world.engine.ask(endless(3)),
        Err(ServeError::Internal(_) | ServeError::Stopping)
    ));
    until("the registry", || {
        world.registry.snapshot()["serve"].state == LoopPhase::Stopped
    });
    assert!(
        world.registry.snapshot()["serve"]
            .last_error
            .clone()
            .unwrap()
            .contains("2 in a row")
    );
}

#[test]
fn stopping_finishes_what_is_under_way_until_the_deadline() {
    let world = World::new();
    let short = world.ask(ask(&prompt(20, 1), 30, 1));
    world.engine.stop(Duration::from_secs(60));
    read(short).unwrap();
    assert_eq!(
        world.engine.ask(endless(1)).unwrap_err(),
        ServeError::Stopping
    );
    assert_eq!(world.registry.snapshot()["serve"].state, LoopPhase::Stopped);
    let world = World::new();
    let long = world.ask(endless(1));
    world.engine.stop(Duration::ZERO);
    assert_eq!(read(long).unwrap_err(), ServeError::Stopping);
    world.engine.stop(Duration::ZERO);
}

#[test]
fn a_switched_off_engine_holds_its_line() {
    let world = World::new();
    world.complete(ask(&prompt(9, 1), 3, 1));
    let switch = world.registry.switch("serve").unwrap();
    switch.pause(true);
    let mut held = world.ask(ask(&prompt(9, 2), 3, 2));
    until("the registry", || {
        world.registry.snapshot()["serve"].state == LoopPhase::Paused
    });
    assert!(held.deltas.try_recv().is_err(), "nothing is computed");
    assert_eq!(world.engine.stats().waiting, 1);
    switch.pause(false);
    read(held).unwrap();
}

#[test]
fn only_what_is_to_be_collected_becomes_a_turn() {
    let world = World::new();
    let silent = Ask {
        collect: Collect::No(Reason::StoreFalse),
        ..ask(&prompt(9, 1), 3, 1)
    };
    assert!(world.complete(silent).turn.is_none());
    let wanted = ask(&prompt(9, 1), 3, 1);
    let turn = world.complete(wanted.clone()).turn.unwrap();
    assert_eq!(
        (turn.id, turn.prompt_tokens.clone()),
        (wanted.turn, wanted.prompt_tokens)
    );
    assert_eq!(turn.fingerprint, world.engine.capabilities().fingerprint);
    assert_eq!(
        (turn.base.0, turn.digest, turn.untrainable),
        (world.model.digest, None, None)
    );
}

#[test]
fn the_null_backend_answers_at_once() {
    let said = NullCompletion {
        pieces: vec![(1, "o".to_owned()), (2, "k".to_owned())],
        end_token: 3,
        max_positions: 100,
        vocab: 10,
    };
    let null = NullBackend::new(said, Arc::new(SystemClock::default()));
    let whole = read(null.ask(ask(&[1, 2, 3], 10, 0)).unwrap()).unwrap();
    assert_eq!(
        (whole.text.as_str(), whole.stop),
        ("ok", StopReason::EndToken)
    );
    assert_eq!(whole.tokens, [1, 2, 3]);
    let turn = whole.turn.unwrap();
    assert_eq!(turn.untrainable, Some(Reason::BackendCannotTrain));
    assert_eq!(turn.completion.behavior_logprobs(), [0.0; 3]);
    let cut = read(null.ask(ask(&[1], 1, 0)).unwrap()).unwrap();
    assert_eq!(
        (cut.text.as_str(), cut.stop, cut.tokens),
        ("o", StopReason::Length, vec![1])
    );
    let error = null.ask(ask(&prompt(100, 1), 1, 0)).unwrap_err();
    assert_eq!(
        error,
        ServeError::TooLong {
            prompt_tokens: 100,
            max_positions: 100,
            model_positions: 100,
        }
    );
    assert_eq!(
        (null.stats().requests_total, null.capabilities().can_train),
        (2, false)
    );
}
