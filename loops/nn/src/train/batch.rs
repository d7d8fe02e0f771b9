//! One micro-batch: packed rows, forward with what backward needs kept, backward.

use std::ops::Range;
use std::time::Instant;

use super::layer::{GradBufs, LayerBack, LayerSink, embedding_grad};
use super::saved_activations::SavedActivations;
use super::{Control, StepError, TrainRow};
use crate::adapter::Adapter;
use crate::batch::{LogitsWanted, SeqInput};
use crate::kv::{BLOCK_TOKENS, KvLayer};
use crate::layer::{Acts, Bufs, LayerAt, Temp};
use crate::pass::Pass;
use crate::weights::{Model, Weights};
use hone_kernels::cpu::Buf;
use hone_kernels::thread_pool::Executor;

/// Asks for permission to go on, between slices, and measures them.
pub struct Pacer<'a> {
    pub pause: &'a mut dyn FnMut() -> Control,
    pub last: Instant,
    pub slices: usize,
    pub longest_us: u64,
}

impl<'a> Pacer<'a> {
    pub fn new(pause: &'a mut dyn FnMut() -> Control) -> Self {
        Self {
            pause,
            last: Instant::now(),
            slices: 0,
            longest_us: 0,
        }
    }

    /// End of a slice.
    pub fn tick(&mut self) -> Result<(), StepError> {
        let us = u64::try_from(self.last.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.longest_us = self.longest_us.max(us);
        self.slices += 1;
        let control = (self.pause)();
        // Time inside the callback is not ours.
        self.last = Instant::now();
        match control {
            Control::Continue => Ok(()),
            Control::Stop => Err(StepError::Stopped),
        }
    }
}

/// A token to learn from, located in a micro-batch.
#[derive(Debug, Clone, Copy)]
pub struct LossPosition {
    /// Row of the micro-batch's buffers whose logits predict the token.
    pub at: usize,
    pub token: u32,
    /// Index into the step's rows, and into that row's `loss`.
    pub row: usize,
    pub item: usize,
}

/// Rows that run through the model together. Each row is cut after the last token that predicts
/// something to learn from.
pub struct MicroBatch<'a> {
    rows: Vec<(usize, &'a [u32])>,
    blocks: Vec<u32>,
    pub positions: Vec<LossPosition>,
    pub tokens: usize,
    /// Per token, the experts that are recorded of it.
    pub recorded: Vec<Option<&'a [u16]>>,
}

impl<'a> MicroBatch<'a> {
    /// Packs rows `range`, in order, into micro-batches of up to `limit` tokens (a longer row is
    /// alone). Rows without loss tokens are left out.
    pub fn pack(rows: &'a [TrainRow], range: Range<usize>, limit: usize) -> Vec<Self> {
        let mut packed: Vec<Self> = Vec::new();
        for index in range {
            let row = &rows[index];
            let Some(length) = row.loss.iter().map(|l| l.position).max() else {
                continue;
            };
            let full = packed.last().is_none_or(|m| m.tokens + length > limit);
            if full {
                packed.push(Self {
                    rows: vec![],
                    blocks: vec![],
                    positions: vec![],
                    tokens: 0,
                    recorded: vec![],
                });
            }
            let micro = packed.last_mut().expect("pushed above");
            micro.recorded.resize(micro.tokens + length, None);
            for (item, loss) in row.loss.iter().enumerate() {
                let at = micro.tokens + loss.position - 1;
                if let Some(ids) = &loss.experts {
                    micro.recorded[at] = Some(ids);
                }
                micro.positions.push(LossPosition {
                    at,
                    token: row.tokens[loss.position],
                    row: index,
                    item,
                });
            }
            let first = micro.blocks.len();
            micro.rows.push((first, &row.tokens[..length]));
            micro
                .blocks
                .extend((0..length.div_ceil(BLOCK_TOKENS)).map(|i| (first + i) as u32));
            micro.tokens += length;
        }
        packed
    }

    /// The pass over `inputs`, its own [`Self::inputs`], with the experts that are recorded.
    fn pass<'b>(&'b self, run: &Run<'b>, inputs: &'b [SeqInput<'b>]) -> Pass<'b> {
        Pass {
            recorded: &self.recorded,
            ..Pass::new(run.model, inputs, run.exec)
        }
    }

    pub fn inputs<'b>(&'b self, adapter: Option<&'b Adapter>) -> Vec<SeqInput<'b>> {
        let logits = LogitsWanted::None;
        let input = |&(first, tokens): &(usize, &'b [u32])| SeqInput {
            tokens,
            start: 0,
            blocks: &self.blocks[first..],
            adapter,
            logits,
        };
        self.rows.iter().map(input).collect()
    }
}

/// Where all gradients go.
pub enum Sink {
    Full(Box<Weights>),
    Adapter(Adapter),
}

impl Sink {
    fn layer(&mut self, index: usize) -> LayerSink<'_> {
        match self {
            Self::Full(grads) => LayerSink::Full(&mut grads.layers[index]),
            Self::Adapter(grads) => LayerSink::Adapter(&mut grads.layers[index]),
        }
    }

    pub fn arrays_mut(&mut self) -> Vec<(&mut [f32], bool)> {
        match self {
            Self::Full(grads) => grads.arrays_mut(),
            Self::Adapter(grads) => grads.arrays_mut(),
        }
    }
}

/// Buffers of training passes.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Input of every layer.
    inputs: Vec<Buf>,
    pub saved: SavedActivations,
    /// Of the layer at work; from forward to backward, of the last one.
    acts: Acts,
    kv: Option<KvLayer>,
    temp: Temp,
    pub x: Buf,
    pub grads: GradBufs,
    pub logits: Buf,
    pub picked: Buf,
    pub dpicked: Buf,
}

impl Buffers {
    /// Makes room for a micro-batch; with a budget of bytes for a backward pass.
    fn prepare(&mut self, run: &Run, micro: &MicroBatch) {
        let (cfg, blocks) = (&run.model.config, micro.blocks.len());
        if self.kv.as_ref().is_none_or(|kv| kv.blocks() < blocks) {
            self.kv = Some(KvLayer::new(cfg, run.model.kv, blocks));
        }
        self.inputs.resize_with(cfg.layers, Buf::default);
        if let Some(budget) = run.backward {
            self.saved.prepare(cfg, micro.tokens, budget);
        }
    }

    /// Runs all layers; `self.x` then holds the residual stream. With `for_backward`, what
    /// [`Self::backward`] needs is kept.
    pub(crate) fn forward(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        self.prepare(run, micro);
        let inputs = micro.inputs(run.adapter);
        let pass = micro.pass(run, &inputs);
        pass.embed(&run.model.weights.embed, &mut self.x, &mut self.temp.angles);
        let used = pass.tokens * pass.dims.ld_hidden;
        for (index, weights) in run.model.weights.layers.iter().enumerate() {
            if run.backward.is_some() {
                let input = self.inputs[index].take(used);
                input[..used].copy_from_slice(&self.x.as_slice()[..used]);
                self.saved.exchange(index, &mut self.acts);
            }
            self.layer(&pass, LayerAt { index, weights });
            if run.backward.is_some() {
                self.saved.exchange(index, &mut self.acts);
            }
            pacer.tick()?;
        }
        Ok(())
    }

    /// One layer forward, from `self.x` to `self.x`.
    fn layer(&mut self, pass: &Pass, at: LayerAt) {
        let kv = self.kv.as_mut().expect("made by prepare");
        let bufs = Bufs {
            acts: &mut self.acts,
            tmp: &mut self.temp,
        };
        pass.layer(at, kv, &mut self.x, bufs);
    }

    /// Brings what the backward pass reads of a layer into the working buffers; true where it had
    /// to be computed again.
    fn recall(&mut self, pass: &Pass, at: LayerAt) -> bool {
        let input = &self.inputs[at.index];
        if self.saved.exchange(at.index, &mut self.acts) {
            let kv = self.kv.as_mut().expect("made by prepare");
            let bufs = Bufs {
                acts: &mut self.acts,
                tmp: &mut self.temp,
            };
            pass.refill(at, kv, input, bufs);
        } else if !self.saved.has(at.index) {
            let used = pass.tokens * pass.dims.ld_hidden;
            self.x.as_mut()[..used].copy_from_slice(&input.as_slice()[..used]);
            self.layer(pass, at);
            return true;
        }
        false
    }

    /// Backward through all layers from `self.grads.dx`, the gradient of the last layer's output.
    pub(crate) fn backward(
        &mut self,
        run: &Run,
        micro: &MicroBatch,
        sink: &mut Sink,
        pacer: &mut Pacer,
    ) -> Result<(), StepError> {
        let inputs = micro.inputs(run.adapter);
        let pass = micro.pass(run, &inputs);
        for (index, weights) in run.model.weights.layers.iter().enumerate().rev() {
            if self.recall(&pass, LayerAt { index, weights }) {
                pacer.tick()?;
            }
            let layer = LayerBack {
                pass: &pass,
                index,
                weights,
                adapter: run.adapter,
                kv: self.kv.as_ref().expect("made by prepare"),
                temp: &self.temp,
                input: &self.inputs[index],
            };
            layer.run(&mut self.acts, &mut self.grads, &mut sink.layer(index));
            // Its room goes back to where the next forward looks for it.
            self.saved.exchange(index, &mut self.acts);
            pacer.tick()?;
        }
        if let Sink::Full(grads) = sink {
            embedding_grad(&pass, &self.grads.dx, &mut grads.embed);
        }
        Ok(())
    }
}

/// What a training pass runs on.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    pub model: &'a Model,
    pub adapter: Option<&'a Adapter>,
    pub exec: &'a Executor,
    /// For a backward pass: bytes of layer results to keep for it.
    pub backward: Option<usize>,
}
