//! Adapters from elsewhere through the gateway.

use axum::body::Body;
use hone_domain::{PolicyVersion, Scope};
use hone_ledger::suite::World;
use serde_json::{Value, json};

use crate::adapters::adapter_body;
use crate::testing::{Recorder, Reply, Stage, read, request};

const IMPORT: &str = "/admin/v1/versions/import";
/// The scope of the suite's world, by its text.
const SCOPE: &str = "5:owner";

async fn import(stage: &Stage, body: &Value) -> Reply {
    let headers = [("content-type", "application/json")];
    let request = request("POST", IMPORT, &headers).body(Body::from(body.to_string()));
    read(stage.send(request.unwrap()).await).await
}

/// Status, code and field of a refusal, and its sentence.
fn refused(reply: &Reply) -> (u16, String, Value, String) {
    let error = &reply.json()["error"];
    let text = |name: &str| error[name].as_str().unwrap().to_owned();
    (
        reply.status,
        text("code"),
        error["param"].clone(),
        text("message"),
    )
}

/// With one field changed.
fn with(field: &str, value: Value) -> Value {
    let mut body = adapter_body(SCOPE, 9);
    body[field] = value;
    body
}

#[tokio::test]
async fn an_adapter_becomes_the_next_version() {
    let stage = Stage::new(Recorder::Collects).await;
    let world = World::new(stage.http.ledger.clone());
    let learned = world.publish_next(0).await;
    stage.http.policies.update(|heads| heads.with(learned));
    let mut body = adapter_body(SCOPE, 1);
    body["note"] = "tickets of last year".into();
    let reply = import(&stage, &body).await;
    let json = reply.json();
    assert_eq!(
        (reply.status, &json["version"], &json["parent"]),
        (200, &json!(2), &json!(0)),
        "{json}"
    );
    assert_eq!(
        (&json["status"], &json["note"], &json["samples"]),
        (
            &json!("imported"),
            &json!("tickets of last year"),
            &json!(0)
        )
    );
    assert_eq!(json["report"]["imported"]["rank"], 2);
    let scope = Scope::from_stored(SCOPE);
    let served = stage.http.policies.get().newest(&scope).cloned().unwrap();
    assert_eq!(served.version, PolicyVersion(2));
    assert_eq!(json["digest"], json!(served.digest));

    let again = refused(&import(&stage, &body).await);
    assert_eq!((again.0, &*again.1), (409, "already_served"));
    let other = import(&stage, &adapter_body(SCOPE, 2)).await.json();
    assert_eq!(other["version"], 3);
    let again = refused(&import(&stage, &body).await);
    assert_eq!((again.0, &*again.1), (409, "conflict"));
    assert!(
        again.3.contains("version 2 is the same adapter"),
        "{again:?}"
    );
    let back = json!({ "scope": SCOPE }).to_string();
    let back = stage.post("/admin/v1/versions/2/rollback", &back).await;
    assert_eq!(back.json()["digest"], json["digest"]);
}

#[tokio::test]
async fn what_does_not_fit_changes_nothing() {
    let stage = Stage::new(Recorder::Collects).await;
    let mut doubled = adapter_body(SCOPE, 9)["config"].clone();
    doubled["use_dora"] = true.into();
    let rows = [
        (with("config", doubled), Value::Null, "train plain LoRA"),
        (with("config", json!({})), Value::Null, "peft_type"),
        (with("config", json!([])), json!("config"), "an object"),
        (with("config", Value::Null), json!("config"), "an object"),
        (with("weights", json!("")), Value::Null, "damaged"),
        (with("weights", json!("{}")), json!("weights"), "not base64"),
        (
            with("scope", json!("local")),
            json!("scope"),
            "scope's text",
        ),
        (
            with("scope", json!("x".repeat(4_000))),
            json!("scope"),
            "at most",
        ),
        (
            with("note", json!("x".repeat(600))),
            json!("note"),
            "at most 500",
        ),
        (with("share", json!(0.5)), json!("share"), "no field"),
    ];
    for (body, field, part) in rows {
        let (status, code, param, said) = refused(&import(&stage, &body).await);
        assert_eq!((status, &*code), (400, "invalid_value"), "{said}");
        assert!(param == field && said.contains(part), "{param} {said}");
    }
    let place = stage.http.importer.place();
    let busy = refused(&import(&stage, &adapter_body(SCOPE, 9)).await);
    assert_eq!((busy.0, &*busy.1), (503, "busy"));
    drop(place);
    let announced = (stage.http.config.import_bytes_max + 1).to_string();
    let headers = [
        ("content-type", "application/json"),
        ("content-length", announced.as_str()),
    ];
    let large = request("POST", IMPORT, &headers).body(Body::empty());
    let large = refused(&read(stage.send(large.unwrap()).await).await);
    assert_eq!((large.0, &*large.1), (413, "body_too_large"));
    assert!(large.3.contains("http.import_bytes_max"), "{large:?}");
    assert_eq!(stage.http.ledger.versions(None, 10).await.unwrap().len(), 0);
}

#[tokio::test]
async fn what_holds_a_scope_says_how_to_release_it() {
    let stage = Stage::new(Recorder::Collects).await;
    let world = World::new(stage.http.ledger.clone());
    let learned = world.publish_next(0).await;
    stage.http.policies.update(|heads| heads.with(learned));
    let body = json!({ "scope": SCOPE }).to_string();
    let pinned = stage.post("/admin/v1/versions/1/pin", &body).await;
    assert_eq!(pinned.status, 200);
    let held = refused(&import(&stage, &adapter_body(SCOPE, 1)).await);
    assert_eq!((held.0, &*held.1), (409, "conflict"));
    assert!(held.3.contains("hone versions unpin"), "{held:?}");
}
