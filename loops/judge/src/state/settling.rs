//! From votes to a verdict on its way to the ledger: the decision, the choice among its hints, the
//! record.

use std::time::Duration;

use hone_domain::{HintChoice, Millis, Signal, Verdict, VerdictId, Vote};
use hone_ledger::Claim;
use tokio::sync::oneshot;

use super::{NO_PLACE, Recording, State, millis};
use crate::case::{Case, Settled, Undecided, Weighing, by_rule};
use crate::decide::Decision;
use crate::event::{Key, key};
use crate::{Compared, Effect, HintRule, ModelConfig, WeighAsk};

/// Why nobody is asked which hint the policy would follow.
const NO_WEIGHER: &str = "no policy is served in this process that could be asked; the first";
const AS_CONFIGURED: &str = "judge.model.hint_choice is \"first\"";

impl State {
    pub(super) fn settle_if_decided(&mut self, now_ms: Millis, claim: &Claim) -> Vec<Effect> {
        let case = self.cases.get(&key(claim));
        let decided = case
            .filter(|case| case.weighing.is_none())
            .and_then(Case::model_decision);
        match decided {
            Some(decision) => self.settle(now_ms, key(claim), decision, "not needed"),
            None => Vec::new(),
        }
    }

    /// Ends a case, or has the hints of its decision weighed first. Its votes that are still under
    /// way are withdrawn.
    pub(super) fn settle(
        &mut self,
        now_ms: Millis,
        key: Key,
        decision: Option<Decision>,
        missing: &str,
    ) -> Vec<Effect> {
        let (Some(mut case), Some(model)) = (self.cases.remove(&key), self.model.clone()) else {
            return Vec::new();
        };
        if let Some(weighing) = case.weighing.take() {
            let (decision, choice) = weighing.chosen(Err(NO_PLACE.to_owned()));
            return self.close(now_ms, case, Some(decision), Some(choice));
        }
        let decision = decision.or_else(|| case.combined());
        case.end_votes(missing, &model);
        let Some(decision) = decision else {
            return self.close_undecided(now_ms, case);
        };
        let hints = case.candidates(&decision, model.hint_candidates_max);
        if hints.len() < 2 {
            return self.close(now_ms, case, Some(decision), None);
        }
        let by_rule = match model.hint_choice {
            HintRule::First => Some(AS_CONFIGURED),
            HintRule::Agreement if !self.has_weigher => Some(NO_WEIGHER),
            HintRule::Agreement => None,
        };
        match by_rule {
            Some(why) => {
                let choice = self::by_rule(hints, why.to_owned());
                self.close(now_ms, case, Some(decision), Some(choice))
            }
            None => self.weigh(now_ms, case, decision, hints, &model),
        }
    }

    fn weigh(
        &mut self,
        now_ms: Millis,
        mut case: Case,
        decision: Decision,
        hints: Vec<String>,
        model: &ModelConfig,
    ) -> Vec<Effect> {
        let (withdraw, withdrawn) = oneshot::channel();
        let left = u64::try_from(case.deadline_ms.saturating_sub(now_ms)).unwrap_or(0);
        let ask = WeighAsk {
            claim: case.claim,
            turn: case.turn.clone(),
            hints: hints.clone(),
            compared: Compared {
                top_k: model.hint_top_k,
                tokens_max: model.hint_tokens_max,
            },
            deadline: Duration::from_millis(model.vote_deadline_ms.min(left)),
            withdrawn,
        };
        case.weighing = Some(Weighing {
            decision,
            hints,
            _withdraw: withdraw,
        });
        self.weighings_in_flight += 1;
        self.cases.insert(key(&case.claim), case);
        vec![Effect::Weigh(Box::new(ask))]
    }

    pub(super) fn weighed(
        &mut self,
        now_ms: Millis,
        claim: Claim,
        result: Result<Vec<f32>, String>,
    ) -> Vec<Effect> {
        self.weighings_in_flight = self.weighings_in_flight.saturating_sub(1);
        let case = self.cases.get_mut(&key(&claim));
        let Some(weighing) = case.and_then(|case| case.weighing.take()) else {
            return Vec::new();
        };
        let (decision, choice) = weighing.chosen(result);
        match self.cases.remove(&key(&claim)) {
            Some(case) => self.close(now_ms, case, Some(decision), Some(choice)),
            None => Vec::new(),
        }
    }

    /// Ends a case that the model did not decide.
    fn close_undecided(&mut self, now_ms: Millis, mut case: Case) -> Vec<Effect> {
        let (claim, deadline_ms) = (case.claim, case.deadline_ms);
        let (turn, reply) = (case.turn.clone(), case.reply.take());
        let attempts = case.attempts;
        let by_rules = case.otherwise.take();
        let votes = self.votes_of(case, by_rules.as_ref());
        let undecided = Undecided {
            claim,
            turn,
            reply,
            by_rules,
            votes,
            attempts,
            deadline_ms,
        };
        self.read(now_ms, undecided)
    }

    fn close(
        &mut self,
        now_ms: Millis,
        case: Case,
        decision: Option<Decision>,
        hint_choice: Option<HintChoice>,
    ) -> Vec<Effect> {
        let claim = case.claim;
        let settled = Settled {
            is_reply: case.reply.is_some(),
            votes: self.votes_of(case, decision.as_ref()),
            decision,
            hint_choice,
        };
        self.record(now_ms, claim, settled)
    }

    /// A case's votes, counted; `decision` is what it comes to.
    fn votes_of(&mut self, case: Case, decision: Option<&Decision>) -> Vec<Vote> {
        let kept = decision.is_some_and(|d| d.hint.is_some());
        self.counts.hint_offered += u64::from(case.hints.offered > 0 && !kept);
        self.counts.hints.short += case.hints.short;
        self.counts.hints.long += case.hints.long;
        self.counts.hints.repeating += case.hints.repeating;
        let mut votes = case.into_votes();
        for vote in votes.iter_mut().filter(|vote| vote.signal == Signal::Model) {
            vote.prompt = Some(self.wording.version.clone());
        }
        let unreadable = votes.iter().filter(|v| v.reason.starts_with("no grade in"));
        self.counts.votes_unreadable += unreadable.count() as u64;
        votes
    }

    pub(super) fn record(&mut self, now_ms: Millis, claim: Claim, settled: Settled) -> Vec<Effect> {
        let decision = settled.decision.unwrap_or_default();
        let verdict = Verdict {
            id: VerdictId(self.ids.next()),
            transition: claim.transition,
            score: decision.score,
            decided_by: decision.by,
            hint: decision.hint,
            wish: decision.wish,
            hint_choice: settled.hint_choice,
            votes: settled.votes,
            judged_ms: now_ms,
        };
        let recording = Recording {
            lease_ends_ms: now_ms.saturating_add(millis(self.config.lease_ms)),
            tries: 0,
            is_reply: settled.is_reply,
        };
        self.recordings.insert(key(&claim), recording);
        vec![Effect::Record {
            claim,
            verdict: Box::new(verdict),
            after_ms: 0,
        }]
    }
}

#[cfg(test)]
#[path = "settling_tests.rs"]
mod tests;
