//! The judge's only IO: the ledger, and the model that votes.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use hone_domain::{Message, Millis, Verdict};
use hone_ledger::{Claim, LedgerError};
use hone_runtime::{Effects, Notification, Outbox};
use tokio::time::timeout;

use crate::rules::{self, Exchange};
use crate::{
    Calling, CheckAsk, CompleteOptions, CompleterError, Ctx, Doing, Done, Effect, ReadAsk,
    RecordError, Report, State, VoteAsk, VoteError, WeighAsk,
};

/// Performs the judge's effects.
#[derive(Clone)]
pub struct JudgeEffects {
    ctx: Arc<Ctx>,
    outbox: Outbox<Notification>,
}

impl JudgeEffects {
    /// Effects that notify the trainer through `outbox`.
    pub fn new(ctx: Ctx, outbox: Outbox<Notification>) -> Self {
        Self {
            ctx: Arc::new(ctx),
            outbox,
        }
    }

    async fn claim(&self, limit: usize) -> Report {
        let lease_ms = Millis::try_from(self.ctx.config.lease_ms).unwrap_or(Millis::MAX);
        let now_ms = self.ctx.clock.now_ms();
        let claimed = self.ctx.ledger.claim_transitions(limit, lease_ms, now_ms);
        Report::Claimed(claimed.await.map_err(|error| error.to_string()))
    }

    async fn ask(&self, ask: VoteAsk) -> Report {
        let began_ms = self.ctx.clock.now_ms();
        let result = match &self.ctx.completer {
            None => Err(VoteError::Failed(CompleterError::Unreachable(
                "no judge model is connected".to_owned(),
            ))),
            Some(completer) => {
                let deadline = ask.options.deadline;
                let answer = completer.complete(&ask.messages, ask.options);
                tokio::select! {
                    biased;
                    answer = timeout(deadline, answer) => match answer {
                        Ok(answer) => answer.map_err(VoteError::Failed),
                        Err(_) => Err(VoteError::Deadline),
                    },
                    // Ends with an error, because the state drops its end to withdraw.
                    _ = ask.withdrawn => Err(VoteError::Withdrawn),
                }
            }
        };
        let latency_ms = self.ctx.clock.now_ms().saturating_sub(began_ms);
        Report::Voted {
            claim: ask.claim,
            index: ask.index,
            result,
            latency_ms: u64::try_from(latency_ms).unwrap_or(0),
        }
    }

    async fn check(&self, ask: CheckAsk) -> Report {
        let began_ms = self.ctx.clock.now_ms();
        let (deadline, work) = match ask.doing {
            Doing::Call(calling) => {
                let deadline = Duration::from_millis(calling.deadline_ms);
                (deadline, self.call(calling).boxed())
            }
            Doing::Complete { messages, options } => {
                (options.deadline, self.words(messages, options).boxed())
            }
        };
        let result = tokio::select! {
            biased;
            done = timeout(deadline, work) => match done {
                Ok(done) => done,
                Err(_) => Err(format!("no answer within {} ms", deadline.as_millis())),
            },
            // Ends with an error, because the state drops its end to withdraw.
            _ = ask.withdrawn => Err("withdrawn".to_owned()),
        };
        let latency_ms = self.ctx.clock.now_ms().saturating_sub(began_ms);
        Report::Checked {
            claim: ask.claim,
            index: ask.index,
            result,
            latency_ms: u64::try_from(latency_ms).unwrap_or(0),
        }
    }

    async fn weigh(&self, ask: WeighAsk) -> Report {
        let result = match &self.ctx.weigher {
            None => Err("nobody weighs hints in this process".to_owned()),
            Some(weigher) => tokio::select! {
                biased;
                weighed = timeout(ask.deadline, weigher.weigh(&ask.turn, &ask.hints, ask.compared)) => {
                    let late = || format!("no answer within {} ms", ask.deadline.as_millis());
                    weighed.unwrap_or_else(|_| Err(late()))
                }
                // Ends with an error, because the state drops its end to withdraw.
                _ = ask.withdrawn => Err("withdrawn".to_owned()),
            },
        };
        Report::Weighed {
            claim: ask.claim,
            result,
        }
    }

    async fn read(&self, ask: ReadAsk) -> Report {
        let exchange = Exchange {
            asked: rules::last_asked(&ask.turn),
            completion: &ask.turn.completion_text,
            reply: &ask.reply,
        };
        let result = match &self.ctx.reader {
            None => Ok(None),
            Some(reader) => tokio::select! {
                biased;
                read = timeout(ask.deadline, reader.read(exchange)) => {
                    let late = || format!("no answer within {} ms", ask.deadline.as_millis());
                    read.unwrap_or_else(|_| Err(late().into()))
                }
                // Ends with an error, because the state drops its end to withdraw.
                _ = ask.withdrawn => Err("withdrawn".to_owned().into()),
            },
        };
        Report::Read {
            claim: ask.claim,
            result,
        }
    }

    async fn call(&self, calling: Calling) -> Result<Done, String> {
        let caller = self.ctx.caller.as_ref();
        let caller = caller.ok_or_else(|| "nobody makes calls in this process".to_owned())?;
        let reply = caller.call(&calling).await;
        reply.map(Done::Reply).map_err(|error| error.to_string())
    }

    async fn words(
        &self,
        messages: Vec<Message>,
        options: CompleteOptions,
    ) -> Result<Done, String> {
        let completer = self.ctx.completer.as_ref();
        let completer = completer.ok_or_else(|| "no judge model is connected".to_owned())?;
        let words = completer.complete(&messages, options).await;
        words.map(Done::Words).map_err(|error| error.to_string())
    }

    async fn record(&self, claim: Claim, verdict: Box<Verdict>, after_ms: u64) -> Report {
        if after_ms > 0 {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
        }
        let result = match self.ctx.ledger.record_verdict(claim, &verdict).await {
            Ok(()) => {
                if verdict.score.is_some() {
                    // A full queue holds a notification already.
                    let _notified = self.outbox.send(Notification).is_ok();
                }
                Ok(())
            }
            Err(LedgerError::Fenced(_)) => Err(RecordError::Fenced),
            Err(error) => Err(RecordError::Failed(error.to_string())),
        };
        Report::Recorded {
            claim,
            verdict,
            result,
        }
    }
}

impl Effects<State> for JudgeEffects {
    async fn perform(&self, effect: Effect) -> Report {
        let text = |error: LedgerError| error.to_string();
        match effect {
            Effect::Claim { limit } => self.claim(limit).await,
            Effect::Ask(ask) => self.ask(*ask).await,
            Effect::Weigh(ask) => self.weigh(*ask).await,
            Effect::Read(ask) => self.read(*ask).await,
            Effect::Check(ask) => self.check(*ask).await,
            Effect::Record {
                claim,
                verdict,
                after_ms,
            } => self.record(claim, verdict, after_ms).await,
            Effect::GiveUp(claim) => {
                Report::GaveUp(self.ctx.ledger.give_up(claim).await.map_err(text))
            }
            Effect::Release { claim, retry_at_ms } => {
                let released = self.ctx.ledger.release(claim, retry_at_ms).await;
                Report::Released(released.map_err(text))
            }
        }
    }
}

#[cfg(test)]
#[path = "effects_tests.rs"]
mod tests;
