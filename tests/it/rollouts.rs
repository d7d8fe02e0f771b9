//! Agents that try tasks in jails: what they are paid teaches, and a server that is killed loses nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hone_tests::{
    TestApp, broken_laws, client, get, one_version_per_four_answers, post, temporary,
};
use serde_json::{Value, json};

use crate::program::{Server, program, serving};

/// The first process of a jail: a program of the jails' own crate, beside this one.
pub(crate) fn guest() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let folder = here.ancestors().nth(2).unwrap();
    let guest = folder.join("hone-guest");
    assert!(guest.exists(), "{} was not built", guest.display());
    guest
}

/// A server with jails that learns from every four answers.
async fn with_jails(data: &Path) -> TestApp {
    let mut changes = one_version_per_four_answers();
    changes.extend([
        ("tools.executor", "bubblewrap".into()),
        ("tools.guest", guest().display().to_string().into()),
        ("rollout.tick_ms", 100.into()),
    ]);
    TestApp::start(data, &changes).await.unwrap()
}

fn set(tasks: &[Value]) -> Value {
    json!({"name": "tasks", "tasks": tasks})
}

/// Answers of three words and less pass; the built-in model gives such and longer ones.
pub(crate) fn short(name: &str, held_out: bool) -> Value {
    json!({
        "name": name, "instruction": format!("What is the capital of {name}?"), "held_out": held_out,
        "tests": {"test.sh": "[ $(wc -w < /app/answer.txt) -le 3 ]"},
        "solution": {"solve.sh": "echo Here > /app/answer.txt"},
    })
}

/// The number of jobs that stand so.
fn count(queues: &Value, kind: &str, state: &str) -> u64 {
    let rows = queues["data"].as_array().unwrap().iter();
    let rows = rows.filter(|row| row["kind"] == kind && row["state"] == state);
    rows.map(|row| row["count"].as_u64().unwrap()).sum()
}

/// A set of which two tasks can tell no solution from none, once it is checked.
async fn checked(app: &TestApp) -> Value {
    let mut tasks: Vec<Value> = ["France", "Italy", "Spain", "Japan"]
        .map(|name| short(name, name == "Japan"))
        .into();
    tasks.push(json!({"name": "free", "instruction": "Rest.", "tests": {"test.sh": "exit 0"}}));
    tasks.push(json!({
        "name": "odd", "instruction": "Rest.", "held_out": false,
        "tests": {"test.sh": "echo NaN > /logs/verifier/reward.txt"},
    }));
    let added = app.post("/v1/task-sets", set(&tasks)).await.unwrap();
    let path = format!("/v1/task-sets/{}", added["id"].as_str().unwrap());
    let checked = app.until(&path, |set| set["states"]["new"].is_null()).await;
    let checked = checked.unwrap();
    let states = json!({"ready": 4, "refused": 2});
    assert_eq!(checked["states"], states, "{checked}");
    let notes = checked["data"].to_string();
    assert!(notes.contains("doing nothing passes"), "{notes}");
    assert!(notes.contains("no number from 0 to 1"), "{notes}");
    added["id"].clone()
}

/// Orders a rollout and waits until it is done.
async fn done(app: &TestApp, order: Value) -> Value {
    let rollout = app.post("/v1/rollouts", order).await.unwrap();
    let path = format!("/v1/rollouts/{}", rollout["id"].as_str().unwrap());
    let done = app.until(&path, |rollout| rollout["status"] == "done");
    done.await.unwrap()
}

/// Waits until a version has learned from an episode that won; what is left over of a batch waits for more.
async fn learned_from(app: &TestApp, rollout: &Value) {
    let path = format!(
        "/v1/rollouts/{}/episodes?limit=24",
        rollout["id"].as_str().unwrap()
    );
    let episodes = app.get(&path).await.unwrap();
    let won = episodes["data"].as_array().unwrap().iter();
    let won = won.filter(|episode| episode["reward"] == 1.0);
    let sessions: Vec<&str> = won
        .map(|episode| episode["session_id"].as_str().unwrap())
        .collect();
    for _ in 0..600 {
        for session in &sessions {
            let session = app.get(&format!("/v1/sessions/{session}")).await.unwrap();
            let turn = session["turns"][0]["turn_id"].as_str().unwrap();
            let turn = app.get(&format!("/v1/turns/{turn}")).await.unwrap();
            if turn["fate"]["state"] == "trained" {
                assert_eq!(turn["verdict"]["decided_by"], "feedback", "{turn}");
                assert_eq!(session["rewards"][0]["score"], 1.0, "{session}");
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("no version learned from a group");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_checked_and_tried_and_what_they_pay_is_learned_from() {
    let (_guard, data) = temporary().unwrap();
    let app = with_jails(&data).await;
    let set = checked(&app).await;
    let order =
        json!({"task_set": set, "agent": "answer", "attempts": 6, "groups": 4, "tokens_max": 48});
    let learned = done(&app, order).await;
    assert_eq!(learned["episodes"], json!({"done": 24}), "{learned}");
    let versions = learned["versions"].as_array().unwrap().iter();
    let passed: u64 = versions
        .map(|version| version["passed"].as_u64().unwrap())
        .sum();
    assert!((1..24).contains(&passed), "{learned}");
    // What differed within a group was rewarded, and a version learned from it.
    learned_from(&app, &learned).await;

    // Measuring asks the held-out task alone, of the version that it names, and teaches nothing.
    let order =
        json!({"task_set": set, "agent": "answer", "evaluate": true, "version": 0, "attempts": 3});
    let measured = done(&app, order).await;
    assert_eq!(measured["versions"][0]["version"], 0);
    assert_eq!(measured["versions"][0]["episodes"], 3);
    let queues = app.get("/v1/queues").await.unwrap();
    assert_eq!(count(&queues, "credit", "done"), 4, "{queues}");
    assert_eq!(queues["stopped"], Value::Null);
    app.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), [""; 0]);
}

/// Processes that run with this folder in their arguments: jails of a server's own.
fn jails_of(guest: &Path) -> usize {
    let name = guest.display().to_string();
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| String::from_utf8_lossy(line).contains(&name))
        .count()
}

/// `kill -9` in the middle of episodes: the jails end with the server, and the next one tries again what was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_no_job() {
    let (guard, data) = temporary().unwrap();
    // A copy, so that the jails of this test can be told from others.
    let own = guard.path().join("guest-of-this-test");
    std::fs::copy(guest(), &own).unwrap();
    let config = format!(
        "[tools]\nguest = {:?}\n[rollout]\ntick_ms = 100\nlease_ms = 1000\n[train]\nbatch_wait_ms = 3600000\n",
        own.display().to_string()
    );
    let arguments = serving(&data, &config);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let server = Server::start(program(&arguments)).unwrap();
    let http = client().unwrap();
    let slow = json!({
        "name": "slow", "instruction": "What is the capital of France?", "held_out": false,
        "tests": {"test.sh": "sleep 0.3; [ -f answer.txt ]"},
    });
    let added = post(&http, &server.url, "/v1/task-sets", set(&[slow]))
        .await
        .unwrap();
    let order = json!({"task_set": added["id"], "agent": "answer", "attempts": 4, "groups": 3, "tokens_max": 24});
    let order = post(&http, &server.url, "/v1/rollouts", order)
        .await
        .unwrap();
    let path = format!("/v1/rollouts/{}", order["id"].as_str().unwrap());
    let until = async |url: &str, good: &dyn Fn(&Value) -> bool| {
        for _ in 0..1_200 {
            let rollout = get(&http, url, &path).await.unwrap();
            if good(&rollout) {
                return rollout;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("it did not become what was waited for");
    };
    let mut server = server;
    for killed in 1..=3u64 {
        // Some are done, and some are under way.
        until(&server.url, &|rollout| {
            let of = |state: &str| rollout["episodes"][state].as_u64().unwrap_or(0);
            of("done") >= killed && of("running") >= 1
        })
        .await;
        server.kill();
        server = Server::start(program(&arguments)).unwrap();
    }
    let done = until(&server.url, &|rollout| rollout["status"] == "done").await;
    // Each place has one attempt that counts, whatever was lost in between.
    let of = |state: &str| done["episodes"][state].as_u64().unwrap_or(0);
    assert_eq!(of("done") + of("skipped"), 12, "{done}");
    assert!(of("retried") >= 1, "{done}");
    let ended = server.stop();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(jails_of(&own), 0);
    assert_eq!(broken_laws(&data).await.unwrap(), [""; 0]);
}

/// Without jails nothing is taken that nobody would work on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_jails_tasks_are_refused_in_a_sentence() {
    let (_guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &[]).await.unwrap();
    let (status, reply) = app
        .try_post("/v1/task-sets", set(&[short("x", false)]))
        .await
        .unwrap();
    assert_eq!(status, 503, "{reply}");
    let says = reply["error"]["message"].as_str().unwrap();
    assert!(says.contains("tools.executor"), "{says}");
    let queues = app.get("/v1/queues").await.unwrap();
    assert!(
        queues["stopped"].as_str().unwrap().contains("off"),
        "{queues}"
    );
    app.stop().await.unwrap();
}

/// An agent that asks as OpenAI's and Anthropic's clients do, and tries what is none of its business.
const AGENT: &str = r#"
import json, os, urllib.error, urllib.request

def ask(base, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    try:
        with urllib.request.urlopen(urllib.request.Request(base + path, data, headers), timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)

openai, anthropic = os.environ["OPENAI_BASE_URL"], os.environ["ANTHROPIC_BASE_URL"]
told = [{"role": "user", "content": os.environ["HONE_INSTRUCTION"]}]
status, reply = ask(openai, "/chat/completions", {
    "model": "gpt-of-its-own", "messages": told, "temperature": 0, "seed": 7, "store": False, "max_tokens": 100000})
answer = reply["choices"][0]["message"]["content"]
open("answer.txt", "w").write(answer)
refused = [ask(anthropic, path, body)[0] for path, body in [
    ("/v1/feedback", {"turn_id": reply["hone"]["turn_id"], "score": 1}),
    ("/v1/sessions", None), ("/v1/keys", None), ("/admin/v1/status", None),
    ("/v1/rollouts", {}), ("/v1/completions", {"model": "x", "prompt": "x"}), ("/nowhere", None)]]
told += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And of Italy?"}]
second = ask(anthropic, "/v1/messages", {"model": "claude-of-its-own", "max_tokens": 16, "messages": told})[0]
third, over = ask(anthropic, "/v1/messages", {"model": "claude-of-its-own", "max_tokens": 16, "messages": told})
open("seen.json", "w").write(json.dumps([status, refused, second, third, over["error"]["message"]]))
print("done, said the agent")
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_in_a_jail_asks_like_everywhere_else_and_may_do_nothing_more() {
    let (_guard, data) = temporary().unwrap();
    let app = with_jails(&data).await;
    let seen = r#"[200, [403, 403, 403, 403, 403, 403, 403], 200, 403, "this episode has used its 2 steps; end now"]"#;
    let task = json!({
        "name": "capital", "instruction": "What is the capital of France?", "held_out": false,
        "environment": {"agent.py": AGENT, "expected.json": seen},
        "tests": {"test.sh": "cat seen.json; cmp seen.json expected.json && [ $(wc -w < answer.txt) -le 3 ]"},
    });
    let added = app.post("/v1/task-sets", set(&[task])).await.unwrap();
    let path = format!("/v1/task-sets/{}", added["id"].as_str().unwrap());
    let checked = app.until(&path, |set| set["states"]["new"].is_null()).await;
    assert_eq!(checked.unwrap()["states"], json!({"ready": 1}));
    let order = json!({
        "task_set": added["id"], "command": "python3 agent.py", "attempts": 6, "groups": 3, "steps_max": 2, "tokens_max": 48,
    });
    let rollout = done(&app, order).await;
    assert_eq!(rollout["agent"], "command", "{rollout}");
    let path = format!(
        "/v1/rollouts/{}/episodes?limit=20",
        rollout["id"].as_str().unwrap()
    );
    let episodes = app.get(&path).await.unwrap();
    let episodes = episodes["data"].as_array().unwrap();
    assert_eq!(episodes.len(), 18);
    for episode in episodes {
        // What was refused was refused, whatever the answer was.
        let output = episode["result"]["test_output"].as_str().unwrap();
        assert!(output.starts_with(seen), "{episode}");
        assert_eq!(episode["reason"], "steps", "{episode}");
        assert_eq!(episode["result"]["steps"], 2, "{episode}");
        let said = episode["result"]["output"].as_str().unwrap();
        assert_eq!(said, "done, said the agent\n");
        // Both asks are of one session, and rewarded.
        let path = format!("/v1/sessions/{}", episode["session_id"].as_str().unwrap());
        let session = app.get(&path).await.unwrap();
        assert_eq!(session["turns"].as_array().unwrap().len(), 2, "{session}");
    }
    // Neither its own temperature nor its own seed makes attempts alike.
    let rewards = |paid: f64| episodes.iter().filter(|e| e["reward"] == paid).count();
    assert!(rewards(1.0) > 0 && rewards(0.0) > 0, "{episodes:?}");
    learned_from(&app, &rollout).await;

    // A program that never asks is no attempt.
    let order = json!({
        "task_set": added["id"], "agent": "command", "command": "no-such-agent --now", "attempts": 2, "groups": 1,
    });
    let none = done(&app, order).await;
    assert_eq!(none["episodes"], json!({"failed": 2}), "{none}");
    let path = format!("/v1/rollouts/{}/episodes", none["id"].as_str().unwrap());
    let episodes = app.get(&path).await.unwrap();
    let episode = &episodes["data"][0];
    assert_eq!(episode["reason"], "agent", "{episode}");
    let said = episode["result"]["output"].as_str().unwrap();
    assert!(said.contains("no-such-agent"), "{said}");
    app.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), [""; 0]);
}
