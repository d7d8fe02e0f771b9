//! What a batch looks like to the kernels: plain numbers, computed before anything is launched.

use super::args::{TILE_WORDS, Tile};
use hone_checkpoint::config::ModelConfig;
use hone_nn::{Adapter, BLOCK_TOKENS, SeqInput};

/// Most query rows that one block of threads computes.
const ROWS_MAX: usize = 8;
/// Positions that a block of threads scores.
pub(super) const SCORES_CHUNK: usize = 128;
/// Bytes of attention scores that may be held at a time.
const SCORE_BYTES_MAX: usize = 256 << 20;
/// Stands for "no window"; sums with positions stay below 2^32.
const NO_WINDOW: u32 = u32::MAX / 2;
/// The place of a row whose logits nobody wants.
const NO_PLACE: u32 = u32::MAX;

/// A run of rows with one adapter.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) adapter: &'a Adapter,
    pub(super) row: usize,
    pub(super) rows: usize,
}

/// A batch as numbers.
#[derive(Default)]
pub(super) struct Plan {
    /// Everything the device reads, in one piece.
    pub(super) words: Vec<u32>,
    pub(super) rows: usize,
    /// Rows whose logits are wanted.
    pub(super) picked: usize,
    /// Where the parts begin in `words`.
    pub(super) positions: usize,
    pub(super) blocks: usize,
    pub(super) picks: usize,
    /// Of every row its place among those, where the model has experts.
    pub(super) places: usize,
    pub(super) tables: usize,
    pub(super) tiles: usize,
    pub(super) tile_count: usize,
    /// Query rows per block of threads, groups of them per tile.
    pub(super) tile_rows: usize,
    pub(super) tile_groups: usize,
}

impl Plan {
    /// Plans a batch anew.
    pub(super) fn make(&mut self, cfg: &ModelConfig, batch: &[SeqInput]) {
        let group = cfg.heads / cfg.kv_heads;
        let tile_tokens = (ROWS_MAX / group).max(1);
        let words = &mut self.words;
        words.clear();
        words.extend(batch.iter().flat_map(|seq| seq.tokens));
        self.rows = words.len();
        self.positions = begin(words);
        for seq in batch {
            words.extend((seq.start..seq.start + seq.tokens.len()).map(|p| p as u32));
        }
        self.blocks = begin(words);
        for seq in batch {
            let positions = seq.start..seq.start + seq.tokens.len();
            words.extend(positions.map(|p| seq.blocks[p / BLOCK_TOKENS]));
        }
        self.picks = begin(words);
        let mut row = 0;
        for seq in batch {
            let count = seq.tokens.len();
            let wanted = seq.logits.rows(count);
            words.extend((row + count - wanted..row + count).map(|r| r as u32));
            row += count;
        }
        self.picked = words.len() - self.picks;
        self.places = begin(words);
        if cfg.experts.is_some() {
            place(batch, words);
        }
        self.tiles = begin(words);
        let (mut row, mut table, mut widest) = (0, 0, 1);
        for seq in batch {
            let count = seq.tokens.len();
            for token in (0..count).step_by(tile_tokens) {
                let tokens = tile_tokens.min(count - token);
                widest = widest.max(tokens);
                let tile = Tile {
                    row: (row + token) as u32,
                    tokens: tokens as u32,
                    first: (seq.start + token) as u32,
                    table: table as u32,
                    fresh: seq.start as u32,
                };
                words.extend([tile.row, tile.tokens, tile.first, tile.table, tile.fresh]);
            }
            row += count;
            table += blocks_of(seq).len();
        }
        self.tile_count = (words.len() - self.tiles) / TILE_WORDS;
        // They grow with every block of tokens; behind the rest they move nothing.
        self.tables = begin(words);
        words.extend(batch.iter().flat_map(blocks_of));
        let rows = widest * group;
        self.tile_rows = rows.next_power_of_two().min(ROWS_MAX);
        self.tile_groups = rows.div_ceil(self.tile_rows);
    }

    fn tile(&self, index: usize) -> Tile {
        let at = &self.words[self.tiles + index * TILE_WORDS..][..TILE_WORDS];
        Tile {
            row: at[0],
            tokens: at[1],
            first: at[2],
            table: at[3],
            fresh: at[4],
        }
    }

    /// Columns of scores that the widest tile needs under a window, and some more, so that few
    /// launches change while texts grow.
    pub(super) fn width(&self, window: u32) -> usize {
        let widest = (0..self.tile_count).map(|index| {
            let tile = self.tile(index);
            let lo = (tile.first + 1).saturating_sub(window) as usize;
            let end = (tile.first + tile.tokens) as usize;
            end.next_multiple_of(BLOCK_TOKENS) - lo / BLOCK_TOKENS * BLOCK_TOKENS
        });
        let widest = widest.max().unwrap_or(BLOCK_TOKENS);
        widest.next_multiple_of(SCORES_CHUNK.max(1 << (widest.ilog2() - 2)))
    }

    /// Tiles of one launch, so that their scores fit.
    pub(super) fn tiles_at_once(&self, kv_heads: usize, width: usize) -> usize {
        (SCORE_BYTES_MAX / self.score_bytes(1, kv_heads, width)).clamp(1, self.tile_count.max(1))
    }

    /// Bytes of scores of that many tiles.
    pub(super) fn score_bytes(&self, tiles: usize, kv_heads: usize, width: usize) -> usize {
        // The largest of every chunk follow a row of scores.
        let row = width + (width / SCORES_CHUNK).next_multiple_of(4);
        tiles * kv_heads * self.tile_groups * self.tile_rows * row * size_of::<f32>()
    }
}

/// Most bytes of scores of a pass over so many rows before so many positions. Tiles may be filled by half.
pub(super) fn score_bytes_most(cfg: &ModelConfig, rows: usize, positions: usize) -> usize {
    let widest = positions + positions / 4 + SCORES_CHUNK;
    let row = widest + widest / SCORES_CHUNK + 4;
    (2 * rows * cfg.heads * row * size_of::<f32>()).min(SCORE_BYTES_MAX)
}

/// Most words of a plan of so many rows, of which so many are picked, and so many sequences of so
/// many positions.
pub(super) fn words_most(rows: usize, picked: usize, sequences: usize, positions: usize) -> usize {
    // Token, position, block, place and a tile of each row; parts begin on four words.
    let parts = rows * (4 + TILE_WORDS) + picked + 8 * 4;
    parts + sequences * positions.div_ceil(BLOCK_TOKENS)
}

/// The blocks that a sequence's tokens have filled after the batch.
fn blocks_of<'a>(seq: &SeqInput<'a>) -> &'a [u32] {
    &seq.blocks[..(seq.start + seq.tokens.len()).div_ceil(BLOCK_TOKENS)]
}

/// Adds of every row its place among those whose logits are wanted.
fn place(batch: &[SeqInput], words: &mut Vec<u32>) {
    let mut next = 0;
    for seq in batch {
        let count = seq.tokens.len();
        let wanted = seq.logits.rows(count) as u32;
        words.extend(std::iter::repeat_n(NO_PLACE, count - wanted as usize));
        words.extend(next..next + wanted);
        next += wanted;
    }
}

/// The next part begins on sixteen bytes.
fn begin(words: &mut Vec<u32>) -> usize {
    words.resize(words.len().next_multiple_of(4), 0);
    words.len()
}

/// The window of a layer as kernels take it.
pub(super) fn window(cfg: &ModelConfig, layer: usize) -> u32 {
    let window = cfg.windows[layer].map(|w| w.min(NO_WINDOW as usize) as u32);
    window.unwrap_or(NO_WINDOW)
}

/// Runs of rows with one adapter.
pub(super) fn runs<'a>(batch: &[SeqInput<'a>]) -> Vec<Run<'a>> {
    let mut runs: Vec<Run<'a>> = Vec::new();
    let mut row = 0;
    for seq in batch {
        let rows = seq.tokens.len();
        if let Some(adapter) = seq.adapter {
            match runs.last_mut() {
                Some(last)
                    if std::ptr::eq(last.adapter, adapter) && last.row + last.rows == row =>
                {
                    last.rows += rows;
                }
                _ => runs.push(Run { adapter, row, rows }),
            }
        }
        row += rows;
    }
    runs
}
