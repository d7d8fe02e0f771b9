#![allow(clippy::unwrap_used)]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hone_blobs::FsBlobs;

use super::*;
use crate::adapters::{adapter_body, tiny_model};

fn base() -> Base {
    Base {
        model: tiny_model(),
        executor: Arc::new(Executor::new(1)),
        name: "org/model".to_owned(),
    }
}

fn importer(folder: &std::path::Path, most: u64) -> Importer {
    let blobs = Arc::new(FsBlobs::open(folder, 1 << 20).unwrap());
    Importer::new(Some(base()), blobs, most)
}

fn given() -> GivenAdapter {
    let body = adapter_body("5:local", 1);
    GivenAdapter {
        config: body["config"].as_object().unwrap().clone(),
        weights: STANDARD.decode(body["weights"].as_str().unwrap()).unwrap(),
    }
}

/// The same with one setting changed.
fn with(key: &str, value: Value) -> GivenAdapter {
    let mut given = given();
    given.config.insert(key.to_owned(), value);
    given
}

#[test]
fn what_is_stored_loads_and_proves_itself() {
    let folder = tempfile::tempdir().unwrap();
    let importer = importer(folder.path(), 1 << 20);
    let (base, scope) = (base(), Scope::of("local", None));
    let checked = importer.check(&scope, given()).unwrap();
    let about = &checked.report["imported"];
    assert_eq!(about["target_modules"], json!(["q_proj", "v_proj"]));
    assert_eq!(about["base_model"], "elsewhere/model");
    let first = importer.store(&scope, "a", &checked).unwrap();
    let second = importer.store(&scope, "b", &checked).unwrap();
    assert_ne!(first, second);
    importer.remove(&first);
    let read = |name: &str| importer.blobs.get(&second, name).ok();
    let adapter = peft::load(&read, &base.model.config).unwrap();
    assert_eq!(Digest(adapter.digest()), checked.digest);
    let probe = read(PROBE_FILE).unwrap();
    let proven = hone_nn::prove(&base.model, Some(&adapter), &probe, &base.executor);
    assert_eq!(proven, Ok(()));
    let manifest: Value = serde_json::from_slice(&read(peft::MANIFEST_FILE).unwrap()).unwrap();
    assert_eq!(manifest["digest"], json!(checked.digest));
}

#[test]
fn what_the_model_does_not_compute_is_refused_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let importer = importer(folder.path(), 1 << 20);
    let pickled = GivenAdapter {
        weights: b"\x80\x02}q\x00.".to_vec(),
        ..given()
    };
    let mut cut = given();
    cut.weights.truncate(cut.weights.len() - 4);
    let mut not_a_number = given();
    let end = not_a_number.weights.len();
    not_a_number.weights[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    let mut loud = given();
    let header = u64::from_le_bytes(loud.weights[..8].try_into().unwrap()) as usize;
    for value in loud.weights[8 + header..].chunks_exact_mut(4) {
        value.copy_from_slice(&f32::MAX.to_le_bytes());
    }
    for (given, parts) in [
        (with("use_dora", json!(true)), ["use_dora", "plain LoRA"]),
        (
            with("modules_to_save", json!(vec!["lm_head"; 9_000])),
            ["modules_to_save", "train LoRA only"],
        ),
        (with("bias", json!("all")), ["bias", "bias: none"]),
        (with("r", json!(9_000)), ["r is 9000", "1 to 4096"]),
        (with("r", json!(4)), ["shape [2, 16]", "needs [4, 16]"]),
        (
            with("target_modules", json!(["lm_head"])),
            ["lm_head", "supported are q_proj"],
        ),
        (loud, ["no numbers", "too large"]),
        (pickled, ["adapter_model.safetensors", "damaged"]),
        (cut, ["adapter_model.safetensors", "damaged"]),
        (not_a_number, ["v_proj", "NaN"]),
    ] {
        let checked = importer.check(&Scope::of("local", None), given);
        let error = checked.err().unwrap();
        for part in parts {
            assert!(error.contains(part), "{error:?} lacks {part:?}");
        }
    }
    let small = super::tests::importer(&folder.path().join("small"), 100);
    let error = small.check(&Scope::of("local", None), given());
    assert!(error.err().unwrap().contains("store.blob_file_bytes_max"));
}

#[test]
fn there_is_one_place() {
    let folder = tempfile::tempdir().unwrap();
    let importer = importer(folder.path(), 1 << 20);
    let place = importer.place();
    assert!(place.is_some() && importer.place().is_none());
    drop(place);
    assert!(importer.place().is_some());
}
