//! Replies that are read before the rules decide about them, one ask per transition.

use std::time::Duration;

use hone_domain::Millis;
use hone_ledger::Claim;
use tokio::sync::oneshot;

use super::{NO_PLACE, State, millis};
use crate::case::{Settled, Undecided, Unread};
use crate::decide::by_reading;
use crate::event::{Key, key};
use crate::reading::{Reading, Unreadable};
use crate::{Effect, ReadAsk};

/// How long a reply waits for a probe that is being fitted, the first time; then four times as long each time.
const NOT_YET_MS: Millis = 15_000;

impl State {
    /// Has the reply read where somebody reads; otherwise the rules decide at once.
    pub(super) fn read(&mut self, now_ms: Millis, undecided: Undecided) -> Vec<Effect> {
        let claim = undecided.claim;
        // Votes and checks may have taken all of their time; the lease has some left.
        let deadline_ms = undecided
            .deadline_ms
            .saturating_add(millis(self.config.lease_ms / 16));
        let left = u64::try_from(deadline_ms.saturating_sub(now_ms)).unwrap_or(0);
        let is_reply = undecided.reply.is_some();
        let reply = undecided.reply.filter(|_| self.has_reader && left > 0);
        let Some(reply) = reply else {
            let settled = Settled {
                decision: undecided.by_rules,
                votes: undecided.votes,
                hint_choice: None,
                is_reply,
            };
            return self.record(now_ms, claim, settled);
        };
        let (withdraw, withdrawn) = oneshot::channel();
        let ask = ReadAsk {
            claim,
            turn: undecided.turn,
            reply: reply.words.clone(),
            deadline: Duration::from_millis(left),
            withdrawn,
        };
        let unread = Unread {
            claim,
            deadline_ms,
            reply,
            by_rules: undecided.by_rules,
            votes: undecided.votes,
            attempts: undecided.attempts,
            _withdraw: withdraw,
        };
        self.unread.insert(key(&claim), unread);
        self.readings_in_flight += 1;
        vec![Effect::Read(Box::new(ask))]
    }

    /// Decides by what was read, and by the rules where that is nothing.
    pub(super) fn has_read(
        &mut self,
        now_ms: Millis,
        claim: Claim,
        result: Result<Option<Reading>, Unreadable>,
    ) -> Vec<Effect> {
        self.readings_in_flight = self.readings_in_flight.saturating_sub(1);
        let Some(unread) = self.unread.remove(&key(&claim)) else {
            return Vec::new();
        };
        // A reply that only a reading could decide waits for the probe, as long as there are claims left.
        let again = unread.attempts + 1 < self.config.attempts_max && !self.draining;
        if result == Err(Unreadable::NotYet) && unread.by_rules.is_none() && again {
            let wait_ms = NOT_YET_MS << (2 * unread.attempts.min(4));
            return self.release(now_ms.saturating_add(wait_ms), claim);
        }
        self.decide_read(now_ms, unread, result)
    }

    /// Ends readings whose time is over.
    pub(super) fn expire_readings(&mut self, now_ms: Millis) -> Vec<Effect> {
        let over = self.unread.extract_if(|_, one| now_ms >= one.deadline_ms);
        let over: Vec<(Key, Unread)> = over.collect();
        let end = |(_, unread)| {
            self.decide_read(now_ms, unread, Err(Unreadable::Failed(NO_PLACE.to_owned())))
        };
        over.into_iter().flat_map(end).collect()
    }

    fn decide_read(
        &mut self,
        now_ms: Millis,
        unread: Unread,
        result: Result<Option<Reading>, Unreadable>,
    ) -> Vec<Effect> {
        let Unread {
            claim,
            reply,
            mut by_rules,
            mut votes,
            ..
        } = unread;
        let mut decision = None;
        match result {
            Ok(Some(reading)) => {
                self.counts.readings += 1;
                let read = by_reading(&reading, &reply.words, reply.ruling.wish);
                votes.push(read.0);
                decision = read.1;
                let stands = !reply.is_alone || reading.allows(reply.ruling.outcome);
                by_rules = by_rules.filter(|_| stands);
            }
            Ok(None) | Err(Unreadable::NotYet) => {}
            Err(why) => {
                self.counts.readings_failed += 1;
                votes.push(super::abstained(why.to_string()));
            }
        }
        let settled = Settled {
            decision: decision.or(by_rules),
            votes,
            hint_choice: None,
            is_reply: true,
        };
        self.record(now_ms, claim, settled)
    }
}

#[cfg(test)]
#[path = "replies_tests.rs"]
mod tests;
