//! A judge of its own in this process, computed by candle: any family that it brings, one vote at a
//! time, on threads that let those of serving go first. It never learns.

#[cfg(feature = "candle")]
mod models;
#[cfg(feature = "candle")]
mod settings;
#[cfg(all(test, feature = "candle"))]
mod tests;
#[cfg(feature = "candle")]
mod thread;

use std::sync::Arc;

use hone_judge::{Completer, LocalConfig};

/// Loads it, which takes a while.
///
/// # Errors
/// A sentence: what is wrong with the folder or file.
#[cfg(feature = "candle")]
pub(super) fn start(config: &LocalConfig) -> Result<Arc<dyn Completer>, String> {
    Ok(Arc::new(thread::Local::start(config)?))
}

/// Says that this build has none.
///
/// # Errors
/// Always.
#[cfg(not(feature = "candle"))]
pub(super) fn start(config: &LocalConfig) -> Result<Arc<dyn Completer>, String> {
    Err(format!(
        "judge.model.kind is \"local\", but this build cannot compute {} beside what it serves; build it with --features candle",
        config.path
    ))
}
