//! A circuit breaker: leaves a failing model alone for a while.

use hone_domain::Millis;

/// Counts failures in a row. Closed lets everything through, open nothing; after the pause one
/// case is let through as a probe, and its first answer closes or opens the breaker again.
#[derive(Debug)]
pub struct Breaker {
    failures_max: u32,
    open_ms: Millis,
    failures: u32,
    open_until: Option<Millis>,
}

impl Breaker {
    /// Closed. It opens for `open_ms` after `failures_max` failures in a row.
    pub fn new(failures_max: u32, open_ms: u64) -> Self {
        Self {
            failures_max,
            open_ms: Millis::try_from(open_ms).unwrap_or(Millis::MAX),
            failures: 0,
            open_until: None,
        }
    }

    /// Whether a case may ask the model now. The one that is let through after the pause begins
    /// the next pause, so that no second one follows before the probe was answered.
    pub fn admits(&mut self, now_ms: Millis) -> bool {
        match self.open_until {
            None => true,
            Some(until) if now_ms < until => false,
            Some(_) => {
                self.open_until = Some(now_ms.saturating_add(self.open_ms));
                true
            }
        }
    }

    /// Notes how a vote's call went.
    pub fn note(&mut self, now_ms: Millis, answered: bool) {
        if answered {
            self.failures = 0;
            self.open_until = None;
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.failures_max {
            self.open_until = Some(now_ms.saturating_add(self.open_ms));
        }
    }

    /// Whether the model is being left alone.
    pub fn is_open(&self) -> bool {
        self.open_until.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_probes_and_closes() {
        let mut breaker = Breaker::new(2, 100);
        breaker.note(0, false);
        assert!(breaker.admits(0), "one failure is none");
        breaker.note(0, false);
        assert!(!breaker.admits(99) && breaker.is_open());
        assert!(breaker.admits(100), "the probe");
        assert!(!breaker.admits(101), "one probe at a time");
        assert!(
            breaker.admits(200),
            "a probe without an answer is not waited for for ever"
        );
        breaker.note(210, false);
        assert!(!breaker.admits(250));
        breaker.note(260, true);
        assert!(breaker.admits(260) && !breaker.is_open());
    }
}
