//! Collect's only IO: the ledger, receipts, the gateway's session index.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hone_domain::{
    Feedback, Millis, NextState, Reason, Receipt, SessionIndex, Transition, TransitionId, TurnId,
};
use hone_ledger::{FeedbackOutcome, LedgerError, WaitingTurn};
use hone_runtime::{Effects, Notification, Outbox, Shutdown};
use tokio::time::timeout;

use crate::{Batch, Ctx, Effect, Heard, Loaded, OpenMeta, Place, Report, Said, State, Wrote};

/// Most waiting turns that are read at once, with their texts.
const LOAD_PAGE: usize = 256;

/// Performs collect's effects.
#[derive(Clone)]
pub struct CollectEffects {
    pub(crate) ctx: Arc<Ctx>,
    outbox: Outbox<Notification>,
    /// Shipping ends with it; what is left is shipped by the next start.
    pub(crate) stop: Option<Shutdown>,
    began_ms: Millis,
    /// What a load that failed half-way has put into the index; nothing is put there twice.
    restored: Arc<Mutex<HashSet<TurnId>>>,
}

impl CollectEffects {
    /// Effects that notify the judge through `outbox`.
    pub fn new(ctx: Ctx, outbox: Outbox<Notification>) -> Self {
        let began_ms = ctx.clock.now_ms();
        ctx.carry.begin_run();
        // Their clients heard no receipt from the run that failed.
        ctx.spool.mark_late(ctx.carry.orphaned());
        Self {
            ctx: Arc::new(ctx),
            outbox,
            stop: None,
            began_ms,
            restored: Arc::default(),
        }
    }

    /// The same, which leaves the spool alone from this shutdown on.
    pub fn until(self, stop: Shutdown) -> Self {
        Self {
            stop: Some(stop),
            ..self
        }
    }

    // === start ===

    async fn load(&self) -> Result<Loaded, LedgerError> {
        let (ledger, carry) = (&self.ctx.ledger, &self.ctx.carry);
        // Their clients heard no receipt from the run that failed.
        let orphaned = carry.orphaned();
        if !orphaned.is_empty() {
            let late: Vec<_> = orphaned.iter().map(|t| (*t, Reason::LateReceipt)).collect();
            ledger.settle_turns(&late).await?;
            carry.clear(orphaned);
        }
        let newest = self.ctx.config.load_max;
        let restores = carry.is_to_restore();
        let (mut open, mut seen, mut from) = (Vec::new(), 0, None);
        // Texts of one page at a time are in memory.
        loop {
            let page = ledger
                .open_page(newest, from, LOAD_PAGE.min(newest))
                .await?;
            if restores {
                self.restore(&page.turns);
            }
            for waiting in page.turns {
                open.push(self.meta(waiting).await?);
            }
            seen += page.seen;
            from = page.next;
            // What is recorded meanwhile is collect's own, and no part of what was there.
            if from.is_none() || seen >= newest {
                break;
            }
        }
        if restores {
            carry.tell_restored();
            self.restored().clear();
        }
        open.reverse();
        Ok(Loaded {
            open,
            truncated: seen >= newest,
        })
    }

    async fn meta(&self, waiting: WaitingTurn) -> Result<OpenMeta, LedgerError> {
        let (turn, has_feedback) = (waiting.turn, waiting.has_feedback);
        let is_settled_by_feedback = has_feedback && self.is_settled(turn.turn).await?;
        Ok(OpenMeta {
            turn: turn.turn,
            is_checked: waiting.is_checked,
            place: Place {
                session: turn.session,
                scope: turn.scope,
            },
            owner: turn.owner,
            group: waiting.group,
            finished_ms: turn.ended_ms,
            has_feedback,
            is_settled_by_feedback,
        })
    }

    async fn is_settled(&self, turn: TurnId) -> Result<bool, LedgerError> {
        let view = self.ctx.ledger.turn_if_readable(turn).await?;
        Ok(view.is_some_and(|view| view.feedback.iter().any(Said::settles)))
    }

    /// Puts turns of an earlier process into the gateway's index, oldest first. Those of this one
    /// the gateway recorded itself.
    fn restore(&self, turns: &[WaitingTurn]) {
        let (mut index, mut restored) = (self.index(), self.restored());
        let earlier = |waiting: &&WaitingTurn| waiting.turn.ended_ms < self.began_ms;
        for WaitingTurn { turn, .. } in turns.iter().filter(earlier) {
            if restored.insert(turn.turn) {
                index.record(turn, None);
            }
        }
    }

    fn restored(&self) -> MutexGuard<'_, HashSet<TurnId>> {
        self.restored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn index(&self) -> MutexGuard<'_, SessionIndex> {
        // The index is a memory aid; whatever panicked while it was held, it can be used.
        self.ctx
            .index
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    // === writing ===

    async fn write(&self, mut batch: Batch) -> Wrote {
        let mut wrote = Wrote::default();
        let spool = &self.ctx.spool;
        let written = self.write_in_time(&mut batch, &mut wrote).await;
        if let Err(error) = written {
            for said in batch.said.drain(..) {
                // Who sent it can send it again, and knows better than we whether to.
                let _told = said.reply.send(Err(error.to_string()));
            }
            // They stay in doubt: the answer may be lost and not the write.
            decline_rewards(&mut batch, &error.to_string());
            wrote.dropped.extend(drop_unawaited(&mut batch));
            match error {
                LedgerError::Failed(error) if spool.takes() => {
                    tracing::warn!(error, "the ledger does not answer: turns go into the spool");
                    spool.note_away(true);
                    self.put_into_spool(&mut batch, &mut wrote).await;
                }
                error => wrote.error = Some(error.to_string()),
            }
        }
        wrote.status = spool.status();
        wrote.unfinished = batch;
        wrote
    }

    /// Writes a batch; with a spool behind it, not longer than receipts can wait.
    async fn write_in_time(&self, batch: &mut Batch, wrote: &mut Wrote) -> Result<(), LedgerError> {
        if !self.ctx.spool.takes() {
            return self.write_all(batch, wrote).await;
        }
        let limit = Duration::from_millis(self.ctx.config.spool_after_ms);
        in_time(limit, Box::pin(self.write_all(batch, wrote))).await
    }

    async fn write_all(&self, batch: &mut Batch, wrote: &mut Wrote) -> Result<(), LedgerError> {
        self.write_turns(batch, wrote).await?;
        self.write_transitions(batch, wrote).await?;
        while !batch.said.is_empty() {
            self.write_feedback(batch, wrote).await?;
        }
        while !batch.rewards.is_empty() {
            self.write_reward(batch, wrote).await?;
        }
        self.write_transitions(batch, wrote).await?;
        self.write_settles(batch, wrote).await
    }

    async fn write_turns(&self, batch: &mut Batch, wrote: &mut Wrote) -> Result<(), LedgerError> {
        if batch.turns.is_empty() {
            return Ok(());
        }
        let carry = &self.ctx.carry;
        for (turn, receipt) in batch.turns.iter_mut().zip(&batch.receipts) {
            if receipt.is_closed() {
                turn.untrainable.get_or_insert(Reason::LateReceipt);
            }
        }
        carry.doubt(batch.turns.iter().map(|turn| turn.id));
        let forgotten = self.ctx.ledger.record_turns(&batch.turns).await?;
        let turns = std::mem::take(&mut batch.turns);
        wrote.recorded += turns.len() as u64;
        for (turn, receipt) in turns.iter().zip(std::mem::take(&mut batch.receipts)) {
            let told = match forgotten.contains(&turn.id) {
                true => Receipt::NotCollected(Reason::Withdrawn),
                false => Receipt::Collected,
            };
            if receipt.send(told).is_ok() {
                carry.clear([turn.id]);
            } else {
                // Its client was told that it is not collected, so nothing may be learned from it.
                wrote.late.push(turn.id);
                batch.settles.push((turn.id, Reason::LateReceipt));
            }
        }
        Ok(())
    }

    async fn write_transitions(
        &self,
        batch: &mut Batch,
        wrote: &mut Wrote,
    ) -> Result<(), LedgerError> {
        // The queue has no next state before its turn, so a turn still in doubt here will be
        // settled as late. A next state must not come first, or the turn would go to the judge.
        let (carry, before) = (&self.ctx.carry, batch.transitions.len());
        batch.transitions.retain(|next| !carry.doubts(next.turn));
        wrote.ignored += (before - batch.transitions.len()) as u64;
        if batch.transitions.is_empty() {
            return Ok(());
        }
        let new = self
            .ctx
            .ledger
            .record_transitions(&batch.transitions)
            .await?;
        if !new.is_empty() {
            self.notify();
        }
        wrote.transitions += new.len() as u64;
        wrote.ignored += batch.transitions.len().saturating_sub(new.len()) as u64;
        let settled = batch
            .transitions
            .drain(..)
            .map(|transition| transition.turn);
        wrote.closed.extend(settled);
        Ok(())
    }

    /// Writes the first feedback of the batch; the transition it makes joins the batch.
    pub(crate) async fn write_feedback(
        &self,
        batch: &mut Batch,
        wrote: &mut Wrote,
    ) -> Result<(), LedgerError> {
        let Some(said) = batch.said.first() else {
            return Ok(());
        };
        let outcome = self.ctx.ledger.record_feedback(&said.feedback).await?;
        let said = batch.said.remove(0);
        // Nobody waits for the answer any more where this fails; the feedback is stored.
        let _told = said.reply.send(Ok(outcome));
        let settles = Said::settles(&said.feedback);
        let Feedback { turn, owner, .. } = *said.feedback;
        match outcome {
            // What was learned has its transition, and nobody judges it again.
            FeedbackOutcome::NotYours | FeedbackOutcome::AlreadyLearned => {}
            FeedbackOutcome::TurnUnknown => wrote.heard.push(Heard::Early {
                turn,
                owner,
                settles,
            }),
            FeedbackOutcome::Stored | FeedbackOutcome::Replaced => {
                // It may have sent a judged turn back to the judge.
                self.notify();
                if !settles {
                    wrote.heard.push(Heard::Kept(turn));
                } else if let Some(place) = self.place(turn, said.place).await? {
                    wrote.heard.push(Heard::Settled(turn));
                    batch.transitions.push(Transition {
                        id: said.transition,
                        turn,
                        session: place.session,
                        scope: place.scope,
                        next_state: NextState::feedback(),
                        next_turn: None,
                        settled_ms: self.ctx.clock.now_ms(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Writes the first reward of the batch; the transitions it makes join the batch.
    async fn write_reward(&self, batch: &mut Batch, wrote: &mut Wrote) -> Result<(), LedgerError> {
        let Some(given) = batch.rewards.first() else {
            return Ok(());
        };
        let (reward, credit) = (&given.reward, given.credit);
        let rewarded = self.ctx.ledger.record_reward(reward, credit).await?;
        let given = batch.rewards.remove(0);
        if let Some(rewarded) = &rewarded {
            self.notify();
            for reached in rewarded.reached.iter().filter(|reached| reached.is_open) {
                wrote.heard.push(Heard::Settled(reached.turn));
                batch.transitions.push(Transition {
                    id: TransitionId(self.ctx.ids.next()),
                    turn: reached.turn,
                    session: given.reward.session,
                    scope: rewarded.scope.clone(),
                    next_state: NextState::feedback(),
                    next_turn: None,
                    settled_ms: self.ctx.clock.now_ms(),
                });
            }
        }
        // Nobody waits for the answer any more where this fails; the reward is stored.
        let _told = given.reply.send(Ok(rewarded));
        Ok(())
    }

    async fn place(
        &self,
        turn: TurnId,
        known: Option<Place>,
    ) -> Result<Option<Place>, LedgerError> {
        if known.is_some() {
            return Ok(known);
        }
        let view = self.ctx.ledger.turn(turn).await?;
        Ok(view.map(|view| Place {
            session: view.turn.session,
            scope: view.turn.scope,
        }))
    }

    async fn write_settles(&self, batch: &mut Batch, wrote: &mut Wrote) -> Result<(), LedgerError> {
        if batch.settles.is_empty() {
            return Ok(());
        }
        self.ctx.ledger.settle_turns(&batch.settles).await?;
        wrote.settled += batch.settles.len() as u64;
        let settled: Vec<TurnId> = batch.settles.drain(..).map(|(turn, _)| turn).collect();
        self.ctx.carry.clear(settled.iter().copied());
        wrote.closed.extend(settled);
        Ok(())
    }

    pub(crate) fn notify(&self) {
        // A full queue holds a notification already.
        let _notified = self.outbox.send(Notification).is_ok();
    }
}

/// The answer of the ledger, or that it took too long.
pub(crate) async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, LedgerError>>,
) -> Result<T, LedgerError> {
    let done = timeout(limit, work).await;
    done.unwrap_or_else(|_| {
        Err(LedgerError::Failed(format!(
            "the ledger did not take a write within {} ms",
            limit.as_millis()
        )))
    })
}

/// Tells who gave rewards that they were not taken.
pub(crate) fn decline_rewards(batch: &mut Batch, why: &str) {
    for given in batch.rewards.drain(..) {
        let _told = given.reply.send(Err(why.to_owned()));
    }
}

/// Drops turns whose clients have stopped waiting; the others are tried again.
fn drop_unawaited(batch: &mut Batch) -> Vec<TurnId> {
    let turns = std::mem::take(&mut batch.turns);
    let receipts = std::mem::take(&mut batch.receipts);
    let mut dropped = Vec::new();
    for (turn, receipt) in turns.into_iter().zip(receipts) {
        if receipt.is_closed() {
            dropped.push(turn.id);
        } else {
            batch.turns.push(turn);
            batch.receipts.push(receipt);
        }
    }
    dropped
}

impl Effects<State> for CollectEffects {
    async fn perform(&self, effect: Effect) -> Report {
        match effect {
            Effect::Load => Report::Loaded(self.load().await.map_err(|e| e.to_string())),
            Effect::Write(batch) => Report::Wrote(Box::new(self.write(*batch).await)),
            Effect::Spool(batch) => Report::Wrote(Box::new(self.spool(*batch).await)),
            Effect::Ship(ship) => Report::Shipped(self.ship(ship).await),
            Effect::Rest(ms) => {
                self.rest(Duration::from_millis(ms)).await;
                Report::Rested
            }
            Effect::Refuse(receipt, reason) => {
                let _told = receipt.send(Receipt::NotCollected(reason));
                Report::Done
            }
            Effect::Decline(reply, why) => {
                let _told = reply.send(Err(why));
                Report::Done
            }
            Effect::DeclineReward(reply, why) => {
                let _told = reply.send(Err(why));
                Report::Done
            }
            Effect::Pause(ms) => {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Report::Resumed
            }
            Effect::Evict(before_ms) => {
                self.index().evict_idle(before_ms);
                Report::Done
            }
            Effect::Forget(session) => {
                self.index().forget_session(session);
                Report::Done
            }
        }
    }
}

#[cfg(test)]
#[path = "effects_tests.rs"]
mod tests;
