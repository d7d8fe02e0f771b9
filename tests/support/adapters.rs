//! A tiny model, and adapters for it as others make them.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hone_checkpoint::{AdapterDtype, Family, LoraConfig, ModelConfig, StoredDtype, Target};
use hone_nn::{Adapter, Model, peft};
use serde_json::Value;

pub(crate) fn tiny_model() -> Arc<Model> {
    let config = ModelConfig {
        family: Family::Qwen3,
        vocab: 64,
        hidden: 16,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 8,
        ffn: 24,
        max_positions: 64,
        rms_eps: 1e-6,
        rope_theta: 1e4,
        rope_scaling: None,
        tied: true,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: true,
        windows: vec![None],
        experts: None,
        dtype: StoredDtype::F32,
    };
    Arc::new(Model::random(config, 1))
}

/// A body that brings an adapter for the model of [`tiny_model`], other weights for each seed.
pub(crate) fn adapter_body(scope: &str, seed: u64) -> Value {
    let lora = LoraConfig {
        rank: 2,
        alpha: 4.0,
        targets: vec![Target::Q, Target::V],
        rslora: true,
        dtype: AdapterDtype::F32,
    };
    let adapter = Adapter::random(&tiny_model().config, lora, seed);
    let files = peft::to_files(&adapter, "elsewhere/model", &Value::Null);
    let config: Value = serde_json::from_slice(&files[0].1).unwrap();
    serde_json::json!({"scope": scope, "config": config, "weights": STANDARD.encode(&files[1].1)})
}
