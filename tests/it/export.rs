//! `hone export adapter`, held against an adapter that the PEFT library wrote itself.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Map, Value};

/// The settings of an adapter folder.
fn config(folder: &Path) -> Map<String, Value> {
    let text = std::fs::read(folder.join("adapter_config.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Tensors of a safetensors file: name and shape; its metadata comes as the first value.
fn tensors(folder: &Path) -> (Value, Vec<(String, Vec<u64>)>) {
    let bytes = std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let rows = header.iter().filter(|(name, _)| *name != "__metadata__");
    let shape = |info: &Value| -> Vec<u64> {
        let sizes = info["shape"].as_array().unwrap().iter();
        sizes.map(|size| size.as_u64().unwrap()).collect()
    };
    let rows = rows.map(|(name, info)| (name.clone(), shape(info)));
    (header["__metadata__"].clone(), rows.collect())
}

/// The name of a tensor with its layer's number left out, and which of the two matrices it is.
fn form(name: &str) -> (String, bool) {
    let parts: Vec<&str> = name.split('.').collect();
    let plain = |part: &&str| part.parse::<u32>().is_err();
    let named: Vec<&str> = parts.into_iter().filter(plain).collect();
    (named.join("."), name.ends_with("lora_A.weight"))
}

/// Exports the newest adapter of this machine's own scope and compares.
pub(crate) async fn adapter_is_as_peft_writes_it(data: &Path) {
    let out = data.join("exported");
    let text = |path: &Path| path.display().to_string();
    let words = [
        "hone".to_owned(),
        "export".to_owned(),
        "adapter".to_owned(),
        "--scope".to_owned(),
        hone_domain::Scope::of("local", None).as_str().to_owned(),
        "--data".to_owned(),
        text(data),
        "--out".to_owned(),
        text(&out),
    ];
    let done = tokio::task::spawn_blocking(move || hone::cli::run(words));
    assert_eq!(done.await.unwrap(), ExitCode::SUCCESS);

    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/qwen3/adapter");
    let (ours, theirs) = (config(&out), config(&golden));
    for (key, value) in &ours {
        let known = theirs.get(key);
        assert!(known.is_some(), "PEFT knows no {key}");
        let same_kind = known.is_some_and(|known| {
            std::mem::discriminant(known) == std::mem::discriminant(value)
                || known.is_null()
                || value.is_null()
        });
        assert!(same_kind, "{key}: {value}, and PEFT writes {known:?}");
    }
    for key in ["peft_type", "task_type", "bias", "inference_mode"] {
        assert_eq!(ours[key], theirs[key], "{key}");
    }
    let (about, rows) = tensors(&out);
    let (about_theirs, golden_rows) = tensors(&golden);
    assert_eq!(about["format"], about_theirs["format"]);
    let forms: BTreeSet<(String, bool)> = golden_rows.iter().map(|(n, _)| form(n)).collect();
    let rank = ours["r"].as_u64().unwrap();
    assert!(!rows.is_empty());
    for (name, shape) in &rows {
        let (form, is_a) = form(name);
        assert!(forms.contains(&(form, is_a)), "PEFT names no tensor {name}");
        let ranked = if is_a { shape[0] } else { shape[1] };
        assert_eq!((shape.len(), ranked), (2, rank), "{name}");
        let modules = ours["target_modules"].as_array().unwrap().iter();
        let mut modules = modules.map(|module| module.as_str().unwrap());
        assert!(
            modules.any(|module| name.contains(&format!(".{module}."))),
            "{name}"
        );
    }
}
