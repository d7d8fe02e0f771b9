//! The document in the repository is the one that is served.

use crate::testing::{Recorder, Stage};

#[test]
fn the_document_in_docs_is_current() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let written = std::fs::read_to_string(path).unwrap();
    assert!(
        written == crate::document(),
        "docs/openapi.json is not what the routes say; run `make openapi` and look at the difference"
    );
}

#[tokio::test]
async fn the_served_document_is_the_same() {
    let stage = Stage::new(Recorder::Collects).await;
    let served = stage.get("/openapi.json").await.json();
    let written: serde_json::Value = serde_json::from_str(&crate::document()).unwrap();
    assert_eq!(served, written);
}
