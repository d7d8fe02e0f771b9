//! An idle engine costs nothing.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::os::unix::thread::JoinHandleExt;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use hone_domain::{Ask, Form, Grammar};

use super::support::{World, ask, model_config, prompt, until};
use crate::{Backend, Config};

/// Processor time the engine thread has used.
fn engine_time(world: &World) -> Duration {
    let threads = world.engine.threads();
    let handle = threads.as_ref().unwrap().engine.as_pthread_t();
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the thread is alive, since its handle was not joined; both pointers are to locals.
    unsafe {
        assert_eq!(libc::pthread_getcpuclockid(handle, &raw mut clock), 0);
        assert_eq!(libc::clock_gettime(clock, &raw mut time), 0);
    }
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn an_idle_engine_uses_no_processor_time() {
    let world = World::new();
    world.complete(ask(&prompt(30, 1), 20, 1));
    until("it to be idle", || world.engine.stats().running == 0);
    let before = engine_time(&world);
    assert!(before > Duration::ZERO, "it worked before");
    // Nothing may happen in this time, so there is nothing to wait for but the time itself.
    let (_keep, never) = channel::<()>();
    assert!(never.recv_timeout(Duration::from_millis(400)).is_err());
    let used = engine_time(&world) - before;
    assert!(
        used < Duration::from_millis(2),
        "{used:?} in 400 ms of nothing to do"
    );
}

#[test]
fn an_engine_that_waits_for_a_mask_does_not_spin() {
    let config = Config {
        running_max: 1,
        ..Config::for_tests()
    };
    let world = World::with(config, model_config());
    let held = |seed| Ask {
        form: Some(Form::Whole(Grammar("start: /[a-d]{20}/".into()))),
        ..ask(&prompt(5, seed), 60, seed)
    };
    // What a first mask takes besides.
    world.complete(held(1));
    world.engine.shared.masks.slow(Duration::from_millis(20));
    let (began, before) = (Instant::now(), engine_time(&world));
    // The second one has no place before the first one is done.
    world.complete_all(vec![held(2), held(3)]);
    let (used, whole) = (engine_time(&world) - before, began.elapsed());
    assert!(used < whole / 2, "{used:?} in {whole:?}");
}
