//! The spool's way in and out: what a ledger that does not answer leaves goes in, and goes to it when it answers again.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use hone_domain::{Reason, Receipt, Transition, Turn, TurnId};
use hone_ledger::LedgerError;
use tokio::time::timeout;

use crate::effects::{decline_rewards, in_time};
use crate::spool::{AppendError, Record, Room, Waiting};
use crate::{Batch, CollectEffects, Ship, Shipped, Wrote};

/// Records among which a later turn is looked for, where the first one cannot be written.
const DOUBTED_AMONG: usize = 256;
/// Later turns that are tried then.
const LATER_TRIED: usize = 4;

impl CollectEffects {
    // === in ===

    /// Puts a batch behind what waits in the spool.
    pub(crate) async fn spool(&self, mut batch: Batch) -> Wrote {
        let mut wrote = Wrote::default();
        for (turn, receipt) in batch.turns.iter_mut().zip(&batch.receipts) {
            if receipt.is_closed() {
                turn.untrainable.get_or_insert(Reason::LateReceipt);
            }
        }
        if let Err(error) = self.take_feedback(&mut batch, &mut wrote).await {
            for said in batch.said.drain(..) {
                let _told = said.reply.send(Err(error.to_string()));
            }
        }
        // A reward would miss the turns of its session that wait in the spool.
        let why = "turns wait until the ledger takes them again; send it again later";
        decline_rewards(&mut batch, why);
        self.put_into_spool(&mut batch, &mut wrote).await;
        wrote.status = self.ctx.spool.status();
        wrote.unfinished = batch;
        wrote
    }

    /// Feedback does not wait in the spool: whoever gives it is told what became of it. A ledger that answers keeps what
    /// is said of a turn that comes later.
    async fn take_feedback(&self, batch: &mut Batch, wrote: &mut Wrote) -> Result<(), LedgerError> {
        let limit = Duration::from_millis(self.ctx.config.spool_after_ms);
        while !batch.said.is_empty() {
            if self.ctx.spool.status().is_away {
                return Err(LedgerError::Failed(
                    "the ledger does not answer; send it again later".to_owned(),
                ));
            }
            in_time(limit, self.write_feedback(batch, wrote)).await?;
        }
        Ok(())
    }

    /// Puts turns, next states and ends of turns into the spool, and signs the receipts. What finds no room is refused;
    /// what cannot be written stays in the batch.
    pub(crate) async fn put_into_spool(&self, batch: &mut Batch, wrote: &mut Wrote) {
        let done = match self.spool_turns(batch, wrote).await {
            Ok(()) => self.spool_ends(batch, wrote).await,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            wrote.error = Some(error.to_string());
        }
    }

    async fn spool_turns(&self, batch: &mut Batch, wrote: &mut Wrote) -> Result<(), AppendError> {
        if batch.turns.is_empty() {
            return Ok(());
        }
        let (spool, carry) = (&self.ctx.spool, &self.ctx.carry);
        let mark = self.ctx.ledger.forget_mark();
        let record = |turn| Record::Turn {
            turn: Box::new(Cow::Borrowed(turn)),
            mark,
        };
        let records: Vec<_> = batch.turns.iter().map(record).collect();
        // Those that nobody tried to record are in doubt from here on: the loop may end before it signs.
        let ids = batch.turns.iter().map(|turn| turn.id);
        let untried: Vec<TurnId> = ids.filter(|id| !carry.doubts(*id)).collect();
        carry.doubt(untried.iter().copied());
        match spool.append(&records, Room::Bound).await {
            Ok(()) => {}
            Err(AppendError::Full(_)) => {
                carry.clear(untried);
                if batch.turns.len() > 1 {
                    return self.spool_one_by_one(batch, wrote).await;
                }
                self.refuse_all(batch, wrote);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let turns = std::mem::take(&mut batch.turns);
        wrote.spooled += turns.len() as u64;
        for (turn, receipt) in turns.iter().zip(std::mem::take(&mut batch.receipts)) {
            if receipt.send(Receipt::Spooled).is_ok() {
                carry.clear([turn.id]);
            } else {
                // Its client was told that it is not collected, so nothing may be learned from it.
                spool.mark_late([turn.id]);
                wrote.late.push(turn.id);
                batch.settles.push((turn.id, Reason::LateReceipt));
            }
        }
        Ok(())
    }

    /// Where a batch finds no room, some of its turns may.
    async fn spool_one_by_one(
        &self,
        batch: &mut Batch,
        wrote: &mut Wrote,
    ) -> Result<(), AppendError> {
        let turns = std::mem::take(&mut batch.turns);
        let mut all = turns.into_iter().zip(std::mem::take(&mut batch.receipts));
        let mut done = Ok(());
        while done.is_ok()
            && let Some((turn, receipt)) = all.next()
        {
            batch.turns.push(turn);
            batch.receipts.push(receipt);
            done = Box::pin(self.spool_turns(batch, wrote)).await;
        }
        for (turn, receipt) in all {
            batch.turns.push(turn);
            batch.receipts.push(receipt);
        }
        done
    }

    fn refuse_all(&self, batch: &mut Batch, wrote: &mut Wrote) {
        let receipts = std::mem::take(&mut batch.receipts);
        for (turn, receipt) in std::mem::take(&mut batch.turns).iter().zip(receipts) {
            let _told = receipt.send(Receipt::NotCollected(Reason::SpoolFull));
            match self.ctx.carry.doubts(turn.id) {
                // The ledger may have it all the same.
                true => wrote.dropped.push(turn.id),
                false => wrote.refused.push(turn.id),
            }
        }
    }

    async fn spool_ends(&self, batch: &mut Batch, wrote: &mut Wrote) -> Result<(), AppendError> {
        let (spool, carry) = (&self.ctx.spool, &self.ctx.carry);
        let before = batch.transitions.len();
        batch.transitions.retain(|next| !carry.doubts(next.turn));
        wrote.ignored += (before - batch.transitions.len()) as u64;
        let next = |transition| Record::Next(Cow::Borrowed(transition));
        let settle = |(turn, reason): &(TurnId, Reason)| Record::Settle(*turn, *reason);
        let next = batch.transitions.iter().map(next);
        let records: Vec<_> = next.chain(batch.settles.iter().map(settle)).collect();
        spool.append(&records, Room::Reserve).await?;
        let next = batch.transitions.drain(..).map(|next| next.turn);
        wrote.closed.extend(next);
        let settled: Vec<TurnId> = batch.settles.drain(..).map(|(turn, _)| turn).collect();
        carry.clear(settled.iter().copied());
        wrote.closed.extend(settled);
        Ok(())
    }

    // === out ===

    /// Ships the first records to the ledger, unless it does not answer, or the loop stops.
    pub(crate) async fn ship(&self, ship: Ship) -> Shipped {
        let mut shipped = Shipped::default();
        let ended = match &self.stop {
            None => self.ship_first(ship, &mut shipped).await,
            Some(stop) => tokio::select! {
                biased;
                () = stop.wait() => Err("the loop stops".to_owned()),
                ended = self.ship_first(ship, &mut shipped) => ended,
            },
        };
        if shipped.transitions > 0 {
            self.notify();
        }
        shipped.error = ended.err();
        shipped.status = self.ctx.spool.status();
        shipped
    }

    /// About how many bytes are read from the spool at a time.
    fn ship_bytes_max(&self) -> u64 {
        (self.ctx.config.held_bytes_max / 4).max(1)
    }

    async fn ship_first(&self, ship: Ship, shipped: &mut Shipped) -> Result<(), String> {
        let spool = &self.ctx.spool;
        let first = spool.first(ship.most, self.ship_bytes_max()).await;
        let first = first.map_err(|error| format!("the spool could not be read: {error}"))?;
        shipped.lost += first.lost;
        if first.lost > 0 {
            let records = first.lost;
            tracing::error!(records, "records of the spool are damaged and are left out");
        }
        if first.waiting.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.write_first(&first.waiting, ship, shipped).await {
            if ship.doubts_first && self.takes_a_later_turn(ship).await {
                tracing::error!(%error, "the ledger takes other turns, and not this one, which is left out");
                shipped.lost += first.waiting.len() as u64;
            } else {
                spool.note_away(matches!(error, LedgerError::Failed(_)));
                return Err(error.to_string());
            }
        }
        spool.note_away(false);
        let released = spool.release(first.waiting).await;
        released.map_err(|error| format!("the spool could not be emptied: {error}"))
    }

    /// Writes records as a batch is written: turns first, then next states, then ends of turns.
    async fn write_first(
        &self,
        first: &[Waiting],
        ship: Ship,
        shipped: &mut Shipped,
    ) -> Result<(), LedgerError> {
        let (ledger, limit) = (&self.ctx.ledger, Duration::from_millis(ship.limit_ms));
        let (turns, mark) = self.turns_of(first);
        if !turns.is_empty() {
            in_time(limit, ledger.record_spooled(&turns, mark)).await?;
        }
        let settled = settled_of(first);
        let next = self.next_states_of(first, &settled);
        if !next.is_empty() {
            let new = in_time(limit, ledger.record_transitions(&next)).await?;
            shipped.transitions += new.len() as u64;
        }
        if !settled.is_empty() {
            in_time(limit, ledger.settle_turns(&settled)).await?;
        }
        shipped.turns += turns.len() as u64;
        let unreadable = first.iter().filter(|waiting| waiting.record.is_none());
        shipped.lost += unreadable.count() as u64;
        Ok(())
    }

    /// The turns among records, and the oldest of their marks.
    fn turns_of(&self, records: &[Waiting]) -> (Vec<Turn>, i64) {
        let (mut turns, mut oldest) = (Vec::with_capacity(records.len()), i64::MAX);
        for waiting in records {
            let Some(Record::Turn { turn, mark }) = &waiting.record else {
                continue;
            };
            let mut turn = Turn::clone(turn);
            if self.ctx.spool.is_late(turn.id) {
                turn.untrainable.get_or_insert(Reason::LateReceipt);
            }
            oldest = oldest.min(*mark);
            turns.push(turn);
        }
        (turns, oldest)
    }

    /// The next states among records. Of a turn whose client was told that it is not collected, none may come first.
    fn next_states_of(&self, records: &[Waiting], settled: &[(TurnId, Reason)]) -> Vec<Transition> {
        let late =
            |(turn, reason): &(TurnId, Reason)| (*reason == Reason::LateReceipt).then_some(*turn);
        let late: HashSet<TurnId> = settled.iter().filter_map(late).collect();
        let is_late = |turn| late.contains(&turn) || self.ctx.spool.is_late(turn);
        let next = records.iter().filter_map(|waiting| match &waiting.record {
            Some(Record::Next(next)) if !is_late(next.turn) => Some(Transition::clone(next)),
            _ => None,
        });
        next.collect()
    }

    /// Whether the ledger takes a turn that waits behind the first record. That one comes once more in its order, and
    /// changes nothing then.
    async fn takes_a_later_turn(&self, ship: Ship) -> bool {
        let first = self.ctx.spool.first(DOUBTED_AMONG, self.ship_bytes_max());
        let Ok(first) = first.await else {
            return false;
        };
        let is_turn = |waiting: &&Waiting| matches!(waiting.record, Some(Record::Turn { .. }));
        let later = first.waiting.iter().skip(1).filter(is_turn);
        for later in later.take(LATER_TRIED) {
            let (turns, mark) = self.turns_of(std::slice::from_ref(later));
            let limit = Duration::from_millis(ship.limit_ms);
            let written = timeout(limit, self.ctx.ledger.record_spooled(&turns, mark)).await;
            match written {
                Ok(Ok(_)) => return true,
                // Perhaps the same is wrong with it.
                Ok(Err(_)) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Rests, not beyond the shutdown.
    pub(crate) async fn rest(&self, time: Duration) {
        let rested = tokio::time::sleep(time);
        match &self.stop {
            None => rested.await,
            Some(stop) => tokio::select! {
                () = rested => {}
                () = stop.wait() => {}
            },
        }
    }
}

fn settled_of(records: &[Waiting]) -> Vec<(TurnId, Reason)> {
    let settled = records.iter().filter_map(|waiting| match &waiting.record {
        Some(Record::Settle(turn, reason)) => Some((*turn, *reason)),
        _ => None,
    });
    settled.collect()
}

#[cfg(test)]
#[path = "shipping_tests.rs"]
mod tests;
