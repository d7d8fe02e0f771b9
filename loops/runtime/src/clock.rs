//! Time and identifiers, handed in so that a simulator can own both.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

/// Reads the time.
pub trait Clock: Send + Sync {
    /// Milliseconds since the Unix epoch.
    fn now_ms(&self) -> i64;
}

/// The machine's clock. It never runs backwards within a process: where the machine's is put back,
/// it goes on from where it was.
#[derive(Debug)]
pub struct SystemClock {
    begun: Instant,
    /// The greatest distance of the machine's clock from the time since `begun`.
    ahead: AtomicI64,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            ahead: AtomicI64::new(0),
        }
    }
}

impl SystemClock {
    /// The time where the machine's clock says `wall_ms`, `passed_ms` after the beginning.
    fn read(&self, wall_ms: i64, passed_ms: i64) -> i64 {
        let ahead = wall_ms.saturating_sub(passed_ms);
        let most = self.ahead.fetch_max(ahead, Ordering::Relaxed).max(ahead);
        most.saturating_add(passed_ms)
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        let whole = |ms: u128| i64::try_from(ms).unwrap_or(i64::MAX);
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        // Read second, so that a pause between the two does not put the time forward for ever.
        let passed_ms = whole(self.begun.elapsed().as_millis());
        self.read(whole(since.as_millis()), passed_ms)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_put_back_goes_on() {
        let clock = SystemClock::default();
        // What the machine's says, how much time has passed, and what is read.
        for (wall_ms, passed_ms, expected) in [
            (1_000, 0, 1_000),
            (1_500, 500, 1_500),
            // An hour ahead, and put back again.
            (3_602_000, 1_000, 3_602_000),
            (2_500, 1_500, 3_602_500),
            (12_500, 11_500, 3_612_500),
            // Right again once it was passed.
            (4_000_000, 12_000, 4_000_000),
        ] {
            assert_eq!(clock.read(wall_ms, passed_ms), expected);
        }
        let now = SystemClock::default();
        let first = now.now_ms();
        assert!(first > 1_600_000_000_000 && now.now_ms() >= first);
    }
}
