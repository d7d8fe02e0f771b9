//! A model's weights: loaded or random, in kernel layout, and back to named tensors.

mod linear;
mod mlp;
mod named;

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

pub use self::linear::Linear;
pub use self::mlp::{Experts, Mlp};
use self::mlp::{of_expert, of_router};
use crate::kv_format::KvFormat;
use crate::rope::Rope;
use hone_checkpoint::config::{ExpertsConfig, ModelConfig};
use hone_checkpoint::digest::Digest32;
use hone_checkpoint::{LoadError, TensorSource};
use hone_kernels::cpu::{has_compact, has_quick_bytes};
use hone_kernels::format::TensorData;
use hone_kernels::format::block_quant::WeightFormat;
use hone_kernels::matrix::self_test::quickest_of_pairs;
use hone_kernels::matrix::{ComputeType, PackedMatrix};
use hone_kernels::rng::Rng;

/// Matrices together from which on those of bf16 are kept in less memory.
const COMPACT_FROM_BYTES: usize = 16 << 20;

/// A model ready to run. Shared by serving and training behind an `Arc`.
#[derive(Debug, Clone)]
pub struct Model {
    pub config: ModelConfig,
    pub weights: Weights,
    /// Digest of the weights, see [`Weights::digest`].
    pub digest: Digest32,
    /// How keys and values are kept between tokens.
    pub kv: KvFormat,
}

impl Model {
    /// A model of these weights; computes the digest.
    pub fn new(config: ModelConfig, weights: Weights) -> Self {
        Self::watched(config, weights, &mut |_| {})
    }

    /// The same; `hashed` is told of the digest's progress, see [`Weights::digest_watched`].
    pub fn watched(config: ModelConfig, weights: Weights, hashed: &mut dyn FnMut(u64)) -> Self {
        let digest = weights.digest_watched(&config, hashed);
        Self {
            config,
            weights,
            digest,
            kv: KvFormat::default(),
        }
    }

    /// The same model, whose products are computed by `compute_type`.
    pub fn with_compute_type(self, compute_type: ComputeType) -> Self {
        Self {
            weights: self.weights.with_compute_type(compute_type),
            ..self
        }
    }

    /// The same model, which keeps keys and values as `format`.
    pub fn with_kv(self, kv: KvFormat) -> Self {
        Self { kv, ..self }
    }

    /// A small random model, for tests and measurements.
    pub fn random(config: ModelConfig, seed: u64) -> Self {
        let weights = Weights::random(&config, seed);
        Self::new(config, weights)
    }
}

/// Names the arithmetic of this build on this model: two records with equal fingerprints hold
/// bit-equal log-probs for the same tokens and version. Independent of threads and of the
/// instruction level.
pub fn fingerprint(model: &Model) -> String {
    let formats: BTreeSet<&str> = model.weights.matrices().map(PackedMatrix::format).collect();
    let formats: Vec<&str> = formats.into_iter().collect();
    let kernels = match model.weights.compute_type() {
        ComputeType::F32 => "f32-fma-k1",
        ComputeType::Bf16 => "bf16-dot-k2",
        ComputeType::Amx => "bf16-amx-k32",
        ComputeType::Int8 => "int8-dot-k32",
    };
    let kv = model.kv.as_str();
    format!("cpu-{kernels};w={};kv={kv}", formats.join("+"))
}

/// One transformer layer. Query, key and value rows are stacked in one matrix, gate and up in
/// another; stacking changes no bits.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerWeights {
    pub norm1: Vec<f32>,
    pub qkv: Linear,
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    pub o: Linear,
    pub norm2: Vec<f32>,
    pub mlp: Mlp,
}

/// All weights of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    pub embed: PackedMatrix,
    /// `None` when the head is the embedding.
    pub head: Option<PackedMatrix>,
    pub norm: Vec<f32>,
    pub layers: Vec<LayerWeights>,
    pub rope: Rope,
}

/// One linear layer as it appears in a checkpoint: projections that are stacked here.
struct Stack {
    /// Projection names and output sizes.
    parts: Vec<(&'static str, usize)>,
    inp: usize,
    bias: bool,
}

/// The four stacks of a layer.
fn stacks(cfg: &ModelConfig) -> [Stack; 4] {
    let q = cfg.heads * cfg.head_dim;
    let kv = cfg.kv_heads * cfg.head_dim;
    let attn = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
    [
        Stack {
            parts: attn.into_iter().zip([q, kv, kv]).collect(),
            inp: cfg.hidden,
            bias: cfg.qkv_bias,
        },
        Stack {
            parts: vec![("self_attn.o_proj", cfg.hidden)],
            inp: q,
            bias: cfg.o_bias,
        },
        Stack {
            parts: vec![("mlp.gate_proj", cfg.ffn), ("mlp.up_proj", cfg.ffn)],
            inp: cfg.hidden,
            bias: cfg.mlp_bias,
        },
        Stack {
            parts: vec![("mlp.down_proj", cfg.hidden)],
            inp: cfg.ffn,
            bias: cfg.mlp_bias,
        },
    ]
}

/// Whether matrices of so many bytes that `compute_type` computes are kept in less memory, those of bf16 among them.
pub(crate) fn is_compact(compute_type: ComputeType, bytes: usize) -> bool {
    matches!(compute_type, ComputeType::Bf16 | ComputeType::Amx)
        && has_compact()
        && bytes >= COMPACT_FROM_BYTES
}

/// How matrices are kept from the moment they are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    pub format: WeightFormat,
    /// Those of bf16 in less memory ([`hone_kernels::format::exponent_coded`]).
    pub compact: bool,
}

struct Loader<'a> {
    cfg: &'a ModelConfig,
    src: &'a dyn TensorSource,
    keep: Keep,
}

impl Loader<'_> {
    fn vector(&self, name: &str, n: usize) -> Result<Vec<f32>, LoadError> {
        Ok(self.src.tensor(name, &[n])?.into_f32())
    }

    fn matrix(&self, name: &str, out: usize, inp: usize) -> Result<PackedMatrix, LoadError> {
        let data = self.src.tensor(name, &[out, inp])?;
        Ok(self.kept(inp, vec![data]))
    }

    fn kept(&self, inp: usize, parts: Vec<TensorData>) -> PackedMatrix {
        let panels = PackedMatrix::stacked(inp, parts, self.keep.format);
        match self.keep.compact {
            true => panels.with_compute_type(ComputeType::Bf16).compacted(),
            false => panels,
        }
    }

    fn linear(&self, layer: usize, stack: &Stack) -> Result<Linear, LoadError> {
        let mut parts = Vec::new();
        let mut bias = Vec::new();
        for (name, out) in &stack.parts {
            let name = format!("model.layers.{layer}.{name}");
            parts.push(
                self.src
                    .tensor(&format!("{name}.weight"), &[*out, stack.inp])?,
            );
            if stack.bias {
                bias.extend(self.vector(&format!("{name}.bias"), *out)?);
            }
        }
        Ok(Linear {
            w: self.kept(stack.inp, parts),
            bias: stack.bias.then_some(bias),
        })
    }

    fn layer(&self, index: usize) -> Result<LayerWeights, LoadError> {
        let cfg = self.cfg;
        let [qkv, o, gate_up, down] = stacks(cfg);
        let name = |suffix: &str| format!("model.layers.{index}.{suffix}.weight");
        let head_norm = |suffix: &str| {
            cfg.qk_norm
                .then(|| self.vector(&name(suffix), cfg.head_dim))
                .transpose()
        };
        Ok(LayerWeights {
            norm1: self.vector(&name("input_layernorm"), cfg.hidden)?,
            qkv: self.linear(index, &qkv)?,
            q_norm: head_norm("self_attn.q_norm")?,
            k_norm: head_norm("self_attn.k_norm")?,
            o: self.linear(index, &o)?,
            norm2: self.vector(&name("post_attention_layernorm"), cfg.hidden)?,
            mlp: match &cfg.experts {
                Some(experts) if experts.layers[index] => {
                    Mlp::Sparse(self.experts(index, experts)?)
                }
                _ => Mlp::Dense {
                    gate_up: self.linear(index, &gate_up)?,
                    down: self.linear(index, &down)?,
                },
            },
        })
    }

    fn experts(&self, layer: usize, cfg: &ExpertsConfig) -> Result<Experts, LoadError> {
        let (hidden, ffn) = (self.cfg.hidden, cfg.ffn);
        let name = format!("model.layers.{layer}.mlp.gate.weight");
        let router = self.src.tensor(&name, &[cfg.count, hidden])?;
        let mut experts = Experts {
            router: PackedMatrix::stacked(hidden, vec![router], of_router(self.keep.format)),
            gate_up: Vec::with_capacity(cfg.count),
            down: Vec::with_capacity(cfg.count),
        };
        for expert in 0..cfg.count {
            let [gate, up, down] = of_expert(layer, expert);
            let both = [gate, up].map(|name| self.src.tensor(&name, &[ffn, hidden]));
            let both = both.into_iter().collect::<Result<_, _>>()?;
            experts.gate_up.push(self.kept(hidden, both));
            experts.down.push(self.matrix(&down, hidden, ffn)?);
        }
        Ok(experts)
    }
}

impl Weights {
    /// Reads every tensor the config calls for. bf16 matrices stay bf16.
    pub fn from_source(cfg: &ModelConfig, src: &dyn TensorSource) -> Result<Self, LoadError> {
        Self::from_source_as(cfg, src, Keep::default())
    }

    /// As [`Self::from_source`]; every matrix is kept as `keep` says as soon as it is read, so that
    /// no second copy of the model is ever held.
    pub fn from_source_as(
        cfg: &ModelConfig,
        src: &dyn TensorSource,
        keep: Keep,
    ) -> Result<Self, LoadError> {
        let load = Loader { cfg, src, keep };
        let head = (!cfg.tied)
            .then(|| load.matrix("lm_head.weight", cfg.vocab, cfg.hidden))
            .transpose()?;
        Ok(Self {
            embed: load.matrix("model.embed_tokens.weight", cfg.vocab, cfg.hidden)?,
            head,
            norm: load.vector("model.norm.weight", cfg.hidden)?,
            layers: (0..cfg.layers)
                .map(|index| load.layer(index))
                .collect::<Result<_, _>>()?,
            rope: Rope::new(cfg),
        })
    }

    /// The same weights with every matrix in `format`.
    pub fn into_format(self, format: WeightFormat) -> Self {
        let routers = of_router(format);
        self.map(|w| w.into_format(routers), |w| w.into_format(format))
    }

    /// The same weights, whose products are computed by `compute_type`; those of routers by f32.
    /// Weights of bf16 that are more than caches hold are kept in less memory then, where the processor reads
    /// them so as quickly.
    pub fn with_compute_type(self, compute_type: ComputeType) -> Self {
        let all = self.map(|w| w, |w| w.with_compute_type(compute_type));
        match is_compact(compute_type, all.bytes()) {
            true => all.compacted(),
            false => all,
        }
    }

    /// The same weights; matrices of bf16 that can be are kept in less memory ([`hone_kernels::format::exponent_coded`]).
    pub fn compacted(self) -> Self {
        self.map(|w| w, PackedMatrix::compacted)
    }

    /// Every matrix of experts' routers through `routers`, every other one through `f`.
    fn map(
        self,
        routers: impl Fn(PackedMatrix) -> PackedMatrix,
        f: impl Fn(PackedMatrix) -> PackedMatrix,
    ) -> Self {
        let linear = |l: Linear| Linear {
            w: f(l.w),
            bias: l.bias,
        };
        let layer = |l: LayerWeights| LayerWeights {
            qkv: linear(l.qkv),
            o: linear(l.o),
            mlp: l.mlp.map(&routers, &f),
            ..l
        };
        Self {
            embed: f(self.embed),
            head: self.head.map(&f),
            layers: self.layers.into_iter().map(layer).collect(),
            ..self
        }
    }

    /// Random f32 weights: normal with deviation 0.02 for the embedding and `1 / sqrt(in)` for
    /// matrices (those that write into the residual stream divided by `sqrt(2 layers)`), ones for
    /// norms, zeros for biases.
    pub fn random(cfg: &ModelConfig, seed: u64) -> Self {
        let source = RandomSource {
            layers: cfg.layers,
            seed,
        };
        Self::from_source(cfg, &source).expect("a random source has every tensor")
    }

    pub fn head(&self) -> &PackedMatrix {
        self.head.as_ref().unwrap_or(&self.embed)
    }

    /// The same weights in f32, the form that is trained.
    pub fn widened(&self) -> Self {
        let linear = |l: &Linear| Linear {
            w: l.w.widened(),
            bias: l.bias.clone(),
        };
        Self {
            embed: self.embed.widened(),
            head: self.head.as_ref().map(PackedMatrix::widened),
            norm: self.norm.clone(),
            layers: self
                .layers
                .iter()
                .map(|l| LayerWeights {
                    norm1: l.norm1.clone(),
                    qkv: linear(&l.qkv),
                    q_norm: l.q_norm.clone(),
                    k_norm: l.k_norm.clone(),
                    o: linear(&l.o),
                    norm2: l.norm2.clone(),
                    mlp: l.mlp.clone().map(|w| w.widened(), |w| w.widened()),
                })
                .collect(),
            rope: self.rope.clone(),
        }
    }

    /// Bytes the matrices hold.
    pub fn bytes(&self) -> usize {
        self.matrices().map(PackedMatrix::bytes).sum()
    }

    /// Whether queries, keys and values come from matrices that are kept as f32.
    pub fn attends_in_f32(&self) -> bool {
        self.layers.iter().any(|l| l.qkv.w.format() == "f32")
    }

    /// The arithmetic that is quickest for them on this processor: what most weights are decides.
    pub fn quickest(&self) -> ComputeType {
        self.quickest_with(has_quick_bytes(), quickest_of_pairs())
    }

    /// The same on a processor that is quick at products of bytes, and with what multiplies bf16.
    pub fn quickest_with(&self, bytes: bool, pairs: Option<ComputeType>) -> ComputeType {
        let (codes, others): (Vec<_>, Vec<_>) =
            self.matrices().partition(|w| w.takes(ComputeType::Int8));
        let weights = |all: Vec<&PackedMatrix>| all.iter().map(|w| w.out * w.inp).sum::<usize>();
        if bytes && weights(codes) > weights(others) {
            ComputeType::Int8
        } else {
            pairs.unwrap_or(ComputeType::F32)
        }
    }

    /// How products are computed: not as [`ComputeType::F32`] where those of any matrix are not.
    pub fn compute_type(&self) -> ComputeType {
        let all = self.matrices().map(PackedMatrix::compute_type);
        all.max().unwrap_or_default()
    }

    pub fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let layers = self.layers.iter();
        let matrices = layers.flat_map(|l| {
            let attention = [&l.qkv.w, &l.o.w];
            attention.into_iter().chain(l.mlp.matrices())
        });
        let ends = [Some(&self.embed), self.head.as_ref()];
        matrices.chain(ends.into_iter().flatten())
    }

    /// Every trained array in a fixed order, and whether weight decay applies (matrices only).
    /// Experts and their routers are never trained.
    pub fn arrays_mut(&mut self) -> Vec<(&mut [f32], bool)> {
        let mut arrays: Vec<(&mut [f32], bool)> = vec![(self.embed.values_mut(), true)];
        for layer in &mut self.layers {
            let attention = [&mut layer.qkv, &mut layer.o];
            let mlp = layer.mlp.dense_mut().into_iter().flatten();
            for linear in attention.into_iter().chain(mlp) {
                arrays.push((linear.w.values_mut(), true));
                arrays.extend(linear.bias.as_deref_mut().map(|b| (b, false)));
            }
            arrays.push((&mut layer.norm1, false));
            arrays.push((&mut layer.norm2, false));
            arrays.extend(layer.q_norm.as_deref_mut().map(|n| (n, false)));
            arrays.extend(layer.k_norm.as_deref_mut().map(|n| (n, false)));
        }
        arrays.push((&mut self.norm, false));
        arrays.extend(self.head.as_mut().map(|h| (h.values_mut(), true)));
        arrays
    }
}

struct RandomSource {
    layers: usize,
    seed: u64,
}

impl TensorSource for RandomSource {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<TensorData, LoadError> {
        let count = shape.iter().product();
        if name.ends_with("norm.weight") {
            return Ok(TensorData::F32(vec![1.0; count]));
        }
        if name.ends_with(".bias") {
            return Ok(TensorData::F32(vec![0.0; count]));
        }
        let residual = name.contains("o_proj") || name.contains("down_proj");
        let deviation = match (name.contains("embed_tokens"), residual) {
            (true, _) => 0.02,
            (false, false) => (shape[1] as f64).sqrt().recip(),
            (false, true) => (shape[1] as f64 * 2.0 * self.layers as f64).sqrt().recip(),
        };
        // The name selects the stream, so the values do not depend on loading order.
        let stream = Sha256::digest(name.as_bytes());
        let stream = u64::from_le_bytes(stream[..8].try_into().expect("a digest has 32 bytes"));
        let mut rng = Rng::new(self.seed ^ stream);
        let draw = |_| (rng.normal() * deviation) as f32;
        Ok(TensorData::F32((0..count).map(draw).collect()))
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}
