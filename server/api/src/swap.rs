//! A value that is exchanged whole while others read it.

use std::sync::{Arc, PoisonError, RwLock};

/// Readers get the value of the moment and keep it as long as they need it.
#[derive(Debug)]
pub struct Swap<T>(RwLock<Arc<T>>);

impl<T> Swap<T> {
    /// Holds this value first.
    pub fn new(value: T) -> Self {
        Self(RwLock::new(Arc::new(value)))
    }

    /// The value of this moment.
    pub fn get(&self) -> Arc<T> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Another value from now on.
    pub fn set(&self, value: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
    }
}
