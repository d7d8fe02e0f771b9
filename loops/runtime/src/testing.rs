//! Time and identifiers that tests own.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use uuid::Uuid;

use crate::clock::{Clock, Ids};

/// A clock that is set by hand.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: AtomicI64,
}

impl ManualClock {
    /// Begins at `now_ms`.
    pub fn at(now_ms: i64) -> Self {
        Self {
            now: AtomicI64::new(now_ms),
        }
    }

    /// Moves forward.
    pub fn advance(&self, by_ms: i64) {
        self.now.fetch_add(by_ms, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.now.load(Ordering::Relaxed)
    }
}

/// Identifiers from a counter: equal seeds give equal ids, in rising order.
#[derive(Debug)]
pub struct SeededIds {
    seed: u64,
    count: AtomicU64,
}

impl SeededIds {
    /// Begins a sequence.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            count: AtomicU64::new(0),
        }
    }
}

impl Ids for SeededIds {
    fn next(&self) -> Uuid {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        let mut tail = [0; 10];
        // The first tail byte gives four bits to the version, so the count skips it.
        tail[1] = count as u8;
        tail[2..].copy_from_slice(&self.seed.to_be_bytes());
        uuid::Builder::from_unix_timestamp_millis(count >> 8, &tail).into_uuid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeded_ids_are_equal_distinct_and_rising() {
        let (a, b) = (SeededIds::new(7), SeededIds::new(7));
        let ids: Vec<Uuid> = (0..70_000).map(|_| a.next()).collect();
        assert!(ids.iter().take(100).all(|id| *id == b.next()));
        assert!(ids.windows(2).all(|w| w[0] < w[1]));
    }
}
