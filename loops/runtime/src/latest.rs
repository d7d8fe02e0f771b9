//! A link on which only the newest value matters.

use tokio::sync::watch;

/// The writing end.
#[derive(Clone, Debug)]
pub struct Latest<T>(watch::Sender<T>);

/// The reading end.
#[derive(Clone, Debug)]
pub struct LatestReader<T>(watch::Receiver<T>);

impl<T: Clone + Send + Sync + 'static> Latest<T> {
    /// A link that holds `value`.
    pub fn new(value: T) -> Self {
        Self(watch::Sender::new(value))
    }

    /// Replaces the value.
    pub fn set(&self, value: T) {
        self.0.send_replace(value);
    }

    /// Replaces the value by a function of it; writers cannot lose each other's changes.
    pub fn update(&self, change: impl FnOnce(&T) -> T) {
        self.0.send_modify(|value| *value = change(value));
    }

    /// A copy of the newest value.
    pub fn get(&self) -> T {
        self.0.borrow().clone()
    }

    /// A reading end.
    pub fn reader(&self) -> LatestReader<T> {
        LatestReader(self.0.subscribe())
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
