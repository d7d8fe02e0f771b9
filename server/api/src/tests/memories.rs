//! What a list of memories says about requests that do not say what they do with them.

use hone_domain::{MemoryId, MemoryKind, MemoryOrigin};
use hone_ledger::NewMemory;
use serde_json::{Value, json};
use uuid::Uuid;

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

/// What the loop or another process just kept is in the ledger before this process shows it.
#[tokio::test]
async fn what_the_list_names_is_shown_from_then_on() {
    let stage = Stage::new(Recorder::Collects).await;
    let added = stage.post("/v1/memories", r#"{"text": "I live in Leeds."}"#);
    assert_eq!(added.await.status, 201);
    let (ledger, shown) = (&stage.http.memories, &stage.http.remembered);
    let scope = ledger.newest_memories(None, 1).await.unwrap()[0]
        .scope
        .clone();
    let new = NewMemory {
        id: MemoryId(Uuid::from_u128(7)),
        kind: MemoryKind::Fact,
        text: "I have a cat.".to_owned(),
        topic: None,
        replaces: None,
        turn: None,
        origin: MemoryOrigin::Said,
    };
    ledger.add_memory(&scope, &new, 1).await.unwrap();
    assert!(shown.of(&scope).get(new.id).is_none());
    let list = stage.get("/v1/memories").await.json();
    assert_eq!(list["data"][0]["text"], new.text);
    assert!(shown.of(&scope).get(new.id).is_some());
}

#[tokio::test]
async fn a_file_goes_out_and_comes_in() {
    let stage = Stage::new(Recorder::Collects).await;
    let empty = stage.get("/v1/memories/export").await;
    assert_eq!((empty.status, empty.text.as_str()), (200, "# Memories\n"));
    let file = "## Preferences\n- From now on, keep it short.\n## About me\n- Call me Sam.\n- call me sam\n\
        - My card is 4111 1111 1111 1111.\n- Call me Max.\n";
    let import = |file: &str| json!({"markdown": file}).to_string();
    let reply = stage.post("/v1/memories/import", &import(file)).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let reply = reply.json();
    let counts = json!([reply["added"], reply["same"], reply["refused"]]);
    assert_eq!(counts, json!([3, 1, 1]));
    assert_eq!(reply["reasons"][0]["line"], 6);
    let why = reply["reasons"][0]["reason"].as_str().unwrap();
    assert!(why.contains("card"), "{why}");
    // The newer name replaced the older one.
    let exported = stage.get("/v1/memories/export").await;
    let header = exported.headers.get("content-type").unwrap();
    assert_eq!(header, "text/markdown; charset=utf-8");
    let expected = "# Memories\n\n## Preferences\n\n- From now on, keep it short.\n\n## Facts\n\n- Call me Max.\n";
    assert_eq!(exported.text, expected);
    let list = stage.get("/v1/memories").await.json();
    assert_eq!(list["data"][0]["origin"], "imported");
    // What was exported is there already.
    let again = stage
        .post("/v1/memories/import", &import(expected))
        .await
        .json();
    assert_eq!(json!([again["added"], again["same"]]), json!([0, 2]));
}

#[tokio::test]
async fn files_without_end_and_files_with_nothing_are_refused() {
    let stage = Stage::new(Recorder::Collects).await;
    let many = "x\n".repeat(10_001);
    for (file, part) in [
        ("", "no list"),
        ("# Only a heading", "no list"),
        (&many, "10001 entries"),
    ] {
        let reply = stage
            .post(
                "/v1/memories/import",
                &json!({"markdown": file}).to_string(),
            )
            .await;
        assert_eq!(reply.status, 400);
        assert!(reply.text.contains(part), "{}", reply.text);
    }
    let long = json!({"markdown": format!("- {}\n- I am tall.", "a ".repeat(20_000))});
    let reply = stage
        .post("/v1/memories/import", &long.to_string())
        .await
        .json();
    assert_eq!(json!([reply["added"], reply["refused"]]), json!([1, 1]));
    let off = put(&stage, &json!({"learning": "off"})).await;
    assert_eq!(off.status, 200);
    let reply = stage
        .post("/v1/memories/import", r#"{"markdown": "- I am tall."}"#)
        .await;
    assert_eq!(reply.status, 403, "{}", reply.text);
}

#[tokio::test]
async fn a_misspelt_field_of_hone_is_named() {
    let stage = Stage::new(Recorder::Collects).await;
    let messages = json!([{"role": "user", "content": "q"}]);
    let body = json!({"model": "fake", "messages": messages, "hone": {"memroy": "full"}});
    for path in ["/v1/chat/completions", "/v1/responses"] {
        let mut body = body.clone();
        body["input"] = "q".into();
        let reply = stage.post(path, &body.to_string()).await;
        assert_eq!(reply.status, 400, "{}", reply.text);
        assert!(reply.text.contains("memroy"), "{}", reply.text);
    }
}

#[tokio::test]
async fn of_facts_that_replace_one_another_and_come_at_once_one_is_current() {
    let stage = Stage::new(Recorder::Collects).await;
    let towns = ["Oslo", "Rome", "Paris", "Madrid", "Turin"];
    let bodies = towns.map(|town| json!({"text": format!("I live in {town}.")}).to_string());
    let posts = bodies.iter().map(|body| stage.post("/v1/memories", body));
    for reply in futures::future::join_all(posts).await {
        assert_eq!(reply.status, 201, "{}", reply.text);
    }
    let list = stage.get("/v1/memories").await.json();
    let all = list["data"].as_array().unwrap();
    let current = all.iter().filter(|one| one["superseded_by"].is_null());
    assert_eq!((all.len(), current.count()), (5, 1));
}
