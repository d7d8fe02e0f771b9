//! Rewards of whole sessions, over the router.

use hone_domain::{Fate, Reason, SessionId, Stage};
use serde_json::{Value, json};

use crate::testing::{Recorder, Reply, Stage as Gateway, read, request};

const CHAT: &str = "/v1/chat/completions";

/// A conversation of so many turns, in the ledger; its session.
async fn talked(gateway: &Gateway, turns: usize) -> String {
    let mut session = String::new();
    for n in 0..turns {
        let body = json!({
            "model": "gpt", "messages": [{"role": "user", "content": format!("q{n}")}],
            "session_id": "mine",
        });
        let reply = gateway.post(CHAT, &body.to_string()).await;
        session = reply.header("x-hone-session-id").unwrap().to_owned();
    }
    let recorded = std::mem::take(&mut gateway.told.lock().unwrap().turns);
    assert_eq!(recorded.len(), turns);
    gateway.http.ledger.record_turns(&recorded).await.unwrap();
    session
}

async fn feedback(gateway: &Gateway, body: &Value) -> Reply {
    gateway.post("/v1/feedback", &body.to_string()).await
}

#[tokio::test]
async fn a_session_gets_its_reward_and_tells_it() {
    let gateway = Gateway::new(Recorder::Collects).await;
    let session = talked(&gateway, 3).await;
    let rewards = json!({"tests": 1.0, "style": 0.5});
    let body = json!({"session_id": session, "rewards": rewards, "id": "end"});
    let reply = feedback(&gateway, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let told = reply.json();
    assert_eq!(told["outcome"], "stored");
    assert_eq!(told["session_id"], json!(session));
    assert_eq!(
        told["reward"],
        json!({"score": 0.75, "turns_rewarded": 3, "turns_left_out": []})
    );
    assert!(told.get("turn_id").is_none());
    let again = feedback(&gateway, &body).await.json();
    assert_eq!(again["outcome"], "replaced");
    let view = gateway.get(&format!("/v1/sessions/{session}")).await.json();
    assert_eq!(view["rewards"].as_array().unwrap().len(), 1);
    assert_eq!(view["rewards"][0]["rewards"], rewards);
    for turn in view["turns"].as_array().unwrap() {
        let said = turn["feedback"].as_array().unwrap();
        assert_eq!(said.len(), 1, "{turn}");
        assert_eq!(said[0]["score"], 0.75);
        assert_eq!(said[0]["of_session"], true);
    }
}

#[tokio::test]
async fn turns_that_cannot_learn_are_counted_by_their_reason() {
    let gateway = Gateway::new(Recorder::Collects).await;
    let session = talked(&gateway, 2).await;
    let id = SessionId::parse(&session).unwrap();
    let view = gateway.http.ledger.session(id, None, 9).await.unwrap();
    let turn = view.unwrap().turns.rows[0].id;
    let settled = [(turn, Reason::TooLong)];
    gateway.http.ledger.settle_turns(&settled).await.unwrap();
    let body = json!({"session_id": session, "score": -1});
    let reward = feedback(&gateway, &body).await.json()["reward"].clone();
    assert_eq!(
        reward,
        json!({
            "score": -1.0, "turns_rewarded": 1,
            "turns_left_out": [{"reason": "too_long", "turns": 1}],
        })
    );
    let fate = gateway.http.ledger.turn(turn).await.unwrap().unwrap().fate;
    let reason = Reason::TooLong;
    assert_eq!(fate, Fate::Settled { reason });
    assert_ne!(
        fate,
        Fate::Pending {
            stage: Stage::AwaitingVerdict
        }
    );
}

#[tokio::test]
async fn a_session_of_somebody_else_is_as_unknown_as_none() {
    let gateway = Gateway::new(Recorder::Collects).await;
    let session = talked(&gateway, 1).await;
    let other = [
        ("content-type", "application/json"),
        ("authorization", "Bearer user-a"),
    ];
    let mut told = Vec::new();
    for id in [
        session.as_str(),
        "sess_00000000-0000-7000-8000-00000000ffff",
    ] {
        let body = json!({"session_id": id, "score": 1}).to_string();
        let request = request("POST", "/v1/feedback", &other);
        let request = request.body(body.into()).unwrap();
        let reply = read(gateway.send(request).await).await;
        assert_eq!(reply.status, 404, "{}", reply.text);
        told.push(reply.text.replace(id, "SESSION"));
    }
    assert_eq!(told[0], told[1]);
    let view = gateway.get(&format!("/v1/sessions/{session}")).await.json();
    assert_eq!(view["rewards"], json!([]));
}

#[tokio::test]
async fn what_is_wrong_with_a_reward_is_named() {
    let gateway = Gateway::new(Recorder::Collects).await;
    let session = talked(&gateway, 1).await;
    let many: serde_json::Map<_, _> = (0..17).map(|n| (n.to_string(), json!(0))).collect();
    let turn = "turn_00000000-0000-7000-8000-000000000001";
    for (fields, param) in [
        (json!({}), "score"),
        (json!({"score": 1.5}), "score"),
        (json!({"score": 1, "turn_id": turn}), "session_id"),
        (json!({"rewards": {}}), "rewards"),
        (json!({"rewards": {"tests": 1.5}}), "rewards"),
        (json!({"rewards": many}), "rewards"),
        (json!({"rewards": {"n".repeat(65): 1}}), "rewards"),
        (json!({"score": 1, "correction": "so"}), "correction"),
        (json!({"score": 1, "reward": 1}), "reward"),
    ] {
        let mut body = json!({"session_id": session});
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let reply = feedback(&gateway, &body).await;
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["param"]), (400, &json!(param)));
    }
    // No number at all, and none that is finite.
    for number in ["NaN", "Infinity", "1e999", "\"1\""] {
        let body = format!(r#"{{"session_id": "{session}", "rewards": {{"tests": {number}}}}}"#);
        assert_eq!(gateway.post("/v1/feedback", &body).await.status, 400);
    }
    let view = gateway.get(&format!("/v1/sessions/{session}")).await.json();
    assert_eq!(view["rewards"], json!([]));
}
