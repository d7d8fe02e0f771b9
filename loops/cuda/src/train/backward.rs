//! The backward pass: ../../train/layer.rs and ../../train/attention.rs.

use super::forward::{Product, Projection, Rows, column};
use super::passes::{DevicePasses, Results, pieces};
use crate::adapter::Placement;
use crate::args::{AttendBack, Back, Format, GateBack, Leave, Matrix, NormBack, Outer, Unplace};
use crate::driver::launch;
use crate::launcher::{NORM_THREADS, PROCESSORS, WIDE};
use crate::plan::window;
use hone_checkpoint::Target;
use hone_kernels::cpu::padded;
use hone_nn::backend::{MicroBatch, Pacer, Run};
use hone_nn::{Adapter, DeviceError, SeqInput, StepError};

/// Threads of a block that computes a tile, and the tile's sides.
const TILE_THREADS: u32 = 64;
const TILE: u32 = 64;
/// Threads of a block that computes a gradient through a matrix.
pub(super) const BACK_THREADS: u32 = 160;
/// The same of attention's tiles.
const SIDE: u32 = 32;

/// A gradient through a matrix: `dx = dy W`.
struct Through {
    w: Matrix,
    dy: Rows,
    dx: Rows,
    leave: Leave,
    scale: f32,
}

impl DevicePasses {
    /// Backward through all layers from `dx`, the gradient of the last layer's output.
    pub(super) fn backward(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        let inputs = micro.inputs(run.adapter);
        for index in (0..self.device.layers.len()).rev() {
            let (results, kept) = self.results(index);
            if !kept {
                self.layer(run.adapter, index)?;
                self.tick(pacer)?;
            } else if index + 1 < self.device.layers.len() {
                self.refill(index)?;
            }
            self.mlp_back(run.adapter, index, results)?;
            self.attention_back(run.adapter, &inputs, index, results)?;
            self.tick(pacer)?;
        }
        Ok(())
    }

    fn mlp_back(
        &self,
        adapter: Option<&Adapter>,
        index: usize,
        results: Results,
    ) -> Result<(), DeviceError> {
        let (at, d) = (&self.at, self.dims());
        let dx = (at.dx, d.ld_hidden);
        let down = self.down(index);
        self.linear_back(adapter, &down, dx, Some(at.dact))?;
        let gate = GateBack {
            gate_up: results.gate_up,
            dact: at.dact,
            ffn: d.ffn as u32,
            gate_up_stride: d.ld_gate_up as u32,
            act_stride: d.ld_ffn as u32,
            unused: 0,
        };
        let grid = [(d.ffn as u32).div_ceil(WIDE), self.plan.rows as u32, 1];
        launch(&*self.driver, "gate_back", (grid, WIDE), &gate)?;
        let gate_up = self.gate_up(index, results);
        self.linear_back(adapter, &gate_up, gate_up.y, Some(at.dnormed))?;
        self.norm_back(results.mid, self.device.layers[index].norm2)
    }

    fn attention_back(
        &self,
        adapter: Option<&Adapter>,
        inputs: &[SeqInput],
        index: usize,
        results: Results,
    ) -> Result<(), DeviceError> {
        let (at, d, cfg) = (&self.at, self.dims(), &self.device.model.config);
        let layer = &self.device.layers[index];
        let dx = (at.dx, d.ld_hidden);
        self.linear_back(adapter, &self.o(index, results), dx, Some(at.dattn))?;
        let mut row = 0;
        for seq in inputs {
            self.attend_back(index, row, seq)?;
            row += seq.tokens.len();
        }
        let unplace = Unplace {
            qkv: results.qkv,
            q_norm: layer.q_norm,
            k_norm: layer.k_norm,
            angles: self.device.angles.at(),
            positions: at.words + self.plan.positions as u64 * 4,
            dqkv: at.dqkv,
            heads: cfg.heads as u32,
            dim: cfg.head_dim as u32,
            stride: d.ld_qkv as u32,
            eps: cfg.rms_eps,
        };
        let grid = [self.plan.rows as u32, (cfg.heads + cfg.kv_heads) as u32, 1];
        launch(&*self.driver, "unplace", (grid, 32), &unplace)?;
        let (qkv, dqkv) = (self.qkv(index, results), (at.dqkv, d.ld_qkv));
        if index == 0 {
            // Below it are frozen embeddings: nobody reads the gradient of its input.
            return self.linear_back(adapter, &qkv, dqkv, None);
        }
        self.linear_back(adapter, &qkv, dqkv, Some(at.dnormed))?;
        self.norm_back(self.input(index), layer.norm1)
    }

    /// Attention of one sequence, whose first row is `row`.
    fn attend_back(&self, index: usize, row: usize, seq: &SeqInput) -> Result<(), DeviceError> {
        let (at, d, cfg) = (&self.at, self.dims(), &self.device.model.config);
        for piece in pieces(cfg, index, seq.tokens.len()) {
            let numbers = cfg.heads * piece.tokens * piece.width;
            let args = AttendBack {
                q: at.q,
                dout: at.dattn,
                keys: at.keys,
                values: at.values,
                p: at.pairs,
                ds: column(at.pairs, numbers),
                dqkv: at.dqkv,
                row: row as u32,
                first: piece.first as u32,
                tokens: piece.tokens as u32,
                base: piece.base as u32,
                block: seq.blocks[0],
                width: piece.width as u32,
                heads: cfg.heads as u32,
                kv_heads: cfg.kv_heads as u32,
                dim: cfg.head_dim as u32,
                window: window(cfg, index),
                stride: d.ld_q as u32,
                dqkv_stride: d.ld_qkv as u32,
                scale: 1.0 / (cfg.head_dim as f32).sqrt(),
                unused: 0,
            };
            let driver = &*self.driver;
            let tokens = args.tokens.div_ceil(SIDE);
            let dims = args.dim.div_ceil(SIDE);
            let columns = args.width / SIDE;
            let go = |kernel, grid, block| launch(driver, kernel, (grid, block), &args);
            let grid = [columns, tokens, args.heads];
            go("attend_back_pairs", grid, TILE_THREADS)?;
            go("attend_back_rows", [args.tokens, args.heads, 1], WIDE)?;
            let grid = [dims, tokens, args.heads];
            go("attend_back_queries", grid, TILE_THREADS)?;
            let grid = [dims, columns, 2 * args.kv_heads];
            go("attend_back_keys", grid, TILE_THREADS)?;
        }
        Ok(())
    }

    /// Adds the gradient through a norm of `x` to `dx`, that of its output being `dnormed`.
    fn norm_back(&self, x: u64, weight: u64) -> Result<(), DeviceError> {
        let d = self.dims();
        let norm = NormBack {
            x,
            dy: self.at.dnormed,
            weight,
            dx: self.at.dx,
            pick: 0,
            n: d.hidden as u32,
            stride: d.ld_hidden as u32,
            eps: self.device.model.config.rms_eps,
            unused: 0,
        };
        let grid = [self.plan.rows as u32, 1, 1];
        launch(&*self.driver, "norm_back", (grid, NORM_THREADS), &norm)
    }

    /// `dx = dy W` plus the adapter's path, where `dx` is wanted, and the adapter's gradients.
    fn linear_back(
        &self,
        adapter: Option<&Adapter>,
        step: &Projection,
        dy: Rows,
        dx: Option<u64>,
    ) -> Result<(), DeviceError> {
        let dx = dx.map(|dx| (dx, step.x.1));
        if let Some(dx) = dx {
            self.through(&Through {
                w: step.linear.w,
                dy,
                dx,
                leave: Leave::Set,
                scale: 0.0,
            })?;
        }
        let Some(adapter) = adapter else {
            return Ok(());
        };
        for &(target, first) in &step.targets {
            let dy = (column(dy.0, first), dy.1);
            self.change_back(adapter, step, target, dy, dx)?;
        }
        Ok(())
    }

    /// One change of a projection. Of low rank, with `s = x A^T`: `dB += dy^T (scale s)`,
    /// `ds = scale (dy B)`, `dA += ds^T x`, `dx += ds A`; dense: `dD += dy^T x`, `dx += dy D`.
    fn change_back(
        &self,
        adapter: &Adapter,
        step: &Projection,
        target: Target,
        dy: Rows,
        dx: Option<Rows>,
    ) -> Result<(), DeviceError> {
        let change = self.device.copy_of(adapter)?.change(step.layer, target);
        let grad = self.grads[step.layer][target as usize];
        let (last, dlast) = match change.zip(grad) {
            None => return Ok(()),
            Some((Placement::Dense(d), Placement::Dense(to))) => {
                self.outer(d, to, dy, step.x)?;
                (d, dy)
            }
            Some((Placement::LowRank(a, b), Placement::LowRank(to_a, to_b))) => {
                let (stride, scale) = (padded(adapter.config.rank()), adapter.config.scale());
                let (low, dlow) = ((self.at.low, stride), (self.at.dlow, stride));
                let leave = Leave::SetScaled;
                let s = Product {
                    w: a,
                    x: step.x,
                    y: low,
                    leave,
                    scale,
                };
                self.product(&s, 0)?;
                self.outer(b, to_b, dy, low)?;
                self.through(&Through {
                    w: b,
                    dy,
                    dx: dlow,
                    leave,
                    scale,
                })?;
                self.outer(a, to_a, dlow, step.x)?;
                (a, dlow)
            }
            Some(_) => unreachable!("gradients have the form of what is trained"),
        };
        let Some(dx) = dx else { return Ok(()) };
        self.through(&Through {
            w: last,
            dy: dlast,
            dx,
            leave: Leave::Continue,
            scale: 0.0,
        })
    }

    fn through(&self, through: &Through) -> Result<(), DeviceError> {
        self.through_rows(through, self.plan.rows)
    }

    fn through_rows(&self, through: &Through, rows: usize) -> Result<(), DeviceError> {
        let args = Back {
            w: through.w,
            dy: through.dy.0,
            dx: through.dx.0,
            rows: rows as u32,
            dy_stride: through.dy.1 as u32,
            dx_stride: through.dx.1 as u32,
            leave: through.leave,
            scale: through.scale,
            unused: 0,
        };
        let (kernel, grid) = back_launch(&args);
        launch(&*self.driver, kernel, (grid, BACK_THREADS), &args)
    }

    /// Adds `dy^T x` to the gradient of `w` at `to`.
    fn outer(&self, w: Matrix, to: usize, dy: Rows, x: Rows) -> Result<(), DeviceError> {
        let args = Outer {
            dy: dy.0,
            x: x.0,
            dw: column(self.grads_at, to),
            rows: self.plan.rows as u32,
            out: w.out,
            inp: w.inp,
            dy_stride: dy.1 as u32,
            x_stride: x.1 as u32,
            fresh: u32::from(self.fresh),
        };
        let (kernel, grid, block) = outer_launch_for(&args, PROCESSORS);
        launch(&*self.driver, kernel, (grid, block), &args)
    }

    /// The head backwards, for `rows` rows: `dnormed = dlogits W`.
    pub(super) fn head_back(
        &self,
        dlogits: Rows,
        dnormed: Rows,
        rows: usize,
    ) -> Result<(), DeviceError> {
        let through = Through {
            w: self.device.head,
            dy: dlogits,
            dx: dnormed,
            leave: Leave::Set,
            scale: 0.0,
        };
        self.through_rows(&through, rows)
    }
}

/// The kernel for the gradient of a matrix, on a device that computes so many blocks at the same time.
pub(super) fn outer_launch_for(args: &Outer, processors: u32) -> (&'static str, [u32; 3], u32) {
    let grid = [args.inp.div_ceil(TILE), args.out.div_ceil(TILE), 1];
    if grid[0] * grid[1] >= processors {
        return ("outer", grid, TILE_THREADS);
    }
    let grid = [args.inp.div_ceil(32), args.out.div_ceil(16), 1];
    ("outer_few", grid, 128)
}

/// The kernel for a gradient through a matrix.
fn back_launch(args: &Back) -> (&'static str, [u32; 3]) {
    back_launch_for(args, PROCESSORS)
}

/// The same for a device that computes so many blocks at the same time.
pub(super) fn back_launch_for(args: &Back, processors: u32) -> (&'static str, [u32; 3]) {
    let (many, few) = match args.w.format {
        Format::F32 => ("back_f32", "back_few_f32"),
        Format::Bf16 => ("back_bf16", "back_few_bf16"),
        Format::Q8 => ("back_q8", "back_few_q8"),
        Format::Q4 => ("back_q4", "back_few_q4"),
    };
    let rows = args.rows.div_ceil(TILE);
    // Large blocks are quicker where there are enough of them.
    let (name, ins) = match args.w.inp.div_ceil(128) * rows < processors {
        true => (few, 32),
        false => (many, 128),
    };
    (name, [args.w.inp.div_ceil(ins), rows, 1])
}
