//! A model folder as the ecosystem writes it: config.json, safetensors, tokenizer.json,
//! tokenizer_config.json with a chat template, generation_config.json. From disk or from bytes
//! built into the program; or one GGUF file, whose metadata stands for these files. Everything that can be wrong with it is found here, before anything is
//! served, and told in one sentence.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::arithmetic::Arithmetic;
use crate::config::ModelConfig;
use crate::files::{CONFIG, Files, GENERATION, TOKENIZER, TOKENIZER_CONFIG};
use crate::gguf::{Gguf, ROPE_FACTORS};
use crate::quant::WeightFormat;
use crate::source::{LoadError, TensorData, TensorSource};
use crate::template::ChatTemplate;
use crate::tensors::TensorFiles;
use crate::tokenizer::Tokenizer;
use crate::weights::{Keep, Model, Weights, is_compact};

const TEMPLATE: &str = "chat_template.jinja";
/// The template for conversations with tools, where that is another.
const TOOL_TEMPLATE: &str = "additional_chat_templates/tool_use.jinja";
const PROCESSOR_TEMPLATE: &str = "chat_template.json";

const WHY_TOKENIZER: &str = "the tokenizer is read from it; AutoTokenizer.from_pretrained(folder) and \
                             save_pretrained(folder) of the transformers library write one";

/// What the folder suggests for sampling.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Tokens that end a completion, ascending.
    pub eos_ids: Vec<u32>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    /// Only told: turns that were sampled with a penalty do not train.
    pub repetition_penalty: Option<f32>,
}

/// A checked model folder or GGUF file. Weights are opened but not yet read.
#[derive(Debug)]
pub struct ModelFolder {
    config: ModelConfig,
    tensors: TensorFiles,
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    generation: GenerationDefaults,
}

impl ModelFolder {
    /// Opens a folder on disk, or a GGUF file.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        if path.is_file() {
            return Self::from_files(&Files::Gguf(Arc::new(Gguf::open(path)?)));
        }
        if !path.is_dir() {
            return Err(LoadError::MissingFile {
                file: path.display().to_string(),
                why: "there is no such folder or file; give the path of a model folder or of a GGUF file"
                    .to_owned(),
            });
        }
        Self::from_files(&Files::Folder(path.to_owned()))
    }

    /// Opens files that are part of the program: (file name, content).
    pub fn embedded(files: &[(&str, &'static [u8])]) -> Result<Self, LoadError> {
        let files = files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), *bytes))
            .collect();
        Self::from_files(&Files::Embedded(files))
    }

    fn from_files(files: &Files) -> Result<Self, LoadError> {
        let raw = files.read(CONFIG, &why_config(files))?;
        let mut config = ModelConfig::from_json(&raw, &files.label(CONFIG))?;
        let tensors = TensorFiles::from_files(files)?;
        config.dtype = tensors.dtype();
        let tokenizer = files.read(TOKENIZER, WHY_TOKENIZER)?;
        let tokenizer = Tokenizer::from_json(&tokenizer, &files.label(TOKENIZER))?;
        if tokenizer.vocab_size() > config.vocab {
            return Err(LoadError::Tokenizer {
                file: files.label(TOKENIZER),
                why: format!(
                    "has {} tokens, but the model's vocabulary (vocab_size in config.json, rows of \
                     tensor model.embed_tokens.weight) has only {}; take the tokenizer that belongs \
                     to the weights",
                    tokenizer.vocab_size(),
                    config.vocab
                ),
            });
        }
        let settings = object(files, TOKENIZER_CONFIG)?;
        let generation = generation(files, &settings, &tokenizer, config.vocab)?;
        Ok(Self {
            template: Arc::new(template(files, &settings)?),
            tokenizer: Arc::new(tokenizer),
            config,
            tensors,
            generation,
        })
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub fn tensors(&self) -> &TensorFiles {
        &self.tensors
    }

    pub fn tokenizer(&self) -> Arc<Tokenizer> {
        Arc::clone(&self.tokenizer)
    }

    pub fn template(&self) -> Arc<ChatTemplate> {
        Arc::clone(&self.template)
    }

    pub fn generation(&self) -> &GenerationDefaults {
        &self.generation
    }
}

/// What it takes to speak to a model whose weights somebody else reads.
#[derive(Debug)]
pub struct Speech {
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its template.
    pub template: Arc<ChatTemplate>,
    /// Tokens that end a completion, ascending.
    pub eos_ids: Vec<u32>,
}

impl Speech {
    /// Reads it from a folder on disk, or from a GGUF file.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let files = match path.is_file() {
            true => Files::Gguf(Arc::new(Gguf::open(path)?)),
            false => Files::Folder(path.to_owned()),
        };
        let tokenizer = files.read(TOKENIZER, WHY_TOKENIZER)?;
        let tokenizer = Tokenizer::from_json(&tokenizer, &files.label(TOKENIZER))?;
        let settings = object(&files, TOKENIZER_CONFIG)?;
        let vocab = tokenizer.vocab_size();
        Ok(Self {
            eos_ids: generation(&files, &settings, &tokenizer, vocab)?.eos_ids,
            template: Arc::new(template(&files, &settings)?),
            tokenizer: Arc::new(tokenizer),
        })
    }
}

/// What takes its time while a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadStage {
    /// Counted in bytes of the files.
    Reading,
    /// Its digest is taken, over four bytes for each parameter.
    Hashing,
}

/// Is told (stage, bytes done, bytes in all) after every tensor.
pub type LoadProgress<'a> = dyn FnMut(LoadStage, u64, u64) + 'a;

/// How a model is to be loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadAs {
    /// How matrices are kept.
    pub format: WeightFormat,
    /// What will compute it, as far as that is known: weights that [`Weights::computed_by`] then keeps in less
    /// memory are so from the moment they are read.
    pub arithmetic: Arithmetic,
}

/// Reads all weights as they are stored.
pub fn load_model(folder: &ModelFolder, progress: &mut LoadProgress) -> Result<Model, LoadError> {
    load_model_as(folder, LoadAs::default(), progress)
}

/// As [`load_model`], as `wanted`.
pub fn load_model_as(
    folder: &ModelFolder,
    wanted: LoadAs,
    progress: &mut LoadProgress,
) -> Result<Model, LoadError> {
    let names = folder.tensors.names();
    let bytes = names.iter().map(|name| folder.tensors.stored_bytes(name));
    let total = bytes.sum();
    let keep = Keep {
        format: wanted.format,
        compact: is_compact(wanted.arithmetic, total as usize),
    };
    let source = Watched {
        files: &folder.tensors,
        total,
        seen: RefCell::new(Seen {
            done: 0,
            names: BTreeSet::new(),
            progress: &mut *progress,
        }),
    };
    let weights = Weights::from_source_as(&folder.config, &source, keep)?;
    let used = source.seen.into_inner().names;
    let unused = names
        .iter()
        .find(|name| !used.contains(*name) && !spare(name, &folder.config));
    if let Some(name) = unused {
        return Err(LoadError::UnexpectedTensor {
            file: folder.tensors.label_of(name).to_owned(),
            tensor: name.clone(),
        });
    }
    let (mut done, total) = (0, 4 * weights.parameters(&folder.config) as u64);
    let mut hashed = |bytes| {
        done += bytes;
        progress(LoadStage::Hashing, done, total);
    };
    Ok(Model::watched(folder.config.clone(), weights, &mut hashed))
}

/// Tensors that some writers store although nothing needs them: rotary tables, and the head of a
/// model whose head is the embedding.
fn spare(name: &str, config: &ModelConfig) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || name == ROPE_FACTORS
        || (config.tied && name == "lm_head.weight")
}

/// Passes reads through, and remembers what was read.
struct Watched<'a> {
    files: &'a TensorFiles,
    total: u64,
    seen: RefCell<Seen<'a>>,
}

struct Seen<'a> {
    done: u64,
    names: BTreeSet<String>,
    progress: &'a mut LoadProgress<'a>,
}

impl TensorSource for Watched<'_> {
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<TensorData, LoadError> {
        let data = self.files.tensor(name, shape)?;
        let mut seen = self.seen.borrow_mut();
        if seen.names.insert(name.to_owned()) {
            seen.done += self.files.stored_bytes(name);
        }
        let done = seen.done;
        (seen.progress)(LoadStage::Reading, done, self.total);
        Ok(data)
    }

    fn names(&self) -> Vec<String> {
        self.files.names()
    }
}

/// A JSON object file; empty if there is none.
fn object(files: &Files, name: &str) -> Result<Map<String, Value>, LoadError> {
    if !files.exists(name) {
        return Ok(Map::new());
    }
    match files.read_json(name, "")? {
        Value::Object(map) => Ok(map),
        _ => Err(LoadError::BadJson {
            file: files.label(name),
            why: "expected an object".to_owned(),
        }),
    }
}

/// What a folder without a config.json may be.
fn why_config(files: &Files) -> String {
    let Files::Folder(root) = files else {
        return "every model folder has one".to_owned();
    };
    let names = root.read_dir().into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    match names.filter(|name| name.ends_with(".gguf")).min() {
        Some(name) => format!("of a folder of GGUF files give one file, such as {name}"),
        None => "every model folder has one".to_owned(),
    }
}

/// A special token is written as a string, or as an object with its content.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// The template for conversations, and the one for those with tools where that is another: in files of
/// their own where there are such, else in tokenizer_config.json (one alone, or a list with names). A model
/// without one still serves plain completions.
fn template(files: &Files, settings: &Map<String, Value>) -> Result<ChatTemplate, LoadError> {
    let named = |name: &str| match settings.get("chat_template") {
        Some(Value::Array(list)) => {
            let named = list.iter().find(|t| t["name"] == name);
            named.and_then(|t| t["template"].as_str())
        }
        _ => None,
    };
    let from_file = |name: &str| -> Result<Option<(String, String)>, LoadError> {
        if !files.exists(name) {
            return Ok(None);
        }
        let bytes = files.read(name, "")?;
        let source = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Some((files.label(name), source)))
    };
    let in_settings = |source: &str| (files.label(TOKENIZER_CONFIG), source.to_owned());
    let alone = || match settings.get("chat_template") {
        Some(Value::Array(list)) => list.first().and_then(|t| t["template"].as_str()),
        Some(value) => value.as_str(),
        None => None,
    };
    let usual = match from_file(TEMPLATE)? {
        Some(found) => Some(found),
        None => match named("default").or_else(alone).map(in_settings) {
            Some(found) => Some(found),
            None => processor_template(files)?,
        },
    };
    let for_tools = match from_file(TOOL_TEMPLATE)? {
        Some(found) => Some(found),
        None => named("tool_use").map(in_settings),
    };
    let tokens = settings.iter().filter(|(key, _)| key.ends_with("_token"));
    let tokens: Map<String, Value> = tokens
        .filter_map(|(key, value)| Some((key.clone(), Value::from(token_text(value)?))))
        .collect();
    let compiled = |(file, source): (String, String)| {
        ChatTemplate::new(&source, tokens.clone()).map_err(|e| LoadError::Template {
            file,
            why: e.to_string(),
        })
    };
    let usual = usual.map(compiled).transpose()?;
    let for_tools = for_tools.map(compiled).transpose()?;
    Ok(match (usual, for_tools) {
        (Some(usual), Some(for_tools)) => usual.with_tools(for_tools),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => ChatTemplate::none(),
    })
}

/// The template of a processor's own file, which some folders have instead.
fn processor_template(files: &Files) -> Result<Option<(String, String)>, LoadError> {
    if !files.exists(PROCESSOR_TEMPLATE) {
        return Ok(None);
    }
    let fields = object(files, PROCESSOR_TEMPLATE)?;
    let source = fields.get("chat_template").and_then(Value::as_str);
    Ok(source.map(|source| (files.label(PROCESSOR_TEMPLATE), source.to_owned())))
}

fn generation(
    files: &Files,
    settings: &Map<String, Value>,
    tokenizer: &Tokenizer,
    vocab: usize,
) -> Result<GenerationDefaults, LoadError> {
    let suggested = object(files, GENERATION)?;
    let (file, eos) = match suggested.get("eos_token_id").filter(|v| !v.is_null()) {
        Some(value) => (GENERATION, Some(value.clone())),
        None => (CONFIG, object(files, CONFIG)?.get("eos_token_id").cloned()),
    };
    let listed = match eos {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => list,
        Some(one) => vec![one],
    };
    // An end that the model cannot say does no harm beside one that it can.
    let fits = |id: &Value| id.as_u64().filter(|id| *id < vocab as u64);
    let mut eos_ids: Vec<u32> = listed.iter().filter_map(fits).map(|id| id as u32).collect();
    if let Some(id) = listed.first().filter(|_| eos_ids.is_empty()) {
        return Err(LoadError::BadKey {
            file: files.label(file),
            key: "eos_token_id".to_owned(),
            why: format!("names token {id}, but the vocabulary has {vocab} tokens"),
        });
    }
    // Models trained on from others often have a new end here, and the old one's file.
    let text = settings.get("eos_token").and_then(token_text);
    eos_ids.extend(text.and_then(|text| tokenizer.id_of(text)));
    eos_ids.sort_unstable();
    eos_ids.dedup();
    let number = |key: &str| suggested.get(key).and_then(Value::as_f64).map(|x| x as f32);
    Ok(GenerationDefaults {
        eos_ids,
        temperature: number("temperature").filter(|t| t.is_finite() && *t >= 0.0),
        top_p: number("top_p").filter(|p| (0.0..=1.0).contains(p)),
        top_k: suggested
            .get("top_k")
            .and_then(Value::as_u64)
            .and_then(|k| u32::try_from(k).ok()),
        repetition_penalty: number("repetition_penalty").filter(|p| *p != 1.0),
    })
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
