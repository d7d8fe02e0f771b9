//! Series, followers, the answer to "is it learning", settings, drain.

use axum::body::Body;
use hone_ledger::suite::World;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::testing::{Recorder, Stage, request};

async fn stage() -> Stage {
    let stage = Stage::new(Recorder::Collects).await;
    for name in ["serve", "collect", "judge", "train"] {
        stage.http.registry.enter(name);
        let running = hone_runtime::LoopPhase::Running;
        stage.http.registry.update(name, |s| s.state = running);
    }
    stage
}

/// Takes samples, two seconds apart.
async fn sampled(stage: &Stage, n: usize) -> Vec<i64> {
    let mut times = Vec::new();
    for _ in 0..n {
        stage.clock.advance(2_000);
        stage.http.watch.sample(&stage.http.sources()).await;
        times.push(stage.http.watch.newest_ms().unwrap());
    }
    times
}

/// The data of the next `n` events of a name, with their ids, as a follower gets them.
async fn followed(stage: &Stage, path: &str, last: Option<i64>, n: usize) -> Vec<(i64, Value)> {
    let last = last.map(|last| last.to_string());
    let mut headers = Vec::new();
    headers.extend(last.as_deref().map(|last| ("last-event-id", last)));
    let request = request("GET", path, &headers).body(Body::empty());
    let response = stage.send(request.unwrap()).await;
    assert_eq!(response.status(), 200);
    let (mut body, mut text, mut found) = (response.into_body(), String::new(), Vec::new());
    while found.len() < n {
        let frame = body.frame().await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            let field = |name: &str| event.lines().find_map(|l| l.strip_prefix(name));
            if field("event: ") == Some("sample") {
                let data = serde_json::from_str(field("data: ").unwrap()).unwrap();
                found.push((field("id: ").unwrap().parse().unwrap(), data));
            }
            text = rest.to_owned();
        }
    }
    found
}

#[tokio::test]
async fn every_reason_is_listed_and_taken() {
    let stage = stage().await;
    let list = stage.get("/admin/v1/reasons").await.json();
    let rows = list["data"].as_array().unwrap();
    assert_eq!(rows.len(), hone_domain::Reason::ALL.len() - 2);
    let names: Vec<&str> = rows
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert!(
        names.is_sorted() && names.contains(&"abstained"),
        "{names:?}"
    );
    for row in rows {
        let name = row["name"].as_str().unwrap();
        let reason = hone_domain::Reason::from_stored(name).unwrap();
        assert!(
            reason.is_kept() && row["explanation"] == reason.explain(),
            "{row}"
        );
        let path = format!("/admin/v1/turns?reason={name}");
        assert_eq!(stage.get(&path).await.status, 200, "{name}");
    }
}

#[tokio::test]
async fn series_hold_what_was_sampled() {
    let stage = stage().await;
    let times = sampled(&stage, 3).await;
    let path = format!(
        "/admin/v1/series?names=turns_total,unknown&since_ms={}",
        times[1]
    );
    let json = stage.get(&path).await.json();
    assert_eq!(
        (&json["object"], &json["step_ms"]),
        (&json!("series"), &json!(2_000))
    );
    let expected = json!([[times[1], 0.0], [times[2], 0.0]]);
    assert_eq!(
        (&json["data"]["turns_total"], &json["data"]["unknown"]),
        (&expected, &json!([]))
    );
    let names = json["names"].as_array().unwrap();
    for name in [
        "turns_total",
        "tokens_per_s",
        "judge_queue_depth",
        "train_lag_s",
    ] {
        assert!(names.contains(&json!(name)), "{name}");
    }
    let all = ["a"; 65].join(",");
    let reply = stage.get(&format!("/admin/v1/series?names={all}")).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["param"]),
        (400, &json!("names"))
    );
}

#[tokio::test]
async fn a_follower_that_comes_back_loses_and_repeats_nothing() {
    let stage = stage().await;
    let times = sampled(&stage, 2).await;
    // Somebody new begins with the newest sample, or where they say.
    let seen = followed(&stage, "/admin/v1/events", None, 1).await;
    assert_eq!(
        (seen[0].0, &seen[0].1["at_ms"]),
        (times[1], &json!(times[1]))
    );
    assert_eq!(seen[0].1["values"]["turns_total"], 0.0);
    assert_eq!(seen[0].1["why"]["learning"], "soon");
    assert_eq!(seen[0].1["why"]["alerts"], json!([]));
    let path = format!("/admin/v1/events?since_ms={}", times[0]);
    let seen = followed(&stage, &path, None, 1).await;
    assert_eq!(seen[0].0, times[1]);
    let later = sampled(&stage, 3).await;
    let seen = followed(&stage, "/admin/v1/events", Some(times[0]), 4).await;
    let ids: Vec<i64> = seen.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [&times[1..], &later[..]].concat());
}

#[tokio::test]
async fn the_sentence_and_the_alerts_follow_the_loops() {
    let stage = stage().await;
    let json = stage.get("/admin/v1/why").await.json();
    assert_eq!(
        (&json["learning"], &json["alerts"]),
        (&json!("soon"), &json!([]))
    );
    let paused = hone_runtime::LoopPhase::Paused;
    stage.http.registry.update("train", |s| s.state = paused);
    let at = sampled(&stage, 2).await[0];
    let json = stage.get("/admin/v1/why").await.json();
    assert_eq!(json["learning"], "no");
    assert!(
        json["sentence"].as_str().unwrap().contains("train"),
        "{json}"
    );
    let alert = &json["alerts"][0];
    assert_eq!(
        (&alert["id"], &alert["since_ms"]),
        (&json!("train_paused"), &json!(at))
    );
    assert_eq!(alert["severity"], "warn");
    let running = hone_runtime::LoopPhase::Running;
    stage.http.registry.update("train", |s| s.state = running);
    sampled(&stage, 1).await;
    let json = stage.get("/admin/v1/why").await.json();
    assert_eq!(json["alerts"], json!([]));
}

#[tokio::test]
async fn a_rollback_is_not_taken_for_learning() {
    let stage = stage().await;
    let world = World::new(stage.http.ledger.clone());
    let learning = async || {
        sampled(&stage, 1).await;
        stage.get("/admin/v1/why").await.json()["learning"].clone()
    };
    assert_eq!(learning().await, "soon");
    let policy = world.publish_next(0).await;
    stage.http.policies.update(|heads| heads.with(policy));
    assert_eq!(learning().await, "yes");
    stage.clock.advance(3_600_000);
    assert_ne!(learning().await, "yes");
    let scope = json!({"scope": world.scope()});
    let reply = stage
        .post("/admin/v1/versions/0/rollback", &scope.to_string())
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_ne!(learning().await, "yes");
}

#[tokio::test]
async fn settings_are_shown() {
    let stage = stage().await;
    let json = stage.get("/admin/v1/config").await.json();
    let rows = json["data"].as_array().unwrap();
    let bind = rows.iter().find(|row| row["key"] == "http.bind").unwrap();
    assert_eq!(
        (&bind["value"], &bind["origin"]),
        (&json!("127.0.0.1:8080"), &json!("default"))
    );
}

#[tokio::test]
async fn a_drain_can_be_taken_back() {
    let stage = stage().await;
    let body = json!({"model": "gpt", "messages": [{"role": "user", "content": "x"}]}).to_string();
    let drained = stage.post("/admin/v1/drain", "{}").await.json();
    assert_eq!(
        drained,
        json!({"object": "drain", "draining": true, "completions_live": 0})
    );
    assert_eq!(stage.post("/v1/chat/completions", &body).await.status, 503);
    assert_eq!(stage.get("/readyz").await.status, 503);
    // Followers stay: the console is where the drain is watched.
    sampled(&stage, 1).await;
    followed(&stage, "/admin/v1/events", None, 1).await;
    let back = stage
        .post("/admin/v1/drain", r#"{"draining": false}"#)
        .await;
    assert_eq!(back.json()["draining"], false);
    assert_eq!(stage.post("/v1/chat/completions", &body).await.status, 200);
}
