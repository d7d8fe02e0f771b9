//! A link on which only the newest value matters.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The writing end.
#[derive(Clone, Debug)]
pub struct Latest<T> {
    values: watch::Sender<T>,
    /// Held by who makes a new value, so that nobody who reads waits for that.
    writing: Arc<Mutex<()>>,
}

/// The reading end.
#[derive(Clone, Debug)]
pub struct LatestReader<T>(watch::Receiver<T>);

impl<T: Clone + Send + Sync + 'static> Latest<T> {
    /// A link that holds `value`.
    pub fn new(value: T) -> Self {
        Self {
            values: watch::Sender::new(value),
            writing: Arc::default(),
        }
    }

    /// Replaces the value.
    pub fn set(&self, value: T) {
        let _writing = self.writing();
        self.values.send_replace(value);
    }

    /// Replaces the value by a function of it; writers cannot lose each other's changes, and
    /// readers have the old value until there is the new one.
    pub fn update(&self, change: impl FnOnce(&T) -> T) {
        let _writing = self.writing();
        let changed = change(&self.get());
        self.values.send_replace(changed);
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        // A writer that panicked has replaced nothing.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the newest value.
    pub fn get(&self) -> T {
        self.values.borrow().clone()
    }

    /// A reading end.
    pub fn reader(&self) -> LatestReader<T> {
        LatestReader(self.values.subscribe())
    }
}

impl<T: Clone + Send + Sync + 'static> LatestReader<T> {
    /// A copy of the newest value.
    pub fn get(&self) -> T {
        self.0.borrow().clone()
    }

    /// Waits for a value newer than the last one seen here; none when every writer is gone.
    pub async fn changed(&mut self) -> Option<T> {
        self.0.changed().await.ok()?;
        Some(self.0.borrow_and_update().clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_reads_does_not_wait_for_who_writes() {
        let latest = Latest::new(1);
        let reader = latest.reader();
        latest.update(|before| {
            let (told, read) = mpsc::channel();
            let reader = reader.clone();
            thread::spawn(move || told.send(reader.get()));
            let seen = read.recv_timeout(Duration::from_secs(10));
            assert_eq!(seen, Ok(*before), "read while the next value is made");
            before + 1
        });
        assert_eq!(reader.get(), 2);
    }

    #[test]
    fn writers_do_not_lose_each_others_changes() {
        let latest = Latest::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..500).for_each(|_| latest.update(|n| n + 1)));
            }
        });
        assert_eq!(latest.get(), 2_000);
    }
}
