//! What a list of memories says about requests that do not say what they do with them.

use serde_json::{Value, json};

use super::learning::put;
use crate::testing::{Recorder, Stage, read, request};

async fn modes(stage: &Stage, key: Option<&str>) -> Value {
    let bearer = key.map(|key| format!("Bearer {key}"));
    let headers: Vec<(&str, &str)> = bearer.iter().map(|b| ("authorization", &**b)).collect();
    let request = request("GET", "/v1/memories", &headers).body(String::new().into());
    let list = read(stage.send(request.unwrap()).await).await.json();
    json!([list["mode"], list["mode_max"]])
}

#[tokio::test]
async fn a_list_says_what_requests_do_and_at_most() {
    let stage = Stage::new(Recorder::Collects).await;
    let made = stage.post("/v1/keys", r#"{"name": "notes", "memory": "full"}"#);
    let key = made.await.json()["key"].as_str().unwrap().to_owned();
    for (learning, most) in [("full", "full"), ("serve", "read"), ("off", "off")] {
        let reply = put(&stage, &json!({"learning": learning})).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        // The configuration says off, the key says more.
        assert_eq!(modes(&stage, None).await, json!(["off", most]));
        assert_eq!(modes(&stage, Some(&key)).await, json!([most, most]));
    }
    // Where several people share one policy nothing is remembered.
    assert_eq!(modes(&stage, Some("helpdesk")).await, json!(["off", "off"]));
}
