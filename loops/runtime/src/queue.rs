//! A bounded link with a named overflow rule; what overflows is counted, never silent.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// What happens to a value that finds the queue full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The new value is dropped and handed back to its sender.
    DropNewest,
    /// The oldest value is dropped in its favour.
    DropOldest,
}

#[derive(Debug)]
struct Shared<T> {
    values: Mutex<VecDeque<T>>,
    ready: Notify,
    limit: usize,
    overflow: Overflow,
    sent: AtomicU64,
    dropped: AtomicU64,
    senders: AtomicU64,
}

impl<T> Shared<T> {
    fn values(&self) -> MutexGuard<'_, VecDeque<T>> {
        // A queue of values stays a queue whatever panicked while it was held.
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending end. Sending never waits.
#[derive(Debug)]
pub struct Outbox<T>(Arc<Shared<T>>);

/// The receiving end.
#[derive(Debug)]
pub struct Inbox<T>(Arc<Shared<T>>);

/// A queue's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueStats {
    /// Values inside now.
    pub depth: usize,
    /// Most values it holds.
    pub limit: usize,
    /// Values offered since the start.
    pub sent: u64,
    /// Values dropped since the start.
    pub dropped: u64,
}

/// A queue of at most `limit` values.
pub fn queue<T>(limit: usize, overflow: Overflow) -> (Outbox<T>, Inbox<T>) {
    let shared = Arc::new(Shared {
        values: Mutex::new(VecDeque::new()),
        ready: Notify::new(),
        limit: limit.max(1),
        overflow,
        sent: AtomicU64::new(0),
        dropped: AtomicU64::new(0),
        senders: AtomicU64::new(1),
    });
    (Outbox(shared.clone()), Inbox(shared))
}

impl<T> Outbox<T> {
    /// Offers a value. Under [`Overflow::DropNewest`] a full queue hands it back; under
    /// [`Overflow::DropOldest`] the oldest value is handed back instead.
    pub fn send(&self, value: T) -> Result<(), T> {
        let shared = &self.0;
        shared.sent.fetch_add(1, Ordering::Relaxed);
        let mut values = shared.values();
        let dropped = if values.len() < shared.limit {
            values.push_back(value);
            None
        } else if shared.overflow == Overflow::DropOldest {
            let oldest = values.pop_front();
            values.push_back(value);
            oldest
        } else {
            Some(value)
        };
        drop(values);
        shared.ready.notify_one();
        match dropped {
            None => Ok(()),
            Some(value) => {
                shared.dropped.fetch_add(1, Ordering::Relaxed);
                Err(value)
            }
        }
    }

    /// Its counters.
    pub fn stats(&self) -> QueueStats {
        stats(&self.0)
    }
}

impl<T> Clone for Outbox<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Self(self.0.clone())
    }
}

impl<T> Drop for Outbox<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.ready.notify_waiters();
            self.0.ready.notify_one();
        }
    }
}

impl<T> Inbox<T> {
    /// Waits for the next value; none when every sender is gone and the queue is empty.
    pub async fn recv(&self) -> Option<T> {
        loop {
            let ready = self.0.ready.notified();
            if let Some(value) = self.try_recv() {
                return Some(value);
            }
            if self.0.senders.load(Ordering::Acquire) == 0 {
                return None;
            }
            ready.await;
        }
    }

    /// The next value, if there is one now.
    pub fn try_recv(&self) -> Option<T> {
        self.0.values().pop_front()
    }

    /// Its counters.
    pub fn stats(&self) -> QueueStats {
        stats(&self.0)
    }
}

/// A second receiving end. A restarted loop takes over its predecessor's queue this way.
impl<T> Clone for Inbox<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

fn stats<T>(shared: &Shared<T>) -> QueueStats {
    QueueStats {
        depth: shared.values().len(),
        limit: shared.limit,
        sent: shared.sent.load(Ordering::Relaxed),
        dropped: shared.dropped.load(Ordering::Relaxed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn overflow_follows_its_rule_and_is_counted() {
        let (out, inbox) = queue(2, Overflow::DropNewest);
        assert_eq!(
            [out.send(1), out.send(2), out.send(3)],
            [Ok(()), Ok(()), Err(3)]
        );
        assert_eq!((inbox.recv().await, inbox.recv().await), (Some(1), Some(2)));
        let (out, inbox) = queue(2, Overflow::DropOldest);
        assert_eq!(
            [out.send(1), out.send(2), out.send(3)],
            [Ok(()), Ok(()), Err(1)]
        );
        assert_eq!(
            inbox.stats(),
            QueueStats {
                depth: 2,
                limit: 2,
                sent: 3,
                dropped: 1
            }
        );
        assert_eq!((inbox.recv().await, inbox.recv().await), (Some(2), Some(3)));
        drop(out);
        assert_eq!(inbox.recv().await, None);
    }

    #[tokio::test]
    async fn a_waiting_receiver_wakes_for_a_value_and_for_the_end() {
        let (out, inbox) = queue(4, Overflow::DropNewest);
        let reader = tokio::spawn(async move { (inbox.recv().await, inbox.recv().await) });
        tokio::task::yield_now().await;
        out.send(5).expect("there is room");
        tokio::task::yield_now().await;
        drop(out);
        assert_eq!(reader.await.expect("the reader ends"), (Some(5), None));
    }
}
