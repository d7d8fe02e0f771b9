//! What counts against a caller's limits, and until when.

use axum::body::Body;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::people::NO_LIMITS;
use crate::testing::{Recorder, Reply, Script, Stage, read, request};
use hone_accounts::{LimitSet, LimitsConfig};

async fn stage(owner: LimitSet) -> Stage {
    let limits = LimitsConfig {
        key: NO_LIMITS,
        owner,
        team: NO_LIMITS,
        counted_max: 10,
    };
    Stage::with_limits(Recorder::Collects, limits).await
}

fn tokens_left(reply: &Reply) -> u64 {
    let left = reply.header("x-ratelimit-remaining-tokens").unwrap();
    left.parse().unwrap()
}

#[tokio::test]
async fn embeddings_and_comparisons_cost_what_they_take() {
    let stage = stage(LimitSet {
        tokens_per_minute: 1_000,
        ..NO_LIMITS
    })
    .await;
    let embed = json!({"model": "gpt", "input": ["ab", [65, 66, 67]]}).to_string();
    assert_eq!(
        tokens_left(&stage.post("/v1/embeddings", &embed).await),
        995
    );
    // Refused ones cost nothing.
    let wrong = json!({"model": "gpt", "input": [[999]]}).to_string();
    assert_eq!(
        tokens_left(&stage.post("/v1/embeddings", &wrong).await),
        995
    );

    let message = json!({"role": "user", "content": "hi"});
    let count = json!({"messages": [message]}).to_string();
    let prompt = stage.post("/tokenize", &count).await.json()["count"].clone();
    let body = json!({"a": 0, "b": 0, "prompts": [[message]]}).to_string();
    let reply = stage.post("/v1/versions/compare", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let pair = &reply.json()["data"][0];
    let said: u64 = ["a", "b"]
        .iter()
        .map(|of| pair[of]["tokens"].as_u64().unwrap())
        .sum();
    let cost = 2 * prompt.as_u64().unwrap() + said;
    assert_eq!(tokens_left(&reply), 995 - cost);
}

#[tokio::test]
async fn comparisons_wait_like_other_requests() {
    let stage = stage(LimitSet {
        requests_per_minute: 2,
        ..NO_LIMITS
    })
    .await;
    let prompts = json!([[{"role": "user", "content": "hi"}]]);
    let body = json!({"a": 0, "b": 0, "prompts": prompts}).to_string();
    for status in [200, 200, 429] {
        let reply = stage.post("/v1/versions/compare", &body).await;
        assert_eq!(reply.status, status, "{}", reply.text);
    }
    assert_eq!(stage.fake.asks.lock().unwrap().len(), 4);
}

#[tokio::test]
async fn what_goes_on_without_its_client_counts_on() {
    let stage = stage(LimitSet {
        streams_max: 1,
        tokens_per_minute: 1_000,
        ..NO_LIMITS
    })
    .await;
    stage.script([Script::Hang]);
    let body =
        json!({"model": "gpt", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
    let chat = |key: Option<&'static str>| {
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(key.map(|key| ("idempotency-key", key)));
        let request = request("POST", "/v1/chat/completions", &headers);
        stage.send(request.body(Body::from(body.to_string())).unwrap())
    };
    let mut first = chat(Some("k")).await;
    assert_eq!(first.status().as_u16(), 200);
    first.body_mut().frame().await.unwrap().unwrap();
    drop(first);
    let second = read(chat(None).await).await;
    assert_eq!(second.status, 429, "{}", second.text);
    assert!(
        second.text.contains(": 1 completion at once;"),
        "{}",
        second.text
    );
    // Its end frees the place, and what was said since the client left is paid.
    stage.abort.pull();
    let mut third = read(chat(None).await).await;
    for _ in 0..500 {
        if third.status == 200 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        third = read(chat(None).await).await;
    }
    assert_eq!(third.status, 200, "{}", third.text);
}

#[tokio::test]
async fn keys_are_not_multiplied_by_rotating_them() {
    let stage = Stage::new(Recorder::Collects).await;
    let most = stage.http.people.config().keys_per_owner_max;
    let made = stage.post("/v1/keys", r#"{"name": "first"}"#).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let id = |reply: &Reply| reply.json()["id"].as_str().unwrap().to_owned();
    let mut newest = id(&made);
    let mut refused: Option<Value> = None;
    for _ in 0..2 * most {
        let path = format!("/v1/keys/{newest}/rotate");
        let reply = stage.post(&path, "").await;
        if reply.status != 201 {
            refused = Some(reply.json());
            break;
        }
        newest = id(&reply);
    }
    assert_eq!(refused.unwrap()["error"]["code"], "too_many_keys");
    // Old ones end by themselves, and then it goes on.
    stage
        .clock
        .advance(stage.http.people.config().key_overlap_ms);
    let reply = stage.post(&format!("/v1/keys/{newest}/rotate"), "").await;
    assert_eq!(reply.status, 201, "{}", reply.text);
}

#[tokio::test]
async fn tries_at_the_same_moment_count_too() {
    let stage = Stage::new(Recorder::Collects).await;
    let tries = stage.http.people.config().attempts_max as usize;
    let body = json!({"name": "ann", "password": "wrong password"}).to_string();
    let all = (0..2 * tries).map(|_| stage.post("/v1/auth/sign-in", &body));
    let replies = futures::future::join_all(all).await;
    let looked_at = replies.iter().filter(|reply| reply.status == 401).count();
    assert_eq!(looked_at, tries);
    assert!(
        replies
            .iter()
            .all(|reply| [401, 429].contains(&reply.status))
    );
}

#[tokio::test]
async fn strangers_send_little() {
    let stage = Stage::new(Recorder::Collects).await;
    for path in ["/v1/auth/sign-in", "/v1/auth/invite"] {
        let body = json!({"name": vec![0; 20_000]}).to_string();
        assert_eq!(stage.post(path, &body).await.status, 413, "{path}");
        let asked = stage.post(&format!("{path}?name=ann"), "{}").await;
        assert_eq!(
            (asked.status, &asked.json()["error"]["param"]),
            (400, &json!("name"))
        );
    }
}

/// An agent's keeper who compares for it is held to the keeper's limits.
#[tokio::test]
async fn who_acts_for_an_agent_has_their_own_limits() {
    let stage = stage(LimitSet {
        requests_per_minute: 2,
        ..NO_LIMITS
    })
    .await;
    let send = async |path: &str, agent: Option<&str>, body: Value| {
        let mut headers = vec![
            ("content-type", "application/json"),
            ("authorization", "Bearer developer"),
        ];
        headers.extend(agent.map(|agent| ("x-hone-agent", agent)));
        let request = request("POST", path, &headers).body(Body::from(body.to_string()));
        read(stage.send(request.unwrap()).await).await
    };
    let prompts = json!([[{"role": "user", "content": "hi"}]]);
    let compare = json!({"a": 0, "b": 0, "prompts": prompts});
    for (agent, status) in [("one", 200), ("two", 200), ("three", 429)] {
        let made = send("/v1/agents", None, json!({"name": agent})).await;
        assert_eq!(made.status, 201, "{}", made.text);
        let reply = send("/v1/versions/compare", Some(agent), compare.clone()).await;
        assert_eq!(reply.status, status, "{agent}: {}", reply.text);
    }
}
