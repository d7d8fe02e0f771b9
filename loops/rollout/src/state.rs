//! The loop's state: which jobs run here, and what is being asked of the ledger.

use std::collections::BTreeMap;
use std::sync::Arc;

use hone_domain::{GroupId, Job, JobId, JobKind, JobState, Millis};
use hone_ledger::{JobEnd, JobLease, OpenRollout};
use hone_runtime::{Event, Ids, LoopState, Notification, ShutdownTrigger};
use serde_json::json;

use crate::choose::groups;
use crate::event::Ran;
use crate::{Config, Effect, Report};

/// Longest pause before another attempt.
const RETRY_MAX_MS: u64 = 60_000;

/// A job that runs here.
struct Held {
    lease: JobLease,
    kind: JobKind,
    attempt: u32,
    stop: ShutdownTrigger,
}

#[derive(Debug, Default)]
struct Counts {
    episodes_done: u64,
    episodes_broken: u64,
    checks: u64,
    credits: u64,
    lost: u64,
    ledger_failures: u64,
}

/// What the loop knows.
pub struct State {
    config: Config,
    ids: Arc<dyn Ids>,
    running: BTreeMap<JobId, Held>,
    /// Ends that are being noted.
    noting: usize,
    claiming: bool,
    looking: bool,
    beginning: usize,
    renewing: bool,
    /// There may be more work than was found.
    again: bool,
    /// Not before this time, after a failure.
    free_from_ms: Millis,
    draining: bool,
    counts: Counts,
}

impl State {
    /// A state that has taken nothing.
    pub fn new(config: Config, ids: Arc<dyn Ids>) -> Self {
        Self {
            config,
            ids,
            running: BTreeMap::new(),
            noting: 0,
            claiming: false,
            looking: false,
            beginning: 0,
            renewing: false,
            again: false,
            free_from_ms: Millis::MIN,
            draining: false,
            counts: Counts::default(),
        }
    }

    /// Looks for groups to begin; what is begun is claimed then.
    fn look(&mut self, now_ms: Millis) -> Vec<Effect> {
        if self.draining || now_ms < self.free_from_ms {
            return Vec::new();
        }
        if self.looking || self.beginning > 0 {
            self.again = true;
            return Vec::new();
        }
        (self.looking, self.again) = (true, false);
        vec![Effect::Look]
    }

    fn claim(&mut self, now_ms: Millis) -> Vec<Effect> {
        let free = self.config.concurrency.saturating_sub(self.running.len());
        if self.draining || self.claiming || free == 0 || now_ms < self.free_from_ms {
            return Vec::new();
        }
        self.claiming = true;
        vec![Effect::Claim(free)]
    }

    fn renew(&mut self) -> Vec<Effect> {
        if self.renewing || self.running.is_empty() {
            return Vec::new();
        }
        self.renewing = true;
        vec![Effect::Renew(
            self.running.values().map(|held| held.lease).collect(),
        )]
    }

    fn failed(&mut self, now_ms: Millis, error: &str) {
        tracing::warn!(error, "rollouts wait");
        self.counts.ledger_failures += 1;
        self.free_from_ms = now_ms.saturating_add(self.pause(1));
    }

    /// The pause before the attempt after this one.
    fn pause(&self, attempt: u32) -> Millis {
        let doubled = self
            .config
            .retry_ms
            .saturating_mul(1 << attempt.min(16).saturating_sub(1));
        Millis::try_from(doubled.min(RETRY_MAX_MS)).unwrap_or(Millis::MAX)
    }

    fn looked(&mut self, now_ms: Millis, open: &[OpenRollout]) -> Vec<Effect> {
        let ids = self.ids.clone();
        // A place that becomes free finds one that waits.
        let jobs = self.config.concurrency;
        let new = open
            .iter()
            .filter_map(|open| groups(open, jobs, || GroupId(ids.next())));
        let effects: Vec<Effect> = new.map(Effect::Begin).collect();
        self.beginning = effects.len();
        match effects.is_empty() {
            true => self.claim(now_ms),
            false => effects,
        }
    }

    fn claimed(&mut self, jobs: Vec<Job>) -> Vec<Effect> {
        let mut effects = Vec::with_capacity(jobs.len());
        for job in jobs {
            let stop = ShutdownTrigger::new();
            if self.draining {
                stop.pull();
            }
            let signal = stop.signal();
            let held = Held {
                lease: JobLease {
                    job: job.id,
                    fence: job.fence,
                },
                kind: job.kind,
                attempt: job.attempt,
                stop,
            };
            self.running.insert(job.id, held);
            effects.push(Effect::Run {
                job: Box::new(job),
                stop: signal,
            });
        }
        effects
    }

    fn ran(&mut self, job: JobId, ran: Ran, at_ms: Millis) -> Vec<Effect> {
        let Some(held) = self.running.get(&job) else {
            return Vec::new();
        };
        let (lease, kind) = (held.lease, held.kind);
        let end = match ran {
            Ran::Ended(end) => end,
            Ran::Stopped => JobEnd::Released,
            Ran::Broken(reason, what) => {
                tracing::warn!(job = %job, reason = reason.as_str(), what, "a job failed");
                JobEnd::Failed {
                    reason,
                    result: json!({"error": what}),
                    retry_ms: at_ms.saturating_add(self.pause(held.attempt)),
                }
            }
        };
        self.count(kind, &end);
        self.noting += 1;
        vec![Effect::End {
            lease,
            end: Box::new(end),
        }]
    }

    fn count(&mut self, kind: JobKind, end: &JobEnd) {
        let counts = &mut self.counts;
        let is_done = matches!(end, JobEnd::Settled { state, .. } if *state == JobState::Done);
        match (kind, is_done) {
            (JobKind::Episode, true) => counts.episodes_done += 1,
            (JobKind::Episode, false) if *end != JobEnd::Released => counts.episodes_broken += 1,
            (JobKind::Check, true) => counts.checks += 1,
            (JobKind::Credit, true) => counts.credits += 1,
            _ => {}
        }
    }

    /// An end that could not be noted is noted later: until then the job stays held.
    fn noted(
        &mut self,
        now_ms: Millis,
        lease: JobLease,
        left: Option<Box<JobEnd>>,
        result: Result<bool, String>,
    ) -> Vec<Effect> {
        self.noting = self.noting.saturating_sub(1);
        match (result, left) {
            (Err(error), Some(end)) if !self.draining => {
                self.failed(now_ms, &error);
                self.noting += 1;
                return vec![Effect::End { lease, end }];
            }
            (Ok(false), _) => self.counts.lost += 1,
            _ => {}
        }
        self.running.remove(&lease.job);
        self.look(now_ms)
    }

    fn reported(&mut self, now_ms: Millis, report: Report) -> Vec<Effect> {
        match report {
            Report::Looked(result) => {
                self.looking = false;
                match result {
                    Ok(open) => self.looked(now_ms, &open),
                    Err(error) => {
                        self.failed(now_ms, &error);
                        Vec::new()
                    }
                }
            }
            Report::Begun(result) => {
                self.beginning = self.beginning.saturating_sub(1);
                if let Err(error) = result {
                    self.failed(now_ms, &error);
                }
                match self.beginning {
                    0 => self.claim(now_ms),
                    _ => Vec::new(),
                }
            }
            Report::Claimed(result) => {
                self.claiming = false;
                match result {
                    Ok(jobs) => {
                        let mut effects = self.claimed(jobs);
                        if self.again {
                            effects.extend(self.look(now_ms));
                        }
                        effects
                    }
                    Err(error) => {
                        self.failed(now_ms, &error);
                        Vec::new()
                    }
                }
            }
            Report::Ran { job, ran, at_ms } => self.ran(job, ran, at_ms),
            Report::Noted {
                lease,
                left,
                result,
            } => self.noted(now_ms, lease, left, result),
            Report::Renewed(result) => {
                self.renewing = false;
                match result {
                    Ok(lost) => self.stop(&lost),
                    Err(error) => self.failed(now_ms, &error),
                }
                Vec::new()
            }
        }
    }

    /// Jobs that are not held any more end here without effect.
    fn stop(&mut self, lost: &[JobId]) {
        for held in lost.iter().filter_map(|job| self.running.get(job)) {
            held.stop.pull();
        }
    }
}

impl LoopState for State {
    type Input = Notification;
    type Effect = Effect;
    type Report = Report;

    fn step(&mut self, now_ms: i64, event: Event<Notification, Report>) -> Vec<Effect> {
        match event {
            Event::Started | Event::Arrived(Notification) => self.look(now_ms),
            Event::Ticked => {
                let mut effects = self.renew();
                effects.extend(self.look(now_ms));
                effects
            }
            Event::Reported(report) => self.reported(now_ms, report),
            Event::Draining => {
                self.draining = true;
                for held in self.running.values() {
                    held.stop.pull();
                }
                Vec::new()
            }
        }
    }

    fn is_idle(&self) -> bool {
        let asks = self.claiming || self.looking || self.renewing || self.beginning > 0;
        self.running.is_empty() && self.noting == 0 && !asks
    }

    fn observe(&self) -> Vec<(&'static str, f64)> {
        let counts = &self.counts;
        vec![
            ("running", self.running.len() as f64),
            ("episodes_done_total", counts.episodes_done as f64),
            ("episodes_broken_total", counts.episodes_broken as f64),
            ("checks_total", counts.checks as f64),
            ("groups_credited_total", counts.credits as f64),
            ("leases_lost_total", counts.lost as f64),
            ("ledger_failures_total", counts.ledger_failures as f64),
        ]
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
pub(crate) mod tests;
