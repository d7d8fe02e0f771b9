//! What the service counts.

use std::sync::atomic::{AtomicU64, Ordering};

use hone_domain::{BindHow, Reason, Receipt, StopReason};
use hone_monitor::numbers::Number;

/// One rising number.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Reads it.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All of them.
#[derive(Debug)]
pub struct InferenceCounters {
    binds: [Counter; 5],
    stops: [Counter; 5],
    not_collected: Vec<Counter>,
    /// Turns with a receipt of the ledger.
    pub collected: Counter,
    /// Turns with a receipt of the spool.
    pub spooled: Counter,
    /// Prompts that began with a recorded turn's exact tokens.
    pub prompts_reused: Counter,
    /// Prompts whose text differed from the recorded turn's.
    pub prompts_mismatched: Counter,
    /// Prompt tokens taken over from recorded turns.
    pub tokens_reused: Counter,
    /// Next states and session ends that found collect's queue full.
    pub notes_dropped: Counter,
    /// Turns that are not collected and could not be noted as such.
    pub late_unnoted: Counter,
    /// Completions that failed.
    pub failed: Counter,
}

/// Those that are one number each, as `/metrics` has them.
#[rustfmt::skip]
pub const COUNTERS: &[Number<InferenceCounters>] = &[
    Number::counter("prompts_reused_total", "Prompts that began with a recorded turn's exact tokens.", |c| c.prompts_reused.get() as f64),
    Number::counter("prompts_mismatched_total", "Prompts whose text differed from the recorded turn's.", |c| c.prompts_mismatched.get() as f64),
    Number::counter("prompt_tokens_reused_total", "Prompt tokens taken over from recorded turns.", |c| c.tokens_reused.get() as f64),
    Number::counter("collect_notes_dropped_total", "Next states and session ends that found the queue full.", |c| c.notes_dropped.get() as f64),
    Number::counter("turns_unnoted_total", "Turns that are not collected, and could not be noted as such.", |c| c.late_unnoted.get() as f64),
    Number::counter("completions_failed_total", "Completions that failed.", |c| c.failed.get() as f64),
];

const BINDS: [BindHow; 5] = [
    BindHow::Key,
    BindHow::Chain,
    BindHow::New,
    BindHow::Fork,
    BindHow::Ambiguous,
];
const STOPS: [StopReason; 5] = [
    StopReason::EndToken,
    StopReason::StopString,
    StopReason::Length,
    StopReason::ToolCall,
    StopReason::Cancelled,
];

impl Default for InferenceCounters {
    fn default() -> Self {
        Self {
            binds: Default::default(),
            stops: Default::default(),
            not_collected: Reason::ALL.iter().map(|_| Counter::default()).collect(),
            collected: Counter::default(),
            spooled: Counter::default(),
            prompts_reused: Counter::default(),
            prompts_mismatched: Counter::default(),
            tokens_reused: Counter::default(),
            notes_dropped: Counter::default(),
            late_unnoted: Counter::default(),
            failed: Counter::default(),
        }
    }
}

impl InferenceCounters {
    /// Counts how a request was bound.
    pub fn bound(&self, how: BindHow) {
        if let Some(at) = BINDS.iter().position(|b| *b == how) {
            self.binds[at].add(1);
        }
    }

    /// Counts how a completion ended.
    pub fn stopped(&self, stop: StopReason) {
        if let Some(at) = STOPS.iter().position(|s| *s == stop) {
            self.stops[at].add(1);
        }
    }

    /// Counts what became of a turn's record.
    pub fn receipt(&self, receipt: Receipt) {
        match receipt {
            Receipt::Collected => self.collected.add(1),
            Receipt::Spooled => self.spooled.add(1),
            Receipt::NotCollected(reason) => {
                if let Some(at) = Reason::ALL.iter().position(|r| *r == reason) {
                    self.not_collected[at].add(1);
                }
            }
        }
    }

    /// Requests by how they were bound.
    pub fn binds(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        BINDS
            .iter()
            .zip(&self.binds)
            .map(|(how, n)| (how.as_str(), n.get()))
    }

    /// Completions by how they ended.
    pub fn stops(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        STOPS
            .iter()
            .zip(&self.stops)
            .map(|(stop, n)| (stop.as_str(), n.get()))
    }

    /// Turns without a record, by reason.
    pub fn not_collected(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL
            .iter()
            .zip(&self.not_collected)
            .map(|(reason, n)| (*reason, n.get()))
    }
}
