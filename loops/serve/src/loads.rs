//! Loads in line: which of them begin now, so that adapters in use and those under way keep to
//! their byte budget. Owners take turns. Plain bookkeeping, like the table of adapters.

use std::collections::{HashMap, VecDeque};

use crate::adapters::Wanted;

/// How long the line stands still before an adapter in use is to give way: it would stay for as long as
/// it is asked for again before its last request ends.
const PATIENCE_MS: i64 = 2_000;

/// What the next load has to fit into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadBudget {
    pub(crate) bytes_max: u64,
    /// Bytes in memory that cannot be dropped now.
    pub(crate) pinned: u64,
    /// The largest adapter in memory, which a load is taken to be like; 0 where there is none.
    pub(crate) largest: u64,
    /// Most loads at once: what is larger than all before is seen when the first of it is there.
    pub(crate) parallel: usize,
    pub(crate) now_ms: i64,
}

/// Loads that were asked for: in line, and under way.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    /// What is in line by its owner, as it was asked for; owners without any are not in it.
    lines: HashMap<String, VecDeque<Wanted>>,
    /// The same owners, the one whose turn it is first.
    turns: VecDeque<String>,
    under_way: usize,
    /// Since when the line stands still.
    since_ms: i64,
}

impl Loads {
    pub(crate) fn push(&mut self, wanted: Wanted, now_ms: i64) {
        if self.is_empty() {
            self.since_ms = now_ms;
        }
        let owner = owner(&wanted);
        let line = self.lines.entry(owner.to_owned()).or_default();
        if line.is_empty() {
            self.turns.push_back(owner.to_owned());
        }
        line.push_back(wanted);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Takes one out of the line; false where it is not in it.
    pub(crate) fn remove(&mut self, wanted: &Wanted) -> bool {
        let owner = owner(wanted);
        let Some(line) = self.lines.get_mut(owner) else {
            return false;
        };
        let before = line.len();
        line.retain(|other| other != wanted);
        let is_removed = line.len() < before;
        if line.is_empty() {
            self.lines.remove(owner);
            self.turns.retain(|other| other != owner);
        }
        is_removed
    }

    /// Takes the first one of the owner whose turn it is.
    fn pop(&mut self) -> Option<Wanted> {
        let owner = self.turns.pop_front()?;
        let line = self.lines.get_mut(&owner)?;
        let wanted = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&owner);
        } else {
            self.turns.push_back(owner);
        }
        wanted
    }

    /// Bytes that those under way are taken to need.
    pub(crate) fn coming(&self, largest: u64) -> u64 {
        (self.under_way as u64).saturating_mul(largest)
    }

    /// Whether the line has stood still for so long that something has to give way; once in a while.
    pub(crate) fn is_stuck(&mut self, now_ms: i64) -> bool {
        let stuck = !self.is_empty() && now_ms >= self.since_ms.saturating_add(PATIENCE_MS);
        if stuck {
            self.since_ms = now_ms;
        }
        stuck
    }

    /// The next one, which begins now; none while there is no room for it. One that nothing stands
    /// beside always begins, however large it is.
    pub(crate) fn next(&mut self, budget: &LoadBudget) -> Option<Wanted> {
        let coming = self.coming(budget.largest).saturating_add(budget.largest);
        // As long as no size is known, one tells that of the others.
        let known = budget.largest > 0 || self.under_way == 0;
        let fits = known
            && self.under_way < budget.parallel
            && budget.pinned.saturating_add(coming) <= budget.bytes_max;
        let alone = budget.pinned == 0 && self.under_way == 0;
        if !(fits || alone) {
            return None;
        }
        let wanted = self.pop()?;
        self.since_ms = budget.now_ms;
        self.under_way += 1;
        Some(wanted)
    }

    /// One came to its end.
    pub(crate) fn ended(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }
}

/// Whose it is.
fn owner(wanted: &Wanted) -> &str {
    wanted.scope().owner().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use hone_domain::Scope;

    use super::*;

    const BUDGET: LoadBudget = LoadBudget {
        bytes_max: 100,
        pinned: 0,
        largest: 0,
        parallel: 3,
        now_ms: 0,
    };

    fn line(names: &[&str]) -> Loads {
        let mut loads = Loads::default();
        names.iter().for_each(|name| loads.push(named(name), 0));
        loads
    }

    fn named(name: &str) -> Wanted {
        Wanted::Newest(Scope::of(name, None))
    }

    /// How many begin at once.
    fn begun(loads: &mut Loads, budget: LoadBudget) -> usize {
        std::iter::from_fn(|| loads.next(&budget)).count()
    }

    #[test]
    fn as_many_begin_as_fit() {
        let rows = [
            (0, 30, 3),
            (0, 1, 3),
            (30, 30, 2),
            (40, 30, 2),
            (41, 30, 1),
            (71, 30, 0),
            (0, 200, 1),
            (1, 200, 0),
            // The first one tells the size of the others.
            (0, 0, 1),
            (101, 0, 0),
        ];
        for (pinned, largest, wanted) in rows {
            let mut loads = line(&["a", "b", "c", "d"]);
            let budget = LoadBudget {
                pinned,
                largest,
                ..BUDGET
            };
            assert_eq!(begun(&mut loads, budget), wanted, "{pinned} {largest}");
        }
    }

    #[test]
    fn owners_take_turns() {
        let of = |owner, name: u64| Wanted::Newest(Scope::of(owner, Some(&name.to_string())));
        let mut loads = Loads::default();
        (0..512).for_each(|name| loads.push(of("many", name), 0));
        loads.push(of("few", 0), 0);
        loads.push(of("few", 1), 0);
        loads.push(of("gone", 0), 0);
        assert!(loads.remove(&of("gone", 0)) && !loads.remove(&of("gone", 1)));
        let budget = LoadBudget {
            parallel: 1,
            ..BUDGET
        };
        let mut begin = || {
            let next = loads.next(&budget);
            loads.ended();
            next
        };
        let many = |name| of("many", name);
        let first = [many(0), of("few", 0), many(1), of("few", 1)];
        for wanted in first.into_iter().chain((2..512).map(many)) {
            assert_eq!(begin(), Some(wanted));
        }
        assert_eq!(begin(), None);
        assert!(loads.is_empty() && loads.lines.is_empty());
        // Who comes again takes the end of the line.
        loads.push(many(0), 0);
        loads.push(of("few", 0), 0);
        loads.push(many(1), 0);
        let again = [many(0), of("few", 0), many(1)];
        let begun = std::iter::repeat_with(|| {
            let next = loads.next(&budget);
            loads.ended();
            next
        });
        assert!(begun.take(3).eq(again.map(Some)));
    }

    #[test]
    fn one_under_way_takes_its_room_until_it_ends() {
        let mut loads = line(&["a", "b", "c"]);
        let budget = LoadBudget {
            largest: 60,
            ..BUDGET
        };
        assert_eq!(loads.next(&budget), Some(named("a")));
        assert_eq!(loads.next(&budget), None);
        assert!(loads.remove(&named("b")) && !loads.remove(&named("b")));
        loads.ended();
        assert_eq!(loads.next(&budget), Some(named("c")));
        assert!(loads.is_empty());
    }

    #[test]
    fn what_nothing_stands_beside_begins_however_large_it_is() {
        let large = LoadBudget {
            largest: 200,
            ..BUDGET
        };
        let mut loads = line(&["a", "b"]);
        assert_eq!(begun(&mut loads, LoadBudget { pinned: 1, ..large }), 0);
        assert_eq!(begun(&mut loads, large), 1);
        assert_eq!(loads.coming(large.largest), 200);
    }

    #[test]
    fn a_line_that_stands_still_is_stuck_now_and_then() {
        let full = LoadBudget {
            pinned: 100,
            largest: 60,
            ..BUDGET
        };
        let mut loads = line(&["a", "b"]);
        assert_eq!(begun(&mut loads, full), 0);
        assert!(!loads.is_stuck(PATIENCE_MS - 1));
        assert!(loads.is_stuck(PATIENCE_MS));
        assert!(!loads.is_stuck(2 * PATIENCE_MS - 1));
        assert!(loads.is_stuck(2 * PATIENCE_MS));
        // What moves is not stuck, and neither is an empty line.
        let now_ms = 3 * PATIENCE_MS;
        let budget = LoadBudget {
            pinned: 0,
            now_ms,
            ..full
        };
        assert_eq!(loads.next(&budget), Some(named("a")));
        assert!(!loads.is_stuck(now_ms + PATIENCE_MS - 1));
        assert!(loads.remove(&named("b")) && !loads.is_stuck(i64::MAX));
    }
}
