//! Checks on their way: begun as many at a time as may be, ended at their transition's deadline, and
//! what is decided once they are done.

use std::sync::Arc;

use hone_domain::{Millis, Signal, Vote};
use hone_ledger::{Claim, Claimed};

use super::{NO_PLACE, State, left_alone, millis};
use crate::case::{Case, Opening, Reply, Settled, Undecided};
use crate::checking::{Bench, Checking, Done};
use crate::decide::{Decision, by_feedback, by_rules};
use crate::event::{Key, key};
use crate::verify::{self, Finding};
use crate::{CheckAsk, Combine, Effect, prompt, rules, wording};

impl State {
    /// Begins as many checks as may be under way.
    pub(super) fn begin_checks(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        while self.checks_in_flight < self.config.checks_in_flight_max {
            let Some((key, index)) = self.jobs.pop_front() else {
                break;
            };
            let Some(checking) = self.checking.get_mut(&key) else {
                continue;
            };
            let begun = checking.begin(index, self.ids.next(), self.model.as_ref());
            let Some((doing, withdrawn)) = begun else {
                continue;
            };
            self.checks_in_flight += 1;
            self.counts.checks += 1;
            effects.push(Effect::Check(Box::new(CheckAsk {
                claim: checking.claimed.claim,
                index,
                doing,
                withdrawn,
            })));
        }
        effects
    }

    pub(super) fn checked(
        &mut self,
        now_ms: Millis,
        claim: Claim,
        index: usize,
        result: Result<Done, String>,
        latency_ms: u64,
    ) -> Vec<Effect> {
        self.checks_in_flight = self.checks_in_flight.saturating_sub(1);
        self.counts.checks_failed += u64::from(result.is_err());
        if let Ok(Done::Words(said)) = &result {
            self.counts.took(Some(said), self.model.as_ref());
        }
        let mut effects = Vec::new();
        if let Some(checking) = self.checking.get_mut(&key(&claim)) {
            let mut bench = Bench {
                model: self.model.as_ref(),
                pay: &self.config.certificate,
                buckets: &mut self.buckets,
            };
            if checking.end(index, result, latency_ms, &mut bench) {
                let waiting = checking.waiting().into_iter();
                self.jobs.extend(waiting.map(|at| (key(&claim), at)));
            }
            effects.extend(self.end_if_checked(now_ms, key(&claim)));
        }
        effects.extend(self.begin_checks());
        effects.extend(self.ask());
        effects
    }

    pub(super) fn end_if_checked(&mut self, now_ms: Millis, key: Key) -> Vec<Effect> {
        match self.checking.get(&key).is_some_and(Checking::is_done) {
            true => self.end_checks(now_ms, key, "not needed"),
            false => Vec::new(),
        }
    }

    /// Goes on with what the checks found so far. What is left to the model has an eighth of the
    /// lease more for its votes.
    pub(super) fn end_checks(&mut self, now_ms: Millis, key: Key, missing: &str) -> Vec<Effect> {
        let Some(checking) = self.checking.remove(&key) else {
            return Vec::new();
        };
        let votes_ms = millis(self.config.lease_ms / 8);
        let deadline_ms = checking.deadline_ms.saturating_add(votes_ms);
        let (claimed, findings, audits) = checking.into_parts(missing);
        self.verified(now_ms, claimed, deadline_ms, findings, audits)
    }

    /// Goes on with a transition whose checks are done: the first signal that tells decides, and the
    /// model is asked where neither a person nor a check did.
    pub(super) fn verified(
        &mut self,
        now_ms: Millis,
        claimed: Claimed,
        deadline_ms: Millis,
        findings: Vec<Finding>,
        audits: Vec<Vote>,
    ) -> Vec<Effect> {
        let claim = claimed.claim;
        let (mut votes, by_feedback) = by_feedback(&claimed.feedback, &claimed.turn);
        let decided = by_feedback.or_else(|| verify::decide(&findings));
        votes.extend(findings.into_iter().map(|found| found.vote));
        votes.extend(audits);
        let ruling = rules::judge(&claimed.transition.next_state, &claimed.turn);
        let (rules_vote, by_rules) = by_rules(&ruling, self.config.moving_on);
        votes.push(rules_vote);
        let reply = Reply::of(&claimed.transition.next_state, &ruling);
        let is_nothing_said = claimed.transition.next_state.items.is_empty();
        let is_checked = decided
            .as_ref()
            .is_some_and(|d| d.by == Some(Signal::Verifier));
        let is_combined = is_checked && self.config.combine == Combine::Mean;
        let is_voted_on = (decided.is_none() || is_combined) && !is_nothing_said;
        let turn = Arc::new(claimed.turn);
        let model = self.model.clone().filter(|_| is_voted_on);
        let admitted = model.filter(|model| {
            let admits = self.breaker.admits(now_ms);
            if !admits {
                votes.insert(0, left_alone(model));
            }
            admits
        });
        let Some(model) = admitted else {
            let undecided = Undecided {
                claim,
                turn,
                reply,
                by_rules,
                votes,
                attempts: claimed.attempts,
                deadline_ms,
            };
            return self.settle_unvoted(now_ms, decided, undecided);
        };
        let mark = self.ids.next();
        let next_state = &claimed.transition.next_state;
        let opening = Opening {
            claim,
            attempts: claimed.attempts,
            deadline_ms,
            messages: prompt::vote(&self.wording, &turn, next_state, mark, &model),
            otherwise: by_rules,
            outcome: decided,
            heard: votes,
            said: wording::texts(next_state),
            reply,
            turn,
        };
        self.cases
            .insert(key(&claim), Case::open(opening, model.votes));
        self.asks
            .extend((0..model.votes).map(|index| (key(&claim), index)));
        Vec::new()
    }

    /// Settles a transition that no model votes on: as decided, or else by a reading or the rules.
    fn settle_unvoted(
        &mut self,
        now_ms: Millis,
        decided: Option<Decision>,
        undecided: Undecided,
    ) -> Vec<Effect> {
        if decided.is_none() {
            return self.read(now_ms, undecided);
        }
        let settled = Settled {
            decision: decided,
            votes: undecided.votes,
            hint_choice: None,
            is_reply: undecided.reply.is_some(),
        };
        self.record(now_ms, undecided.claim, settled)
    }

    /// Ends checks whose time is over: one that was not begun yet gives its transition back, unless
    /// this is the last claim. What is left to the model then is asked in what is left of the lease.
    pub(super) fn expire_checks(&mut self, now_ms: Millis) -> Vec<Effect> {
        let last = self.config.attempts_max.saturating_sub(1);
        let is_over = |checking: &Checking| now_ms >= checking.deadline_ms;
        let again = self.checking.extract_if(|_, checking| {
            let waits = !checking.waiting().is_empty();
            is_over(checking) && waits && checking.claimed.attempts < last
        });
        let again: Vec<Claim> = again.map(|(_, c)| c.claimed.claim).collect();
        let over = self.checking.iter().filter(|(_, c)| is_over(c));
        let over: Vec<Key> = over.map(|(key, _)| *key).collect();
        let mut effects = Vec::new();
        for claim in again {
            effects.extend(self.release(now_ms, claim));
        }
        for key in over {
            effects.extend(self.end_checks(now_ms, key, NO_PLACE));
        }
        effects
    }
}
