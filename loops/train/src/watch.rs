//! The watch over what is served: is it doing worse than this scope is used to? Pure.
//!
//! Two charts per scope, complaints (a verdict below 0) and broken outputs (empty, looping, cut at
//! the token limit). Each is a Bernoulli CUSUM (Page 1954; Reynolds and Stoumbos 1999): the sum of
//! log-likelihood ratios of "the rate is `ratio` times what it was" against "it is what it was",
//! never below 0; above `threshold` it alarms. What it was is the upper end of the rate in the
//! scope's base period; a later period that was surely better takes its place, so that what was
//! learned is defended too. Periods are of every length from the base period's on, doubling: the
//! longer ones know the rate better, the shorter ones soon. The more of them were looked at, the
//! surer the next has to be, or the lowest of many would be chance.

use std::collections::BTreeSet;

use hone_domain::{PolicyVersion, Scope, StopReason, Token};
use hone_ledger::{PolicyRecord, PolicyStatus, WatchNews, WatchPlace};
use serde::{Deserialize, Serialize};

use crate::config::{CanaryConfig, WatchConfig};
use crate::probe::is_looping;

/// Squared standard errors above the rate of the first period that count as usual, and what every
/// e-fold of periods adds: the k-th takes `sqrt(1.5 + 2.8 ln k)`. Then the chance that it reads
/// below the true rate falls as `k^-1.4`, whose sum over all k is finite (a union bound in the form
/// of Howard, Ramdas, McAuliffe and Sekhon 2021, "Time-uniform, nonparametric, nonasymptotic
/// confidence sequences", section 3.1, with their s of 1.4 and doubling periods). Normal tails sum
/// to 0.11 for the first period and 0.13 for all others together; a smaller constant than 1.5 finds
/// changes sooner and alarms more often without one.
const FIRST_ERRORS_SQUARED: f64 = 1.5;
const ERRORS_SQUARED_PER_FOLD: f64 = 2.8;

/// How often the length of a period doubles.
const DOUBLINGS: usize = 8;

/// One rate of one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Observations of the period under way, and how many of them were bad.
    seen: u32,
    bad: u32,
    /// The first half of each longer period under way, as (observations, bad).
    #[serde(default)]
    halves: [(u32, u32); DOUBLINGS],
    /// Periods of any length that were looked at.
    #[serde(default)]
    looks: u32,
    /// The usual rate; none before the base period is over.
    usual: Option<f64>,
    /// The CUSUM.
    sum: f64,
    /// The version of the first observation since the sum last left 0.
    since: Option<PolicyVersion>,
    /// Observations since then, and how many of them were bad.
    run: (u32, u32),
}

/// A rate that has risen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alarm {
    /// The version under which it began to rise.
    pub since: PolicyVersion,
    /// The usual rate.
    pub usual: f64,
    /// The rate since it began to rise.
    pub now: f64,
}

impl Chart {
    /// Begins again from 0 where the sum began to rise under one of these.
    fn leave(&mut self, left: &BTreeSet<PolicyVersion>) {
        if self.since.is_some_and(|since| left.contains(&since)) {
            (self.sum, self.since, self.run) = (0.0, None, (0, 0));
        }
    }

    /// Takes one observation. An alarm starts the chart again from 0. What the base model sampled
    /// counts towards the base period only: there is nothing to go back to.
    pub fn observe(
        &mut self,
        config: &WatchConfig,
        (version, bad): (PolicyVersion, bool),
    ) -> Option<Alarm> {
        let alarm = self.usual.and_then(|usual| {
            let watched = version > PolicyVersion::BASE;
            watched.then(|| self.add(config, usual, version, bad))?
        });
        self.seen += 1;
        self.bad += u32::from(bad);
        if self.seen >= config.base_turns {
            self.end_periods(config);
        }
        alarm
    }

    /// Looks at the shortest period, and at each longer one that ends with it.
    fn end_periods(&mut self, config: &WatchConfig) {
        let mut period = (self.seen, self.bad);
        (self.seen, self.bad) = (0, 0);
        self.look(config, period.0, period.1);
        for at in 0..DOUBLINGS {
            let first = std::mem::take(&mut self.halves[at]);
            if first.0 == 0 {
                self.halves[at] = period;
                return;
            }
            period = (first.0 + period.0, first.1 + period.1);
            self.look(config, period.0, period.1);
        }
    }

    /// Learns from a period that is over. The first tells what is usual, and the third look, which
    /// is at the first two periods together, tells it better, unless an alarm is half-way: what so
    /// few observations say by chance would stay for ever. Of the others only the lower ones count.
    fn look(&mut self, config: &WatchConfig, seen: u32, bad: u32) {
        let is_calm = self.sum < config.threshold / 2.0;
        let is_base = self.looks == 0 || (self.looks == 2 && is_calm);
        let place = if is_base { 1 } else { self.looks + 1 };
        let rate = upper_rate(bad, seen, errors(place)).max(config.rate_min);
        let lowest = self.usual.filter(|_| !is_base);
        self.usual = Some(lowest.map_or(rate, |usual| usual.min(rate)));
        self.looks = self.looks.saturating_add(1);
    }

    fn add(
        &mut self,
        config: &WatchConfig,
        usual: f64,
        version: PolicyVersion,
        bad: bool,
    ) -> Option<Alarm> {
        // Where twice as much is more than always, half-way to always.
        let worse = (config.ratio * usual).min(f64::midpoint(1.0, usual));
        let step = if bad {
            (worse / usual).ln()
        } else {
            ((1.0 - worse) / (1.0 - usual)).ln()
        };
        self.sum += step;
        if self.sum <= 0.0 {
            (self.sum, self.since, self.run) = (0.0, None, (0, 0));
            return None;
        }
        let since = *self.since.get_or_insert(version);
        self.run.0 += 1;
        self.run.1 += u32::from(bad);
        if self.sum <= config.threshold {
            return None;
        }
        let now = f64::from(self.run.1) / f64::from(self.run.0);
        (self.sum, self.since, self.run) = (0.0, None, (0, 0));
        Some(Alarm { since, usual, now })
    }
}

/// The standard errors that the `place`-th period takes, counted from 1.
fn errors(place: u32) -> f64 {
    let folds = f64::from(place).ln();
    (FIRST_ERRORS_SQUARED + ERRORS_SQUARED_PER_FOLD * folds).sqrt()
}

/// The highest rate that `bad` in `seen` is at most so many standard errors below, its own and not
/// those of a rate that happens to read low (the upper end of the interval of Wilson 1927).
fn upper_rate(bad: u32, seen: u32, errors: f64) -> f64 {
    let n = f64::from(seen);
    let rate = f64::from(bad) / n;
    let square = errors * errors / n;
    let spread = (square * (rate * (1.0 - rate) + square / 4.0)).sqrt();
    ((rate + square / 2.0 + spread) / (1.0 + square)).min(0.95)
}

/// Whether a completion is broken: nothing, a repetition loop, or cut at its token limit.
pub fn is_broken(tokens: &[Token], stop: StopReason) -> bool {
    let is_empty = tokens.is_empty() || (stop == StopReason::EndToken && tokens.len() == 1);
    is_empty || stop == StopReason::Length || is_looping(tokens)
}

/// Observations of what a version on trial is compared with, before they say what is usual.
const MEASURE_MIN: u32 = 10;

/// One rate of a trial: what is on trial, and what the other sessions get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Contest {
    chart: Chart,
    /// Observations of the other side, and how many of them were bad.
    measure: (u32, u32),
}

impl Contest {
    /// Takes one observation of what is on trial. What is usual is what is usual in the scope;
    /// before that is known, what the other side does meanwhile.
    fn observe(
        &mut self,
        config: &WatchConfig,
        usual: Option<f64>,
        seen: (PolicyVersion, bool),
    ) -> Option<Alarm> {
        let (n, bad) = self.measure;
        let measured = (n >= MEASURE_MIN).then(|| upper_rate(bad, n, errors(1)));
        let usual = usual.or(measured.map(|rate| rate.max(config.rate_min)));
        self.chart.usual = usual;
        // Its own period never tells what is usual.
        self.chart.seen = 0;
        self.chart.bad = 0;
        self.chart.observe(config, seen)
    }

    fn measure(&mut self, bad: bool) {
        self.measure.0 += 1;
        self.measure.1 += u32::from(bad);
    }
}

/// What the watch remembers of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct TrialMemory {
    version: PolicyVersion,
    complaints: Contest,
    broken: Contest,
    /// Judged turns of what is on trial.
    judged: u64,
}

impl TrialMemory {
    fn new(version: PolicyVersion) -> Self {
        Self {
            version,
            complaints: Contest::default(),
            broken: Contest::default(),
            judged: 0,
        }
    }
}

/// What the watch remembers of a scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WatchMemory {
    complaints: Chart,
    broken: Chart,
    /// The version that the last trip left, and turns since it was first seen.
    #[serde(default)]
    trip: Option<PolicyVersion>,
    since_trip: u64,
    /// The trial under way.
    #[serde(default)]
    trial: Option<TrialMemory>,
}

impl WatchMemory {
    /// Takes an answer; true of what is on trial, whose alarm is the trial's.
    fn answered(
        &mut self,
        config: &WatchConfig,
        seen: (PolicyVersion, bool),
    ) -> (bool, Option<Alarm>) {
        if let Some(trial) = &mut self.trial {
            if trial.version == seen.0 {
                return (true, trial.broken.observe(config, self.broken.usual, seen));
            }
            trial.broken.measure(seen.1);
        }
        (false, self.broken.observe(config, seen))
    }

    /// Takes a verdict, in the same way.
    fn judged(
        &mut self,
        config: &WatchConfig,
        seen: (PolicyVersion, bool),
    ) -> (bool, Option<Alarm>) {
        if let Some(trial) = &mut self.trial {
            if trial.version == seen.0 {
                trial.judged += 1;
                let usual = self.complaints.usual;
                return (true, trial.complaints.observe(config, usual, seen));
            }
            trial.complaints.measure(seen.1);
        }
        (false, self.complaints.observe(config, seen))
    }
}

/// What is read for one look.
#[derive(Debug)]
pub struct WatchLook {
    /// What happened.
    pub news: WatchNews,
    /// Every scope in it, with what is remembered and whether its learning is stopped or pinned.
    pub scopes: Vec<(Scope, WatchMemory, Held)>,
}

/// What holds a scope, as far as the watch cares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// A person keeps the version.
    pub pinned: bool,
    /// The watch stopped learning when it left this version.
    pub tripped: Option<PolicyVersion>,
    /// This version is on trial.
    pub trial: Option<PolicyVersion>,
    /// These were left by a rollback: what comes late of them says nothing of what is served.
    pub left: BTreeSet<PolicyVersion>,
}

/// What follows from a look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WatchDecision {
    /// How far was read.
    pub place: WatchPlace,
    /// What is remembered now.
    pub memories: Vec<(Scope, WatchMemory)>,
    /// Scopes to be taken back, from the version under which it began, and why.
    pub trips: Vec<(Scope, Alarm, &'static str)>,
    /// Scopes that may learn again.
    pub resumes: Vec<Scope>,
    /// Versions that did badly on trial, and why.
    pub failures: Vec<(Scope, PolicyVersion, Alarm, &'static str)>,
    /// Versions that did well on trial for long enough.
    pub proofs: Vec<(Scope, PolicyVersion)>,
}

/// Looks at everything new.
pub fn look(config: &WatchConfig, canary: &CanaryConfig, look: WatchLook) -> WatchDecision {
    let mut decision = WatchDecision {
        place: look.news.place,
        ..WatchDecision::default()
    };
    for (scope, mut memory, held) in look.scopes {
        if memory.trial.map(|trial| trial.version) != held.trial {
            memory.trial = held.trial.map(TrialMemory::new);
        }
        memory.complaints.leave(&held.left);
        memory.broken.leave(&held.left);
        let (served, tried) = alarms(config, &look.news, &scope, &mut memory, &held.left);
        if held.tripped.is_some() {
            // What is remembered may be from before the trip, and so may what is read now.
            if memory.trip != held.tripped {
                (memory.trip, memory.since_trip) = (held.tripped, 0);
            }
            let enough = config.resume_turns > 0 && memory.since_trip >= config.resume_turns;
            if enough {
                decision.resumes.push(scope.clone());
            }
        } else if let (Some((alarm, what)), false) = (served, held.pinned) {
            decision.trips.push((scope.clone(), alarm, what));
        } else if let Some(trial) = memory.trial {
            let proven = canary.turns > 0 && trial.judged >= canary.turns;
            match tried {
                Some((alarm, what)) => {
                    let failed = (scope.clone(), trial.version, alarm, what);
                    decision.failures.push(failed);
                    memory.trial = None;
                }
                None if proven => {
                    decision.proofs.push((scope.clone(), trial.version));
                    memory.trial = None;
                }
                None => {}
            }
        }
        decision.memories.push((scope, memory));
    }
    decision
}

type Found = Option<(Alarm, &'static str)>;

/// The first alarm about what is served, and the first about what is on trial.
fn alarms(
    config: &WatchConfig,
    news: &WatchNews,
    scope: &Scope,
    memory: &mut WatchMemory,
    left: &BTreeSet<PolicyVersion>,
) -> (Found, Found) {
    let is_heard = |of: &Scope, version| of == scope && !left.contains(&version);
    let (mut served, mut tried) = (None, None);
    let mut note = |(on_trial, alarm): (bool, Option<Alarm>), what| {
        let place = if on_trial { &mut tried } else { &mut served };
        *place = place.take().or(alarm.map(|alarm| (alarm, what)));
    };
    let turns = news.turns.iter();
    for turn in turns.filter(|turn| is_heard(&turn.scope, turn.version)) {
        memory.since_trip += 1;
        let seen = (turn.version, is_broken(&turn.tokens, turn.stop));
        note(memory.answered(config, seen), "broken-output rate");
    }
    let verdicts = news.verdicts.iter();
    for verdict in verdicts.filter(|verdict| is_heard(&verdict.scope, verdict.version)) {
        let seen = (verdict.version, verdict.score < 0.0);
        note(memory.judged(config, seen), "complaint rate");
    }
    (served, tried)
}

/// The newest good version before `since`: the nearest on its lineage, past an import what that took
/// the place of, that has files, was not left itself, and is another one than what is served. None
/// where there is nothing else, and where what is served does not come from `since`: that was left
/// already, and what is said of it comes late.
///
/// `records` are the scope's newest versions, newest first; what is older than all of them counts
/// as the base model.
pub fn last_good(records: &[PolicyRecord], since: PolicyVersion) -> Option<PolicyVersion> {
    let head = &records.first()?.policy;
    let find = |version| records.iter().find(|r| r.policy.version == version);
    if left(records).contains(&since) {
        return None;
    }
    let mut at = find(since).map_or(PolicyVersion::BASE, before);
    while let Some(record) = find(at) {
        let is_other = record.policy.digest != head.digest;
        if is_other && !record.is_tripped && record.can_answer() {
            return Some(at);
        }
        at = before(record);
    }
    (!head.is_base()).then_some(PolicyVersion::BASE)
}

/// What answered before a version: what it continues, or what an import took the place of.
fn before(record: &PolicyRecord) -> PolicyVersion {
    match record.status {
        PolicyStatus::Imported => PolicyVersion(record.policy.version.0.saturating_sub(1)),
        PolicyStatus::Published | PolicyStatus::Rollback => record.parent,
    }
}

/// Those of `records`, a scope's newest versions, newest first, that the newest does not come from.
pub(crate) fn left(records: &[PolicyRecord]) -> BTreeSet<PolicyVersion> {
    let mut at = records.first().map(|record| record.policy.version);
    let mut left = BTreeSet::new();
    for record in records {
        if Some(record.policy.version) == at {
            at = Some(record.parent);
        } else {
            left.insert(record.policy.version);
        }
    }
    left
}

/// The note of an automatic rollback.
pub(crate) fn note(alarm: &Alarm, what: &str) -> String {
    format!(
        "auto: {what} {:.0} % since version {}, usually at most {:.0} %",
        alarm.now * 100.0,
        alarm.since,
        alarm.usual * 100.0
    )
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
