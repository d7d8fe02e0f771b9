#![allow(clippy::unwrap_used)]
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::text_support::byte_tokenizer_json;
use crate::load::{LoadStage, load_model};
use crate::weights::{Model, Weights};
use hone_checkpoint::config::StoredDtype;
use hone_checkpoint::tensor_files::to_bytes;
use hone_checkpoint::{LoadError, ModelConfig, NamedTensor};
use hone_text::folder::{GenerationDefaults, ModelFolder};
use serde_json::{Map, Value};

/// A small but complete folder that tests then break.
struct Sample {
    dir: tempfile::TempDir,
    config: Value,
    tensors: Vec<NamedTensor>,
}

impl Sample {
    fn new() -> Self {
        let config = json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 272,
            "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
            "max_position_embeddings": 64, "tie_word_embeddings": true, "eos_token_id": 259,
        });
        let bytes = serde_json::to_vec(&config).unwrap();
        let parsed = ModelConfig::from_json(&bytes, "config.json").unwrap();
        let tensors = Weights::random(&parsed, 1).to_tensors(&parsed);
        let sample = Self {
            dir: tempfile::tempdir().unwrap(),
            config,
            tensors,
        };
        sample.write();
        sample
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self) {
        fs::write(
            self.path("config.json"),
            serde_json::to_vec(&self.config).unwrap(),
        )
        .unwrap();
        fs::write(self.path("tokenizer.json"), byte_tokenizer_json()).unwrap();
        fs::write(
            self.path("model.safetensors"),
            safetensors_bytes(&self.tensors),
        )
        .unwrap();
    }

    /// Two shards and their index instead of one file.
    fn write_sharded(&self) {
        fs::remove_file(self.path("model.safetensors")).unwrap();
        let (first, second) = self.tensors.split_at(5);
        let mut map = Map::new();
        for (file, tensors) in [("a.safetensors", first), ("b.safetensors", second)] {
            fs::write(self.path(file), safetensors_bytes(tensors)).unwrap();
            map.extend(tensors.iter().map(|t| (t.name.clone(), json!(file))));
        }
        self.write_index(&map);
    }

    fn write_index(&self, map: &Map<String, Value>) {
        let index = serde_json::to_vec(&json!({"weight_map": map})).unwrap();
        fs::write(self.path("model.safetensors.index.json"), index).unwrap();
    }

    fn load(&self) -> Result<Model, LoadError> {
        load_model(
            ModelFolder::open(self.dir.path())?.checkpoint(),
            &mut |_, _, _| {},
        )
    }

    /// Loading fails with one sentence that holds every one of `parts`.
    fn fails(&self, parts: &[&str]) {
        let error = self.load().unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{error:?} lacks {part:?}");
        }
        assert!(!error.contains('\n'), "{error}");
    }

    fn tensor(&mut self, name: &str) -> &mut NamedTensor {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }
}

fn safetensors_bytes(tensors: &[NamedTensor]) -> Vec<u8> {
    to_bytes(tensors, StoredDtype::F32)
}

#[test]
fn single_sharded_and_embedded_folders_give_the_same_model() {
    let sample = Sample::new();
    let mut reports = Vec::new();
    let folder = ModelFolder::open(sample.dir.path()).unwrap();
    let mut tell = |stage, done, total| reports.push((stage, done, total));
    let single = load_model(folder.checkpoint(), &mut tell).unwrap();
    let total = sample
        .tensors
        .iter()
        .map(|t| t.data.len() as u64 * 4)
        .sum::<u64>();
    // In f32 as many bytes are hashed as are read.
    let (reading, hashing): (Vec<_>, Vec<_>) = reports
        .into_iter()
        .partition(|(stage, ..)| *stage == LoadStage::Reading);
    for (of_it, stage) in [(reading, LoadStage::Reading), (hashing, LoadStage::Hashing)] {
        let of_it: Vec<_> = of_it
            .into_iter()
            .map(|(told, done, all)| (told == stage, done, all))
            .collect();
        assert_eq!(of_it.last(), Some(&(true, total, total)));
        assert!(of_it.is_sorted());
    }
    let files: Vec<(&str, &'static [u8])> = ["config.json", "tokenizer.json", "model.safetensors"]
        .map(|name| {
            let bytes: &'static [u8] = fs::read(sample.path(name)).unwrap().leak();
            (name, bytes)
        })
        .to_vec();
    let embedded = ModelFolder::embedded(&files).unwrap();
    let embedded = load_model(embedded.checkpoint(), &mut |_, _, _| {}).unwrap();
    sample.write_sharded();
    let sharded = sample.load().unwrap();
    assert_eq!(single.digest, sharded.digest);
    assert_eq!(single.digest, embedded.digest);
    assert_eq!(folder.generation().eos_ids, [259]);
    assert!(!folder.template().is_some());
}

#[test]
fn stored_bf16_stays_bf16_and_rounds_once() {
    let sample = Sample::new();
    let full = sample.load().unwrap();
    let bytes = to_bytes(&sample.tensors, StoredDtype::Bf16);
    fs::write(sample.path("model.safetensors"), &bytes).unwrap();
    let rounded = sample.load().unwrap();
    assert_eq!(rounded.config.dtype, StoredDtype::Bf16);
    assert_ne!(rounded.digest, full.digest);
    let again = to_bytes(
        &rounded.weights.to_tensors(&rounded.config),
        StoredDtype::Bf16,
    );
    fs::write(sample.path("model.safetensors"), again).unwrap();
    assert_eq!(sample.load().unwrap().digest, rounded.digest);
}

#[test]
fn a_missing_folder_or_file_is_named() {
    let error = ModelFolder::open(Path::new("/no/such/folder"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("/no/such/folder") && error.contains("no such folder or file"),
        "{error}"
    );
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let sample = Sample::new();
        fs::remove_file(sample.path(name)).unwrap();
        sample.fails(&[name, "is missing"]);
    }
    let sample = Sample::new();
    fs::rename(sample.path("config.json"), sample.path("model-Q8_0.gguf")).unwrap();
    sample.fails(&["config.json", "give one file, such as model-Q8_0.gguf"]);
    let one_of_them = ModelFolder::open(&sample.path("model.safetensors"));
    let error = one_of_them.unwrap_err().to_string();
    assert!(error.contains("give the folder"), "{error}");
    let sample = Sample::new();
    fs::rename(
        sample.path("model.safetensors"),
        sample.path("pytorch_model.bin"),
    )
    .unwrap();
    sample.fails(&["pickle", "convert it to safetensors"]);
}

#[test]
fn a_missing_shard_is_named_with_its_tensor() {
    let sample = Sample::new();
    sample.write_sharded();
    fs::remove_file(sample.path("b.safetensors")).unwrap();
    sample.fails(&["b.safetensors is missing", "tensor model.layers."]);
}

#[test]
fn an_index_that_lies_is_refused() {
    let sample = Sample::new();
    sample.write_sharded();
    let mut map = Map::new();
    map.insert("model.norm.weight".to_owned(), json!("a.safetensors"));
    sample.write_index(&map);
    sample.fails(&["a.safetensors has no tensor model.norm.weight"]);
    for file in ["../a.safetensors", "/etc/passwd", "..", ""] {
        map.insert("model.norm.weight".to_owned(), json!(file));
        sample.write_index(&map);
        sample.fails(&["index.json", "weight_map", "expected a file name"]);
    }
    fs::write(sample.path("model.safetensors.index.json"), "{}").unwrap();
    sample.fails(&["index.json", "weight_map"]);
}

#[test]
fn a_wrong_shape_is_named_with_both_shapes() {
    let mut sample = Sample::new();
    sample.tensor("model.layers.1.mlp.up_proj.weight").shape = vec![16, 24];
    sample.write();
    let parts = [
        "model.safetensors",
        "model.layers.1.mlp.up_proj.weight",
        "[16, 24]",
        "[24, 16]",
    ];
    sample.fails(&parts);
}

#[test]
fn a_missing_or_unknown_tensor_is_named() {
    let mut sample = Sample::new();
    sample
        .tensors
        .retain(|t| t.name != "model.layers.1.self_attn.k_norm.weight");
    sample.write();
    sample.fails(&["model.safetensors has no tensor model.layers.1.self_attn.k_norm.weight"]);
    let mut sample = Sample::new();
    let (name, shape) = ("model.layers.0.self_attn.q_proj.bias".to_owned(), vec![16]);
    sample.tensors.push(NamedTensor {
        name: name.clone(),
        shape,
        data: vec![0.0; 16],
    });
    sample.write();
    sample.fails(&["model.safetensors holds tensor", &name, "does not use"]);
    sample.tensors.pop();
    let inv_freq = "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned();
    sample.tensors.push(NamedTensor {
        name: inv_freq,
        shape: vec![4],
        data: vec![0.0; 4],
    });
    sample.write();
    sample.load().unwrap();
}

#[test]
fn a_truncated_file_is_told_apart_from_garbage() {
    let sample = Sample::new();
    let path = sample.path("model.safetensors");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 100]).unwrap();
    let (held, promised) = ((whole.len() - 100).to_string(), whole.len().to_string());
    sample.fails(&["model.safetensors is cut short", &held, &promised]);
    for length in [0, 5] {
        fs::write(&path, &whole[..length]).unwrap();
        sample.fails(&["model.safetensors is cut short"]);
    }
    fs::write(&path, &whole[..60]).unwrap();
    sample.fails(&["model.safetensors", "header claims"]);
    fs::write(&path, vec![0xff; 4096]).unwrap();
    sample.fails(&["model.safetensors is not a usable safetensors file"]);
    let mut garbage = whole.clone();
    garbage[8..40].fill(b'#');
    fs::write(&path, &garbage).unwrap();
    sample.fails(&["model.safetensors is not a usable safetensors file"]);
    fs::write(&path, [whole.as_slice(), b"tail"].concat()).unwrap();
    sample.fails(&[
        "model.safetensors is not a usable safetensors file",
        "accounts for",
    ]);
}

#[test]
fn weights_that_are_not_numbers_are_refused() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut sample = Sample::new();
        sample.tensor("model.norm.weight").data[3] = bad;
        sample.write();
        sample.fails(&["model.safetensors", "model.norm.weight", "index 3", "NaN"]);
    }
}

#[test]
fn an_unknown_architecture_or_missing_key_is_named() {
    let mut sample = Sample::new();
    sample.config["architectures"] = json!(["MambaForCausalLM"]);
    sample.write();
    sample.fails(&["config.json", "MambaForCausalLM", "Qwen3ForCausalLM"]);
    for key in [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
    ] {
        let mut sample = Sample::new();
        sample.config.as_object_mut().unwrap().remove(key);
        sample.write();
        sample.fails(&["config.json lacks key", key]);
    }
    let sample = Sample::new();
    fs::write(sample.path("config.json"), "{\"a\": ").unwrap();
    sample.fails(&["config.json is not valid JSON"]);
}

#[test]
fn a_tokenizer_larger_than_the_vocabulary_is_refused() {
    let mut sample = Sample::new();
    sample.config["vocab_size"] = json!(250);
    sample.write();
    sample.fails(&[
        "tokenizer.json",
        "260 tokens",
        "only 250",
        "model.embed_tokens.weight",
    ]);
    let mut sample = Sample::new();
    sample.config["eos_token_id"] = json!([5000]);
    sample.write();
    sample.fails(&["config.json", "eos_token_id", "5000"]);
    // Beside an end that there is, one that there is not does no harm.
    sample.config["eos_token_id"] = json!([3, 5000]);
    sample.write();
    let folder = ModelFolder::open(sample.dir.path()).unwrap();
    assert_eq!(folder.generation().eos_ids, [3]);
}

#[test]
fn templates_and_sampling_defaults_are_found_where_writers_put_them() {
    let sample = Sample::new();
    let settings = json!({
        "eos_token": {"content": "<|im_end|>"}, "bos_token": null,
        "chat_template": [{"name": "rag", "template": "r"},
                          {"name": "default", "template": "{{ eos_token }}!"}],
    });
    let write = |name: &str, value: &Value| {
        fs::write(sample.path(name), serde_json::to_vec(value).unwrap()).unwrap();
    };
    write("tokenizer_config.json", &settings);
    write(
        "generation_config.json",
        &json!({"eos_token_id": [259, 7, 7], "temperature": 0.6, "top_k": 20, "top_p": 0.95,
                "repetition_penalty": 1.1}),
    );
    let folder = ModelFolder::open(sample.dir.path()).unwrap();
    let text = folder
        .template()
        .render(&[], None, true, &Map::new())
        .unwrap();
    assert_eq!(text, "<|im_end|>!");
    let expected = GenerationDefaults {
        eos_ids: vec![7, 259],
        temperature: Some(0.6),
        top_p: Some(0.95),
        top_k: Some(20),
        repetition_penalty: Some(1.1),
    };
    assert_eq!(folder.generation(), &expected);
    // The tokenizer's own end ends, too, where the file still names another model's.
    write("generation_config.json", &json!({"eos_token_id": 7}));
    let folder = ModelFolder::open(sample.dir.path()).unwrap();
    assert_eq!(folder.generation().eos_ids, [7, 259]);
    fs::write(sample.path("chat_template.jinja"), "file").unwrap();
    let folder = ModelFolder::open(sample.dir.path()).unwrap();
    assert_eq!(
        folder
            .template()
            .render(&[], None, true, &Map::new())
            .unwrap(),
        "file"
    );
    fs::write(sample.path("chat_template.jinja"), "{% if %}").unwrap();
    sample.fails(&["chat_template.jinja", "does not compile"]);
}

#[test]
fn conversations_with_tools_have_the_template_that_is_for_them() {
    let sample = Sample::new();
    let render = |tools: Option<&[Value]>| {
        let folder = ModelFolder::open(sample.dir.path()).unwrap();
        let rendered = folder.template().render(&[], tools, true, &Map::new());
        rendered.unwrap()
    };
    let tools = [json!({"type": "function", "function": {"name": "f"}})];
    let settings = json!({"chat_template": [
        {"name": "tool_use", "template": "tools <tool_call>"}, {"name": "default", "template": "plain"}]});
    let path = sample.path("tokenizer_config.json");
    fs::write(path, serde_json::to_vec(&settings).unwrap()).unwrap();
    assert_eq!(
        (render(None), render(Some(&tools))),
        ("plain".into(), "tools <tool_call>".into())
    );
    let folder = sample.path("additional_chat_templates");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("tool_use.jinja"), "file").unwrap();
    assert_eq!(
        (render(None), render(Some(&tools))),
        ("plain".into(), "file".into())
    );
    fs::write(sample.path("chat_template.jinja"), "usual").unwrap();
    assert_eq!(
        (render(None), render(Some(&tools))),
        ("usual".into(), "file".into())
    );
}

#[test]
fn an_added_token_without_a_row_is_left_out_unless_the_template_writes_it() {
    let sample = Sample::new();
    let mut tokenizer: Value = serde_json::from_slice(&byte_tokenizer_json()).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let texts = (260..272).map(|id| format!("<extra {id}>"));
    for (id, text) in (260..).zip(texts.chain(["[PAD]".to_owned()])) {
        added.push(
            json!({"id": id, "content": text, "single_word": false, "lstrip": false,
                          "rstrip": false, "normalized": false, "special": true}),
        );
    }
    let bytes = serde_json::to_vec(&tokenizer).unwrap();
    fs::write(sample.path("tokenizer.json"), bytes).unwrap();
    let write = |template: &str| {
        let settings = json!({"pad_token": "[PAD]", "chat_template": template});
        let bytes = serde_json::to_vec(&settings).unwrap();
        fs::write(sample.path("tokenizer_config.json"), bytes).unwrap();
    };
    write("{{ eos_token }}");
    let folder = ModelFolder::open(sample.dir.path()).unwrap();
    assert_eq!(folder.tokenizer().id_of("[PAD]"), None);
    assert_eq!(folder.tokenizer().vocab_size(), 272);
    for template in ["a [PAD]", "a {{ pad_token }}"] {
        write(template);
        sample.fails(&["tokenizer.json", "belongs to the weights"]);
    }
}
