//! Time and identifiers, handed in so that a simulator can own both.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use uuid::Uuid;

/// Reads the time.
pub trait Clock: Send + Sync {
    /// Milliseconds since the Unix epoch.
    fn now_ms(&self) -> i64;
}

/// The machine's clock. It never runs backwards within a process.
#[derive(Debug, Default)]
pub struct SystemClock {
    newest: AtomicI64,
}

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let now = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        self.newest.fetch_max(now, Ordering::Relaxed).max(now)
    }
}

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

/// Makes UUIDv7 identifiers.
pub trait Ids: Send + Sync {
    /// The next identifier.
    fn next(&self) -> Uuid;
}

/// Identifiers from time and the operating system's randomness.
#[derive(Debug, Default)]
pub struct SystemIds;

impl Ids for SystemIds {
    fn next(&self) -> Uuid {
        Uuid::now_v7()
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
