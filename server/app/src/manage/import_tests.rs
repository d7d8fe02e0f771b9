#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn a_folder_that_is_none_of_peft_is_told_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let said = |folder: &Path| config(folder).and_then(|_| weights(folder)).unwrap_err();
    let absent = said(&folder.path().join("absent"));
    assert!(absent.contains("is no folder"), "{absent}");
    assert!(said(folder.path()).contains("has no adapter_config.json"));
    let settings = folder.path().join(CONFIG_FILE);
    fs::write(&settings, "{").unwrap();
    assert!(said(folder.path()).contains("adapter_config.json is damaged"));
    fs::write(&settings, vec![b' '; CONFIG_BYTES_MAX as usize + 1]).unwrap();
    assert!(said(folder.path()).contains("not what PEFT writes"));
    fs::write(&settings, "{}").unwrap();
    assert!(said(folder.path()).contains("has no adapter_model.safetensors"));
    fs::write(folder.path().join(PICKLE_FILE), [0x80]).unwrap();
    assert!(said(folder.path()).contains("save it as safetensors"));
    fs::write(folder.path().join(WEIGHTS_FILE), [0]).unwrap();
    assert!(weights(folder.path()).is_ok());
}

#[test]
fn the_limit_is_read_from_the_settings() {
    let settings =
        json!({"data": [{"key": "http.bind", "value": "x"}, {"key": LIMIT, "value": 7}]});
    assert_eq!((limit(&settings), limit(&json!({}))), (Some(7), None));
}
