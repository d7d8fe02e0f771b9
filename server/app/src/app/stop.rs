//! How a server ends: listener first, then the engine, then the loops, the recorder last.

use std::time::Duration;

use tokio::time::timeout;

use super::App;

/// How long aborted completions may take to reach their end.
const ABORT_GRACE: Duration = Duration::from_secs(3);
/// How long loops may take beyond their own deadlines, where the ledger does not answer.
const LOOPS_GRACE: Duration = Duration::from_secs(60);
/// How long the ledger may take to close.
const CLOSE_GRACE: Duration = Duration::from_secs(30);
/// How often the engine's life is looked at.
const LOOK: Duration = Duration::from_millis(250);

impl App {
    /// Waits until serving has failed for good, or another process judges or trains in place of this one; what else fails is
    /// restarted instead.
    pub async fn failed(&self) -> String {
        loop {
            tokio::time::sleep(LOOK).await;
            if self.engine.as_ref().is_some_and(|engine| !engine.is_live()) {
                return "the engine gave up after repeated failures".to_owned();
            }
            if let Some(why) = self.changes.role_lost() {
                return why;
            }
            if self.listening.is_finished() {
                return "the listener stopped accepting connections".to_owned();
            }
        }
    }

    /// Why what was recorded lately will not be found again; none where it will.
    pub fn lost(&self) -> Option<String> {
        self.ledger.in_place().err().map(|error| error.to_string())
    }

    /// Stops accepting, lets replies finish within the drain deadline, ends the others with an
    /// error event, then drains the loops and closes the ledger. True if nothing was cut.
    pub async fn stop(mut self) -> bool {
        self.http.life.stop();
        self.stop_listening.pull();
        // Judge and train have nothing to do with replies, so they stop at the same time.
        self.stops[0].pull();
        let drained = timeout(self.drain, self.replies()).await.is_ok();
        if !drained {
            tracing::warn!("replies were cut at http.drain_deadline_ms");
            self.abort.pull();
            let _ended_or_not = timeout(ABORT_GRACE, self.replies()).await.is_ok();
            self.listening.abort();
        }
        if let Some(engine) = self.engine.clone() {
            let stopped = tokio::task::spawn_blocking(move || engine.stop(ABORT_GRACE));
            if stopped.await.is_err() {
                tracing::error!("the engine could not be stopped");
            }
        }
        self.stops[1].pull();
        let ended = async { while self.loops.join_next().await.is_some() {} };
        if timeout(LOOPS_GRACE, ended).await.is_err() {
            tracing::error!("some loops wait for a ledger that does not answer, and are left");
            self.loops.abort_all();
        }
        if timeout(CLOSE_GRACE, self.ledger.close()).await.is_err() {
            tracing::error!("the ledger does not answer, and is left as it is");
        }
        if let Some(telemetry) = self.telemetry.take() {
            telemetry.close().await;
        }
        drained
    }

    /// Waits for the last connection, and for the last completion and the last act whose client has
    /// left.
    async fn replies(&mut self) {
        if !self.listening.is_finished() {
            let _panicked_or_not = (&mut self.listening).await.is_ok();
        }
        if let Some(inference) = &self.http.inference {
            inference.live.none().await;
        }
        self.http.acts.none().await;
    }
}
