//! Replies that are read before the rules decide about them, one ask per transition.

use std::sync::Arc;
use std::time::Duration;

use hone_domain::{Millis, NextKind, NextState, Turn, Vote};
use hone_ledger::Claim;
use tokio::sync::oneshot;

use super::settling::Settled;
use super::{NO_PLACE, State, millis};
use crate::decide::{Decision, by_reading};
use crate::event::{Key, key};
use crate::reading::{Reading, Unreadable};
use crate::rules::Ruling;
use crate::{Effect, ReadAsk};

/// How long a reply waits for a probe that is being fitted, the first time; then four times as long each time.
const NOT_YET_MS: Millis = 15_000;

/// A person's reply, and what the rules make of it.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    words: Arc<str>,
    ruling: Ruling,
    /// Nothing but a person answered, so that the ruling is about the same words.
    is_alone: bool,
}

impl Reply {
    /// All that a person said in `next_state`; none where nobody did.
    pub(crate) fn of(next_state: &NextState, ruling: &Ruling) -> Option<Self> {
        let items = next_state.items.iter();
        let words = items.filter(|item| item.kind == NextKind::UserReply);
        let words: Vec<&str> = words.map(|item| item.text.as_str()).collect();
        let count = words.len();
        let words = words.join("\n");
        (!words.trim().is_empty()).then(|| Self {
            words: words.into(),
            ruling: ruling.clone(),
            is_alone: next_state.items.len() == count,
        })
    }
}

/// What is left undecided but for a reading and the rules.
#[derive(Debug)]
pub(super) struct Undecided {
    pub claim: Claim,
    pub turn: Arc<Turn>,
    pub reply: Option<Reply>,
    /// What the rules decide.
    pub by_rules: Option<Decision>,
    pub votes: Vec<Vote>,
    /// Claims of it that ended without a verdict.
    pub attempts: u32,
    /// When it is not waited for any more.
    pub deadline_ms: Millis,
}

/// A reply that is being read.
#[derive(Debug)]
pub(super) struct Unread {
    pub(super) claim: Claim,
    pub(super) deadline_ms: Millis,
    reply: Reply,
    by_rules: Option<Decision>,
    votes: Vec<Vote>,
    attempts: u32,
    /// Dropping it withdraws the ask.
    _withdraw: oneshot::Sender<()>,
}

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
