//! Watches the process: a sample of everything measured every few seconds, kept in bounded
//! memory, with the answer to "is it learning" and what needs attention.
//!
//! In: counters, status registry and ledger · Out: series, samples, sentences · Never: changes anything.

mod config;
pub mod history;
pub mod sample;
pub mod why;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hone_domain::{Policies, Reason};
use hone_ledger::{Ledger, LedgerCounts, PolicyStatus, Versions};
use hone_runtime::{Clock, LatestReader, Shutdown, StatusRegistry};
use hone_serve::EngineStats;
use serde::Serialize;
use tokio::time::timeout;

pub use crate::alert::Since;
use crate::numbers::GatewayStatus;
use crate::troubles::Troubles;
pub use config::ConsoleConfig;
use history::{History, Point, Values};
use sample::{Look, Published};
use why::{Alert, EVENTS, Facts, Why};

/// Longest that a sample waits for each answer of the ledger.
const LEDGER_TIMEOUT: Duration = Duration::from_secs(1);
/// Most versions whose reports one sample reads; of more only the newest.
const PUBLISHED_MAX: u64 = 16;
/// Most held scopes that are looked at.
const HELD_MAX: usize = 10_000;
/// How long an alert stays after what it told of was last seen.
const ALERT_HOLD_MS: i64 = 60_000;

/// What the watch asks of the part that answers requests.
pub trait Serving: Send + Sync {
    /// The engine's counters.
    fn engine(&self) -> EngineStats;
    /// Whether turns of what is served may train.
    fn can_train(&self) -> bool;
    /// Sessions remembered.
    fn sessions(&self) -> usize;
    /// Answers without a record since the start, by reason.
    fn uncollected(&self) -> Vec<(Reason, u64)>;
    /// Completions under way.
    fn completions_live(&self) -> usize;
}

/// All that the watch reads.
#[derive(Clone)]
pub struct Sources {
    /// Turns and versions.
    pub ledger: Arc<dyn Ledger>,
    /// Decisions about versions; the same ledger.
    pub versions: Arc<dyn Versions>,
    /// Published versions.
    pub policies: LatestReader<Policies>,
    /// The loops' conditions.
    pub registry: StatusRegistry,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The part that answers requests, where it runs in this process.
    pub serving: Option<Arc<dyn Serving>>,
    /// Whether new completions are refused.
    pub is_draining: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// A sample as followers get it.
#[derive(Clone, Debug, Serialize)]
pub struct SampleEvent {
    /// When, in milliseconds since the Unix epoch; also the event's id.
    pub at_ms: i64,
    /// Numbers by name.
    pub values: Values,
    /// Whether it is learning now.
    pub why: WhyNow,
}

/// The answer with what needs attention.
#[derive(Clone, Debug, Serialize)]
pub struct WhyNow {
    /// The answer.
    #[serde(flatten)]
    pub why: Why,
    /// What needs attention.
    pub alerts: Vec<Since>,
}

/// What is remembered.
pub struct Watch {
    config: ConsoleConfig,
    batch_turns_min: usize,
    /// What is wrong until it is mended; told at once, not with the next sample.
    pub troubles: Troubles,
    state: Mutex<State>,
}

struct State {
    history: History,
    last: Option<Look>,
    seen: Option<Seen>,
    facts: Facts,
    alerts: BTreeMap<String, Held>,
    /// What was counted of events since they began, and when last.
    grown: BTreeMap<&'static str, (u64, i64)>,
}

struct Held {
    since_ms: i64,
    last_ms: i64,
    alert: Alert,
}

/// How far the ledger's versions were followed.
#[derive(Clone, Copy, Debug)]
struct Seen {
    versions: u64,
    last_publish_ms: Option<i64>,
    refused_then: u64,
}

impl Watch {
    /// An empty one. `batch_turns_min`: judged turns of one scope that make a batch.
    pub fn new(config: ConsoleConfig, batch_turns_min: usize, troubles: Troubles) -> Self {
        let state = State {
            history: History::new(config.history()),
            last: None,
            seen: None,
            facts: Facts::default(),
            alerts: BTreeMap::new(),
            grown: BTreeMap::new(),
        };
        Self {
            config,
            batch_turns_min,
            troubles,
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves it whole, whatever panicked later.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one sample.
    pub async fn sample(&self, sources: &Sources) {
        let seen = self.state().seen;
        let (look, seen) = look(sources, seen).await;
        let mut state = self.state();
        let values = sample::values(state.last.as_ref(), &look);
        state.history.push(look.at_ms, &values);
        state.facts = self.facts(sources, state.last.as_ref(), &look, seen);
        state.last = Some(look);
        state.seen = seen;
        state.count_events();
        state.remember_alerts();
    }

    fn facts(
        &self,
        sources: &Sources,
        before: Option<&Look>,
        now: &Look,
        seen: Option<Seen>,
    ) -> Facts {
        let refused = now.counts.as_ref().map_or(0, |counts| counts.refused);
        let events = EVENTS.iter().map(|event| {
            let was = before.and_then(|before| (event.count)(before));
            let grown = (event.count)(now).zip(was);
            (
                event.id,
                grown.map_or(0, |(is, was)| is.saturating_sub(was)),
            )
        });
        Facts {
            draining: (sources.is_draining)(),
            can_train: sources.serving.as_ref().map(|serving| serving.can_train()),
            last_publish_ms: seen.and_then(|seen| seen.last_publish_ms),
            refused_since: seen.map_or(0, |seen| refused.saturating_sub(seen.refused_then)),
            batch_turns_min: self.batch_turns_min,
            events: events.collect(),
            now: now.clone(),
        }
    }

    /// Whether it is learning, and what needs attention.
    pub fn why(&self) -> (Why, Vec<Since>) {
        let state = self.state();
        (self.why_of(&state), self.alerts_of(&state))
    }

    fn why_of(&self, state: &State) -> Why {
        let stops = self.troubles.stops_learning();
        stops.map_or_else(|| why::why(&state.facts), |trouble| why::stopped(&trouble))
    }

    fn alerts_of(&self, state: &State) -> Vec<Since> {
        let mut alerts = self.troubles.alerts();
        alerts.extend(state.alerts());
        alerts
    }

    /// Points of these names, or of all, from `since_ms` on, or of the whole fine history; the step
    /// between them; and every known name.
    pub fn series(&self, names: Option<Vec<String>>, since_ms: Option<i64>) -> Series {
        let state = self.state();
        let since_ms = since_ms.unwrap_or_else(|| state.history.oldest_ms());
        let coarse = state.history.is_coarse(since_ms);
        let mut known = state.history.names().to_vec();
        known.sort();
        let names = names.unwrap_or_else(|| known.clone());
        let data = names.into_iter().map(|name| {
            let (points, _) = state.history.series(&name, since_ms);
            (name, points)
        });
        Series {
            step_ms: match coarse {
                true => self.config.coarse_step_ms,
                false => self.config.sample_step_ms,
            },
            data: data.collect(),
            names: known,
        }
    }

    /// The oldest sample after a time.
    pub fn after(&self, at_ms: i64) -> Option<SampleEvent> {
        let state = self.state();
        let (at_ms, values) = state.history.after(at_ms)?;
        Some(SampleEvent {
            at_ms,
            values,
            why: WhyNow {
                why: self.why_of(&state),
                alerts: self.alerts_of(&state),
            },
        })
    }

    /// The time of the newest sample.
    pub fn newest_ms(&self) -> Option<i64> {
        self.state().history.newest_ms()
    }
}

/// Points of some names.
#[derive(Clone, Debug)]
pub struct Series {
    /// Milliseconds between two points.
    pub step_ms: u64,
    /// Points by name.
    pub data: BTreeMap<String, Vec<Point>>,
    /// Every known name.
    pub names: Vec<String>,
}

impl State {
    /// An alert counts all that happened since it began, not what the last sample saw.
    fn count_events(&mut self) {
        let now = self.facts.now.at_ms;
        let events = self.facts.events.iter_mut();
        for (name, count) in events.filter(|(_, count)| **count > 0) {
            let (sum, last_ms) = self.grown.entry(name).or_insert((0, now));
            if now - *last_ms > ALERT_HOLD_MS {
                *sum = 0;
            }
            (*sum, *last_ms) = (*sum + *count, now);
            *count = *sum;
        }
    }

    fn remember_alerts(&mut self) {
        let now = self.facts.now.at_ms;
        for alert in why::alerts(&self.facts) {
            let held = self.alerts.entry(alert.id.clone()).or_insert_with(|| Held {
                since_ms: now,
                last_ms: now,
                alert: alert.clone(),
            });
            (held.last_ms, held.alert) = (now, alert);
        }
        self.alerts.retain(|_, held| {
            let hold_ms = if why::is_event(&held.alert.id) {
                ALERT_HOLD_MS
            } else {
                0
            };
            now - held.last_ms <= hold_ms
        });
    }

    fn alerts(&self) -> Vec<Since> {
        let since = |held: &Held| Since {
            since_ms: held.since_ms,
            alert: held.alert.clone(),
        };
        self.alerts.values().map(since).collect()
    }
}

/// Looks at everything once.
async fn look(sources: &Sources, seen: Option<Seen>) -> (Look, Option<Seen>) {
    let ledger = &sources.ledger;
    let counts = answered("counts", ledger.counts()).await;
    let oldest = match &counts {
        Some(_) => answered("waits", ledger.oldest_pending()).await,
        None => None,
    };
    let held = match &counts {
        Some(_) => answered("standings", sources.versions.standings(HELD_MAX)).await,
        None => None,
    };
    let (published, seen) = match &counts {
        Some(counts) => follow(sources, counts, seen).await,
        None => (Vec::new(), seen),
    };
    let serving = sources.serving.as_ref();
    let look = Look {
        at_ms: sources.clock.now_ms(),
        engine: serving.map(|serving| serving.engine()),
        loops: sources.registry.snapshot(),
        counts,
        oldest: oldest.unwrap_or_default(),
        published,
        gateway: GatewayStatus {
            scopes_with_policy: sources.policies.get().len(),
            sessions: serving.map_or(0, |serving| serving.sessions()),
            completions_live: serving.map_or(0, |serving| serving.completions_live()),
        },
        uncollected: serving.map_or_else(Vec::new, |serving| serving.uncollected()),
        held: held.unwrap_or_default(),
    };
    (look, seen)
}

async fn answered<T>(
    what: &'static str,
    asked: impl Future<Output = Result<T, hone_ledger::LedgerError>>,
) -> Option<T> {
    match timeout(LEDGER_TIMEOUT, asked).await {
        Ok(Ok(answer)) => Some(answer),
        Ok(Err(error)) => {
            tracing::warn!(what, %error, "the watch could not read the ledger");
            None
        }
        Err(_) => {
            tracing::warn!(what, "the ledger did not answer the watch in time");
            None
        }
    }
}

/// Reads what was published since the look before; at the start only when that was last.
async fn follow(
    sources: &Sources,
    counts: &LedgerCounts,
    seen: Option<Seen>,
) -> (Vec<Published>, Option<Seen>) {
    let new = match seen {
        Some(seen) => counts
            .versions
            .saturating_sub(seen.versions)
            .min(PUBLISHED_MAX),
        None => counts.versions.min(1),
    };
    let none = Seen {
        versions: counts.versions,
        last_publish_ms: seen.and_then(|seen| seen.last_publish_ms),
        refused_then: seen.map_or(counts.refused, |seen| seen.refused_then),
    };
    if new == 0 {
        return (Vec::new(), Some(none));
    }
    let newest = sources.ledger.versions(None, new as usize);
    let Some(records) = answered("versions", newest).await else {
        // The next look tries again.
        return (Vec::new(), seen);
    };
    // An older version that is published again is nothing learned, nor is one made elsewhere.
    let learned = records
        .iter()
        .filter(|record| record.status == PolicyStatus::Published)
        .map(|record| record.published_ms);
    let now = learned.max().map_or(none, |published_ms| Seen {
        last_publish_ms: Some(published_ms),
        refused_then: counts.refused,
        ..none
    });
    if seen.is_none() {
        return (Vec::new(), Some(now));
    }
    let mut published = Vec::new();
    for record in records {
        let ages = sources
            .ledger
            .sample_ages(&record.policy.scope, record.policy.version);
        let ages = answered("ages", ages).await.unwrap_or_default();
        published.push(Published { record, ages });
    }
    (published, Some(now))
}

/// Samples until the stop.
pub async fn run(watch: Arc<Watch>, sources: Sources, stop: Shutdown) {
    let step = Duration::from_millis(watch.config.sample_step_ms);
    let mut ticks = tokio::time::interval(step);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.wait() => return,
            _ = ticks.tick() => watch.sample(&sources).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defaults::defaults;

    #[test]
    fn an_alert_counts_since_it_began() {
        let watch = Watch::new(defaults("console"), 8, Troubles::default());
        let mut state = watch.state();
        let mut dropped = |at_ms: i64, seen: u64| {
            state.facts = Facts {
                events: BTreeMap::from([("turns_dropped", seen)]),
                ..Facts::default()
            };
            state.facts.now.at_ms = at_ms;
            state.count_events();
            state.remember_alerts();
            let alert = state.alerts.get("turns_dropped");
            alert.map(|held| held.alert.text.clone())
        };
        assert_eq!(dropped(0, 0), None);
        for (at_ms, seen, told) in [
            (1_000, 3, "3 turns were"),
            (2_000, 1, "4 turns were"),
            (3_000, 0, "4 turns were"),
            (2_000 + 2 * ALERT_HOLD_MS, 2, "2 turns were"),
        ] {
            let said = dropped(at_ms, seen).unwrap_or_default();
            assert!(said.starts_with(told), "{at_ms}: {said}");
        }
    }
}
