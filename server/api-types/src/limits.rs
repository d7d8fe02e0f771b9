//! Limits of a key, an account or a team, as requests and replies carry them.

use hone_domain::RateLimits;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Exceptions from the configured limits; absent or null leaves what is configured, 0 is no limit.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitFields {
    /// Most requests in a minute.
    pub requests_per_minute: Option<u32>,
    /// Most tokens in a minute.
    pub tokens_per_minute: Option<u32>,
    /// Most tokens in a day.
    pub tokens_per_day: Option<u32>,
    /// Most completions at once.
    pub streams_max: Option<u32>,
}

impl From<LimitFields> for RateLimits {
    fn from(fields: LimitFields) -> Self {
        Self {
            requests_per_minute: fields.requests_per_minute.map(u64::from),
            tokens_per_minute: fields.tokens_per_minute.map(u64::from),
            tokens_per_day: fields.tokens_per_day.map(u64::from),
            streams_max: fields.streams_max.map(u64::from),
        }
    }
}
