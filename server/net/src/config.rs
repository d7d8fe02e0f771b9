//! Calls to other servers.

use serde::{Deserialize, Serialize};

use crate::outbound::guard::Allowed;

/// Calls to other servers. Defaults stand in `configs/default.toml`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct OutboundConfig {
    /// Hosts, addresses and networks that may be called although they are not public.
    pub allow: Vec<String>,
    /// Longest time to a connection, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Most bytes of an answer.
    pub answer_bytes_max: usize,
}

impl OutboundConfig {
    /// # Errors
    /// A sentence that names the key.
    pub fn validate(&self) -> Result<(), String> {
        if self.connect_timeout_ms == 0 || self.answer_bytes_max == 0 {
            return Err(
                "outbound.connect_timeout_ms and outbound.answer_bytes_max must be at least 1"
                    .to_owned(),
            );
        }
        Allowed::parse(&self.allow).map(drop)
    }
}
