//! Begins a failed loop again while the others go on.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;

use crate::{LoopPhase, Shutdown, StatusRegistry};

/// Pauses between restarts: doubling from `first` to `most`, back to `first` after a run of `good`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first pause.
    pub first: Duration,
    /// The longest pause.
    pub most: Duration,
    /// A run at least this long counts as healthy.
    pub good: Duration,
}

/// Runs `make()` until it ends well or shutdown begins. A panic or an error is written on the
/// status registry, counted, and answered by a new run after a pause.
pub async fn supervise<F, Fut>(
    name: &'static str,
    registry: StatusRegistry,
    backoff: Backoff,
    shutdown: Shutdown,
    mut make: F,
) where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), String>>,
{
    registry.enter(name);
    let mut pause = backoff.first;
    loop {
        let began = tokio::time::Instant::now();
        let error = match AssertUnwindSafe(make()).catch_unwind().await {
            Ok(Ok(())) => break,
            Ok(Err(error)) => error,
            Err(panic) => format!("panicked: {}", panic_text(panic.as_ref())),
        };
        if shutdown.is_pulled() {
            tracing::warn!(loop_name = name, error, "failed while stopping");
            break;
        }
        if began.elapsed() >= backoff.good {
            pause = backoff.first;
        }
        tracing::error!(
            loop_name = name,
            error,
            pause_ms = pause.as_millis() as u64,
            "restarting"
        );
        registry.update(name, |s| {
            s.state = LoopPhase::Restarting;
            s.restarts += 1;
            s.last_error = Some(error);
        });
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shutdown.wait() => break,
        }
        pause = (pause * 2).min(backoff.most);
    }
    registry.update(name, |s| s.state = LoopPhase::Stopped);
}

/// What a panic said.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::ShutdownTrigger;

    #[tokio::test(start_paused = true)]
    async fn failures_and_panics_are_answered_by_a_new_run() {
        let (registry, trigger, runs) = (
            StatusRegistry::new(),
            ShutdownTrigger::new(),
            AtomicU32::new(0),
        );
        let backoff = Backoff {
            first: Duration::from_millis(10),
            most: Duration::from_millis(40),
            good: Duration::from_secs(60),
        };
        supervise("loop", registry.clone(), backoff, trigger.signal(), || {
            let run = runs.fetch_add(1, Ordering::Relaxed);
            async move {
                match run {
                    0 => Err("broken".to_owned()),
                    1 => panic!("boom"),
                    _ => Ok(()),
                }
            }
        })
        .await;
        let status = registry.snapshot()["loop"].clone();
        assert_eq!((status.restarts, status.state), (2, LoopPhase::Stopped));
        assert_eq!(status.last_error.as_deref(), Some("panicked: boom"));
    }
}
