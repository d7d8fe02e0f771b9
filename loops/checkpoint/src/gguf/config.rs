//! The shape of the model: a `config.json` made of a GGUF file's metadata.

use serde_json::{Value as Json, json};

use super::header::Value;
use super::{Gguf, LAYERS_MAX, ROPE_FACTORS};
use crate::config::Family;
use crate::error::LoadError;

/// Llama 3.1's rotary scaling as all its sizes have it; a file holds only what comes of it.
const LLAMA3_LOW: f64 = 1.0;
const LLAMA3_HIGH: f64 = 4.0;
/// How far the divisors in a file may be from the formula's.
const FACTOR_TOLERANCE: f64 = 1e-4;

/// Experts are weighted by a softmax (`llama_expert_gating_func_type`).
const SOFTMAX_GATE: u64 = 1;

/// What a file calls a family.
fn name_of(family: Family) -> &'static str {
    match family {
        Family::Qwen3Moe => "qwen3moe",
        other => other.model_type(),
    }
}

impl Gguf {
    /// The value of `{architecture}.{key}`.
    fn of_model(&self, key: &str) -> Result<(String, Option<&Value>), LoadError> {
        let key = format!("{}.{key}", self.architecture()?);
        let value = self.meta.get(&key);
        Ok((key, value))
    }

    /// `general.architecture`, one that is supported.
    pub(super) fn architecture(&self) -> Result<&'static str, LoadError> {
        match self.meta.get("general.architecture") {
            Some(Value::Text(name)) => Family::ALL
                .into_iter()
                .map(name_of)
                .find(|known| known == name)
                .ok_or_else(|| {
                    self.unfit(format!(
                        "architecture {name} is not supported; use a file of llama, qwen2, qwen3 or \
                         qwen3moe"
                    ))
                }),
            _ => Err(self.bad("it does not say of which architecture it is")),
        }
    }

    fn whole(&self, key: &str) -> Result<Option<u64>, LoadError> {
        match self.of_model(key)? {
            (_, None) => Ok(None),
            (key, Some(Value::Whole(n))) => match u64::try_from(*n) {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(self.bad(format!("key {key} is {n}"))),
            },
            (key, Some(_)) => {
                Err(self.unfit(format!("key {key} is not one whole number for all layers")))
            }
        }
    }

    fn need_whole(&self, key: &str) -> Result<u64, LoadError> {
        let found = self.whole(key)?;
        found.ok_or_else(|| self.bad(format!("its metadata lacks {key}")))
    }

    fn real(&self, key: &str) -> Result<Option<f64>, LoadError> {
        match self.of_model(key)? {
            (_, None) => Ok(None),
            (_, Some(Value::Real(x))) if x.is_finite() => Ok(Some(*x)),
            (key, Some(other)) => Err(self.bad(format!("key {key} is {other:?}"))),
        }
    }

    /// Attention heads, as an index into rows: at least one.
    pub(super) fn heads(&self) -> Result<usize, LoadError> {
        let heads = self.need_whole("attention.head_count")?;
        usize::try_from(heads)
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| self.bad(format!("it has {heads} attention heads")))
    }

    pub(super) fn kv_heads(&self) -> Result<usize, LoadError> {
        match self.whole("attention.head_count_kv")? {
            None => self.heads(),
            Some(n) => usize::try_from(n)
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| self.bad(format!("it has {n} heads of keys and values"))),
        }
    }

    /// The config.json of a folder with this model.
    pub fn config_json(&self) -> Result<Json, LoadError> {
        self.refuse_variants()?;
        let family = self.architecture()?;
        let family = Family::ALL.into_iter().find(|f| name_of(*f) == family);
        let (hidden, heads) = (self.need_whole("embedding_length")?, self.heads()?);
        let head_dim = match self.whole("attention.key_length")? {
            Some(dim) => dim,
            None => hidden / heads as u64,
        };
        let different = |key: &str| -> Result<bool, LoadError> {
            Ok(self.whole(key)?.is_some_and(|dim| dim != head_dim))
        };
        if different("attention.value_length")? || different("rope.dimension_count")? {
            return Err(self.unfit(
                "its heads are not rotated as a whole, or keys and values differ in size, which is \
                 not supported",
            ));
        }
        let embedding = self.tensors.get("model.embed_tokens.weight");
        let vocab = embedding
            .map(|info| info.shape[0])
            .ok_or_else(|| self.bad("it has no tensor token_embd.weight"))?;
        let has = |part: &str| {
            self.tensors
                .contains_key(&format!("model.layers.0.{part}.bias"))
        };
        let mut config = json!({
            "architectures": [family.map(Family::architecture)],
            "vocab_size": vocab,
            "hidden_size": hidden,
            "intermediate_size": self.need_whole("feed_forward_length")?,
            "num_hidden_layers": self.need_whole("block_count")?,
            "num_attention_heads": heads,
            "num_key_value_heads": self.kv_heads()?,
            "head_dim": head_dim,
            "max_position_embeddings": self.need_whole("context_length")?,
            "rms_norm_eps": self.real("attention.layer_norm_rms_epsilon")?,
            "rope_theta": self.real("rope.freq_base")?.unwrap_or(1e4),
            "rope_scaling": self.rope_scaling(head_dim)?,
            "tie_word_embeddings": !self.tensors.contains_key("lm_head.weight"),
            "attention_bias": has("self_attn.q_proj"),
            "mlp_bias": has("mlp.down_proj"),
            "hidden_act": "silu",
        });
        if family == Some(Family::Qwen3Moe) {
            self.add_experts_json(&mut config)?;
        }
        Ok(config)
    }

    /// A file does not say how the experts of qwen3moe are weighted: their weights add up to 1.
    fn add_experts_json(&self, config: &mut Json) -> Result<(), LoadError> {
        let layers = self.need_whole("block_count")?.min(u64::from(LAYERS_MAX));
        let dense = |layer: &u64| {
            let router = format!("model.layers.{layer}.mlp.gate.weight");
            !self.tensors.contains_key(&router)
        };
        config["num_experts"] = json!(self.need_whole("expert_count")?);
        config["num_experts_per_tok"] = json!(self.need_whole("expert_used_count")?);
        config["moe_intermediate_size"] = json!(self.need_whole("expert_feed_forward_length")?);
        config["norm_topk_prob"] = json!(true);
        config["mlp_only_layers"] = (0..layers).filter(dense).collect();
        Ok(())
    }

    /// Relatives of the supported models that share an architecture's name.
    fn refuse_variants(&self) -> Result<(), LoadError> {
        let with_experts = self.architecture()? == name_of(Family::Qwen3Moe);
        if !with_experts && self.whole("expert_count")?.is_some_and(|n| n > 0) {
            return Err(self.unfit("of models with experts only qwen3moe is supported"));
        }
        if self.whole("expert_shared_count")?.is_some_and(|n| n > 0)
            || self
                .whole("expert_gating_func")?
                .is_some_and(|n| n != SOFTMAX_GATE)
            || self
                .real("expert_weights_scale")?
                .is_some_and(|s| s != 0.0 && s != 1.0)
        {
            return Err(self.unfit("its experts are not those of qwen3moe"));
        }
        let context = self.need_whole("context_length")?;
        let window = self.whole("attention.sliding_window")?;
        if window.is_some_and(|window| window > 0 && window < context) {
            return Err(self.unfit("sliding windows are read from safetensors folders only"));
        }
        Ok(())
    }

    /// One of several files; only the first has more than weights.
    pub(super) fn refuse_parts(&self) -> Result<(), LoadError> {
        match self.meta.get("split.count") {
            Some(Value::Whole(parts)) if *parts > 1 => Err(self.unfit(format!(
                "it is one of {parts} parts; merge them with llama-gguf-split --merge"
            ))),
            _ => Ok(()),
        }
    }

    fn rope_scaling(&self, head_dim: u64) -> Result<Json, LoadError> {
        if self.tensors.contains_key(ROPE_FACTORS) {
            return self.llama3(head_dim);
        }
        let (_, kind) = self.of_model("rope.scaling.type")?;
        let factor = match self.real("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.real("rope.scale_linear")?,
        };
        let on_attention = self.real("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let kind = match kind {
            None if factor.is_none_or(|f| f == 1.0) => "none",
            None => "linear",
            Some(Value::Text(kind)) => kind,
            Some(other) => return Err(self.bad(format!("its rotary scaling is {other:?}"))),
        };
        if on_attention != 1.0 && kind != "yarn" {
            return Err(self.unfit("its rotary scaling has a factor of its own on attention"));
        }
        match kind {
            "none" => Ok(Json::Null),
            "linear" => Ok(json!({"rope_type": "linear", "factor": factor})),
            "yarn" => {
                let original = self.whole("rope.scaling.original_context_length")?;
                let mut scaling = json!({
                    "rope_type": "yarn",
                    "factor": factor,
                    "original_max_position_embeddings": original,
                    "attn_factor": on_attention,
                });
                for side in ["beta_fast", "beta_slow"] {
                    if let Some(beta) = self.real(&format!("rope.scaling.yarn_{side}"))? {
                        scaling[side] = json!(beta);
                    }
                }
                Ok(scaling)
            }
            other => Err(self.unfit(format!("rotary scaling {other} is not supported"))),
        }
    }

    /// Finds the parameters of Llama 3.1's formula that give the divisors in the file.
    fn llama3(&self, head_dim: u64) -> Result<Json, LoadError> {
        let pairs = (head_dim / 2) as usize;
        let stored = self.tensor(ROPE_FACTORS, &[pairs])?.into_f32();
        let factor = stored.iter().copied().fold(0.0f32, f32::max);
        let theta = self.real("rope.freq_base")?.unwrap_or(1e4);
        let divisor = |pair: usize, original: f64| {
            let frequency = theta.powf(-2.0 * pair as f64 / head_dim as f64);
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            let factor = f64::from(factor);
            if wavelength < original / LLAMA3_HIGH {
                1.0
            } else if wavelength > original / LLAMA3_LOW {
                factor
            } else {
                let smooth = (original / wavelength - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        let fits = |original: f64| {
            let mut pairs = stored.iter().enumerate();
            pairs.all(|(pair, stored)| {
                let wanted = divisor(pair, original);
                (f64::from(*stored) - wanted).abs() <= FACTOR_TOLERANCE * wanted
            })
        };
        let mut sizes = (5..=20).map(|power| 1u64 << power);
        match sizes.find(|size| fits(*size as f64)) {
            Some(original) => Ok(json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LLAMA3_LOW,
                "high_freq_factor": LLAMA3_HIGH,
                "original_max_position_embeddings": original,
            })),
            None => Err(self.unfit(format!(
                "the divisors in tensor {ROPE_FACTORS} are not those of Llama 3.1"
            ))),
        }
    }
}
