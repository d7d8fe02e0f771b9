//! How often somebody may try a secret: a window per name and per address. Pure: the time is
//! handed in.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

use hone_domain::{Digest, Millis};

/// Where tries come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// An address.
    Address(IpAddr),
    /// A device on which that name signed in before.
    Device(Digest),
    /// A sign-in that lasts.
    SignedIn,
}

/// Failed tries in a window of time, per whatever they are counted by. Holds a bounded number of
/// rows; when it is full, rows whose window is over go, then the oldest.
#[derive(Debug)]
pub(crate) struct LoginThrottle<K> {
    tries_max: u32,
    window_ms: Millis,
    rows_max: usize,
    rows: HashMap<K, (Millis, u32)>,
}

impl<K: Clone + Eq + Hash> LoginThrottle<K> {
    /// Nobody has tried yet.
    pub(crate) fn new(tries_max: u32, window_ms: Millis, rows_max: usize) -> Self {
        Self {
            tries_max,
            window_ms,
            rows_max,
            rows: HashMap::new(),
        }
    }

    /// How long to wait before the next try; none if it may be now.
    pub(crate) fn wait_ms(&self, key: &K, now_ms: Millis) -> Option<u64> {
        let (began_ms, tries) = self.rows.get(key)?;
        let left = began_ms + self.window_ms - now_ms;
        (*tries >= self.tries_max && left > 0).then(|| left.unsigned_abs())
    }

    /// Counts a try that is not known to be right. True for the one that fills the window.
    pub(crate) fn failed(&mut self, key: &K, now_ms: Millis) -> bool {
        if !self.rows.contains_key(key) && self.rows.len() >= self.rows_max {
            self.make_room(now_ms);
        }
        let row = self.rows.entry(key.clone()).or_insert((now_ms, 0));
        if row.0 + self.window_ms <= now_ms {
            *row = (now_ms, 0);
        }
        row.1 += 1;
        row.1 == self.tries_max
    }

    /// Takes back a try that was counted before its secret was looked at.
    pub(crate) fn take_back(&mut self, key: &K) {
        if let Some(row) = self.rows.get_mut(key) {
            row.1 = row.1.saturating_sub(1);
        }
    }

    /// Forgets the failures: the secret was right.
    pub(crate) fn succeeded(&mut self, key: &K) {
        self.rows.remove(key);
    }

    fn make_room(&mut self, now_ms: Millis) {
        let window_ms = self.window_ms;
        self.rows
            .retain(|_, (began, _)| *began + window_ms > now_ms);
        if self.rows.len() >= self.rows_max
            && let Some(oldest) = self.rows.iter().min_by_key(|(_, (began, _))| *began)
        {
            let oldest = oldest.0.clone();
            self.rows.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_window_closes_until_it_is_over() {
        let mut throttle = LoginThrottle::new(3, 1_000, 2);
        for (at, fills) in [(0, false), (10, false), (20, true)] {
            assert_eq!(throttle.wait_ms(&"ann", at), None);
            assert_eq!(throttle.failed(&"ann", at), fills);
        }
        assert_eq!(throttle.wait_ms(&"ann", 20), Some(980));
        assert_eq!(throttle.wait_ms(&"bob", 20), None);
        assert_eq!(throttle.wait_ms(&"ann", 1_000), None);
        assert!(!throttle.failed(&"ann", 1_000), "a new window");
        throttle.succeeded(&"ann");
        assert!(!throttle.failed(&"ann", 1_001));
        throttle.failed(&"ann", 1_001);
        throttle.take_back(&"ann");
        assert!(!throttle.failed(&"ann", 1_002), "the second, not the third");
        assert!(throttle.failed(&"ann", 1_003));
        throttle.take_back(&"nobody");
    }

    #[test]
    fn the_number_of_rows_is_bounded() {
        let mut throttle = LoginThrottle::new(1, 1_000, 2);
        for (key, at) in [(1, 0), (2, 5), (3, 10), (4, 1_007)] {
            throttle.failed(&key, at);
            assert!(throttle.rows.len() <= 2);
        }
        assert_eq!(throttle.wait_ms(&3, 1_007), Some(3), "the oldest went");
        assert_eq!(throttle.wait_ms(&4, 1_007), Some(1_000));
    }
}
