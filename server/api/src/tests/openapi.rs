//! The document that `hone openapi` prints is the one that is served.

use crate::testing::{Recorder, Stage};

#[tokio::test]
async fn the_served_document_is_the_same() {
    let stage = Stage::new(Recorder::Collects).await;
    let served = stage.get("/openapi.json").await.json();
    let printed: serde_json::Value = serde_json::from_str(&crate::document()).unwrap();
    assert_eq!(served, printed);
}

#[test]
fn every_reference_of_the_document_has_its_schema() {
    let document: serde_json::Value = serde_json::from_str(&crate::document()).unwrap();
    let text = document.to_string();
    let schemas = &document["components"]["schemas"];
    for rest in text.split("#/components/schemas/").skip(1) {
        let name = rest.split('"').next().unwrap();
        assert!(schemas[name].is_object(), "{name} is no schema");
    }
}
