//! Newer versions on their way in: warmed with what the steps have left, then swapped in.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hone_domain::{Digest, PolicyVersion, Scope};
use hone_nn::BLOCK_TOKENS;

use crate::adapters::{LoadResult, Pinned, Wanted};
use crate::prefix::{ChainKey, ChainRoot};
use crate::prewarm::Warming;
use crate::thread::Core;

/// Most versions that are being warmed at the same time; one more is swapped in as it is.
const WARMING_MAX: usize = 16;
/// A step that others take part in computes ahead what takes this part of its time, a block at
/// most, so that the longest steps hardly become longer; and this much where that is less.
const BUSY_PART: usize = 8;
const BUSY_TOKENS_MIN: usize = 2;
/// It is followed by as many times what that took without any more of it: warming takes a twentieth
/// of the time of those who are served.
const BUSY_REST: u32 = 20;
/// How long nobody is served until warming has the time for itself. Who was served a moment ago has
/// answers on their way and the next question: between the two a block is computed at a time, with
/// rest after it as well.
const QUIET: Duration = Duration::from_millis(50);

/// What a step is to those who are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Nobody was for a while.
    Quiet,
    /// Too little time has passed since something was computed ahead.
    Rest,
    /// Somebody was a moment ago.
    Between,
    /// What it computes for them takes as long as so many tokens.
    Beside(usize),
}

impl Moment {
    /// Most tokens to compute ahead, where so many take the wanted time of a step.
    fn tokens(self, fitting: usize) -> usize {
        match self {
            Self::Quiet => fitting.max(BLOCK_TOKENS),
            Self::Rest => 0,
            Self::Between => BLOCK_TOKENS,
            Self::Beside(planned) => (planned / BUSY_PART).clamp(BUSY_TOKENS_MIN, BLOCK_TOKENS),
        }
    }
}

impl Core {
    /// What the chains of a scope begin with under an adapter.
    pub(super) fn root_of(&self, scope: &Scope, adapter: Option<Digest>) -> ChainKey {
        let capabilities = &self.ctx.shared.capabilities;
        ChainRoot {
            base: &capabilities.base,
            fingerprint: &capabilities.fingerprint,
            adapter: adapter.as_ref().map(|d| (d, self.damages.of(d))),
            scope,
        }
        .key()
    }

    /// Whether a load was put off until its prefixes are warm. Only a version that takes the place
    /// of another one waits for that, and the other one serves on.
    pub(super) fn warm_first(&mut self, wanted: &Wanted, result: &LoadResult) -> bool {
        let tokens_max = self.ctx.config.prewarm_tokens_max;
        let (Wanted::Newest(scope), Ok(Some(loaded))) = (wanted, result) else {
            return false;
        };
        let Some(serving) = self.table.serving(scope) else {
            return false;
        };
        if tokens_max == 0 || serving.version() >= loaded.version {
            return false;
        }
        let old = self.root_of(scope, serving.digest());
        let new = self.root_of(scope, Pinned(Some(loaded.clone())).digest());
        // Never more than half the blocks that are not in use: other scopes have prefixes too.
        let most = (tokens_max / BLOCK_TOKENS).min(self.pool.available() / 2);
        let most = if self.warming.len() < WARMING_MAX {
            most
        } else {
            0
        };
        let hot = self.pool.hottest(old, most);
        let patience = i64::try_from(self.ctx.config.prewarm_ms_max).unwrap_or(i64::MAX);
        let until_ms = self.ctx.clock.now_ms().saturating_add(patience);
        let load = (wanted.clone(), loaded.clone());
        let warming = Warming::new(load, hot, new, until_ms);
        self.warming.push_back(warming);
        self.expect_warming();
        true
    }

    fn expect_warming(&mut self) {
        let bytes = self.warming.iter().map(|w| w.loaded.bytes).sum();
        self.table.expect((self.warming.len(), bytes));
        self.count_adapters();
    }

    /// Swaps in what is warm, and what has waited long enough.
    pub(super) fn swap_warmed(&mut self) {
        let now_ms = self.ctx.clock.now_ms();
        let mut at = 0;
        while at < self.warming.len() {
            let warming = &mut self.warming[at];
            let urgent = now_ms >= warming.until_ms || self.parked.contains_key(&warming.wanted);
            if urgent || warming.is_done(&self.pool) {
                self.swap_in(at);
            } else {
                at += 1;
            }
        }
    }

    /// Swaps in all of them, as they are.
    pub(super) fn swap_all(&mut self) {
        while !self.warming.is_empty() {
            self.swap_in(0);
        }
    }

    fn swap_in(&mut self, at: usize) {
        let Some(mut warming) = self.warming.remove(at) else {
            return;
        };
        warming.give_back(&mut self.pool);
        self.expect_warming();
        let cold = warming.cold_tokens(&self.pool) as u64;
        let counters = &self.ctx.shared.counters;
        counters.prewarm_cold_tokens.fetch_add(cold, Relaxed);
        let swaps = &counters.prewarm_cold_swaps;
        swaps.fetch_add(u64::from(cold > 0), Relaxed);
        tracing::debug!(
            version = warming.loaded.version.0,
            cold_tokens = cold,
            left_ms = warming.until_ms - self.ctx.clock.now_ms(),
            "a version is warm enough to serve"
        );
        let Warming { wanted, loaded, .. } = warming;
        let old = match &wanted {
            Wanted::Newest(scope) => self.table.serving(scope).and_then(Pinned::digest),
            Wanted::Exact(_) => None,
        };
        let new = loaded.digest;
        self.take_load(&wanted, &Ok(Some(loaded)));
        // The base's own prefixes stay: others than this scope's users ask for it as well.
        if let (Some(old), Wanted::Newest(scope)) = (old.filter(|old| *old != new), &wanted) {
            self.retire_prefixes(scope, old);
        }
    }

    /// The unused prefixes of an adapter are the first to go, where no session gets it by default.
    pub(super) fn retire_prefixes(&mut self, scope: &Scope, adapter: Digest) {
        let policies = self.ctx.policies.get();
        let served = [
            policies.newest(scope).map(|newest| newest.digest),
            policies.trial(scope).map(|trial| trial.proven.digest),
            self.table.serving(scope).and_then(Pinned::digest),
        ];
        if !served.contains(&Some(adapter)) {
            let root = self.root_of(scope, Some(adapter));
            self.pool.retire(root);
        }
    }

    /// An adapter that is not what was published never gets to serve.
    pub(super) fn give_up_warming(&mut self, wanted: &Wanted, digest: Digest, error: &str) {
        let unfit = |w: &Warming| w.wanted == *wanted && w.loaded.digest == digest;
        let at = self.warming.iter().position(unfit);
        if let Some(mut unfit) = at.and_then(|at| self.warming.remove(at)) {
            unfit.give_back(&mut self.pool);
            self.expect_warming();
            self.take_load(wanted, &Err(error.to_owned()));
        }
    }

    /// Versions that were withdrawn never get to serve.
    pub(super) fn drop_warming(&mut self, scope: &Scope, versions: &[PolicyVersion]) {
        let is_gone =
            |w: &Warming| *w.wanted.scope() == *scope && versions.contains(&w.loaded.version);
        while let Some(at) = self.warming.iter().position(is_gone)
            && let Some(mut gone) = self.warming.remove(at)
        {
            gone.give_back(&mut self.pool);
            self.expect_warming();
            self.loaded(&gone.wanted, &Ok(Some(gone.loaded)));
        }
    }

    /// Blocks that running requests may need for their next tokens.
    fn reserve(&self) -> usize {
        match self.running.len() {
            0 => 0,
            running => running + self.pool.total() / 64 + 1,
        }
    }

    /// Where blocks are scarce, the one that is not full is given back before the plan counts them.
    pub(super) fn spare_blocks(&mut self) {
        let starved = self.running.is_empty() && !self.waiting.is_empty();
        if (starved || self.pool.available() < self.reserve())
            && let Some(warming) = self.warming.front_mut()
        {
            warming.give_back(&mut self.pool);
        }
    }

    /// Fills what the step has left with prefixes of the version that has waited longest. Never
    /// takes a block that a running request may need for its next token.
    pub(super) fn take_warm_row(&mut self) {
        self.warm = None;
        let planned: usize = self.plan.rows.iter().map(|row| row.tokens).sum();
        let left = self.token_budget().saturating_sub(planned);
        let room = self.pool.available().saturating_sub(self.reserve());
        let most = left.min(self.ctx.config.prefill_chunk_tokens_max.max(BLOCK_TOKENS));
        let (now, busy) = (Instant::now(), !self.plan.rows.is_empty());
        let moment = match now < self.busy_until + QUIET {
            false if !busy => Moment::Quiet,
            _ if now < self.warm_rest => Moment::Rest,
            _ if busy => Moment::Beside(self.cost.in_tokens(planned)),
            _ => Moment::Between,
        };
        let most = most.min(moment.tokens(self.fitting_tokens()));
        // Where nothing may be computed, nothing is looked for.
        let Some(warming) = self.warming.front_mut().filter(|_| most > 0) else {
            return;
        };
        if warming.is_done(&self.pool) {
            return;
        }
        self.warm = warming.take_row(&mut self.pool, most, room);
        let nothing_runs = self.running.is_empty() && self.waiting.is_empty();
        if self.warm.is_none() && nothing_runs {
            // There is no room even so; nobody is to wait for it.
            self.swap_in(0);
        }
        if let Some(row) = self.warm.as_ref()
            && moment != Moment::Quiet
        {
            let us = self.cost.token_us() * row.tokens.len() as f64;
            self.warm_rest = Instant::now() + BUSY_REST * Duration::from_micros(us as u64);
        }
    }

    /// There was no memory for the row of the step, where it has one: its version serves as it is, so
    /// that nothing is tried again and again.
    pub(super) fn drop_warm_row(&mut self) -> bool {
        let Some(row) = self.warm.take() else {
            return false;
        };
        row.give_back(&mut self.pool);
        self.swap_in(0);
        true
    }

    /// How long the thread may sleep where there is nothing to do but to warm, and that rests.
    pub(super) fn warm_rest_left(&self) -> Option<Duration> {
        if self.warming.is_empty() || !self.running.is_empty() || !self.waiting.is_empty() {
            return None;
        }
        let now = Instant::now();
        let rested = self.warm_rest.min(self.busy_until + QUIET);
        Some(rested.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }

    /// The row of the step is computed.
    pub(super) fn keep_warm_row(&mut self) {
        if let Some(row) = self.warm.take()
            && let Some(warming) = self.warming.front_mut()
        {
            let tokens = row.tokens.len() as u64;
            let counters = &self.ctx.shared.counters;
            counters.prewarm_tokens.fetch_add(tokens, Relaxed);
            warming.keep(row, &mut self.pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_computed_ahead_hardly_makes_a_step_longer() {
        for planned in 1..=4_096 {
            let ahead = Moment::Beside(planned).tokens(1);
            let most = (planned / 8).max(2);
            assert!((1..=most).contains(&ahead), "{ahead} beside {planned}");
        }
        assert_eq!(Moment::Rest.tokens(1_000), 0);
        // A block even where that takes longer than a step should, and no more soon after somebody.
        assert_eq!([1, 1_000].map(|n| Moment::Quiet.tokens(n)), [32, 1_000]);
        assert_eq!([1, 1_000].map(|n| Moment::Between.tokens(n)), [32, 32]);
    }
}
