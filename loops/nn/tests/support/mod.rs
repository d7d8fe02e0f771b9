//! Small models of every family and a slow forward in f64, for tests.
//!
//! Included by path in the tests of `hone-nn` and of the crates that compute with it.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;

use hone_checkpoint::config::{ExpertsConfig, Family, ModelConfig, RopeScaling, StoredDtype};
use hone_checkpoint::{AdapterConfig, AdapterDtype, DenseConfig, LoraConfig, NamedTensor, Target};
use hone_kernels::rng::Rng;
use hone_kernels::thread_pool::Executor;
use hone_nn::{
    Adapter, BLOCK_TOKENS, Control, KvPool, Learner, LearnerConfig, LogitsWanted, LossKind, Model,
    Objective, Scratch, SeqInput, TokenLoss, TrainRow, Trainable, Weights, forward,
};

/// A tiny model shape. No size is a multiple of sixteen, so every tail is exercised; one layer
/// has a sliding window.
pub(crate) fn tiny(family: Family) -> ModelConfig {
    if family == Family::Qwen3Moe {
        return with_experts(true);
    }
    ModelConfig {
        family,
        vocab: 53,
        hidden: 28,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 10,
        ffn: 41,
        max_positions: 256,
        rms_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: (family == Family::Llama).then_some(RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 64,
        }),
        tied: family == Family::Qwen3,
        qkv_bias: family == Family::Qwen2,
        o_bias: family == Family::Llama,
        mlp_bias: family == Family::Llama,
        qk_norm: family == Family::Qwen3,
        windows: vec![None, Some(21)],
        experts: None,
        dtype: StoredDtype::F32,
    }
}

/// A tiny model with experts, of whose three layers the middle one is dense.
pub(crate) fn with_experts(normalised: bool) -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3Moe,
        layers: 3,
        tied: false,
        qk_norm: true,
        windows: vec![None, Some(21), None],
        experts: Some(ExpertsConfig {
            count: 7,
            chosen: 3,
            ffn: 19,
            normalised,
            layers: vec![true, false, true],
        }),
        ..tiny(Family::Qwen3)
    }
}

pub(crate) const FAMILIES: [Family; 4] = Family::ALL;

/// A random model whose norms and biases are random too.
pub(crate) fn model(cfg: &ModelConfig, seed: u64) -> Model {
    let mut weights = Weights::random(cfg, seed);
    let mut rng = Rng::new(seed);
    for (array, matrix) in weights.arrays_mut() {
        if !matrix {
            array
                .iter_mut()
                .for_each(|v| *v += (rng.normal() * 0.2) as f32);
        }
    }
    // A livelier embedding, so that logits differ enough to matter.
    weights.arrays_mut()[0]
        .0
        .iter_mut()
        .for_each(|v| *v *= 20.0);
    Model::new(cfg.clone(), weights)
}

/// An adapter on every projection that adapters of such a model act on.
pub(crate) fn lora_of(cfg: &ModelConfig, dtype: AdapterDtype) -> LoraConfig {
    let mut lora = lora(dtype);
    if cfg.experts.is_some() {
        lora.targets = Target::ATTENTION.to_vec();
    }
    lora
}

/// An adapter of low rank and a dense change, each on every projection that adapters of such a
/// model act on.
pub(crate) fn forms_of(cfg: &ModelConfig, dtype: AdapterDtype) -> [AdapterConfig; 2] {
    let lora = lora_of(cfg, dtype);
    let targets = lora.targets.clone();
    [lora.into(), DenseConfig { targets, dtype }.into()]
}

pub(crate) fn dense(dtype: AdapterDtype) -> DenseConfig {
    let targets = Target::ALL.to_vec();
    DenseConfig { targets, dtype }
}

pub(crate) fn lora(dtype: AdapterDtype) -> LoraConfig {
    LoraConfig {
        rank: 3,
        alpha: 6.0,
        targets: Target::ALL.to_vec(),
        rslora: false,
        dtype,
    }
}

pub(crate) fn tokens(cfg: &ModelConfig, count: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..count)
        .map(|_| (rng.next_u64() % cfg.vocab as u64) as u32)
        .collect()
}

/// A transformer as the papers write it, in f64, with no cache and no tricks.
pub(crate) struct Oracle {
    cfg: ModelConfig,
    pub(crate) tensors: HashMap<String, Vec<f64>>,
    /// Experts to use, per token, as `TokenLoss::experts` of what it predicts.
    pub(crate) recorded: Vec<Option<Vec<u16>>>,
    scale: f64,
}

impl Oracle {
    pub(crate) fn new(model: &Model, adapter: Option<&Adapter>) -> Self {
        let mut named = model.weights.to_tensors(&model.config);
        named.extend(adapter.map(Adapter::to_tensors).unwrap_or_default());
        let wide = |t: NamedTensor| (t.name, t.data.into_iter().map(f64::from).collect());
        Self {
            cfg: model.config.clone(),
            tensors: named.into_iter().map(wide).collect(),
            recorded: Vec::new(),
            scale: adapter.map_or(0.0, |a| f64::from(a.config.scale())),
        }
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let w = &self.tensors[name];
        w.chunks(x.len())
            .map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum())
            .collect()
    }

    fn linear(&self, layer: usize, module: &str, x: &[f64]) -> Vec<f64> {
        let name = format!("model.layers.{layer}.{module}");
        let mut y = self.product(&format!("{name}.weight"), x);
        if let Some(bias) = self.tensors.get(&format!("{name}.bias")) {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
        let path = format!("base_model.model.{name}");
        let [a, b, d] = ["lora_A", "lora_B", "delta"].map(|part| format!("{path}.{part}.weight"));
        let delta = if self.tensors.contains_key(&a) {
            self.product(&b, &self.product(&a, x))
        } else if self.tensors.contains_key(&d) {
            self.product(&d, x)
        } else {
            return y;
        };
        y.iter_mut()
            .zip(delta)
            .for_each(|(y, d)| *y += self.scale * d);
        y
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let w = &self.tensors[name];
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let inverse = 1.0 / (mean + f64::from(self.cfg.rms_eps)).sqrt();
        x.iter().zip(w).map(|(v, w)| v * inverse * w).collect()
    }

    fn frequency(&self, i: usize) -> f64 {
        let f = f64::from(self.cfg.rope_theta).powf(-2.0 * i as f64 / self.cfg.head_dim as f64);
        let Some(RopeScaling::Llama3 { .. }) = self.cfg.rope_scaling else {
            return f;
        };
        let wavelength = 2.0 * std::f64::consts::PI / f;
        let smooth = ((64.0 / wavelength - 1.0) / 3.0).clamp(0.0, 1.0);
        f * ((1.0 - smooth) / 8.0 + smooth)
    }

    fn heads(&self, layer: usize, name: &str, raw: &[f64], position: usize) -> Vec<Vec<f64>> {
        let dim = self.cfg.head_dim;
        let head = |x: &[f64]| {
            let weight = format!("model.layers.{layer}.self_attn.{name}.weight");
            let x = if self.cfg.qk_norm {
                self.norm(&weight, x)
            } else {
                x.to_vec()
            };
            let half = dim / 2;
            let turn = |i: usize| {
                let (sin, cos) = (position as f64 * self.frequency(i % half)).sin_cos();
                if i < half {
                    x[i] * cos - x[i + half] * sin
                } else {
                    x[i] * cos + x[i - half] * sin
                }
            };
            (0..dim).map(turn).collect()
        };
        raw.chunks(dim).map(head).collect()
    }

    fn attention(&self, layer: usize, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (dim, group) = (self.cfg.head_dim, self.cfg.heads / self.cfg.kv_heads);
        let project = |module: &str| -> Vec<Vec<f64>> {
            normed
                .iter()
                .map(|x| self.linear(layer, module, x))
                .collect()
        };
        let turn = |rows: Vec<Vec<f64>>, norm: &str| -> Vec<Vec<Vec<f64>>> {
            let rows = rows.iter().enumerate();
            rows.map(|(t, row)| self.heads(layer, norm, row, t))
                .collect()
        };
        let q = turn(project("self_attn.q_proj"), "q_norm");
        let k = turn(project("self_attn.k_proj"), "k_norm");
        let v = project("self_attn.v_proj");
        let window = self.cfg.windows[layer].unwrap_or(usize::MAX);
        let row = |t: usize| {
            let mut out = Vec::new();
            for h in 0..self.cfg.heads {
                let from = (t + 1).saturating_sub(window);
                let dot = |j: usize| -> f64 {
                    let pairs = q[t][h].iter().zip(&k[j][h / group]);
                    pairs.map(|(a, b)| a * b).sum::<f64>() / (dim as f64).sqrt()
                };
                let scores: Vec<f64> = (from..=t).map(dot).collect();
                let most = scores.iter().copied().fold(f64::MIN, f64::max);
                let e: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let sum: f64 = e.iter().sum();
                for d in 0..dim {
                    let column = h / group * dim + d;
                    out.push(
                        (from..=t)
                            .zip(&e)
                            .map(|(j, e)| e / sum * v[j][column])
                            .sum(),
                    );
                }
            }
            self.linear(layer, "self_attn.o_proj", &out)
        };
        (0..normed.len()).map(row).collect()
    }

    fn mlp(&self, layer: usize, (token, x): (usize, &[f64])) -> Vec<f64> {
        match &self.cfg.experts {
            Some(experts) if experts.layers[layer] => {
                let first = experts.before(layer) * experts.chosen;
                let recorded = self.recorded.get(token).and_then(Option::as_ref);
                let recorded = recorded.map(|ids| &ids[first..first + experts.chosen]);
                self.experts(layer, (experts, recorded), x)
            }
            _ => self.gated(layer, "mlp", x),
        }
    }

    fn experts(
        &self,
        layer: usize,
        (cfg, recorded): (&ExpertsConfig, Option<&[u16]>),
        x: &[f64],
    ) -> Vec<f64> {
        let scores = self.linear(layer, "mlp.gate", x);
        let mut ids: Vec<usize> = (0..cfg.count).collect();
        ids.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
        let chosen: Vec<usize> = match recorded {
            Some(recorded) => recorded.iter().map(|id| usize::from(*id)).collect(),
            None => ids[..cfg.chosen].to_vec(),
        };
        let e = |id: &usize| scores[*id].exp();
        let all: f64 = if cfg.normalised {
            chosen.iter().map(e).sum()
        } else {
            ids.iter().map(e).sum()
        };
        let mut y = vec![0.0; x.len()];
        for id in &chosen {
            let said = self.gated(layer, &format!("mlp.experts.{id}"), x);
            let weight = e(id) / all;
            y.iter_mut().zip(said).for_each(|(y, s)| *y += weight * s);
        }
        y
    }

    fn gated(&self, layer: usize, module: &str, x: &[f64]) -> Vec<f64> {
        let gate = self.linear(layer, &format!("{module}.gate_proj"), x);
        let up = self.linear(layer, &format!("{module}.up_proj"), x);
        let act: Vec<f64> = gate
            .iter()
            .zip(up)
            .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
            .collect();
        self.linear(layer, &format!("{module}.down_proj"), &act)
    }

    /// Logits after every token.
    pub(crate) fn logits(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let embed = &self.tensors["model.embed_tokens.weight"];
        let hidden = self.cfg.hidden;
        let lookup = |&id: &u32| embed[id as usize * hidden..][..hidden].to_vec();
        let mut x: Vec<Vec<f64>> = tokens.iter().map(lookup).collect();
        let plus = |x: &mut [Vec<f64>], more: Vec<Vec<f64>>| {
            for (x, more) in x.iter_mut().zip(more) {
                x.iter_mut().zip(more).for_each(|(x, m)| *x += m);
            }
        };
        for layer in 0..self.cfg.layers {
            let name = |n: &str| format!("model.layers.{layer}.{n}.weight");
            let normed: Vec<_> = x
                .iter()
                .map(|x| self.norm(&name("input_layernorm"), x))
                .collect();
            let attention = self.attention(layer, &normed);
            plus(&mut x, attention);
            let normed = x
                .iter()
                .map(|x| self.norm(&name("post_attention_layernorm"), x));
            let mlp = normed.enumerate();
            let mlp = mlp.map(|(t, x)| self.mlp(layer, (t, &x))).collect();
            plus(&mut x, mlp);
        }
        let head = if self.cfg.tied {
            "model.embed_tokens.weight"
        } else {
            "lm_head.weight"
        };
        let last = |x: &Vec<f64>| self.product(head, &self.norm("model.norm.weight", x));
        x.iter().map(last).collect()
    }
}

pub(crate) const PPO: Objective = Objective::DecoupledPpo {
    clip_low: 0.2,
    clip_high: 0.28,
    correction_cap: 2.0,
};

pub(crate) fn go_on() -> Control {
    Control::Continue
}

/// A sampled token of advantage 1.
pub(crate) fn policy(position: usize) -> TokenLoss {
    TokenLoss {
        kind: LossKind::Policy,
        ..TokenLoss::imitated(position)
    }
}

/// Rows of different lengths with scattered loss tokens, some sampled from truncated
/// distributions.
pub(crate) fn rows(cfg: &ModelConfig, seed: u64) -> Vec<TrainRow> {
    let mut rng = Rng::new(seed);
    let lengths = [40, 9, 26];
    lengths
        .iter()
        .map(|&length| {
            let tokens = tokens(cfg, length, rng.next_u64());
            let mut loss = Vec::new();
            for position in 1..length {
                if rng.uniform() < 0.5 && position > 1 {
                    continue;
                }
                let kept = (rng.uniform() < 0.3).then(|| {
                    let others = (0..cfg.vocab as u32).filter(|_| rng.uniform() < 0.4);
                    let mut kept: Vec<u32> = others.chain([tokens[position]]).collect();
                    kept.sort_unstable();
                    kept.dedup();
                    kept.into()
                });
                loss.push(TokenLoss {
                    position,
                    advantage: rng.normal() as f32,
                    behavior_logprob: -3.0 + rng.normal() as f32,
                    temperature: [1.0, 0.7, 1.3][position % 3],
                    kept,
                    ..policy(position)
                });
            }
            TrainRow { tokens, loss }
        })
        .collect()
}

pub(crate) fn config(trainable: Trainable, objective: Objective) -> LearnerConfig {
    LearnerConfig {
        minibatch_tokens: 50,
        ..LearnerConfig::new(trainable, objective, 1e-2)
    }
}

pub(crate) fn learner(model: &Arc<Model>, cfg: LearnerConfig) -> Learner {
    let [low_rank, dense] = forms_of(&model.config, AdapterDtype::F32);
    let form = match cfg.trainable {
        Trainable::Full => return Learner::new(Arc::clone(model), cfg).unwrap(),
        Trainable::Lora(_) => low_rank,
        Trainable::Dense(_) => dense,
    };
    let adapter = Adapter::random(&model.config, form, 3);
    Learner::from_adapter(Arc::clone(model), cfg, &adapter).unwrap()
}

/// The experts that each token of a text uses.
fn used(model: &Model, adapter: &Adapter, tokens: &[u32]) -> Vec<Vec<u16>> {
    let count = tokens.len().div_ceil(BLOCK_TOKENS);
    let blocks: Vec<u32> = (0..count as u32).collect();
    let mut kv = KvPool::new(model, count);
    let mut scratch = Scratch::default();
    let seq = SeqInput {
        tokens,
        start: 0,
        blocks: &blocks,
        adapter: Some(adapter),
        logits: LogitsWanted::All,
    };
    let logits = forward(model, &mut kv, &[seq], &Executor::new(1), &mut scratch);
    (0..tokens.len())
        .map(|row| logits.experts(row).to_vec())
        .collect()
}

/// The rows with the experts that were used where their tokens were predicted.
pub(crate) fn recorded(model: &Model, adapter: &Adapter, rows: &[TrainRow]) -> Vec<TrainRow> {
    let mut rows = rows.to_vec();
    for row in &mut rows {
        let used = used(model, adapter, &row.tokens);
        for loss in &mut row.loss {
            loss.experts = Some(used[loss.position - 1].clone());
        }
    }
    rows
}

pub(crate) fn bits(logprobs: &[Vec<f32>]) -> Vec<Vec<u32>> {
    let row = |row: &Vec<f32>| row.iter().map(|x| x.to_bits()).collect();
    logprobs.iter().map(row).collect()
}
