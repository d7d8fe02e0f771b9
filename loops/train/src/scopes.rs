//! What the loop remembers of each scope between jobs, bounded.

use std::collections::HashMap;

use hone_domain::{Millis, Scope};

use crate::config::Config;
use crate::credit::RecentMean;
use crate::event::Memory;

/// Longest rest of a scope whose claims find nothing.
const EMPTY_REST_MS: Millis = 5_000;

/// One scope.
#[derive(Clone, Debug)]
pub(crate) struct ScopeState {
    pub(crate) memory: Memory,
    restored: bool,
    refusals_in_row: u32,
    publishes_in_row: u32,
    failures_in_row: u32,
    waits_in_row: u32,
    empty_in_row: u32,
    /// No job begins before.
    retry_at_ms: Millis,
    /// Number of its last job; larger is later.
    last_job: u64,
}

impl ScopeState {
    fn new() -> Self {
        Self {
            memory: Memory {
                history: RecentMean::default(),
                lr_scale: 1.0,
            },
            restored: false,
            refusals_in_row: 0,
            publishes_in_row: 0,
            failures_in_row: 0,
            waits_in_row: 0,
            empty_in_row: 0,
            retry_at_ms: Millis::MIN,
            last_job: 0,
        }
    }

    /// Takes over what the last report says, once.
    pub(crate) fn remember(&mut self, memory: Option<Memory>) {
        if !self.restored {
            self.restored = true;
            self.memory = memory.unwrap_or(self.memory);
        }
    }

    /// A failure: how many in a row, and from when on the scope may try again.
    pub(crate) fn fail(&mut self, now: Millis, config: &Config) -> (u32, Millis) {
        self.failures_in_row += 1;
        self.retry_at_ms = now + backoff_ms(self.failures_in_row, config);
        (self.failures_in_row, self.retry_at_ms)
    }

    /// Failures are over.
    pub(crate) fn recovered(&mut self) {
        self.failures_in_row = 0;
        self.retry_at_ms = Millis::MIN;
    }

    /// A claim found something.
    pub(crate) fn found(&mut self) {
        self.empty_in_row = 0;
    }

    /// A claim found nothing; the scope is left alone, the longer the more often it was so, but not for long:
    /// who is missing may come.
    pub(crate) fn found_nothing(&mut self, now: Millis, config: &Config) {
        self.empty_in_row = self.empty_in_row.saturating_add(1);
        self.retry_at_ms = now + backoff_ms(self.empty_in_row, config).min(EMPTY_REST_MS);
    }

    /// A candidate could not be told from what is served; whether it may wait once more.
    pub(crate) fn waits(&mut self, most: u32) -> bool {
        self.waits_in_row += 1;
        self.waits_in_row <= most
    }

    /// A candidate could be told from what is served.
    pub(crate) fn told(&mut self) {
        self.waits_in_row = 0;
    }

    /// A candidate was refused; too many in a row halve the learning rate.
    pub(crate) fn refused(&mut self, config: &Config) {
        self.publishes_in_row = 0;
        self.refusals_in_row += 1;
        if self.refusals_in_row >= config.refusals_in_row_max {
            self.refusals_in_row = 0;
            self.memory.lr_scale = (self.memory.lr_scale / 2.0).max(config.lr_scale_min);
        }
    }

    /// What the memory is once the job under way is published.
    pub(crate) fn after_publish(&self, history: RecentMean, config: &Config) -> Memory {
        let recovers = self.publishes_in_row + 1 >= config.recovery_publishes;
        let lr_scale = self.memory.lr_scale * if recovers { 2.0 } else { 1.0 };
        Memory {
            history,
            lr_scale: lr_scale.min(1.0),
        }
    }

    /// A candidate was published.
    pub(crate) fn published(&mut self, config: &Config) {
        self.failures_in_row = 0;
        self.refusals_in_row = 0;
        self.publishes_in_row = (self.publishes_in_row + 1) % config.recovery_publishes;
    }
}

/// Pause after the `times`th failure, or empty claim, in a row.
pub(crate) fn backoff_ms(times: u32, config: &Config) -> Millis {
    let doublings = times.saturating_sub(1).min(30);
    (config.backoff_first_ms << doublings).min(config.backoff_max_ms)
}

/// All scopes worth remembering; the one whose last job is longest ago is forgotten first.
#[derive(Debug)]
pub(crate) struct Scopes {
    states: HashMap<Scope, ScopeState>,
    limit: usize,
    jobs: u64,
}

impl Scopes {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            states: HashMap::new(),
            limit,
            jobs: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// The scope's state, made where there is none.
    pub(crate) fn entry(&mut self, scope: &Scope) -> &mut ScopeState {
        if !self.states.contains_key(scope) && self.states.len() >= self.limit {
            let oldest = self.states.iter().min_by_key(|(_, state)| state.last_job);
            if let Some(oldest) = oldest.map(|(scope, _)| scope.clone()) {
                self.states.remove(&oldest);
            }
        }
        self.states
            .entry(scope.clone())
            .or_insert_with(ScopeState::new)
    }

    /// A job of `scope` begins.
    pub(crate) fn begin(&mut self, scope: &Scope) {
        self.jobs += 1;
        self.entry(scope).last_job = self.jobs;
    }

    pub(crate) fn last_job(&self, scope: &Scope) -> u64 {
        self.states.get(scope).map_or(0, |state| state.last_job)
    }

    pub(crate) fn may_begin(&self, scope: &Scope, now: Millis) -> bool {
        self.states
            .get(scope)
            .is_none_or(|state| state.retry_at_ms <= now)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn refusals_halve_the_rate_and_publishes_bring_it_back() {
        let config = Config::for_tests();
        let mut scope = ScopeState::new();
        scope.refused(&config);
        assert_eq!(scope.memory.lr_scale, 1.0);
        scope.refused(&config);
        assert_eq!(scope.memory.lr_scale, 0.5);
        for _ in 0..20 {
            scope.refused(&config);
        }
        assert_eq!(scope.memory.lr_scale, config.lr_scale_min);
        let mut scales = Vec::new();
        for _ in 0..12 {
            scope.memory = scope.after_publish(scope.memory.history, &config);
            scope.published(&config);
            scales.push(scope.memory.lr_scale);
        }
        let expected = [1, 1, 2, 2, 2, 4, 4, 4, 8, 8, 8, 8].map(|n| n as f32 * 0.125);
        assert_eq!(scales, expected);
    }

    #[test]
    fn pauses_double_up_to_their_limit() {
        let config = Config::for_tests();
        let pauses: Vec<_> = (1..7).map(|n| backoff_ms(n, &config)).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 80, 80]);
        assert_eq!(backoff_ms(1_000, &config), 80);
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_is_forgotten() {
        let mut scopes = Scopes::new(2);
        let scope = |name: &str| Scope::of(name, None);
        for name in ["a", "b", "a", "c"] {
            scopes.begin(&scope(name));
        }
        assert_eq!(scopes.len(), 2);
        assert_eq!(scopes.last_job(&scope("b")), 0);
        assert!(scopes.last_job(&scope("a")) < scopes.last_job(&scope("c")));
    }
}
