//! The two clocks: this machine's and the database's.

use std::time::{SystemTime, UNIX_EPOCH};

use hone_domain::Millis;

/// A difference of clocks that a round trip cannot tell from none.
const TELLABLE_MS: Millis = 1_000;

/// This machine's clock.
pub(super) fn now_ms() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as Millis)
}

/// How far the database's clock is ahead that said `database_ms` just now; 0 where it is less than can be told.
pub(super) fn ahead_ms(database_ms: Millis) -> Millis {
    let ahead = database_ms - now_ms();
    if ahead.abs() < TELLABLE_MS { 0 } else { ahead }
}
