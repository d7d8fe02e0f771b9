//! Loads what is served, before any port is bound.

use std::path::Path;
use std::sync::Arc;

use hone_domain::{Sampling, Token};
use hone_kernels::{ComputeType, Executor};
use hone_nn::{BLOCK_TOKENS, Computing, DeviceModel, LoadAs, LoadStage, Model, load_model_as};
use hone_runtime::Clock;
use hone_serve::{Backend as _, Engine as ServeEngine, NullBackend, NullCompletion};
use hone_text::folder::ModelFolder;
use hone_text::tokenizer::Tokenizer;
use serde_json::{Map, json};

use crate::config::{Engine, ModelConfig, Products};
use crate::device::{self, Choice, OpenCuda};
use crate::hub::{self, HubAccess};
use crate::memory;
use crate::progress::{Progress, Unit};
use hone_inference::computed::Computed;
use hone_inference::{ByteLanguage, Language, ModelLanguage};

/// What the backend without a model says.
const NULL_TEXT: &str = "This completion comes from the null engine.";
/// The token after the 256 bytes ends it.
const NULL_END: Token = 256;

/// A loaded model with the threads that compute it; serve and train share both.
#[derive(Clone)]
pub struct Builtin {
    /// Weights.
    pub model: Arc<Model>,
    /// Tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Compute threads.
    pub executor: Arc<Executor>,
    /// The device that serving computes on; none is the processor.
    pub device: Option<Arc<dyn DeviceModel>>,
    /// Tokens that end a completion.
    pub end_tokens: Vec<Token>,
}

/// What is served.
pub struct Served {
    /// Templates and tokens.
    pub language: Arc<dyn Language>,
    /// The model; none with the null engine.
    pub builtin: Option<Builtin>,
}

/// Loads the configured model. The error names the file, the tensor and the remedy.
pub fn load(config: &ModelConfig, access: &HubAccess) -> Result<Served, String> {
    load_on(config, access, device::cuda)
}

/// As [`load`], where `cuda` opens the CUDA device.
pub fn load_on(config: &ModelConfig, access: &HubAccess, cuda: OpenCuda) -> Result<Served, String> {
    if config.engine == Engine::Null {
        return Ok(Served {
            language: Arc::new(ByteLanguage),
            builtin: None,
        });
    }
    let folder = if config.path.is_empty() {
        ModelFolder::embedded(hone_starter::model_files())
    } else {
        let path = hub::folder(&config.path, access)?;
        memory::check_model(bytes(&path))?;
        ModelFolder::open(&path)
    };
    let folder = folder.map_err(|error| error.to_string())?;
    let model = Arc::new(weights(&folder, config)?);
    let executor = Arc::new(Executor::new(config.thread_count()));
    let device = device::open((config.device, cuda), &model, &executor)?;
    let model = computed(model, config, device.is_some())?;
    let generation = folder.generation();
    if let Some(penalty) = generation.repetition_penalty {
        tracing::info!(
            "the model suggests a repetition_penalty of {penalty}, which is left out: turns that were \
             sampled with a penalty do not train; clients may ask for it"
        );
    }
    let base = Sampling::default();
    let language = ModelLanguage {
        tokenizer: folder.tokenizer(),
        template: folder.template(),
        defaults: Sampling {
            temperature: generation.temperature.unwrap_or(base.temperature),
            top_p: generation.top_p.unwrap_or(base.top_p),
            top_k: generation.top_k.unwrap_or(base.top_k),
            ..base
        },
    };
    Ok(Served {
        language: Arc::new(language),
        builtin: Some(Builtin {
            model,
            tokenizer: folder.tokenizer(),
            executor,
            device,
            end_tokens: generation.eos_ids.clone(),
        }),
    })
}

/// Bytes of a model's file, or of the files of its folder; 0 where they cannot be read, which whoever opens
/// them says.
fn bytes(path: &Path) -> u64 {
    let length = |path: &Path| path.metadata().map_or(0, |meta| meta.len());
    let Ok(entries) = std::fs::read_dir(path) else {
        return length(path);
    };
    entries.flatten().map(|entry| length(&entry.path())).sum()
}

/// The model as it is computed here, where a device serves or not.
pub fn computed(
    model: Arc<Model>,
    config: &ModelConfig,
    on_device: bool,
) -> Result<Arc<Model>, String> {
    let quickest = model.weights.quickest();
    let arithmetic = config.arithmetic.arithmetic(quickest, on_device)?;
    let kv = config.kv.format(&model, on_device)?;
    let as_it_is = (model.weights.compute_type(), model.kv);
    if as_it_is == (arithmetic, kv) && arithmetic == ComputeType::F32 {
        return Ok(model);
    }
    // Nobody else holds it yet, so nothing is copied.
    let model = Arc::unwrap_or_clone(model).with_compute_type(arithmetic);
    if config.arithmetic == Products::Int8 && model.weights.compute_type() != arithmetic {
        return Err(
            "model.arithmetic is \"int8\", but no matrix of this model is kept in eight or four bits with whole \
             groups of 32 inputs; set model.weights to \"q8\" or \"q4\", or model.arithmetic to \"auto\""
                .to_owned(),
        );
    }
    Ok(Arc::new(model.with_kv(kv)))
}

/// Models from this size on show how far their loading has come.
const PROGRESS_FROM_BYTES: u64 = 64 << 20;

fn weights(folder: &ModelFolder, config: &ModelConfig) -> Result<Model, String> {
    let may_be_bf16 = matches!(
        config.arithmetic,
        Products::Auto | Products::Bf16 | Products::Amx
    );
    let wanted = LoadAs {
        format: config.weights.into(),
        compute_type: match config.device == Choice::Cpu && may_be_bf16 {
            true => ComputeType::Bf16,
            false => ComputeType::F32,
        },
    };
    let mut shown: Option<(LoadStage, Progress)> = None;
    let loaded = load_model_as(folder.checkpoint(), wanted, &mut |stage, done, total| {
        // The bar of one stage leaves before the next one comes.
        shown.take_if(|(last, _)| *last != stage);
        let begin = || {
            let what = match stage {
                LoadStage::Reading => "reading the model",
                LoadStage::Hashing => "hashing the model",
            };
            (
                stage,
                Progress::new(what, (Unit::Bytes, PROGRESS_FROM_BYTES)),
            )
        };
        shown.get_or_insert_with(begin).1.at(done, total);
    });
    loaded.map_err(|error| error.to_string())
}

/// How a model is computed by the engine that serves it.
pub fn computed_by(builtin: &Builtin, engine: &ServeEngine) -> Computed {
    let how = Computing::of(&builtin.model);
    Computed {
        device: builtin.device.as_ref().map(|device| device.name()),
        processor: how.processor,
        threads: builtin.executor.threads(),
        arithmetic: how.arithmetic,
        weights: how.weights,
        weights_bytes: how.weights_bytes,
        kv_format: how.kv,
        kv_tokens: engine.stats().kv_blocks_total * BLOCK_TOKENS,
    }
}

/// The backend without a model.
pub fn null_backend(clock: Arc<dyn Clock>) -> NullBackend {
    let pieces = NULL_TEXT.chars().map(|c| (c as Token, c.to_string()));
    let said = NullCompletion {
        pieces: pieces.collect(),
        end_token: NULL_END,
        max_positions: 1 << 20,
        vocab: NULL_END as usize + 1,
    };
    NullBackend::new(said, clock)
}

/// The questions that probe a candidate, as tokens. One that the template refuses is left out.
pub fn probes(language: &dyn Language, prompts: &[String]) -> Vec<Vec<Token>> {
    let render = |prompt: &String| {
        let message = json!({ "role": "user", "content": prompt });
        match language.render(&[message], None, &Map::new()) {
            Ok(text) => Some(language.encode(&text, false)),
            Err(error) => {
                tracing::warn!(%error, "a probe prompt was left out");
                None
            }
        }
    };
    prompts.iter().filter_map(render).collect()
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
