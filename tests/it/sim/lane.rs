//! A loop as the one loop drives it, in virtual time: effects take a fixed time each.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use hone_runtime::{Effects, Event, Inbox, LoopState};

use super::ledger::SimLedger;
use super::seat::Timed;
use super::stock::BEGINNING_MS;

/// Whether a loop is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    AtWork,
    Stopped,
    Hung,
}

/// How long an effect takes, in virtual milliseconds.
pub(super) trait Costed {
    fn cost_ms(&self) -> i64;
}

impl Costed for hone_collect::Effect {
    fn cost_ms(&self) -> i64 {
        match self {
            Self::Load => 4,
            Self::Write(_) | Self::Ship(_) => 3,
            _ => 0,
        }
    }
}

impl Costed for hone_judge::Effect {
    fn cost_ms(&self) -> i64 {
        match self {
            Self::Claim { .. } => 3,
            _ => 100,
        }
    }
}

impl Costed for hone_train::Effect {
    fn cost_ms(&self) -> i64 {
        match self {
            Self::Train(_) => 40,
            _ => 3,
        }
    }
}

/// How often a loop looks for work.
const TICK_MS: i64 = 100;

/// An effect that never ends.
type Endless<R> = Pin<Box<dyn Future<Output = R>>>;

/// A loop as the one loop drives it, with virtual time for what its effects do.
pub(super) struct Lane<R: LoopState, H> {
    state: R,
    effects: H,
    pub(super) inbox: Inbox<R::Input>,
    ledger: Arc<SimLedger>,
    pub(super) mode: Mode,
    slots: usize,
    waiting: VecDeque<R::Effect>,
    under_way: Vec<(i64, R::Report)>,
    endless: Vec<Endless<R::Report>>,
}

impl<R, H> Lane<R, H>
where
    R: LoopState,
    R::Effect: Timed + Costed,
    H: Effects<R>,
{
    pub(super) fn new(
        (state, effects): (R, H),
        inbox: Inbox<R::Input>,
        ledger: Arc<SimLedger>,
        (mode, slots): (Mode, usize),
    ) -> Self {
        if mode == Mode::Hung {
            ledger.hang();
        }
        Self {
            state,
            effects,
            inbox,
            ledger,
            mode,
            slots,
            waiting: VecDeque::new(),
            under_way: Vec::new(),
            endless: Vec::new(),
        }
    }

    fn step(&mut self, now_ms: i64, event: Event<R::Input, R::Report>) {
        self.waiting.extend(self.state.step(now_ms, event));
    }

    /// Everything that happens in this millisecond.
    pub(super) async fn pass(&mut self, now_ms: i64) {
        if self.mode == Mode::Stopped {
            return;
        }
        if now_ms == BEGINNING_MS {
            self.step(now_ms, Event::Started);
        } else if (now_ms - BEGINNING_MS) % TICK_MS == 0 {
            self.step(now_ms, Event::Ticked);
        }
        loop {
            self.begin(now_ms).await;
            let over = self.under_way.iter().position(|(at, _)| *at <= now_ms);
            if let Some(place) = over {
                let (_, report) = self.under_way.remove(place);
                self.step(now_ms, Event::Reported(report));
                continue;
            }
            let input = if self.waiting.is_empty() {
                self.inbox.try_recv()
            } else {
                None
            };
            let Some(input) = input else { break };
            self.step(now_ms, Event::Arrived(input));
        }
    }

    /// Begins effects while there is room for them.
    async fn begin(&mut self, now_ms: i64) {
        while self.under_way.len() + self.endless.len() < self.slots {
            let Some(mut effect) = self.waiting.pop_front() else {
                break;
            };
            let pause_ms = i64::try_from(effect.take_pause_ms()).unwrap();
            let over_ms = now_ms + pause_ms + effect.cost_ms();
            let effects = self.effects.clone();
            let mut work: Endless<_> = Box::pin(async move { effects.perform(effect).await });
            let ledger = self.ledger.clone();
            let report = tokio::select! {
                biased;
                report = &mut work => Some(report),
                () = ledger.until_hung() => None,
            };
            match report {
                Some(report) => self.under_way.push((over_ms, report)),
                None => self.endless.push(work),
            }
        }
    }

    /// A number of its status.
    pub(super) fn number(&self, name: &str) -> u64 {
        let numbers = self.state.observe();
        let found = numbers.iter().find(|(key, _)| *key == name);
        found.unwrap_or_else(|| panic!("{name} is observed")).1 as u64
    }
}
