//! The Model Context Protocol at `/mcp`: both generations, rights, and bad input.

use axum::body::Body;
use serde_json::{Value, json};

use super::learning::put;
use super::people::{Client, check};
use crate::testing::{Recorder, Reply, Stage, read, request};

/// Sends a message as a client of the older generation does.
async fn send(stage: &Stage, key: &str, message: &Value) -> Reply {
    let bearer = format!("Bearer {key}");
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", "2025-06-18"),
        ("authorization", bearer.as_str()),
    ];
    let request = request("POST", "/mcp", &headers);
    let request = request.body(Body::from(message.to_string())).unwrap();
    read(stage.send(request).await).await
}

/// Calls a tool; gives its result.
async fn call(stage: &Stage, key: &str, name: &str, arguments: Value) -> Value {
    let message = json!({
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments},
    });
    let reply = send(stage, key, &message).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    reply.json()["result"].clone()
}

async fn key(stage: &Stage, name: &str) -> String {
    let body = json!({"name": name}).to_string();
    let made = stage.post("/v1/keys", &body).await;
    made.json()["key"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_handshake_tells_the_tools_and_what_they_are_for() {
    let stage = Stage::new(Recorder::Collects).await;
    let key = key(&stage, "notes").await;
    let hello = json!({
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    });
    let reply = send(&stage, &key, &hello).await.json();
    assert_eq!(reply["result"]["serverInfo"]["name"], "hone", "{reply}");
    assert_eq!(reply["result"]["protocolVersion"], "2025-06-18");
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    let reply = send(&stage, &key, &list).await.json();
    let tools = reply["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "memory_search",
            "memory_note",
            "memory_forget",
            "skill_search",
            "skill_load",
            "feedback"
        ]
    );
    for tool in tools {
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
    }
}

#[tokio::test]
async fn memories_are_noted_found_and_forgotten_and_are_nobody_elses() {
    let stage = Stage::new(Recorder::Collects).await;
    let key = key(&stage, "notes").await;
    let noted = call(
        &stage,
        &key,
        "memory_note",
        json!({"text": "My dog is called Rex."}),
    )
    .await;
    let id = noted["structuredContent"]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    call(
        &stage,
        &key,
        "memory_note",
        json!({"text": "I am vegetarian.", "kind": "fact"}),
    )
    .await;
    let found = async |key: &str, query: &str| -> Vec<String> {
        let found = call(&stage, key, "memory_search", json!({"query": query})).await;
        let all = found["structuredContent"]["memories"].as_array().unwrap();
        all.iter()
            .map(|m| m["text"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(found(&key, "which dog").await, ["My dog is called Rex."]);
    // The same by the route, and not of another user of the same key.
    let list = stage.get("/v1/memories?q=dog").await.json();
    assert_eq!(list["data"][0]["id"], id.as_str(), "{list}");
    assert_eq!(list["data"].as_array().unwrap().len(), 1);
    let other = json!({"query": "dog", "user": "somebody-else"});
    let other = call(&stage, &key, "memory_search", other).await;
    assert_eq!(other["structuredContent"]["memories"], json!([]), "{other}");
    let forgotten = call(&stage, &key, "memory_forget", json!({"id": id})).await;
    assert_eq!(forgotten["structuredContent"]["forgotten"], 1);
    assert!(found(&key, "which dog").await.is_empty());
    let again = call(&stage, &key, "memory_forget", json!({"id": id})).await;
    assert_eq!(again["isError"], true, "{again}");
}

#[tokio::test]
async fn what_cannot_be_done_is_told_to_the_model_that_asked_for_it() {
    let stage = Stage::new(Recorder::Collects).await;
    let key = key(&stage, "notes").await;
    for (name, arguments, told) in [
        (
            "memory_note",
            json!({"text": "Remember my card 4111 1111 1111 1111."}),
            "card",
        ),
        ("memory_note", json!({"text": " "}), "words"),
        ("memory_note", json!({"words": "x"}), "unknown field"),
        ("memory_forget", json!({"id": "mem_nothing"}), "no memory"),
        (
            "feedback",
            json!({"turn_id": "nothing", "corection": "Paris."}),
            "corection",
        ),
        (
            "feedback",
            json!({"turn_id": "nothing", "score": 1}),
            "turn_id",
        ),
        (
            "feedback",
            json!({"session_id": "sess_01a1fc1b-b88e-71ef-aa3b-1a50645404e0", "rewards": {"tests": 1}}),
            "session",
        ),
    ] {
        let result = call(&stage, &key, name, arguments).await;
        assert_eq!(result["isError"], true, "{name}: {result}");
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.contains(told), "{name}: {text}");
    }
    put(&stage, &json!({"learning": "off"})).await;
    let result = call(
        &stage,
        &key,
        "memory_note",
        json!({"text": "I am vegetarian."}),
    )
    .await;
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("/v1/consent"), "{text}");
}

#[tokio::test]
async fn strangers_and_garbage_are_refused() {
    let stage = Stage::new(Recorder::Collects).await;
    let key = key(&stage, "notes").await;
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"});
    assert_eq!(send(&stage, "hk_wrong", &list).await.status, 401);
    let unknown = json!({
        "jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "shell", "arguments": {}},
    });
    let reply = send(&stage, &key, &unknown).await.json();
    let told = reply["error"]["message"].as_str().unwrap();
    assert!(told.contains("memory_search"), "{told}");
    for garbage in [json!([]), json!({}), json!("x"), json!({"jsonrpc": "2.0"})] {
        let reply = send(&stage, &key, &garbage).await;
        assert!(
            (400..500).contains(&reply.status),
            "{garbage}: {}",
            reply.text
        );
    }
    assert_eq!(stage.get("/mcp").await.status, 405);
}

#[tokio::test]
async fn an_agent_searches_and_its_keeper_notes() {
    let stage = Stage::new(Recorder::Collects).await;
    let mut keeper = Client::with_key("developer");
    let agent = json!({"name": "builder"});
    check(
        &keeper.send(&stage, "POST", "/v1/agents", agent).await,
        201,
        "",
    );
    keeper.agent = Some("builder");
    let made = keeper
        .send(&stage, "POST", "/v1/keys", json!({"name": "server"}))
        .await;
    let key = made.json()["key"].as_str().unwrap().to_owned();
    for (name, arguments) in [
        ("memory_note", json!({"text": "I am vegetarian."})),
        ("memory_forget", json!({"id": "mem_nothing"})),
    ] {
        let result = call(&stage, &key, name, arguments).await;
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("its keeper does"), "{name}: {result}");
    }
    let result = call(&stage, &key, "memory_search", json!({"query": "food"})).await;
    assert_eq!(
        result["structuredContent"]["memories"],
        json!([]),
        "{result}"
    );
}

#[tokio::test]
async fn skills_are_found_and_loaded_a_file_at_a_time_and_uses_are_counted() {
    let stage = Stage::new(Recorder::Collects).await;
    let key = key(&stage, "work").await;
    let text = "---\nname: weekly-report\ndescription: Writes the weekly report.\n---\nSum up.\n";
    let files = json!({"SKILL.md": text, "references/a.md": "# A", "b.bin": {"base64": "AP8="}});
    let body = json!({ "files": files }).to_string();
    let made = stage.post("/v1/skills", &body);
    assert_eq!(
        made.await.json()["state"],
        "quarantined",
        "a file is no text"
    );
    let search = json!({"query": "the weekly report of my team"});
    let found = call(&stage, &key, "skill_search", search.clone()).await;
    assert_eq!(found["structuredContent"]["skills"], json!([]), "{found}");
    let refused = call(
        &stage,
        &key,
        "skill_load",
        json!({"skill": "weekly-report"}),
    )
    .await;
    assert_eq!(refused["isError"], true);
    assert!(refused.to_string().contains("quarantined"), "{refused}");
    let headers = [("content-type", "application/json")];
    let release = request("PATCH", "/v1/skills/weekly-report", &headers);
    let release = release.body(Body::from(r#"{"released": true}"#)).unwrap();
    assert_eq!(read(stage.send(release).await).await.status, 200);
    let found = call(&stage, &key, "skill_search", search.clone()).await;
    let found = &found["structuredContent"]["skills"][0];
    assert_eq!(found["name"], "weekly-report");
    assert_eq!(found["description"], "Writes the weekly report.");
    assert_eq!(found["text"], Value::Null);
    let load = async |arguments: Value| call(&stage, &key, "skill_load", arguments).await;
    let whole = load(json!({"skill": "weekly-report"})).await["structuredContent"].clone();
    assert_eq!(
        (&whole["content"], &whole["version"]),
        (&json!("Sum up."), &json!(1))
    );
    assert_eq!(whole["files"], json!(["b.bin", "references/a.md"]));
    let file = load(json!({"skill": found["id"], "file": "references/a.md"})).await;
    assert_eq!(file["structuredContent"]["content"], "# A", "{file}");
    let bytes = load(json!({"skill": "weekly-report", "file": "b.bin"})).await;
    assert_eq!(bytes["structuredContent"]["content"]["base64"], "AP8=");
    for arguments in [
        json!({"skill": "weekly-report", "file": "../x"}),
        json!({"skill": "other"}),
        json!({"skill": "weekly-report", "user": "other"}),
        json!({}),
    ] {
        let refused = load(arguments).await;
        assert_eq!(refused["isError"], true, "{refused}");
    }
    let other = json!({"query": "weekly report", "user": "other"});
    let other = call(&stage, &key, "skill_search", other).await;
    assert_eq!(other["structuredContent"]["skills"], json!([]));
    let counted = stage.get("/v1/skills/weekly-report").await.json();
    assert_eq!(json!([counted["uses"], counted["listed"]]), json!([1, 0]));
}
