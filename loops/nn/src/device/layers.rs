//! The layers of a forward pass as launches: what ../layer.rs does.

use super::args::{Attend, Embed, Gate, Leave, Linear, Linears, Norm, Place};
use super::driver::{Buffer, DeviceError, Driver, launch};
use super::jobs::LayerJobs;
use super::plan::{Plan, window};
use super::{Device, DeviceLayer, DeviceLinear};
use crate::layer::Dims;
use crate::simd::padded;

/// Threads of a block for operations that have one thread per element.
pub(super) const WIDE: u32 = 128;
/// The names of all kernels.
pub const KERNELS: &[&str] = &[
    "add_rows",
    "attend_back_keys",
    "attend_back_pairs",
    "attend_back_queries",
    "attend_back_rows",
    "back_bf16",
    "back_f32",
    "back_q4",
    "back_q8",
    "gate_back",
    "loss_back",
    "loss_shape",
    "norm_back",
    "outer",
    "unplace",
    "draw",
    "draw_cut",
    "embed",
    "norm_rows",
    "place",
    "gate",
    "adapters",
    "attend_1",
    "attend_2",
    "attend_4",
    "attend_8",
    "few_f32_1",
    "few_f32_2",
    "few_f32_4",
    "few_f32_8",
    "few_f32_16",
    "many_f32",
    "few_bf16_1",
    "few_bf16_2",
    "few_bf16_4",
    "few_bf16_8",
    "few_bf16_16",
    "many_bf16",
    "few_q8_1",
    "few_q8_2",
    "few_q8_4",
    "few_q8_8",
    "few_q8_16",
    "many_q8",
    "few_q4_1",
    "few_q4_2",
    "few_q4_4",
    "few_q4_8",
    "few_q4_16",
    "many_q4",
];

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
}

/// One projection: a linear layer with its input and output.
struct Step {
    linear: DeviceLinear,
    x: (u64, usize),
    y: (u64, usize),
    rows: usize,
}

/// One pass over all layers.
pub(super) struct Pass<'a> {
    pub(super) device: &'a Device,
    /// In whose order it runs.
    pub(super) driver: &'a dyn Driver,
    pub(super) dims: Dims,
    pub(super) plan: &'a Plan,
    pub(super) at: Places,
    /// Per layer: query, key and value; output; gate and up; down. Empty without adapters.
    pub(super) jobs: &'a LayerJobs,
    pub(super) job_list: u64,
}

impl Pass<'_> {
    pub(super) fn run(&self, keys: &[Buffer], values: &[Buffer]) -> Result<(), DeviceError> {
        let (at, d) = (self.at, self.dims);
        let rows = self.plan.rows as u32;
        self.embed(at.x)?;
        for (index, layer) in self.device.layers.iter().enumerate() {
            // What the layer before left is added on the way into the norm.
            let x = if index == 0 {
                (at.x, 0, 0)
            } else {
                (at.mid, at.proj, at.x)
            };
            self.norm(x, layer.norm1, (0, rows))?;
            self.attention((index, layer), (keys[index].at(), values[index].at()))?;
            self.norm((at.x, at.proj, at.mid), layer.norm2, (0, rows))?;
            self.mlp(index, layer)?;
        }
        if self.plan.picked == 0 {
            return Ok(());
        }
        let picks = at.words + self.plan.picks as u64 * 4;
        let picked = (picks, self.plan.picked as u32);
        self.norm((at.mid, at.proj, at.x), self.device.norm, picked)?;
        let head = self.device.head;
        let step = Linear {
            w: head,
            bias: 0,
            x: at.normed,
            y: at.logits,
            rows: self.plan.picked as u32,
            x_stride: d.ld_hidden as u32,
            y_stride: padded(head.out as usize) as u32,
            leave: Leave::Set,
            scale: 0.0,
            unused: 0,
        };
        self.linear(&step)
    }

    /// Embeddings of the batch's tokens.
    pub(super) fn embed(&self, x: u64) -> Result<(), DeviceError> {
        let embed = Embed {
            w: self.device.embed,
            tokens: self.at.words,
            x,
            stride: self.dims.ld_hidden as u32,
            unused: 0,
        };
        self.launch("embed", ([self.plan.rows as u32, 1, 1], WIDE), &embed)
    }

    /// Norm of `x`, or of `sum = x + add`, to `normed`.
    pub(super) fn norm(
        &self,
        (x, add, sum): (u64, u64, u64),
        weight: u64,
        (pick, rows): (u64, u32),
    ) -> Result<(), DeviceError> {
        let norm = Norm {
            x,
            add,
            sum,
            weight,
            y: self.at.normed,
            pick,
            n: self.dims.hidden as u32,
            stride: self.dims.ld_hidden as u32,
            eps: self.device.model.config.rms_eps,
            unused: 0,
        };
        self.launch("norm_rows", ([rows, 1, 1], WIDE), &norm)
    }

    fn attention(
        &self,
        (index, layer): (usize, &DeviceLayer),
        kv: (u64, u64),
    ) -> Result<(), DeviceError> {
        let (at, d) = (self.at, self.dims);
        let qkv = Step {
            linear: layer.qkv,
            x: (at.normed, d.ld_hidden),
            y: (at.qkv, d.ld_qkv),
            rows: self.plan.rows,
        };
        self.project(&qkv, (index, 0))?;
        self.place(layer, kv)?;
        self.attend(index, kv)?;
        let o = Step {
            linear: layer.o,
            x: (at.attn, d.ld_q),
            y: (at.proj, d.ld_hidden),
            rows: self.plan.rows,
        };
        self.project(&o, (index, 1))
    }

    /// Head norms, rotation, and the write of keys and values.
    pub(super) fn place(
        &self,
        layer: &DeviceLayer,
        (keys, values): (u64, u64),
    ) -> Result<(), DeviceError> {
        let (at, d, cfg) = (self.at, self.dims, &self.device.model.config);
        let place = Place {
            qkv: at.qkv,
            q_norm: layer.q_norm,
            k_norm: layer.k_norm,
            angles: self.device.angles.at(),
            positions: at.words + self.plan.positions as u64 * 4,
            blocks: at.words + self.plan.blocks as u64 * 4,
            q: at.q,
            keys,
            values,
            heads: cfg.heads as u32,
            kv_heads: cfg.kv_heads as u32,
            dim: cfg.head_dim as u32,
            qkv_stride: d.ld_qkv as u32,
            q_stride: d.ld_q as u32,
            eps: cfg.rms_eps,
        };
        let heads = (cfg.heads + 2 * cfg.kv_heads) as u32;
        self.launch("place", ([self.plan.rows as u32, heads, 1], 32), &place)
    }

    pub(super) fn attend(
        &self,
        index: usize,
        (keys, values): (u64, u64),
    ) -> Result<(), DeviceError> {
        let (at, plan, cfg) = (self.at, self.plan, &self.device.model.config);
        let window = window(cfg, index);
        let width = plan.width(window);
        let at_once = plan.tiles_at_once(cfg.kv_heads, width);
        let kernel = match plan.tile_rows {
            1 => "attend_1",
            2 => "attend_2",
            4 => "attend_4",
            _ => "attend_8",
        };
        for first in (0..plan.tile_count).step_by(at_once) {
            let tiles = at_once.min(plan.tile_count - first) as u32;
            let attend = Attend {
                q: at.q,
                out: at.attn,
                keys,
                values,
                tables: at.words + plan.tables as u64 * 4,
                tiles: at.words + (plan.tiles + first * 4) as u64 * 4,
                scores: at.scores,
                stride: self.dims.ld_q as u32,
                heads: cfg.heads as u32,
                kv_heads: cfg.kv_heads as u32,
                dim: cfg.head_dim as u32,
                window,
                width: width as u32,
                scale: 1.0 / (cfg.head_dim as f32).sqrt(),
                unused: 0,
            };
            let grid = [tiles, cfg.kv_heads as u32, plan.tile_groups as u32];
            self.launch(kernel, (grid, WIDE), &attend)?;
        }
        Ok(())
    }

    fn mlp(&self, index: usize, layer: &DeviceLayer) -> Result<(), DeviceError> {
        let (at, d) = (self.at, self.dims);
        let gate_up = Step {
            linear: layer.gate_up,
            x: (at.normed, d.ld_hidden),
            y: (at.gate_up, d.ld_gate_up),
            rows: self.plan.rows,
        };
        self.project(&gate_up, (index, 2))?;
        self.gate()?;
        let down = Step {
            linear: layer.down,
            x: (at.act, d.ld_ffn),
            y: (at.proj, d.ld_hidden),
            rows: self.plan.rows,
        };
        self.project(&down, (index, 3))
    }

    /// `act = silu(gate) * up`.
    pub(super) fn gate(&self) -> Result<(), DeviceError> {
        let (at, d) = (self.at, self.dims);
        let gate = Gate {
            gate_up: at.gate_up,
            act: at.act,
            ffn: d.ffn as u32,
            gate_up_stride: d.ld_gate_up as u32,
            act_stride: d.ld_ffn as u32,
            unused: 0,
        };
        let grid = [(d.ffn as u32).div_ceil(WIDE), self.plan.rows as u32, 1];
        self.launch("gate", (grid, WIDE), &gate)
    }

    /// A linear layer and the adapters on it.
    fn project(&self, step: &Step, (layer, which): (usize, usize)) -> Result<(), DeviceError> {
        self.linear(&Linear {
            w: step.linear.w,
            bias: step.linear.bias,
            x: step.x.0,
            y: step.y.0,
            rows: step.rows as u32,
            x_stride: step.x.1 as u32,
            y_stride: step.y.1 as u32,
            leave: Leave::Set,
            scale: 0.0,
            unused: 0,
        })?;
        let Some(jobs) = self.jobs.get(layer).map(|jobs| jobs[which]) else {
            return Ok(());
        };
        for (first, count, grid) in [
            (jobs.first, jobs.count_a, jobs.grid_a),
            (jobs.first + jobs.count_a, jobs.count_b, jobs.grid_b),
        ] {
            let count = count as u32;
            if count > 0 {
                let each = self.job_list + (first * size_of::<Linear>()) as u64;
                let args = Linears {
                    each,
                    count,
                    unused: 0,
                };
                self.launch("adapters", ([grid[0], grid[1], count], 32), &args)?;
            }
        }
        Ok(())
    }

    pub(super) fn linear(&self, args: &Linear) -> Result<(), DeviceError> {
        let (kernel, grid, block) = linear_launch(args);
        self.launch(kernel, (grid, block), args)
    }

    pub(super) fn launch<T>(
        &self,
        kernel: &'static str,
        size: ([u32; 3], u32),
        args: &T,
    ) -> Result<(), DeviceError> {
        launch(self.driver, kernel, size, args)
    }
}

/// The kernel for a product: by rows, which changes no bit.
pub(super) fn linear_launch(args: &Linear) -> (&'static str, [u32; 3], u32) {
    macro_rules! names {
        ($($format:literal)*) => {
            [$([
                (1, concat!("few_", $format, "_1")),
                (2, concat!("few_", $format, "_2")),
                (4, concat!("few_", $format, "_4")),
                (8, concat!("few_", $format, "_8")),
                (16, concat!("few_", $format, "_16")),
                (u32::MAX, concat!("many_", $format)),
            ]),*]
        };
    }
    const NAMES: [[(u32, &str); 6]; 4] = names!("f32" "bf16" "q8" "q4");
    let names = &NAMES[args.w.format as usize];
    let (most, name) = names[names.partition_point(|(most, _)| *most < args.rows)];
    if most == u32::MAX {
        let grid = [args.w.out.div_ceil(64), args.rows.div_ceil(64), 1];
        return (name, grid, 64);
    }
    (
        name,
        [args.w.out.div_ceil(32), args.rows.div_ceil(most), 1],
        32,
    )
}
