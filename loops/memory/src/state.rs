//! The loop's state: what is being read, and what was counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use hone_domain::{MemoryId, Millis};
use hone_ledger::{MemoryCounts, UnreadTurn};
use hone_runtime::{Event, Ids, LoopState, Notification};

use crate::extract::extract;
use crate::{Config, Effect, Report};

/// Names of what is refused, in the order they are told.
const REFUSED: [(&str, &str); 6] = [
    ("empty", "refused_empty_total"),
    ("too_long", "refused_long_total"),
    ("secret_key", "refused_key_total"),
    ("secret_password", "refused_password_total"),
    ("secret_card", "refused_card_total"),
    ("secret_private_key", "refused_private_key_total"),
];

#[derive(Debug, Default)]
struct Counts {
    read: u64,
    new: u64,
    same: u64,
    full: u64,
    skills: u64,
    refused: BTreeMap<&'static str, u64>,
    ledger_failures: u64,
}

/// What the loop knows.
pub struct State {
    config: Config,
    ids: Arc<dyn Ids>,
    reading: bool,
    /// Extractions being stored.
    storing: usize,
    /// There may be more to read than was.
    again: bool,
    /// Not before this time, after a failure.
    free_from_ms: Millis,
    draining: bool,
    counts: Counts,
}

impl State {
    /// A state that has read nothing.
    pub fn new(config: Config, ids: Arc<dyn Ids>) -> Self {
        Self {
            config,
            ids,
            reading: false,
            storing: 0,
            again: false,
            free_from_ms: Millis::MIN,
            draining: false,
            counts: Counts::default(),
        }
    }

    fn read(&mut self, now_ms: Millis) -> Vec<Effect> {
        if self.reading || self.storing > 0 {
            self.again = true;
            return Vec::new();
        }
        if self.draining || now_ms < self.free_from_ms {
            return Vec::new();
        }
        (self.reading, self.again) = (true, false);
        let limit = self.config.read_batch;
        vec![Effect::Read { limit }]
    }

    fn failed(&mut self, now_ms: Millis) {
        self.counts.ledger_failures += 1;
        let pause = Millis::try_from(self.config.retry_ms).unwrap_or(Millis::MAX);
        self.free_from_ms = now_ms.saturating_add(pause);
    }

    fn extract(&mut self, now_ms: Millis, turns: &[UnreadTurn]) -> Vec<Effect> {
        self.again |= turns.len() >= self.config.read_batch;
        self.storing = turns.len();
        self.counts.read += turns.len() as u64;
        let ids = self.ids.clone();
        let mut effects = Vec::with_capacity(turns.len());
        for turn in turns {
            let (extraction, refused) = extract(turn, now_ms, || MemoryId(ids.next()));
            for why in refused {
                *self.counts.refused.entry(why.as_str()).or_default() += 1;
            }
            effects.push(Effect::Store {
                scope: turn.scope.clone(),
                extraction: Box::new(extraction),
            });
        }
        effects
    }

    fn stored(&mut self, counts: MemoryCounts) {
        self.counts.new += counts.new;
        self.counts.same += counts.same;
        self.counts.full += counts.full;
        self.counts.skills += counts.skills;
    }

    fn reported(&mut self, now_ms: Millis, report: Report) -> Vec<Effect> {
        match report {
            Report::Read(result) => {
                self.reading = false;
                match result {
                    Ok(turns) if !turns.is_empty() => return self.extract(now_ms, &turns),
                    Ok(_) => {}
                    Err(_) => self.failed(now_ms),
                }
            }
            Report::Stored(result) => {
                self.storing = self.storing.saturating_sub(1);
                match result {
                    Ok(counts) => self.stored(counts),
                    // It is read again.
                    Err(_) => self.failed(now_ms),
                }
            }
        }
        match self.again && self.storing == 0 {
            true => self.read(now_ms),
            false => Vec::new(),
        }
    }
}

impl LoopState for State {
    type Input = Notification;
    type Effect = Effect;
    type Report = Report;

    fn step(&mut self, now_ms: i64, event: Event<Notification, Report>) -> Vec<Effect> {
        match event {
            Event::Started | Event::Arrived(Notification) | Event::Ticked => self.read(now_ms),
            Event::Reported(report) => self.reported(now_ms, report),
            Event::Draining => {
                self.draining = true;
                Vec::new()
            }
        }
    }

    fn is_idle(&self) -> bool {
        !self.reading && self.storing == 0
    }

    fn observe(&self) -> Vec<(&'static str, f64)> {
        let counts = &self.counts;
        let mut numbers = vec![
            ("turns_read_total", counts.read as f64),
            ("written_total", counts.new as f64),
            ("merged_total", counts.same as f64),
            ("refused_full_total", counts.full as f64),
            ("skills_made_total", counts.skills as f64),
            ("ledger_failures_total", counts.ledger_failures as f64),
        ];
        numbers.extend(REFUSED.iter().map(|(why, name)| {
            let count = counts.refused.get(why).copied().unwrap_or_default();
            (*name, count as f64)
        }));
        numbers
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
