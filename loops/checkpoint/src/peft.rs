//! Adapters on disk, in the layout of the PEFT library: adapter_config.json and
//! adapter_model.safetensors, so that PEFT, vLLM and SGLang load what is trained here. Dense changes
//! are kept in the same two files, of a type of their own that PEFT refuses; [`for_peft`] makes
//! them LoRA adapters.

use std::collections::{BTreeMap, BTreeSet};

use half::f16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::adapter_config::{
    AdapterConfig, AdapterDtype, AdapterError, DenseConfig, LoraConfig, Part, Target,
};
use crate::config::StoredDtype;
use crate::digest::{Digest32, hash_tensor};
use crate::tensor_files::to_bytes;
use crate::tensor_source::NamedTensor;
use hone_kernels::format::bf16_to_f32;

pub const CONFIG_FILE: &str = "adapter_config.json";
pub const WEIGHTS_FILE: &str = "adapter_model.safetensors";
pub const MANIFEST_FILE: &str = "manifest.json";

pub const PICKLE_FILE: &str = "adapter_model.bin";
/// The type of a dense change.
pub const DENSE: &str = "HONE_DENSE";
const RANK_MAX: u64 = 4096;
/// Most characters of a key, a value or a name that a message repeats.
const SHOWN_CHARS: usize = 100;

/// Why a PEFT folder is refused: what, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum PeftError {
    #[error("the adapter has no {0}; a PEFT folder holds {CONFIG_FILE} and {WEIGHTS_FILE}")]
    MissingFile(&'static str),
    #[error(
        "the adapter is a pickle ({PICKLE_FILE}), which is never read because pickles run code; \
         save it as safetensors"
    )]
    Pickle,
    #[error("{file} is damaged: {why}")]
    Damaged { file: &'static str, why: String },
    #[error("{CONFIG_FILE}: {key} is {value}, which is not supported; {remedy}")]
    Unsupported {
        key: String,
        value: String,
        remedy: &'static str,
    },
    #[error("{WEIGHTS_FILE} holds tensor {0}, which is not part of an adapter of this model")]
    UnknownTensor(String),
    #[error(
        "{WEIGHTS_FILE} holds {0}, which differs from the base model's: trained embeddings are not part of an \
         adapter; train LoRA only, or merge it and serve the merged model (a base kept in fewer bits than it was \
         trained with differs as well)"
    )]
    TrainedEmbedding(String),
    #[error("{WEIGHTS_FILE} holds tensor {0} twice, with and without an adapter name")]
    Duplicate(String),
    #[error("{WEIGHTS_FILE} stores tensor {name} as {dtype}; use F32, F16 or BF16")]
    WrongDtype { name: String, dtype: String },
    #[error("{WEIGHTS_FILE}: {0}")]
    Adapter(#[from] AdapterError),
}

/// The files of an adapter: (name, content). `base_name` is what PEFT shows as its base model.
pub fn to_files(
    config: &AdapterConfig,
    tensors: &[NamedTensor],
    base_name: &str,
    manifest: &Value,
) -> Vec<(String, Vec<u8>)> {
    vec![
        (
            CONFIG_FILE.to_owned(),
            pretty(&config_json(config, base_name)),
        ),
        (
            WEIGHTS_FILE.to_owned(),
            weights_file(tensors, config.dtype()),
        ),
        (MANIFEST_FILE.to_owned(), pretty(manifest)),
    ]
}

fn pretty(value: &Value) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(value).expect("a JSON value always serializes");
    bytes.push(b'\n');
    bytes
}

fn config_json(config: &AdapterConfig, base_name: &str) -> Value {
    let modules: Vec<&str> = config.targets().iter().map(|t| t.module()).collect();
    match config {
        AdapterConfig::Lora(lora) => lora_json(lora, &modules, base_name),
        AdapterConfig::Dense(_) => json!({
            "peft_type": DENSE,
            "base_model_name_or_path": base_name,
            "target_modules": modules,
        }),
    }
}

fn lora_json(lora: &LoraConfig, modules: &[&str], base_name: &str) -> Value {
    let alpha = if lora.alpha.fract() == 0.0 && lora.alpha.abs() < 1e9 {
        json!(lora.alpha as i64) // PEFT's own type; readers of old expect a whole number
    } else {
        json!(lora.alpha)
    };
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "r": lora.rank,
        "lora_alpha": alpha,
        "target_modules": modules,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "use_rslora": lora.rslora,
        "use_dora": false,
        "modules_to_save": null,
        "rank_pattern": {},
        "alpha_pattern": {},
        "layers_to_transform": null,
        "layers_pattern": null,
        "revision": null,
    })
}

fn weights_file(tensors: &[NamedTensor], dtype: AdapterDtype) -> Vec<u8> {
    // Exact in both forms: a served bf16 adapter holds rounded values.
    let dtype = match dtype {
        AdapterDtype::F32 => StoredDtype::F32,
        AdapterDtype::Bf16 => StoredDtype::Bf16,
    };
    to_bytes(tensors, dtype)
}

/// The files of an adapter as PEFT loads them. A LoRA's stay as they are. A dense change becomes the
/// LoRA that it is exactly: its rank is the model's width, its scale 1, and one of the two matrices is
/// the identity (`A` of what reads the width, `B` of what writes it).
///
/// # Errors
/// What is missing or damaged.
pub fn for_peft(mut files: Vec<(String, Vec<u8>)>) -> Result<Vec<(String, Vec<u8>)>, PeftError> {
    let place = |files: &[(String, Vec<u8>)], file| {
        let found = files.iter().position(|(name, _)| name == file);
        found.ok_or(PeftError::MissingFile(file))
    };
    let at_config = place(&files, CONFIG_FILE)?;
    let at_weights = place(&files, WEIGHTS_FILE)?;
    let settings = parse_settings(&files[at_config].1)?;
    if settings.get("peft_type") != Some(&json!(DENSE)) {
        return Ok(files);
    }
    let (tensors, dtype) = parse_weights(&files[at_weights].1)?;
    let mut rank = 0;
    let mut made = Vec::with_capacity(2 * tensors.len());
    for tensor in tensors {
        let pair = as_pair(tensor)?;
        rank = pair[0].shape[0];
        made.extend(pair);
    }
    let lora = LoraConfig {
        rank,
        alpha: rank as f32,
        targets: targets(settings.get("target_modules").unwrap_or(&Value::Null), &[])?,
        rslora: false,
        dtype,
    };
    let base_name = settings.get("base_model_name_or_path");
    let base_name = base_name.and_then(Value::as_str).unwrap_or_default();
    files[at_config].1 = pretty(&config_json(&lora.into(), base_name));
    files[at_weights].1 = weights_file(&made, dtype);
    Ok(files)
}

/// A dense change as `A` and `B`.
fn as_pair(tensor: NamedTensor) -> Result<[NamedTensor; 2], PeftError> {
    let suffix = format!(".{}.weight", Part::D.name());
    let path = tensor.name.strip_suffix(&suffix);
    let module = path.and_then(|path| Target::from_module(path.rsplit('.').next()?));
    let (Some(path), Some(target), &[out, inp]) = (path, module, &tensor.shape[..]) else {
        return Err(PeftError::UnknownTensor(tensor.name));
    };
    let writes_width = matches!(target, Target::O | Target::Down);
    let width = if writes_width { out } else { inp };
    let named = |part: Part, shape: [usize; 2], data: Vec<f32>| NamedTensor {
        name: format!("{path}.{}.weight", part.name()),
        shape: shape.to_vec(),
        data,
    };
    let mut identity = vec![0.0; width * width];
    identity
        .iter_mut()
        .step_by(width + 1)
        .for_each(|v| *v = 1.0);
    Ok(if writes_width {
        let b = named(Part::B, [width, width], identity);
        [named(Part::A, [out, inp], tensor.data), b]
    } else {
        let a = named(Part::A, [width, width], identity);
        [a, named(Part::B, [out, inp], tensor.data)]
    })
}

/// Reads the configuration and the tensors of an adapter; `files` gives the content of a file by name.
pub fn read(
    files: &dyn Fn(&str) -> Option<Vec<u8>>,
) -> Result<(AdapterConfig, Vec<NamedTensor>), PeftError> {
    let config = files(CONFIG_FILE).ok_or(PeftError::MissingFile(CONFIG_FILE))?;
    let Some(weights) = files(WEIGHTS_FILE) else {
        let pickle = files(PICKLE_FILE).is_some();
        return Err(if pickle {
            PeftError::Pickle
        } else {
            PeftError::MissingFile(WEIGHTS_FILE)
        });
    };
    let settings = parse_settings(&config)?;
    let (tensors, dtype) = parse_weights(&weights)?;
    let config = parse_config(&settings, dtype, &targets_of(&tensors))?;
    Ok((config, tensors))
}

/// The content hash of the adapter in `files`, as an adapter of a model has it, without a model: every
/// tensor that the configuration calls for, layer by layer, and no other.
///
/// # Errors
/// What is missing or damaged. That its shapes fit a model is not looked at.
pub fn digest(files: &dyn Fn(&str) -> Option<Vec<u8>>) -> Result<Digest32, PeftError> {
    let config = files(CONFIG_FILE).ok_or(PeftError::MissingFile(CONFIG_FILE))?;
    let weights = files(WEIGHTS_FILE).ok_or(PeftError::MissingFile(WEIGHTS_FILE))?;
    let (tensors, dtype) = parse_weights(&weights)?;
    let settings = parse_settings(&config)?;
    let config = parse_config(&settings, dtype, &targets_of(&tensors))?.canonical();
    let parts: &[Part] = match &config {
        AdapterConfig::Lora(_) => &[Part::A, Part::B],
        AdapterConfig::Dense(_) => &[Part::D],
    };
    let named = tensors.into_iter().map(|t| (t.name.clone(), t));
    let mut by_name: BTreeMap<String, NamedTensor> = named.collect();
    let mut hash = Sha256::new();
    hash.update(config.identity());
    for layer in 0.. {
        let before = by_name.len();
        for target in config.targets() {
            for part in parts {
                let name = target.tensor_name(layer, *part);
                let Some(tensor) = by_name.remove(&name) else {
                    // A layer is there as a whole, or is behind the last one.
                    if by_name.len() < before {
                        return Err(AdapterError::Missing(name).into());
                    }
                    continue;
                };
                hash_tensor(&mut hash, &tensor.name, &tensor.shape, &tensor.data);
            }
        }
        if by_name.is_empty() {
            break;
        }
        if by_name.len() == before {
            let left = by_name.into_keys().next().unwrap_or_default();
            return Err(AdapterError::Unexpected(left).into());
        }
    }
    Ok(hash.finalize().into())
}

/// The fields of an adapter_config.json.
pub fn parse_settings(bytes: &[u8]) -> Result<Map<String, Value>, PeftError> {
    serde_json::from_slice(bytes).map_err(|e| PeftError::Damaged {
        file: CONFIG_FILE,
        why: e.to_string(),
    })
}

fn unsupported(key: &str, value: &Value, remedy: &'static str) -> PeftError {
    PeftError::Unsupported {
        key: shown(key),
        value: shown(&value.to_string()),
        remedy,
    }
}

/// The beginning of a text out of a file, so that what to do about it is read as well.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

/// Not set: absent, null, false, or an empty list or object.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Settings that change the arithmetic in ways this crate does not compute.
const MUST_BE_UNSET: [(&str, &str); 11] = [
    ("use_dora", "DoRA is not supported: train plain LoRA"),
    (
        "modules_to_save",
        "fully trained modules are not supported: train LoRA only",
    ),
    ("fan_in_fan_out", "transposed weights are not supported"),
    ("rank_pattern", "use one rank for all modules"),
    ("alpha_pattern", "use one alpha for all modules"),
    ("layers_to_transform", "train all layers"),
    ("layer_replication", "replicated layers are not supported"),
    ("lora_bias", "a bias in lora_B is not supported"),
    ("target_parameters", "target modules, not single parameters"),
    (
        "trainable_token_indices",
        "trained tokens are not supported: train LoRA only",
    ),
    (
        "alora_invocation_tokens",
        "activated LoRA is not supported: train plain LoRA",
    ),
];

fn parse_config(
    config: &Map<String, Value>,
    dtype: AdapterDtype,
    stored: &[Target],
) -> Result<AdapterConfig, PeftError> {
    let get = |key: &str| config.get(key).unwrap_or(&Value::Null);
    if get("peft_type") == DENSE {
        let targets = targets(get("target_modules"), stored)?;
        return Ok(DenseConfig { targets, dtype }.into());
    }
    if get("peft_type") != "LORA" {
        return Err(unsupported(
            "peft_type",
            get("peft_type"),
            "only LORA adapters are",
        ));
    }
    for (key, remedy) in MUST_BE_UNSET {
        if !is_unset(get(key)) {
            return Err(unsupported(key, get(key), remedy));
        }
    }
    // A variant that PEFT may add later is switched on by a key of this form.
    let variant = config
        .iter()
        .find(|(key, value)| key.starts_with("use_") && *key != "use_rslora" && !is_unset(value));
    if let Some((key, value)) = variant {
        return Err(unsupported(key, value, "train plain LoRA"));
    }
    if !matches!(get("bias"), Value::Null) && get("bias") != "none" {
        return Err(unsupported("bias", get("bias"), "train with bias: none"));
    }
    // PiSSA, OLoRA, CorDA and LoftQ also change the base weights, which are not part of the folder.
    let init = get("init_lora_weights");
    let harmless = ["gaussian", "orthogonal", "eva"];
    if !matches!(init, Value::Null | Value::Bool(_)) && !harmless.iter().any(|name| init == name) {
        let remedy = "this start changes the base weights: convert the adapter to plain LoRA first";
        return Err(unsupported("init_lora_weights", init, remedy));
    }
    let rank = get("r").as_u64().filter(|r| (1..=RANK_MAX).contains(r));
    let rank = rank.ok_or_else(|| unsupported("r", get("r"), "the rank is from 1 to 4096"))?;
    let alpha = get("lora_alpha")
        .as_f64()
        .map(|a| a as f32)
        .filter(|a| a.is_finite());
    let alpha = alpha
        .ok_or_else(|| unsupported("lora_alpha", get("lora_alpha"), "give a finite number"))?;
    let lora = LoraConfig {
        rank: rank as usize,
        alpha,
        targets: match is_unset(get("exclude_modules")) {
            true => targets(get("target_modules"), stored)?,
            // What is left is what the tensors are of.
            false => targets(&Value::from("all but some"), stored)?,
        },
        rslora: get("use_rslora") == &Value::Bool(true),
        dtype,
    };
    Ok(lora.into())
}

/// What the tensors of an adapter are of.
fn targets_of(tensors: &[NamedTensor]) -> Vec<Target> {
    let module = |name: &str| Target::from_module(name.rsplit('.').nth(2)?);
    let found: Vec<Target> = tensors.iter().filter_map(|t| module(&t.name)).collect();
    let all = Target::ALL.into_iter();
    all.filter(|target| found.contains(target)).collect()
}

/// The modules that are trained: the list of them, or, where that is an expression or paths, what the
/// stored tensors are of.
fn targets(value: &Value, stored: &[Target]) -> Result<Vec<Target>, PeftError> {
    const KEY: &str = "target_modules";
    if value == "all-linear" && stored.is_empty() {
        return Ok(Target::ALL.to_vec());
    }
    if value.as_str().is_some_and(|text| !text.is_empty()) && !stored.is_empty() {
        return Ok(stored.to_vec());
    }
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| unsupported(KEY, value, "give a list of module names"))?;
    let is_path = |name: &Value| name.as_str().is_some_and(|name| name.contains('.'));
    let one = |name: &Value| {
        let last = name.as_str().and_then(|name| name.rsplit('.').next());
        last.and_then(Target::from_module).ok_or_else(|| {
            let remedy =
                "supported are q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj";
            unsupported(KEY, name, remedy)
        })
    };
    let named: Vec<Target> = list.iter().map(one).collect::<Result<_, _>>()?;
    match list.iter().any(is_path) && !stored.is_empty() {
        true => Ok(stored.to_vec()),
        false => Ok(named),
    }
}

/// Tensors under their saved names, and bf16 if all of them are stored so.
pub fn parse_weights(bytes: &[u8]) -> Result<(Vec<NamedTensor>, AdapterDtype), PeftError> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| PeftError::Damaged {
        file: WEIGHTS_FILE,
        why: e.to_string(),
    })?;
    let mut tensors: Vec<NamedTensor> = Vec::new();
    let mut names = BTreeSet::new();
    let mut dtype = AdapterDtype::Bf16;
    let mut stored: Vec<(String, TensorView<'_>)> = file.tensors();
    stored.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, view) in stored {
        let saved_name = name
            .replace(".lora_A.default.weight", ".lora_A.weight")
            .replace(".lora_B.default.weight", ".lora_B.weight");
        let is_known = |part: Part| saved_name.ends_with(&format!(".{}.weight", part.name()));
        if ![Part::A, Part::B, Part::D].into_iter().any(is_known) {
            return Err(PeftError::UnknownTensor(shown(&name)));
        }
        if !names.insert(saved_name.clone()) {
            return Err(PeftError::Duplicate(shown(&saved_name)));
        }
        let halves = || {
            view.data()
                .chunks_exact(2)
                .map(|b| u16::from_le_bytes([b[0], b[1]]))
        };
        let data = match view.dtype() {
            Dtype::F32 => {
                let words = view.data().chunks_exact(4);
                words
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                    .collect()
            }
            Dtype::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
            Dtype::BF16 => halves().map(bf16_to_f32).collect(),
            other => {
                return Err(PeftError::WrongDtype {
                    name: shown(&name),
                    dtype: format!("{other:?}"),
                });
            }
        };
        if view.dtype() != Dtype::BF16 {
            dtype = AdapterDtype::F32;
        }
        tensors.push(NamedTensor {
            name: saved_name,
            shape: view.shape().to_vec(),
            data,
        });
    }
    Ok((tensors, dtype))
}
