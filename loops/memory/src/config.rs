//! Settings of memory.

use hone_domain::MemoryMode;
use serde::{Deserialize, Serialize};

/// Settings of memory; the defaults stand in `configs/default.toml`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What a request does with memories where neither it nor its key says.
    pub mode: MemoryMode,
    /// Most tokens of the block that shows memories in a prompt.
    pub tokens_max: usize,
    /// Most tokens of the skills in a prompt; 0 shows none.
    pub skill_tokens_max: usize,
    /// Most turns read at once.
    pub read_batch: usize,
    /// How often the ledger is asked for turns and verdicts that no notification announced.
    pub tick_ms: u64,
    /// Pause after a ledger failure.
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
            ("memory.read_batch", self.read_batch as u64),
            ("memory.tick_ms", self.tick_ms),
            ("memory.retry_ms", self.retry_ms),
        ];
        match pairs.iter().find(|(_, value)| *value == 0) {
            Some((key, _)) => Err(format!("{key} must be at least 1")),
            None => Ok(()),
        }
    }
}
