#![allow(clippy::unwrap_used)]
use serde_json::json;

use super::*;
use hone_kernels::format::TensorData;
use hone_kernels::format::block_quant::WeightFormat;
use hone_kernels::rng::Rng;

const VOCAB: usize = 32;
const HIDDEN: usize = 16;

fn embeddings() -> PackedMatrix {
    let mut rng = Rng::new(1);
    let values = (0..VOCAB * HIDDEN).map(|_| rng.normal() as f32).collect();
    PackedMatrix::stacked(
        HIDDEN,
        vec![TensorData::F32(values)],
        WeightFormat::default(),
    )
}

/// Of a base whose head reuses the embeddings.
fn tied(embed: &PackedMatrix) -> BaseEmbeddings<'_> {
    BaseEmbeddings { embed, head: embed }
}

/// A file with one tensor of an adapter and one of an embedding with so many rows; one value of the latter is
/// moved by `change`.
fn file(embed: &PackedMatrix, name: &str, rows: usize, change: f32) -> Vec<u8> {
    let mut values = vec![0.0f32; rows * HIDDEN];
    for at in 0..rows.min(VOCAB) {
        let row = &mut values[at * HIDDEN..(at + 1) * HIDDEN];
        embed.lookup(at, row);
    }
    values[HIDDEN + 3] += change;
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let saved = TensorView::new(Dtype::F32, vec![rows, HIDDEN], &bytes).unwrap();
    let own = 1.5f32.to_le_bytes();
    let adapter = TensorView::new(Dtype::F32, vec![1, 1], &own).unwrap();
    let tensors = [("layers.0.lora_A.weight", adapter), (name, saved)];
    safetensors::serialize(tensors, None).unwrap()
}

#[test]
fn a_copy_of_the_bases_embedding_is_left_out() {
    let embed = embeddings();
    let base = tied(&embed);
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
        let left = without_copies(&mut settings, file(&embed, name, rows, 0.0), base).unwrap();
        let left = SafeTensors::deserialize(&left).unwrap();
        assert_eq!(left.names(), ["layers.0.lora_A.weight"], "{name} {rows}");
        assert!(settings.is_empty(), "{name}");
    }
}

#[test]
fn a_trained_embedding_is_refused_and_nothing_else_is_touched() {
    let embed = embeddings();
    let base = tied(&embed);
    let name = "base_model.model.model.embed_tokens.weight";
    let trained = file(&embed, name, 32, 0.25);
    let error = without_copies(&mut Map::new(), trained, base).unwrap_err();
    assert!(error.to_string().contains(name), "{error}");
    let mut settings = Map::new();
    settings.insert(SAVED_KEY.to_owned(), json!(["embed_tokens", "score"]));
    let copy = file(&embed, name, 32, 0.0);
    without_copies(&mut settings, copy, base).unwrap();
    assert_eq!(settings.len(), 1, "another module is named as well");
    let plain = safetensors::serialize(Vec::<(&str, TensorView<'_>)>::new(), None).unwrap();
    assert_eq!(
        without_copies(&mut settings, plain.clone(), base).unwrap(),
        plain
    );
}
