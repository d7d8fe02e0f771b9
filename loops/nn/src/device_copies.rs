//! Copies of an adapter that devices hold.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One device of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceId(u64);

impl DeviceId {
    /// An id that no other device has.
    #[must_use]
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

type AnyCopy = Arc<dyn Any + Send + Sync>;

/// The copies of an adapter that devices hold, one for each device. They are freed with the adapter. A
/// clone has none; equality and digests do not look at them.
#[derive(Default)]
pub struct DeviceCopies(Mutex<Vec<(DeviceId, AnyCopy)>>);

impl DeviceCopies {
    /// The copy on `device`; `make` makes it where there is none yet.
    ///
    /// # Errors
    /// What `make` fails with.
    pub fn get_or_make<T: Any + Send + Sync, E>(
        &self,
        device: DeviceId,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        if let Some(copy) = self.find(device) {
            return Ok(copy);
        }
        // Others look up theirs meanwhile.
        let made = Arc::new(make()?);
        let mut copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster; its copy is the same.
        if let Some(copy) = of(&copies, device) {
            return Ok(copy);
        }
        copies.push((device, Arc::<T>::clone(&made)));
        Ok(made)
    }

    fn find<T: Any + Send + Sync>(&self, device: DeviceId) -> Option<Arc<T>> {
        of(
            &self.0.lock().unwrap_or_else(PoisonError::into_inner),
            device,
        )
    }

    /// Frees all of them.
    pub fn clear(&mut self) {
        let copies = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        copies.clear();
    }
}

fn of<T: Any + Send + Sync>(copies: &[(DeviceId, AnyCopy)], device: DeviceId) -> Option<Arc<T>> {
    let (_, copy) = copies.iter().find(|(id, _)| *id == device)?;
    Arc::clone(copy).downcast().ok()
}

impl Clone for DeviceCopies {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for DeviceCopies {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl std::fmt::Debug for DeviceCopies {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_tuple("DeviceCopies").field(&copies.len()).finish()
    }
}
