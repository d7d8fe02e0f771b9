//! What it takes to speak to a model: tokenizer, chat template, end tokens, suggested sampling. Read from
//! tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json of a folder, from
//! a GGUF file, or from bytes built into the program.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use hone_checkpoint::checkpoint::existing;
use hone_checkpoint::files::{CONFIG, Files, GENERATION, TOKENIZER, TOKENIZER_CONFIG};
use hone_checkpoint::{Checkpoint, LoadError, ModelConfig, TensorFiles};

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
    checkpoint: Checkpoint,
    tokenizer: Arc<Tokenizer>,
    template: Arc<ChatTemplate>,
    generation: GenerationDefaults,
}

impl ModelFolder {
    /// Opens a folder on disk, or a GGUF file.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        Self::from_files(&existing(path)?)
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
        let checkpoint = Checkpoint::from_files(files)?;
        let config = checkpoint.config();
        let settings = files.read_object(TOKENIZER_CONFIG)?;
        let template = template(files, &settings)?;
        let tokenizer = fitting_tokenizer(files, config.vocab, &template)?;
        let generation = generation(files, &settings, &tokenizer, config.vocab)?;
        Ok(Self {
            template: Arc::new(template),
            tokenizer: Arc::new(tokenizer),
            checkpoint,
            generation,
        })
    }

    /// Shape and weights.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    pub fn config(&self) -> &ModelConfig {
        self.checkpoint.config()
    }

    pub fn tensors(&self) -> &TensorFiles {
        self.checkpoint.tensors()
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
        let files = Files::open(path)?;
        let tokenizer = files.read(TOKENIZER, WHY_TOKENIZER)?;
        let tokenizer = Tokenizer::from_json(&tokenizer, &files.label(TOKENIZER))?;
        let settings = files.read_object(TOKENIZER_CONFIG)?;
        let vocab = tokenizer.vocab_size();
        Ok(Self {
            eos_ids: generation(&files, &settings, &tokenizer, vocab)?.eos_ids,
            template: Arc::new(template(&files, &settings)?),
            tokenizer: Arc::new(tokenizer),
        })
    }
}

/// The tokenizer of a model with `vocab` tokens. Added tokens beyond these are left out where the template
/// does not write them: libraries add a padding token that the weights have no row for.
fn fitting_tokenizer(
    files: &Files,
    vocab: usize,
    template: &ChatTemplate,
) -> Result<Tokenizer, LoadError> {
    let (file, bytes) = (
        files.label(TOKENIZER),
        files.read(TOKENIZER, WHY_TOKENIZER)?,
    );
    let whole = Tokenizer::from_json(&bytes, &file)?;
    if whole.vocab_size() <= vocab {
        return Ok(whole);
    }
    let fitting = without_surplus(&bytes, vocab, template);
    let fitting = fitting.map(|bytes| Tokenizer::from_json(&bytes, &file));
    match fitting.transpose()? {
        Some(tokenizer) if tokenizer.vocab_size() <= vocab => Ok(tokenizer),
        _ => Err(LoadError::Tokenizer {
            file,
            why: format!(
                "has {} tokens, but the model's vocabulary (vocab_size in config.json, rows of tensor \
                 model.embed_tokens.weight) has only {vocab}; take the tokenizer that belongs to the \
                 weights",
                whole.vocab_size()
            ),
        }),
    }
}

/// A tokenizer.json without the added tokens that have no place among `vocab`; none where the template
/// writes one of them.
fn without_surplus(bytes: &[u8], vocab: usize, template: &ChatTemplate) -> Option<Vec<u8>> {
    let mut json: Value = serde_json::from_slice(bytes).ok()?;
    let added = json["added_tokens"].as_array_mut()?;
    let is_surplus = |token: &Value| token["id"].as_u64().is_some_and(|id| id >= vocab as u64);
    let written = |token: &Value| {
        let content = token["content"].as_str().unwrap_or_default();
        content.is_empty() || template.writes(content)
    };
    if added
        .iter()
        .any(|token| is_surplus(token) && written(token))
    {
        return None;
    }
    added.retain(|token| !is_surplus(token));
    serde_json::to_vec(&json).ok()
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
    let fields = files.read_object(PROCESSOR_TEMPLATE)?;
    let source = fields.get("chat_template").and_then(Value::as_str);
    Ok(source.map(|source| (files.label(PROCESSOR_TEMPLATE), source.to_owned())))
}

fn generation(
    files: &Files,
    settings: &Map<String, Value>,
    tokenizer: &Tokenizer,
    vocab: usize,
) -> Result<GenerationDefaults, LoadError> {
    let suggested = files.read_object(GENERATION)?;
    let (file, eos) = match suggested.get("eos_token_id").filter(|v| !v.is_null()) {
        Some(value) => (GENERATION, Some(value.clone())),
        None => (
            CONFIG,
            files.read_object(CONFIG)?.get("eos_token_id").cloned(),
        ),
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
    let end = text.and_then(|text| tokenizer.id_of(text));
    eos_ids.extend(end.filter(|id| (*id as usize) < vocab));
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
