//! Models, versions, probes, metrics, the console's routes, and the document that names them all.

use axum::body::Body;
use hone_runtime::LoopPhase;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::testing::{Recorder, Stage, request};

#[tokio::test]
async fn models_are_listed_by_every_name() {
    let stage = Stage::new(Recorder::Collects).await;
    let json = stage.get("/v1/models").await.json();
    let ids: Vec<&str> = json["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["id"].as_str().unwrap())
        .collect();
    let forms = ["", "@stable", "@base"];
    let names = ["org/model", "gpt"].map(|name| forms.map(|form| format!("{name}{form}")));
    assert_eq!(ids, names.concat());
    for id in ids {
        let reply = stage.get(&format!("/v1/models/{id}")).await;
        assert_eq!((reply.status, &reply.json()["id"]), (200, &json!(id)));
    }
    // As Anthropic's libraries read it.
    let card = &json["data"][1];
    let read = (&card["type"], &card["display_name"], &card["created_at"]);
    let wanted = ("model", "org/model@stable", "2023-11-14T22:13:20Z");
    assert_eq!(read, (&json!(wanted.0), &json!(wanted.1), &json!(wanted.2)));
}

#[tokio::test]
async fn versions_begin_empty() {
    let stage = Stage::new(Recorder::Collects).await;
    let json = stage.get("/v1/versions?user=ann&limit=5").await.json();
    let standing = json!({"pinned": false, "tripped": null, "trial": null});
    let expected = json!({"object": "list", "current": 0, "data": [], "next": null, "standing": standing, "trial": null});
    assert_eq!(json, expected);
}

#[tokio::test]
async fn readiness_follows_the_serve_loop_and_the_stop() {
    let stage = Stage::new(Recorder::Collects).await;
    assert_eq!(stage.get("/readyz").await.status, 200);
    stage.http.registry.enter("serve");
    stage
        .http
        .registry
        .update("serve", |s| s.state = LoopPhase::Stopped);
    assert_eq!(stage.get("/readyz").await.status, 503);
    stage
        .http
        .registry
        .update("serve", |s| s.state = LoopPhase::Running);
    assert_eq!(stage.get("/readyz").await.status, 200);
    let body = json!({"model": "gpt", "messages": [{"role": "user", "content": "x"}]});
    stage.http.life.drain();
    for why in ["is draining", "is stopping"] {
        let ready = stage.get("/readyz").await;
        let reply = stage.post("/v1/chat/completions", &body.to_string()).await;
        assert_eq!((ready.status, reply.status), (503, 503));
        assert_eq!(reply.json()["error"]["code"], "stopping");
        let undone = "POST /admin/v1/drain with {\\\"draining\\\": false}";
        for text in [&ready.text, &reply.text] {
            assert!(text.contains(why), "{text}");
            assert_eq!(text.contains(undone), why == "is draining", "{text}");
        }
        // That nothing takes back.
        stage.http.life.stop();
    }
    assert_eq!(stage.get("/livez").await.status, 200);
}

#[tokio::test]
async fn loops_are_switched_by_name() {
    let stage = Stage::new(Recorder::Collects).await;
    let switch = stage.http.registry.switch("judge").unwrap();
    let reply = stage.post("/admin/v1/loops/judge/pause", "").await;
    assert_eq!(
        (reply.json(), switch.is_paused()),
        (json!({"name": "judge", "paused": true}), true)
    );
    let reply = stage.post("/admin/v1/loops/judge/resume", "").await;
    assert_eq!(
        (reply.json(), switch.is_paused()),
        (json!({"name": "judge", "paused": false}), false)
    );
    // What works beside the loops is in the status registry, and goes on.
    let beside = stage.http.registry.enter("eraser");
    let reply = stage.post("/admin/v1/loops/eraser/pause", "").await;
    assert_eq!((reply.status, beside.is_paused()), (404, false));
}

#[tokio::test]
async fn the_status_shows_loops_model_and_ledger() {
    let stage = Stage::new(Recorder::Collects).await;
    let json = stage.get("/admin/v1/status").await.json();
    assert_eq!(json["model"]["name"], "org/model");
    assert_eq!(json["loops"]["judge"]["state"], "starting");
    assert_eq!(json["ledger"]["turns"], 0);
    assert_eq!(json["engine"]["requests_total"], 0);
}

#[tokio::test]
async fn events_begin_with_the_status_and_watchers_are_bounded() {
    let stage = Stage::new(Recorder::Collects).await;
    let watch = || {
        request("GET", "/admin/v1/events", &[])
            .body(Body::empty())
            .unwrap()
    };
    let mut first = stage.send(watch()).await;
    let frame = first.body_mut().frame().await.unwrap().unwrap();
    let text = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
    let data = text.strip_prefix("event: status\ndata: ").unwrap();
    let json: Value = serde_json::from_str(data.trim()).unwrap();
    assert_eq!(json["loops"]["judge"]["state"], "starting");
    let second = stage.send(watch()).await;
    assert_eq!(second.status().as_u16(), 429);
    drop(first);
    assert_eq!(stage.send(watch()).await.status().as_u16(), 200);
}

#[tokio::test]
async fn metrics_are_well_formed_and_count() {
    let stage = Stage::new(Recorder::Collects).await;
    let body = json!({"model": "gpt", "messages": [{"role": "user", "content": "x"}]});
    stage.post("/v1/chat/completions", &body.to_string()).await;
    stage.get("/nowhere").await;
    let reply = stage.get("/metrics").await;
    assert!(
        reply
            .header("content-type")
            .is_some_and(|t| t.contains("version=0.0.4"))
    );
    let mut family = String::new();
    for line in reply.text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap().to_owned();
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        assert!(line.starts_with(&family), "{line} is not of {family}");
        let value = line.rsplit(' ').next().unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    for wanted in [
        "hone_http_requests_total{method=\"POST\",route=\"/v1/chat/completions\",status=\"200\"} 1",
        "hone_http_requests_total{method=\"GET\",route=\"unmatched\",status=\"404\"} 1",
        "hone_request_success_total{finished_reason=\"end_token\"} 1",
        "hone_turns_total{outcome=\"collected\",reason=\"\"} 1",
        "hone_binds_total{how=\"new\"} 1",
        "hone_num_requests_running 0",
        "hone_loop_up{loop=\"judge\"} 0",
    ] {
        assert!(
            reply.text.lines().any(|l| l == wanted),
            "{wanted} is missing:\n{}",
            reply.text
        );
    }
}

#[tokio::test]
async fn the_document_names_every_route_and_only_real_ones() {
    let stage = Stage::new(Recorder::Collects).await;
    let document = stage.get("/openapi.json").await.json();
    let paths = document["paths"].as_object().unwrap();
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/v1/models/{id}",
        "/v1/feedback",
        "/v1/turns/{id}",
        "/v1/versions",
        "/livez",
        "/readyz",
        "/startupz",
        "/metrics",
        "/admin/v1/status",
        "/admin/v1/events",
        "/admin/v1/loops/{name}/pause",
        "/admin/v1/loops/{name}/resume",
        "/v1/me",
        "/v1/auth/sign-in",
        "/v1/keys",
        "/admin/v1/users",
        "/admin/v1/audit",
    ] {
        assert!(paths.contains_key(path), "{path} is missing");
    }
    for (path, item) in paths {
        for method in item.as_object().unwrap().keys() {
            let path = path.replace("{id}", "x").replace("{name}", "judge");
            let request = request(&method.to_uppercase(), &path, &[]);
            let reply = stage.send(request.body(Body::empty()).unwrap()).await;
            assert_ne!(reply.status().as_u16(), 405, "{method} {path}");
            let status = reply.status().as_u16().to_string();
            let documented = &item[method]["responses"];
            assert!(
                documented.get(&status).is_some(),
                "{method} {path} answered {status}"
            );
        }
    }
    let chat = &document["components"]["schemas"];
    assert!(chat.get("ChatCompletion").is_some() && chat.get("ErrorBody").is_some());
}
