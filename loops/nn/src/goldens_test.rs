//! The forward pass against the transformers library, and adapters against the peft library, on
//! the tiny checkpoints in tests/goldens (see make_goldens.py there).
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::adapter::Adapter;
use crate::peft;
use crate::score::score;
use crate::weights::{Model, Weights};
use hone_checkpoint::config::{ModelConfig, RopeScaling, StoredDtype};
use hone_checkpoint::tensor_files::TensorFiles;
use hone_checkpoint::{AdapterConfig, Target};
use hone_kernels::thread_pool::Executor;

const TOLERANCE: f64 = 1e-4;

pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/goldens")
        .join(name)
}

pub(crate) fn model(name: &str) -> Model {
    let folder = folder(name);
    let json = fs::read(folder.join("config.json")).unwrap();
    let mut config = ModelConfig::from_json(&json, name).unwrap();
    let tensors = TensorFiles::open(&folder).unwrap();
    config.dtype = tensors.dtype();
    let weights = Weights::from_source(&config, &tensors).unwrap();
    Model::new(config, weights)
}

pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

fn check(model: &Model, adapter: Option<&Adapter>, golden: &Path) {
    let golden: Value = serde_json::from_slice(&fs::read(golden).unwrap()).unwrap();
    let tokens: Vec<u32> = numbers(&golden["tokens"])
        .iter()
        .map(|t| *t as u32)
        .collect();
    let exec = Executor::new(2);
    let scores = score(model, adapter, &tokens, &exec);
    let rows = golden["logits"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for (position, expected) in numbers(&golden["positions"]).iter().zip(rows) {
        let expected = numbers(expected);
        // Logits at a position predict the token after it.
        let got = scores.logits(*position as usize + 1);
        assert_eq!(got.len(), expected.len());
        for (id, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let error = (f64::from(*got) - expected).abs();
            assert!(
                error < TOLERANCE,
                "position {position} token {id}: {got} for {expected}"
            );
        }
    }
    for (before, expected) in numbers(&golden["next_logprobs"]).iter().enumerate() {
        let got = f64::from(scores.logprob(before + 1, 1.0, None));
        assert!(
            (got - expected).abs() < TOLERANCE,
            "after {before}: {got} for {expected}"
        );
    }
}

fn check_folder(name: &str) -> Model {
    let model = model(name);
    check(&model, None, &folder(name).join("golden.json"));
    model
}

pub(crate) fn adapter(model: &Model, name: &str) -> Adapter {
    let folder = folder(name);
    let files = |file: &str| fs::read(folder.join("adapter").join(file)).ok();
    peft::load(&files, &model.config).unwrap()
}

fn check_adapter(model: &Model, name: &str) -> Adapter {
    let adapter = adapter(model, name);
    check(
        model,
        Some(&adapter),
        &folder(name).join("golden_adapter.json"),
    );
    adapter
}

#[test]
fn llama_with_llama3_rope_in_bf16() {
    let model = check_folder("llama");
    assert!(matches!(
        model.config.rope_scaling,
        Some(RopeScaling::Llama3 { .. })
    ));
    assert_eq!(model.config.dtype, StoredDtype::Bf16);
}

#[test]
fn llama_with_biases_and_linear_rope_in_f16() {
    let model = check_folder("llama_bias");
    assert_eq!(
        model.config.rope_scaling,
        Some(RopeScaling::Linear { factor: 2.0 })
    );
    assert!(model.config.qkv_bias && model.config.o_bias && model.config.mlp_bias);
}

#[test]
fn qwen2_tied_and_sharded() {
    let model = check_folder("qwen2");
    assert!(model.config.tied && model.config.qkv_bias && !model.config.o_bias);
}

#[test]
fn qwen2_with_yarn_rope() {
    let model = check_folder("qwen2_yarn");
    assert!(matches!(
        model.config.rope_scaling,
        Some(RopeScaling::Yarn { .. })
    ));
}

#[test]
fn qwen3_with_an_adapter_on_every_projection() {
    let model = check_folder("qwen3");
    assert!(model.config.tied && model.config.qk_norm);
    let adapter = check_adapter(&model, "qwen3");
    assert_eq!(adapter.config.targets().len(), 7);
}

#[test]
fn qwen3_with_sliding_windows_and_a_rank_stabilized_adapter() {
    let model = check_folder("qwen3_sliding");
    assert_eq!(model.config.windows, [None, Some(5), Some(5)]);
    let adapter = check_adapter(&model, "qwen3_sliding");
    assert!(matches!(adapter.config, AdapterConfig::Lora(lora) if lora.rslora));
}

#[test]
fn qwen3_moe_with_a_dense_layer_and_an_adapter_on_attention() {
    let model = check_folder("qwen3_moe");
    let experts = model.config.experts.as_ref().unwrap();
    assert_eq!(experts.layers, [true, false, true]);
    assert!(experts.normalised && !model.config.tied);
    assert_eq!((experts.count, experts.chosen, experts.ffn), (6, 2, 16));
    let adapter = check_adapter(&model, "qwen3_moe");
    assert_eq!(adapter.config.targets(), Target::ATTENTION);
}

#[test]
fn qwen3_moe_with_shares_among_all_experts_in_bf16() {
    let model = check_folder("qwen3_moe_shares");
    let experts = model.config.experts.as_ref().unwrap();
    assert_eq!(experts.layers, [false, true], "every second layer");
    assert!(!experts.normalised && model.config.tied);
    assert_eq!(model.config.dtype, StoredDtype::Bf16);
    check_adapter(&model, "qwen3_moe_shares");
}

#[test]
fn an_adapter_on_experts_is_refused_by_its_module() {
    let moe = model("qwen3_moe");
    let files = |file: &str| fs::read(folder("qwen3").join("adapter").join(file)).ok();
    let error = peft::load(&files, &moe.config).unwrap_err().to_string();
    assert!(
        error.contains("gate_proj") && error.contains("experts"),
        "{error}"
    );
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let qwen2 = model("qwen2");
    let files = |file: &str| fs::read(folder("qwen3").join("adapter").join(file)).ok();
    let error = peft::load(&files, &qwen2.config).unwrap_err().to_string();
    assert!(
        error.contains("q_proj") && error.contains("shape"),
        "{error}"
    );
}
