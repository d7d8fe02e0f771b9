//! A request's side towards the cache: which blocks it has, finds, fills and gives back.

use hone_nn::BLOCK_TOKENS;

use crate::plan::View;
use crate::prefix::{BlockPool, ChainKey, extend};
use crate::sequence::Sequence;

impl Sequence {
    /// Key of full block `index`, and of the one before.
    fn key(&mut self, index: usize) -> (ChainKey, ChainKey) {
        while self.keys.len() <= index {
            let at = self.keys.len();
            let parent = self.keys.last().copied().unwrap_or(self.root);
            let block = &self.tokens[at * BLOCK_TOKENS..(at + 1) * BLOCK_TOKENS];
            self.keys.push(extend(parent, block));
        }
        let parent = if index == 0 {
            self.root
        } else {
            self.keys[index - 1]
        };
        (self.keys[index], parent)
    }

    /// Full blocks that may come from the cache: the first token whose logits are wanted is always
    /// computed.
    fn findable(&self) -> usize {
        self.told_from() / BLOCK_TOKENS
    }

    /// Looks for its blocks in the cache.
    pub(crate) fn find_prefix(&mut self, pool: &BlockPool) {
        self.found.clear();
        for index in 0..self.findable() {
            let (key, parent) = self.key(index);
            let block = &self.tokens[index * BLOCK_TOKENS..(index + 1) * BLOCK_TOKENS];
            match pool.find(key, parent, block) {
                Some(block) => self.found.push(block),
                None => break,
            }
        }
    }

    /// Key of the first block that [`Self::find_prefix`] did not find.
    pub(crate) fn missing_key(&mut self) -> Option<ChainKey> {
        let index = self.found.len();
        (index < self.findable()).then(|| self.key(index).0)
    }

    /// Key of the block it will publish next, if its tokens are known already.
    pub(crate) fn coming_key(&mut self) -> Option<ChainKey> {
        let known = (self.published + 1) * BLOCK_TOKENS <= self.tokens.len();
        known.then(|| self.key(self.published).0)
    }

    /// Names the tokens after the last full block, with all before them; none where there are none,
    /// and none before the full blocks are found. Two requests that share it share their last block
    /// up to the token whose logits are wanted first.
    pub(crate) fn tail_key(&mut self) -> Option<ChainKey> {
        let (blocks, end) = (self.findable(), self.told_from());
        if self.is_given() || blocks * BLOCK_TOKENS == end {
            return None;
        }
        let parent = match blocks {
            0 => self.root,
            _ => self.key(blocks - 1).0,
        };
        let tail = &self.tokens[blocks * BLOCK_TOKENS..end];
        // A full block of the same tokens and zeros is something else.
        Some(extend(parent, tail).wrapping_add(tail.len() as u128))
    }

    /// Key of the tail that it computes next, if all before it is computed.
    pub(crate) fn coming_tail(&mut self) -> Option<ChainKey> {
        let tail_is_next =
            self.computed < self.told_from() && self.computed / BLOCK_TOKENS == self.findable();
        tail_is_next.then(|| self.tail_key()).flatten()
    }

    /// Tokens from its last full block up to the one whose logits are wanted, and the block of
    /// `other` that holds them too, computed: where the next `count` tokens are just these, their
    /// keys and values can be copied.
    pub(crate) fn tail_at(&self, other: &Self, count: usize) -> Option<(usize, u32)> {
        let (index, end) = (self.computed / BLOCK_TOKENS, self.told_from());
        let is_tail = self.samples_after(count)
            && self.computed.is_multiple_of(BLOCK_TOKENS)
            && self.computed < end
            && end / BLOCK_TOKENS == index;
        // The tokens last: they are many.
        let copies = is_tail
            && other.root == self.root
            && other.computed >= end
            && other.unseen <= index
            && other.tokens.get(..end) == Some(&self.tokens[..end]);
        copies.then(|| (end - self.computed, other.table[index]))
    }

    pub(crate) fn view_running(&self) -> View {
        View {
            place: self.place,
            class: self.class,
            tokens: self.tokens.len(),
            computed: self.computed,
            blocks: self.table.len(),
            own: 0,
            tied: 0,
            last_turn: self.last_turn,
            chunk: self.chunk_after(self.computed),
            hold: false,
        }
    }

    /// Blocks that would become available without it.
    pub(crate) fn exclusive_blocks(&self, pool: &BlockPool) -> usize {
        self.table[self.unseen..]
            .iter()
            .filter(|b| pool.is_exclusive(**b))
            .count()
    }

    pub(crate) fn view_waiting(&self, pool: &BlockPool, hold: bool) -> View {
        View {
            place: self.place,
            class: self.class,
            tokens: self.tokens.len(),
            computed: self.found.len() * BLOCK_TOKENS,
            blocks: self.found.len(),
            own: self.found.iter().filter(|b| pool.is_idle(**b)).count(),
            tied: self.found.iter().filter(|b| pool.is_exclusive(**b)).count(),
            last_turn: self.last_turn,
            chunk: self.chunk_after(self.found.len() * BLOCK_TOKENS),
            hold,
        }
    }

    /// Takes the cached blocks found; returns the tokens that need not be computed.
    pub(crate) fn take_found(&mut self, pool: &mut BlockPool) -> usize {
        debug_assert!(self.table.is_empty() && self.computed == 0, "it waited");
        for block in &self.found {
            pool.share(*block);
            if self.follows() {
                pool.touch(*block, self.root);
            }
        }
        self.table.append(&mut self.found);
        self.published = self.table.len();
        self.computed = self.table.len() * BLOCK_TOKENS;
        self.computed
    }

    /// Takes blocks for the next `count` tokens.
    pub(crate) fn grow(&mut self, count: usize, pool: &mut BlockPool) {
        while self.table.len() * BLOCK_TOKENS < self.computed + count {
            let block = pool.take().expect("the plan counts free blocks");
            self.table.push(block);
        }
    }

    /// `count` tokens were computed: publishes blocks that became full, and gives back those that
    /// no layer sees any more (`unseen` leading ones).
    pub(crate) fn advance(&mut self, count: usize, unseen: usize, pool: &mut BlockPool) {
        self.computed += count;
        while (self.published + 1) * BLOCK_TOKENS <= self.computed {
            let index = self.published;
            let (_, parent) = self.key(index);
            let block = &self.tokens[index * BLOCK_TOKENS..(index + 1) * BLOCK_TOKENS];
            pool.publish(self.table[index], parent, block);
            if self.follows() {
                pool.touch(self.table[index], self.root);
            }
            self.published += 1;
        }
        for block in self.unseen..unseen.min(self.published) {
            pool.release(self.table[block]);
            self.unseen = block + 1;
        }
    }

    /// Gives all blocks back, the last first, so that beginnings stay cached longest.
    pub(crate) fn give_back(&mut self, pool: &mut BlockPool) {
        self.table[self.unseen..]
            .iter()
            .rev()
            .for_each(|block| pool.release(*block));
        self.forget_blocks();
    }

    /// Its blocks are gone; everything is to be computed again.
    pub(crate) fn forget_blocks(&mut self) {
        // Its last token is computed again as well, and brings the logits again.
        self.drop_late();
        self.table.clear();
        (self.computed, self.published, self.unseen) = (0, 0, 0);
    }
}
