//! Layers of which every token uses a few experts, as Qwen3-MoE has them.
//!
//! Rows are grouped by expert, so that an expert's weights are read once for the whole batch. What
//! the experts of a token say is added up in the order of their ids, and equal scores go to the
//! lower id, so a row's bits depend on the row alone.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::pass::Pass;
use crate::weights::Experts;
use hone_checkpoint::config::ExpertsConfig;
use hone_kernels::cpu::{Buf, padded};
use hone_kernels::matrix::{Rows, RowsMut, Store};
use hone_kernels::ops::{GluShape, exp_row, swiglu, weighted_sum};
use hone_kernels::thread_pool::{Executor, Shards};

/// Intermediate results of a layer with experts; a pair is a token with one of its experts.
#[derive(Default)]
pub(crate) struct Mixture {
    /// Scores of all experts `[tokens][experts]`, or their shares where those are the weights.
    pub scores: Buf,
    pub route: Route,
    /// Inputs, grouped by expert `[pairs][hidden]`.
    x: Buf,
    /// `[pairs][2 ffn]`, `[pairs][ffn]`.
    pub gate_up: Buf,
    act: Buf,
    /// What each expert says, before its weight `[pairs][hidden]`.
    pub out: Buf,
}

/// Which experts the tokens of a pass use.
#[derive(Default)]
pub struct Route {
    /// Of every token, ascending `[tokens][chosen]`.
    pub ids: Vec<u16>,
    /// What each counts `[tokens][chosen]`.
    pub weights: Vec<f32>,
    /// Row of each among the pairs grouped by expert `[tokens][chosen]`.
    pub rows: Vec<u32>,
    /// The way back: per grouped row, `token * chosen + place`.
    pub pairs: Vec<u32>,
    /// Per expert, where its rows end.
    ends: Vec<usize>,
    /// Experts with any row, ascending.
    used: Vec<u16>,
}

impl Route {
    /// Room for so many pairs among `experts`.
    pub fn with_room(pairs: usize, experts: usize) -> Self {
        Self {
            ids: Vec::with_capacity(pairs),
            weights: Vec::with_capacity(pairs),
            rows: Vec::with_capacity(pairs),
            pairs: Vec::with_capacity(pairs),
            ends: Vec::with_capacity(experts),
            used: Vec::with_capacity(experts),
        }
    }

    /// Bytes of [`Self::with_room`].
    pub fn bytes_of(pairs: usize, experts: usize) -> usize {
        let pair = size_of::<u16>() + size_of::<f32>() + 2 * size_of::<u32>();
        pairs * pair + experts * (size_of::<usize>() + size_of::<u16>())
    }

    /// Memory it holds.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        let ids = self.ids.capacity() + self.used.capacity();
        let rows = self.rows.capacity() + self.pairs.capacity();
        ids * size_of::<u16>()
            + self.weights.capacity() * size_of::<f32>()
            + rows * size_of::<u32>()
            + self.ends.capacity() * size_of::<usize>()
    }

    /// Chooses for every row of `scores [tokens][experts]`, except where `recorded` says the ids.
    /// Leaves shares in `scores` where the weights are not normalised.
    pub fn choose<'r>(
        &mut self,
        cfg: &ExpertsConfig,
        scores: &mut [f32],
        stride: usize,
        recorded: impl Fn(usize) -> Option<&'r [u16]>,
    ) {
        self.ids.clear();
        self.weights.clear();
        for (row, scores) in scores.chunks_exact_mut(stride).enumerate() {
            let scores = &mut scores[..cfg.count];
            let from = self.ids.len();
            match recorded(row) {
                Some(ids) => self.ids.extend_from_slice(ids),
                None => best(scores, cfg.chosen, &mut self.ids),
            }
            let ids = &self.ids[from..];
            assert_eq!(ids.len(), cfg.chosen, "one id per chosen expert");
            if !cfg.normalised {
                shares(scores);
            }
            self.weights
                .extend(ids.iter().map(|id| scores[usize::from(*id)]));
            if cfg.normalised {
                shares(&mut self.weights[from..]);
            }
        }
    }

    /// Groups the pairs by expert, tokens ascending.
    pub fn group(&mut self, experts: usize) {
        self.ends.clear();
        self.ends.resize(experts, 0);
        for id in &self.ids {
            self.ends[usize::from(*id)] += 1;
        }
        let mut next = 0;
        self.used.clear();
        for (expert, end) in self.ends.iter_mut().enumerate() {
            if *end > 0 {
                self.used.push(expert as u16);
            }
            // For now the first free row; after the loop below the end.
            (next, *end) = (next + *end, next);
        }
        self.rows.clear();
        self.pairs.resize(self.ids.len(), 0);
        for (pair, id) in self.ids.iter().enumerate() {
            let row = &mut self.ends[usize::from(*id)];
            self.rows.push(*row as u32);
            self.pairs[*row] = pair as u32;
            *row += 1;
        }
    }

    /// Grouped rows of an expert.
    fn of(&self, expert: usize) -> Range<usize> {
        let start = expert.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[expert]
    }

    /// Every expert in use with its grouped rows.
    pub fn rows_by_expert(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let experts = self.used.iter().map(|expert| usize::from(*expert));
        experts.map(|expert| (expert, self.of(expert)))
    }

    /// Calls `each` for every expert in use with its rows: side by side where there is enough to
    /// do for all threads, else one after the other with all threads inside.
    pub fn each_expert(
        &self,
        exec: &Executor,
        work: usize,
        each: &(dyn Fn(usize, Range<usize>) + Sync),
    ) {
        let one = |at: usize| {
            let expert = usize::from(self.used[at]);
            each(expert, self.of(expert));
        };
        if exec.parts(work) > 1 && self.used.len() >= 2 * exec.threads() {
            exec.run(self.used.len(), &one);
        } else {
            (0..self.used.len()).for_each(one);
        }
    }
}

/// Adds the ids of the `count` highest scores to `ids`, ascending; the lower id among equals.
fn best(scores: &[f32], count: usize, ids: &mut Vec<u16>) {
    let from = ids.len();
    let above = |a: u16, b: u16| scores[usize::from(a)] > scores[usize::from(b)];
    for id in 0..scores.len() as u16 {
        let place = ids[from..].iter().position(|before| above(id, *before));
        if let Some(place) = place {
            ids.insert(from + place, id);
        } else if ids.len() < from + count {
            ids.push(id);
        }
        ids.truncate(from + count);
    }
    ids[from..].sort_unstable();
}

/// Softmax in place.
fn shares(values: &mut [f32]) {
    let most = values.iter().copied().fold(f32::MIN, f32::max);
    values.iter_mut().for_each(|v| *v -= most);
    exp_row(values);
    let sum: f32 = values.iter().sum();
    values.iter_mut().for_each(|v| *v /= sum);
}

impl Pass<'_> {
    /// Experts of the model, where a layer has them.
    pub(crate) fn experts_config(&self) -> &ExpertsConfig {
        let experts = self.cfg.experts.as_ref();
        experts.expect("a layer with experts is of a model with experts")
    }

    /// Ids recorded for a row in layer `layer`.
    fn recorded(&self, layer: usize, row: usize) -> Option<&[u16]> {
        let cfg = self.experts_config();
        let ids = (*self.recorded.get(row)?)?;
        Some(&ids[cfg.before(layer) * cfg.chosen..][..cfg.chosen])
    }

    /// `y = sum over the experts of a token: weight down(silu(gate) up)`, gate and up of
    /// `h [tokens][hidden]`.
    pub(crate) fn experts(
        &self,
        layer: usize,
        weights: &Experts,
        h: &Buf,
        mix: &mut Mixture,
        y: &mut Buf,
    ) {
        let (cfg, d, n) = (self.experts_config(), self.dims, self.tokens);
        let ld_scores = padded(cfg.count);
        let scores = &mut mix.scores.take(n * ld_scores)[..n * ld_scores];
        let rows = Rows {
            data: h.as_slice(),
            stride: d.ld_hidden,
            rows: n,
        };
        let to = RowsMut {
            data: &mut *scores,
            stride: ld_scores,
        };
        weights.router.linear(rows, to, Store::Set(None), self.exec);
        let recorded = |row| self.recorded(layer, row);
        mix.route.choose(cfg, scores, ld_scores, recorded);
        mix.route.group(cfg.count);
        self.say(weights, h, mix);
        let (route, out) = (&mix.route, mix.out.as_slice());
        let y = &mut y.take(n * d.ld_hidden)[..n * d.ld_hidden];
        let work = n * cfg.chosen * d.hidden;
        hone_kernels::ops::each_row(y, n, d.ld_hidden, self.exec, work, &|row, y| {
            let of_row = row * cfg.chosen..(row + 1) * cfg.chosen;
            let rows = &route.rows[of_row.clone()];
            let weights = &route.weights[of_row];
            weighted_sum(weights, rows, out, d.ld_hidden, &mut y[..d.hidden]);
        });
    }

    /// What every expert says to its tokens.
    fn say(&self, weights: &Experts, h: &Buf, mix: &mut Mixture) {
        let (cfg, ld) = (self.experts_config(), self.dims.ld_hidden);
        let (ld_gate_up, ld_act) = (padded(2 * cfg.ffn), padded(cfg.ffn));
        let pairs = mix.route.ids.len();
        let x = Shards::new(mix.x.take(pairs * ld));
        let gate_up = Shards::new(mix.gate_up.take(pairs * ld_gate_up));
        let act = Shards::new(mix.act.take(pairs * ld_act));
        let out = Shards::new(mix.out.take(pairs * ld));
        let (route, h) = (&mix.route, h.as_slice());
        let work = pairs * 3 * cfg.ffn * self.dims.hidden;
        route.each_expert(self.exec, work, &|expert, rows| {
            let count = rows.len();
            // SAFETY: experts own disjoint rows, all inside the buffers.
            let (x, gate_up, act, out) = unsafe {
                (
                    x.slice(rows.start * ld..rows.end * ld),
                    gate_up.slice(rows.start * ld_gate_up..rows.end * ld_gate_up),
                    act.slice(rows.start * ld_act..rows.end * ld_act),
                    out.slice(rows.start * ld..rows.end * ld),
                )
            };
            for (x, pair) in x.chunks_exact_mut(ld).zip(&route.pairs[rows]) {
                let token = *pair as usize / cfg.chosen;
                x.copy_from_slice(&h[token * ld..(token + 1) * ld]);
            }
            let linear = |w: &hone_kernels::matrix::PackedMatrix,
                          x: (&[f32], usize),
                          y: (&mut [f32], usize)| {
                let rows = Rows {
                    data: x.0,
                    stride: x.1,
                    rows: count,
                };
                let to = RowsMut {
                    data: y.0,
                    stride: y.1,
                };
                w.linear(rows, to, Store::Set(None), self.exec);
            };
            linear(
                &weights.gate_up[expert],
                (x, ld),
                (&mut *gate_up, ld_gate_up),
            );
            let shape = GluShape {
                rows: count,
                ffn: cfg.ffn,
                ld_gate_up,
                ld_act,
            };
            swiglu(shape, gate_up, act, self.exec);
            linear(&weights.down[expert], (act, ld_act), (out, ld));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_scores_are_chosen_and_the_lower_id_among_equals() {
        let check = |scores: &[f32], wanted: &[u16]| {
            let mut ids = vec![99];
            best(scores, wanted.len(), &mut ids);
            assert_eq!(ids[1..], *wanted, "{scores:?}");
        };
        check(&[0.0, 3.0, 1.0, 2.0], &[1, 3]);
        check(&[1.0, 1.0, 1.0, 1.0], &[0, 1]);
        check(&[0.0, 1.0, 2.0, 1.0, 2.0, 2.0], &[2, 4]);
        check(&[-1.0, 1.0, 0.5, 1.0, 0.5], &[1, 2, 3]);
        check(&[f32::NEG_INFINITY; 3], &[0, 1, 2]);
        check(&[f32::NAN, 1.0, f32::NAN, 2.0], &[0, 3]);
    }

    #[test]
    fn pairs_are_grouped_by_expert_with_tokens_ascending() {
        let mut route = Route {
            ids: vec![1, 3, 0, 3, 1, 2],
            ..Route::default()
        };
        route.group(5);
        assert_eq!(route.used, [0, 1, 2, 3]);
        let tokens = |expert| -> Vec<u32> {
            let pairs = &route.pairs[route.of(expert)];
            pairs.iter().map(|pair| pair / 2).collect()
        };
        assert_eq!(tokens(0), [1]);
        assert_eq!(tokens(1), [0, 2]);
        assert_eq!(tokens(2), [2]);
        assert_eq!(tokens(3), [0, 1]);
        assert!(route.of(4).is_empty());
        for (pair, row) in route.rows.iter().enumerate() {
            assert_eq!(route.pairs[*row as usize] as usize, pair);
        }
    }
}
