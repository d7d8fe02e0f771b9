//! Where adapters that nobody uses any more give their memory back.
//!
//! The last who uses one is mostly the engine's thread, between two steps. Unmapping it takes a while, and
//! a device waits for all that it has under way, training too, before it frees anything.

use std::io;
use std::sync::mpsc::{Sender, channel};

use hone_nn::Adapter;

/// Takes adapters to be dropped; its thread ends with the last of these.
#[derive(Clone, Debug)]
pub(crate) struct Reaper<T = Adapter>(Sender<T>);

impl<T: Send + 'static> Reaper<T> {
    pub(crate) fn start() -> io::Result<Self> {
        let (to, gone) = channel::<T>();
        std::thread::Builder::new()
            .name("hone-serve-drop".to_owned())
            .spawn(move || gone.into_iter().for_each(drop))?;
        Ok(Self(to))
    }

    /// Drops it elsewhere; here where that thread is gone.
    pub(crate) fn take(&self, adapter: T) {
        // What could not be sent comes back in the error.
        drop(self.0.send(adapter));
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{ThreadId, current};

    use super::*;

    struct Tells(Sender<ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let told = self.0.send(current().id());
            told.expect("somebody listens");
        }
    }

    #[test]
    fn what_is_given_up_is_dropped_elsewhere() {
        let (tell, told) = channel();
        let reaper = Reaper::start().expect("a thread");
        for _ in 0..3 {
            reaper.take(Tells(tell.clone()));
        }
        drop((reaper, tell));
        // Ends with the thread, which ends with the last reaper.
        let threads: Vec<ThreadId> = told.into_iter().collect();
        assert_eq!(threads.len(), 3);
        assert!(
            threads
                .iter()
                .all(|id| *id == threads[0] && *id != current().id())
        );
    }
}
