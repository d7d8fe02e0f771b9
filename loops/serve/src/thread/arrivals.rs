//! Requests and adapters as they arrive: who gets which version.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use hone_domain::{Digest, Policy, PolicyChoice, PolicyVersion, Scope, ServeError, StopReason};

use crate::adapters::{Changed, LoadResult, Pick, Pinned, Wanted, withdrawn};
use crate::loads::LoadBudget;
use crate::sequence::Sequence;
use crate::shared::{Life, NAME};
use crate::thread::Core;

impl Core {
    /// A new request: gets the newest loaded version of its scope, or waits for its load.
    pub(super) fn arrive(&mut self, mut sequence: Box<Sequence>) {
        self.arrivals += 1;
        let now_ms = self.ctx.clock.now_ms();
        let head_start = i64::from(sequence.class)
            .saturating_mul(i64::try_from(self.ctx.config.priority_step_ms).unwrap_or(i64::MAX));
        sequence.place = (now_ms.saturating_add(head_start), self.arrivals);
        sequence.last_turn = self.step;
        self.seek_version(sequence);
    }

    fn seek_version(&mut self, sequence: Box<Sequence>) {
        let now_ms = self.ctx.clock.now_ms();
        let policies = &self.ctx.policies;
        let (wanted, (pick, load)) = match &sequence.ask().policy {
            PolicyChoice::Base => return self.line_up(sequence, Pinned::base()),
            PolicyChoice::Newest => {
                let scope = sequence.ask().scope.clone();
                let pick = self.table.pick(&scope, now_ms, || policies.get());
                (Wanted::Newest(scope), pick)
            }
            PolicyChoice::Exact(policy) => {
                let policy = policy.clone();
                let pick = self.table.pick_exact(&policy, now_ms);
                (Wanted::Exact(policy), pick)
            }
        };
        match pick {
            Pick::Ready(pinned) => self.line_up(sequence, pinned),
            Pick::Wait => self
                .parked
                .entry(wanted.clone())
                .or_default()
                .push(sequence),
            Pick::Failed(error) => {
                self.leave_line();
                self.fail(&sequence, ServeError::Adapter(error));
            }
        }
        // After it was parked, so that a load that fails at once finds it.
        if load {
            self.load(wanted);
        }
    }

    fn line_up(&mut self, mut sequence: Box<Sequence>, pinned: Pinned) {
        self.pin(&mut sequence, pinned);
        self.waiting.insert(sequence.place, sequence);
    }

    fn pin(&self, sequence: &mut Sequence, pinned: Pinned) {
        let root = self.root_of(&sequence.ask().scope, pinned.digest());
        sequence.pin(pinned, root);
    }

    pub(super) fn load(&mut self, wanted: Wanted) {
        self.loads.push(wanted, self.ctx.clock.now_ms());
    }

    /// Begins the loads that there is room for; their owners take turns. An older version serves on
    /// until there is.
    pub(super) fn begin_loads(&mut self) {
        if self.loads.is_empty() {
            return;
        }
        let now_ms = self.ctx.clock.now_ms();
        let stuck = loop {
            let (pinned, largest) = self.table.pinned_bytes();
            let budget = LoadBudget {
                bytes_max: self.ctx.config.adapter_bytes_max,
                pinned,
                largest,
                parallel: self.ctx.config.loads_parallel_max,
                now_ms,
            };
            let Some(wanted) = self.loads.next(&budget) else {
                break self.loads.is_stuck(now_ms).then_some(largest);
            };
            self.table.make_room(self.loads.coming(largest));
            self.count_adapters();
            self.begin_load(wanted);
        };
        if let Some(largest) = stuck {
            let coming = self.loads.coming(largest).saturating_add(largest);
            self.table.give_way(coming);
        }
    }

    fn begin_load(&mut self, wanted: Wanted) {
        // It takes as many as are under way at most, so its reader is gone: nobody would be told.
        if self.ctx.jobs.try_send(wanted).is_err() {
            let error = "the thread that loads adapters is gone; the engine gives up";
            tracing::error!(error);
            let told = error.to_owned();
            self.ctx
                .registry
                .update(NAME, |s| s.last_error = Some(told));
            self.ctx.shared.set_life(Life::Failed);
        }
    }

    /// Takes a finished load at the boundary between two steps, or once it is warm.
    pub(super) fn loaded(&mut self, wanted: &Wanted, result: &LoadResult) {
        if let (Wanted::Newest(scope), Ok(Some(loaded))) = (wanted, result)
            && self.table.is_withdrawn(scope, loaded.version)
        {
            return self.loaded_late(wanted, loaded.version);
        }
        if !self.warm_first(wanted, result) {
            self.take_load(wanted, result);
        }
    }

    /// A version was withdrawn while it was being loaded or warmed: what is published since is loaded
    /// instead.
    fn loaded_late(&mut self, wanted: &Wanted, version: PolicyVersion) {
        if self.ctx.policies.get().version(wanted.scope()) > version {
            self.load(wanted.clone());
        } else {
            self.take_load(wanted, &Err(withdrawn(version)));
        }
    }

    pub(super) fn take_load(&mut self, wanted: &Wanted, result: &LoadResult) {
        let began = Instant::now();
        let now_ms = self.ctx.clock.now_ms();
        let changed = match wanted {
            Wanted::Newest(scope) => {
                let policies = self.ctx.policies.get();
                let proven = policies.trial(scope).map(|trial| &trial.proven);
                self.table.finish(scope, result, proven, now_ms)
            }
            Wanted::Exact(policy) => {
                self.table.finish_exact(policy, result, now_ms);
                Changed::default()
            }
        };
        // Before the swap is told: who has seen it sees what is in memory since.
        self.count_adapters();
        if let (true, Wanted::Newest(scope)) = (changed.swapped, wanted) {
            self.ctx.shared.counters.swaps.fetch_add(1, Relaxed);
            self.repin(scope);
            let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.ctx.shared.counters.last_swap_us.store(us, Relaxed);
        }
        if let Err(error) = result {
            self.ctx.shared.counters.swap_failures.fetch_add(1, Relaxed);
            tracing::warn!(error, "an adapter could not be loaded");
            self.ctx
                .registry
                .update(NAME, |s| s.last_error = Some(format!("adapter {error}")));
        }
        if changed.load {
            self.load(wanted.clone());
        }
        self.unpark(wanted, result, changed.load);
    }

    /// A loaded adapter is not what was published: it is taken out of service. What it said so far of
    /// requests under way is wrong, and so is what it left in the cache: those fail, and nobody finds that
    /// again. Requests that have not begun wait for the sound one.
    pub(super) fn unfit(&mut self, wanted: &Wanted, digest: Digest, error: &str) {
        self.give_up_warming(wanted, digest, error);
        let was_served = self.table.discard(wanted, digest);
        self.pool.retire(self.root_of(wanted.scope(), Some(digest)));
        self.damages.note(digest);
        let is_of_it = |s: &Sequence| s.pinned.digest() == Some(digest);
        let running: Vec<_> = self.running.extract_if(.., |s| is_of_it(s)).collect();
        let waiting = self.waiting.extract_if(.., |_, s| is_of_it(s));
        let waiting: Vec<_> = waiting.map(|(_, s)| s).collect();
        for mut sequence in running.into_iter().chain(waiting) {
            if sequence.started {
                sequence.give_back(&mut self.pool);
                self.fail(&sequence, ServeError::Adapter(error.to_owned()));
            } else {
                self.seek_version(sequence);
            }
        }
        tracing::error!(
            error,
            was_served,
            "a served adapter is not what was published"
        );
        let text = format!("adapter {error}; it is not served any more");
        self.ctx
            .registry
            .update(NAME, |s| s.last_error = Some(text));
        self.count_adapters();
    }

    /// Versions of `scope` are withdrawn: from now on no request begins with one of them. Those under
    /// way end as they began.
    pub(super) fn withdraw(&mut self, scope: &Scope, versions: &[PolicyVersion]) {
        for digest in self.table.withdraw(scope, versions) {
            self.pool.retire(self.root_of(scope, Some(digest)));
        }
        self.drop_warming(scope, versions);
        let of_scope = |s: &Sequence| s.ask().scope == *scope && !s.started;
        let is_of_it = |s: &Sequence| of_scope(s) && versions.contains(&s.pinned.version());
        let waiting = self.waiting.extract_if(.., |_, s| is_of_it(s));
        let mut again: Vec<_> = waiting.map(|(_, s)| s).collect();
        let is_gone = |wanted: &Wanted| match wanted {
            Wanted::Exact(policy) => policy.scope == *scope && versions.contains(&policy.version),
            Wanted::Newest(_) => false,
        };
        let parked = self.parked.extract_if(|wanted, _| is_gone(wanted));
        for (wanted, sequences) in parked {
            self.loads.remove(&wanted);
            again.extend(sequences);
        }
        again.into_iter().for_each(|s| self.seek_version(s));
        self.table.drop_retired();
        self.count_adapters();
    }

    /// A trial ended that `proven` was measured against: no session gets it by default any more.
    pub(super) fn trial_over(&mut self, proven: &Policy) {
        self.table.let_go(proven);
        if !proven.is_base() {
            self.retire_prefixes(&proven.scope, proven.digest);
        }
        self.count_adapters();
    }

    /// Requests that have not begun take the newest version as well, where it is theirs: while it
    /// is on trial, that is a share of the sessions.
    fn repin(&mut self, scope: &Scope) {
        let Some(serving) = self.table.hand_out(scope) else {
            return;
        };
        let policies = self.ctx.policies.get();
        let mut waiting = std::mem::take(&mut self.waiting);
        for sequence in waiting.values_mut() {
            let ask = sequence.ask();
            let is_theirs = ask.policy == PolicyChoice::Newest
                && ask.scope == *scope
                && policies.choice(scope, ask.context.session) == PolicyChoice::Newest;
            if is_theirs && !sequence.started {
                self.pin(sequence, serving.clone());
            }
        }
        self.waiting = waiting;
    }

    /// Ends the cancelled among the requests that wait for their adapter; one that nobody waits for
    /// leaves the line.
    pub(super) fn drop_parked(&mut self) {
        let mut gone = Vec::new();
        self.parked.retain(|wanted, parked| {
            gone.extend(parked.extract_if(.., |s| s.is_cancelled()));
            if parked.is_empty() && self.loads.remove(wanted) {
                self.table.give_up(wanted);
            }
            !parked.is_empty()
        });
        for sequence in gone {
            self.leave_line();
            self.finish(sequence, StopReason::Cancelled);
        }
    }

    /// Requests that waited for the adapter of `scope` line up, or fail where nothing serves.
    fn unpark(&mut self, wanted: &Wanted, result: &LoadResult, again: bool) {
        let serving = match wanted {
            Wanted::Newest(scope) => self.table.hand_out(scope),
            Wanted::Exact(policy) => {
                // A trial that ended meanwhile has let go of it.
                let loaded = result.as_ref().ok().cloned().flatten();
                let exact = self.table.exact(policy);
                exact.or_else(|| loaded.map(|loaded| Pinned(Some(loaded))))
            }
        };
        let Some(sequences) = self.parked.remove(wanted) else {
            return;
        };
        match (serving, result) {
            (Some(pinned), _) => {
                sequences
                    .into_iter()
                    .for_each(|s| self.line_up(s, pinned.clone()));
            }
            // A still newer version is being loaded; it may be sound.
            (None, _) if again => {
                self.parked.insert(wanted.clone(), sequences);
            }
            (None, result) => {
                let error = result.as_ref().err().cloned().unwrap_or_default();
                for sequence in sequences {
                    self.leave_line();
                    self.fail(&sequence, ServeError::Adapter(error.clone()));
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use hone_domain::Scope;
    use hone_kernels::Executor;
    use hone_nn::Runner;
    use hone_runtime::{StatusRegistry, SystemClock};

    use crate::Config;
    use crate::adapters::Wanted;
    use crate::shared::{Life, NAME};
    use crate::tests::support::World;
    use crate::thread::{Core, CoreCtx};

    #[test]
    fn without_a_loader_the_engine_gives_up() {
        let world = World::new();
        let (shared, registry) = (Arc::clone(&world.engine.shared), StatusRegistry::new());
        let (_commands, inbox) = std::sync::mpsc::channel();
        let (jobs, reader) = tokio::sync::mpsc::channel(1);
        let executor = Arc::new(Executor::new(1));
        let (model, computing) = (Arc::clone(&world.model), Arc::clone(&executor));
        let mut core = Core::new(CoreCtx {
            shared: Arc::clone(&shared),
            model: Arc::clone(&model),
            runner: Runner::on_processor(model, computing, 1),
            executor,
            policies: world.policies.reader(),
            clock: Arc::new(SystemClock::default()),
            config: Config::for_tests(),
            registry: registry.clone(),
            blocks_each: usize::MAX,
            inbox,
            jobs,
        });
        core.load(Wanted::Newest(Scope::of("a", None)));
        core.begin_loads();
        assert_eq!(shared.live(), Life::Running);
        drop(reader);
        core.loads.ended();
        core.load(Wanted::Newest(Scope::of("b", None)));
        core.begin_loads();
        assert_eq!(shared.live(), Life::Failed);
        let told = registry.snapshot()[NAME].last_error.clone().unwrap();
        assert!(told.contains("loads adapters is gone"), "{told}");
    }
}
