//! Verdicts come in while turns arrive, in simulated time: some votes never end.
#![allow(clippy::unwrap_used)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use hone_ledger::Claimed;
use hone_runtime::{Event, LoopState, Notification, SeededIds};
use tokio::sync::oneshot::error::TryRecvError;

use crate::testing::claimed;
use crate::{Completed, Config, Effect, ModelConfig, Report, State, VoteAsk, VoteError};

/// Turns, how many of them one request asks for, and the time between two turns.
const TURNS: usize = 4_000;
const GROUP: usize = 4;
const EVERY_MS: i64 = 50;
/// How often the simulated effects look for votes that were withdrawn.
const TICK_MS: i64 = 20;
const DEADLINE_MS: u64 = 2_000;
const SEED: u64 = 5;

/// What the simulated world does next.
enum Next {
    Arrives,
    Ticks,
    Ends(Box<VoteAsk>, Result<Completed, VoteError>),
}

/// What happens when; of equal times the first that was planned.
#[derive(Default)]
struct Agenda {
    times: BinaryHeap<Reverse<(i64, usize)>>,
    nexts: HashMap<usize, Next>,
    planned: usize,
}

impl Agenda {
    fn plan(&mut self, at_ms: i64, next: Next) {
        self.planned += 1;
        self.times.push(Reverse((at_ms, self.planned)));
        self.nexts.insert(self.planned, next);
    }
}

struct Ran {
    /// Turns that lost two of their three votes or all.
    outvoted: usize,
    /// When each turn was judged.
    judged_ms: HashMap<usize, i64>,
    /// When the last turn arrived.
    last_ms: i64,
}

fn config() -> Config {
    Config {
        in_hand_max: 64,
        claim_batch: 32,
        lease_ms: 60_000,
        model: Some(ModelConfig {
            vote_deadline_ms: DEADLINE_MS,
            votes_in_flight_max: 24,
            breaker_failures: 5,
            ..ModelConfig::for_tests()
        }),
        ..Config::for_tests()
    }
}

/// The loop with everything around it.
struct World {
    judge: State,
    agenda: Agenda,
    now_ms: i64,
    waiting: Vec<Claimed>,
    arrived: usize,
    votes: usize,
    hanging_percent: u64,
    /// Votes of each turn that hang.
    lost: HashMap<usize, usize>,
    judged_ms: HashMap<usize, i64>,
}

/// A number without a pattern for each `n`.
fn drawn(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20
}

fn run(hanging_percent: u64) -> Ran {
    let mut world = World {
        judge: State::new(config(), Arc::new(SeededIds::new(1)), true),
        agenda: Agenda::default(),
        now_ms: 0,
        waiting: Vec::new(),
        arrived: 0,
        votes: 0,
        hanging_percent,
        lost: HashMap::new(),
        judged_ms: HashMap::new(),
    };
    world.agenda.plan(0, Next::Arrives);
    world.agenda.plan(TICK_MS, Next::Ticks);
    let mut todo = world.judge.step(0, Event::Started);
    loop {
        while let Some(effect) = todo.pop() {
            todo.extend(world.perform(effect));
        }
        let Some(Reverse((at_ms, number))) = world.agenda.times.pop() else {
            break;
        };
        world.now_ms = at_ms;
        if let Some(next) = world.agenda.nexts.remove(&number) {
            todo.extend(world.happen(next));
        }
    }
    Ran {
        outvoted: world.lost.values().filter(|lost| **lost > 1).count(),
        judged_ms: world.judged_ms,
        last_ms: (TURNS as i64 - 1) * EVERY_MS,
    }
}

impl World {
    fn perform(&mut self, effect: Effect) -> Vec<Effect> {
        let report = match effect {
            Effect::Claim { limit } => {
                let most = self.waiting.len().min(limit);
                Report::Claimed(Ok(self.waiting.drain(..most).collect()))
            }
            Effect::Ask(ask) => {
                self.votes += 1;
                let drawn = drawn(SEED + self.votes as u64);
                let hangs = drawn % 100 < self.hanging_percent;
                let latency_ms = 60 + (drawn / 100 % 80) as i64;
                let turn = ask.claim.transition.0.as_u128() as usize;
                *self.lost.entry(turn).or_default() += usize::from(hangs);
                let (after_ms, result) = match hangs {
                    true => (DEADLINE_MS as i64, Err(VoteError::Deadline)),
                    false => (latency_ms, Ok(r"\boxed{-1}".into())),
                };
                let next = Next::Ends(ask, result);
                self.agenda.plan(self.now_ms + after_ms, next);
                return Vec::new();
            }
            Effect::Record { claim, verdict, .. } => {
                let turn = claim.transition.0.as_u128() as usize;
                self.judged_ms.insert(turn, self.now_ms);
                Report::Recorded {
                    claim,
                    verdict,
                    result: Ok(()),
                }
            }
            other => panic!("{other:?}"),
        };
        self.judge.step(self.now_ms, Event::Reported(report))
    }

    fn happen(&mut self, next: Next) -> Vec<Effect> {
        match next {
            Next::Arrives => {
                self.arrived += 1;
                let one = claimed(self.arrived as u128, 1, "That is wrong.");
                self.waiting.push(one);
                if self.arrived < TURNS {
                    self.agenda.plan(self.now_ms + EVERY_MS, Next::Arrives);
                }
                self.judge.step(self.now_ms, Event::Arrived(Notification))
            }
            Next::Ticks => {
                let mut effects = self.withdraw();
                effects.extend(self.judge.step(self.now_ms, Event::Ticked));
                if self.now_ms < TURNS as i64 * EVERY_MS + 60_000 {
                    self.agenda.plan(self.now_ms + TICK_MS, Next::Ticks);
                }
                effects
            }
            Next::Ends(ask, result) => ended(&mut self.judge, self.now_ms, &ask, result),
        }
    }

    /// The effects hear at once that a vote is not needed any more.
    fn withdraw(&mut self) -> Vec<Effect> {
        let is_over = |next: &mut Next| match next {
            Next::Ends(ask, _) => ask.withdrawn.try_recv() == Err(TryRecvError::Closed),
            Next::Arrives | Next::Ticks => false,
        };
        let nexts = self.agenda.nexts.iter_mut();
        let over = nexts.filter_map(|(number, next)| is_over(next).then_some(*number));
        let over: Vec<usize> = over.collect();
        let mut effects = Vec::new();
        for number in over {
            if let Some(Next::Ends(ask, _)) = self.agenda.nexts.remove(&number) {
                let withdrawn = Err(VoteError::Withdrawn);
                effects.extend(ended(&mut self.judge, self.now_ms, &ask, withdrawn));
            }
        }
        effects
    }
}

fn ended(
    judge: &mut State,
    now_ms: i64,
    ask: &VoteAsk,
    result: Result<Completed, VoteError>,
) -> Vec<Effect> {
    let report = Report::Voted {
        claim: ask.claim,
        index: ask.index,
        result,
        latency_ms: 1,
    };
    judge.step(now_ms, Event::Reported(report))
}

#[test]
fn votes_that_hang_for_ever_cost_no_throughput_and_strand_no_group() {
    let (calm, troubled) = (run(0), run(5));
    // Verdicts while turns arrive: what training has to learn from.
    let in_time = |ran: &Ran| {
        let times = ran.judged_ms.values();
        times.filter(|at_ms| **at_ms <= ran.last_ms).count() as f64
    };
    let lost = 1.0 - in_time(&troubled) / in_time(&calm);
    println!("throughput lost: {:.3} %", lost * 100.0);
    assert!(lost < 0.01, "{lost}");
    println!("turns without a majority: {}", troubled.outvoted);
    assert!(calm.outvoted == 0 && troubled.outvoted > TURNS / 300);
    assert_eq!(
        (calm.judged_ms.len(), troubled.judged_ms.len()),
        (TURNS, TURNS)
    );
    // A group is whole when its last verdict is there.
    let slowest = (0..TURNS / GROUP).map(|group| {
        let turns = group * GROUP + 1..=(group + 1) * GROUP;
        let done = turns.map(|turn| troubled.judged_ms[&turn]).max().unwrap();
        done - ((group + 1) * GROUP - 1) as i64 * EVERY_MS
    });
    let slowest = slowest.max().unwrap();
    println!("slowest group: {slowest} ms after its last turn");
    assert!(slowest <= 2 * DEADLINE_MS as i64, "{slowest} ms");
}
