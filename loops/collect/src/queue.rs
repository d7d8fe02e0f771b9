//! What waits to be written, in the order in which it came.

use std::collections::{HashSet, VecDeque};

use hone_domain::{NextState, Reason, Receipt, Transition, Turn, TurnId};
use tokio::sync::oneshot;

use crate::{Batch, Rewarding, Said};

/// One thing to write.
#[derive(Debug)]
pub(crate) enum Item {
    Turn(Box<Turn>, oneshot::Sender<Receipt>),
    Transition(Transition),
    Said(Said),
    Reward(Rewarding),
    Settle(TurnId, Reason),
}

/// The items, first come first written.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// With their bytes, as far as those matter.
    items: VecDeque<(Item, u64)>,
    turns: usize,
    bytes: u64,
}

impl Item {
    fn bytes(&self) -> u64 {
        match self {
            Self::Turn(turn, _) => turn.bytes(),
            Self::Transition(transition) => text_bytes(&transition.next_state),
            Self::Said(_) | Self::Reward(_) | Self::Settle(..) => 0,
        }
    }
}

/// Bytes of what a next state says.
pub(crate) fn text_bytes(next_state: &NextState) -> u64 {
    next_state
        .items
        .iter()
        .map(|item| item.text.len() as u64)
        .sum()
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Number of turns in it.
    pub(crate) fn turns(&self) -> usize {
        self.turns
    }

    /// Bytes of the turns and next states in it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The turns in it.
    pub(crate) fn turn_ids(&self) -> HashSet<TurnId> {
        let id = |item: &Item| match item {
            Item::Turn(turn, _) => Some(turn.id),
            Item::Transition(_) | Item::Said(_) | Item::Reward(_) | Item::Settle(..) => None,
        };
        self.items.iter().filter_map(|(item, _)| id(item)).collect()
    }

    pub(crate) fn push(&mut self, item: Item) {
        let bytes = self.count(&item);
        self.items.push_back((item, bytes));
    }

    fn count(&mut self, item: &Item) -> u64 {
        let bytes = item.bytes();
        self.turns += usize::from(matches!(item, Item::Turn(..)));
        self.bytes += bytes;
        bytes
    }

    pub(crate) fn pop(&mut self) -> Option<Item> {
        let (item, bytes) = self.items.pop_front()?;
        self.turns -= usize::from(matches!(item, Item::Turn(..)));
        self.bytes -= bytes;
        Some(item)
    }

    /// The first `most` items, or as many as have `bytes` bytes. A next state is never in an earlier
    /// batch than its turn, because it came later, and within a batch turns are written first.
    pub(crate) fn take(&mut self, most: usize, bytes: u64) -> Batch {
        let mut batch = Batch::default();
        let all = self.bytes;
        for _ in 0..most {
            if all - self.bytes >= bytes {
                break;
            }
            let Some(item) = self.pop() else {
                break;
            };
            match item {
                Item::Turn(turn, receipt) => {
                    batch.turns.push(*turn);
                    batch.receipts.push(receipt);
                }
                Item::Transition(transition) => batch.transitions.push(transition),
                Item::Said(said) => batch.said.push(said),
                Item::Reward(reward) => batch.rewards.push(reward),
                Item::Settle(turn, reason) => batch.settles.push((turn, reason)),
            }
        }
        batch
    }

    /// Puts back what was not written, before everything else.
    pub(crate) fn put_back(&mut self, batch: Batch) {
        let turns = batch.turns.into_iter().map(Box::new).zip(batch.receipts);
        let items: Vec<Item> = turns
            .map(|(turn, receipt)| Item::Turn(turn, receipt))
            .chain(batch.transitions.into_iter().map(Item::Transition))
            .chain(batch.said.into_iter().map(Item::Said))
            .chain(batch.rewards.into_iter().map(Item::Reward))
            .chain(batch.settles.into_iter().map(|(t, r)| Item::Settle(t, r)))
            .collect();
        for item in items.into_iter().rev() {
            let bytes = self.count(&item);
            self.items.push_front((item, bytes));
        }
    }
}
