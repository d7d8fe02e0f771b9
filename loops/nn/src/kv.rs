//! Keys and values of past tokens, in blocks of thirty-two tokens, and who owns which block.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::kv_format::KvFormat;
use crate::weights::Model;
use hone_checkpoint::config::ModelConfig;
use hone_kernels::cpu::{LANES, LARGE_PAGE, V16};
use hone_kernels::gemm::{Element, Single, Source, Strided};
use hone_kernels::thread_pool::Shards;

/// Tokens per block.
pub const BLOCK_TOKENS: usize = 32;
/// Key panels (sixteen positions each) per block.
const PANELS: usize = BLOCK_TOKENS / LANES;

/// Numbers rounded at a time.
const ROUNDED: usize = 256;

/// Numbers of f32 as f16. They are cut to its range first, as infinite ones would make answers NaN.
fn keep(numbers: &mut [f32], to: &mut [f16]) {
    let most = f16::MAX.to_f32();
    numbers.iter_mut().for_each(|x| *x = x.clamp(-most, most));
    to.convert_from_f32_slice(numbers);
}

/// Keys and values of one layer.
///
/// Keys are transposed, `[block][kv head][2][head_dim][16 positions]`, so that one query against
/// sixteen keys is a panel product; values are `[block][kv head][32 positions][head_dim]`, rows
/// padded to whole lines, so that a weighted sum of values is one too.
pub(crate) struct KvLayer {
    keys: ZeroBytes,
    values: ZeroBytes,
    shape: KvShape,
}

/// Where what lies in a layer.
#[derive(Clone, Copy)]
pub(crate) struct KvShape {
    blocks: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    value_lines: usize,
    pub(crate) format: KvFormat,
}

impl KvShape {
    /// Bytes of sixteen numbers.
    fn line_bytes(&self) -> usize {
        LANES * self.format.bytes()
    }

    /// First byte of key panel `panel` of `head` in `block`.
    fn key_at(&self, block: u32, head: usize, panel: usize) -> usize {
        let line = ((block as usize * self.kv_heads + head) * PANELS + panel) * self.head_dim;
        line * self.line_bytes()
    }

    /// First byte of the value of `head` at `slot` of `block`.
    fn value_at(&self, block: u32, head: usize, slot: usize) -> usize {
        let row = (block as usize * self.kv_heads + head) * BLOCK_TOKENS + slot;
        row * self.value_lines * self.line_bytes()
    }
}

impl std::ops::Deref for KvLayer {
    type Target = KvShape;

    fn deref(&self) -> &KvShape {
        &self.shape
    }
}

/// Zeroed bytes that take memory only once they are written: an idle cache costs nothing. They begin
/// at a page.
pub(crate) struct ZeroBytes {
    map: memmap2::MmapMut,
    len: usize,
}

impl ZeroBytes {
    fn new(len: usize) -> io::Result<Self> {
        let map = memmap2::MmapMut::map_anon(len.max(1))?;
        Ok(Self { map, len })
    }

    /// Lets the system lay them on large pages, which are found sooner. Each is held whole from its first
    /// byte that is written.
    fn on_large_pages(&self) {
        // That they are not to be had is no fault.
        #[cfg(target_os = "linux")]
        let _ = self.map.advise(memmap2::Advice::HugePage);
    }
}

impl std::ops::Deref for ZeroBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[..self.len]
    }
}

impl std::ops::DerefMut for ZeroBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.len]
    }
}

impl KvLayer {
    /// # Panics
    /// When there is no address space for it.
    pub(crate) fn new(cfg: &ModelConfig, format: KvFormat, blocks: usize) -> Self {
        Self::try_new(cfg, format, blocks).expect("address space for keys and values")
    }

    fn try_new(cfg: &ModelConfig, format: KvFormat, blocks: usize) -> io::Result<Self> {
        let shape = KvShape {
            blocks,
            kv_heads: cfg.kv_heads,
            head_dim: cfg.head_dim,
            value_lines: cfg.head_dim.div_ceil(LANES),
            format,
        };
        let end = u32::try_from(blocks).expect("block ids fit 32 bits");
        Ok(Self {
            keys: ZeroBytes::new(shape.key_at(end, 0, 0))?,
            values: ZeroBytes::new(shape.value_at(end, 0, 0))?,
            shape,
        })
    }

    pub(crate) fn blocks(&self) -> usize {
        self.shape.blocks
    }

    /// Copies all of block `from` to block `to`.
    fn copy(&mut self, from: u32, to: u32) {
        let shape = self.shape;
        let copy = |bytes: &mut [u8], first: &dyn Fn(u32) -> usize| {
            bytes.copy_within(first(from)..first(from + 1), first(to));
        };
        copy(&mut self.keys, &|block| shape.key_at(block, 0, 0));
        copy(&mut self.values, &|block| shape.value_at(block, 0, 0));
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
        let (mut key, mut value) = (key.to_vec(), value.to_vec());
        // SAFETY: nobody else writes.
        unsafe { self.writer().write(block, slot, &mut key, &mut value) }
    }

    /// Key panels of one sequence and head; panel `n` holds positions `16 (first + n) ..`. `E` is
    /// what the layer's format keeps.
    pub(crate) fn key_panels<'a, E: Element>(
        &'a self,
        blocks: &'a [u32],
        head: usize,
        first: usize,
    ) -> Keys<'a, E> {
        assert_eq!(
            size_of::<E>(),
            self.format.bytes(),
            "keys of another format"
        );
        Keys {
            layer: self,
            blocks,
            head,
            first,
            kept: PhantomData,
        }
    }

    /// Values of `head` in `block` from `slot` on: step one position, panel sixteen dimensions. `E`
    /// is what the layer's format keeps.
    pub(crate) fn value_rows<E>(&self, block: u32, head: usize, slot: usize) -> Strided<E> {
        assert_eq!(
            size_of::<E>(),
            self.format.bytes(),
            "values of another format"
        );
        let start = self.value_at(block, head, slot);
        Strided {
            base: self.values[start..].as_ptr().cast(),
            panel: LANES,
            step: self.value_lines * LANES,
        }
    }

    /// Keys of `head` in `block`.
    pub(crate) fn keys_of(&self, block: u32, head: usize) -> &[u8] {
        &self.keys[self.key_at(block, head, 0)..self.key_at(block, head + 1, 0)]
    }

    /// Values of `head` in `block`.
    pub(crate) fn values_of(&self, block: u32, head: usize) -> &[u8] {
        &self.values[self.value_at(block, head, 0)..self.value_at(block, head + 1, 0)]
    }
}

/// Stores tokens of one layer.
#[derive(Clone, Copy)]
pub(crate) struct KvWriter<'a> {
    keys: Shards<u8>,
    values: Shards<u8>,
    /// For its shape only.
    layer: &'a KvShape,
}

impl KvWriter<'_> {
    /// Stores the key and value of one token: `key`, `value` `[kv_heads][head_dim]`, which hold
    /// afterwards what is kept of them.
    ///
    /// # Safety
    /// No other thread writes this slot.
    ///
    /// # Panics
    /// When the pool has no such block or the rows are too short.
    pub(crate) unsafe fn write(&self, block: u32, slot: usize, key: &mut [f32], value: &mut [f32]) {
        let shape = self.layer;
        let inside = (block as usize) < shape.blocks && slot < BLOCK_TOKENS;
        assert!(inside, "the pool has no slot {slot} of block {block}");
        let dim = shape.head_dim;
        for head in 0..shape.kv_heads {
            let key = &mut key[head * dim..(head + 1) * dim];
            let value = &mut value[head * dim..(head + 1) * dim];
            let at = (block, head, slot);
            // SAFETY: as the caller vouches, and the slot is inside the pool.
            unsafe {
                match shape.format {
                    KvFormat::F32 => self.place(at, 0, (&*key, &*value)),
                    KvFormat::F16 => self.place_halves(at, key, value),
                }
            }
        }
    }

    /// One head as f16, some dimensions at a time.
    unsafe fn place_halves(&self, at: At, key: &mut [f32], value: &mut [f32]) {
        let (mut keys, mut values) = ([f16::ZERO; ROUNDED], [f16::ZERO; ROUNDED]);
        let parts = key.chunks_mut(ROUNDED).zip(value.chunks_mut(ROUNDED));
        for (index, (key, value)) in parts.enumerate() {
            let (keys, values) = (&mut keys[..key.len()], &mut values[..key.len()]);
            keep(key, keys);
            keep(value, values);
            // SAFETY: the same contract.
            unsafe { self.place(at, index * ROUNDED, (&*keys, &*values)) };
            keys.convert_to_f32_slice(key);
            values.convert_to_f32_slice(value);
        }
    }

    /// Dimensions of one head from `first` on: the key's to the lane of its slot, the value's side by
    /// side.
    unsafe fn place<E: Copy>(
        &self,
        (block, head, slot): At,
        first: usize,
        (key, value): (&[E], &[E]),
    ) {
        let shape = self.layer;
        let (panel, lane) = (slot / LANES, slot % LANES);
        // SAFETY: the slot is inside the pool, whose lines hold sixteen `E`; the lane is this
        // thread's.
        unsafe {
            let to = self.keys.ptr().add(shape.key_at(block, head, panel));
            let to = to.cast::<E>().add(first * LANES + lane);
            for (at, k) in key.iter().enumerate() {
                to.add(at * LANES).write(*k);
            }
            let to = self.values.ptr().add(shape.value_at(block, head, slot));
            let to = to.cast::<E>().add(first);
            std::ptr::copy_nonoverlapping(value.as_ptr(), to, value.len());
        }
    }
}

/// A block, a head and a slot.
type At = (u32, usize, usize);

#[derive(Clone, Copy)]
pub(crate) struct Keys<'a, E> {
    layer: &'a KvLayer,
    blocks: &'a [u32],
    head: usize,
    first: usize,
    kept: PhantomData<E>,
}

impl<E: Element> Source for Keys<'_, E> {
    type Factors = Single;
    type Panel = *const E;
    #[inline(always)]
    unsafe fn panel(&self, n: usize) -> *const E {
        let panel = self.first + n;
        let block = self.blocks[panel / PANELS];
        let start = self.layer.key_at(block, self.head, panel % PANELS);
        self.layer.keys[start..].as_ptr().cast()
    }
    #[inline(always)]
    unsafe fn load<V: V16>(&self, panel: *const E, i: usize, _scale: V) -> V {
        // SAFETY: the caller vouches for `i`.
        unsafe { E::load(panel.add(i * LANES)) }
    }
}

/// Key-value memory of a model. Plain memory: ownership of blocks is [`KvAllocator`]'s matter.
pub struct KvPool {
    pub(crate) layers: Vec<KvLayer>,
}

impl KvPool {
    /// Memory for `blocks` blocks of [`BLOCK_TOKENS`] tokens in every layer.
    ///
    /// # Panics
    /// When there is no address space for it; [`Self::try_new`] says so instead.
    pub fn new(model: &Model, blocks: usize) -> Self {
        Self::try_new(model, blocks).expect("address space for keys and values")
    }

    /// The same.
    ///
    /// # Errors
    /// There is no address space for it.
    pub fn try_new(model: &Model, blocks: usize) -> io::Result<Self> {
        let layer = |_| KvLayer::try_new(&model.config, model.kv, blocks);
        let layers: io::Result<Vec<KvLayer>> = (0..model.config.layers).map(layer).collect();
        let layers = layers?;
        // What an idle cache may then hold is little beside the weights of all but small models.
        if layers.len() * 2 * LARGE_PAGE <= model.weights.bytes() {
            for layer in &layers {
                layer.keys.on_large_pages();
                layer.values.on_large_pages();
            }
        }
        Ok(Self { layers })
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
    pub fn bytes_per_block(cfg: &ModelConfig, format: KvFormat) -> usize {
        let values = BLOCK_TOKENS * cfg.head_dim.next_multiple_of(LANES);
        let keys = BLOCK_TOKENS * cfg.head_dim;
        cfg.layers * cfg.kv_heads * (keys + values) * format.bytes()
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

#[cfg(test)]
#[path = "kv_tests.rs"]
mod tests;
