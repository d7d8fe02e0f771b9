//! Reading a `config.json` key by key, with the class defaults of the transformers library.

use serde_json::{Map, Value};

use super::{ExpertsConfig, Family, ModelConfig, RopeScaling, StoredDtype};
use crate::error::LoadError;

/// Upper bounds on sizes, so that a hostile config cannot overflow arithmetic or memory sums.
const MAX_DIM: u64 = 1 << 20;
const MAX_LAYERS: u64 = 1024;
const MAX_POSITIONS: u64 = 1 << 24;
/// Ids of experts are recorded in sixteen bits.
const MAX_EXPERTS: u64 = 1 << 14;

impl ModelConfig {
    /// Parses a config.json. `file` is the name used in errors.
    pub fn from_json(bytes: &[u8], file: &str) -> Result<Self, LoadError> {
        let value: Value = serde_json::from_slice(bytes).map_err(|e| LoadError::BadJson {
            file: file.to_owned(),
            why: e.to_string(),
        })?;
        let Value::Object(map) = value else {
            return Err(LoadError::BadJson {
                file: file.to_owned(),
                why: "expected an object".to_owned(),
            });
        };
        Keys { map: &map, file }.model()
    }
}

/// The keys of one config.json (or of one object inside it) with the file name for errors.
struct Keys<'a> {
    map: &'a Map<String, Value>,
    file: &'a str,
}

impl Keys<'_> {
    fn bad(&self, key: &str, why: impl Into<String>) -> LoadError {
        LoadError::BadKey {
            file: self.file.to_owned(),
            key: key.to_owned(),
            why: why.into(),
        }
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    fn need<T>(&self, key: &str, found: Option<T>) -> Result<T, LoadError> {
        found.ok_or_else(|| LoadError::MissingKey {
            file: self.file.to_owned(),
            key: key.to_owned(),
        })
    }

    fn size(&self, key: &str, max: u64) -> Result<Option<usize>, LoadError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(n) if (1..=max).contains(&n) => Ok(Some(n as usize)),
            _ => Err(self.bad(
                key,
                format!("is {value}; expected a whole number from 1 to {max}"),
            )),
        }
    }

    fn need_size(&self, key: &str, max: u64) -> Result<usize, LoadError> {
        let found = self.size(key, max)?;
        self.need(key, found)
    }

    fn float(&self, key: &str) -> Result<Option<f32>, LoadError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_f64().map(|x| x as f32) {
            Some(x) if x.is_finite() && x > 0.0 => Ok(Some(x)),
            _ => Err(self.bad(key, format!("is {value}; expected a positive number"))),
        }
    }

    fn need_float(&self, key: &str) -> Result<f32, LoadError> {
        let found = self.float(key)?;
        self.need(key, found)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, LoadError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| self.bad(key, format!("is {value}; expected true or false")))
    }

    fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.bad(key, format!("is {value}; expected a string")))
    }

    fn family(&self) -> Result<Family, LoadError> {
        let unknown = |name: &str| LoadError::UnknownArchitecture {
            file: self.file.to_owned(),
            architecture: name.to_owned(),
        };
        if let Some(list) = self.get("architectures") {
            let name = list.get(0).and_then(Value::as_str).unwrap_or("(none)");
            return Family::ALL
                .into_iter()
                .find(|f| f.architecture() == name)
                .ok_or_else(|| unknown(name));
        }
        let kind = self.need("architectures", self.text("model_type")?)?;
        Family::ALL
            .into_iter()
            .find(|f| f.model_type() == kind)
            .ok_or_else(|| unknown(kind))
    }

    pub(super) fn model(&self) -> Result<ModelConfig, LoadError> {
        let family = self.family()?;
        self.refuse_unsupported()?;
        let hidden = self.need_size("hidden_size", MAX_DIM)?;
        let layers = self.need_size("num_hidden_layers", MAX_LAYERS)?;
        let heads = self.need_size("num_attention_heads", MAX_DIM)?;
        let kv_heads = self.size("num_key_value_heads", MAX_DIM)?.unwrap_or(heads);
        let head_dim = self.head_dim(family, hidden, heads)?;
        if !heads.is_multiple_of(kv_heads) {
            let why = format!("is {kv_heads}, which does not divide num_attention_heads {heads}");
            return Err(self.bad("num_key_value_heads", why));
        }
        let max_positions = self.need_size("max_position_embeddings", MAX_POSITIONS)?;
        let (rope_theta, rope_scaling) = self.rope(max_positions)?;
        let attention_bias = self.flag("attention_bias")?.unwrap_or(false);
        Ok(ModelConfig {
            family,
            vocab: self.need_size("vocab_size", 1 << 24)?,
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
            ffn: self.need_size("intermediate_size", MAX_DIM)?,
            max_positions,
            rms_eps: self.float("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta,
            rope_scaling,
            tied: self.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: family == Family::Qwen2 || attention_bias,
            o_bias: family != Family::Qwen2 && attention_bias,
            mlp_bias: family == Family::Llama && self.flag("mlp_bias")?.unwrap_or(false),
            qk_norm: matches!(family, Family::Qwen3 | Family::Qwen3Moe),
            windows: self.windows(family, layers)?,
            experts: self.experts(family, layers)?,
            dtype: self.dtype()?,
        })
    }

    fn refuse_unsupported(&self) -> Result<(), LoadError> {
        if let Some(act) = self.text("hidden_act")?.filter(|a| *a != "silu") {
            return Err(self.bad("hidden_act", format!("is {act}; only silu is supported")));
        }
        self.refuse_partial_rotation()?;
        if self.get("quantization_config").is_some() {
            let why = "is set: quantized weights are not supported; use the unquantized folder";
            return Err(self.bad("quantization_config", why));
        }
        Ok(())
    }

    fn refuse_partial_rotation(&self) -> Result<(), LoadError> {
        const KEY: &str = "partial_rotary_factor";
        match self.float(KEY)? {
            Some(part) if part != 1.0 => {
                Err(self.bad(KEY, format!("is {part}; partial rotation is not supported")))
            }
            _ => Ok(()),
        }
    }

    /// Qwen3's class default is 128 whatever the hidden size; the others divide.
    fn head_dim(&self, family: Family, hidden: usize, heads: usize) -> Result<usize, LoadError> {
        let head_dim = match self.size("head_dim", 4096)? {
            Some(dim) => dim,
            None if family == Family::Qwen3 => 128,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let why = format!("is {heads}, which does not divide hidden_size {hidden}");
                return Err(self.bad("num_attention_heads", why));
            }
        };
        if head_dim % 2 == 1 {
            return Err(self.bad(
                "head_dim",
                format!("is {head_dim}; rotation needs an even number"),
            ));
        }
        Ok(head_dim)
    }

    fn dtype(&self) -> Result<StoredDtype, LoadError> {
        let key = if self.get("dtype").is_some() {
            "dtype"
        } else {
            "torch_dtype"
        };
        match self.text(key)? {
            None | Some("float32" | "float16") => Ok(StoredDtype::F32),
            Some("bfloat16") => Ok(StoredDtype::Bf16),
            Some(other) => {
                Err(self.bad(key, format!("is {other}; use float32, float16 or bfloat16")))
            }
        }
    }

    /// Experts, with the class defaults of the library. A layer has them where its number (from 1)
    /// is a multiple of the step, unless it is listed as dense.
    fn experts(&self, family: Family, layers: usize) -> Result<Option<ExpertsConfig>, LoadError> {
        if family != Family::Qwen3Moe {
            return Ok(None);
        }
        let step = self.size("decoder_sparse_step", MAX_LAYERS)?.unwrap_or(1);
        let dense = match self.get("mlp_only_layers") {
            None => Vec::new(),
            Some(list) => list
                .as_array()
                .and_then(|list| list.iter().map(Value::as_u64).collect())
                .ok_or_else(|| self.bad("mlp_only_layers", "must be a list of layer numbers"))?,
        };
        let sparse =
            |layer: usize| !dense.contains(&(layer as u64)) && (layer + 1).is_multiple_of(step);
        // The library reads and writes both names.
        let count = match self.size("num_experts", MAX_EXPERTS)? {
            Some(count) => count,
            None => self.size("num_local_experts", MAX_EXPERTS)?.unwrap_or(128),
        };
        let chosen = self.size("num_experts_per_tok", MAX_EXPERTS)?.unwrap_or(8);
        if chosen > count {
            let why = format!("is {chosen}, more than the model's {count} experts");
            return Err(self.bad("num_experts_per_tok", why));
        }
        Ok(Some(ExpertsConfig {
            count,
            chosen,
            ffn: self.size("moe_intermediate_size", MAX_DIM)?.unwrap_or(768),
            normalised: self.flag("norm_topk_prob")?.unwrap_or(false),
            layers: (0..layers).map(sparse).collect(),
        }))
    }

    /// Which layers see only the latest positions: `layer_types` where present, else the older
    /// rule "from layer max_window_layers on". Qwen3-MoE knows no such rule: a window holds for all.
    /// Llama has no windows.
    fn windows(&self, family: Family, layers: usize) -> Result<Vec<Option<usize>>, LoadError> {
        if family == Family::Llama {
            return Ok(vec![None; layers]);
        }
        let on = self.flag("use_sliding_window")?.unwrap_or(false);
        let window = if on {
            self.size("sliding_window", MAX_POSITIONS)?
        } else {
            None
        };
        if family == Family::Qwen3Moe {
            return Ok(vec![window; layers]);
        }
        let Some(types) = self.get("layer_types") else {
            let from = match self.get("max_window_layers") {
                Some(v) => v.as_u64().ok_or_else(|| {
                    self.bad(
                        "max_window_layers",
                        format!("is {v}; expected a whole number"),
                    )
                })? as usize,
                None => 28, // the library's class default for both Qwen families
            };
            return Ok((0..layers).map(|i| window.filter(|_| i >= from)).collect());
        };
        let types = types
            .as_array()
            .filter(|t| t.len() == layers)
            .ok_or_else(|| self.bad("layer_types", format!("must be a list of {layers} names")))?;
        let one = |kind: &Value| match kind.as_str() {
            Some("full_attention") => Ok(None),
            Some("sliding_attention") => window.map(Some).ok_or_else(|| {
                let why =
                    "has sliding layers, but use_sliding_window and sliding_window are not set";
                self.bad("layer_types", why)
            }),
            _ => Err(self.bad(
                "layer_types",
                format!("names {kind}, which is not supported"),
            )),
        };
        types.iter().map(one).collect()
    }

    /// `rope_scaling` (older spelling, theta beside it) or `rope_parameters` (newer, theta inside).
    fn rope(&self, max_positions: usize) -> Result<(f32, Option<RopeScaling>), LoadError> {
        let key = if self.get("rope_parameters").is_some() {
            "rope_parameters"
        } else {
            "rope_scaling"
        };
        let outer_theta = self.float("rope_theta")?;
        let Some(value) = self.get(key) else {
            return Ok((outer_theta.unwrap_or(1e4), None));
        };
        let Value::Object(map) = value else {
            return Err(self.bad(key, "must be an object"));
        };
        let inner = Keys {
            map,
            file: self.file,
        };
        let theta = inner.float("rope_theta")?.or(outer_theta).unwrap_or(1e4);
        inner.refuse_partial_rotation()?;
        let kind = match inner.text("rope_type")? {
            Some(kind) => Some(kind),
            None => inner.text("type")?,
        };
        let scaling = match kind {
            None | Some("default") => None,
            Some("linear") => Some(RopeScaling::Linear {
                factor: inner.need_float("factor")?,
            }),
            Some("llama3") => Some(RopeScaling::Llama3 {
                factor: inner.need_float("factor")?,
                low_freq_factor: inner.need_float("low_freq_factor")?,
                high_freq_factor: inner.need_float("high_freq_factor")?,
                original_max_positions: inner
                    .need_size("original_max_position_embeddings", MAX_POSITIONS)?,
            }),
            Some("yarn") => Some(inner.yarn(max_positions)?),
            Some(other) => {
                let why =
                    format!("asks for {other}; supported are default, linear, llama3 and yarn");
                return Err(self.bad(key, why));
            }
        };
        Ok((theta, scaling))
    }

    /// The attention factor defaults to `0.1 ln(factor) + 1` (YaRN, eq. 22), times `attn_factor` where
    /// that is given (as vLLM reads it), or to the quotient of the two `mscale` forms where both are.
    fn yarn(&self, max_positions: usize) -> Result<RopeScaling, LoadError> {
        let factor = self.need_float("factor")?;
        let mscale = |m: f32| {
            if factor <= 1.0 {
                1.0
            } else {
                0.1 * m * factor.ln() + 1.0
            }
        };
        let attention_factor = match (
            self.float("attention_factor")?,
            self.float("mscale")?,
            self.float("mscale_all_dim")?,
        ) {
            (Some(given), _, _) => given,
            (None, Some(m), Some(all)) => mscale(m) / mscale(all),
            _ => mscale(1.0) * self.float("attn_factor")?.unwrap_or(1.0),
        };
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: self.float("beta_fast")?.unwrap_or(32.0),
            beta_slow: self.float("beta_slow")?.unwrap_or(1.0),
            original_max_positions: self
                .size("original_max_position_embeddings", MAX_POSITIONS)?
                .unwrap_or(max_positions),
            attention_factor,
            truncate: self.flag("truncate")?.unwrap_or(true),
        })
    }
}
