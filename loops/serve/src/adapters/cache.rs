//! The cache of adapters in memory, by their last use: what is counted or looked for on the way to an
//! answer takes no walk over everybody's.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::loaded::{Loaded, Wanted};

/// An adapter that new requests can get. The table holds it, and who uses it does.
#[derive(Debug)]
struct Slot {
    which: Wanted,
    loaded: Weak<Loaded>,
    bytes: u64,
}

impl Slot {
    fn is_used(&self) -> bool {
        self.loaded.strong_count() > 1
    }
}

/// All adapters in memory, each under the number of its last use, which no other one has.
#[derive(Debug, Default)]
pub(super) struct AdapterCache {
    /// Those that no request used when they were looked at last.
    idle: BTreeMap<u64, Slot>,
    /// Pinned: each was handed out since it was looked at, so a request may use it.
    pinned: BTreeMap<u64, Slot>,
    /// How many there are of each size.
    sizes: BTreeMap<u64, usize>,
    bytes: u64,
    /// Older versions that may still be in use. New requests do not get them.
    retired: Vec<Weak<Loaded>>,
    /// Adapters that are loaded and about to serve, and their bytes.
    pub(super) coming: (usize, u64),
}

impl AdapterCache {
    /// New requests can get `loaded` from now on.
    pub(super) fn put(&mut self, used: u64, which: Wanted, loaded: &Arc<Loaded>) {
        let bytes = loaded.bytes;
        let loaded = Arc::downgrade(loaded);
        *self.sizes.entry(bytes).or_default() += 1;
        self.bytes += bytes;
        let slot = Slot {
            which,
            loaded,
            bytes,
        };
        self.pinned.insert(used, slot);
    }

    /// New requests cannot get it any more.
    pub(super) fn take(&mut self, used: u64) {
        let slot = self
            .pinned
            .remove(&used)
            .or_else(|| self.idle.remove(&used));
        let Some(Slot { bytes, .. }) = slot else {
            return;
        };
        self.bytes -= bytes;
        if let Some(count) = self.sizes.get_mut(&bytes) {
            *count -= 1;
            if *count == 0 {
                self.sizes.remove(&bytes);
            }
        }
    }

    /// Pins an adapter that is handed out: its last use has the number `now`.
    pub(super) fn pin(&mut self, before: u64, now: u64) {
        let slot = self.idle.remove(&before);
        if let Some(slot) = slot.or_else(|| self.pinned.remove(&before)) {
            self.pinned.insert(now, slot);
        }
    }

    /// Moves the adapters that no request uses any more to the idle ones.
    fn settle(&mut self) {
        let back = self.pinned.extract_if(.., |_, slot| !slot.is_used());
        self.idle.extend(back);
    }

    /// The longest unused of those without a request that are like that.
    pub(super) fn oldest_unused(&mut self, is_it: impl Fn(&Wanted) -> bool) -> Option<Wanted> {
        self.settle();
        // Who proves one holds it for a moment, and did not ask for it.
        let mut free = self.idle.values().filter(|slot| !slot.is_used());
        let oldest = free.find(|slot| is_it(&slot.which))?;
        Some(oldest.which.clone())
    }

    /// The bytes of those that requests use, and the longest unused of them.
    pub(super) fn used(&mut self) -> (u64, Option<Wanted>) {
        self.settle();
        let bytes = self.pinned.values().map(|slot| slot.bytes).sum();
        let oldest = self.pinned.values().next();
        (bytes, oldest.map(|slot| slot.which.clone()))
    }

    /// One that nobody new gets may be in use still.
    pub(super) fn retire(&mut self, loaded: &Arc<Loaded>) {
        self.retired.push(Arc::downgrade(loaded));
    }

    pub(super) fn drop_retired(&mut self) {
        self.retired.retain(|loaded| loaded.strong_count() > 0);
    }

    pub(super) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    fn retired_sizes(&self) -> impl Iterator<Item = u64> {
        let retired = self.retired.iter().filter_map(Weak::upgrade);
        retired.map(|loaded| loaded.bytes)
    }

    /// Bytes beside those that new requests can get.
    fn beside(&self) -> u64 {
        self.retired_sizes().sum::<u64>() + self.coming.1
    }

    /// Pinned bytes, which cannot be evicted now, and those of the largest adapter.
    pub(super) fn pinned_bytes(&mut self) -> (u64, u64) {
        let held = self.used().0 + self.beside();
        let largest = self.sizes.keys().next_back().copied();
        (held, self.retired_sizes().chain(largest).max().unwrap_or(0))
    }

    /// Adapters in memory and their bytes.
    pub(super) fn resident(&self) -> (usize, u64) {
        let open = self.idle.len() + self.pinned.len();
        (
            open + self.retired.len() + self.coming.0,
            self.bytes + self.beside(),
        )
    }
}
