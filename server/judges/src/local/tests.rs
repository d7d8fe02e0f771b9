//! Candle against the committed goldens, and a judge whose model says one thing only.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use hone_domain::{Message, NextKind, Outcome, Role, Signal, Verdict};
use hone_judge::{CompleteOptions, CompleterError, LocalConfig, ModelConfig, ModelKind};
use hone_kernels::Executor;
use hone_nn::load_model;
use hone_nn::score;
use hone_text::folder::ModelFolder;
use serde_json::{Value, json};

use super::models::{self, Decoder, Loaded};
use super::thread::Thread;
use judge_loop::{Said, Voter};

#[allow(dead_code, reason = "the bench reads more of it")]
#[path = "../../../../tests/bench/src/judge/judge_loop.rs"]
mod judge_loop;

fn golden(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens");
    root.join(name)
}

fn thread(model: Loaded) -> Thread {
    Thread {
        model,
        ends: Vec::new(),
    }
}

fn never() -> bool {
    false
}

fn options(max_tokens: u32) -> CompleteOptions {
    CompleteOptions {
        temperature: 0.0,
        max_tokens,
        seed: 3,
        deadline: Duration::from_secs(60),
    }
}

fn numbers(value: &Value) -> Vec<f32> {
    let list = value.as_array().unwrap().iter();
    list.map(|number| number.as_f64().unwrap() as f32).collect()
}

/// Largest difference from the logits that the transformers library computed, after the golden's
/// tokens were read in pieces up to each of its positions.
fn difference(name: &str, file: &str) -> f32 {
    let text = std::fs::read(golden(name).join("golden.json")).unwrap();
    let known: Value = serde_json::from_slice(&text).unwrap();
    let tokens: Vec<u32> = numbers(&known["tokens"])
        .iter()
        .map(|t| *t as u32)
        .collect();
    let mut thread = thread(models::load(&golden(file), 4_096).unwrap());
    let rows = known["logits"].as_array().unwrap();
    let mut worst = 0f32;
    for (position, row) in numbers(&known["positions"]).iter().zip(rows) {
        let logits = thread.read(&tokens[..=*position as usize], &never).unwrap();
        let logits: Vec<f32> = logits.to_vec1().unwrap();
        for (got, expected) in logits.iter().zip(numbers(row)) {
            worst = worst.max((got - expected).abs());
        }
    }
    worst
}

#[test]
fn candle_computes_what_the_models_authors_do() {
    for (name, file) in [
        ("llama", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("qwen2", "gguf/qwen2.gguf"),
    ] {
        let worst = difference(name, file);
        assert!(worst < 2e-3, "{file}: {worst}");
    }
}

/// The quantised file has its tokenizer and template with it, so both engines read all of it.
#[test]
fn candle_and_the_built_in_engine_agree_on_a_quantised_file() {
    let path = golden("gguf/qwen3.gguf");
    let folder = ModelFolder::open(&path).unwrap();
    let own = load_model(folder.checkpoint(), &mut |_, _, _| {}).unwrap();
    let mut thread = thread(models::load(&path, 4_096).unwrap());
    let prompt = folder.tokenizer().encode("Was it good?", false);
    let threads = Executor::new(1);
    let ours = score(&own, None, &prompt, &threads);
    let ours = ours.logits(prompt.len()).to_vec();
    let theirs: Vec<f32> = thread.read(&prompt, &never).unwrap().to_vec1().unwrap();
    let width = ours.iter().fold(0f32, |most, logit| most.max(logit.abs()));
    for (ours, theirs) in ours.iter().zip(&theirs) {
        // K-quants are rounded to eight bits in one and computed as they are in the other.
        assert!(
            (ours - theirs).abs() < 0.05 * width,
            "{ours} {theirs} of {width}"
        );
    }
}

#[test]
fn memory_is_stated_and_what_cannot_be_loaded_is_told() {
    let loaded = models::load(&golden("qwen3"), 100).unwrap();
    assert_eq!((loaded.family.as_str(), loaded.tokens_max), ("qwen3", 100));
    assert_eq!(loaded.cache_bytes, 2 * 2 * 16 * 2 * 4 * 100);
    assert!(loaded.weight_bytes > 4 * 96 * 32);
    for (name, told) in [
        ("qwen3_sliding", "use_sliding_window"),
        ("qwen2_yarn", "rope_scaling"),
        ("llama_bias", "attention_bias"),
        ("gguf/llama.gguf", "rope_freqs.weight"),
        ("gguf/words.gguf", "lacks"),
        ("nowhere", "config.json"),
    ] {
        let error = models::load(&golden(name), 100).err().unwrap();
        assert!(error.contains(told), "{name}: {error}");
    }
}

/// How GPT-2's tokenizer writes a byte.
fn sign(byte: u8) -> char {
    let is_plain = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let before = (0..byte).filter(|b| !matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff));
    match is_plain {
        true => char::from(byte),
        false => char::from_u32(256 + before.count() as u32).unwrap(),
    }
}

const BEGIN: usize = 256;
const END: usize = 257;
const SIZE: usize = 264;

/// A Llama whose next token depends on the last one only: after the prompt it writes `words`, in
/// which no sign comes twice, and ends; without words it never ends.
fn folder_that_says(words: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &Value| {
        std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    };
    let vocab: serde_json::Map<String, Value> = (0..=255u8)
        .map(|byte| (sign(byte).to_string(), json!(byte)))
        .collect();
    let added = |id: usize, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    write(
        "tokenizer.json",
        &json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
            "added_tokens": [added(BEGIN, "<|begin|>"), added(END, "<|end|>")],
            "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                      "vocab": vocab, "merges": []},
        }),
    );
    write(
        "tokenizer_config.json",
        &json!({
            "eos_token": "<|end|>",
            "chat_template": "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}<|begin|>",
        }),
    );
    write(
        "config.json",
        &json!({
            "model_type": "llama", "vocab_size": SIZE, "hidden_size": SIZE, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 16384, "eos_token_id": END,
        }),
    );
    let weights = folder.path().join("model.safetensors");
    candle_core::safetensors::save(&weights_that_say(words), weights).unwrap();
    folder
}

fn weights_that_say(words: &str) -> HashMap<String, Tensor> {
    let mut head = vec![0f32; SIZE * SIZE];
    let mut last = BEGIN;
    for byte in words.bytes() {
        head[usize::from(byte) * SIZE + last] = 1.0;
        last = usize::from(byte);
    }
    let end = if words.is_empty() { BEGIN } else { END };
    head[end * SIZE + last] = 1.0;
    let cpu = &Device::Cpu;
    let zeros =
        |rows: usize, columns: usize| Tensor::zeros((rows, columns), DType::F32, cpu).unwrap();
    let ones = || Tensor::ones(SIZE, DType::F32, cpu).unwrap();
    let mut tensors: HashMap<String, Tensor> = HashMap::from([
        (
            "model.embed_tokens.weight".to_owned(),
            Tensor::eye(SIZE, DType::F32, cpu).unwrap(),
        ),
        ("model.norm.weight".to_owned(), ones()),
        (
            "lm_head.weight".to_owned(),
            Tensor::from_vec(head, (SIZE, SIZE), cpu).unwrap(),
        ),
    ]);
    for part in ["q", "k", "v", "o"] {
        let name = format!("model.layers.0.self_attn.{part}_proj.weight");
        tensors.insert(name, zeros(SIZE, SIZE));
    }
    for (part, rows, columns) in [("gate", 8, SIZE), ("up", 8, SIZE), ("down", SIZE, 8)] {
        let name = format!("model.layers.0.mlp.{part}_proj.weight");
        tensors.insert(name, zeros(rows, columns));
    }
    for part in ["input", "post_attention"] {
        tensors.insert(format!("model.layers.0.{part}_layernorm.weight"), ones());
    }
    tensors
}

fn local(folder: &Path, waiting_max: usize) -> LocalConfig {
    LocalConfig {
        path: folder.display().to_string(),
        threads: 1,
        tokens_max: 8_192,
        waiting_max,
    }
}

/// The judge loop's verdict on one reply, with a model that votes.
async fn verdict_on(text: &str, voter: Voter) -> Result<Verdict, String> {
    let folder = tempfile::tempdir().unwrap();
    let said = Said {
        kind: NextKind::UserReply,
        asked: "How far is the moon?".to_owned(),
        completion: "384,400 km.".to_owned(),
        text: text.to_owned(),
    };
    let config = hone_judge::Config {
        lease_ms: 120_000,
        ..hone_judge::Config::for_tests()
    };
    let judged = judge_loop::judge_in(folder.path(), &config, (&[said], Some(voter))).await?;
    Ok(judged.into_iter().next().unwrap().verdict)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_is_judged_by_a_model_in_this_process() {
    for (words, outcome, said) in [
        ("\\boxed{-1}", Outcome::Bad, "\\boxed{-1}"),
        ("No grde", Outcome::Abstain, "no grade in: No grde"),
    ] {
        let folder = folder_that_says(words);
        let config = ModelConfig {
            kind: ModelKind::Local,
            local: local(folder.path(), 8),
            vote_deadline_ms: 40_000,
            price_completion: 1e6,
            ..ModelConfig::for_tests()
        };
        let completer = super::start(&config.local).unwrap();
        let voter = (config, completer);
        let verdict = verdict_on("Hm.", voter).await;
        let verdict = verdict.unwrap();
        let votes = verdict
            .votes
            .iter()
            .filter(|vote| vote.signal == Signal::Model);
        let votes: Vec<_> = votes.collect();
        assert_eq!(votes.len(), 3);
        let cast = votes.iter().filter(|vote| vote.usage.is_some());
        assert!(cast.clone().count() >= 2, "{votes:?}");
        for vote in cast {
            assert_eq!((vote.outcome, vote.reason.as_str()), (outcome, said));
            let usage = vote.usage.unwrap();
            assert_eq!(usage.completion_tokens, words.len() as u64);
            assert_eq!(usage.cost, words.len() as f64);
            assert!(usage.prompt_tokens > 500, "{usage:?}");
        }
        assert_eq!(verdict.decided_by, outcome.score().map(|_| Signal::Model));
        assert_eq!(verdict.score, outcome.score());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn votes_are_withdrawn_between_two_tokens_and_the_line_is_bounded() {
    let folder = folder_that_says("");
    let judge = super::start(&local(folder.path(), 1)).unwrap();
    let message = [Message::text(Role::User, "Was it good?")];
    let ask = |deadline_ms| {
        let (judge, message) = (judge.clone(), message.clone());
        let options = CompleteOptions {
            deadline: Duration::from_millis(deadline_ms),
            ..options(8_000)
        };
        tokio::spawn(async move { judge.complete(&message, options).await })
    };
    // One is written, one waits, and for the others there is no place.
    let mut asked = vec![ask(60_000)];
    let refused = loop {
        assert!(asked.len() < 1_000, "the line has no end");
        asked.push(ask(60_000));
        tokio::time::sleep(Duration::from_millis(5)).await;
        if let Some(at) = asked.iter().position(tokio::task::JoinHandle::is_finished) {
            break asked.swap_remove(at).await.unwrap();
        }
    };
    assert!(
        matches!(refused, Err(CompleterError::Busy(_))),
        "{refused:?}"
    );
    // Nobody waits any more: the thread is free long before 8,000 tokens are written.
    asked.iter().for_each(tokio::task::JoinHandle::abort);
    let free = async {
        loop {
            let late = CompleteOptions {
                deadline: Duration::ZERO,
                ..options(9)
            };
            match judge.complete(&message, late).await {
                Err(CompleterError::Busy(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                other => break other,
            }
        }
    };
    let late = tokio::time::timeout(Duration::from_secs(20), free).await;
    let late = late.expect("its thread is free");
    assert!(matches!(late, Err(CompleterError::Failed(_))), "{late:?}");
}

/// Panics at the third token that it is asked for, and else says that the next is 1.
struct Breaks {
    tokens: usize,
    resets: usize,
}

impl Decoder for Breaks {
    fn forward(&mut self, _: &Tensor, _: usize) -> candle_core::Result<Tensor> {
        self.tokens += 1;
        assert!(self.resets > 1 || self.tokens < 3, "it breaks once");
        Tensor::new(&[[0f32, 1.0]], &Device::Cpu)
    }

    fn reset(&mut self) {
        (self.tokens, self.resets) = (0, self.resets + 1);
    }
}

#[test]
fn a_panic_costs_one_vote_and_the_next_begins_anew() {
    let mut thread = thread(Loaded {
        decoder: Box::new(Breaks {
            tokens: 0,
            resets: 0,
        }),
        family: "breaks".to_owned(),
        tokens_max: 40,
        weight_bytes: 0,
        cache_bytes: 0,
    });
    let broken = thread.answer(&[5], &options(5), &never);
    assert!(matches!(broken, Err(CompleterError::Failed(ref why)) if why.contains("panicked")));
    assert_eq!(thread.answer(&[5], &options(5), &never), Ok(vec![1; 5]));
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_and_draws_can_be_repeated() {
    let mut thread = thread(models::load(&golden("qwen3"), 40).unwrap());
    let long: Vec<u32> = (0..40).collect();
    let refused = thread.write(&long, &options(5), &never);
    assert!(matches!(refused, Err(CompleterError::Failed(ref why)) if why.contains("40 tokens")));
    let mut draw = |seed, temperature| {
        let options = CompleteOptions {
            seed,
            temperature,
            ..options(20)
        };
        thread.write(&[5, 6, 7], &options, &never).unwrap()
    };
    assert_eq!(draw(1, 0.9), draw(1, 0.9));
    assert_ne!(draw(1, 0.9), draw(2, 0.9));
    assert_eq!(draw(1, 0.0), draw(2, 0.0));
}
