//! Whose request is next: round robin between owners within a priority class, so that nobody's
//! many requests hold up somebody else's few. Plain numbers in and out.
//!
//! The order by place says which class is served when; this only decides which request of that
//! class it is. A request's round is the number of its owner's requests before it, running ones
//! included, and of running ones alone if it ran before. The lowest round goes first; within a round
//! the owner who was served least recently, then the earliest. When one of an owner's requests ends, the rounds of the others fall, so
//! everybody's turn comes.

use std::collections::HashMap;

use crate::plan::Place;

/// A waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    /// Its place in the line.
    pub(crate) place: Place,
    /// Priority class; 0 is the best.
    pub(crate) class: u8,
    /// Whose it is.
    pub(crate) owner: u64,
    /// It was running before and was paused; it goes on before those of its owner that have not begun.
    pub(crate) begun: bool,
}

/// Most owners whose last turn is remembered; beyond, all begin anew.
const OWNERS_MAX: usize = 4_096;

/// Whose turn it was, and buffers that are kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// When a (class, owner) was last served, as a count of all.
    served: HashMap<(u8, u64), u64>,
    count: u64,
    /// How many of a (class, owner) run, and how many wait so far.
    held: HashMap<(u8, u64), (u64, u64)>,
    /// (class, round, last served, place).
    rounds: Vec<(u8, u64, u64, Place)>,
}

impl Turns {
    /// A request of this class and owner begins.
    pub(crate) fn served(&mut self, class: u8, owner: u64) {
        if self.served.len() >= OWNERS_MAX && !self.served.contains_key(&(class, owner)) {
            self.served.clear();
        }
        self.count += 1;
        self.served.insert((class, owner), self.count);
    }

    /// The places of the line, into `line`. `waiting` ascends by place; `running` is the class and owner
    /// of each running request.
    pub(crate) fn order(
        &mut self,
        running: impl Iterator<Item = (u8, u64)>,
        waiting: &[Waiter],
        line: &mut Vec<Place>,
    ) {
        line.clear();
        self.held.clear();
        self.rounds.clear();
        for holder in running {
            self.held.entry(holder).or_default().0 += 1;
        }
        for waiter in waiting {
            let who = (waiter.class, waiter.owner);
            let (running, waiting) = self.held.entry(who).or_default();
            *waiting += u64::from(!waiter.begun);
            let round = *running + if waiter.begun { 0 } else { *waiting };
            let last = self.served.get(&who).copied().unwrap_or(0);
            self.rounds.push((waiter.class, round, last, waiter.place));
        }
        self.rounds.sort_unstable();
        // Each class takes the slots that its requests have in the order by place.
        let mut next = [0; 256];
        for (at, (class, ..)) in self.rounds.iter().enumerate().rev() {
            next[usize::from(*class)] = at;
        }
        for waiter in waiting {
            let at = &mut next[usize::from(waiter.class)];
            line.push(self.rounds[*at].3);
            *at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use proptest::prelude::*;

    use super::*;

    fn waiter(number: u64, class: u8, owner: u64) -> Waiter {
        Waiter {
            place: (0, number),
            class,
            owner,
            begun: false,
        }
    }

    fn ordered(turns: &mut Turns, running: &[(u8, u64)], waiting: &[Waiter]) -> Vec<u64> {
        let mut places = Vec::new();
        turns.order(running.iter().copied(), waiting, &mut places);
        places.iter().map(|place| place.1).collect()
    }

    fn made(running: &[(u8, u64)], waiting: &[Waiter]) -> Vec<u64> {
        ordered(&mut Turns::default(), running, waiting)
    }

    #[test]
    fn owners_take_turns_and_classes_keep_their_slots() {
        type Row = (&'static [(u8, u64)], &'static [(u8, u64)], &'static [u64]);
        let rows: &[Row] = &[
            // One owner: as they came.
            (&[], &[(0, 1), (0, 1), (0, 1)], &[0, 1, 2]),
            // Many of owner 1, then one of owner 2.
            (&[], &[(0, 1), (0, 1), (0, 1), (0, 2)], &[0, 3, 1, 2]),
            // Owner 1 runs two already.
            (&[(0, 1), (0, 1)], &[(0, 1), (0, 2), (0, 2)], &[1, 2, 0]),
            // Running requests of another class do not count.
            (&[(2, 1), (2, 1)], &[(0, 1), (0, 2)], &[0, 1]),
            // The rollout keeps the second slot.
            (&[], &[(0, 1), (2, 3), (0, 1), (0, 2)], &[0, 1, 3, 2]),
        ];
        for (running, waiting, wanted) in rows {
            let waiters = waiting.iter().zip(0..);
            let waiters: Vec<Waiter> = waiters.map(|((c, o), n)| waiter(n, *c, *o)).collect();
            assert_eq!(made(running, &waiters), *wanted, "{waiting:?}");
        }
        let mut paused = [waiter(0, 0, 2), waiter(1, 0, 1), waiter(2, 0, 1)];
        paused[2].begun = true;
        assert_eq!(made(&[], &paused), [2, 0, 1], "it goes on first");
        assert_eq!(made(&[(0, 2)], &paused), [2, 1, 0]);
        let two = [(0, 1), (0, 1)];
        assert_eq!(made(&two, &paused), [0, 2, 1], "of those that have as many");
    }

    #[test]
    fn with_one_seat_owners_alternate() {
        let owners = [1, 1, 1, 1, 2, 2, 3];
        let waiting = owners
            .iter()
            .zip(0..)
            .map(|(owner, n)| waiter(n, 0, *owner));
        let mut waiting: Vec<Waiter> = waiting.collect();
        let mut turns = Turns::default();
        let mut seen = Vec::new();
        while !waiting.is_empty() {
            let first = ordered(&mut turns, &[], &waiting)[0];
            let at = waiting.iter().position(|w| w.place.1 == first);
            let chosen = waiting.remove(at.unwrap_or_default());
            turns.served(chosen.class, chosen.owner);
            seen.push(chosen.owner);
        }
        assert_eq!(seen, [1, 2, 3, 1, 2, 1, 1]);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut turns = Turns::default();
        for owner in 0..10_000 {
            turns.served(0, owner);
            assert!(turns.served.len() <= OWNERS_MAX);
        }
    }

    fn lines() -> impl Strategy<Value = (Vec<(u8, u64)>, Vec<Waiter>)> {
        let who = || (0..3u8, 0..4u64);
        let waiting = proptest::collection::vec((who(), any::<bool>()), 0..40);
        (proptest::collection::vec(who(), 0..12), waiting).prop_map(|(running, waiting)| {
            let waiting = waiting.into_iter().zip(0..);
            let waiting = waiting.map(|(((class, owner), begun), n)| Waiter {
                begun: begun && n % 7 == 0,
                ..waiter(n, class, owner)
            });
            (running, waiting.collect())
        })
    }

    proptest! {
        #[test]
        fn a_line_is_fair_and_loses_nobody((running, waiting) in lines()) {
            let order = made(&running, &waiting);
            let all: HashSet<u64> = order.iter().copied().collect();
            prop_assert_eq!((all.len(), order.len()), (waiting.len(), waiting.len()));
            let of = |n: u64| &waiting[usize::try_from(n).unwrap_or(0)];
            let classes = order.iter().map(|n| of(*n).class);
            prop_assert!(classes.eq(waiting.iter().map(|w| w.class)), "slots of classes");
            let mut held: HashMap<(u8, u64), u64> = HashMap::new();
            running.iter().for_each(|who| *held.entry(*who).or_default() += 1);
            for (at, n) in order.iter().enumerate() {
                let chosen = of(*n);
                if chosen.begun {
                    continue;
                }
                let who = (chosen.class, chosen.owner);
                let share = held.get(&who).copied().unwrap_or(0);
                for later in order[at + 1..].iter().map(|n| of(*n)) {
                    if later.class != chosen.class || later.begun {
                        continue;
                    }
                    let other = (later.class, later.owner);
                    let theirs = held.get(&other).copied().unwrap_or(0);
                    prop_assert!(share <= theirs, "owner {} goes before owner {}", who.1, other.1);
                    prop_assert!(other != who || chosen.place < later.place, "own order");
                }
                *held.entry(who).or_default() += 1;
            }
        }

        /// However many requests one owner has waiting, another's next one runs as soon as a seat
        /// or two become free.
        #[test]
        fn a_flood_holds_up_nobody(flood in 1..200u64, seats in 1..8usize, others in 1..4u64) {
            let mut waiting: VecDeque<Waiter> = (0..flood).map(|n| waiter(n, 0, 0)).collect();
            let mut running: VecDeque<(u8, u64)> = VecDeque::new();
            let mut number = flood;
            let mut turns = Turns::default();
            let mut seat = |running: &mut VecDeque<(u8, u64)>, waiting: &mut VecDeque<Waiter>| {
                while running.len() < seats && !waiting.is_empty() {
                    let held: Vec<_> = running.iter().copied().collect();
                    let first = ordered(&mut turns, &held, waiting.make_contiguous())[0];
                    let at = waiting.iter().position(|w| w.place.1 == first).unwrap_or(0);
                    if let Some(next) = waiting.remove(at) {
                        turns.served(next.class, next.owner);
                        running.push_back((next.class, next.owner));
                    }
                }
            };
            seat(&mut running, &mut waiting);
            for owner in 1..=others {
                waiting.push_back(waiter(number, 0, owner));
                number += 1;
            }
            // Each of them is seated within as many ended requests as there are of them.
            for _ in 0..others {
                running.pop_front();
                seat(&mut running, &mut waiting);
            }
            prop_assert!(waiting.iter().all(|w| w.owner == 0), "{:?}", waiting);
        }
    }
}
