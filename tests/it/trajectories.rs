//! Conversations that were had elsewhere: recorded as turns, paid by their reward, imitated.

use hone_tests::{TestApp, ask, broken_laws, one_version_per_four_answers, temporary};
use serde_json::{Value, json};

const PATH: &str = "/v1/trajectories";

fn body() -> Value {
    let call = json!({"name": "weather", "arguments": "{\"city\": \"Rome\"}"});
    json!({
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is the weather in Rome?"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "c1", "type": "function", "function": call},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "assistant", "content": "It is sunny."},
        ],
        "rewards": {"tests": 1.0, "style": 0.5},
        "id": "run-1",
        "group_id": "weather",
    })
}

async fn turn(app: &TestApp, id: &Value) -> Value {
    let path = format!("/v1/turns/{}", id.as_str().unwrap());
    let ended = app.until(&path, |turn| turn["fate"]["state"] != "pending");
    ended.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trajectory_is_stored_once_paid_and_imitated() {
    let (_guard, data) = temporary().unwrap();
    let changes = [("train.gate.held_out_share", 0.5.into())];
    let app = TestApp::start(&data, &changes).await.unwrap();
    let told = app.post(PATH, body()).await.unwrap();
    assert_eq!(told["collected"], true, "{told}");
    assert_eq!(told["left_out"], json!([]), "{told}");
    let ids = told["turn_ids"].as_array().unwrap().clone();
    assert_eq!(ids.len(), 2);
    // The same again is the same; another one under its id is refused.
    assert_eq!(app.post(PATH, body()).await.unwrap(), told);
    let mut other = body();
    other["messages"][4]["content"] = "It rains.".into();
    let (status, error) = app.try_post(PATH, other).await.unwrap();
    assert_eq!(
        (status, &error["error"]["code"]),
        (409, &json!("trajectory_exists"))
    );

    let path = format!("/v1/sessions/{}", told["session_id"].as_str().unwrap());
    let session = app.get(&path).await.unwrap();
    assert_eq!(session["turns_total"], 2);
    assert_eq!(session["rewards"].as_array().unwrap().len(), 1);
    assert_eq!(session["rewards"][0]["rewards"], body()["rewards"]);
    for (id, content) in ids.iter().zip(["", "It is sunny."]) {
        let turn = turn(&app, id).await;
        assert_eq!(
            (&turn["origin"], &turn["content"]),
            (&json!("outside"), &json!(content))
        );
        assert_eq!(turn["verdict"]["score"], 0.75, "{turn}");
        assert_eq!(turn["metadata"]["group_id"], "weather");
        let fate = &turn["fate"];
        // None is held out: it is nobody's answer here.
        assert!(
            fate["state"] == "trained" || fate["reason"] == "gate_rejected",
            "{fate}"
        );
    }
    let calls = &session["turns"][0]["tool_calls"];
    assert_eq!(calls[0]["function"]["name"], "weather", "{session}");
    // It is no answer of any version.
    let improvement = app.get("/v1/improvement").await.unwrap();
    assert_eq!(improvement["per_version"], json!([]), "{improvement}");
    app.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_method_cannot_use_of_it_has_its_reason_and_it_is_erased() {
    let (_guard, data) = temporary().unwrap();
    let changes = [("train.method", "binary_reward".into())];
    let app = TestApp::start(&data, &changes).await.unwrap();
    let told = app.post(PATH, body()).await.unwrap();
    for id in told["turn_ids"].as_array().unwrap() {
        let turn = turn(&app, id).await;
        assert_eq!(turn["fate"]["reason"], "no_logprobs", "{turn}");
    }
    // Without a reward what followed a message judges it, and the last one ends with the session.
    let mut unpaid = body();
    unpaid["rewards"] = Value::Null;
    unpaid["id"] = "run-2".into();
    let told = app.post(PATH, unpaid).await.unwrap();
    let last = turn(&app, &told["turn_ids"][1]).await;
    assert_eq!(last["fate"]["reason"], "no_next_state", "{last}");
    let first = turn(&app, &told["turn_ids"][0]).await;
    assert_eq!(first["next_state"][0]["text"], "sunny", "{first}");
    let session = told["session_id"].clone();
    app.post("/v1/forget", json!({"session_id": session}))
        .await
        .unwrap();
    let path = format!("/v1/sessions/{}", session.as_str().unwrap());
    assert!(app.get(&path).await.is_err());
    app.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_under_one_id_at_once_one_is_stored_and_a_retry_rewards_nothing_anew() {
    let (_guard, data) = temporary().unwrap();
    let app = TestApp::start(&data, &[]).await.unwrap();
    let of_client = |client: usize| {
        let mut body = body();
        body["messages"][4]["content"] = format!("It is sunny for {client}.").into();
        body
    };
    let sent = (0..4).map(|client| app.try_post(PATH, of_client(client)));
    let replies = futures::future::join_all(sent).await;
    let replies: Vec<(u16, Value)> = replies.into_iter().map(Result::unwrap).collect();
    let stored: Vec<usize> = (0..4).filter(|client| replies[*client].0 == 200).collect();
    assert_eq!(stored.len(), 1, "{replies:?}");
    let refused = replies.iter().filter(|(status, _)| *status == 409).count();
    assert_eq!(refused, 3, "{replies:?}");

    // What a person says of the session afterwards is not undone by sending the trajectory again.
    let told = &replies[stored[0]].1;
    let session = told["session_id"].clone();
    let bad = json!({"session_id": session, "score": -1});
    app.post("/v1/feedback", bad).await.unwrap();
    let again = app.post(PATH, of_client(stored[0])).await.unwrap();
    assert_eq!(&again, told);
    let path = format!("/v1/sessions/{}", session.as_str().unwrap());
    let rewards = app.get(&path).await.unwrap()["rewards"].clone();
    assert_eq!(rewards[1]["score"], -1.0, "{rewards}");
    assert_eq!(rewards.as_array().unwrap().len(), 2, "{rewards}");

    let mut long = body();
    let pair = [
        json!({"role": "user", "content": "q"}),
        json!({"role": "assistant", "content": "a"}),
    ];
    long["messages"] = pair.iter().cycle().take(2 * 257).cloned().collect();
    let (status, error) = app.try_post(PATH, long).await.unwrap();
    assert_eq!(status, 400, "{error}");
    app.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), Vec::<String>::new());
}

/// An answer that is not stored, as another engine with the same weights would have drawn it.
async fn drawn(app: &TestApp, question: &str, seed: u64) -> (u64, Value) {
    let mut body = ask(question, seed);
    for (name, value) in [
        ("temperature", json!(0.8)),
        ("store", json!(false)),
        ("logprobs", json!(true)),
        ("return_token_ids", json!(true)),
    ] {
        body[name] = value;
    }
    let reply = app.chat(body).await.unwrap();
    let choice = &reply["choices"][0];
    let content = choice["logprobs"]["content"].as_array().unwrap();
    let logprobs: Vec<f64> = content
        .iter()
        .map(|token| token["logprob"].as_f64().unwrap())
        .collect();
    let version = reply["hone"]["policy_version"].as_u64().unwrap();
    let turn = json!({
        "prompt_ids": reply["prompt_token_ids"],
        "completion_ids": choice["token_ids"],
        "logprobs": logprobs,
        "temperature": 0.8,
        "version": version,
    });
    (version, turn)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_a_version_drew_elsewhere_are_learned_from_by_their_log_probs() {
    let (_guard, data) = temporary().unwrap();
    let mut changes = one_version_per_four_answers();
    changes.push(("train.method", "binary_reward".into()));
    let app = TestApp::start(&data, &changes).await.unwrap();
    let mut first = Value::Null;
    for seed in 0..8_u32 {
        let (version, turn) = drawn(&app, "What is the capital of Italy?", seed.into()).await;
        let reward = [1.0, -1.0][seed as usize % 2];
        let body = json!({"id": format!("run-{seed}"), "reward": reward, "turns": [turn]});
        let told = app.post(PATH, body.clone()).await.unwrap();
        assert_eq!(told["collected"], true, "{told}");
        if seed == 0 {
            first = told["turn_ids"][0].clone();
            assert_eq!(version, 0);
            // The same again is the same.
            assert_eq!(app.post(PATH, body).await.unwrap(), told);
        }
    }
    let learned = turn(&app, &first).await;
    let fate = &learned["fate"];
    assert!(
        fate["state"] == "trained" || fate["reason"] == "gate_rejected",
        "{learned}"
    );
    assert_eq!(
        (&learned["origin"], &learned["sampling"]["temperature"]),
        (&json!("outside"), &json!(0.8))
    );
    let is_newer = |list: &Value| list["current"].as_u64() > Some(0);
    app.until("/v1/versions", is_newer).await.unwrap();
    // What the newest version draws is taken, too, and holds against it only.
    let newer = drawn_by_newer(&app).await;
    let body = json!({"reward": 1.0, "turns": [newer.clone()]});
    let told = app.post(PATH, body).await.unwrap();
    assert_eq!(told["collected"], true, "{told}");
    for (field, value, param) in [
        ("version", json!(999), "turns[0].version"),
        ("version", Value::Null, "turns[0].version"),
        ("logprobs", json!([-1.0]), "turns[0].logprobs"),
        ("temperature", json!(0.0), "turns[0].temperature"),
        ("prompt_ids", json!([]), "turns[0].completion_ids"),
        (
            "prompt_ids",
            json!([4_000_000_000_u32]),
            "turns[0].prompt_ids",
        ),
    ] {
        refused(&app, &newer, (field, value), param).await;
    }
    // Likely or not: log-probs of something else are told from those of this version.
    let other = newer["logprobs"].as_array().unwrap().iter();
    let other: Vec<f64> = other.map(|one| one.as_f64().unwrap() - 1.0).collect();
    refused(
        &app,
        &newer,
        ("logprobs", json!(other)),
        "turns[0].logprobs",
    )
    .await;
    app.stop().await.unwrap();
    assert_eq!(broken_laws(&data).await.unwrap(), [""; 0]);
}

/// An answer by a version that has learned something, once one serves.
async fn drawn_by_newer(app: &TestApp) -> Value {
    for seed in 0..600 {
        let (version, turn) = drawn(app, "What is the capital of Spain?", seed).await;
        if version > 0 {
            return turn;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("no newer version answers");
}

/// A turn with one field changed is refused, and the error names a field.
async fn refused(app: &TestApp, turn: &Value, (field, value): (&str, Value), param: &str) {
    let mut wrong = turn.clone();
    wrong[field] = value;
    let body = json!({"reward": 1.0, "turns": [wrong]});
    let (status, error) = app.try_post(PATH, body).await.unwrap();
    let error = &error["error"];
    assert_eq!((status, &error["param"]), (400, &json!(param)), "{error}");
}
