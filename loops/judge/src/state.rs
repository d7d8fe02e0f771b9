//! Everything the judge decides: what to claim, whom to ask, when to stop waiting, what to record.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hone_domain::{ChosenBy, Millis, Outcome, Signal, Verdict, Vote};
use hone_ledger::{Claim, Claimed};
use hone_runtime::{Event, Ids, LoopState, Notification};

use crate::breaker::Breaker;
use crate::case::{Case, Hints, Unread};
use crate::certificate::Buckets;
use crate::checking::Checking;
use crate::decide::{by_feedback, vote};
use crate::event::{Key, key};
use crate::prompt::Wording;
use crate::verify;
use crate::{
    CompleteOptions, Completed, Config, Effect, ModelConfig, RecordError, Report, VoteAsk,
    VoteError,
};

mod checks;
mod replies;
mod settling;

/// Why a vote or a check is missing.
const NO_PLACE: &str = "no free place before the lease ran out";

/// A verdict on its way to the ledger.
#[derive(Debug)]
struct Recording {
    lease_ends_ms: Millis,
    tries: u32,
    /// Whether it judges what a person replied.
    is_reply: bool,
}

#[derive(Debug, Default)]
struct Counts {
    claimed: u64,
    judged: u64,
    good: u64,
    bad: u64,
    neutral: u64,
    abstained: u64,
    /// Transitions that anybody offered a hint for, and the verdicts that kept one.
    hint_offered: u64,
    hinted: u64,
    hints: Hints,
    /// Verdicts whose hint was one of several: chosen by the policy, or by rule.
    hints_chosen: u64,
    hints_unweighed: u64,
    given_up: u64,
    fenced: u64,
    released: u64,
    votes: u64,
    votes_failed: u64,
    votes_unreadable: u64,
    ledger_failures: u64,
    by_feedback: u64,
    by_verifier: u64,
    checks: u64,
    checks_failed: u64,
    by_model: u64,
    by_reading: u64,
    by_rules: u64,
    readings: u64,
    readings_failed: u64,
    /// Verdicts on what a person replied, and those of them that no signal decided.
    replies: u64,
    replies_abstained: u64,
    score_sum: f64,
    prompt_tokens: u64,
    completion_tokens: u64,
    cost: f64,
}

impl Counts {
    /// Notes what a model's answer took.
    fn took(&mut self, said: Option<&Completed>, model: Option<&ModelConfig>) {
        let Some(usage) = model.and_then(|model| said?.usage(model)) else {
            return;
        };
        self.prompt_tokens += usage.prompt_tokens;
        self.completion_tokens += usage.completion_tokens;
        self.cost += usage.cost;
    }
}

/// The loop's pure half.
pub struct State {
    config: Config,
    model: Option<ModelConfig>,
    has_weigher: bool,
    has_reader: bool,
    ids: Arc<dyn Ids>,
    breaker: Breaker,
    /// How many the claim under way asked for.
    claiming: Option<usize>,
    more: bool,
    claim_after_ms: Millis,
    claim_failures: u32,
    draining: bool,
    rules: verify::Rules,
    buckets: Buckets,
    wording: Wording,
    checking: HashMap<Key, Checking>,
    jobs: VecDeque<(Key, usize)>,
    checks_in_flight: usize,
    cases: HashMap<Key, Case>,
    asks: VecDeque<(Key, usize)>,
    votes_in_flight: usize,
    weighings_in_flight: usize,
    unread: HashMap<Key, Unread>,
    readings_in_flight: usize,
    recordings: HashMap<Key, Recording>,
    others_in_flight: usize,
    counts: Counts,
}

impl State {
    /// A state with nothing in hand. `has_completer` says whether there is anybody to ask; a
    /// configured model without one is an error of the wiring and counts as no model.
    pub fn new(config: Config, ids: Arc<dyn Ids>, has_completer: bool) -> Self {
        let model = config.model.clone().filter(|_| has_completer);
        let breaker = model.as_ref().map_or(Breaker::new(1, 0), |m| {
            Breaker::new(m.breaker_failures, m.breaker_open_ms)
        });
        // The loop validates its settings before it begins.
        let rules = verify::Rules::new(&config.verifiers).unwrap_or_default();
        Self {
            config,
            rules,
            buckets: Buckets::default(),
            wording: Wording::default(),
            checking: HashMap::new(),
            jobs: VecDeque::new(),
            checks_in_flight: 0,
            model,
            has_weigher: false,
            has_reader: false,
            ids,
            breaker,
            claiming: None,
            more: false,
            claim_after_ms: Millis::MIN,
            claim_failures: 0,
            draining: false,
            cases: HashMap::new(),
            asks: VecDeque::new(),
            votes_in_flight: 0,
            weighings_in_flight: 0,
            unread: HashMap::new(),
            readings_in_flight: 0,
            recordings: HashMap::new(),
            others_in_flight: 0,
            counts: Counts::default(),
        }
    }

    /// The same, knowing how earlier certificates turned out.
    #[must_use]
    pub fn with_buckets(mut self, buckets: Buckets) -> Self {
        self.buckets = buckets;
        self
    }

    /// The same, with somebody to weigh hints.
    #[must_use]
    pub fn with_weigher(mut self) -> Self {
        self.has_weigher = true;
        self
    }

    /// The same, with somebody to read replies.
    #[must_use]
    pub fn with_reader(mut self) -> Self {
        self.has_reader = true;
        self
    }

    /// The same, asking models with `wording`.
    #[must_use]
    pub(crate) fn with_wording(mut self, wording: Wording) -> Self {
        self.wording = wording;
        self
    }

    fn in_hand(&self) -> usize {
        self.checking.len() + self.cases.len() + self.unread.len() + self.recordings.len()
    }

    /// Claims if there may be work, a place for it, and no claim under way.
    fn claim(&mut self, now_ms: Millis) -> Vec<Effect> {
        let places = self.config.in_hand_max.saturating_sub(self.in_hand());
        let free = places.min(self.votable());
        if self.draining || self.claiming.is_some() || free == 0 || now_ms < self.claim_after_ms {
            // Whoever asked is answered when a place becomes free, or by the tick.
            self.more = true;
            return Vec::new();
        }
        self.more = false;
        let limit = free.min(self.config.claim_batch);
        self.claiming = Some(limit);
        vec![Effect::Claim { limit }]
    }

    /// How many more transitions get their votes in time even where every vote takes as long as it
    /// may.
    fn votable(&self) -> usize {
        let Some(model) = &self.model else {
            return usize::MAX;
        };
        let time_ms = self.config.lease_ms - self.config.lease_ms / 4;
        let rounds = (time_ms / model.vote_deadline_ms.max(1)).max(1);
        let rounds = usize::try_from(rounds).unwrap_or(usize::MAX);
        let votes = model.votes_in_flight_max.saturating_mul(rounds);
        let due: usize = self.cases.values().map(Case::uncast).sum();
        votes.saturating_sub(due).div_ceil(model.votes.max(1))
    }

    fn claimed(&mut self, now_ms: Millis, result: Result<Vec<Claimed>, String>) -> Vec<Effect> {
        let asked = self.claiming.take();
        let claimed = match result {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::warn!(error, "transitions could not be claimed");
                self.counts.ledger_failures += 1;
                let pause = self.pause(self.claim_failures);
                self.claim_failures = self.claim_failures.saturating_add(1);
                self.claim_after_ms = now_ms.saturating_add(millis(pause));
                return Vec::new();
            }
        };
        self.claim_failures = 0;
        // A claim that got all it asked for may have left some.
        self.more |= asked.is_some_and(|limit| claimed.len() >= limit);
        let mut effects = Vec::new();
        for one in claimed {
            effects.extend(self.take(now_ms, one));
        }
        effects.extend(self.begin_checks());
        effects.extend(self.ask());
        effects.extend(self.claim_more(now_ms));
        effects
    }

    fn claim_more(&mut self, now_ms: Millis) -> Vec<Effect> {
        if self.more {
            self.claim(now_ms)
        } else {
            Vec::new()
        }
    }

    /// Begins to judge one claimed transition.
    fn take(&mut self, now_ms: Millis, claimed: Claimed) -> Vec<Effect> {
        let claim = claimed.claim;
        self.counts.claimed += 1;
        // A transition that is claimed again while it is in hand has a newer lease; the older one
        // could not record any more.
        self.cases
            .retain(|(transition, _), _| *transition != claim.transition);
        self.checking
            .retain(|(transition, _), _| *transition != claim.transition);
        self.unread
            .retain(|(transition, _), _| *transition != claim.transition);
        if self.draining {
            return self.release(now_ms, claim);
        }
        if claimed.attempts >= self.config.attempts_max {
            self.counts.given_up += 1;
            self.others_in_flight += 1;
            return vec![Effect::GiveUp(claim)];
        }
        let lease = millis(self.config.lease_ms);
        let deadline_ms = now_ms.saturating_add(lease - lease / 4);
        let next_state = &claimed.transition.next_state;
        let (findings, jobs) = self.rules.look(&claimed.turn, next_state);
        let is_settled = by_feedback(&claimed.feedback, &claimed.turn).1.is_some();
        if is_settled || jobs.is_empty() {
            return self.verified(now_ms, claimed, deadline_ms, findings, Vec::new());
        }
        let model = self.model.as_ref();
        let checking = Checking::new(claimed, deadline_ms, findings, jobs, model);
        self.jobs
            .extend(checking.waiting().into_iter().map(|at| (key(&claim), at)));
        self.checking.insert(key(&claim), checking);
        self.end_if_checked(now_ms, key(&claim))
    }

    /// Asks for as many votes as may be under way.
    fn ask(&mut self) -> Vec<Effect> {
        let Some(model) = &self.model else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        while self.votes_in_flight < model.votes_in_flight_max {
            let Some((key, index)) = self.asks.pop_front() else {
                break;
            };
            let Some(case) = self.cases.get_mut(&key) else {
                continue;
            };
            let Some(withdrawn) = case.ask(index) else {
                continue;
            };
            self.votes_in_flight += 1;
            self.counts.votes += 1;
            effects.push(Effect::Ask(Box::new(VoteAsk {
                claim: case.claim,
                index,
                messages: case.messages.clone(),
                options: CompleteOptions {
                    temperature: model.temperature,
                    max_tokens: model.max_tokens,
                    // Ids are unique, so each transition has its own row of seeds.
                    seed: (case.claim.transition.0.as_u128() as u64).wrapping_add(index as u64),
                    deadline: Duration::from_millis(model.vote_deadline_ms),
                },
                withdrawn,
            })));
        }
        effects
    }

    fn voted(
        &mut self,
        now_ms: Millis,
        claim: Claim,
        index: usize,
        result: Result<Completed, VoteError>,
        latency_ms: u64,
    ) -> Vec<Effect> {
        self.votes_in_flight = self.votes_in_flight.saturating_sub(1);
        if result != Err(VoteError::Withdrawn) {
            self.counts.votes_failed += u64::from(result.is_err());
            self.breaker.note(now_ms, result.is_ok());
        }
        self.counts.took(result.as_ref().ok(), self.model.as_ref());
        let mut effects = Vec::new();
        if let (Some(case), Some(model)) = (self.cases.get_mut(&key(&claim)), &self.model) {
            case.cast(index, result, latency_ms, model);
            effects.extend(self.settle_if_decided(now_ms, &claim));
        }
        effects.extend(self.ask());
        effects
    }

    fn recorded(
        &mut self,
        now_ms: Millis,
        claim: Claim,
        verdict: Box<Verdict>,
        result: Result<(), RecordError>,
    ) -> Vec<Effect> {
        let Some(mut recording) = self.recordings.remove(&key(&claim)) else {
            return Vec::new();
        };
        match result {
            Ok(()) => self.count(&verdict, recording.is_reply),
            Err(RecordError::Fenced) => self.counts.fenced += 1,
            Err(RecordError::Failed(error)) => {
                self.counts.ledger_failures += 1;
                let pause = self.pause(recording.tries);
                // After the lease somebody else may hold it; the claim that follows tries again.
                if !self.draining && now_ms.saturating_add(millis(pause)) < recording.lease_ends_ms
                {
                    recording.tries = recording.tries.saturating_add(1);
                    self.recordings.insert(key(&claim), recording);
                    return vec![Effect::Record {
                        claim,
                        verdict,
                        after_ms: pause,
                    }];
                }
                tracing::warn!(transition = %claim.transition, error, "a verdict was not recorded");
            }
        }
        self.claim_more(now_ms)
    }

    fn release(&mut self, retry_at_ms: Millis, claim: Claim) -> Vec<Effect> {
        self.counts.released += 1;
        self.others_in_flight += 1;
        vec![Effect::Release { claim, retry_at_ms }]
    }

    /// Ends cases whose time is over, so that whatever a completer does, no lease runs out while its
    /// transition waits for a vote. One that lacks votes is given back, to be asked about under the
    /// next claim; under its last claim it is decided with the votes it has.
    fn expire(&mut self, now_ms: Millis) -> Vec<Effect> {
        let last = self.config.attempts_max.saturating_sub(1);
        let is_over = |case: &Case| now_ms >= case.deadline_ms;
        let lacks_votes = |case: &Case| case.outcome.is_none() && case.uncast() > 0;
        let again = self
            .cases
            .extract_if(|_, case| is_over(case) && lacks_votes(case) && case.attempts < last);
        let again: Vec<Claim> = again.map(|(_, case)| case.claim).collect();
        let over = self.cases.iter().filter(|(_, case)| is_over(case));
        let over: Vec<Key> = over.map(|(key, _)| *key).collect();
        let mut effects = Vec::new();
        for claim in again {
            effects.extend(self.release(now_ms, claim));
        }
        for key in over {
            effects.extend(self.settle(now_ms, key, None, NO_PLACE));
        }
        effects
    }

    fn drain(&mut self, now_ms: Millis) -> Vec<Effect> {
        self.draining = true;
        self.asks.clear();
        self.jobs.clear();
        let checking = self
            .checking
            .drain()
            .map(|(_, checking)| checking.claimed.claim);
        let cases = self.cases.drain().map(|(_, case)| case.claim);
        let unread = self.unread.drain().map(|(_, unread)| unread.claim);
        let claims: Vec<Claim> = checking.chain(cases).chain(unread).collect();
        claims
            .into_iter()
            .flat_map(|claim| self.release(now_ms, claim))
            .collect()
    }

    fn reported(&mut self, now_ms: Millis, report: Report) -> Vec<Effect> {
        match report {
            Report::Claimed(result) => self.claimed(now_ms, result),
            Report::Voted {
                claim,
                index,
                result,
                latency_ms,
            } => self.voted(now_ms, claim, index, result, latency_ms),
            Report::Weighed { claim, result } => self.weighed(now_ms, claim, result),
            Report::Read { claim, result } => self.has_read(now_ms, claim, result),
            Report::Checked {
                claim,
                index,
                result,
                latency_ms,
            } => self.checked(now_ms, claim, index, result, latency_ms),
            Report::Recorded {
                claim,
                verdict,
                result,
            } => self.recorded(now_ms, claim, verdict, result),
            Report::GaveUp(result) | Report::Released(result) => {
                self.others_in_flight = self.others_in_flight.saturating_sub(1);
                // The lease runs out by itself where this failed.
                self.counts.ledger_failures += u64::from(result.is_err());
                Vec::new()
            }
        }
    }

    fn pause(&self, tries: u32) -> u64 {
        let doubled = self.config.retry_ms_min.saturating_mul(1 << tries.min(20));
        doubled.min(self.config.retry_ms_max)
    }

    fn count(&mut self, verdict: &Verdict, is_reply: bool) {
        let counts = &mut self.counts;
        counts.replies += u64::from(is_reply);
        counts.replies_abstained += u64::from(is_reply && verdict.score.is_none());
        counts.judged += 1;
        counts.score_sum += f64::from(verdict.score.unwrap_or_default());
        match verdict.score {
            Some(score) if score > 0.0 => counts.good += 1,
            Some(score) if score < 0.0 => counts.bad += 1,
            Some(_) => counts.neutral += 1,
            None => counts.abstained += 1,
        }
        counts.hinted += u64::from(verdict.hint.is_some());
        counts.hint_offered += u64::from(verdict.hint.is_some());
        match verdict.hint_choice.as_ref().map(|choice| choice.by) {
            Some(ChosenBy::Agreement) => counts.hints_chosen += 1,
            Some(ChosenBy::Rule) => counts.hints_unweighed += 1,
            None => {}
        }
        match verdict.decided_by {
            Some(Signal::Feedback) => counts.by_feedback += 1,
            Some(Signal::Model) => counts.by_model += 1,
            Some(Signal::Reading) => counts.by_reading += 1,
            Some(Signal::Rules) => counts.by_rules += 1,
            Some(Signal::Verifier) => counts.by_verifier += 1,
            None => {}
        }
    }
}

impl LoopState for State {
    type Input = Notification;
    type Effect = Effect;
    type Report = Report;

    fn step(&mut self, now_ms: i64, event: Event<Notification, Report>) -> Vec<Effect> {
        match event {
            Event::Started | Event::Arrived(Notification) => self.claim(now_ms),
            Event::Reported(report) => self.reported(now_ms, report),
            Event::Ticked => {
                let mut effects = self.expire_checks(now_ms);
                effects.extend(self.expire(now_ms));
                effects.extend(self.expire_readings(now_ms));
                effects.extend(self.begin_checks());
                effects.extend(self.claim(now_ms));
                effects.extend(self.ask());
                effects
            }
            Event::Draining => self.drain(now_ms),
        }
    }

    fn is_idle(&self) -> bool {
        self.claiming.is_none()
            && self.cases.is_empty()
            && self.recordings.is_empty()
            && self.checking.is_empty()
            && self.votes_in_flight == 0
            && self.weighings_in_flight == 0
            && self.unread.is_empty()
            && self.readings_in_flight == 0
            && self.checks_in_flight == 0
            && self.others_in_flight == 0
    }

    fn observe(&self) -> Vec<(&'static str, f64)> {
        let counts = &self.counts;
        let number = |name, value: u64| (name, value as f64);
        vec![
            number("in_hand", self.in_hand() as u64),
            number("claimed_total", counts.claimed),
            number("judged_total", counts.judged),
            number("good_total", counts.good),
            number("bad_total", counts.bad),
            number("neutral_total", counts.neutral),
            number("abstained_total", counts.abstained),
            ("score_sum", counts.score_sum),
            number("hint_offered_total", counts.hint_offered),
            number("hinted_total", counts.hinted),
            number("hints_short_total", counts.hints.short),
            number("hints_long_total", counts.hints.long),
            number("hints_repeating_total", counts.hints.repeating),
            number("hints_chosen_total", counts.hints_chosen),
            number("hints_unweighed_total", counts.hints_unweighed),
            number("by_feedback_total", counts.by_feedback),
            number("by_verifier_total", counts.by_verifier),
            number("by_model_total", counts.by_model),
            number("by_reading_total", counts.by_reading),
            number("by_rules_total", counts.by_rules),
            number("readings_total", counts.readings),
            number("readings_failed_total", counts.readings_failed),
            number("replies_total", counts.replies),
            number("replies_abstained_total", counts.replies_abstained),
            number("given_up_total", counts.given_up),
            number("fenced_total", counts.fenced),
            number("released_total", counts.released),
            number("votes_total", counts.votes),
            number("votes_failed_total", counts.votes_failed),
            number("votes_unreadable_total", counts.votes_unreadable),
            number("prompt_tokens_total", counts.prompt_tokens),
            number("completion_tokens_total", counts.completion_tokens),
            ("cost_total", counts.cost),
            number("checks_total", counts.checks),
            number("checks_failed_total", counts.checks_failed),
            number("checks_in_flight", self.checks_in_flight as u64),
            number("votes_in_flight", self.votes_in_flight as u64),
            number("breaker_open", u64::from(self.breaker.is_open())),
            number("ledger_failures_total", counts.ledger_failures),
        ]
    }
}

fn left_alone(model: &ModelConfig) -> Vote {
    Vote {
        signal: Signal::Model,
        outcome: Outcome::Abstain,
        reason: "left alone after repeated failures".to_owned(),
        model: Some(model.name.clone()),
        latency_ms: 0,
        usage: None,
        prompt: None,
    }
}

/// The vote of a reading that did not come.
fn abstained(why: String) -> Vote {
    vote(Signal::Reading, Outcome::Abstain, why)
}

fn millis(ms: u64) -> Millis {
    Millis::try_from(ms).unwrap_or(Millis::MAX)
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
