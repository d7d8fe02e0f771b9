//! What is computed under a newer version before it serves: the hottest prefixes of its scope.
//!
//! Between two steps it holds one block at most, the one that is not full yet: what it computed is
//! cached like any other prefix, and found again or computed again. So it never stands in the way of a
//! request.

use std::collections::VecDeque;
use std::sync::Arc;

use hone_domain::Token;
use hone_nn::BLOCK_TOKENS;

use crate::adapters::{Loaded, Wanted};
use crate::prefix::{BlockPool, ChainKey, HotBlock, extend};

/// One block of a prefix, under the newer version.
#[derive(Debug)]
struct Node {
    key: ChainKey,
    before: ChainKey,
    tokens: [Token; BLOCK_TOKENS],
    parent: Option<usize>,
}

impl Node {
    fn find(&self, pool: &BlockPool) -> Option<u32> {
        pool.find(self.key, self.before, &self.tokens)
    }
}

/// A loaded version that does not serve yet.
#[derive(Debug)]
pub(crate) struct Warming {
    pub(crate) wanted: Wanted,
    pub(crate) loaded: Arc<Loaded>,
    /// When it serves at the latest.
    pub(crate) until_ms: i64,
    /// Each after its parent.
    nodes: Vec<Node>,
    /// Ends of prefixes that are still to be looked at.
    ends: VecDeque<usize>,
    /// The prefix under way, from its beginning.
    path: Vec<usize>,
    /// Blocks that may still be begun.
    left: usize,
    /// What the last row left unfinished.
    begun: Option<Begun>,
    /// Blocks that were too many from the start.
    beyond: usize,
}

/// A block of which the first tokens are computed.
#[derive(Clone, Copy, Debug)]
struct Begun {
    block: u32,
    node: usize,
    tokens: usize,
}

/// Tokens of one prefix that a step computes; it holds what is in `table`.
#[derive(Debug)]
pub(crate) struct WarmRow {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) tokens: Vec<Token>,
    /// Position of the first of them.
    pub(crate) start: usize,
    pub(crate) table: Vec<u32>,
}

impl WarmRow {
    /// Gives back what it holds, the last first.
    pub(crate) fn give_back(self, pool: &mut BlockPool) {
        self.table
            .iter()
            .rev()
            .for_each(|block| pool.release(*block));
    }
}

impl Warming {
    /// `hot` as [`BlockPool::hottest`] gives it; `root` is what its chains begin with under the
    /// newer version.
    pub(crate) fn new(
        (wanted, loaded): (Wanted, Arc<Loaded>),
        (hot, beyond): (Vec<HotBlock>, usize),
        root: ChainKey,
        until_ms: i64,
    ) -> Self {
        let mut nodes: Vec<Node> = Vec::with_capacity(hot.len());
        let mut is_end = vec![true; hot.len()];
        for HotBlock { tokens, parent } in hot {
            let before = parent.map_or(root, |at| nodes[at].key);
            if let Some(at) = parent {
                is_end[at] = false;
            }
            nodes.push(Node {
                key: extend(before, &tokens),
                before,
                tokens,
                parent,
            });
        }
        Self {
            wanted,
            loaded,
            until_ms,
            left: nodes.len(),
            ends: (0..nodes.len()).filter(|at| is_end[*at]).collect(),
            nodes,
            path: Vec::new(),
            begun: None,
            beyond,
        }
    }

    /// Blocks at the start of the prefix under way that are there.
    fn found(&self, pool: &BlockPool) -> Vec<u32> {
        let found = self.path.iter().map_while(|at| self.nodes[*at].find(pool));
        found.collect()
    }

    /// Whether there is nothing left to compute; moves on to the next prefix that lacks something.
    pub(crate) fn is_done(&mut self, pool: &BlockPool) -> bool {
        while self.left > 0 || self.begun.is_some() {
            if self.found(pool).len() < self.path.len() {
                return false;
            }
            let Some(end) = self.ends.pop_front() else {
                return true;
            };
            self.path.clear();
            let mut at = Some(end);
            while let Some(node) = at {
                self.path.push(node);
                at = self.nodes[node].parent;
            }
            self.path.reverse();
        }
        true
    }

    /// The next tokens to compute, `tokens` at most, in places taken for them, `room` at most; none where
    /// there is no place. It ends with a block if it reaches the end of one. It is not done.
    pub(crate) fn take_row(
        &mut self,
        pool: &mut BlockPool,
        tokens: usize,
        room: usize,
    ) -> Option<WarmRow> {
        if tokens == 0 {
            return None;
        }
        let mut table = self.found(pool);
        let first = table.len();
        let next = self.path.get(first).copied();
        if self.begun.is_some_and(|begun| Some(begun.node) != next) {
            self.give_back(pool);
        }
        let computed = self.begun.map_or(0, |begun| begun.tokens);
        let mut end = computed + tokens;
        if end > BLOCK_TOKENS {
            end -= end % BLOCK_TOKENS;
        }
        let fresh = end.div_ceil(BLOCK_TOKENS) - usize::from(self.begun.is_some());
        let fresh = fresh.min(room).min(self.left);
        table.iter().for_each(|block| pool.share(*block));
        table.extend(self.begun.take().map(|begun| begun.block));
        let held = table.len();
        let until = self.path.len().min(held + fresh);
        table.extend((held..until).map_while(|_| pool.take()));
        self.left -= table.len() - held;
        let end = end.min((table.len() - first) * BLOCK_TOKENS);
        if end <= computed {
            // What it shares took the last ones, or there was no place before.
            table.iter().rev().for_each(|block| pool.release(*block));
            return None;
        }
        let nodes = self.path[first..table.len()].iter();
        let said = nodes.flat_map(|at| self.nodes[*at].tokens);
        Some(WarmRow {
            loaded: Arc::clone(&self.loaded),
            tokens: said.take(end).skip(computed).collect(),
            start: first * BLOCK_TOKENS + computed,
            table,
        })
    }

    /// A row was computed: its full blocks can be found, and all but one that is not full are given
    /// back, the last first.
    pub(crate) fn keep(&mut self, row: WarmRow, pool: &mut BlockPool) {
        let end = row.start + row.tokens.len();
        let first = row.start / BLOCK_TOKENS;
        let mut held = row.table;
        for (at, block) in held.iter().enumerate().skip(first) {
            let (node, tokens) = (self.path[at], end - at * BLOCK_TOKENS);
            if tokens < BLOCK_TOKENS {
                let block = *block;
                self.begun = Some(Begun {
                    block,
                    node,
                    tokens,
                });
            } else {
                let Node { before, tokens, .. } = &self.nodes[node];
                pool.publish(*block, *before, tokens);
            }
        }
        held.truncate(end / BLOCK_TOKENS);
        held.iter().rev().for_each(|block| pool.release(*block));
    }

    /// Gives back the block that is not full; what was computed of it is computed again.
    pub(crate) fn give_back(&mut self, pool: &mut BlockPool) {
        if let Some(begun) = self.begun.take() {
            pool.release(begun.block);
            self.left += 1;
        }
    }

    /// The block that it holds between two steps.
    #[cfg(test)]
    pub(crate) fn held(&self) -> Option<u32> {
        self.begun.map(|begun| begun.block)
    }

    /// The blocks are gone.
    pub(crate) fn forget_blocks(&mut self) {
        self.begun = None;
    }

    /// Tokens that a request would have found under the older version and does not find now.
    pub(crate) fn cold_tokens(&self, pool: &BlockPool) -> usize {
        let missing = self.nodes.iter().filter(|node| node.find(pool).is_none());
        (missing.count() + self.beyond) * BLOCK_TOKENS
    }
}
