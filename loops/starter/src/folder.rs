//! The model folder in the Hugging Face layout: what is written, and the copy inside this binary.

use std::fs;
use std::path::Path;

use half::bf16;
use hone_checkpoint::{Family, ModelConfig, NamedTensor, StoredDtype};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use crate::error::StarterError;
use crate::tokens::{END_OF_TEXT, IM_END, IM_START};

/// The chat template, in the language of the `transformers` library.
pub const CHAT_TEMPLATE: &str = include_str!("files/chat_template.jinja");

/// Positions the model serves: all layers look back a fixed window, so length costs no quality.
pub const POSITIONS: usize = 32_768;

/// The sizes of a starter model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub ffn: usize,
    /// Latest positions (own one included) every layer sees.
    pub window: usize,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            hidden: 128,
            layers: 4,
            heads: 4,
            kv_heads: 2,
            head_dim: 32,
            ffn: 384,
            window: 512,
        }
    }
}

impl Shape {
    /// The Qwen3 configuration of this shape.
    pub fn config(self, vocabulary: usize, dtype: StoredDtype) -> ModelConfig {
        ModelConfig {
            family: Family::Qwen3,
            vocab: vocabulary,
            hidden: self.hidden,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            ffn: self.ffn,
            max_positions: POSITIONS,
            rms_eps: 1e-6,
            rope_theta: 10_000.0,
            rope_scaling: None,
            tied: true,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            qk_norm: true,
            windows: vec![Some(self.window); self.layers],
            experts: None,
            dtype,
        }
    }
}

/// One file of a folder.
pub type FolderFile = (String, Vec<u8>);

/// All files of a folder but the weights.
pub fn description(config: &ModelConfig, tokenizer: &str, end_ids: [u32; 2]) -> Vec<FolderFile> {
    let mut model = config.to_json();
    model["max_window_layers"] = json!(0);
    model["eos_token_id"] = json!(end_ids[0]);
    model["bos_token_id"] = serde_json::Value::Null;
    model["initializer_range"] = json!(0.02);
    let generation = json!({
        "do_sample": true,
        "temperature": 1.0,
        "eos_token_id": end_ids,
        "pad_token_id": end_ids[1],
    });
    let words = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [IM_START, IM_END],
        "clean_up_tokenization_spaces": false,
        "chat_template": CHAT_TEMPLATE,
    });
    let pretty = |value: &serde_json::Value| -> Vec<u8> {
        let mut text = serde_json::to_string_pretty(value).expect("plain JSON prints");
        text.push('\n');
        text.into_bytes()
    };
    vec![
        ("config.json".to_owned(), pretty(&model)),
        ("generation_config.json".to_owned(), pretty(&generation)),
        ("tokenizer_config.json".to_owned(), pretty(&words)),
        ("tokenizer.json".to_owned(), tokenizer.as_bytes().to_vec()),
    ]
}

/// The weights as one safetensors file of bf16, rounded to nearest even.
pub fn weights_file(tensors: &[NamedTensor]) -> Result<FolderFile, StarterError> {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|tensor| {
            tensor
                .data
                .iter()
                .flat_map(|x| bf16::from_f32(*x).to_le_bytes())
                .collect()
        })
        .collect();
    let views = tensors
        .iter()
        .zip(&bytes)
        .map(|(tensor, bytes)| {
            let view = TensorView::new(Dtype::BF16, tensor.shape.clone(), bytes)?;
            Ok((tensor.name.as_str(), view))
        })
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    let about = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
    Ok((
        "model.safetensors".to_owned(),
        safetensors::serialize(views, Some(about))?,
    ))
}

/// Writes the files into a folder, which is made if it is not there.
pub fn write(folder: &Path, files: &[FolderFile]) -> Result<(), StarterError> {
    let failed = |path: &Path, source| StarterError::Write {
        path: path.display().to_string(),
        source,
    };
    fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    for (name, bytes) in files {
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// The files of the built-in starter model: (file name, bytes).
pub fn model_files() -> &'static [(&'static str, &'static [u8])] {
    &[
        ("config.json", include_bytes!("../model/config.json")),
        (
            "generation_config.json",
            include_bytes!("../model/generation_config.json"),
        ),
        (
            "tokenizer_config.json",
            include_bytes!("../model/tokenizer_config.json"),
        ),
        ("tokenizer.json", include_bytes!("../model/tokenizer.json")),
        (
            "model.safetensors",
            include_bytes!("../model/model.safetensors"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hone_checkpoint::TensorSource;
    use hone_nn::Model;
    use hone_text::folder::ModelFolder;
    use serde_json::Map;

    use super::*;
    use crate::grammar::Grammar;
    use crate::tokens::{ChatEncoder, VOCABULARY, train_tokenizer};

    fn tiny() -> Shape {
        Shape {
            hidden: 32,
            layers: 2,
            heads: 2,
            kv_heads: 1,
            head_dim: 16,
            ffn: 64,
            window: 8,
        }
    }

    #[test]
    fn a_written_folder_opens_with_the_same_shape_and_weights() {
        let tokenizer = train_tokenizer(&Grammar::new(), 1).unwrap();
        let config = tiny().config(VOCABULARY, StoredDtype::Bf16);
        let model = Model::random(config.clone(), 4);
        let tensors = model.weights.to_tensors(&config);
        let ends = ChatEncoder::new(&tokenizer).unwrap().end_ids();
        let mut files = description(&config, &tokenizer, ends);
        files.push(weights_file(&tensors).unwrap());
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &files).unwrap();
        let opened = ModelFolder::open(folder.path()).unwrap();
        assert_eq!(*opened.config(), config);
        let mut sorted = ends;
        sorted.sort_unstable();
        assert_eq!(opened.generation().eos_ids, sorted);
        for tensor in &tensors {
            let read = opened
                .tensors()
                .tensor(&tensor.name, &tensor.shape)
                .unwrap()
                .into_f32();
            let rounded: Vec<f32> = tensor
                .data
                .iter()
                .map(|x| bf16::from_f32(*x).to_f32())
                .collect();
            assert_eq!(read, rounded, "{}", tensor.name);
        }
    }

    #[test]
    fn the_template_lays_messages_out_as_rows_are_and_renders_tools_and_tool_calls() {
        let folder = ModelFolder::embedded(model_files()).unwrap();
        let render = |messages: serde_json::Value, tools: Option<&[serde_json::Value]>| {
            let messages = messages.as_array().unwrap().clone();
            folder
                .template()
                .render(&messages, tools, true, &Map::new())
                .unwrap()
        };
        let messages = json!([
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
            {"role": "tool", "content": "42"},
        ]);
        let after = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n\n<tool_call>\
            {\"name\": \"look\", \"arguments\": \"{}\"}</tool_call><|im_end|>\n\
            <|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n";
        let plain = render(messages.clone(), None);
        assert_eq!(
            plain,
            format!("<|im_start|>system\nBe kind.<|im_end|>\n{after}")
        );
        let tool = [json!({"type": "function", "function": {"name": "look"}})];
        let told = render(messages, Some(&tool));
        let head = "<|im_start|>system\nBe kind.\n\nTools:\n\
            {\"type\": \"function\", \"function\": {\"name\": \"look\"}}\n<|im_end|>\n";
        assert_eq!(told, format!("{head}{after}"));
        assert_eq!(render(json!([]), None), "<|im_start|>assistant\n");
    }

    #[test]
    fn the_built_in_folder_is_small_and_its_tokenizer_is_that_of_the_recipe() {
        let bytes: usize = model_files().iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(bytes < 6_000_000, "{bytes} bytes");
        let tokenizer = model_files()
            .iter()
            .find(|(name, _)| *name == "tokenizer.json")
            .unwrap();
        let trained = train_tokenizer(&Grammar::new(), 1).unwrap();
        assert!(
            tokenizer.1 == trained.as_bytes(),
            "train the starter model again"
        );
    }
}
