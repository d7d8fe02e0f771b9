//! Low-rank adapters (LoRA, Hu et al. 2021) in the form that is served: `y += scale (x A^T) B^T`.

use sha2::{Digest, Sha256};

use crate::config::ModelConfig;
use crate::device::Placed;
use crate::panels::Panels;
use crate::rng::Rng;
use crate::source::{NamedTensor, TensorData};
use crate::weights::{Digest32, hash_tensor};

/// A projection an adapter can act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    Q,
    K,
    V,
    O,
    Gate,
    Up,
    Down,
}

impl Target {
    /// Every target, in canonical order.
    pub const ALL: [Self; 7] = [
        Self::Q,
        Self::K,
        Self::V,
        Self::O,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// Those of the attention.
    pub const ATTENTION: [Self; 4] = [Self::Q, Self::K, Self::V, Self::O];

    /// The module's name, as in PEFT's `target_modules`.
    pub fn module(self) -> &'static str {
        match self {
            Self::Q => "q_proj",
            Self::K => "k_proj",
            Self::V => "v_proj",
            Self::O => "o_proj",
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }

    /// The target of that module name.
    pub fn from_module(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.module() == name)
    }

    /// PEFT name of matrix `A` or `B` (`part`) of this target in layer `layer`.
    pub fn tensor_name(self, layer: usize, part: char) -> String {
        let block = match self {
            Self::Q | Self::K | Self::V | Self::O => "self_attn",
            Self::Gate | Self::Up | Self::Down => "mlp",
        };
        let module = self.module();
        format!("base_model.model.model.layers.{layer}.{block}.{module}.lora_{part}.weight")
    }

    /// `(out, in)` of the projection.
    pub fn shape(self, cfg: &ModelConfig) -> (usize, usize) {
        let q = cfg.heads * cfg.head_dim;
        let kv = cfg.kv_heads * cfg.head_dim;
        match self {
            Self::Q => (q, cfg.hidden),
            Self::K | Self::V => (kv, cfg.hidden),
            Self::O => (cfg.hidden, q),
            Self::Gate | Self::Up => (cfg.ffn, cfg.hidden),
            Self::Down => (cfg.hidden, cfg.ffn),
        }
    }
}

/// Stored precision of a served adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterDtype {
    F32,
    Bf16,
}

/// What an adapter is, apart from its values.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    pub rank: usize,
    pub alpha: f32,
    /// Projections it acts on, the same in every layer.
    pub targets: Vec<Target>,
    /// Scale by `alpha / sqrt(rank)` instead of `alpha / rank` (Kalajdzievski 2023).
    pub rslora: bool,
    pub dtype: AdapterDtype,
}

impl LoraConfig {
    /// The factor on the low-rank product.
    pub fn scale(&self) -> f32 {
        let rank = self.rank as f32;
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }

    /// That every target is a projection that adapters of such a model act on: where layers have
    /// experts, attention only.
    ///
    /// # Errors
    /// The first target that is not.
    pub fn check(&self, cfg: &ModelConfig) -> Result<(), AdapterError> {
        let of_mlp = |t: &&Target| !Target::ATTENTION.contains(t);
        match self.targets.iter().find(of_mlp) {
            Some(target) if cfg.experts.is_some() => Err(AdapterError::Experts(target.module())),
            _ => Ok(()),
        }
    }

    /// Targets without repeats, in canonical order.
    pub(crate) fn canonical(mut self) -> Self {
        self.targets.sort_unstable();
        self.targets.dedup();
        self
    }
}

/// Why tensors do not form an adapter of a model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AdapterError {
    #[error("the adapter has rank 0 or no targets; it would change nothing")]
    Empty,
    #[error("the adapter's alpha is {0}; it must be a finite number")]
    BadAlpha(f32),
    #[error("the adapter lacks tensor {0}; every target needs A and B in every layer")]
    Missing(String),
    #[error("the adapter holds tensor {0}, which its configuration does not call for")]
    Unexpected(String),
    #[error("adapter tensor {name} has shape {found:?}; this model needs {wanted:?}")]
    WrongShape {
        name: String,
        found: Vec<usize>,
        wanted: Vec<usize>,
    },
    #[error(
        "the adapter acts on {0}; adapters of a model with experts act on q_proj, k_proj, v_proj \
         and o_proj only"
    )]
    Experts(&'static str),
    #[error("adapter tensor {0} holds a NaN or infinite value")]
    NonFinite(String),
}

/// `A [rank, in]` and `B [out, rank]` of one projection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pair {
    pub(crate) a: Panels,
    pub(crate) b: Panels,
}

/// An adapter as served: values rounded to `config.dtype`.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    pub config: LoraConfig,
    pub(crate) layers: Vec<[Option<Pair>; 7]>,
    /// Its copy on a device, where one serves.
    pub(crate) placed: Placed,
}

impl Adapter {
    /// Builds from tensors under their PEFT names; values are rounded to `lora.dtype`.
    pub fn from_tensors(
        cfg: &ModelConfig,
        lora: LoraConfig,
        tensors: Vec<NamedTensor>,
    ) -> Result<Self, AdapterError> {
        let lora = lora.canonical();
        if lora.rank == 0 || lora.targets.is_empty() {
            return Err(AdapterError::Empty);
        }
        if !lora.alpha.is_finite() {
            return Err(AdapterError::BadAlpha(lora.alpha));
        }
        lora.check(cfg)?;
        let mut by_name = std::collections::HashMap::new();
        for tensor in tensors {
            by_name.insert(tensor.name.clone(), tensor);
        }
        let mut take = |name: String, wanted: [usize; 2]| {
            let Some(tensor) = by_name.remove(&name) else {
                return Err(AdapterError::Missing(name));
            };
            if tensor.shape != wanted || tensor.data.len() != wanted[0] * wanted[1] {
                let (found, wanted) = (tensor.shape, wanted.to_vec());
                return Err(AdapterError::WrongShape {
                    name,
                    found,
                    wanted,
                });
            }
            if tensor.data.iter().any(|v| !v.is_finite()) {
                return Err(AdapterError::NonFinite(name));
            }
            Ok(Panels::from_parts(
                wanted[1],
                vec![TensorData::F32(tensor.data)],
            ))
        };
        let mut layers = Vec::with_capacity(cfg.layers);
        for layer in 0..cfg.layers {
            let mut pairs = [const { None }; 7];
            for &target in &lora.targets {
                let (out, inp) = target.shape(cfg);
                let a = take(target.tensor_name(layer, 'A'), [lora.rank, inp])?;
                let b = take(target.tensor_name(layer, 'B'), [out, lora.rank])?;
                pairs[target as usize] = Some(Pair { a, b });
            }
            layers.push(pairs);
        }
        if let Some(name) = by_name.into_keys().min() {
            return Err(AdapterError::Unexpected(name));
        }
        Ok(Self {
            config: lora,
            layers,
            placed: Placed::default(),
        }
        .served())
    }

    /// Every tensor under its PEFT name, row-major.
    pub fn to_tensors(&self) -> Vec<NamedTensor> {
        let mut tensors = Vec::new();
        for (layer, pairs) in self.layers.iter().enumerate() {
            for target in Target::ALL {
                let Some(pair) = &pairs[target as usize] else {
                    continue;
                };
                for (part, panels) in [('A', &pair.a), ('B', &pair.b)] {
                    tensors.push(NamedTensor {
                        name: target.tensor_name(layer, part),
                        shape: vec![panels.out, panels.inp],
                        data: panels.to_rows(0..panels.out),
                    });
                }
            }
        }
        tensors
    }

    /// An adapter that changes nothing.
    pub fn zero(cfg: &ModelConfig, lora: LoraConfig) -> Self {
        Self::masters(cfg, lora, &mut |_, _| 0.0).served()
    }

    /// A random adapter that changes every target (`A` and `B` non-zero), for tests and
    /// measurements.
    pub fn random(cfg: &ModelConfig, lora: LoraConfig, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self::masters(cfg, lora, &mut |_, inp| {
            (rng.normal() * 0.5 / (inp as f64).sqrt()) as f32
        })
        .served()
    }

    /// A fresh trainable adapter in f32: `A` uniform in `+-1 / sqrt(in)` (PEFT's default), `B` 0.
    pub(crate) fn fresh(cfg: &ModelConfig, lora: LoraConfig, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self::masters(cfg, lora, &mut |part, inp| {
            let u = (rng.uniform() * 2.0 - 1.0) / (inp as f64).sqrt();
            if part == 'A' { u as f32 } else { 0.0 }
        })
    }

    /// f32 values drawn by `draw(part, in)`.
    fn masters(
        cfg: &ModelConfig,
        lora: LoraConfig,
        draw: &mut dyn FnMut(char, usize) -> f32,
    ) -> Self {
        let lora = lora.canonical();
        let mut matrix = |part, out: usize, inp: usize| {
            let data = (0..out * inp).map(|_| draw(part, inp)).collect();
            Panels::from_parts(inp, vec![TensorData::F32(data)])
        };
        let layers = (0..cfg.layers)
            .map(|_| {
                let mut pairs = [const { None }; 7];
                for &target in &lora.targets {
                    let (out, inp) = target.shape(cfg);
                    let a = matrix('A', lora.rank, inp);
                    let b = matrix('B', out, lora.rank);
                    pairs[target as usize] = Some(Pair { a, b });
                }
                pairs
            })
            .collect();
        Self {
            config: lora,
            layers,
            placed: Placed::default(),
        }
    }

    fn map(&self, f: impl Fn(&Panels) -> Panels) -> Self {
        let pair = |p: &Pair| Pair {
            a: f(&p.a),
            b: f(&p.b),
        };
        Self {
            config: self.config.clone(),
            layers: self
                .layers
                .iter()
                .map(|pairs| std::array::from_fn(|i| pairs[i].as_ref().map(pair)))
                .collect(),
            placed: Placed::default(),
        }
    }

    /// Rounded to the served precision.
    pub(crate) fn served(&self) -> Self {
        match self.config.dtype {
            AdapterDtype::F32 => self.map(Panels::widened),
            AdapterDtype::Bf16 => self.map(Panels::rounded),
        }
    }

    /// The same values in f32, to be trained.
    pub(crate) fn widened(&self) -> Self {
        self.map(Panels::widened)
    }

    pub(crate) fn pair(&self, layer: usize, target: Target) -> Option<&Pair> {
        self.layers[layer][target as usize].as_ref()
    }

    /// Layers it was made for.
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// SHA-256 over configuration and tensors as served.
    pub fn digest(&self) -> Digest32 {
        let mut hash = Sha256::new();
        let lora = &self.config;
        let targets: Vec<&str> = lora.targets.iter().map(|t| t.module()).collect();
        hash.update(format!(
            "lora;rank={};alpha={:08x};rslora={};dtype={:?};targets={}",
            lora.rank,
            lora.alpha.to_bits(),
            lora.rslora,
            lora.dtype,
            targets.join(",")
        ));
        for tensor in self.to_tensors() {
            hash_tensor(&mut hash, &tensor.name, &tensor.shape, &tensor.data);
        }
        hash.finalize().into()
    }

    /// Bytes its matrices hold.
    pub fn bytes(&self) -> usize {
        let pairs = self.layers.iter().flatten().flatten();
        pairs.map(|p| p.a.bytes() + p.b.bytes()).sum()
    }

    /// Every trained array in a fixed order; weight decay applies to all.
    pub(crate) fn arrays_mut(&mut self) -> Vec<(&mut [f32], bool)> {
        let pairs = self.layers.iter_mut().flatten().flatten();
        pairs
            .flat_map(|p| [(p.a.values_mut(), true), (p.b.values_mut(), true)])
            .collect()
    }
}
