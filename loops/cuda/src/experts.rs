//! Layers with experts on a device: what ../experts.rs does, as launches.
//!
//! Which experts a pass uses is known on the device only, so that nothing has to be read in its midst
//! and launches that come again are the same. There are blocks for as many tiles of rows as there can
//! be, and those of tiles that are not there end at once.

use super::args::{ExpertLinear, Gate, Group, Linear, Listed, Mix, Route};
use super::launcher::{Pass, WIDE};
use super::places::Tiling;
use super::weights::DeviceExperts;
use hone_checkpoint::config::ExpertsConfig;
use hone_kernels::cpu::padded;
use hone_nn::DeviceError;

/// Threads of the block that groups pairs.
const GROUP_THREADS: u32 = 512;
/// Bytes of a tile in the list (src/cuda/experts.cuh).
const TILE_BYTES: usize = 16;
/// Most blocks of one launch along its second and its third axis.
const GRID_ROWS_MAX: usize = 65_535;

impl Pass<'_> {
    /// `proj` becomes what the experts of every row say, of its second normed input.
    pub(super) fn experts(&self, layer: usize, own: &DeviceExperts) -> Result<(), DeviceError> {
        let cfg = self.device.model.config.experts.as_ref();
        let cfg = cfg.expect("a layer with experts is of a model with experts");
        let (at, mix, d) = (self.at, &self.at.mix, self.dims);
        let rows = self.plan.rows;
        let tiling = Tiling::of(cfg, rows);
        let (x, y) = ((at.normed, d.ld_hidden), (mix.scores, padded(cfg.count)));
        self.linear(Linear::plain(own.router, x, y, rows))?;
        self.route(layer, cfg, tiling)?;
        let gate_up = ExpertLinear {
            stack: own.gate_up,
            x: at.normed,
            y: mix.gate_up,
            from: mix.tokens,
            to: mix.pairs,
            tiles: mix.tiles,
            x_stride: d.ld_hidden as u32,
            y_stride: padded(2 * cfg.ffn) as u32,
        };
        self.of_tiles(tiling, &gate_up)?;
        self.gate_pairs(cfg)?;
        let down = ExpertLinear {
            stack: own.down,
            x: mix.act,
            y: mix.said,
            from: mix.pairs,
            to: mix.pairs,
            x_stride: padded(cfg.ffn) as u32,
            y_stride: d.ld_hidden as u32,
            ..gate_up
        };
        self.of_tiles(tiling, &down)?;
        let said = Mix {
            said: mix.said,
            weights: mix.weights,
            y: at.proj,
            n: d.hidden as u32,
            stride: d.ld_hidden as u32,
            chosen: cfg.chosen as u32,
            unused: 0,
        };
        let grid = [(d.hidden as u32).div_ceil(WIDE), rows as u32, 1];
        self.launch("mix_experts", (grid, WIDE), &said)
    }

    /// Chooses experts for every row and lists the pairs by expert.
    fn route(&self, layer: usize, cfg: &ExpertsConfig, tiling: Tiling) -> Result<(), DeviceError> {
        let (mix, rows) = (&self.at.mix, self.plan.rows);
        let first = (cfg.before(layer) * cfg.chosen * size_of::<u16>()) as u64;
        let of_layer = |ids: u64| if ids == 0 { 0 } else { ids + first };
        let route = Route {
            scores: mix.scores,
            recorded: of_layer(mix.recorded),
            ids: mix.ids,
            weights: mix.weights,
            record: of_layer(mix.record),
            places: self.at.words + self.plan.places as u64 * 4,
            // The pairs of one row are its list.
            listed: match rows {
                1 => mix.listed(),
                _ => Listed::default(),
            },
            stride: padded(cfg.count) as u32,
            count: cfg.count as u32,
            chosen: cfg.chosen as u32,
            normalised: u32::from(cfg.normalised),
            told: cfg.recorded() as u32,
            unused: 0,
        };
        self.launch("route", ([rows as u32, 1, 1], WIDE), &route)?;
        if rows == 1 {
            return Ok(());
        }
        let group = Group {
            ids: mix.ids,
            listed: mix.listed(),
            pairs: (rows * cfg.chosen) as u32,
            chosen: cfg.chosen as u32,
            experts: cfg.count as u32,
            shift: tiling.shift,
            tiles: tiling.tiles as u32,
            unused: 0,
        };
        self.launch("group_pairs", ([1, 1, 1], GROUP_THREADS), &group)
    }

    /// The products of all tiles with their experts.
    fn of_tiles(&self, tiling: Tiling, args: &ExpertLinear) -> Result<(), DeviceError> {
        let w = &args.stack.w;
        let (kernel, outs, threads) = tiling.kernel(w);
        for first in (0..tiling.tiles).step_by(GRID_ROWS_MAX) {
            let tiles = GRID_ROWS_MAX.min(tiling.tiles - first) as u32;
            let part = ExpertLinear {
                tiles: args.tiles + (first * TILE_BYTES) as u64,
                ..*args
            };
            let grid = [w.out.div_ceil(outs), 1, tiles];
            self.launch(kernel, (grid, threads), &part)?;
        }
        Ok(())
    }

    /// `act = silu(gate) * up` of every pair.
    fn gate_pairs(&self, cfg: &ExpertsConfig) -> Result<(), DeviceError> {
        let (mix, all) = (&self.at.mix, self.plan.rows * cfg.chosen);
        let strides = (padded(2 * cfg.ffn), padded(cfg.ffn));
        for first in (0..all).step_by(GRID_ROWS_MAX) {
            let rows = GRID_ROWS_MAX.min(all - first);
            let row = |at: u64, stride: usize| at + (first * stride * size_of::<f32>()) as u64;
            let gate = Gate {
                gate_up: row(mix.gate_up, strides.0),
                act: row(mix.act, strides.1),
                ffn: cfg.ffn as u32,
                gate_up_stride: strides.0 as u32,
                act_stride: strides.1 as u32,
                unused: 0,
            };
            let grid = [(cfg.ffn as u32).div_ceil(WIDE), rows as u32, 1];
            self.launch("gate", (grid, WIDE), &gate)?;
        }
        Ok(())
    }
}
