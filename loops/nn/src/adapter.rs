//! Adapters in the form that is served: a change of projections, of low rank
//! (LoRA, Hu et al. 2021: `y += scale (x A^T) B^T`) or dense (`y += x D^T`).

use std::convert::Infallible;

use sha2::{Digest, Sha256};

use crate::device_copies::DeviceCopies;
use hone_checkpoint::config::ModelConfig;
use hone_checkpoint::digest::{Digest32, hash_tensor};
use hone_checkpoint::{AdapterConfig, AdapterDtype, AdapterError, NamedTensor, Part, Target};
use hone_kernels::format::TensorData;
use hone_kernels::matrix::PackedMatrix;
use hone_kernels::rng::Rng;

/// `A [rank, in]` and `B [out, rank]` of one projection.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    pub a: PackedMatrix,
    pub b: PackedMatrix,
}

/// What an adapter does to one projection.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    LowRank(Pair),
    /// `D [out, in]`.
    Dense(PackedMatrix),
}

impl Change {
    fn parts(&self) -> Vec<(Part, &PackedMatrix)> {
        match self {
            Self::LowRank(pair) => vec![(Part::A, &pair.a), (Part::B, &pair.b)],
            Self::Dense(d) => vec![(Part::D, d)],
        }
    }

    fn parts_mut(&mut self) -> Vec<&mut PackedMatrix> {
        match self {
            Self::LowRank(pair) => vec![&mut pair.a, &mut pair.b],
            Self::Dense(d) => vec![d],
        }
    }

    fn map(&self, f: &dyn Fn(&PackedMatrix) -> PackedMatrix) -> Self {
        match self {
            Self::LowRank(pair) => Self::LowRank(Pair {
                a: f(&pair.a),
                b: f(&pair.b),
            }),
            Self::Dense(d) => Self::Dense(f(d)),
        }
    }
}

/// The changes of one layer's projections, by [`Target`].
pub(crate) type Changes = [Option<Change>; 7];

/// An adapter as served: values rounded to its configuration's precision.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapter {
    pub config: AdapterConfig,
    pub layers: Vec<Changes>,
    /// Its copies on devices that compute with it.
    pub copies: DeviceCopies,
}

/// Makes the matrix of that part, of shape `[out, in]`.
type Make<'a, E> = &'a mut dyn FnMut((usize, Target, Part), [usize; 2]) -> Result<PackedMatrix, E>;

impl Adapter {
    /// Builds from tensors under the names of [`Target::tensor_name`]; values are rounded to the
    /// configuration's precision.
    pub fn from_tensors(
        cfg: &ModelConfig,
        config: impl Into<AdapterConfig>,
        tensors: Vec<NamedTensor>,
    ) -> Result<Self, AdapterError> {
        let config = config.into().canonical();
        config.check(cfg)?;
        let mut by_name = std::collections::HashMap::new();
        for tensor in tensors {
            by_name.insert(tensor.name.clone(), tensor);
        }
        let mut take = |(layer, target, part): (usize, Target, Part), wanted: [usize; 2]| {
            let name = target.tensor_name(layer, part);
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
            Ok(PackedMatrix::from_parts(
                wanted[1],
                vec![TensorData::F32(tensor.data)],
            ))
        };
        let adapter = Self::made(cfg, config, &mut take)?;
        if let Some(name) = by_name.into_keys().min() {
            return Err(AdapterError::Unexpected(name));
        }
        Ok(adapter.served())
    }

    /// Every matrix of every layer made by `make`, in canonical order.
    fn made<E>(cfg: &ModelConfig, config: AdapterConfig, make: Make<'_, E>) -> Result<Self, E> {
        let config = config.canonical();
        let mut layers = Vec::with_capacity(cfg.layers);
        for layer in 0..cfg.layers {
            let mut changes: Changes = [const { None }; 7];
            for &target in config.targets() {
                let (out, inp) = target.shape(cfg);
                let mut part = |part, shape| make((layer, target, part), shape);
                changes[target as usize] = Some(match &config {
                    AdapterConfig::Lora(lora) => Change::LowRank(Pair {
                        a: part(Part::A, [lora.rank, inp])?,
                        b: part(Part::B, [out, lora.rank])?,
                    }),
                    AdapterConfig::Dense(_) => Change::Dense(part(Part::D, [out, inp])?),
                });
            }
            layers.push(changes);
        }
        Ok(Self {
            config,
            layers,
            copies: DeviceCopies::default(),
        })
    }

    /// Every tensor under the name of [`Target::tensor_name`], row-major.
    pub fn to_tensors(&self) -> Vec<NamedTensor> {
        let mut tensors = Vec::new();
        for (layer, changes) in self.layers.iter().enumerate() {
            for target in Target::ALL {
                let parts = changes[target as usize].iter().flat_map(Change::parts);
                tensors.extend(parts.map(|(part, panels)| NamedTensor {
                    name: target.tensor_name(layer, part),
                    shape: vec![panels.out, panels.inp],
                    data: panels.to_rows(0..panels.out),
                }));
            }
        }
        tensors
    }

    /// An adapter that changes nothing.
    pub fn zero(cfg: &ModelConfig, config: impl Into<AdapterConfig>) -> Self {
        Self::masters(cfg, config.into(), &mut |_, _| 0.0).served()
    }

    /// A random adapter that changes every target (no matrix is zero), for tests and
    /// measurements.
    pub fn random(cfg: &ModelConfig, config: impl Into<AdapterConfig>, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self::masters(cfg, config.into(), &mut |_, inp| {
            (rng.normal() * 0.5 / (inp as f64).sqrt()) as f32
        })
        .served()
    }

    /// A fresh trainable adapter in f32, which changes nothing yet: `A` uniform in
    /// `+-1 / sqrt(in)` (PEFT's default), all else 0.
    pub fn fresh(cfg: &ModelConfig, config: AdapterConfig, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self::masters(cfg, config, &mut |part, inp| {
            let u = (rng.uniform() * 2.0 - 1.0) / (inp as f64).sqrt();
            if part == Part::A { u as f32 } else { 0.0 }
        })
    }

    /// f32 values drawn by `draw(part, in)`.
    fn masters(
        cfg: &ModelConfig,
        config: AdapterConfig,
        draw: &mut dyn FnMut(Part, usize) -> f32,
    ) -> Self {
        let mut make = |(_, _, part): (usize, Target, Part), [out, inp]: [usize; 2]| {
            let data = (0..out * inp).map(|_| draw(part, inp)).collect();
            Ok::<_, Infallible>(PackedMatrix::from_parts(inp, vec![TensorData::F32(data)]))
        };
        let Ok(adapter) = Self::made(cfg, config, &mut make);
        adapter
    }

    fn map(&self, f: impl Fn(&PackedMatrix) -> PackedMatrix) -> Self {
        let changes = |changes: &Changes| -> Changes {
            std::array::from_fn(|i| changes[i].as_ref().map(|change| change.map(&f)))
        };
        Self {
            config: self.config.clone(),
            layers: self.layers.iter().map(changes).collect(),
            copies: DeviceCopies::default(),
        }
    }

    /// Rounded to the served precision.
    pub fn served(&self) -> Self {
        match self.config.dtype() {
            AdapterDtype::F32 => self.map(|panels| panels.widened().narrowed()),
            AdapterDtype::Bf16 => self.map(|panels| panels.rounded().narrowed()),
        }
    }

    /// The same values in f32, to be trained.
    pub fn widened(&self) -> Self {
        self.map(PackedMatrix::widened)
    }

    pub fn change(&self, layer: usize, target: Target) -> Option<&Change> {
        self.layers[layer][target as usize].as_ref()
    }

    /// Layers it was made for.
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// SHA-256 over configuration and tensors as served.
    pub fn digest(&self) -> Digest32 {
        let mut hash = Sha256::new();
        hash.update(self.config.identity());
        for tensor in self.to_tensors() {
            hash_tensor(&mut hash, &tensor.name, &tensor.shape, &tensor.data);
        }
        hash.finalize().into()
    }

    /// Bytes its matrices hold.
    pub fn bytes(&self) -> usize {
        let changes = self.layers.iter().flatten().flatten();
        let parts = changes.flat_map(Change::parts);
        parts.map(|(_, panels)| panels.bytes()).sum()
    }

    /// Every trained array in a fixed order; weight decay applies to all.
    pub fn arrays_mut(&mut self) -> Vec<(&mut [f32], bool)> {
        let changes = self.layers.iter_mut().flatten().flatten();
        let parts = changes.flat_map(Change::parts_mut);
        parts.map(|panels| (panels.values_mut(), true)).collect()
    }
}
