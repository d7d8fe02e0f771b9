//! How much is served, as training sees it.

use std::sync::Arc;

/// How much is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Whether somebody is served at this moment.
    pub now: bool,
    /// Whether somebody's prompt is computed at this moment, for which everybody waits.
    pub long_step: bool,
    /// Time in which somebody was, ever, in microseconds.
    pub total_us: u64,
}

/// Says how much is served; asked between slices, so it must not wait.
pub type Serving = Arc<dyn Fn() -> Served + Send + Sync>;
