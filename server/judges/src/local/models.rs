//! Candle's models behind one trait.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Content;
use candle_core::safetensors::MmapedSafetensors;
use candle_core::{DType, Device, Error, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{
    gemma, gemma2, llama, mistral, phi3, quantized_llama, quantized_qwen2, quantized_qwen3, qwen2,
    qwen3,
};
use serde::de::DeserializeOwned;

use super::settings::{self, Settings};

/// Positions that candle's Llama from a GGUF file has rotary tables for.
const GGUF_LLAMA_TOKENS_MAX: usize = quantized_llama::MAX_SEQ_LEN;

/// A model that continues one text at a time.
pub(super) trait Decoder {
    /// Logits after `tokens`, [1, tokens], which stand at `offset`.
    fn forward(&mut self, tokens: &Tensor, offset: usize) -> Result<Tensor>;
    /// Forgets the text.
    fn reset(&mut self);
}

/// A loaded model, and the memory it takes.
pub(super) struct Loaded {
    pub(super) decoder: Box<dyn Decoder>,
    pub(super) family: String,
    pub(super) tokens_max: usize,
    pub(super) weight_bytes: u64,
    pub(super) cache_bytes: u64,
}

macro_rules! decoder {
    ($($model:ty),*) => {$(
        impl Decoder for $model {
            fn forward(&mut self, tokens: &Tensor, offset: usize) -> Result<Tensor> {
                <$model>::forward(self, tokens, offset)
            }
            fn reset(&mut self) {
                self.clear_kv_cache();
            }
        }
    )*};
}
decoder!(
    qwen2::ModelForCausalLM,
    qwen3::ModelForCausalLM,
    mistral::Model,
    phi3::Model,
    gemma::Model,
    gemma2::Model,
    quantized_llama::ModelWeights,
    quantized_qwen2::ModelWeights,
    quantized_qwen3::ModelWeights
);

/// Candle's Llama keeps its text beside the weights.
struct Llama {
    model: llama::Llama,
    empty: llama::Cache,
    cache: llama::Cache,
}

impl Decoder for Llama {
    fn forward(&mut self, tokens: &Tensor, offset: usize) -> Result<Tensor> {
        self.model.forward(tokens, offset, &mut self.cache)
    }

    fn reset(&mut self) {
        self.cache = self.empty.clone();
    }
}

/// Loads a folder or a GGUF file for at most `tokens_max` tokens.
///
/// # Errors
/// A sentence without the path.
pub(super) fn load(path: &Path, tokens_max: usize) -> std::result::Result<Loaded, String> {
    if path.is_file() {
        return gguf(path, tokens_max).map_err(|error| error.to_string());
    }
    let text = std::fs::read(path.join("config.json"));
    let text = text.map_err(|error| format!("config.json cannot be read ({error})"))?;
    let settings = settings::read(&text, tokens_max)?;
    let weights = open(&shards(path)?).map_err(|error| error.to_string())?;
    let bytes = |shape: &[usize]| shape.iter().product::<usize>() * size_of::<f32>();
    let tensors = weights.tensors();
    let sizes = tensors.iter().map(|(_, tensor)| bytes(tensor.shape()));
    let weight_bytes = sizes.sum::<usize>() as u64;
    drop(tensors);
    let vars = VarBuilder::from_backend(Box::new(weights), DType::F32, Device::Cpu);
    let decoder = decoder(&settings, vars).map_err(|error| error.to_string())?;
    Ok(Loaded {
        decoder,
        family: settings.family,
        tokens_max: settings.tokens_max,
        weight_bytes,
        cache_bytes: settings.cache_bytes,
    })
}

/// The folder's safetensors, in the order of their names.
fn shards(folder: &Path) -> std::result::Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_shard = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("model") && name.ends_with(".safetensors")
    };
    let mut shards: Vec<PathBuf> = paths.filter(is_shard).collect();
    shards.sort();
    match shards.is_empty() {
        true => Err("it has no model*.safetensors".to_owned()),
        false => Ok(shards),
    }
}

#[allow(unsafe_code)]
fn open(shards: &[PathBuf]) -> Result<MmapedSafetensors> {
    // SAFETY: the maps are only read while weights are copied out of them, and folders of weights are
    // written once and not changed in place. A file cut short by someone else at that very time would
    // end the process, not corrupt it.
    unsafe { MmapedSafetensors::multi(shards) }
}

fn decoder(settings: &Settings, vars: VarBuilder<'_>) -> Result<Box<dyn Decoder>> {
    Ok(match settings.family.as_str() {
        "llama" => {
            let config: llama::LlamaConfig = parse(settings)?;
            let config = config.into_config(false);
            let empty = llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
            Box::new(Llama {
                model: llama::Llama::load(vars, &config)?,
                cache: empty.clone(),
                empty,
            })
        }
        "qwen2" => Box::new(qwen2::ModelForCausalLM::new(&parse(settings)?, vars)?),
        "qwen3" => Box::new(qwen3::ModelForCausalLM::new(&parse(settings)?, vars)?),
        "mistral" => Box::new(mistral::Model::new(&parse(settings)?, vars)?),
        "phi3" => Box::new(phi3::Model::new(&parse(settings)?, vars)?),
        "gemma" => Box::new(gemma::Model::new(false, &parse(settings)?, vars)?),
        "gemma2" => Box::new(gemma2::Model::new(false, &parse(settings)?, vars)?),
        other => candle_core::bail!(
            "model_type {other} is not known; llama, qwen2, qwen3, mistral, phi3, gemma and gemma2 are"
        ),
    })
}

fn parse<T: DeserializeOwned>(settings: &Settings) -> Result<T> {
    let parsed = serde_json::from_value(settings.config.clone());
    parsed.map_err(|error| Error::Msg(format!("config.json: {error}")))
}

fn gguf(path: &Path, tokens_max: usize) -> Result<Loaded> {
    let mut file = BufReader::new(File::open(path)?);
    let content = Content::read(&mut file)?;
    let text = |key: &str| content.metadata.get(key)?.to_string().ok();
    let family = text("general.architecture").cloned().unwrap_or_default();
    let number = |key: &str| {
        let value = content.metadata.get(&format!("{family}.{key}"))?;
        value.to_u32().ok().map(|value| value as usize)
    };
    if content.tensor_infos.contains_key("rope_freqs.weight") {
        candle_core::bail!(
            "its positions are scaled (rope_freqs.weight), which is not computed here; take the folder that it was made from"
        );
    }
    let most = tokens_max.min(number("context_length").unwrap_or(tokens_max));
    let most = match family.as_str() {
        "llama" => most.min(GGUF_LLAMA_TOKENS_MAX),
        _ => most,
    };
    let need = |key: &str| number(key).ok_or(Error::Msg(format!("its metadata lacks {key}")));
    let heads = need("attention.head_count")?.max(1);
    let head_dim = number("attention.key_length").unwrap_or(need("embedding_length")? / heads);
    let kv_heads = number("attention.head_count_kv").unwrap_or(heads);
    let cache = need("block_count")? * kv_heads * head_dim * 2 * size_of::<f32>() * most;
    let tensors = content.tensor_infos.iter();
    let sizes = tensors.map(|(name, info)| {
        let count = info.shape.elem_count();
        let kind = info.ggml_dtype;
        let stored = count / kind.block_size() * kind.type_size();
        // The embedding is kept in full beside its stored form.
        stored + usize::from(name == "token_embd.weight") * count * size_of::<f32>()
    });
    let weight_bytes = sizes.sum::<usize>() as u64;
    let (cpu, file) = (Device::Cpu, &mut file);
    let decoder: Box<dyn Decoder> = match family.as_str() {
        "llama" => Box::new(quantized_llama::ModelWeights::from_gguf(
            content, file, &cpu,
        )?),
        "qwen2" => Box::new(quantized_qwen2::ModelWeights::from_gguf(
            content, file, &cpu,
        )?),
        "qwen3" => Box::new(quantized_qwen3::ModelWeights::from_gguf(
            content, file, &cpu,
        )?),
        other => candle_core::bail!(
            "architecture {other} is not known as GGUF; llama, qwen2 and qwen3 are"
        ),
    };
    Ok(Loaded {
        decoder,
        family,
        tokens_max: most,
        weight_bytes,
        cache_bytes: cache as u64,
    })
}
