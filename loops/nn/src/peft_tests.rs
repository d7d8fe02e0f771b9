#![allow(clippy::unwrap_used)]
use std::collections::HashMap;

use serde_json::json;

use super::*;
use crate::score::score;
use crate::weights::Model;
use hone_checkpoint::config::Family;
use hone_checkpoint::peft::{DENSE, parse_settings, parse_weights};
use hone_checkpoint::tensor_files::to_bytes;
use hone_checkpoint::{
    AdapterConfig, AdapterDtype, DenseConfig, LoraConfig, NamedTensor, StoredDtype, Target,
};
use hone_kernels::thread_pool::Executor;

fn model() -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3,
        vocab: 64,
        hidden: 16,
        layers: 2,
        heads: 4,
        kv_heads: 2,
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
        windows: vec![None; 2],
        experts: None,
        dtype: StoredDtype::F32,
    }
}

fn adapter(dtype: AdapterDtype) -> Adapter {
    let targets = vec![Target::V, Target::Q, Target::Down];
    let lora = LoraConfig {
        rank: 3,
        alpha: 6.0,
        targets,
        rslora: true,
        dtype,
    };
    Adapter::random(&model(), lora, 5)
}

fn dense(dtype: AdapterDtype) -> Adapter {
    let targets = Target::ALL.to_vec();
    Adapter::random(&model(), DenseConfig { targets, dtype }, 6)
}

type Folder = HashMap<String, Vec<u8>>;

fn folder() -> Folder {
    to_files(&adapter(AdapterDtype::F32), "base", &json!({"parent": 1}))
        .into_iter()
        .collect()
}

fn read(folder: &Folder) -> Result<Adapter, PeftError> {
    load(&|name| folder.get(name).cloned(), &model())
}

fn refused(folder: &Folder, parts: &[&str]) {
    let error = read(folder).unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

fn read_tensors(folder: &Folder) -> Vec<NamedTensor> {
    parse_weights(&folder[WEIGHTS_FILE]).unwrap().0
}

/// Replaces the tensors of a folder, stored as f32.
fn with_tensors(mut folder: Folder, tensors: &[NamedTensor]) -> Folder {
    folder.insert(WEIGHTS_FILE.to_owned(), to_bytes(tensors, StoredDtype::F32));
    folder
}

#[test]
fn what_is_saved_loads_as_the_same_version() {
    for dtype in [AdapterDtype::F32, AdapterDtype::Bf16] {
        let made = adapter(dtype);
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), &made, "base", &json!({"parent": 1})).unwrap();
        let back = load(&|name| std::fs::read(dir.path().join(name)).ok(), &model()).unwrap();
        assert_eq!(back.digest(), made.digest());
        assert_eq!(back, made);
        assert!(
            save(dir.path(), &made, "base", &json!({})).is_err(),
            "never overwrites"
        );
        let names: Vec<String> = read_tensors(&folder())
            .into_iter()
            .map(|t| t.name)
            .collect();
        let first = "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight";
        assert_eq!(names[0], first);
        assert_eq!(names.len(), 12);
    }
}

#[test]
fn an_adapter_name_in_the_keys_is_accepted() {
    let plain = folder();
    let mut named = read_tensors(&plain);
    for tensor in &mut named {
        tensor.name = tensor.name.replace(".weight", ".default.weight");
    }
    let loaded = read(&with_tensors(plain.clone(), &named)).unwrap();
    assert_eq!(loaded, read(&plain).unwrap());
    named.extend(read_tensors(&plain));
    refused(&with_tensors(plain, &named), &["twice", "lora_A.weight"]);
}

#[test]
fn settings_that_are_not_computed_are_refused_by_name() {
    for (key, value) in [
        ("peft_type", json!("LOHA")),
        ("peft_type", Value::Null),
        ("use_dora", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("bias", json!("all")),
        ("fan_in_fan_out", json!(true)),
        ("rank_pattern", json!({"q_proj": 8})),
        ("alpha_pattern", json!({"q_proj": 8})),
        ("layers_to_transform", json!([0])),
        ("layer_replication", json!([[0, 2]])),
        ("lora_bias", json!(true)),
        ("target_parameters", json!(["experts.down"])),
        ("trainable_token_indices", json!([1, 2])),
        ("alora_invocation_tokens", json!([4])),
        ("use_qalora", json!(true)),
        ("use_something_new", json!(true)),
        ("init_lora_weights", json!("pissa")),
        ("r", json!(0)),
        ("r", json!(1_000_000)),
        ("modules_to_save", json!(vec!["lm_head"; 100_000])),
        ("r", json!("8")),
        ("lora_alpha", Value::Null),
        ("target_modules", json!(["q_proj", "lm_head"])),
        ("target_modules", json!([])),
    ] {
        let mut broken = folder();
        let mut config: Value = serde_json::from_slice(&broken[CONFIG_FILE]).unwrap();
        config[key] = value;
        broken.insert(CONFIG_FILE.to_owned(), serde_json::to_vec(&config).unwrap());
        let part = if key == "target_modules" {
            "target_modules"
        } else {
            key
        };
        refused(&broken, &[CONFIG_FILE, part, "not supported"]);
        assert!(read(&broken).unwrap_err().to_string().len() < 500);
    }
}

/// An expression, paths and exclusions say no more than the tensors do.
#[test]
fn the_modules_are_those_that_the_tensors_are_of() {
    let targets = |files: &Folder| {
        let config = read(files).unwrap().config;
        let mut names: Vec<&str> = config
            .targets()
            .iter()
            .map(|target| target.module())
            .collect();
        names.sort_unstable();
        names
    };
    let whole = targets(&folder());
    for (key, value) in [
        ("target_modules", json!("model.layers.*proj")),
        ("target_modules", json!("all-linear")),
        ("target_modules", json!(["layers.0.self_attn.q_proj"])),
        ("exclude_modules", json!(["lm_head"])),
        ("exclude_modules", json!("lm_head")),
    ] {
        let mut other = folder();
        let mut config: Value = serde_json::from_slice(&other[CONFIG_FILE]).unwrap();
        config[key] = value;
        other.insert(CONFIG_FILE.to_owned(), serde_json::to_vec(&config).unwrap());
        assert_eq!(targets(&other), whole, "{config}");
    }
}

#[test]
fn missing_damaged_and_pickled_files_are_named() {
    let mut broken = folder();
    broken.remove(CONFIG_FILE);
    refused(&broken, &[CONFIG_FILE]);
    let mut broken = folder();
    broken.remove(WEIGHTS_FILE);
    refused(&broken, &[WEIGHTS_FILE]);
    broken.insert(PICKLE_FILE.to_owned(), vec![0x80]);
    refused(&broken, &["pickle", "adapter_model.bin"]);
    for file in [CONFIG_FILE, WEIGHTS_FILE] {
        let mut broken = folder();
        broken.get_mut(file).unwrap().truncate(40);
        refused(&broken, &[file, "damaged"]);
    }
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let name = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight";
    let change = |f: &dyn Fn(&mut Vec<NamedTensor>)| {
        let mut all = read_tensors(&folder());
        f(&mut all);
        with_tensors(folder(), &all)
    };
    refused(&change(&|all| all.retain(|t| t.name != name)), &[name]);
    let at = |all: &mut Vec<NamedTensor>| all.iter().position(|t| t.name == name).unwrap();
    refused(
        &change(&|all| {
            let i = at(all);
            all[i].shape.reverse();
        }),
        &[name, "[3, 32]", "[32, 3]"],
    );
    refused(
        &change(&|all| {
            let i = at(all);
            all[i].data[0] = f32::NAN;
        }),
        &[name, "NaN"],
    );
    for extra in [
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.lm_head.lora_A.weight",
        "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.other.weight",
    ] {
        let broken = change(&|all| {
            all.push(NamedTensor {
                name: extra.to_owned(),
                shape: vec![1],
                data: vec![0.0],
            });
        });
        refused(&broken, &[extra]);
    }
}

#[test]
fn a_dense_change_is_kept_and_leaves_as_the_lora_that_it_is() {
    let shape = model();
    let base = Model::random(shape.clone(), 3);
    let text: Vec<u32> = (0..40).map(|i| i * 7 % 64).collect();
    let exec = Executor::new(1);
    let said = |adapter: &Adapter| {
        let scores = score(&base, Some(adapter), &text, &exec);
        let bits = |p| scores.logprob(p, 1.0, None).to_bits();
        (1..text.len()).map(bits).collect::<Vec<u32>>()
    };
    for dtype in [AdapterDtype::F32, AdapterDtype::Bf16] {
        let made = dense(dtype);
        let files = to_files(&made, "base", &json!({"parent": 1}));
        let kept: Folder = files.clone().into_iter().collect();
        let back = read(&kept).unwrap();
        assert_eq!((back.digest(), &back), (made.digest(), &made));
        // Said plainly, so that no reader takes it for something else.
        let settings = parse_settings(&kept[CONFIG_FILE]).unwrap();
        assert_eq!(settings["peft_type"], DENSE);

        let exported: Folder = for_peft(files).unwrap().into_iter().collect();
        assert_eq!(exported[MANIFEST_FILE], kept[MANIFEST_FILE]);
        let settings = parse_settings(&exported[CONFIG_FILE]).unwrap();
        assert_eq!(settings["peft_type"], "LORA");
        assert_eq!(settings["base_model_name_or_path"], "base");
        assert_eq!(
            (&settings["r"], &settings["lora_alpha"]),
            (&json!(16), &json!(16))
        );
        let lora = read(&exported).unwrap();
        assert!(matches!(&lora.config, AdapterConfig::Lora(l) if l.rank == 16 && l.dtype == dtype));
        assert_ne!(lora.digest(), made.digest());
        assert_eq!(said(&lora), said(&made));
        assert_ne!(said(&made), said(&dense_zero(dtype)));
    }
    let plain = to_files(&adapter(AdapterDtype::F32), "base", &json!({}));
    assert_eq!(for_peft(plain.clone()).unwrap(), plain);
}

fn dense_zero(dtype: AdapterDtype) -> Adapter {
    let targets = Target::ALL.to_vec();
    Adapter::zero(&model(), DenseConfig { targets, dtype })
}

#[test]
fn a_dense_change_that_does_not_fit_is_refused_by_name() {
    let files = || -> Folder {
        let all = to_files(&dense(AdapterDtype::F32), "base", &json!({}));
        all.into_iter().collect()
    };
    let name = "base_model.model.model.layers.1.mlp.down_proj.delta.weight";
    let change = |f: &dyn Fn(&mut NamedTensor)| {
        let mut all = read_tensors(&files());
        f(all.iter_mut().find(|t| t.name == name).unwrap());
        with_tensors(files(), &all)
    };
    refused(&change(&|t| t.name.push_str(".x")), &["delta.weight.x"]);
    refused(
        &change(&|t| t.shape.reverse()),
        &[name, "[24, 16]", "[16, 24]"],
    );
    refused(&change(&|t| t.data[3] = f32::INFINITY), &[name, "infinite"]);
    let mut all = read_tensors(&files());
    all.retain(|t| t.name != name);
    refused(&with_tensors(files(), &all), &[name, "lacks"]);
    // Its tensors under a LoRA's settings, and the other way round.
    let mut mixed = files();
    mixed.insert(CONFIG_FILE.to_owned(), folder()[CONFIG_FILE].clone());
    refused(&mixed, &["lora_A"]);
    let mut mixed = folder();
    mixed.insert(CONFIG_FILE.to_owned(), files()[CONFIG_FILE].clone());
    refused(&mixed, &["delta"]);
    let broken = vec![(CONFIG_FILE.to_owned(), files()[CONFIG_FILE].clone())];
    assert!(matches!(
        for_peft(broken),
        Err(PeftError::MissingFile(WEIGHTS_FILE))
    ));
}

/// Whoever has no model at hand names the same adapter, and finds every flipped bit of its weights.
#[test]
fn files_alone_tell_the_digest() {
    let each = [AdapterDtype::F32, AdapterDtype::Bf16];
    let adapters = each
        .into_iter()
        .flat_map(|dtype| [adapter(dtype), dense(dtype)]);
    for adapter in adapters {
        let mut files: Folder = to_files(&adapter, "base", &json!({})).into_iter().collect();
        let told = |files: &Folder| digest(&|name| files.get(name).cloned());
        assert_eq!(told(&files).unwrap(), adapter.digest());
        let whole = files[WEIGHTS_FILE].clone();
        let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        for byte in (header..whole.len()).step_by(61) {
            let mut damaged = whole.clone();
            damaged[byte] ^= 1;
            files.insert(WEIGHTS_FILE.to_owned(), damaged);
            let told = told(&files);
            assert!(
                told.is_err() || told.unwrap() != adapter.digest(),
                "byte {byte}"
            );
        }
        for end in (0..whole.len()).step_by(97) {
            files.insert(WEIGHTS_FILE.to_owned(), whole[..end].to_vec());
            assert!(told(&files).is_err(), "cut to {end} bytes");
        }
    }
    let mut strange = folder();
    let config: Value = serde_json::from_slice(&strange[CONFIG_FILE]).unwrap();
    for targets in [
        json!(["q_proj"]),
        json!(["q_proj", "v_proj", "down_proj", "o_proj"]),
    ] {
        let mut other = config.clone();
        other["target_modules"] = targets;
        strange.insert(CONFIG_FILE.to_owned(), serde_json::to_vec(&other).unwrap());
        assert!(digest(&|name| strange.get(name).cloned()).is_err());
    }
}
