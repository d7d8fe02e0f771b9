//! Trials, retiring and model names through the gateway.

use axum::body::Body;
use hone_domain::{BlobKey, Digest, OnTrial, Policy, PolicyChoice, PolicyVersion, Scope};
use hone_ledger::suite::World;
use serde_json::{Value, json};

use crate::testing::{Recorder, Reply, Stage, read, request};

/// The scope of the suite's world, by its text.
pub(super) const SCOPE: &str = "5:owner";

async fn act(stage: &Stage, path: &str, body: Value) -> Reply {
    let mut body = body;
    body["scope"] = SCOPE.into();
    let path = format!("/admin/v1/versions/{path}");
    stage.post(&path, &body.to_string()).await
}

pub(super) async fn published(versions: u64) -> Stage {
    let stage = Stage::new(Recorder::Collects).await;
    let world = World::new(stage.http.ledger.clone());
    for parent in 0..versions {
        let policy = world.publish_next(parent).await;
        stage.http.policies.update(|heads| heads.with(policy));
    }
    stage
}

#[tokio::test]
async fn a_trial_begins_and_ends_and_serve_hears_of_it() {
    let stage = published(3).await;
    let scope = Scope::from_stored(SCOPE);
    let refused = [
        ("3/canary", json!({"share": 0}), 400, "invalid_value"),
        ("3/canary", json!({"share": 1}), 400, "invalid_value"),
        ("9/canary", json!({}), 404, "not_found"),
        ("3/promote", json!({}), 409, "already_served"),
        ("3/retire", json!({}), 409, "conflict"),
        ("0/retire", json!({}), 409, "conflict"),
    ];
    for (path, body, status, code) in refused {
        let reply = act(&stage, path, body).await;
        let seen = (reply.status, reply.json()["error"]["code"].clone());
        assert_eq!(seen, (status, json!(code)), "{path}");
    }
    let begun = act(&stage, "1/canary", json!({"share": 0.25})).await.json();
    assert_eq!(
        (&begun["trial"]["version"], &begun["trial"]["proven"]),
        (&json!(4), &json!(3))
    );
    let told = stage.http.policies.get();
    let trial = told.trial(&scope).unwrap();
    assert_eq!((trial.policy.version.0, trial.proven.version.0), (4, 3));
    let list = stage
        .get(&format!("/admin/v1/versions?scope={SCOPE}"))
        .await;
    let list = list.json();
    assert_eq!(list["data"][0]["on_trial"], true);
    assert_eq!(list["trial"]["arms"].as_array().unwrap().len(), 2);
    // Its older number means the same adapter, which only a share of the sessions is served.
    for path in ["1/rollback", "4/rollback"] {
        let error = act(&stage, path, json!({})).await.json()["error"].clone();
        assert_eq!(error["code"], "conflict", "{path}: {error}");
        let told = error["message"].as_str().unwrap();
        assert!(told.contains("`hone versions promote 4`"), "{path}: {told}");
    }
    // A second one has to wait; whoever pins ends it.
    assert_eq!(act(&stage, "2/canary", json!({})).await.status, 409);
    let log = stage.get("/admin/v1/audit").await.json();
    let refused = &log["data"][0];
    assert_eq!(refused["act"], "version.canary");
    assert!(refused["detail"]["refused"].is_string(), "{refused}");
    let pinned = act(&stage, "4/pin", json!({})).await.json();
    assert_eq!(
        (&pinned["pinned"], &pinned["trial"]),
        (&json!(true), &Value::Null)
    );
    assert_eq!(stage.http.policies.get().trial(&scope), None);
    // Another version is promoted by publishing it again, and is what is served then.
    let promoted = act(&stage, "2/promote", json!({})).await.json();
    assert_eq!(promoted["current"], 5);
    let log = stage.get("/admin/v1/audit").await.json();
    assert_eq!(log["data"][0]["act"], "version.promote");
    let retired = act(&stage, "1/retire", json!({})).await;
    assert_eq!(retired.status, 200);
    let reply = act(&stage, "4/canary", json!({})).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (409, &json!("retired"))
    );
}

#[tokio::test]
async fn what_is_tried_again_is_promoted_by_its_older_number_too() {
    let scope = Scope::from_stored(SCOPE);
    // The base model is tried like any version.
    for older in [1, 0] {
        let stage = published(3).await;
        let begun = act(&stage, &format!("{older}/canary"), json!({})).await;
        assert_eq!(begun.json()["trial"]["version"], 4, "{}", begun.text);
        let promoted = act(&stage, &format!("{older}/promote"), json!({})).await;
        let json = promoted.json();
        assert_eq!(
            (promoted.status, &json["current"], &json["trial"]),
            (200, &json!(4), &Value::Null),
            "{}",
            promoted.text
        );
        assert_eq!(stage.http.policies.get().trial(&scope), None);
        let again = act(&stage, &format!("{older}/promote"), json!({})).await;
        assert_eq!(again.json()["error"]["code"], "already_served");
    }
}

#[tokio::test]
async fn sessions_are_split_and_models_are_named_by_version() {
    let stage = Stage::new(Recorder::Collects).await;
    let scope = Scope::of("local", None);
    let policy = |version: u64| Policy {
        scope: scope.clone(),
        version: PolicyVersion(version),
        digest: Digest([version as u8; 32]),
        blob: BlobKey::new(format!("v{version}")).unwrap(),
    };
    let trial = OnTrial {
        policy: policy(3),
        proven: policy(2),
        share: 0.5,
    };
    stage
        .http
        .policies
        .update(|heads| heads.on_trial(trial.clone()));
    let ask = async |model: &str, session: &str| {
        let body = json!({
            "model": model, "session_id": session,
            "messages": [{"role": "user", "content": "hi"}],
        });
        let reply = stage.post("/v1/chat/completions", &body.to_string()).await;
        let asked = stage.fake.asks.lock().unwrap().pop();
        (reply, asked.map(|ask| ask.policy))
    };
    let mut newest = 0;
    for session in 0..24 {
        let session = format!("s{session}");
        let first = ask("gpt", &session).await.1.unwrap();
        assert_eq!(
            ask("gpt", &session).await.1,
            Some(first.clone()),
            "it stays"
        );
        assert!([PolicyChoice::Newest, PolicyChoice::Exact(policy(2))].contains(&first));
        newest += u32::from(first == PolicyChoice::Newest);
    }
    assert!((3..=21).contains(&newest), "{newest} of 24");
    let rows = [
        ("gpt@stable", PolicyChoice::Exact(policy(2))),
        ("gpt@v3", PolicyChoice::Exact(policy(3))),
        ("gpt@v0", PolicyChoice::Base),
        ("gpt@base", PolicyChoice::Base),
    ];
    for (model, expected) in rows {
        assert_eq!(ask(model, "named").await.1, Some(expected), "{model}");
    }
    for model in [
        "gpt@v9",
        "gpt@9",
        "gpt@v-1",
        "other@v3",
        "gpt@v99999999999999999999",
    ] {
        let (reply, asked) = ask(model, "named").await;
        let error = &reply.json()["error"];
        assert_eq!((reply.status, asked), (404, None), "{model}");
        assert_eq!(
            (&error["code"], &error["param"]),
            (&json!("model_not_found"), &json!("model"))
        );
    }
    assert_eq!(stage.get("/v1/models/gpt@v3").await.json()["root"], "gpt");
    assert_eq!(stage.get("/v1/models/gpt@v9").await.status, 404);
}

#[tokio::test]
async fn what_was_never_published_is_not_retired() {
    let stage = Stage::new(Recorder::Collects).await;
    for method in ["POST", "DELETE"] {
        let retire = request(method, "/v1/versions/9/retire", &[]).body(Body::empty());
        let reply = read(stage.send(retire.unwrap()).await).await;
        assert_eq!(reply.status, 404, "{method}: {}", reply.text);
        assert!(reply.text.contains("GET /v1/versions"), "{}", reply.text);
    }
    let base = stage.post("/v1/versions/0/retire", "").await;
    assert_eq!(base.status, 409);
    assert!(base.text.contains("is the base model"), "{}", base.text);
}

#[tokio::test]
async fn everybodys_decisions_are_listed() {
    let stage = Stage::new(Recorder::Collects).await;
    for page in ["consents", "forgets"] {
        let path = format!("/admin/v1/{page}");
        assert_eq!(stage.get(&path).await.json()["data"], json!([]), "{page}");
        let wrong = stage.get(&format!("{path}?limit=0")).await;
        assert_eq!(wrong.status, 400, "{page}");
    }
    let decided = super::learning::put(&stage, &json!({"learning": "off", "user": "ann"})).await;
    assert_eq!(decided.status, 200);
    let forgotten = stage.post("/v1/forget", r#"{"all": true}"#).await;
    assert_eq!(forgotten.status, 200);
    let consents = stage.get("/admin/v1/consents").await.json();
    let row = &consents["data"][0];
    assert_eq!(
        (&row["owner"], &row["user"], &row["learning"]),
        (&json!("local"), &json!("ann"), &json!("off"))
    );
    let forgets = stage.get("/admin/v1/forgets?limit=1").await.json();
    let row = &forgets["data"][0];
    assert_eq!((&row["owner"], &row["turns"]), (&json!("local"), &json!(0)));
    let next = forgets["next"].as_str().unwrap();
    let rest = stage.get(&format!("/admin/v1/forgets?before={next}")).await;
    assert_eq!(rest.json()["data"], json!([]));
}
