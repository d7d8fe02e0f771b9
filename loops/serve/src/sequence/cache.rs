//! A request's side towards the cache: which blocks it has, finds, fills and gives back.

use hone_nn::BLOCK_TOKENS;

use crate::plan::View;
use crate::prefix::{BlockPool, ChainKey, extend};
use crate::sequence::Sequence;

/// What is being computed, of prompts that more than one request may have.
#[derive(Debug, Default)]
pub(crate) struct Coming {
    /// Index and key of full blocks, and the class of who computes them.
    blocks: Vec<(usize, ChainKey, u8)>,
    /// Length and key of prompts that do not end with a full block, and the class.
    tails: Vec<(usize, ChainKey, u8)>,
    /// Whether those matter.
    tails_too: bool,
}

impl Coming {
    /// Nothing yet. Ends of prompts matter only where they can be copied.
    pub(crate) fn begin(&mut self, tails_too: bool) {
        self.blocks.clear();
        self.tails.clear();
        self.tails_too = tails_too;
    }
}

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

    /// Adds what it computes next to what is `coming`, if others may want the same.
    pub(crate) fn tell_coming(&mut self, coming: &mut Coming) {
        let known = (self.published + 1) * BLOCK_TOKENS <= self.tokens.len();
        if known {
            let key = self.key(self.published).0;
            coming.blocks.push((self.published, key, self.class));
        }
        let tail_is_next =
            self.computed < self.told_from() && self.computed / BLOCK_TOKENS == self.findable();
        if coming.tails_too && tail_is_next {
            coming.tails.extend(self.tail());
        }
    }

    /// The same for one that waits: what it does not find it computes, once it is admitted.
    pub(crate) fn tell_missing(&mut self, coming: &mut Coming) {
        let index = self.found.len();
        if index < self.findable() {
            let key = self.key(index).0;
            coming.blocks.push((index, key, self.class));
        } else if coming.tails_too {
            coming.tails.extend(self.tail());
        }
    }

    /// Whether something that is coming is a part of its prompt, so that it had better wait. Nobody
    /// waits for who comes after in priority.
    pub(crate) fn awaits(&mut self, coming: &Coming) -> bool {
        let (findable, end) = (self.findable(), self.told_from());
        let class = self.class;
        let mut blocks = coming.blocks.iter().filter(|(.., other)| *other <= class);
        if blocks.any(|(index, key, _)| *index < findable && self.key(*index).0 == *key) {
            return true;
        }
        // A hash is made only where a length is right.
        let right = |(length, _, other): &&(usize, ChainKey, u8)| *length == end && *other <= class;
        let mut tails = coming.tails.iter().filter(right).peekable();
        tails.peek().is_some()
            && (self.tail_key()).is_some_and(|tail| tails.any(|(_, key, _)| *key == tail.1))
    }

    /// Its tail as others are told of it.
    fn tail(&mut self) -> Option<(usize, ChainKey, u8)> {
        let class = self.class;
        self.tail_key().map(|(length, key)| (length, key, class))
    }

    /// Length and name of the tokens up to the one whose logits are wanted, where they do not end with
    /// a full block. Two requests that share it share their last block up to that token.
    fn tail_key(&mut self) -> Option<(usize, ChainKey)> {
        let (blocks, end) = (self.findable(), self.told_from());
        if self.is_given() || blocks * BLOCK_TOKENS == end {
            return None;
        }
        let parent = match blocks {
            0 => self.root,
            _ => self.key(blocks - 1).0,
        };
        Some((
            end,
            extend(parent, &self.tokens[blocks * BLOCK_TOKENS..end]),
        ))
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

    /// `scored`: most tokens of it to score in one step, at least 1.
    pub(crate) fn view_running(&self, scored: usize) -> View {
        View {
            place: self.place,
            class: self.class,
            owner: self.owner,
            tokens: self.tokens.len(),
            computed: self.computed,
            blocks: self.table.len(),
            own: 0,
            tied: 0,
            last_turn: self.last_turn,
            chunk: self.chunk_after(self.computed, scored),
            passed: 0,
        }
    }

    /// Blocks that would become available without it.
    pub(crate) fn exclusive_blocks(&self, pool: &BlockPool) -> usize {
        self.table[self.unseen..]
            .iter()
            .filter(|b| pool.is_exclusive(**b))
            .count()
    }

    /// `unseen`: leading ones of the blocks it finds that no layer sees.
    pub(crate) fn view_waiting(&self, pool: &BlockPool, unseen: usize, scored: usize) -> View {
        let seen = &self.found[unseen..];
        View {
            place: self.place,
            class: self.class,
            owner: self.owner,
            tokens: self.tokens.len(),
            computed: self.found_tokens(),
            blocks: self.found.len(),
            own: seen.iter().filter(|b| pool.is_idle(**b)).count(),
            tied: seen.iter().filter(|b| pool.is_exclusive(**b)).count(),
            last_turn: self.last_turn,
            chunk: self.chunk_after(self.found_tokens(), scored),
            passed: self.passed,
        }
    }

    /// Tokens it finds in the cache.
    pub(crate) fn found_tokens(&self) -> usize {
        self.found.len() * BLOCK_TOKENS
    }

    /// Takes the cached blocks found, but for the `unseen` leading ones, which no layer sees; returns
    /// the tokens that need not be computed.
    pub(crate) fn take_found(&mut self, pool: &mut BlockPool, unseen: usize) -> usize {
        debug_assert!(self.table.is_empty() && self.computed == 0, "it waited");
        for block in &self.found {
            pool.share(*block);
            if self.follows() {
                pool.touch(*block, self.root);
            }
        }
        self.table.append(&mut self.found);
        // They were used all the same: they stay cached as if they had been held.
        let passed = self.table[..unseen].iter().rev();
        passed.for_each(|block| pool.release(*block));
        self.unseen = unseen;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hone_domain::Origin;

    use super::*;
    use crate::sequence::Setup;
    use crate::tests::support::{END, ask, prompt, tokenizer};
    use crate::thread::draw::draw_all;

    #[test]
    fn nobody_waits_for_a_prefix_of_who_comes_after_in_priority() {
        let setup = Setup::new(Arc::new(tokenizer()), vec![END], 200);
        // Two blocks and a tail, and the same two blocks behind which it goes on.
        let short = prompt(2 * BLOCK_TOKENS + 5, 1);
        let mut long = short.clone();
        long.extend(prompt(40, 2));
        let sequence = |tokens: &[_], origin| {
            let mut wanted = ask(tokens, 4, 1);
            wanted.origin = origin;
            Sequence::new(wanted, None, &setup).0
        };
        for tails_too in [false, true] {
            for (ahead, waits) in [(Origin::User, true), (Origin::Judge, false)] {
                let mut coming = Coming::default();
                coming.begin(tails_too);
                sequence(&long, ahead).tell_coming(&mut coming);
                assert_eq!(sequence(&short, Origin::User).awaits(&coming), waits);
                assert_eq!(sequence(&long, Origin::User).awaits(&coming), waits);
                assert!(sequence(&short, Origin::Judge).awaits(&coming));
                let other = prompt(100, 3);
                assert!(!sequence(&other, Origin::User).awaits(&coming));
            }
        }
        let mut coming = Coming::default();
        coming.begin(true);
        let mut judge = sequence(&short, Origin::Judge);
        judge.computed = 2 * BLOCK_TOKENS;
        judge.published = 2;
        judge.tell_coming(&mut coming);
        assert!(!sequence(&short, Origin::User).awaits(&coming), "its tail");
        assert!(sequence(&short, Origin::Judge).awaits(&coming));
    }

    #[test]
    fn what_leaves_out_the_ends_alone_is_one_set_for_all() {
        let setup = Setup::new(Arc::new(tokenizer()), vec![END], 200);
        let row = vec![0.5; 300];
        let first = |seed| {
            let mut wanted = ask(&prompt(5, 1), 4, seed);
            wanted.sampling.min_tokens = 1;
            wanted.sampling.temperature = 1.0;
            let (mut sequence, ..) = Sequence::new(wanted, None, &setup);
            let exec = hone_kernels::Executor::new(1);
            let one = std::slice::from_mut(&mut sequence);
            let went = draw_all(one, &[(0, &row)], &setup, &exec);
            assert_eq!(went, [(0, Ok(None))]);
            sequence.kept[0].clone().expect("an end is banned")
        };
        let (one, other) = (first(1), first(2));
        assert!(Arc::ptr_eq(&one, &other));
        assert!(one.len() == 299 && !one.contains(&END));
    }
}
