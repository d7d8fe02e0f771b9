//! An adapter that was made elsewhere: taken in beside the running server, answered with exactly,
//! learned on from, taken back, and handed out again.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use hone_checkpoint::{AdapterDtype, LoraConfig, NamedTensor, Target};
use hone_kernels::Executor;
use hone_ledger::Ledger as _;
use hone_ledger_sql::{SqliteConfig, SqliteStore};
use hone_nn::{Adapter, KvFormat, Model, peft};
use hone_tests::{TestApp, ask, broken_laws, one_version_per_four_answers, temporary};
use hone_text::folder;
use serde_json::{Map, Value, json};

/// The built-in model, as the server computes it.
fn served() -> Model {
    let files = folder::ModelFolder::embedded(hone_starter::model_files()).unwrap();
    let model = hone_nn::load_model(files.checkpoint(), &mut |_, _, _| {}).unwrap();
    let compute_type = model.weights.quickest();
    model.with_compute_type(compute_type).with_kv(KvFormat::F16)
}

/// An adapter of another rank, scale and choice of projections than the server trains.
fn elsewhere(model: &Model) -> Adapter {
    let lora = LoraConfig {
        rank: 3,
        // So little that it still speaks.
        alpha: 0.1,
        targets: vec![Target::Q, Target::V, Target::Down],
        rslora: true,
        dtype: AdapterDtype::F32,
    };
    Adapter::random(&model.config, lora, 7)
}

/// Writes it as PEFT does: with every setting that the library itself wrote into a golden.
fn write(adapter: &Adapter, folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/qwen3/adapter");
    let settings = std::fs::read(golden.join(peft::CONFIG_FILE)).unwrap();
    let mut settings: Map<String, Value> = serde_json::from_slice(&settings).unwrap();
    let files = peft::to_files(adapter, "elsewhere", &Value::Null);
    let ours: Map<String, Value> = serde_json::from_slice(&files[0].1).unwrap();
    for key in ["r", "lora_alpha", "target_modules", "use_rslora"] {
        assert!(settings.contains_key(key), "PEFT writes no {key}");
        settings.insert(key.to_owned(), ours[key].clone());
    }
    let settings = serde_json::to_vec(&settings).unwrap();
    std::fs::write(folder.join(peft::CONFIG_FILE), settings).unwrap();
    std::fs::write(folder.join(peft::WEIGHTS_FILE), &files[1].1).unwrap();
}

fn tensors(folder: &Path, model: &Model) -> Vec<NamedTensor> {
    let read = |name: &str| std::fs::read(folder.join(name)).ok();
    peft::load(&read, &model.config).unwrap().to_tensors()
}

/// Runs a command of the program.
async fn hone(words: &[&str]) -> ExitCode {
    let words: Vec<String> = ["hone"]
        .iter()
        .chain(words)
        .map(|w| (*w).to_owned())
        .collect();
    tokio::task::spawn_blocking(move || hone::cli::run(words))
        .await
        .unwrap()
}

async fn take_in(app: &TestApp, folder: &Path) -> ExitCode {
    let folder = folder.display().to_string();
    hone(&["import", "adapter", &folder, "--url", &app.url]).await
}

async fn hand_out(data: &Path, version: &str, out: &Path) {
    let (data, out) = (data.display().to_string(), out.display().to_string());
    let words = [
        "export",
        "adapter",
        "--version",
        version,
        "--data",
        &data,
        "--out",
        &out,
    ];
    assert_eq!(hone(&words).await, ExitCode::SUCCESS);
}

/// Asks until `version` answers; its turn's id.
async fn answered_by(app: &TestApp, version: u64) -> String {
    for seed in 0..400 {
        let reply = app.chat(ask("What is the capital of France?", seed));
        let reply = reply.await.unwrap();
        if reply["hone"]["policy_version"] == version {
            return reply["hone"]["turn_id"].as_str().unwrap().to_owned();
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("version {version} is not served");
}

/// Talks and rates until another version than `version` is served; returns it.
async fn learn(app: &TestApp, version: u64) -> Value {
    for seed in 0..4 {
        let reply = app.chat(ask("What is the capital of Spain?", seed)).await;
        let turn = reply.unwrap()["hone"]["turn_id"].clone();
        let said = json!({"turn_id": turn, "score": if seed % 2 == 0 { 1 } else { -1 }});
        app.post("/v1/feedback", said).await.unwrap();
    }
    let newer = |list: &Value| list["current"].as_u64() > Some(version);
    let list = app.until("/v1/versions", newer).await.unwrap();
    list["data"][0].clone()
}

/// Recorded log-probs of a turn against those that the adapter's own files give.
async fn is_what_the_adapter_says(data: &Path, turn: &str, (model, adapter): (&Model, &Adapter)) {
    let place = SqliteConfig::in_folder(data);
    let ledger = SqliteStore::open_beside(&place).await.unwrap();
    let rows = ledger.turns(None, 1_000).await.unwrap();
    let id = rows.iter().map(|row| row.id);
    let id = id.into_iter().find(|id| turn.ends_with(&id.to_string()));
    let turn = ledger.turn(id.unwrap()).await.unwrap().unwrap().turn;
    ledger.close().await;
    let digest = turn.digest.map(|digest| digest.0);
    assert_eq!(digest, Some(adapter.digest()));
    let (mut tokens, start) = (turn.prompt_tokens.clone(), turn.prompt_tokens.len());
    tokens.extend(turn.completion.tokens());
    let exec = Executor::new(1);
    let scores = hone_nn::score(model, Some(adapter), &tokens, &exec);
    let base = hone_nn::score(model, None, &tokens, &exec);
    let recorded = turn.completion.behavior_logprobs();
    let bits = |scores: &hone_nn::Scores| -> Vec<u32> {
        let kept = turn.completion.kept();
        let at = |i: usize| {
            scores
                .logprob(start + i, turn.sampling.temperature, kept[i].as_deref())
                .to_bits()
        };
        (0..recorded.len()).map(at).collect()
    };
    let recorded: Vec<u32> = recorded.iter().map(|logprob| logprob.to_bits()).collect();
    assert_eq!(bits(&scores), recorded);
    assert_ne!(bits(&base), recorded, "the adapter changes what is said");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_from_elsewhere_is_served_learned_from_and_handed_out() {
    let (guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &one_version_per_four_answers())
        .await
        .unwrap();
    let model = Arc::new(served());
    let made = elsewhere(&model);
    let folder = guard.path().join("elsewhere");
    write(&made, &folder);
    assert_eq!(take_in(&app, &folder).await, ExitCode::SUCCESS);
    let list = app.get("/v1/versions").await.unwrap();
    assert_eq!(
        (&list["current"], &list["data"][0]["status"]),
        (&json!(1), &json!("imported"))
    );
    let turn = answered_by(&app, 1).await;
    is_what_the_adapter_says(&data, &turn, (&model, &made)).await;
    assert_eq!(
        take_in(&app, &folder).await,
        ExitCode::FAILURE,
        "it is served already"
    );

    // Learning goes on from it, in its own rank and projections.
    let learned = learn(&app, 1).await;
    assert_eq!(
        (&learned["version"], &learned["parent"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(learned["report"]["parity"]["mismatches"], 0, "{learned}");
    let out = guard.path().join("learned");
    hand_out(&data, "2", &out).await;
    let read = |name: &str| std::fs::read(out.join(name)).ok();
    let grown = peft::load(&read, &model.config).unwrap();
    assert_eq!(grown.config, made.config);
    assert_ne!(grown.digest(), made.digest());

    let back = app.post("/v1/versions/1/rollback", json!({})).await;
    assert_eq!(back.unwrap()["version"], 3);
    answered_by(&app, 3).await;
    let out = guard.path().join("again");
    hand_out(&data, "1", &out).await;
    assert_eq!(tensors(&out, &model), tensors(&folder, &model));
    let status = app.get("/admin/v1/status").await.unwrap();
    assert_eq!(status["engine"]["identity_failures_total"], 0);
    app.stop().await.unwrap();
    // A fresh start reads it back, and nothing breaks a law.
    let app = TestApp::start(&data, &one_version_per_four_answers())
        .await
        .unwrap();
    answered_by(&app, 3).await;
    app.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_is_refused_and_changes_nothing() {
    let (guard, data) = temporary().unwrap();
    let changes = [("http.import_bytes_max", 400_000.into())];
    let app = TestApp::start(&data, &changes).await.unwrap();
    // Made by PEFT for another model.
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/qwen3/adapter");
    assert_eq!(take_in(&app, &golden).await, ExitCode::FAILURE);
    let model = served();
    let large = LoraConfig {
        rank: 64,
        alpha: 64.0,
        targets: Target::ALL.to_vec(),
        rslora: false,
        dtype: AdapterDtype::F32,
    };
    let folder = guard.path().join("large");
    write(&Adapter::random(&model.config, large, 1), &folder);
    assert_eq!(take_in(&app, &folder).await, ExitCode::FAILURE);
    let list = app.get("/v1/versions").await.unwrap();
    assert_eq!(list["current"], 0);
    app.stop().await.unwrap();
}
