//! Activations that stay in memory from the forward to the backward pass.
//!
//! The layer that ran last is still in the working buffers when the backward pass begins, and every
//! layer's input is kept. Of the layers below it as many stay as fit a budget of bytes, the upper ones
//! first; the others are computed again. Of a layer only what a product or attention gives is kept:
//! the rest follows from it in one sweep ([`crate::layer::Pass::refill`]).

use std::mem::swap;

use crate::experts::{Mixture, Route};
use crate::layer::Acts;
use crate::pass::Dims;
use hone_checkpoint::config::ModelConfig;
use hone_kernels::cpu::{Buf, LANES, padded};

/// Saved activations of one layer.
struct SavedLayer {
    size: Size,
    qkv: Buf,
    attn: Buf,
    mid: Buf,
    gate_up: Buf,
    mix: Mixture,
}

impl SavedLayer {
    fn new(size: Size) -> Self {
        let room = |width| Buf::zeros(size.floats(width));
        let mut mix = Mixture::default();
        if size.pairs > 0 {
            mix.scores = room(size.scores);
            mix.gate_up = Buf::zeros(size.pairs * size.pair_gate_up + LANES);
            mix.out = Buf::zeros(size.pairs * size.pair_out + LANES);
            mix.route = Route::with_room(size.pairs, size.experts);
        }
        Self {
            size,
            qkv: room(size.qkv),
            attn: room(size.attn),
            mid: room(size.mid),
            gate_up: room(size.gate_up),
            mix,
        }
    }

    /// Exchanges the saved results with those in `acts`.
    fn exchange(&mut self, acts: &mut Acts) {
        swap(&mut self.qkv, &mut acts.qkv);
        swap(&mut self.attn, &mut acts.attn);
        swap(&mut self.mid, &mut acts.mid);
        swap(&mut self.gate_up, &mut acts.gate_up);
        swap(&mut self.mix.scores, &mut acts.mix.scores);
        swap(&mut self.mix.gate_up, &mut acts.mix.gate_up);
        swap(&mut self.mix.out, &mut acts.mix.out);
        swap(&mut self.mix.route, &mut acts.mix.route);
    }

    /// Bytes that are really held.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let bufs = [&self.qkv, &self.attn, &self.mid, &self.gate_up];
        let mixed = [&self.mix.scores, &self.mix.gate_up, &self.mix.out];
        let floats = bufs.into_iter().chain(mixed).map(Buf::bytes).sum::<usize>();
        floats + self.mix.route.bytes()
    }
}

/// Row lengths of what is kept of a layer, and its rows.
#[derive(Clone, Copy)]
pub(super) struct Size {
    tokens: usize,
    qkv: usize,
    attn: usize,
    mid: usize,
    gate_up: usize,
    /// Of a layer with experts; a pair is a token with one of its experts.
    scores: usize,
    pairs: usize,
    pair_gate_up: usize,
    pair_out: usize,
    experts: usize,
}

impl Size {
    pub(super) fn of(cfg: &ModelConfig, layer: usize, tokens: usize) -> Self {
        let d = Dims::new(cfg);
        let size = Self {
            tokens,
            qkv: d.ld_qkv,
            attn: d.ld_q,
            mid: d.ld_hidden,
            gate_up: d.ld_gate_up,
            scores: 0,
            pairs: 0,
            pair_gate_up: 0,
            pair_out: 0,
            experts: 0,
        };
        match cfg.experts.as_ref().filter(|experts| experts.layers[layer]) {
            None => size,
            Some(experts) => Self {
                gate_up: 0,
                scores: padded(experts.count),
                pairs: tokens * experts.chosen,
                pair_gate_up: padded(2 * experts.ffn),
                pair_out: d.ld_hidden,
                experts: experts.count,
                ..size
            },
        }
    }

    /// Room for rows of this length; whole-vector reads may touch one line more.
    fn floats(&self, width: usize) -> usize {
        self.tokens * width + LANES
    }

    pub(super) fn bytes(&self) -> usize {
        let dense = [self.qkv, self.attn, self.mid, self.gate_up];
        let mut floats: usize = dense.iter().map(|width| self.floats(*width)).sum();
        if self.pairs > 0 {
            floats += self.floats(self.scores);
            floats += self.pairs * (self.pair_gate_up + self.pair_out) + 2 * LANES;
        }
        floats * size_of::<f32>() + Route::bytes_of(self.pairs, self.experts)
    }
}

/// The layers below the last whose results fit into `budget` bytes, the upper ones first.
fn fitting(cfg: &ModelConfig, tokens: usize, budget: usize) -> Vec<Size> {
    let below = (0..cfg.layers.saturating_sub(1)).rev();
    let mut left = budget;
    below
        .map(|layer| Size::of(cfg, layer, tokens))
        .take_while(|size| {
            let rest = left.checked_sub(size.bytes());
            left = rest.unwrap_or(0);
            rest.is_some()
        })
        .collect()
}

/// How many layers those are.
pub fn layers_that_fit(cfg: &ModelConfig, tokens: usize, budget: usize) -> usize {
    fitting(cfg, tokens, budget).len()
}

/// Saved activations of the layers of a model.
#[derive(Default)]
pub(crate) struct SavedActivations {
    /// Of the last layer but one, of that below it, and so on.
    kept: Vec<SavedLayer>,
    layers: usize,
}

impl SavedActivations {
    /// Makes room for as many layers of a batch of `tokens` as fit into `budget` bytes.
    pub(crate) fn prepare(&mut self, cfg: &ModelConfig, tokens: usize, budget: usize) {
        self.layers = cfg.layers;
        let fit = fitting(cfg, tokens, budget);
        // Room that is there already is used again where all of it stays within the budget.
        self.kept.truncate(fit.len());
        self.kept.truncate(
            self.kept
                .iter()
                .take_while(|k| k.size.tokens >= tokens)
                .count(),
        );
        let held = self
            .kept
            .iter()
            .map(|kept| kept.size.bytes())
            .sum::<usize>();
        let more = fit[self.kept.len()..]
            .iter()
            .map(Size::bytes)
            .sum::<usize>();
        if held + more > budget {
            self.kept.clear();
        }
        let first = self.kept.len();
        self.kept
            .extend(fit[first..].iter().copied().map(SavedLayer::new));
    }

    /// Whether the backward pass finds this layer's results.
    pub(crate) fn has(&self, layer: usize) -> bool {
        self.layers - layer - 1 <= self.kept.len()
    }

    /// Layers whose results the backward pass finds.
    pub(crate) fn count(&self) -> usize {
        self.layers.min(self.kept.len() + 1)
    }

    /// Changes places with the results of `layer` in `acts`, where it has a place of its own.
    pub(crate) fn exchange(&mut self, layer: usize, acts: &mut Acts) -> bool {
        let place = (self.layers - layer).checked_sub(2);
        let kept = place.and_then(|place| self.kept.get_mut(place));
        kept.map(|kept| kept.exchange(acts)).is_some()
    }

    /// Bytes held.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.kept.iter().map(SavedLayer::bytes).sum()
    }
}
