//! Key-value blocks and the prefixes that can be reused.
//!
//! A full block is found again by the chain of everything before it: base model, arithmetic,
//! adapter, scope and all tokens up to its end. Keys are SHA-256 cut to 128 bits, so nobody can
//! craft a prompt that meets another user's chain, and a hit compares tokens and parent as well.
//! A cached block that nobody uses waits in a line, longest unused first, and is taken when a new
//! block is needed.

use std::collections::{BinaryHeap, HashMap};

use hone_domain::{Digest, Scope, Token};
use hone_nn::{BLOCK_TOKENS, KvAllocator};
use sha2::{Digest as _, Sha256};

/// Names everything up to the end of a block.
pub(crate) type ChainKey = u128;

/// What a chain begins with: requests share blocks only where all of this is equal.
pub(crate) struct ChainRoot<'a> {
    pub(crate) base: &'a Digest,
    /// Arithmetic, weight and key-value format.
    pub(crate) fingerprint: &'a str,
    /// And a number that changes when it is found damaged in memory: what was computed before is not
    /// found after.
    pub(crate) adapter: Option<(&'a Digest, u64)>,
    pub(crate) scope: &'a Scope,
}

impl ChainRoot<'_> {
    pub(crate) fn key(&self) -> ChainKey {
        let mut hash = Sha256::new();
        hash.update(self.base.0);
        let (digest, damages) = self.adapter.map_or(([0; 32], 0), |(d, n)| (d.0, n));
        hash.update(digest);
        hash.update(damages.to_le_bytes());
        hash.update([u8::from(self.adapter.is_some())]);
        hash.update((self.fingerprint.len() as u64).to_le_bytes());
        hash.update(self.fingerprint);
        hash.update(self.scope.as_str());
        cut(&hash.finalize())
    }
}

/// The key of the block with `tokens` after `parent`.
pub(crate) fn extend(parent: ChainKey, tokens: &[Token]) -> ChainKey {
    let mut bytes = [0; 16 + 4 * BLOCK_TOKENS];
    bytes[..16].copy_from_slice(&parent.to_le_bytes());
    for (to, token) in bytes[16..].chunks_exact_mut(4).zip(tokens) {
        to.copy_from_slice(&token.to_le_bytes());
    }
    cut(&Sha256::digest(bytes))
}

fn cut(hash: &[u8]) -> ChainKey {
    ChainKey::from_le_bytes(hash[..16].try_into().expect("a SHA-256 has 32 bytes"))
}

/// No block: the end of the line.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: ChainKey,
    parent: ChainKey,
    cached: bool,
    /// What the chain begins with, where requests for the newest version use it, and its place among
    /// the blocks of that root.
    root: ChainKey,
    place: u32,
    /// How often they did lately, and when that was counted last.
    heat: u32,
    touched: u64,
    /// Neighbours in the line of unused blocks.
    older: u32,
    newer: u32,
}

impl Entry {
    const EMPTY: Self = Self {
        key: 0,
        parent: 0,
        cached: false,
        root: 0,
        place: NONE,
        heat: 0,
        touched: 0,
        older: NONE,
        newer: NONE,
    };

    /// Its heat at touch number `now`: halved for every [`HEAT_HALVES`] touches of any block.
    fn heat_at(&self, now: u64) -> u32 {
        let halvings = now / HEAT_HALVES - self.touched / HEAT_HALVES;
        self.heat >> halvings.min(31)
    }
}

/// Touched blocks after which old heat counts half.
const HEAT_HALVES: u64 = 1 << 14;

/// A cached block that requests for the newest version of its scope use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HotBlock {
    pub(crate) tokens: [Token; BLOCK_TOKENS],
    /// The block before it, as an index into the same list; none at the beginning of a chain.
    pub(crate) parent: Option<usize>,
}

/// All blocks of the engine: free, held by requests, and cached.
#[derive(Debug)]
pub(crate) struct BlockPool {
    owners: KvAllocator,
    entries: Vec<Entry>,
    /// Tokens of cached blocks, `[blocks][BLOCK_TOKENS]`.
    tokens: Vec<Token>,
    index: HashMap<ChainKey, u32>,
    /// Cached blocks that have a root, by it: a swap looks at those of its scope and at no other.
    rooted: HashMap<ChainKey, Vec<u32>>,
    oldest: u32,
    newest: u32,
    idle: usize,
    touches: u64,
}

impl BlockPool {
    pub(crate) fn new(blocks: usize) -> Self {
        Self {
            owners: KvAllocator::new(blocks),
            entries: vec![Entry::EMPTY; blocks],
            tokens: vec![0; blocks * BLOCK_TOKENS],
            index: HashMap::new(),
            rooted: HashMap::new(),
            oldest: NONE,
            newest: NONE,
            idle: 0,
            touches: 0,
        }
    }

    pub(crate) fn total(&self) -> usize {
        self.entries.len()
    }

    /// Blocks that can be taken: free, or cached and unused.
    pub(crate) fn available(&self) -> usize {
        self.owners.free() + self.idle
    }

    /// Cached blocks that no request uses.
    pub(crate) fn idle(&self) -> usize {
        self.idle
    }

    /// A block for new tokens; drops the longest unused cached one when none is free.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.owners.free() == 0 && self.oldest != NONE {
            self.evict(self.oldest);
        }
        self.owners.alloc()
    }

    /// Whether one request alone uses `block`, so that it would become available without it.
    pub(crate) fn is_exclusive(&self, block: u32) -> bool {
        self.owners.holders(block) == 1 + u32::from(self.entries[block as usize].cached)
    }

    /// The block with this key, if its parent and tokens are the same too.
    pub(crate) fn find(&self, key: ChainKey, parent: ChainKey, tokens: &[Token]) -> Option<u32> {
        let block = *self.index.get(&key)?;
        let at = block as usize * BLOCK_TOKENS;
        let same = self.entries[block as usize].parent == parent
            && &self.tokens[at..at + BLOCK_TOKENS] == tokens;
        same.then_some(block)
    }

    /// Whether no request uses this cached block.
    pub(crate) fn is_idle(&self, block: u32) -> bool {
        self.owners.holders(block) == 1 && self.entries[block as usize].cached
    }

    /// One more request uses a cached block.
    pub(crate) fn share(&mut self, block: u32) {
        if self.is_idle(block) {
            self.unlink(block);
        }
        self.owners.retain(block);
    }

    /// A request gives a block back. Cached ones stay until their place is needed.
    pub(crate) fn release(&mut self, block: u32) {
        self.owners.release(block);
        if self.is_idle(block) {
            self.link(block);
        }
    }

    /// Makes a full block findable. Where an equal one is cached already, that one stays.
    pub(crate) fn publish(&mut self, block: u32, parent: ChainKey, tokens: &[Token]) -> ChainKey {
        let key = extend(parent, tokens);
        let entry = &mut self.entries[block as usize];
        if !entry.cached && !self.index.contains_key(&key) {
            (entry.key, entry.parent, entry.cached) = (key, parent, true);
            entry.heat = 0;
            let at = block as usize * BLOCK_TOKENS;
            self.tokens[at..at + BLOCK_TOKENS].copy_from_slice(tokens);
            self.index.insert(key, block);
            self.owners.retain(block);
        }
        key
    }

    /// A request for the newest version of its scope, whose chain begins with `root`, uses `block`.
    pub(crate) fn touch(&mut self, block: u32, root: ChainKey) {
        self.touches += 1;
        let now = self.touches;
        let entry = &mut self.entries[block as usize];
        if !entry.cached {
            return;
        }
        entry.heat = entry.heat_at(now).saturating_add(1);
        entry.touched = now;
        if entry.place == NONE || entry.root != root {
            self.uproot(block);
            let alike = self.rooted.entry(root).or_default();
            let entry = &mut self.entries[block as usize];
            (entry.root, entry.place) = (root, alike.len() as u32);
            alike.push(block);
        }
    }

    /// Takes a block from those of its root.
    fn uproot(&mut self, block: u32) {
        let Entry { root, place, .. } = self.entries[block as usize];
        let Some(alike) = self.rooted.get_mut(&root).filter(|_| place != NONE) else {
            return;
        };
        alike.swap_remove(place as usize);
        match alike.get(place as usize) {
            Some(moved) => self.entries[*moved as usize].place = place,
            None if alike.is_empty() => drop(self.rooted.remove(&root)),
            None => {}
        }
        self.entries[block as usize].place = NONE;
    }

    /// The hottest blocks that begin with `root`, `most` of them at most, each after the one
    /// before it in its chain; and how many more there are.
    pub(crate) fn hottest(&self, root: ChainKey, most: usize) -> (Vec<HotBlock>, usize) {
        let mut after: HashMap<ChainKey, Vec<u32>> = HashMap::new();
        for block in self.rooted.get(&root).into_iter().flatten() {
            let entry = &self.entries[*block as usize];
            if entry.heat > 0 {
                after.entry(entry.parent).or_default().push(*block);
            }
        }
        let rank = |block: u32, parent: Option<usize>| {
            let entry = &self.entries[block as usize];
            (entry.heat_at(self.touches), entry.touched, block, parent)
        };
        let mut reachable = BinaryHeap::new();
        reachable.extend(
            after
                .remove(&root)
                .into_iter()
                .flatten()
                .map(|b| rank(b, None)),
        );
        let (mut hottest, mut more) = (Vec::new(), 0);
        while let Some((_, _, block, parent)) = reachable.pop() {
            if hottest.len() < most {
                let at = block as usize * BLOCK_TOKENS;
                let mut tokens = [0; BLOCK_TOKENS];
                tokens.copy_from_slice(&self.tokens[at..at + BLOCK_TOKENS]);
                hottest.push(HotBlock { tokens, parent });
            } else {
                more += 1;
            }
            let parent = hottest.len().checked_sub(1);
            let next = after.remove(&self.entries[block as usize].key);
            reachable.extend(next.into_iter().flatten().map(|b| rank(b, parent)));
        }
        (hottest, more)
    }

    /// A version that begins with `root` is not the newest any more: its unused blocks are the
    /// first to go. They are found until then.
    pub(crate) fn retire(&mut self, root: ChainKey) {
        let alike = self.rooted.get(&root).into_iter().flatten().copied();
        let mut idle: Vec<u32> = alike.filter(|block| self.is_idle(*block)).collect();
        // Where a chain goes on it was touched later, and what goes on is to go first.
        idle.sort_unstable_by_key(|block| self.entries[*block as usize].touched);
        for block in idle {
            self.unlink(block);
            self.link_oldest(block);
        }
    }

    fn evict(&mut self, block: u32) {
        self.unlink(block);
        self.uproot(block);
        let entry = &mut self.entries[block as usize];
        entry.cached = false;
        self.index.remove(&entry.key);
        self.owners.release(block);
    }

    /// Puts a block at the newest end of the line.
    fn link(&mut self, block: u32) {
        let newest = self.newest;
        let entry = &mut self.entries[block as usize];
        (entry.older, entry.newer) = (newest, NONE);
        match newest {
            NONE => self.oldest = block,
            _ => self.entries[newest as usize].newer = block,
        }
        self.newest = block;
        self.idle += 1;
    }

    /// Puts a block at the oldest end of the line.
    fn link_oldest(&mut self, block: u32) {
        let oldest = self.oldest;
        let entry = &mut self.entries[block as usize];
        (entry.older, entry.newer) = (NONE, oldest);
        match oldest {
            NONE => self.newest = block,
            _ => self.entries[oldest as usize].older = block,
        }
        self.oldest = block;
        self.idle += 1;
    }

    fn unlink(&mut self, block: u32) {
        let Entry { older, newer, .. } = self.entries[block as usize];
        match older {
            NONE => self.oldest = newer,
            _ => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.entries[newer as usize].older = older,
        }
        self.idle -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(value: Token) -> Vec<Token> {
        vec![value; BLOCK_TOKENS]
    }

    #[test]
    fn a_block_is_found_by_all_that_came_before_it() {
        let mut pool = BlockPool::new(4);
        let block = pool.take().expect("free");
        let key = pool.publish(block, 7, &tokens(1));
        assert_eq!(pool.find(key, 7, &tokens(1)), Some(block));
        assert_eq!(pool.find(key, 8, &tokens(1)), None, "another parent");
        assert_eq!(pool.find(key, 7, &tokens(2)), None, "other tokens");
        assert_ne!(extend(8, &tokens(1)), key);
        let twin = pool.take().expect("free");
        assert_eq!(pool.publish(twin, 7, &tokens(1)), key);
        assert_eq!(
            pool.find(key, 7, &tokens(1)),
            Some(block),
            "the first stays"
        );
        pool.release(twin);
        assert_eq!((pool.available(), pool.idle()), (3, 0));
    }

    #[test]
    fn roots_differ_by_base_adapter_scope_and_arithmetic() {
        let (scope, other) = (Scope::of("a", None), Scope::of("a", Some("b")));
        let zero = Digest([0; 32]);
        let key = |base: u8, fingerprint: &str, adapter: Option<(&Digest, u64)>, scope: &Scope| {
            ChainRoot {
                base: &Digest([base; 32]),
                fingerprint,
                adapter,
                scope,
            }
            .key()
        };
        let keys = [
            key(1, "f", None, &scope),
            key(2, "f", None, &scope),
            key(1, "g", None, &scope),
            key(1, "f", Some((&zero, 0)), &scope),
            key(1, "f", Some((&zero, 1)), &scope),
            key(1, "f", None, &other),
        ];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn the_longest_unused_goes_first() {
        let mut pool = BlockPool::new(3);
        let blocks: Vec<u32> = (0..3).map(|_| pool.take().expect("free")).collect();
        let keys: Vec<ChainKey> = (0..3)
            .map(|i| pool.publish(blocks[i], 0, &tokens(i as Token)))
            .collect();
        assert_eq!(pool.take(), None, "all are held");
        [1, 0, 2].iter().for_each(|i| pool.release(blocks[*i]));
        pool.share(blocks[0]);
        pool.release(blocks[0]);
        assert_eq!((pool.available(), pool.idle()), (3, 3));
        assert_eq!(pool.take(), Some(blocks[1]));
        assert_eq!(pool.take(), Some(blocks[2]));
        let left: Vec<bool> = (0..3)
            .map(|i| pool.find(keys[i], 0, &tokens(i as Token)).is_some())
            .collect();
        assert_eq!(left, [true, false, false]);
    }

    /// Publishes a chain of blocks and gives them back; `touches` times used by followers.
    fn chain(pool: &mut BlockPool, root: ChainKey, contents: &[Token], touches: usize) -> Vec<u32> {
        let (mut parent, mut blocks) = (root, Vec::new());
        for content in contents {
            let key = extend(parent, &tokens(*content));
            let found = pool.find(key, parent, &tokens(*content));
            let block = found.unwrap_or_else(|| pool.take().expect("free"));
            if found.is_none() {
                pool.publish(block, parent, &tokens(*content));
                pool.release(block);
            }
            (0..touches).for_each(|_| pool.touch(block, root));
            blocks.push(block);
            parent = key;
        }
        blocks
    }

    #[test]
    fn the_hottest_come_first_and_after_what_they_follow() {
        let mut pool = BlockPool::new(16);
        chain(&mut pool, 7, &[1, 2, 3], 1);
        chain(&mut pool, 7, &[1, 4], 2);
        chain(&mut pool, 7, &[9], 0);
        chain(&mut pool, 8, &[5], 50);
        let first = |most: usize| {
            let (hottest, more) = pool.hottest(7, most);
            let hottest: Vec<_> = hottest.iter().map(|b| (b.tokens[0], b.parent)).collect();
            (hottest, more)
        };
        let all = [(1, None), (4, Some(0)), (2, Some(0)), (3, Some(2))];
        assert_eq!(
            first(9),
            (all.to_vec(), 0),
            "9 was never asked for, 5 is another root's"
        );
        assert_eq!(first(2), (all[..2].to_vec(), 2));
        assert_eq!(first(0), (Vec::new(), 4));
        // Old heat fades: what is used now is hotter than what was used often, long ago.
        let other = chain(&mut pool, 8, &[5], 1)[0];
        (0..HEAT_HALVES * 3).for_each(|_| pool.touch(other, 8));
        chain(&mut pool, 7, &[6], 1);
        assert_eq!(pool.hottest(7, 1).0[0].tokens[0], 6);
    }

    #[test]
    fn a_retired_chain_goes_first_and_is_found_until_then() {
        let mut pool = BlockPool::new(4);
        let old = chain(&mut pool, 7, &[1, 2], 1);
        let other = chain(&mut pool, 8, &[1, 2], 1);
        [old[1], old[0], other[1], other[0]]
            .iter()
            .for_each(|block| {
                pool.share(*block);
                pool.release(*block);
            });
        pool.retire(8);
        let key = extend(8, &tokens(1));
        assert_eq!(pool.find(key, 8, &tokens(1)), Some(other[0]));
        let taken: Vec<u32> = (0..4).filter_map(|_| pool.take()).collect();
        assert_eq!(taken, [other[1], other[0], old[1], old[0]]);
    }

    proptest! {
        /// Random holders against a plain count: nothing leaks, nothing is handed out twice.
        #[test]
        fn blocks_are_never_lost_or_used_twice(
            steps in prop::collection::vec((0u8..6, 0u32..6), 1..300),
        ) {
            let mut pool = BlockPool::new(8);
            let mut held: Vec<u32> = Vec::new();
            for (what, value) in steps {
                match what {
                    0 => match pool.take() {
                        Some(block) => {
                            prop_assert!(!held.contains(&block));
                            held.push(block);
                        }
                        None => prop_assert_eq!(pool.available(), 0),
                    },
                    1 if !held.is_empty() => {
                        let block = held.swap_remove(value as usize % held.len());
                        pool.release(block);
                    }
                    2 if !held.is_empty() => {
                        let block = held[value as usize % held.len()];
                        pool.publish(block, 3, &tokens(value));
                        pool.touch(block, 3 + u128::from(value % 2));
                    }
                    3 => pool.retire(3 + u128::from(value % 2)),
                    _ => {
                        let key = extend(3, &tokens(value));
                        if let Some(block) = pool.find(key, 3, &tokens(value)) {
                            pool.share(block);
                            held.push(block);
                        }
                    }
                }
                for (root, alike) in &pool.rooted {
                    prop_assert!(!alike.is_empty());
                    for (place, block) in (0..).zip(alike) {
                        let entry = &pool.entries[*block as usize];
                        prop_assert!(entry.cached && entry.heat > 0);
                        prop_assert_eq!((entry.root, entry.place), (*root, place));
                    }
                }
                let rooted: usize = pool.rooted.values().map(Vec::len).sum();
                let placed = pool.entries.iter().filter(|e| e.place != NONE).count();
                prop_assert_eq!(rooted, placed);
                let mut distinct = held.clone();
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(pool.available() + distinct.len(), pool.total());
                for block in &distinct {
                    let mine = held.iter().filter(|b| *b == block).count();
                    prop_assert_eq!(pool.is_exclusive(*block), mine == 1);
                }
            }
            held.into_iter().for_each(|block| pool.release(block));
            prop_assert_eq!(pool.available(), 8);
        }
    }
}
