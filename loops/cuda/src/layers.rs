//! The layers of a forward pass as launches: what ../layer.rs does.

use super::args::{Attend, Embed, Gate, Linear, Linears, Matrix, Norm, Place, TILE_WORDS};
use super::driver::Buffer;
use super::launcher::{NORM_THREADS, Pass, WIDE};
use super::linear::FEW_ROWS;
use super::plan::{SCORES_CHUNK, window};
use super::weights::{DeviceLayer, DeviceLinear, DeviceMlp};
use hone_kernels::cpu::padded;
use hone_nn::DeviceError;

/// What comes next may take this part of a device's cache.
const NEXT_SHARE: u64 = 3;
/// Threads and dimensions of a block that weighs values.
const WEIGH_THREADS: u32 = 96;
const WEIGH_DIMS: usize = 32;
/// The names of all kernels.
pub const KERNELS: &[&str] = &[
    "add_rows",
    "attend_back_keys",
    "attend_back_pairs",
    "attend_back_queries",
    "attend_back_rows",
    "back_bf16",
    "back_few_bf16",
    "back_f32",
    "back_few_f32",
    "back_q4",
    "back_few_q4",
    "back_q8",
    "back_few_q8",
    "gate_back",
    "loss_back",
    "loss_shape",
    "norm_back",
    "outer",
    "outer_few",
    "unplace",
    "draw",
    "draw_cut",
    "embed",
    "norm_rows",
    "place",
    "gate",
    "adapters",
    "score_1",
    "score_2",
    "score_4",
    "score_8",
    "weigh_1",
    "weigh_2",
    "weigh_4",
    "weigh_8",
    "many_f32",
    "stream_f32_1",
    "stream_f32_4",
    "stream_f32_4_wide",
    "stream_f32_8",
    "stream_f32_8_wide",
    "stream_f32_16",
    "stream_f32_16_wide",
    "stream_f32_32",
    "stream_f32_32_wide",
    "many_bf16",
    "stream_bf16_1",
    "stream_bf16_4",
    "stream_bf16_4_wide",
    "stream_bf16_8",
    "stream_bf16_8_wide",
    "stream_bf16_16",
    "stream_bf16_16_wide",
    "stream_bf16_32",
    "stream_bf16_32_wide",
    "many_q8",
    "stream_q8_1",
    "stream_q8_4",
    "stream_q8_4_wide",
    "stream_q8_8",
    "stream_q8_8_wide",
    "stream_q8_16",
    "stream_q8_16_wide",
    "stream_q8_32",
    "stream_q8_32_wide",
    "many_q4",
    "stream_q4_1",
    "stream_q4_4",
    "stream_q4_4_wide",
    "stream_q4_8",
    "stream_q4_8_wide",
    "stream_q4_16",
    "stream_q4_16_wide",
    "stream_q4_32",
    "stream_q4_32_wide",
    "route",
    "group_pairs",
    "mix_experts",
    "experts_f32_1",
    "experts_f32_4",
    "experts_f32_8",
    "experts_f32_16",
    "experts_f32_32",
    "experts_f32_64",
    "experts_bf16_1",
    "experts_bf16_4",
    "experts_bf16_8",
    "experts_bf16_16",
    "experts_bf16_32",
    "experts_bf16_64",
    "experts_q8_1",
    "experts_q8_4",
    "experts_q8_8",
    "experts_q8_16",
    "experts_q8_32",
    "experts_q8_64",
    "experts_q4_1",
    "experts_q4_4",
    "experts_q4_8",
    "experts_q4_16",
    "experts_q4_32",
    "experts_q4_64",
];

/// What a norm reads: `x`, or `x + add`, which it leaves at `sum`.
#[derive(Clone, Copy)]
pub(super) struct Residual {
    x: u64,
    add: u64,
    sum: u64,
}

impl Residual {
    pub(super) fn alone(x: u64) -> Self {
        Self { x, add: 0, sum: 0 }
    }

    pub(super) fn of(x: u64, add: u64, sum: u64) -> Self {
        Self { x, add, sum }
    }
}

/// One projection: a linear layer with its input and output.
struct Step {
    linear: DeviceLinear,
    x: (u64, usize),
    y: (u64, usize),
    rows: usize,
    /// What is read soon after.
    next: Option<Matrix>,
}

impl Pass<'_> {
    pub(super) fn run(&self, keys: &[Buffer], values: &[Buffer]) -> Result<(), DeviceError> {
        let (at, d) = (self.at, self.dims);
        let rows = self.plan.rows as u32;
        self.embed(at.x)?;
        for (index, layer) in self.device.layers.iter().enumerate() {
            // What the layer before left is added on the way into the norm.
            let x = if index == 0 {
                Residual::alone(at.x)
            } else {
                Residual::of(at.mid, at.proj, at.x)
            };
            self.norm(x, layer.norm1, 0, rows)?;
            self.attention(index, layer, keys[index].at(), values[index].at())?;
            let x = Residual::of(at.x, at.proj, at.mid);
            self.norm(x, layer.norm2, 0, rows)?;
            match &layer.mlp {
                DeviceMlp::Dense(linears) => self.mlp(index, linears)?,
                DeviceMlp::Sparse(experts) => self.experts(index, experts)?,
            }
        }
        if self.plan.picked == 0 {
            return Ok(());
        }
        let picks = at.words + self.plan.picks as u64 * 4;
        let x = Residual::of(at.mid, at.proj, at.x);
        self.norm(x, self.device.norm, picks, self.plan.picked as u32)?;
        let head = self.device.head;
        let x = (at.normed, d.ld_hidden);
        let y = (at.logits, padded(head.out as usize));
        self.linear(Linear::plain(head, x, y, self.plan.picked))
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

    /// Norm of `from` to `normed`: of `rows` rows, or of those that the list at `pick` names.
    pub(super) fn norm(
        &self,
        from: Residual,
        weight: u64,
        pick: u64,
        rows: u32,
    ) -> Result<(), DeviceError> {
        let norm = Norm {
            x: from.x,
            add: from.add,
            sum: from.sum,
            weight,
            y: self.at.normed,
            pick,
            n: self.dims.hidden as u32,
            stride: self.dims.ld_hidden as u32,
            eps: self.device.model.config.rms_eps,
            unused: 0,
        };
        self.launch("norm_rows", ([rows, 1, 1], NORM_THREADS), &norm)
    }

    fn attention(
        &self,
        index: usize,
        layer: &DeviceLayer,
        keys: u64,
        values: u64,
    ) -> Result<(), DeviceError> {
        let (at, d) = (self.at, self.dims);
        let qkv = Step {
            linear: layer.qkv,
            x: (at.normed, d.ld_hidden),
            y: (at.qkv, d.ld_qkv),
            rows: self.plan.rows,
            next: None,
        };
        self.project(&qkv, index, 0)?;
        self.place(layer, keys, values)?;
        self.attend(index, keys, values)?;
        let o = Step {
            linear: layer.o,
            x: (at.attn, d.ld_q),
            y: (at.proj, d.ld_hidden),
            rows: self.plan.rows,
            next: match &layer.mlp {
                DeviceMlp::Dense([gate_up, _]) => Some(gate_up.w),
                DeviceMlp::Sparse(_) => None,
            },
        };
        self.project(&o, index, 1)
    }

    /// Head norms, rotation, and the write of keys and values.
    pub(super) fn place(
        &self,
        layer: &DeviceLayer,
        keys: u64,
        values: u64,
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

    pub(super) fn attend(&self, index: usize, keys: u64, values: u64) -> Result<(), DeviceError> {
        let (at, plan, cfg) = (self.at, self.plan, &self.device.model.config);
        let window = window(cfg, index);
        let width = plan.width(window);
        let at_once = plan.tiles_at_once(cfg.kv_heads, width);
        let (score, weigh) = match plan.tile_rows {
            1 => ("score_1", "weigh_1"),
            2 => ("score_2", "weigh_2"),
            4 => ("score_4", "weigh_4"),
            _ => ("score_8", "weigh_8"),
        };
        let groups = (cfg.kv_heads * plan.tile_groups) as u32;
        let chunks = (width / SCORES_CHUNK) as u32;
        let dims = cfg.head_dim.div_ceil(WEIGH_DIMS) as u32;
        for first in (0..plan.tile_count).step_by(at_once) {
            let tiles = at_once.min(plan.tile_count - first) as u32;
            let attend = Attend {
                q: at.q,
                out: at.attn,
                keys,
                values,
                tables: at.words + plan.tables as u64 * 4,
                tiles: at.words + (plan.tiles + first * TILE_WORDS) as u64 * 4,
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
            self.launch(score, ([tiles, groups, chunks], WIDE), &attend)?;
            self.launch(weigh, ([tiles, groups, dims], WEIGH_THREADS), &attend)?;
        }
        Ok(())
    }

    fn mlp(&self, index: usize, [gate_up, down]: &[DeviceLinear; 2]) -> Result<(), DeviceError> {
        let (at, d) = (self.at, self.dims);
        let gate_up = Step {
            linear: *gate_up,
            x: (at.normed, d.ld_hidden),
            y: (at.gate_up, d.ld_gate_up),
            rows: self.plan.rows,
            next: None,
        };
        self.project(&gate_up, index, 2)?;
        self.gate()?;
        let down = Step {
            linear: *down,
            x: (at.act, d.ld_ffn),
            y: (at.proj, d.ld_hidden),
            rows: self.plan.rows,
            next: self.device.layers.get(index + 1).map(|layer| layer.qkv.w),
        };
        self.project(&down, index, 3)
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
    fn project(&self, step: &Step, layer: usize, which: usize) -> Result<(), DeviceError> {
        let jobs = self.jobs.get(layer).map(|jobs| jobs[which]);
        let jobs = jobs.unwrap_or_default();
        let of = |first: usize, count: usize, blocks: u32| Linears {
            each: self.job_list + (first * size_of::<Linear>()) as u64,
            count: count as u32,
            blocks,
        };
        let first = of(jobs.first, jobs.count_a, jobs.grid_a[0]);
        let second = of(jobs.first + jobs.count_a, jobs.count_b, jobs.grid_b[0]);
        let together = step.rows <= FEW_ROWS;
        let (next, next_bytes) = self.next(step);
        self.linear(Linear {
            bias: step.linear.bias,
            // What they have first needs nothing of the layer, so a few rows get it at the same time.
            beside: if together { first } else { Linears::default() },
            next,
            next_bytes,
            ..Linear::plain(step.linear.w, step.x, step.y, step.rows)
        })?;
        let alone = if together { Linears::default() } else { first };
        for (jobs, rows) in [(alone, jobs.grid_a[1]), (second, jobs.grid_b[1])] {
            if jobs.count > 0 {
                let grid = [jobs.blocks, rows, jobs.count];
                self.launch("adapters", (grid, 64), &jobs)?;
            }
        }
        Ok(())
    }

    /// What a product of a few rows asks the memory for meanwhile: weights that are read soon, as far as the
    /// device's cache holds them beside others.
    fn next(&self, step: &Step) -> (u64, u64) {
        match step.next {
            Some(next) if step.rows <= FEW_ROWS => {
                let bytes = next.out as u64 * next.inp as u64 * next.format.bits() / 8;
                (
                    next.data,
                    bytes.min(self.device.driver.limits().cache / NEXT_SHARE),
                )
            }
            _ => (0, 0),
        }
    }
}
