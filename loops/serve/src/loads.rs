//! Loads in line: which of them begin now, so that adapters in use and those under way keep to
//! their byte budget. Plain bookkeeping, like the table of adapters.

use std::collections::VecDeque;

use crate::adapters::Wanted;

/// How long the line stands still before one more begins although there is no room: adapters in use
/// are never dropped, so those who wait would wait for as long as others are.
const PATIENCE_MS: i64 = 2_000;

/// What the next load has to fit into.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) bytes_max: u64,
    /// Bytes in memory that cannot be dropped now.
    pub(crate) held: u64,
    /// The largest adapter in memory, which a load is taken to be like; 0 where there is none.
    pub(crate) largest: u64,
    /// No request is being served.
    pub(crate) idle: bool,
    pub(crate) now_ms: i64,
}

/// Loads that were asked for: in line, and under way.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    line: VecDeque<Wanted>,
    under_way: usize,
    /// Since when the line stands still.
    since_ms: i64,
}

impl Loads {
    pub(crate) fn push(&mut self, wanted: Wanted, now_ms: i64) {
        if self.line.is_empty() {
            self.since_ms = now_ms;
        }
        self.line.push_back(wanted);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Takes one out of the line; false where it is not in it.
    pub(crate) fn remove(&mut self, wanted: &Wanted) -> bool {
        let before = self.line.len();
        self.line.retain(|other| other != wanted);
        self.line.len() < before
    }

    /// The next one, which begins now; none while there is no room for it. One that nothing stands
    /// beside always begins, however large it is.
    pub(crate) fn next(&mut self, room: &Room) -> Option<Wanted> {
        let coming = (self.under_way as u64 + 1).saturating_mul(room.largest);
        // As long as no size is known, one tells that of the others.
        let known = room.largest > 0 || self.under_way == 0;
        let fits = known && room.held.saturating_add(coming) <= room.bytes_max;
        let alone = (room.idle || room.held == 0) && self.under_way == 0;
        let late = room.now_ms >= self.since_ms.saturating_add(PATIENCE_MS);
        if !(fits || alone || late) {
            return None;
        }
        let wanted = self.line.pop_front()?;
        self.since_ms = room.now_ms;
        self.began();
        Some(wanted)
    }

    /// One more is under way.
    pub(crate) fn began(&mut self) {
        self.under_way += 1;
    }

    /// One came to its end.
    pub(crate) fn ended(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use hone_domain::Scope;

    use super::*;

    const ROOM: Room = Room {
        bytes_max: 100,
        held: 0,
        largest: 0,
        idle: false,
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
    fn begun(loads: &mut Loads, room: Room) -> usize {
        std::iter::from_fn(|| loads.next(&room)).count()
    }

    #[test]
    fn as_many_begin_as_fit() {
        let rows = [
            (0, 30, 3),
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
        for (held, largest, wanted) in rows {
            let mut loads = line(&["a", "b", "c", "d"]);
            let room = Room {
                held,
                largest,
                ..ROOM
            };
            assert_eq!(begun(&mut loads, room), wanted, "{held} {largest}");
        }
    }

    #[test]
    fn one_under_way_takes_its_room_until_it_ends() {
        let mut loads = line(&["a", "b", "c"]);
        let room = Room {
            largest: 60,
            ..ROOM
        };
        assert_eq!(loads.next(&room), Some(named("a")));
        assert_eq!(loads.next(&room), None);
        assert!(loads.remove(&named("b")) && !loads.remove(&named("b")));
        loads.ended();
        assert_eq!(loads.next(&room), Some(named("c")));
        assert!(loads.is_empty());
    }

    #[test]
    fn nobody_waits_for_ever() {
        let full = Room {
            held: 100,
            largest: 200,
            ..ROOM
        };
        let idle = Room { idle: true, ..full };
        let mut loads = line(&["a", "b", "c", "d"]);
        assert_eq!(begun(&mut loads, idle), 1, "nothing stands beside it");
        let late = |now_ms| Room { now_ms, ..full };
        assert_eq!(begun(&mut loads, late(PATIENCE_MS - 1)), 0);
        assert_eq!(begun(&mut loads, late(PATIENCE_MS)), 1);
        assert_eq!(begun(&mut loads, late(2 * PATIENCE_MS - 1)), 0);
        assert_eq!(begun(&mut loads, late(2 * PATIENCE_MS)), 1);
        // One that comes later has its own time.
        loads.push(named("e"), 3 * PATIENCE_MS);
        assert_eq!(begun(&mut loads, late(3 * PATIENCE_MS)), 1);
        assert_eq!(begun(&mut loads, late(4 * PATIENCE_MS - 1)), 0);
    }
}
