#![allow(clippy::unwrap_used)]
use serde_json::json;

use super::*;
use crate::testing::tiny;
use hone_checkpoint::config::{Family, ModelConfig};

const VOCAB: usize = 32;

fn model() -> Model {
    let config = ModelConfig {
        vocab: VOCAB,
        ..tiny(Family::Qwen3)
    };
    crate::testing::model(&config, 1)
}

/// A file with one tensor of an adapter and one of an embedding with so many rows; one value of the latter is
/// moved by `change`.
fn file(model: &Model, (name, rows): (&str, usize), change: f32) -> Vec<u8> {
    let hidden = model.config.hidden;
    let mut values = vec![0.0f32; rows * hidden];
    for at in 0..rows.min(model.config.vocab) {
        let row = &mut values[at * hidden..(at + 1) * hidden];
        model.weights.embed.lookup(at, row);
    }
    values[hidden + 3] += change;
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let saved = TensorView::new(Dtype::F32, vec![rows, hidden], &bytes).unwrap();
    let own = 1.5f32.to_le_bytes();
    let adapter = TensorView::new(Dtype::F32, vec![1, 1], &own).unwrap();
    let tensors = [("layers.0.lora_A.weight", adapter), (name, saved)];
    safetensors::serialize(tensors, None).unwrap()
}

#[test]
fn a_copy_of_the_bases_embedding_is_left_out() {
    let model = model();
    for (name, rows) in [
        ("base_model.model.model.embed_tokens.weight", 32),
        // A pad token was added, or padding of the base left out.
        ("base_model.model.model.embed_tokens.weight", 33),
        ("base_model.model.model.embed_tokens.weight", 30),
        ("base_model.model.lm_head.weight", 32),
        (
            "base_model.model.lm_head.modules_to_save.default.weight",
            32,
        ),
    ] {
        let module = if name.contains("lm_head") {
            "lm_head"
        } else {
            "embed_tokens"
        };
        let mut settings = Map::new();
        settings.insert(SAVED_KEY.to_owned(), json!([module]));
        let left = without_copies(&mut settings, file(&model, (name, rows), 0.0), &model).unwrap();
        let left = SafeTensors::deserialize(&left).unwrap();
        assert_eq!(left.names(), ["layers.0.lora_A.weight"], "{name} {rows}");
        assert!(settings.is_empty(), "{name}");
    }
}

#[test]
fn a_trained_embedding_is_refused_and_nothing_else_is_touched() {
    let model = model();
    let name = "base_model.model.model.embed_tokens.weight";
    let trained = file(&model, (name, 32), 0.25);
    let error = without_copies(&mut Map::new(), trained, &model).unwrap_err();
    assert!(error.to_string().contains(name), "{error}");
    let mut settings = Map::new();
    settings.insert(SAVED_KEY.to_owned(), json!(["embed_tokens", "score"]));
    let copy = file(&model, (name, 32), 0.0);
    without_copies(&mut settings, copy, &model).unwrap();
    assert_eq!(settings.len(), 1, "another module is named as well");
    let plain = safetensors::serialize(Vec::<(&str, TensorView<'_>)>::new(), None).unwrap();
    assert_eq!(
        without_copies(&mut settings, plain.clone(), &model).unwrap(),
        plain
    );
}
