//! Settings of rollouts.

use serde::{Deserialize, Serialize};

/// Settings of rollouts; the defaults stand in `configs/default.toml`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Most episodes at once.
    pub concurrency: usize,
    /// No group begins while more turns of its policy wait to be learned from: what is tried long before it is learned from
    /// is stale then. Rollouts that only measure go on.
    pub untrained_max: u64,
    /// How long a job is held without renewal.
    pub lease_ms: u64,
    /// How often the ledger is asked for jobs that no notification announced, and leases are renewed.
    pub tick_ms: u64,
    /// Pause before a job that failed for no fault of the agent is tried again; twice as long for each further attempt.
    pub retry_ms: u64,
    /// How long finishing may take after the stop began.
    pub drain_ms: u64,
}

impl Config {
    /// Checks what types cannot; the message names the key.
    ///
    /// # Errors
    /// The first key that cannot be.
    pub fn validate(&self) -> Result<(), String> {
        let pairs = [
            ("rollout.concurrency", self.concurrency as u64),
            ("rollout.untrained_max", self.untrained_max),
            ("rollout.lease_ms", self.lease_ms),
            ("rollout.tick_ms", self.tick_ms),
            ("rollout.retry_ms", self.retry_ms),
        ];
        if let Some((key, _)) = pairs.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{key} must be at least 1"));
        }
        if self.lease_ms < self.tick_ms.saturating_mul(3) {
            return Err(
                "rollout.lease_ms must be at least three times rollout.tick_ms, which renews leases"
                    .to_owned(),
            );
        }
        Ok(())
    }
}
