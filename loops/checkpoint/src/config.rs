//! The shape of a model, read from a Hugging Face `config.json`.
//!
//! A family is data here: every difference between Llama, Qwen2, Qwen3 and Qwen3-MoE that the forward pass
//! has to know is a field of [`ModelConfig`], so there is one forward and no copies of it.

mod parse;

use serde_json::{Value, json};

/// The architectures one forward covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Llama,
    Qwen2,
    Qwen3,
    Qwen3Moe,
}

impl Family {
    /// Every family.
    pub const ALL: [Self; 4] = [Self::Llama, Self::Qwen2, Self::Qwen3, Self::Qwen3Moe];

    /// `architectures[0]` in config.json.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Qwen3Moe => "Qwen3MoeForCausalLM",
        }
    }

    /// `model_type` in config.json.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
        }
    }
}

/// How weights are kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredDtype {
    F32,
    Bf16,
}

/// Changes to the rotary frequencies `theta^(-2i/head_dim)` for long contexts, as defined by the
/// transformers library (`modeling_rope_utils`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Every frequency divided by `factor`.
    Linear { factor: f32 },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, a linear blend between.
    Llama3 {
        factor: f32,
        low_freq_factor: f32,
        high_freq_factor: f32,
        original_max_positions: usize,
    },
    /// YaRN (Peng et al. 2023): per-dimension blend between interpolated and kept frequencies;
    /// cosines and sines are multiplied by `attention_factor`. `truncate` rounds the two
    /// correction bounds to whole dimensions.
    Yarn {
        factor: f32,
        beta_fast: f32,
        beta_slow: f32,
        original_max_positions: usize,
        attention_factor: f32,
        truncate: bool,
    },
}

/// Layers of which every token uses a few experts.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsConfig {
    /// Experts of such a layer.
    pub count: usize,
    /// How many of them a token uses.
    pub chosen: usize,
    /// Inner width of one expert.
    pub ffn: usize,
    /// The weights of the chosen add up to 1; else they are their shares among all experts.
    pub normalised: bool,
    /// Per layer, whether it has experts; the others are dense.
    pub layers: Vec<bool>,
}

impl ExpertsConfig {
    /// Ids that are recorded of a token: those chosen in every layer with experts.
    pub fn recorded(&self) -> usize {
        self.before(self.layers.len()) * self.chosen
    }

    /// Layers with experts before `layer`.
    pub fn before(&self, layer: usize) -> usize {
        self.layers[..layer]
            .iter()
            .filter(|sparse| **sparse)
            .count()
    }
}

/// Everything the forward pass needs to know about a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub family: Family,
    pub vocab: usize,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ffn: usize,
    pub max_positions: usize,
    pub rms_eps: f32,
    pub rope_theta: f32,
    pub rope_scaling: Option<RopeScaling>,
    /// The head reuses the embedding matrix.
    pub tied: bool,
    pub qkv_bias: bool,
    pub o_bias: bool,
    pub mlp_bias: bool,
    /// RMS norm of every query and key head (Qwen3).
    pub qk_norm: bool,
    /// Per layer: number of latest positions (own one included) attention sees; `None` = all.
    pub windows: Vec<Option<usize>>,
    /// Of a model with experts.
    pub experts: Option<ExpertsConfig>,
    pub dtype: StoredDtype,
}

impl ModelConfig {
    /// The config.json of a folder with these weights.
    pub fn to_json(&self) -> Value {
        let dtype = match self.dtype {
            StoredDtype::F32 => "float32",
            StoredDtype::Bf16 => "bfloat16",
        };
        let mut out = json!({
            "architectures": [self.family.architecture()],
            "model_type": self.family.model_type(),
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": short(self.rms_eps),
            "rope_theta": short(self.rope_theta),
            "rope_scaling": self.rope_scaling.map(RopeScaling::to_json),
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "torch_dtype": dtype,
        });
        if self.family != Family::Qwen2 {
            out["attention_bias"] = json!(self.qkv_bias);
        }
        if self.family == Family::Llama {
            out["mlp_bias"] = json!(self.mlp_bias);
        }
        if let Some(experts) = &self.experts {
            let dense = experts
                .layers
                .iter()
                .enumerate()
                .filter(|(_, sparse)| !**sparse);
            out["num_experts"] = json!(experts.count);
            out["num_experts_per_tok"] = json!(experts.chosen);
            out["moe_intermediate_size"] = json!(experts.ffn);
            out["norm_topk_prob"] = json!(experts.normalised);
            out["decoder_sparse_step"] = json!(1);
            out["mlp_only_layers"] = dense.map(|(layer, _)| layer).collect();
        }
        if let Some(window) = self.windows.iter().flatten().next() {
            let kind = |w: &Option<usize>| {
                if w.is_some() {
                    "sliding_attention"
                } else {
                    "full_attention"
                }
            };
            out["use_sliding_window"] = json!(true);
            out["sliding_window"] = json!(window);
            out["layer_types"] = self.windows.iter().map(kind).collect();
        }
        out
    }
}

impl RopeScaling {
    fn to_json(self) -> Value {
        match self {
            Self::Linear { factor } => json!({"rope_type": "linear", "factor": short(factor)}),
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_positions,
            } => {
                json!({
                    "rope_type": "llama3",
                    "factor": short(factor),
                    "low_freq_factor": short(low_freq_factor),
                    "high_freq_factor": short(high_freq_factor),
                    "original_max_position_embeddings": original_max_positions,
                })
            }
            Self::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_positions,
                attention_factor,
                truncate,
            } => json!({
                "rope_type": "yarn",
                "factor": short(factor),
                "beta_fast": short(beta_fast),
                "beta_slow": short(beta_slow),
                "original_max_position_embeddings": original_max_positions,
                "attention_factor": short(attention_factor),
                "truncate": truncate,
            }),
        }
    }
}

/// An f32 as the shortest decimal that reads back to the same f32 (1e-6, not 9.99999997e-7).
fn short(value: f32) -> f64 {
    value
        .to_string()
        .parse()
        .expect("a printed finite float parses")
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
