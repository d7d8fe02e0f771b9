//! What the HTTP server counts about requests, whatever they ask.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the duration histogram, in seconds; the last bucket is open.
pub const BOUNDS_S: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0,
];

/// Durations of the requests of one route.
#[derive(Clone, Debug, Default)]
pub struct Durations {
    /// Per bucket of [`BOUNDS_S`], not cumulative; the open bucket is `count` minus their sum.
    pub buckets: [u64; BOUNDS_S.len()],
    /// Seconds in all.
    pub sum_s: f64,
    /// Requests in all.
    pub count: u64,
}

/// One row of the request counter.
pub type Row = (&'static str, String, u16);

#[derive(Debug, Default)]
struct Counted {
    answered: BTreeMap<Row, u64>,
    durations: BTreeMap<String, Durations>,
}

/// The counters. Routes and methods come from the router, so their number is bounded.
#[derive(Debug, Default)]
pub struct Traffic {
    in_flight: AtomicUsize,
    counted: Mutex<Counted>,
}

/// A request in flight until its headers are out.
#[derive(Debug)]
pub struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Traffic {
    /// Counts a request in.
    pub fn enter(&self) -> InFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(&self.in_flight)
    }

    /// Requests whose headers are not out yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts an answered request.
    pub fn answered(&self, (method, route, status): (&'static str, &str, u16), took: Duration) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let row = (method, route.to_owned(), status);
        *counted.answered.entry(row).or_default() += 1;
        let durations = counted.durations.entry(route.to_owned()).or_default();
        let seconds = took.as_secs_f64();
        if let Some(at) = BOUNDS_S.iter().position(|bound| seconds <= *bound) {
            durations.buckets[at] += 1;
        }
        durations.sum_s += seconds;
        durations.count += 1;
    }

    /// A copy of the counters.
    pub fn snapshot(&self) -> (BTreeMap<Row, u64>, BTreeMap<String, Durations>) {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        (counted.answered.clone(), counted.durations.clone())
    }
}
