//! What is computed under a newer version before it serves: the hottest prefixes of its scope.
//!
//! Between two steps it holds no block: what it computed is cached like any other prefix, and
//! found again or computed again. So it never stands in the way of a request.

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
    /// Blocks that may still be computed.
    left: usize,
    /// Blocks that were too many from the start.
    beyond: usize,
}

/// Blocks of one prefix that a step computes; it holds what is in `table`.
#[derive(Debug)]
pub(crate) struct WarmRow {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) tokens: Vec<Token>,
    /// Position of the first of them.
    pub(crate) start: usize,
    pub(crate) table: Vec<u32>,
    /// What comes before each of them.
    before: Vec<ChainKey>,
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
        while self.left > 0 {
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

    /// The next blocks to compute, `most` at most, and takes places for them; none where there is no
    /// place. It is not done.
    pub(crate) fn take_row(&mut self, pool: &mut BlockPool, most: usize) -> Option<WarmRow> {
        let mut table = self.found(pool);
        let count = most.min(self.left).min(self.path.len() - table.len());
        if count == 0 {
            return None;
        }
        table.iter().for_each(|block| pool.share(*block));
        let start = table.len();
        let fresh = || pool.take();
        table.extend(
            std::iter::repeat_with(fresh)
                .map_while(|block| block)
                .take(count),
        );
        if table.len() == start {
            // What it shares took the last ones.
            table.iter().rev().for_each(|block| pool.release(*block));
            return None;
        }
        let coming = self.path[start..table.len()]
            .iter()
            .map(|at| &self.nodes[*at]);
        self.left -= table.len() - start;
        Some(WarmRow {
            loaded: Arc::clone(&self.loaded),
            tokens: coming.clone().flat_map(|node| node.tokens).collect(),
            start: start * BLOCK_TOKENS,
            before: coming.map(|node| node.before).collect(),
            table,
        })
    }

    /// Tokens that a request would have found under the older version and does not find now.
    pub(crate) fn cold_tokens(&self, pool: &BlockPool) -> usize {
        let missing = self.nodes.iter().filter(|node| node.find(pool).is_none());
        (missing.count() + self.beyond) * BLOCK_TOKENS
    }
}

impl WarmRow {
    /// Its blocks were computed: they can be found, and are given back, the last first.
    pub(crate) fn publish(self, pool: &mut BlockPool) {
        let first = self.start / BLOCK_TOKENS;
        let blocks = self.tokens.chunks_exact(BLOCK_TOKENS).zip(&self.before);
        for ((tokens, before), block) in blocks.zip(&self.table[first..]) {
            pool.publish(*block, *before, tokens);
        }
        let held = self.table.iter().rev();
        held.for_each(|block| pool.release(*block));
    }
}
