//! What the kept sets of completions that run take in memory.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Most ids of one completion: 16 MiB. A wide top-p over a large vocabulary leaves another large set at
/// every position.
const IDS_EACH_MAX: usize = 1 << 22;
/// Most ids of all completions that run: 256 MiB.
const IDS_MAX: usize = 1 << 26;

/// Ids in the sets of one completion, counted with those of all others.
#[derive(Debug)]
pub(super) struct KeptIds {
    own: usize,
    given_up: bool,
    all: Arc<AtomicUsize>,
}

impl KeptIds {
    /// None yet; `all` counts those of every completion.
    pub(super) fn new(all: &Arc<AtomicUsize>) -> Self {
        Self {
            own: 0,
            given_up: false,
            all: Arc::clone(all),
        }
    }

    /// Counts a set. False where it is too much: then all of them are given up.
    pub(super) fn add(&mut self, ids: usize) -> bool {
        self.own += ids;
        let all = self.all.fetch_add(ids, Relaxed) + ids;
        if self.own > IDS_EACH_MAX || all > IDS_MAX {
            self.give_back();
            self.given_up = true;
        }
        !self.given_up
    }

    /// Whether there was too much.
    pub(super) fn given_up(&self) -> bool {
        self.given_up
    }

    fn give_back(&mut self) {
        self.all.fetch_sub(std::mem::take(&mut self.own), Relaxed);
    }
}

impl Drop for KeptIds {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_of_one_and_of_all_is_given_up_and_given_back() {
        let all = Arc::new(AtomicUsize::new(0));
        let mut one = KeptIds::new(&all);
        assert!(one.add(IDS_EACH_MAX) && !one.given_up());
        assert!(!one.add(1) && one.given_up());
        assert_eq!(all.load(Relaxed), 0, "what was given up takes no room");
        let mut many: Vec<KeptIds> = (0..IDS_MAX / IDS_EACH_MAX)
            .map(|_| KeptIds::new(&all))
            .collect();
        assert!(many.iter_mut().all(|ids| ids.add(IDS_EACH_MAX)));
        let mut last = KeptIds::new(&all);
        assert!(!last.add(1), "there is room for no more");
        drop(many.pop());
        assert!(KeptIds::new(&all).add(1));
        drop(many);
        assert_eq!(all.load(Relaxed), 0);
    }
}
