//! One step of the engine: what the plan says, done.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hone_domain::{Delta, ServeError, StopReason};
use hone_nn::DeviceError;
use hone_nn::{BLOCK_TOKENS, LogitsWanted, SeqInput};

use crate::fair::Waiter;
use crate::plan::{Limits, Place, Situation, plan};
use crate::prewarm::WarmRow;
use crate::sequence::{MASK_WAIT, SCORED_MAX, Sequence, Taken};
use crate::shared::{Life, NAME};
use crate::stats::Counters;
use crate::thread::draw::draw_all;
use crate::thread::{Core, unseen_at};

/// Waiting requests that one plan may admit.
const LOOK_AHEAD: usize = 8;
/// Tokens of a step below which its time says little about the time per token.
const TELLING_TOKENS: usize = 8;
/// After steps that the device had no memory for, the next may be larger than the last by this part.
const FITTING_GROWTH: usize = 8;
/// Steps in a row that a device may fail to compute, for whatever reason but memory, before the engine
/// gives up: a fault may pass.
const FAILED_STEPS_MAX: u32 = 3;
/// How long the engine sleeps at a time while nothing can be computed before a mask is there.
const LATE_WAIT: Duration = Duration::from_millis(2);

impl Core {
    /// Everything between two looks at the inbox.
    pub(super) fn compute_step(&mut self) {
        let began = Instant::now();
        self.plan.rows.clear();
        self.drop_cancelled();
        self.sample_late();
        self.spare_blocks();
        self.make_plan();
        self.pause_and_admit();
        if self.plan.rows.is_empty() && self.warming.is_empty() {
            return self.await_mask();
        }
        self.draft();
        self.place_rows();
        if self.drafting.drafted == 0 {
            self.take_warm_row();
        }
        let warmed = self.warm.as_ref().map_or(0, |row| row.tokens.len());
        if self.plan.rows.is_empty() && warmed == 0 {
            return self.await_mask();
        }
        let tokens = warmed + self.plan.rows.iter().map(|row| row.tokens).sum::<usize>();
        let long = &self.ctx.shared.counters.long_step;
        long.store(tokens > self.plan.rows.len(), Relaxed);
        let decodes = tokens == self.plan.rows.len();
        let tokens = tokens + self.drafting.drafted;
        if let Err(error) = self.compute() {
            return self.not_computed(&error);
        }
        self.failed_in_a_row = 0;
        let larger = self.fitting + self.fitting / FITTING_GROWTH + 1;
        self.fitting = larger.min(self.ctx.config.step_tokens_max);
        self.keep_warm_row();
        self.remove_ended();
        self.step += 1;
        let ended = Instant::now();
        if !self.plan.rows.is_empty() {
            self.busy_until = ended;
        }
        let us = micros(ended - began);
        self.cost.note(tokens, us);
        if decodes && self.ctx.config.draft_tokens_max > 0 {
            self.drafting.cost.note(tokens, us);
        }
        if tokens - self.drafting.drafted >= TELLING_TOKENS {
            let each = us as f64 / tokens as f64;
            self.token_us += (each - self.token_us) * if self.token_us == 0.0 { 1.0 } else { 0.2 };
        }
        let counters = &self.ctx.shared.counters;
        counters.steps.fetch_add(1, Relaxed);
        counters.step_us.record(us);
        let rows = self.plan.rows.len() + usize::from(warmed > 0);
        counters.batch_rows.record(rows as u64);
    }

    /// The device did not compute the step. Nothing is lost yet: the rows keep their blocks and are
    /// computed again, fewer at a time where memory lacks. A token that has no memory even alone costs
    /// its request; a device that goes on failing ends the engine.
    fn not_computed(&mut self, error: &DeviceError) {
        self.ctx.shared.counters.step_failures.fetch_add(1, Relaxed);
        let said = error.to_string();
        self.ctx
            .registry
            .update(NAME, |s| s.last_error = Some(said));
        let rows = self.plan.rows.len();
        if !matches!(error, DeviceError::Memory { .. }) {
            self.failed_in_a_row += 1;
            if self.failed_in_a_row >= FAILED_STEPS_MAX {
                tracing::error!(%error, rows, "a step was not computed; the engine gives up");
                return self.ctx.shared.set_life(Life::Failed);
            }
            tracing::warn!(%error, rows, "a step was not computed; it is tried again");
            // What came beside the rows is no part of the next try.
            self.drop_warm_row();
            self.drop_drafts();
            return;
        }
        tracing::warn!(%error, rows, "a step was not computed; the next ones are smaller");
        if self.drop_warm_row() | self.drop_drafts() {
            return;
        }
        let tokens: usize = self.plan.rows.iter().map(|row| row.tokens).sum();
        self.fitting = (tokens / 2).max(1);
        if tokens == 1 {
            let index = self.index_of(self.plan.rows[0].place);
            let mut sequence = self.running.remove(index);
            sequence.give_back(&mut self.pool);
            self.fail(&sequence, ServeError::Memory);
        }
    }

    fn drop_cancelled(&mut self) {
        let mut at = 0;
        while at < self.running.len() {
            if self.running[at].is_cancelled() {
                let mut sequence = self.running.remove(at);
                sequence.give_back(&mut self.pool);
                self.finish(sequence, StopReason::Cancelled);
            } else {
                at += 1;
            }
        }
        if self.waiting.values().any(|s| s.is_cancelled()) {
            let gone = self.waiting.extract_if(.., |_, s| s.is_cancelled());
            for sequence in gone.map(|(_, s)| s).collect::<Vec<_>>() {
                if !sequence.started {
                    self.leave_line();
                }
                self.finish(sequence, StopReason::Cancelled);
            }
        }
    }

    /// The waiting line: owners take turns.
    fn order_line(&mut self) {
        self.line.clear();
        if self.waiting.len() < 2 {
            return self.line.extend(self.waiting.keys());
        }
        self.waiters.clear();
        self.waiters.extend(self.waiting.values().map(|s| Waiter {
            place: s.place,
            class: s.class,
            owner: s.owner,
            begun: s.started,
        }));
        let running = self.running.iter().map(|s| (s.class, s.owner));
        self.turns.order(running, &self.waiters, &mut self.line);
    }

    fn make_plan(&mut self) {
        self.order_line();
        let scored = self.scored_each();
        let (running, waiting) = &mut self.views;
        running.clear();
        running.extend(self.running.iter().map(|s| s.view_running(scored)));
        waiting.clear();
        if !self.waiting.is_empty() {
            self.look_at_line(scored);
        }
        let (running, waiting) = &mut self.views;
        let free = self.pool.available();
        // Who owns what matters only when blocks may run out or a place may have to be made.
        if !waiting.is_empty() || free < running.len() + self.ctx.config.step_tokens_max {
            for (view, sequence) in running.iter_mut().zip(&self.running) {
                view.own = sequence.exclusive_blocks(&self.pool);
            }
        }
        let limits = Limits {
            tokens: self.token_budget(),
            rows: self.ctx.config.running_max,
            chunk: self.ctx.config.prefill_chunk_tokens_max,
            blocks: self.pool.total(),
            blocks_each: self.ctx.blocks_each,
        };
        let situation = Situation {
            running: &self.views.0,
            waiting: &self.views.1,
            free,
            limits,
        };
        plan(&situation, &mut self.plan_scratch, &mut self.plan);
    }

    /// Most tokens that a step scores of each completion that is given: they share [`SCORED_MAX`].
    fn scored_each(&self) -> usize {
        let running = self.running.iter().filter(|s| s.is_given()).count();
        let waiting = self.waiting.values().filter(|s| s.is_given());
        SCORED_MAX / (running + waiting.take(LOOK_AHEAD).count()).max(1)
    }

    /// Views of the first of the line. One that a prefix is being computed for is passed over, however
    /// many there are: it is not to keep others from a place.
    fn look_at_line(&mut self, scored: usize) {
        self.coming.begin(self.ctx.runner.can_copy());
        for sequence in &mut self.running {
            sequence.tell_coming(&mut self.coming);
        }
        let (model, blocks_each) = (&*self.ctx.model, self.ctx.blocks_each);
        for at in 0..self.line.len() {
            let Some(sequence) = self.waiting.get_mut(&self.line[at]) else {
                continue;
            };
            if sequence.awaits(&self.coming) {
                continue;
            }
            sequence.find_prefix(&self.pool);
            sequence.tell_missing(&mut self.coming);
            let unseen = unseen_at(model, blocks_each, sequence.found_tokens());
            let view = sequence.view_waiting(&self.pool, unseen, scored);
            self.views.1.push(view);
            if self.views.1.len() == LOOK_AHEAD {
                break;
            }
        }
    }

    /// Tokens for this step. While somebody waits for the next token, prefill gets what fits the
    /// wanted time of a step.
    pub(super) fn token_budget(&self) -> usize {
        let config = &self.ctx.config;
        let decoding = self.views.0.iter().any(|v| v.tokens == v.computed + 1);
        if !decoding {
            return self.fitting;
        }
        let least = config.running_max + 1;
        let wanted = self.fitting_tokens().clamp(least, config.step_tokens_max);
        wanted.min(self.fitting)
    }

    /// Tokens that are computed in the wanted time of a step; any number before a step said how long
    /// one takes.
    pub(super) fn fitting_tokens(&self) -> usize {
        if self.token_us == 0.0 {
            return usize::MAX;
        }
        let us = (self.ctx.config.step_target_ms * 1_000) as f64;
        (us / self.token_us) as usize
    }

    pub(super) fn index_of(&self, place: Place) -> usize {
        let found = self.running.binary_search_by_key(&place, |s| s.place);
        found.expect("the plan names running requests")
    }

    /// Counts for those that stay in the line how many from behind them come in now.
    fn note_passes(&mut self) {
        let mut admitted = 0;
        for view in self.views.1.iter().rev() {
            if self.plan.admit.contains(&view.place) {
                admitted += 1;
            } else if let Some(sequence) = self.waiting.get_mut(&view.place) {
                sequence.passed += admitted;
            }
        }
    }

    fn pause_and_admit(&mut self) {
        self.note_passes();
        let counters = &self.ctx.shared.counters;
        for at in 0..self.plan.pause.len() {
            let index = self.index_of(self.plan.pause[at]);
            let mut sequence = self.running.remove(index);
            sequence.give_back(&mut self.pool);
            self.waiting.insert(sequence.place, sequence);
            counters.preemptions.fetch_add(1, Relaxed);
        }
        for place in &self.plan.admit {
            let mut sequence = self
                .waiting
                .remove(place)
                .expect("the plan admits waiting ones");
            sequence.passed = 0;
            let (model, blocks_each) = (&*self.ctx.model, self.ctx.blocks_each);
            let unseen = unseen_at(model, blocks_each, sequence.found_tokens());
            let cached = sequence.take_found(&mut self.pool, unseen);
            if !sequence.started {
                sequence.started = true;
                self.turns.served(sequence.class, sequence.owner);
                sequence.begun = Some(Instant::now());
                sequence.in_line = None;
                counters.waiting.fetch_sub(1, Relaxed);
                counters
                    .prompt_tokens
                    .fetch_add(sequence.prompt_tokens() as u64, Relaxed);
                counters
                    .cached_prompt_tokens
                    .fetch_add(cached as u64, Relaxed);
                sequence.send(Delta::Started {
                    version: sequence.pinned.version(),
                    cached_tokens: u32::try_from(cached).unwrap_or(u32::MAX),
                });
            }
            let at = self.running.partition_point(|s| s.place < *place);
            self.running.insert(at, sequence);
        }
    }

    /// Takes blocks for the planned tokens and orders the rows in runs of one adapter.
    fn place_rows(&mut self) {
        self.order.clear();
        for at in 0..self.plan.rows.len() {
            let row = self.plan.rows[at];
            let index = self.index_of(row.place);
            let sequence = &mut self.running[index];
            if !sequence.samples_after(row.tokens) || row.tokens > 1 {
                sequence.last_turn = self.step;
            }
            sequence.grow(row.tokens, &mut self.pool);
            let tokens = row.tokens - self.copy_tail(index, row.tokens);
            self.plan.rows[at].tokens = tokens;
            let group = self.running[index].pinned.group();
            self.order.push((group, index, tokens));
        }
        self.order.sort_unstable();
    }

    /// Copies what another request computed of the same prompt's last block, so that completions
    /// of one prompt compute it once; returns the tokens that need not be computed any more.
    fn copy_tail(&mut self, index: usize, count: usize) -> usize {
        let wanted = &self.running[index];
        if count < 2 || !self.ctx.runner.can_copy() {
            return 0;
        }
        let mut others = self.running.iter();
        let Some((tokens, from)) = others.find_map(|other| wanted.tail_at(other, count)) else {
            return 0;
        };
        let to = wanted.table()[wanted.computed / BLOCK_TOKENS];
        self.ctx.runner.copy_block(from, to);
        self.running[index].advance(tokens, 0, &mut self.pool);
        let counters = &self.ctx.shared.counters;
        counters.kv_blocks_copied.fetch_add(1, Relaxed);
        tokens
    }

    /// Runs the model on the rows, samples where a row reached its end, and moves on.
    fn compute(&mut self) -> Result<(), DeviceError> {
        #[cfg(test)]
        assert!(
            !self.ctx.shared.fault.swap(false, Relaxed),
            "a fault was injected"
        );
        let Self {
            ctx,
            running,
            order,
            pool,
            ended,
            warm,
            drafting,
            ..
        } = self;
        let (model, blocks_each) = (&*ctx.model, ctx.blocks_each);
        let batch = batch_of(running, order, warm.as_ref());
        let logits = ctx.runner.forward(&batch)?;
        let now = Instant::now();
        let masks_until = now + MASK_WAIT;
        let counters = &ctx.shared.counters;
        let drafted = &counters.draft_tokens;
        drafted.fetch_add(drafting.drafted as u64, Relaxed);
        let (mut row, mut sampled, mut here) = (0, 0, Vec::new());
        for &(_, index, tokens) in &*order {
            let sequence = &mut running[index];
            let samples = sequence.samples_after(tokens);
            let scored = if sequence.is_scoring() { tokens } else { 0 };
            let rows = (row..row + scored).map(|at| logits.row(at));
            let scores = score(sequence, rows, counters);
            row += scored;
            let (at, wanted) = (row, usize::from(samples) * (1 + sequence.drafted()));
            row += wanted;
            let drawn = (at..row).map(|at| (logits.drawn(at), logits.experts(at)));
            let taken = sequence.take_draws(drawn, &ctx.shared.setup);
            let Taken { drew, right, went } = taken;
            // Of a draft what was drawn counts as computed, all but the last.
            let computed = tokens + drew.saturating_sub(1);
            let position = sequence.computed + computed;
            sequence.advance(computed, unseen_at(model, blocks_each, position), pool);
            note_drawn(sequence, counters, now, drew);
            sampled += drew as u64;
            let accepted = &counters.draft_tokens_accepted;
            accepted.fetch_add(right as u64, Relaxed);
            ended.extend(scores.or(went.transpose()).map(|how| (index, how)));
            if !samples || drew > 0 {
                continue;
            }
            let left = masks_until.saturating_duration_since(Instant::now());
            if sequence.is_ready(logits.row(at), left) {
                here.push((index, logits.row(at)));
            }
        }
        sampled += here.len() as u64;
        let drawn = draw_all(running, &here, &ctx.shared.setup, &ctx.executor);
        for (index, went) in drawn {
            note_drawn(&mut running[index], counters, now, 1);
            ended.extend(went.transpose().map(|how| (index, how)));
        }
        counters.completion_tokens.fetch_add(sampled, Relaxed);
        Ok(())
    }

    /// Nothing can be computed: waits a while for the mask of a request that is late.
    fn await_mask(&mut self) {
        if let Some(late) = self.running.iter_mut().find(|s| s.is_late()) {
            late.await_mask(LATE_WAIT);
        }
    }

    /// Draws where a mask came after its logits.
    fn sample_late(&mut self) {
        if !self.running.iter().any(|s| s.is_late()) {
            return;
        }
        let counters = &self.ctx.shared.counters;
        let late = self.running.iter_mut().enumerate();
        let late: Vec<(usize, Vec<f32>)> = late
            .filter_map(|(index, sequence)| Some((index, sequence.late_row()?)))
            .collect();
        counters
            .completion_tokens
            .fetch_add(late.len() as u64, Relaxed);
        let rows: Vec<(usize, &[f32])> = late.iter().map(|(at, row)| (*at, &**row)).collect();
        let (setup, executor) = (&self.ctx.shared.setup, &*self.ctx.executor);
        for (index, went) in draw_all(&mut self.running, &rows, setup, executor) {
            note_drawn(&mut self.running[index], counters, Instant::now(), 1);
            self.ended.extend(went.transpose().map(|how| (index, how)));
        }
        self.remove_ended();
    }

    fn remove_ended(&mut self) {
        // From the back, so that the indexes before stay right.
        self.ended
            .sort_unstable_by_key(|(index, _)| std::cmp::Reverse(*index));
        for (index, how) in std::mem::take(&mut self.ended) {
            let mut sequence = self.running.remove(index);
            sequence.give_back(&mut self.pool);
            match how {
                Ok(stop) => self.finish(sequence, stop),
                Err(error) => self.fail(&sequence, error),
            }
        }
    }
}

/// What the model computes in a step: the rows in their order, and what is computed ahead of a
/// swap at the end.
fn batch_of<'a>(
    running: &'a [Box<Sequence>],
    order: &[(usize, usize, usize)],
    warm: Option<&'a WarmRow>,
) -> Vec<SeqInput<'a>> {
    let rows = order.iter().map(|&(_, index, tokens)| {
        let sequence = &running[index];
        let logits = if sequence.is_scoring() {
            LogitsWanted::All
        } else if sequence.samples_after(tokens) {
            sequence.wanted()
        } else {
            LogitsWanted::None
        };
        SeqInput {
            tokens: sequence.computes(tokens),
            start: sequence.computed,
            blocks: sequence.table(),
            adapter: sequence.pinned.adapter(),
            logits,
        }
    });
    let warm = warm.map(|row| SeqInput {
        tokens: &row.tokens,
        start: row.start,
        blocks: &row.table,
        adapter: row.loaded.adapter.as_ref(),
        logits: LogitsWanted::None,
    });
    rows.chain(warm).collect()
}

/// Measures how long each of so many tokens took that came together.
fn note_drawn(sequence: &mut Sequence, counters: &Counters, now: Instant, tokens: usize) {
    if tokens == 0 {
        return;
    }
    match sequence.last_token.replace(now) {
        Some(before) => {
            let each = micros(now.saturating_duration_since(before)) / tokens as u64;
            (0..tokens).for_each(|_| counters.token_gap_us.record(each));
        }
        None => counters.ttft_us.record(micros(now - sequence.arrived)),
    }
}

/// Scores the next tokens of a completion that is given; says how it ended, if it did.
fn score<'a>(
    sequence: &mut Sequence,
    rows: impl Iterator<Item = &'a [f32]>,
    counters: &Counters,
) -> Option<Result<StopReason, ServeError>> {
    for row in rows {
        counters.scored_tokens.fetch_add(1, Relaxed);
        if let Some(how) = sequence.score(row).transpose() {
            return Some(how);
        }
    }
    None
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
