//! The two clocks: this machine's and the database's.

use std::time::{SystemTime, UNIX_EPOCH};

use hone_domain::Millis;

/// A difference of clocks that a round trip cannot tell from none.
pub(super) const TELLABLE_MS: Millis = 1_000;

/// This machine's clock.
pub(super) fn now_ms() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as Millis)
}
