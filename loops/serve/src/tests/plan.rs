#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use std::sync::{Arc, LazyLock};

use hone_domain::{Digest, PolicyVersion, Scope};

use super::*;
use crate::adapters::{Loaded, Wanted};
use crate::prefix::{BlockPool, ChainKey, extend};
use crate::prewarm::Warming;

fn limits() -> Limits {
    Limits {
        tokens: 64,
        rows: 8,
        chunk: 48,
        blocks: 100,
        blocks_each: usize::MAX,
    }
}

fn view(number: u64, tokens: usize, computed: usize) -> View {
    let blocks = computed.div_ceil(BLOCK_TOKENS);
    View {
        place: (0, number),
        class: 0,
        owner: 0,
        tokens,
        computed,
        blocks,
        own: blocks,
        tied: 0,
        last_turn: 0,
        chunk: usize::MAX,
        passed: 0,
    }
}

fn made(running: &[View], waiting: &[View], free: usize) -> Plan {
    let mut out = Plan::default();
    let situation = Situation {
        running,
        waiting,
        free,
        limits: limits(),
    };
    plan(&situation, &mut PlanScratch::default(), &mut out);
    out
}

fn rows(plan: &Plan) -> Vec<(u64, usize)> {
    plan.rows
        .iter()
        .map(|row| (row.place.1, row.tokens))
        .collect()
}

fn numbers(places: &[Place]) -> Vec<u64> {
    places.iter().map(|place| place.1).collect()
}

#[test]
fn decoding_goes_first_and_prefill_takes_the_rest_by_turns() {
    let long = View {
        last_turn: 9,
        ..view(1, 1_000, 48)
    };
    let plan = made(&[long, view(2, 40, 39), view(3, 20, 0)], &[], 90);
    assert_eq!(rows(&plan), [(2, 1), (3, 20), (1, 43)]);
}

#[test]
fn a_worse_class_waits_for_its_prefill_turn_but_not_forever() {
    let rollout = |last_turn| View {
        class: 2,
        last_turn,
        ..view(2, 500, 0)
    };
    let user = View {
        last_turn: 20,
        ..view(1, 500, 48)
    };
    assert_eq!(
        rows(&made(&[user, rollout(10)], &[], 90)),
        [(1, 48), (2, 16)]
    );
    assert_eq!(
        rows(&made(&[user, rollout(3)], &[], 90)),
        [(2, 48), (1, 16)]
    );
}

#[test]
fn admission_is_in_order_and_leaves_room_for_those_inside() {
    let big = view(2, 40 * BLOCK_TOKENS, 0);
    let small = view(3, 7 * BLOCK_TOKENS, 0);
    let inside = view(1, 30, 29);
    let plan = made(&[inside], &[big, small], 42);
    assert_eq!(
        numbers(&plan.admit),
        Vec::<u64>::new(),
        "41 blocks, 2 spare: nobody of this size overtakes"
    );
    let small = view(3, 10, 0);
    assert_eq!(numbers(&made(&[inside], &[big, small], 45).admit), [2, 3]);
    assert_eq!(
        numbers(&made(&[], &[big, small], 41).admit),
        [2],
        "alone it needs no spare"
    );
}

#[test]
fn small_ones_pass_a_large_one_that_does_not_fit_so_many_times() {
    let inside = View {
        class: 3,
        ..view(9, 60 * BLOCK_TOKENS, 60 * BLOCK_TOKENS - 1)
    };
    let large = view(1, 50 * BLOCK_TOKENS, 0);
    let small = view(2, 5 * BLOCK_TOKENS, 0);
    let (middle, last) = (view(3, 7 * BLOCK_TOKENS, 0), view(4, 10, 0));
    let inside_first = View {
        place: (0, 0),
        ..inside
    };
    let admitted = |passed| {
        let large = View { passed, ..large };
        let plan = made(&[inside_first], &[large, small, middle, last], 40);
        assert!(plan.pause.is_empty());
        numbers(&plan.admit)
    };
    assert_eq!(admitted(0), [2, 4], "7 of 100 blocks are not small");
    assert_eq!(admitted(PASSES_MAX - 1), [2, 4]);
    assert_eq!(admitted(PASSES_MAX), Vec::<u64>::new());
    // One that has a right to the place of another takes it as ever, and small ones take nobody's.
    let plan = made(&[inside], &[large, small], 40);
    assert_eq!(
        (numbers(&plan.pause), numbers(&plan.admit)),
        (vec![9], vec![1, 2])
    );
    let plan = made(&[inside], &[View { class: 3, ..large }, small], 3);
    assert!(plan.pause.is_empty() && plan.admit.is_empty());
}

#[test]
fn a_better_class_takes_the_place_of_the_last_of_a_worse_one() {
    let rollout = |number| View {
        class: 2,
        place: (500, number),
        ..view(number, 33, 32)
    };
    let full: Vec<View> = (10..18).map(rollout).collect();
    let plan = made(&full, &[view(20, 5, 0)], 50);
    assert_eq!(
        (numbers(&plan.pause), numbers(&plan.admit)),
        (vec![17], vec![20])
    );
    // One that has waited long enough to be before the user in the order stays.
    let late = View {
        place: (900, 20),
        ..view(20, 5, 0)
    };
    let plan = made(&full, &[late], 50);
    assert_eq!(
        (numbers(&plan.pause), numbers(&plan.admit)),
        (vec![], vec![])
    );
}

#[test]
fn an_owner_who_has_most_makes_room_for_those_who_have_fewer() {
    let of = |owner, number| View {
        owner,
        ..view(number, 33, 32)
    };
    let paused = |running: &[View], waiting: &[View], free| {
        let plan = made(running, waiting, free);
        (numbers(&plan.pause), numbers(&plan.admit))
    };
    let full: Vec<View> = (10..18).map(|number| of(1, number)).collect();
    let none = (vec![], vec![]);
    assert_eq!(paused(&full, &[of(1, 20)], 50), none, "its own");
    let others = [of(2, 20), of(3, 21), of(2, 22)];
    let three = (vec![17, 16, 15], vec![20, 21, 22]);
    assert_eq!(paused(&full, &others, 50), three);
    // Nobody takes what would leave the other with fewer than itself.
    let halves: Vec<View> = (10..18).map(|number| of(number % 2, number)).collect();
    assert_eq!(paused(&halves, &[of(0, 20), of(1, 21)], 50), none);
    let long = |owner, number| View {
        owner,
        ..view(number, 10 * BLOCK_TOKENS, 10 * BLOCK_TOKENS - 1)
    };
    let two = [long(1, 10), long(1, 11)];
    assert_eq!(paused(&two, &[of(2, 20)], 1), (vec![11], vec![20]));
    assert_eq!(paused(&two[..1], &[of(2, 20)], 1), none, "the only one");
    let alone = View {
        own: 98,
        ..view(1, 98 * BLOCK_TOKENS, 98 * BLOCK_TOKENS - 1)
    };
    let large = View {
        owner: 2,
        ..view(20, 50 * BLOCK_TOKENS, 0)
    };
    // One that is large takes no more blocks than it leaves to the other.
    let seven: Vec<View> = (10..17).map(|number| long(1, number)).collect();
    let third = View {
        owner: 2,
        ..view(20, 30 * BLOCK_TOKENS, 0)
    };
    assert_eq!(paused(&seven, &[third], 30).0, vec![16]);
    assert_eq!(paused(&seven, &[third], 20).0, vec![16, 15]);
    // For the fourth it would have more than is left.
    assert!(paused(&seven, &[third], 2).1.is_empty());
    // Where that is not enough, nobody pauses for nothing.
    assert_eq!(paused(&[alone, of(0, 10)], &[large], 1), none);
    // Those of a worse class count by themselves, and go first.
    let rollout = View {
        class: 2,
        place: (500, 9),
        ..of(1, 9)
    };
    let mut mixed = full.clone();
    mixed[7] = rollout;
    assert_eq!(paused(&mixed, &[of(2, 20)], 50), (vec![9], vec![20]));
    let late = View {
        class: 2,
        place: (501, 20),
        ..of(2, 20)
    };
    assert_eq!(paused(&mixed, &[late], 50), none);
}

#[test]
fn the_last_gives_way_when_blocks_run_out() {
    let running = [view(1, 33, 32), view(2, 65, 64), view(3, 97, 96)];
    let plan = made(&running, &[], 1);
    assert_eq!(
        (numbers(&plan.pause), rows(&plan)),
        (vec![3], vec![(1, 1), (2, 1)])
    );
    // Prefills that block each other: the first goes on.
    let running = [view(1, 100, 32), view(2, 100, 32)];
    let plan = made(&running, &[], 0);
    assert_eq!(
        (numbers(&plan.pause), rows(&plan)),
        (vec![2], vec![(1, 32)])
    );
}

#[test]
fn nobody_gives_way_to_those_that_wait_for_their_logits_to_be_drawn_from() {
    let late = |number| view(number, 64, 64);
    let nothing = Plan::default();
    assert_eq!(made(&[late(1), late(2), late(3)], &[], 50), nothing);
    assert_eq!(made(&[late(1), late(2), late(3)], &[], 0), nothing);
    // It gets no block, and has one once those before it have theirs.
    assert_eq!(made(&[late(1), view(2, 65, 64)], &[], 0), nothing);
    let plan = made(&[late(1), view(2, 65, 64), late(3)], &[], 0);
    assert_eq!((numbers(&plan.pause), rows(&plan)), (vec![3], vec![(2, 1)]));
    let plan = made(&[view(1, 100, 32), late(2), view(3, 100, 32)], &[], 0);
    assert_eq!(
        (numbers(&plan.pause), rows(&plan)),
        (vec![3], vec![(1, 32)])
    );
}

#[test]
fn blocks_of_a_paused_request_that_another_shares_are_not_free() {
    let rollout = View {
        class: 2,
        place: (500, 1),
        ..view(1, 65, 64)
    };
    let user = View {
        blocks: 2,
        own: 0,
        tied: 2,
        ..view(2, 100, 64)
    };
    let full = |class| -> Vec<View> {
        (10..17)
            .map(|n| View {
                class,
                own: 0,
                ..view(n, 20, 19)
            })
            .chain([rollout])
            .collect()
    };
    assert_eq!(numbers(&made(&full(0), &[user], 8).admit), [2]);
    let plan = made(&full(0), &[user], 3);
    assert_eq!(
        (numbers(&plan.admit), numbers(&plan.pause)),
        (vec![], vec![]),
        "not for 1 block"
    );
}

/// Blocks of a rollout that one request shares, where another one takes the rollout's place, in the same plan.
#[test]
fn what_an_admitted_request_shares_stays_in_use_when_its_holder_pauses() {
    let limits = Limits {
        tokens: 512,
        rows: 16,
        chunk: 256,
        blocks: 64,
        blocks_each: usize::MAX,
    };
    let rollout = View {
        class: 2,
        place: (4_000, 1),
        ..view(1, 890, 24 * BLOCK_TOKENS)
    };
    let user = view(2, 958, 928);
    let shares = View {
        own: 0,
        tied: 20,
        ..view(3, 700, 20 * BLOCK_TOKENS)
    };
    let waiting = [shares, view(4, 310, 0), view(5, 630, 0)];
    let situation = Situation {
        running: &[user, rollout],
        waiting: &waiting,
        free: 11,
        limits,
    };
    let mut out = Plan::default();
    plan(&situation, &mut PlanScratch::default(), &mut out);
    assert_eq!(
        (numbers(&out.pause), numbers(&out.admit)),
        (vec![1], vec![3, 4])
    );
    let all = [user, shares, waiting[1]];
    let taken = out.rows.iter().map(|row| {
        let view = all.iter().find(|v| v.place == row.place).unwrap();
        (view.computed + row.tokens).div_ceil(BLOCK_TOKENS) - view.blocks
    });
    // Of the rollout's 24 blocks four become free.
    assert!(taken.sum::<usize>() <= 11 + 4);
}

#[test]
fn one_whose_window_is_in_the_cache_needs_a_block_to_go_on() {
    let limits = Limits {
        blocks: 8,
        blocks_each: 6,
        ..limits()
    };
    let whole = View {
        own: 8,
        ..view(1, 8 * BLOCK_TOKENS + 1, 8 * BLOCK_TOKENS)
    };
    let admitted = |view| {
        let mut out = Plan::default();
        let situation = Situation {
            running: &[],
            waiting: &[view],
            free: 8,
            limits,
        };
        plan(&situation, &mut PlanScratch::default(), &mut out);
        (numbers(&out.admit), rows(&out))
    };
    assert_eq!(admitted(whole), (vec![], vec![]));
    // Blocks that no layer sees any more are not taken.
    let seen = View { own: 5, ..whole };
    assert_eq!(admitted(seen), (vec![1], vec![(1, 1)]));
}

/// A request of the simulated engine: real blocks and plans, no model.
struct Sim {
    view: View,
    family: u32,
    goal: usize,
    table: Vec<u32>,
    born: u64,
    running: bool,
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

struct World {
    pool: BlockPool,
    all: Vec<Sim>,
    rng: Rng,
    step: u64,
    born: u64,
    done: u64,
    oldest: u64,
    pauses: usize,
    shared: usize,
    passes: usize,
    /// A newer version whose prefixes are computed ahead, with what the steps have left.
    warming: Option<Warming>,
    warmed: usize,
    /// Rows that went on with a block begun before.
    continued: usize,
}

const POOL: usize = 24;
const FAMILIES: u32 = 3;

/// What comes before each block of a family.
static CHAINS: LazyLock<Vec<Vec<ChainKey>>> = LazyLock::new(|| {
    let chain = |family: u32| {
        let next = |key: &ChainKey| Some(extend(*key, &[family; BLOCK_TOKENS]));
        std::iter::successors(Some(ChainKey::from(family)), next)
            .take(20)
            .collect()
    };
    (0..FAMILIES).map(chain).collect()
});

impl World {
    fn new(seed: u64) -> Self {
        let (pool, rng) = (BlockPool::new(POOL), Rng(seed | 1));
        let (step, born, done, oldest, pauses, shared, passes) = (0, 0, 0, 0, 0, 0, 0);
        let (warming, warmed, continued) = (None, 0, 0);
        Self {
            pool,
            all: Vec::new(),
            rng,
            step,
            born,
            done,
            oldest,
            pauses,
            shared,
            passes,
            warming,
            warmed,
            continued,
        }
    }

    /// Blocks of one family have the same content at the same index.
    fn block(family: u32, index: usize) -> (ChainKey, Vec<u32>) {
        let before = CHAINS[family as usize][index];
        (before, vec![family; BLOCK_TOKENS])
    }

    fn arrive(&mut self) {
        self.born += 1;
        let class = self.rng.below(4) as u8;
        let most = if self.rng.below(4) == 0 { 400 } else { 60 };
        let tokens = 1 + self.rng.below(most) as usize;
        let goal = tokens + 1 + self.rng.below(40) as usize;
        let place = (self.step as i64 + i64::from(class) * 200, self.born);
        // One owner has most requests.
        let owner = self.rng.below(6).saturating_sub(3);
        let view = View {
            place,
            class,
            owner,
            last_turn: self.step,
            ..view(0, tokens, 0)
        };
        let family = self.rng.below(u64::from(FAMILIES)) as u32;
        let born = self.step;
        self.all.push(Sim {
            view,
            family,
            goal,
            table: Vec::new(),
            born,
            running: false,
        });
        self.all.sort_by_key(|s| s.view.place);
    }

    fn views(&mut self) -> (Vec<View>, Vec<View>) {
        let mut waiting = Vec::new();
        let mut running = Vec::new();
        for sim in &mut self.all {
            if sim.running {
                sim.view.own = sim
                    .table
                    .iter()
                    .filter(|b| self.pool.is_exclusive(**b))
                    .count();
                sim.view.blocks = sim.table.len();
                running.push(sim.view);
            } else if waiting.len() < 8 {
                let full = (sim.view.tokens - 1) / BLOCK_TOKENS;
                let found: Vec<u32> = (0..full)
                    .map_while(|i| find(&self.pool, sim.family, i))
                    .collect();
                let idle = found.iter().filter(|b| self.pool.is_idle(**b)).count();
                let tied = found.iter().filter(|b| self.pool.is_exclusive(**b)).count();
                let (computed, blocks) = (found.len() * BLOCK_TOKENS, found.len());
                waiting.push(View {
                    computed,
                    blocks,
                    own: idle,
                    tied,
                    ..sim.view
                });
                sim.table = found;
            }
        }
        (running, waiting)
    }

    fn at(&mut self, place: Place) -> &mut Sim {
        let at = self
            .all
            .binary_search_by_key(&place, |s| s.view.place)
            .unwrap();
        &mut self.all[at]
    }

    fn step(&mut self, limits: Limits, scratch: (&mut PlanScratch, &mut Plan)) {
        self.spare_blocks();
        let (running, waiting) = self.views();
        let free = self.pool.available();
        let (buffers, out) = scratch;
        plan(
            &Situation {
                running: &running,
                waiting: &waiting,
                free,
                limits,
            },
            buffers,
            out,
        );
        for place in &out.pause {
            let sim = self.at(*place);
            assert!(sim.running);
            sim.running = false;
            sim.view.computed = 0;
            let table = std::mem::take(&mut sim.table);
            table.iter().rev().for_each(|b| self.pool.release(*b));
            self.pauses += 1;
        }
        let mut admitted = 0;
        for view in waiting.iter().rev() {
            if out.admit.contains(&view.place) {
                admitted += 1;
            } else {
                self.at(view.place).view.passed += admitted;
                self.passes += admitted as usize;
            }
        }
        for place in &out.admit {
            let sim = self.at(*place);
            assert!(!sim.running);
            sim.running = true;
            sim.view.passed = 0;
            let root = ChainKey::from(sim.family);
            sim.view.computed = sim.table.len() * BLOCK_TOKENS;
            let table = sim.table.clone();
            self.shared += table.len();
            for block in &table {
                self.pool.share(*block);
                self.pool.touch(*block, root);
            }
        }
        let total: usize = out.rows.iter().map(|r| r.tokens).sum();
        assert!(
            total <= limits.tokens && self.all.iter().filter(|s| s.running).count() <= limits.rows
        );
        let mut seen: Vec<Place> = out.rows.iter().map(|r| r.place).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), out.rows.len(), "a request has one row");
        assert!(
            self.all.is_empty() || !out.rows.is_empty(),
            "the engine moves on"
        );
        for row in &out.rows {
            self.compute(*row, limits);
        }
        self.warm(limits.tokens - total);
        self.step += 1;
    }

    /// What is left of the step goes to a newer version, as in the engine.
    fn warm(&mut self, left: usize) {
        let family = self.rng.below(u64::from(FAMILIES));
        let old = ChainKey::from(family);
        if self.warming.is_none() && self.rng.below(100) == 0 {
            let loaded = Arc::new(Loaded {
                adapter: None,
                version: PolicyVersion(1),
                digest: Digest([0; 32]),
                bytes: 0,
                probe: None,
                reaper: None,
            });
            let most = self.pool.available() / 2;
            let hot = self.pool.hottest(old, most);
            assert!(hot.0.len() <= most);
            let wanted = Wanted::Newest(Scope::of("a", None));
            let new = ChainKey::from(1_000 + self.step);
            let warming = Warming::new((wanted, loaded), hot, new, 0);
            self.warming = Some(warming);
        }
        let running = self.all.iter().filter(|s| s.running).count();
        let room = self.pool.available().saturating_sub(running + 1);
        // A part of a block, one, or some.
        let most = left.min(1 + self.rng.below(80) as usize);
        let Some(warming) = &mut self.warming else {
            return;
        };
        if warming.is_done(&self.pool) || self.rng.below(200) == 0 {
            assert!(warming.cold_tokens(&self.pool) % BLOCK_TOKENS == 0);
            warming.give_back(&mut self.pool);
            self.pool.retire(old);
            self.warming = None;
        } else if let Some(row) = warming.take_row(&mut self.pool, most, room) {
            assert!((1..=most).contains(&row.tokens.len()));
            self.warmed += row.tokens.len();
            self.continued += usize::from(row.start % BLOCK_TOKENS > 0);
            warming.keep(row, &mut self.pool);
        }
    }

    /// As the engine does it before each plan.
    fn spare_blocks(&mut self) {
        let running = self.all.iter().filter(|s| s.running).count();
        let starved = running == 0 && !self.all.is_empty();
        let scarce = self.pool.available() < if running == 0 { 0 } else { running + 1 };
        if let Some(warming) = self.warming.as_mut().filter(|_| starved || scarce) {
            warming.give_back(&mut self.pool);
        }
    }

    fn compute(&mut self, row: Row, limits: Limits) {
        let step = self.step;
        let at = self
            .all
            .binary_search_by_key(&row.place, |s| s.view.place)
            .unwrap();
        let sim = &mut self.all[at];
        assert!(sim.running && row.tokens >= 1 && row.tokens <= sim.view.remaining());
        let decodes = sim.view.remaining() == 1;
        assert!(decodes || row.tokens <= limits.chunk);
        if !decodes {
            sim.view.last_turn = step;
        }
        while sim.table.len() * BLOCK_TOKENS < sim.view.computed + row.tokens {
            sim.table
                .push(self.pool.take().expect("the plan counts free blocks"));
        }
        let before = sim.view.computed / BLOCK_TOKENS;
        sim.view.computed += row.tokens;
        for index in before..sim.view.computed / BLOCK_TOKENS {
            let (parent, tokens) = Self::block(sim.family, index);
            self.pool.publish(sim.table[index], parent, &tokens);
            self.pool
                .touch(sim.table[index], ChainKey::from(sim.family));
        }
        if sim.view.remaining() == 0 {
            sim.view.tokens += 1;
            if sim.view.tokens == sim.goal {
                let sim = self.all.remove(at);
                sim.table.iter().rev().for_each(|b| self.pool.release(*b));
                self.oldest = self.oldest.max(step - sim.born);
                self.done += 1;
            }
        }
    }

    fn cancel(&mut self) {
        let at = self.rng.below(self.all.len() as u64) as usize;
        let sim = self.all.remove(at);
        if sim.running {
            sim.table.iter().rev().for_each(|b| self.pool.release(*b));
        }
    }

    /// Blocks of different requests are the same only where both cached the same content.
    fn check_blocks(&self) {
        let mut owner = vec![None; POOL];
        let mut held = 0;
        for sim in self.all.iter().filter(|s| s.running) {
            for (index, block) in sim.table.iter().enumerate() {
                let content = (sim.family, index);
                match owner[*block as usize] {
                    None => {
                        owner[*block as usize] = Some(content);
                        held += 1;
                    }
                    Some(other) => assert_eq!(other, content, "block {block} is used twice"),
                }
            }
        }
        if let Some(block) = self.warming.as_ref().and_then(Warming::held) {
            assert_eq!(owner[block as usize], None, "block {block} is used twice");
            held += 1;
        }
        assert_eq!(
            held + self.pool.available(),
            self.pool.total(),
            "a block leaked"
        );
    }
}

fn find(pool: &BlockPool, family: u32, index: usize) -> Option<u32> {
    let (parent, tokens) = World::block(family, index);
    pool.find(crate::prefix::extend(parent, &tokens), parent, &tokens)
}

const WORLDS: u64 = 10;
const STEPS_EACH: usize = 100_000;

/// A world of its own for every seed; what came of it.
fn lived(seed: u64) -> World {
    let (mut scratch, mut out) = (PlanScratch::default(), Plan::default());
    let mut world = World::new(seed * 0x9e37_79b9);
    let limits = Limits {
        tokens: 24 + 40 * (seed % 3) as usize,
        rows: 6,
        chunk: 16 + 48 * (seed % 2) as usize,
        blocks: POOL,
        blocks_each: usize::MAX,
    };
    for _ in 0..STEPS_EACH {
        while world.all.len() < 20 && world.rng.below(5) < 2 {
            world.arrive();
        }
        if world.rng.below(50) == 0 && !world.all.is_empty() {
            world.cancel();
        }
        world.step(limits, (&mut scratch, &mut out));
        world.check_blocks();
    }
    // What still is inside has not been there for longer than those that got out.
    let waiting = world.all.iter().map(|s| world.step - s.born).max();
    world.oldest = world.oldest.max(waiting.unwrap_or(0));
    world
}

#[test]
fn a_million_random_steps_lose_no_block_and_starve_nobody() {
    let worlds: Vec<World> = std::thread::scope(|threads| {
        let worlds: Vec<_> = (1..=WORLDS)
            .map(|n| threads.spawn(move || lived(n)))
            .collect();
        worlds.into_iter().map(|w| w.join().unwrap()).collect()
    });
    let oldest = worlds.iter().map(|w| w.oldest).max().unwrap();
    // A request has at most 440 tokens, 20 are inside, the worst class starts 600 steps late.
    assert!(oldest < 3_000, "someone waited {oldest} steps");
    for world in &worlds {
        let (done, pauses, shared) = (world.done, world.pauses, world.shared);
        assert!(
            done > 1_000 && pauses > 100 && shared > 100,
            "{done} {pauses} {shared}"
        );
    }
    let passes: usize = worlds.iter().map(|w| w.passes).sum();
    assert!(passes > 100, "{passes} times one passed another");
    let warmed: usize = worlds.iter().map(|w| w.warmed).sum();
    assert!(warmed > 1_000, "{warmed} tokens computed ahead");
    let continued: usize = worlds.iter().map(|w| w.continued).sum();
    assert!(continued > 100, "{continued} rows within a block");
}

/// Steps until a short request that arrives while a long prompt is computed has its first token.
fn steps_to_first_token(limits: Limits, decoding: u64, (short, into): (usize, usize)) -> u64 {
    let long = view(1, 16_384, into);
    let mut running: Vec<View> = vec![long];
    running.extend((0..decoding).map(|n| view(2 + n, 40, 39)));
    let mut waiting = vec![View {
        last_turn: 7,
        ..view(900, short, 0)
    }];
    running[0].last_turn = 6;
    let (mut scratch, mut out) = (PlanScratch::default(), Plan::default());
    for step in 7.. {
        let used: usize = running.iter().map(|v| v.blocks).sum();
        let situation = Situation {
            running: &running,
            waiting: &waiting,
            free: limits.blocks - used,
            limits,
        };
        plan(&situation, &mut scratch, &mut out);
        if !out.admit.is_empty() {
            running.append(&mut waiting);
        }
        for row in &out.rows {
            let at = running.iter_mut().find(|v| v.place == row.place);
            let view = at.unwrap();
            if view.remaining() > 1 {
                view.last_turn = step;
            }
            view.computed += row.tokens;
            view.blocks = view.computed.div_ceil(BLOCK_TOKENS);
            if view.remaining() == 0 {
                if view.place.1 == 900 {
                    return step - 6;
                }
                view.tokens += 1;
            }
        }
        assert!(step < 1_000, "it never got its turn");
    }
    unreachable!()
}

proptest! {
    /// However far a prompt of 16,384 tokens is and whatever else decodes, a short request has its
    /// first token within three steps, if it fits into one.
    #[test]
    fn a_long_prompt_holds_up_nobody(
        (tokens, decoding) in (65usize..=512).prop_flat_map(|t| (Just(t), 0..(t as u64 / 2).min(62))),
        share in 0.0f64..1.0,
        into in 0usize..16_000,
    ) {
        let limits = Limits { tokens, rows: 64, chunk: 256, blocks: 2_000, blocks_each: usize::MAX };
        let most = (tokens - decoding as usize).min(limits.chunk) as f64;
        let short = 1 + (share * (most - 1.0)) as usize;
        let steps = steps_to_first_token(limits, decoding, (short, into));
        prop_assert!(steps <= 3, "{} tokens took {} steps", short, steps);
    }
}

proptest! {
    /// Any situation at all: the plan names known requests once, within budget, rows and blocks.
    #[test]
    fn any_situation_gives_a_plan_that_can_be_done(
        raw in prop::collection::vec((0i64..9, 0u8..4, 1usize..400, 0usize..400, any::<bool>()), 0..16),
        passed in 0u32..PASSES_MAX + 2,
        free in 0usize..20,
        tokens in 9usize..80,
    ) {
        let mut running = Vec::new();
        let mut waiting = Vec::new();
        for (number, (ms, class, tokens, computed, runs)) in raw.into_iter().enumerate() {
            let computed = computed.min(tokens - 1);
            let (place, owner) = ((ms, number as u64), (computed % 5 / 3) as u64);
            if runs && running.len() < 8 {
                running.push(View { place, class, owner, ..view(0, tokens, computed) });
            } else {
                let blocks = computed / BLOCK_TOKENS;
                let computed = blocks * BLOCK_TOKENS;
                let own = blocks.min(free);
                waiting.push(View { place, class, owner, own, blocks, passed, ..view(0, tokens, computed) });
            }
        }
        running.sort_unstable_by_key(|v: &View| v.place);
        waiting.sort_unstable_by_key(|v: &View| v.place);
        let limits = Limits { tokens, ..limits() };
        let mut out = Plan::default();
        let situation = Situation { running: &running, waiting: &waiting, free, limits };
        plan(&situation, &mut PlanScratch::default(), &mut out);
        let mut blocks = free as isize;
        for place in &out.pause {
            let view = running.iter().find(|v| v.place == *place);
            blocks += view.expect("paused requests ran").own as isize;
        }
        for place in &out.admit {
            let view = waiting.iter().find(|v| v.place == *place);
            blocks -= view.expect("admitted requests waited").own as isize;
        }
        for row in &out.rows {
            prop_assert!(!out.pause.contains(&row.place));
            let known = running.iter().chain(waiting.iter().filter(|v| out.admit.contains(&v.place)));
            let view = known.into_iter().find(|v| v.place == row.place).unwrap();
            prop_assert!(row.tokens >= 1 && row.tokens <= view.remaining());
            let whole = (view.computed + row.tokens).div_ceil(BLOCK_TOKENS);
            blocks -= whole.saturating_sub(view.blocks) as isize;
        }
        prop_assert!(blocks >= 0);
        prop_assert!(out.rows.iter().map(|r| r.tokens).sum::<usize>() <= tokens);
        prop_assert!(running.len() - out.pause.len() + out.admit.len() <= limits.rows);
        if let Some(first) = running.first() {
            prop_assert!(!out.pause.contains(&first.place) || !out.admit.is_empty());
        }
    }
}
