//! A fair semaphore for work that takes a core: whoever asks for many waits behind those who ask for few.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// A bounded number of places. An owner stands in line for as many at once as it may have, and with what
/// goes beyond that in a line of its own.
#[derive(Debug)]
pub struct FairSemaphore {
    all: Arc<Semaphore>,
    of_one: usize,
    owners: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub struct FairPermit {
    of_all: OwnedSemaphorePermit,
    // Holds the owner's line as well.
    of_owner: OwnedSemaphorePermit,
}

impl FairPermit {
    /// Gives all back but so many of the places that it is.
    pub fn shrink(&mut self, places: usize) {
        for permit in [&mut self.of_all, &mut self.of_owner] {
            let beyond = permit.num_permits().saturating_sub(places);
            drop(permit.split(beyond));
        }
    }
}

impl FairSemaphore {
    /// So many places, of which anybody may have all.
    pub fn new(count: usize) -> Self {
        Self::shared(count, count)
    }

    /// So many places, of which an owner may have so many.
    pub fn shared(count: usize, of_one: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(count)),
            of_one,
            owners: Mutex::default(),
        }
    }

    /// Waits for so many places, which are one then; never for more than an owner may have.
    pub async fn enter(&self, owner: &str, places: usize) -> Result<FairPermit, AcquireError> {
        let places = u32::try_from(places.min(self.of_one)).unwrap_or(u32::MAX);
        let of_owner = self.line_of(owner).acquire_many_owned(places).await?;
        let of_all = self.all.clone().acquire_many_owned(places).await?;
        Ok(FairPermit { of_all, of_owner })
    }

    /// Places that nobody has.
    pub fn free(&self) -> usize {
        self.all.available_permits()
    }

    fn line_of(&self, owner: &str) -> Arc<Semaphore> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = owners.get(owner).and_then(Weak::upgrade) {
            return line;
        }
        owners.retain(|_, line| line.strong_count() > 0);
        let line = Arc::new(Semaphore::new(self.of_one));
        owners.insert(owner.to_owned(), Arc::downgrade(&line));
        line
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn who_asks_for_many_waits_behind_who_asks_for_few() {
        let semaphore = FairSemaphore::new(2);
        let mut context = Context::from_waker(Waker::noop());
        let mut many: Vec<_> = (0..4)
            .map(|_| Box::pin(semaphore.enter("many", 1)))
            .collect();
        let mut taken: Vec<FairPermit> = Vec::new();
        for entering in &mut many[..2] {
            match entering.as_mut().poll(&mut context) {
                Poll::Ready(Ok(place)) => taken.push(place),
                other => panic!("{other:?}"),
            }
        }
        assert!(many[2].as_mut().poll(&mut context).is_pending());
        assert!(many[3].as_mut().poll(&mut context).is_pending());
        let mut few = pin!(semaphore.enter("few", 1));
        assert!(few.as_mut().poll(&mut context).is_pending());
        taken.pop();
        assert!(many[2].as_mut().poll(&mut context).is_pending());
        assert!(few.as_mut().poll(&mut context).is_ready());
        taken.pop();
        assert!(many[2].as_mut().poll(&mut context).is_ready());
        drop((many, taken));
        // Lines that nobody stands in are not kept.
        assert!(
            pin!(semaphore.enter("other", 1))
                .poll(&mut context)
                .is_ready()
        );
        assert_eq!(semaphore.owners.lock().unwrap().len(), 1);
    }
}
