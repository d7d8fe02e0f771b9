//! Turns that look alike, and what is no longer remembered.

use std::collections::{HashMap, VecDeque};

use super::trail::Hash;
use crate::{SessionId, TurnId};

/// Turns with the same trail that are remembered; more are as ambiguous as these.
const SAME_MAX: usize = 8;
/// Trails of forgotten sessions that are remembered, 8 bytes each; the oldest go first.
const GONE_MAX: usize = 262_144;

/// Turns with the same trail.
#[derive(Debug, Default)]
pub(super) struct Same {
    pub(super) places: Vec<(SessionId, TurnId)>,
    /// There were more than are kept.
    pub(super) is_crowded: bool,
}

impl Same {
    pub(super) fn push(&mut self, place: (SessionId, TurnId)) {
        if self.places.len() < SAME_MAX {
            return self.places.push(place);
        }
        let first = self.places[0].0;
        if self.places.iter().all(|(session, _)| *session == first) {
            // One session that repeats itself: its newest turns count.
            self.places.remove(0);
            self.places.push(place);
        } else {
            self.is_crowded = true;
        }
    }
}

/// Trails of sessions that are not remembered any more: what resembles one of them must not be
/// taken for the one that is left.
#[derive(Debug, Default)]
pub(super) struct Gone {
    order: VecDeque<u64>,
    count: HashMap<u64, u32>,
}

impl Gone {
    fn short(trail: &Hash) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|at| trail[at]))
    }

    pub(super) fn insert(&mut self, trail: &Hash) {
        if self.order.len() == GONE_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some(count) = self.count.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.count.remove(&oldest);
            }
        }
        let short = Self::short(trail);
        self.order.push_back(short);
        *self.count.entry(short).or_default() += 1;
    }

    pub(super) fn holds(&self, trail: &Hash) -> bool {
        self.count.contains_key(&Self::short(trail))
    }
}
