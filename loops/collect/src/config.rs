//! Settings of collect.

use serde::{Deserialize, Serialize};

/// Settings of collect; the defaults stand in `configs/default.toml`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Most inputs written by one transaction.
    pub batch_turns_max: usize,
    /// Most inputs held while a transaction runs; a turn beyond is not collected (`queue_full`).
    pub held_max: usize,
    /// Most bytes of turns and next states held; one beyond is not collected. A transaction writes
    /// about a quarter of it at most.
    pub held_bytes_max: u64,
    /// A session without a request for this long is over; its last turn is settled.
    pub session_ttl_ms: u64,
    /// A turn that waited this long for a next state in a session that goes on without it (a
    /// branch that was left, say) is settled.
    pub open_ms_max: u64,
    /// Most turns that wait for a next state; the oldest is settled for a new one.
    pub open_max: usize,
    /// How long a next state waits for its turn, which may still be on its way.
    pub early_wait_ms: u64,
    /// Most next states and pieces of feedback that wait for their turn.
    pub early_max: usize,
    /// Most waiting turns read from the ledger after a start, a page of them with their texts at a time.
    pub load_max: usize,
    /// How often idle sessions are looked for.
    pub tick_ms: u64,
    /// First pause after a ledger failure; doubles with each further one.
    pub retry_ms_min: u64,
    /// Longest pause after ledger failures.
    pub retry_ms_max: u64,
    /// Failures of one write by itself after which it is left, so that the others go on.
    pub attempts_max: u32,
    /// How long one write to the ledger may take before its turns go into the spool.
    pub spool_after_ms: u64,
    /// How long one write to the ledger of what waited in the spool may take; twice as long after each that took
    /// longer, up to 16 times.
    pub ship_ms_max: u64,
    /// How long finishing may take after the stop began.
    pub drain_ms: u64,
}

impl Config {
    /// Checks what types cannot; the message names the key.
    pub fn validate(&self) -> Result<(), String> {
        let at_least_one = [
            ("collect.batch_turns_max", self.batch_turns_max as u64),
            ("collect.held_max", self.held_max as u64),
            ("collect.held_bytes_max", self.held_bytes_max),
            ("collect.session_ttl_ms", self.session_ttl_ms),
            ("collect.open_ms_max", self.open_ms_max),
            ("collect.open_max", self.open_max as u64),
            ("collect.early_max", self.early_max as u64),
            ("collect.load_max", self.load_max as u64),
            ("collect.tick_ms", self.tick_ms),
            ("collect.retry_ms_min", self.retry_ms_min),
            ("collect.attempts_max", u64::from(self.attempts_max)),
            ("collect.spool_after_ms", self.spool_after_ms),
            ("collect.ship_ms_max", self.ship_ms_max),
        ];
        if let Some((key, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{key} must be at least 1"));
        }
        if self.retry_ms_max < self.retry_ms_min {
            return Err("collect.retry_ms_max must not be below collect.retry_ms_min".to_owned());
        }
        if self.open_ms_max < self.session_ttl_ms {
            return Err("collect.open_ms_max must not be below collect.session_ttl_ms".to_owned());
        }
        Ok(())
    }

    /// The pause after so many failures in a row before it.
    pub(crate) fn pause_ms(&self, failures_in_row: u32) -> u64 {
        let doubled = self
            .retry_ms_min
            .saturating_mul(1 << failures_in_row.min(20));
        doubled.min(self.retry_ms_max)
    }

    /// Settings for tests of this crate and of the ring: small numbers.
    #[cfg(any(test, feature = "test-switches"))]
    pub fn for_tests() -> Self {
        Self {
            batch_turns_max: 8,
            held_max: 32,
            held_bytes_max: 1 << 30,
            session_ttl_ms: 10_000,
            open_ms_max: 60_000,
            open_max: 64,
            early_wait_ms: 500,
            early_max: 16,
            load_max: 64,
            tick_ms: 100,
            retry_ms_min: 10,
            retry_ms_max: 80,
            attempts_max: 4,
            spool_after_ms: 1_000,
            ship_ms_max: 1_000,
            drain_ms: 1_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_settings_are_named() {
        type Change = fn(&mut Config);
        let cases: [(Change, &str); 3] = [
            (|c| c.held_max = 0, "collect.held_max must be at least 1"),
            (
                |c| c.retry_ms_max = 1,
                "collect.retry_ms_max must not be below",
            ),
            (
                |c| c.open_ms_max = 1,
                "collect.open_ms_max must not be below",
            ),
        ];
        for (change, message) in cases {
            let mut config = Config::for_tests();
            assert_eq!(config.validate(), Ok(()));
            change(&mut config);
            let error = config.validate().expect_err("it is wrong");
            assert!(error.starts_with(message), "{error}");
        }
    }
}
