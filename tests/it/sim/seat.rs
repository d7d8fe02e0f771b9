//! A loop taken apart: its state, its effects, and everything between them, moved by hand.

use hone_runtime::{Effects, Event, Inbox, LoopState};

use super::ledger::SimLedger;
use super::rng::Rng;

/// Pauses inside effects, so that they pass on the simulator's clock.
pub(super) trait Timed {
    /// Takes the pause out of the effect; in milliseconds.
    fn take_pause_ms(&mut self) -> u64;
}

impl Timed for hone_collect::Effect {
    fn take_pause_ms(&mut self) -> u64 {
        match self {
            Self::Pause(ms) | Self::Rest(ms) => std::mem::take(ms),
            _ => 0,
        }
    }
}

impl Timed for hone_judge::Effect {
    fn take_pause_ms(&mut self) -> u64 {
        match self {
            Self::Record { after_ms, .. } => std::mem::take(after_ms),
            _ => 0,
        }
    }
}

impl Timed for hone_train::Effect {
    fn take_pause_ms(&mut self) -> u64 {
        0
    }
}

/// A loop at its place. Without a state it is down; its inbox goes on filling.
pub(super) struct Seat<R: LoopState, H> {
    pub(super) at_work: Option<(R, H)>,
    pub(super) inbox: Inbox<R::Input>,
    /// When they may be performed.
    pub(super) effects: Vec<(i64, R::Effect)>,
    pub(super) reports: Vec<R::Report>,
    /// Effects of a run that is gone, which another process may still perform.
    pub(super) leftovers: Vec<(H, R::Effect)>,
    pub(super) draining: bool,
}

impl<R, H> Seat<R, H>
where
    R: LoopState,
    R::Effect: Timed,
    H: Effects<R>,
{
    pub(super) fn empty(inbox: Inbox<R::Input>) -> Self {
        Self {
            at_work: None,
            inbox,
            effects: Vec::new(),
            reports: Vec::new(),
            leftovers: Vec::new(),
            draining: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.at_work.is_some()
    }

    /// Starts it.
    pub(super) fn start(&mut self, now_ms: i64, state: R, effects: H) {
        self.at_work = Some((state, effects));
        self.draining = false;
        self.step(now_ms, Event::Started);
    }

    pub(super) fn step(&mut self, now_ms: i64, event: Event<R::Input, R::Report>) {
        let Some((state, _)) = &mut self.at_work else {
            return;
        };
        for mut effect in state.step(now_ms, event) {
            let pause = i64::try_from(effect.take_pause_ms()).unwrap();
            self.effects.push((now_ms + pause, effect));
        }
    }

    /// Whether an input was there.
    pub(super) fn deliver(&mut self, now_ms: i64) -> bool {
        if !self.is_up() {
            return false;
        }
        let input = self.inbox.try_recv();
        let was_there = input.is_some();
        if let Some(input) = input {
            self.step(now_ms, Event::Arrived(input));
        }
        was_there
    }

    /// Effects whose time has come, by place.
    pub(super) fn due(&self, now_ms: i64) -> Vec<usize> {
        let due = self.effects.iter().enumerate();
        due.filter(|(_, (at_ms, _))| *at_ms <= now_ms)
            .map(|(place, _)| place)
            .collect()
    }

    /// Performs one effect; its report waits to be delivered.
    pub(super) async fn perform(&mut self, place: usize) {
        let (_, effect) = self.effects.remove(place);
        if let Some((_, effects)) = &self.at_work {
            let report = Box::pin(effects.perform(effect)).await;
            self.reports.push(report);
        }
    }

    /// Delivers the report at `place`.
    pub(super) fn hear(&mut self, now_ms: i64, place: usize) {
        let report = self.reports.remove(place);
        self.step(now_ms, Event::Reported(report));
    }

    /// Whether a run that was asked to stop has finished.
    pub(super) fn is_drained(&self) -> bool {
        let idle = self
            .at_work
            .as_ref()
            .is_some_and(|(state, _)| state.is_idle());
        self.draining && idle && self.effects.is_empty() && self.reports.is_empty()
    }

    /// A number of the status registry; 0 where the loop is down.
    pub(super) fn number(&self, name: &str) -> u64 {
        let numbers = self.at_work.as_ref().map(|(state, _)| state.observe());
        let found = numbers.and_then(|all| all.into_iter().find(|(key, _)| *key == name));
        found.map_or(0, |(_, value)| value as u64)
    }
}

/// Ends a run at once. What it wanted done is not done, done, done half-way, or, where `survives`,
/// done later by a process that does not know yet; the reports are lost.
pub(super) async fn crash<R, H>(
    seat: &mut Seat<R, H>,
    (ledger, rng): (&SimLedger, &mut Rng),
    survives: bool,
) where
    R: LoopState,
    R::Effect: Timed,
    H: Effects<R>,
{
    let Some((state, effects)) = seat.at_work.take() else {
        return;
    };
    drop(state);
    seat.reports.clear();
    seat.draining = false;
    for (_, effect) in std::mem::take(&mut seat.effects) {
        match rng.below(if survives { 4 } else { 3 }) {
            0 => drop(effect),
            1 => drop(Box::pin(effects.perform(effect)).await),
            2 => {
                ledger.hang_after(rng.below(4), rng.chance(50));
                tokio::select! {
                    biased;
                    report = Box::pin(effects.perform(effect)) => drop(report),
                    () = ledger.until_hung() => {}
                }
                ledger.hang_never();
            }
            _ => seat.leftovers.push((effects.clone(), effect)),
        }
    }
}
