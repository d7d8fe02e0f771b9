//! Trials from outside: a version answers a share of the sessions, is promoted, named, retired, and
//! taken back by the watch when it does badly.

use hone_tests::{Changes, TestApp, ask, temporary};
use serde_json::{Value, json};

fn quick(is_watched: bool) -> Vec<(&'static str, toml::Value)> {
    vec![
        // Every turn counts here.
        ("train.gate.held_out_share", 0.0.into()),
        ("train.batch_turns", 4.into()),
        // One version per four answers, however explicit what is said to them.
        ("train.batch_turns_min", 4.into()),
        ("train.explicit_wait_ms", 600_000.into()),
        ("train.tick_ms", 50.into()),
        ("train.canary.share", 0.5.into()),
        ("train.canary.turns", 0.into()),
        ("train.watch.enabled", is_watched.into()),
        ("train.watch.base_turns", 10.into()),
        ("train.watch.threshold", 2.0.into()),
    ]
}

async fn say(app: &TestApp, session: u64, text: &str) -> (u64, String) {
    let mut body = ask(text, session);
    body["session_id"] = json!(format!("session {session}"));
    body["max_tokens"] = json!(256);
    let reply = app.chat(body).await.unwrap();
    let hone = &reply["hone"];
    let turn = hone["turn_id"].as_str().unwrap().to_owned();
    (hone["policy_version"].as_u64().unwrap(), turn)
}

async fn rate(app: &TestApp, turn: &str, score: i64) {
    let said = json!({"turn_id": turn, "score": score});
    app.post("/v1/feedback", said).await.unwrap();
}

/// Rates four answers of `sessions`, and waits until something is on trial and served: what is on trial in
/// the ledger is loaded a moment later.
async fn learn(app: &TestApp, sessions: std::ops::Range<u64>) -> Value {
    for session in sessions {
        let (_, turn) = say(app, session, "What is the capital of France?").await;
        rate(app, &turn, if session % 2 == 0 { 1 } else { -1 }).await;
    }
    let list = app
        .until("/v1/versions", |list| !list["trial"].is_null())
        .await
        .unwrap();
    let served = |status: &Value| status["engine"]["swaps_total"].as_u64() >= Some(1);
    app.until("/admin/v1/status", served).await.unwrap();
    list["trial"].clone()
}

/// Which version answers each of these sessions, twice the same.
async fn answered(app: &TestApp, sessions: std::ops::Range<u64>) -> Vec<(u64, u64)> {
    let mut seen = Vec::new();
    for session in sessions {
        let (version, _) = say(app, session, "Tell me a joke.").await;
        let (again, _) = say(app, session, "Hello!").await;
        assert_eq!(version, again, "session {session} stays where it is");
        seen.push((session, version));
    }
    seen
}

async fn named(app: &TestApp, form: &str) -> Result<u64, u16> {
    let mut body = ask("Hello!", 7);
    body["model"] = json!(format!("hone-starter@{form}"));
    body["store"] = json!(false);
    let reply = app.try_post("/v1/chat/completions", body).await.unwrap();
    match reply.0 {
        200 => Ok(reply.1["hone"]["policy_version"].as_u64().unwrap()),
        status => {
            assert_eq!(reply.1["error"]["code"], "model_not_found", "{}", reply.1);
            assert_eq!(reply.1["error"]["param"], "model");
            Err(status)
        }
    }
}

/// Promoted, it answers everybody, and learning goes on.
async fn promoted(app: &TestApp) {
    let held = app.post("/v1/versions/1/promote", json!({})).await.unwrap();
    assert_eq!(
        (&held["current"], &held["trial"]),
        (&json!(1), &Value::Null)
    );
    let all = answered(app, 100..104).await;
    assert!(all.iter().all(|(_, version)| *version == 1), "{all:?}");
    assert_eq!(named(app, "stable").await, Ok(1));
}

/// What is served is not retired; the others are, cannot be named then, and come back.
async fn retired(app: &TestApp) {
    let refused = app
        .try_post("/v1/versions/1/retire", json!({}))
        .await
        .unwrap();
    assert_eq!(
        (refused.0, &refused.1["error"]["code"]),
        (409, &json!("conflict"))
    );
    app.post("/v1/versions/0/rollback", json!({}))
        .await
        .unwrap();
    app.post("/v1/versions/1/retire", json!({})).await.unwrap();
    assert_eq!(named(app, "v1").await, Err(404));
    let refused = app
        .try_post("/v1/versions/1/rollback", json!({}))
        .await
        .unwrap();
    assert_eq!(
        (refused.0, &refused.1["error"]["code"]),
        (409, &json!("retired"))
    );
    app.delete("/v1/versions/1/retire").await.unwrap();
    assert_eq!(named(app, "v1").await, Ok(1));
}

/// An older one is tried by hand, and what a person retires on trial is taken away.
async fn tried_by_hand(app: &TestApp) {
    let held = app
        .post("/v1/versions/1/canary", json!({"share": 0.4}))
        .await
        .unwrap();
    let sides = (&held["trial"]["version"], &held["trial"]["proven"]);
    assert_eq!(sides, (&json!(3), &json!(2)));
    let held = app.post("/v1/versions/3/retire", json!({})).await.unwrap();
    assert_eq!(
        (&held["current"], &held["trial"]),
        (&json!(4), &Value::Null)
    );
    assert_eq!(named(app, "v1").await, Err(404), "the same adapter");
    let acts = app.get("/admin/v1/audit?limit=200").await.unwrap();
    let acts: Vec<&str> = acts["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|entry| entry["act"].as_str())
        .collect();
    for act in ["promote", "retire", "unretire", "canary", "rollback"] {
        assert!(acts.contains(&&*format!("version.{act}")), "{acts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_is_tried_promoted_named_and_retired() {
    let (_guard, data) = temporary().unwrap();
    let changes = quick(false);
    let app = TestApp::start(&data, &changes as Changes<'_>)
        .await
        .unwrap();
    assert_eq!(named(&app, "stable").await, Ok(0));
    let trial = learn(&app, 0..4).await;
    assert_eq!(
        (&trial["version"], &trial["proven"], &trial["share"]),
        (&json!(1), &json!(0), &json!(0.5))
    );

    // Sessions are split, and stay where they are, over a restart too.
    let split = answered(&app, 100..116).await;
    let tried = split.iter().filter(|(_, version)| *version == 1).count();
    assert!((2..=14).contains(&tried), "{split:?}");
    app.stop().await.unwrap();
    let app = TestApp::start(&data, &changes as Changes<'_>)
        .await
        .unwrap();
    assert_eq!(answered(&app, 100..116).await, split);
    let list = app.get("/v1/versions").await.unwrap();
    let arms = list["trial"]["arms"].as_array().unwrap();
    let turns: Vec<u64> = arms
        .iter()
        .map(|arm| arm["turns"].as_u64().unwrap())
        .collect();
    assert_eq!(turns, [4 * tried as u64, 4 * (16 - tried) as u64]);
    assert_eq!(named(&app, "stable").await, Ok(0));
    assert_eq!(named(&app, "v1").await, Ok(1));
    for unknown in ["v9", "v", "1", "v1x", "newest"] {
        assert_eq!(named(&app, unknown).await, Err(404), "{unknown}");
    }

    promoted(&app).await;
    retired(&app).await;
    tried_by_hand(&app).await;
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trial_that_does_badly_ends_by_itself() {
    let (_guard, data) = temporary().unwrap();
    let changes = quick(true);
    let app = TestApp::start(&data, &changes as Changes<'_>)
        .await
        .unwrap();
    learn(&app, 0..4).await;
    // What is on trial is disliked, the other sessions are content.
    let mut ended = None;
    for session in 200..300 {
        let (version, turn) = say(&app, session, "What is the capital of France?").await;
        rate(&app, &turn, if version == 1 { -1 } else { 1 }).await;
        let list = app.get("/v1/versions").await.unwrap();
        if list["trial"].is_null() {
            ended = Some(list);
            break;
        }
    }
    let list = match ended {
        Some(list) => list,
        None => app
            .until("/v1/versions", |list| list["trial"].is_null())
            .await
            .unwrap(),
    };
    let rows = list["data"].as_array().unwrap();
    let restored = rows.iter().find(|row| row["version"] == 2).unwrap();
    assert_eq!(
        (&restored["parent"], &restored["digest"]),
        (&json!(0), &Value::Null)
    );
    let note = restored["note"].as_str().unwrap();
    assert!(
        note.starts_with("trial ended, auto: complaint rate"),
        "{note}"
    );
    let left = rows.iter().find(|row| row["version"] == 1).unwrap();
    assert_eq!(left["tripped"], true);
    assert_eq!(list["standing"]["tripped"], Value::Null, "learning goes on");
    app.stop().await.unwrap();
}
