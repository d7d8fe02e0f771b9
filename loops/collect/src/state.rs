//! Everything collect decides: batches, retries, who answers whom, and when a session is over.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use hone_domain::{
    Feedback, Millis, NextState, Reason, Receipt, SessionId, Transition, TransitionId, Turn, TurnId,
};
use hone_ledger::FeedbackOutcome;
use hone_runtime::{Event, Ids, LoopState};
use tokio::sync::oneshot;

use crate::backlog::{Backlog, Then};
use crate::counts::{Counts, spool_numbers};
use crate::queue::{Item, Queue, text_bytes};
use crate::sessions::Sessions;
use crate::{
    Config, Effect, Heard, Input, Loaded, Observed, OpenMeta, Place, Report, Said, Shipped,
    SpoolStatus, Wrote,
};

/// Feedback whose turn is not known yet; it is in the ledger already.
#[derive(Debug)]
struct EarlyFeedback {
    owner: String,
    settles: bool,
}

/// The loop's pure half.
pub struct State {
    config: Config,
    ids: Arc<dyn Ids>,
    queue: Queue,
    turns_in_write: usize,
    writing: bool,
    pausing: bool,
    failures_in_row: u32,
    failures_alone: u32,
    backlog: Backlog,
    open: Sessions,
    loaded: bool,
    loading: bool,
    truncated: bool,
    draining: bool,
    early: HashMap<TurnId, Observed>,
    /// Bytes of what they say.
    early_bytes: u64,
    early_order: VecDeque<(Millis, TurnId)>,
    early_feedback: HashMap<TurnId, EarlyFeedback>,
    early_feedback_order: VecDeque<TurnId>,
    counts: Counts,
}

impl State {
    /// A state that knows nothing yet.
    pub fn new(config: Config, ids: Arc<dyn Ids>) -> Self {
        Self {
            config,
            ids,
            queue: Queue::default(),
            turns_in_write: 0,
            writing: false,
            pausing: false,
            failures_in_row: 0,
            failures_alone: 0,
            backlog: Backlog::default(),
            open: Sessions::default(),
            loaded: false,
            loading: false,
            truncated: false,
            draining: false,
            early: HashMap::new(),
            early_bytes: 0,
            early_order: VecDeque::new(),
            early_feedback: HashMap::new(),
            early_feedback_order: VecDeque::new(),
            counts: Counts::default(),
        }
    }

    /// The same, beginning with what an earlier run left in the spool.
    pub fn behind(self, status: SpoolStatus) -> Self {
        Self {
            backlog: Backlog::with(status),
            ..self
        }
    }

    // === what arrives ===

    fn arrived(&mut self, now_ms: Millis, input: Input) -> Vec<Effect> {
        let mut effects = match input {
            Input::Turn { turn, receipt } => self.turn(now_ms, turn, receipt),
            Input::Next(observed) => {
                self.next(now_ms, observed);
                Vec::new()
            }
            Input::Feedback { feedback, reply } => self.feedback(feedback, reply),
            Input::Reward(reward) => self.reward(reward),
            Input::SessionDone(session) => {
                self.end_session(now_ms, session);
                vec![Effect::Forget(session)]
            }
        };
        effects.extend(self.write());
        effects
    }

    fn turn(
        &mut self,
        now_ms: Millis,
        turn: Box<Turn>,
        receipt: oneshot::Sender<Receipt>,
    ) -> Vec<Effect> {
        self.counts.handed += 1;
        if self.is_full() {
            self.counts.dropped_full += 1;
            return vec![Effect::Refuse(receipt, Reason::QueueFull)];
        }
        let (id, at_once) = (turn.id, turn.is_checked_at_once());
        let meta = OpenMeta::of(&turn);
        self.queue.push(Item::Turn(turn, receipt));
        let Some(meta) = meta else {
            return Vec::new();
        };
        if self.open.len() >= self.config.open_max
            && let Some(oldest) = self.open.oldest()
        {
            self.close(now_ms, oldest, Reason::NoNextState);
        }
        let owner = meta.owner.clone();
        self.open.open(meta, now_ms);
        if let Some(said) = self.early_feedback.remove(&id)
            && said.owner == owner
        {
            self.hear(now_ms, id, said.settles);
        }
        if let Some(observed) = self.take_early(&id) {
            self.answer(&observed);
        } else if at_once || self.open.is_passed_over(id) {
            self.close(now_ms, id, Reason::NotChosen);
        }
        Vec::new()
    }

    /// Whether no more turns and next states are taken.
    fn is_full(&self) -> bool {
        self.queue.len() >= self.config.held_max || self.queue.bytes() >= self.config.held_bytes_max
    }

    fn next(&mut self, now_ms: Millis, observed: Observed) {
        self.counts.next_states += 1;
        self.open.touch(observed.session, now_ms);
        if observed.next_state.is_empty() {
            self.counts.next_states_ignored += 1;
        } else if self.open.get(observed.parent).is_some() {
            self.answer(&observed);
        } else if self.early.contains_key(&observed.parent) {
            self.counts.next_states_ignored += 1;
        } else if self.draining
            || self.early.len() >= self.config.early_max
            || self.early_bytes >= self.config.held_bytes_max
        {
            self.settle_by(&observed);
        } else {
            // The turn may be on its way, or not be loaded yet.
            let until_ms = now_ms.saturating_add(millis(self.config.early_wait_ms));
            self.early_order.push_back((until_ms, observed.parent));
            self.early_bytes += text_bytes(&observed.next_state);
            self.early.insert(observed.parent, observed);
        }
    }

    fn take_early(&mut self, turn: &TurnId) -> Option<Observed> {
        let observed = self.early.remove(turn)?;
        self.early_bytes -= text_bytes(&observed.next_state);
        Some(observed)
    }

    /// A next state of a known turn.
    fn answer(&mut self, observed: &Observed) {
        let open = self.open.get(observed.parent);
        if open.is_none_or(|open| open.closing) {
            self.counts.next_states_ignored += 1;
            return;
        }
        if !self.settle_by(observed) {
            return;
        }
        for sibling in self.open.choose(observed.parent) {
            self.close(observed.at_ms, sibling, Reason::NotChosen);
        }
        if let Some(open) = self.open.get_mut(observed.parent) {
            open.closing = true;
        }
    }

    /// Sends a next state to the ledger, which ignores it where its turn is unknown or settled.
    fn settle_by(&mut self, observed: &Observed) -> bool {
        if self.is_full() {
            self.counts.next_states_dropped += 1;
            return false;
        }
        // A fork has a session of its own; the transition belongs to its turn's session.
        let place = self.open.get(observed.parent).map(|o| o.meta.place.clone());
        let place = place.unwrap_or_else(|| Place {
            session: observed.session,
            scope: observed.scope.clone(),
        });
        self.queue.push(Item::Transition(Transition {
            id: TransitionId(self.ids.next()),
            turn: observed.parent,
            session: place.session,
            scope: place.scope,
            next_state: observed.next_state.clone(),
            next_turn: observed.next_turn,
            settled_ms: observed.at_ms,
        }));
        true
    }

    // === how turns end ===

    /// Ends an open turn: by its feedback or its checks where it has some, else with `reason`.
    fn close(&mut self, now_ms: Millis, turn: TurnId, reason: Reason) {
        let Some(open) = self.open.get_mut(turn).filter(|open| !open.closing) else {
            return;
        };
        open.closing = true;
        let meta = &open.meta;
        let next_state = match (meta.has_feedback, meta.is_checked) {
            (true, _) => Some(NextState::feedback()),
            (false, true) => Some(NextState::default()),
            (false, false) => None,
        };
        let item = match next_state {
            Some(next_state) => Item::Transition(Transition {
                id: TransitionId(self.ids.next()),
                turn,
                session: meta.place.session,
                scope: meta.place.scope.clone(),
                next_state,
                next_turn: None,
                settled_ms: now_ms,
            }),
            None => Item::Settle(turn, reason),
        };
        self.queue.push(item);
    }

    fn end_session(&mut self, now_ms: Millis, session: SessionId) {
        for turn in self.open.end(session) {
            self.close(now_ms, turn, Reason::NoNextState);
        }
    }

    /// Looks for what is over: sessions, forgotten branches, next states whose turn never came.
    fn sweep(&mut self, now_ms: Millis) -> Vec<Effect> {
        while let Some((until_ms, turn)) = self.early_order.front().copied() {
            if until_ms > now_ms || !(self.loaded || self.draining) {
                break;
            }
            self.early_order.pop_front();
            if let Some(observed) = self.take_early(&turn) {
                self.settle_by(&observed);
            }
        }
        if !self.loaded {
            return self.load();
        }
        let idle_since = now_ms.saturating_sub(millis(self.config.session_ttl_ms));
        for session in self.open.idle(idle_since) {
            self.end_session(now_ms, session);
        }
        let open_since = now_ms.saturating_sub(millis(self.config.open_ms_max));
        for turn in self.open.overdue(open_since) {
            self.close(now_ms, turn, Reason::NoNextState);
        }
        let mut effects = vec![Effect::Evict(idle_since)];
        if self.truncated && self.open.len() * 2 <= self.config.load_max {
            effects.extend(self.load());
        }
        effects
    }

    // === the ledger ===

    fn load(&mut self) -> Vec<Effect> {
        // What waits in the spool is among what is to be read.
        if self.loading || self.draining || self.backlog.is_behind {
            return Vec::new();
        }
        self.loading = true;
        vec![Effect::Load]
    }

    fn take_loaded(&mut self, now_ms: Millis, result: Result<Loaded, String>) -> Vec<Effect> {
        self.loading = false;
        match result {
            Err(error) => {
                // The next tick tries again.
                self.counts.failures += 1;
                tracing::warn!(error, "waiting turns could not be loaded");
            }
            Ok(loaded) => {
                self.loaded = true;
                self.truncated = loaded.truncated;
                for meta in loaded.open {
                    let (turn, settles) = (meta.turn, meta.is_settled_by_feedback);
                    let alive_ms = meta.finished_ms;
                    self.open.open(meta, alive_ms);
                    if settles {
                        self.hear(now_ms, turn, true);
                    }
                    if let Some(observed) = self.take_early(&turn) {
                        self.answer(&observed);
                    }
                }
            }
        }
        self.write()
    }

    /// Begins the next transaction, if none runs and there is anything to write. After a failure
    /// single items are written, so that one that cannot be written does not take others along.
    fn write(&mut self) -> Vec<Effect> {
        let holds = self.backlog.holds() && !self.draining;
        if self.writing || self.pausing || holds || self.queue.len() == 0 {
            return Vec::new();
        }
        let most = if self.failures_in_row == 0 {
            self.config.batch_turns_max
        } else {
            1
        };
        let batch = self
            .queue
            .take(most, (self.config.held_bytes_max / 4).max(1));
        self.writing = true;
        self.turns_in_write = batch.turns.len();
        self.counts.writes += 1;
        vec![match self.backlog.is_behind {
            true => Effect::Spool(Box::new(batch)),
            false => Effect::Write(Box::new(batch)),
        }]
    }

    fn wrote(&mut self, now_ms: Millis, wrote: Wrote) -> Vec<Effect> {
        self.writing = false;
        self.turns_in_write = 0;
        self.counts.recorded += wrote.recorded;
        self.counts.spooled += wrote.spooled;
        self.counts.late += wrote.late.len() as u64;
        self.counts.dropped_failed += wrote.dropped.len() as u64;
        self.counts.dropped_spool += wrote.refused.len() as u64;
        self.counts.transitions += wrote.transitions;
        self.counts.next_states_ignored += wrote.ignored;
        self.counts.settled += wrote.settled;
        for turn in wrote
            .late
            .iter()
            .chain(&wrote.dropped)
            .chain(&wrote.refused)
        {
            self.open.close(*turn);
        }
        // An early next state that was given up meant nothing to the ledger if its turn arrived
        // while it was being written; that turn is still to be recorded and settled.
        let queued = self.queue.turn_ids();
        for turn in wrote.closed {
            if queued.contains(&turn) {
                self.reopen(turn);
            } else {
                self.open.close(turn);
            }
        }
        for turn in wrote.dropped {
            self.queue.push(Item::Settle(turn, Reason::LateReceipt));
        }
        for heard in wrote.heard {
            self.heard(now_ms, heard);
        }
        self.backlog.came(wrote.status);
        let mut effects = self.ship();
        match wrote.error {
            None => {
                self.failures_in_row = 0;
                self.failures_alone = 0;
                effects.extend(self.write());
            }
            Some(error) => {
                let alone = wrote.unfinished.len() == 1;
                self.queue.put_back(wrote.unfinished);
                effects.extend(self.failed(&error, alone));
            }
        }
        effects
    }

    // === the spool ===

    fn ship(&mut self) -> Vec<Effect> {
        match self.backlog.next(&self.config) {
            Some(ship) if !self.draining => vec![Effect::Ship(ship)],
            // What is left at the end is shipped by the next start.
            _ => Vec::new(),
        }
    }

    fn shipped(&mut self, shipped: &Shipped) -> Vec<Effect> {
        self.counts.shipped += shipped.turns;
        self.counts.transitions += shipped.transitions;
        self.counts.spool_lost += shipped.lost;
        let mut effects = match self.backlog.shipped(shipped, self.writing, &self.config) {
            Then::Again => self.ship(),
            Then::Wait => Vec::new(),
            Then::Rest(ms) => {
                self.counts.failures += 1;
                tracing::debug!(error = shipped.error, ms, "the spool waits for the ledger");
                vec![Effect::Rest(ms)]
            }
            Then::CaughtUp => {
                tracing::info!("everything that waited in the spool is in the ledger");
                if self.loaded { Vec::new() } else { self.load() }
            }
        };
        effects.extend(self.write());
        effects
    }

    fn failed(&mut self, error: &str, alone: bool) -> Vec<Effect> {
        tracing::warn!(error, "the ledger could not be written");
        self.counts.failures += 1;
        let pause_ms = self.config.pause_ms(self.failures_in_row);
        self.failures_in_row = self.failures_in_row.saturating_add(1);
        self.failures_alone = if alone { self.failures_alone + 1 } else { 0 };
        let mut effects = Vec::new();
        if self.failures_alone >= self.config.attempts_max {
            self.failures_alone = 0;
            effects.extend(self.leave_first());
        }
        self.pausing = true;
        effects.push(Effect::Pause(pause_ms));
        effects
    }

    /// Leaves what could not be written. A turn that should have been closed waits on, and is
    /// closed again when its session is over.
    fn leave_first(&mut self) -> Option<Effect> {
        let item = self.queue.pop()?;
        if let Item::Settle(_, Reason::LateReceipt) = item {
            // Its client was told that nothing is learned from it, so this must not be left.
            self.queue.push(item);
            return None;
        }
        self.counts.left += 1;
        let turn = match item {
            Item::Turn(turn, receipt) => {
                self.counts.dropped_failed += 1;
                self.open.close(turn.id);
                // One of the failed writes may have been done and its answer lost.
                self.queue.push(Item::Settle(turn.id, Reason::LateReceipt));
                return Some(Effect::Refuse(receipt, Reason::LedgerFailed));
            }
            Item::Said(said) => {
                let why = "the ledger could not be written; see the server's log".to_owned();
                return Some(Effect::Decline(said.reply, why));
            }
            Item::Reward(given) => {
                let why = "the ledger could not be written; see the server's log".to_owned();
                return Some(Effect::DeclineReward(given.reply, why));
            }
            Item::Transition(transition) => transition.turn,
            Item::Settle(turn, _) => turn,
        };
        self.reopen(turn);
        None
    }

    /// Lets a turn wait for a next state again.
    fn reopen(&mut self, turn: TurnId) {
        if let Some(open) = self.open.get_mut(turn) {
            open.closing = false;
            let (meta, alive_ms) = (open.meta.clone(), open.meta.finished_ms);
            self.open.open(meta, alive_ms);
        }
    }
}

impl LoopState for State {
    type Input = Input;
    type Effect = Effect;
    type Report = Report;

    fn step(&mut self, now_ms: i64, event: Event<Input, Report>) -> Vec<Effect> {
        match event {
            Event::Started => {
                let mut effects = self.ship();
                effects.extend(self.load());
                effects
            }
            Event::Arrived(input) => self.arrived(now_ms, input),
            Event::Reported(Report::Loaded(result)) => self.take_loaded(now_ms, result),
            Event::Reported(Report::Wrote(wrote)) => self.wrote(now_ms, *wrote),
            Event::Reported(Report::Shipped(shipped)) => self.shipped(&shipped),
            Event::Reported(Report::Rested) => {
                self.backlog.rested();
                self.ship()
            }
            Event::Reported(Report::Resumed) => {
                self.pausing = false;
                self.write()
            }
            Event::Reported(Report::Done) => Vec::new(),
            Event::Ticked => {
                let mut effects = self.sweep(now_ms);
                effects.extend(self.write());
                effects
            }
            Event::Draining => {
                self.draining = true;
                for (until_ms, _) in &mut self.early_order {
                    *until_ms = now_ms;
                }
                let mut effects = self.sweep(now_ms);
                effects.extend(self.write());
                effects
            }
        }
    }

    fn is_idle(&self) -> bool {
        !self.writing && !self.pausing && !self.loading && self.queue.len() == 0
    }

    fn observe(&self) -> Vec<(&'static str, f64)> {
        let number = |name, value: usize| (name, value as f64);
        let mut numbers = self.counts.numbers();
        numbers.extend(spool_numbers(&self.backlog.status));
        numbers.extend([
            number("turns_held", self.queue.turns() + self.turns_in_write),
            number("turns_open", self.open.len()),
            number("sessions_open", self.open.sessions()),
            number("next_states_early", self.early.len()),
            number("held", self.queue.len()),
        ]);
        numbers
    }
}

fn millis(ms: u64) -> Millis {
    Millis::try_from(ms).unwrap_or(Millis::MAX)
}

#[path = "state_words.rs"]
mod words;

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
