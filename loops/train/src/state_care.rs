//! What the loop does beside jobs: it watches what is served and removes files that nobody needs.

use super::*;

impl Train {
    pub(super) fn prune(&mut self, now: Millis) -> Vec<Effect> {
        if self.pruning || self.draining || now < self.prune_at_ms {
            return Vec::new();
        }
        self.pruning = true;
        self.prune_at_ms = now + self.config.prune.interval_ms;
        vec![Effect::Prune]
    }

    pub(super) fn pruned(&mut self, removed: &Result<usize, String>) -> Vec<Effect> {
        self.pruning = false;
        match removed {
            Ok(folders) => self.counters.folders_pruned += *folders as u64,
            Err(_) => self.counters.prune_failures += 1,
        }
        Vec::new()
    }

    pub(super) fn watch(&mut self) -> Vec<Effect> {
        if self.watching || self.draining || !self.config.watch.enabled {
            return Vec::new();
        }
        self.watching = true;
        vec![Effect::Watch]
    }

    pub(super) fn watched(&mut self, seen: Result<Option<Box<WatchLook>>, String>) -> Vec<Effect> {
        self.watching = false;
        let look = match seen {
            Ok(Some(look)) => *look,
            Ok(None) => return Vec::new(),
            Err(_) => {
                self.counters.ledger_failures += 1;
                return Vec::new();
            }
        };
        self.watching = true;
        let decision = watch::look(&self.config.watch, &self.config.canary, look);
        vec![Effect::Decide(Box::new(decision))]
    }

    pub(super) fn decided(&mut self, done: &Result<usize, String>) -> Vec<Effect> {
        self.watching = false;
        match done {
            // There may be more than one look takes.
            Ok(tripped) => {
                self.counters.trips += *tripped as u64;
                self.watch()
            }
            Err(_) => {
                self.counters.ledger_failures += 1;
                Vec::new()
            }
        }
    }
}
