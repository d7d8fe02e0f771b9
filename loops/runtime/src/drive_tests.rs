use std::sync::Mutex;

use super::*;
use crate::{Overflow, ShutdownTrigger, SystemClock, queue};

/// Adds what arrives by an effect each, and remembers how many ticks it saw.
#[derive(Default)]
struct Adder {
    under_way: usize,
    sum: u64,
    log: Arc<Mutex<Vec<String>>>,
}

impl LoopState for Adder {
    type Input = u64;
    type Effect = u64;
    type Report = u64;

    fn step(&mut self, _now_ms: i64, event: Event<u64, u64>) -> Vec<u64> {
        match event {
            Event::Arrived(n) => {
                self.under_way += 1;
                return vec![n];
            }
            Event::Reported(n) => {
                self.under_way -= 1;
                self.sum += n;
                self.log
                    .lock()
                    .expect("no panic")
                    .push(format!("sum {}", self.sum));
            }
            Event::Started => self.log.lock().expect("no panic").push("started".into()),
            Event::Draining => self.log.lock().expect("no panic").push("draining".into()),
            Event::Ticked => {}
        }
        Vec::new()
    }

    fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    fn observe(&self) -> Vec<(&'static str, f64)> {
        vec![("sum", self.sum as f64)]
    }
}

#[derive(Clone)]
struct Slow(Duration);

impl Effects<Adder> for Slow {
    async fn perform(&self, effect: u64) -> u64 {
        tokio::time::sleep(self.0).await;
        effect
    }
}

fn config(registry: &StatusRegistry) -> DriveConfig {
    DriveConfig {
        name: "adder",
        tick: Duration::from_secs(1),
        effects_in_flight_max: 2,
        drain_deadline: Duration::from_secs(5),
        clock: Arc::new(SystemClock::default()),
        registry: registry.clone(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_finishes_what_is_under_way_and_then_ends() {
    let (registry, trigger) = (StatusRegistry::new(), ShutdownTrigger::new());
    let (out, inbox) = queue(16, Overflow::DropNewest);
    let state = Adder::default();
    let log = state.log.clone();
    for n in 1..=5 {
        out.send(n).expect("there is room");
    }
    let drive = tokio::spawn(drive(
        state,
        Slow(Duration::from_millis(100)),
        inbox,
        trigger.signal(),
        config(&registry),
    ));
    tokio::time::sleep(Duration::from_millis(150)).await;
    trigger.pull();
    assert_eq!(drive.await.expect("no panic"), Ended::Drained);
    let log = log.lock().expect("no panic");
    assert_eq!(log.first().map(String::as_str), Some("started"));
    assert!(log.contains(&"draining".to_owned()));
    assert_eq!(registry.snapshot()["adder"].numbers["sum"], 15.0, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_a_loop_whose_effects_hang() {
    let (registry, trigger) = (StatusRegistry::new(), ShutdownTrigger::new());
    let (out, inbox) = queue(16, Overflow::DropNewest);
    out.send(1).expect("there is room");
    let effects = Slow(Duration::from_secs(1_000_000));
    let state = Adder::default();
    let drive = tokio::spawn(drive(
        state,
        effects,
        inbox,
        trigger.signal(),
        config(&registry),
    ));
    tokio::time::sleep(Duration::from_millis(10)).await;
    trigger.pull();
    assert_eq!(drive.await.expect("no panic"), Ended::Deadline);
}

#[tokio::test(start_paused = true)]
async fn a_paused_loop_takes_nothing_until_it_is_resumed() {
    let (registry, trigger) = (StatusRegistry::new(), ShutdownTrigger::new());
    let switch = registry.enter("adder");
    switch.pause(true);
    let (out, inbox) = queue(16, Overflow::DropNewest);
    let effects = Slow(Duration::from_millis(1));
    let state = Adder::default();
    let drive = tokio::spawn(drive(
        state,
        effects,
        inbox,
        trigger.signal(),
        config(&registry),
    ));
    out.send(7).expect("there is room");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(out.stats().depth, 1);
    assert_eq!(registry.snapshot()["adder"].state, LoopPhase::Paused);
    switch.pause(false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(registry.snapshot()["adder"].numbers["sum"], 7.0);
    trigger.pull();
    assert_eq!(drive.await.expect("no panic"), Ended::Drained);
}

#[tokio::test(start_paused = true)]
async fn held_effects_end_nothing_until_they_are_let_go() {
    let (registry, trigger) = (StatusRegistry::new(), ShutdownTrigger::new());
    let switch = registry.enter("adder");
    let (out, inbox) = queue(16, Overflow::DropNewest);
    let effects = Slow(Duration::from_secs(10));
    let drive = tokio::spawn(drive(
        Adder::default(),
        effects,
        inbox,
        trigger.signal(),
        config(&registry),
    ));
    // One is under way when the effects are held, the other begins after that.
    out.send(1).expect("there is room");
    tokio::time::sleep(Duration::from_secs(5)).await;
    switch.hold(true);
    out.send(2).expect("there is room");
    tokio::time::sleep(Duration::from_secs(1_000)).await;
    assert_eq!(registry.snapshot()["adder"].numbers["sum"], 0.0);
    assert!(registry.snapshot()["adder"].steps > 100, "it still ticks");
    switch.hold(false);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(registry.snapshot()["adder"].numbers["sum"], 3.0);
    trigger.pull();
    assert_eq!(drive.await.expect("no panic"), Ended::Drained);
}

#[tokio::test(start_paused = true)]
async fn what_waits_in_the_inbox_when_the_stop_begins_is_taken() {
    let (registry, trigger) = (StatusRegistry::new(), ShutdownTrigger::new());
    let (out, inbox) = queue(16, Overflow::DropNewest);
    for n in 1..=5 {
        out.send(n).expect("there is room");
    }
    trigger.pull();
    let effects = Slow(Duration::from_millis(1));
    let state = Adder::default();
    let ended = drive(state, effects, inbox, trigger.signal(), config(&registry)).await;
    assert_eq!(ended, Ended::Drained);
    assert_eq!(registry.snapshot()["adder"].numbers["sum"], 15.0);
}

#[tokio::test(start_paused = true)]
async fn a_closed_inbox_slows_nobody_down() {
    let (registry, trigger) = (StatusRegistry::new(), ShutdownTrigger::new());
    let (out, inbox) = queue(64, Overflow::DropNewest);
    for n in 1..=40 {
        out.send(n).expect("there is room");
    }
    drop(out);
    let effects = Slow(Duration::from_millis(10));
    let state = Adder::default();
    let drive = tokio::spawn(drive(
        state,
        effects,
        inbox,
        trigger.signal(),
        config(&registry),
    ));
    tokio::time::sleep(Duration::from_millis(50)).await;
    trigger.pull();
    // Forty effects of 10 ms, two at a time, and nothing that waits for a tick of one second.
    let ended = tokio::time::timeout(Duration::from_millis(400), drive).await;
    assert_eq!(
        ended.expect("within its time").expect("no panic"),
        Ended::Drained
    );
    assert_eq!(registry.snapshot()["adder"].numbers["sum"], 820.0);
}
