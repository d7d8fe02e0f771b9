//! Answers that are checked without anybody's opinion, from the request to the verdict.

use hone_tests::{Changes, TestApp, ask, temporary};
use serde_json::{Value, json};

async fn verdict_of(app: &TestApp, verify: Value) -> Value {
    let mut body = ask("What is the capital of France?", 3);
    body["verify"] = verify;
    let reply = app.chat(body).await.unwrap();
    assert_eq!(reply["hone"]["collected"], true, "{reply}");
    let turn = reply["hone"]["turn_id"].as_str().unwrap();
    let path = format!("/v1/turns/{turn}");
    let seen = app.until(&path, |turn| !turn["verdict"].is_null());
    seen.await.unwrap()["verdict"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_judged_by_its_checks_without_waiting_for_a_reply() {
    let (_guard, data) = temporary().unwrap();
    let changes: Vec<(&str, toml::Value)> = vec![("judge.tick_ms", 50.into())];
    let app = TestApp::start(&data, &changes as Changes<'_>)
        .await
        .unwrap();
    let said = json!({"kind": "regex", "pattern": "[a-zA-Z]"});
    let never = json!({"kind": "exact", "expected": "no such answer"});
    for (verify, score, why) in [
        (said.clone(), 1.0, "regex: "),
        (json!([said, never]), -1.0, "exact: "),
    ] {
        let verdict = verdict_of(&app, verify).await;
        assert_eq!(
            (&verdict["score"], &verdict["decided_by"]),
            (&json!(score), &json!("verifier"))
        );
        let votes = verdict["votes"].as_array().unwrap();
        let told = |vote: &Value| vote["reason"].as_str().unwrap().starts_with(why);
        assert!(votes.iter().any(told), "{verdict}");
    }
    // One that has to wait for a result has nothing to look at when its session ends.
    let app_ended = json!({"kind": "exit_code"});
    let mut body = ask("Hello!", 4);
    body["verify"] = app_ended;
    body["session_id"] = json!("s");
    body["session_done"] = json!(true);
    let reply = app.chat(body).await.unwrap();
    let path = format!("/v1/turns/{}", reply["hone"]["turn_id"].as_str().unwrap());
    let seen = app
        .until(&path, |turn| turn["fate"]["reason"] == "abstained")
        .await
        .unwrap();
    assert_eq!(
        seen["verdict"]["votes"][0]["reason"],
        "exit_code: there is no result"
    );
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_is_compared_with_the_base_model_on_prompts_it_has_not_learned() {
    let (_guard, data) = temporary().unwrap();
    let changes: Vec<(&str, toml::Value)> = vec![
        ("judge.tick_ms", 50.into()),
        ("train.tick_ms", 100.into()),
        ("train.batch_turns_min", 8.into()),
        ("train.batch_wait_ms", 200.into()),
        ("train.gate.held_out_share", 0.0.into()),
        ("learning.paired_interval_ms", 100.into()),
        ("learning.paired_prompts", 12.into()),
    ];
    let app = TestApp::start(&data, &changes as Changes<'_>)
        .await
        .unwrap();
    let ask_all = async |countries: &[&str]| {
        for (seed, country) in countries.iter().enumerate() {
            let mut body = ask(&format!("What is the capital of {country}?"), seed as u64);
            let pattern = if seed.is_multiple_of(2) {
                "."
            } else {
                "never said"
            };
            body["verify"] = json!({"kind": "regex", "pattern": pattern});
            app.chat(body).await.unwrap();
        }
    };
    let learned = [
        "France", "Italy", "Spain", "Japan", "Egypt", "Peru", "Chile", "Kenya",
    ];
    ask_all(&learned).await;
    app.until("/v1/learned", |reply| reply["trained"] == 8)
        .await
        .unwrap();
    // Too few for another batch, the first of them asked before.
    ask_all(&["France", "India", "China", "Ghana", "Nepal", "Qatar"]).await;
    let seen = app
        .until("/v1/improvement", |reply| !reply["paired"].is_null())
        .await
        .unwrap();
    let paired = &seen["paired"];
    assert!(paired["version"].as_u64() >= Some(1), "{seen}");
    assert_eq!(paired["prompts"], 5, "of 14");
    let number = |value: &Value| value.as_f64().unwrap();
    let (low, high) = (
        number(&paired["interval"][0]),
        number(&paired["interval"][1]),
    );
    assert!(low < number(&paired["difference"]) && number(&paired["difference"]) < high);
    app.stop().await.unwrap();
}
