//! Every weight of the projections, by configuration: what it learns is heard, and what could never
//! be saved is refused at the start.

use hone_tests::{Changes, TestApp, temporary};
use serde_json::{Value, json};

/// What a user wants to hear.
const WANTED: &str = "It's Paris.";

fn ask(temperature: f64) -> Value {
    json!({
        "model": "hone-starter",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "seed": 3, "max_tokens": 48, "temperature": temperature,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_correction_becomes_the_answer() {
    let (_guard, data) = temporary().unwrap();
    let changes: Vec<(&str, toml::Value)> = vec![
        ("train.learner.form", "full".into()),
        ("train.learner.lr", 1e-3.into()),
        ("train.learner.beta1", 0.9.into()),
        ("train.learner.eps", 1e-8.into()),
        // Each token is then likelier than all others together, whatever the arithmetic of a processor.
        ("train.learner.correction_logprob", (-0.06).into()),
        ("train.learner.correction_steps_max", 40.into()),
        ("train.method", "supervised".into()),
        // A correction learned by heart is far from the base model on its few tokens: 0.1 to 1.2 nats each, by
        // which of the base model's own answers the updates see beside it.
        ("train.gate.kl_to_parent_max", 3.0.into()),
        ("train.gate.kl_to_reference_max", 3.0.into()),
        ("train.explicit_wait_ms", 100.into()),
        ("train.tick_ms", 100.into()),
    ];
    let app = TestApp::start(&data, &changes as Changes<'_>)
        .await
        .unwrap();
    let said = |reply: &Value| reply["choices"][0]["message"]["content"].clone();
    let before = app.chat(ask(0.0)).await.unwrap();
    assert_ne!(said(&before), WANTED);
    let reply = app.chat(ask(1.0)).await.unwrap();
    let feedback = json!({"turn_id": reply["hone"]["turn_id"], "score": -1, "correction": WANTED});
    app.post("/v1/feedback", feedback).await.unwrap();
    let mut last = Value::Null;
    for _ in 0..6_000 {
        last = app.chat(ask(0.0)).await.unwrap();
        if last["hone"]["policy_version"].as_u64() >= Some(1) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let status = app.get("/admin/v1/status").await.unwrap();
    let train = &status["loops"]["train"]["numbers"];
    let refused = app.get("/admin/v1/refusals").await.unwrap();
    assert_eq!(said(&last), WANTED, "{last} {train} {refused}");
    app.stop().await.unwrap();
}

#[tokio::test]
async fn a_checkpoint_that_could_never_be_written_is_refused_at_the_start() {
    let (_guard, data) = temporary().unwrap();
    let mut changes: Vec<(&str, toml::Value)> =
        vec![("store.blob_file_bytes_max", (4 << 20).into())];
    // What a LoRA takes fits.
    let app = TestApp::start(&data, &changes as Changes<'_>).await;
    app.unwrap().stop().await.unwrap();
    changes.push(("train.learner.form", "full".into()));
    let refused = TestApp::start(&data, &changes as Changes<'_>).await;
    let error = refused.err().unwrap().to_string();
    for part in ["store.blob_file_bytes_max", "lora_targets", "4194304"] {
        assert!(error.contains(part), "{error}");
    }
}
