//! The forward with what the backward needs kept: ../../train/batch.rs and ../../layer.rs.

use super::passes::{DevicePasses, Results};
use crate::adapter::Placement;
use crate::args::{Add, Leave, Linear, Matrix};
use crate::launcher::WIDE;
use crate::layers::Residual;
use crate::linear::launch_linear;
use crate::weights::{DeviceLinear, DeviceMlp};
use hone_checkpoint::Target;
use hone_kernels::cpu::padded;
use hone_nn::backend::{Dims, MicroBatch, Pacer, Run};
use hone_nn::{Adapter, DeviceError, StepError};

/// Rows: where they begin, and their distance.
pub(super) type Rows = (u64, usize);

/// A linear layer at its place in the model, with its input and output.
pub(super) struct Projection {
    pub(super) layer: usize,
    pub(super) linear: DeviceLinear,
    pub(super) x: Rows,
    pub(super) y: Rows,
    /// Targets of adapters and their first output column.
    pub(super) targets: Vec<(Target, usize)>,
}

/// Address of a column.
pub(super) fn column(at: u64, column: usize) -> u64 {
    at + (column * size_of::<f32>()) as u64
}

impl DevicePasses {
    /// Runs all layers; the residual stream is then at the input of the layer after the last.
    pub(super) fn forward(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        self.prepare(run, micro)?;
        self.pass(0, self.at.work).embed(self.input(0))?;
        for index in 0..self.device.layers.len() {
            self.layer(run.adapter, index)?;
            self.tick(pacer)?;
        }
        Ok(())
    }

    /// One layer, from its input to that of the next.
    pub(super) fn layer(&self, adapter: Option<&Adapter>, index: usize) -> Result<(), DeviceError> {
        let (layer, d) = (&self.device.layers[index], self.dims());
        let (results, _) = self.results(index);
        let (at, input) = (&self.at, self.input(index));
        let rows = self.plan.rows as u32;
        let pass = self.pass(at.h1, results);
        pass.norm(Residual::alone(input), layer.norm1, 0, rows)?;
        self.project(adapter, &self.qkv(index, results))?;
        pass.place(layer, at.keys, at.values)?;
        pass.attend(index, at.keys, at.values)?;
        self.project(adapter, &self.o(index, results))?;
        let pass = self.pass(at.h2, results);
        pass.norm(
            Residual::of(input, at.proj, results.mid),
            layer.norm2,
            0,
            rows,
        )?;
        match &layer.mlp {
            DeviceMlp::Dense(_) => {
                self.project(adapter, &self.gate_up(index, results))?;
                pass.gate()?;
                self.project(adapter, &self.down(index))?;
            }
            DeviceMlp::Sparse(experts) => pass.experts(index, experts)?,
        }
        let n = rows * d.ld_hidden as u32;
        let add = Add {
            a: results.mid,
            b: at.proj,
            y: self.input(index + 1),
            n,
            unused: 0,
        };
        pass.launch("add_rows", ([n.div_ceil(WIDE), 1, 1], WIDE), &add)
    }

    /// What follows from a layer's input and results in one sweep.
    pub(super) fn refill(&self, index: usize) -> Result<(), DeviceError> {
        let (layer, at) = (&self.device.layers[index], &self.at);
        let (results, _) = self.results(index);
        let rows = self.plan.rows as u32;
        let pass = self.pass(at.h1, results);
        pass.norm(Residual::alone(self.input(index)), layer.norm1, 0, rows)?;
        pass.place(layer, at.keys, at.values)?;
        let pass = self.pass(at.h2, results);
        pass.norm(Residual::alone(results.mid), layer.norm2, 0, rows)?;
        pass.gate()
    }

    pub(super) fn dims(&self) -> Dims {
        Dims::new(&self.device.model.config)
    }

    pub(super) fn qkv(&self, layer: usize, results: Results) -> Projection {
        let d = self.dims();
        Projection {
            layer,
            linear: self.device.layers[layer].qkv,
            x: (self.at.h1, d.ld_hidden),
            y: (results.qkv, d.ld_qkv),
            targets: vec![(Target::Q, 0), (Target::K, d.q), (Target::V, d.q + d.kv)],
        }
    }

    pub(super) fn o(&self, layer: usize, results: Results) -> Projection {
        let d = self.dims();
        Projection {
            layer,
            linear: self.device.layers[layer].o,
            x: (results.attn, d.ld_q),
            y: (self.at.proj, d.ld_hidden),
            targets: vec![(Target::O, 0)],
        }
    }

    /// Gate and up, and down, of a layer without experts.
    fn dense(&self, layer: usize) -> [DeviceLinear; 2] {
        match &self.device.layers[layer].mlp {
            DeviceMlp::Dense(linears) => *linears,
            DeviceMlp::Sparse(_) => unreachable!("experts have stacks of their own"),
        }
    }

    pub(super) fn gate_up(&self, layer: usize, results: Results) -> Projection {
        let d = self.dims();
        Projection {
            layer,
            linear: self.dense(layer)[0],
            x: (self.at.h2, d.ld_hidden),
            y: (results.gate_up, d.ld_gate_up),
            targets: vec![(Target::Gate, 0), (Target::Up, d.ffn)],
        }
    }

    pub(super) fn down(&self, layer: usize) -> Projection {
        let d = self.dims();
        Projection {
            layer,
            linear: self.dense(layer)[1],
            x: (self.at.act, d.ld_ffn),
            y: (self.at.proj, d.ld_hidden),
            targets: vec![(Target::Down, 0)],
        }
    }

    /// `y = x W^T + b`, and what the adapter adds: `scale (x A^T) B^T` or `x D^T` per target.
    fn project(&self, adapter: Option<&Adapter>, step: &Projection) -> Result<(), DeviceError> {
        let whole = Product {
            w: step.linear.w,
            x: step.x,
            y: step.y,
            leave: Leave::Set,
            scale: 0.0,
        };
        self.product(&whole, step.linear.bias)?;
        let Some(adapter) = adapter else {
            return Ok(());
        };
        let (placed, scale) = (self.device.copy_of(adapter)?, adapter.config.scale());
        let low = (self.at.low, padded(adapter.config.rank()));
        for &(target, first) in &step.targets {
            let Some(change) = placed.change(step.layer, target) else {
                continue;
            };
            let (last, x) = match change {
                Placement::LowRank(a, b) => {
                    let first = Product {
                        w: a,
                        y: low,
                        ..whole
                    };
                    self.product(&first, 0)?;
                    (b, low)
                }
                Placement::Dense(d) => (d, step.x),
            };
            let adding = Product {
                w: last,
                x,
                y: (column(step.y.0, first), step.y.1),
                leave: Leave::AddScaled,
                scale,
            };
            self.product(&adding, 0)?;
        }
        Ok(())
    }

    /// A product of all rows of the pass.
    pub(super) fn product(&self, product: &Product, bias: u64) -> Result<(), DeviceError> {
        let args = Linear {
            bias,
            leave: product.leave,
            scale: product.scale,
            ..Linear::plain(product.w, product.x, product.y, self.plan.rows)
        };
        launch_linear(&*self.driver, args)
    }
}

/// `y = x W^T`, left as `leave` says.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) w: Matrix,
    pub(super) x: Rows,
    pub(super) y: Rows,
    pub(super) leave: Leave,
    pub(super) scale: f32,
}
