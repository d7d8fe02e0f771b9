#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use hone_runtime::{LoopPhase, StatusRegistry};
use serde_json::{Value, json};
use toml::Value as Toml;

use super::*;
use crate::config::Sources;

/// The configuration of a server without a model, on a free port, with `flags`.
pub(crate) fn config(data: &Path, flags: &[(&str, Toml)]) -> Config {
    let mut all = vec![
        ("http.bind".to_owned(), Toml::from("127.0.0.1:0")),
        (
            "store.data_dir".to_owned(),
            Toml::from(data.display().to_string()),
        ),
        ("model.engine".to_owned(), Toml::from("null")),
        // A busy disk costs no receipt.
        ("http.receipt_timeout_ms".to_owned(), Toml::from(20_000)),
    ];
    all.extend(
        flags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone())),
    );
    let sources = Sources {
        flags: all,
        ..Sources::default()
    };
    Config::load(&sources).unwrap()
}

async fn chat(app: &App, text: &str, stream: bool) -> reqwest::Response {
    let body = json!({
        "model": app.model, "stream": stream, "messages": [{"role": "user", "content": text}],
    });
    let url = format!("http://{}/v1/chat/completions", app.addr);
    hone_net::outbound::install_tls();
    reqwest::Client::new()
        .post(url)
        .json(&body)
        .send()
        .await
        .unwrap()
}

async fn get(app: &App, path: &str) -> Value {
    hone_net::outbound::install_tls();
    let url = format!("http://{}{path}", app.addr);
    reqwest::get(url).await.unwrap().json().await.unwrap()
}

#[tokio::test]
async fn an_app_answers_remembers_and_stops() {
    let data = tempfile::tempdir().unwrap();
    let app = App::start(config(data.path(), &[])).await.unwrap();
    let reply: Value = chat(&app, "hi", false).await.json().await.unwrap();
    let said = reply["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(said, "This completion comes from the null engine.");
    assert_eq!(reply["hone"]["collected"], true);
    let streamed = chat(&app, "hi", true).await.text().await.unwrap();
    assert!(streamed.ends_with("data: [DONE]\n\n"));
    assert!(app.stop().await, "nothing was under way");

    let app = App::start(config(data.path(), &[])).await.unwrap();
    let path = format!("/v1/turns/{}", reply["hone"]["turn_id"].as_str().unwrap());
    let turn = get(&app, &path).await;
    assert_eq!(
        (&turn["completion"], &turn["fate"]["reason"]),
        (&json!(said), &json!("backend_cannot_train"))
    );
    assert_eq!(get(&app, "/admin/v1/status").await["ledger"]["turns"], 2);
    assert!(app.stop().await);
}

/// As agents begin: 8,000 to 50,000 characters of instructions and 3 to 24 tools, sent every time.
#[tokio::test]
async fn a_long_opening_with_many_tools_is_bound_like_any_other() {
    let data = tempfile::tempdir().unwrap();
    let app = App::start(config(data.path(), &[])).await.unwrap();
    hone_net::outbound::install_tls();
    for (characters, tools) in [(8_000, 3), (50_000, 24)] {
        let tool = |n: usize| {
            let parameters = json!({"type": "object", "properties": {"x": {"type": "string"}}});
            let function = json!({"name": format!("tool{n}"), "parameters": parameters});
            json!({"type": "function", "function": function})
        };
        let tools: Vec<Value> = (0..tools).map(tool).collect();
        let say = |role: &str, text: &str| json!({"role": role, "content": text});
        let mut messages = vec![
            say("system", &"x".repeat(characters)),
            say("user", "where is it?"),
        ];
        let mut turns = Vec::new();
        for _ in 0..2 {
            let body = json!({"model": app.model, "tools": tools, "messages": messages});
            let url = format!("http://{}/v1/chat/completions", app.addr);
            let reply = reqwest::Client::new().post(url).json(&body).send().await;
            let reply: Value = reply.unwrap().json().await.unwrap();
            assert_eq!(reply["hone"]["collected"], true, "{reply}");
            messages.push(reply["choices"][0]["message"].clone());
            messages.push(say("user", "thank you"));
            let id = reply["hone"]["turn_id"].as_str().unwrap();
            turns.push(get(&app, &format!("/v1/turns/{id}")).await);
        }
        let (first, second) = (&turns[0], &turns[1]);
        assert_eq!(second["session_id"], first["session_id"]);
        assert_eq!(second["parent_id"], first["id"]);
        assert!(first["prompt_tokens"].as_u64().unwrap() > characters as u64);
    }
    assert!(app.stop().await);
}

#[tokio::test(start_paused = true)]
async fn what_works_beside_the_ring_begins_again_after_a_panic() {
    let (registry, stop, runs) = (
        StatusRegistry::new(),
        ShutdownTrigger::new(),
        Arc::default(),
    );
    let (mut tasks, counted) = (JoinSet::new(), Arc::<AtomicU32>::clone(&runs));
    let name = ("eraser", registry.clone());
    loops::beside(name, stop.signal(), &mut tasks, move |stop| {
        let run = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            assert!(run > 0, "boom");
            stop.wait().await;
        }
    });
    while runs.load(Ordering::Relaxed) < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let seen = || registry.snapshot()["eraser"].clone();
    assert_eq!((seen().restarts, seen().state), (1, LoopPhase::Running));
    assert_eq!(seen().last_error.as_deref(), Some("panicked: boom"));
    stop.pull();
    tasks.join_next().await.unwrap().unwrap();
    assert_eq!((seen().restarts, seen().state), (1, LoopPhase::Stopped));
}

#[tokio::test]
async fn what_works_beside_the_ring_is_in_the_status() {
    let data = tempfile::tempdir().unwrap();
    let prompts = ("learning.paired_prompts", Toml::from(1));
    let app = App::start(config(data.path(), &[prompts])).await.unwrap();
    let status = get(&app, "/admin/v1/status").await;
    for name in ["eraser", "watch", "paired", "people"] {
        assert_eq!(
            status["loops"][name]["state"], "running",
            "{name}: {status}"
        );
    }
    assert!(app.stop().await);
}

#[tokio::test]
async fn any_subset_of_loops_makes_an_app() {
    for loops in [vec!["serve"], vec!["collect", "judge"], vec!["judge"]] {
        let data = tempfile::tempdir().unwrap();
        let value = Toml::from(loops.clone());
        let app = App::start(config(data.path(), &[("loops", value)]))
            .await
            .unwrap();
        let status = get(&app, "/admin/v1/status").await;
        let reply = chat(&app, "hi", false).await;
        let expected = if loops.contains(&"serve") { 200 } else { 503 };
        assert_eq!(reply.status().as_u16(), expected, "{loops:?}");
        for name in ["collect", "judge", "train"] {
            assert_eq!(
                status["loops"].get(name).is_some(),
                loops.contains(&name),
                "{loops:?}"
            );
        }
        assert!(app.stop().await);
    }
}

#[tokio::test]
async fn what_prevents_a_start_is_said() {
    let data = tempfile::tempdir().unwrap();
    let first = App::start(config(data.path(), &[])).await.unwrap();
    let taken = Toml::from(first.addr.to_string());
    let other = tempfile::tempdir().unwrap();
    let nowhere = data.path().join("nowhere").display().to_string();
    let builtin = ("model.engine", Toml::from("builtin"));
    let rows: Vec<(Config, &str)> = vec![
        (
            config(other.path(), &[("http.bind", taken)]),
            "cannot be bound",
        ),
        (config(data.path(), &[]), "in use by another"),
        (
            config(
                other.path(),
                &[builtin, ("model.path", Toml::from(nowhere))],
            ),
            "nowhere",
        ),
    ];
    for (config, part) in rows {
        let error = App::start(config).await.err().unwrap();
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
    assert!(first.stop().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_starter_model_answers() {
    let data = tempfile::tempdir().unwrap();
    let app = App::start(config(
        data.path(),
        &[("model.engine", Toml::from("builtin"))],
    ));
    let app = app.await.unwrap();
    let reply: Value = chat(&app, "Hello!", false).await.json().await.unwrap();
    let said = reply["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(!said.is_empty());
    assert_eq!(
        (
            &reply["hone"]["collected"],
            &reply["hone"]["policy_version"]
        ),
        (&json!(true), &json!(0))
    );
    assert!(app.stop().await);
}

#[tokio::test]
async fn what_can_change_at_once_does_and_the_rest_is_named() {
    use sha2::{Digest as _, Sha256};
    let data = tempfile::tempdir().unwrap();
    let trusting = [("people.trust_loopback", Toml::from(true))];
    let app = App::start(config(data.path(), &trusting)).await.unwrap();
    let sha256: String = Sha256::digest("word")
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let key: toml::Table = format!("owner = \"ann\"\nsha256 = \"{sha256}\"")
        .parse()
        .unwrap();
    let changes = [
        ("http.keys", Toml::Array(vec![Toml::Table(key)])),
        ("limits.owner.requests_per_minute", Toml::from(1)),
        ("http.messages_max", Toml::from(7)),
        ("people.sign_in", Toml::from(true)),
        ("people.trust_loopback", Toml::from(true)),
    ];
    let me = async |key: &str| {
        let url = format!("http://{}/v1/models", app.addr);
        let request = reqwest::Client::new().get(url).bearer_auth(key);
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(me("word").await, 200, "a placeholder where no key exists");
    assert_eq!(me("other").await, 200);
    let late = app.reload(&config(data.path(), &changes)).await.unwrap();
    assert_eq!(late, ["http.messages_max", "people.sign_in"]);
    assert_eq!((me("word").await, me("other").await), (200, 401));
    assert_eq!(chat(&app, "hi", false).await.status(), 200);
    assert_eq!(chat(&app, "hi", false).await.status(), 429);
    let shown = get(&app, "/admin/v1/config").await.to_string();
    assert!(
        shown.contains("requests_per_minute\",\"value\":1"),
        "{shown}"
    );
    assert!(shown.contains("messages_max\",\"value\":4096"), "{shown}");
    let acts = get(&app, "/admin/v1/audit").await;
    assert_eq!(acts["data"][0]["act"], "config.reload", "{acts}");
    for unread in ["hone=nonsense=level", "lowd"] {
        let unread = [("log.level", Toml::from(unread))];
        let refused = app.reload(&config(data.path(), &unread)).await;
        assert!(refused.unwrap_err().contains("log.level"));
    }
    assert!(app.stop().await);
}
