//! GGUF files written by the gguf package (see tests/goldens/make_gguf_goldens.py), and broken ones.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

use crate::load::{LoadAs, LoadStage, load_model, load_model_as};
use crate::score::score;
use crate::weights::{Model, Weights, fingerprint};
use hone_checkpoint::LoadError;
use hone_checkpoint::TensorSource;
use hone_checkpoint::config::{ModelConfig, RopeScaling};
use hone_checkpoint::files::Files;
use hone_checkpoint::gguf::Gguf;
use hone_checkpoint::tensor_files::TensorFiles;
use hone_kernels::format::block_quant::WeightFormat;
use hone_kernels::thread_pool::Executor;
use hone_text::folder::ModelFolder;

fn golden(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens");
    root.join(name)
}

fn json_of(name: &str) -> Json {
    serde_json::from_slice(&fs::read(golden(name)).unwrap()).unwrap()
}

/// A file of another content.
fn with_bytes(bytes: &[u8]) -> Result<Gguf, LoadError> {
    let mut file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    file.write_all(bytes).unwrap();
    Gguf::open(file.path())
}

/// Shape and weights, without a tokenizer.
fn model_of(files: &Files) -> Model {
    let config = files.read("config.json", "").unwrap();
    let mut config = ModelConfig::from_json(&config, "config.json").unwrap();
    let tensors = TensorFiles::from_files(files).unwrap();
    config.dtype = tensors.dtype();
    let weights = Weights::from_source(&config, &tensors).unwrap();
    Model::new(config, weights)
}

#[test]
fn a_converted_model_is_the_same_model() {
    for name in ["llama", "qwen2"] {
        let file = Gguf::open(&golden(&format!("gguf/{name}.gguf"))).unwrap();
        let file = model_of(&Files::Gguf(file.into()));
        let folder = model_of(&Files::Folder(golden(name)));
        assert_eq!(file.config.dtype, folder.config.dtype);
        assert_eq!(
            file.digest, folder.digest,
            "{name}: every weight, bit for bit"
        );
        let scaling = |model: &Model| model.config.rope_scaling;
        assert_eq!(scaling(&file), scaling(&folder));
        assert_eq!(
            matches!(scaling(&file), Some(RopeScaling::Llama3 { .. })),
            name == "llama"
        );
        let expected = json_of(&format!("{name}/golden.json"));
        check(&file, &expected, 1e-4);
        let tokens: Vec<u32> = (0..40).collect();
        let exec = Executor::new(1);
        let (a, b) = (
            score(&file, None, &tokens, &exec),
            score(&folder, None, &tokens, &exec),
        );
        assert_eq!(a.logits(40), b.logits(40));
    }
}

#[test]
fn experts_are_read_one_by_one_from_their_tensor() {
    let path = golden("gguf/qwen3_moe.gguf");
    let stored = model_of(&Files::Gguf(Gguf::open(&path).unwrap().into()));
    let folder = model_of(&Files::Folder(golden("qwen3_moe")));
    assert_eq!(stored.config, folder.config);
    assert_eq!(fingerprint(&stored), "cpu-f32-fma-k1;w=f32+q4+q8;kv=f32");
    let wanted = folder.weights.to_tensors(&folder.config);
    let found = stored.weights.to_tensors(&stored.config);
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(&wanted) {
        assert_eq!(found.name, wanted.name);
        let of_expert = found.name.contains(".experts.");
        let step = match (of_expert && !found.name.contains("down_proj"), &found.name) {
            (true, name) if name.contains("layers.0.") => 0.6 / 127.0,
            (true, _) => 1.1 / 8.0,
            (false, _) => 0.0,
        };
        for (found, wanted) in found.data.chunks(32).zip(wanted.data.chunks(32)) {
            let widest = wanted.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= step * widest;
            assert!(found.iter().zip(wanted).all(close));
        }
    }
    let folder = ModelFolder::open(&path);
    assert!(folder.is_err(), "it has no tokenizer");
}

/// Logits against those of a golden file.
fn check(model: &Model, golden: &Json, tolerance: f64) {
    let list = |value: &Json| value.as_array().unwrap().clone();
    let number = |value: &Json| value.as_f64().unwrap();
    let tokens = list(&golden["tokens"])
        .iter()
        .map(|t| number(t) as u32)
        .collect::<Vec<_>>();
    let exec = Executor::new(2);
    let scores = score(model, None, &tokens, &exec);
    for (position, expected) in list(&golden["positions"])
        .iter()
        .zip(list(&golden["logits"]))
    {
        let got = scores.logits(number(position) as usize + 1);
        for (got, expected) in got.iter().zip(list(&expected)) {
            let error = (f64::from(*got) - number(&expected)).abs();
            assert!(
                error < tolerance,
                "position {position}: {got} for {expected}"
            );
        }
    }
}

#[test]
fn every_type_stands_for_the_values_that_the_gguf_package_reads() {
    let mut kinds = Vec::new();
    for name in ["qwen3", "mixed"] {
        let golden_json = json_of(&format!("gguf/{name}.json"));
        let file = Gguf::open(&golden(&format!("gguf/{name}.gguf"))).unwrap();
        let wanted = golden_json["sha256"].as_object().unwrap();
        assert_eq!(file.names().count(), wanted.len());
        for (name, digest) in wanted {
            let info = &file.tensors[name];
            kinds.push(format!("{:?}", info.stored));
            let values = file.tensor(name, &info.shape.clone()).unwrap().into_f32();
            let mut hash = Sha256::new();
            values.iter().for_each(|v| hash.update(v.to_le_bytes()));
            let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(json!(hex), *digest, "{name}");
        }
    }
    kinds.sort();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "Blocks(Q4K)",
            "Blocks(Q4_0)",
            "Blocks(Q4_1)",
            "Blocks(Q5K)",
            "Blocks(Q5_0)",
            "Blocks(Q5_1)",
            "Blocks(Q6K)",
            "Blocks(Q8_0)",
            "F16",
            "F32"
        ]
    );
}

#[test]
fn a_quantised_model_says_what_its_dequantised_weights_say() {
    let of_mixed = [
        "embed_tokens",
        "layers.0.self_attn.q_proj",
        "layers.0.self_attn.k_proj",
        "layers.0.self_attn.v_proj",
        "layers.0.mlp.down_proj",
        "layers.1.self_attn.o_proj",
        "layers.1.mlp.gate_proj",
        "layers.1.mlp.up_proj",
    ];
    kept_or_rounded("qwen3", "f32+q4+q8", &of_mixed[..4]);
    // What is of five bits and no minimum is exact in eight, and so are parts of several such kinds.
    kept_or_rounded("mixed", "q8", &of_mixed);
}

/// Loads a file in full and as stored, where just `rounded` is rounded: to the nearest of 255 steps
/// per 32 weights.
fn kept_or_rounded(name: &str, weights: &str, rounded: &[&str]) {
    let folder = ModelFolder::open(&golden(&format!("gguf/{name}.gguf"))).unwrap();
    let load = |format| {
        let wanted = LoadAs {
            format,
            ..LoadAs::default()
        };
        load_model_as(folder.checkpoint(), wanted, &mut |_, _, _| {}).unwrap()
    };
    let golden_json = json_of(&format!("gguf/{name}.json"));
    let full = load(WeightFormat::F32);
    check(&full, &golden_json, 1e-4);
    assert_eq!(fingerprint(&full), "cpu-f32-fma-k1;w=f32;kv=f32");
    let mut reports = Vec::new();
    let stored = load_model(folder.checkpoint(), &mut |stage, done, total| {
        reports.push((stage, done, total));
    });
    let stored = stored.unwrap();
    for told in [LoadStage::Reading, LoadStage::Hashing] {
        let of_it: Vec<_> = reports
            .iter()
            .filter(|(stage, ..)| *stage == told)
            .collect();
        let last = of_it.last().unwrap();
        assert!(of_it.len() > 10 && last.1 == last.2, "{last:?}");
    }
    let print = format!("cpu-f32-fma-k1;w={weights};kv=f32");
    assert_eq!(fingerprint(&stored), print);
    let pairs = full.weights.to_tensors(&full.config);
    for (full, stored) in pairs.iter().zip(stored.weights.to_tensors(&stored.config)) {
        let may_differ = rounded.iter().any(|name| full.name.contains(name));
        assert_eq!(full.data != stored.data, may_differ, "{}", full.name);
        for (full, stored) in full.data.chunks(32).zip(stored.data.chunks(32)) {
            let widest = full.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= widest * 0.6 / 127.0 + 1e-7;
            assert!(full.iter().zip(stored).all(close));
        }
    }
    assert!(load(WeightFormat::Q4).weights.bytes() < stored.weights.bytes());
}

#[test]
fn texts_become_the_tokens_that_the_tokenizers_library_makes() {
    let words = json_of("gguf/words.json");
    for (file, cut) in [
        ("gguf/qwen3.gguf", "qwen2"),
        ("gguf/words.gguf", "llama-bpe"),
        ("gguf/words_tekken.gguf", "tekken"),
        // Control tokens come first here, some that are not used behind them.
        ("gguf/words_smollm.gguf", "smollm"),
        ("gguf/words_pieces.gguf", "pieces"),
    ] {
        let gguf = Gguf::open(&golden(file)).unwrap();
        let json = gguf.tokenizer_json().unwrap().to_string();
        let tokenizer = hone_text::tokenizer::Tokenizer::from_json(json.as_bytes(), file).unwrap();
        for case in words[cut].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(
                json!(tokenizer.encode(text, false)),
                case["ids"],
                "{cut}: {text:?}"
            );
            assert_eq!(
                json!(tokenizer.encode(text, true)),
                case["with_begin"],
                "{cut}: {text:?}"
            );
        }
        assert!(tokenizer.is_special(tokenizer.id_of("<|im_end|>").unwrap()));
        assert!(!tokenizer.is_special(tokenizer.id_of("<tool>").unwrap()));
    }
    // What users spell like a control token stays as they wrote it: nothing gets a space within.
    let gguf = Gguf::open(&golden("gguf/words_pieces.gguf")).unwrap();
    let json = gguf.tokenizer_json().unwrap().to_string();
    let pieces = hone_text::tokenizer::Tokenizer::from_json(json.as_bytes(), "pieces").unwrap();
    let said = "a</s>b <|im_end|>";
    let ids = pieces.encode(&pieces.guard(said), false);
    assert!(ids.iter().all(|id| !pieces.is_special(*id)));
    assert_eq!(pieces.decode(&ids), format!(" {said}"));
    let folder = ModelFolder::open(&golden("gguf/qwen3.gguf")).unwrap();
    let ends = &folder.generation().eos_ids;
    let id = |text: &str| folder.tokenizer().id_of(text).unwrap();
    assert_eq!(*ends, [id("<|endoftext|>"), id("<|im_end|>")]);
    let messages = [json!({"role": "user", "content": "hello"})];
    let text = folder
        .template()
        .render(&messages, None, true, &serde_json::Map::new());
    assert_eq!(
        text.unwrap(),
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    );
}

/// Replaces the first `from` in a file by `to`, of the same length.
fn altered(name: &str, from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = fs::read(golden(name)).unwrap();
    let at = bytes.windows(from.len()).position(|w| w == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

/// What is wrong with a file, by the code that reads all of it.
fn complaint(bytes: &[u8]) -> String {
    let mut file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    file.write_all(bytes).unwrap();
    let loaded =
        ModelFolder::open(file.path()).and_then(|f| load_model(f.checkpoint(), &mut |_, _, _| {}));
    let error = loaded.unwrap_err().to_string();
    let path = file.path().display().to_string();
    assert!(error.contains(&path) && !error.contains('\n'), "{error}");
    error
}

#[test]
fn what_cannot_be_used_is_named_in_one_sentence() {
    const NAME: &str = "gguf/qwen3.gguf";
    let whole = fs::read(golden(NAME)).unwrap();
    let tensor = |name: &[u8], kind: u32| {
        // Name, dimensions (two of eight bytes), then the type.
        let mut bytes = whole.clone();
        let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len();
        bytes[at + 4 + 16..at + 4 + 20].copy_from_slice(&kind.to_le_bytes());
        bytes
    };
    let mut huge = whole.clone();
    huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut old = whole.clone();
    old[4] = 1;
    let rows: Vec<(Vec<u8>, &[&str])> = vec![
        (b"GGML".to_vec(), &["no GGUF file", "give the folder"]),
        (Vec::new(), &["0 are left"]),
        (
            whole[..whole.len() - 1].to_vec(),
            &["tensor ", "ends at byte", "the file has"],
        ),
        (whole[..500].to_vec(), &["24 tensors", "484 bytes"]),
        (whole[..600].to_vec(), &["promises 8 bytes"]),
        (whole[..2_000].to_vec(), &["288 texts"]),
        (huge, &["18446744073709551615 tensors"]),
        (old, &["version 1"]),
        (
            tensor(b"blk.0.attn_q.weight", 10),
            &["blk.0.attn_q.weight", "Q2_K", "Q5_K and Q6_K"],
        ),
        (
            tensor(b"blk.0.attn_q.weight", 77),
            &["blk.0.attn_q.weight", "type number 77"],
        ),
        (
            tensor(b"blk.1.attn_output.weight", 12),
            &["blk.1.attn_output.weight", "whole blocks"],
        ),
        (
            altered(NAME, b"\x05\0\0\0\0\0\0\0qwen3", b"\x05\0\0\0\0\0\0\0gemma"),
            &["gemma", "qwen3"],
        ),
        (
            altered(NAME, b"qwen2", b"dbrx9"),
            &["pre-tokenizer dbrx9", "qwen2", "llama-bpe", "smollm"],
        ),
        (altered(NAME, b"gpt2", b"bert"), &["tokenizer bert", "gpt2"]),
        (
            altered(NAME, b"blk.1.ffn_up", b"blk.1.ffn_oh"),
            &["blk.1.ffn_oh"],
        ),
        (
            altered(NAME, b"blk.1.ffn_up.weight", b"blk.7.ffn_up.weight"),
            &["no tensor blk.1.ffn_up.weight"],
        ),
    ];
    for (bytes, parts) in rows {
        let error = complaint(&bytes);
        for part in parts {
            assert!(error.contains(part), "{part:?} in: {error}");
        }
    }
}

/// A header with the architecture alone, and tensors of f32 as (name, dimensions, offset).
fn header(tensors: &[(String, Vec<u64>, u64)], data_bytes: usize) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    text(&mut bytes, "general.architecture");
    bytes.extend(8u32.to_le_bytes());
    text(&mut bytes, "qwen3moe");
    for (name, dimensions, offset) in tensors {
        text(&mut bytes, name);
        bytes.extend((dimensions.len() as u32).to_le_bytes());
        dimensions
            .iter()
            .for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32) + data_bytes, 0);
    bytes
}

#[test]
fn a_file_without_a_pre_tokenizers_name_is_read_where_its_family_tells() {
    const NAME: &str = "gguf/qwen3.gguf";
    let read = |bytes: &[u8]| {
        let mut file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        file.write_all(bytes).unwrap();
        let folder = ModelFolder::open(file.path()).unwrap();
        folder.tokenizer().encode("It's 2024, isn't it?", false)
    };
    let unnamed = altered(NAME, b"tokenizer.ggml.pre", b"tokenizer.ggml.prx");
    assert_eq!(read(&unnamed), read(&fs::read(golden(NAME)).unwrap()));
    // A llama of an unknown vocabulary may be cut in several ways.
    let unnamed = altered(
        "gguf/words.gguf",
        b"tokenizer.ggml.pre",
        b"tokenizer.ggml.prx",
    );
    let error = with_bytes(&unnamed).unwrap().tokenizer_json().unwrap_err();
    let error = error.to_string();
    assert!(error.contains("tokenizer.ggml.pre is missing"), "{error}");
}

#[test]
fn a_part_of_a_file_says_what_to_do() {
    // As all parts but the first: where it stands among them, and weights.
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(11u64.to_le_bytes());
    bytes.extend(b"split.count");
    bytes.extend(2u32.to_le_bytes());
    bytes.extend(3u16.to_le_bytes());
    let error = with_bytes(&bytes).unwrap_err().to_string();
    assert!(error.contains("one of 3 parts; merge them"), "{error}");
}

/// Gate weights of a layer, for so many experts of one value each.
fn gates(layer: u32, experts: u64, offset: u64) -> (String, Vec<u64>, u64) {
    let name = format!("blk.{layer}.ffn_gate_exps.weight");
    (name, vec![1, 1, experts], offset)
}

#[test]
fn a_small_file_cannot_claim_many_tensors() {
    const EXPERTS: u64 = 1 << 14;
    let side_by_side = |layers: u64| -> Vec<_> {
        let layer = |n: u64| gates(n as u32, EXPERTS, n * 4 * EXPERTS);
        (0..layers).map(layer).collect()
    };
    let rows = [
        (
            vec![gates(0, EXPERTS, 0), gates(1, EXPERTS, 0)],
            "tensors blk.0.ffn_gate_exps.weight and blk.1.ffn_gate_exps.weight overlap",
        ),
        (
            vec![gates(0, 3, 0), gates(1, 1, 8)],
            "tensors blk.0.ffn_gate_exps.weight and blk.1.ffn_gate_exps.weight overlap",
        ),
        (
            vec![gates(1024, 1, 0)],
            "blk.1024.ffn_gate_exps.weight is of a layer beyond the 1024",
        ),
        (
            vec![("blk.1024.attn_norm.weight".to_owned(), vec![1], 0)],
            "blk.1024.attn_norm.weight is of a layer beyond the 1024",
        ),
        (side_by_side(17), "more than 262144 tensors"),
    ];
    for (tensors, wanted) in rows {
        let bytes = header(&tensors, 17 * 4 * EXPERTS as usize);
        let error = with_bytes(&bytes).unwrap_err().to_string();
        assert!(error.contains(wanted), "{wanted:?} in: {error}");
    }
    let apart = [gates(0, 3, 0), gates(1023, 1, 12)];
    let file = with_bytes(&header(&apart, 16)).unwrap();
    assert_eq!(file.names().count(), 4);
}

#[test]
fn a_scale_that_is_not_finite_is_named() {
    const NAME: &str = "gguf/qwen3.gguf";
    let file = Gguf::open(&golden(NAME)).unwrap();
    let scale = file.tensors["model.layers.0.mlp.down_proj.weight"]
        .range
        .start;
    let mut bytes = fs::read(golden(NAME)).unwrap();
    bytes[scale..scale + 2].copy_from_slice(&0x7c00u16.to_le_bytes());
    let error = complaint(&bytes);
    assert!(
        error.contains("blk.0.ffn_down.weight") && error.contains("index 0"),
        "{error}"
    );
}

#[test]
fn a_file_without_weights_says_so() {
    let error = complaint(&fs::read(golden("gguf/words.gguf")).unwrap());
    assert!(error.contains("lacks"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Whatever is flipped in a file or cut off it, it is read or refused, without a panic and
    /// without taking memory for what it merely claims.
    #[test]
    fn damaged_files_are_read_or_refused(
        flips in prop::collection::vec((0usize..12_000, any::<u8>()), 1..6),
        words in any::<bool>(),
        keep in 0.0f64..1.3,
    ) {
        let name = if words { "gguf/words.gguf" } else { "gguf/qwen3.gguf" };
        let mut bytes = fs::read(golden(name)).unwrap();
        for (at, byte) in flips {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate((bytes.len() as f64 * keep) as usize);
        let mut file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        file.write_all(&bytes).unwrap();
        if let Ok(folder) = ModelFolder::open(file.path()) {
            // Memory follows the config only once the weights have its shapes.
            let _ = TensorSource::names(folder.tensors());
            drop(load_model(folder.checkpoint(), &mut |_, _, _| {}));
        }
        drop(with_bytes(&bytes));
    }
}
