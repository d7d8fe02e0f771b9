//! Where the intermediate results of a pass lie on a device.

use super::args::{Listed, Matrix};
use super::driver::Cut;
use hone_checkpoint::config::{ExpertsConfig, ModelConfig};
use hone_kernels::cpu::padded;

/// In place of the ids of a row whose experts are not recorded.
pub(super) const NOT_RECORDED: u16 = u16::MAX;

/// Addresses of the buffers in one pass.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) words: u64,
    pub(super) x: u64,
    pub(super) mid: u64,
    pub(super) normed: u64,
    pub(super) qkv: u64,
    pub(super) q: u64,
    pub(super) attn: u64,
    pub(super) proj: u64,
    pub(super) gate_up: u64,
    pub(super) act: u64,
    pub(super) scores: u64,
    pub(super) logits: u64,
    pub(super) mix: MixPlaces,
}

/// Addresses of the results of a layer with experts, as `Mixture` of the processor. Pairs are
/// numbered token by token.
#[derive(Clone, Copy, Default)]
pub(super) struct MixPlaces {
    pub(super) scores: u64,
    pub(super) ids: u64,
    pub(super) weights: u64,
    pub(super) tiles: u64,
    pub(super) tokens: u64,
    pub(super) pairs: u64,
    pub(super) gate_up: u64,
    pub(super) act: u64,
    pub(super) said: u64,
    /// Where rows whose logits are wanted tell their ids; 0 where nobody asks.
    pub(super) record: u64,
    /// Ids to use instead of those that the router would choose; 0 where there are none.
    pub(super) recorded: u64,
}

impl MixPlaces {
    /// Takes the room of so many rows; nothing where the model has no experts.
    pub(super) fn cut(cut: &mut Cut, cfg: &ModelConfig, rows: usize) -> Self {
        let Some(experts) = &cfg.experts else {
            return Self::default();
        };
        let pairs = rows * experts.chosen;
        Self {
            scores: cut.floats(rows * padded(experts.count)),
            ids: cut.floats(pairs.div_ceil(2)),
            weights: cut.floats(pairs),
            tiles: cut.floats(4 * Tiling::of(experts, rows).tiles),
            tokens: cut.floats(pairs),
            pairs: cut.floats(pairs),
            gate_up: cut.floats(pairs * padded(2 * experts.ffn)),
            act: cut.floats(pairs * padded(experts.ffn)),
            said: cut.floats(pairs * padded(cfg.hidden)),
            record: 0,
            recorded: 0,
        }
    }

    pub(super) fn moved(self, by: u64) -> Self {
        Self {
            scores: self.scores + by,
            ids: self.ids + by,
            weights: self.weights + by,
            tiles: self.tiles + by,
            tokens: self.tokens + by,
            pairs: self.pairs + by,
            gate_up: self.gate_up + by,
            act: self.act + by,
            said: self.said + by,
            ..self
        }
    }

    pub(super) fn listed(&self) -> Listed {
        Listed {
            tiles: self.tiles,
            tokens: self.tokens,
            pairs: self.pairs,
        }
    }
}

/// How the rows of every expert are cut into tiles: up to `2^shift` rows each, and the most tiles that
/// there can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiling {
    pub(super) shift: u32,
    pub(super) tiles: usize,
}

impl Tiling {
    pub(super) fn of(cfg: &ExpertsConfig, rows: usize) -> Self {
        let pairs = rows * cfg.chosen;
        if rows <= 1 {
            return Self {
                shift: 0,
                tiles: pairs,
            };
        }
        // Most experts fit one tile where it has room for twice the mean of rows.
        let fits = |shift: &u32| cfg.count << shift >= 2 * pairs;
        let shift = (2..6).find(fits).unwrap_or(6);
        let used = cfg.count.min(pairs);
        let tiles = match rows <= 1 << shift {
            true => used,
            // Beside whole ones, every expert has one that is not.
            false => (pairs >> shift) + used,
        };
        Self { shift, tiles }
    }

    /// The kernel, outputs and threads of a block.
    pub(super) fn kernel(self, w: &Matrix) -> (&'static str, u32, u32) {
        macro_rules! kernels {
            ($($format:literal)*) => {
                [$([
                    concat!("experts_", $format, "_1"),
                    concat!("experts_", $format, "_4"),
                    concat!("experts_", $format, "_8"),
                    concat!("experts_", $format, "_16"),
                    concat!("experts_", $format, "_32"),
                    concat!("experts_", $format, "_64"),
                ]),*]
            };
        }
        const KERNELS: [[&str; 6]; 4] = kernels!("f32" "bf16" "q8" "q4");
        let name = KERNELS[w.format as usize][self.shift.saturating_sub(1) as usize];
        match self.shift {
            0..=2 => (name, 32, 64),
            _ => (name, 64, 160),
        }
    }
}
