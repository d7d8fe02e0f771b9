//! The shape every loop has.

use std::future::Future;

/// The whole alphabet of what can happen to a loop.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<Input, Report> {
    /// The loop began, or began again after a failure: reload from the ledger.
    Started,
    /// Something arrived in the inbox.
    Arrived(Input),
    /// An effect came to its end.
    Reported(Report),
    /// The tick: look for work that no message announced.
    Ticked,
    /// No more input will come; finish what is under way.
    Draining,
}

/// A loop's pure half.
pub trait LoopState: Send + 'static {
    /// What arrives in its inbox.
    type Input: Send + 'static;
    /// What it wants done.
    type Effect: Send + 'static;
    /// How an effect went; a failure is a report too.
    type Report: Send + 'static;

    /// Changes the state and says what is to be done. `now_ms` is the clock's reading.
    fn step(&mut self, now_ms: i64, event: Event<Self::Input, Self::Report>) -> Vec<Self::Effect>;

    /// Whether nothing is under way.
    fn is_idle(&self) -> bool;

    /// Named numbers for the status registry.
    fn observe(&self) -> Vec<(&'static str, f64)>;
}

/// A loop's only IO.
pub trait Effects<R: LoopState>: Clone + Send + Sync + 'static {
    /// Performs one effect to its end.
    fn perform(&self, effect: R::Effect) -> impl Future<Output = R::Report> + Send;
}
