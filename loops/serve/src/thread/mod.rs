//! The engine thread: takes what arrived, plans a step, computes it, sends what came of it.

mod arrivals;
mod draft;
pub(crate) mod draw;
mod step;
mod warm;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use hone_domain::{Delta, Digest, Policies, ServeError, StopReason};
use hone_kernels::Executor;
use hone_nn::{Model, Runner, blocks_out_of_sight};
use hone_runtime::{Clock, LatestReader, LoopPhase, StatusRegistry, Switch};
use tokio::sync::mpsc;

use crate::adapters::{AdapterTable, TableLimits, Wanted};
use crate::config::Config;
use crate::cost::StepCost;
use crate::draft::Drafting;
use crate::fair::{Turns, Waiter};
use crate::loads::Loads;
use crate::plan::{Place, Plan, PlanScratch, View};
use crate::prefix::BlockPool;
use crate::prewarm::{WarmRow, Warming};
use crate::sequence::{Coming, Sequence, TurnFacts};
use crate::shared::{Command, Life, NAME, Shared};

/// How often a switched-off engine looks whether it was switched on again.
const PAUSED_LOOK: Duration = Duration::from_millis(50);
/// How often an engine that is held looks whether it was let go.
const HELD_LOOK: Duration = Duration::from_millis(2);
/// How often an engine that does nothing else looks after the requests that wait for their adapter:
/// whether one was cancelled, or there is room for another load.
const PARKED_LOOK: Duration = Duration::from_millis(50);
/// Most adapters whose damages are told apart.
const DAMAGES_MAX: usize = 1_024;
/// Least time between two entries in the status registry while working.
const BOARD_EVERY: Duration = Duration::from_millis(250);

pub(crate) struct CoreCtx {
    pub(crate) shared: Arc<Shared>,
    pub(crate) model: Arc<Model>,
    pub(crate) runner: Runner,
    /// Draws from logits.
    pub(crate) executor: Arc<Executor>,
    pub(crate) policies: LatestReader<Policies>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) config: Config,
    pub(crate) registry: StatusRegistry,
    pub(crate) blocks_each: usize,
    pub(crate) inbox: Receiver<Command>,
    pub(crate) jobs: mpsc::Sender<Wanted>,
}

/// Adapters that were found damaged in memory, each with the number of the last time.
#[derive(Debug, Default)]
struct Damages {
    last: HashMap<Digest, u64>,
    /// Of those that are not listed.
    others: u64,
    count: u64,
}

impl Damages {
    fn note(&mut self, digest: Digest) {
        self.count += 1;
        if self.last.len() >= DAMAGES_MAX {
            self.last.clear();
            self.others = self.count;
        }
        self.last.insert(digest, self.count);
    }

    /// Another number after each damage of this adapter.
    fn of(&self, digest: &Digest) -> u64 {
        self.last.get(digest).copied().unwrap_or(self.others)
    }
}

/// Leading blocks that no layer sees once the next token stands at `position`; `blocks_each` tells
/// whether there can be any.
fn unseen_at(model: &Model, blocks_each: usize, position: usize) -> usize {
    match blocks_each {
        usize::MAX => 0,
        _ => blocks_out_of_sight(&model.config, position),
    }
}

/// All the engine thread owns.
pub(crate) struct Core {
    ctx: CoreCtx,
    switch: Switch,
    table: AdapterTable,
    pool: BlockPool,

    /// Requests in the batch, ascending by place.
    #[expect(clippy::vec_box, reason = "large values that move between lists")]
    running: Vec<Box<Sequence>>,
    waiting: BTreeMap<Place, Box<Sequence>>,
    /// Requests that wait for their adapter.
    #[expect(clippy::vec_box, reason = "large values that move between lists")]
    parked: HashMap<Wanted, Vec<Box<Sequence>>>,
    loads: Loads,
    arrivals: u64,
    damages: Damages,
    /// Loaded versions whose prefixes are being computed, the first first.
    warming: VecDeque<Warming>,
    /// What this step computes for them.
    warm: Option<WarmRow>,
    /// Until when nothing is warmed, unless nobody was served for a while.
    warm_rest: Instant,
    /// When the last step that somebody took part in was over.
    busy_until: Instant,

    plan: Plan,
    plan_scratch: PlanScratch,
    views: (Vec<View>, Vec<View>),
    waiters: Vec<Waiter>,
    turns: Turns,
    /// The waiting line.
    line: Vec<Place>,
    coming: Coming,
    order: Vec<(usize, usize, usize)>,
    ended: Vec<(usize, Result<StopReason, ServeError>)>,
    step: u64,
    /// Up to when the time in which somebody is served is counted; none while nobody is.
    served_until: Option<Instant>,
    /// Moving mean of a step's time per token: it tells how large a step may be, as the next is about as large.
    token_us: f64,
    /// Tokens of a step that the device has memory for.
    fitting: usize,
    /// Steps that the device failed to compute since the last one that it computed.
    failed_in_a_row: u32,
    /// What one more token takes.
    cost: StepCost,
    drafting: Drafting,

    panics_in_row: u32,
    stop_at: Option<Instant>,
    board_at: Instant,
}

/// What the thread does next.
enum Next {
    Step,
    Look,
    Leave,
}

impl Core {
    pub(crate) fn new(ctx: CoreCtx) -> Self {
        let limits = TableLimits {
            bytes_max: ctx.config.adapter_bytes_max,
            scopes_max: ctx.config.scopes_known_max,
            retry_ms: i64::try_from(ctx.config.load_retry_ms).unwrap_or(i64::MAX / 2),
        };
        let switch = ctx.registry.enter(NAME);
        Self {
            switch,
            table: AdapterTable::new(limits),
            pool: BlockPool::new(ctx.shared.kv_blocks),
            running: Vec::new(),
            waiting: BTreeMap::new(),
            parked: HashMap::new(),
            loads: Loads::default(),
            arrivals: 0,
            damages: Damages::default(),
            warming: VecDeque::new(),
            warm: None,
            warm_rest: Instant::now(),
            busy_until: Instant::now(),
            plan: Plan::default(),
            plan_scratch: PlanScratch::default(),
            views: (Vec::new(), Vec::new()),
            waiters: Vec::new(),
            turns: Turns::default(),
            line: Vec::new(),
            coming: Coming::default(),
            order: Vec::new(),
            ended: Vec::new(),
            step: 0,
            served_until: None,
            token_us: 0.0,
            fitting: ctx.config.step_tokens_max,
            failed_in_a_row: 0,
            cost: StepCost::default(),
            drafting: Drafting::default(),
            panics_in_row: 0,
            stop_at: None,
            board_at: Instant::now(),
            ctx,
        }
    }

    /// Until it is told to stop or has to give up.
    pub(crate) fn run(mut self) {
        self.show(LoopPhase::Running);
        while self.take_commands() {
            self.wait_until_free();
            self.drop_parked();
            self.swap_warmed();
            match self.next() {
                Next::Step => {
                    self.count_served();
                    self.guarded_step();
                    self.ctx.shared.counters.long_step.store(false, Relaxed);
                    self.count_served();
                }
                Next::Look => {}
                Next::Leave => break,
            }
            if self.ctx.shared.live() == Life::Failed {
                break;
            }
        }
        self.leave();
    }

    /// Stands still while its effects are held, as a step would that never ends. A stop goes first.
    fn wait_until_free(&self) {
        while self.switch.is_held() && self.ctx.shared.live() == Life::Running {
            std::thread::sleep(HELD_LOOK);
        }
    }

    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.warming.is_empty()
    }

    /// Switched off by an admin. A stop goes first: what is under way is finished.
    fn is_paused(&self) -> bool {
        self.stop_at.is_none() && self.switch.is_paused()
    }

    /// Handles everything that arrived, and sleeps while there is nothing to do. False when nobody
    /// can send any more.
    fn take_commands(&mut self) -> bool {
        loop {
            match self.ctx.inbox.try_recv() {
                Ok(command) => self.handle(command),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        self.begin_loads();
        let paused = self.is_paused();
        let rest = self.warm_rest_left();
        if !self.is_idle() && !paused && rest.is_none() {
            return true;
        }
        self.show(if paused {
            LoopPhase::Paused
        } else {
            self.working_state()
        });
        let inbox = &self.ctx.inbox;
        let command = match (paused, self.stop_at) {
            (true, _) => inbox.recv_timeout(PAUSED_LOOK),
            (false, _) if let Some(rest) = rest => inbox.recv_timeout(rest),
            (false, Some(_)) if self.parked.is_empty() => return true,
            (false, Some(at)) => {
                let left = at.saturating_duration_since(Instant::now());
                inbox.recv_timeout(left.min(PARKED_LOOK))
            }
            (false, None) if !self.parked.is_empty() || !self.loads.is_empty() => {
                inbox.recv_timeout(PARKED_LOOK)
            }
            (false, None) => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match command {
            Ok(command) => self.handle(command),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        true
    }

    fn next(&self) -> Next {
        if let Some(at) = self.stop_at
            && ((self.is_idle() && self.parked.is_empty()) || Instant::now() >= at)
        {
            return Next::Leave;
        }
        if self.is_idle() || self.is_paused() {
            Next::Look
        } else {
            Next::Step
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Ask(sequence) => self.arrive(sequence),
            Command::Newer(scope) => {
                if self.table.announce(&scope) {
                    self.load(Wanted::Newest(scope));
                }
            }
            Command::TrialOver(proven) => self.trial_over(&proven),
            Command::Withdraw { scope, versions } => self.withdraw(&scope, &versions),
            Command::Loaded { wanted, result } => {
                self.loads.ended();
                self.loaded(&wanted, &result);
            }
            Command::Unfit {
                wanted,
                digest,
                error,
            } => self.unfit(&wanted, digest, &error),
            Command::Unused => self.drop_retired(),
            Command::Stop(at) => {
                self.stop_at = Some(at);
                self.swap_all();
                self.show(LoopPhase::Draining);
            }
        }
    }

    fn count_adapters(&self) {
        let (adapters, bytes) = self.table.resident();
        let counters = &self.ctx.shared.counters;
        counters.adapters_resident.store(adapters, Relaxed);
        counters.adapter_bytes.store(bytes, Relaxed);
    }

    /// One more place in the waiting line is free.
    fn leave_line(&self) {
        self.ctx.shared.counters.waiting.fetch_sub(1, Relaxed);
    }

    /// Tells a request that it failed. Its blocks were given back before.
    fn fail(&self, sequence: &Sequence, error: ServeError) {
        self.ctx.shared.counters.failed.fetch_add(1, Relaxed);
        sequence.send(Delta::Failed(error));
    }

    /// Ends a request that is in no list any more and holds no blocks.
    fn finish(&mut self, sequence: Box<Sequence>, stop: StopReason) {
        let counters = &self.ctx.shared.counters;
        if stop == StopReason::Cancelled {
            counters.cancelled.fetch_add(1, Relaxed);
        }
        if let Some(begun) = sequence.begun {
            counters.finished(u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX));
        }
        let pinned = sequence.pinned.clone();
        let capabilities = &self.ctx.shared.capabilities;
        let facts = TurnFacts {
            base: capabilities.base,
            fingerprint: &capabilities.fingerprint,
            version: pinned.version(),
            digest: pinned.digest(),
            untrainable: None,
            finished_ms: self.ctx.clock.now_ms(),
        };
        sequence.end(stop, &facts);
        drop(pinned);
        self.drop_retired();
    }

    /// Forgets older versions that nothing uses any more.
    fn drop_retired(&mut self) {
        if self.table.has_retired() {
            self.table.drop_retired();
            self.count_adapters();
        }
    }

    /// A step whose panic costs the requests of its batch and nothing else.
    fn guarded_step(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| self.compute_step())).is_ok() {
            self.panics_in_row = 0;
            self.count_step();
            return;
        }
        self.panics_in_row += 1;
        self.ctx.shared.counters.step_failures.fetch_add(1, Relaxed);
        let error = format!(
            "a step of {} requests panicked ({} in a row)",
            self.plan.rows.len(),
            self.panics_in_row
        );
        tracing::error!(
            error,
            "the requests of this step fail; the others are computed again"
        );
        self.ctx
            .registry
            .update(NAME, |s| s.last_error = Some(error));
        // Whatever the step left half-done is not trusted: all blocks are given up.
        self.pool = BlockPool::new(self.ctx.shared.kv_blocks);
        self.ctx.runner.reset();
        self.ended.clear();
        self.warm = None;
        self.warming.iter_mut().for_each(Warming::forget_blocks);
        self.swap_all();
        let running = std::mem::take(&mut self.running);
        for mut sequence in running {
            sequence.forget_blocks();
            if self.plan.rows.iter().any(|row| row.place == sequence.place) {
                let error = "this step of the engine failed; please try again";
                self.fail(&sequence, ServeError::Internal(error.to_owned()));
            } else {
                self.waiting.insert(sequence.place, sequence);
            }
        }
        self.count_blocks();
        if self.panics_in_row >= self.ctx.config.panics_in_row_max {
            self.ctx.shared.set_life(Life::Failed);
        }
    }

    fn count_step(&mut self) {
        self.count_blocks();
        if self.board_at.elapsed() >= BOARD_EVERY {
            self.show(self.working_state());
        }
    }

    /// Counts the time since the last call in which there was somebody to serve.
    fn count_served(&mut self) {
        let now = Instant::now();
        if let Some(until) = self.served_until.take() {
            let us = u64::try_from((now - until).as_micros()).unwrap_or(u64::MAX);
            self.ctx.shared.counters.served_us.fetch_add(us, Relaxed);
        }
        let somebody = !self.running.is_empty() || !self.waiting.is_empty();
        self.served_until = somebody.then_some(now);
    }

    fn count_blocks(&self) {
        let counters = &self.ctx.shared.counters;
        let (total, available) = (self.pool.total(), self.pool.available());
        counters.running.store(self.running.len(), Relaxed);
        counters.kv_blocks_used.store(total - available, Relaxed);
        counters.kv_blocks_cached.store(self.pool.idle(), Relaxed);
    }

    fn working_state(&self) -> LoopPhase {
        if self.stop_at.is_some() {
            LoopPhase::Draining
        } else {
            LoopPhase::Running
        }
    }

    /// Writes its condition in the status registry.
    fn show(&mut self, state: LoopPhase) {
        self.board_at = Instant::now();
        let counters = &self.ctx.shared.counters;
        let (waiting, limit) = (counters.waiting.load(Relaxed), self.ctx.config.waiting_max);
        let now_ms = self.ctx.clock.now_ms();
        let numbers = [
            ("running", self.running.len() as f64),
            (
                "kv_blocks_used",
                (self.pool.total() - self.pool.available()) as f64,
            ),
            ("kv_blocks_total", self.pool.total() as f64),
            (
                "completion_tokens_total",
                counters.completion_tokens.load(Relaxed) as f64,
            ),
            ("swaps_total", counters.swaps.load(Relaxed) as f64),
            (
                "swap_failures_total",
                counters.swap_failures.load(Relaxed) as f64,
            ),
            (
                "identity_failures_total",
                counters.identity_failures.load(Relaxed) as f64,
            ),
        ];
        let (steps, running) = (self.step, self.running.len());
        self.ctx.registry.update(NAME, |s| {
            s.state = state;
            if s.steps != steps {
                s.last_step_ms = now_ms;
            }
            (s.steps, s.effects_in_flight) = (steps, running);
            (s.queue_depth, s.queue_limit) = (waiting, limit);
            s.queue_dropped = counters.overloaded.load(Relaxed);
            s.numbers.extend(numbers);
        });
    }

    /// Fails whatever is left and says so.
    fn leave(&mut self) {
        let failed = self.ctx.shared.live() == Life::Failed;
        self.ctx.shared.set_life(Life::Stopping);
        let error = || match failed {
            true => ServeError::Internal("the engine gave up".to_owned()),
            false => ServeError::Stopping,
        };
        let mut left: Vec<Box<Sequence>> = std::mem::take(&mut self.running);
        left.extend(std::mem::take(&mut self.waiting).into_values());
        left.extend(std::mem::take(&mut self.parked).into_values().flatten());
        while let Ok(command) = self.ctx.inbox.try_recv() {
            if let Command::Ask(sequence) = command {
                left.push(sequence);
            }
        }
        if !left.is_empty() {
            tracing::warn!(requests = left.len(), failed, "requests left unfinished");
        }
        left.iter()
            .for_each(|sequence| self.fail(sequence, error()));
        self.ctx.shared.counters.running.store(0, Relaxed);
        self.ctx.shared.counters.waiting.store(0, Relaxed);
        self.show(LoopPhase::Stopped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_damage_of_an_adapter_changes_its_number_and_no_other_s() {
        let named = |n: usize| {
            let bytes = |at| if at == 0 { n as u8 } else { (n >> 8) as u8 };
            Digest(std::array::from_fn(bytes))
        };
        let mut damages = Damages::default();
        let (mut before, other) = (damages.of(&named(1)), damages.of(&named(2)));
        for _ in 0..3 {
            damages.note(named(1));
            assert_ne!(damages.of(&named(1)), before);
            before = damages.of(&named(1));
            assert_eq!(damages.of(&named(2)), other);
        }
        // However many there are, what is remembered is bounded, and nobody gets an old number again.
        (0..2 * DAMAGES_MAX).for_each(|n| damages.note(named(n)));
        assert!(damages.last.len() <= DAMAGES_MAX);
        assert!(damages.of(&named(1)) > before);
    }
}
