//! A claimed transition whose checks somebody else does.

use std::time::Duration;

use hone_domain::{Check, Message, Millis, Outcome, Signal, TransitionId, Vote};
use hone_ledger::Claimed;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::certificate::{self, Buckets, Ends, PayConfig, Unusable};
use crate::verify::{self, CallReply, Calling, Finding, Job, finding};
use crate::{CompleteOptions, Completed, ModelConfig};

/// What is to be done for a check.
#[derive(Debug)]
pub enum Doing {
    /// Call an address.
    Call(Calling),
    /// Complete a chat.
    Complete {
        /// The prompt.
        messages: Vec<Message>,
        /// How to sample, and how long to wait.
        options: CompleteOptions,
    },
}

/// What came of it.
#[derive(Debug)]
pub enum Done {
    /// A callback's reply.
    Reply(CallReply),
    /// What a model said.
    Words(Completed),
}

/// A transition with checks under way.
#[derive(Debug)]
pub(crate) struct Checking {
    pub claimed: Claimed,
    /// When it is not waited for checks any more.
    pub deadline_ms: Millis,
    /// What is found.
    pub findings: Vec<Finding>,
    /// Votes that say how a certificate compared with what was executed.
    pub audits: Vec<Vote>,
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    check: Check,
    job: Work,
    state: SlotState,
}

#[derive(Debug)]
enum SlotState {
    Waiting,
    Asked { _withdraw: oneshot::Sender<()> },
    Done,
}

#[derive(Debug)]
enum Work {
    Call(Calling),
    Certify(certificate::Case),
    /// Executes what a certificate says.
    Execute {
        calling: Calling,
        bucket: String,
        says: Ends,
    },
}

/// What certificates are worked on with.
pub(crate) struct Bench<'a> {
    pub model: Option<&'a ModelConfig>,
    pub pay: &'a PayConfig,
    pub buckets: &'a mut Buckets,
}

impl Checking {
    pub(crate) fn new(
        claimed: Claimed,
        deadline_ms: Millis,
        findings: Vec<Finding>,
        jobs: Vec<(Check, Job)>,
        model: Option<&ModelConfig>,
    ) -> Self {
        let mut checking = Self {
            claimed,
            deadline_ms,
            findings,
            audits: Vec::new(),
            slots: Vec::new(),
        };
        for (check, job) in jobs {
            let work = match job {
                Job::Call(calling) => Ok(Work::Call(calling)),
                Job::Certify(case) => match (&case.changed, model) {
                    (Err(Unusable::NoChange(why) | Unusable::TooLarge(why)), _) => {
                        Err((Outcome::Abstain, why.clone()))
                    }
                    (Err(Unusable::DoesNotApply(why)), _) => Err((Outcome::Bad, why.clone())),
                    (Ok(_), None) => {
                        let why = "no judge.model is configured that could write a certificate";
                        Err((Outcome::Abstain, why.to_owned()))
                    }
                    (Ok(_), Some(_)) => Ok(Work::Certify(case)),
                },
            };
            match work {
                Ok(job) => checking.slots.push(Slot {
                    check,
                    job,
                    state: SlotState::Waiting,
                }),
                Err((outcome, evidence)) => {
                    let found = finding(&check.name, outcome, &evidence);
                    checking.findings.push(found);
                }
            }
        }
        checking
    }

    /// Which jobs wait to be begun.
    pub(crate) fn waiting(&self) -> Vec<usize> {
        let waits = |slot: &Slot| matches!(slot.state, SlotState::Waiting);
        let slots = self.slots.iter().enumerate();
        slots
            .filter(|(_, slot)| waits(slot))
            .map(|(at, _)| at)
            .collect()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.slots
            .iter()
            .all(|slot| matches!(slot.state, SlotState::Done))
    }

    /// Notes that a job is begun; gives what is to be done and what tells it to stop.
    pub(crate) fn begin(
        &mut self,
        index: usize,
        mark: Uuid,
        model: Option<&ModelConfig>,
    ) -> Option<(Doing, oneshot::Receiver<()>)> {
        let slot = self.slots.get_mut(index)?;
        if !matches!(slot.state, SlotState::Waiting) {
            return None;
        }
        let doing = match &slot.job {
            Work::Call(calling) | Work::Execute { calling, .. } => Doing::Call(calling.clone()),
            Work::Certify(case) => {
                let model = model?;
                Doing::Complete {
                    messages: case.messages(mark)?,
                    options: CompleteOptions {
                        temperature: 0.0,
                        max_tokens: model.certificate_tokens_max,
                        seed: 0,
                        deadline: Duration::from_millis(model.certificate_deadline_ms),
                    },
                }
            }
        };
        let (_withdraw, withdrawn) = oneshot::channel();
        slot.state = SlotState::Asked { _withdraw };
        Some((doing, withdrawn))
    }

    /// Notes what came of a job. True where another job follows from it.
    pub(crate) fn end(
        &mut self,
        index: usize,
        result: Result<Done, String>,
        latency_ms: u64,
        bench: &mut Bench<'_>,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(index) else {
            return false;
        };
        if matches!(slot.state, SlotState::Done) {
            return false;
        }
        slot.state = SlotState::Done;
        let name = slot.check.name.clone();
        let reply = |result| match result {
            Ok(Done::Reply(reply)) => Ok(reply),
            Ok(Done::Words(_)) => Err("it answered with words".to_owned()),
            Err(why) => Err(why),
        };
        match &slot.job {
            Work::Call(_) => {
                let mut found = verify::read_reply(&name, reply(result));
                found.vote.latency_ms = latency_ms;
                self.findings.push(found);
                false
            }
            Work::Certify(case) => {
                let case = case.clone();
                self.certified(index, &case, result, latency_ms, bench)
            }
            Work::Execute { bucket, says, .. } => {
                let (bucket, says) = (bucket.clone(), *says);
                self.executed(&name, &bucket, says, reply(result), latency_ms, bench);
                false
            }
        }
    }

    fn certified(
        &mut self,
        index: usize,
        case: &certificate::Case,
        result: Result<Done, String>,
        latency_ms: u64,
        bench: &mut Bench<'_>,
    ) -> bool {
        let check = self.slots[index].check.clone();
        let said = match result {
            Ok(Done::Words(said)) => Ok(said),
            Ok(Done::Reply(_)) => Err("it answered with a reply".to_owned()),
            Err(why) => Err(why),
        };
        let (Some(model), Ok(changed)) = (bench.model, &case.changed) else {
            return false;
        };
        let usage = said.as_ref().ok().and_then(|said| said.usage(model));
        let sound = said
            .and_then(|said| certificate::parse(&said.words))
            .and_then(|argued| certificate::check(&argued, changed, &case.tests));
        let bucket = certificate::bucket(&model.name, changed);
        let vote = |(outcome, why): (Outcome, String)| {
            let mut found = finding(&check.name, outcome, &why);
            found.vote.model = Some(model.name.clone());
            found.vote.latency_ms = latency_ms;
            found.vote.usage = usage;
            found
        };
        let ends = match sound {
            Ok(ends) => ends,
            Err(why) => {
                self.findings.push(vote((Outcome::Abstain, why)));
                return false;
            }
        };
        let (outcome, sign, what) = match ends {
            Ends::Pass => (Outcome::Good, 1.0, "every test passes"),
            Ends::Fail => (Outcome::Bad, -1.0, "a test fails"),
        };
        let Some(pay) = bench.buckets.pay(&bucket, bench.pay) else {
            let why = match bench.buckets.is_audited(&bucket, bench.pay) {
                true => "turned out wrong too often",
                false => "were not executed often enough to be worth anything",
            };
            let why = format!("argues that {what}, but arguments of {bucket} {why}");
            self.findings.push(vote((Outcome::Abstain, why)));
            // Only what is executed can show that the next ones are better.
            return self.audit(&check, &bucket, ends, bench);
        };
        let mut found = vote((
            outcome,
            format!("argues soundly that {what}; {bucket} pays {pay:.2}"),
        ));
        found.score = Some((sign * pay) as f32);
        found.is_argued = true;
        self.findings.push(found);
        self.audit(&check, &bucket, ends, bench)
    }

    /// Draws whether what a certificate says is executed as well. Until it is known what such
    /// certificates are worth, each is.
    fn audit(&mut self, check: &Check, bucket: &str, says: Ends, bench: &Bench<'_>) -> bool {
        let Some(execute) = &bench.pay.execute else {
            return false;
        };
        if bench.buckets.is_audited(bucket, bench.pay)
            && !is_audited(self.claimed.transition.id, bench.pay.audit_share)
        {
            return false;
        }
        let mut body = verify::call_body(&check.name, &self.claimed);
        body["verifier"] = serde_json::to_value(&check.verifier).unwrap_or_default();
        self.slots.push(Slot {
            check: check.clone(),
            job: Work::Execute {
                calling: Calling {
                    url: execute.url.clone(),
                    secret_env: execute.secret_env.clone(),
                    deadline_ms: execute.deadline_ms,
                    body,
                },
                bucket: bucket.to_owned(),
                says,
            },
            state: SlotState::Waiting,
        });
        true
    }

    /// What was executed decides; how the certificate compared is kept.
    fn executed(
        &mut self,
        name: &str,
        bucket: &str,
        says: Ends,
        reply: Result<CallReply, String>,
        latency_ms: u64,
        bench: &mut Bench<'_>,
    ) {
        let mut found = verify::read_reply(&format!("{name}, executed"), reply);
        found.vote.latency_ms = latency_ms;
        let passed = match found.vote.outcome {
            Outcome::Good => Ends::Pass,
            Outcome::Bad => Ends::Fail,
            Outcome::Neutral | Outcome::Abstain => {
                self.findings.push(found);
                return;
            }
        };
        let agreed = passed == says;
        bench.buckets.note(bucket, agreed);
        self.audits.push(Vote {
            signal: Signal::Verifier,
            outcome: if agreed { Outcome::Good } else { Outcome::Bad },
            reason: format!(
                "{name}: the certificate was {}",
                if agreed { "right" } else { "wrong" }
            ),
            model: Some(format!("audit:{bucket}")),
            latency_ms: 0,
            usage: None,
            prompt: None,
        });
        // The argument has been overtaken by the fact.
        for argued in &mut self.findings {
            if argued.score.is_some() && argued.vote.reason.starts_with(&format!("{name}: argues"))
            {
                argued.vote.outcome = Outcome::Abstain;
                argued.score = None;
            }
        }
        self.findings.push(found);
    }

    /// What is found, with an abstention for everything that is not done.
    pub(crate) fn into_parts(self, missing: &str) -> (Claimed, Vec<Finding>, Vec<Vote>) {
        let mut findings = self.findings;
        for slot in self.slots {
            if !matches!(slot.state, SlotState::Done) {
                findings.push(finding(&slot.check.name, Outcome::Abstain, missing));
            }
        }
        (self.claimed, findings, self.audits)
    }
}

/// Whether a transition's certificate is among the `share` that is executed as well.
fn is_audited(transition: TransitionId, share: f64) -> bool {
    let (high, low) = transition.0.as_u64_pair();
    // The low half of a UUIDv7 is random; the high half tells the time.
    let drawn = (low ^ high.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
    (drawn as f64) < share * (1u64 << 53) as f64
}

#[cfg(test)]
#[path = "checking_tests.rs"]
mod tests;
