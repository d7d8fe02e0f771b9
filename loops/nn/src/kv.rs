//! Keys and values of past tokens, in blocks of thirty-two tokens, and who owns which block.
#![allow(unsafe_code)]

use crate::config::ModelConfig;
use crate::exec::Shards;
use crate::gemm::{Single, Source, Strided};
use crate::simd::{LANES, Line, V16};

/// Tokens per block.
pub const BLOCK_TOKENS: usize = 32;
/// Key panels (sixteen positions each) per block.
const PANELS: usize = BLOCK_TOKENS / LANES;

/// Keys and values of one layer.
///
/// Keys are transposed, `[block][kv head][2][head_dim][16 positions]`, so that one query against
/// sixteen keys is a panel product; values are `[block][kv head][32 positions][head_dim]`, rows
/// padded to whole lines, so that a weighted sum of values is one too.
pub(crate) struct KvLayer {
    keys: ZeroLines,
    values: ZeroLines,
    shape: KvShape,
}

/// Where what lies in a layer.
#[derive(Clone, Copy)]
pub(crate) struct KvShape {
    blocks: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    value_lines: usize,
}

impl KvShape {
    /// First line of key panel `panel` of `head` in `block`.
    fn key_line(&self, block: u32, head: usize, panel: usize) -> usize {
        ((block as usize * self.kv_heads + head) * PANELS + panel) * self.head_dim
    }

    fn value_line(&self, block: u32, head: usize, slot: usize) -> usize {
        ((block as usize * self.kv_heads + head) * BLOCK_TOKENS + slot) * self.value_lines
    }
}

impl std::ops::Deref for KvLayer {
    type Target = KvShape;

    fn deref(&self) -> &KvShape {
        &self.shape
    }
}

/// Zeroed lines that take memory only once they are written: an idle cache costs nothing.
pub(crate) struct ZeroLines {
    map: memmap2::MmapMut,
    len: usize,
}

impl ZeroLines {
    fn new(len: usize) -> Self {
        let bytes = (len * size_of::<Line>()).max(1);
        let map = memmap2::MmapMut::map_anon(bytes).expect("address space for the KV cache");
        Self { map, len }
    }
}

impl std::ops::Deref for ZeroLines {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        // SAFETY: the map is page-aligned, holds `len` lines, and any bits are valid f32 values.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.len) }
    }
}

impl std::ops::DerefMut for ZeroLines {
    fn deref_mut(&mut self) -> &mut [Line] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().cast(), self.len) }
    }
}

impl KvLayer {
    pub(crate) fn new(cfg: &ModelConfig, blocks: usize) -> Self {
        let value_lines = cfg.head_dim.div_ceil(LANES);
        Self {
            keys: ZeroLines::new(blocks * cfg.kv_heads * PANELS * cfg.head_dim),
            values: ZeroLines::new(blocks * cfg.kv_heads * BLOCK_TOKENS * value_lines),
            shape: KvShape {
                blocks,
                kv_heads: cfg.kv_heads,
                head_dim: cfg.head_dim,
                value_lines,
            },
        }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.shape.blocks
    }

    /// Copies all of block `from` to block `to`.
    fn copy(&mut self, from: u32, to: u32) {
        let shape = self.shape;
        let copy = |lines: &mut [Line], first: &dyn Fn(u32) -> usize| {
            lines.copy_within(first(from)..first(from + 1), first(to));
        };
        copy(&mut self.keys, &|block| shape.key_line(block, 0, 0));
        copy(&mut self.values, &|block| shape.value_line(block, 0, 0));
    }

    /// Writes tokens, from several threads at once.
    pub(crate) fn writer(&mut self) -> KvWriter<'_> {
        KvWriter {
            keys: Shards::new(&mut self.keys),
            values: Shards::new(&mut self.values),
            layer: &self.shape,
        }
    }

    /// Stores the key and value of one token: `key`, `value` `[kv_heads][head_dim]`.
    #[cfg(test)]
    pub(crate) fn write(&mut self, block: u32, slot: usize, key: &[f32], value: &[f32]) {
        // SAFETY: nobody else writes.
        unsafe { self.writer().write(block, slot, key, value) }
    }

    /// Key panels of one sequence and head; panel `n` holds positions `16 (first + n) ..`.
    pub(crate) fn key_panels<'a>(
        &'a self,
        blocks: &'a [u32],
        head: usize,
        first: usize,
    ) -> Keys<'a> {
        Keys {
            layer: self,
            blocks,
            head,
            first,
        }
    }

    /// Values of `head` in `block` from `slot` on: step one position, panel sixteen dimensions.
    pub(crate) fn value_rows(&self, block: u32, head: usize, slot: usize) -> Strided<f32> {
        let start = self.value_line(block, head, slot);
        Strided {
            base: self.values[start..].as_ptr().cast(),
            panel: LANES,
            step: self.value_lines * LANES,
        }
    }
}

/// Stores tokens of one layer.
#[derive(Clone, Copy)]
pub(crate) struct KvWriter<'a> {
    keys: Shards<Line>,
    values: Shards<Line>,
    /// For its shape only.
    layer: &'a KvShape,
}

impl KvWriter<'_> {
    /// Stores the key and value of one token: `key`, `value` `[kv_heads][head_dim]`.
    ///
    /// # Safety
    /// No other thread writes this slot.
    ///
    /// # Panics
    /// When the pool has no such block or the rows are too short.
    pub(crate) unsafe fn write(&self, block: u32, slot: usize, key: &[f32], value: &[f32]) {
        let shape = self.layer;
        let (dim, lane) = (shape.head_dim, slot % LANES);
        let inside = (block as usize) < shape.blocks && slot < BLOCK_TOKENS;
        assert!(inside, "the pool has no slot {slot} of block {block}");
        for head in 0..shape.kv_heads {
            let line = shape.key_line(block, head, slot / LANES);
            let key = &key[head * dim..(head + 1) * dim];
            // SAFETY: the lines are inside the pool, and the lane is this thread's.
            unsafe {
                let to = self.keys.ptr().add(line).cast::<f32>().add(lane);
                for (at, k) in key.iter().enumerate() {
                    to.add(at * LANES).write(*k);
                }
            }
            let line = shape.value_line(block, head, slot);
            let value = &value[head * dim..(head + 1) * dim];
            // SAFETY: the lines are inside the pool and hold a head.
            unsafe {
                let to = self.values.ptr().add(line).cast::<f32>();
                std::ptr::copy_nonoverlapping(value.as_ptr(), to, dim);
            }
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    layer: &'a KvLayer,
    blocks: &'a [u32],
    head: usize,
    first: usize,
}

impl Source for Keys<'_> {
    type Factors = Single;
    type Panel = *const f32;
    #[inline(always)]
    unsafe fn panel(&self, n: usize) -> *const f32 {
        let panel = self.first + n;
        let block = self.blocks[panel / PANELS];
        let line = self.layer.key_line(block, self.head, panel % PANELS);
        self.layer.keys[line..].as_ptr().cast()
    }
    #[inline(always)]
    unsafe fn load<V: V16>(&self, panel: *const f32, i: usize, _scale: V) -> V {
        // SAFETY: the caller vouches for `i`.
        unsafe { V::load(panel.add(i * LANES)) }
    }
}

/// Key-value memory of a model. Plain memory: ownership of blocks is [`KvAllocator`]'s matter.
pub struct KvPool {
    pub(crate) layers: Vec<KvLayer>,
}

impl KvPool {
    /// Memory for `blocks` blocks of [`BLOCK_TOKENS`] tokens in every layer.
    pub fn new(cfg: &ModelConfig, blocks: usize) -> Self {
        Self {
            layers: (0..cfg.layers).map(|_| KvLayer::new(cfg, blocks)).collect(),
        }
    }

    /// Copies what block `from` holds to block `to`, in every layer.
    ///
    /// # Panics
    /// When the pool has no such block.
    pub fn copy(&mut self, from: u32, to: u32) {
        self.layers
            .iter_mut()
            .for_each(|layer| layer.copy(from, to));
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.layers.first().map_or(0, KvLayer::blocks)
    }

    /// Bytes one block takes over all layers.
    pub fn bytes_per_block(cfg: &ModelConfig) -> usize {
        let values = BLOCK_TOKENS * cfg.head_dim.next_multiple_of(LANES);
        let keys = BLOCK_TOKENS * cfg.head_dim;
        cfg.layers * cfg.kv_heads * (keys + values) * size_of::<f32>()
    }
}

/// Leading blocks of a sequence that no layer can see any more once the next token stands at
/// `position`: zero unless every layer has a sliding window. Their ids may stay in the block
/// table; they are never read again.
pub fn blocks_out_of_sight(cfg: &ModelConfig, position: usize) -> usize {
    let windows: Option<Vec<usize>> = cfg.windows.iter().copied().collect();
    let largest = windows.and_then(|w| w.into_iter().max());
    largest.map_or(0, |w| (position + 1).saturating_sub(w) / BLOCK_TOKENS)
}

/// Which blocks are free and how many holders each other block has. Pure bookkeeping.
#[derive(Debug, Clone)]
pub struct KvAllocator {
    free: Vec<u32>,
    holders: Vec<u32>,
}

impl KvAllocator {
    /// All of `blocks` free.
    pub fn new(blocks: usize) -> Self {
        let blocks = u32::try_from(blocks).expect("block ids fit 32 bits");
        Self {
            free: (0..blocks).rev().collect(),
            holders: vec![0; blocks as usize],
        }
    }

    /// A free block, now with one holder; `None` when there is none.
    pub fn alloc(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        debug_assert_eq!(self.holders[block as usize], 0);
        self.holders[block as usize] = 1;
        Some(block)
    }

    /// Adds a holder to a held block.
    ///
    /// # Panics
    /// When the block is free.
    pub fn retain(&mut self, block: u32) {
        let holders = &mut self.holders[block as usize];
        assert!(*holders > 0, "block {block} is free and cannot be shared");
        *holders += 1;
    }

    /// Removes a holder; true when the block became free.
    ///
    /// # Panics
    /// When the block is free already.
    pub fn release(&mut self, block: u32) -> bool {
        let holders = &mut self.holders[block as usize];
        assert!(*holders > 0, "block {block} is released twice");
        *holders -= 1;
        let freed = *holders == 0;
        if freed {
            self.free.push(block);
        }
        freed
    }

    /// Holders of a block (0 = free).
    pub fn holders(&self, block: u32) -> u32 {
        self.holders[block as usize]
    }

    /// Number of free blocks.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Number of blocks in all.
    pub fn blocks(&self) -> usize {
        self.holders.len()
    }
}
