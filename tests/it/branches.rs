//! Branches from outside: an answer is tried again by the version that gave it, and what is rated of it trains.

use std::path::Path;

use hone_tests::{TestApp, ask, broken_laws, one_version_per_four_answers, temporary};
use serde_json::{Value, json};

use crate::export::trajectories;

const QUESTION: &str = "What is the capital of France?";

async fn current(app: &TestApp) -> u64 {
    let list = app.get("/v1/versions").await.unwrap();
    list["current"].as_u64().unwrap()
}

async fn rate(app: &TestApp, id: &Value, score: i32) {
    let said = json!({"turn_id": id, "score": score});
    app.post("/v1/feedback", said).await.unwrap();
}

/// Waits for the version that follows; four rated answers make one.
async fn next(app: &TestApp, before: u64) -> u64 {
    let list = app.until("/v1/versions", |list| {
        list["current"].as_u64() > Some(before)
    });
    list.await.unwrap()["current"].as_u64().unwrap()
}

async fn learn(app: &TestApp, seed: u64) -> u64 {
    let before = current(app).await;
    for at in 0..4 {
        let reply = app.chat(ask(QUESTION, seed * 100 + at)).await.unwrap();
        rate(
            app,
            &reply["hone"]["turn_id"],
            if at % 2 == 0 { 1 } else { -1 },
        )
        .await;
    }
    next(app, before).await
}

/// An answer of the newest version that has a few tokens, with its turn.
async fn answered(app: &TestApp, version: u64) -> (Value, Value) {
    for seed in 0..400 {
        let reply = app
            .chat(ask("Tell me a joke.", 7_000 + seed))
            .await
            .unwrap();
        let tokens = reply["usage"]["completion_tokens"].as_u64().unwrap();
        if reply["hone"]["policy_version"] == version && tokens >= 6 {
            let id = reply["hone"]["turn_id"].as_str().unwrap();
            let turn = app.get(&format!("/admin/v1/turns/{id}")).await.unwrap();
            return (reply, turn);
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("version {version} gives no long answer");
}

async fn branch(app: &TestApp, body: Value) -> Value {
    app.post("/v1/branches", body).await.unwrap()
}

/// Whatever of the answer stays, the version that gave it computes the very log-probs again.
async fn as_served_is_exact(app: &TestApp, turn: &Value, version: u64) {
    let tokens = turn["tokens"].as_array().unwrap().len() as u64;
    for position in [0, 1, tokens / 2, tokens - 1] {
        let body = json!({"turn_id": turn["id"], "position": position, "n": 2, "max_tokens": 8});
        let told = branch(app, body).await;
        assert_eq!(told["policy_version"], version, "{told}");
        let prefix = &told["prefix"];
        let equal = if position == 0 {
            Value::Null
        } else {
            true.into()
        };
        assert_eq!(prefix["logprobs_equal"], equal, "{position}: {prefix}");
        assert_eq!(prefix["tokens"], position);
        assert_eq!(prefix["logprobs"], prefix["recorded"]);
        for one in told["data"].as_array().unwrap() {
            assert_eq!(one["collected"], true);
        }
        let text = format!(
            "{}{}",
            prefix["text"].as_str().unwrap(),
            told["original"]["text"].as_str().unwrap()
        );
        assert_eq!(text, turn["completion"].as_str().unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_tried_again_exactly_as_it_was_served_and_branches_train() {
    let (_guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &one_version_per_four_answers())
        .await
        .unwrap();
    let first = learn(&app, 1).await;
    let (reply, turn) = answered(&app, first).await;
    as_served_is_exact(&app, &turn, first).await;

    // Also when a newer version serves, which gives the same tokens other log-probs.
    let second = learn(&app, 2).await;
    answered(&app, second).await;
    as_served_is_exact(&app, &turn, first).await;
    let latest =
        json!({"turn_id": turn["id"], "position": 4, "n": 4, "version": "latest", "seed": 3});
    let told = branch(&app, latest).await;
    assert_eq!(told["policy_version"], second);
    assert_eq!(told["prefix"]["logprobs_equal"], false, "{told}");
    // By the id of the reply, or by its session, it is the same turn.
    let body = json!({"turn_id": reply["id"], "max_tokens": 4});
    assert_eq!(branch(&app, body).await["branch_of"]["turn_id"], turn["id"]);
    let body = json!({"session_id": turn["session_id"], "max_tokens": 4});
    assert_eq!(branch(&app, body).await["branch_of"]["turn_id"], turn["id"]);
    let beyond = json!({"turn_id": turn["id"], "position": 4_000});
    let (status, error) = app.try_post("/v1/branches", beyond).await.unwrap();
    assert_eq!(
        (status, &error["error"]["param"]),
        (400, &json!("position"))
    );

    branches_train(&app, &told, &turn, second).await;
    app.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), [""; 0]);
}

async fn branches_train(app: &TestApp, told: &Value, turn: &Value, version: u64) {
    let branches = told["data"].as_array().unwrap();
    for (at, one) in branches.iter().enumerate() {
        rate(app, &one["turn_id"], if at % 2 == 0 { 1 } else { -1 }).await;
    }
    let third = next(app, version).await;
    for one in branches {
        let id = one["turn_id"].as_str().unwrap();
        let seen = app.get(&format!("/v1/turns/{id}")).await.unwrap();
        assert_eq!(seen["fate"]["version"], third, "{seen}");
        assert_eq!(
            seen["branch_of"],
            json!({"turn_id": turn["id"], "position": 4})
        );
        assert_eq!(
            (&seen["origin"], &seen["session_id"]),
            (&json!("rollout"), &told["session_id"])
        );
        // What stays of the answer is part of the prompt, and no loss.
        let asked = turn["prompt_tokens"].as_u64().unwrap();
        assert_eq!(seen["prompt_tokens"], asked + 4);
    }
    // They are none of the conversations that a person had.
    let sessions = app.get("/v1/sessions?limit=200").await.unwrap();
    let listed = |id: &Value| {
        sessions["data"]
            .as_array()
            .unwrap()
            .iter()
            .any(|s| s["id"] == *id)
    };
    assert!(listed(&turn["session_id"]) && !listed(&told["session_id"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_read_and_exported_in_the_formats_of_the_field() {
    let (_guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &[]).await.unwrap();
    let reply = app.chat(ask(QUESTION, 1)).await.unwrap();
    let said = reply["choices"][0]["message"].clone();
    let mut body = ask(QUESTION, 2);
    let more = json!({"role": "user", "content": "And of Italy?"});
    body["messages"]
        .as_array_mut()
        .unwrap()
        .extend([said, more]);
    let second = app.chat(body).await.unwrap();
    let session = second["hone"]["session_id"].as_str().unwrap();
    assert_eq!(reply["hone"]["session_id"], session);
    let reward = json!({"session_id": session, "score": 0.5});
    app.post("/v1/feedback", reward).await.unwrap();
    let mut read = Vec::new();
    for format in ["hone", "atif", "openenv", "verifiers"] {
        let path = format!("/v1/episodes/{session}?format={format}");
        read.push(app.get(&path).await.unwrap());
    }
    let [hone, atif, openenv, verifiers] = &read[..] else {
        panic!("{read:?}")
    };
    let turns = hone["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 2);
    let steps = atif["steps"].as_array().unwrap();
    let agents: Vec<&Value> = steps
        .iter()
        .filter(|step| step["source"] == "agent")
        .collect();
    assert_eq!((steps.len(), agents.len()), (4, 2));
    let nodes = verifiers["traces"][0]["nodes"].as_array().unwrap();
    for (at, turn) in turns.iter().enumerate() {
        let metrics = &agents[at]["metrics"];
        assert_eq!(metrics["completion_token_ids"], turn["completion_ids"]);
        assert_eq!(metrics["logprobs"], turn["logprobs"]);
        assert_eq!(openenv[at]["prompt_token_ids"], turn["prompt_ids"]);
        assert_eq!(openenv[at]["per_token_logps"], turn["logprobs"]);
        assert_eq!(nodes[2 * at + 1]["token_ids"], turn["completion_ids"]);
    }
    // The second prompt goes on from the very tokens of the first turn.
    assert_eq!(nodes.len(), 4);
    assert_eq!(
        (&atif["extra"]["reward"], &openenv[0]["reward"]),
        (&json!(0.5), &json!(0.5))
    );
    let model = atif["agent"]["model_name"].as_str().unwrap();
    assert_eq!(model, "hone-starter@base");
    let (status, error) = app
        .try_get(&format!("/v1/episodes/{session}?format=csv"))
        .await
        .unwrap();
    assert_eq!((status, &error["error"]["param"]), (400, &json!("format")));
    let (status, _) = app
        .try_get(&format!("/v1/episodes/{session}"))
        .await
        .unwrap();
    assert_eq!(status, 404, "a session has no outcome of a rollout");
    app.stop().await.unwrap();

    exported(&data, &read).await;
    keep(&read);
}

/// The export writes the same; which model is served it does not know, and a verdict may have come since.
async fn exported(data: &Path, read: &[Value]) {
    for (name, place) in [
        ("hone", "/turns/1/logprobs"),
        ("openenv", "/1/per_token_logps"),
        ("atif", "/steps/3/metrics"),
        ("verifiers", "/traces/0/nodes/3/token_ids"),
    ] {
        let lines = trajectories(data, name, "local").await;
        assert_eq!(lines.len(), 1, "{name}");
        let before = read.iter().find_map(|episode| episode.pointer(place));
        assert!(
            before.is_some() && lines[0].pointer(place) == before,
            "{name} {lines:?}"
        );
        assert!(lines[0].pointer("/agent/model_name").is_none());
    }
}

/// For `make formats`: what was read, where the programs whose formats these are read it.
fn keep(read: &[Value]) {
    let Some(folder) = std::env::var_os("HONE_FORMATS_OUT") else {
        return;
    };
    for (name, episode) in ["hone", "atif", "openenv", "verifiers"].iter().zip(read) {
        let file = Path::new(&folder).join(format!("{name}.jsonl"));
        std::fs::write(file, format!("{episode}\n")).unwrap();
    }
}
