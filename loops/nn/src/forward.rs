//! The forward pass: one function for prefill, decode, scoring and training.
#![allow(unsafe_code)]

use crate::adapter::Adapter;
use crate::batch::{LogitsWanted, SeqInput};
use crate::kv::{BLOCK_TOKENS, KvPool};
use crate::layer::{Acts, Bufs, LayerAt, Temp};
use crate::pass::Pass;
use crate::sample;
use crate::sample::{PlainDraw, Sampled};
use crate::weights::{Mlp, Model};
use hone_checkpoint::config::ExpertsConfig;
use hone_kernels::cpu::{Buf, padded};
use hone_kernels::matrix::{Rows, RowsMut, Store};
use hone_kernels::ops::RmsNorm;
use hone_kernels::thread_pool::Executor;

/// Buffers of the forward pass. They grow on demand and are reused, so a warm pass allocates
/// nothing but what was drawn.
#[derive(Default)]
pub struct Scratch {
    pub x: Buf,
    acts: Acts,
    tmp: Temp,
    picked: Buf,
    logits: Buf,
    /// Experts chosen `[tokens][recorded]`, and those of the picked rows.
    chosen: Vec<u16>,
    picked_chosen: Vec<u16>,
}

/// How rows of logits lie.
#[derive(Clone, Copy)]
pub struct LogitsShape {
    pub rows: usize,
    /// Their distance.
    pub stride: usize,
    pub vocab: usize,
}

/// Rows of logits in batch order.
pub struct Logits<'s> {
    data: &'s [f32],
    shape: LogitsShape,
    /// Per row, where any was drawn from already.
    drawn: Vec<Option<Sampled>>,
    /// Experts chosen, `[rows][recorded]`.
    chosen: &'s [u16],
    recorded: usize,
}

impl<'s> Logits<'s> {
    /// Rows of that shape.
    pub fn new(data: &'s [f32], shape: LogitsShape) -> Self {
        Self {
            data,
            shape,
            drawn: Vec::new(),
            chosen: &[],
            recorded: 0,
        }
    }

    /// With what was drawn from its rows.
    pub fn with(self, drawn: Vec<Option<Sampled>>) -> Self {
        Self { drawn, ..self }
    }

    /// With the experts that the tokens of its rows used, so many of each.
    pub fn using(self, chosen: &'s [u16], recorded: usize) -> Self {
        Self {
            chosen,
            recorded,
            ..self
        }
    }

    /// What was drawn from row `i`, if it was drawn from already; the row is not here then.
    pub fn drawn(&self, i: usize) -> Option<&Sampled> {
        self.drawn.get(i)?.as_ref()
    }

    /// The experts that the token of row `i` used, ascending, in every layer that has experts: as
    /// many ids as [`crate::ExpertsConfig::recorded`] says. Empty for models without experts.
    pub fn experts(&self, i: usize) -> &'s [u16] {
        &self.chosen[i * self.recorded..(i + 1) * self.recorded]
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.shape.rows
    }

    /// Row `i`, one value per vocabulary entry.
    ///
    /// # Panics
    /// When there is no row `i`, or it was drawn from already.
    pub fn row(&self, i: usize) -> &[f32] {
        assert!(
            self.drawn(i).is_none(),
            "logits row {i} stayed where it was drawn from"
        );
        let shape = self.shape;
        assert!(i < shape.rows, "logits row {i} of {}", shape.rows);
        &self.data[i * shape.stride..][..shape.vocab]
    }
}

/// Computes new tokens of every sequence: writes their keys and values to `kv` and returns the
/// wanted logits.
///
/// Sequences share blocks that are full only, so that no two rows write to the same place.
///
/// A row depends only on its own sequence's tokens and adapter: batch, chunking, block table,
/// threads and instruction level do not change its bits.
///
/// # Panics
/// When a token is not in the vocabulary, a block table is too short or names a block the pool
/// lacks, or an adapter was made for another number of layers.
pub fn forward<'s>(
    model: &Model,
    kv: &mut KvPool,
    batch: &[SeqInput],
    exec: &Executor,
    scratch: &'s mut Scratch,
) -> Logits<'s> {
    hidden_states(model, kv, batch, exec, scratch);
    let Scratch {
        x,
        picked,
        logits,
        chosen,
        picked_chosen,
        ..
    } = scratch;
    let recorded = recorded(model);
    picked_chosen.clear();
    let ld = padded(model.config.hidden);
    let mut rows = 0;
    let mut row = 0;
    for seq in batch {
        let count = seq.tokens.len();
        let wanted = seq.logits.rows(count);
        let from = (row + count - wanted) * ld;
        let picked = picked.take((rows + wanted) * ld);
        picked[rows * ld..(rows + wanted) * ld]
            .copy_from_slice(&x.as_slice()[from..][..wanted * ld]);
        picked_chosen.extend_from_slice(
            &chosen[(row + count - wanted) * recorded..(row + count) * recorded],
        );
        rows += wanted;
        row += count;
    }
    head(model, picked.as_slice(), rows, logits, exec);
    let logits = logits.as_slice();
    let shape = LogitsShape {
        rows,
        stride: padded(model.config.vocab),
        vocab: model.config.vocab,
    };
    Logits::new(logits, shape)
        .with(drawn(batch, logits, shape, exec))
        .using(picked_chosen, recorded)
}

/// Draws where nothing else of a row is wanted, rows side by side: one answer per row of logits, or
/// none at all.
fn drawn(
    batch: &[SeqInput],
    logits: &[f32],
    shape: LogitsShape,
    exec: &Executor,
) -> Vec<Option<Sampled>> {
    let LogitsShape {
        rows,
        stride,
        vocab,
    } = shape;
    let is_drawn = |seq: &SeqInput| matches!(seq.logits, LogitsWanted::Draws(..));
    if !batch.iter().any(is_drawn) {
        return Vec::new();
    }
    let wanted = batch
        .iter()
        .flat_map(|seq| seq.logits.draws(seq.tokens.len()));
    let wanted: Vec<Option<PlainDraw>> = wanted.collect();
    let mut drawn = vec![None; rows];
    exec.split_slice(
        &mut drawn,
        rows * vocab * sample::DRAW_WORK,
        &|from, part| {
            sample::with_scratch(|scratch| {
                for ((row, to), wanted) in (from..).zip(part).zip(&wanted[from..]) {
                    let logits = &logits[row * stride..][..vocab];
                    *to = wanted.and_then(|draw| sample::drawn(logits, &draw, scratch));
                }
            });
        },
    );
    drawn
}

/// Ids of experts recorded per token.
pub fn recorded(model: &Model) -> usize {
    let experts = model.config.experts.as_ref();
    experts.map_or(0, ExpertsConfig::recorded)
}

/// Logits `[rows][padded vocab]` of residual rows `[rows][padded hidden]` that are not normed yet.
pub(crate) fn head(model: &Model, x: &[f32], rows: usize, logits: &mut Buf, exec: &Executor) {
    let cfg = &model.config;
    let (ld, stride) = (padded(cfg.hidden), padded(cfg.vocab));
    let to = logits.take(rows * (stride + ld));
    let (to, normed) = to.split_at_mut(rows * stride);
    let norm = RmsNorm {
        weight: &model.weights.norm,
        eps: cfg.rms_eps,
        groups: 1,
    };
    norm.forward(x, normed, (rows, ld), exec);
    let normed = Rows {
        data: normed,
        stride: ld,
        rows,
    };
    let to = RowsMut { data: to, stride };
    model
        .weights
        .head()
        .linear(normed, to, Store::Set(None), exec);
}

/// Runs all layers; `scratch.x` then holds the residual stream `[tokens][padded hidden]`.
pub(crate) fn hidden_states(
    model: &Model,
    kv: &mut KvPool,
    batch: &[SeqInput],
    exec: &Executor,
    scratch: &mut Scratch,
) {
    let mut pass = Layers {
        end: model.config.layers,
        after: &mut |_, _| {},
    };
    hidden_states_through(model, kv, batch, exec, scratch, &mut pass);
}

/// Which layers of a pass run, and who looks at the residual stream behind each.
pub(crate) struct Layers<'a> {
    /// Runs the layers below this one.
    pub end: usize,
    /// Given the layers that have run and their residual stream, `[tokens, padded hidden]`.
    pub after: &'a mut dyn FnMut(usize, &[f32]),
}

/// As [`hidden_states`], through some of the layers.
pub(crate) fn hidden_states_through(
    model: &Model,
    kv: &mut KvPool,
    batch: &[SeqInput],
    exec: &Executor,
    scratch: &mut Scratch,
    layers: &mut Layers,
) {
    check(model, batch);
    let pass = Pass::new(model, batch, exec);
    pass.embed(
        &model.weights.embed,
        &mut scratch.x,
        &mut scratch.tmp.angles,
    );
    let recorded = recorded(model);
    scratch.chosen.clear();
    scratch.chosen.resize(pass.tokens * recorded, 0);
    let all = model.weights.layers.iter().enumerate();
    for (index, weights) in all.take(layers.end) {
        let bufs = Bufs {
            acts: &mut scratch.acts,
            tmp: &mut scratch.tmp,
        };
        let at = LayerAt { index, weights };
        pass.layer(at, &mut kv.layers[index], &mut scratch.x, bufs);
        if matches!(weights.mlp, Mlp::Sparse(_)) {
            let cfg = pass.experts_config();
            let first = cfg.before(index) * cfg.chosen;
            let ids = scratch.acts.mix.route.ids.chunks_exact(cfg.chosen);
            for (to, ids) in scratch.chosen.chunks_exact_mut(recorded).zip(ids) {
                to[first..first + cfg.chosen].copy_from_slice(ids);
            }
        }
        (layers.after)(index + 1, scratch.x.as_slice());
    }
}

/// What [`forward`] asks of a batch.
pub fn check(model: &Model, batch: &[SeqInput]) {
    for seq in batch {
        let needed = (seq.start + seq.tokens.len()).div_ceil(BLOCK_TOKENS);
        assert!(seq.blocks.len() >= needed, "block table too short");
        let layers = seq
            .adapter
            .map_or(model.config.layers, Adapter::layer_count);
        assert_eq!(
            layers, model.config.layers,
            "the adapter is of another model"
        );
    }
}
