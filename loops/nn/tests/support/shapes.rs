//! Shapes of models, for tests and measurements.
//!
//! Included by path.
#![allow(dead_code)]

use hone_checkpoint::config::{Family, ModelConfig, StoredDtype};

/// A shape of about one million parameters: the size of the built-in starter model.
pub(crate) fn starter_shape() -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3,
        vocab: 2048,
        hidden: 128,
        layers: 4,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        ffn: 384,
        max_positions: 4096,
        rms_eps: 1e-6,
        rope_theta: 10_000.0,
        rope_scaling: None,
        tied: true,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: true,
        windows: vec![Some(512); 4],
        experts: None,
        dtype: StoredDtype::F32,
    }
}

/// A shape of about thirty million parameters, larger than the caches of most processors.
pub(crate) fn medium_shape() -> ModelConfig {
    ModelConfig {
        vocab: 8192,
        hidden: 512,
        layers: 8,
        heads: 8,
        kv_heads: 4,
        head_dim: 64,
        ffn: 1536,
        rope_theta: 1e6,
        windows: vec![None; 8],
        ..starter_shape()
    }
}
