//! What an adapter is, apart from its values.

use crate::config::ModelConfig;

/// Why tensors do not form an adapter of a model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AdapterError {
    #[error("the adapter has rank 0 or no targets; it would change nothing")]
    Empty,
    #[error("the adapter's alpha is {0}; it must be a finite number")]
    BadAlpha(f32),
    #[error("the adapter lacks tensor {0}; every target needs its matrices in every layer")]
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

    /// Name of a matrix of this target in layer `layer`; those of a LoRA are PEFT's.
    pub fn tensor_name(self, layer: usize, part: Part) -> String {
        let block = match self {
            Self::Q | Self::K | Self::V | Self::O => "self_attn",
            Self::Gate | Self::Up | Self::Down => "mlp",
        };
        let (module, part) = (self.module(), part.name());
        format!("base_model.model.model.layers.{layer}.{block}.{module}.{part}.weight")
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

/// A matrix of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// `A [rank, in]` of a LoRA.
    A,
    /// `B [out, rank]` of a LoRA.
    B,
    /// `D [out, in]` of a dense change.
    D,
}

impl Part {
    /// What a tensor's name says.
    pub fn name(self) -> &'static str {
        match self {
            Self::A => "lora_A",
            Self::B => "lora_B",
            Self::D => "delta",
        }
    }
}

/// Stored precision of a served adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdapterDtype {
    F32,
    Bf16,
}

/// What an adapter of low rank is, apart from its values.
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
}

/// What a dense change is, apart from its values: every weight of the projections moves.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseConfig {
    /// Projections it acts on, the same in every layer.
    pub targets: Vec<Target>,
    pub dtype: AdapterDtype,
}

/// What an adapter is, apart from its values.
#[derive(Debug, Clone, PartialEq)]
pub enum AdapterConfig {
    /// `y += scale (x A^T) B^T`.
    Lora(LoraConfig),
    /// `y += x D^T`.
    Dense(DenseConfig),
}

impl From<LoraConfig> for AdapterConfig {
    fn from(lora: LoraConfig) -> Self {
        Self::Lora(lora)
    }
}

impl From<DenseConfig> for AdapterConfig {
    fn from(dense: DenseConfig) -> Self {
        Self::Dense(dense)
    }
}

impl AdapterConfig {
    /// Projections it acts on, the same in every layer.
    pub fn targets(&self) -> &[Target] {
        match self {
            Self::Lora(lora) => &lora.targets,
            Self::Dense(dense) => &dense.targets,
        }
    }

    /// Stored precision.
    pub fn dtype(&self) -> AdapterDtype {
        match self {
            Self::Lora(lora) => lora.dtype,
            Self::Dense(dense) => dense.dtype,
        }
    }

    /// The rank; 0 of a dense change, which needs no room for what comes between two matrices.
    pub fn rank(&self) -> usize {
        match self {
            Self::Lora(lora) => lora.rank,
            Self::Dense(_) => 0,
        }
    }

    /// Weights it holds for a model of such a shape.
    pub fn weights(&self, cfg: &ModelConfig) -> usize {
        let of = |target: &Target| {
            let (out, inp) = target.shape(cfg);
            match self {
                Self::Lora(lora) => lora.rank * (out + inp),
                Self::Dense(_) => out * inp,
            }
        };
        cfg.layers * self.targets().iter().map(of).sum::<usize>()
    }

    /// The factor on the change.
    pub fn scale(&self) -> f32 {
        match self {
            Self::Lora(lora) => lora.scale(),
            Self::Dense(_) => 1.0,
        }
    }

    /// That it can change a model of such a shape: it has targets, each a projection that adapters
    /// of such a model act on (where layers have experts, attention only), and a rank and a scale.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self, cfg: &ModelConfig) -> Result<(), AdapterError> {
        if self.targets().is_empty() {
            return Err(AdapterError::Empty);
        }
        match self {
            Self::Lora(lora) if lora.rank == 0 => return Err(AdapterError::Empty),
            Self::Lora(lora) if !lora.alpha.is_finite() => {
                return Err(AdapterError::BadAlpha(lora.alpha));
            }
            _ => {}
        }
        let of_mlp = |t: &&Target| !Target::ATTENTION.contains(t);
        match self.targets().iter().find(of_mlp) {
            Some(target) if cfg.experts.is_some() => Err(AdapterError::Experts(target.module())),
            _ => Ok(()),
        }
    }

    /// Targets without repeats, in canonical order.
    pub fn canonical(mut self) -> Self {
        let targets = match &mut self {
            Self::Lora(lora) => &mut lora.targets,
            Self::Dense(dense) => &mut dense.targets,
        };
        targets.sort_unstable();
        targets.dedup();
        self
    }

    /// What digests cover of it.
    pub fn identity(&self) -> String {
        let targets: Vec<&str> = self.targets().iter().map(|t| t.module()).collect();
        let rest = format!("dtype={:?};targets={}", self.dtype(), targets.join(","));
        match self {
            Self::Lora(lora) => format!(
                "lora;rank={};alpha={:08x};rslora={};{rest}",
                lora.rank,
                lora.alpha.to_bits(),
                lora.rslora,
            ),
            Self::Dense(_) => format!("dense;{rest}"),
        }
    }
}
