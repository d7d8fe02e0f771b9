//! Trajectories from outside, over the router. The template of the backend without a model ends no message, so
//! nothing here becomes a turn; `tests/it/trajectories.rs` has a model.

use serde_json::{Value, json};

use super::learning::put;
use crate::testing::{Recorder, Stage};

const PATH: &str = "/v1/trajectories";

fn chat() -> Value {
    json!([
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
    ])
}

#[tokio::test]
async fn what_is_wrong_with_a_trajectory_is_named() {
    let stage = Stage::new(Recorder::Collects).await;
    let many: serde_json::Map<_, _> = (0..17).map(|n| (n.to_string(), json!(0))).collect();
    let long = vec![json!({"role": "user", "content": "q"}); 65];
    for (fields, param) in [
        (json!({"messages": null}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": long}), "messages"),
        (
            json!({"messages": [{"role": "user", "content": "q"}]}),
            "messages",
        ),
        (
            json!({"messages": [{"role": "judge", "content": "q"}]}),
            "messages[0].role",
        ),
        (json!({"reward": 1.5}), "reward"),
        (json!({"rewards": {"tests": -2}}), "rewards"),
        (json!({"rewards": many}), "rewards"),
        (json!({"id": ""}), "id"),
        (json!({"group_id": "g".repeat(257)}), "group_id"),
        (json!({"score": 1}), "score"),
        (json!({"turns": []}), "turns"),
    ] {
        let mut body = json!({"messages": chat()});
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let reply = stage.post(PATH, &body.to_string()).await;
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, &error["param"]),
            (400, &json!(param)),
            "{error}"
        );
    }
    let nan = r#"{"messages": [], "reward": NaN}"#;
    assert_eq!(stage.post(PATH, nan).await.status, 400);
    assert!(stage.told.lock().unwrap().turns.is_empty());
}

#[tokio::test]
async fn messages_that_cannot_be_turns_are_told_apart() {
    let stage = Stage::new(Recorder::Collects).await;
    let messages = json!([
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
    ]);
    let body = json!({"messages": messages, "reward": 1, "id": "one"}).to_string();
    let reply = stage.post(PATH, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let told = reply.json();
    assert_eq!(
        (&told["id"], &told["collected"]),
        (&json!("one"), &json!(false))
    );
    assert_eq!(
        told["left_out"],
        json!([{"message": 0, "reason": "no_prompt"}, {"message": 2, "reason": "template"}])
    );
    assert_eq!(told["turn_ids"], json!([]));
    // The same again comes under the same session.
    assert_eq!(stage.post(PATH, &body).await.json(), told);
    let other = json!({"messages": messages, "reward": 1, "id": "two"}).to_string();
    let other = stage.post(PATH, &other).await.json();
    assert_ne!(other["session_id"], told["session_id"]);
}

#[tokio::test]
async fn without_consent_nothing_is_kept() {
    let stage = Stage::new(Recorder::Collects).await;
    assert_eq!(put(&stage, &json!({"learning": "off"})).await.status, 200);
    let body = json!({"messages": chat()}).to_string();
    let reply = stage.post(PATH, &body).await.json();
    assert_eq!(
        (&reply["collected"], &reply["reason"]),
        (&json!(false), &json!("learning_off"))
    );
    assert!(stage.told.lock().unwrap().turns.is_empty());
}
