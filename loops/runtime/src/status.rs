//! What every loop is doing, for people, probes and tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::watch;

/// A loop's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopPhase {
    /// Not begun yet.
    Starting,
    /// At work.
    Running,
    /// Switched off by an admin; its queue fills up meanwhile.
    Paused,
    /// Failed; begins again after a pause.
    Restarting,
    /// Finishing what is under way.
    Draining,
    /// Ended.
    Stopped,
}

/// A loop's entry in the status registry.
#[derive(Clone, Debug, Serialize)]
pub struct LoopStatus {
    /// Its condition.
    pub state: LoopPhase,
    /// Steps taken since the process began.
    pub steps: u64,
    /// When the last step was taken.
    pub last_step_ms: i64,
    /// Effects under way.
    pub effects_in_flight: usize,
    /// Values waiting in its inbox.
    pub queue_depth: usize,
    /// Most values its inbox holds.
    pub queue_limit: usize,
    /// Values its inbox dropped.
    pub queue_dropped: u64,
    /// How often it was begun again after a failure.
    pub restarts: u64,
    /// What its last failure said.
    pub last_error: Option<String>,
    /// The loop's own numbers.
    pub numbers: BTreeMap<&'static str, f64>,
}

impl LoopStatus {
    fn new() -> Self {
        Self {
            state: LoopPhase::Starting,
            steps: 0,
            last_step_ms: 0,
            effects_in_flight: 0,
            queue_depth: 0,
            queue_limit: 0,
            queue_dropped: 0,
            restarts: 0,
            last_error: None,
            numbers: BTreeMap::new(),
        }
    }
}

/// Pauses and resumes a loop from outside.
#[derive(Clone, Debug)]
pub struct Switch {
    paused: watch::Sender<bool>,
    held: watch::Sender<bool>,
}

impl Switch {
    fn new() -> Self {
        Self {
            paused: watch::Sender::new(false),
            held: watch::Sender::new(false),
        }
    }

    /// Pauses (true) or resumes (false).
    pub fn pause(&self, paused: bool) {
        self.paused.send_replace(paused);
    }

    /// Whether it is paused.
    pub fn is_paused(&self) -> bool {
        *self.paused.borrow()
    }

    /// Waits until it is paused (true) or running (false).
    pub async fn until(&self, paused: bool) {
        let mut receiver = self.paused.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _there = receiver.wait_for(|now| *now == paused).await.is_ok();
    }

    /// Holds the loop's effects (true) or lets them go (false): while they are held, nothing that
    /// the loop wants done comes to an end, as with a disk or a machine that does not answer.
    /// For tests and measurements of what a loop that hangs does to the others.
    pub fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// Whether the effects are held.
    pub fn is_held(&self) -> bool {
        *self.held.borrow()
    }

    /// Waits until the effects are free.
    pub async fn free(&self) {
        let mut receiver = self.held.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _free = receiver.wait_for(|held| !*held).await.is_ok();
    }
}

type Entries = BTreeMap<&'static str, (LoopStatus, Switch)>;

/// Registry of the status of every loop.
#[derive(Clone, Debug, Default)]
pub struct StatusRegistry(Arc<Mutex<Entries>>);

impl StatusRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters a loop; again is the same.
    pub fn enter(&self, name: &'static str) -> Switch {
        self.entries()
            .entry(name)
            .or_insert_with(|| (LoopStatus::new(), Switch::new()))
            .1
            .clone()
    }

    /// Changes a loop's entry.
    pub fn update(&self, name: &'static str, change: impl FnOnce(&mut LoopStatus)) {
        if let Some((status, _)) = self.entries().get_mut(name) {
            change(status);
        }
    }

    /// The switch of a loop, by name.
    pub fn switch(&self, name: &str) -> Option<Switch> {
        self.entries().get(name).map(|(_, switch)| switch.clone())
    }

    /// A copy of every entry.
    pub fn snapshot(&self) -> BTreeMap<&'static str, LoopStatus> {
        self.entries()
            .iter()
            .map(|(name, (status, _))| (*name, status.clone()))
            .collect()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
