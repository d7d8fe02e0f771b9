//! `hone export adapter`, held against an adapter that the PEFT library wrote itself; `hone export trajectories`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use hone_tests::{TestApp, ask, temporary};
use serde_json::{Map, Value, json};

use crate::program::{program, run};

/// The settings of an adapter folder.
fn config(folder: &Path) -> Map<String, Value> {
    let text = std::fs::read(folder.join("adapter_config.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Tensors of a safetensors file: name and shape; its metadata comes as the first value.
fn tensors(folder: &Path) -> (Value, Vec<(String, Vec<u64>)>) {
    let bytes = std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let rows = header.iter().filter(|(name, _)| *name != "__metadata__");
    let shape = |info: &Value| -> Vec<u64> {
        let sizes = info["shape"].as_array().unwrap().iter();
        sizes.map(|size| size.as_u64().unwrap()).collect()
    };
    let rows = rows.map(|(name, info)| (name.clone(), shape(info)));
    (header["__metadata__"].clone(), rows.collect())
}

/// The name of a tensor with its layer's number left out, and which of the two matrices it is.
fn form(name: &str) -> (String, bool) {
    let parts: Vec<&str> = name.split('.').collect();
    let plain = |part: &&str| part.parse::<u32>().is_err();
    let named: Vec<&str> = parts.into_iter().filter(plain).collect();
    (named.join("."), name.ends_with("lora_A.weight"))
}

/// Exports the newest adapter of this machine's own scope and compares.
pub(crate) async fn adapter_is_as_peft_writes_it(data: &Path) {
    let out = data.join("exported");
    let text = |path: &Path| path.display().to_string();
    let words = [
        "hone".to_owned(),
        "export".to_owned(),
        "adapter".to_owned(),
        "--scope".to_owned(),
        hone_domain::Scope::of("local", None).as_str().to_owned(),
        "--data".to_owned(),
        text(data),
        "--out".to_owned(),
        text(&out),
    ];
    let done = tokio::task::spawn_blocking(move || hone::cli::run(words));
    assert_eq!(done.await.unwrap(), ExitCode::SUCCESS);

    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/qwen3/adapter");
    let (ours, theirs) = (config(&out), config(&golden));
    for (key, value) in &ours {
        let known = theirs.get(key);
        assert!(known.is_some(), "PEFT knows no {key}");
        let same_kind = known.is_some_and(|known| {
            std::mem::discriminant(known) == std::mem::discriminant(value)
                || known.is_null()
                || value.is_null()
        });
        assert!(same_kind, "{key}: {value}, and PEFT writes {known:?}");
    }
    for key in ["peft_type", "task_type", "bias", "inference_mode"] {
        assert_eq!(ours[key], theirs[key], "{key}");
    }
    let (about, rows) = tensors(&out);
    let (about_theirs, golden_rows) = tensors(&golden);
    assert_eq!(about["format"], about_theirs["format"]);
    let forms: BTreeSet<(String, bool)> = golden_rows.iter().map(|(n, _)| form(n)).collect();
    let rank = ours["r"].as_u64().unwrap();
    assert!(!rows.is_empty());
    for (name, shape) in &rows {
        let (form, is_a) = form(name);
        assert!(forms.contains(&(form, is_a)), "PEFT names no tensor {name}");
        let ranked = if is_a { shape[0] } else { shape[1] };
        assert_eq!((shape.len(), ranked), (2, rank), "{name}");
        let modules = ours["target_modules"].as_array().unwrap().iter();
        let mut modules = modules.map(|module| module.as_str().unwrap());
        assert!(
            modules.any(|module| name.contains(&format!(".{module}."))),
            "{name}"
        );
    }
}

/// The lines of `hone export trajectories`.
pub(crate) async fn trajectories(data: &Path, format: &str, owner: &str) -> Vec<Value> {
    let out = data.join(format!("{format}-{owner}.jsonl"));
    let words: Vec<String> = [
        "hone",
        "export",
        "trajectories",
        "--format",
        format,
        "--owner",
        owner,
    ]
    .into_iter()
    .map(str::to_owned)
    .chain(["--data".to_owned(), data.display().to_string()])
    .chain(["--out".to_owned(), out.display().to_string()])
    .collect();
    let done = tokio::task::spawn_blocking(move || hone::cli::run(words));
    assert_eq!(done.await.unwrap(), ExitCode::SUCCESS);
    let text = std::fs::read_to_string(&out).unwrap();
    std::fs::remove_file(out).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Somebody who allows no learning says something; so does housekeeping.
async fn say_what_stays(app: &TestApp, first: &Value) {
    app.chat(json!({"user": "eve", "model": "hone-starter", "messages": first["messages"]}))
        .await
        .unwrap();
    let put = hone_tests::client()
        .unwrap()
        .put(format!("{}/v1/consent", app.url));
    let put = put
        .json(&json!({"learning": "off", "user": "eve"}))
        .send()
        .await
        .unwrap();
    assert_eq!(put.status(), 200);
    let mut side = first.clone();
    side["turn_type"] = "side".into();
    app.chat(side).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trajectories_leave_with_their_rewards_and_without_what_was_erased() {
    let (_guard, data) = temporary().unwrap();
    let changes = [("train.batch_turns_min", 9.into())];
    let app = TestApp::start(&data, &changes).await.unwrap();
    let mut first = ask("What is the capital of France?", 1);
    first["session_id"] = "run".into();
    let reply = app.chat(first.clone()).await.unwrap();
    let said = reply["choices"][0]["message"]["content"].clone();
    let session = reply["hone"]["session_id"].clone();
    let mut second = first.clone();
    let more = [
        json!({"role": "assistant", "content": said}),
        json!({"role": "user", "content": "And of Italy?"}),
    ];
    second["messages"].as_array_mut().unwrap().extend(more);
    let last = app.chat(second.clone()).await.unwrap();
    say_what_stays(&app, &first).await;
    let rewards = json!({"tests": 1.0, "style": 0.5});
    let body = json!({"session_id": session, "rewards": rewards});
    let told = app.post("/v1/feedback", body).await.unwrap();
    assert_eq!(told["reward"]["turns_rewarded"], 2, "{told}");
    for reply in [&reply, &last] {
        let path = format!("/v1/turns/{}", reply["hone"]["turn_id"].as_str().unwrap());
        let judged = app.until(&path, |turn| turn["verdict"]["score"] == 0.75);
        judged.await.unwrap();
    }

    let lines = trajectories(&data, "messages", "local").await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    let chat = &lines[0];
    let mut messages = second["messages"].clone();
    let answer = json!({"role": "assistant", "content": last["choices"][0]["message"]["content"]});
    messages.as_array_mut().unwrap().push(answer);
    assert_eq!(chat["messages"], messages);
    assert_eq!(chat["reward"], 0.75);
    assert_eq!(chat["metadata"]["session_reward"]["rewards"], rewards);
    assert_eq!(chat["metadata"]["session_id"], session);

    let lines = trajectories(&data, "tokens", "local").await;
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (step, reply) in lines.iter().zip([&last, &reply]) {
        assert_eq!(step["metadata"]["turn_id"], reply["hone"]["turn_id"]);
        assert_eq!(
            (&step["reward"], &step["version"]),
            (&json!(0.75), &json!(0))
        );
        let count = |name: &str| step[name].as_array().unwrap().len();
        assert!(count("prompt_ids") > 0 && count("completion_ids") > 0);
        assert_eq!(count("completion_ids"), count("logprobs"));
        assert_eq!(reply["usage"]["completion_tokens"], count("completion_ids"));
    }
    assert_eq!(
        trajectories(&data, "tokens", "nobody").await,
        [Value::Null; 0]
    );

    app.post("/v1/forget", json!({"session_id": session}))
        .await
        .unwrap();
    assert_eq!(
        trajectories(&data, "messages", "local").await,
        [Value::Null; 0]
    );
    app.stop().await.unwrap();
}

/// The lines of an export for a name.
fn new_for(data: &str, words: &[&str]) -> Result<Vec<Value>, String> {
    let fixed = ["export", "trajectories", "--data", data];
    let ended = run(program(&[&fixed[..], words].concat()));
    match ended.code {
        Some(0) => Ok(json_lines(&ended.out)),
        _ => Err(ended.sentence().to_owned()),
    }
}

fn json_lines(text: &str) -> Vec<Value> {
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Turns with their rewards.
fn rewards(lines: &[Value]) -> Vec<(Value, Value)> {
    let row = |line: &Value| (line["metadata"]["turn_id"].clone(), line["reward"].clone());
    lines.iter().map(row).collect()
}

async fn judged(app: &TestApp, turn: &Value, score: f64) -> Value {
    let said = json!({"turn_id": turn, "score": score, "id": "hand"});
    app.post("/v1/feedback", said).await.unwrap();
    let path = format!("/v1/turns/{}", turn.as_str().unwrap());
    let judged = app.until(&path, |turn| turn["verdict"]["score"] == score);
    judged.await.unwrap();
    json!(score)
}

/// Two turns of one session: their names, and the session's.
async fn talk(app: &TestApp) -> [Value; 3] {
    let mut asked = ask("What is the capital of France?", 1);
    asked["session_id"] = "run".into();
    let reply = app.chat(asked.clone()).await.unwrap();
    let more = [
        reply["choices"][0]["message"].clone(),
        json!({"role": "user", "content": "And of Italy?"}),
    ];
    asked["messages"].as_array_mut().unwrap().extend(more);
    let next = app.chat(asked).await.unwrap();
    [
        &reply["hone"]["turn_id"],
        &next["hone"]["turn_id"],
        &reply["hone"]["session_id"],
    ]
    .map(Value::clone)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_for_a_name_has_what_is_new_to_it() {
    let (_guard, data) = temporary().unwrap();
    // What was learned from is not judged again.
    let waits = ["train.batch_wait_ms", "train.explicit_wait_ms"];
    let changes = waits.map(|key| (key, 600_000.into()));
    let app = TestApp::start(&data, &changes).await.unwrap();
    let at = data.display().to_string();
    let [one, two, session] = talk(&app).await;
    let good = judged(&app, &one, 1.0).await;
    let steps = ["--format", "tokens", "--new-for", "steps"];
    let chats = ["--new-for", "chats"];
    let lines = new_for(&at, &steps).unwrap();
    assert_eq!(
        rewards(&lines),
        [(one.clone(), good), (two.clone(), Value::Null)]
    );
    // A conversation is one line, and nothing is given twice.
    let lines = new_for(&at, &chats).unwrap();
    assert_eq!(rewards(&lines), [(two.clone(), Value::Null)]);
    for words in [&steps[..], &chats] {
        assert_eq!(new_for(&at, words).unwrap(), [Value::Null; 0]);
    }
    // A revised verdict reaches both; one on a turn that goes on is no conversation.
    let bad = judged(&app, &one, -1.0).await;
    assert_eq!(rewards(&new_for(&at, &steps).unwrap()), [(one, bad)]);
    assert_eq!(new_for(&at, &chats).unwrap(), [Value::Null; 0]);
    let good = judged(&app, &two, 0.5).await;
    assert_eq!(rewards(&new_for(&at, &chats).unwrap()), [(two, good)]);
    names_are_kept_and_removed(&at);
    // What its people take back is given to nobody.
    app.post("/v1/forget", json!({"session_id": session}))
        .await
        .unwrap();
    let late = new_for(&at, &["--new-for", "late"]).unwrap();
    assert_eq!(late, [Value::Null; 0]);
    app.stop().await.unwrap();
}

/// A name keeps what it asked for; another one begins with everything.
fn names_are_kept_and_removed(at: &str) {
    let refused = new_for(at, &["--new-for", "chats", "--owner", "ann"]).unwrap_err();
    assert!(refused.contains("choose another name"), "{refused}");
    let lines = new_for(at, &["--new-for", "anns", "--owner", "ann"]).unwrap();
    assert_eq!(lines, [Value::Null; 0]);
    let ended = run(program(&["export", "consumers", "--json", "--data", at]));
    let listed = json_lines(&ended.out).remove(0)["data"].clone();
    let listed = listed.as_array().unwrap().iter();
    let rows = listed.map(|one| json!([one["name"], one["read_count"], one["unread"]]));
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [
            json!(["anns", 2, 0]),
            json!(["chats", 4, 0]),
            json!(["steps", 3, 1])
        ]
    );
    let table = run(program(&["export", "consumers", "--data", at])).out;
    assert!(table.contains("steps  tokens"), "{table}");
    let remove = || {
        run(program(&[
            "export",
            "consumers",
            "--remove",
            "steps",
            "--data",
            at,
        ]))
    };
    assert_eq!(remove().code, Some(0));
    assert!(remove().sentence().contains("there is no consumer steps"));
    let anew = new_for(at, &["--format", "tokens", "--new-for", "steps"]);
    assert_eq!(anew.unwrap().len(), 2, "it begins anew");
}
