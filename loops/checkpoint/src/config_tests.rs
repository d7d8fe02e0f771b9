#![allow(clippy::unwrap_used)]
use super::*;
use crate::error::LoadError;

fn base(family: Family) -> Value {
    json!({
        "architectures": [family.architecture()], "vocab_size": 100, "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "max_position_embeddings": 128,
    })
}

fn parse(value: &Value) -> Result<ModelConfig, LoadError> {
    ModelConfig::from_json(&serde_json::to_vec(value).unwrap(), "dir/config.json")
}

fn with(family: Family, changes: &Value) -> Result<ModelConfig, LoadError> {
    let mut value = base(family);
    for (key, change) in changes.as_object().unwrap() {
        value[key] = change.clone();
    }
    parse(&value)
}

#[test]
fn class_defaults_fill_what_is_not_written() {
    let llama = parse(&base(Family::Llama)).unwrap();
    assert_eq!((llama.head_dim, llama.kv_heads, llama.tied), (8, 4, false));
    assert!(!llama.qkv_bias && !llama.o_bias && !llama.qk_norm);
    assert_eq!(
        (llama.rms_eps, llama.rope_theta, llama.rope_scaling),
        (1e-6, 1e4, None)
    );
    let qwen2 = parse(&base(Family::Qwen2)).unwrap();
    assert!(qwen2.qkv_bias && !qwen2.o_bias && !qwen2.qk_norm);
    let qwen3 = parse(&base(Family::Qwen3)).unwrap();
    assert!(qwen3.qk_norm && !qwen3.qkv_bias);
    assert_eq!(qwen3.head_dim, 128);
    let named = with(
        Family::Llama,
        &json!({"architectures": null, "model_type": "qwen2"}),
    );
    assert_eq!(named.unwrap().family, Family::Qwen2);
}

#[test]
fn both_spellings_of_rope_settings_agree() {
    let inside = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    let old = with(
        Family::Llama,
        &json!({"rope_theta": 5e5, "rope_scaling": inside}),
    )
    .unwrap();
    let mut new = inside.clone();
    new["rope_theta"] = json!(5e5);
    let new = with(Family::Llama, &json!({"rope_parameters": new})).unwrap();
    assert_eq!(old, new);
    assert_eq!(old.rope_theta, 5e5);
    let typed = json!({"rope_scaling": {"type": "linear", "factor": 4}});
    let linear = with(Family::Llama, &typed).unwrap();
    assert_eq!(
        linear.rope_scaling,
        Some(RopeScaling::Linear { factor: 4.0 })
    );
    let default = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}});
    let default = with(Family::Qwen3, &default).unwrap();
    assert_eq!((default.rope_theta, default.rope_scaling), (7.0, None));
    let yarn = json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
        "original_max_position_embeddings": 64}});
    let yarn = with(Family::Qwen2, &yarn).unwrap();
    let expected = |attention_factor| RopeScaling::Yarn {
        factor: 4.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_max_positions: 64,
        attention_factor,
        truncate: true,
    };
    let usual = 0.1 * 4f32.ln() + 1.0;
    assert_eq!(yarn.rope_scaling, Some(expected(usual)));
    let times = json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attn_factor": 0.5,
        "original_max_position_embeddings": 64}});
    let times = with(Family::Qwen3, &times).unwrap();
    assert_eq!(times.rope_scaling, Some(expected(usual * 0.5)));
}

#[test]
fn windows_follow_layer_types_or_the_older_rule() {
    let windows = |changes: Value| with(Family::Qwen3, &changes).map(|c| c.windows);
    let off = json!({"sliding_window": 8, "max_window_layers": 0});
    assert_eq!(windows(off).unwrap(), [None; 3]);
    let older = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2});
    assert_eq!(windows(older).unwrap(), [None, None, Some(8)]);
    let types = json!(["sliding_attention", "full_attention", "sliding_attention"]);
    let listed = json!({"use_sliding_window": true, "sliding_window": 8, "layer_types": types});
    assert_eq!(windows(listed).unwrap(), [Some(8), None, Some(8)]);
    assert!(
        windows(json!({"layer_types": types})).is_err(),
        "no window is set"
    );
    assert!(
        windows(json!({"layer_types": ["full_attention"]})).is_err(),
        "one of three"
    );
    let llama = with(
        Family::Llama,
        &json!({"use_sliding_window": true, "sliding_window": 8}),
    );
    assert_eq!(llama.unwrap().windows, [None; 3]);
}

#[test]
fn experts_are_read_with_the_library_s_defaults_and_layers() {
    let experts = |changes: Value| with(Family::Qwen3Moe, &changes).map(|c| c.experts.unwrap());
    let default = experts(json!({})).unwrap();
    assert_eq!((default.count, default.chosen, default.ffn), (128, 8, 768));
    assert!(!default.normalised);
    assert_eq!(
        (default.layers.as_slice(), default.recorded()),
        (&[true; 3][..], 24)
    );
    let some = json!({"num_experts": 9, "num_experts_per_tok": 2, "moe_intermediate_size": 5,
        "norm_topk_prob": true, "mlp_only_layers": [1]});
    let some = experts(some).unwrap();
    assert_eq!(
        (some.count, some.chosen, some.ffn, some.normalised),
        (9, 2, 5, true)
    );
    assert_eq!(some.layers, [true, false, true]);
    assert_eq!((some.before(0), some.before(2), some.recorded()), (0, 1, 4));
    let second = experts(json!({"decoder_sparse_step": 2, "num_local_experts": 16}));
    assert_eq!(second.unwrap().layers, [false, true, false]);
    for (key, value) in [
        ("num_experts", json!(4)),
        ("num_experts", json!(1 << 20)),
        ("num_experts_per_tok", json!(0)),
        ("mlp_only_layers", json!([-1])),
        ("decoder_sparse_step", json!(0)),
        ("norm_topk_prob", json!(1)),
    ] {
        assert!(experts(json!({key: value})).is_err(), "{key}: {value}");
    }
    let moe = with(Family::Qwen3Moe, &json!({"num_experts": 16})).unwrap();
    assert!(moe.qk_norm && !moe.qkv_bias);
    let window = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 2});
    let windows = with(Family::Qwen3Moe, &window).unwrap().windows;
    assert_eq!(windows, [Some(8); 3]);
    assert_eq!(with(Family::Qwen3, &json!({})).unwrap().experts, None);
}

#[test]
fn a_written_config_reads_back_the_same() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6});
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 5e5});
    for (family, changes) in [
        (
            Family::Llama,
            json!({"attention_bias": true, "mlp_bias": true, "rope_parameters": llama3}),
        ),
        (
            Family::Qwen2,
            json!({"tie_word_embeddings": true, "rope_parameters": yarn}),
        ),
        (
            Family::Qwen3,
            json!({"head_dim": 16, "dtype": "bfloat16", "rms_norm_eps": 1e-5}),
        ),
        (
            Family::Qwen3Moe,
            json!({"num_experts": 10, "mlp_only_layers": [0, 2], "norm_topk_prob": true}),
        ),
        (
            Family::Qwen3,
            json!({"use_sliding_window": true, "sliding_window": 9,
            "max_window_layers": 1, "num_key_value_heads": 2}),
        ),
    ] {
        let config = with(family, &changes).unwrap();
        assert_eq!(parse(&config.to_json()).unwrap(), config);
    }
}

#[test]
fn settings_that_are_not_computed_are_refused_by_key() {
    for (key, value) in [
        ("hidden_act", json!("gelu")),
        ("quantization_config", json!({"bits": 4})),
        ("vocab_size", json!(-1)),
        ("hidden_size", json!(1e9)),
        ("num_hidden_layers", json!("3")),
        ("num_key_value_heads", json!(3)),
        ("num_attention_heads", json!(5)),
        ("head_dim", json!(7)),
        ("rms_norm_eps", json!("tiny")),
        ("rope_theta", json!(-1)),
        (
            "rope_scaling",
            json!({"rope_type": "longrope", "factor": 2}),
        ),
        ("rope_scaling", json!([1])),
        ("partial_rotary_factor", json!(0.5)),
        ("torch_dtype", json!("int8")),
        ("tie_word_embeddings", json!("yes")),
    ] {
        let error = with(Family::Llama, &json!({key: value}))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("dir/config.json") && error.contains(key),
            "{error}"
        );
    }
    let error = parse(&json!({"architectures": ["BertModel"]}))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("BertModel") && error.contains("LlamaForCausalLM"),
        "{error}"
    );
    let error = parse(&json!({})).unwrap_err().to_string();
    assert!(error.contains("architectures"), "{error}");
    assert!(parse(&json!([])).is_err());
}
