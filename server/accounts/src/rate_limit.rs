//! Limits of keys, owners and teams: how much was used lately, and who must wait. Use fades evenly: a
//! limit of 60 a minute gives back one a second, so a burst may take all of it at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hone_domain::{Millis, RateLimits, RequestId, UserRole};
use hone_runtime::Clock;

use crate::Caller;
use crate::Error;
use crate::config::{LimitSet, LimitsConfig};
use crate::lock::locked;

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 86_400_000;
/// Sums of shares of a second are not exact.
const ROUNDING: f64 = 1e-6;

/// What was used of one limit and has not faded yet.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    amount: f64,
    at_ms: Millis,
}

/// A limit: this much in a window.
#[derive(Clone, Copy, Debug)]
struct Limit {
    most: u64,
    window_ms: u64,
}

impl Limit {
    fn per_minute(most: Option<u64>) -> Option<Self> {
        Self::of(most, MINUTE_MS)
    }

    fn of(most: Option<u64>, window_ms: u64) -> Option<Self> {
        let most = most.filter(|most| *most > 0)?;
        Some(Self { most, window_ms })
    }
}

impl Used {
    fn fade(&mut self, limit: Limit, now_ms: Millis) {
        let passed_ms = (now_ms - self.at_ms).max(0) as f64;
        let faded = passed_ms * limit.most as f64 / limit.window_ms as f64;
        self.amount = (self.amount - faded).max(0.0);
        self.at_ms = now_ms;
    }

    /// How much may be used now. Debt counts as nothing.
    fn remaining(&self, limit: Limit) -> u64 {
        (limit.most as f64 - self.amount + ROUNDING).max(0.0) as u64
    }

    /// How long until one more may be used; none if it may be now.
    fn wait_ms(&self, limit: Limit) -> Option<u64> {
        let over = self.amount + 1.0 - limit.most as f64;
        let wait_ms = over * limit.window_ms as f64 / limit.most as f64;
        (over > ROUNDING).then(|| (wait_ms - ROUNDING).ceil() as u64)
    }

    /// How long until nothing of it is used any more.
    fn reset_ms(&self, limit: Limit) -> u64 {
        let reset_ms = self.amount * limit.window_ms as f64 / limit.most as f64;
        (reset_ms - ROUNDING).max(0.0).ceil() as u64
    }
}

/// What one key or owner used.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    requests: Used,
    tokens: Used,
    day: Used,
    live: u64,
    seen_ms: Millis,
}

/// A key or an owner, with the limits it has.
#[derive(Clone, Debug)]
struct Subject {
    name: String,
    limits: RateLimits,
}

/// One limit, as the rate-limit headers give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitInfo {
    /// The limit.
    pub limit: u64,
    /// What is left of it.
    pub remaining: u64,
    /// Until all of it is there again, in milliseconds.
    pub reset_ms: u64,
}

/// What headers tell; of key, owner, keeper and team, whichever has least left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimitStatus {
    /// Requests in a minute.
    pub requests: Option<RateLimitInfo>,
    /// Tokens in a minute.
    pub tokens: Option<RateLimitInfo>,
}

fn bounded(
    caller: &Caller,
    wanted: Option<RateLimits>,
    own: RateLimits,
    everybodys: LimitSet,
) -> RateLimits {
    let wanted = wanted.unwrap_or_default();
    match caller.role {
        UserRole::Admin => wanted,
        _ => wanted.within(own, everybodys.rates()),
    }
}

#[derive(Debug, Default)]
struct Inner {
    rows: HashMap<String, Row>,
    open: HashMap<RequestId, Arc<[Subject]>>,
}

/// Limits the requests and tokens of everybody.
pub struct RateLimiter {
    config: RwLock<LimitsConfig>,
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
}

/// Permit of a request that was let in; the request counts as concurrent until this is dropped.
pub struct Permit {
    rate_limiter: Arc<RateLimiter>,
    request: RequestId,
    subjects: Arc<[Subject]>,
}

/// Records the token usage of a request for its key, owner and team.
pub struct UsageRecorder {
    rate_limiter: Arc<RateLimiter>,
    subjects: Arc<[Subject]>,
}

impl UsageRecorder {
    /// Charges tokens that were used. What is over the limit delays the next request.
    pub fn record(&self, tokens: usize) {
        self.rate_limiter.record(&self.subjects, tokens as f64);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut inner = locked(&self.rate_limiter.inner);
        inner.open.remove(&self.request);
        for subject in &*self.subjects {
            if let Some(row) = inner.rows.get_mut(&subject.name) {
                row.live = row.live.saturating_sub(1);
            }
        }
    }
}

impl RateLimiter {
    /// Nobody has used anything.
    pub fn new(config: LimitsConfig, clock: Arc<dyn Clock>) -> Self {
        Self {
            config: RwLock::new(config),
            clock,
            inner: Mutex::new(Inner::default()),
        }
    }

    /// The limits of everybody without exceptions.
    pub fn limits(&self) -> LimitsConfig {
        *self.config.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Limits of a key that a caller makes: nobody makes one with looser limits than their own, but an admin.
    pub fn of_key(&self, caller: &Caller, wanted: Option<RateLimits>) -> RateLimits {
        let own = caller.allowance.key.as_ref().map(|(_, own)| *own);
        bounded(caller, wanted, own.unwrap_or_default(), self.limits().key)
    }

    /// The same of an agent.
    pub fn of_agent(&self, caller: &Caller, wanted: Option<RateLimits>) -> RateLimits {
        bounded(caller, wanted, caller.allowance.owner, self.limits().owner)
    }

    /// Other limits from now on; what was used stays used.
    pub fn set_limits(&self, limits: LimitsConfig) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// Key, owner, keeper and team of a caller, as far as they have limits.
    fn subjects(&self, caller: &Caller) -> Vec<Subject> {
        let allowance = &caller.allowance;
        let key = allowance.key.as_ref().map(|(id, limits)| Subject {
            name: format!("key {id}"),
            limits: limits.or(self.limits().key.rates()),
        });
        let owner = Subject {
            name: format!("owner {}", caller.owner),
            limits: allowance.owner.or(self.limits().owner.rates()),
        };
        let configured = self.limits();
        let keeper = allowance.keeper.as_ref().map(|(name, limits)| Subject {
            name: format!("owner {name}"),
            limits: limits.or(configured.owner.rates()),
        });
        let team = allowance.team.as_ref().map(|(name, limits)| Subject {
            name: format!("team {name}"),
            limits: limits.or(configured.team.rates()),
        });
        let is_limited = |subject: &Subject| {
            let limits = subject.limits;
            [
                limits.requests_per_minute,
                limits.tokens_per_minute,
                limits.tokens_per_day,
                limits.streams_max,
            ]
            .iter()
            .any(|limit| limit.is_some_and(|most| most > 0))
        };
        let own = key.into_iter().chain([owner]);
        own.chain(keeper).chain(team).filter(is_limited).collect()
    }

    /// Lets a request in, or says which limit it is over and when to come back. None for a caller
    /// without limits, who costs nothing here.
    pub fn admit(
        self: &Arc<Self>,
        caller: &Caller,
        request: RequestId,
    ) -> Result<Option<Permit>, Error> {
        let subjects = self.subjects(caller);
        if subjects.is_empty() {
            return Ok(None);
        }
        let now_ms = self.clock.now_ms();
        let mut inner = locked(&self.inner);
        for subject in &subjects {
            inner.make_room(&subject.name, self.limits().counted_max);
            let row = inner.rows.entry(subject.name.clone()).or_default();
            row.seen_ms = now_ms;
            row.check(subject, now_ms)?;
        }
        for row in subjects.iter().map(|s| &s.name) {
            if let Some(row) = inner.rows.get_mut(row) {
                row.requests.amount += 1.0;
                row.live += 1;
            }
        }
        let subjects: Arc<[Subject]> = subjects.into();
        inner.open.insert(request, subjects.clone());
        drop(inner);
        Ok(Some(Permit {
            rate_limiter: self.clone(),
            request,
            subjects,
        }))
    }

    /// Who pays for a request; none where nobody counts.
    pub fn usage_recorder(self: &Arc<Self>, request: RequestId) -> Option<UsageRecorder> {
        let subjects = locked(&self.inner).open.get(&request)?.clone();
        Some(UsageRecorder {
            rate_limiter: self.clone(),
            subjects,
        })
    }

    fn record(&self, subjects: &[Subject], tokens: f64) {
        let now_ms = self.clock.now_ms();
        let mut inner = locked(&self.inner);
        for subject in subjects {
            let Some(row) = inner.rows.get_mut(&subject.name) else {
                continue;
            };
            row.fade(subject.limits, now_ms);
            row.tokens.amount += tokens;
            row.day.amount += tokens;
        }
    }

    /// What headers tell a caller.
    pub fn status(&self, caller: &Caller) -> RateLimitStatus {
        let subjects = self.subjects(caller);
        let mut status = RateLimitStatus::default();
        if subjects.is_empty() {
            return status;
        }
        let now_ms = self.clock.now_ms();
        let inner = locked(&self.inner);
        for subject in subjects {
            let mut row = inner.rows.get(&subject.name).copied().unwrap_or_default();
            row.fade(subject.limits, now_ms);
            let show = |used: Used, limit: Option<Limit>, before: Option<RateLimitInfo>| {
                let info = limit.map(|limit| RateLimitInfo {
                    limit: limit.most,
                    remaining: used.remaining(limit),
                    reset_ms: used.reset_ms(limit),
                });
                [before, info]
                    .into_iter()
                    .flatten()
                    .min_by_key(|info| info.remaining)
            };
            let limits = subject.limits;
            let requests = Limit::per_minute(limits.requests_per_minute);
            status.requests = show(row.requests, requests, status.requests);
            let tokens = Limit::per_minute(limits.tokens_per_minute);
            status.tokens = show(row.tokens, tokens, status.tokens);
        }
        status
    }
}

impl Row {
    fn fade(&mut self, limits: RateLimits, now_ms: Millis) {
        let rows = [
            (
                &mut self.requests,
                Limit::per_minute(limits.requests_per_minute),
            ),
            (
                &mut self.tokens,
                Limit::per_minute(limits.tokens_per_minute),
            ),
            (&mut self.day, Limit::of(limits.tokens_per_day, DAY_MS)),
        ];
        for (used, limit) in rows {
            match limit {
                Some(limit) => used.fade(limit, now_ms),
                // Nothing is owed once a limit comes.
                None => {
                    *used = Used {
                        amount: 0.0,
                        at_ms: now_ms,
                    }
                }
            }
        }
    }

    fn check(&mut self, subject: &Subject, now_ms: Millis) -> Result<(), Error> {
        let limits = subject.limits;
        self.fade(limits, now_ms);
        let streams = limits.streams_max.filter(|most| *most > 0);
        if let Some(most) = streams.filter(|most| self.live >= *most) {
            return Err(limited(subject, "completions at once", most, 1_000));
        }
        let rows = [
            (
                "requests a minute",
                self.requests,
                Limit::per_minute(limits.requests_per_minute),
            ),
            (
                "tokens a minute",
                self.tokens,
                Limit::per_minute(limits.tokens_per_minute),
            ),
            (
                "tokens a day",
                self.day,
                Limit::of(limits.tokens_per_day, DAY_MS),
            ),
        ];
        for (what, used, limit) in rows {
            let Some(limit) = limit else { continue };
            if let Some(wait_ms) = used.wait_ms(limit) {
                return Err(limited(subject, what, limit.most, wait_ms));
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Room for one more row: those unused for longest go, a quarter at a time.
    fn make_room(&mut self, name: &str, most: usize) {
        if self.rows.len() < most || self.rows.contains_key(name) {
            return;
        }
        let idle = self.rows.iter().filter(|(_, row)| row.live == 0);
        let mut idle: Vec<(Millis, String)> = idle
            .map(|(name, row)| (row.seen_ms, name.clone()))
            .collect();
        idle.sort_unstable();
        for (_, name) in idle.into_iter().take(most.div_ceil(4)) {
            self.rows.remove(&name);
        }
    }
}

fn limited(subject: &Subject, what: &str, most: u64, retry_after_ms: u64) -> Error {
    let wait_s = retry_after_ms.div_ceil(1_000);
    let what = match what.split_once("s ") {
        Some((one, per)) if most == 1 => format!("{one} {per}"),
        _ => what.to_owned(),
    };
    Error::Limited {
        code: "rate_limit_exceeded",
        message: format!(
            "rate limit reached for {}: {most} {what}; try again in {wait_s} s",
            subject.name
        ),
        retry_after_ms,
    }
}

/// A time as OpenAI's headers write it: `120ms`, `7s`, `6m0s`.
pub fn reset_text(ms: u64) -> String {
    let seconds = ms.div_ceil(1_000);
    match (ms, seconds / 3_600, seconds % 3_600 / 60, seconds % 60) {
        (0..1_000, ..) => format!("{ms}ms"),
        (_, 0, 0, s) => format!("{s}s"),
        (_, 0, m, s) => format!("{m}m{s}s"),
        (_, h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
#[path = "rate_limit_tests.rs"]
mod tests;
